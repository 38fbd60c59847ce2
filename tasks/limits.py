"""How many requests may be in flight and how many may start each minute.

Slots are given in the order they were asked for. What an endpoint bears is learned from its refusals (429): those
that were in flight when it refused one more are what it bears, so the limit falls to just that number and its other
requests go on. After many successes one more is tried, more and more seldom as long as it is refused. When fresh
requests are refused in a row, or the only one is, it is not their number but their rate, and nothing starts until
the time the endpoint named.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tasks.judge_errors import FatalJudgeError, repeat_error
from tasks.rate_headers import RateLimits

# A first burst is no larger than this; what is allowed beyond it opens up with the first successes.
_FIRST_BURST = 64
_FRESH_REFUSALS = 3
_PAUSE_S = 1.0
# Successes before one more slot is tried above the number that was refused before.
_LEAST_PATIENCE = 32
_MOST_PATIENCE = 4096


@dataclass(frozen=True, kw_only=True)
class Slot:
    """The right to send one request; `started_at` is on the monotonic clock."""

    started_at: float


class EndpointLimit:
    """Slots for one endpoint within one event loop."""

    def __init__(self, *, concurrency: int, rpm: int | None = None) -> None:
        self._most = concurrency
        self._allowed = min(concurrency, _FIRST_BURST)
        self._ceiling = concurrency
        self._patience = _LEAST_PATIENCE
        self._successes = 0
        self._probing = False
        self._fresh_refusals = 0
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._shrunk_at = 0.0
        self._interval_s = 60.0 / rpm if rpm else 0.0
        self._next_start = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed_by: FatalJudgeError | None = None

    @property
    def in_flight(self) -> int:
        """Slots that are taken now."""
        return self._in_flight

    @property
    def allowed(self) -> int:
        """Slots that may be taken at once, as far as is known now."""
        return self._allowed

    @asynccontextmanager
    async def slot(self, tokens: int = 0) -> AsyncIterator[Slot]:
        """Hold one slot for the length of the block; raises what the limit was closed with."""
        await self._enter()
        try:
            yield Slot(started_at=time.monotonic())
        finally:
            self._in_flight -= 1
            self._give_out()

    def close(self, error: FatalJudgeError) -> None:
        """Give out no more slots: those who wait get this error."""
        self._closed_by = error
        if self._timer is not None:
            self._timer.cancel()
        for turn in self._waiting:
            if not turn.done():
                turn.set_exception(repeat_error(error))
        self._waiting.clear()

    def note_tokens(self, slot: Slot, used: int) -> None:
        """How many tokens a request really took."""

    def note_told(self, limits: RateLimits) -> None:
        """What the endpoint told of its limits."""

    def note_success(self, slot: Slot) -> None:
        """A request went through. Below what was never refused each success opens a slot, above it many do."""
        if slot.started_at >= self._shrunk_at:
            self._fresh_refusals = 0
        if self._allowed >= self._most:
            return
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
        """The endpoint said 429 to a request whose slot is still held."""
        now = time.monotonic()
        others = self._in_flight - 1
        self._fresh_refusals += slot.started_at >= self._shrunk_at
        if self._probing:
            self._patience = min(_MOST_PATIENCE, self._patience * 2)
            self._probing = False
        self._successes = 0
        self._shrunk_at = now
        if others == 0 or self._fresh_refusals >= _FRESH_REFUSALS:
            self._next_start = max(self._next_start, now + max(_PAUSE_S, retry_after_s or 0.0))
            self._allowed = 1
        else:
            self._ceiling = self._allowed = min(self._allowed, others)

    async def _enter(self) -> None:
        if self._closed_by is not None:
            raise repeat_error(self._closed_by)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._give_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._in_flight -= 1  # the slot was given in the very moment of cancelling
                self._give_out()
            raise

    def _give_out(self) -> None:
        while self._waiting and self._in_flight < self._allowed:
            if self._waiting[0].done():  # cancelled while it waited
                self._waiting.popleft()
                continue
            if self._must_wait():
                return
            self._in_flight += 1
            self._waiting.popleft().set_result(None)

    def _must_wait(self) -> bool:
        """Whether the next request must start later; a timer gives its slot out then."""
        now = time.monotonic()
        if self._next_start > now:
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(self._next_start - now, self._wake)
            return True
        if self._interval_s:
            # A timer that woke a little late is made up for, an idle time is not.
            late = now - self._next_start
            self._next_start = now + self._interval_s - (late if late < self._interval_s else 0.0)
        return False

    def _wake(self) -> None:
        self._timer = None
        self._give_out()
