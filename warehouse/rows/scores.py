"""Scores, by each metric's SQL over a run's verdicts, queries of the rows derived from them, and the judge's noise.

A noise run is a row of `runs` of kind noise with calls, verdicts and scores over some samples of its parent, judged
again. The table `noise` follows the scores: whenever parent or noise run are scored, its rows are written again.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal

import duckdb
import polars as pl

from evalhouse.warehouse.engine.connection import explain_failure
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseUnwritable, first_line
from evalhouse.warehouse.metric_files import MetricFile, SetMetric, set_metrics
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.samples import FAILURE_REASONS
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse, derive, list_later


def write_no_noise(warehouse: Warehouse, run_id: str) -> None:
    """Record that a run's judge is deterministic: rows of `noise` that name the run itself."""
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        connection.execute("delete from noise where noise_run_id = ?", [run_id])
        connection.execute(read_query("noise/write_none"), {"run_id": run_id})


def find_previous(warehouse: Warehouse, run_id: str) -> str | None:
    """Return the evaluation before this one in its series that came to an end."""
    rows = warehouse.fetch_rows("history/previous", run_id=run_id)
    return rows[0]["run_id"] if rows else None


def copy_samples(warehouse: Warehouse, *, run_id: str, again_run_id: str, sample_ids: Collection[str]) -> None:
    """Copy samples of a parent to a run that judges or asks them again."""
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=again_run_id) as connection:
        connection.register("picked_samples", pl.DataFrame({"sample_id": list(sample_ids)}).to_arrow())
        connection.execute(read_query("noise/copy"), {"run_id": run_id, "again_run_id": again_run_id})
        connection.unregister("picked_samples")


def fetch_asked(warehouse: Warehouse, run_ids: Sequence[str]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return by run and step of its calls: `judges`, each with its prompt's hash, and the `models` that answered."""
    by_run: dict[str, dict[str, Mapping[str, Any]]] = {run_id: {} for run_id in run_ids}
    for row in warehouse.fetch_rows("noise/asked", {"run_id": run_ids}):
        by_run[row["run_id"]][row["step"]] = row
    return by_run


MetricSettings = Mapping[str, Mapping[str, float]]
_FEW_SAMPLES, _MANY_SAMPLES = 5_000, 192_000
VIEWS_OF_METRICS: Final = ("sample_steps", "sample_statement_counts", "sample_rankings", "statement_citations")
"""The views that built-in metrics read: planning them takes longer than a metric's own work on a small run."""


def score_run(warehouse: Warehouse, run_id: str, metrics: Sequence[MetricFile], settings: MetricSettings) -> int:
    """Replace the scores of these metrics for one run with all that rests on them, and write the run's noise again.

    Returns how many samples a judge or the target failed. `settings` gives parameters by metric where they differ from
    the file's own. Raises WarehouseError that names a metric whose SQL fails.
    """
    wanted = set_metrics(metrics, settings)
    built_in = [metric for metric in wanted if not metric.file.is_own]
    own = [metric for metric in wanted if metric.file.is_own]
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        ((n_samples,),) = connection.execute("select count(*) from run_samples where run_id = ?", [run_id]).fetchall()
        # A writer's own 192 MB are enough for 200,000 samples: sorting and grouping spill to disk, but not all of it.
        if n_samples > _MANY_SAMPLES:
            connection.execute(f"set memory_limit = '{n_samples // 1000} MB'")
        # Of a small run the views become tables with its rows, made once for all metrics. Of a large run they stay
        # views: planning them is nothing then, and the tables would not fit into a writer's memory.
        small = n_samples <= _FEW_SAMPLES
        views = [view for view in VIEWS_OF_METRICS if small and any(view in metric.file.sql for metric in built_in)]
        for view in views:
            connection.execute(f"create temp table {view} as from main.{view} where run_id = ?", [run_id])
        for metric in built_in:
            parameters = {"run_id": run_id, **metric.parameters}
            try:
                connection.execute(f"create or replace temp table metric_scores as\n{metric.file.sql}", parameters)
                _write_scores(connection, run_id, metric)
            except duckdb.Error as error:
                explained = explain_failure(warehouse.location, error)
                if isinstance(explained, WarehouseBusy | WarehouseUnwritable):
                    raise explained from None
                place, text = metric.file.place, first_line(str(error))
                raise WarehouseError(f"metric {metric.file.name!r} ({place}) failed: {text}") from None
        for view in views:
            connection.execute(f"drop table temp.{view}")
        if not own:
            return _finish_scores(connection, run_id)
        derive(connection, [run_id], ["scores"])
    # Outside of the transaction, because the query process reads what is committed.
    from evalhouse.warehouse.sandbox.query_process import select_apart  # noqa: PLC0415  # few runs have one

    frames = [select_apart(warehouse.location, run_id, metric, n_samples) for metric in own]
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        for metric, frame in zip(own, frames, strict=True):
            connection.register("selected_scores", frame.to_arrow())
            connection.execute("create or replace temp table metric_scores as from selected_scores")
            connection.unregister("selected_scores")
            _write_scores(connection, run_id, metric)
        return _finish_scores(connection, run_id)


def _write_scores(connection: duckdb.DuckDBPyConnection, run_id: str, metric: SetMetric) -> None:
    """Replace the scores of a run in one metric with the rows of `metric_scores`.

    Raises WarehouseError where these are not one row per sample with a value or a reason.
    """
    file = metric.file
    found = connection.execute(read_query("runs/score_faults"), {"run_id": run_id})
    faults = dict(zip([column[0] for column in found.description], found.fetchall()[0], strict=True))
    for fault, number in faults.items():
        if number:
            raise WarehouseError(
                f"metric {file.name!r} gave {number} {fault}; its SQL must give one row per sample of the run, "
                "with a value or else an unscored_reason"
            )
    connection.execute("delete from scores where run_id = ? and metric = ?", [run_id, file.name])
    columns = {"metric": file.name, "version": metric.version, "better": file.better, "minimum": file.minimum}
    connection.execute(read_query("runs/write_scores"), {"run_id": run_id, **columns})


def _finish_scores(connection: duckdb.DuckDBPyConnection, run_id: str) -> int:
    """Store the rows that follow from a run's scores; return how many samples a judge or the target failed."""
    connection.execute("drop table if exists metric_scores")
    derive(connection, [run_id], ["scores", "causes"])
    if connection.execute("select 1 from runs where run_id = ? and status = 'running'", [run_id]).fetchone():
        # A run that was resumed may have other verdicts than before.
        derive(connection, list_later(connection, [run_id]), ["causes"])
    write_noise(connection, run_id)
    reasons = {"run_id": run_id, "reasons": list(FAILURE_REASONS)}
    ((n_failed,),) = connection.execute(read_query("runs/n_failed"), reasons).fetchall()
    return int(n_failed)


def write_noise(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Write the rows of `noise` again for every pair of a run and a noise run that this run is part of."""
    for noise_run_id, parent_run_id in connection.execute(read_query("noise/pairs"), {"run_id": run_id}).fetchall():
        connection.execute("delete from noise where noise_run_id = ?", [noise_run_id])
        connection.execute(read_query("noise/write"), {"run_id": parent_run_id, "noise_run_id": noise_run_id})


Derived = Literal["scores", "causes", "costs"]
_VIEWS: Final = {"scores": "run_scores", "causes": "run_causes", "costs": "run_costs"}


def fetch_derived(warehouse: Warehouse, part: Derived, run_ids: Collection[str]) -> pl.DataFrame:
    """Read the rows that `run_scores`, `run_causes` or `run_costs` has of these runs."""
    wanted = pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
    sql = f"from {_VIEWS[part]} where run_id in (select run_id from wanted)"
    return warehouse.read(sql, frames={"wanted": wanted})


def fetch_score_history(warehouse: Warehouse, run_id: str | None = None, *, series: str | None = None) -> pl.DataFrame:
    """Return the rows of `fetch_histories` of a series, or of a run's, up to that run."""
    run_ids = warehouse.fetch("history/run_ids", run_id=run_id, series=series).to_series().to_list()
    return fetch_histories(warehouse, run_ids)


def fetch_histories(warehouse: Warehouse, run_ids: Collection[str]) -> pl.DataFrame:
    """Return the rows of `score_history` of these runs, each with the run before it.

    `change` and `n_shared` are given for the newest run of each series and metric, NULL elsewhere: they rest on the
    scores of single samples, and no page shows more of them.
    """
    chain = warehouse.fetch("history/chain", {"run_id": run_ids})
    newest = chain.filter(pl.col("mean").is_not_null()).group_by("series", "metric", maintain_order=True).last()
    return chain.join(fetch_shared(warehouse, newest), on=["run_id", "metric"], how="left", maintain_order="left")


def fetch_shared(warehouse: Warehouse, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return for each `run_id`, `metric` and `previous_run_id` the `change` of the mean over the samples that both runs
    scored, and their number (`n_shared`); no row without such samples."""
    sql = read_query("history/shared").replace("from score_chain\n", "from wanted_pairs as score_chain\n")
    wanted = pairs.select(pl.col("run_id", "metric", "previous_run_id").cast(pl.String))
    return warehouse.read(sql, frames={"wanted_pairs": wanted.drop_nulls()})


def fetch_shared_with(
    warehouse: Warehouse, run_id: str, base: str, metrics: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Return by metric the `change` of a run's mean from another run's and `n_shared`, as `fetch_shared` has them."""
    pairs = pl.DataFrame({"metric": list(metrics)}, schema={"metric": pl.String})
    pairs = pairs.with_columns(run_id=pl.lit(run_id), previous_run_id=pl.lit(base))
    return {row["metric"]: row for row in fetch_shared(warehouse, pairs).to_dicts()}
