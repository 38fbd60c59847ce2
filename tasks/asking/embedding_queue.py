"""Texts that wait to be embedded, and are asked about many at a time.

Embedding models take hundreds of texts in one request. So texts are gathered as long as the run is busy with other
questions, for two seconds at most, and sent as soon as a request is full, or nothing else is under way. One request is
one call on record; the vector of each text stands on a row of its own, under the key that the text has by itself, so
that it is found again in whatever company the text comes next time.

A request that is refused is asked in four parts, until the text is found that the endpoint does not take; if all parts
go through, it was their number, and no request has as many from then on.
"""

import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from evalhouse.tasks.asking.asker import Asker, share_failure
from evalhouse.tasks.asking.tokens import estimate_tokens
from evalhouse.tasks.asking.vectors import read_vector
from evalhouse.tasks.judge.errors import QuestionRefused, RunCancelled, UnusableReply, repeat_error
from evalhouse.tasks.judge.protocol import Question

MOST_TEXTS: Final = 256
"""Texts in one request; OpenAI takes 2,048, servers of one's own often 32, which is found out."""
MOST_TOKENS: Final = 50_000
"""About as many tokens of all texts in one request; OpenAI takes 300,000."""
_PARTS = 4  # of a request that is refused: with few levels, for a run stops after eight refusals and no answer
_LOOK_S = 0.03
_WAIT_MOST_S = 2.0


@dataclass(frozen=True, kw_only=True)
class _Text:
    """A text that waits since `since` on the monotonic clock; `question` is the one about it alone."""

    question: Question
    n_tokens: int
    vector: "asyncio.Future[array[float]]"
    since: float


class EmbeddingQueue:
    """Gathers texts for `asker`, whose judge is an embedding model. Belongs to one event loop."""

    def __init__(self, asker: Asker, *, most_tokens: int = MOST_TOKENS) -> None:
        self._asker = asker
        self._most_tokens = most_tokens
        self._most_texts = MOST_TEXTS
        self._open: dict[str, asyncio.Future[None]] = {}
        self._waiting: list[_Text] = []
        self._n_seen = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[bool]] = set()
        self._n_asking = 0

    async def embed(self, question: Question) -> "array[float]":
        """The vector of a question's `text`, from the record where it stands there; raises what `Asker.ask` raises."""
        self._asker.raise_if_stopped()
        request = self._asker.judge.prepare(question)
        while (other := self._open.get(request.request_hash)) is not None:
            await asyncio.wait([other])
            share_failure(other)
        mine = self._open[request.request_hash] = asyncio.get_running_loop().create_future()
        try:
            recorded = await self._asker.find_on_record(question, request, read_vector)
            return recorded.value if recorded is not None else await self._add(question)
        except QuestionRefused as error:
            mine.set_exception(error)
            mine.exception()  # looked at: usually nobody else asks about the same text
            raise
        finally:
            del self._open[request.request_hash]
            mine.cancel()

    async def _add(self, question: Question) -> "array[float]":
        loop = asyncio.get_running_loop()
        n_tokens = estimate_tokens(str(question.data["text"]))
        text = _Text(question=question, n_tokens=n_tokens, vector=loop.create_future(), since=time.monotonic())
        self._waiting.append(text)
        if len(self._waiting) >= self._most_texts:
            self._send_waiting()
        elif self._timer is None:
            self._timer = loop.call_later(_LOOK_S, self._look)
        return await text.vector

    def _look(self) -> None:
        """Send what waits when it has waited long, or when nothing is under way that might bring more."""
        self._timer = None
        if not self._waiting:
            return
        is_quiet = len(self._waiting) == self._n_seen and self._asker.activity.n_moving <= self._n_asking
        self._n_seen = len(self._waiting)
        if is_quiet or time.monotonic() - self._waiting[0].since >= _WAIT_MOST_S:
            self._send_waiting()
        else:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _send_waiting(self) -> None:
        texts, self._waiting, self._n_seen = self._waiting, [], 0
        for group in self._group([text for text in texts if not text.vector.done()]):
            task = asyncio.get_running_loop().create_task(self._send(group))
            self._sending.add(task)
            task.add_done_callback(lambda ended, group=group: self._end(ended, group))  # type: ignore[misc]

    def _group(self, texts: Sequence[_Text]) -> list[list[_Text]]:
        """Texts in order, in groups of what one request takes."""
        groups: list[list[_Text]] = []
        n_tokens = 0
        for text in texts:
            n_tokens += text.n_tokens
            if not groups or len(groups[-1]) >= self._most_texts or n_tokens > self._most_tokens:
                groups.append([])
                n_tokens = text.n_tokens
            groups[-1].append(text)
        return groups

    def _end(self, task: "asyncio.Task[bool]", group: Sequence[_Text]) -> None:
        """Nobody waits for ever: what ended a group ends all who wait for one of its texts."""
        self._sending.discard(task)
        error = RunCancelled("cancelled before a reply came") if task.cancelled() else task.exception()
        for text in group:
            if error is not None and not text.vector.done():
                text.vector.set_exception(error)

    async def _send(self, group: Sequence[_Text]) -> bool:
        """Ask about a group, in smaller ones where it is refused; whether a request was."""
        if len(group) > self._most_texts:
            return any(await asyncio.gather(*map(self._send, self._group(group))))
        try:
            odd = await (self._ask_alone(group[0]) if len(group) == 1 else self._ask_together(group))
        except QuestionRefused as error:
            if len(group) > 1:
                await self._split(group)
            else:
                _fail(group[0], error)
            return True
        # What came for these is not a vector; asked alone they get another chance, and a reason of their own.
        await asyncio.gather(*(self._send([text]) for text in odd))
        return False

    async def _split(self, group: Sequence[_Text]) -> None:
        size = -(-len(group) // _PARTS)
        first, *others = [group[start : start + size] for start in range(0, len(group), size)]
        # One of them first: what the endpoint takes of none shall not be sent many times over.
        are_refused = [await self._send(first), *await asyncio.gather(*map(self._send, others))]
        if not any(are_refused):
            self._most_texts = min(self._most_texts, size)

    async def _ask_alone(self, text: _Text) -> Sequence[_Text]:
        self._n_asking += 1
        try:
            answer = await self._asker.ask(text.question, read_vector)
        finally:
            self._n_asking -= 1
        _hand_over(text, answer.value)
        return ()

    async def _ask_together(self, group: Sequence[_Text]) -> Sequence[_Text]:
        """One request about all; returns the texts that got no vector of use."""
        question = Question(
            step=group[0].question.step, sample_id=None, prompt=None, data={}, parts=[text.question for text in group]
        )
        self._n_asking += 1
        try:
            answer = await self._asker.ask(question, lambda _: None)
        finally:
            self._n_asking -= 1
        odd: list[_Text] = []
        for text, part in zip(group, answer.parts, strict=True):
            try:
                vector = read_vector(part)
            except UnusableReply:
                odd.append(text)
                continue
            self._asker.keep_part(text.question, part, of=answer)
            _hand_over(text, vector)
        return odd


def _hand_over(text: _Text, vector: "array[float]") -> None:
    if not text.vector.done():  # whoever waited was cancelled
        text.vector.set_result(vector)


def _fail(text: _Text, error: QuestionRefused) -> None:
    if not text.vector.done():
        text.vector.set_exception(repeat_error(error))
