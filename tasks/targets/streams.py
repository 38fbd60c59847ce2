"""Answers that come in parts: server-sent events, or one JSON document a line.

Bytes arrive cut anywhere, in the middle of a line or of a character, so they are decoded and put together first. Each
event is then searched for parts of the answer and for contexts, as a whole response would be.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from evalhouse.tasks.messages import shorten
from evalhouse.tasks.targets.answers import Said, make_said
from evalhouse.tasks.targets.errors import QuestionFailed
from evalhouse.tasks.targets.json_paths import Path

_DONE = "[DONE]"
_LINE_ENDS = re.compile(r"\r\n|\n|\r")


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
    half an event is no JSON anyway.
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
        """Take what came; raises QuestionFailed for an event that is no JSON, or tells of an error."""
        for line in self._lines.feed(piece, last=last):
            self._take(self.events.take(line))
        if last:
            self._take(self.events.end())

    def read(self) -> Said:
        """The answer, its parts joined, and the contexts of whichever events had them; raises QuestionFailed."""
        if not self._n_events:
            raise QuestionFailed("no event came in the stream; check how it is framed, and whether it is one")
        if not self._parts:
            raise QuestionFailed(f"answer = {self.answer.text!r} matches nothing in any of {self._n_events} events")
        return make_said("".join(self._parts), self._found.get("contexts"), self._found.get("context_ids"))

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
            raise QuestionFailed(f"event {self._n_events} of the stream is no JSON ({error}): {came!r}") from None

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
