"""No regular expression over foreign text (replies, error pages, answers, datasets, addresses) can be kept busy by it.

Every pattern of the product is found by walking the code. One that is compiled at the top of a file, or made there by
a function, is taken for one that meets foreign text of any length, unless it is in OWN (it meets only what we, the
person at the keyboard, a settings file or the database wrote) or in CUT (foreign text, cut beforehand to so many
characters). Patterns within functions have to be in one of the two. Foreign text is made against each pattern out
of its letters, and the time for it may grow no faster than its length.
"""

from __future__ import annotations

import ast
import importlib
import re
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from re import _constants as codes
from re import _parser as parser
from typing import Any

import pytest
import regex

from evalhouse.tasks.datasets import received
from evalhouse.tasks.measures.citations import Sources
from evalhouse.tasks.settings.run import compile_patterns

ROOT = Path(__file__).parents[1]
RECEIVED = "tasks/datasets/received.py"
"""The file whose patterns are of `regex`."""
OF_REGEX = {RECEIVED, "tasks/asking/splitting.py"}
"""The second finds characters by `\\X`, which goes through a text once."""
FOLDERS = ("flows", "tasks", "prompts", "warehouse")
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
MADE_BY = {"compile", "match", "fullmatch", "search", "findall", "finditer", "split", "sub", "subn"}

# Any pattern that is linear goes through so many characters in half a millisecond.
_SIZE = 3_000
_SLOW_S = 0.006
LETTERS = (codes.LITERAL, codes.RANGE)
# What only we, a person at the keyboard, settings, prompt and metric files, a SQL query or the database have written.
OWN = {
    "flows/commands/warehouse.py", "flows/commands/show.py", "flows/preparing/suites.py",
    "prompts/checks.py",
    "tasks/asking/shared_limits.py", "tasks/lexical/judge.py", "tasks/models/make.py", "tasks/settings/suite.py",
    "warehouse/engine/connection.py", "warehouse/engine/migrate.py", "warehouse/location.py",
    "warehouse/metric_files.py",
    "warehouse/sandbox/query.py",
}  # fmt: skip
# Foreign, and cut to so many characters before a pattern meets it; functions stand for the patterns within them.
CUT = {
    "flows/ui/sql.py:_RECIPE": 65_536,  # our cookbook
    "tasks/asking/usage.py:_DATE": 500,  # the name of a model
    "tasks/asking/verdicts.py:parse_object": 1_000_000,  # a reply
    "tasks/datasets/rows.py:_spell": 1_000,  # the name of a column
    "tasks/datasets/formats.py:_parse_json": 65_536,
    "tasks/grade.py:_read_reply": 1_000_000,
    "tasks/lexical/split.py:_LIST_NUMBER": 24,
    "tasks/lexical/split.py:_OPENERS": 24,
    "tasks/models/dialect.py:_WAIT_PART": 400,
    "tasks/models/dialect.py:_WAIT": 400,
    "tasks/measures/expected_ratings.py:": 1_000_000,
}


def find_files() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def find_made(path: Path) -> list[str]:
    """The function or class around each use of `re` in a file; "" for the top of the file."""

    def walk(node: ast.AST, function: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, _NAMED) else function
            if (
                isinstance(child, ast.Call)
                and isinstance(child.func, ast.Attribute)
                and isinstance(child.func.value, ast.Name)
                and child.func.value.id == "re"
                and child.func.attr in MADE_BY
            ):
                yield function
            yield from walk(child, inner)

    text = path.read_text(encoding="utf-8")
    return list(walk(ast.parse(text), "")) if "re." in text else []  # most files use none


def is_exempt(place: str, name: str) -> bool:
    return place in OWN or any(known in (f"{place}:{name}", f"{place}:") for known in CUT)


def list_held(place: str) -> Iterator[tuple[str, re.Pattern[Any]]]:
    """Every pattern that a module holds, alone or in a mapping or sequence, by the name it has there."""

    def walk(name: str, value: object) -> Iterator[tuple[str, re.Pattern[Any]]]:
        if isinstance(value, re.Pattern):
            yield name, value
        elif isinstance(value, dict | list | tuple):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield from walk(f"{name}[{key!s:.20}]", item)

    module = importlib.import_module("evalhouse." + place.removesuffix(".py").replace("/", "."))
    for name, value in vars(module).items():
        if not name.startswith("__"):
            yield from walk(name, value)


@cache
def collect_patterns() -> dict[str, re.Pattern[Any]]:
    """Every pattern of the product that meets foreign text, by file and name."""
    places = [path.relative_to(ROOT).as_posix() for path in find_files() if "re." in path.read_text(encoding="utf-8")]
    return {
        f"{place}:{name}": pattern
        for place in places
        for name, pattern in list_held(place)
        if not is_exempt(place, name.partition("[")[0])
    }


def read_letters(tree: Any, letters: set[str], words: set[str]) -> None:  # noqa: ANN401  # a parsed pattern
    """The letters and the words that a pattern speaks of."""
    word = ""
    for code, value in tree:
        if code is codes.LITERAL:
            word += chr(value)
            letters.add(chr(value))
            continue
        words.add(word)
        word = ""
        if code is codes.IN:
            letters.update(chr(one[0] if kind is codes.RANGE else one) for kind, one in value if kind in LETTERS)
        for part in value if isinstance(value, tuple | list) else ():
            for inner in part if isinstance(part, list) else (part,):
                if isinstance(inner, parser.SubPattern):
                    read_letters(inner, letters, words)
    words.add(word)


def make_repeated(pattern: re.Pattern[Any]) -> list[tuple[str, str]]:
    """The texts repeated against a pattern, each behind another one: its letters, its words, and words behind marks;
    and white space, a letter and a figure behind a word or a mark that the pattern begins with."""
    letters, words = {"a", " ", "1", "\n"}, set[str]()
    read_letters(parser.parse(pattern.pattern, pattern.flags), letters, words)
    singles = sorted(letters, key=lambda letter: (letter.isalnum(), letter))[:16]
    spoken = sorted(word for word in words if len(word) > 1)[:12]
    marks = [letter for letter in singles if not letter.isalnum()][:4]
    pumps = [*singles, *spoken, *(f"{word} Aa " for word in spoken), *(f"{a}{word} " for a in marks for word in spoken)]
    heads = [*sorted(letter for letter in letters if not letter.isalnum() and not letter.isspace())[:4], *spoken[:8]]
    return [*(("", pump) for pump in pumps), *((head, pump) for head in heads for pump in letters & set(" \t\na1"))]


def goes_through(name: str) -> bool:
    """Return True if a pattern of a file is used anywhere in a text, and not at its beginning alone."""
    place, _, attribute = name.partition(":")
    uses = re.findall(rf"{attribute.partition('[')[0]}\.([a-z]+)\(", (ROOT / place).read_text(encoding="utf-8"))
    return not uses or not {"match", "fullmatch"}.issuperset(uses)


def measure(pattern: re.Pattern[Any], text: str, *, throughout: bool) -> float:
    """CPU seconds of going through a text from its beginning to its end, or of looking at its beginning."""
    given: Any = text.encode() if isinstance(pattern.pattern, bytes) else text
    started = time.process_time()
    if throughout:
        for _ in pattern.finditer(given):
            pass
    else:
        pattern.match(given)
        pattern.fullmatch(given)
    return time.process_time() - started


def find_slow(pattern: re.Pattern[Any], *, throughout: bool = True) -> str | None:
    """A text that a pattern takes more time for than in proportion to its length, if one was found."""
    for head, pump in make_repeated(pattern):
        # Linear is some milliseconds for the longest; what is not shows in the shorter ones already.
        for size in (28, 500, _SIZE):
            text, quarter = (head + pump * (length // len(pump)) + "\x00" for length in (size, size // 4))
            # It takes long, and twice as long for its length as a quarter: a machine may be slow.
            if all(
                (took := measure(pattern, text, throughout=throughout)) > _SLOW_S
                and took > 8 * measure(pattern, quarter, throughout=throughout)
                for _ in range(3)
            ):
                return f"{head!r} and {pump!r} × {len(text) // len(pump)}"
    return None


def test_every_pattern_is_made_where_it_can_be_found() -> None:
    """Modules import `re` by its name, and a pattern of a module is held where `collect_patterns` looks."""
    hidden = []
    for path in find_files():
        place, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if place in OWN:
            continue
        is_hidden = re.search(r"^\s*(?:from re import|import re as|(?:from|import) regex)\b", text, re.MULTILINE)
        if is_hidden and place not in OF_REGEX:
            hidden.append(place)
        n_made = find_made(path).count("")
        if n_made and n_made > len(list(list_held(place))):
            hidden.append(place)
    assert hidden == []


def test_every_pattern_within_a_function_is_known() -> None:
    unknown = {
        f"{place}:{function}"
        for path in find_files()
        if (place := path.relative_to(ROOT).as_posix())
        for function in find_made(path)
        if function and not is_exempt(place, function)
    }
    # These make patterns that a module then holds, or go through a few letters of one word.
    assert unknown == KNOWN


KNOWN = {
    "tasks/settings/run.py:compile_patterns", "tasks/measures/citations.py:pattern",
    "tasks/measures/citations.py:_fold",
    "prompts/render.py:__init__",
    "tasks/lexical/split.py:_compile_silences", "tasks/lexical/texts.py:_compile_bounds",
    "tasks/lexical/texts.py:read_number", "warehouse/messages.py:name_flag",
    "tasks/datasets/thoughts.py:_find_end",  # a mark word for word
    "tasks/asking/repairs.py:_names_key",  # words with at most four characters between them and a mark
}  # fmt: skip


def test_no_foreign_text_keeps_a_pattern_busy() -> None:
    patterns = dict(collect_patterns())
    assert len(patterns) > 60
    patterns |= {f"tasks/settings/run.py:{n}": pattern for n, pattern in enumerate(compile_patterns(()))}
    for name, listed in received.PATTERNS.items():
        both = [*listed, *map(received.allow_escapes, listed)]
        patterns |= {f"{RECEIVED}:PATTERNS[{name} {n}]": regex.compile(pattern) for n, pattern in enumerate(both)}
    patterns |= {f"{RECEIVED}:{name}": item for name, item in vars(received).items() if isinstance(item, regex.Pattern)}
    names = dict.fromkeys(("1", "1,1", "a b", "a b, a b", "a-1", "a-1; 1"), (1,))  # ids are foreign too
    made = Sources(n_contexts=1, names=names).pattern
    assert made is not None
    patterns["tasks/measures/citations.py:pattern"] = made
    slow = {}
    for name, pattern in patterns.items():
        if text := find_slow(pattern, throughout=goes_through(name)):
            slow[name] = text
    assert slow == {}


def test_no_group_is_repeated_without_giving_back() -> None:
    """Python before 3.11.5 loses its place in a text when the last repeat of such a group fails."""
    possessive = re.compile(r"(?<!\\)\)(?:[*+?]|\{[\d,]+\})\+")
    assert [name for name, pattern in collect_patterns().items() if possessive.search(str(pattern.pattern))] == []


def test_what_is_exempt_is_still_there() -> None:
    places = {path.relative_to(ROOT).as_posix(): path for path in find_files()}
    gone = {place for place in OWN if not any(True for _ in find_made(places[place]))}
    gone |= {known for known in CUT if known.split(":")[1] not in places[known.split(":")[0]].read_text("utf-8")}
    assert gone == set()


@pytest.mark.parametrize("quadratic", [r"\s+$", r"\[(?:a|aa)+\]", r"\{\{\s*([^{}]*?)\s*\}\}"])
def test_the_search_finds_what_can_be_kept_busy(quadratic: str) -> None:
    assert find_slow(re.compile(quadratic, re.DOTALL)) is not None
