"""Turns: at the warehouse for each page, however many queries it makes, and at the processors for what is made."""

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evalhouse.warehouse.engine.shared import one_reading


class OneReading:
    """Stands before the app: what a page reads up to its first byte is of one state, and waits for a run's write once.

    What is read while a response goes on (events, a download) takes its turn by itself.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with one_reading() as end:

            async def send_after(message: Message) -> None:
                end()
                await send(message)

            await self._app(scope, receive, send_after)


class Turns:
    """So many at once; of those who wait the lowest rank comes first, and of equals the one that came first."""

    def __init__(self, n: int) -> None:
        self._n_free = n
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def take(self, rank: int) -> AsyncIterator[None]:
        """Wait for a turn and have it within this block."""
        if self._n_free:
            self._n_free -= 1
        else:
            await self._wait(rank)
        try:
            yield
        finally:
            self._hand_on()

    async def _wait(self, rank: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (rank, next(self._numbers), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came in the moment in which nobody wanted it any more
                self._hand_on()
            raise

    def _hand_on(self) -> None:
        while self._waiting:
            turn = heapq.heappop(self._waiting)[2]
            if not turn.done():
                turn.set_result(None)
                return
        self._n_free += 1
