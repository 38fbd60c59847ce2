"""Result sets: what a query returns over a sample's own tables, and how far two sets of rows agree.

Queries run in a DuckDB in memory that holds the sample's tables and nothing else, shut in as `query` is: no file, no
network, no settings, one SELECT, a limit on time and memory. Rows are compared as values, so that two queries of
different wording, column names or number types can agree.
"""

import datetime
import decimal
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
from rapidfuzz.distance import LCSseq
from scipy.optimize import linear_sum_assignment

TIMEOUT_S = 20.0
_MEMORY = "512MB"
_FILES = {
    ".csv": "read_csv",
    ".tsv": "read_csv",
    ".parquet": "read_parquet",
    ".json": "read_json",
    ".jsonl": "read_json",
}
# Numbers that differ by less than a part in a thousand million are one: sums in another order differ that much.
_DIGITS = 9

Cell = Any
TableSource = Mapping[str, Any] | Sequence[Mapping[str, Any]] | str


class TableError(ValueError):
    """A table of a sample is in no shape that is known; the text says what came and what is read."""


@dataclass(frozen=True, kw_only=True)
class ResultSet:
    """Columns and rows in order."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Shares from 0 to 1 of the expected rows and columns that were returned, and of the returned that were expected.

    `in_order` is the share of rows that agree in the same order, of the longer set. `note` says in words what differs.
    """

    row_precision: float
    row_recall: float
    column_precision: float
    column_recall: float
    in_order: float
    note: str

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall of cells, each that of rows times that of columns."""
        precision = self.row_precision * self.column_precision
        recall = self.row_recall * self.column_recall
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def read_rows(source: object, name: str) -> ResultSet:
    """Rows given as a list of objects, or as {"columns": [...], "rows": [[...], ...]}; raises TableError."""
    if isinstance(source, list) and all(isinstance(row, dict) for row in source):
        columns = tuple(dict.fromkeys(key for row in source for key in row))
        return ResultSet(columns=columns, rows=tuple(tuple(row.get(key) for key in columns) for row in source))
    if isinstance(source, dict) and isinstance(source.get("columns"), list) and isinstance(source.get("rows"), list):
        columns, rows = tuple(map(str, source["columns"])), source["rows"]
        if all(isinstance(row, list) and len(row) == len(columns) for row in rows):
            return ResultSet(columns=columns, rows=tuple(map(tuple, rows)))
    raise TableError(
        f'{name} is {str(source)[:80]!r}; it must be a list of objects, or {{"columns": […], "rows": [[…], …]}} with '
        "as many cells in each row as there are columns"
    )


def run_on_tables(
    sql: str, tables: Mapping[str, TableSource], *, setup: str = "", timeout_s: float = TIMEOUT_S
) -> ResultSet:
    """What `sql` returns over `tables` (rows, or a path to CSV, Parquet or JSON) and whatever `setup` has made.

    `setup` is a script of CREATE and INSERT statements. Raises QueryError when the query fails, is refused or takes too
    long, and TableError when a table or the script is at fault.
    """
    # Imported here: it needs this package's connections, which this module does without.
    from warehouse.query import run_shut_in  # noqa: PLC0415

    settings: dict[str, Any] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False, "threads": 1}
    with duckdb.connect(":memory:", config=settings) as connection:
        for name, source in tables.items():
            _lay_table(connection, name, source)
        if setup:
            _set_up(connection, setup)
        frame = run_shut_in(connection, sql, timeout_s=timeout_s, memory_limit=_MEMORY)
    return ResultSet(columns=tuple(frame.columns), rows=tuple(frame.rows()))


def compare_result_sets(expected: ResultSet, made: ResultSet) -> Agreement:
    """How far two sets agree.

    - Types: numbers of any type are equal by value, to nine digits; a date is midnight of its day; true is not 1.
    - NULLs are equal to each other, as are NaNs.
    - Columns are paired by name first, whatever the case, then by what they hold; their order is of no matter.
    - A row counts as often as it comes. Rows are compared by the paired columns alone.

    >>> ab = ResultSet(columns=("a", "b"), rows=((1, "x"), (2, "y")))
    >>> ba = ResultSet(columns=("n", "a"), rows=(("y", 2.0), ("x", 1.0)))
    >>> agreement = compare_result_sets(ab, ba)
    >>> agreement.f1, agreement.in_order
    (1.0, 0.5)
    """
    pairs = _pair_columns(expected, made)
    wanted = [tuple(_settle(row[one]) for one, _ in pairs) for row in expected.rows]
    given = [tuple(_settle(row[other]) for _, other in pairs) for row in made.rows]
    # Without one common column no row agrees, but two sets without rows and columns are the same set.
    common = (Counter(wanted) & Counter(given)).total() if pairs else 0
    longer = max(len(wanted), len(given))
    in_order = LCSseq.similarity(_number(wanted, given)[0], _number(wanted, given)[1]) if pairs else 0
    return Agreement(
        row_precision=_share(common, len(given)) if given or not wanted else 0.0,
        row_recall=_share(common, len(wanted)) if wanted or not given else 0.0,
        column_precision=_share(len(pairs), len(made.columns)),
        column_recall=_share(len(pairs), len(expected.columns)),
        in_order=_share(in_order, longer),
        note=_describe(expected, made, pairs, common),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _lay_table(connection: duckdb.DuckDBPyConnection, name: str, source: TableSource) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    try:
        if isinstance(source, str):
            reader = _FILES.get(Path(source).suffix.lower())
            if reader is None:
                raise TableError(f"table {name!r} is at {source!r}; files may end in {', '.join(_FILES)}")
            connection.execute(f"create table {quoted} as select * from {reader}(?)", [source])
            return
        rows = read_rows(source, f"table {name!r}")
        frame = pl.DataFrame(rows.rows, schema=list(rows.columns), orient="row", infer_schema_length=None)
        connection.register("given_rows", frame)
        connection.execute(f"create table {quoted} as select * from given_rows")
        connection.unregister("given_rows")
    except (duckdb.Error, pl.exceptions.PolarsError, TypeError) as error:
        raise TableError(f"table {name!r} cannot be made: {str(error).splitlines()[0]}") from None


def _set_up(connection: duckdb.DuckDBPyConnection, script: str) -> None:
    connection.execute("set enable_external_access = false")
    try:
        connection.execute(script)
    except duckdb.Error as error:
        raise TableError(f"the set-up script failed: {str(error).splitlines()[0]}") from None


def _pair_columns(expected: ResultSet, made: ResultSet) -> list[tuple[int, int]]:
    """Places of columns that belong together: of one name, then those that share most of their values."""
    free = list(range(len(made.columns)))
    pairs, left = [], []
    for place, name in enumerate(expected.columns):
        same = next((other for other in free if made.columns[other].casefold() == name.casefold()), None)
        if same is None:
            left.append(place)
        else:
            free.remove(same)
            pairs.append((place, same))
    if left and free:
        alike = np.array([[_alike(expected, one, made, other) for other in free] for one in left])
        rows, columns = linear_sum_assignment(alike, maximize=True)
        pairs += [(left[row], free[column]) for row, column in zip(rows, columns, strict=True) if alike[row, column]]
    return sorted(pairs)


def _alike(expected: ResultSet, one: int, made: ResultSet, other: int) -> float:
    """The share of values two columns have in common, of the longer; 1 when neither has any."""
    wanted = Counter(_settle(row[one]) for row in expected.rows)
    given = Counter(_settle(row[other]) for row in made.rows)
    return _share((wanted & given).total(), max(wanted.total(), given.total()))


def _settle(value: Cell) -> Cell:
    """A value in the form it is compared in, hashable."""
    settled: Cell = str(value)
    kind = type(value).__name__
    match value:
        case None | bool() | bytes():
            settled = value
        case int() | float() | decimal.Decimal():
            number = float(value)
            kind, settled = "number", float(f"{number:.{_DIGITS}g}") if math.isfinite(number) else str(number)
        case datetime.datetime():
            kind, settled = "time", value.replace(tzinfo=None).isoformat()
        case datetime.date():
            kind, settled = "time", datetime.datetime.combine(value, datetime.time()).isoformat()
        case list() | tuple():
            kind, settled = "list", tuple(map(_settle, value))
        case dict():
            kind, settled = "struct", tuple(sorted((str(key), _settle(inner)) for key, inner in value.items()))
    return kind, settled


def _number(wanted: Sequence[Cell], given: Sequence[Cell]) -> tuple[list[int], list[int]]:
    """Rows as numbers, equal rows with one number: what a subsequence can be found in."""
    numbers: dict[Cell, int] = {}
    first, second = ([numbers.setdefault(row, len(numbers)) for row in rows] for rows in (wanted, given))
    return first, second


def _describe(expected: ResultSet, made: ResultSet, pairs: Sequence[tuple[int, int]], common: int) -> str:
    told = [f"{common} of {len(expected.rows)} expected and {len(made.rows)} returned rows agree"]
    missing = [name for place, name in enumerate(expected.columns) if place not in {one for one, _ in pairs}]
    extra = [name for place, name in enumerate(made.columns) if place not in {other for _, other in pairs}]
    told += [f"missing columns: {', '.join(missing)}"] if missing else []
    told += [f"extra columns: {', '.join(extra)}"] if extra else []
    return "; ".join(told)
