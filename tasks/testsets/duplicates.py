"""Which questions ask the same: by their words, by what their ground truths say, and by embeddings."""

from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from evalhouse.tasks.asking.embedders import Embedder
from evalhouse.tasks.testsets.near import cut_shingles, list_tokens
from evalhouse.tasks.testsets.questions import Span, Turn

ALIKE = 0.92
"""Cosine from which on two texts count as alike."""
_WORTH_COMPARING, _MOST_COMPARED = 0.2, 5


class Asked(Protocol):
    """A question of any set: one that evalhouse made, or one that a person wrote."""

    @property
    def id(self) -> str:
        """What the set calls it."""

    @property
    def question(self) -> str:
        """The question."""

    @property
    def ground_truth(self) -> str | None:
        """What is right; None where there is none."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """The words of documents that it rests on."""

    @property
    def conversation(self) -> tuple[Turn, ...]:
        """What was said before it."""


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A question that asks what another asks, `verbatim` (in the same words of content) or in others.

    `agrees` says whether their ground truths are alike as well; True where neither has one.
    """

    id: str
    verbatim: bool
    agrees: bool


class QuestionIndex:
    """Questions by their words, so that one is held against the few that share words with it and not against all."""

    def __init__(self, questions: Iterable[Asked] = ()) -> None:
        self._questions: list[Asked] = []
        self._shingles: list[set[tuple[str, ...]]] = []
        self._by_shingle: dict[tuple[str, ...], list[int]] = {}
        self._by_words: dict[tuple[str, ...], list[int]] = {}
        self._by_passage: dict[str, list[int]] = {}
        for question in questions:
            self.add(question)

    def add(self, question: Asked) -> None:
        """Take in one more."""
        place, shingles = len(self._questions), cut_shingles(question.question)
        self._questions.append(question)
        self._shingles.append(shingles)
        for shingle in shingles:
            self._by_shingle.setdefault(shingle, []).append(place)
        self._by_words.setdefault(_list_words(question), []).append(place)
        for passage_id in {span.passage_id for span in question.spans}:
            self._by_passage.setdefault(passage_id, []).append(place)

    async def list_twins(
        self, question: Asked, embedder: Embedder, *, before: int | None = None
    ) -> AsyncIterator[Twin]:
        """Those that ask the same, the surest first: in the same words, then, of the others with most words in common,
        those that are alike in meaning. Only the first `before` that were taken in where that is given. Raises
        JudgeFailed."""
        end = len(self._questions) if before is None else before
        like = self._by_words.get(_list_words(question), ())
        verbatim = [place for place in like if place < end and self._follows(question, place)]
        for place in verbatim:
            other = self._questions[place]
            yield Twin(id=other.id, verbatim=True, agrees=await _agree(question, other, embedder))
        for place in self._find_nearest(question, end):
            other = self._questions[place]
            if (
                place not in verbatim
                and await embedder.compare(question.id, question.question, other.question) >= ALIKE
            ):
                yield Twin(id=other.id, verbatim=False, agrees=await _agree(question, other, embedder))

    def find_same_truth(self, question: Asked) -> str | None:
        """The id of one whose ground truth has the same words, from the same passage; None where there is none."""
        passages = {span.passage_id for span in question.spans}
        places = sorted({place for passage_id in passages for place in self._by_passage.get(passage_id, ())})
        truth = set(list_tokens(question.ground_truth or ""))
        for place in places:
            other = self._questions[place]
            if self._follows(question, place) and truth and truth == set(list_tokens(other.ground_truth or "")):
                return other.id
        return None

    def _follows(self, question: Asked, place: int) -> bool:
        """Whether the same was said before both."""
        return _list_turns(question) == _list_turns(self._questions[place])

    def _find_nearest(self, question: Asked, end: int) -> Sequence[int]:
        shingles = cut_shingles(question.question)
        places = (self._by_shingle.get(shingle, ()) for shingle in shingles)
        shared = Counter(place for of_one in places for place in of_one[: bisect_left(of_one, end)])
        overlaps = {place: n / (len(shingles) + len(self._shingles[place]) - n) for place, n in shared.items()}
        nearest = sorted(overlaps, key=lambda place: (-overlaps[place], place))[:_MOST_COMPARED]
        return [place for place in nearest if overlaps[place] >= _WORTH_COMPARING]


async def find_twin(question: Asked, others: QuestionIndex, embedder: Embedder) -> str | None:
    """The id of one of the other questions that asks the same; None where there is none. Raises JudgeFailed.

    The same is: the same words; a ground truth of the same words from the same passage; or, of the others with most
    words in common, a question and a ground truth that both are alike in meaning.
    """
    if (same := others.find_same_truth(question)) is not None:
        return same
    async for twin in others.list_twins(question, embedder):
        if twin.verbatim or twin.agrees:
            return twin.id
    return None


def _list_words(question: Asked) -> tuple[str, ...]:
    return tuple(list_tokens(question.question))


def _list_turns(question: Asked) -> list[str]:
    return [turn.content for turn in question.conversation]


async def _agree(question: Asked, other: Asked, embedder: Embedder) -> bool:
    truth, others = question.ground_truth, other.ground_truth
    if not truth or not others:
        return not truth and not others
    if list(list_tokens(truth)) == list(list_tokens(others)):
        return True
    return await embedder.compare(question.id, truth, others) >= ALIKE
