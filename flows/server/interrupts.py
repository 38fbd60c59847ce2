"""The signals to stop, SIGINT, SIGTERM and SIGHUP: `Interrupts` for one run, `StopOrders` for `evalhouse serve`.

Before a run is stored a signal ends everything and leaves nothing. From then on the first signal stops the run in good
order at every stage (see `run.open_run`), and the second ends the process at once, like
`kill -9`: the run can be resumed. A signal also ends the wait for a warehouse.
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

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A progress display has hidden it.
_SHOW_CURSOR = "\x1b[?25h"

Answer = Callable[[str], None]


class Interrupts:
    """A context manager that handles the signals; `taken` is the name of the first that came.

    Set `run_id` when there is a run to resume. In a thread that is not the main one no signals arrive, and one that the
    process was started to ignore (`nohup`, a background job) stays ignored.
    """

    def __init__(self) -> None:
        self.taken: str | None = None
        self.run_id: str | None = None
        # Without an answer the first signal raises KeyboardInterrupt, or is only noted.
        self._answer: Answer | None = None
        self._raises = True
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
        if isinstance(error, RuntimeError) and self.taken is not None and self.run_id is None:
            # DuckDB raises this in place of our KeyboardInterrupt if the signal comes while it works.
            raise KeyboardInterrupt(self.taken) from error

    def note_only(self) -> None:
        """Only note the first signal from now on: the run is about to end, and its end is to be written."""
        self._answer, self._raises = None, False

    @contextmanager
    def answered_by(self, answer: Answer | None) -> Iterator[None]:
        """Call `answer` with the name of the first signal that comes within the block; with None only note it."""
        before = self._answer, self._raises
        self._answer, self._raises = answer, False
        try:
            yield
        finally:
            self._answer, self._raises = before

    def _take(self, number: int, _: FrameType | None) -> None:
        if self.taken is not None and self.run_id is not None:
            shown = _SHOW_CURSOR if sys.stderr.isatty() else ""
            command = f"evalhouse resume {self.run_id}   (answers so far are stored)"
            # Nothing that buffers or locks may be used: the signal may have come in the middle of it.
            os.write(2, f"{shown}\nstopped at once; next: {command}\n".encode())
            os._exit(INTERRUPTED)
        self.taken = signal.Signals(number).name
        if self._answer is not None:
            self._answer(self.taken)
        elif self._raises:
            raise KeyboardInterrupt(self.taken)


_open: list[Interrupts] = []


def answer_for_prefect() -> None:
    """Answer the signals that come while Prefect's flow engine has its own handler for SIGTERM.

    That handler raises in the middle of anything, in Prefect's own code too, which ends a run as crashed.
    """
    from prefect.utilities import engine  # noqa: PLC0415  # a run is open before Prefect is imported

    theirs = engine._prefect_sigterm_handler

    def answer(number: int, *frame: Any) -> None:  # noqa: ANN401
        if _open:
            _open[-1]._take(number, None)
        else:
            theirs(number, *frame)

    if theirs.__module__ != __name__:
        engine._prefect_sigterm_handler = answer  # type: ignore[assignment]  # theirs never returns


@contextmanager
def wait_for_warehouse() -> Iterator[None]:
    """Within this block, or a function that this decorates, wait for a warehouse that another program keeps open.

    The wait ends with a signal.
    """

    def is_stopped() -> bool:
        return any(interrupts.taken is not None for interrupts in _open)

    with waiting_for_others(print_notice, is_stopped=is_stopped):
        yield


class StopOrders:
    """The signals to end `evalhouse serve`; make it in the main thread before anything has started a thread."""

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._has_come = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()
        self.take_back()

        def watch() -> None:
            while True:
                signal.sigwait({signal.SIGINT})
                self._take()

        threading.Thread(target=watch, daemon=True, name="stop-orders").start()

    async def wait(self) -> None:
        """Return when the first signal has come."""
        self._loop = asyncio.get_running_loop()
        if self._has_come:
            self._arrived.set()
        await self._arrived.wait()

    def take_back(self) -> None:
        """Set our handler for SIGTERM, again when a library has set one."""
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, *_: object) -> None:
        if self._has_come:
            os._exit(INTERRUPTED)
        self._has_come = True
        # A handler in the main thread uses the loop like any other thread does: the loop may be waiting.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._arrived.set)
