"""A warehouse that an older evalhouse wrote last, read as if it had today's shape.

Only what writes migrates: whoever looks at a warehouse must not change it, and may not be allowed to. So for one query
today's tables and views are laid over it as temporary views, which go with the transaction they are made in, or, where
more queries follow on the same connection, with that: a table with the columns it lacks, empty but for those that a
migration fills from others, and on top of them all views that the query reads, for old and new ones do not go together.
To lay all of them takes half a second.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from weakref import WeakKeyDictionary

import duckdb

from evalhouse.warehouse.engine.connection import is_kept
from evalhouse.warehouse.engine.migrate import apply_migrations, load_migrations
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.metric_files import view_scripts
from evalhouse.warehouse.queries import read_query

Columns = dict[str, dict[str, str]]
"""By table the type of each column."""
# What migrations fill in: columns by an expression over their table, and tables by a select.
_FILLED_COLUMNS = ("kind", "better", "minimum")
_FILLED_TABLES = ("gate_decisions",)
_laid: WeakKeyDictionary[duckdb.DuckDBPyConnection, set[str]] = WeakKeyDictionary()


@contextmanager
def as_of_today(connection: duckdb.DuckDBPyConnection, sql: str) -> Iterator[None]:
    """Within this an older warehouse has today's shape, as far as this query of our own reads it."""
    if connection in _laid or is_kept(connection):
        if connection not in _laid:
            _lay_tables(connection)
            _laid[connection] = set()
        _lay_views(connection, sql, _laid[connection])
        yield
        return
    connection.begin()
    try:
        _lay_tables(connection)
        _lay_views(connection, sql, set())
        yield
    finally:
        connection.rollback()


def _lay_tables(connection: duckdb.DuckDBPyConnection) -> None:
    ((database,),) = connection.execute("""select '"' || replace(current_database(), '"', '""') || '"'""").fetchall()
    there = _read_columns(connection)
    # What is filled from other tables comes after these.
    for table, columns in sorted(_list_columns().items(), key=lambda item: item[0] in _FILLED_TABLES):
        if columns.keys() - there.get(table, {}).keys():
            rows = _select(table, columns, there.get(table), f"{database}.main")
            connection.execute(f"create temp view {table} as {rows}")


def _lay_views(connection: duckdb.DuckDBPyConnection, sql: str, laid: set[str]) -> None:
    """Those that are not laid yet and that the query names, or a view that it names."""
    words = set(re.findall(r"\w+", sql))
    wanted = []
    for script in reversed(view_scripts()):
        if script.name in words:
            words.update(re.findall(r"\w+", script.sql))
            wanted.append(script)
    for script in reversed(wanted):
        if script.name not in laid:
            statement = connection.extract_statements(script.sql)[0].query
            connection.execute(statement.replace("create or replace view", "create temp view", 1))
            laid.add(script.name)


def _select(table: str, columns: dict[str, str], there: dict[str, str] | None, schema: str) -> str:
    if there is None and table in _FILLED_TABLES:
        return read_query(f"upkeep/older_{table}")
    added = ", ".join(
        f"{read_query(f'upkeep/older_{name}') if there and name in _FILLED_COLUMNS else f'null::{kind}'} as {name}"
        for name, kind in columns.items()
        if name not in (there or {})
    )
    # A view has no rowid of its own, and queries of long texts go by it.
    return f"select *, rowid, {added} from {schema}.{table}" if there else f"select {added} where false"


@cache
def _list_columns() -> Columns:
    with duckdb.connect() as connection:
        apply_migrations(connection, parse_location("unused.duckdb"), load_migrations(), views=False)
        return _read_columns(connection)


def _read_columns(connection: duckdb.DuckDBPyConnection) -> Columns:
    columns: Columns = {}
    for table, column, kind in connection.execute(read_query("upkeep/columns")).fetchall():
        columns.setdefault(table, {})[column] = kind
    return columns
