"""The order to stop serving: SIGINT or SIGTERM, once for an end in good order, twice for an end at once.

A Ctrl-C in a terminal reaches every process of its group, so the processes of runs would get it too, and then get
SIGTERM from Prefect's runner, which they would take for the second order. Therefore SIGINT stays blocked, which the
processes that are started inherit, and a thread here waits for it.
"""

import asyncio
import os
import signal
import threading

_INTERRUPTED = 130


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
        """Take SIGTERM again, when somebody else has set a handler for it."""
        signal.signal(signal.SIGTERM, lambda *_: self._take())

    def _watch(self) -> None:
        while True:
            signal.sigwait({signal.SIGINT})
            self._take()

    def _take(self) -> None:
        if self._has_come:
            os._exit(_INTERRUPTED)
        self._has_come = True
        # From a handler of the main thread the loop is asked as from any thread: it may be in a wait.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._arrived.set)
