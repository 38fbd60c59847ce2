r"""What a person may type: one SELECT, `\d`, or `\d NAME`; answered alike at the command line and in the browser."""

import re
import threading
from datetime import date
from pathlib import Path

import polars as pl

from evalhouse.warehouse.errors import QueryError
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.sandbox.catalog import Catalog, read_catalog
from evalhouse.warehouse.sandbox.query import run_query

_DESCRIBE = re.compile(r'\s*\\d(?:\s+"?([^\s;"]+)"?)?\s*;?\s*')
_DAY_S = 86_400
_PER_DAY = {"ms": _DAY_S * 10**3, "us": _DAY_S * 10**6, "ns": _DAY_S * 10**9}
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH


def answer_statement(
    location: Location,
    text: str,
    *,
    timeout_s: float,
    memory_limit: str | None = None,
    stop: threading.Event | None = None,
    most_rows: int | None = None,
    spill: Path | None = None,
) -> pl.DataFrame:
    r"""The rows of a SELECT, no more than `most_rows`, or of `\d`; raises what `run_query` and `read_catalog` raise."""
    if match := _DESCRIBE.fullmatch(text):
        return _describe(read_catalog(location), match[1])
    frame = run_query(
        location, text, timeout_s=timeout_s, memory_limit=memory_limit, stop=stop, most_rows=most_rows, spill=spill
    )
    _check_times(frame)
    return _shrink_sums(frame)


def _describe(catalog: Catalog, name: str | None) -> pl.DataFrame:
    """A row per table and view, or per column of the one that is named, each with its comment."""
    if name is None:
        columns = ["name", "kind", "comment"]
        rows = [[entry.name, entry.kind, entry.comment] for entry in catalog.relations]
    else:
        columns = ["column", "type", "comment"]
        rows = [[entry.name, entry.type, entry.comment] for entry in catalog.find(name).columns]
    return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")


def _check_times(frame: pl.DataFrame) -> None:
    """Raise QueryError for a time that Python has not: DuckDB's go far beyond the year 9999, and to infinity."""
    for name, dtype in frame.schema.items():
        if isinstance(dtype, pl.Date | pl.Datetime):
            per_day = _PER_DAY[dtype.time_unit] if isinstance(dtype, pl.Datetime) else 1
            days = frame[name].to_physical() // per_day
            if not days.drop_nulls().is_between(_FIRST_DAY, _LAST_DAY).all():
                raise QueryError(
                    f"column {name!r} holds a time outside of the years 1 to 9999, or an infinite one; "
                    "write it as text: ::varchar"
                )


def _shrink_sums(frame: pl.DataFrame) -> pl.DataFrame:
    """Sums of whole numbers as whole numbers: DuckDB gives 128 bits for them, which come as decimals."""
    sums = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Decimal) and dtype.scale == 0]
    whole = {name: frame[name].cast(pl.Int64, strict=False) for name in sums}
    fitting = [series for name, series in whole.items() if series.null_count() == frame[name].null_count()]
    return frame.with_columns(fitting)
