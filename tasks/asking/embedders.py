"""Embedders: what compares the meaning of two texts, by counting n-grams here or by asking a model on record; and
what has a judge or a model asked again for a noise run, under keys of its own, so that no reply on record is taken."""

import asyncio
import hashlib
import math
import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Protocol

from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.asking.embedding_queue import MOST_TOKENS, EmbeddingQueue
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.batches import find_batches
from evalhouse.tasks.judge.errors import (
    JudgeFailed,
)
from evalhouse.tasks.judge.protocol import Judge, ModelReply, ModelRequest, Question, find_window

_NGRAM_SIZES = (2, 3, 4)


_PAIRS_EVERY_S = 0.02


class Embedder(Protocol):
    """Compares texts. `name` is what users write after `--embeddings`."""

    @property
    def name(self) -> str:
        """For example `hashing` or `openai:text-embedding-3-small`."""

    async def compare(self, sample_id: str, text: str, other: str) -> float:
        """Cosine of the two texts' vectors, clipped to [0, 1]; raises JudgeFailed."""

    async def close(self) -> None:
        """Give connections back."""


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """Two texts and the similarity that somebody waits for."""

    texts: tuple[str, str]
    value: asyncio.Future[float]


class HashingEmbedder:
    """Counted character n-grams: offline, deterministic, no fitting, so that a value never depends on other samples.

    Comparing is work for this process while requests are what it should be busy with. So pairs are put aside and
    compared some at a time, in between and for a fifth of the time; not in a thread, which would take the
    interpreter from the event loop at every request.
    """

    name = "hashing"

    def __init__(self) -> None:
        self._waiting: deque[_Pair] = deque()
        self._worked_at = 0.0

    async def compare(self, sample_id: str, text: str, other: str) -> float:
        """Cosine of the two texts' counts; 0 when one of the texts has no n-gram."""
        loop = asyncio.get_running_loop()
        pair = _Pair(texts=(text, other), value=loop.create_future())
        self._waiting.append(pair)
        if len(self._waiting) == 1:
            self._worked_at = time.monotonic()
            loop.call_later(_PAIRS_EVERY_S, self._compare_waiting)
        return await pair.value

    async def close(self) -> None:
        """Nothing is open."""

    def _compare_waiting(self) -> None:
        started = time.monotonic()
        until = started + min(_MOST_AT_A_TIME_S, max(_PAIRS_EVERY_S, started - self._worked_at) / 4)
        while self._waiting and time.monotonic() < until:
            _compare_pair(self._waiting.popleft())
        self._worked_at = time.monotonic()
        if self._waiting:
            asyncio.get_running_loop().call_later(_PAIRS_EVERY_S, self._compare_waiting)


def _compare_pair(pair: _Pair) -> None:
    if pair.value.done():  # the caller who waited was cancelled
        return
    try:
        pair.value.set_result(compare_spelling(*pair.texts))
    except MemoryError as error:  # nobody waits for ever
        pair.value.set_exception(JudgeFailed(f"the texts could not be compared: {error}"))


def compare_spelling(text: str, other: str) -> float:
    """Cosine of the two texts' counted n-grams, 0 to 1; 0 when one of the texts has none."""
    left, right = _count_ngrams(text), _count_ngrams(other)
    shared = sum(times * right[ngram] for ngram, times in left.items() if ngram in right)
    squares = [sum(times * times for times in counts.values()) for counts in (left, right)]
    return clip(shared / math.sqrt(math.prod(squares))) if all(squares) else 0.0


def _count_ngrams(text: str) -> Counter[str]:
    """Two to four characters each, within words that a space stands on both sides of, and regardless of case.

    What scikit-learn calls `char_wb`. Importing it costs every run a second, and hashing into a vector of fixed length
    lets different n-grams meet, which moved values by up to 0.008.
    """
    ngrams: list[str] = []
    for word in text.lower().split():
        padded = f" {word} "
        for size in _NGRAM_SIZES:
            if len(padded) <= size:
                ngrams.append(padded)
                break
            ngrams += [padded[start : start + size] for start in range(len(padded) - size + 1)]
    return Counter(ngrams)


class AskedEmbedder:
    """Vectors from a model, asked for through an `Asker` of their own, of `most_tokens` of texts at a time."""

    def __init__(self, asker: Asker, *, most_tokens: int = MOST_TOKENS) -> None:
        self.asker = asker
        self.name = asker.judge.name
        self._queue = EmbeddingQueue(asker, most_tokens=most_tokens)

    async def compare(self, sample_id: str, text: str, other: str) -> float:
        """Cosine of the two texts' vectors, clipped to [0, 1]."""
        first, second = await gather_all([self._embed(sample_id, text), self._embed(sample_id, other)])
        if len(first) != len(second):
            raise JudgeFailed(f"{self.name} gave vectors of {len(first)} and {len(second)} numbers")
        product = sum(x * y for x, y in zip(first, second, strict=True))
        length = math.sqrt(sum(x * x for x in first)) * math.sqrt(sum(y * y for y in second))
        return clip(product / length) if length else 0.0

    async def close(self) -> None:
        """Close the model's client."""
        await self.asker.judge.close()

    async def _embed(self, sample_id: str, text: str) -> "array[float]":
        return await self._queue.embed(
            Question(step="similarity", sample_id=sample_id, prompt=None, data={"text": text})
        )


def clip(value: float) -> float:
    """A cosine as a similarity in [0, 1]."""
    return min(1.0, max(0.0, value))


_MOST_AT_A_TIME_S = 0.5


class RepeatedJudge:
    """A judge whose every request counts as one that was never asked.

    The key of a request is that of the judge it stands before and of the noise run together. So nothing on record
    answers it, and nothing that it is answered is ever taken for an answer in a later run: an unchanged sample would
    otherwise change its verdict after the night on which it was judged twice.
    """

    def __init__(self, judge: Judge, run_id: str) -> None:
        self._judge, self._run_id = judge, run_id
        self.name, self.model, self.endpoint, self.tasks = judge.name, judge.model, judge.endpoint, judge.tasks
        self.batches = find_batches(judge)

    @property
    def window(self) -> int | None:
        """The judge's."""
        return find_window(self._judge)

    def prepare(self, question: Question) -> ModelRequest:
        """The judge's request under a key of this run's own."""
        request = self._judge.prepare(question)
        own_key = hashlib.sha256(f"{self._run_id}/{request.request_hash}".encode()).hexdigest()
        return replace(request, request_hash=own_key)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """What the judge says."""
        return await self._judge.reply(request)

    async def close(self) -> None:
        """Close the judge's connections."""
        await self._judge.close()


def repeat_embeddings(embedder: Embedder | None, run_id: str) -> None:
    """Let embeddings that are asked of a model be asked again as well."""
    if isinstance(embedder, AskedEmbedder):
        embedder.asker.judge = RepeatedJudge(embedder.asker.judge, run_id)
