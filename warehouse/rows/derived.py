"""Reads of what is derived of runs (means, causes, costs), and of how the means of a series change from run to run."""

from collections.abc import Collection
from typing import Any, Final, Literal

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

Rows = list[dict[str, Any]]
Derived = Literal["scores", "causes", "costs"]
_VIEWS: Final = {"scores": "run_scores", "causes": "run_causes", "costs": "run_costs"}


def read_derived(warehouse: Warehouse, part: Derived, run_ids: Collection[str]) -> pl.DataFrame:
    """Read the rows that `run_scores`, `run_causes` or `run_costs` has of these runs."""
    sql = f"from {_VIEWS[part]} where run_id in (select unnest($run_ids::varchar[]))"
    return warehouse.read(sql, {"run_ids": list(run_ids)})


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
    chain = warehouse.read(read_query("history/chain"), {"run_ids": list(run_ids)})
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
