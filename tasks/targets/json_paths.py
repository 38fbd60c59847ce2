"""Finding answer and contexts in a JSON response by JSONPath (RFC 9535).

A path that is written `$.contexts` and one that is written `$.hits[*].text` mean the same kind of thing: the texts, by
rank. What makes a difference is what it means when nothing is found, which `find_items` tells.
"""

from dataclasses import dataclass
from typing import Literal

from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError
from jsonpath.segments import JSONPathRecursiveDescentSegment, JSONPathSegment
from jsonpath.selectors import Filter, SliceSelector

from evalhouse.tasks.messages import name_kind
from evalhouse.tasks.targets.errors import QuestionFailed, TargetError

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
        found = self.find(document)
        if found == [None]:
            return None
        if self.stem is None and found and isinstance(found[0], int | float):
            raise QuestionFailed(f"{self.key} = {self.text!r} matches {name_kind(found[0])}, not a list")
        if found or self.stem is None or self.nothing == "not told":
            return _flatten(found) if found else None
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
            f"{key} = {text!r} is no JSONPath: {_describe(error)}; write it like $.answer or $.hits[*].text"
        ) from None
    assert isinstance(compiled, JSONPath)  # strict paths have no `|` that would join two of them
    return compiled


def _describe(error: Exception) -> str:
    """The library's own words; its `str` adds a picture of the place, and fails for an empty path."""
    return str(error.args[0]) if error.args else type(error).__name__


def _flatten(found: list[object]) -> list[object]:
    items: list[object] = []
    for match in found:
        items.extend(match if isinstance(match, list) else [match])
    return items
