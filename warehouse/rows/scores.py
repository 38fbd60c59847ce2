"""Scores, by each metric's SQL over a run's verdicts, the reads of what is derived from them, and the judge's noise:
scores that change when it judges again.

A noise run is a row of `runs` of kind noise with calls, verdicts and scores of its own over some samples of its parent.
The table `noise` follows the scores: whenever parent or noise run are scored, `note_noise` writes their rows again.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal

import duckdb
import polars as pl

from evalhouse.warehouse.derived import derive, list_later
from evalhouse.warehouse.engine.connection import explain_failure
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseUnwritable, first_line
from evalhouse.warehouse.metric_files import MetricFile, SetMetric, set_metrics
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.samples import FAILURE_REASONS
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse


def note_no_noise(warehouse: Warehouse, run_id: str) -> None:
    """Put on record that a run's judge says the same each time: rows of `noise` that name the run itself."""
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        connection.execute("delete from noise where noise_run_id = ?", [run_id])
        connection.execute(read_query("noise/write_none"), {"run_id": run_id})


def list_scored(warehouse: Warehouse, run_id: str) -> list[str]:
    """The samples of a run with a score in any metric, in their order."""
    return _list(warehouse, read_query("noise/scored"), {"run_id": run_id})


def find_previous(warehouse: Warehouse, run_id: str) -> str | None:
    """The evaluation before this one in its series that came to an end."""
    run_ids = _list(warehouse, read_query("noise/previous"), {"run_id": run_id})
    return run_ids[0] if run_ids else None


def list_equal_inputs(warehouse: Warehouse, *, base: str, candidate: str) -> list[str]:
    """The samples with the same texts in both runs."""
    return _list(warehouse, read_query("noise/equal_inputs"), {"base": base, "candidate": candidate})


def copy_samples(warehouse: Warehouse, *, run_id: str, again_run_id: str, sample_ids: Collection[str]) -> None:
    """Give a run that judges or asks some samples of its parent again these samples."""
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=again_run_id) as connection:
        connection.register("picked_samples", pl.DataFrame({"sample_id": list(sample_ids)}).to_arrow())
        connection.execute(read_query("noise/copy"), {"run_id": run_id, "again_run_id": again_run_id})
        connection.unregister("picked_samples")


def has_noise_run(warehouse: Warehouse, run_id: str) -> bool:
    """Whether the noise of a run was measured to the end."""
    return bool(_list(warehouse, read_query("noise/measured"), {"run_id": run_id}))


def count_changed(warehouse: Warehouse, noise_run_id: str) -> int:
    """How many samples of a noise run have another score than in its parent, in any metric."""
    (row,) = warehouse.read_rows(read_query("noise/changed_samples"), {"run_id": noise_run_id})
    return int(str(row["n"]))


def read_judged_again(warehouse: Warehouse, *, base: str, candidate: str) -> pl.DataFrame:
    """One row per sample and step of a call for which the runs do not rest on the very same replies."""
    return warehouse.read(read_query("noise/judged_again"), {"base": base, "candidate": candidate})


def list_noise_runs(warehouse: Warehouse, run_id: str) -> list[str]:
    """The noise runs of a run's series: those up to the run first, each time the nearest first."""
    return _list(warehouse, read_query("noise/noise_runs"), {"run_id": run_id})


def read_noise(warehouse: Warehouse, noise_run_ids: Sequence[str]) -> pl.DataFrame:
    """The rows of `noise` of these runs that have a sample, with the version of the metric they are by."""
    return _read_of(warehouse, read_query("noise/noise_rows"), noise_run_ids)


def read_noise_differences(warehouse: Warehouse, noise_run_ids: Sequence[str]) -> pl.DataFrame:
    """One row per sample and metric of these runs with both scores: `difference` is the second less the first."""
    return _read_of(warehouse, read_query("noise/differences"), noise_run_ids)


def read_asked(warehouse: Warehouse, run_ids: Sequence[str]) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """By run and step of its calls: `judges`, each with the hash of its prompt, and the `models` that answered."""
    by_run: dict[str, dict[str, Mapping[str, Any]]] = {run_id: {} for run_id in run_ids}
    for row in _read_of(warehouse, read_query("noise/asked"), run_ids).to_dicts():
        by_run[row["run_id"]][row["step"]] = row
    return by_run


def read_flips(warehouse: Warehouse, noise_run_ids: Sequence[str]) -> list[dict[str, object]]:
    """One row per step over these noise runs: `n_items` judged twice, `n_flipped` of them otherwise, `flip_rate`.

    Statements are matched by their text; of a split, what flips is a statement that only one of the two has.
    """
    return _read_of(warehouse, read_query("noise/flips"), noise_run_ids).to_dicts()


def _read_of(warehouse: Warehouse, sql: str, run_ids: Sequence[str]) -> pl.DataFrame:
    wanted = pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
    return warehouse.read(sql, frames={"wanted": wanted})


def _list(warehouse: Warehouse, sql: str, parameters: Mapping[str, object]) -> list[str]:
    return [str(value) for value in warehouse.read(sql, parameters).to_series(0)]


MetricSettings = Mapping[str, Mapping[str, float]]
_FEW_SAMPLES, _MANY_SAMPLES = 5_000, 192_000
VIEWS_OF_METRICS: Final = ("sample_steps", "sample_statement_counts", "sample_rankings", "statement_citations")
"""What the built-in metrics read besides tables: views that take longer to plan than a metric does over their rows."""


def score_run(warehouse: Warehouse, run_id: str, metrics: Sequence[MetricFile], settings: MetricSettings) -> int:
    """Replace the scores of these metrics for one run, and what `noise` has of it; returns how many of its samples a
    judge or the target failed. Raises WarehouseError that names a metric whose SQL fails.

    `settings` gives parameters by metric where they differ from the file's own.
    """
    wanted = set_metrics(metrics, settings)
    built_in = [metric for metric in wanted if not metric.file.is_own]
    own = [metric for metric in wanted if metric.file.is_own]
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        _delete_scores(connection, run_id, built_in)
        n_samples = _count_samples(connection, run_id)
        # A writer's own 192 MB are enough for 200,000 samples: sorting and grouping spill to disk, but not all of it.
        if n_samples > _MANY_SAMPLES:
            connection.execute(f"set memory_limit = '{n_samples // 1000} MB'")
        with _views_of_run(connection, run_id, built_in, is_small=n_samples <= _FEW_SAMPLES):
            for metric in built_in:
                parameters = {"run_id": run_id, **metric.parameters}
                try:
                    connection.execute(f"create or replace temp table metric_scores as\n{metric.file.sql}", parameters)
                    _write_scores(connection, run_id, metric)
                except duckdb.Error as error:
                    raise _explain_metric(warehouse, metric.file, error) from None
        if not own:
            return _finish_scores(connection, run_id)
        derive(connection, [run_id], ["scores"])
    # Not within the transaction: the query process reads what is committed.
    from evalhouse.warehouse.sandbox.own_metrics import select_apart  # noqa: PLC0415  # few runs have one

    frames = [select_apart(warehouse.location, run_id, metric, n_samples) for metric in own]
    with warehouse.writing(patience_s=FLUSH_PATIENCE_S, run_id=run_id) as connection:
        _delete_scores(connection, run_id, own)
        for metric, frame in zip(own, frames, strict=True):
            connection.register("selected_scores", frame.to_arrow())
            connection.execute("create or replace temp table metric_scores as from selected_scores")
            connection.unregister("selected_scores")
            _write_scores(connection, run_id, metric)
        return _finish_scores(connection, run_id)


def _delete_scores(connection: duckdb.DuckDBPyConnection, run_id: str, metrics: Sequence[SetMetric]) -> None:
    names = [metric.file.name for metric in metrics]
    connection.execute(
        "delete from scores where run_id = ? and metric in (select unnest(?::varchar[]))", [run_id, names]
    )


def _finish_scores(connection: duckdb.DuckDBPyConnection, run_id: str) -> int:
    """Store what follows from a run's scores; return how many of its samples a judge or the target failed."""
    connection.execute("drop table if exists metric_scores")
    derive(connection, [run_id], ["scores", "causes"])
    if connection.execute("select 1 from runs where run_id = ? and status = 'running'", [run_id]).fetchone():
        # A run that was resumed may have other verdicts than before.
        derive(connection, list_later(connection, [run_id]), ["causes"])
    note_noise(connection, run_id)
    reasons = {"run_id": run_id, "reasons": list(FAILURE_REASONS)}
    failed = connection.execute(read_query("runs/n_failed"), reasons).fetchone()
    return int(failed[0]) if failed else 0


def _count_samples(connection: duckdb.DuckDBPyConnection, run_id: str) -> int:
    found = connection.execute("select count(*) from run_samples where run_id = ?", [run_id]).fetchone()
    return int(found[0]) if found else 0


@contextmanager
def _views_of_run(
    connection: duckdb.DuckDBPyConnection, run_id: str, metrics: Sequence[SetMetric], *, is_small: bool
) -> Iterator[None]:
    """Within this block the views that these metrics read are tables with the rows of one run, made once for all.

    Of a large run they stay views: planning them is nothing then, and the tables would not fit into a writer's memory.
    """
    views = [view for view in VIEWS_OF_METRICS if is_small and any(view in metric.file.sql for metric in metrics)]
    for view in views:
        connection.execute(f"create temp table {view} as from main.{view} where run_id = ?", [run_id])
    yield
    for view in views:
        connection.execute(f"drop table temp.{view}")


def _explain_metric(warehouse: Warehouse, metric: MetricFile, error: duckdb.Error) -> WarehouseError:
    explained = explain_failure(warehouse.location, error)
    if isinstance(explained, WarehouseBusy | WarehouseUnwritable):
        return explained
    return WarehouseError(f"metric {metric.name!r} ({metric.place}) failed: {first_line(str(error))}")


def _write_scores(connection: duckdb.DuckDBPyConnection, run_id: str, metric: SetMetric) -> None:
    """Write the rows of `metric_scores` as scores of a run; raises WarehouseError for rows that are not one per sample
    with a value or a reason."""
    file = metric.file
    found = connection.execute(read_query("runs/score_faults"), {"run_id": run_id})
    faults = dict(zip([column[0] for column in found.description], found.fetchall()[0], strict=True))
    for fault, number in faults.items():
        if number:
            raise WarehouseError(
                f"metric {file.name!r} gave {number} {fault}; its SQL must give one row per sample of the run, "
                "with a value or else an unscored_reason"
            )
    columns = {"metric": file.name, "version": metric.version, "better": file.better, "minimum": file.minimum}
    connection.execute(read_query("runs/write_scores"), {"run_id": run_id, **columns})


def note_noise(connection: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Write the rows of `noise` again for every pair of a run and a noise run that this run is one of."""
    for noise_run_id, parent_run_id in connection.execute(read_query("noise/pairs"), {"run_id": run_id}).fetchall():
        connection.execute("delete from noise where noise_run_id = ?", [noise_run_id])
        connection.execute(read_query("noise/write"), {"run_id": parent_run_id, "noise_run_id": noise_run_id})


Rows = list[dict[str, Any]]
Derived = Literal["scores", "causes", "costs"]
_VIEWS: Final = {"scores": "run_scores", "causes": "run_causes", "costs": "run_costs"}


def read_derived(warehouse: Warehouse, part: Derived, run_ids: Collection[str]) -> pl.DataFrame:
    """Read the rows that `run_scores`, `run_causes` or `run_costs` has of these runs."""
    wanted = pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
    sql = f"from {_VIEWS[part]} where run_id in (select run_id from wanted)"
    return warehouse.read(sql, frames={"wanted": wanted})


def read_causes(warehouse: Warehouse, run_id: str) -> Rows:
    """Count how many samples of a run have which cause, in the order of the causes' first rules."""
    return warehouse.read_rows(read_query("diagnosis/causes"), {"run_id": run_id})


def read_score_history(warehouse: Warehouse, run_id: str | None = None, *, series: str | None = None) -> pl.DataFrame:
    """Read the rows of `read_histories` of a series, or of a run's, up to that run."""
    run_ids = warehouse.read(read_query("history/run_ids"), {"run_id": run_id, "series": series}).to_series().to_list()
    return read_histories(warehouse, run_ids)


def read_histories(warehouse: Warehouse, run_ids: Collection[str]) -> pl.DataFrame:
    """Read the rows of `score_history` of these runs, each with the run before it.

    `change` and `n_shared` are those of the newest run of each series and metric, and NULL elsewhere: they rest on the
    scores of single samples, and no page shows more of them.
    """
    wanted = pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
    chain = warehouse.read(read_query("history/chain"), frames={"wanted": wanted})
    newest = chain.filter(pl.col("mean").is_not_null()).group_by("series", "metric", maintain_order=True).last()
    return chain.join(read_shared(warehouse, newest), on=["run_id", "metric"], how="left", maintain_order="left")


def read_shared(warehouse: Warehouse, pairs: pl.DataFrame) -> pl.DataFrame:
    """For each `run_id`, `metric` and `previous_run_id` read how far the mean is from that run's over the samples that
    both scored (`change`), and how many these are (`n_shared`); no row where there are none."""
    sql = read_query("history/shared").replace("from score_chain\n", "from wanted_pairs as score_chain\n")
    wanted = pairs.select(pl.col("run_id", "metric", "previous_run_id").cast(pl.String))
    return warehouse.read(sql, frames={"wanted_pairs": wanted.drop_nulls()})


def read_shared_with(
    warehouse: Warehouse, run_id: str, base: str, metrics: Collection[str]
) -> dict[str, dict[str, Any]]:
    """By metric the `change` of a run's mean from that of another run, and `n_shared`, as `read_shared` has them."""
    names = ("run_id", "metric", "previous_run_id")
    pairs = pl.DataFrame(
        [(run_id, metric, base) for metric in metrics], schema=dict.fromkeys(names, pl.String), orient="row"
    )
    return {row["metric"]: row for row in read_shared(warehouse, pairs).to_dicts()}
