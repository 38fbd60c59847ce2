"""The chart beside a query's result: by the types of its columns, or by those that the address names.

Times and numbers make lines, names and numbers bars, one number alone its distribution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl
import polars.selectors

from evalhouse.flows.display.output import clean_text
from evalhouse.flows.report.charts import MOST_POINTS, MOST_SERIES, Chart, draw_distribution, draw_result

SPREAD: Final = "-"
"""In place of a column across: how often the values of the other come."""
_MOST_BARS: Final = 40


@dataclass(frozen=True, kw_only=True)
class ResultChart:
    """A chart with the columns that it could have been made of; `note` says what it leaves out."""

    chart: Chart | None
    x: str
    y: str
    xs: Sequence[str]
    ys: Sequence[str]
    note: str = ""


def chart_result(frame: pl.DataFrame, x: str, y: str) -> ResultChart | None:
    """The chart of columns `x` and `y`, each "" for a choice by types; None where there is nothing to draw."""
    ys = [name for name, dtype in frame.schema.items() if dtype.is_numeric()]
    times = [name for name, dtype in frame.schema.items() if dtype in (pl.Date, pl.Datetime)]
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    # The first is the default: one in which each row has a name of its own, before one that only has some.
    texts = sorted(texts, key=lambda name: (frame[name].n_unique() < frame.height, frame[name].n_unique() == 1))
    xs = [*times, *texts, *(ys if len(ys) > 1 else ())]
    if not ys or frame.height < 2:
        return None
    unknown = [name for name, known in ((x, [*xs, SPREAD, ""]), (y, [*ys, ""])) if name not in known]
    if unknown:
        x, y = "", ""
    across = x or (xs[0] if xs else SPREAD)
    if across == SPREAD:
        y = y or ys[0]
        numbers = _list_numbers(frame[y])
        chart = draw_distribution(numbers, of=clean_text(y), unit="row") if numbers else None
    else:
        drawn = [y] if y and y != across else [name for name in ys if name != across]
        by = _find_split(frame, across, texts) if across in times else None
        # Where a time comes once for each name, lines of all numbers would jump from name to name.
        names = [across, drawn[0], by] if by else [across, *drawn]
        chart = _draw_columns(frame.select(names).head(_count_drawn(frame, across)))
    if chart is None and not (x or y or unknown):
        return None
    note = f"there is no column {unknown[0]!r} here to draw" if unknown else _note_rest(frame, across)
    return ResultChart(chart=chart, x=x, y=y, xs=xs, ys=ys, note=note)


def _find_split(frame: pl.DataFrame, across: str, texts: Sequence[str]) -> str | None:
    """The column of few names that tells rows of one time apart; None where each has a time of its own."""
    if not frame[across].is_duplicated().any():
        return None
    few = (name for name in texts if frame[name].n_unique() <= MOST_SERIES)
    return next((name for name in few if not frame.select(across, name).is_duplicated().any()), None)


def _draw_columns(frame: pl.DataFrame) -> Chart | None:
    """A chart of the columns; of numbers as a browser has them, and times as UTC."""
    there = frame.with_columns(
        pl.selectors.numeric().cast(pl.Float64),
        pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC").dt.replace_time_zone(None),
    )
    return draw_result({clean_text(name): column.to_list() for name, column in there.to_dict().items()})


def _count_drawn(frame: pl.DataFrame, across: str) -> int:
    return min(frame.height, _MOST_BARS if frame[across].dtype == pl.String else MOST_POINTS)


def _note_rest(frame: pl.DataFrame, across: str) -> str:
    n = frame.height if across == SPREAD else _count_drawn(frame, across)
    return f"the first {n:,} rows" if n < frame.height else ""


def _list_numbers(column: pl.Series) -> list[float]:
    return [float(value) for value in column.drop_nulls() if math.isfinite(value)]
