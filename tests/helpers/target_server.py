"""A server that answers exactly what a test wrote down, byte by byte, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson
from aiohttp import web


@dataclass(frozen=True, kw_only=True)
class Canned:
    """One answer; `body` is sent piece by piece. `broken`: the connection ends before the answer does."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: Sequence[bytes] = ()
    broken: bool = False


@dataclass(frozen=True, kw_only=True)
class Sent:
    """One request as it arrived."""

    method: str
    path: str  # with the query, as it was encoded
    headers: dict[str, str]  # names in lower case
    content: bytes

    @property
    def body(self) -> object:
        return orjson.loads(self.content)


Answer = Canned | Callable[[Sent], Canned]


class TargetServer:
    """Answers in the order of `answers`, the last one again and again. In a separate thread."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.requests: list[Sent] = []
        self._answers = list(answers)
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self._port.result(timeout=30)}"

    @property
    def url(self) -> str:
        return f"{self.root_url}/ask"

    def start(self) -> None:
        self._thread.start()
        self._port.result(timeout=30)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout=30)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0.05)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port.set_result(runner.addresses[0][1])
        await self._stopping.wait()
        await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        content = await request.read()
        sent = Sent(method=request.method, path=request.raw_path, headers=headers, content=content)
        answer = self._answers[min(len(self.requests), len(self._answers) - 1)]
        self.requests.append(sent)
        canned = answer if isinstance(answer, Canned) else answer(sent)
        response = web.StreamResponse(status=canned.status, headers=canned.headers)
        await response.prepare(request)
        for piece in canned.body:
            await response.write(piece)
            await asyncio.sleep(0)
        if canned.broken:
            assert request.transport is not None
            request.transport.close()
            return response
        await response.write_eof()
        return response


def answer_json(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> Canned:
    """A whole JSON answer."""
    return Canned(
        status=status, headers={"Content-Type": "application/json", **(headers or {})}, body=[orjson.dumps(body)]
    )


@contextmanager
def serving(*answers: Answer) -> Iterator[TargetServer]:
    """A server for the length of the block."""
    server = TargetServer(answers)
    server.start()
    try:
        yield server
    finally:
        server.stop()
