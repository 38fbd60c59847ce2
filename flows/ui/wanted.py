"""Which samples of a run are looked for, as an address says it: read, checked, and written again.

`where=faithfulness<0.5`, `where=faithfulness change<0` and `where=faithfulness unscored` are tests of a metric, each
may stand several times, and all must hold, as must all else that is asked for. The form of the page has fields of its
own for a new test, for a form can make no such text without a script.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from fastapi import HTTPException

from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.rows.found_samples import Condition

SORTS: Final = {"score": "its score", "change": "its change", "order": "order of the dataset", "id": "id"}
TESTS: Final = {"<": "below", "<=": "at most", ">": "above", ">=": "at least", "=": "is", "unscored": "unscored"}
VERDICTS: Final = {"fp": "FP: wrong statement", "fn": "FN: left out", "unsupported": "unsupported statement"}
LABELS: Final = {
    "labelled": "labelled by a person",
    "unlabelled": "not labelled",
    "agrees": "a person agrees with the judge",
    "differs": "a person differs from the judge",
}
LANGUAGES: Final = ("en", "zh")
METADATA: Final = "metadata."
_CHANGE: Final = "change"
_CONDITION: Final = re.compile(r"([a-z][a-z0-9_]*)( change)?(?: (unscored)|\s*(<=|>=|<|>|=)\s*([-+.\deE]+))")
_FORM: Final = ("where_metric", "where_test", "where_number")
_NAMES: Final = (
    "metric", "sort", "descending", "where", "cause", "verdict", "label", "language", "words", "column", "base", "page",
    *_FORM,
)  # fmt: skip
_MANY: Final = ("where", "verdict", "column")

Parameters = list[tuple[str, str]]
_Item = TypeVar("_Item")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What an address asks for; None and empty where it says nothing, `page` from 1."""

    metric: str | None = None
    sort: str = "score"
    descending: bool | None = None
    where: tuple[Condition, ...] = ()
    cause: str | None = None
    verdicts: tuple[str, ...] = ()
    label: str | None = None
    language: str | None = None
    words: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    columns: tuple[str, ...] = ()
    base: str | None = None
    page: int = 1

    def to_parameters(self) -> Parameters:
        """The address that asks for it; what is as it is without being said is left out."""
        descending = None if self.descending is None else "yes" if self.descending else "no"
        single = {
            "words": self.words,
            "cause": self.cause,
            "label": self.label,
            "language": self.language,
            "metric": self.metric,
            "sort": self.sort if self.sort != "score" else None,
            "descending": descending,
            "base": self.base,
            "page": str(self.page) if self.page > 1 else None,
        }
        return [
            *(("where", write_condition(condition)) for condition in self.where),
            *(("verdict", verdict) for verdict in self.verdicts),
            *((METADATA + key, value) for key, value in self.tags),
            *((name, value) for name, value in single.items() if value),
            *(("column", metric) for metric in self.columns),
        ]

    def list_filters(self) -> Iterator[tuple[str, "Wanted"]]:
        """Each filter in words, with what is wanted without it."""
        first = replace(self, page=1)
        for condition in self.where:
            yield write_condition(condition), replace(first, where=_leave_out(self.where, condition))
        for verdict in self.verdicts:
            yield VERDICTS[verdict], replace(first, verdicts=_leave_out(self.verdicts, verdict))
        if self.cause:
            yield f"cause: {self.cause}", replace(first, cause=None)
        if self.label:
            yield LABELS[self.label], replace(first, label=None)
        if self.language:
            yield f"language: {self.language}", replace(first, language=None)
        for tag in self.tags:
            yield f"{tag[0]}: {tag[1]}", replace(first, tags=_leave_out(self.tags, tag))
        if self.words:
            yield f"text: {self.words}", replace(first, words="")


def _leave_out(items: tuple[_Item, ...], left_out: _Item) -> tuple[_Item, ...]:
    return tuple(item for item in items if item != left_out)


def write_condition(condition: Condition) -> str:
    """A test as addresses have it."""
    measured = f"{condition.metric} {_CHANGE}" if condition.is_change else condition.metric
    return f"{measured} unscored" if condition.number is None else f"{measured}{condition.test}{condition.number:.15g}"


def read_wanted(given: Sequence[tuple[str, str]], metrics: Sequence[str], causes: Sequence[str]) -> Wanted:
    """What the parameters of an address ask for, of a run with these metrics; empty ones ask for nothing.

    Raises HTTPException 400 for what is not allowed, with what is.
    """
    values: dict[str, list[str]] = {}
    for name, value in given:
        if name.startswith(METADATA) and value:
            values.setdefault(name, []).append(value)
        elif not name.startswith(METADATA):
            _choose("the filter", name, _NAMES)
            values.setdefault(name, []).extend([value.strip()] if value.strip() else [])
    values = {name: held for name, held in values.items() if held}
    for name in values.keys() - set(_MANY):
        _refuse(len(set(values[name])) > 1, f"{name} stands {len(values[name])} times in the address; give one")

    def read(name: str, allowed: Sequence[str]) -> str | None:
        return _choose(name, values[name][0], allowed) if name in values else None

    conditions = [read_condition(text, metrics) for text in values.get("where", [])]
    if added := read("where_metric", metrics):
        conditions.append(_read_added(added, read("where_test", tuple(TESTS)), values.get("where_number")))
    descending = read("descending", ("yes", "no"))
    return Wanted(
        metric=read("metric", metrics),
        sort=read("sort", tuple(SORTS)) or "score",
        descending=None if descending is None else descending == "yes",
        where=tuple(dict.fromkeys(conditions)),
        cause=read("cause", causes),
        verdicts=tuple(dict.fromkeys(_choose("verdict", one, tuple(VERDICTS)) for one in values.get("verdict", []))),
        label=read("label", tuple(LABELS)),
        language=read("language", LANGUAGES),
        words=values.get("words", [""])[0],
        tags=tuple(
            (name.removeprefix(METADATA), held[0]) for name, held in values.items() if name.startswith(METADATA)
        ),
        columns=tuple(dict.fromkeys(_choose("column", one, metrics) for one in values.get("column", []))),
        base=values.get("base", [None])[0],
        page=_read_page(values.get("page", ["1"])[0]),
    )


def read_condition(text: str, metrics: Sequence[str]) -> Condition:
    """A test of a metric from its text; raises HTTPException 400."""
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise HTTPException(
            400,
            f"where is {text!r}; write a metric and a test, such as faithfulness<0.5, faithfulness change<0 or "
            "faithfulness unscored",
        )
    metric = _choose("the metric of where", match[1], metrics)
    if match[3]:
        return Condition(metric=metric, is_change=False, test="unscored", number=None)
    return Condition(metric=metric, is_change=bool(match[2]), test=match[4], number=_read_number(match[5]))


def _read_added(metric: str, test: str | None, numbers: Sequence[str] | None) -> Condition:
    """The test that the form's own fields name."""
    if test == "unscored":
        return Condition(metric=metric, is_change=False, test=test, number=None)
    if not numbers:
        raise HTTPException(400, f"a number is missing: which {metric} is looked for?")
    return Condition(metric=metric, is_change=False, test=test or "<", number=_read_number(numbers[0]))


def _read_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    _refuse(not math.isfinite(number), f"{text!r} is not a number such as 0.5")
    return number


def _read_page(text: str) -> int:
    _refuse(
        not (text.isascii() and text.isdigit() and 0 < len(text) < 7 and int(text)),
        f"page is {text!r}; it is a number from 1",
    )
    return int(text)


def _choose(what: str, given: str, allowed: Sequence[str]) -> str:
    """A word of a closed list; raises HTTPException 400 that names what is allowed."""
    if given not in allowed:
        raise HTTPException(400, f"{what} is {given!r}; {suggest(given, allowed)}")
    return given


def _refuse(is_bad: bool, text: str) -> None:
    if is_bad:
        raise HTTPException(400, text)
