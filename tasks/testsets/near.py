"""Passages that are about the same, by their words: which stand near a text, how much two texts share, and where a
sentence of an older version stands in a newer one.

No model is asked. What is near is found by BM25 (Robertson and Zaragoza, 2009) over the stems of English words and
pairs of Chinese characters, as the lexical judge compares them; it narrows thousands of passages down to a few, and
decides nothing.
"""

import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rapidfuzz import fuzz
from scipy.sparse import csr_array

from evalhouse.tasks.lexical.split import CHINESE_STOP_CHARACTERS, FUNCTION_WORDS, stem_word
from evalhouse.tasks.lexical.texts import normalise
from evalhouse.tasks.testsets.passages import Passage, SentenceSpan, find_sentences

_SATURATION, _LENGTH_SHARE = 1.2, 0.75  # BM25's k1 and b, at their usual values
_SHINGLE: Final = 3  # words, or Chinese characters, in a row
_HAN = r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(rf"(?P<han>[{_HAN}]+)|[^\W_{_HAN}]+")
_UNIT = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+")
_WORD_LETTER = re.compile(rf"[^\W_{_HAN}]")
_POINTS: Final = frozenset(".,")
_MARKUP: Final = frozenset("*`")
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
    """Where a quotation stands in a text, whatever the white space, emphasis and shape of quotes and dashes; None where
    it does not. The first place where it stands several times; never a part of a word or number."""
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
    whole = _pick_sentences(span, text, touched)
    alike = fuzz.ratio(span, text[whole.start : whole.end])
    score = max(alike, found.score if len(span) <= len(text) else 0.0) / 100
    return Aligned(whole.start, whole.end, min(score, _NEARLY))


_NEARLY: Final = 0.99  # of what is not there word by word


def _pick_sentences(span: str, text: str, touched: Sequence[SentenceSpan]) -> SentenceSpan:
    """Of the sentences that the likest stretch touches those that are most like the span together: the stretch may
    reach some letters into a neighbour."""
    ranges = [
        SentenceSpan(start=touched[first].start, end=touched[last].end)
        for first in range(min(2, len(touched)))
        for last in range(max(first, len(touched) - 2), len(touched))
    ]
    return max(ranges, key=lambda candidate: fuzz.ratio(span, text[candidate.start : candidate.end]))
