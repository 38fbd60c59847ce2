"""Where answer and contexts stand in what came: JSONPaths (RFC 9535), in one document or in each event of a stream.

A path that is written `$.contexts` and one that is written `$.hits[*].text` mean the same kind of thing: the texts, by
rank. What makes a difference is what it means when nothing is found, which `find_items` decides.

A stream is server-sent events, or one JSON document a line. Bytes arrive cut anywhere, in the middle of a line or of a
character, so they are decoded and put together first. Each event is then searched for parts of the answer and for
contexts, as a whole response would be.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError
from jsonpath.segments import JSONPathRecursiveDescentSegment, JSONPathSegment
from jsonpath.selectors import Filter, SliceSelector

from evalhouse.tasks.targets.protocol import Answer, QuestionFailed, TargetError, make_answer
from evalhouse.warehouse.messages import name_kind, shorten

_DONE = "[DONE]"
_LINE_ENDS = re.compile(r"\r\n|\n|\r")
_ENVIRONMENT = JSONPathEnvironment(strict=True)
# What it means that a path with several possible matches has none: the first such step takes everything, chooses, or
# looks everywhere.
Nothing = Literal["wrong path", "empty list", "not told"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """One path of the settings. `stem` is what stands before its first step that may match many, None without one."""

    key: str
    text: str
    compiled: JSONPath
    stem: JSONPath | None = None
    nothing: Nothing = "not told"

    def find(self, document: object) -> list[object]:
        """All that it matches; raises QuestionFailed for a document too deep to be searched."""
        return self._find(self.compiled, document)

    def find_items(self, document: object) -> list[object] | None:
        """The items of one list or of many matches; None when the response has no place for any.

        Raises QuestionFailed when there is a list and the path cannot be meant for it.
        """
        matches = self.find(document)
        if matches == [None]:
            return None
        if self.stem is None and matches and isinstance(matches[0], int | float):
            raise QuestionFailed(f"{self.key} = {self.text!r} matches {name_kind(matches[0])}, not a list")
        if matches or self.stem is None or self.nothing == "not told":
            return _flatten(matches) if matches else None
        searched = [place for place in self._find(self.stem, document) if place is not None]
        if any(searched) and self.nothing == "wrong path":
            raise QuestionFailed(
                f"{self.key} = {self.text!r} matches nothing, although there is something at {str(self.stem)!r}; "
                "write where each text stands"
            )
        return [] if searched else None

    def _find(self, path: JSONPath, document: object) -> list[object]:
        try:
            return path.findall(document)  # type: ignore[arg-type]  # any JSON will do
        except (JSONPathError, RecursionError) as error:
            raise QuestionFailed(f"{self.key} = {self.text!r} cannot be looked for: {_describe(error)}") from None


def compile_path(key: str, text: str) -> Path:
    """The path of a setting; raises TargetError that shows what is wrong with it."""
    compiled = _compile(key, text)
    if compiled.singular_query():
        return Path(key=key, text=text, compiled=compiled)
    stems = [JSONPath(env=_ENVIRONMENT, segments=compiled.segments[:n]) for n in range(len(compiled.segments))]
    stem = next(stem for stem in reversed(stems) if stem.singular_query())
    step = compiled.segments[len(stem.segments)]
    return Path(key=key, text=text, compiled=compiled, stem=stem, nothing=_interpret_nothing(step))


def _interpret_nothing(step: JSONPathSegment) -> Nothing:
    if isinstance(step, JSONPathRecursiveDescentSegment):
        return "not told"
    choosy = any(isinstance(selector, Filter | SliceSelector) for selector in step.selectors)
    return "empty list" if choosy else "wrong path"


def _compile(key: str, text: str) -> JSONPath:
    try:
        compiled = _ENVIRONMENT.compile(text)
    except JSONPathError as error:
        raise TargetError(
            f"{key} = {text!r} is not a valid JSONPath: {_describe(error)}; write it like $.answer or $.hits[*].text"
        ) from None
    assert isinstance(compiled, JSONPath)  # strict paths have no `|` that would join two of them
    return compiled


def _describe(error: Exception) -> str:
    """The library's own words; its `str` adds a picture of the place, and fails for an empty path."""
    return str(error.args[0]) if error.args else type(error).__name__


def _flatten(matches: list[object]) -> list[object]:
    items: list[object] = []
    for match in matches:
        items.extend(match if isinstance(match, list) else [match])
    return items


class Lines:
    """Puts lines together from pieces of bytes; a line may end with LF, CRLF or CR."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("strict")
        self._pieces: list[str] = []
        self._held = ""  # a CR at the end of what came, which may be the first half of an end

    def feed(self, piece: bytes, *, last: bool = False) -> Iterator[str]:
        """The lines that this piece completes; with `last` the unfinished one too. Raises QuestionFailed."""
        try:
            text = self._held + self._decoder.decode(piece, final=last)
        except UnicodeDecodeError as error:
            raise QuestionFailed(f"the stream is not UTF-8: {error.reason}") from None
        self._held = "\r" if text.endswith("\r") and not last else ""
        first, *others = _LINE_ENDS.split(text.removesuffix("\r") if self._held else text)
        self._pieces.append(first)
        for line in others:
            yield "".join(self._pieces)
            self._pieces = [line]
        if last and (unfinished := "".join(self._pieces)):
            yield unfinished


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event: its name ("" where it has none) and its data."""

    kind: str = ""
    data: str


class SseEvents:
    """Server-sent events from lines, as the HTML standard has them.

    Where it would drop an event whose closing blank line never came, it is taken here: many servers leave that out, and
    half an event is not valid JSON anyway.
    """

    def __init__(self) -> None:
        self._kind = ""
        self._data: list[str] = []

    def take(self, line: str) -> Event | None:
        """The event that this line ends."""
        if not line:
            return self.end()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._kind = value
        return None

    def end(self) -> Event | None:
        """The event that is open, if any data came."""
        event = Event(kind=self._kind, data="\n".join(self._data)) if self._data else None
        self._kind, self._data = "", []
        return event


class JsonLines:
    """One event a line; empty lines are none."""

    def take(self, line: str) -> Event | None:
        """The event that this line is."""
        return Event(data=line) if line.strip() else None

    def end(self) -> Event | None:
        """None: no line is left open."""
        return None


@dataclass(kw_only=True)
class StreamedAnswer:
    """What the events have told so far. Feed it all bytes, then ask for what was said."""

    answer: Path
    contexts: Path | None
    context_ids: Path | None
    events: SseEvents | JsonLines
    done: bool = False
    _lines: Lines = field(default_factory=Lines)
    _n_events: int = 0
    _parts: list[str] = field(default_factory=list)
    _found: dict[str, list[object]] = field(default_factory=dict)

    def feed(self, piece: bytes, *, last: bool = False) -> None:
        """Take what came; raises QuestionFailed for an event that is not valid JSON, or tells of an error."""
        for line in self._lines.feed(piece, last=last):
            self._take(self.events.take(line))
        if last:
            self._take(self.events.end())

    def read(self) -> Answer:
        """The answer, its parts joined, and the contexts of whichever events had them; raises QuestionFailed."""
        if not self._n_events:
            raise QuestionFailed("no event came in the stream; check how it is framed, and whether it is one")
        if not self._parts:
            raise QuestionFailed(f"answer = {self.answer.text!r} matches nothing in any of {self._n_events} events")
        return make_answer("".join(self._parts), self._found.get("contexts"), self._found.get("context_ids"))

    def _take(self, event: Event | None) -> None:
        if event is None or self.done:
            return
        if isinstance(self.events, SseEvents) and event.data.strip() == _DONE:
            self.done = True
            return
        self._n_events += 1
        if event.kind == "error":
            raise QuestionFailed(f"the stream told of an error: {shorten(event.data, 200)}")
        document = self._parse(event.data)
        parts = [self._read_part(part) for part in self.answer.find(document) if part is not None]
        if not parts and isinstance(document, dict) and document.get("error"):
            raise QuestionFailed(f"the stream told of an error: {shorten(event.data, 200)}")
        self._parts += parts
        for path in (self.contexts, self.context_ids):
            if path is not None:
                self._gather(path, document)

    def _parse(self, data: str) -> Any:  # noqa: ANN401  # JSON
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            came = shorten(data, 200)
            raise QuestionFailed(
                f"event {self._n_events} of the stream is not valid JSON ({error}): {came!r}"
            ) from None

    def _read_part(self, part: object) -> str:
        if isinstance(part, dict | list):
            came = "an object" if isinstance(part, dict) else "a list"
            raise QuestionFailed(
                f"answer = {self.answer.text!r} matches {came} in event {self._n_events}; write where its text stands"
            )
        return part if isinstance(part, str) else orjson.dumps(part).decode()

    def _gather(self, path: Path, document: object) -> None:
        """Items of several events follow each other; the same list once more is no news."""
        items = path.find_items(document)
        if items is not None and items != self._found.get(path.key):
            self._found[path.key] = [*self._found.get(path.key, []), *items]
