"""The sign that stops everything that asks for a run, and the waits that it ends."""

import asyncio
from collections.abc import Callable

from evalhouse.tasks.judge.errors import FatalJudgeError, repeat_error

# How long requests that are under way may still take.
DRAIN_S = 3.0


Listener = Callable[[FatalJudgeError, float], None]


class StopSign:
    """Stops everything that asks for a run: nothing more is sent, and all who wait end at once.

    Given by a person's Ctrl-C, or by whatever finds that nothing will work (a wrong key, a full disk). All askers of a
    run share one, so that embeddings with a wrong key stop the judge as well. Given at most once; the first reason
    counts. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._error: FatalJudgeError | None = None
        self._listeners: list[Listener] = []
        self._sleeping: set[asyncio.Future[None]] = set()

    def give(self, error: FatalJudgeError, *, drain_s: float = DRAIN_S) -> None:
        """Stop everything with this error; requests under way have `drain_s` seconds left."""
        if self._error is not None:
            return
        self._error = error
        for sleeper in self._sleeping:
            if not sleeper.done():
                sleeper.set_exception(repeat_error(error))
        for listener in self._listeners:
            listener(error, drain_s)

    def listen(self, listener: Listener) -> None:
        """Call `listener` with the error and the seconds left when the sign is given."""
        self._listeners.append(listener)

    def raise_if_given(self) -> None:
        """Raise what the sign was given for, if it was."""
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
