"""Where answer and contexts are in a response: JSONPaths (RFC 9535), in one document or in each event of a stream.

A path that is written `$.contexts` and one that is written `$.hits[*].text` mean the same kind of thing: the texts, by
rank. They differ in what it means when nothing is found, which `find_items` decides. A stream is server-sent events, or
one JSON document a line; each event is searched for parts of the answer and for contexts, as a whole response would be.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson
from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError
from jsonpath.segments import JSONPathRecursiveDescentSegment
from jsonpath.selectors import Filter, SliceSelector

from evalhouse.tasks.targets.protocol import Answer, QuestionFailed, TargetError, make_answer
from evalhouse.warehouse.messages import name_kind, shorten

_DONE = "[DONE]"
_LINE_ENDS = re.compile(r"\r\n|\n|\r")
_ENVIRONMENT = JSONPathEnvironment(strict=True)
# What it means that a path with several possible matches has none: its first such step takes everything, chooses, or
# looks everywhere.
Nothing = Literal["wrong path", "empty list", "not stated"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """One path of the settings. `stem` is the part before its first step that may match many, None without one."""

    key: str
    text: str
    compiled: JSONPath
    stem: JSONPath | None = None
    nothing: Nothing = "not stated"

    def find(self, document: object) -> list[object]:
        """Return all that it matches; raises QuestionFailed for a document too deep to be searched."""
        return self._find(self.compiled, document)

    def find_items(self, document: object) -> list[object] | None:
        """Return the items of one list or of many matches; None when the response has no place for any.

        Raises QuestionFailed when there is a list and the path cannot be meant for it.
        """
        matches = self.find(document)
        if matches == [None]:
            return None
        if self.stem is None and matches and isinstance(matches[0], int | float):
            raise QuestionFailed(f"{self.key} = {self.text!r} matches {name_kind(matches[0])}, not a list")
        if matches or self.stem is None or self.nothing == "not stated":
            items: list[object] = []
            for match in matches:
                items.extend(match if isinstance(match, list) else [match])
            return items if matches else None
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
    """Return the path of a setting; raises TargetError that shows what is wrong with it."""
    try:
        compiled = _ENVIRONMENT.compile(text)
    except JSONPathError as error:
        raise TargetError(
            f"{key} = {text!r} is not a valid JSONPath: {_describe(error)}; write it like $.answer or $.hits[*].text"
        ) from None
    assert isinstance(compiled, JSONPath)  # strict paths have no `|` that would join two of them
    if compiled.singular_query():
        return Path(key=key, text=text, compiled=compiled)
    stems = [JSONPath(env=_ENVIRONMENT, segments=compiled.segments[:n]) for n in range(len(compiled.segments))]
    stem = next(stem for stem in reversed(stems) if stem.singular_query())
    step = compiled.segments[len(stem.segments)]
    nothing: Nothing = "wrong path"
    if isinstance(step, JSONPathRecursiveDescentSegment):
        nothing = "not stated"
    elif any(isinstance(selector, Filter | SliceSelector) for selector in step.selectors):
        nothing = "empty list"
    return Path(key=key, text=text, compiled=compiled, stem=stem, nothing=nothing)


def _describe(error: Exception) -> str:
    """Return the library's words; its `str` adds a picture of the place, and fails for an empty path."""
    return str(error.args[0]) if error.args else type(error).__name__


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """One event: its name ("" if it has none) and its data."""

    kind: str = ""
    data: str


class EventReader:
    """Reads the events of a stream from bytes that arrive cut anywhere; a line may end with LF, CRLF or CR.

    Server-sent events are read as the HTML standard has them, except that an event without its closing blank line
    counts: many servers leave that out, and half an event is not valid JSON anyway.
    """

    def __init__(self, stream: Literal["sse", "jsonl"]) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("strict")
        self._pieces: list[str] = []  # of the line that is not complete
        self._cr = ""  # a CR at the end of the last piece, which may be the first half of a line end
        self._kind = ""
        self._data: list[str] = []

    def feed(self, piece: bytes, *, last: bool = False) -> Iterator[Event]:
        """Yield the events that this piece completes, with `last` the unfinished one too. Raises QuestionFailed."""
        try:
            text = self._cr + self._decoder.decode(piece, final=last)
        except UnicodeDecodeError as error:
            raise QuestionFailed(f"the stream is not UTF-8: {error.reason}") from None
        self._cr = "\r" if text.endswith("\r") and not last else ""
        *lines, unfinished = _LINE_ENDS.split(text.removesuffix("\r") if self._cr else text)
        for line in lines:
            yield from self._read_line("".join([*self._pieces, line]))
            self._pieces = []
        self._pieces.append(unfinished)
        if last:
            yield from self._read_line("".join(self._pieces))
            yield from self._read_line("")

    def _read_line(self, line: str) -> Iterator[Event]:
        if self._stream == "jsonl":
            if line.strip():
                yield Event(data=line)
            return
        name, _, value = line.partition(":")
        if name == "data":
            self._data.append(value.removeprefix(" "))
        elif name == "event":
            self._kind = value.removeprefix(" ")
        elif not line:
            if self._data:
                yield Event(kind=self._kind, data="\n".join(self._data))
            self._kind, self._data = "", []


@dataclass(kw_only=True)
class StreamedAnswer:
    """The answer and contexts of the events so far. Feed it all bytes, then read the answer."""

    answer: Path
    contexts: Path | None
    context_ids: Path | None
    stream: Literal["sse", "jsonl"]
    done: bool = False
    _n_events: int = 0
    _parts: list[str] = field(default_factory=list)
    _found: dict[str, list[object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._events = EventReader(self.stream)

    def feed(self, piece: bytes, *, last: bool = False) -> None:
        """Read a piece; raises QuestionFailed for an event that is not valid JSON, or reports an error."""
        for event in self._events.feed(piece, last=last):
            if self.done:
                return
            if self.stream == "sse" and event.data.strip() == _DONE:
                self.done = True
                return
            self._n_events += 1
            self._read_event(event)

    def read(self) -> Answer:
        """Return the answer, its parts joined, and the contexts of the events that had any; raises QuestionFailed."""
        if not self._n_events:
            raise QuestionFailed("no event came in the stream; check how it is framed, and whether it is one")
        if not self._parts:
            raise QuestionFailed(f"answer = {self.answer.text!r} matches nothing in any of {self._n_events} events")
        return make_answer("".join(self._parts), self._found.get("contexts"), self._found.get("context_ids"))

    def _read_event(self, event: Event) -> None:
        shown = shorten(event.data, 200)
        if event.kind == "error":
            raise QuestionFailed(f"the stream told of an error: {shown}")
        try:
            document: Any = orjson.loads(event.data)
        except orjson.JSONDecodeError as error:
            text = f"event {self._n_events} of the stream is not valid JSON ({error}): {shown!r}"
            raise QuestionFailed(text) from None
        parts = [part for part in self.answer.find(document) if part is not None]
        for part in parts:
            if isinstance(part, dict | list):
                place = f"answer = {self.answer.text!r} matches {name_kind(part)} in event {self._n_events}"
                raise QuestionFailed(f"{place}; write where its text stands")
        if not parts and isinstance(document, dict) and document.get("error"):
            raise QuestionFailed(f"the stream told of an error: {shown}")
        self._parts += [part if isinstance(part, str) else orjson.dumps(part).decode() for part in parts]
        for path in (self.contexts, self.context_ids):
            items = None if path is None else path.find_items(document)
            # Items of several events follow each other; the same list once more adds nothing.
            if path is not None and items is not None and items != self._found.get(path.key):
                self._found[path.key] = [*self._found.get(path.key, []), *items]
