"""The record of calls during a run: the replies recorded before, and every new call, kept before its reply is used.

Opening the warehouse takes 20 ms of CPU, ten times the cost of a call here, and most requests of a night with new
answers have never been asked. So the keys of all recorded requests are read once, and the replies to known requests
are looked up many at a time.
"""

import asyncio
import contextlib
import os
import time
import uuid
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from evalhouse.tasks.judge.protocol import FatalJudgeError, RunCancelled
from evalhouse.warehouse.engine.locks import Claims
from evalhouse.warehouse.errors import WarehouseBusy
from evalhouse.warehouse.mover import SEGMENT, Mover, Segment, find_journal, parse_line
from evalhouse.warehouse.rows.calls import StoredReply, find_replies, make_request_key
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The Prefect runs that a call belongs to."""

    flow_run_id: str | None = None
    task_run_id: str | None = None


ORIGIN: ContextVar[Origin] = ContextVar("ORIGIN", default=Origin())  # noqa: B039  # frozen


@dataclass(kw_only=True)
class Call:
    """One row of `llm_calls` in the making."""

    step: str
    sample_id: str | None
    prompt: str | None
    prompt_hash: str | None
    judge: str
    model: str | None
    request_hash: str
    status: str
    attempt: int
    request: str | None = None
    reply: str | None = None
    thoughts: str | None = None
    logprobs: str | None = None
    reply_repair: str | None = None
    error: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    latency_ms: float | None = None
    reused_call_id: str | None = None
    started_at: float = 0.0
    batch_id: str | None = None


class Record(Protocol):
    """The part of a record that the call path needs; the dry run has one that keeps nothing."""

    async def find(self, request_hash: str) -> StoredReply | None:
        """Return the recorded reply to a request, or None."""

    def claim(self, request_hash: str) -> bool:
        """Return False if another process asks the same now, or has a reply to it; `keep` gives the claim back."""

    def keep(self, call: Call) -> str:
        """Record a call and return its id."""

    def close(self) -> None:
        """Move all calls to the warehouse."""


T = TypeVar("T")

_MAX_LOOK_UP = 2000
_GATHER_S = 0.01
_COARSE_NS = 50_000_000
_WATCH_S = 1.0
# A segment of another process is there for longer, and is seen unless this process was stopped meanwhile.
_UNSEEN_S = 5.0
_BLOCK_BYTES = 2**20


class ReplyFinder:
    """Finds replies within one event loop; `only_runs` looks at the calls of these runs alone."""

    def __init__(self, warehouse: Warehouse, *, only_runs: Sequence[str] | None = None) -> None:
        self._warehouse = warehouse
        self._only_runs = only_runs
        self._reading_keys: asyncio.Task[array[int]] | None = None
        self._new_keys: set[int] = set()
        self._wanted: dict[str, asyncio.Future[StoredReply | None]] = {}
        self._looking_up: asyncio.Task[None] | None = None

    def expect(self, request_key: int) -> None:
        """Note that a reply to the request with this key is recorded from now on."""
        self._new_keys.add(request_key)

    async def find(self, request_hash: str) -> StoredReply | None:
        """Return the recorded reply to a request, or None; raises WarehouseError when it cannot be read."""
        if self._reading_keys is None:
            self._reading_keys = asyncio.create_task(_read_patiently(self._read_keys))
        # Shielded, because other callers wait for the same.
        keys, key = await asyncio.shield(self._reading_keys), make_request_key(request_hash)
        place = bisect_left(keys, key)
        if key not in self._new_keys and (place == len(keys) or keys[place] != key):
            return None
        future = self._wanted.get(request_hash)
        if future is None:
            future = self._wanted[request_hash] = asyncio.get_running_loop().create_future()
            if self._looking_up is None:
                self._looking_up = asyncio.create_task(self._look_up())
        return await asyncio.shield(future)

    def expects(self, request_key: int) -> bool:
        """Return whether a reply to the request with this key was recorded after the keys were read."""
        return request_key in self._new_keys

    def read_again(self) -> None:
        """Have the next call of `find` read all keys again."""
        self._reading_keys = None

    def _read_keys(self) -> "array[int]":
        """Read the sorted keys of all recorded replies, 8 bytes each."""
        keys = self._warehouse.fetch("calls/request_keys", run_ids=self._only_runs)["request_key"]
        return array("Q", keys.sort())

    async def _look_up(self) -> None:
        """Look up the requests of a moment together, until no more come; an error is raised to all who wait."""
        try:
            while self._wanted:
                await asyncio.sleep(_GATHER_S)
                batch = dict(list(self._wanted.items())[:_MAX_LOOK_UP])
                read = partial(find_replies, self._warehouse, batch.keys(), only_runs=self._only_runs)
                replies = await _read_patiently(read)
                for request_hash, future in batch.items():
                    del self._wanted[request_hash]
                    future.set_result(replies.get(request_hash))
        except (Exception, asyncio.CancelledError) as error:
            for future in self._wanted.values():
                future.set_exception(
                    error if isinstance(error, Exception) else RunCancelled("the look-up was cancelled")
                )
                future.exception()  # looked at, so that asyncio does not report it where no question waits any more
            self._wanted.clear()
        finally:
            self._looking_up = None


async def _read_patiently(read: Callable[[], T]) -> T:
    """Read in a thread, again and again while another program holds the file, up to a minute."""
    deadline = time.monotonic() + FLUSH_PATIENCE_S
    while True:
        try:
            return await asyncio.to_thread(read)
        except WarehouseBusy:
            if time.monotonic() > deadline:
                raise


@dataclass(kw_only=True)
class _OtherSegment:
    """An open segment of another process's journal, read up to now, and the requests with a reply in it."""

    file: int
    rest: bytes = b""
    found: set[str] = field(default_factory=set)


class OtherReplies:
    """The usable replies in the journals of other processes, as long as these are not in the warehouse.

    A segment stays open, so that it can be read to its end after it was moved; from then on the warehouse has its
    replies, and `moved` is called with the hash of each request.
    """

    def __init__(self, folder: Path, owner: str, *, moved: Callable[[str], None]) -> None:
        self._folder, self._owner, self._moved = folder, owner, moved
        self._listed_at = 0
        self._looked_at = time.monotonic()
        self._known: set[str] = set()
        self._segments: list[_OtherSegment] = []
        self._replies: dict[str, StoredReply] = {}

    def has_paused(self) -> bool:
        """Return whether the last look is so long ago that replies may have come to the warehouse unseen."""
        before, self._looked_at = self._looked_at, time.monotonic()
        return self._looked_at - before > _UNSEEN_S

    def find(self, request_hash: str) -> StoredReply | None:
        """Return the reply to a request; reads what was added to the journals since the last look."""
        changed_at = os.stat(self._folder).st_mtime_ns
        if changed_at != self._listed_at:
            # Clocks of file systems are coarse: a folder that has just changed may change again at the same time.
            self._listed_at = changed_at if time.time_ns() - changed_at > _COARSE_NS else 0
            names = {path.name for path in self._folder.glob(f"*{SEGMENT}") if not path.name.startswith(self._owner)}
            for name in names - self._known:
                with contextlib.suppress(FileNotFoundError):
                    self._segments.append(_OtherSegment(file=os.open(self._folder / name, os.O_RDONLY)))
            self._known = names
        for segment in list(self._segments):
            is_moved = not os.fstat(segment.file).st_nlink
            self._read(segment)
            if is_moved:
                os.close(segment.file)
                self._segments.remove(segment)
                for moved_hash in segment.found:
                    self._replies.pop(moved_hash, None)
                    self._moved(moved_hash)
        return self._replies.get(request_hash)

    def _read(self, segment: _OtherSegment) -> None:
        """Read the lines that were added."""
        while block := os.read(segment.file, _BLOCK_BYTES):
            *lines, segment.rest = (segment.rest + block).split(b"\n")
            for row in filter(None, map(parse_line, lines)):
                if row.get("status") == "ok" and row.get("reply") is not None:
                    call_id, logprobs = str(row["reused_call_id"] or row["call_id"]), row["logprobs"]
                    reply = StoredReply(call_id=call_id, reply=str(row["reply"]), logprobs=logprobs)  # type: ignore[arg-type]
                    self._replies[str(row["request_hash"])] = reply
                    segment.found.add(str(row["request_hash"]))

    def close(self) -> None:
        """Close the segments."""
        for segment in self._segments:
            os.close(segment.file)
        self._segments.clear()


class CallRecord:
    """Looks up and keeps calls for one run. Use inside its event loop; `close` before the process ends.

    A `fresh` one finds only the replies of this run and of those `beside` it.
    """

    def __init__(self, warehouse: Warehouse, run_id: str, *, fresh: bool = False, beside: Sequence[str] = ()) -> None:
        self._run_id = run_id
        self._finder = ReplyFinder(warehouse, only_runs=[run_id, *beside] if fresh else None)
        self._unmoved: dict[str, StoredReply] = {}
        self.n_lost = 0  # replies that came and could not be kept
        self._mover = Mover(warehouse, "llm_calls", moved=self._forget)
        # A run that asks all again shares nothing with others.
        self._others: OtherReplies | None = None
        self._watching: asyncio.Task[None] | None = None
        self._checked: set[str] | None = None  # requests without a reply, since this process was stopped
        if not fresh:
            folder = find_journal(warehouse.location, "llm_calls")
            self._others = OtherReplies(folder, self._mover.journal.owner, moved=self._expect)
            self._claims = Claims(folder / "claims")

    async def find(self, request_hash: str) -> StoredReply | None:
        """Return the recorded reply to a request, or None; raises WarehouseError when it cannot be read."""
        if (reply := self._unmoved.get(request_hash)) is not None:
            return reply
        if self._others is not None:
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch())
            if (reply := self._look(request_hash)) is not None:
                return reply
        reply = await self._finder.find(request_hash)
        if reply is None and self._checked is not None:
            self._checked.add(request_hash)
        return reply

    async def _watch(self) -> None:
        """Look at the journals of other processes as long as this one runs, also while it asks nothing."""
        while True:
            await asyncio.sleep(_WATCH_S)
            with contextlib.suppress(OSError):
                self._look()

    def _look(self, request_hash: str = "") -> StoredReply | None:
        """Return the reply to a request in the journals of other processes. After this process was stopped (Ctrl-Z, a
        paused container) replies may have come and gone there, so that all requests are checked again."""
        assert self._others is not None
        if self._others.has_paused():
            self._finder.read_again()
            self._checked = set()
        return self._others.find(request_hash)

    def claim(self, request_hash: str) -> bool:
        """Return False if another process asks the same now, or has a reply to it, or may have; `keep` gives the claim
        back."""
        if self._others is None:
            return True
        key = make_request_key(request_hash)
        if not self._claims.take(key):
            return False
        reply = self._look(request_hash)
        is_checked = self._checked is None or request_hash in self._checked
        if reply is None and is_checked and not self._finder.expects(key):
            return True
        self._claims.release(key)
        return False

    def keep(self, call: Call) -> str:
        """Put a call on disk and return its id; raises FatalJudgeError when the disk does not take it."""
        call_id, request_key = uuid.uuid4().hex, make_request_key(call.request_hash)
        origin = ORIGIN.get()
        row: dict[str, object] = vars(call) | {
            "call_id": call_id,
            "run_id": self._run_id,
            "request_key": request_key,
            "flow_run_id": origin.flow_run_id,
            "task_run_id": origin.task_run_id,
            "started_at": int((call.started_at or time.time()) * 1e6),
        }
        row["attempts"] = row.pop("attempt")
        reply = call.reply if call.status == "ok" else None
        if self._checked is not None:
            self._checked.discard(call.request_hash)
        if reply is not None:
            self._finder.expect(request_key)  # also where it then cannot be kept
        try:
            self._mover.keep(row)
            if self._others is not None:
                self._claims.release(request_key)
        except OSError as error:
            self.n_lost += call.reply is not None
            raise FatalJudgeError(
                f"cannot keep a reply on disk beside the warehouse ({error.strerror or error}); "
                "make room and continue with `evalhouse resume`"
            ) from None
        if reply is not None:
            self._unmoved[call.request_hash] = StoredReply(
                call_id=call.reused_call_id or call_id, reply=reply, logprobs=call.logprobs
            )
        if self._mover.failure is not None:  # only now, when the reply that was paid for is on disk
            raise FatalJudgeError(f"replies cannot be taken into the warehouse: {self._mover.failure}")
        return call_id

    def close(self) -> None:
        """Move everything into the warehouse; raises WarehouseBusy when the file stays locked (nothing is lost)."""
        if self._watching is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended, and the task with it
                self._watching.get_loop().call_soon_threadsafe(self._watching.cancel)
        if self._others is not None:
            self._others.close()
            self._claims.close()
        self._mover.close()

    def _expect(self, request_hash: str) -> None:
        self._finder.expect(make_request_key(request_hash))

    def _forget(self, segment: Segment) -> None:
        for row in segment.rows:
            if row["status"] == "ok":
                self._unmoved.pop(str(row["request_hash"]), None)
