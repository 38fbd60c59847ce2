"""The signals that all askers of a run share: a stop, and that no question moves any more."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from evalhouse.tasks.judge.errors import FatalJudgeError, repeat_error

# Rows that are read, or a task that begins, take a moment in which no question is asked.
_STILL_S = 1.0
# The event loop may have been held up for longer than that: all that was ready to run does so first.
_CHECKED_AGAIN_S = 0.1
DRAIN_S = 3.0
"""The seconds that requests in flight may still take when a run is stopped."""


class StopSign:
    """Stops all requests of a run: nothing more is sent, and all who wait end at once.

    Given on Ctrl-C, or where nothing will work (a wrong key, a full disk). All askers of a run share one, so that
    embeddings with a wrong key stop the judge as well. Given at most once; the first reason counts. Belongs to one
    event loop.
    """

    def __init__(self) -> None:
        self._error: FatalJudgeError | None = None
        self._listeners: list[Callable[[FatalJudgeError, float], None]] = []
        self._sleeping: set[asyncio.Future[None]] = set()

    def give(self, error: FatalJudgeError, *, drain_s: float = DRAIN_S) -> None:
        """Stop everything with this error; requests in flight have `drain_s` seconds left."""
        if self._error is not None:
            return
        self._error = error
        for sleeper in self._sleeping:
            if not sleeper.done():
                sleeper.set_exception(repeat_error(error))
        for listener in self._listeners:
            listener(error, drain_s)

    def listen(self, listener: Callable[[FatalJudgeError, float], None]) -> None:
        """Call `listener` with the error and the seconds left when the sign is given."""
        self._listeners.append(listener)

    def raise_if_given(self) -> None:
        """Raise the error that the sign was given for, if it was."""
        if self._error is not None:
            raise repeat_error(self._error)

    async def sleep(self, seconds: float) -> None:
        """Wait that long; raises as soon as the sign is given."""
        self.raise_if_given()
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleeping.add(sleeper)
        try:
            async with asyncio.timeout(seconds):
                await sleeper
        except TimeoutError:
            pass
        finally:
            self._sleeping.discard(sleeper)


class Activity:
    """Counts the questions that are being asked and do not wait for a batch, within one event loop.

    Listeners are called each time that all have been still for a moment. `n_begun` counts how often one began to move.
    """

    def __init__(self) -> None:
        self.n_moving = 0
        self.n_begun = 0
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this when all has been still for a moment."""
        self._listeners.append(listener)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Count a question as moving while the block runs."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Count a moving question as still while the block runs."""
        self._count(-1)
        try:
            yield
        finally:
            self._count(1)

    def _count(self, change: int) -> None:
        self.n_moving += change
        if change > 0:
            self.n_begun += 1
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        else:
            self.look()

    def look(self) -> None:
        """Call the listeners soon if all is still; also for waits that no question will end."""
        if self._listeners and not self.n_moving:
            self._look_in(_STILL_S, None)

    def _look_in(self, seconds: float, n_begun: int | None) -> None:
        """Call the listeners after a first look and a second one between which nothing has begun."""

        def look() -> None:
            self._timer = None
            if n_begun is None:
                self._look_in(_CHECKED_AGAIN_S, self.n_begun)
            elif n_begun == self.n_begun:
                for listener in self._listeners:
                    listener()

        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, look)
