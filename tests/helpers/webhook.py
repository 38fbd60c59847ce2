"""A webhook: a real HTTP server that stores requests and answers with the given statuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from target_server import Canned, Sent, TargetServer


class Webhook(TargetServer):
    """`statuses` are for the next answers, the last one for all others; `requests` are the received ones."""

    def __init__(self, statuses: Sequence[int]) -> None:
        super().__init__([self._answer])
        self.statuses = statuses

    @property
    def url(self) -> str:
        return f"{self.root_url}/services/T0/hush"

    @property
    def bodies(self) -> list[Any]:
        return [sent.body for sent in self.requests]

    def _answer(self, _: Sent) -> Canned:
        status = self.statuses[min(len(self.requests), len(self.statuses)) - 1]
        return Canned(status=status, headers={"Location": "/elsewhere"} if status in (301, 302, 307) else {})


@contextmanager
def serve_webhook(*statuses: int) -> Iterator[Webhook]:
    with Webhook(statuses or (200,)) as webhook:
        yield webhook
