"""Words the lexical judge treats specially, English and Chinese, from `words.yaml`: what carries no content, what
negates, what stands for or against what; and how an inflected English word comes back to its stem.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import yaml

_FILE = Path(__file__).with_name("words.yaml")
# Every value stays a string, `no` and `on` too; the parser in C takes a tenth of the time where it is to be had.
_LISTS: Mapping[str, object] = yaml.load(
    _FILE.read_text(encoding="utf-8"), getattr(yaml, "CBaseLoader", yaml.BaseLoader)
)


def _read_text(name: str) -> str:
    text = _LISTS.get(name)
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{_FILE}: '{name}' must be a text that is not empty")
    return text


def _read_mapping(name: str) -> dict[str, str]:
    mapping = _LISTS.get(name)
    if not isinstance(mapping, dict) or not mapping or not all(isinstance(text, str) for text in mapping.values()):
        raise ValueError(f"{_FILE}: '{name}' must be a mapping of texts that is not empty")
    return mapping


def read_words(name: str) -> list[str]:
    """The words of a list, in order."""
    return _read_text(name).split()


def _read_pairs(name: str) -> list[tuple[str, str]]:
    pairs = [pair.split() for pair in _read_text(name).split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{_FILE}: '{name}' must hold two words between commas")
    return [(left, right) for left, right in pairs]


def read_numbers(name: str) -> dict[str, float]:
    """A mapping of words to numbers."""
    return {word: float(number) for word, number in _read_mapping(name).items()}


def read_pattern(name: str) -> str:
    """A regular expression."""
    return _join_lines(_read_text(name))


def read_patterns(name: str, sources: str = "") -> dict[str, str]:
    """Several regular expressions, each under its name, with a pattern in the place of `{sources}`."""
    return {key: _join_lines(text).replace("{sources}", sources) for key, text in _read_mapping(name).items()}


def _join_lines(text: str) -> str:
    return "".join([line.strip() for line in text.splitlines()])


FUNCTION_WORDS = frozenset(read_words("function_words"))
DIRECTION_WORDS = frozenset(read_words("direction_words"))
NEGATIONS = frozenset(read_words("negations"))
CHINESE_STOP_CHARACTERS = frozenset(_read_text("chinese_stop_characters").strip())
CHINESE_STOP_WORDS = frozenset(read_words("chinese_stop_words"))
CHINESE_NEGATIONS = frozenset(read_words("chinese_negations"))
CHINESE_NOT_NEGATIONS = frozenset(read_words("chinese_not_negations"))
NEGATIVE_PREFIXES = tuple(read_words("negative_prefixes"))

_IRREGULAR_STEMS = dict(_read_pairs("irregular_forms"))
_UNCHANGED = frozenset(read_words("unchanged_words"))
_BRITISH = re.compile(r"is(e|ed|es|ing|ation|ations|er|ers)$")
_VOWELS = frozenset("aeiouy")


def _sort_endings() -> dict[str, list[tuple[str, int]]]:
    """Last letter to the endings with it and the shortest stem each may leave; the longest ending wins."""
    by_last: dict[str, list[tuple[str, int]]] = {}
    for shortest, endings in _read_mapping("endings").items():
        for ending in endings.split():
            by_last.setdefault(ending[-1], []).append((ending, int(shortest)))
    for candidates in by_last.values():
        candidates.sort(key=lambda candidate: -len(candidate[0]))
    return by_last


_ENDINGS_BY_LAST = _sort_endings()


def _strip_plural(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


def _strip_tense(word: str) -> str:
    for ending in ("ing", "ed"):
        if word.endswith(ending):
            stem = word[: -len(ending)]
            if len(stem) < 3 or not any(letter in _VOWELS for letter in stem):
                return word
            if word.endswith("ied"):
                return word[:-3] + "y"
            if stem[-1] == stem[-2] and stem[-1] not in "lsz":
                return stem[:-1]
            return stem
    return word


@lru_cache(maxsize=32768)
def stem_word(word: str) -> str:
    """The stem of a lower-case word: plural, tense and topic-keeping endings off, British -ise as -ize."""
    if not word.isascii():
        return word
    base = _IRREGULAR_STEMS.get(word)
    if base is None:
        if len(word) < 4 or word in _UNCHANGED:
            return word
        if len(word) > 6:
            word = _BRITISH.sub(r"iz\1", word)
        word = _strip_tense(_strip_plural(word))
        base = _IRREGULAR_STEMS.get(word, word)
    return _strip_ending(base)


def _strip_ending(word: str) -> str:
    for ending, shortest in _ENDINGS_BY_LAST.get(word[-1], ()):
        if word.endswith(ending) and len(word) - len(ending) >= shortest:
            word = word[: -len(ending)]
            break
    if len(word) > 4 and word[-1] == word[-2] and word[-1] in "lszt":
        word = word[:-1]
    if len(word) > 3 and word[-1] in "ey":
        word = word[:-1]
    return word


def _oppose(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """A two-way table of opposites."""
    table: dict[str, set[str]] = {}
    for left, right in pairs:
        table.setdefault(left, set()).add(right)
        table.setdefault(right, set()).add(left)
    return {word: frozenset(others) for word, others in table.items()}


def _group(lines: Iterable[str]) -> dict[str, frozenset[str]]:
    """Stem to the other stems of its groups."""
    table: dict[str, set[str]] = {}
    for line in lines:
        group = {stem_word(word) for word in line.split()}
        for stem in group:
            table.setdefault(stem, set()).update(group - {stem})
    return {stem: frozenset(others) for stem, others in table.items()}


def _name_units(lines: Iterable[str]) -> dict[str, str]:
    """Each form of a unit to the first names of the lines it stands in: `g` to `g`, `pounds` to `gbp|lb`."""
    meanings: dict[str, set[str]] = {}
    for name, *forms in map(str.split, lines):
        for form in forms:
            meanings.setdefault(form, set()).add(name)
    return {form: "|".join(sorted(names)) for form, names in meanings.items()}


UNITS = _name_units(_read_text("units").splitlines())


def _read_exclusive(name: str) -> list[tuple[str, str]]:
    """Each two words of a line as a pair."""
    return [pair for line in _read_text(name).splitlines() for pair in combinations(line.split(), 2)]


ANTONYMS = _oppose(
    (stem_word(left), stem_word(right)) for left, right in [*_read_pairs("antonyms"), *_read_exclusive("exclusive")]
)
CHINESE_ANTONYMS = _oppose([*_read_pairs("chinese_antonyms"), *_read_exclusive("chinese_exclusive")])
SYNONYMS = _group(_read_text("synonyms").splitlines())
