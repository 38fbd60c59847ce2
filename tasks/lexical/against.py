"""What a text holds against a statement, in the windows of neighbouring sentences that `lexical_match` found to be
about the same: other words and numbers in the same place, opposites, negation on one side only.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from evalhouse.tasks.lexical.thesaurus import ANTONYMS, CHINESE_ANTONYMS, NEGATIVE_PREFIXES
from evalhouse.tasks.lexical.tokens import Sentence, Token

_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The neighbouring sentences of a text that match one sentence of a statement best."""

    sentence: Sentence
    found_in: tuple[Sentence, ...]
    keys: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Against:
    """Other words, other numbers and opposites, as the fields of `lexical_match.Evidence` of these names."""

    replaced: tuple[str, ...]
    rivals: tuple[str, ...]
    opposites: tuple[str, ...]


NOTHING_AGAINST = Against(replaced=(), rivals=(), opposites=())


def weigh_against(windows: Sequence[Window], lost: frozenset[str], surfaces: Mapping[str, str]) -> Against:
    """What the windows, which are about what the claim is about, have in the place of what they lack."""
    replaced: list[str] = []
    rivals: list[str] = []
    opposites: list[str] = []
    for window in windows:
        if lost:
            replaced += _replaced(window, lost)
            rivals += _find_rivals(window, lost)
        opposites += _opposites(window, surfaces)
    return Against(replaced=tuple(replaced), rivals=tuple(rivals), opposites=tuple(opposites))


def _replaced(window: Window, lost: frozenset[str]) -> list[str]:
    """`word/other` for each lost word in whose place, between the same neighbours, the window has another word."""
    tokens = window.sentence.content
    replaced: list[str] = []
    for left, middle, right in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if middle.key not in lost or left.key not in window.keys or right.key not in window.keys:
            continue
        for other in _between(left.key, right.key, window.found_in):
            if other.key not in window.sentence.keys:
                replaced.append(f"{middle.surface}/{other.surface}")
                break
    return replaced


def _between(left: str, right: str, sentences: Iterable[Sentence]) -> Iterator[Token]:
    for sentence in sentences:
        held = sentence.content
        for first, second, third in zip(held, held[1:], held[2:], strict=False):
            if first.key == left and third.key == right:
                yield second


def _find_rivals(window: Window, lost: frozenset[str]) -> list[str]:
    """`number/other` for each lost number where, before or after the same word, the window has another number."""
    sentence = window.sentence
    if not any(key[0] == "#" and key in lost for key in sentence.weights):
        return []
    ours = [one for one in _read_sides(sentence) if one.key in lost]
    theirs = [one for other in window.found_in for one in _read_sides(other) if one.key not in sentence.keys]
    rivals: dict[str, str] = {}
    for one in ours:
        for other in theirs:
            if one.sort == other.sort and (one.before == other.before != "" or one.after == other.after != ""):
                rivals.setdefault(one.surface, other.surface)
    return [f"{surface}/{other}" for surface, other in rivals.items()]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sided:
    """A number and the keys of the words beside it, empty where there is none; `sort` is o, m, % or plain."""

    key: str
    surface: str
    sort: str
    before: str
    after: str


def _read_sides(sentence: Sentence) -> list[_Sided]:
    keys = ["", *[token.key for token in sentence.tokens], ""]
    return [
        _Sided(
            key=token.key,
            surface=token.surface,
            sort=token.key[1] if token.key[1] in "om" else token.key[-1] if token.key[-1] == "%" else "",
            before=keys[place],
            after=keys[place + 2],
        )
        for place, token in enumerate(sentence.tokens)
        if token.kind == "number"
    ]


@lru_cache(maxsize=4096)
def _opposites_of(key: str) -> frozenset[str]:
    others = ANTONYMS.get(key) or CHINESE_ANTONYMS.get(key) or _NONE
    if key.isascii() and len(key) > 4:
        longer = {prefix + key for prefix in NEGATIVE_PREFIXES}
        shorter = {key[len(p) :] for p in NEGATIVE_PREFIXES if key.startswith(p) and len(key) > len(p) + 3}
        return others | longer | shorter
    return others


def _opposites(window: Window, surfaces: Mapping[str, str]) -> list[str]:
    """`word/opposite` for each word of the sentence that the window lacks while it holds an opposite."""
    found: list[str] = []
    for key in window.sentence.keys:
        if key in window.keys:
            continue
        others = _opposites_of(key)
        if not others.isdisjoint(window.keys):
            found.extend(
                f"{surfaces[key]}/{other}" for other in sorted(others & window.keys - window.sentence.keys)[:1]
            )
    return sorted(found)


def find_negation_mismatch(windows: Sequence[Window], surfaces: Mapping[str, str]) -> tuple[str, ...]:
    """Shared words that are negated in the claim and nowhere in its window, or always in the window only."""
    mismatch: list[str] = []
    for window in windows:
        sentence = window.sentence
        theirs = frozenset().union(*[other.negated for other in window.found_in])
        if not theirs and not sentence.negated:
            continue
        plain = frozenset().union(*[other.plain for other in window.found_in])
        ours = (sentence.negated & window.keys) - theirs
        keys = ours | ((theirs & sentence.keys) - sentence.negated - plain)
        mismatch += sorted([surfaces[key] for key in keys])
    return tuple(mismatch)
