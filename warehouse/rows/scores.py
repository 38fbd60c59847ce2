"""Scores: each metric's SQL over the verdicts of one run, written as one transaction."""

from collections.abc import Mapping, Sequence

import duckdb

from evalhouse.warehouse.engine.connection import first_line
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.metric_files import MetricFile, SettledMetric, settle_metrics
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse

_PAIRS = "select run_id, parent_run_id from runs where kind = 'noise' and (run_id = $run_id or parent_run_id = $run_id)"

MetricSettings = Mapping[str, Mapping[str, float]]


def score_run(warehouse: Warehouse, run_id: str, metrics: Sequence[MetricFile], settings: MetricSettings) -> None:
    """Replace the scores of these metrics for one run, and what `noise` has of it; raises WarehouseError that names a
    metric whose SQL fails.

    `settings` gives parameters by metric where they differ from the file's own.
    """
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        connection.execute(
            "delete from scores where run_id = ? and metric in (select unnest(?::varchar[]))",
            [run_id, [metric.name for metric in metrics]],
        )
        for settled in settle_metrics(metrics, settings):
            _score_metric(connection, run_id, settled)
        connection.execute("drop table if exists metric_scores")
        note_noise(connection, run_id)


def _score_metric(connection: duckdb.DuckDBPyConnection, run_id: str, settled: SettledMetric) -> None:
    metric, parameters = settled.metric, {"run_id": run_id, **settled.parameters}
    try:
        connection.execute(f"create or replace temp table metric_scores as\n{metric.sql}", parameters)
        faults = connection.sql(read_query("runs/score_faults"), params={"run_id": run_id}).pl().row(0, named=True)
    except duckdb.Error as error:
        raise WarehouseError(f"metric {metric.name!r} failed: {first_line(str(error))}") from None
    for fault, number in faults.items():
        if number:
            raise WarehouseError(
                f"metric {metric.name!r} gave {number} {fault}; its SQL must give one row per sample of the run, "
                "with a value or else an unscored_reason"
            )
    connection.execute(
        """
        insert into scores by name
        select
            $run_id as run_id, sample_id, $metric as metric, value, unscored_reason, $version as metric_version,
            $better as better
        from metric_scores
        """,
        {
            "run_id": run_id,
            "metric": metric.name,
            "version": settled.version,
            "better": metric.better,
        },
    )


def note_noise(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Write the rows of `noise` again for every pair of a run and a noise run that this run is one of."""
    for noise_run_id, parent_run_id in connection.execute(_PAIRS, {"run_id": run_id}).fetchall():
        connection.execute("delete from noise where noise_run_id = ?", [noise_run_id])
        connection.execute(read_query("noise/write"), {"run_id": parent_run_id, "noise_run_id": noise_run_id})
