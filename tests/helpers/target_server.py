"""A server that answers exactly what a test wrote down, byte by byte, and keeps what it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web
from http_thread import HttpThread


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
    def body(self) -> Any:  # noqa: ANN401  # any JSON, None without a body
        return orjson.loads(self.content) if self.content else None


Answer = Canned | Callable[[Sent], Canned]


class TargetServer(HttpThread):
    """Answers in the order of `answers`, the last one again and again. In a separate thread."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        super().__init__()
        self.requests: list[Sent] = []
        self._answers = list(answers)

    @property
    def url(self) -> str:
        return f"{self.root_url}/ask"

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
    with TargetServer(answers) as server:
        yield server
