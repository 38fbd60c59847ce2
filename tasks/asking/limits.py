"""How many requests may be in flight and how many may start each minute.

Slots are given in the order they were asked for. What an endpoint bears at once is learned from its refusals (429):
those that were in flight when it refused one more are what it bears, so the limit falls to just that number and its
other requests go on. After many successes one more is tried, more and more seldom as long as it is refused. When
fresh requests are refused in a row and none goes through, or the only one is, it is not their number but their rate,
and nothing starts until the time the endpoint named. All of this is learned of an endpoint, for all models that are
asked there together: it is one server that bears so much. Of a limit that several processes share, `shared_limit` says
what part is this one's.

A wait that the endpoint asks for is said while it lasts, and has an end: when nothing has gone through for longer than
was allowed, whoever waits is given up, and so is whoever comes later.

A rate of the settings, for requests or for their tokens, is kept as a distance between starts, so that a minute has
no burst at its beginning and no window of 60 s has more than the rate (of tokens: more than the rate and one
request). What the endpoint reports of itself is treated as credit: as long as most of it is left, nothing is slowed
down; then what is left is spread over the time until it is full again; and when it is gone, nothing starts until
then. Two kinds of endpoint differ in what they report: those that count by the minute (or the second) and begin again
at zero, and those that refill all the time (OpenAI, Groq), where a little is back long before all of it is.
"""

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from evalhouse.tasks.asking.patience import Patience, choose_timeout
from evalhouse.tasks.judge.errors import FatalJudgeError, JudgeFailed, repeat_error
from evalhouse.tasks.judge.rate_headers import RateLimits

logger = logging.getLogger(__name__)

_MINUTE_S = 60.0
# So much of a delay (of a timer, of a busy event loop) is made up for by starting sooner afterwards.
_MADE_UP_S = 0.25
# A minute's worth is spread over a little more than a minute: what is made up for must not exceed the rate, nor may
# what the network delays and then delivers at once.
_SPREAD = 1 + 2 * _MADE_UP_S / _MINUTE_S
# A reset later than this is of a limit by the hour or the day, which is there to be used and not to be spread.
_MINUTE_LIMIT_S = 65.0
# Such a limit, once used up, is tried again this often: it may have been raised, or others may have returned some.
_PROBE_S = _MINUTE_S
_UNREPORTED_RESET_S = 1.0
# Parts of a limit: with less than the first left the limit's own pace is kept, with less than the second what is left
# is spread, so that it lasts; but at no less than a part of that pace, since the next answer may know of more.
_PLENTY = 0.5
_RESERVE = 0.25
_LEAST_PACE = 0.1
_LEAST_PACE_REFILLING = 0.5
# Only between these shares of use does a report tell a limit that refills from one that begins again at zero.
_LEAST_CLEAR = 0.1
_MOST_CLEAR = 0.6


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitReport:
    """What an answer said of one kind: the limit, what is left of it, and the seconds until it is full again."""

    limit: int | None
    remaining: int | None
    reset_s: float | None


class Spacing:
    """A distance between starts. It is paid after a start, so a request of any size can go."""

    __slots__ = ("interval_s", "next_at")

    def __init__(self, interval_s: float = 0.0) -> None:
        self.interval_s = interval_s
        self.next_at = 0.0

    def take(self, units: float, now: float) -> None:
        """Count a start of so many units."""
        if self.interval_s:
            since = max(self.next_at, now - _MADE_UP_S) if self.next_at else now
            self.next_at = since + units * self.interval_s

    def change(self, interval_s: float, now: float) -> None:
        """Go on at another pace, with what is still to be waited for counted at the new one."""
        if self.interval_s == interval_s:
            return
        if self.interval_s and self.next_at > now:
            self.next_at = now + (self.next_at - now) * interval_s / self.interval_s
        elif not self.interval_s:
            self.next_at = now
        self.interval_s = interval_s


class Rate:
    """When the next request may start as far as one kind is concerned. All times are on the monotonic clock."""

    def __init__(self, per_minute: int | None) -> None:
        self._setting = per_minute
        self._fraction = 1.0
        self._own = Spacing(_SPREAD * _MINUTE_S / per_minute if per_minute else 0.0)
        self._reported = Spacing()
        self._limit: int | None = None
        self._credit = math.inf
        self._reported_at = 0.0
        self._reset_at = 0.0
        self._remaining = math.inf
        self._starved = False  # a request has waited for more credit since the last report
        self._scarce = False  # more than half of the limit was used at some time
        self._longest_reset_s = 0.0
        self._window_s = _MINUTE_S  # of the reported limit
        self._refilling = False
        self._refilling_since = 0.0
        self._begins_again_at = -math.inf
        self._by_minute = True
        self._is_believed = True

    @property
    def own_next_at(self) -> float:
        """When the next request may start by the setting alone."""
        return self._own.next_at

    def share(self, fraction: float, now: float) -> None:
        """Keep to this part of the setting and of what the endpoint tells; a part of 0 changes nothing."""
        if fraction <= 0:
            return
        self._fraction = fraction
        if self._setting:
            self._own.change(_SPREAD * _MINUTE_S / (self._setting * fraction), now)

    def find_start(self, units: float, now: float) -> float:
        """When a request of so many units may start; in the past if it may at once."""
        if self._reset_at and now >= self._reset_at:
            self._begin_again(now)
        at = max(self._own.next_at, self._reported.next_at)
        return max(at, self._find_refill(units)) if self._credit < max(1.0, units) else at

    def take(self, units: float, now: float) -> None:
        """Count a start."""
        self._credit -= units
        self._own.take(units, now)
        self._reported.take(units, now)
        if self._reset_at:
            self._reported.next_at = min(self._reported.next_at, self._reset_at)

    def correct(self, units: float, now: float) -> None:
        """Count so many more, or fewer, than was taken for a request that has been answered."""
        self._own.take(units, now)
        self._reported.take(units, now)

    def note_refused(self, units: float, started_at: float) -> bool:
        """Whether a refused request was so for this rate: the endpoint has reported that not so much is left."""
        self._is_believed = True
        for_this = started_at <= self._reported_at < self._reset_at and self._remaining < max(1.0, units)
        if for_this and self._refilling and started_at > self._refilling_since:
            # Others take what is refilled: better to wait until all of it is back.
            self._refilling, self._begins_again_at = False, self._reported_at
        return for_this

    def note_success(self, units: float, started_at: float, report: LimitReport) -> None:
        """Doubt what a request contradicts that went through and came with `report`, until one is refused.

        That is a limit smaller than the request, and that nothing is left for more than a minute, before and after.
        """
        went_without = not self._by_minute and self._remaining < 1 and self._reported_at < started_at
        is_larger = report.limit is not None and report.limit < units
        if is_larger or (went_without and report.remaining == 0):
            self._is_believed = False
            self._limit, self._remaining, self._credit, self._reset_at = None, math.inf, math.inf, 0.0
            self._reported = Spacing()

    def take_report(self, report: LimitReport, uncounted: float, now: float) -> None:
        """Believe the endpoint; `uncounted` has started since, or may have, and is not in what it says."""
        if not self._is_believed:
            return
        self._limit = report.limit or self._limit
        if report.remaining is None:
            self._reported.change(self._spread_limit() if self._limit else 0.0, now)
            return
        reset_s = _UNREPORTED_RESET_S if report.reset_s is None else report.reset_s
        self._by_minute = reset_s <= _MINUTE_LIMIT_S
        self._remaining = report.remaining
        self._starved = False
        self._reported_at = now
        self._reset_at = now + min(reset_s, _PROBE_S)
        self._credit = (report.remaining - uncounted) * self._fraction
        if self._limit and report.reset_s and self._by_minute:
            self._learn_window(reset_s, (self._limit - report.remaining) / self._limit)
        self._reported.change(self._spread_credit(reset_s, report.reset_s is not None), now)

    def _learn_window(self, reset_s: float, used: float) -> None:
        """Learn from a reset that was reported when this share of the limit was used.

        A window that begins again at zero is as long as the longest reset. What refills needs for all
        of it that much longer than for what is used as all is more than that; only a refilling limit reports so always.
        """
        self._longest_reset_s = max(self._longest_reset_s, reset_s)
        if used >= _PLENTY:
            self._window_s = min(_MINUTE_S, max(self._longest_reset_s, reset_s / used))
        elif not self._scarce:
            self._window_s = min(_MINUTE_S, self._longest_reset_s)
        if not _LEAST_CLEAR <= used <= _MOST_CLEAR:
            return
        if abs(reset_s - _MINUTE_S * used) > 1.0 + _MINUTE_S * used / 10:
            self._begins_again_at = self._reported_at
        refilling = self._reported_at - self._begins_again_at > _MINUTE_LIMIT_S
        if refilling and not self._refilling:
            self._refilling_since = self._reported_at
        self._refilling = refilling

    def _spread_limit(self) -> float:
        """Seconds a unit at the pace of the reported limit."""
        return _SPREAD * self._window_s / (self._limit * self._fraction) if self._limit else 0.0

    def _spread_credit(self, reset_s: float, reset_reported: bool) -> float:
        """Seconds a unit, so that the credit lasts until the reset."""
        if not self._by_minute or not reset_reported or not reset_s:
            return 0.0
        lasting_s = reset_s / max(1.0, self._credit)
        if self._limit is None:
            return lasting_s
        part = self._credit / (self._limit * self._fraction)
        self._scarce = self._scarce or part <= _PLENTY
        if not self._scarce:
            return 0.0
        pace_s = self._spread_limit()
        least_pace = _LEAST_PACE_REFILLING if self._refilling else _LEAST_PACE
        return pace_s if part > _RESERVE else min(max(pace_s, lasting_s), pace_s / least_pace)

    def _find_refill(self, units: float) -> float:
        self._starved = True
        if not self._refilling or not self._limit:
            return self._reset_at
        back_s = (units - self._credit) * _MINUTE_S / (self._limit * self._fraction)
        return min(self._reset_at, self._reported_at + back_s)

    def _begin_again(self, now: float) -> None:
        """What was reported is over: at the limit's pace from here until the next report."""
        self._credit = math.inf
        self._reset_at = 0.0
        if not self._by_minute:
            self._reported.change(_PROBE_S if self._starved else 0.0, now)
        else:
            self._reported.change(self._spread_limit() if self._scarce else 0.0, now)


# A first burst is no larger than this; what is allowed beyond it opens up with the first successes.
_FIRST_BURST = 64
_FRESH_REFUSALS = 3
_PAUSE_S = 1.0
_BACKOFF_FIRST_S = 0.5
_BACKOFF_MOST_S = 30.0
# A wait of this length is said to those who do not see the progress, too, and after so long again.
_SAID_FROM_S = 10.0
_SAID_AGAIN_S = 600.0
# Successes before one more slot is tried above the number that was refused before.
_LEAST_PATIENCE = 32
_MOST_PATIENCE = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """The right to send one request of about so many tokens; `started_at` is on the event loop's clock.

    `ordinal` counts the slots of the limit, `tokens_before` the tokens of those that started before.
    """

    started_at: float
    tokens: int
    ordinal: int
    tokens_before: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Turn:
    """Somebody who waits for a slot; `number` counts the turns of all models of the endpoint."""

    tokens: int
    future: asyncio.Future[Slot]
    number: int


class _Bearing:
    """What an endpoint bears at once, learned from all that is asked there; `limits` are those of its models."""

    def __init__(self, concurrency: int) -> None:
        self.setting = concurrency
        self.allowed = min(concurrency, _FIRST_BURST)
        self.limits: list[EndpointLimit] = []
        self.in_flight = 0
        self.n_turns = 0
        self.paused_until = 0.0
        self._ceiling = concurrency
        self._patience = _LEAST_PATIENCE
        self._successes = 0
        self._probing = False
        self._fresh_refusals = 0
        self._shrunk_at = 0.0

    def note_success(self, *, is_full: bool) -> None:
        """A request went through. Below what was never refused each success opens a slot, above it many do."""
        self._fresh_refusals = 0
        if self.allowed >= self.setting or not is_full:
            return  # says nothing of more slots than were in use
        self._successes += 1
        if self.allowed < self._ceiling:
            self.allowed += 1
        elif self._successes >= self._patience:
            self._patience = max(_LEAST_PATIENCE, self._patience // 2) if self._probing else self._patience
            self.allowed += 1
            self._ceiling = self.allowed
            self._successes, self._probing = 0, True

    def note_refused(self, started_at: float, pause_s: float, now: float) -> None:
        """A request was refused, and not for a rate that is known of."""
        others = self.in_flight - 1
        self._fresh_refusals += started_at >= self._shrunk_at
        if self._probing:
            self._patience = min(_MOST_PATIENCE, self._patience * 2)
            self._probing = False
        self._successes = 0
        self._shrunk_at = now
        if others == 0 or self._fresh_refusals >= _FRESH_REFUSALS:
            self.paused_until = max(self.paused_until, now + pause_s)
            self.allowed = 1
        else:
            self._ceiling = self.allowed = min(self.allowed, others)

    def note_late(self, started_at: float, now: float, *, was_answered: bool) -> None:
        """No reply came in time."""
        if started_at < self._shrunk_at or (self._shrunk_at and not was_answered):
            return
        self._shrunk_at = now
        self._successes, self._probing = 0, False
        self._ceiling = self.allowed = max(1, self.in_flight // 2)

    def give_out(self) -> None:
        """Give free slots to those who have waited longest, whatever model they wait for."""
        for limit in sorted(self.limits, key=lambda limit: limit.first_turn) if len(self.limits) > 1 else self.limits:
            limit.give_out_own()


class EndpointLimit:
    """Slots for one model of an endpoint within one event loop; `beside` is the limit of another model there.

    Within any 60 s no more requests start than `rpm`, and no more tokens than `tpm` and one request's; they are spread
    over the minute, at 99.2 % of the rate. Tokens are the caller's guess until `note_tokens` says better. When the
    endpoint lets nothing through for `max_wait_s`, or asks to wait beyond that, all who wait get JudgeFailed.
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
        self.patience = Patience(choose_timeout(timeout_s, ""))
        self.max_wait_s = max_wait_s
        self._setting = concurrency
        self._share = concurrency
        self._bearing: _Bearing = beside._bearing if beside is not None else _Bearing(concurrency)
        self._bearing.limits.append(self)
        self._in_flight = 0
        self._n_waiting = 0
        self._waiting: deque[_Turn] = deque()
        self._again: deque[_Turn] = deque()  # those that go before all others
        self._late: set[int] = set()  # the ordinals of slots that are still held
        self._tokens_in_flight = 0
        self._n_started = 0
        self._n_tokens = 0
        self._requests = Rate(rpm)
        self._tokens = Rate(tpm)
        self._reported_ordinal = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        self._closed_by: FatalJudgeError | JudgeFailed | None = None
        self._stands_since: float | None = None
        self._said_again_at = 0.0
        self._waits_until = 0.0
        self._waits_for = ""

    @property
    def in_flight(self) -> int:
        """Slots that are taken now."""
        return self._in_flight

    @property
    def allowed(self) -> int:
        """Slots that the endpoint bears at once, as far as is known now; this process's share may be less."""
        return self._bearing.allowed

    @property
    def first_turn(self) -> float:
        """The number of the turn that is next here, counted over all models; infinite where nobody waits."""
        queue = self._again or self._waiting
        return queue[0].number if queue else math.inf

    @property
    def has_given_up(self) -> bool:
        """Whether the endpoint was waited for too long, so that nothing is asked there any more."""
        return isinstance(self._closed_by, JudgeFailed)

    def wish(self) -> int:
        """Slots that could be used now: those in flight and one for everybody who waits, at most the setting."""
        return min(self._setting, self._in_flight + self._n_waiting)

    def set_share(self, slots: int, *, fraction: float = 1.0) -> None:
        """Use at most so many slots from now on, and that part of the rates; slots in use are not taken away."""
        self._share = min(slots, self._setting)
        now = _read_clock()
        self._requests.share(fraction, now)
        self._tokens.share(fraction, now)
        self._bearing.give_out()

    @asynccontextmanager
    async def slot(self, tokens: int = 0, *, first: bool = False) -> AsyncIterator[Slot]:
        """Hold one slot for the length of the block, before all who wait if `first`.

        Raises what the limit was closed with.
        """
        slot = await self._enter(tokens, first=first)
        try:
            yield slot
        finally:
            self._end(slot)

    def close(self, error: FatalJudgeError | JudgeFailed) -> None:
        """Give out no more slots: those who wait get this error."""
        self._closed_by = error
        if self._timer is not None:
            self._timer.cancel()
        for turn in (*self._again, *self._waiting):
            if not turn.future.done():
                turn.future.set_exception(repeat_error(error))
                self._n_waiting -= 1
        self._again.clear()
        self._waiting.clear()

    def note_tokens(self, slot: Slot, used: int) -> None:
        """A request really took so many tokens."""
        if used != slot.tokens:
            self._tokens.correct(used - slot.tokens, _read_clock())
            self._bearing.give_out()

    def note_report(self, limits: RateLimits, slot: Slot | None = None, *, went_through: bool = False) -> None:
        """What the endpoint reported of its limits in its answer to the request of `slot`.

        What started after that request cannot be counted in the answer, whether it is in flight or not. Where the
        slot is not given, everything in flight is taken as not counted.
        """
        if slot is not None and slot.ordinal < self._reported_ordinal:
            return  # an answer to a later request came first
        self._reported_ordinal = self._reported_ordinal if slot is None else slot.ordinal
        started = self._in_flight if slot is None else self._n_started - slot.ordinal
        tokens = self._tokens_in_flight if slot is None else self._n_tokens - slot.tokens_before - slot.tokens
        now = _read_clock()
        names = ("limit", "remaining", "reset_s")
        for kind, rate, uncounted in (("requests", self._requests, started), ("tokens", self._tokens, tokens)):
            report = LimitReport(**{name: getattr(limits, f"{kind}_{name}") for name in names})
            if went_through and slot is not None:
                rate.note_success(slot.tokens if kind == "tokens" else 1, slot.started_at, report)
            if report.limit is not None or report.remaining is not None:
                rate.take_report(report, uncounted, now)
        self._bearing.give_out()

    def note_success(self, slot: Slot) -> None:
        """A request went through."""
        self._stands_since = None
        bearing = self._bearing
        is_full = bearing.in_flight >= bearing.allowed or self._in_flight >= self._share
        bearing.note_success(is_full=is_full)
        bearing.give_out()

    def note_refused(self, slot: Slot, retry_after_s: float | None) -> None:
        """The endpoint said 429 to a request whose slot is still held; what it reported with it was noted before."""
        now = _read_clock()
        for_requests = self._requests.note_refused(1, slot.started_at)
        if self._tokens.note_refused(slot.tokens, slot.started_at) or for_requests:
            return  # it is their rate, which is waited for, and not their number
        self._bearing.note_refused(slot.started_at, max(_PAUSE_S, retry_after_s or 0.0), now)

    def note_wait(self, seconds: float, why: str) -> None:
        """The endpoint asks for a wait from now on; raises JudgeFailed where that takes longer than is allowed."""
        self._note_wait(seconds, why)
        if self._closed_by is not None:
            raise repeat_error(self._closed_by)

    def _note_wait(self, seconds: float, why: str) -> None:
        now = _read_clock()
        stands = not self._bearing.in_flight
        if self._stands_since is None and stands:
            self._stands_since, self._said_again_at = now, now
        if now + seconds > (now if self._stands_since is None else self._stands_since) + self.max_wait_s:
            self._give_up(seconds, why)
            return
        if stands and seconds >= _SAID_FROM_S and now >= self._said_again_at:
            self._said_again_at = now + _SAID_AGAIN_S
            logger.warning("nothing is asked for %s: %s", write_span(seconds), why)
        if now + seconds > self._waits_until:
            self._waits_until, self._waits_for = now + seconds, why

    def describe_wait(self, now: float) -> str | None:
        """For how long nothing will be asked, and why; None while something is under way. `now` is the loop's time."""
        left_s = self._waits_until - now
        if self._bearing.in_flight or left_s < 1:
            return None
        return f"waiting {write_span(left_s)}: {self._waits_for}"

    def _give_up(self, seconds: float, why: str) -> None:
        stood_s = 0.0 if self._stands_since is None else _read_clock() - self._stands_since
        stood = f", after {write_span(stood_s)} in which nothing went through" if stood_s >= 1 else ""
        self.close(
            JudgeFailed(
                f"{why}: a wait of {write_span(seconds)} more{stood}, and --max-wait is {write_span(self.max_wait_s)}; "
                "raise it, or go on later with `evalhouse resume`"
            )
        )

    def note_late(self, slot: Slot) -> None:
        """No reply came in time to a request whose slot is still held: half as many at once from now on.

        Of those that were under way together the first counts, as do all of an endpoint that answers nobody, and none
        that others have overtaken: it was lost on its way, and did not wait in a queue.
        """
        self._late.add(slot.ordinal)
        if not self.patience.is_overtaken(slot):
            self._bearing.note_late(slot.started_at, _read_clock(), was_answered=self.patience.was_answered)

    async def _enter(self, tokens: int, *, first: bool) -> Slot:
        if self._closed_by is not None:
            raise repeat_error(self._closed_by)
        self._bearing.n_turns += 1
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        (self._again if first else self._waiting).append(
            _Turn(tokens=tokens, future=future, number=self._bearing.n_turns)
        )
        self._n_waiting += 1
        self.give_out_own()
        try:
            return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._n_waiting -= 1
            elif future.exception() is None:
                self._end(future.result())  # the slot was given in the very moment of cancelling
            self._bearing.give_out()  # what stands behind a large request may have waited only for that
            raise

    def give_out_own(self) -> None:
        """Give free slots to those who wait for this model."""
        bearing = self._bearing
        while (queue := self._again or self._waiting) and self._in_flight < self._share:
            if bearing.in_flight >= bearing.allowed:
                return
            turn = queue[0]
            if turn.future.done():  # cancelled while it waited
                queue.popleft()
                continue
            now = _read_clock()
            if self._must_wait(turn.tokens, now):
                return
            queue.popleft()
            turn.future.set_result(self._start(turn.tokens, now))

    def _start(self, tokens: int, now: float) -> Slot:
        self._requests.take(1, now)
        self._tokens.take(tokens, now)
        self._n_waiting -= 1
        self._in_flight += 1
        self._bearing.in_flight += 1
        self._tokens_in_flight += tokens
        self._n_started += 1
        slot = Slot(started_at=now, tokens=tokens, ordinal=self._n_started, tokens_before=self._n_tokens)
        self._n_tokens += tokens
        return slot

    def _end(self, slot: Slot) -> None:
        self._in_flight -= 1
        self._bearing.in_flight -= 1
        self._tokens_in_flight -= slot.tokens
        if slot.ordinal not in self._late:
            self._bearing.give_out()
            return
        # Whoever was not answered in time comes back for it in this same turn of the loop, before anybody else.
        self._late.discard(slot.ordinal)
        asyncio.get_running_loop().call_soon(self._bearing.give_out)

    def _must_wait(self, tokens: int, now: float) -> bool:
        """Whether the next request must start later; a timer gives its slot out then."""
        starts = {
            "the endpoint refused too many requests": self._bearing.paused_until,
            "the endpoint says that its limit of requests is used up": self._requests.find_start(1, now),
            "the endpoint says that its limit of tokens is used up": self._tokens.find_start(tokens, now),
        }
        why, at = max(starts.items(), key=lambda start: start[1])
        if at <= now:
            return False
        if at > max(self._requests.own_next_at, self._tokens.own_next_at):
            self._note_wait(at - now, why)
            if self._closed_by is not None:
                return True
        if self._timer is None or at < self._wakes_at:
            if self._timer is not None:
                self._timer.cancel()
            self._wakes_at = at
            self._timer = asyncio.get_running_loop().call_later(at - now, self._wake)
        return True

    def _wake(self) -> None:
        self._timer = None
        self._bearing.give_out()


def write_span(seconds: float) -> str:
    """A time to wait as a person says it: `45 s`, `9:58 min`, `2:00:00 h`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,}:{minutes:02d}:{rest:02d} h"
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"


def draw_backoff(failures: int) -> float:
    """Seconds to wait after so many failures: exponential with jitter, so that many who fail do not return as one."""
    return min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)


def _read_clock() -> float:
    return asyncio.get_running_loop().time()
