"""What in a text speaks against a statement that it resembles: an opposite, a negation on one side only, another
number, unit or bound, another word or name between the same neighbours, and the same words in exchanged places. All of
it is looked for in the window that `match` found, and most within one clause of it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Concatenate, ParamSpec, TypeVar

from evalhouse.tasks.lexical.split import (
    ANTONYMS,
    CHINESE_ANTONYMS,
    CHINESE_STOP_CHARACTERS,
    NEGATIVE_PREFIXES,
    read_pattern,
    read_words,
    stem_word,
)
from evalhouse.tasks.lexical.texts import CONTENT_WEIGHT, Sentence, Token, read_sentence, split_clauses

P = ParamSpec("P")
T = TypeVar("T")
NO_KEYS: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The neighbouring sentences of a text that match one sentence of a statement best."""

    sentence: Sentence
    sentences: tuple[Sentence, ...]
    keys: frozenset[str]


# Negation and opposites


def find_in_all(
    find: Callable[Concatenate[Window, P], Sequence[T]], windows: Sequence[Window], *args: P.args, **kwargs: P.kwargs
) -> tuple[T, ...]:
    """What one of the functions below finds in all windows of a claim."""
    return tuple([item for window in windows for item in find(window, *args, **kwargs)])


def find_negation_mismatch(windows: Sequence[Window], surfaces: Mapping[str, str]) -> tuple[str, ...]:
    """Shared words that are negated in the claim and nowhere in its window, or in what the window says of them only."""
    mismatch: list[str] = []
    for window in windows:
        sentence = window.sentence
        denials = [denial for other in window.sentences if other.denials for denial in other.denials]
        if not denials and not sentence.denials:
            continue
        theirs = frozenset([key for denial in denials for key in denial])
        keys = _find_denied(sentence.denials, theirs, window.keys)
        if denials:
            shares = [sum([sentence.weights[key] for key in other.keys & sentence.keys]) for other in window.sentences]
            for other, share in zip(window.sentences, shares, strict=True):
                if share >= max(shares) - _ROUNDING:
                    keys |= _find_denied(other.denials, sentence.negated, sentence.keys)
            plain = frozenset().union(*[other.keys - other.negated for other in window.sentences])
            keys |= _find_denied(denials, sentence.negated, sentence.keys) - plain
        mismatch += sorted([surfaces[key] for key in keys if key in surfaces])
    return tuple(mismatch)


def _find_denied(denials: Iterable[Sequence[str]], negated: frozenset[str], keys: frozenset[str]) -> set[str]:
    """What one side denies and the other, which holds `keys` and negates `negated`, just says."""
    denied: set[str] = set()
    for denial in denials:
        if negated.isdisjoint(denial):
            # A Chinese noun may stand far behind what describes it; the English word that is denied comes first.
            denied |= keys.intersection(denial[:1] if denial[0].isascii() else denial)
    return denied


@lru_cache(maxsize=4096)
def _opposites_of(key: str) -> frozenset[str]:
    others = ANTONYMS.get(key) or CHINESE_ANTONYMS.get(key) or NO_KEYS
    if key.isascii() and len(key) > 4:
        longer = {prefix + key for prefix in NEGATIVE_PREFIXES}
        shorter = {key[len(p) :] for p in NEGATIVE_PREFIXES if key.startswith(p) and len(key) > len(p) + 3}
        return others | longer | shorter
    return others


def find_opposites(window: Window, surfaces: Mapping[str, str]) -> list[str]:
    """`word/opposite` for each word of the sentence that the window lacks while it holds an opposite.

    A word and its opposite of which one side negates its own say the same.
    """
    opposites: list[str] = []
    for key in window.sentence.keys - window.keys:
        others = _opposites_of(key)
        if others.isdisjoint(window.keys):
            continue
        denied = key in window.sentence.negated
        negated = frozenset().union(*[sentence.negated for sentence in window.sentences])
        others = frozenset([o for o in others & window.keys - window.sentence.keys if (o in negated) == denied])
        opposites.extend(f"{surfaces[key]}/{other}" for other in sorted(others)[:1])
    return sorted(opposites)


_HEDGED = re.compile(read_pattern("hedged"), re.IGNORECASE)
_HEDGES = re.compile(read_pattern("hedges"), re.IGNORECASE)


def find_hedged(window: Window) -> list[str]:
    """What the statement says for certain and the window only as possible: `causes` where it `may cause`."""
    possible = {key: word for sentence in window.sentences for key, word in _read_hedged(sentence.text).items()}
    if not possible or _HEDGES.search(window.sentence.text):
        return []
    certain = [key for sentence in window.sentences if not _read_hedged(sentence.text) for key in sentence.keys]
    return [
        f"{word}/may {word}" for key, word in possible.items() if key in window.sentence.keys and key not in certain
    ]


@lru_cache(maxsize=4096)
def _read_hedged(text: str) -> dict[str, str]:
    """Key to word of what a sentence says as possible only."""
    words = [match[1] or match[2] for match in _HEDGED.finditer(text)]
    return {stem_word(word.lower()): word for word in words}


# Numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class _NumberPlace:
    """A number with its unit and bound, and the keys of the words beside it, all empty where there is none.

    `sort` is o for an ordinal, m for a month, % or nothing; `bound` is > for a least and < for a most.
    """

    key: str
    surface: str
    sort: str
    before: str
    after: str
    unit: str
    bound: str

    @property
    def value(self) -> str:
        return self.key.rstrip("%")

    @property
    def neighbours(self) -> frozenset[str]:
        """The key before it and the key after it, told apart; a month stands on either side of its day."""
        beside = ((self.before, "<"), (self.after, ">"))
        return frozenset([key if key[:2] == "#m" else key + side for key, side in beside if key])


_BOUND_REACH = 4  # tokens before a number among which its bound stands


def _read_sides(sentence: Sentence) -> list[_NumberPlace]:
    tokens = [token for token in sentence.tokens if token.kind not in ("unit", "bound")]
    keys = ["", *[token.key for token in tokens], ""]
    measures = _read_measures(sentence.tokens)
    numbers = [place for place, token in enumerate(tokens) if token.kind == "number"]
    return [
        _NumberPlace(
            key=tokens[place].key,
            surface=tokens[place].surface,
            sort=_sort_number(tokens[place].key),
            before=keys[place],
            after=keys[place + 2],
            unit="%" if tokens[place].key[-1] == "%" else unit,
            bound=bound,
        )
        for place, (unit, bound) in zip(numbers, measures, strict=True)
    ]


def _sort_number(key: str) -> str:
    return key[1] if key[1] in "om" else key[-1] if key[-1] == "%" else ""


def _read_measures(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """The unit after each number and the bound shortly before it."""
    measures: list[tuple[str, str]] = []
    for place, token in enumerate(tokens):
        if token.kind != "number":
            continue
        after = tokens[place + 1] if place + 1 < len(tokens) else token
        bound = ""
        for earlier in reversed(tokens[max(0, place - _BOUND_REACH) : place]):
            if earlier.kind == "bound":
                bound = earlier.key
            if earlier.kind in ("number", "bound"):
                break
        measures.append((after.key if after.kind == "unit" else "", bound))
    return measures


def find_rivals(window: Window, lost: frozenset[str]) -> list[str]:
    """`number/other` for each lost number where, before or after the same word, the window has another number."""
    sentence = window.sentence
    if not any(key[0] == "#" and key in lost for key in sentence.weights):
        return []
    ours = [number for number in _read_sides(sentence) if number.key in lost]
    numbers = [number for other in window.sentences for number in _read_sides(other)]
    theirs = [number for number in numbers if number.key not in sentence.keys]
    rivals: dict[str, str] = {}
    for number in ours:
        for other in theirs:
            if number.sort == other.sort and not number.neighbours.isdisjoint(other.neighbours):
                rivals.setdefault(number.surface, other.surface)
    return [f"{surface}/{other}" for surface, other in rivals.items()]


def find_measures(window: Window) -> list[str]:
    """Numbers that both sides hold, but the window only with another unit, or as a most where they are a least."""
    if not any(token.kind in _MEASURES or token.key[-1] == "%" for token in window.sentence.tokens):
        return []
    values = frozenset([key.rstrip("%") for key in window.keys if key[0] == "#"])
    ours = [number for number in _read_sides(window.sentence) if number.value in values]
    ours = [number for number in ours if number.unit or number.bound]
    if not ours:
        return []
    theirs = [number for other in window.sentences for number in _read_sides(other)]
    found: list[str] = []
    for number in ours:
        same = [other for other in theirs if other.value == number.value]
        if same and all(
            (
                bool(number.unit and other.unit)
                and set(number.unit.lstrip("@").split("|")).isdisjoint(other.unit.lstrip("@").split("|"))
            )
            for other in same
        ):
            found.append(f"{number.surface} {_show_unit(number.unit)}/{_show_unit(same[0].unit)}")
        elif same and all({number.bound, other.bound} == {"<", ">"} for other in same):
            found.append(f"{number.bound}{number.surface}/{same[0].bound}{same[0].surface}")
    return found


_MEASURES = ("unit", "bound")


def _show_unit(unit: str) -> str:
    return unit.lstrip("@").replace("|", " or ")


# Words and names in the place of others


def find_replaced(window: Window, lost: frozenset[str]) -> list[str]:
    """`word/other` for each lost word in whose place, between the same neighbours, the window has another word."""
    tokens = _list_content(window.sentence)
    contents = [_list_content(sentence) for sentence in window.sentences]
    replaced: list[str] = []
    for left, middle, right in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if middle.key not in lost or left.key not in window.keys or right.key not in window.keys:
            continue
        for other in _between(left.key, right.key, contents):
            if other.key not in window.sentence.keys:
                replaced.append(f"{middle.surface}/{other.surface}")
                break
    return replaced


def _list_content(sentence: Sentence) -> list[Token]:
    return [token for token in sentence.tokens if token.weight >= CONTENT_WEIGHT]


def _between(left: str, right: str, contents: Iterable[list[Token]]) -> Iterator[Token]:
    for tokens in contents:
        for first, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False):
            if first.key == left and third.key == right:
                yield second


def _read_clauses(sentence: Sentence) -> Sequence[Sentence]:
    parts = split_clauses(sentence.text)
    if len(parts) == 1:
        return (sentence,)
    return [clause for clause in map(_read_clause, parts) if clause.tokens]


_read_clause = lru_cache(maxsize=4096)(read_sentence)


_AUXILIARIES = CHINESE_STOP_CHARACTERS.union(*read_words("chinese_auxiliaries"))
_LONGEST_SLOT = 3  # words; pairs of Chinese characters may be twice as many
_ROUNDING = 1e-9
_WITHIN = 0.8  # of a clause that is in a statement which says all the clause says
_CLAUSE_SHARE = 0.5  # of the statement that a clause must hold to be the one the statement is about
_LARGEST_RUN = 0.5  # of the statement that stands in the place of something else: the rest must be the same


@dataclass(frozen=True, kw_only=True, slots=True)
class Substitution:
    """Words of a statement and those which stand in their place; `decisive` when they are names, or Chinese."""

    pair: str
    decisive: bool


def find_substituted(window: Window, near: frozenset[str], given: frozenset[str]) -> list[Substitution]:
    """For each run of the statement in whose place the clause that is about the same has other words.

    A run stands between words that both have, or at an end. `near` are keys that the text has in another form, `given`
    those of the question, which are no news unless the window has them elsewhere.
    """
    sentence = window.sentence
    if sentence.keys <= window.keys and _stands_in_one_clause(window):
        return []
    clauses = [clause for other in window.sentences for clause in _read_clauses(other)]
    if max([_share(sentence, clause) for clause in clauses], default=0.0) < _CLAUSE_SHARE * sentence.total:
        clauses = list(window.sentences)  # what is said in brackets or between commas
    shares = [_share(sentence, clause) for clause in clauses]
    least = max([*shares, _CLAUSE_SHARE * sentence.total]) - _ROUNDING
    # A clause that says nothing beyond the statement may go on with the subject of another.
    going_on = [
        frozenset(clause.keys) for clause, share in zip(clauses, shares, strict=True) if share >= _WITHIN * clause.total
    ]
    passed = [near | (given - window.keys), *going_on]
    return [
        found
        for clause, share in zip(clauses, shares, strict=True)
        if share >= least
        for found in _compare_places(sentence, clause, passed)
    ]


def _stands_in_one_clause(window: Window) -> bool:
    """Whether a clause has all words of the sentence as they are written there, which is quickly seen."""
    surfaces = [token.surface for token in window.sentence.tokens if token.kind not in ("bound", "unit")]
    clauses = [clause for sentence in window.sentences for clause in split_clauses(sentence.text)]
    return any(all(surface in clause for surface in surfaces) for clause in clauses)


def _share(sentence: Sentence, clause: Sentence) -> float:
    """The weight of what a clause holds of a sentence."""
    return sum([weight for key, weight in sentence.weights.items() if key in clause.keys])


def _compare_places(sentence: Sentence, clause: Sentence, passed: Sequence[frozenset[str]]) -> Iterator[Substitution]:
    ours, theirs = _list_places(sentence), _list_places(clause)
    shared = sentence.keys & clause.keys
    turned = _tell_voice(sentence.text) != _tell_voice(clause.text)
    for start, end in _find_runs(ours, shared):
        run = ours[start:end]
        left = ours[start - 1].key if start else ""
        right = ours[end].key if end < len(ours) else ""
        keys = [token.key for token in run]
        if not all(other.isdisjoint(keys) for other in passed) or not _is_news(run, left, right):
            continue
        if sum([token.weight for token in run]) > _LARGEST_RUN * sentence.total:
            continue
        if turned and not (left and right):  # who does it stands before the verb here and behind it there
            left, right = right, left
        n = len(theirs) if left and right else len(run)
        other = _find_slot(theirs, left, right, n, shared)
        if other and _is_news(other, left, right) and _are_alike(run, other):
            yield Substitution(pair=f"{_show(run)}/{_show(other)}", decisive=_is_decisive(run, other))


def _is_decisive(run: Sequence[Token], other: Sequence[Token]) -> bool:
    """Whether both are Chinese, numbers, or names; the first word of a sentence may be a name too."""
    if all(token.kind in ("chinese", "number") for token in run):
        return True
    return all(token.surface[0].isupper() for token in run) and any(token.surface[0].isupper() for token in other)


def _list_places(sentence: Sentence) -> list[Token]:
    return [token for token in sentence.tokens if token.weight >= CONTENT_WEIGHT or token.kind == "chinese"]


def _find_runs(tokens: Sequence[Token], shared: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Start and end of each longest run of tokens that are not shared."""
    start = 0
    for end in range(len(tokens) + 1):
        if end == len(tokens) or tokens[end].key in shared:
            if end > start:
                yield start, end
            start = end + 1


def _is_news(run: Sequence[Token], left: str, right: str) -> bool:
    """Whether a run says something: of Chinese, more than the joint of two words that are shared."""
    if all(token.kind == "chinese" for token in run):
        return len(run) > (bool(left) and bool(right)) and any(token.weight >= CONTENT_WEIGHT for token in run)
    return True


def _are_alike(run: Sequence[Token], other: Sequence[Token]) -> bool:
    """Whether a number stands in the place of a number of its sort, or words in that of words.

    Chinese that holds the other, but for auxiliaries, only says it in more words.
    """
    sorts = [
        {_sort_number(token.key) if token.kind == "number" else None for token in tokens} for tokens in (run, other)
    ]
    if sorts[0] != {None} or sorts[1] != {None}:
        return sorts[0] == sorts[1]
    shown = [set(_show(tokens)) - _AUXILIARIES for tokens in (run, other)]
    return run[0].kind != "chinese" or not (shown[0] <= shown[1] or shown[1] <= shown[0])


def _find_slot(tokens: Sequence[Token], left: str, right: str, n: int, shared: frozenset[str]) -> Sequence[Token]:
    """What stands between two keys, an empty one of which is an end of the clause; nothing where a shared key does.

    Of what stands at an end the `n` tokens beside the other key.
    """
    keys = [token.key for token in tokens]
    if not (left or right) or (left and left not in keys) or (right and right not in keys):
        return ()
    start = keys.index(left) + 1 if left else 0
    if right and right not in keys[start:]:
        return ()
    end = keys.index(right, start) if right else len(keys)
    between = tokens[start:end]
    longest = _LONGEST_SLOT * (2 if between and between[0].kind == "chinese" else 1)
    if any(token.key in shared for token in between) or (len(between) > longest and left and right):
        return ()
    return between[:n] if left else between[-n:]


def _show(run: Sequence[Token]) -> str:
    if all(token.kind == "chinese" for token in run):
        return run[0].surface + "".join([token.surface[-1] for token in run[1:]])
    return " ".join([token.surface for token in run])


# Exchanged places


def find_exchanged(window: Window) -> list[str]:
    """`one/other` for two numbers whose words have changed places, or two names that stand around a word."""
    sentence, found = window.sentence, list[str]()
    many = len([key for key in sentence.keys & window.keys if key[0] == "#"]) > 1
    turns = _turns(sentence.text)
    for other in window.sentences if many or turns else ():
        ours, theirs = _place_once(sentence), _place_once(other)
        shared = [key for key in ours if key in theirs]
        if many:
            units = {number.key: number.unit for number in _read_sides(sentence) if number.key in theirs}
            found += _find_crossed(units, shared, theirs)
        if turns and _turns(other.text) and _tell_voice(sentence.text) == _tell_voice(other.text):
            # Names, and all that is Chinese, where nothing shows a name.
            names = frozenset(
                [token.key for token in (*sentence.tokens, *other.tokens) if token.kind in ("name", "chinese")]
            )
            found += _find_turned([key for key in shared if key[0] not in "#@<>"], theirs, names)
            found += _find_moved(sentence.text, other.text)
    return found


def _place_once(sentence: Sentence) -> dict[str, int]:
    """The keys of content that stand once in a sentence, in order, and where."""
    keys = [token.key for token in sentence.tokens if token.weight >= CONTENT_WEIGHT]
    places = {key: place for place, key in enumerate(keys)}
    return places if len(places) == len(keys) else {key: place for key, place in places.items() if keys.count(key) == 1}


def _find_crossed(units: Mapping[str, str], shared: Sequence[str], theirs: Mapping[str, int]) -> list[str]:
    """Numbers of one unit and words that alternate on both sides, but for the most part not with the same partners."""
    balance = 0
    numbers = [key for key in shared if key[0] == "#"]
    for i, first in enumerate(numbers):
        for second in numbers[i + 1 :]:
            if units[first] != units[second]:
                continue
            start, end = shared.index(first), shared.index(second)
            middle = [key for key in shared[start + 1 : end] if _may_anchor(key, first)]
            for after, outer in ((False, shared[:start]), (True, shared[end + 1 :])):
                others = [key for key in outer if _may_anchor(key, first)]
                balance += sum([_compare_order((first, second), x, y, after, theirs) for x in middle for y in others])
    return [f"{numbers[0][1:]}/{numbers[1][1:]}"] if balance < 0 else []


def _may_anchor(key: str, number: str) -> bool:
    return key[0] not in "#@<>" or (key[:2] == "#m" and number[:2] != "#m")


def _compare_order(numbers: tuple[str, str], inner: str, outer: str, after: bool, theirs: Mapping[str, int]) -> int:
    """1 where two numbers and two words alternate in the text with the same partners, -1 with others, 0 otherwise.

    In the statement `inner` stands between the numbers, `outer` beyond the second (`after`) or before the first.
    """
    first, second, x, y = theirs[numbers[0]], theirs[numbers[1]], theirs[inner], theirs[outer]
    low, high = (first, second) if first < second else (second, first)
    if (low < x < high) == (low < y < high) or (inner[0] == "#") != (outer[0] == "#"):
        return 0
    return 1 if ((first < second) == (x < y)) == after else -1


_TURNING = re.compile(read_pattern("turning_words"))
_MOVED = re.compile(r"\bfrom (?P<start>[A-Z]\w+)\b.{0,300}? to (?P<end>[A-Z]\w+)\b")
_PASSIVE = re.compile(r"\bby\b|[被受]")


@lru_cache(maxsize=4096)
def _turns(text: str) -> bool:
    return _TURNING.search(text) is not None


def _tell_voice(text: str) -> bool:
    return _PASSIVE.search(text) is not None


def _find_turned(words: Sequence[str], theirs: Mapping[str, int], names: frozenset[str]) -> list[str]:
    """Two names of which one stands before a word here and after it there, and the other the other way round."""
    for place in range(1, len(words) - 1):
        middle = theirs[words[place]]
        left = [key for key in words[max(0, place - _AROUND) : place] if key in names and theirs[key] > middle]
        right = [key for key in words[place + 1 : place + 1 + _AROUND] if key in names and theirs[key] < middle]
        if left and right:
            return [f"{left[0]}/{right[0]}"]
    return []


_AROUND = 6  # words to either side of one among which such names stand


def _find_moved(ours: str, theirs: str) -> list[str]:
    """Two names of which one text goes from the first to the second, and the other back."""
    forth, back = _MOVED.search(ours), _MOVED.search(theirs)
    if forth is None or back is None or forth["start"] != back["end"] or forth["end"] != back["start"]:
        return []
    return [f"{forth['start']}/{forth['end']}"]
