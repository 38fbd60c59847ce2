"""The similarity in meaning of two texts, by n-grams that are counted here or by an embedding model.

Embedding models take hundreds of texts in one request. So texts are gathered while the run is busy with other
questions, for two seconds at most, and sent as soon as a request is full or nothing else is being asked. One request
is one recorded call; the vector of each text has a row under the key that the text has alone.
"""

import asyncio
import base64
import math
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from evalhouse.tasks.asking.asker import Asker, InFlight
from evalhouse.tasks.asking.usage import estimate_tokens
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.protocol import (
    JudgeFailed,
    Question,
    QuestionRefused,
    RepeatedJudge,
    RunCancelled,
    UnusableReply,
    repeat_error,
)
from evalhouse.tasks.lexical.split import unify_forms
from evalhouse.warehouse.messages import name_setting

MAX_TEXTS: Final = 256
"""Texts in one request; OpenAI takes 2,048, self-hosted servers often 32, which is detected."""
MAX_TOKENS: Final = 50_000
"""About as many tokens of all texts in one request; OpenAI takes 300,000."""
_PARTS = 4  # of a request that is refused: with few levels, for a run stops after eight refusals and no answer
_LOOK_S = 0.03
_MAX_WAIT_S = 2.0
_NGRAM_SIZES = (2, 3, 4)
_WAITS = 4  # times as long as a comparison of spellings took until the next one


def pack_embedding(embedding: object) -> str:
    """Return an endpoint's `embedding`, numbers or base64 of 32-bit floats, as JSON with base64.

    It has a quarter of the size of its digits. Raises UnusableReply for anything else.
    """
    if not isinstance(embedding, str):
        try:
            if bool in set(map(type, embedding)):  # type: ignore[call-overload]
                raise TypeError("truth values, which Python counts among the numbers")
            embedding = base64.b64encode(array("f", embedding).tobytes()).decode()  # type: ignore[call-overload]
        except (TypeError, OverflowError):
            raise UnusableReply(f"the embedding was not a list of numbers: {str(embedding)[:60]!r}") from None
    return orjson.dumps({"embedding_float32_base64": embedding}).decode()


def read_vector(text: str) -> "array[float]":
    """Return a packed vector; raises UnusableReply for one without a direction, or another text."""
    try:
        vector = array("f")
        vector.frombytes(base64.b64decode(orjson.loads(text)["embedding_float32_base64"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        raise UnusableReply("the reply was not a packed vector") from None
    # Of numbers that single precision can only hold as 0, nothing is left either.
    if not any(vector) or not all(map(math.isfinite, vector)):
        raise UnusableReply("the vector was empty, all zeros, or not finite")
    return vector


@dataclass(frozen=True, kw_only=True)
class _Text:
    """A text that waits since `since` on the monotonic clock; `question` is the one about it alone."""

    question: Question
    n_tokens: int
    vector: "asyncio.Future[array[float]]"
    since: float


def refuse_vectors(came: str) -> JudgeFailed:
    """Return the error for vectors of different lengths, which are not of one model."""
    advice = f"where the model behind this name has changed, {name_setting('fresh')} asks again for all that is stored"
    return JudgeFailed(f"{came}; {advice}")


class AskedEmbedder:
    """Vectors from a model, asked for through a separate `Asker`, of `max_tokens` of texts at a time.

    Belongs to one event loop.
    """

    def __init__(self, asker: Asker, *, max_tokens: int = MAX_TOKENS) -> None:
        self.asker = asker
        self.name = asker.judge.name
        self._max_tokens = max_tokens
        self._max_texts = MAX_TEXTS
        self._in_flight = InFlight()
        self._waiting: list[_Text] = []
        self._n_seen = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[bool]] = set()
        self._n_asking = 0

    async def compare(self, sample_id: str, text: str, other: str) -> float:
        """Return the cosine of the two texts' vectors, clipped to [0, 1]."""
        first, second = await gather_all([self.embed(sample_id, side) for side in (text, other)])
        if len(first) != len(second):
            raise refuse_vectors(f"{self.name} gave vectors of {len(first)} and {len(second)} numbers")
        product = sum(x * y for x, y in zip(first, second, strict=True))
        length = math.sqrt(sum(x * x for x in first)) * math.sqrt(sum(y * y for y in second))
        return clip(product / length)

    async def embed(self, sample_id: str, text: str) -> "array[float]":
        """Return the vector of a text, recorded or new; raises what `Asker.ask` raises."""
        self.asker.raise_if_stopped()
        question = Question(step="similarity", sample_id=sample_id, prompt=None, data={"text": text})
        request = self.asker.judge.prepare(question)
        async with self._in_flight.hold([request.request_hash]):
            recorded = await self.asker.find_recorded(question, request, read_vector)
            if recorded is not None:
                return recorded.value
            loop = asyncio.get_running_loop()
            vector: asyncio.Future[array[float]] = loop.create_future()
            n_tokens = estimate_tokens(text)
            self._waiting.append(_Text(question=question, n_tokens=n_tokens, vector=vector, since=time.monotonic()))
            if len(self._waiting) >= self._max_texts:
                self._send_waiting()
            elif self._timer is None:
                self._timer = loop.call_later(_LOOK_S, self._look)
            return await vector

    async def close(self) -> None:
        """Close the model's client."""
        await self.asker.judge.close()

    def _look(self) -> None:
        """Send the texts when one has waited long, or when no question is being asked that might bring more."""
        self._timer = None
        if not self._waiting:
            return
        is_quiet = len(self._waiting) == self._n_seen and self.asker.activity.n_moving <= self._n_asking
        self._n_seen = len(self._waiting)
        if is_quiet or time.monotonic() - self._waiting[0].since >= _MAX_WAIT_S:
            self._send_waiting()
        else:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def _send_waiting(self) -> None:
        texts, self._waiting, self._n_seen = self._waiting, [], 0
        for group in self._group([text for text in texts if not text.vector.done()]):

            def end(task: "asyncio.Task[bool]", group: Sequence[_Text] = group) -> None:
                # An error that ends a group is raised to all who wait for one of its texts.
                self._sending.discard(task)
                error = RunCancelled("cancelled before a reply came") if task.cancelled() else task.exception()
                for text in group:
                    if error is not None and not text.vector.done():
                        text.vector.set_exception(error)

            task = asyncio.get_running_loop().create_task(self._send(group))
            self._sending.add(task)
            task.add_done_callback(end)

    def _group(self, texts: Sequence[_Text]) -> list[list[_Text]]:
        """Return texts in order, in groups that fit into one request."""
        groups: list[list[_Text]] = []
        n_tokens = 0
        for text in texts:
            n_tokens += text.n_tokens
            if not groups or len(groups[-1]) >= self._max_texts or n_tokens > self._max_tokens:
                groups.append([])
                n_tokens = text.n_tokens
            groups[-1].append(text)
        return groups

    async def _send(self, group: Sequence[_Text]) -> bool:
        """Ask about a group, in smaller ones where it is refused; returns whether a request was refused."""
        if len(group) > self._max_texts:
            return any(await asyncio.gather(*map(self._send, self._group(group))))
        try:
            retried = await self._ask(group)
        except QuestionRefused as error:
            if len(group) == 1:
                if not group[0].vector.done():
                    group[0].vector.set_exception(repeat_error(error))
                return True
            size = -(-len(group) // _PARTS)
            first, *others = [group[start : start + size] for start in range(0, len(group), size)]
            # One of them first: what the endpoint takes of none shall not be sent many times over.
            are_refused = [await self._send(first), *await asyncio.gather(*map(self._send, others))]
            if not any(are_refused):
                self._max_texts = min(self._max_texts, size)
            return True
        # Asked alone, these get another chance, and a separate reason.
        await asyncio.gather(*(self._send([text]) for text in retried))
        return False

    async def _ask(self, group: Sequence[_Text]) -> Sequence[_Text]:
        """Send one request about all texts and hand over their vectors; returns the texts without a usable one."""
        self._n_asking += 1
        try:
            if len(group) == 1:
                vector = (await self.asker.ask(group[0].question, read_vector)).value
                if not group[0].vector.done():  # the caller was cancelled
                    group[0].vector.set_result(vector)
                return ()
            parts, step = [text.question for text in group], group[0].question.step
            question = Question(step=step, sample_id=None, prompt=None, data={}, parts=parts)
            answer = await self.asker.ask(question, lambda _: None)
        finally:
            self._n_asking -= 1
        unusable: list[_Text] = []
        for text, part in zip(group, answer.parts, strict=True):
            try:
                vector = read_vector(part)
            except UnusableReply:
                unusable.append(text)
                continue
            self.asker.keep_part(text.question, part, of=answer)
            if not text.vector.done():
                text.vector.set_result(vector)
        return unusable


class HashingEmbedder:
    """Counted character n-grams: offline, deterministic, no fitting, so that a value never depends on other samples.

    Comparing is work for this process while requests are what it should be busy with. So pairs are compared one after
    the other, for a fifth of the time; not in a thread, which would take the interpreter from the event loop at every
    request.
    """

    name = "hashing"
    asker: Asker | None = None

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def compare(self, sample_id: str, text: str, other: str) -> float:
        """Return the cosine of the two texts' counts; 0 when one of the texts has no n-gram."""
        async with self._turn:
            began = time.monotonic()
            try:
                return compare_spelling(text, other)
            except MemoryError as error:
                raise JudgeFailed(f"the texts could not be compared: {error}") from None
            finally:
                await asyncio.sleep(_WAITS * (time.monotonic() - began))

    async def embed(self, sample_id: str, text: str) -> "array[float] | None":
        """Return None: only counts of n-grams are compared."""
        return None

    async def close(self) -> None:
        """Do nothing: no connection is open."""


def compare_spelling(text: str, other: str) -> float:
    """Return the cosine of the two texts' counted n-grams, 0 to 1; 0 when one of the texts has none."""
    left, right = _count_ngrams(text), _count_ngrams(other)
    shared = sum(times * right[ngram] for ngram, times in left.items() if ngram in right)
    squares = [sum(times * times for times in counts.values()) for counts in (left, right)]
    return clip(shared / math.sqrt(math.prod(squares))) if all(squares) else 0.0


def _count_ngrams(text: str) -> Counter[str]:
    """Count two to four characters each, within words with a space on both sides, regardless of case and Unicode form.

    scikit-learn calls this `char_wb`. Importing it costs every run a second, and hashing into a vector of fixed length
    lets different n-grams meet, which moved values by up to 0.008.
    """
    ngrams: list[str] = []
    for word in unify_forms(text).lower().split():
        padded = f" {word} "
        for size in _NGRAM_SIZES:
            if len(padded) <= size:
                ngrams.append(padded)
                break
            ngrams += [padded[start : start + size] for start in range(len(padded) - size + 1)]
    return Counter(ngrams)


Embedder = HashingEmbedder | AskedEmbedder


def clip(value: float) -> float:
    """Return a cosine as a similarity in [0, 1]."""
    return min(1.0, max(0.0, value))


def repeat_embeddings(embedder: Embedder | None, run_id: str) -> None:
    """Let embeddings that are asked of a model be asked again as well."""
    if isinstance(embedder, AskedEmbedder):
        embedder.asker.judge = RepeatedJudge(embedder.asker.judge, run_id)
