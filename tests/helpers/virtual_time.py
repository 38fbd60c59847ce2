"""An event loop whose clock jumps to the next timer, so that minutes of pacing pass in milliseconds and exactly."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
LONGEST_S = 1_000_000.0  # what has not ended then is taken for an endless loop


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: the time it was to wait for is over at once."""

    passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits and no timer is set: a deadlock")
        if timeout > 0 and self.passed_s > LONGEST_S:
            raise AssertionError(f"not at its end after {LONGEST_S:,.0f} s")
        self.passed_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Starts at 1,000 s; every callback takes no time."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return 1000.0 + self._clock.passed_s


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run to the end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """A test that is run that way; pytest gives it its parameters as ever."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return run_virtually(test(*args, **kwargs))

    return run


def read_clock() -> float:
    """Seconds on the running loop's clock."""
    return asyncio.get_running_loop().time()
