"""What views tell of some runs, by what is stored of them: for pages, which ask again and again and may not wait.

The views `run_scores`, `run_causes` and `run_costs` say the same. To read what is stored of 200 runs takes them 0.25 s
of CPU as long as any run is open, a noise run or one that is under way, for they look at all rows to find its own;
asked for one run at a time they do not.

A view that may have to compute takes longer to plan (0.1 s) than stored causes take to read, so a query that names
`sample_causes` or `run_causes` of one run goes to the table `stored_causes` where that is up to date.
"""

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Literal

import polars as pl

from evalhouse.warehouse.metric_files import read_stored, read_view
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import CHUNK_SAMPLES, Warehouse

Rows = list[dict[str, Any]]

_COUNTS = re.compile(r"\bfrom run_causes\b")
_CAUSES = re.compile(r"\bfrom sample_causes\b")


def read_of_causes(
    warehouse: Warehouse,
    query: str,
    parameters: Mapping[str, object],
    *,
    frames: Mapping[str, pl.DataFrame] | None = None,
) -> pl.DataFrame:
    """The rows of a query about the causes of the run `run_id` among its parameters and of no other run."""
    sql = read_query(query)
    if is_stored(warehouse, str(parameters["run_id"])):
        sql = read_stored_causes(sql)
    return warehouse.read(sql, parameters, frames=frames)


def read_causes(warehouse: Warehouse, run_id: str) -> Rows:
    """How many samples of a run have which cause, in the order of the causes' first rules."""
    return read_of_causes(warehouse, "diagnosis/causes", {"run_id": run_id}).to_dicts()


def is_stored(warehouse: Warehouse, run_id: str) -> bool:
    """Whether the causes of a run are stored and up to date."""
    return not warehouse.read(read_query("stored/is_stored"), {"run_id": run_id, "part": "causes"}).is_empty()


def read_stored_causes(sql: str) -> str:
    """SQL over the views of causes as SQL over the table, by the views' own text."""
    counted = _COUNTS.sub(lambda _: f"from ({read_view('run_causes')}) as run_causes", sql)
    return _CAUSES.sub("from stored_causes as sample_causes", counted)


Told = Literal["scores", "causes", "costs"]


def read_told(warehouse: Warehouse, part: Told, run_ids: Collection[str]) -> pl.DataFrame:
    """The rows that `run_scores`, `run_causes` or `run_costs` has of these runs.

    What is not stored is computed of these runs alone, and not of many at once: after an update that changes how, that
    is all of a history, and the views would compute all of it for any of its runs.
    """
    wanted = _list(run_ids)
    stored = warehouse.read(_select(part, "stored"), frames={"wanted": wanted})
    groups = warehouse.read(read_query("told/open"), {"part": part, "most": CHUNK_SAMPLES}, frames={"wanted": wanted})
    computed = [
        warehouse.read(_select(part, "computed"), frames={"open_runs": _list(group)})
        for group in groups.to_series().to_list()
    ]
    frames = [frame for frame in (stored, *computed) if not frame.is_empty()]
    return pl.concat([frame.select(stored.columns) for frame in frames], how="vertical_relaxed") if frames else stored


def read_marks(warehouse: Warehouse, run_ids: Collection[str]) -> tuple[object, ...] | None:
    """When what is told of these runs was stored, another value whenever it changes; None where not all of it is."""
    marks = warehouse.read(read_query("told/marks"), frames={"wanted": _list(run_ids)})
    return None if marks["stored_at"].null_count() else tuple(marks.rows())


def read_score_history(warehouse: Warehouse, run_id: str | None = None, *, series: str | None = None) -> pl.DataFrame:
    """The rows of `read_histories` of a series, or of a run's, up to that run."""
    run_ids = warehouse.read(read_query("told/series"), {"run_id": run_id, "series": series}).to_series().to_list()
    return read_histories(warehouse, run_ids)


def read_histories(warehouse: Warehouse, run_ids: Collection[str]) -> pl.DataFrame:
    """The rows of `score_history` of these runs, each with the one of them before it.

    `change` and `n_shared` are those of the newest run of each series and metric, and NULL elsewhere: they rest on the
    scores of single samples, and no page shows more of them.
    """
    # Under a name of its own, since today's views may be laid over an older warehouse.
    sql = read_view("score_chain").replace("from run_scores", "from told_scores as run_scores")
    chain = warehouse.read(sql, frames={"told_scores": read_told(warehouse, "scores", run_ids)})
    chain = chain.sort("series", "metric", "started_at", "run_id")
    newest = chain.filter(pl.col("mean").is_not_null()).group_by("series", "metric", maintain_order=True).last()
    return chain.join(read_shared(warehouse, newest), on=["run_id", "metric"], how="left", maintain_order="left")


def read_shared(warehouse: Warehouse, pairs: pl.DataFrame) -> pl.DataFrame:
    """For each `run_id`, `metric` and `previous_run_id` how far the mean is from that run's over the samples that both
    scored (`change`), and how many these are (`n_shared`); no row where there are none."""
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


@cache
def _select(part: Told, way: Literal["stored", "computed"]) -> str:
    """What is stored of the runs in `wanted`, or what there is to tell of those in `open_runs`."""
    rows = read_query(f"told/{part}") if way == "stored" else read_stored(part)
    if part == "causes":  # the shares and their intervals are made of either as the view makes them
        return read_view("run_causes").replace("from sample_causes", f"from ({rows})")
    if part == "scores":
        return f"select rows.*, runs.started_at, runs.label, runs.tags from ({rows}) as rows join runs using (run_id)"
    return rows


def _list(run_ids: Collection[str]) -> pl.DataFrame:
    return pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
