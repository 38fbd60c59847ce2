"""Whether anything moves in a run: questions that are asked, read or waited for, apart from those that lie still.

A round of a batch is sent when nothing does. What no question shows (rows that are read, a task that begins) takes a
moment, so nothing counts as still until it has been so for a while.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STILL_S = 1.0
# The event loop may have been held up for longer than that: whoever was ready to go on does so first.
_LOOKED_AT_AGAIN_S = 0.1


class Activity:
    """Counts what moves, within one event loop; `listen` to be called each time that nothing does.

    `n_begun` counts how often something began to move.
    """

    def __init__(self) -> None:
        self._n_moving = 0
        self.n_begun = 0
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def n_moving(self) -> int:
        """How many questions are being asked and do not lie still."""
        return self._n_moving

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this when all has been still for a moment."""
        self._listeners.append(listener)

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Something moves as long as the block runs."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def still(self) -> Iterator[None]:
        """What moves lies still as long as the block runs."""
        self._end()
        try:
            yield
        finally:
            self._begin()

    def look(self) -> None:
        """Say it again if all is still; for those whom nothing that moves will remind."""
        if self._listeners and not self._n_moving:
            self._look_in(_STILL_S, self._look)

    def _begin(self) -> None:
        self._n_moving += 1
        self.n_begun += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._n_moving -= 1
        self.look()

    def _look_in(self, seconds: float, look: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, look)

    def _look(self) -> None:
        n_begun = self.n_begun

        def look_again() -> None:
            self._timer = None
            if n_begun == self.n_begun:
                for listener in self._listeners:
                    listener()

        self._look_in(_LOOKED_AT_AGAIN_S, look_again)
