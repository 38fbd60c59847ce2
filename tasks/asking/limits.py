"""The limits of what an endpoint is sent: requests at once, requests and tokens per minute, and the time for a reply.

The number of requests at once follows the endpoint's refusals (429) and late replies: it falls at once and rises one
by one. All models of one endpoint share that number.
"""

import asyncio
import heapq
import ipaddress
import logging
import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from evalhouse.tasks.judge.errors import FatalJudgeError, JudgeFailed, repeat_error
from evalhouse.warehouse.names import name_setting

logger = logging.getLogger(__name__)

_MINUTE_S = 60.0
# A late start (a timer, a busy event loop) is made up for by this much, so that the rate is reached all the same.
_MADE_UP_S = 0.25
# A larger first burst could be refused as a whole; more slots open with the first replies.
_FIRST_BURST = 64
# So many refusals in a row are due to the rate of the requests, not to their number.
_REFUSALS_IN_A_ROW = 3
_PAUSE_S = 1.0
# Successes before one slot more is tried than was refused before; half as many after each one that was not refused.
_SUCCESSES_BEFORE_TRIAL = 64
_MIN_SUCCESSES_BEFORE_TRIAL = 4
_BACKOFF_FIRST_S = 0.5
_MAX_BACKOFF_S = 30.0
# A wait of this length is also logged, for users who do not see the progress; again after the second time.
_LOGGED_FROM_S = 10.0
_LOGGED_AGAIN_S = 600.0

_TIMEOUT_S = 60.0
# A server on the user's own machine or network may read a long prompt for minutes, and loses nothing on the way.
_NEAR_TIMEOUT_S = 600.0
_MAX_TIMEOUT_S = 3600.0
# A reply may take twice as long as the slowest so far.
_SLOWEST_FACTOR = 2.0
# A request that more than these have overtaken is lost; it does not wait in the server's queue.
_MAX_OVERTAKING = 64
# An endpoint that has never answered may not exist, so its time-out grows no further.
_MAX_DOUBLINGS_UNANSWERED = 2


@dataclass(kw_only=True, slots=True)
class Slot:
    """The permission to send one request of about `tokens` tokens; `n_answered` replies had come before it."""

    started_at: float
    tokens: int
    n_answered: int
    is_late: bool = False


class TokenBucket:
    """Spaces starts evenly, so that no 60 seconds have more than `per_minute` units (and one request)."""

    def __init__(self, per_minute: int | None) -> None:
        self._per_minute = per_minute
        self._share = 1.0
        self.next_at = 0.0

    @property
    def _interval_s(self) -> float:
        # A little more than a minute for a minute's units: what is made up for must not exceed the rate.
        return (_MINUTE_S + 2 * _MADE_UP_S) / (self._per_minute * self._share) if self._per_minute else 0.0

    def set_share(self, share: float, now: float) -> None:
        """Keep to this part of the rate from now on, also for what is still to be waited for."""
        self.next_at = now + max(0.0, self.next_at - now) * self._share / share
        self._share = share

    def take(self, units: float, now: float) -> None:
        """Count a start of so many units; the wait follows the start, so a request of any size can start."""
        if self._per_minute:
            since = max(self.next_at, now - _MADE_UP_S) if self.next_at else now
            self.next_at = since + units * self._interval_s


class Capacity:
    """The number of requests that an endpoint takes at once, learned from all models that are asked there."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.allowed = min(concurrency, _FIRST_BURST)
        self.in_flight = 0
        self.n_turns = 0
        self.limits: list[EndpointLimit] = []
        self._ceiling = concurrency
        self._paused_until = 0.0
        self._successes = 0
        self._successes_before_trial = _SUCCESSES_BEFORE_TRIAL
        self._refusals_in_a_row = 0
        self._shrunk_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def note_success(self, *, is_full: bool) -> None:
        """Open a slot after a success where all were in use: at once up to the ceiling, above it after many."""
        self._refusals_in_a_row = 0
        if not is_full or self.allowed >= self.concurrency:
            return
        self._successes += 1
        if self.allowed < self._ceiling:
            self.allowed += 1
        elif self._successes >= self._successes_before_trial:
            self._successes = 0
            self._successes_before_trial = max(_MIN_SUCCESSES_BEFORE_TRIAL, self._successes_before_trial // 2)
            self.allowed += 1
            self._ceiling = self.allowed

    def note_refused(self, started_at: float, retry_after_s: float | None) -> None:
        """Allow as many as were in flight beside a refused request; pause where their number is not the reason."""
        n_others = self.in_flight - 1
        self._refusals_in_a_row += started_at >= self._shrunk_at
        self._successes, self._successes_before_trial = 0, _SUCCESSES_BEFORE_TRIAL
        self._shrunk_at = read_clock()
        if n_others and self._refusals_in_a_row < _REFUSALS_IN_A_ROW:
            self._ceiling = self.allowed = min(self.allowed, n_others)
        else:
            self._paused_until = max(self._paused_until, self._shrunk_at + max(_PAUSE_S, retry_after_s or 0.0))
            self.allowed = 1

    def note_late(self, started_at: float, *, was_answered: bool) -> None:
        """Halve the number once for all requests that were late together; once at all where nothing was answered."""
        if started_at < self._shrunk_at or (self._shrunk_at and not was_answered):
            return
        self._shrunk_at = read_clock()
        self._successes = 0
        self._ceiling = self.allowed = max(1, self.in_flight // 2)

    def give_out(self) -> None:
        """Give free slots to the oldest questions whose model may be asked now."""
        now = read_clock()
        while self.in_flight < self.allowed:
            waiting = [limit for limit in self.limits if limit.has_turn()]
            ready = [limit for limit in waiting if max(limit.starts_at, self._paused_until) <= now]
            if not ready:
                if self._timer is not None:
                    self._timer.cancel()
                if waiting:
                    at = max(self._paused_until, min(limit.starts_at for limit in waiting))
                    self._timer = asyncio.get_running_loop().call_at(at, self.give_out)
                return
            min(ready, key=lambda limit: limit.first_turn).start_first(now)


class EndpointLimit:
    """The limit for one model of an endpoint within one event loop; `beside` is that of another model there.

    Within 60 s no more requests start than `rpm`, and no more tokens than `tpm` and those of one request; tokens are
    the caller's estimate until `note_tokens` corrects it. When nothing goes through for `max_wait_s`, or the endpoint
    asks for a longer wait, all who wait get JudgeFailed. A reply is waited for `timeout_s` at least.
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
        self._timeout_s = choose_timeout(timeout_s, "")
        self._concurrency = self._share = concurrency
        self._capacity: Capacity = beside._capacity if beside is not None else Capacity(concurrency)
        self._capacity.limits.append(self)
        self._requests, self._tokens = TokenBucket(rpm), TokenBucket(tpm)
        self._turns: list[tuple[int, int, asyncio.Future[Slot]]] = []  # a heap: number, tokens
        self._closed_by: FatalJudgeError | JudgeFailed | None = None
        # Replies, for the time-out.
        self.n_answered = 0
        self.last_answer_at = -math.inf
        self._slowest_s = 0.0
        # The wait that the endpoint asks for.
        self._nothing_since: float | None = None
        self._logged_again_at = 0.0
        self._waits_until, self._waits_for = 0.0, ""

    @property
    def allowed(self) -> int:
        """The number of slots that the endpoint takes at once, as far as is known now."""
        return self._capacity.allowed

    def set_share(self, slots: int) -> None:
        """Use at most so many slots from now on, and the same part of the rates; slots in use are not taken away."""
        self._share = min(slots, self._concurrency)
        if self._share:
            for bucket in (self._requests, self._tokens):
                bucket.set_share(self._share / self._concurrency, read_clock())
        self._capacity.give_out()

    # Slots

    def take_number(self) -> int:
        """Return a question's place in the order in which slots are given out; it keeps it when it is asked again."""
        self._capacity.n_turns += 1
        return self._capacity.n_turns

    @asynccontextmanager
    async def slot(self, tokens: int = 0, *, number: int | None = None) -> AsyncIterator[Slot]:
        """Hold one slot while the block runs; raises the error that the limit was closed with."""
        if self._closed_by is not None:
            raise repeat_error(self._closed_by)
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._turns, (self.take_number() if number is None else number, tokens, future))
        self._capacity.give_out()
        try:
            slot = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._end(future.result())  # the slot was given in the moment of the cancellation
            self._capacity.give_out()  # a smaller request behind this one may start now
            raise
        try:
            yield slot
        finally:
            self._end(slot)

    def _end(self, slot: Slot) -> None:
        self.in_flight -= 1
        self._capacity.in_flight -= 1
        if slot.is_late:
            # The question asks again before the loop's next round, and then comes before younger ones.
            asyncio.get_running_loop().call_soon(self._capacity.give_out)
        else:
            self._capacity.give_out()

    def has_turn(self) -> bool:
        """Return whether a question waits that this model's share allows."""
        while self._turns and self._turns[0][2].done():
            heapq.heappop(self._turns)  # cancelled
        return bool(self._turns) and self.in_flight < self._share

    @property
    def first_turn(self) -> int:
        """The number of the question that waits first."""
        return self._turns[0][0]

    @property
    def starts_at(self) -> float:
        """The time at which the rates allow the next request."""
        return max(self._requests.next_at, self._tokens.next_at)

    def start_first(self, now: float) -> None:
        """Give a slot to the question that waits first."""
        _, tokens, future = heapq.heappop(self._turns)
        self._requests.take(1, now)
        self._tokens.take(tokens, now)
        self.in_flight += 1
        self._capacity.in_flight += 1
        future.set_result(Slot(started_at=now, tokens=tokens, n_answered=self.n_answered))

    def close(self, error: FatalJudgeError | JudgeFailed) -> None:
        """Give out no more slots: all who wait get this error."""
        self._closed_by = error
        for _, _, future in self._turns:
            if not future.done():
                future.set_exception(repeat_error(error))
        self._turns.clear()

    def note_tokens(self, slot: Slot, used: int) -> None:
        """Correct the estimate of a request's tokens."""
        self._tokens.take(used - slot.tokens, read_clock())

    def note_success(self) -> None:
        """Count a request that went through and still holds its slot."""
        self._nothing_since = None
        # Where a question waits, all slots were in use a moment ago.
        self._capacity.note_success(is_full=bool(self._turns) or self._capacity.in_flight >= self._capacity.allowed)

    def note_refused(self, slot: Slot, retry_after_s: float | None) -> None:
        """Count a request that the endpoint refused with 429 and that still holds its slot."""
        self._capacity.note_refused(slot.started_at, retry_after_s)

    # Waits that the endpoint asks for

    def note_wait(self, seconds: float, why: str) -> None:
        """Note that the endpoint asks for a wait; raises JudgeFailed, for all, where that exceeds `max_wait_s`."""
        now = read_clock()
        is_idle = not self._capacity.in_flight
        if self._nothing_since is None and is_idle:
            self._nothing_since = self._logged_again_at = now
        since = now if self._nothing_since is None else self._nothing_since
        if now + seconds > since + self.max_wait_s:
            after = f", after {write_span(now - since)} in which nothing went through" if now - since >= 1 else ""
            message = (
                f"{why}: a wait of {write_span(seconds)} more{after}, and {name_setting('max_wait_s')} "
                f"is {write_span(self.max_wait_s)}; raise it, or go on later with `evalhouse resume`"
            )
            self.close(JudgeFailed(message))
            raise JudgeFailed(message)
        if is_idle and seconds >= _LOGGED_FROM_S and now >= self._logged_again_at:
            self._logged_again_at = now + _LOGGED_AGAIN_S
            logger.warning("nothing is asked for %s: %s", write_span(seconds), why)
        if now + seconds > self._waits_until:
            self._waits_until, self._waits_for = now + seconds, why

    def describe_wait(self, now: float) -> str | None:
        """Describe the wait in which nothing is asked; None while a request is in flight."""
        left_s = self._waits_until - now
        return None if self._capacity.in_flight or left_s < 1 else f"waiting {write_span(left_s)}: {self._waits_for}"

    # The time for a reply

    def find_timeout(self, n_late: int) -> float:
        """Return the seconds for a question whose reply was late so many times."""
        least_s = max(self._timeout_s, _SLOWEST_FACTOR * self._slowest_s)
        doublings = n_late if self.n_answered else min(n_late, _MAX_DOUBLINGS_UNANSWERED)
        return max(self._timeout_s, min(_MAX_TIMEOUT_S, least_s * 2.0**doublings))

    def note_answer(self, slot: Slot, exceeded_s: float) -> None:
        """Count a reply, of whatever kind; `exceeded_s` were not enough for the same question before."""
        now = read_clock()
        self._slowest_s = max(self._slowest_s, exceeded_s, now - max(slot.started_at, self.last_answer_at))
        self.n_answered += 1
        self.last_answer_at = now

    def is_lost(self, slot: Slot) -> bool:
        """Return whether so many requests have overtaken this one that it cannot be waiting in a queue."""
        return self.n_answered - slot.n_answered > _MAX_OVERTAKING

    def note_late(self, slot: Slot) -> None:
        """Count a request that was not answered in time and still holds its slot."""
        slot.is_late = True
        if not self.is_lost(slot):
            self._capacity.note_late(slot.started_at, was_answered=self.n_answered > 0)


class ReplyTimer:
    """Ends `timeout` when the time for a reply is over; `is_late` then says that this was the reason.

    A server with one slot answers one request after the other. So the time of a request counts from the last reply
    to any other, as long as it may be waiting in a queue, and not from when it was sent.
    """

    def __init__(self, limit: EndpointLimit, slot: Slot, allowed_s: float, timeout: asyncio.Timeout) -> None:
        self._limit, self._slot, self._allowed_s, self._timeout = limit, slot, allowed_s, timeout
        self.is_late = False

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._handle = loop.call_at(self._slot.started_at + self._allowed_s, self._check)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.cancel()

    def _check(self) -> None:
        now, since = read_clock(), self._slot.started_at
        if not self._limit.is_lost(self._slot):
            since = max(since, self._limit.last_answer_at)
        if since + self._allowed_s > now:
            self._handle = asyncio.get_running_loop().call_at(since + self._allowed_s, self._check)
        elif not self._timeout.expired():
            self.is_late = True
            self._timeout.reschedule(now)


def choose_timeout(setting: float | None, endpoint: str | None) -> float:
    """Return the seconds one request may take: as set, else what is usual for the address."""
    if setting is not None:
        return setting
    if endpoint is None:
        return _MAX_TIMEOUT_S  # a model in this process
    return _NEAR_TIMEOUT_S if is_near(endpoint) else _TIMEOUT_S


def is_near(endpoint: str) -> bool:
    """Return whether an address is one of this machine or its network, as far as its name shows."""
    host = urlsplit(endpoint).hostname if "://" in endpoint else None
    if not host:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost"))
    return address.is_loopback or address.is_private


def write_span(seconds: float) -> str:
    """Format a time to wait: `45 s`, `9:58 min`, `2:00:00 h`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,}:{minutes:02d}:{rest:02d} h"
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"


def draw_backoff(failures: int) -> float:
    """Return the seconds to wait after so many failures: exponential, with jitter so that failures do not coincide."""
    return min(_MAX_BACKOFF_S, _BACKOFF_FIRST_S * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)


def read_clock() -> float:
    """Return the time of the event loop."""
    return asyncio.get_running_loop().time()
