"""The limits of what an endpoint is sent: requests at once, requests and tokens per minute, and the time for a reply.

The number of requests at once follows the endpoint's refusals (429) and late replies: it falls at once and rises one
by one. All models of one endpoint share that number. A stop sign ends all that waits here or elsewhere in a run.
"""

import asyncio
import heapq
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

from evalhouse.tasks.judge.protocol import MAX_TIMEOUT_S, TIMEOUT_S, FatalJudgeError, JudgeFailed, repeat_error
from evalhouse.warehouse.messages import name_setting, write_span

logger = logging.getLogger(__name__)
_MINUTE_S = 60.0
# A late start (a timer, a busy event loop) is made up for by this much, so that the rate is still reached.
_MADE_UP_S = 0.25
# A larger first burst could be refused as a whole; more slots open with the first replies.
_FIRST_BURST = 64
# So many refusals in a row are due to the rate of the requests, not to their number.
_REFUSALS_IN_A_ROW = 3
_PAUSE_S = 1.0
# Successes before one slot more is tried than was refused before; half as many after each one that was not refused.
_SUCCESSES_BEFORE_TRIAL = 64
_MIN_SUCCESSES_BEFORE_TRIAL = 4
# A wait of this length is also logged, for users who do not see the progress; again after the second time.
_LOGGED_FROM_S = 10.0
_LOGGED_AGAIN_S = 600.0
# A reply may take twice as long as the slowest so far.
_SLOWEST_FACTOR = 2.0
# A request that more than these have overtaken is lost; it does not wait in the server's queue.
_MAX_OVERTAKING = 64
# An endpoint that has never answered may not exist, so its time-out grows no further.
_MAX_DOUBLINGS_UNANSWERED = 2
_LATE_IN_A_ROW = 4  # a question has its attempts before its model counts as silent
DRAIN_S = 3.0
"""The seconds that requests in flight may still take when a run is stopped."""


class StopSign:
    """Stops all requests of a run: nothing more is sent, and all who wait end at once.

    Given on Ctrl-C, or where nothing will work (a wrong key, a full disk). All askers of a run share one, so that
    embeddings with a wrong key stop the judge as well. Given at most once; the first reason counts. Belongs to one
    event loop.
    """

    def __init__(self) -> None:
        self.error: FatalJudgeError | None = None
        self._is_given = asyncio.Event()
        self._listeners: list[Callable[[FatalJudgeError], None]] = []
        self._in_flight: set[asyncio.Timeout] = set()

    def give(self, error: FatalJudgeError, *, drain_s: float = DRAIN_S) -> None:
        """Stop everything with this error; requests in flight have `drain_s` seconds left."""
        if self._is_given.is_set():
            return
        self.error = error
        self._is_given.set()
        for timeout in (timeout for timeout in self._in_flight if not timeout.expired()):
            timeout.reschedule(asyncio.get_running_loop().time() + drain_s)
        for listener in self._listeners:
            listener(error)

    def listen(self, listener: Callable[[FatalJudgeError], None]) -> None:
        """Call `listener` with the error when the sign is given."""
        self._listeners.append(listener)

    def raise_if_given(self) -> None:
        """Raise the error that the sign was given for, if it was."""
        if self.error is not None:
            raise repeat_error(self.error)

    async def sleep(self, seconds: float) -> None:
        """Wait that long; raises as soon as the sign is given."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_given.wait()
        self.raise_if_given()

    @asynccontextmanager
    async def in_flight(self) -> AsyncIterator[asyncio.Timeout]:
        """Run the block; when the sign is given, a TimeoutError ends it after the seconds that are then left."""
        async with asyncio.timeout(None) as timeout:
            self._in_flight.add(timeout)
            try:
                yield timeout
            finally:
                self._in_flight.discard(timeout)


@dataclass(kw_only=True, slots=True)
class Slot:
    """The permission to send one request of about `tokens` tokens; `n_answered` replies had come before it."""

    started_at: float
    tokens: int
    n_answered: int
    is_late: bool = False


@dataclass(slots=True)
class TokenBucket:
    """Spaces starts evenly, so that no 60 seconds have more than `per_minute` units (and one request)."""

    per_minute: int | None
    share: float = 1.0
    next_at: float = 0.0

    def take(self, units: float, now: float) -> None:
        """Count a start of so many units; the wait follows the start, so a request of any size can start."""
        if self.per_minute:
            # A little more than a minute, so that late starts that are made up for keep to the rate.
            interval_s = (_MINUTE_S + 2 * _MADE_UP_S) / (self.per_minute * self.share)
            self.next_at = (max(self.next_at, now - _MADE_UP_S) if self.next_at else now) + units * interval_s


class Capacity:
    """The number of requests that an endpoint takes at once, learned from all models that are asked there."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.allowed, self.ceiling = min(concurrency, _FIRST_BURST), concurrency
        self.in_flight = self.n_turns = self.n_successes = self.n_refusals_in_a_row = 0
        self.n_before_trial = _SUCCESSES_BEFORE_TRIAL
        self.shrunk_at = self.paused_until = 0.0
        self.limits: list[EndpointLimit] = []
        self._timer: asyncio.TimerHandle | None = None

    def take_number(self) -> int:
        """Return a question's place in the order in which slots are given out; it keeps it when it is asked again."""
        self.n_turns += 1
        return self.n_turns

    def give_out(self) -> None:
        """Give free slots to the oldest questions whose model may be asked now."""
        now = read_clock()
        while self.in_flight < self.allowed:
            waiting = [limit for limit in self.limits if limit.has_turn()]
            ready = [limit for limit in waiting if limit.find_start() <= now]
            if not ready:
                if self._timer is not None:
                    self._timer.cancel()
                if waiting:
                    at = min(limit.find_start() for limit in waiting)
                    self._timer = asyncio.get_running_loop().call_at(at, self.give_out)
                return
            min(ready, key=lambda limit: limit.turns[0][0]).start_first(now)


class EndpointLimit:
    """The limit for one model of an endpoint within one event loop; `beside` is that of another model there.

    Within 60 s no more requests start than `rpm`, and no more tokens than `tpm` and one request; tokens are
    the caller's estimate until `note_success` corrects it. When nothing goes through or no reply comes for
    `max_wait_s`, or the endpoint asks for a longer wait, all who wait get JudgeFailed. A reply is waited for
    `timeout_s` at least.
    """

    def __init__(
        self,
        *,
        concurrency: int,
        rpm: int | None = None,
        tpm: int | None = None,
        max_wait_s: float = math.inf,
        timeout_s: float | None = None,
        beside: "EndpointLimit | None" = None,
    ) -> None:
        self.max_wait_s = max_wait_s
        self.in_flight = 0
        self.share = self._concurrency = concurrency
        self.capacity: Capacity = beside.capacity if beside is not None else Capacity(concurrency)
        self.capacity.limits.append(self)
        self.turns: list[tuple[int, int, asyncio.Future[Slot]]] = []  # a heap: number, tokens
        self._requests, self._tokens = TokenBucket(rpm), TokenBucket(tpm)
        self._closed_by: FatalJudgeError | JudgeFailed | None = None
        # Replies, for the time-out.
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._n_answered, self._last_answer_at, self.slowest_s = 0, -math.inf, 0.0
        self._silent_since = math.inf  # the start of the first late request after the last reply
        # The wait that the endpoint asks for.
        self._nothing_since: float | None = None
        self._logged_again_at, self._waits_until, self._waits_for = 0.0, 0.0, ""

    def set_share(self, slots: int) -> None:
        """Use at most so many slots from now on, and the same part of the rates; slots in use are not taken away."""
        self.share = min(slots, self._concurrency)
        if self.share:
            self._requests.share = self._tokens.share = self.share / self._concurrency
        self.capacity.give_out()

    @asynccontextmanager
    async def slot(self, tokens: int = 0, *, number: int | None = None) -> AsyncIterator[Slot]:
        """Hold one slot while the block runs; raises the error that the limit was closed with."""
        if self._closed_by is not None:
            raise repeat_error(self._closed_by)
        capacity, loop = self.capacity, asyncio.get_running_loop()
        future: asyncio.Future[Slot] = loop.create_future()
        heapq.heappush(self.turns, (capacity.take_number() if number is None else number, tokens, future))
        capacity.give_out()
        try:
            yield await future
        finally:
            # Also a slot that was given in the moment in which the caller was cancelled.
            has_slot = future.done() and not future.cancelled() and not future.exception()
            self.in_flight -= has_slot
            capacity.in_flight -= has_slot
            if has_slot and future.result().is_late:
                # The question asks again before the loop's next round, and then comes before younger ones.
                loop.call_soon(capacity.give_out)
            else:
                capacity.give_out()  # without a slot a smaller request behind this one may start now

    def has_turn(self) -> bool:
        """Return whether a question waits that this model's share allows."""
        while self.turns and self.turns[0][2].done():
            heapq.heappop(self.turns)  # cancelled
        return bool(self.turns) and self.in_flight < self.share

    def find_start(self) -> float:
        """Return the time from which on the rates and the endpoint's pause allow the next request."""
        return max(self._requests.next_at, self._tokens.next_at, self.capacity.paused_until)

    def start_first(self, now: float) -> None:
        """Give a slot to the question that waits first."""
        _, tokens, future = heapq.heappop(self.turns)
        self._requests.take(1, now)
        self._tokens.take(tokens, now)
        self.in_flight += 1
        self.capacity.in_flight += 1
        future.set_result(Slot(started_at=now, tokens=tokens, n_answered=self._n_answered))

    def close(self, error: FatalJudgeError | JudgeFailed) -> None:
        """Give out no more slots: all who wait get this error."""
        self._closed_by = error
        for _, _, future in self.turns:
            if not future.done():
                future.set_exception(repeat_error(error))
        self.turns.clear()

    def note_success(self, slot: Slot, *, tokens: int | None = None, exceeded_s: float = 0.0) -> None:
        """Count a reply. It corrects the estimate of the request's tokens, and may open a slot.

        Up to the number that was refused before, a slot opens after each success where all were in use; above it after
        many. `exceeded_s` were not enough for the same question before.
        """
        now, capacity = read_clock(), self.capacity
        self.slowest_s = max(self.slowest_s, exceeded_s, now - max(slot.started_at, self._last_answer_at))
        self._n_answered += 1
        self._last_answer_at = now
        self._nothing_since, self._silent_since = None, math.inf
        if tokens is not None:
            self._tokens.take(tokens - slot.tokens, now)
        capacity.n_refusals_in_a_row = 0
        # Where a question waits, all slots were in use a moment ago.
        is_full = bool(self.turns) or capacity.in_flight >= capacity.allowed
        if is_full and capacity.allowed < capacity.concurrency:
            capacity.n_successes += 1
            if capacity.allowed < capacity.ceiling:
                capacity.allowed += 1
            elif capacity.n_successes >= capacity.n_before_trial:
                capacity.n_successes = 0
                capacity.n_before_trial = max(_MIN_SUCCESSES_BEFORE_TRIAL, capacity.n_before_trial // 2)
                capacity.allowed += 1
                capacity.ceiling = capacity.allowed

    def note_refused(self, slot: Slot, retry_after_s: float | None) -> None:
        """Count a request that was refused with 429. As many are allowed from now on as were in flight beside it.

        Where their number is not the reason (it was alone, or several are refused in a row) all models pause.
        """
        capacity = self.capacity
        n_others = capacity.in_flight - 1
        capacity.n_refusals_in_a_row += slot.started_at >= capacity.shrunk_at
        capacity.n_successes, capacity.n_before_trial = 0, _SUCCESSES_BEFORE_TRIAL
        capacity.shrunk_at = read_clock()
        if n_others and capacity.n_refusals_in_a_row < _REFUSALS_IN_A_ROW:
            capacity.ceiling = capacity.allowed = min(capacity.allowed, n_others)
        else:
            pause_s = max(_PAUSE_S, retry_after_s or 0.0)
            capacity.paused_until = max(capacity.paused_until, capacity.shrunk_at + pause_s)
            capacity.allowed = 1

    def note_late(self, slot: Slot) -> None:
        """Count a request that was not answered in time; a lost one says nothing about the endpoint.

        The number at once is halved once for all requests that were late together, and once at all where nothing was
        answered so far.
        """
        capacity, slot.is_late = self.capacity, True
        is_counted = slot.started_at < capacity.shrunk_at or (capacity.shrunk_at and not self._n_answered)
        if not self.is_lost(slot) and not is_counted:
            capacity.n_successes, capacity.shrunk_at = 0, read_clock()
            capacity.ceiling = capacity.allowed = max(1, capacity.in_flight // 2)
        self._silent_since = min(self._silent_since, max(slot.started_at, self._last_answer_at))
        silent_s = read_clock() - self._silent_since
        if silent_s > max(self.max_wait_s, _LATE_IN_A_ROW * self.find_timeout(_MAX_DOUBLINGS_UNANSWERED)):
            self.close(JudgeFailed(f"no reply came for {write_span(silent_s)}, and {self._explain_max_wait()}"))

    def is_lost(self, slot: Slot) -> bool:
        """Return whether so many requests have overtaken this one that it cannot be waiting in a queue."""
        return self._n_answered - slot.n_answered > _MAX_OVERTAKING

    def find_timeout(self, n_late: int) -> float:
        """Return the seconds for a question whose reply was late so many times."""
        doublings = n_late if self._n_answered else min(n_late, _MAX_DOUBLINGS_UNANSWERED)
        allowed_s = max(self._timeout_s, _SLOWEST_FACTOR * self.slowest_s) * 2.0**doublings
        return max(self._timeout_s, min(MAX_TIMEOUT_S, allowed_s))

    @contextmanager
    def expire_late(self, timeout: asyncio.Timeout, slot: Slot, allowed_s: float) -> Iterator[None]:
        """Expire `timeout` when the time for a reply is over; `slot.is_late` then says that this was the reason.

        A server with one slot answers one request after the other. So the time of a request counts from the last reply
        to any other, as long as it may be waiting in a queue, and not from when it was sent.
        """
        loop = asyncio.get_running_loop()
        handle: asyncio.TimerHandle

        def check() -> None:
            nonlocal handle
            since = slot.started_at if self.is_lost(slot) else max(slot.started_at, self._last_answer_at)
            if since + allowed_s > read_clock():
                handle = loop.call_at(since + allowed_s, check)
            elif not timeout.expired():
                slot.is_late = True
                timeout.reschedule(read_clock())

        handle = loop.call_at(slot.started_at + allowed_s, check)
        try:
            yield
        finally:
            handle.cancel()

    def note_wait(self, seconds: float, why: str) -> None:
        """Note that the endpoint asks for a wait; raises JudgeFailed, for all, where that exceeds `max_wait_s`."""
        now, is_idle = read_clock(), not self.capacity.in_flight
        if self._nothing_since is None and is_idle:
            self._nothing_since = self._logged_again_at = now
        since = now if self._nothing_since is None else self._nothing_since
        if now + seconds > since + self.max_wait_s:
            after = f", after {write_span(now - since)} in which nothing went through" if now - since >= 1 else ""
            error = JudgeFailed(f"{why}: a wait of {write_span(seconds)} more{after}, and {self._explain_max_wait()}")
            self.close(error)
            raise repeat_error(error)
        if is_idle and seconds >= _LOGGED_FROM_S and now >= self._logged_again_at:
            self._logged_again_at = now + _LOGGED_AGAIN_S
            logger.warning("nothing is asked for %s: %s", write_span(seconds), why)
        if now + seconds > self._waits_until:
            self._waits_until, self._waits_for = now + seconds, why

    def _explain_max_wait(self) -> str:
        limit = f"{name_setting('max_wait_s')} is {write_span(self.max_wait_s)}"
        return f"{limit}; raise it, or continue later with `evalhouse resume`"

    def describe_wait(self, now: float) -> str | None:
        """Describe the wait in which nothing is asked; None while a request is in flight."""
        left_s = self._waits_until - now
        return None if self.capacity.in_flight or left_s < 1 else f"waiting {write_span(left_s)}: {self._waits_for}"


@dataclass(kw_only=True)
class Activity:
    """The questions that are being asked and do not wait for a batch, within one event loop.

    `n_begun` counts how often one began to move.
    """

    n_moving: int = 0
    n_begun: int = 0

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Count a question as moving while the block runs."""
        self.n_moving += 1
        self.n_begun += 1
        try:
            yield
        finally:
            self.n_moving -= 1

    @contextmanager
    def still(self) -> Iterator[None]:
        """Count a moving question as still while the block runs."""
        self.n_moving -= 1
        try:
            yield
        finally:
            self.n_moving += 1
            self.n_begun += 1


def read_clock() -> float:
    """Return the time of the event loop."""
    return asyncio.get_running_loop().time()
