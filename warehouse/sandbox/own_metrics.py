"""The metrics of users' own files: their SQL is tried before a run and computed after it, in the query process."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import duckdb
import polars as pl

from evalhouse.warehouse.engine.connection import open_reader
from evalhouse.warehouse.engine.migrate import apply_migrations, load_migrations
from evalhouse.warehouse.errors import QueryError, WarehouseError
from evalhouse.warehouse.location import Location, parse_location
from evalhouse.warehouse.metric_files import MetricFile, SetMetric, set_metrics
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.sandbox.query import limiting_time
from evalhouse.warehouse.sandbox.query_process import run_apart

_TIMEOUT_S: Final = 300.0
_TRIAL_TIMEOUT_S: Final = 20.0
_MEMORY_MB: Final = 1000
_PATIENCE_S: Final = 60.0  # while another process writes


def try_metrics(metrics: Sequence[MetricFile], settings: Mapping[str, Mapping[str, float]]) -> None:
    """Let metrics score a run of an empty warehouse; raises WarehouseError for the first whose SQL cannot do it.

    What depends on the data, such as an infinite quotient, shows only when a run is scored.
    """
    for metric in set_metrics(metrics, settings):
        parameters = {"run_id": "scratch", **metric.parameters}
        try:
            found = run_apart(
                find_faults,
                timeout_s=_TRIAL_TIMEOUT_S,
                memory_mb=_MEMORY_MB,
                sql=metric.file.sql,
                parameters=parameters,
            )
            faults = found["fault"].to_list()
        except QueryError as error:
            faults = [str(error)]
        if faults:
            raise WarehouseError(
                f"{metric.file.place}: {faults[0]}; its SELECT was tried on an empty warehouse, before anything "
                "was asked, and has to give run_id, sample_id, value (a number) and unscored_reason (text)"
            )


def select_apart(location: Location, run_id: str, metric: SetMetric, n_samples: int) -> pl.DataFrame:
    """Return the rows of a metric for a run: sample_id, value, unscored_reason; raises WarehouseError that names it."""
    try:
        return run_apart(
            select_scores,
            timeout_s=_TIMEOUT_S,
            memory_mb=max(_MEMORY_MB, n_samples // 1000),
            max_bytes=None,
            location=location,
            sql=metric.file.sql,
            parameters={"run_id": run_id, **metric.parameters},
        )
    except QueryError as error:
        raise WarehouseError(f"metric {metric.file.name!r} ({metric.file.place}) failed: {error}") from None


def find_faults(
    sql: str, parameters: Mapping[str, object], *, timeout_s: float, memory_mb: int, spill: Path
) -> pl.DataFrame:
    """Return a row for each `fault` in the columns that a metric's SQL gives of an empty warehouse; raises QueryError.

    It is called in the query process.
    """
    with _open_empty().cursor() as connection:
        _set_limits(connection, memory_mb, spill)
        with limiting_time(connection, sql, timeout_s):
            connection.execute(f"create or replace temp table metric_scores as\n{sql}", dict(parameters))
            return connection.sql(read_query("runs/score_types")).pl()


def select_scores(
    location: Location,
    sql: str,
    parameters: Mapping[str, object],
    *,
    timeout_s: float,
    memory_mb: int,
    spill: Path,
) -> pl.DataFrame:
    """Return the rows of a metric's SQL; raises QueryError. It is called in the query process."""
    with open_reader(location, patience_s=_PATIENCE_S, is_own=True) as connection:
        _set_limits(connection, memory_mb, spill)
        with limiting_time(connection, sql, timeout_s):
            connection.execute(f"create or replace temp table metric_scores as\n{sql}", dict(parameters))
            return connection.sql(
                "select sample_id::varchar as sample_id, value::double as value, "
                "unscored_reason::varchar as unscored_reason from metric_scores"
            ).pl()


def _set_limits(connection: duckdb.DuckDBPyConnection, memory_mb: int, spill: Path) -> None:
    connection.execute("set temp_directory = $folder", {"folder": str(spill)})
    connection.execute(f"set memory_limit = '{memory_mb}MB'")
    connection.execute("set python_enable_replacements = false")


@cache
def _open_empty() -> duckdb.DuckDBPyConnection:
    """An empty warehouse in memory, made once: to make it takes longer than to try all metrics."""
    connection = duckdb.connect()
    apply_migrations(connection, parse_location("scratch.duckdb"), load_migrations())
    return connection
