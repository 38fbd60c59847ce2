"""What pages rest on, looked at again when it may be another: the file, and what is on record of the runs in it."""

import asyncio
import contextlib
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import parse_qsl, unquote

from starlette.concurrency import run_in_threadpool

from evalhouse.warehouse.engine.shared import one_reading
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

# While a run writes: how old may be what is known of the runs that have ended, and from when on it is looked at again.
_STALE_S: Final = 5.0
_FRESH_S: Final = 1.0
# And how old a page of many runs, and one of a run under way.
_MANY_S: Final = 30.0
_LIVE_S: Final = 3.0
_OF_RUN: Final = re.compile(r"/runs/([^/]+)(?:/.*)?")
_NAME_RUNS: Final = {"run", "base", "candidate", "against"}

Files = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Term:
    """How long a page holds: as long as this text is what the state has for it, and where that does not say all that
    the page shows, no longer than so many seconds."""

    stamp: str
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class State:
    """What the pages rest on: of the file as it was looked at, and of the runs in it."""

    files: Files
    stamp: str
    running: frozenset[str]
    stored: frozenset[str]
    read_at: float

    def find_term(self, path: str, query: str) -> Term:
        """How long a page at an address holds that is made in this state."""
        if not self.running:
            return Term(stamp=repr(self.files))
        named = list(_list_runs(path, query))
        if named and self.stored.issuperset(named):
            return Term(stamp=self.stamp)
        return Term(stamp=self.stamp, seconds=_LIVE_S if named else _MANY_S)


def _list_runs(path: str, query: str) -> Iterator[str]:
    if match := _OF_RUN.fullmatch(path):
        yield unquote(match[1])
    yield from (value for name, value in parse_qsl(query) if name in _NAME_RUNS)


class StateReader:
    """The state of one warehouse, kept as long as it may be."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._guard = threading.Lock()
        self._state: State | None = None

    @property
    def is_beside_run(self) -> bool:
        """Whether a run was under way when it was last looked at."""
        return self._state is not None and bool(self._state.running)

    def forget(self) -> None:
        """It is looked at again before it is used."""
        self._state = None

    def find(self) -> State | None:
        """What is known and may still be used; None where it has to be read first."""
        state = self._state
        if state is None or state.files == self._look():
            return state
        age = time.monotonic() - state.read_at
        if not state.running or age > _STALE_S:
            return None
        if age > _FRESH_S and not self._guard.locked():
            asyncio.get_running_loop().run_in_executor(None, self._read)
        return state

    async def read(self) -> State | None:
        """The state, read where it has to be; None of a lake, and where there is none to be had."""
        return self.find() or await run_in_threadpool(self._read)

    def _look(self) -> Files | None:
        """The file and its log as they are; None for a lake, and where there is nothing yet."""
        location = self._warehouse.location
        if location.lake is not None:
            return None
        try:
            found = [os.stat(location.path)]
        except OSError:
            return None
        with contextlib.suppress(OSError):
            found.append(os.stat(f"{location.path}.wal"))
        return tuple((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size) for status in found)

    def _read(self) -> State | None:
        with self._guard:
            if self._state is None or self._state.files != self._look():
                try:
                    with one_reading():  # of its own: what waits for its turn to be made must keep no writer out
                        self._state = self._read_unchanged()
                except WarehouseError:  # the page itself says so
                    self._state = None
            return self._state

    def _read_unchanged(self) -> State | None:
        """Look at the file while it is kept from being written, which the first query sees to."""
        self._warehouse.read("select 1")
        files = self._look()
        if files is None:
            return None
        (row,) = self._warehouse.read_rows(read_query("ui/state"))
        if files != self._look():
            return None
        running, stored = (frozenset(cast("list[str]", row[name])) for name in ("running", "stored"))
        return State(files=files, stamp=str(row["stamp"]), running=running, stored=stored, read_at=time.monotonic())
