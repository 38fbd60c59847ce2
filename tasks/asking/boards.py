"""Who may use how many slots of a limit that several processes share: the rule, and the board of one machine.

Each process says what it needs and computes its own part from what all say; nobody computes for another. So that
the parts never add up to more than the limit, a process takes only what the others do not hold at that moment, and
gives up only what it does not use: parts that do not fit together for a while (each saw another moment) delay a
slot's change of hands and never double it. `shared_limit` keeps a process's part up to date, and a board is where the
processes see each other: the files of one machine here, a Prefect server in `prefect_board`.

On one machine every process keeps a row of its own, a small file, in a folder per limit. Rows are files and not a table
of SQLite because a killed process is then harmless by construction: each writes its own row alone (as a whole, by
renaming), holds an operating system lock for as long as it lives, and a row whose lock is free belongs to nobody and is
removed by the next process that looks. There is no database that a crash, a full disk or a network folder could leave
broken, nothing to repair, and no time after which a process is taken for dead. One that is only suspended keeps its
slots, since it may go on at any moment. Rows are read and written by one process at a time, under the lock `turn`; a
look costs half a millisecond of a thread.
"""

import asyncio
import contextlib
import hashlib
import os
import sys
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson
from filelock import FileLock, Timeout

# With fewer slots than processes, those who got none are served before the others after so many seconds.
_TURN_S = 5.0


class BoardLost(Exception):
    """The others cannot be seen, so nothing can be shared. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one process needs of a limit.

    `setting` is the most it may ever use, `wish` what it could use at once, and `held` what it may use before it
    hears more: it can hand over the rest.
    """

    setting: int
    wish: int
    held: int


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What a process has reported to the others: its need, and the slots that nobody else may have (`grant`)."""

    setting: int
    wish: int
    grant: int


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a process is to hold (`target`), what it can hold at the moment (`grant`), and the limit of all."""

    target: int
    grant: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a process may use until it asks again, which it should after `again_s` seconds; `limit` is that of all."""

    slots: int
    limit: int
    again_s: float

    @property
    def fraction(self) -> float:
        """The part of a rate that goes with the slots; never 0, since without a slot nothing starts anyway."""
        return min(1.0, max(1, self.slots) / max(1, self.limit))


class Board(Protocol):
    """Where the processes that share one limit see each other."""

    async def exchange(self, need: Need) -> Share:
        """Tell the others what this process needs and hear what it may use; raises BoardLost."""

    async def leave(self) -> None:
        """Give everything back."""


def claim_slots(need: Need, name: str, others: Mapping[str, Holding], *, most: int | None = None) -> Claim:
    """What the process `name` is to hold beside the others; the limit is the smallest setting, and at most `most`."""
    settings = [need.setting, *(other.setting for other in others.values())]
    limit = min(settings) if most is None else min(most, *settings)
    wishes = {name: need.wish} | {other: holding.wish for other, holding in others.items()}
    target = divide_slots(wishes, limit, turn=int(time.time() / _TURN_S))[name]
    room = limit - sum(other.grant for other in others.values())
    return Claim(target=target, grant=max(need.held, min(target, room), 0), limit=limit)


def divide_slots(wishes: Mapping[str, int], limit: int, *, turn: int = 0) -> dict[str, int]:
    """All slots of the limit, by name: small wishes in full, the others evenly, and what nobody wishes evenly to all.

    Everybody gets at least one. Where there are fewer slots than names, those who wish for any get one each, and
    which of them come first changes with `turn`.
    """
    names = sorted(wishes)
    scarce = limit < len(names)
    dues = {name: min(wishes[name], 1) if scarce else min(max(wishes[name], 1), limit) for name in names}
    places = {name: (position + turn) % len(names) if scarce else position for position, name in enumerate(names)}
    order = sorted(names, key=lambda name: (dues[name], places[name]))
    left, parts = limit, dict.fromkeys(names, 0)
    for behind, name in zip(range(len(order), 0, -1), order, strict=True):
        parts[name] = min(dues[name], left // behind)
        left -= parts[name]
    for behind, name in zip(range(len(order), 0, -1), order, strict=True):
        extra = left // behind
        parts[name] += extra
        left -= extra
    return parts


FOLDER_VARIABLE = "EVALHOUSE_LIMITS_DIR"
# Raise it when a row comes to mean something else: processes of both versions then do not see each other.
_ROWS = "v1"
_LOCK = ".lock"
_ROW = ".json"
_PARTIAL = ".partial"
# Between two looks while nothing changes, and while slots are changing hands.
_CALM_S = 0.2
_BUSY_S = 0.05
# Somebody's turn takes a millisecond; after this long the process that has it was suspended in the middle.
_PATIENCE_S = 5.0
_POLL_S = 0.002


def find_limits_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The folder of all limits, for this user on this machine; raises BoardLost when there is no home folder."""
    if chosen := environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    try:
        if sys.platform == "darwin":
            cache = Path.home() / "Library" / "Caches"
        elif sys.platform == "win32":
            cache = Path(environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        else:
            # A relative path is to be ignored, says the XDG Base Directory Specification.
            named = Path(environ.get("XDG_CACHE_HOME", ""))
            cache = named if named.is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise BoardLost(f"there is no folder for them ({error}); set {FOLDER_VARIABLE}") from None
    return cache / "evalhouse" / "limits"


class FileBoard:
    """One process's place in the folder of one limit; `key` names the limit and is only seen as a hash."""

    def __init__(self, folder: Path, key: str) -> None:
        digest = hashlib.sha256(f"{_ROWS} {key}".encode()).hexdigest()
        self._folder = folder / digest[:32]
        # Names sort by age, and no two are the same.
        self._name = f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}"
        self._turn = FileLock(self._folder / "turn", thread_local=False)
        self._life = FileLock(self._folder / f"{self._name}{_LOCK}", thread_local=False)
        self._written = b""
        # Of its own: the event loop's threads may all be busy with a warehouse for a while.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shared-limit")

    async def exchange(self, need: Need) -> Share:
        """One turn at the folder; raises BoardLost."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, need)

    async def leave(self) -> None:
        """Remove the row; needs no turn, because a row is looked at only while its lock is held."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._leave)
        self._thread.shutdown(wait=False)

    def _exchange(self, need: Need) -> Share:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with self._turn.acquire(timeout=_PATIENCE_S, poll_interval=_POLL_S):
                self._sign_in()
                claim = claim_slots(need, self._name, self._read_others())
                self._write(need, claim)
        except Timeout:
            raise BoardLost(
                f"another process has kept {self._turn.lock_file} locked for {_PATIENCE_S:g} s; is one suspended?"
            ) from None
        except (OSError, ValueError, TypeError) as error:
            raise BoardLost(
                f"{self._folder} cannot be used ({error}); make it writable or name another folder in {FOLDER_VARIABLE}"
            ) from None
        settled = claim.target == claim.grant
        return Share(slots=min(claim.target, claim.grant), limit=claim.limit, again_s=_CALM_S if settled else _BUSY_S)

    def _sign_in(self) -> None:
        """Be seen as alive; once more if somebody has emptied the folder meanwhile."""
        if self._life.is_locked and not Path(self._life.lock_file).exists():
            self._life.release()
            self._written = b""
        if not self._life.is_locked:
            self._life.acquire(timeout=0)

    def _read_others(self) -> dict[str, Holding]:
        """The rows of the others that live; those of the dead are removed."""
        others = {}
        for entry in os.listdir(self._folder):
            name = entry.removesuffix(_LOCK)
            if name in (entry, self._name):
                continue
            if self._bury(name):
                continue
            with contextlib.suppress(FileNotFoundError):  # it has just left
                others[name] = Holding(**orjson.loads((self._folder / f"{name}{_ROW}").read_bytes()))
        return others

    def _bury(self, name: str) -> bool:
        """Remove what a process has left, if it is dead."""
        life = FileLock(self._folder / f"{name}{_LOCK}", timeout=0, thread_local=False)
        try:
            with life:
                (self._folder / f"{name}{_ROW}").unlink(missing_ok=True)
                (self._folder / f"{name}{_PARTIAL}").unlink(missing_ok=True)
                Path(life.lock_file).unlink(missing_ok=True)
        except Timeout:
            return False
        return True

    def _write(self, need: Need, claim: Claim) -> None:
        row = orjson.dumps(Holding(setting=need.setting, wish=need.wish, grant=claim.grant))
        if row == self._written:
            return
        partial = self._folder / f"{self._name}{_PARTIAL}"
        partial.write_bytes(row)
        partial.replace(self._folder / f"{self._name}{_ROW}")
        self._written = row

    def _leave(self) -> None:
        with contextlib.suppress(OSError):  # what stays is removed by the process that looks next
            (self._folder / f"{self._name}{_ROW}").unlink(missing_ok=True)
            (self._folder / f"{self._name}{_PARTIAL}").unlink(missing_ok=True)
            if self._life.is_locked:
                Path(self._life.lock_file).unlink(missing_ok=True)
        self._life.release()
