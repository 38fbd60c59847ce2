"""Signs that a text contradicts a statement which it resembles: an opposite, a negation on one side only, another
number, unit or bound, another word or name between the same neighbours, and the same words in exchanged places. All of
them are looked for in the window that `match` found, and most within one clause of it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

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

NO_KEYS: frozenset[str] = frozenset()
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The neighbouring sentences of a text that match one sentence of a statement best."""

    sentence: Sentence
    sentences: tuple[Sentence, ...]
    keys: frozenset[str]


# Negation and opposites


def find_negation_mismatch(windows: Sequence[Window], surfaces: Mapping[str, str]) -> tuple[str, ...]:
    """Return the shared words that the claim negates and its window affirms, or the other way round."""

    def list_denied(denials: Sequence[Sequence[str]], negated: frozenset[str], keys: frozenset[str]) -> set[str]:
        """Return what one side denies and the other, which has `keys` and negates `negated`, affirms."""
        denied: set[str] = set()
        for denial in denials:
            if negated.isdisjoint(denial):
                # A Chinese noun may be far behind what describes it; the English word that is denied comes first.
                denied |= keys.intersection(denial[:1] if denial[0].isascii() else denial)
        return denied

    mismatch: list[str] = []
    for window in windows:
        sentence = window.sentence
        denials = [denial for other in window.sentences if other.denials for denial in other.denials]
        if not denials and not sentence.denials:
            continue
        keys = list_denied(sentence.denials, frozenset([key for denial in denials for key in denial]), window.keys)
        if denials:
            shares = [sum([sentence.weights[key] for key in other.keys & sentence.keys]) for other in window.sentences]
            for other, share in zip(window.sentences, shares, strict=True):
                if share >= max(shares) - _ROUNDING:
                    keys |= list_denied(other.denials, sentence.negated, sentence.keys)
            affirmed = frozenset().union(*[other.keys - other.negated for other in window.sentences])
            keys |= list_denied(denials, sentence.negated, sentence.keys) - affirmed
        mismatch += sorted([surfaces[key] for key in keys if key in surfaces])
    return tuple(mismatch)


@lru_cache(maxsize=4096)
def list_opposites(key: str) -> frozenset[str]:
    """Return the keys of the opposites of a word, with and without a negative prefix."""
    opposites = ANTONYMS.get(key) or CHINESE_ANTONYMS.get(key) or NO_KEYS
    if not key.isascii() or len(key) <= 4:
        return opposites
    longer = {prefix + key for prefix in NEGATIVE_PREFIXES}
    shorter = {key[len(p) :] for p in NEGATIVE_PREFIXES if key.startswith(p) and len(key) > len(p) + 3}
    return opposites | longer | shorter


def find_opposites(window: Window, surfaces: Mapping[str, str]) -> list[str]:
    """Return `word/opposite` for each word of the sentence that the window lacks while it has an opposite.

    A word and its opposite mean the same where one side negates its word.
    """
    pairs: list[str] = []
    for key in window.sentence.keys - window.keys:
        opposites = list_opposites(key)
        if opposites.isdisjoint(window.keys):
            continue
        is_denied = key in window.sentence.negated
        negated = frozenset().union(*[sentence.negated for sentence in window.sentences])
        candidates = opposites & window.keys - window.sentence.keys
        opposing = sorted([other for other in candidates if (other in negated) == is_denied])
        pairs += [f"{surfaces[key]}/{other}" for other in opposing[:1]]
    return sorted(pairs)


_HEDGED = re.compile(read_pattern("hedged"), re.IGNORECASE)
_HEDGES = re.compile(read_pattern("hedges"), re.IGNORECASE)


@lru_cache(maxsize=4096)
def read_hedged(text: str) -> dict[str, str]:
    """Return the words that a sentence states as possible only, by key."""
    words = [match[1] or match[2] for match in _HEDGED.finditer(text)]
    return {stem_word(word.lower()): word for word in words}


def find_hedged(window: Window) -> list[str]:
    """Return what the statement has for certain and the window only as possible: `causes` where it `may cause`."""
    possible = {key: word for sentence in window.sentences for key, word in read_hedged(sentence.text).items()}
    if not possible or _HEDGES.search(window.sentence.text):
        return []
    certain = [key for sentence in window.sentences if not read_hedged(sentence.text) for key in sentence.keys]
    return [
        f"{word}/may {word}" for key, word in possible.items() if key in window.sentence.keys and key not in certain
    ]


# Numbers

_BOUND_REACH = 4  # tokens before a number among which its bound is
_MEASURES = ("unit", "bound")


@dataclass(frozen=True, kw_only=True, slots=True)
class _NumberPlace:
    """A number with its unit and bound, "" for none.

    `sort` is o for an ordinal, m for a month, % or nothing; `bound` is > for a lower bound and < for an upper one.
    `value` is the key without a percent sign, `neighbours` the keys before and after it, marked with their side; a
    month may be on either side of its day.
    """

    key: str
    surface: str
    sort: str
    value: str
    neighbours: frozenset[str]
    unit: str
    bound: str


def _sort_number(key: str) -> str:
    return key[1] if key[1] in "om" else key[-1] if key[-1] == "%" else ""


def _list_numbers(sentence: Sentence) -> list[_NumberPlace]:
    """Return the numbers of a sentence with what is beside them."""
    tokens = [token for token in sentence.tokens if token.kind not in _MEASURES]
    keys = ["", *[token.key for token in tokens], ""]
    places = iter([place for place, token in enumerate(tokens) if token.kind == "number"])
    numbers: list[_NumberPlace] = []
    for position, token in enumerate(sentence.tokens):
        if token.kind != "number":
            continue
        following = sentence.tokens[position + 1 : position + 2]
        unit = following[0].key if following and following[0].kind == "unit" else ""
        bound = ""
        for earlier in reversed(sentence.tokens[max(0, position - _BOUND_REACH) : position]):
            if earlier.kind == "bound":
                bound = earlier.key
            if earlier.kind in ("number", "bound"):
                break
        place = next(places)
        beside = ((keys[place], "<"), (keys[place + 2], ">"))
        numbers.append(
            _NumberPlace(
                key=token.key,
                surface=token.surface,
                sort=_sort_number(token.key),
                value=token.key.rstrip("%"),
                neighbours=frozenset([key if key[:2] == "#m" else key + side for key, side in beside if key]),
                unit="%" if token.key[-1] == "%" else unit,
                bound=bound,
            )
        )
    return numbers


def find_rivals(window: Window, lost: frozenset[str]) -> list[str]:
    """Return `number/other` for each lost number where, beside the same word, the window has another number."""
    sentence = window.sentence
    if not any(key[0] == "#" and key in lost for key in sentence.weights):
        return []
    ours = [number for number in _list_numbers(sentence) if number.key in lost]
    numbers = [number for other in window.sentences for number in _list_numbers(other)]
    theirs = [number for number in numbers if number.key not in sentence.keys]
    rivals: dict[str, str] = {}
    for number in ours:
        for other in theirs:
            if number.sort == other.sort and not number.neighbours.isdisjoint(other.neighbours):
                rivals.setdefault(number.surface, other.surface)
    return [f"{surface}/{other}" for surface, other in rivals.items()]


def find_measures(window: Window) -> list[str]:
    """Return the numbers that both sides have, but the window only with another unit or the opposite bound."""
    if not any(token.kind in _MEASURES or token.key[-1] == "%" for token in window.sentence.tokens):
        return []
    values = frozenset([key.rstrip("%") for key in window.keys if key[0] == "#"])
    ours = [number for number in _list_numbers(window.sentence) if number.value in values]
    ours = [number for number in ours if number.unit or number.bound]
    if not ours:
        return []
    theirs = [number for other in window.sentences for number in _list_numbers(other)]
    measures: list[str] = []
    for number in ours:
        same = [other for other in theirs if other.value == number.value]
        if not same:
            continue
        # A unit of several meanings, such as `@gbp|lb`, differs only if it shares none of them.
        units = [other.unit.lstrip("@").split("|") for other in same]
        our_units = number.unit.lstrip("@").split("|")
        if number.unit and all(other.unit for other in same) and all(set(our_units).isdisjoint(unit) for unit in units):
            measures.append(f"{number.surface} {' or '.join(our_units)}/{' or '.join(units[0])}")
        elif all({number.bound, other.bound} == {"<", ">"} for other in same):
            measures.append(f"{number.bound}{number.surface}/{same[0].bound}{same[0].surface}")
    return measures


# Words and names in the place of others


def find_replaced(window: Window, lost: frozenset[str]) -> list[str]:
    """Return `word/other` for each lost word where the window has another word between the same neighbours."""
    ours, *theirs = [
        [token for token in sentence.tokens if token.weight >= CONTENT_WEIGHT]
        for sentence in (window.sentence, *window.sentences)
    ]
    replaced: list[str] = []
    for left, middle, right in zip(ours, ours[1:], ours[2:], strict=False):
        if middle.key not in lost or left.key not in window.keys or right.key not in window.keys:
            continue
        others = [
            second
            for tokens in theirs
            for first, second, third in zip(tokens, tokens[1:], tokens[2:], strict=False)
            if first.key == left.key and third.key == right.key and second.key not in window.sentence.keys
        ]
        replaced += [f"{middle.surface}/{other.surface}" for other in others[:1]]
    return replaced


_AUXILIARIES = CHINESE_STOP_CHARACTERS.union(*read_words("chinese_auxiliaries"))
_MAX_SLOT = 3  # words; pairs of Chinese characters may be twice as many
_WITHIN = 0.8  # of a clause that is in a statement which contains the whole clause
_CLAUSE_SHARE = 0.5  # of the statement that a clause must have to be the one the statement is about
_MAX_RUN = 0.5  # of the statement that is in the place of something else: the rest must be the same


@dataclass(frozen=True, kw_only=True, slots=True)
class Substitution:
    """Words of a statement and the ones in their place; `decisive` when they are names, or Chinese."""

    pair: str
    decisive: bool


_read_clause = lru_cache(maxsize=4096)(read_sentence)


def find_substituted(window: Window, near: frozenset[str], given: frozenset[str]) -> list[Substitution]:
    """Return each run of the statement in whose place the clause about the same has other words.

    A run is between words that both have, or at an end. `near` are keys that the text has in another form, `given` the
    keys of the question, which are not new unless the window has them elsewhere.
    """
    sentence = window.sentence
    parts = [split_clauses(other.text) for other in window.sentences]
    if sentence.keys <= window.keys:
        # A clause that has all words exactly as spelled here substitutes none, which is quickly seen.
        surfaces = [token.surface for token in sentence.tokens if token.kind not in _MEASURES]
        if any(all(surface in clause for surface in surfaces) for clauses in parts for clause in clauses):
            return []
    clauses: list[Sentence] = []
    for other, texts in zip(window.sentences, parts, strict=True):
        read = [other] if len(texts) == 1 else [clause for clause in map(_read_clause, texts) if clause.tokens]
        clauses += read
    shares = [_share(sentence, clause) for clause in clauses]
    if max(shares, default=0.0) < _CLAUSE_SHARE * sentence.total:  # its words are in brackets or between commas
        clauses = list(window.sentences)
        shares = [_share(sentence, clause) for clause in clauses]
    min_share = max([*shares, _CLAUSE_SHARE * sentence.total]) - _ROUNDING
    # A clause that adds nothing to the statement may continue with the subject of another.
    contained = [
        frozenset(clause.keys) for clause, share in zip(clauses, shares, strict=True) if share >= _WITHIN * clause.total
    ]
    passed = [near | (given - window.keys), *contained]
    return [
        substitution
        for clause, share in zip(clauses, shares, strict=True)
        if share >= min_share
        for substitution in _compare_places(sentence, clause, passed)
    ]


def _share(sentence: Sentence, clause: Sentence) -> float:
    """Return the weight of the words of a sentence that a clause has."""
    return sum([weight for key, weight in sentence.weights.items() if key in clause.keys])


def _compare_places(sentence: Sentence, clause: Sentence, passed: Sequence[frozenset[str]]) -> Iterator[Substitution]:
    """Yield the runs of a sentence's tokens that a clause does not share, with what it has in their place."""
    ours, theirs = (
        [token for token in side.tokens if token.weight >= CONTENT_WEIGHT or token.kind == "chinese"]
        for side in (sentence, clause)
    )
    shared = sentence.keys & clause.keys
    is_turned = _is_passive(sentence.text) != _is_passive(clause.text)
    start = 0
    for end in range(len(ours) + 1):
        if end < len(ours) and ours[end].key not in shared:
            continue
        begin, start = start, end + 1
        run = ours[begin:end]
        left = ours[begin - 1].key if begin else ""
        right = ours[end].key if end < len(ours) else ""
        keys = [token.key for token in run]
        if not run or not all(other.isdisjoint(keys) for other in passed) or not _is_news(run, left, right):
            continue
        if sum([token.weight for token in run]) > _MAX_RUN * sentence.total:
            continue
        if is_turned and not (left and right):  # the subject is before the verb here and behind it there
            left, right = right, left
        other = _find_slot(theirs, left, right, len(theirs) if left and right else len(run), shared)
        if not other or not _is_news(other, left, right):
            continue
        # A number must replace a number of its sort, and words words. Chinese that has the other, but for auxiliaries,
        # only uses more words.
        sorts = [
            {_sort_number(token.key) if token.kind == "number" else None for token in tokens} for tokens in (run, other)
        ]
        shown, other_shown = (set(_show(tokens)) - _AUXILIARIES for tokens in (run, other))
        if sorts[0] != sorts[1] or (
            sorts[0] == {None} and run[0].kind == "chinese" and (shown <= other_shown or other_shown <= shown)
        ):
            continue
        # Decisive are Chinese, numbers, and names; the first word of a sentence may be a name too.
        are_exact = all(token.kind in ("chinese", "number") for token in run)
        are_names = all(token.surface[0].isupper() for token in run) and any(
            token.surface[0].isupper() for token in other
        )
        yield Substitution(pair=f"{_show(run)}/{_show(other)}", decisive=are_exact or are_names)


def _is_news(run: Sequence[Token], left: str, right: str) -> bool:
    """Return True if a run states something: of Chinese, more than the joint of two words that are shared."""
    if all(token.kind == "chinese" for token in run):
        return len(run) > (bool(left) and bool(right)) and any(token.weight >= CONTENT_WEIGHT for token in run)
    return True


def _find_slot(tokens: Sequence[Token], left: str, right: str, n: int, shared: frozenset[str]) -> Sequence[Token]:
    """Return the tokens between two keys, an empty one of which is an end of the clause; none if one is shared.

    At an end it is the `n` tokens beside the other key.
    """
    keys = [token.key for token in tokens]
    if not (left or right) or (left and left not in keys) or (right and right not in keys):
        return ()
    start = keys.index(left) + 1 if left else 0
    if right and right not in keys[start:]:
        return ()
    between = tokens[start : keys.index(right, start) if right else len(keys)]
    max_slot = _MAX_SLOT * (2 if between and between[0].kind == "chinese" else 1)
    if any(token.key in shared for token in between) or (len(between) > max_slot and left and right):
        return ()
    return between[:n] if left else between[-n:]


def _show(run: Sequence[Token]) -> str:
    if all(token.kind == "chinese" for token in run):
        return run[0].surface + "".join([token.surface[-1] for token in run[1:]])
    return " ".join([token.surface for token in run])


# Exchanged places

_TURNING = re.compile(read_pattern("turning_words"))
_MOVED = re.compile(r"\bfrom (?P<start>[A-Z]\w+)\b.{0,300}? to (?P<end>[A-Z]\w+)\b")
_PASSIVE = re.compile(r"\bby\b|[被受]")
_AROUND = 6  # words to either side of one among which such names are


@lru_cache(maxsize=4096)
def is_turning(text: str) -> bool:
    """Return True if a sentence has a word around which two names may not change places."""
    return _TURNING.search(text) is not None


def _is_passive(text: str) -> bool:
    return _PASSIVE.search(text) is not None


def find_exchanged(window: Window) -> list[str]:
    """Return `one/other` for two numbers whose words have changed places, or two names around a word."""
    sentence, pairs = window.sentence, list[str]()
    has_numbers = len([key for key in sentence.keys & window.keys if key[0] == "#"]) > 1
    has_turn = is_turning(sentence.text)
    for other in window.sentences if has_numbers or has_turn else ():
        ours, theirs = _place_once(sentence), _place_once(other)
        shared = [key for key in ours if key in theirs]
        if has_numbers:
            units = {number.key: number.unit for number in _list_numbers(sentence) if number.key in theirs}
            pairs += _find_crossed(units, shared, theirs)
        if not has_turn or not is_turning(other.text) or _is_passive(sentence.text) != _is_passive(other.text):
            continue
        # Names, and all that is Chinese, where nothing shows a name.
        names = {token.key for token in (*sentence.tokens, *other.tokens) if token.kind in ("name", "chinese")}
        words = [key for key in shared if key[0] not in "#@<>"]
        for place in range(1, len(words) - 1):
            # One name before this word here and after it there, the other the other way round.
            middle = theirs[words[place]]
            before, after = words[max(0, place - _AROUND) : place], words[place + 1 : place + 1 + _AROUND]
            left = [key for key in before if key in names and theirs[key] > middle]
            right = [key for key in after if key in names and theirs[key] < middle]
            if left and right:
                pairs.append(f"{left[0]}/{right[0]}")
                break
        # One text goes from the first name to the second, the other back.
        forth, back = _MOVED.search(sentence.text), _MOVED.search(other.text)
        if forth is not None and back is not None and forth.group("start", "end") == back.group("end", "start"):
            pairs.append(f"{forth['start']}/{forth['end']}")
    return pairs


def _place_once(sentence: Sentence) -> dict[str, int]:
    """Return the keys of content that a sentence has once, in order, with their places."""
    keys = [token.key for token in sentence.tokens if token.weight >= CONTENT_WEIGHT]
    places = {key: place for place, key in enumerate(keys)}
    return places if len(places) == len(keys) else {key: place for key, place in places.items() if keys.count(key) == 1}


def _find_crossed(units: Mapping[str, str], shared: Sequence[str], theirs: Mapping[str, int]) -> list[str]:
    """Return two numbers of one unit that alternate with words on both sides, but mostly with other partners.

    In the statement an inner word is between the numbers, an outer one beyond the second or before the first.
    """

    def list_anchors(keys: Sequence[str], number: str) -> list[str]:
        return [key for key in keys if key[0] not in "#@<>" or (key[:2] == "#m" and number[:2] != "#m")]

    balance = 0
    numbers = [key for key in shared if key[0] == "#"]
    for i, first in enumerate(numbers):
        for second in numbers[i + 1 :]:
            if units[first] != units[second]:
                continue
            start, end = shared.index(first), shared.index(second)
            low, high = sorted((theirs[first], theirs[second]))
            in_order = theirs[first] < theirs[second]
            inner_keys = list_anchors(shared[start + 1 : end], first)
            for is_after, keys in ((False, shared[:start]), (True, shared[end + 1 :])):
                for inner in inner_keys:
                    for outer in list_anchors(keys, first):
                        x, y = theirs[inner], theirs[outer]
                        if (low < x < high) == (low < y < high) or (inner[0] == "#") != (outer[0] == "#"):
                            continue  # they do not alternate there
                        balance += 1 if (in_order == (x < y)) == is_after else -1
    return [f"{numbers[0][1:]}/{numbers[1][1:]}"] if balance < 0 else []
