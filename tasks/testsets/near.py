"""Texts about the same thing, found by their words: passages near a text, quotations in a text, and similar questions.

No model decides here, but for embeddings of similar questions. Near passages are found by BM25 (Robertson and Zaragoza,
2009) over the stems of English words and pairs of Chinese characters, as the lexical judge compares them; it narrows
thousands of passages down to a few.
"""

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import fuzz
from scipy.sparse import csr_array

from evalhouse.tasks.asking.embeddings import Embedder
from evalhouse.tasks.lexical.split import CHINESE_STOP_CHARACTERS, FUNCTION_WORDS, stem_word
from evalhouse.tasks.lexical.texts import normalise
from evalhouse.tasks.testsets.passages import Passage, find_sentences
from evalhouse.tasks.testsets.questions import PlainQuestion

_SATURATION, _LENGTH_SHARE = 1.2, 0.75  # BM25's k1 and b, at their usual values
_SHINGLE: Final = 3  # words, or Chinese characters, in a row
_HAN = r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(rf"(?P<han>[{_HAN}]+)|[^\W_{_HAN}]+")
_UNIT = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+")
_WORD_LETTER = re.compile(rf"[^\W_{_HAN}]")
_POINTS: Final = frozenset(".,")
_MARKUP: Final = frozenset("*`\\")
_SPELLINGS: Final = str.maketrans("‘’‛“”„‐‑‒–—，；：（）！？", "'''\"\"\"-----,;:()!?")
_MAX_INEXACT: Final = 0.99  # the score of words that differ


class NearPassages:
    """An index of passages by the words of their texts and headings."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = tuple(passages)
        self._places = {passage.passage_id: place for place, passage in enumerate(self._passages)}
        self._terms: dict[str, int] = {}
        self._rarity: NDArray[np.float64] = np.zeros(0)
        self._weights = csr_array((0, len(self._passages)))  # BM25's weight of each term (row) in each passage (column)
        rows, columns, counts = array("l"), array("l"), array("d")
        lengths = np.zeros(len(self._passages))
        for place, passage in enumerate(self._passages):
            tokens = Counter(list_tokens(" ".join((*passage.headings, passage.text))))
            lengths[place] = tokens.total()
            rows.extend(self._terms.setdefault(token, len(self._terms)) for token in tokens)
            columns.extend([place] * len(tokens))
            counts.extend(tokens.values())
        terms, places, n_times = np.array(rows, int), np.array(columns, int), np.array(counts)
        if len(terms):
            n_passages = np.bincount(terms)
            self._rarity = np.log1p((len(self._passages) - n_passages + 0.5) / (n_passages + 0.5))
            length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * lengths / lengths.mean()
            weights = self._rarity[terms] * n_times * (_SATURATION + 1) / (n_times + _SATURATION * length[places])
            self._weights = csr_array((weights, (terms, places)), shape=(len(self._terms), len(self._passages)))

    def find(self, text: str, n: int, exclude: Collection[str] = ()) -> list[Passage]:
        """Return the `n` passages nearest to a text, the nearest first, of equally near ones the earlier first.

        Passages that share no word with it are never near; `exclude` are ids of passages to leave out.
        """
        if n < 1 or not self._passages:
            return []
        scores = self.rate(text)
        scores[[self._places[passage_id] for passage_id in exclude if passage_id in self._places]] = 0.0
        n = min(n, len(scores))
        min_score = np.partition(scores, -n)[-n]
        places = np.flatnonzero(scores >= max(min_score, np.nextafter(0.0, 1.0)))
        return [self._passages[place] for place in places[np.argsort(-scores[places], kind="stable")][:n]]

    def rate(self, text: str) -> NDArray[np.float64]:
        """Return BM25's score of each passage for a text, divided by the rarity of the text's words; 0 for no shared
        word."""
        terms = sorted({self._terms[token] for token in list_tokens(text) if token in self._terms})
        scores: NDArray[np.float64] = np.asarray(self._weights[terms].sum(axis=0)).ravel()
        return scores / self._rarity[terms].sum() if terms else scores

    def list_places(self, passages: Iterable[Passage]) -> list[int]:
        """Return the places of passages in the lists of `rate`."""
        return [self._places[passage.passage_id] for passage in passages]


def list_tokens(text: str) -> Iterator[str]:
    """Yield the content words of a text: stems, and pairs of neighbouring Chinese characters."""
    for run in _RUN.finditer(normalise(text).lower()):
        word = run[0]
        if run["han"] is None:
            if word not in FUNCTION_WORDS:
                yield stem_word(word)
            continue
        pairs = [word] if len(word) == 1 else [left + right for left, right in pairwise(word)]
        yield from (pair for pair in pairs if not CHINESE_STOP_CHARACTERS.issuperset(pair))


def overlap(text: str, other: str) -> float:
    """Return the share, 0 to 1, of the runs of three words (or Chinese characters) of either text that both have."""
    shingles, others = cut_shingles(text), cut_shingles(other)
    return len(shingles & others) / len(shingles | others) if shingles and others else 0.0


def cut_shingles(text: str) -> set[tuple[str, ...]]:
    """Return all runs of three words (or Chinese characters) of a text; a shorter text is one run."""
    words = _UNIT.findall(normalise(text).lower())
    n_runs = max(min(len(words), 1), len(words) - _SHINGLE + 1)
    return {tuple(words[start : start + _SHINGLE]) for start in range(n_runs)}


class Aligned(NamedTuple):
    """A stretch of a text from `start` to before `end`, and its similarity to the words looked for, 0 to 1."""

    start: int
    end: int
    score: float


def find_quote(quote: str, text: str) -> Aligned | None:
    """Return the first place of a quotation in a text, never within a word or number; None if it is not in it.

    White space, marks of Markdown, and the shapes of quotes and dashes make no difference.
    """
    wanted, _ = squeeze(quote)
    letters, places = squeeze(text)
    found = letters.find(wanted) if wanted else -1
    while found >= 0:
        start, end = places[found], places[found + len(wanted) - 1] + 1
        if not (_is_inside(text, start) or _is_inside(text, end)):
            return Aligned(start, end, 1.0)
        found = letters.find(wanted, found + 1)
    return None


def _is_inside(text: str, place: int) -> bool:
    """Return whether the letters around a place belong to one Latin word, or to one number such as `1.5`."""
    before, after = text[:place][-2:], text[place : place + 2]
    if _WORD_LETTER.fullmatch(before[-1:]) and _WORD_LETTER.fullmatch(after[:1]):
        return True
    number = f"{before[-1:]}{after}" if after[:1] in _POINTS else f"{before}{after[:1]}"
    return len(number) == 3 and number[1] in _POINTS and number[0].isdecimal() and number[2].isdecimal()


def squeeze(text: str) -> tuple[str, list[int]]:
    """Return the letters of a text that every quotation of it has, and the place of each."""
    letters = text.translate(_SPELLINGS)
    places = [place for place, letter in enumerate(letters) if not letter.isspace() and letter not in _MARKUP]
    return "".join([letters[place] for place in places]), places


def align(span: str, text: str) -> Aligned | None:
    """Return the place of a span of an older text in a newer one; None if nothing is similar.

    It is the span itself if its words are still in the text, else the most similar sentences, with a score below 1. The
    score counts letters that differ; for a span that is part of a sentence, in the most similar stretch.
    """
    quoted = find_quote(span, text)
    if quoted is not None or not span.strip() or not text.strip():
        return quoted
    found = fuzz.partial_ratio_alignment(span, text)
    if found is None:
        return None
    start, end = (found.dest_start, found.dest_end) if len(span) <= len(text) else (0, len(text))
    touched = [sentence for sentence in find_sentences(text) if sentence.start < end and sentence.stop > start]
    if not touched:
        return None
    # The stretch may reach some letters into a neighbour: of the sentences that it touches, take the ones most
    # similar to the span together.
    ranges = [
        range(touched[first].start, touched[last].stop)
        for first in range(min(2, len(touched)))
        for last in range(max(first, len(touched) - 2), len(touched))
    ]
    whole = max(ranges, key=lambda candidate: fuzz.ratio(span, text[candidate.start : candidate.stop]))
    similarity = fuzz.ratio(span, text[whole.start : whole.stop])
    score = max(similarity, found.score if len(span) <= len(text) else 0.0) / 100
    return Aligned(whole.start, whole.stop, min(score, _MAX_INEXACT))


ALIKE = 0.92
"""The cosine from which on two texts count as similar."""
_MIN_OVERLAP, _MAX_COMPARED = 0.2, 5


@dataclass(frozen=True, kw_only=True)
class Twin:
    """A question that asks the same as another, `verbatim` (in the same content words) or in other words.

    `agrees` is true if the ground truths are similar as well, or both are missing.
    """

    id: str
    verbatim: bool
    agrees: bool


class QuestionIndex:
    """Questions by their words, so that one is compared with the few that share words with it and not with all."""

    def __init__(self, questions: Iterable[PlainQuestion] = ()) -> None:
        self._questions: list[PlainQuestion] = []
        self._shingles: list[set[tuple[str, ...]]] = []
        self._by_shingle: dict[tuple[str, ...], list[int]] = {}
        self._by_words: dict[tuple[str, ...], list[int]] = {}
        self._by_passage: dict[str, list[int]] = {}
        for question in questions:
            self.add(question)

    def add(self, question: PlainQuestion) -> None:
        """Add a question."""
        place, shingles = len(self._questions), cut_shingles(question.question)
        self._questions.append(question)
        self._shingles.append(shingles)
        for shingle in shingles:
            self._by_shingle.setdefault(shingle, []).append(place)
        self._by_words.setdefault(tuple(list_tokens(question.question)), []).append(place)
        for passage_id in {span.passage_id for span in question.spans}:
            self._by_passage.setdefault(passage_id, []).append(place)

    async def find_twin(self, question: PlainQuestion, embedder: Embedder) -> str | None:
        """Return the id of a question that asks the same; None without one. Raises JudgeFailed.

        It has the same words; or a ground truth of the same words from the same passage; or, among questions with most
        words in common, both a similar question and a similar ground truth.
        """
        truth = set(list_tokens(question.ground_truth or ""))
        passages = {span.passage_id for span in question.spans}
        for place in sorted({place for passage_id in passages for place in self._by_passage.get(passage_id, ())}):
            other = self._questions[place]
            if truth and truth == set(list_tokens(other.ground_truth or "")) and _follow_same(question, other):
                return other.id
        async for twin in self.list_twins(question, embedder):
            if twin.verbatim or twin.agrees:
                return twin.id
        return None

    async def list_twins(
        self, question: PlainQuestion, embedder: Embedder, *, before: int | None = None
    ) -> AsyncIterator[Twin]:
        """Yield questions that ask the same, the surest first: in the same words, then ones with a similar meaning
        among the ones with most words in common. With `before`, only the first so many questions of the index count.
        Raises JudgeFailed.
        """
        end = len(self._questions) if before is None else before
        same_words = self._by_words.get(tuple(list_tokens(question.question)), ())
        verbatim = [place for place in same_words if place < end and _follow_same(question, self._questions[place])]
        for place in verbatim:
            other = self._questions[place]
            yield Twin(id=other.id, verbatim=True, agrees=await _agree(question, other, embedder))
        shingles = cut_shingles(question.question)
        sharing = (self._by_shingle.get(shingle, ()) for shingle in shingles)
        n_shared = Counter(place for places in sharing for place in places[: bisect_left(places, end)])
        overlaps = {place: n / (len(shingles) + len(self._shingles[place]) - n) for place, n in n_shared.items()}
        for place in sorted(overlaps, key=lambda place: (-overlaps[place], place))[:_MAX_COMPARED]:
            other = self._questions[place]
            if overlaps[place] < _MIN_OVERLAP or place in verbatim:
                continue
            if await embedder.compare(question.id, question.question, other.question) >= ALIKE:
                yield Twin(id=other.id, verbatim=False, agrees=await _agree(question, other, embedder))


def _follow_same(question: PlainQuestion, other: PlainQuestion) -> bool:
    """Return whether the messages before two questions are the same."""
    return [turn.content for turn in question.conversation] == [turn.content for turn in other.conversation]


async def _agree(question: PlainQuestion, other: PlainQuestion, embedder: Embedder) -> bool:
    """Return whether the ground truths of two questions are similar, or both missing."""
    truth, others = question.ground_truth, other.ground_truth
    if not truth or not others:
        return not truth and not others
    if list(list_tokens(truth)) == list(list_tokens(others)):
        return True
    return await embedder.compare(question.id, truth, others) >= ALIKE
