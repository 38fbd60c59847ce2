"""The entry of the child that `local_server` starts. First of all it watches for the order to stop, from its parent or
by its parent's death, so that it never outlives it, not even while `prefect_application`, which does the work, is still
being imported: two seconds in which this module is all there is."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import select
import socket
import sys
import threading
from pathlib import Path

# How long an orphan may take to write what it has received, and may live at all. Seconds.
_ORPHAN_DRAIN_S = 0.5
_ORPHAN_LIFE_S = 1.5
_PARENT_CHECK_S = 1.0


class StopOrder:
    """The end of this process, as ordered by one line on standard input or by the parent's death."""

    def __init__(self, *, log_path: Path | None) -> None:
        self._log_path = log_path
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()
        self._drain_s = 0.0

    async def wait(self) -> float:
        """Returns, when the order has come, the seconds there are for writing what is queued."""
        await self._arrived.wait()
        return self._drain_s

    def defer_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on whoever waits ends the process. Before, an order ends it on the spot: nothing is queued yet."""
        with self._lock:
            self._loop = loop

    def watch(self) -> None:
        """Blocks until the order. The parent's end of the pipe closes when the parent ends, unless a process forked
        from it still holds it: hence the look at who the parent is."""
        parent = os.getppid()
        line = b""
        while os.getppid() == parent:
            if select.select([0], [], [], _PARENT_CHECK_S)[0]:
                line = os.read(0, 4096)
                break
        if line:
            self._drain_s = float(json.loads(line)["drain_s"])
        else:
            self._drain_s = _ORPHAN_DRAIN_S
            if self._log_path is not None:
                self._log_path.unlink(missing_ok=True)  # nobody is left to read it
            _exit_within(_ORPHAN_LIFE_S)
        with self._lock:
            if self._loop is None:
                os._exit(0)
            self._loop.call_soon_threadsafe(self._arrived.set)


def main() -> None:
    """Serves until told to stop. The one argument: JSON with `socket_fd`, a listening socket, `log_path`, and whether
    the server `is_lasting`: then it has all of Prefect's services and its log stays."""
    arguments = json.loads(sys.argv[1])
    # Whatever a library prints belongs into the log: the pipe carries messages alone.
    messages = open(os.dup(1), "wb", buffering=0)  # noqa: SIM115
    os.dup2(2, 1)
    is_lasting: bool = arguments["is_lasting"]
    order = StopOrder(log_path=None if is_lasting else Path(arguments["log_path"]))
    threading.Thread(target=order.watch, daemon=True).start()
    # What an import allocates stays: looking for garbage in it costs a tenth of its time.
    gc.disable()
    application = importlib.import_module("evalhouse.flows.server.application")
    gc.freeze()
    gc.enable()
    # The protocol has to be named for asyncio to switch Nagle's algorithm off: 40 ms a request.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=arguments["socket_fd"])
    status = asyncio.run(application.serve(listener, order, messages.write, is_lasting=is_lasting))
    os._exit(status)  # taking three thousand modules apart is a wait for nothing


def _exit_within(seconds: float) -> None:
    timer = threading.Timer(seconds, os._exit, args=[1])
    timer.daemon = True
    timer.start()
