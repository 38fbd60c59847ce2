"""Killing `evalhouse` at chosen moments and resuming it, with an endpoint that notes what it was asked and answered.

A request is known by its texts; of embeddings, which are asked for many texts at once, each text counts by itself, as
it does on record. What a life of the process left unsettled are the texts that were sent in it and of which no good
reply is recorded after it: at the kill these were in flight, or answered and not yet read.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import duckdb
from aiohttp import web
from cli_process import PATIENCE_S, Place, finish
from endpoint import Asked, Endpoint, Options

from evalhouse.tasks.judge.protocol import hash_canonical

Texts = tuple[str, ...]
Stage = Literal["starting", "asking", "ending"]


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
    endpoint = NotingEndpoint(Options(**options))
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The time of a kill: so many seconds after as many further requests have been answered, or all there are."""

    stage: Stage
    n_more: int
    delay_s: float


@dataclass(frozen=True, kw_only=True)
class Life:
    """One process from its start to its kill; `unsettled` were sent and have no reply on record.

    `n_open` of them the endpoint had not answered; `late_s` is how long before the kill the oldest answer of the
    others was sent.
    """

    stage: Stage
    n_asked: int
    n_recorded: int
    unsettled: frozenset[Texts]
    n_open: int
    late_s: float


@dataclass(kw_only=True)
class Lane:
    """A run in a separate folder that is killed and resumed until it is done."""

    place: Place
    endpoint: NotingEndpoint
    arguments: Sequence[str]
    n_requests: int
    lives: list[Life] = field(default_factory=list)

    def start(self) -> subprocess.Popen[str]:
        """Begin the run, or resume it where it is stored already."""
        path = self.place.folder / "evalhouse.duckdb"
        begun = path.exists() and bool(read_rows(path, "select 1 from duckdb_tables() where table_name = 'runs'"))
        if begun and read_rows(path, "select run_id from runs"):
            return self.place.start("resume", "latest")
        return self.place.start("run", *self.arguments)

    def kill_at(self, moment: Moment) -> bool:
        """Live until the moment; False when the process was done before."""
        n_asked_before = len(self.endpoint.asked)
        enough = min(self.n_requests, len(self.endpoint.settled) + moment.n_more)
        process = self.start()
        deadline = time.monotonic() + PATIENCE_S
        while process.poll() is None and len(self.endpoint.settled) < enough:
            assert time.monotonic() < deadline, f"{len(self.endpoint.settled)} of {enough} requests were answered"
            time.sleep(0.005)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment.delay_s)
        killed_at = time.monotonic()
        process.send_signal(signal.SIGKILL)
        ended = finish(process)
        if ended.status != -signal.SIGKILL:
            assert ended.status == 0, ended
            return False
        self.endpoint.settle()
        self.lives.append(self._look_back(moment.stage, self.endpoint.asked[n_asked_before:], killed_at))
        return True

    def _look_back(self, stage: Stage, asked: Sequence[Noted], killed_at: float) -> Life:
        recorded = read_recorded(self.place.folder / "evalhouse.duckdb")
        unsettled = frozenset(noted.texts for noted in asked) - recorded.keys()
        # Only the last answer to a text matters: one that was lost before is asked again in this life.
        since = asked[0].at if asked else killed_at
        sent_at = {noted.texts: noted.at for noted in self.endpoint.answered if since <= noted.at <= killed_at}
        answered = [sent_at[texts] for texts in unsettled if texts in sent_at]
        return Life(
            stage=stage,
            n_asked=len(asked),
            n_recorded=len(recorded),
            unsettled=unsettled,
            n_open=len(unsettled) - len(answered),
            late_s=max((killed_at - at for at in answered), default=0.0),
        )


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
