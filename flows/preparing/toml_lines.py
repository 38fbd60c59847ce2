"""A suite's text: TOML, and the line on which each of its keys stands.

`tomllib` reads the values and forgets where they stood. The scanner here goes over the same text once more for the keys
alone. It runs only on a text that `tomllib` has accepted, so it need not know what is wrong TOML, only where keys and
values end.
"""

import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from pathlib import Path
from typing import Any

from evalhouse.flows.errors import SettingsError

KeyPath = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_KEY_PART = re.compile(r"[ \t]*(\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")|' r"'''.*?'{3,5}(?!')|" r'"(?:[^"\\\n]|\\.)*"|' r"'[^'\n]*'",
    re.DOTALL,
)
# A number, a date or a word; a date and its time may have a blank between them.
_PLAIN = re.compile(r"\d{4}-\d{2}-\d{2} [\d:.+Z-]+|[^\s,\]}#]+")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a suite, and the key it is about."""

    path: KeyPath
    text: str


@dataclass(frozen=True, kw_only=True)
class SuiteText:
    """A suite as it was written: its values and the line of every key."""

    path: Path
    values: Mapping[str, Any]
    lines: Mapping[KeyPath, int]

    def find_line(self, path: KeyPath) -> int:
        """The line of a key, or of the nearest table around it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def refuse(self, problems: Sequence[Problem]) -> SettingsError:
        """One error with every problem on a line of its own, in the order of the file."""
        placed = sorted((self.find_line(one.path), write_path(one.path), one.text) for one in problems)
        told = [f"{self.path.name}, line {line}: {f'{key}: ' if key else ''}{text}" for line, key, text in placed]
        return SettingsError("\n".join(dict.fromkeys(told)))


@dataclass(kw_only=True)
class _Scanner:
    """Goes through TOML that is known to be right, and notes where keys stand."""

    text: str
    at: int = 0
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        self._skip_blank()
        while self.at < len(self.text):
            if self.text[self.at] == "[":
                table = self._scan_header()
            else:
                self._scan_pair(table)
            self._skip_blank()
        return self.lines

    def _scan_header(self) -> KeyPath:
        begin = self.at
        self._skip_all("[")
        path = self._scan_key(())
        self._skip_all("]")
        self._note(path, begin)
        return path

    def _scan_pair(self, table: KeyPath) -> None:
        begin = self.at
        path = self._scan_key(table)
        self._note(path, begin)
        self.at += 1  # the equals sign
        self._scan_value(path)

    def _scan_key(self, table: KeyPath) -> KeyPath:
        path = table
        while True:
            part = self._match(_KEY_PART).strip()
            path = (*path, _read_key(part))
            if self.text[self.at : self.at + 1] != ".":
                return path
            self.at += 1

    def _scan_value(self, path: KeyPath) -> None:
        self._skip_blank()
        match self.text[self.at]:
            case "[":
                for place, _ in enumerate(self._list_items("]")):
                    self._note((*path, place), self.at)
                    self._scan_value((*path, place))
            case "{":
                for _ in self._list_items("}"):
                    self._scan_pair(path)
            case '"' | "'":
                self._match(_STRING)
            case _:
                self._match(_PLAIN)

    def _list_items(self, end: str) -> Iterator[None]:
        """Stands before each item of an array or an inline table in turn, and behind its end at last."""
        self.at += 1
        self._skip_blank()
        while self.text[self.at] != end:
            yield
            self._skip_blank()
            self._skip_all(",")
            self._skip_blank()
        self.at += 1

    def _note(self, path: KeyPath, position: int) -> None:
        """The first line of a path counts, and of the tables that a dotted key opens."""
        line = self.text.count("\n", 0, position) + 1
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], line)

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise AssertionError(f"tomllib took what stands at character {self.at}, and the scanner does not")
        self.at = found.end()
        return found.group()

    def _skip_blank(self) -> None:
        self._match(_BLANK)

    def _skip_all(self, character: str) -> None:
        while self.text[self.at : self.at + 1] == character:
            self.at += 1


def read_suite_text(path: Path) -> SuiteText:
    """Read a suite's file; raises SettingsError for what is no TOML, and for values that no setting can have."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        values = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"the suite {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path.name} is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path.name} is no TOML: {error}") from None
    found = SuiteText(path=path, values=values, lines=find_lines(text))
    odd = list(_find_odd(values, ()))
    if odd:
        raise found.refuse(odd)
    return found


def find_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, of every key, table and array item of a right TOML text, by its path."""
    return _Scanner(text=text.replace("\r\n", "\n")).scan()


def write_path(path: KeyPath) -> str:
    """A path as a person would write it: `target.headers.X-Key`, `metrics[2]` for the second item."""
    written = ""
    for part in path:
        written += f"[{part + 1}]" if isinstance(part, int) else f".{part}" if written else part
    return written


def explain_unknown(key: str, allowed: Sequence[str]) -> str:
    """What to say about a key that there is not."""
    close = difflib.get_close_matches(key, allowed, n=2, cutoff=0.6)
    advice = f"did you mean {' or '.join(close)}?" if close else f"allowed: {', '.join(allowed)}"
    return f"there is no such key; {advice}"


def _read_key(part: str) -> str:
    """A key without its quotes and escapes."""
    return next(iter(tomllib.loads(f"{part} = 0")))


def _find_odd(value: object, path: KeyPath) -> Iterator[Problem]:
    """Values that TOML has and a setting has not."""
    match value:
        case dict():
            for key, part in value.items():
                yield from _find_odd(part, (*path, key))
        case list():
            for place, part in enumerate(value):
                yield from _find_odd(part, (*path, place))
        case date() | time():
            yield Problem(path=path, text=f"got the date or time {value}; no setting is one; write a text in quotes")
        case float() if not math.isfinite(value):
            yield Problem(path=path, text=f"got {value}; give a finite number")
