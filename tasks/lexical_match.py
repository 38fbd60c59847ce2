"""Finding a statement in a text: for each of its sentences the window of neighbouring sentences that shares the most
content, and in that window what speaks for and against the statement, counted as `Evidence`. `lexical_support` turns
evidence into a score.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tasks.lexical_meaning import ANTONYMS, CHINESE_ANTONYMS, NEGATIVE_PREFIXES, SYNONYMS
from tasks.lexical_text import CONTENT_WEIGHT, AnalysedText, Sentence, Token

_WINDOW_SIZES = (2, 3)  # sentences, besides single ones
_LARGER_WINDOW_COST = 0.03  # a window must find this share of the content more for each further sentence
_NEAR_ENOUGH = 0.5
_RELATED = 0.3  # share of the content below which a window is not looked at for opposites and replaced words
_FOREIGN_SHARE, _FEW_KEYS = 0.2, 3  # below this share of the content a statement of more keys is foreign to a text
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a text says about a statement; shares are of the statement's weighted content, 0 to 1.

    `cover` is found in the windows; `cover_rare` likewise with words that are rare in the text counted more,
    `cover_new` likewise of what the question does not say. `missing_*` stand in no window, `foreign_*` nowhere
    in the text. `replaced` are words that stand where the text has another word between the same neighbours,
    `opposites` words whose opposite the window holds, `negation_mismatch` the shared words negated on one side
    only.
    """

    cover: float
    cover_rare: float
    cover_new: float
    n_keys: int
    n_window: int
    missing_words: tuple[str, ...]
    missing_names: tuple[str, ...]
    missing_numbers: tuple[str, ...]
    foreign_numbers: int
    foreign_names: int
    replaced: tuple[str, ...]
    opposites: tuple[str, ...]
    negation_mismatch: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shares:
    cover: float
    cover_rare: float
    cover_new: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Window:
    """The neighbouring sentences of a text that match one sentence of a statement best."""

    sentence: Sentence
    found_in: tuple[Sentence, ...]
    keys: frozenset[str]


def _common_start(left: str, right: str) -> int:
    shared = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        shared += 1
    return shared


def _one_edit(left: str, right: str) -> bool:
    """Whether two words of five letters or more differ by one letter added, lost or changed, or two swapped."""
    if abs(len(left) - len(right)) > 1 or min(len(left), len(right)) < 5:
        return False
    start = _common_start(left, right)
    end = _common_start(left[start:][::-1], right[start:][::-1])
    rest_left, rest_right = len(left) - start - end, len(right) - start - end
    if max(rest_left, rest_right) <= 1:
        return True
    return rest_left == rest_right == 2 and left[start : start + 2] == right[start : start + 2][::-1]


def rate_near(key: str, surface: str, text: AnalysedText) -> float:
    """How close a text comes to a key that it does not hold: 0, or up to 0.9 for a variant, typo, synonym, acronym."""
    known = text.near.get(key)
    if known is None:
        known = text.near[key] = _find_near(key, surface, text)
    return known


def _find_near(key: str, surface: str, text: AnalysedText) -> float:
    if key[0] == "#":
        return 0.9 if f"{key}%" in text.keys or (key[-1] == "%" and key[:-1] in text.keys) else 0.0
    if not SYNONYMS.get(key, _NONE).isdisjoint(text.keys):
        return 0.8
    if not key.isascii():
        return 0.0
    if 3 <= len(surface) <= 6 and surface.isupper() and surface.lower() in text.initials:
        return 0.85
    near = len(key) > 3 and any(_is_variant(key, other) for other in text.stems_by_start.get(key[:3], ()))
    return 0.85 if near or _stands_inside(surface.lower(), text) else 0.0


def _is_variant(left: str, right: str) -> bool:
    shared = _common_start(left, right)
    return (shared >= 4 and shared >= 0.66 * max(len(left), len(right))) or _one_edit(left, right)


def _stands_inside(word: str, text: AnalysedText) -> bool:
    """Whether a word of six letters or more is part of a longer word of the text, or written apart there."""
    place = text.squeezed.find(word) if len(word) >= 6 else -1
    return place >= 0 and not text.squeezed[max(0, place - 3) : place].endswith(NEGATIVE_PREFIXES)


def _find_window(sentence: Sentence, text: AnalysedText) -> _Window:
    places = text.places
    held = {token.key: token.weight for token in sentence.tokens if token.key in places}
    n = len(text.sentences)
    singles = [0.0] * n
    for key, weight in held.items():
        mask = places[key]
        while mask:
            low = mask & -mask
            singles[low.bit_length() - 1] += weight
            mask ^= low
    best = max(singles)
    start, size = singles.index(best), 1
    cost = _LARGER_WINDOW_COST * sum(token.weight for token in sentence.tokens)
    for larger in _WINDOW_SIZES:
        for i in range(n - larger + 1):
            if sum(singles[i : i + larger]) - cost * (larger - 1) <= best:
                continue
            mask = ((1 << larger) - 1) << i
            score = sum([weight for key, weight in held.items() if places[key] & mask]) - cost * (larger - 1)
            if score > best:
                start, size, best = i, larger, score
    found_in = text.sentences[start : start + size]
    keys = found_in[0].keys if size == 1 else frozenset().union(*(other.keys for other in found_in))
    return _Window(sentence=sentence, found_in=found_in, keys=keys)


def weigh_evidence(
    statement: AnalysedText, text: AnalysedText, question: AnalysedText, *, given_share: float = 1.0
) -> Evidence | None:
    """The evidence of a text for a statement; None when either holds nothing.

    What the question already says counts `given_share` of its weight, unless the statement says nothing else.
    """
    if not statement.sentences or not text.sentences:
        return None
    given = {key for key in statement.weights if _is_given(key, question)}
    weights = _lighten(statement.weights, given, given_share)
    windows: list[_Window] = []
    if not _is_foreign(weights, text):
        windows = [_find_window(sentence, text) for sentence in statement.sentences]
    found = _rate_keys(weights, windows, statement, text)
    lost = [key for key, weight in weights.items() if weight >= CONTENT_WEIGHT and found[key] < _NEAR_ENOUGH]
    foreign = [key for key in lost if key not in text.keys]
    shares = _sum_shares(found, weights, given, text.rarities)
    related = shares.cover >= _RELATED
    surfaces, names = statement.surfaces, statement.names
    return Evidence(
        cover=shares.cover,
        cover_rare=shares.cover_rare,
        cover_new=shares.cover_new,
        n_keys=sum([weight >= CONTENT_WEIGHT for weight in weights.values()]),
        n_window=max([len(window.found_in) for window in windows], default=0),
        missing_words=tuple([surfaces[k] for k in lost if k not in names and k[0] != "#"]),
        missing_names=tuple([surfaces[k] for k in lost if k in names]),
        missing_numbers=tuple([surfaces[k] for k in lost if k[0] == "#"]),
        foreign_numbers=sum([k[0] == "#" for k in foreign]),
        foreign_names=sum([k in names for k in foreign]),
        replaced=tuple([shown for w in windows for shown in _replaced(w, lost)]) if related and lost else (),
        opposites=tuple([shown for w in windows for shown in _opposites(w, surfaces)]) if related else (),
        negation_mismatch=tuple([shown for w in windows for shown in _negation_mismatch(w, surfaces)]),
    )


def _is_foreign(weights: Mapping[str, float], text: AnalysedText) -> bool:
    """Whether a statement of some length shares so little with a text that no window of it is worth a look."""
    if len(weights) <= _FEW_KEYS:
        return False
    return sum([w for key, w in weights.items() if key in text.places]) < _FOREIGN_SHARE * sum(weights.values())


def _rate_keys(
    weights: Mapping[str, float], windows: Sequence[_Window], statement: AnalysedText, text: AnalysedText
) -> dict[str, float]:
    """Key to how well its own window holds it: 1, or the closeness of what the text has instead."""
    found = dict.fromkeys(weights, 0.0)
    for window in windows:
        for key in window.sentence.keys & window.keys:
            found[key] = 1.0
    if not windows:
        return found
    for key, share in found.items():
        if not share and key not in text.places and weights[key] > 0.1:
            found[key] = rate_near(key, statement.surfaces[key], text)
    return found


def _sum_shares(
    found: Mapping[str, float], weights: Mapping[str, float], given: set[str], rarities: Mapping[str, float]
) -> _Shares:
    total = cover = total_rare = cover_rare = total_new = cover_new = 0.0
    for key, weight in weights.items():
        hit = weight * found[key]
        rarity = rarities.get(key, 1.0)
        total += weight
        cover += hit
        total_rare += weight * rarity
        cover_rare += hit * rarity
        if key not in given:
            total_new += weight
            cover_new += hit
    cover = cover / total if total else 0.0
    return _Shares(
        cover=cover,
        cover_rare=cover_rare / total_rare if total_rare else 0.0,
        cover_new=cover_new / total_new if total_new else cover,
    )


def _is_given(key: str, question: AnalysedText) -> bool:
    """Whether the question already says it; a pair of Chinese characters also when it has both apart."""
    if key in question.keys:
        return True
    return not key.isascii() and len(key) == 2 and key[0] in question.text and key[1] in question.text


def _lighten(weights: dict[str, float], given: set[str], share: float) -> dict[str, float]:
    if share == 1.0 or not given or sum([w for key, w in weights.items() if key not in given]) < 0.5:
        return weights
    return {key: weight * share if key in given else weight for key, weight in weights.items()}


def _replaced(window: _Window, lost: Sequence[str]) -> list[str]:
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


@lru_cache(maxsize=4096)
def _opposites_of(key: str) -> frozenset[str]:
    others = ANTONYMS.get(key) or CHINESE_ANTONYMS.get(key) or _NONE
    if key.isascii() and len(key) > 4:
        longer = {prefix + key for prefix in NEGATIVE_PREFIXES}
        shorter = {key[len(p) :] for p in NEGATIVE_PREFIXES if key.startswith(p) and len(key) > len(p) + 3}
        return others | longer | shorter
    return others


def _opposites(window: _Window, surfaces: dict[str, str]) -> list[str]:
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


def _negation_mismatch(window: _Window, surfaces: dict[str, str]) -> list[str]:
    """Shared words that are negated in the sentence and nowhere in the window, or always in the window only."""
    theirs = frozenset().union(*[other.negated for other in window.found_in])
    if not theirs and not window.sentence.negated:
        return []
    plain = frozenset().union(*[other.plain for other in window.found_in])
    ours = (window.sentence.negated & window.keys) - theirs
    mismatch = ours | ((theirs & window.sentence.keys) - window.sentence.negated - plain)
    return sorted(surfaces[key] for key in mismatch)
