"""Scores: each metric's SQL over the verdicts of one run, written as one transaction."""

from collections.abc import Mapping, Sequence

import duckdb

from warehouse.errors import WarehouseError
from warehouse.metric_files import MetricFile, metric_version
from warehouse.store import FLUSH_PATIENCE_S, Warehouse

MetricSettings = Mapping[str, Mapping[str, float]]


def score_run(warehouse: Warehouse, run_id: str, metrics: Sequence[MetricFile], settings: MetricSettings) -> None:
    """Replace the scores of these metrics for one run; raises WarehouseError that names a metric whose SQL fails.

    `settings` gives parameters by metric where they differ from the file's own.
    """
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S) as connection:
        for metric in metrics:
            _score_metric(connection, run_id, metric, settings.get(metric.name, {}))


def _score_metric(
    connection: duckdb.DuckDBPyConnection, run_id: str, metric: MetricFile, settings: Mapping[str, float]
) -> None:
    parameters = {**metric.parameters, **settings}
    connection.execute("delete from scores where run_id = ? and metric = ?", [run_id, metric.name])
    try:
        connection.execute(
            f"""
            insert into scores by name
            select run_id, sample_id, $metric_name as metric, value, unscored_reason,
                   $metric_version as metric_version
            from ({metric.sql.rstrip().rstrip(";")})
            """,
            {
                "run_id": run_id,
                "metric_name": metric.name,
                "metric_version": metric_version(metric, settings),
                **parameters,
            },
        )
    except duckdb.Error as error:
        raise WarehouseError(f"metric {metric.name!r} failed: {error}") from None
