"""A webhook: a real HTTP server that stores requests and answers with the given statuses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from http_thread import HttpThread


@dataclass(frozen=True, kw_only=True)
class Posted:
    """One request."""

    method: str
    path: str
    content_type: str
    body: Any


class Webhook(HttpThread):
    """`statuses` are for the next answers, the last one for all others; `posted` are the received requests."""

    def __init__(self, statuses: Sequence[int]) -> None:
        super().__init__()
        self.statuses = statuses
        self.posted: list[Posted] = []

    @property
    def url(self) -> str:
        return f"{self.root_url}/services/T0/hush"

    @property
    def bodies(self) -> list[Any]:
        return [one.body for one in self.posted]

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        content, kind = await request.read(), request.headers.get("Content-Type", "")
        status = self.statuses[min(len(self.posted), len(self.statuses) - 1)]
        body = json.loads(content) if content else None
        self.posted.append(Posted(method=request.method, path=request.raw_path, content_type=kind, body=body))
        return web.Response(status=status, headers={"Location": "/elsewhere"} if status in (301, 302, 307) else {})


@contextmanager
def serve_webhook(*statuses: int) -> Iterator[Webhook]:
    with Webhook(statuses or (200,)) as webhook:
        yield webhook
