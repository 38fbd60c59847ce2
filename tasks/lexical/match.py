"""Finding a statement in a text: for each of its sentences the window of neighbouring sentences that shares the most
content, and in that window what speaks for and against the statement, counted as `Evidence`. `lexical_support` turns
evidence into a score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from evalhouse.tasks.lexical.against import NOTHING_AGAINST, Window, find_negation_mismatch, weigh_against
from evalhouse.tasks.lexical.texts import AnalysedText
from evalhouse.tasks.lexical.thesaurus import NEGATIVE_PREFIXES, SYNONYMS
from evalhouse.tasks.lexical.tokens import CONTENT_WEIGHT, Sentence

_WINDOW_SIZES = (2, 3)  # sentences, besides single ones
_LARGER_WINDOW_COST = 0.03  # a window must find this share of the content more for each further sentence
_NEAR_ENOUGH = 0.5
_RELATED = 0.3  # share of the content below which a window is not looked at for opposites and replaced words
_FOREIGN_SHARE, _FEW_KEYS = 0.2, 3  # below this share of the content a statement of more keys is foreign to a text
_ROUNDING = 1e-9
_VARIANT = 0.85  # closeness of a variant, a typo, an acronym and what it stands for
_ELSEWHERE = 0.25  # of a foreign run that a text retrieved with this one holds
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement made ready to be looked for in many texts.

    `weights` holds key to weight after what the question says was made lighter, `given` the keys it says, `content` the
    keys that count as content words.
    """

    statement: AnalysedText
    weights: Mapping[str, float]
    given: frozenset[str]
    total: float
    content: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a text says about a claim; shares are of the claim's weighted content, 0 to 1.

    `cover` is found in the windows; `cover_rare` likewise with words that are rare in the text counted more,
    `cover_new` likewise of what the question does not say, `cover_text` anywhere in the text. `lost` are the keys of
    the content words found in no window, `foreign_*` counts the runs of which a lost word stands nowhere in the text.
    `replaced` are words that stand where the text has another word between the same neighbours, `rivals` numbers where
    it has another number beside the same word, `opposites` words whose opposite the window holds, `negation_mismatch`
    the shared words negated on one side only.
    """

    claim: Claim
    cover: float
    cover_rare: float
    cover_new: float
    cover_text: float
    n_window: int
    lost: tuple[str, ...]
    foreign_numbers: float
    foreign_names: float
    replaced: tuple[str, ...]
    rivals: tuple[str, ...]
    opposites: tuple[str, ...]
    negation_mismatch: tuple[str, ...]

    @property
    def n_keys(self) -> int:
        """Content words of the claim."""
        return len(self.claim.content)

    @property
    def missing_numbers(self) -> tuple[str, ...]:
        return self._show([key for key in self.lost if key[0] == "#"])

    @property
    def missing_names(self) -> tuple[str, ...]:
        names = self.claim.statement.names
        return self._show([key for key in self.lost if key in names])

    @property
    def missing_words(self) -> tuple[str, ...]:
        """Chinese pairs of characters that overlap are shown as one."""
        names = self.claim.statement.names
        shown: list[str] = []
        for word in self._show([key for key in self.lost if key not in names and key[0] != "#"]):
            if shown and not word.isascii() and len(word) == 2 and shown[-1][-1] == word[0]:
                shown[-1] += word[1]
            else:
                shown.append(word)
        return tuple(shown)

    def _show(self, keys: Sequence[str]) -> tuple[str, ...]:
        surfaces = self.claim.statement.surfaces
        return tuple([surfaces[key] for key in keys])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """The shares and the lost keys of `Evidence`."""

    cover: float
    cover_rare: float
    cover_new: float
    cover_text: float
    lost: tuple[str, ...]


_NOTHING_FOUND = _Found(cover=0.0, cover_rare=0.0, cover_new=0.0, cover_text=0.0, lost=())


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


def _find_near(key: str, surface: str, text: AnalysedText) -> float:
    """How close a text comes to a key that it does not hold: 0, or up to 0.9 for a variant, typo, synonym, acronym."""
    if key[0] == "#":
        return 0.9 if f"{key}%" in text.keys or (key[-1] == "%" and key[:-1] in text.keys) else 0.0
    if not SYNONYMS.get(key, _NONE).isdisjoint(text.keys):
        return 0.8
    if not key.isascii():
        return 0.0
    if 3 <= len(surface) <= 6 and surface.isupper() and surface.lower() in text.initials:
        return _VARIANT
    others = text.stems_by_start.get(key[:3]) if len(key) > 3 else None
    if others and any(_is_variant(key, other) for other in others):
        return _VARIANT
    return _VARIANT if _stands_inside(surface, text) else 0.0


def _is_variant(left: str, right: str) -> bool:
    shared = _common_start(left, right)
    return (shared >= 4 and shared >= 0.66 * max(len(left), len(right))) or _one_edit(left, right)


def _stands_inside(word: str, text: AnalysedText) -> bool:
    """Whether a word of six letters or more is part of a longer word of the text, or written apart there."""
    place = text.squeezed.find(word.lower()) if len(word) >= 6 else -1
    return place >= 0 and not text.squeezed[max(0, place - 3) : place].endswith(NEGATIVE_PREFIXES)


def _find_window(sentence: Sentence, text: AnalysedText) -> Window:
    places, n = text.places, len(text.sentences)
    held = [(places[key], weight) for key, weight in sentence.weights.items() if key in places]
    singles = [0.0] * n
    for place, weight in held:
        mask = place
        while mask:
            low = mask & -mask
            singles[low.bit_length() - 1] += weight
            mask ^= low
    best = max(singles)
    start, size = singles.index(best), 1
    cost = _LARGER_WINDOW_COST * sentence.total
    most = sum([weight for _, weight in held]) + _ROUNDING
    for larger in _WINDOW_SIZES:
        if most - cost * (larger - 1) <= best:
            break
        for i in range(n - larger + 1):
            if sum(singles[i : i + larger]) - cost * (larger - 1) <= best:
                continue
            mask = ((1 << larger) - 1) << i
            score = sum([weight for place, weight in held if place & mask]) - cost * (larger - 1)
            if score > best:
                start, size, best = i, larger, score
    found_in = text.sentences[start : start + size]
    keys = found_in[0].keys if size == 1 else frozenset().union(*[other.keys for other in found_in])
    return Window(sentence=sentence, found_in=found_in, keys=keys)


def read_claim(statement: AnalysedText, question: AnalysedText | None = None, *, given_share: float = 1.0) -> Claim:
    """A statement ready for `weigh_evidence`.

    What the question already says counts `given_share` of its weight, unless the statement says nothing else.
    """
    given = _NONE
    if question is not None and question.keys:
        given = frozenset([key for key in statement.weights if _is_given(key, question)])
    weights = _lighten(statement.weights, given, given_share)
    return Claim(
        statement=statement,
        weights=weights,
        given=given,
        total=sum(weights.values()),
        content=tuple([key for key, weight in weights.items() if weight >= CONTENT_WEIGHT]),
    )


def weigh_evidence(claim: Claim, text: AnalysedText, elsewhere: frozenset[str] = _NONE) -> Evidence | None:
    """The evidence of a text for a claim; None when either holds nothing.

    `elsewhere` are the keys of the texts that were retrieved with this one: what they hold is less foreign.
    """
    sentences = claim.statement.sentences
    if not sentences or not text.sentences:
        return None
    windows = [] if _is_foreign(claim, text) else [_find_window(sentence, text) for sentence in sentences]
    found = _find_keys(claim, windows, text) if windows else replace(_NOTHING_FOUND, lost=claim.content)
    lost, runs = frozenset(found.lost), claim.statement.runs
    against = weigh_against(windows, lost, claim.statement.surfaces) if found.cover >= _RELATED else NOTHING_AGAINST
    return Evidence(
        claim=claim,
        cover=found.cover,
        cover_rare=found.cover_rare,
        cover_new=found.cover_new,
        cover_text=found.cover_text,
        n_window=max([len(window.found_in) for window in windows], default=0),
        lost=found.lost,
        foreign_numbers=_count_foreign(runs.numbers, lost, text, elsewhere) if runs.numbers and lost else 0.0,
        foreign_names=_count_foreign(runs.names, lost, text, elsewhere) if runs.names and lost else 0.0,
        replaced=against.replaced,
        rivals=against.rivals,
        opposites=against.opposites,
        negation_mismatch=find_negation_mismatch(windows, claim.statement.surfaces),
    )


def _is_foreign(claim: Claim, text: AnalysedText) -> bool:
    """Whether a statement of some length shares so little with a text that no window of it is worth a look."""
    if len(claim.weights) <= _FEW_KEYS:
        return False
    places = text.places
    return sum([w for key, w in claim.weights.items() if key in places]) < _FOREIGN_SHARE * claim.total


def _find_keys(claim: Claim, windows: Sequence[Window], text: AnalysedText) -> _Found:
    """What the windows hold of a claim: each key as 1, or as the closeness of what the text has instead."""
    held = frozenset().union(*[window.sentence.keys & window.keys for window in windows])
    places, rarities, given = text.places, text.rarities, claim.given
    cover = cover_rare = cover_new = cover_text = total_rare = total_new = 0.0
    faint: set[str] = set()
    for key, weight in claim.weights.items():
        if key in places:
            hit = weight if key in held else 0.0
            cover_text += weight
            rarity = rarities[key]
        else:
            hit = weight * _rate_absent(key, claim, text) if weight > 0.1 else 0.0
            cover_text += hit
            rarity = 1.0
        if hit < _NEAR_ENOUGH * weight:
            faint.add(key)
        cover += hit
        cover_rare += hit * rarity
        total_rare += weight * rarity
        if key not in given:
            cover_new += hit
            total_new += weight
    total = claim.total or 1.0
    return _Found(
        cover=cover / total,
        cover_rare=cover_rare / (total_rare or 1.0),
        cover_new=cover_new / total_new if total_new else cover / total,
        cover_text=cover_text / total,
        lost=tuple([key for key in claim.content if key in faint]),
    )


def _rate_absent(key: str, claim: Claim, text: AnalysedText) -> float:
    """How close a text comes to a key that it does not hold."""
    near = text.near.get(key)
    if near is None:
        near = text.near[key] = _find_near(key, claim.statement.surfaces[key], text)
    acronyms = claim.statement.runs.acronyms
    return max(near, _VARIANT) if acronyms and acronyms.get(key) in text.acronyms else near


def _count_foreign(
    runs: Sequence[frozenset[str]], lost: frozenset[str], text: AnalysedText, elsewhere: frozenset[str]
) -> float:
    """The runs that hold a lost key which the text has nowhere; less for one whose keys stand elsewhere."""
    n_foreign = 0.0
    for run in runs:
        foreign = [key for key in run if key in lost and key not in text.places]
        if foreign:
            n_foreign += _ELSEWHERE if elsewhere.issuperset(foreign) else 1.0
    return n_foreign


def _is_given(key: str, question: AnalysedText) -> bool:
    """Whether the question already says it; a pair of Chinese characters also when it has both apart."""
    if key in question.keys:
        return True
    return not key.isascii() and len(key) == 2 and key[0] in question.text and key[1] in question.text


def _lighten(weights: Mapping[str, float], given: frozenset[str], share: float) -> Mapping[str, float]:
    if share == 1.0 or not given or sum([w for key, w in weights.items() if key not in given]) < 0.5:
        return weights
    return {key: weight * share if key in given else weight for key, weight in weights.items()}
