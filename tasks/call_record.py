"""The record of calls during a run: what was asked before, and every new call kept before its reply is used.

Looking up goes through the warehouse in batches (whatever is asked for while one look-up runs makes the next), and
only for requests that a filter over all keys on record does not rule out. Keeping goes through the journal on disk,
from which a thread of its own fills `llm_calls`.
"""

import asyncio
import sys
import threading
import time
import uuid
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import polars as pl

from tasks.judge_errors import FatalJudgeError, RunCancelled
from tasks.key_filter import KeyFilter
from warehouse.calls import RecordedReply, find_replies, make_request_key, take_in_segment
from warehouse.errors import WarehouseBusy, WarehouseError
from warehouse.journal import Journal, Segment
from warehouse.store import FLUSH_PATIENCE_S, Warehouse

T = TypeVar("T")

# A move costs 70 ms of CPU however few rows it has, so it waits for some.
_TICK_S = 0.5
_MOVE_EVERY_S = 5.0
_MOVE_ROWS = 2000
_LOOK_UP_MOST = 2000
_GATHER_S = 0.01

_KEYS = """
select distinct request_key from llm_calls where status = 'ok' and ($run_id is null or run_id = $run_id)
"""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Which Prefect runs a call belongs to."""

    flow_run_id: str | None = None
    task_run_id: str | None = None


_NO_ORIGIN = Origin()
ORIGIN: ContextVar[Origin] = ContextVar("ORIGIN", default=_NO_ORIGIN)


@dataclass(frozen=True, kw_only=True)
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
    error: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None
    latency_ms: float | None = None
    reused_call_id: str | None = None
    started_at: float = 0.0


class CallRecord:
    """Looks up and keeps calls for one run. Use inside its event loop; `close` before the process ends."""

    def __init__(self, warehouse: Warehouse, run_id: str, *, fresh: bool = False) -> None:
        self._warehouse = warehouse
        self._run_id = run_id
        self._only_run = run_id if fresh else None
        self._journal = Journal(warehouse.location.journal_path)
        self._filter = KeyFilter()
        self._filter_filled = asyncio.Lock()
        self._filter_is_filled = False
        self._unmoved: dict[str, RecordedReply] = {}
        self._wanted: dict[str, asyncio.Future[RecordedReply | None]] = {}
        self._looking_up: asyncio.Task[None] | None = None
        self._mover = _Mover(warehouse, self._journal, self._forget)
        self._mover.start()

    async def find(self, request_hash: str) -> RecordedReply | None:
        """The reply on record for a request, or None; raises WarehouseError when the warehouse cannot be read."""
        unmoved = self._unmoved.get(request_hash)
        if unmoved is not None:
            return unmoved
        if not self._filter_is_filled:
            await self._fill_filter()
        if make_request_key(request_hash) not in self._filter:
            return None
        future = self._wanted.get(request_hash)
        if future is None:
            future = self._wanted[request_hash] = asyncio.get_running_loop().create_future()
            if self._looking_up is None:
                self._looking_up = asyncio.create_task(self._look_up())
                self._looking_up.add_done_callback(_look_at_error)
        # Shielded, because whoever else wants the same reply waits for the same future.
        return await asyncio.shield(future)

    def keep(self, call: Call) -> str:
        """Put a call on disk and return its id; raises FatalJudgeError when the disk does not take it."""
        call_id = uuid.uuid4().hex
        origin = ORIGIN.get()
        row: dict[str, object] = {
            "call_id": call_id,
            "run_id": self._run_id,
            "sample_id": call.sample_id,
            "step": call.step,
            "prompt": call.prompt,
            "prompt_hash": call.prompt_hash,
            "judge": call.judge,
            "model": call.model,
            "request_hash": call.request_hash,
            "request_key": make_request_key(call.request_hash),
            "request": call.request,
            "reply": call.reply,
            "status": call.status,
            "error": call.error,
            "attempts": call.attempt,
            "prompt_tokens": call.prompt_tokens,
            "completion_tokens": call.completion_tokens,
            "cost_usd": call.cost_usd,
            "latency_ms": call.latency_ms,
            "reused_call_id": call.reused_call_id,
            "flow_run_id": origin.flow_run_id,
            "task_run_id": origin.task_run_id,
            "started_at": int((call.started_at or time.time()) * 1e6),
        }
        try:
            self._journal.append(row)
        except OSError as error:
            raise FatalJudgeError(
                f"cannot keep a reply on disk beside the warehouse ({error.strerror or error}); "
                "make room and go on with `evalhouse resume`"
            ) from None
        if call.status == "ok" and call.reply is not None:
            self._filter.add(make_request_key(call.request_hash))
            self._unmoved[call.request_hash] = RecordedReply(call_id=call_id, reply=call.reply)
        self._mover.raise_failure()  # only now: what was paid for is on disk whatever becomes of the run
        return call_id

    def close(self) -> None:
        """Move everything into the warehouse; raises WarehouseBusy when the file stays locked (nothing is lost)."""
        try:
            self._mover.finish()
        finally:
            self._journal.close()

    def _forget(self, segment: Segment) -> None:
        for row in segment.rows:
            if row["status"] == "ok":
                self._unmoved.pop(str(row["request_hash"]), None)

    async def _fill_filter(self) -> None:
        async with self._filter_filled:
            if not self._filter_is_filled:
                keys = await self._read_patiently(self._read_keys)
                await asyncio.to_thread(self._filter.update, keys)
                self._filter_is_filled = True

    def _read_keys(self) -> pl.Series:
        return self._warehouse.read(_KEYS, {"run_id": self._only_run})["request_key"]

    async def _look_up(self) -> None:
        try:
            while self._wanted:
                # What is asked for within this moment is looked up together.
                await asyncio.sleep(_GATHER_S)
                batch = dict(list(self._wanted.items())[:_LOOK_UP_MOST])
                read = partial(find_replies, self._warehouse, batch.keys(), only_run=self._only_run)
                found = await self._read_patiently(read)
                for request_hash, future in batch.items():
                    del self._wanted[request_hash]
                    future.set_result(found.get(request_hash))
        finally:
            self._looking_up = None
            self._disappoint_all(sys.exception())

    def _disappoint_all(self, error: BaseException | None) -> None:
        """Nobody waits for a look-up that failed: whoever wants something gets its error."""
        for future in self._wanted.values():
            future.set_exception(error if isinstance(error, Exception) else RunCancelled("the look-up was cancelled"))
            future.exception()  # looked at, so that asyncio does not report it when nobody waits any more
        self._wanted.clear()

    async def _read_patiently(self, read: Callable[[], T]) -> T:
        """Read in a thread, again and again while another program keeps the file, up to a minute."""
        deadline = time.monotonic() + FLUSH_PATIENCE_S
        while True:
            try:
                return await asyncio.to_thread(read)
            except WarehouseBusy:
                if time.monotonic() > deadline:
                    raise


def _look_at_error(task: "asyncio.Task[None]") -> None:
    """Those who wait have the error already; asyncio shall not report it once more."""
    if not task.cancelled():
        task.exception()


class _Mover(threading.Thread):
    """Moves closed journal segments into the warehouse, and keeps them when the file is locked."""

    def __init__(self, warehouse: Warehouse, journal: Journal, moved: Callable[[Segment], None]) -> None:
        super().__init__(name="evalhouse-journal", daemon=True)
        self._warehouse = warehouse
        self._journal = journal
        self._moved = moved
        self._waiting: list[Segment] = []
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def run(self) -> None:
        waited_s = 0.0
        while not self._ended.wait(_TICK_S):
            waited_s += _TICK_S
            if waited_s >= _MOVE_EVERY_S or len(self._journal) >= _MOVE_ROWS:
                waited_s = 0.0
                if not self._try_to_move():
                    return

    def raise_failure(self) -> None:
        """Raise what stopped the mover, if anything did."""
        if self._failure is not None:
            raise FatalJudgeError(f"replies cannot be taken into the warehouse: {self._failure}")

    def finish(self) -> None:
        """Stop the thread and move the rest, with more patience."""
        self._ended.set()
        self.join()
        self._move(patience_s=FLUSH_PATIENCE_S)

    def _try_to_move(self) -> bool:
        """Whether another try may follow: a locked file is waited out, anything else ends the run."""
        try:
            self._move(patience_s=_TICK_S)
        except WarehouseBusy:
            return True
        except WarehouseError as error:
            self._failure = error
            return False
        finally:
            # Whatever else may come, the run must learn that its calls are no longer moved.
            self._failure = self._failure or sys.exception()
        return True

    def _move(self, *, patience_s: float) -> None:
        segment = self._journal.rotate()
        if segment is not None:
            self._waiting.append(segment)
        while self._waiting:
            take_in_segment(self._warehouse, self._waiting[0], patience_s=patience_s)
            self._moved(self._waiting.pop(0))
