"""A webhook: a real HTTP server that stores requests and answers with the given statuses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Posted:
    """One request."""

    method: str
    path: str
    content_type: str
    body: Any


@dataclass(kw_only=True)
class Webhook:
    """`statuses` are for the next answers, the last one for all others; `posted` are the received requests."""

    url: str = ""
    statuses: Sequence[int] = (200,)
    posted: list[Posted] = field(default_factory=list)

    @property
    def bodies(self) -> list[Any]:
        return [one.body for one in self.posted]


@contextmanager
def serve_webhook(*statuses: int) -> Iterator[Webhook]:
    webhook = Webhook(statuses=statuses or (200,))

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            content = self.rfile.read(length)
            status = webhook.statuses[min(len(webhook.posted), len(webhook.statuses) - 1)]
            webhook.posted.append(
                Posted(
                    method=self.command,
                    path=self.path,
                    content_type=self.headers.get("Content-Type", ""),
                    body=json.loads(content) if content else None,
                )
            )
            self.send_response(status)
            self.send_header("Content-Length", "0")
            if status in (301, 302, 307):
                self.send_header("Location", "/elsewhere")
            self.end_headers()

        do_POST = do_GET = _answer  # named by the library

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    webhook.url = f"http://127.0.0.1:{server.server_port}/services/T0/hush"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield webhook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
