"""Requests that go by batch: they wait here until their batch has come back, however long that takes.

A request in the queue is still. When all of a run is still, the requests that were queued since go to the provider as
one round, in as few files as its limits allow; the results wake the questions that wait for them, and the steps ask
the questions that rest on these, so that rounds follow each other. A batch is recorded with its requests before it is
sent, and its id as soon as it has one: a later process that asks the same finds it and waits for the same answer. Each
line of results is handed out once and recorded as a call, with its batch, before it is used; the requests of a batch
without a call are still to be read.

When a deadline passes, all requests here are sent by themselves; running batches are cancelled first, and the answers
that they hold by then are used.
"""

import asyncio
import contextlib
import logging
import math
import os
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from evalhouse.tasks.asking.limits import Activity
from evalhouse.tasks.judge.protocol import (
    BudgetExhausted,
    FatalJudgeError,
    Judge,
    JudgeError,
    ModelReply,
    ModelRequest,
    RefusedRequest,
    RunCancelled,
    TransientJudgeError,
    repeat_error,
)
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.messages import write_span
from evalhouse.warehouse.rows.calls import BatchLedger, BatchStatus

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Rows that are read, or a task that begins, take a moment in which no question is asked: after so many looks at which
# nothing moved all is still. A busy event loop delays the looks, and all that is ready to run does so between two.
_STILL_LOOK_S = 0.1
_SHOWN_WAIT_S = 5.0  # a wait for another run's upload that takes longer is shown
_STILL_LOOKS = 10
_FIRST_LOOK_S = 0.5
_MAX_LOOK_S = 60.0
_LOOK_GROWTH = 1.3
_LOOK_AFTER_DEADLINE_S = 5.0
_LOGGED_FROM_S = 60.0
# A process that leaves so shortly before the deadline would be back too late for it.
_LEAVES_BEFORE_S = 900.0
_ID_LENGTH = 32
WAITS: Final = "waits for its batch"
"""The beginning of the problem of a run that has left its batch to be fetched later."""


@dataclass(frozen=True, kw_only=True)
class BatchLimits:
    """The requests that one batch may hold, and the bytes of the file they are sent in."""

    requests: int
    size: int


@dataclass(frozen=True, kw_only=True)
class BatchState:
    """A provider's report about a batch; `status` is its word.

    Once it `is_over` it brings no more results. `problem` is why none of it was asked; `is_too_much` is for a batch
    that was too large, so that less at once may work.
    """

    provider_id: str
    status: str
    is_over: bool = False
    n_done: int = 0
    problem: Exception | None = None
    is_too_much: bool = False


@dataclass(frozen=True, kw_only=True)
class BatchLine:
    """The result of one request, as the provider sent it; `status` is an HTTP status, None where it was never asked."""

    custom_id: str
    status: int | None
    body: bytes = b""


class BatchService(Protocol):
    """A provider's batches. All but `limits`, `write_line` and `read_line` raise JudgeError."""

    @property
    def limits(self) -> BatchLimits:
        """The limits of one batch."""

    def write_line(self, custom_id: str, request: ModelRequest) -> bytes:
        """Return a request as a line of a batch's file, in JSON."""

    def read_line(self, line: BatchLine, request: ModelRequest) -> ModelReply:
        """Return the reply in a line of the results; raises what the judge would raise for it."""

    async def create(self, file: Path, tag: str) -> BatchState:
        """Send a file of lines as a batch with the label `tag`."""

    async def find(self, tag: str, *, since: float, custom_ids: Collection[str]) -> BatchState | None:
        """Return the batch with this tag that was created after `since` (seconds of the epoch); None without one.

        `custom_ids` are the ids of its requests, for providers that take no tag.
        """

    async def look(self, provider_id: str) -> BatchState:
        """Return how far a batch is."""

    def fetch(self, provider_id: str) -> AsyncIterator[BatchLine]:
        """Yield the results of a batch that is over, in any order."""

    async def cancel(self, provider_id: str) -> None:
        """Have the provider end a batch soon; its answers until then can be fetched."""

    async def close(self) -> None:
        """Close connections."""


def find_batches(judge: Judge) -> BatchService | None:
    """Return a judge's batches, where it was made to send requests by them."""
    service: BatchService | None = getattr(judge, "batches", None)
    return service


def make_custom_id(request_hash: str) -> str:
    """Return the id of a request in its batch."""
    return request_hash[:_ID_LENGTH]


def describe_lost(provider_id: str) -> BatchState:
    """Return the state of a batch that the provider no longer has: it brings no more results."""
    return BatchState(provider_id=provider_id, status="not found", is_over=True)


class BatchUnderWay(RunCancelled):
    """The run was left, because nothing is to be done before its batch has come."""


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """The result of a queued request: the line of its batch, None where the batch ended without one."""

    batch_id: str
    sent_at: float
    line: BatchLine | None
    how_it_ended: str

    def read(self, service: BatchService, request: ModelRequest) -> ModelReply:
        """Return the reply; raises its error, which without a line is that the request was never asked."""
        if self.line is None:
            raise TransientJudgeError(f"the batch {self.batch_id} ended ({self.how_it_ended}) before this was asked")
        return service.read_line(self.line, request)


@dataclass(kw_only=True)
class _SentBatch:
    """A running batch. `open` are its requests whose results were not handed out, by custom_id; `closes` if this run
    takes all of them, and so notes its end."""

    batch_id: str
    provider_id: str
    sent_at: float
    open: dict[str, str]
    n_requests: int
    closes: bool = True
    n_done: int = 0
    status: str = ""


@dataclass(kw_only=True)
class _Queued:
    """A request that waits; its result is None where it is to be sent by itself. `is_unsent` if no batch has it."""

    request: ModelRequest
    future: "asyncio.Future[BatchResult | None]"
    is_unsent: bool


@dataclass(kw_only=True)
class _File:
    """The lines of one batch, on disk. One that `was_sent` may be a batch, though the answer was lost."""

    path: Path
    hashes: list[str]
    was_sent: bool = False


class BatchQueue:
    """The queue of one judge's requests, within one event loop.

    `folder` has the files of a round until they are sent. `afford` counts how many of the requests, from the first on,
    can be paid for. `deadline` is in seconds of the epoch. Let a stop sign call `stopped`, and call `close` at the end.
    """

    def __init__(
        self,
        service: BatchService,
        ledger: BatchLedger,
        activity: Activity,
        *,
        folder: Path,
        afford: Callable[[Iterable[ModelRequest]], int],
        stop: Callable[[FatalJudgeError], None],
        deadline: float | None = None,
    ) -> None:
        self.service = service
        self._ledger, self._folder, self._afford, self._stop = ledger, folder, afford, stop
        self._activity = activity
        self._deadline = deadline
        self._is_late = asyncio.Event()
        self._stopped_by: FatalJudgeError | None = None
        self._opening: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        # Tasks of batches whose last result is handed out: the end of the batch is still to be noted.
        self._ending: set[asyncio.Task[None] | None] = set()
        self._queued: dict[str, _Queued] = {}
        self._out: dict[str, _SentBatch] = {}  # by request_hash
        self._batches: list[_SentBatch] = []
        self._followed: set[str] = set()  # the ids of these and earlier ones
        self._unclaimed: dict[str, deque[BatchResult]] = {}  # came before they were asked for
        self._max_requests = service.limits.requests
        self._one_at_a_time = False
        self._leave_after_s: float | None = None

    async def wait_for(self, request: ModelRequest) -> BatchResult | None:
        """Return the result of a request that goes by batch; None when it is to be sent by itself after all.

        Raises the error that stopped the run, and BudgetExhausted.
        """
        if self._opening is None:
            self._opening = asyncio.create_task(self._find_batches())
            self._begin(self._send_rounds)
            if self._deadline is not None:
                self._begin(partial(self._keep_deadline, self._deadline))
        await asyncio.shield(self._opening)
        if self._stopped_by is not None:
            raise repeat_error(self._stopped_by)
        if unclaimed := self._unclaimed.get(request.request_hash):
            return unclaimed.popleft()
        if self._is_late.is_set() and request.request_hash not in self._out:
            return None
        future: asyncio.Future[BatchResult | None] = asyncio.get_running_loop().create_future()
        is_unsent = request.request_hash not in self._out
        self._queued[request.request_hash] = _Queued(request=request, future=future, is_unsent=is_unsent)
        try:
            with self._activity.still():
                return await future
        finally:
            self._queued.pop(request.request_hash, None)

    def leave_after(self, seconds: float) -> None:
        """Stop the run with BatchUnderWay when nothing has moved for so long, so that its process need not wait."""
        self._leave_after_s = seconds

    def describe(self) -> str | None:
        """Describe how far the running batches are; None without one."""
        if not self._batches:
            return None
        n_done, n_all = (sum(getattr(batch, name) for batch in self._batches) for name in ("n_done", "n_requests"))
        since = min(batch.sent_at for batch in self._batches)
        statuses = "/".join(sorted({batch.status for batch in self._batches}))
        waited = write_span(time.time() - since)
        begun = time.strftime("%H:%M", time.localtime(since))
        return f"by batch: {n_done:,} of {n_all:,} answered ({statuses}), since {begun} ({waited})"

    def stopped(self, error: FatalJudgeError) -> None:
        """End all waits, since the run stops; the requests that the provider has stay there."""
        self._stopped_by = error
        for task in self._tasks - self._ending:
            task.cancel()
        for queued in self._queued.values():
            if not queued.future.done():
                queued.future.set_exception(repeat_error(error))
        if self._batches and isinstance(error, RunCancelled):
            n_open = sum(len(batch.open) for batch in self._batches)
            logger.warning(
                "%s requests stay with the provider in %s; nothing is cancelled there, and `evalhouse resume` fetches "
                "their results", f"{n_open:,}", ", ".join(batch.provider_id for batch in self._batches),
            )  # fmt: skip

    async def close(self) -> None:
        """End all tasks of the queue, and close the service."""
        for task in self._tasks - self._ending:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.service.close()

    def _begin(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something in a task; an error in it stops the run."""

        async def do() -> None:
            try:
                await work()
            except FatalJudgeError as error:
                self._stop(error)
            except JudgeError as error:
                self._stop(FatalJudgeError(str(error)))
            except Exception as error:  # the task is awaited by no caller: the run would hang for ever
                self._stop(FatalJudgeError(f"the batch cannot be continued: {type(error).__name__}: {error}"))

        task = asyncio.create_task(do())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _find_batches(self) -> None:
        """Find the recorded batches, once, before anything is queued."""
        for left in self._folder.glob("*.jsonl"):  # of a process that was killed
            left.unlink(missing_ok=True)
        await self._follow_recorded()

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Keep other runs on this warehouse from sending a round meanwhile: a round finds what others have sent."""
        show_at = time.monotonic() + _SHOWN_WAIT_S
        with contextlib.ExitStack() as stack:
            while True:
                try:
                    stack.enter_context(self._ledger.hold_turn())
                    break
                except WarehouseBusy:
                    if self._is_late.is_set():
                        break
                    if time.monotonic() >= show_at:
                        show_at = math.inf
                        logger.warning("another run is sending a batch to this judge; this run waits for that")
                    await asyncio.sleep(_STILL_LOOK_S)
                except WarehouseError:  # sharing only saves requests, and there is no lock here
                    break
            yield

    async def _follow_recorded(self) -> None:
        for stored in await asyncio.to_thread(self._ledger.list_open):
            # Others' batches belong to them, but for the requests that wait here.
            is_whole = stored.unread <= self._queued.keys()
            if stored.batch_id in self._followed or not (stored.is_own or stored.unread & self._queued.keys()):
                continue
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
                if state or stored.is_own:
                    status: BatchStatus = "sent" if state else "never_sent"
                    await self._note(stored.batch_id, status, state, n=len(stored.unread))
            if state is not None:
                closes = stored.is_own or is_whole
                self._follow(stored.batch_id, state.provider_id, stored.planned_at, stored.unread, closes=closes)

    # Rounds

    async def _send_rounds(self) -> None:
        """Send the requests that wait unsent each time that nothing moves any more.

        Leaves once all has been still for `leave_after` seconds with nothing but batches to wait for, and a
        deadline still far.
        """
        n_looks, n_begun, still_since = 0, 0, time.monotonic()
        while True:
            await asyncio.sleep(_STILL_LOOK_S)
            if self._activity.n_moving or n_begun != self._activity.n_begun:
                n_looks, n_begun, still_since = 0, self._activity.n_begun, time.monotonic()
                continue
            n_looks += 1
            unsent = self._list_unsent()
            is_over = self._is_late.is_set() or self._stopped_by is not None
            if n_looks >= _STILL_LOOKS and unsent and not is_over and not (self._one_at_a_time and self._batches):
                await self._send_round()
            is_near = self._deadline is not None and self._deadline - time.time() < _LEAVES_BEFORE_S
            waits_only = self._batches and not self._list_unsent() and not is_near
            if self._leave_after_s is not None and waits_only and time.monotonic() - still_since > self._leave_after_s:
                raise BatchUnderWay(f"{WAITS} ({self.describe()})")

    def _list_unsent(self) -> list[_Queued]:
        return [queued for queued in self._queued.values() if queued.is_unsent]

    async def _send_round(self) -> None:
        async with self._alone():
            await self._follow_recorded()
            if unsent := self._list_unsent():
                await self._send(unsent)

    async def _send(self, unsent: Sequence[_Queued]) -> None:
        n_paid = self._afford(queued.request for queued in unsent)
        for number, queued in enumerate(unsent):
            queued.is_unsent = False
            if number >= n_paid and not queued.future.done():
                queued.future.set_exception(
                    BudgetExhausted("what is left of the budget is not enough for another batch")
                )
        paid = {queued.request.request_hash: queued.request for queued in unsent[:n_paid]}
        limits = BatchLimits(requests=self._max_requests, size=self.service.limits.size)
        files = await asyncio.to_thread(write_files, self._folder, paid, self.service, limits)
        for place, file in enumerate(files):
            if self._is_late.is_set() or (self._one_at_a_time and place):
                # Later, or by itself.
                self._put_back(file.hashes)
                file.path.unlink(missing_ok=True)
                continue
            batch_id = file.path.stem
            await asyncio.to_thread(
                self._ledger.write, batch_id, "planned", len(file.hashes), request_hashes=file.hashes
            )
            planned_at = time.time()

            async def create(file: _File = file, planned_at: float = planned_at) -> BatchState:
                ids, was_sent = frozenset(map(make_custom_id, file.hashes)), file.was_sent
                file.was_sent = True
                if was_sent and (state := await self.service.find(file.path.stem, since=planned_at, custom_ids=ids)):
                    return state
                return await self.service.create(file.path, file.path.stem)

            try:
                state = await self._persist(create, ends_late=True)
            except TransientJudgeError:  # past the deadline; a batch that was made after all is found by its tag
                self._put_back(file.hashes)
                file.path.unlink(missing_ok=True)
                continue
            await self._note(batch_id, "sent", state, n=len(file.hashes))
            await asyncio.to_thread(file.path.unlink, missing_ok=True)
            self._follow(batch_id, state.provider_id, planned_at, file.hashes)

    def _put_back(self, hashes: Iterable[str]) -> None:
        for item in hashes:
            queued = self._queued.get(item)
            if queued is None or queued.future.done():
                continue
            if self._is_late.is_set():
                queued.future.set_result(None)
            else:
                queued.is_unsent = True

    async def _note(self, batch_id: str, status: BatchStatus, state: BatchState | None, *, n: int) -> None:
        provider_id, provider_status = (state.provider_id, state.status) if state else (None, None)
        await asyncio.to_thread(
            self._ledger.write, batch_id, status, n, provider_id=provider_id, provider_status=provider_status
        )

    # Running batches

    def _follow(
        self, batch_id: str, provider_id: str, sent_at: float, hashes: Iterable[str], *, closes: bool = True
    ) -> None:
        by_id = {make_custom_id(item): item for item in hashes}
        batch = _SentBatch(
            batch_id=batch_id, provider_id=provider_id, sent_at=sent_at, open=by_id, n_requests=len(by_id),
            closes=closes,
        )  # fmt: skip
        self._batches.append(batch)
        self._followed.add(batch_id)
        self._out.update(dict.fromkeys(by_id.values(), batch))
        for item in by_id.values():
            if item in self._queued:
                self._queued[item].is_unsent = False
        self._begin(partial(self._wait_and_fetch, batch))
        if self._is_late.is_set() and closes:  # the deadline has passed while the provider made it
            self._begin(partial(self._cancel, batch))

    async def _wait_and_fetch(self, batch: _SentBatch) -> None:
        """Wait for the end of a batch, hand its results out, and note that it is over."""
        wait_s = _FIRST_LOOK_S
        while True:
            state = await self._persist(lambda: self.service.look(batch.provider_id))
            batch.n_done, batch.status = state.n_done, state.status
            if state.is_over:
                break
            if self._is_late.is_set():  # a batch that is cancelled ends soon
                await asyncio.sleep(min(wait_s, _LOOK_AFTER_DEADLINE_S))
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_late.wait(), wait_s)
            wait_s = min(_MAX_LOOK_S, wait_s * _LOOK_GROWTH)
        if state.problem is not None and not state.is_too_much:
            await self._close(batch, state)
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
            self._max_requests = max(1, batch.n_requests // 2)
            logger.warning("%s; %s requests at once are tried from now on", state.problem, f"{self._max_requests:,}")
        for item in rest:
            self._out.pop(item, None)
            if not (state.is_too_much or self._is_late.is_set()):
                self._deliver(item, batch, state, None)
        if state.is_too_much or self._is_late.is_set():
            self._put_back(rest)
        await self._close(batch, state)

    async def _close(self, batch: _SentBatch, state: BatchState) -> None:
        """Note that a batch is over, unless another run has still to fetch its own answers in it."""
        if batch.closes:
            await self._note(batch.batch_id, "over", state, n=batch.n_requests)

    async def _hand_out(self, batch: _SentBatch, state: BatchState) -> None:
        """Give each result to the question that waits for it, once; lines of other requests are left out."""
        async for line in self.service.fetch(batch.provider_id):
            if line.status is None or (request_hash := batch.open.pop(line.custom_id, None)) is None:
                continue
            self._out.pop(request_hash, None)
            if not batch.open:
                self._ending.add(asyncio.current_task())
            self._deliver(request_hash, batch, state, line)

    def _deliver(self, request_hash: str, batch: _SentBatch, state: BatchState, line: BatchLine | None) -> None:
        result = BatchResult(batch_id=batch.batch_id, sent_at=batch.sent_at, line=line, how_it_ended=state.status)
        queued = self._queued.get(request_hash)
        if queued is not None and not queued.future.done():
            queued.future.set_result(result)
        elif line is not None:
            self._unclaimed.setdefault(request_hash, deque()).append(result)

    async def _keep_deadline(self, deadline: float) -> None:
        """Wait for the deadline, and then have all requests here sent by themselves."""
        if self._opening is not None:
            await asyncio.shield(self._opening)
        while (left_s := deadline - time.time()) > 0:
            await asyncio.sleep(min(left_s, _MAX_LOOK_S))
        self._is_late.set()
        if self._batches:
            logger.warning("the deadline has passed: the batch is cancelled, and what it lacks is asked by itself")
        self._put_back([queued.request.request_hash for queued in self._list_unsent()])
        for batch in list(self._batches):
            if batch.closes:
                await self._cancel(batch)
            else:
                self._put_back(list(batch.open.values()))

    async def _cancel(self, batch: _SentBatch) -> None:
        await self._persist(lambda: self.service.cancel(batch.provider_id))

    async def _persist(self, do: Callable[[], Awaitable[T]], *, ends_late: bool = False) -> T:
        """Do something over the network until it works; errors that a later try cannot fix are raised, and with
        `ends_late` any error after the deadline."""
        wait_s, since, has_logged = _FIRST_LOOK_S, time.monotonic(), False
        while True:
            try:
                return await do()
            except TransientJudgeError as error:
                if ends_late and self._is_late.is_set():
                    raise
                problem = str(error)
                wait_s = max(wait_s, min(error.retry_after_s or 0.0, _MAX_LOOK_S))
            except RefusedRequest as error:
                raise FatalJudgeError(f"the batch was refused: {error}") from None
            if not has_logged and time.monotonic() - since > _LOGGED_FROM_S:
                has_logged = True
                logger.warning("the provider of the batch cannot be reached (%s); it is tried again", problem)
            await asyncio.sleep(wait_s)
            wait_s = min(_MAX_LOOK_S, wait_s * 2)


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
