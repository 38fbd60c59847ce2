"""`query`: a person's SQL over the warehouse, read-only and shut in.

One SELECT or EXPLAIN on a read-only connection that can reach no other file, no network and no Python object,
cannot change its own settings, and is stopped when it takes too long.
"""

import threading

import duckdb
import polars as pl

from warehouse.connection import open_reader
from warehouse.errors import QueryError
from warehouse.location import Location

_ALLOWED = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
_SANDBOX = (
    "set python_enable_replacements = false",
    "set enable_external_access = false",
    "set lock_configuration = true",
)


def run_query(
    location: Location, sql: str, *, timeout_s: float = 300.0, memory_limit: str | None = None
) -> pl.DataFrame:
    """Run one statement and return its rows; raises QueryError with DuckDB's own words where it has some."""
    with open_reader(location) as connection:
        _check_statement(connection, sql)
        if memory_limit:
            _set_memory_limit(connection, memory_limit)
        for setting in _SANDBOX:
            connection.execute(setting)
        return _run_timed(connection, sql, timeout_s)


def _check_statement(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryError(f"that is no SQL DuckDB understands: {error}") from None
    if len(statements) != 1:
        raise QueryError(f"got {len(statements)} statements; query takes exactly one SELECT")
    kind = statements[0].type
    if kind not in _ALLOWED:
        raise QueryError(f"got a statement of kind {kind.name}; the warehouse is read-only here: write one SELECT")


def _set_memory_limit(connection: duckdb.DuckDBPyConnection, memory_limit: str) -> None:
    try:
        connection.execute("set memory_limit = $limit", {"limit": memory_limit})
    except duckdb.Error as error:
        raise QueryError(f"{memory_limit!r} is no memory limit; write for example 2GB: {error}") from None


def _run_timed(connection: duckdb.DuckDBPyConnection, sql: str, timeout_s: float) -> pl.DataFrame:
    timer = threading.Timer(timeout_s, connection.interrupt)
    timer.daemon = True
    timer.start()
    try:
        return connection.sql(sql).pl()
    except duckdb.InterruptException:
        raise QueryError(f"the query was stopped after {timeout_s:g} s; narrow it or raise --timeout") from None
    except duckdb.Error as error:
        raise QueryError(str(error)) from None
    finally:
        timer.cancel()
