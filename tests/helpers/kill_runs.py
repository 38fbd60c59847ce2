"""An endpoint that notes what it was asked and answered, and what is on disk of that, for runs that are killed.

A request is known by its texts; of embeddings, which are asked for many texts at once, each text counts by itself, as
it does on record.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
from aiohttp import web
from endpoint import Asked, Endpoint, Options

from evalhouse.tasks.judge.protocol import hash_canonical

Texts = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Noted:
    """One request at the endpoint, or one answer of it; `at` is a monotonic clock in seconds."""

    texts: Texts
    at: float


class NotingEndpoint(Endpoint):
    """An endpoint that notes each request it lets in and each good answer when its last byte is on the way."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.asked: list[Noted] = []
        self.answered: list[Noted] = []
        self.settled: set[Texts] = set()  # those answered at least once

    async def _answer(
        self,
        request: web.BaseRequest,
        asked: Asked,
        *rest: Any,  # noqa: ANN401
        **more: Any,  # noqa: ANN401
    ) -> web.StreamResponse:
        known_by = [(text,) for text in asked.texts] if asked.kind == "embeddings" else [tuple(asked.texts)]
        self.asked += [Noted(texts=texts, at=time.monotonic()) for texts in known_by]
        response = await super()._answer(request, asked, *rest, **more)
        try:
            await response.prepare(request)
            await response.write_eof()
        finally:  # also when the client has gone: the answer was made, and would be billed
            if response.status == 200:
                self.answered += [Noted(texts=texts, at=time.monotonic()) for texts in known_by]
                self.settled.update(known_by)
        return response

    def settle(self) -> None:
        """Wait until no request of a client that has gone is in flight."""
        time.sleep(0.05)
        while self.stats.in_flight:
            time.sleep(0.01)


@contextlib.contextmanager
def noting_endpoint(**options: Any) -> Iterator[NotingEndpoint]:  # noqa: ANN401  # Options checks them
    with NotingEndpoint(Options(**options)) as endpoint:
        yield endpoint


def read_recorded(path: Path) -> Counter[Texts]:
    """Count the good replies on disk for each request: in the warehouse and in the journal beside it.

    A segment that was taken in and not yet removed is in both places and counts once.
    """
    rows: dict[str, tuple[str | None, str]] = {}
    if path.exists() and read_rows(path, "select 1 from duckdb_tables() where table_name = 'llm_calls'"):
        kept = read_rows(path, "select call_id, request, request_hash from llm_calls where status = 'ok'")
        rows = {row["call_id"]: (row["request"], row["request_hash"]) for row in kept}
    for segment in path.with_name(f"{path.name}.journal").glob("*.jsonl"):
        for line in segment.read_bytes().split(b"\n")[:-1]:
            row = json.loads(line)
            if row["status"] == "ok":
                rows[row["call_id"]] = (row["request"], row["request_hash"])
    by_hash = Counter(request_hash for _, request_hash in rows.values())
    recorded: Counter[Texts] = Counter()
    for request, request_hash in rows.values():
        if request is not None:
            recorded |= Counter(read_texts(json.loads(request), request_hash, by_hash))
    return recorded


def read_texts(request: Mapping[str, Any], request_hash: str, by_hash: Mapping[str, int]) -> dict[Texts, int]:
    """The texts of a request on record, as the endpoint has them too, and how often each has a reply."""
    if "messages" in request:
        return {tuple(message["content"] for message in request["messages"]): by_hash[request_hash]}
    texts = request["input"]
    if isinstance(texts, str):
        return {(texts,): by_hash[request_hash]}
    # The vectors have separate rows, under the key of a request for the one text.
    return {(text,): by_hash.get(hash_canonical({**request, "input": text}), 0) for text in texts}


def read_rows(path: Path, sql: str) -> list[dict[str, Any]]:
    with duckdb.connect(str(path), read_only=True) as connection:
        found: list[dict[str, Any]] = connection.sql(sql).pl().to_dicts()
        return found
