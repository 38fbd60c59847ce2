"""A small RAG bot to be evaluated: real HTTP over a folder of text documents, without any model.

It finds the paragraphs that share most with a question, English or Chinese, and answers with their best sentences. The
folder is read at each request, so a changed document changes the answers at once. In a test:
`with start_rag_bot(folder, token="secret") as bot`, then `bot.url`, `bot.stats` and `bot.configure(fail_first=3)`.

`POST /ask` takes {"question": …}, `GET /ask` `?question=…`; both answer {"answer", "contexts": [{"id", "text",
"score"}]}, an id being FILE#N for the Nth paragraph of FILE. `?stream=sse`, `jsonl` or `text` sends the same in parts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from endpoint_replies import collect_content_words
from http_thread import HttpThread

UNKNOWN = "I do not know."
UNKNOWN_CHINESE = "我不知道。"
CLIENT_CLOSED = 499  # counted for a request whose client went away before an answer
_SUFFIXES = (".txt", ".md")
_PARAGRAPHS = re.compile(r"\n\s*\n")
_SENTENCES = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n")
_PART_LENGTH = 9  # characters of an answer in one event of a stream
_SECOND_BEST = 0.75  # share of the best sentence's score from which a second sentence is added


@dataclass(frozen=True, kw_only=True)
class BotOptions:
    """The bot's behaviour; `_first` counts requests to /ask from the start or the last reset."""

    token: str | None = None  # wanted as `Authorization: Bearer …`
    fail_first: int = 0  # so many requests get `fail_status`
    fail_status: int = 503
    limit_first: int = 0  # so many requests get 429
    retry_after: str | None = None  # the header of those
    hang_up_first: int = 0  # so many connections are closed without an answer
    refuse: str | None = None  # a question that holds this text always gets `fail_status`
    slow_s: float = 0.0  # before an answer
    hold_after: int | None = None  # later requests wait until this is changed
    waver: float = 0.0  # chance that it says it does not know, drawn again each time it is asked the same question
    chunk_bytes: int = 0  # a stream's bytes are sent in pieces of this size, wherever that cuts; 0: event by event


@dataclass(kw_only=True)
class BotStats:
    """The questions that the bot was asked; exact at any time."""

    n_requests: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    questions: list[str] = field(default_factory=list)  # in order of arrival, repeated attempts too
    statuses: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    """One paragraph of a document; `paragraph_id` is FILE#N, N from 1."""

    paragraph_id: str
    text: str
    words: Set[str]


class RagBot(HttpThread):
    """The server in a separate thread; a context manager. `stats` may be read at any time."""

    def __init__(self, folder: Path, options: BotOptions, port: int = 0) -> None:
        super().__init__(port)
        self.folder = folder
        self.options = options
        self.stats = BotStats()
        self._changed, self._arrival = asyncio.Event(), asyncio.Event()

    @property
    def url(self) -> str:
        """The address for questions."""
        return f"{self.root_url}/ask"

    def configure(self, **changes: Any) -> None:  # noqa: ANN401  # BotOptions checks them
        """Change the behaviour from here on, for waiting requests too; counters continue."""

        def change() -> None:
            self.options = dataclasses.replace(self.options, **changes)
            self._changed.set()
            self._changed = asyncio.Event()

        self.call(change)

    def reset(self) -> None:
        """Forget what was asked; requests still in flight stay counted as such."""

        def forget() -> None:
            self.stats = BotStats(in_flight=self.stats.in_flight, max_in_flight=self.stats.in_flight)

        self.call(forget)

    def wait_for(self, n_requests: int, timeout_s: float = 180.0) -> None:
        """Return when so many requests have arrived since the start or the last reset."""

        async def wait() -> None:
            while self.stats.n_requests < n_requests:
                await self._arrival.wait()

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result(timeout=timeout_s)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/ask":
            return _send_json({"error": f"{request.path} is not served; known: /ask"}, 404)
        stats = self.stats
        stats.n_requests += 1
        ordinal = stats.n_requests
        stats.in_flight += 1
        stats.max_in_flight = max(stats.max_in_flight, stats.in_flight)
        self._arrival.set()
        self._arrival = asyncio.Event()
        try:
            response = await self._answer(request, ordinal)
            stats.statuses[response.status] += 1
            return response
        except (asyncio.CancelledError, ConnectionError):
            stats.statuses[CLIENT_CLOSED] += 1
            raise
        finally:
            self.stats.in_flight -= 1

    async def _answer(self, request: web.BaseRequest, ordinal: int) -> web.StreamResponse:
        try:
            given = request.query if request.method == "GET" else orjson.loads(await request.read())
            question = str(given["question"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return _send_json({"error": 'no question; send {"question": "…"}'}, 400)
        self.stats.questions.append(question)
        if self.options.token and request.headers.get("Authorization") != f"Bearer {self.options.token}":
            return _send_json({"error": "the token is wrong"}, 401)
        while self.options.hold_after is not None and ordinal > self.options.hold_after:
            await self._changed.wait()
        if self.options.slow_s:
            await asyncio.sleep(self.options.slow_s)
        if fault := self._make_fault(request, question, ordinal):
            return fault
        reply = answer_question(self.folder, question)
        if self.options.waver:
            n_asked = self.stats.questions.count(question)
            if random.Random(f"{question} {n_asked}").random() < self.options.waver:
                reply["answer"] = UNKNOWN
        stream = request.query.get("stream")
        return _send_json(reply) if stream is None else await self._send_stream(request, reply, stream)

    def _make_fault(self, request: web.BaseRequest, question: str, ordinal: int) -> web.Response | None:
        options = self.options
        if ordinal <= options.hang_up_first and request.transport is not None:
            request.transport.abort()
            return web.Response(status=CLIENT_CLOSED)
        if ordinal <= options.fail_first or (options.refuse and options.refuse in question):
            return _send_json({"error": "the bot is out of order"}, options.fail_status)
        if ordinal <= options.limit_first:
            headers = {"Retry-After": options.retry_after} if options.retry_after is not None else {}
            return _send_json({"error": "too many questions"}, 429, headers)
        return None

    async def _send_stream(self, request: web.BaseRequest, reply: dict[str, Any], stream: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": _STREAMS[stream]})
        await response.prepare(request)
        events = list(_stream_events(reply, stream))
        size = self.options.chunk_bytes
        whole = b"".join(events)
        for piece in [whole[at : at + size] for at in range(0, len(whole), size)] if size else events:
            await response.write(piece)
            await asyncio.sleep(0)
        await response.write_eof()
        return response


_STREAMS = {"sse": "text/event-stream", "jsonl": "application/x-ndjson", "text": "text/plain; charset=utf-8"}


def start_rag_bot(folder: str | Path, *, port: int = 0, **options: Any) -> RagBot:  # noqa: ANN401
    """The bot over a folder, serving; `options` are the fields of BotOptions. Stop it, or use it in a `with`."""
    bot = RagBot(Path(folder), BotOptions(**options), port)
    bot.start()
    return bot


def answer_question(folder: Path, question: str) -> dict[str, Any]:
    """Return `answer` and at most three `contexts`, the best first; each shares a word with the question."""
    paragraphs = read_paragraphs(folder)
    counts = {
        word: sum(word in paragraph.words for paragraph in paragraphs) for word in collect_content_words(question)
    }
    # The fewer paragraphs have a word, the more it weighs.
    weights = {word: math.log(1 + len(paragraphs) / count) for word, count in counts.items() if count}
    scored = [(_score(paragraph.words, weights), paragraph) for paragraph in paragraphs]
    best = sorted((item for item in scored if item[0] > 0), key=lambda item: -item[0])[:3]
    contexts = [{"id": item.paragraph_id, "text": item.text, "score": round(score, 4)} for score, item in best]
    return {"answer": _say(question, [item.text for _, item in best], weights), "contexts": contexts}


def read_paragraphs(folder: Path) -> list[Paragraph]:
    """All paragraphs of all text files, in order of their names."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES):
        texts = [text.strip() for text in _PARAGRAPHS.split(path.read_text(encoding="utf-8")) if text.strip()]
        for number, text in enumerate(texts, start=1):
            paragraph_id = f"{path.relative_to(folder).as_posix()}#{number}"
            found.append(Paragraph(paragraph_id=paragraph_id, text=text, words=collect_content_words(text)))
    return found


def _score(words: Set[str], weights: dict[str, float]) -> float:
    return sum(weight for word, weight in weights.items() if word in words)


def _say(question: str, texts: list[str], weights: dict[str, float]) -> str:
    """The best sentence of the best paragraphs, and one more of the same paragraph where it is nearly as good."""
    best_score, best_answer = 0.0, ""
    for text in texts:
        sentences = [sentence.strip() for sentence in _SENTENCES.split(text) if sentence.strip()]
        scores = [_score(collect_content_words(sentence), weights) for sentence in sentences]
        if max(scores) > best_score:
            best_score = max(scores)
            enough = [at for at, score in enumerate(scores) if score >= _SECOND_BEST * best_score]
            at_most_two = sorted(sorted(enough, key=lambda at: -scores[at])[:2])
            best_answer = " ".join(sentences[at] for at in at_most_two)
    return best_answer or (UNKNOWN_CHINESE if re.search("[\u4e00-\u9fff]", question) else UNKNOWN)


def _stream_events(reply: dict[str, Any], stream: str) -> Iterator[bytes]:
    """The reply in parts: contexts first, then the answer. One event of SSE has several lines of data."""
    answer = reply["answer"]
    parts = [answer[at : at + _PART_LENGTH] for at in range(0, len(answer), _PART_LENGTH)]
    if stream == "text":
        yield from (part.encode() for part in parts)
        return
    contexts = {"contexts": reply["contexts"]}
    if stream == "jsonl":
        yield from (orjson.dumps(event) + b"\n" for event in (contexts, *({"answer": part} for part in parts)))
        return
    lines = orjson.dumps(contexts, option=orjson.OPT_INDENT_2).decode().splitlines()
    yield "".join(["event: contexts\n", *(f"data: {line}\n" for line in lines), "\n"]).encode()
    yield from (b"data: " + orjson.dumps({"answer": part}) + b"\n\n" for part in parts)
    yield b"data: [DONE]\n\n"


def _send_json(content: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body = orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS)
    return web.Response(body=body, status=status, content_type="application/json", headers=headers)
