"""Rows of a table in somebody's DuckDB file, which may be a bot's own log: read in batches, nothing changed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import duckdb

from evalhouse.warehouse.engine.connection import open_reader
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.location import Location

TableSourceReason = Literal["locked", "not_duckdb", "no_table", "unreadable"]
# DuckDB would otherwise keep up to four fifths of the machine's memory as a cache of pages that are read once.
_SET_MEMORY = "set memory_limit = '256MB'"
_LIST_TABLES = "select schema, name from (show all tables) order by all"


class TableSourceError(Exception):
    """A table that cannot be read; `reason` says why, `tables` what there is instead (for `no_table`)."""

    def __init__(self, reason: TableSourceReason, detail: str, *, tables: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.reason = reason
        self.tables = tables


def read_table(
    path: Path, table: str, *, batch_size: int, patience_s: float = 5.0
) -> Iterator[list[dict[str, object]]]:
    """Yield the rows of `table` (`name` or `schema.name`, a view as well) as dictionaries.

    A file that another process writes is waited for `patience_s` seconds. The iterator holds a lock of the
    thread it is started in: start, drive and close it there. Raises TableSourceError.
    """
    try:
        with open_reader(Location(path=path.absolute()), patience_s=patience_s) as connection:
            connection.execute(_SET_MEMORY)
            rows = connection.sql(f"select * from {_find_table(connection, table)}")
            columns = rows.columns
            while batch := rows.fetchmany(batch_size):
                yield [dict(zip(columns, row, strict=True)) for row in batch]
    except WarehouseBusy as error:
        raise TableSourceError("locked", str(error)) from error
    except WarehouseError as error:
        raise TableSourceError("not_duckdb", str(error)) from error
    except duckdb.Error as error:
        raise TableSourceError("unreadable", str(error).splitlines()[0]) from error


def _find_table(connection: duckdb.DuckDBPyConnection, table: str) -> str:
    """The table as SQL names it. A person leaves out the schema where it is `main`."""
    identifiers = {
        name if schema == "main" else f"{schema}.{name}": f"{_quote(schema)}.{_quote(name)}"
        for schema, name in connection.sql(_LIST_TABLES).fetchall()
    }
    try:
        return identifiers[table.removeprefix("main.")]
    except KeyError:
        raise TableSourceError("no_table", f"no table {table!r}", tables=tuple(identifiers)) from None


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
