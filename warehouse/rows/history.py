"""What the page of a series' history is made of: its runs, means, costs, prompts, causes, and the samples to look at.

A series is all runs of a suite, or, outside suites, of a dataset (view `run_series`). Means, costs and prompts are read
over all of it; whatever needs rows of single samples is read of a few runs alone, because a series has no end.
`flows/report/page.py` makes the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.report import Row, Rows
from evalhouse.warehouse.rows.scores import read_derived, read_score_history, read_shared_with
from evalhouse.warehouse.store import Warehouse

CAUSE_RUNS: Final = 14
"""Newest runs whose causes are shown."""
FLAKY_RUNS: Final = 30
"""Newest runs in which flaky samples are looked for."""
MOST_SAMPLES: Final = 20
"""Samples listed of each kind."""
SINCE: Final = timedelta(days=7)
"""How far back the run lies that the newest is laid beside, where there is one."""


@dataclass(frozen=True, kw_only=True)
class SeriesData:
    """A series as rows, runs oldest first.

    `means` has a row per metric and run, in time order within the metric; `causes` is by run id, of the newest runs,
    and `latencies` of those that asked an application. `worse` lists samples that are worse in the newest run with
    scores than in run `since` (None with only one run).
    """

    series: str
    runs: Rows
    means: Rows
    costs: dict[str, Row]
    latencies: dict[str, Row]
    prompts: Rows
    causes: dict[str, Rows]
    flaky: Rows
    since: Row | None
    newest: Row
    shared: Mapping[str, Row]
    worse: Rows


def find_series(warehouse: Warehouse, wanted: str) -> tuple[str | None, list[str]]:
    """The series meant by a suite's name, a dataset's, or a series' own, and all series with scores.

    A suite goes before a dataset of the same name.
    """
    all_series = [str(row["series"]) for row in warehouse.read_rows(read_query("history/known"))]
    meant = (f"suite {wanted}", f"dataset {wanted}", wanted)
    return next((series for series in meant if series in all_series), None), all_series


def read_series(warehouse: Warehouse, series: str) -> SeriesData:
    """Read everything about a series of which at least one run has scores."""
    of_series = {"series": series}
    runs = warehouse.read_rows(read_query("history/runs"), of_series)
    run_ids = [str(run["run_id"]) for run in runs]
    means = read_score_history(warehouse, series=series).to_dicts()
    scored = {row["run_id"] for row in means}
    with_scores = [run for run in runs if run["run_id"] in scored]
    newest, since = with_scores[-1], _find_base(with_scores)
    pair = {"candidate": newest["run_id"], "base": since["run_id"] if since else None}
    return SeriesData(
        series=series,
        runs=runs,
        means=means,
        costs=_read_costs(warehouse, run_ids),
        latencies={str(row["run_id"]): row for row in warehouse.read_rows(read_query("history/latencies"), of_series)},
        prompts=warehouse.read_rows(read_query("history/prompts"), of_series),
        causes=_read_causes(warehouse, [str(run["run_id"]) for run in with_scores[-CAUSE_RUNS:]]),
        flaky=warehouse.read_rows(
            read_query("history/flaky"), {**of_series, "n_runs": FLAKY_RUNS, "most": MOST_SAMPLES}
        ),
        since=since,
        newest=newest,
        shared=_read_shared(warehouse, newest, since, means) if since else {},
        worse=warehouse.read_rows(read_query("history/worse"), {**pair, "most": MOST_SAMPLES}) if since else [],
    )


def _read_shared(warehouse: Warehouse, newest: Row, since: Row, means: Rows) -> dict[str, dict[str, Any]]:
    metrics = [str(row["metric"]) for row in means if row["run_id"] == newest["run_id"]]
    return read_shared_with(warehouse, str(newest["run_id"]), str(since["run_id"]), metrics)


def _read_costs(warehouse: Warehouse, run_ids: Sequence[str]) -> dict[str, Row]:
    """By run what it asked of models and what that cost; the runs that asked for something."""
    wanted = pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
    rows = warehouse.read(read_query("history/costs"), frames={"wanted": wanted}).to_dicts()
    return {str(row["run_id"]): row for row in rows}


def _read_causes(warehouse: Warehouse, run_ids: Sequence[str]) -> dict[str, Rows]:
    """By run how many samples have which cause."""
    rows = read_derived(warehouse, "causes", run_ids).sort("precedence").to_dicts()
    return {run_id: [row for row in rows if row["run_id"] == run_id] for run_id in run_ids}


def _find_base(runs: Rows) -> Row | None:
    """The newest run that is a week older than the last one, or the first where none is that old."""
    if len(runs) == 1:
        return None
    old = [run for run in runs if run["started_at"] <= runs[-1]["started_at"] - SINCE]
    return old[-1] if old else runs[0]
