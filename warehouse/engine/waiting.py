"""Waiting for a warehouse that cannot be had: a file that another program keeps, a catalogue whose server is down.

By itself an opening gives up after its patience and raises WarehouseBusy. Within `waiting_for_others`, which a run is,
it is tried again for as long as it takes, and what is waited for is said. Only threads and tasks that were started with
the context of that block wait. Whoever opens something comes here only when it could not be had at once.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Final, TypeVar

from evalhouse.warehouse.errors import WarehouseBusy

T = TypeVar("T")
ATTEMPT_S: Final = 5.0
"""The longest of an attempt: a run that waits anyway shall soon say what it waits for."""
Say = Callable[[str], None]


class _Wait:
    """One wait at a time for all threads of a run: what is waited for is said once, and so is its end."""

    def __init__(self, say: Say, is_stopped: Callable[[], bool]) -> None:
        self._say, self._is_stopped = say, is_stopped
        self._guard = threading.Lock()
        self._since: datetime | None = None
        self._said = ""

    def goes_on(self, busy: WarehouseBusy, *, waited_s: float) -> bool:
        if busy.who == "own code" or self._is_stopped():
            return False
        with self._guard:
            self._since = self._since or datetime.now() - timedelta(seconds=waited_s)
            if busy.who == "others" and str(busy) != self._said:
                self._said = str(busy)
                self._say(f"{datetime.now():%H:%M:%S} the run waits since {self._since:%H:%M:%S}, as {busy}")
        return True

    def end(self) -> None:
        with self._guard:
            if self._since is not None and self._said:
                seconds = (datetime.now() - self._since).total_seconds()
                self._say(f"{datetime.now():%H:%M:%S} the run goes on, after {seconds:.0f} s in which it waited")
            self._since, self._said = None, ""


_wait: ContextVar[_Wait | None] = ContextVar("wait", default=None)


@contextmanager
def waiting_for_others(say: Say, *, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Wait for the warehouse within this block for as long as it takes, or until `is_stopped`; `say` takes a line."""
    token = _wait.set(_Wait(say, is_stopped))
    try:
        yield
    finally:
        _wait.reset(token)


def try_again(
    busy: WarehouseBusy,
    attempt: Callable[[float], T],
    *,
    tried_s: float,
    patience_s: float,
    kind: type[WarehouseBusy] = WarehouseBusy,
) -> T:
    """Make an attempt again that was `busy` for `tried_s`: until `patience_s` are over, or where the caller waits for
    others as often as it takes. Raises the last error of this kind."""
    wait = _wait.get()
    if wait is None and tried_s < patience_s:
        return attempt(patience_s - tried_s)
    while wait is not None and wait.goes_on(busy, waited_s=tried_s):
        try:
            result = attempt(tried_s)
        except kind as error:
            busy = error
        else:
            wait.end()
            return result
    raise busy
