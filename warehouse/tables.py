"""A batch of rows that are written together or not at all, and the columns of its tables as Polars types.

The migrations define the tables; a test keeps `tables.toml` equal to them. It exists so that a batch has the right
types before any DuckDB file is open, even when a column is all NULL or the batch goes to the spool. The tables of
verdicts are defined with the steps that write them (`steps`).
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

import polars as pl

from evalhouse.warehouse import messages, steps
from evalhouse.warehouse.steps import ColumnType

_TYPES: Mapping[ColumnType, pl.DataType | type[pl.DataType]] = {
    "text": pl.String, "integer": pl.Int32, "long": pl.Int64, "hash": pl.UInt64, "number": pl.Float64,
    "boolean": pl.Boolean, "integers": pl.List(pl.Int32), "texts": pl.List(pl.String), "time": pl.Datetime("us"),
}  # fmt: skip
_COLUMNS = tomllib.loads(files("evalhouse.warehouse").joinpath("tables.toml").read_text(encoding="utf-8"))
TABLES: dict[str, dict[str, pl.DataType | type[pl.DataType]]] = {
    table: {name: _TYPES[kind] for name, kind in columns.items()} for table, columns in _COLUMNS.items()
}
for _table in steps.VERDICT_TABLES:
    _columns = {name: _TYPES[kind] for name, kind in _table.columns.items()}
    TABLES[_table.name] = {"run_id": pl.String, "sample_id": pl.String, **_columns, "call_id": pl.String}
VERDICT_TABLES = (*(table.name for table in steps.VERDICT_TABLES), "outcomes")
"""The tables that the steps write, a shard's rows at a time."""


Frames = Mapping[str, pl.DataFrame]
"""Rows by table."""


def build_frame(table: str, rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Return rows as a frame with the table's columns, without secrets; raises KeyError for an unknown column."""
    columns = TABLES[table]
    if rows and messages.noted:
        rows = messages.hide_in_rows(rows)
    for row in rows:
        if not row.keys() <= columns.keys():
            raise KeyError(f"{table} has no column {', '.join(sorted(row.keys() - columns.keys()))}")
    return pl.DataFrame(
        {name: pl.Series(name, [row.get(name) for row in rows], dtype=dtype) for name, dtype in columns.items()}
    )


def build_verdict_frames(run_id: str, rows: Sequence[Mapping[str, Sequence[Mapping[str, object]]]]) -> Frames:
    """Return a frame for each of VERDICT_TABLES; `rows` has the rows of each sample by table."""
    return {
        table: build_frame(table, [{"run_id": run_id, **row} for of_sample in rows for row in of_sample[table]])
        for table in VERDICT_TABLES
    }


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Frames by table name under a key that makes a second writing harmless.

    `run_id` is None for rows of no run. `replaces` names samples of the run whose rows in these tables are deleted in
    the same transaction, for a run that is resumed.
    """

    key: str
    run_id: str | None
    tables: Frames = field(default_factory=dict)
    replaces: tuple[str, ...] = ()
