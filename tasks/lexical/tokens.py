"""The tokens of a sentence as the lexical judge compares them: an English word's key is its stem, a number's its value
(`lexical_numbers`), Chinese is cut into overlapping pairs of characters, and what a negation word governs is marked.
`lexical_text` puts sentences together to texts.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from evalhouse.tasks.lexical.numerals import CHINESE_PATTERN, DIGITS_PATTERN, NUMBER_STARTS, WORDS_PATTERN, read_number
from evalhouse.tasks.lexical.words import (
    CHINESE_NEGATIONS,
    CHINESE_NOT_NEGATIONS,
    CHINESE_STOP_CHARACTERS,
    CHINESE_STOP_WORDS,
    DIRECTION_WORDS,
    FUNCTION_WORDS,
    NEGATIONS,
    stem_word,
)

TokenKind = Literal["word", "name", "number", "chinese", "direction", "negation"]

CONTENT_WEIGHT = 0.4  # tokens from this weight on count as content words
_PUNCTUATION = str.maketrans("‘’‛′“”„‐‑‒–—−，；：（）", "''''\"\"\"------,;:()")
_ACCENTED = re.compile(r"([A-Za-z])[\u0300-\u036f]+")
_CITATION = re.compile(r"\[\d{1,3}(?:[,\s-]+\d{1,3})*\]")
_HAN = r"\u3007\u3040-\u30ff\u3400-\u9fff"
_TAIL = r"(?:(?:\.[A-Za-z])+\.|[#+]+(?!\w)|\d+[A-Za-z\d]*)?(?:'[a-z]{1,2}\b)?"  # of U.S., C#, GPT4, it's
_SCANNER = re.compile(rf"(?P<latin>[^\W\d_{_HAN}]+{_TAIL})|(?P<han>[{_HAN}]+)|{DIGITS_PATTERN}")
_LATIN = re.compile(rf"[A-Za-z]+{_TAIL}")
_DIGIT = re.compile(r"\d")
_ASCII_SCANNER = re.compile(rf"(?P<latin>[A-Za-z]+{_TAIL})|{DIGITS_PATTERN}")
_NUMBER_KINDS = (
    "digits",
    "digit_month",
    "month",
    "words",
    "word_ordinal",
    "chinese",
    "chinese_ordinal",
    "chinese_percent",
)
# As written: looking a word up is faster than lowering every word.
_NUMBER_STARTS = frozenset([form for word in NUMBER_STARTS for form in (word, word.capitalize(), word.upper())])
_STOP_WORDS = re.compile("|".join(sorted(CHINESE_STOP_WORDS, key=len, reverse=True)))
_NOT_NEGATIONS = re.compile("|".join(sorted(CHINESE_NOT_NEGATIONS, key=len, reverse=True)))
# An answer `No`, which is more than a negation.
_NO = frozenset({"No", "no", "NO"})
_AFTER_NO = frozenset({"", ",", ".", "!", ";"})
_NEGATION_REACH = 2  # content words after a negation that it governs


@dataclass(frozen=True, kw_only=True, slots=True)
class Token:
    """One unit of comparison: `key` is compared, `surface` is shown, `weight` its share of the content (0 to 1.5)."""

    key: str
    surface: str
    kind: TokenKind
    weight: float


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """The tokens of one sentence that count, in order, and the keys among them that a negation governs."""

    tokens: tuple[Token, ...]
    negated: frozenset[str]

    @cached_property
    def keys(self) -> frozenset[str]:
        return frozenset([token.key for token in self.tokens])

    @cached_property
    def weights(self) -> dict[str, float]:
        """Key to weight, in the order of first appearance."""
        return {token.key: token.weight for token in self.tokens}

    @cached_property
    def total(self) -> float:
        """The weight of all tokens."""
        return sum([token.weight for token in self.tokens])

    @cached_property
    def plain(self) -> frozenset[str]:
        """The keys that no negation governs."""
        return self.keys - self.negated

    @cached_property
    def content(self) -> tuple[Token, ...]:
        return tuple([token for token in self.tokens if token.weight >= CONTENT_WEIGHT])


def normalise(text: str) -> str:
    """One spelling for full-width forms, quotes, dashes and accents; citation marks such as `[3]` gone."""
    if "[" in text:
        text = _CITATION.sub("", text)
    if text.isascii():
        return text
    text = unicodedata.normalize("NFKC", text).translate(_PUNCTUATION)
    if text.isascii():
        return text
    decomposed = _ACCENTED.sub(r"\1", unicodedata.normalize("NFD", text))
    return unicodedata.normalize("NFC", decomposed)


@lru_cache(maxsize=32768)
def _read_latin(surface: str, starts: bool) -> Token | None:
    """The token of a Latin word; `starts` says that it opens its sentence, where a capital means little."""
    if "." in surface:  # U.S., e.g.
        surface = surface.replace(".", "")
    if "'" in surface:
        head, _, tail = surface.partition("'")
        if tail == "t" and head.endswith("n"):
            return Token(key="n't", surface=surface, kind="negation", weight=0.0)
        surface = head if len(head) > 1 else head + tail
    lower = surface.lower()
    return _sort_latin(surface, lower, starts)


def _sort_latin(surface: str, lower: str, starts: bool) -> Token | None:
    kind: TokenKind = "word"
    weight = 0.5 if len(lower) == 1 else 1.0
    if lower in NEGATIONS:
        return Token(key=lower, surface=surface, kind="negation", weight=0.0)
    if lower in DIRECTION_WORDS:
        kind, weight = "direction", 0.4
    elif lower in FUNCTION_WORDS and not (1 < len(lower) < 4 and surface.isupper()):
        return None
    elif lower[-1] in "#+" or not surface.isalpha():
        return Token(key=lower, surface=surface, kind="name", weight=1.0)
    elif surface[0].isupper() and not (starts and surface[1:].islower()):
        kind, weight = "name", 1.0
    return Token(key=stem_word(lower), surface=surface, kind=kind, weight=weight)


@lru_cache(maxsize=32768)
def _read_pair(pair: str) -> Token:
    """The token of two neighbouring Chinese characters (or of one that stands alone): less for each stop character."""
    stops = sum(character in CHINESE_STOP_CHARACTERS for character in pair)
    weight = (0.5, 0.15, 0.05)[stops] if len(pair) == 2 else (0.5, 0.05)[stops]
    return Token(key=pair, surface=pair, kind="chinese", weight=weight)


@lru_cache(maxsize=256)
def _read_negation(word: str) -> Token:
    return Token(key=word, surface=word, kind="negation", weight=0.0)


def _read_no(surface: str) -> Token:
    return Token(key="no", surface=surface, kind="direction", weight=0.4)


def _read_han(run: str) -> Iterator[Token]:
    """The tokens of a Chinese run: its numbers, and the character pairs of what lies between them."""
    start = 0
    for found in CHINESE_PATTERN.finditer(run):
        yield from _read_plain_han(run[start : found.start()])
        yield from _read_found_number(found)
        start = found.end()
    yield from _read_plain_han(run[start:])


def _read_plain_han(run: str) -> Iterator[Token]:
    """Overlapping character pairs, frame words cut out; a negation token stands before the pair it begins."""
    for part in _STOP_WORDS.split(run):
        if len(part) == 1:
            yield _read_pair(part)
            continue
        masked = part
        if not CHINESE_NEGATIONS.isdisjoint(part):
            masked = _NOT_NEGATIONS.sub(lambda found: "＿" * len(found[0]), part)
        for position in range(len(part) - 1):
            if masked[position] in CHINESE_NEGATIONS:
                yield _read_negation(masked[position])
            yield _read_pair(part[position : position + 2])


def _read_found_number(found: re.Match[str]) -> Iterator[Token]:
    kind, groups = found.lastgroup, found.groupdict()
    if kind not in _NUMBER_KINDS:  # an ordinal's ending, a scale or a percent sign came last
        kind = next(kind for kind in _NUMBER_KINDS if groups.get(kind))
    text = groups[kind]
    if text.isdigit() and (groups.get("ordinal") or groups.get("after_ordinal") is not None):
        kind = "ordinal"
    percent = bool(groups.get("percent")) or groups.get("of_hundred") is not None
    key = read_number(kind, text, groups.get("scale") or "", percent=percent)
    if key is not None:
        yield Token(key=key, surface=found[0].strip(), kind="number", weight=0.7 if key[1] in "om" else 1.5)
    elif kind.startswith("chinese"):
        yield from _read_plain_han(text)


def _read_tokens(sentence: str) -> list[Token]:
    """The tokens of a normalised sentence; most sentences of plain words take a short way to the same result."""
    if sentence.isascii() and _DIGIT.search(sentence) is None:
        words = _LATIN.findall(sentence)
        if words and words[0] not in _NO and _NUMBER_STARTS.isdisjoint(words):
            tokens = [_read_latin(words[0], True), *[_read_latin(word, False) for word in words[1:]]]
            return [token for token in tokens if token is not None]
    return _scan_tokens(sentence)


def _scan_tokens(sentence: str) -> list[Token]:
    tokens: list[Token] = []
    starts, skip = True, 0
    for found in (_ASCII_SCANNER if sentence.isascii() else _SCANNER).finditer(sentence):
        if skip and found.start() < skip:
            continue
        kind = found.lastgroup
        if kind == "latin":
            surface = found[0]
            number = WORDS_PATTERN.match(sentence, found.start()) if surface in _NUMBER_STARTS else None
            if number is not None:
                skip = number.end()
                tokens.extend(_read_found_number(number))
            elif starts and surface in _NO and sentence[found.end() : found.end() + 1] in _AFTER_NO:
                tokens.extend((_read_no(surface), _read_negation(surface)))
            else:
                token = _read_latin(surface, starts)
                if token is not None:
                    tokens.append(token)
        elif kind == "han":
            tokens.extend(_read_han(found[0]))
        else:
            tokens.extend(_read_found_number(found))
        starts = False
    return tokens


def read_sentence(text: str) -> Sentence:
    tokens = _read_tokens(text)
    if not any(token.kind == "negation" for token in tokens):
        return Sentence(tokens=tuple(tokens), negated=frozenset())
    kept: list[Token] = []
    negated: set[str] = set()
    reach = 0
    for token in tokens:
        if token.kind == "negation":
            reach = _NEGATION_REACH
            continue
        kept.append(token)
        if reach and token.weight >= 0.3:
            negated.add(token.key)
            reach -= 1
    return Sentence(tokens=tuple(kept), negated=frozenset(negated))
