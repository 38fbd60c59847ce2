"""The rows of a query as a page shows them: each value in words, what is NULL, what is long, what leads on.

A value comes from a dataset, a model or a person's SQL and is a text like any other: templates escape it. Only so much
of it goes into a page: the downloads have everything.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from evalhouse.flows.display.frames import write_cell
from evalhouse.flows.display.output import write_json
from evalhouse.flows.ui.pages import link

MOST_SHOWN: Final = 1000
"""Rows in a page, where they are not so wide that they have more than `MOST_CELLS`."""
MOST_CELLS: Final = 30_000
LONG: Final = 160
"""Characters of a text before it is folded."""
_MOST_WHOLE: Final = 1_000_000  # characters of folded texts in a page; of what comes later only the beginning is there
_RUN_ID = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_KINDS: Final[Mapping[str, Callable[[pl.DataType], bool]]] = {
    "whole number": lambda dtype: dtype.is_integer(),
    "number": lambda dtype: dtype.is_numeric(),
    "time": lambda dtype: dtype.is_temporal(),
    "struct": lambda dtype: dtype == pl.Struct,
    "list": lambda dtype: dtype.is_nested(),
    "yes or no": lambda dtype: dtype == pl.Boolean,
    "bytes": lambda dtype: dtype == pl.Binary,
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value: `text` is what is seen of it, None for NULL; `whole` is there where the text is cut, unless the page has
    enough of them already; `n` is how many characters it has."""

    text: str | None
    whole: str | None = None
    n: int = 0
    address: str | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column by its name, and the kind of its values in words."""

    name: str
    kind: str

    @property
    def is_number(self) -> bool:
        """Whether it is set to the right."""
        return self.kind.endswith("number")


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """The first rows of a result."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def lay_result(frame: pl.DataFrame) -> ResultTable:
    """The result as it is shown; run ids and the samples beside them lead to their pages."""
    columns = [Column(name=name, kind=_name_kind(dtype)) for name, dtype in frame.schema.items()]
    room = _Room()
    rows = [
        [_lay_cell(name, value, row, room) for name, value in row.items()]
        for row in frame.head(min(MOST_SHOWN, max(1, MOST_CELLS // max(1, frame.width)))).iter_rows(named=True)
    ]
    return ResultTable(columns=columns, rows=rows)


class _Room:
    """How many characters of folded texts still fit into the page."""

    def __init__(self) -> None:
        self.left = _MOST_WHOLE

    def keep(self, text: str) -> str | None:
        """The text, if it fits."""
        if len(text) > self.left:
            return None
        self.left -= len(text)
        return text


def _lay_cell(name: str, value: object, row: Mapping[str, object], room: _Room) -> Cell:
    if value is None:
        return Cell(text=None)
    text = write_cell(value)
    address = _find_page(name, value, row)
    if len(text) <= LONG:
        return Cell(text=text, address=address)
    whole = write_json(value) if isinstance(value, list | dict) else text
    return Cell(text=text[:LONG], whole=room.keep(whole), n=len(text), address=address)


def _find_page(name: str, value: object, row: Mapping[str, object]) -> str | None:
    """Where a run or a sample is shown, by the names that all our tables and views give to their ids."""
    run = value if name.endswith("run_id") else row.get("run_id")
    if not (isinstance(value, str) and isinstance(run, str) and _RUN_ID.fullmatch(run)):
        return None
    if name.endswith("run_id"):
        return link(f"/runs/{run}")
    return link(f"/runs/{run}/sample", id=value) if name == "sample_id" and value else None


def _name_kind(dtype: pl.DataType) -> str:
    return next((kind for kind, fits in _KINDS.items() if fits(dtype)), "text")
