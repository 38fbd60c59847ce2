"""A text as the lexical judge sees it: sentences of tokens (`lexical_tokens`) and what is looked up in them again and
again. Analysed texts are kept in a cache bounded by characters, because one context is looked at by several requests.
`lexical_match` and `lexical_relevance` look for one text in another.
"""

import math
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from evalhouse.tasks.lexical.sentences import split_sentences
from evalhouse.tasks.lexical.tokens import Sentence, Token, TokenKind, normalise, read_sentence

_ALPHANUMERIC = re.compile(r"[a-z0-9]+")
_PERSONAL = re.compile(r"\b(?:i|my|me|you|your|we|our)\b|[我你您]")
_ACRONYM = re.compile(r"(?<![A-Za-z])[A-Z]{2,}(?![A-Za-z])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Runs:
    """The keys of the runs of neighbouring numbers (a date) and names, and of each key of a longer name its acronym.

    Words that carry no content do not end a run.
    """

    numbers: tuple[frozenset[str], ...]
    names: tuple[frozenset[str], ...]
    acronyms: dict[str, str]


def _read_runs(sentences: Sequence[Sentence], kind: TokenKind) -> list[list[Token]]:
    """The longest stretches of neighbouring tokens of one kind."""
    runs: list[list[Token]] = []
    for sentence in sentences:
        goes_on = False
        for token in sentence.tokens:
            if token.kind == kind:
                if not goes_on:
                    runs.append([])
                runs[-1].append(token)
            goes_on = token.kind == kind
    return runs


@dataclass(frozen=True, kw_only=True)
class AnalysedText:
    """A text and its sentences; sentences without any token are left out."""

    text: str
    sentences: tuple[Sentence, ...]
    # Near matches found so far, key to closeness: filled and read by `lexical_match`.
    near: dict[str, float] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset(self.places)

    @cached_property
    def places(self) -> dict[str, int]:
        """Key to the sentences that hold it, as a bit mask."""
        places: dict[str, int] = {}
        for position, sentence in enumerate(self.sentences):
            bit = 1 << position
            for key in sentence.keys:
                places[key] = places.get(key, 0) | bit
        return places

    def read_positions(self, key: str) -> Iterator[int]:
        """The positions of the sentences that hold a key, in order."""
        mask = self.places.get(key, 0)
        while mask:
            low = mask & -mask
            yield low.bit_length() - 1
            mask ^= low

    @cached_property
    def weights(self) -> dict[str, float]:
        """Key to weight, in the order of first appearance."""
        weights: dict[str, float] = {}
        for sentence in self.sentences:
            weights |= sentence.weights
        return weights

    @cached_property
    def surfaces(self) -> dict[str, str]:
        return {token.key: token.surface for sentence in self.sentences for token in sentence.tokens}

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset([t.key for sentence in self.sentences for t in sentence.tokens if t.kind == "name"])

    @cached_property
    def runs(self) -> Runs:
        names = _read_runs(self.sentences, "name")
        acronyms: dict[str, str] = {}
        for run in names:
            if len(run) > 1:
                acronyms |= dict.fromkeys([t.key for t in run], "".join([t.surface[0] for t in run]).lower())
        return Runs(
            numbers=tuple([frozenset([t.key for t in run]) for run in _read_runs(self.sentences, "number")]),
            names=tuple([frozenset([t.key for t in run]) for run in names]),
            acronyms=acronyms,
        )

    @cached_property
    def personal(self) -> frozenset[str]:
        """The words by which the text speaks of its speaker or to its hearer."""
        return frozenset(_PERSONAL.findall(self.text.lower()))

    @cached_property
    def rarities(self) -> dict[str, float]:
        """1 for a word in one sentence of the text, less for the words the whole text is about."""
        return {
            key: 1.0 / (1.0 + math.log(place.bit_count())) if place & (place - 1) else 1.0
            for key, place in self.places.items()
        }

    @cached_property
    def stems_by_start(self) -> dict[str, list[str]]:
        """First three letters to the words of the text that begin so, for near matches."""
        starts: dict[str, list[str]] = {}
        for key in self.places:
            if len(key) > 3 and key[0] != "#":
                starts.setdefault(key[:3], []).append(key)
        return starts

    @cached_property
    def squeezed(self) -> str:
        """The plain letters and digits of the text in one lower-case string, for words written apart or together."""
        return "".join(_ALPHANUMERIC.findall(normalise(self.text).lower()))

    @cached_property
    def acronyms(self) -> frozenset[str]:
        """The words of two letters or more written in capitals, in lower case."""
        return frozenset([word.lower() for word in _ACRONYM.findall(normalise(self.text))])

    @cached_property
    def initials(self) -> str:
        """First letters of all Latin words, and of the capitalised ones alone, for acronyms: `|acotm|AM|`."""
        words = re.findall(r"[A-Za-z]+", self.text)
        every = "".join([word[0] for word in words]).lower()
        capitals = "".join([word[0] for word in words if word[0].isupper()]).lower()
        return f"|{every}|{capitals}|"


def _analyse(text: str) -> AnalysedText:
    sentences = [read_sentence(normalise(sentence)) for sentence in split_sentences(text)]
    return AnalysedText(text=text, sentences=tuple(sentence for sentence in sentences if sentence.tokens))


def join_texts(texts: Sequence[AnalysedText]) -> AnalysedText:
    """Several analysed texts as one, without analysing again."""
    if len(texts) == 1:
        return texts[0]
    return AnalysedText(
        text="\n".join(text.text for text in texts),
        sentences=tuple(sentence for text in texts for sentence in text.sentences),
    )


class TextCache:
    """The latest analysed texts, bounded by their characters: an analysed character takes about 100 bytes."""

    def __init__(self, max_characters: int) -> None:
        self.max_characters = max_characters
        self._texts: OrderedDict[str, AnalysedText] = OrderedDict()
        self.n_characters = 0
        self._lock = threading.Lock()

    def analyse(self, text: str) -> AnalysedText:
        with self._lock:
            known = self._texts.get(text)
            if known is not None:
                self._texts.move_to_end(text)
                return known
        analysed = _analyse(text)
        with self._lock:
            if text not in self._texts:
                self._texts[text] = analysed
                self.n_characters += len(text)
            while self.n_characters > self.max_characters:
                oldest, _ = self._texts.popitem(last=False)
                self.n_characters -= len(oldest)
        return analysed


_cache = TextCache(max_characters=500_000)


def analyse_text(text: str) -> AnalysedText:
    """Sentences and tokens of a text; the same text again costs a look-up."""
    return _cache.analyse(text)
