"""The labels that people give: which there are for a step, and the lines of a CSV or JSON Lines file that holds some.

A CSV file may have gone through a spreadsheet, which chooses its own delimiter and leaves a byte order mark.
"""

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from evalhouse.warehouse.steps import collect_labels

_LINES = (".jsonl", ".ndjson", ".json")
_TABLES = (".csv", ".tsv", ".txt")
_DELIMITERS = (",", ";", "\t")
_LARGEST_CELL = 2**31 - 1
"""All contexts of a sample stand in one cell; Python's own limit is 131,072 characters."""
_MOST_PROBLEMS: Final = 40


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a file; empty values are left out, all others are texts without blanks around them."""

    place: str
    values: Mapping[str, str]

    def get(self, name: str) -> str | None:
        """A value, None where the line has none."""
        return self.values.get(name)


@dataclass(frozen=True, kw_only=True)
class LabelFile:
    """A file's lines, the problems found while reading them, and a hash of its bytes."""

    name: str
    digest: str
    lines: tuple[Line, ...]
    problems: tuple[str, ...]


def read_label_file(path: Path) -> LabelFile:
    """Read a file; raises ReviewError when it is not a file of labels, OSError when it cannot be read."""
    content = path.read_bytes()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ReviewError(f"{path} is not UTF-8 (byte {error.start}); save it as CSV UTF-8") from None
    start = text.lstrip()[:200]
    if start.startswith("<"):
        raise ReviewError(f"{path} is the page itself; import the .jsonl file that its Download button writes")
    if not start:
        raise ReviewError(f"{path} is empty")
    suffix = path.suffix.lower()
    is_lines = suffix in _LINES or (suffix not in _TABLES and start.startswith("{"))
    lines: list[Line] = []
    problems: list[str] = []
    # Not splitlines: a text may hold other separators, which JSON leaves as they are.
    for number, row in read_objects(text.split("\n")) if is_lines else _read_table(text, path):
        place = f"{path} line {number}"
        if isinstance(row, str):
            problems.append(f"{place}: {row}")
        else:
            lines.append(Line(place=place, values=_clean(row)))
    digest = hashlib.sha256(content).hexdigest()
    return LabelFile(name=str(path), digest=digest, lines=tuple(lines), problems=tuple(problems))


def read_objects(lines: Iterable[str | bytes]) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """The objects of JSON Lines by line number, or what is wrong with a line; empty lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            yield number, f"is not valid JSON ({error})"
            continue
        yield number, value if isinstance(value, dict) else "is not a JSON object"


def _read_table(text: str, path: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    header = text.lstrip().split("\n", 1)[0]
    delimiter = max(_DELIMITERS, key=header.count)
    limit = csv.field_size_limit(_LARGEST_CELL)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
        names = [name.strip() for name in next(reader)]
        if "label" not in names:
            raise ReviewError(f"{path} has no column label; it has {', '.join(names)}")
        begins = reader.line_num + 1
        for cells in reader:
            number, begins = begins, reader.line_num + 1
            if len(cells) > len(names):
                yield number, f"has {len(cells)} cells, but there are {len(names)} columns"
            elif cells:
                yield number, dict(zip(names, cells, strict=False))
    except csv.Error as error:
        raise ReviewError(f"{path} is not valid CSV ({error})") from None
    finally:
        csv.field_size_limit(limit)


def _clean(row: Mapping[str, Any]) -> dict[str, str]:
    texts = {
        name: str(value).strip() for name, value in row.items() if value is not None and not isinstance(value, bool)
    }
    return {name: text for name, text in texts.items() if text}


class ReviewError(Exception):
    """An export or import that cannot be done; says why, and what to do."""


def list_problems(opening: str, problems: Sequence[str]) -> ReviewError:
    """All problems in one error, each on a line of its own; of very many the first ones and how many there are."""
    more = len(problems) - _MOST_PROBLEMS
    shown = [*problems[:_MOST_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]
    return ReviewError("\n".join([opening, *(f"  {problem}" for problem in shown)]))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A label and what giving it says."""

    label: str
    meaning: str


def list_choices(step: str, source: str | None) -> tuple[Choice, Choice]:
    """The labels of a step, the one that says yes first; in `classify` they depend on the statement's text."""
    by_letter = collect_labels(step)
    labels = by_letter["G"] if source == "ground_truth" and step == "classify" else next(iter(by_letter.values()))
    yes, no = (Choice(label=label, meaning=meaning) for label, meaning in labels.items())
    return (yes, no)


def list_labels(step: str, source: str | None) -> tuple[str, str]:
    """Their names alone."""
    yes, no = list_choices(step, source)
    return (yes.label, no.label)


def find_label(step: str, source: str | None, word: str) -> str | None:
    """The label a person means by a word, whatever its case and whether it has blanks; None for another word."""
    folded = "_".join(word.casefold().replace("-", " ").replace("_", " ").split())
    return next((label for label in list_labels(step, source) if label.casefold() == folded), None)
