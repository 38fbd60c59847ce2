"""The signals to stop, SIGINT and SIGTERM: `Interrupts` takes them for one run, `StopOrders` for `evalhouse serve`.

Before a run is on record a signal ends everything and leaves nothing. From then on the first signal stops the run in
good order, whatever it is at, and the second ends the process at once: that leaves what `kill -9` leaves, a run that
can be resumed. `run.process` says at each stage what good order means. Waiting for a warehouse ends with a signal too.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from evalhouse.flows.errors import INTERRUPTED
from evalhouse.flows.results.output import print_notice
from evalhouse.warehouse.engine.locks import waiting_for_others

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A progress display has hidden it.
_SHOW_CURSOR = "\x1b[?25h"

Answer = Callable[[str], None]


class Interrupts:
    """Takes the signals while it is open; use as a context manager. `taken` is the name of the first that came.

    In a thread that is not the main one no signals arrive, and one that the process was started to ignore (`nohup`,
    a background job) stays ignored.
    """

    def __init__(self) -> None:
        self.taken: str | None = None
        self._run_id: str | None = None
        self._answer: Answer = _raise_interrupt
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous[number] = signal.signal(number, self._take)
            _open.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self in _open:
            _open.remove(self)
        if isinstance(error, RuntimeError) and self.taken is not None and self._run_id is None:
            # DuckDB, when a signal comes while it works, raises this in the place of what our handler raised.
            raise KeyboardInterrupt(self.taken) from error

    def note_on_record(self, run_id: str) -> None:
        """From now on there is a run to resume."""
        self._run_id = run_id

    def note_only(self) -> None:
        """Let the first signal that comes from now on be no more than noted: the end is near and is to be written."""
        self._answer = _do_nothing

    def raise_if_taken(self) -> None:
        """Raise KeyboardInterrupt for a signal that was only noted."""
        if self.taken is not None:
            raise KeyboardInterrupt(self.taken)

    @contextmanager
    def answered_by(self, answer: Answer) -> Iterator[None]:
        """Call `answer` with the name of the first signal that comes within the block."""
        before, self._answer = self._answer, answer
        try:
            yield
        finally:
            self._answer = before

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Let nothing break the block off; `raise_if_taken` afterwards."""
        with self.answered_by(_do_nothing):
            yield

    def take_back(self) -> None:
        """Set our handlers again, where a library has set its own meanwhile."""
        for number in self._previous:
            signal.signal(number, self._take)

    def _take(self, number: int, _: FrameType | None) -> None:
        if self.taken is not None and self._run_id is not None:
            _leave_at_once(self._run_id)
        self.taken = signal.Signals(number).name
        self._answer(self.taken)


_open: list[Interrupts] = []


def take_signals_back() -> None:
    """For a flow, when it has begun: Prefect has put a handler for SIGTERM in the place of ours, and crashes by it."""
    for interrupts in _open:
        interrupts.take_back()


def is_stopping() -> bool:
    """Whether a signal has come to a run of this process."""
    return any(interrupts.taken is not None for interrupts in _open)


@contextmanager
def wait_for_warehouse() -> Iterator[None]:
    """Wait within this block, or a function that this decorates, until a warehouse that another program keeps can be
    had, for as long as it takes, or a signal comes."""
    with waiting_for_others(print_notice, is_stopped=is_stopping):
        yield


def _raise_interrupt(name: str) -> None:
    raise KeyboardInterrupt(name)


def _do_nothing(_: str) -> None:
    """For a signal that is looked at later."""


def _leave_at_once(run_id: str) -> None:
    shown = _SHOW_CURSOR if sys.stderr.isatty() else ""
    message = f"{shown}\nstopped at once; next: evalhouse resume {run_id}   (what was answered is on record)\n"
    # Past everything that buffers or locks: a signal may have come in the middle of either.
    os.write(2, message.encode())
    os._exit(INTERRUPTED)


class StopOrders:
    """Takes the signals from now on; to be made in the main thread before anything has started a thread."""

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._has_come = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()
        signal.signal(signal.SIGTERM, lambda *_: self._take())
        threading.Thread(target=self._watch, daemon=True, name="stop-orders").start()

    async def wait(self) -> None:
        """Returns when the first order has come."""
        self._loop = asyncio.get_running_loop()
        if self._has_come:
            self._arrived.set()
        await self._arrived.wait()

    def take_back(self) -> None:
        """Take SIGTERM again, when a library has set a handler for it."""
        signal.signal(signal.SIGTERM, lambda *_: self._take())

    def _watch(self) -> None:
        while True:
            signal.sigwait({signal.SIGINT})
            self._take()

    def _take(self) -> None:
        if self._has_come:
            os._exit(INTERRUPTED)
        self._has_come = True
        # From a handler of the main thread the loop is asked as from any thread: it may be in a wait.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._arrived.set)
