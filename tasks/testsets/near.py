"""Passages that are about the same, by their words: which stand near a text, how much two texts share, and where a
sentence of an older version stands in a newer one.

No model is asked. What is near is found by BM25 (Robertson and Zaragoza, 2009) over the stems of English words and
pairs of Chinese characters, as the lexical judge compares them; it narrows thousands of passages down to a few, and
decides nothing.
"""

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import fuzz
from scipy.sparse import csr_array

from evalhouse.tasks.asking.embeddings import Embedder
from evalhouse.tasks.lexical.split import CHINESE_STOP_CHARACTERS, FUNCTION_WORDS, stem_word
from evalhouse.tasks.lexical.texts import normalise
from evalhouse.tasks.testsets.passages import Document, Passage, SentenceSpan, find_sentences
from evalhouse.tasks.testsets.questions import SetQuestion, Span, Turn, write_asked

_SATURATION, _LENGTH_SHARE = 1.2, 0.75  # BM25's k1 and b, at their usual values
_SHINGLE: Final = 3  # words, or Chinese characters, in a row
_HAN = r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(rf"(?P<han>[{_HAN}]+)|[^\W_{_HAN}]+")
_UNIT = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+")
_WORD_LETTER = re.compile(rf"[^\W_{_HAN}]")
_POINTS: Final = frozenset(".,")
_MARKUP: Final = frozenset("*`\\")
_SPELLINGS: Final = str.maketrans("‘’‛“”„‐‑‒–—，；：（）！？", "'''\"\"\"-----,;:()!?")


class NearPassage(NamedTuple):
    """A passage, and how near it is: BM25, more than 0 and without an upper bound, to be compared within one search."""

    passage: Passage
    score: float


class Aligned(NamedTuple):
    """A stretch of a text from `start` to before `end`, and how alike it is to what was looked for, 0 to 1."""

    start: int
    end: int
    score: float


class NearPassages:
    """An index of passages by the words of their texts and headings."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._passages = tuple(passages)
        self._places = {passage.passage_id: place for place, passage in enumerate(self._passages)}
        self._terms: dict[str, int] = {}
        self._rarity: NDArray[np.float64] = np.zeros(0)
        self._weights = self._weigh()

    def find(self, text: str, n: int, exclude: Collection[str] = ()) -> list[NearPassage]:
        """The `n` nearest passages to a text, the nearest first, of equally near ones the earlier first; fewer where no
        others share a word with it. `exclude` are ids of passages that are passed over."""
        terms = sorted({self._terms[token] for token in list_tokens(text) if token in self._terms})
        if not terms or n < 1:
            return []
        scores: NDArray[np.float64] = np.asarray(self._weights[terms].sum(axis=0)).ravel()
        scores[[self._places[passage_id] for passage_id in exclude if passage_id in self._places]] = 0.0
        wanted = min(n, len(scores))
        least = np.partition(scores, -wanted)[-wanted]
        places = np.flatnonzero(scores >= max(least, np.nextafter(0.0, 1.0)))
        best = places[np.argsort(-scores[places], kind="stable")][:wanted]
        return [NearPassage(self._passages[place], float(scores[place])) for place in best]

    def find_about(self, text: str, least: float) -> dict[str, float]:
        """The passages that speak of at least this share of what a text is about, by id: the share of its words, rare
        ones counting more, that stand in the passage or its headings. Words that no passage has do not count."""
        terms = sorted({self._terms[token] for token in list_tokens(text) if token in self._terms})
        if not terms:
            return {}
        found, rarity = self._weights[terms], self._rarity[terms]
        of_entries = np.repeat(rarity, np.diff(found.indptr))
        shares = np.bincount(found.indices, weights=of_entries, minlength=len(self._passages)) / rarity.sum()
        return {self._passages[place].passage_id: float(shares[place]) for place in np.flatnonzero(shares >= least)}

    def _weigh(self) -> csr_array:
        """BM25's weight of each term (row) in each passage (column)."""
        rows, columns, counts = array("l"), array("l"), array("d")
        lengths = np.zeros(len(self._passages))
        for place, passage in enumerate(self._passages):
            tokens = Counter(list_tokens(" ".join((*passage.headings, passage.text))))
            lengths[place] = tokens.total()
            rows.extend(self._terms.setdefault(token, len(self._terms)) for token in tokens)
            columns.extend([place] * len(tokens))
            counts.extend(tokens.values())
        terms, places, found = np.array(rows, int), np.array(columns, int), np.array(counts)
        if not len(found):
            return csr_array((len(self._terms), len(self._passages)))
        n_holding = np.bincount(terms)
        self._rarity = rarity = np.log1p((len(self._passages) - n_holding + 0.5) / (n_holding + 0.5))
        length = 1 - _LENGTH_SHARE + _LENGTH_SHARE * lengths / lengths.mean()
        weights = rarity[terms] * found * (_SATURATION + 1) / (found + _SATURATION * length[places])
        return csr_array((weights, (terms, places)), shape=(len(self._terms), len(self._passages)))


def list_tokens(text: str) -> Iterator[str]:
    """The words of a text that say what it is about: stems, and pairs of neighbouring Chinese characters."""
    for run in _RUN.finditer(normalise(text).lower()):
        word = run[0]
        if run["han"] is None:
            if word not in FUNCTION_WORDS:
                yield stem_word(word)
            continue
        pairs = [word] if len(word) == 1 else [left + right for left, right in pairwise(word)]
        yield from (pair for pair in pairs if not CHINESE_STOP_CHARACTERS.issuperset(pair))


def overlap(text: str, other: str) -> float:
    """How much two texts share, 0 to 1: of all runs of three words (or Chinese characters) that either has, the share
    that both have. 0 where one has no words at all."""
    shingles, others = cut_shingles(text), cut_shingles(other)
    return len(shingles & others) / len(shingles | others) if shingles and others else 0.0


def cut_shingles(text: str) -> set[tuple[str, ...]]:
    """All runs of three words (or Chinese characters) of a text; one run of all where it has fewer."""
    words = _UNIT.findall(normalise(text).lower())
    return {
        tuple(words[start : start + _SHINGLE]) for start in range(max(min(len(words), 1), len(words) - _SHINGLE + 1))
    }


def find_quote(quote: str, text: str) -> Aligned | None:
    """Return the first place of a quotation in a text, never within a word or number; None where it is not in it.

    White space, marks of Markdown, and the shapes of quotes and dashes make no difference."""
    wanted = squeeze(quote)
    letters, places = _squeeze(text)
    found = letters.find(wanted) if wanted else -1
    while found >= 0:
        start, end = places[found], places[found + len(wanted) - 1] + 1
        if not (_is_inside(text, start) or _is_inside(text, end)):
            return Aligned(start, end, 1.0)
        found = letters.find(wanted, found + 1)
    return None


def _is_inside(text: str, place: int) -> bool:
    """Whether the letters before and after a place belong to one Latin word, or to one number such as `1.5`."""
    before, after = text[:place][-2:], text[place : place + 2]
    if _WORD_LETTER.fullmatch(before[-1:]) and _WORD_LETTER.fullmatch(after[:1]):
        return True
    number = f"{before[-1:]}{after}" if after[:1] in _POINTS else f"{before}{after[:1]}"
    return len(number) == 3 and number[1] in _POINTS and number[0].isdecimal() and number[2].isdecimal()


def squeeze(text: str) -> str:
    """The letters of a text that matter in a quotation: what it has in common with every quotation of it."""
    return _squeeze(text)[0]


def _squeeze(text: str) -> tuple[str, list[int]]:
    """The letters of a text without what does not matter in a quotation, and where each stands."""
    letters = text.translate(_SPELLINGS)
    places = [place for place, letter in enumerate(letters) if not letter.isspace() and letter not in _MARKUP]
    return "".join([letters[place] for place in places]), places


def align(span: str, text: str) -> Aligned | None:
    """Where a span of an older text stands in a newer one: itself where its words are still there, else the sentences
    that are most like it, with a score below 1. None where nothing is like it.

    The score counts letters that have to be changed; of a span that is part of a sentence, in the stretch that is most
    like it.
    """
    quoted = find_quote(span, text)
    if quoted is not None or not span.strip() or not text.strip():
        return quoted
    found = fuzz.partial_ratio_alignment(span, text)
    if found is None:
        return None
    start, end = (found.dest_start, found.dest_end) if len(span) <= len(text) else (0, len(text))
    touched = [sentence for sentence in find_sentences(text) if sentence.start < end and sentence.end > start]
    if not touched:
        return None
    # The likest stretch may reach some letters into a neighbour: of the sentences that it touches, those count that are
    # most like the span together.
    ranges = [
        SentenceSpan(start=touched[first].start, end=touched[last].end)
        for first in range(min(2, len(touched)))
        for last in range(max(first, len(touched) - 2), len(touched))
    ]
    whole = max(ranges, key=lambda candidate: fuzz.ratio(span, text[candidate.start : candidate.end]))
    alike = fuzz.ratio(span, text[whole.start : whole.end])
    score = max(alike, found.score if len(span) <= len(text) else 0.0) / 100
    return Aligned(whole.start, whole.end, min(score, _NEARLY))


_NEARLY: Final = 0.99  # of what is not there word by word


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


RECOGNISED: Final = 0.6
"""How like a span a stretch of a newer text has to be, by `near.align`, to be taken for what it became."""
TOUCHING: Final = 0.5
"""Share of what a question or a span is about that a passage has to speak of for the question to be held against it."""
_WORTH_ALIGNING = 20


@dataclass(frozen=True, kw_only=True)
class Place:
    """A stretch of a passage: its text from `start` to before `end`; `score` is how like a span it is, 0 to 1."""

    passage: Passage
    start: int
    end: int
    score: float

    @property
    def span(self) -> Span:
        """The stretch as a span."""
        return Span(
            document_id=self.passage.document_id,
            passage_id=self.passage.passage_id,
            text=self.passage.text[self.start : self.end],
            start=self.passage.start + self.start,
        )


class Base:
    """A knowledge base as it is now, and which of it a set does not know: `known` has the passages that its manifest
    names, with their hashes. `by_document` says that its questions refer to documents, and not to passages."""

    def __init__(self, documents: Sequence[Document], known: Mapping[str, str], *, by_document: bool) -> None:
        self.documents = tuple(documents)
        self.passages = tuple(passage for document in documents for passage in document.passages)
        self.by_document = by_document
        self.near = NearPassages(self.passages)
        self.by_id = {passage.passage_id: passage for passage in self.passages}
        self._of_document = {document.document_id: document.passages for document in documents}
        self._stayed = {
            passage.passage_id for passage in self.passages if known.get(passage.passage_id) == passage.passage_hash
        }
        hashes = set(known.values())
        self.changed = frozenset(one.passage_id for one in self.passages if one.passage_hash not in hashes)
        """Ids of the passages whose words are new or changed, wherever they stand."""

    @cached_property
    def _arrived(self) -> list[tuple[Passage, str]]:
        """The passages that were not there before, or not as they are now, with the letters that quotations share."""
        return [(one, squeeze(one.text)) for one in self.passages if one.passage_id not in self._stayed]

    @cached_property
    def _all(self) -> list[tuple[Passage, str]]:
        return [(one, squeeze(one.text)) for one in self.passages]

    def has_id(self, reference: str) -> bool:
        """Whether a document or a passage of this id is there."""
        return reference in self.by_id or reference in self._of_document

    def has_stayed(self, passage_id: str) -> bool:
        """Whether a passage was there before, and as it is now."""
        return passage_id in self._stayed

    def name(self, span: Span) -> str:
        """The id by which questions refer to where a span stands."""
        return span.document_id if self.by_document else span.passage_id

    def find_verbatim(self, span: Span) -> Place | None:
        """Where a span is word by word: in its own passage, else where the update brought it, preferably in the same
        document and under the same headings."""
        own = self.by_id.get(span.passage_id)
        if own is not None and (place := _quote(span, own)):
            return place
        letters = squeeze(span.text)
        places = (_quote(span, passage) for passage, held in self._arrived if letters in held)
        return min(filter(None, places), key=lambda place: _rank(span, place.passage), default=None)

    def recognise(self, span: Span) -> Place | None:
        """The stretch that a span most probably became: of its own document, else of passages that the update brought,
        else itself where it stood elsewhere all the time. None where nothing is like it."""
        near = [found.passage for found in self.near.find(span.text, _WORTH_ALIGNING, exclude=self._stayed)]
        letters = squeeze(span.text)
        for passages in (self._of_document.get(span.document_id, ()), near):
            if (place := _find_most_like(span, passages)) is not None:
                return place
        stood = [passage for passage, held in self._all if letters in held]
        return _find_most_like(span, sorted(stood, key=lambda passage: _rank(span, passage)))


def _quote(span: Span, passage: Passage) -> Place | None:
    found = find_quote(span.text, passage.text)
    return Place(passage=passage, start=found.start, end=found.end, score=1.0) if found else None


def _rank(span: Span, passage: Passage) -> tuple[bool, bool, int]:
    is_elsewhere = passage.document_id != span.document_id
    return is_elsewhere, _name_section(passage.passage_id) != _name_section(span.passage_id), passage.ordinal


def _name_section(passage_id: str) -> str:
    """What names the headings in the id of a folder's passage."""
    section = passage_id.partition("#")[2]
    name, _, number = section.rpartition("-")
    return name if number.isdecimal() else section


def _find_most_like(span: Span, passages: Sequence[Passage]) -> Place | None:
    best: Place | None = None
    for passage in passages:
        found = align(span.text, passage.text)
        if found is not None and found.score >= RECOGNISED and (best is None or found.score > best.score):
            best = Place(passage=passage, start=found.start, end=found.end, score=found.score)
    return best


def point_to(base: Base, question: SetQuestion, spans: Sequence[Span], also: Sequence[str] = ()) -> SetQuestion:
    """A question with its spans where they are now and the references that follow from them.

    Other references are kept as far as they are there; `also` are further ones.
    """
    before, now = ({base.name(span): None for span in of_one} for of_one in (question.spans, spans))
    kept = [one for one in question.reference_context_ids if base.has_id(one)]
    if before.keys() != now.keys():
        kept = [*now, *(one for one in kept if one not in before)]
    return replace(question, spans=tuple(spans), reference_context_ids=tuple(dict.fromkeys((*kept, *also))))


def list_dead(base: Base, question: SetQuestion) -> list[str]:
    """The references of a question that no document and no passage has any more."""
    return [one for one in question.reference_context_ids if not base.has_id(one)]


def find_differences(before: SetQuestion, after: SetQuestion) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields in which two versions of a question differ, as they were and as they are."""
    old, new = before.to_row(), after.to_row()
    names = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
    return {name: old.get(name) for name in names}, {name: new.get(name) for name in names}


def list_groups(base: Base, question: SetQuestion, places: Sequence[Place], n: int) -> list[tuple[Passage, ...]]:
    """Groups of passages by which a question whose spans are found at these places is to be asked again, each by
    itself.

    A group has new and changed passages elsewhere that it refers to or, of the `n` nearest, is near to, in place of the
    one of its own that they are about; with them go the others of a question that rests on several. The last has its
    own ones, where they changed around spans that stayed.
    """
    own = {place.passage.passage_id: place.passage for place in places}
    asked = write_asked(question.question, question.conversation)
    texts = [asked, *(place.span.text for place in places)]
    about = [base.near.find_about(text, TOUCHING) for text in texts]
    touching = frozenset[str]().union(*about) & base.changed - own.keys()
    others = [base.by_id[name] for name in question.reference_context_ids if name in base.changed - own.keys()]
    if touching:
        # Each span by itself as well: what only one of several is about is not near to all of the question.
        wanted = [f"{asked} {question.ground_truth or ''}", *texts[1:]]
        near = {found.passage.passage_id: found.passage for text in wanted for found in base.near.find(text, n, own)}
        others += [passage for name, passage in near.items() if name in touching and passage not in others]
    of_spans = [(place.passage.passage_id, shares) for place, shares in zip(places, about[1:], strict=True)]
    by_replaced: dict[str | None, list[Passage]] = {}
    for passage in others:
        # It takes the place of the own passage whose span it speaks of most.
        best = max(of_spans, key=lambda one: one[1].get(passage.passage_id, 0.0), default=None)
        by_replaced.setdefault(best[0] if best else None, []).append(passage)
    groups = [
        (*passages, *(passage for name, passage in own.items() if name != replaced))
        for replaced, passages in by_replaced.items()
    ]
    if base.changed & {span.passage_id for span in question.spans} & own.keys():
        groups.append(tuple(own.values()))
    return groups
