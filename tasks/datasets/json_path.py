"""JSONPath (RFC 9535), by which `[target]` and `--map` name places inside responses and rows.

Where a text on the way is itself JSON, as tables and bots write objects into texts, the path continues inside it.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import orjson
from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError, JSONPathMatch
from jsonpath.segments import JSONPathRecursiveDescentSegment
from jsonpath.selectors import Filter, IndexSelector, NameSelector, SliceSelector, WildcardSelector

from evalhouse.tasks.datasets.values import EACH, Steps, open_value
from evalhouse.warehouse.messages import name_kind

_ENVIRONMENT: Final = JSONPathEnvironment(strict=True)
# A step of a path that is written without `$`: one in brackets, one that looks everywhere, or a plain name. It is read
# where `_STEPS` match, so each bracket is closed there; one that must be would be looked for from each open bracket.
_STEPS: Final = re.compile(r"(?:\[[^\]]*\]|\.\.|[^.\[]|\.(?=[^.\[]))+")
_STEP: Final = re.compile(r"\[[^\]]*\]?|\.\.|[^.\[]+")
_NUMBER: Final = re.compile(r"-?\d{1,9}")


class PathError(ValueError):
    """A path that is not valid, or that cannot be meant for a document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JsonPath:
    """One path of the settings. `stem` is the part before its first step that may match many, None without one.

    `$.contexts` and `$.hits[*].text` mean the same kind of thing, the texts by rank; they differ in the meaning of no
    match, which `find_items` decides. `steps` has the names and numbers of a path of nothing but these and `[*]`.
    """

    key: str
    text: str
    compiled: JSONPath
    stem: JSONPath | None = None

    @property
    def steps(self) -> Steps | None:
        """The steps, EACH for `[*]`; None for a path with others."""
        steps: list[str | int] = []
        for segment in self.compiled.segments:
            selector = segment.selectors[0]
            if isinstance(segment, JSONPathRecursiveDescentSegment) or len(segment.selectors) > 1:
                return None
            if isinstance(selector, NameSelector):
                steps.append(selector.name)
            elif isinstance(selector, IndexSelector):
                steps.append(selector.index)
            elif isinstance(selector, WildcardSelector):
                steps.append(EACH)
            else:
                return None
        return tuple(steps)

    def find(self, document: object, path: JSONPath | None = None) -> list[object]:
        """Return all matches of the path, or of another one; raises PathError for a document that is too deep."""
        return [match.obj for match in self._resolve(document, path or self.compiled)]

    def _resolve(self, document: object, path: JSONPath) -> list[JSONPathMatch]:
        matches: Iterable[JSONPathMatch] = [
            JSONPathMatch(filter_context={}, obj=document, parent=None, path="$", parts=(), root=document)  # type: ignore[arg-type]  # any JSON will do
        ]
        try:
            for segment in path.segments:
                matches = segment.resolve(_open_texts(matches))
            return list(matches)
        except (JSONPathError, RecursionError) as error:
            raise PathError(f"{self.key} = {self.text!r} cannot be looked for: {_describe(error)}") from None

    def find_beside(self, document: object) -> list[object]:
        """Return the objects that hold the matches, for what is beside these."""
        return self.find(document, JSONPath(env=_ENVIRONMENT, segments=self.compiled.segments[:-1]))

    def list_members_beside(self, document: object) -> list[dict[str, object]]:
        """Return the other members of the objects that each of the items is in, as the url beside a `$.hits[*].text`.

        They are the objects up to the next list or the document, as in `$.hits[*].document.text`. An item of a list has
        none beside it.
        """
        beside: list[dict[str, object]] = []
        for match in self._resolve(document, self.compiled):
            members: dict[str, object] = {}
            inner, holder = match, match.parent
            while holder is not None and holder.parent is not None and isinstance(holder.obj, dict):
                members = {name: one for name, one in holder.obj.items() if name != inner.parts[-1]} | members
                inner, holder = holder, holder.parent
            beside += [{} for _ in match.obj] if isinstance(match.obj, list) else [members]
        return beside

    def find_items(self, document: object) -> list[object] | None:
        """Return the items of one list or of many matches; None when the document has no place for any.

        The meaning of no match lies in the first step that may match many: one that looks everywhere found no place,
        one that selects nothing. Raises PathError where one that takes everything has something to take, and where the
        one match of another path is a number.
        """
        matches = self.find(document)
        if matches == [None]:
            return None
        if self.stem is None and matches and isinstance(matches[0], int | float):
            raise PathError(f"{self.key} = {self.text!r} matches {name_kind(matches[0])}, not a list")
        if matches:
            return [item for match in matches for item in (match if isinstance(match, list) else [match])]
        step = None if self.stem is None else self.compiled.segments[len(self.stem.segments)]
        if step is None or isinstance(step, JSONPathRecursiveDescentSegment):
            return None
        selects = any(isinstance(selector, Filter | SliceSelector) for selector in step.selectors)
        searched = [place for place in self.find(document, self.stem) if place is not None]
        if any(searched) and not selects:
            raise PathError(
                f"{self.key} = {self.text!r} matches nothing, although there is something at {str(self.stem)!r}; "
                "write the path of each text"
            )
        return [] if searched else None


def _open_texts(matches: Iterable[JSONPathMatch]) -> Iterator[JSONPathMatch]:
    for match in matches:
        match.obj = open_value(match.obj)
        yield match


def compile_path(key: str, text: str) -> JsonPath:
    """Return the path of a setting, written from `$` or, as the names of columns are, without it; raises PathError."""
    written = text
    if _STEPS.fullmatch(text) and not text.startswith("$"):
        written = "$"
        for step in _STEP.findall(text):
            is_plain = step != ".." and not step.startswith("[")
            is_mark = step == "*" or _NUMBER.fullmatch(step)
            written += f"[{step if is_mark else orjson.dumps(step).decode()}]" if is_plain else step
    try:
        compiled = _ENVIRONMENT.compile(written)
    except JSONPathError as error:
        raise PathError(
            f"{key} = {text!r} is not a valid JSONPath: {_describe(error)}; write it like $.answer or $.hits[*].text"
        ) from None
    assert isinstance(compiled, JSONPath)  # strict paths have no `|` that would join two of them
    if compiled.singular_query():
        return JsonPath(key=key, text=text, compiled=compiled)
    stems = [JSONPath(env=_ENVIRONMENT, segments=compiled.segments[:n]) for n in range(len(compiled.segments))]
    stem = next(stem for stem in reversed(stems) if stem.singular_query())
    return JsonPath(key=key, text=text, compiled=compiled, stem=stem)


def _describe(error: Exception) -> str:
    """Return the library's words; its `str` adds a picture of the place, and fails for an empty path."""
    return str(error.args[0]) if error.args else type(error).__name__
