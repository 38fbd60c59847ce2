"""How many requests may be in flight and how many may start each minute.

Slots are given in the order they were asked for. When the endpoint says 429 the number of slots shrinks and
nothing new starts until the time it named; each full round of successes gives one slot back, so that the limit
settles just under what the endpoint bears.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_SHRINK = 0.75
_MIN_PAUSE_S = 0.5


class EndpointLimit:
    """Slots for one endpoint within one event loop."""

    def __init__(self, *, concurrency: int, rpm: int | None = None) -> None:
        self._most = concurrency
        self._allowed = float(concurrency)
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._paused_until = 0.0
        self._shrunk_at = 0.0
        self._interval_s = 60.0 / rpm if rpm else 0.0
        self._next_start = 0.0

    @property
    def in_flight(self) -> int:
        """Requests under way now."""
        return self._in_flight

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold one slot for the length of the block."""
        await self._enter()
        try:
            await self._wait_for_start()
            yield
        finally:
            self._leave()

    def note_success(self) -> None:
        """A request went through: after a round of them one more may be in flight."""
        if self._allowed < self._most:
            self._allowed = min(float(self._most), self._allowed + 1.0 / max(1.0, self._allowed))
            self._wake()

    def note_rate_limited(self, retry_after_s: float | None) -> None:
        """The endpoint said 429: fewer slots, and a pause. One burst of refusals shrinks the limit once."""
        now = time.monotonic()
        pause = max(_MIN_PAUSE_S, retry_after_s or 0.0)
        self._paused_until = max(self._paused_until, now + pause)
        if now - self._shrunk_at > pause:
            self._allowed = max(1.0, min(self._allowed, float(self._in_flight)) * _SHRINK)
            self._shrunk_at = now

    async def _enter(self) -> None:
        if self._in_flight < int(self._allowed) and not self._waiting:
            self._in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the slot was given in the very moment of cancelling
            raise

    def _leave(self) -> None:
        self._in_flight -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._in_flight < int(self._allowed):
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_flight += 1
                turn.set_result(None)

    async def _wait_for_start(self) -> None:
        now = time.monotonic()
        start = max(now, self._paused_until)
        if self._interval_s:
            start = max(start, self._next_start)
            self._next_start = start + self._interval_s
        if start > now:
            await asyncio.sleep(start - now)
