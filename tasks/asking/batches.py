"""Parked requests: what is asked by batch waits here until its batch has come back, however long that takes.

A request that is parked lies still. When all of a run does, what was parked since goes to the provider as one round, in
as few files as its limits allow; the results wake those who wait for them, who go on to ask what rests on these, and so
rounds come by themselves. A batch is on record with the requests in it before it is sent, and its id as soon as there
is one: whoever asks the same in a later process finds it there and waits for the same answer. Each line of results is
handed out once and is on record as a call, with the batch it came in, before it is used; what of a batch has no call is
what is still to be read.

When a deadline passes, whatever lies here is sent by itself; batches under way are cancelled first, and what they had
answered by then is used.
"""

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from evalhouse.tasks.asking.limits import write_span
from evalhouse.tasks.judge.errors import (
    BudgetExhausted,
    FatalJudgeError,
    JudgeError,
    RefusedRequest,
    RunCancelled,
    TransientJudgeError,
    repeat_error,
)
from evalhouse.tasks.judge.protocol import (
    BatchLimits,
    BatchLine,
    BatchService,
    BatchState,
    ModelReply,
    ModelRequest,
    make_custom_id,
)
from evalhouse.warehouse.rows.calls import BatchLedger, BatchStatus

logger = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_FIRST_S = 0.5
_LOOK_MOST_S = 60.0
_LOOK_GROWTH = 1.3
_LOOK_LATE_S = 5.0
_SAID_FROM_S = 60.0
# Nobody leaves so shortly before the deadline: whoever came back would be late for it.
_LEAVES_BEFORE_S = 900.0
# Rows that are read, or a task that begins, take a moment in which no question is asked.
_STILL_S = 1.0
# The event loop may have been held up for longer than that: whatever was ready to run does so first.
_CHECKED_AGAIN_S = 0.1
WAITS: Final = "waits for its batch"
"""How the problem of a run begins that has left its batch to be fetched later."""


class BatchUnderWay(RunCancelled):
    """The run was left, because nothing is to be done before its batch has come."""


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """What came of a parked request: the line of its batch, None where the batch ended without one."""

    batch_id: str
    sent_at: float
    line: BatchLine | None
    how_it_ended: str

    def read(self, service: BatchService, request: ModelRequest) -> ModelReply:
        """The reply; raises what is wrong with it, which is that it was never asked where there is no line."""
        if self.line is None:
            raise TransientJudgeError(f"the batch {self.batch_id} ended ({self.how_it_ended}) before this was asked")
        return service.read_line(self.line, request)


@dataclass(kw_only=True)
class _Sent:
    """A batch under way. `open` are those of its requests whose results were not handed out, by custom_id."""

    batch_id: str
    provider_id: str
    sent_at: float
    open: dict[str, str]
    n_requests: int
    n_done: int = 0
    status: str = ""


@dataclass(kw_only=True)
class _Queued:
    """A request that waits; its result is None where it is to be sent by itself."""

    request: ModelRequest
    future: "asyncio.Future[BatchResult | None]"


@dataclass(frozen=True, kw_only=True)
class _File:
    """The lines of one batch, on disk."""

    path: Path
    hashes: list[str]


class Activity:
    """Counts what moves, within one event loop; `listen` to be called each time that nothing does.

    `n_begun` counts how often something began to move.
    """

    def __init__(self) -> None:
        self._n_moving = 0
        self.n_begun = 0
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def n_moving(self) -> int:
        """How many questions are being asked and do not lie still."""
        return self._n_moving

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this when all has been still for a moment."""
        self._listeners.append(listener)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Something moves as long as the block runs."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def still(self) -> Iterator[None]:
        """What moves lies still as long as the block runs."""
        self._end()
        try:
            yield
        finally:
            self._begin()

    def look(self) -> None:
        """Say it again if all is still; for those whom nothing that moves will remind."""
        if self._listeners and not self._n_moving:
            self._look_in(_STILL_S, self._look)

    def _begin(self) -> None:
        self._n_moving += 1
        self.n_begun += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._n_moving -= 1
        self.look()

    def _look_in(self, seconds: float, look: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, look)

    def _look(self) -> None:
        n_begun = self.n_begun

        def look_again() -> None:
            self._timer = None
            if n_begun == self.n_begun:
                for listener in self._listeners:
                    listener()

        self._look_in(_CHECKED_AGAIN_S, look_again)


Afford = Callable[[Iterable[ModelRequest]], int]


class BatchQueue:
    """Where the requests of one judge wait, within one event loop.

    `folder` has the files of a round until they are sent. `afford` says how many of the requests, from the first on,
    can be paid for. `deadline` is in seconds of the epoch. Listen to `stopped`, call `close` at the end.
    """

    def __init__(
        self,
        service: BatchService,
        ledger: BatchLedger,
        activity: Activity,
        *,
        folder: Path,
        afford: Afford,
        stop: Callable[[FatalJudgeError], None],
        deadline: float | None = None,
    ) -> None:
        self.service = service
        self._ledger, self._folder, self._afford, self._stop = ledger, folder, afford, stop
        self._activity = activity
        self._deadline = deadline
        self._late = asyncio.Event()
        self._stopped_by: FatalJudgeError | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Those of batches whose last result is handed out: that no more comes of these is still to be noted.
        self._ending: set[asyncio.Task[None] | None] = set()
        self._parked: dict[str, _Queued] = {}
        self._unsent: dict[str, ModelRequest] = {}
        self._out: dict[str, _Sent] = {}  # by request_hash
        self._batches: list[_Sent] = []
        self._held: dict[str, deque[BatchResult]] = {}  # came before anybody asked
        self._most_requests = service.limits.requests
        self._one_at_a_time = False
        self._leave_after_s: float | None = None
        self._leaves = False
        activity.listen(self._look_for_round)

    async def park(self, request: ModelRequest) -> BatchResult | None:
        """Wait for what comes of a request; None when it is to be sent by itself after all.

        Raises what stopped the run, and BudgetExhausted.
        """
        if self._opening is None:
            self._opening = asyncio.create_task(self._find_batches())
            if self._deadline is not None:
                self._begin(partial(self._keep_deadline, self._deadline))
        await asyncio.shield(self._opening)
        if self._stopped_by is not None:
            raise repeat_error(self._stopped_by)
        if held := self._held.get(request.request_hash):
            return held.popleft()
        if self._late.is_set() and request.request_hash not in self._out:
            return None
        future: asyncio.Future[BatchResult | None] = asyncio.get_running_loop().create_future()
        self._parked[request.request_hash] = _Queued(request=request, future=future)
        if request.request_hash not in self._out:
            self._unsent[request.request_hash] = request
        try:
            with self._activity.still():
                return await future
        finally:
            self._parked.pop(request.request_hash, None)
            self._unsent.pop(request.request_hash, None)

    def leave_after(self, seconds: float) -> None:
        """Stop the run with BatchUnderWay when nothing has moved for so long, so that its process need not wait."""
        self._leave_after_s = seconds

    def describe(self) -> str | None:
        """How far the batches under way are; None where there is none."""
        if not self._batches:
            return None
        n_done, n_all = (sum(getattr(batch, name) for batch in self._batches) for name in ("n_done", "n_requests"))
        since = min(batch.sent_at for batch in self._batches)
        said = "/".join(sorted({batch.status for batch in self._batches}))
        waited = write_span(time.time() - since)
        begun = time.strftime("%H:%M", time.localtime(since))
        return f"by batch: {n_done:,} of {n_all:,} answered ({said}), since {begun} ({waited})"

    def stopped(self, error: FatalJudgeError, _: float) -> None:
        """The run stops: nobody waits any more, and what the provider has stays there."""
        self._stopped_by = error
        self._cancel_waiting()
        for parked in self._parked.values():
            if not parked.future.done():
                parked.future.set_exception(repeat_error(error))
        if self._batches and isinstance(error, RunCancelled):
            n_open = sum(len(batch.open) for batch in self._batches)
            logger.warning(
                "%s requests stay with the provider in %s; nothing is cancelled there, and `evalhouse resume` fetches "
                "what has come of them", f"{n_open:,}", ", ".join(batch.provider_id for batch in self._batches),
            )  # fmt: skip

    async def close(self) -> None:
        """End what is under way here, and close the service."""
        self._cancel_waiting()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.service.close()

    def _cancel_waiting(self) -> None:
        for task in self._tasks - self._ending:
            task.cancel()

    async def _find_batches(self) -> None:
        """Find the batches that are on record, once, before anything is parked."""
        for left in self._folder.glob("*.jsonl"):  # of a process that was killed
            left.unlink(missing_ok=True)
        for stored in await asyncio.to_thread(self._ledger.list_open):
            if stored.provider_id is not None:
                state: BatchState | None = BatchState(provider_id=stored.provider_id, status="sent")
            else:  # it was sent, if at all, by a process that died before the answer
                find = partial(
                    self.service.find,
                    stored.batch_id,
                    since=stored.planned_at,
                    custom_ids=frozenset(map(make_custom_id, stored.unread)),
                )
                state = await self._persist(find)
            if state is None:
                await self._note(stored.batch_id, "never_sent", None, n=len(stored.unread))
                continue
            if stored.provider_id is None:
                await self._note(stored.batch_id, "sent", state, n=len(stored.unread))
            self._follow(stored.batch_id, state.provider_id, stored.planned_at, stored.unread)

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something beside; what goes wrong in it stops the run."""

        async def do() -> None:
            try:
                await work()
            except FatalJudgeError as error:
                self._stop(error)
            except JudgeError as error:
                self._stop(FatalJudgeError(str(error)))
            except Exception as error:  # nobody else waits for it: the run would hang for ever
                self._stop(FatalJudgeError(f"the batch cannot be gone on with: {type(error).__name__}: {error}"))

        task = asyncio.create_task(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _look_for_round(self) -> None:
        """Nothing moves: what lies here unsent goes."""
        if self._leave_after_s is not None and not self._leaves:
            self._leaves = True
            self._begin(partial(self._leave, self._leave_after_s))
        if not self._unsent or self._late.is_set() or self._stopped_by is not None:
            return
        if self._one_at_a_time and self._batches:
            return
        self._begin(self._send_round)

    async def _send_round(self) -> None:
        requests, self._unsent = self._unsent, {}
        n_paid = self._afford(requests.values())
        hashes = list(requests)
        for unpaid in hashes[n_paid:]:
            parked = self._parked.get(unpaid)
            if parked is not None and not parked.future.done():
                parked.future.set_exception(
                    BudgetExhausted("what is left of the budget is not enough for another batch")
                )
        kept = {name: requests[name] for name in hashes[:n_paid]}
        limits = BatchLimits(requests=self._most_requests, size=self.service.limits.size)
        files = await asyncio.to_thread(write_files, self._folder, kept, self.service, limits)
        for place, file in enumerate(files):
            if self._late.is_set() or (self._one_at_a_time and place):
                # Later, or by itself; see `_look_for_round`.
                self._put_back(file.hashes)
                file.path.unlink(missing_ok=True)
                continue
            await self._send(file)

    async def _leave(self, after_s: float) -> None:
        """Leave once all has been still for so long with nothing but batches to wait for, and a deadline still far."""
        while True:
            n_begun = self._activity.n_begun
            await asyncio.sleep(after_s)
            is_still = not self._activity.n_moving and n_begun == self._activity.n_begun
            is_near = self._deadline is not None and self._deadline - time.time() < _LEAVES_BEFORE_S
            if is_still and self._batches and not self._unsent and not is_near:
                raise BatchUnderWay(f"{WAITS} ({self.describe()})")

    def _put_back(self, hashes: Iterable[str]) -> None:
        for item in hashes:
            parked = self._parked.get(item)
            if parked is None or parked.future.done():
                continue
            if self._late.is_set():
                parked.future.set_result(None)
            else:
                self._unsent[item] = parked.request

    async def _send(self, file: _File) -> None:
        batch_id = file.path.stem
        await asyncio.to_thread(self._ledger.plan, batch_id, file.hashes)
        planned_at, ids = time.time(), frozenset(map(make_custom_id, file.hashes))
        may_be_there = False

        async def create() -> BatchState:
            nonlocal may_be_there
            # An answer that is lost does not say that it was not made.
            before, may_be_there = may_be_there, True
            found = await self.service.find(batch_id, since=planned_at, custom_ids=ids) if before else None
            return found or await self.service.create(file.path, batch_id)

        state = await self._persist(create)
        await self._note(batch_id, "sent", state, n=len(file.hashes))
        await asyncio.to_thread(file.path.unlink, missing_ok=True)
        self._follow(batch_id, state.provider_id, planned_at, file.hashes)

    async def _note(self, batch_id: str, status: BatchStatus, state: BatchState | None, *, n: int) -> None:
        provider_id, said = (state.provider_id, state.status) if state else (None, None)
        await asyncio.to_thread(self._ledger.note, batch_id, status, provider_id, said, n)

    def _follow(self, batch_id: str, provider_id: str, sent_at: float, hashes: Iterable[str]) -> None:
        by_id = {make_custom_id(item): item for item in hashes}
        batch = _Sent(batch_id=batch_id, provider_id=provider_id, sent_at=sent_at, open=by_id, n_requests=len(by_id))
        self._batches.append(batch)
        self._out.update(dict.fromkeys(by_id.values(), batch))
        self._begin(partial(self._wait_and_fetch, batch))
        if self._late.is_set():  # the deadline has passed while the provider made it
            self._begin(partial(self._cancel, batch))

    async def _wait_and_fetch(self, batch: _Sent) -> None:
        """Wait for the end of a batch, hand its results out, and note that nothing more comes of it."""
        wait_s = _LOOK_FIRST_S
        while True:
            state = await self._persist(lambda: self.service.look(batch.provider_id))
            batch.n_done, batch.status = state.n_done, state.status
            if state.is_over:
                break
            if self._late.is_set():  # a batch that is cancelled ends soon
                await asyncio.sleep(min(wait_s, _LOOK_LATE_S))
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._late.wait(), wait_s)
            wait_s = min(_LOOK_MOST_S, wait_s * _LOOK_GROWTH)
        if state.problem is not None and not state.is_too_much:
            await self._note(batch.batch_id, "over", state, n=batch.n_requests)
            raise state.problem
        if state.problem is None:
            await self._persist(lambda: self._hand_out(batch, state))
        self._batches.remove(batch)
        rest = list(batch.open.values())
        if state.is_too_much:
            # The provider has no room for so much at once: half as much from now on, one batch after the other.
            if batch.n_requests <= 1 or not rest:
                assert state.problem is not None
                raise state.problem
            self._one_at_a_time = True
            self._most_requests = max(1, batch.n_requests // 2)
            logger.warning("%s; %s requests at once are tried from now on", state.problem, f"{self._most_requests:,}")
        for item in rest:
            self._out.pop(item, None)
            if not (state.is_too_much or self._late.is_set()):
                self._deliver(item, self._make_arrival(batch, state, None))
        if state.is_too_much or self._late.is_set():
            self._put_back(rest)
        await self._note(batch.batch_id, "over", state, n=batch.n_requests)
        self._activity.look()

    async def _hand_out(self, batch: _Sent, state: BatchState) -> None:
        """Give each result to whoever waits for it; what was handed out already, or is not of this batch, is not."""
        async for line in self.service.fetch(batch.provider_id):
            if line.status is None or (request_hash := batch.open.pop(line.custom_id, None)) is None:
                continue
            self._out.pop(request_hash, None)
            if not batch.open:
                self._ending.add(asyncio.current_task())
            self._deliver(request_hash, self._make_arrival(batch, state, line))

    def _make_arrival(self, batch: _Sent, state: BatchState, line: BatchLine | None) -> BatchResult:
        return BatchResult(batch_id=batch.batch_id, sent_at=batch.sent_at, line=line, how_it_ended=state.status)

    def _deliver(self, request_hash: str, arrival: BatchResult) -> None:
        parked = self._parked.get(request_hash)
        if parked is not None and not parked.future.done():
            parked.future.set_result(arrival)
        elif arrival.line is not None:
            self._held.setdefault(request_hash, deque()).append(arrival)

    async def _keep_deadline(self, deadline: float) -> None:
        """Wait for the deadline, and then send what lies here by itself."""
        if self._opening is not None:
            await asyncio.shield(self._opening)
        while (left_s := deadline - time.time()) > 0:
            await asyncio.sleep(min(left_s, _LOOK_MOST_S))
        self._late.set()
        if self._batches:
            logger.warning("the deadline has passed: the batch is cancelled, and what it lacks is asked by itself")
        unsent, self._unsent = self._unsent, {}
        self._put_back(unsent)
        for batch in list(self._batches):
            await self._cancel(batch)

    async def _cancel(self, batch: _Sent) -> None:
        await self._persist(lambda: self.service.cancel(batch.provider_id))

    async def _persist(self, do: Callable[[], Awaitable[T]]) -> T:
        """Do something over the network until it works; errors that a later try cannot mend are raised."""
        wait_s, since, was_said = _LOOK_FIRST_S, time.monotonic(), False
        while True:
            try:
                return await do()
            except TransientJudgeError as error:
                problem = str(error)
                wait_s = max(wait_s, min(error.retry_after_s or 0.0, _LOOK_MOST_S))
            except RefusedRequest as error:
                raise FatalJudgeError(f"the batch was refused: {error}") from None
            if not was_said and time.monotonic() - since > _SAID_FROM_S:
                was_said = True
                logger.warning("the provider of the batch cannot be reached (%s); it is tried again", problem)
            await asyncio.sleep(wait_s)
            wait_s = min(_LOOK_MOST_S, wait_s * 2)


def write_files(
    folder: Path, requests: Mapping[str, ModelRequest], service: BatchService, limits: BatchLimits
) -> list[_File]:
    """Write requests into as few files as the limits allow, in their order; each file's name is a new batch's tag."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[_File] = []
    size = 0
    with contextlib.ExitStack() as opened:
        for request_hash, request in requests.items():
            line = service.write_line(make_custom_id(request_hash), request)
            if not files or size + len(line) > limits.size or len(files[-1].hashes) >= limits.requests:
                files.append(_File(path=folder / f"{uuid.uuid4().hex}.jsonl", hashes=[]))
                stream = opened.enter_context(
                    open(files[-1].path, "wb", opener=lambda path, flags: os.open(path, flags, 0o600))
                )
                size = 0
            stream.write(line)
            files[-1].hashes.append(request_hash)
            size += len(line)
    return files
