"""How many requests may be in flight and how many may start each minute.

Slots are given in the order they were asked for. What an endpoint bears at once is learned from its refusals (429):
those that were in flight when it refused one more are what it bears, so the limit falls to just that number and its
other requests go on. After many successes one more is tried, more and more seldom as long as it is refused. When fresh
requests are refused in a row, or the only one is, it is not their number but their rate, and nothing starts until
the time the endpoint named. Rates, set or told by the endpoint, are kept by `rates.py`; of a limit that several
processes share, `shared_limit.py` says what part is this one's.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from evalhouse.tasks.asking.rates import Rate, Told
from evalhouse.tasks.judge.errors import FatalJudgeError, repeat_error
from evalhouse.tasks.judge.rate_headers import RateLimits

# A first burst is no larger than this; what is allowed beyond it opens up with the first successes.
_FIRST_BURST = 64
_FRESH_REFUSALS = 3
_PAUSE_S = 1.0
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
    """Somebody who waits for a slot."""

    tokens: int
    given: asyncio.Future[Slot]


class EndpointLimit:
    """Slots for one endpoint within one event loop.

    Within any 60 s no more requests start than `rpm`, and no more tokens than `tpm` and one request's; they are spread
    over the minute, at 99.2 % of the rate. Tokens are the caller's guess until `note_tokens` says better.
    """

    def __init__(self, *, concurrency: int, rpm: int | None = None, tpm: int | None = None) -> None:
        self._setting = concurrency
        self._share = concurrency
        self._allowed = min(concurrency, _FIRST_BURST)
        self._ceiling = concurrency
        self._patience = _LEAST_PATIENCE
        self._successes = 0
        self._probing = False
        self._fresh_refusals = 0
        self._shrunk_at = 0.0
        self._in_flight = 0
        self._n_waiting = 0
        self._waiting: deque[_Turn] = deque()
        self._tokens_in_flight = 0
        self._n_started = 0
        self._n_tokens = 0
        self._requests = Rate(rpm)
        self._tokens = Rate(tpm)
        self._heard_of = 0
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = 0.0
        self._closed_by: FatalJudgeError | None = None

    @property
    def in_flight(self) -> int:
        """Slots that are taken now."""
        return self._in_flight

    @property
    def allowed(self) -> int:
        """Slots that the endpoint bears at once, as far as is known now; this process's share may be less."""
        return self._allowed

    def wish(self) -> int:
        """Slots that could be used now: those in flight and one for everybody who waits, at most the setting."""
        return min(self._setting, self._in_flight + self._n_waiting)

    def set_share(self, slots: int, *, fraction: float = 1.0) -> None:
        """Use at most so many slots from now on, and that part of the rates; slots in use are not taken away."""
        self._share = min(slots, self._setting)
        now = _read_clock()
        self._requests.share(fraction, now)
        self._tokens.share(fraction, now)
        self._give_out()

    @asynccontextmanager
    async def slot(self, tokens: int = 0) -> AsyncIterator[Slot]:
        """Hold one slot for the length of the block; raises what the limit was closed with."""
        slot = await self._enter(tokens)
        try:
            yield slot
        finally:
            self._end(slot)

    def close(self, error: FatalJudgeError) -> None:
        """Give out no more slots: those who wait get this error."""
        self._closed_by = error
        if self._timer is not None:
            self._timer.cancel()
        for turn in self._waiting:
            if not turn.given.done():
                turn.given.set_exception(repeat_error(error))
                self._n_waiting -= 1
        self._waiting.clear()

    def note_tokens(self, slot: Slot, used: int) -> None:
        """A request really took so many tokens."""
        if used != slot.tokens:
            self._tokens.correct(used - slot.tokens, _read_clock())
            self._give_out()

    def note_told(self, limits: RateLimits, slot: Slot | None = None) -> None:
        """What the endpoint told of its limits in its answer to the request of `slot`.

        What started after that request cannot be counted in the answer, whether it is in flight or not. Where the
        slot is not given, everything in flight is taken as not counted.
        """
        if slot is not None and slot.ordinal < self._heard_of:
            return  # an answer to a later request came first
        self._heard_of = self._heard_of if slot is None else slot.ordinal
        started = self._in_flight if slot is None else self._n_started - slot.ordinal
        tokens = self._tokens_in_flight if slot is None else self._n_tokens - slot.tokens_before - slot.tokens
        now = _read_clock()
        for rate, uncounted, told in (
            (self._requests, started, _pick_requests(limits)),
            (self._tokens, tokens, _pick_tokens(limits)),
        ):
            if told is not None:
                rate.hear(told, uncounted, now)
        self._give_out()

    def note_success(self, slot: Slot) -> None:
        """A request went through. Below what was never refused each success opens a slot, above it many do."""
        if slot.started_at >= self._shrunk_at:
            self._fresh_refusals = 0
        if self._allowed >= self._setting or self._in_flight < min(self._allowed, self._share):
            return  # says nothing of more slots than were in use
        self._successes += 1
        if self._allowed < self._ceiling:
            self._allowed += 1
        elif self._successes >= self._patience:
            self._patience = max(_LEAST_PATIENCE, self._patience // 2) if self._probing else self._patience
            self._allowed += 1
            self._ceiling = self._allowed
            self._successes, self._probing = 0, True
        self._give_out()

    def note_refused(self, slot: Slot, retry_after_s: float | None) -> None:
        """The endpoint said 429 to a request whose slot is still held; what it told with it was noted before."""
        for_requests = self._requests.note_refused(1, slot.started_at)
        if self._tokens.note_refused(slot.tokens, slot.started_at) or for_requests:
            return  # it is their rate, which is waited for, and not their number
        now = _read_clock()
        others = self._in_flight - 1
        self._fresh_refusals += slot.started_at >= self._shrunk_at
        if self._probing:
            self._patience = min(_MOST_PATIENCE, self._patience * 2)
            self._probing = False
        self._successes = 0
        self._shrunk_at = now
        if others == 0 or self._fresh_refusals >= _FRESH_REFUSALS:
            self._paused_until = max(self._paused_until, now + max(_PAUSE_S, retry_after_s or 0.0))
            self._allowed = 1
        else:
            self._ceiling = self._allowed = min(self._allowed, others)

    async def _enter(self, tokens: int) -> Slot:
        if self._closed_by is not None:
            raise repeat_error(self._closed_by)
        turn = _Turn(tokens=tokens, given=asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._n_waiting += 1
        self._give_out()
        try:
            return await turn.given
        except asyncio.CancelledError:
            if turn.given.cancelled():
                self._n_waiting -= 1
            elif turn.given.exception() is None:
                self._end(turn.given.result())  # the slot was given in the very moment of cancelling
            self._give_out()  # whoever was behind a large request may have only waited for that
            raise

    def _give_out(self) -> None:
        while self._waiting and self._in_flight < min(self._allowed, self._share):
            turn = self._waiting[0]
            if turn.given.done():  # cancelled while it waited
                self._waiting.popleft()
                continue
            now = _read_clock()
            if self._must_wait(turn.tokens, now):
                return
            self._waiting.popleft()
            turn.given.set_result(self._start(turn.tokens, now))

    def _start(self, tokens: int, now: float) -> Slot:
        self._requests.take(1, now)
        self._tokens.take(tokens, now)
        self._n_waiting -= 1
        self._in_flight += 1
        self._tokens_in_flight += tokens
        self._n_started += 1
        slot = Slot(started_at=now, tokens=tokens, ordinal=self._n_started, tokens_before=self._n_tokens)
        self._n_tokens += tokens
        return slot

    def _end(self, slot: Slot) -> None:
        self._in_flight -= 1
        self._tokens_in_flight -= slot.tokens
        self._give_out()

    def _must_wait(self, tokens: int, now: float) -> bool:
        """Whether the next request must start later; a timer gives its slot out then."""
        at = max(self._paused_until, self._requests.find_start(1, now), self._tokens.find_start(tokens, now))
        if at <= now:
            return False
        if self._timer is None or at < self._wakes_at:
            if self._timer is not None:
                self._timer.cancel()
            self._wakes_at = at
            self._timer = asyncio.get_running_loop().call_later(at - now, self._wake)
        return True

    def _wake(self) -> None:
        self._timer = None
        self._give_out()


def _read_clock() -> float:
    return asyncio.get_running_loop().time()


def _pick_requests(limits: RateLimits) -> Told | None:
    told = Told(limit=limits.requests_limit, remaining=limits.requests_remaining, reset_s=limits.requests_reset_s)
    return told if told.limit is not None or told.remaining is not None else None


def _pick_tokens(limits: RateLimits) -> Told | None:
    told = Told(limit=limits.tokens_limit, remaining=limits.tokens_remaining, reset_s=limits.tokens_reset_s)
    return told if told.limit is not None or told.remaining is not None else None
