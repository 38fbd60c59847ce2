"""An HTTP server in a thread of this process: the base of the endpoint, the bots and the webhook that tests ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

from aiohttp import web


class HttpThread:
    """Answers by `_handle`, from `start`, or the start of its block, to `stop`."""

    def __init__(self, port: int = 0) -> None:
        self._port = port
        self._started: Future[int] = Future()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        if not self._thread.is_alive():
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Return when the port is open; an error of the server (port in use) is raised here."""
        self._thread.start()
        self._port = self._started.result(timeout=30)

    def stop(self) -> None:
        """Close every connection, hanging requests included, and wait for the thread; again does nothing."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(timeout=30)

    def call(self, change: Callable[[], None]) -> None:
        """Call a function in the server's thread, and wait for its end."""

        async def call() -> None:
            change()

        asyncio.run_coroutine_threadsafe(call(), self._loop).result(timeout=30)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        # A handler ends with its client, so that a hung request is over when the client gives up.
        server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.05)
        try:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port, backlog=1024).start()
        except OSError as error:
            self._started.set_exception(error)
            return
        self._started.set_result(runner.addresses[0][1])
        await self._stopping.wait()
        await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        raise NotImplementedError
