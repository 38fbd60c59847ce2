"""All series: what is evaluated again and again, and how it stands; and one of them over all its nights."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from evalhouse.flows.report.charts import draw_spark, write_change
from evalhouse.flows.report.head import FINE, write_share
from evalhouse.flows.report.history import describe_series
from evalhouse.flows.report.sections import Addresses
from evalhouse.flows.results.gate import name_check, write_amount
from evalhouse.flows.results.output import write_shared, write_value
from evalhouse.flows.results.run_origin import HEADLINE
from evalhouse.flows.ui.live import describe_stands, make_stamp
from evalhouse.flows.ui.pages import find_kept, find_warehouse, render
from evalhouse.flows.ui.pair import compare_kept
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.history import SeriesData, find_series, read_series
from evalhouse.warehouse.rows.report import Row, Rows
from evalhouse.warehouse.rows.told import read_histories, read_marks, read_told
from evalhouse.warehouse.store import Warehouse

router = APIRouter()
ADDRESSES: Final = Addresses(run="/runs/", sample="/sample?id=", compare="/compare")
_LATELY: Final = 30
"""Nights of a spark."""


@router.get("/")
def show_all_series(request: Request) -> Response:
    """What there is of each series at a glance, the newest first."""
    warehouse = find_warehouse(request)
    series = warehouse.read_rows(read_query("ui/series"))
    run_ids = warehouse.read(read_query("ui/lately"), {"n_runs": _LATELY}).to_series().to_list()
    means = read_histories(warehouse, run_ids).to_dicts() if run_ids else []
    problems = _read_problems(warehouse, [str(row["ended_run_id"]) for row in series if row["ended_run_id"]])
    return render(
        request,
        "series.html",
        series=[
            {
                **row,
                "metrics": _describe_means(means, str(row["series"])),
                "problem": problems.get(str(row["ended_run_id"])),
            }
            for row in series
        ],
        stands=describe_stands(request),
        stamp=make_stamp(warehouse),
    )


def _describe_means(means: Sequence[Row], series: str) -> list[dict[str, Any]]:
    """The main metrics of a series: the last mean, its change, and the shape of the nights before."""
    by_metric: dict[str, list[Row]] = {}
    for row in means:
        if row["series"] == series and row["mean"] is not None:
            by_metric.setdefault(str(row["metric"]), []).append(row)
    names = [name for name in HEADLINE if name in by_metric] or list(by_metric)[:1]
    return [
        {
            "name": name,
            "mean": write_value(by_metric[name][-1]["mean"]),
            "change": _write_way(by_metric[name][-1]),
            "spark": draw_spark(by_metric[name]) if len(by_metric[name]) > 1 else None,
        }
        for name in names
    ]


def _write_way(row: Row) -> str:
    if row["previous_run_id"] is None:
        return ""
    if row["same_yardstick"] is False:
        return "measured otherwise"
    shared = write_shared(row)
    return f"{write_change(row['change'])}{f', {shared}' if shared else ''}"


def _read_problems(warehouse: Warehouse, run_ids: Sequence[str]) -> Mapping[str, str]:
    """By run which share of its judged answers has a problem; none for a run without judged answers."""
    counts: dict[str, tuple[int, int]] = {}
    for row in read_told(warehouse, "causes", run_ids).to_dicts():
        if row["cause"] != "not_judged" and row["n_of"]:
            wrong, _ = counts.get(row["run_id"], (0, 0))
            counts[row["run_id"]] = (wrong + (row["n_samples"] if row["cause"] not in FINE else 0), row["n_of"])
    return {run_id: write_share(wrong / n) for run_id, (wrong, n) in counts.items()}


@router.get("/series")
def show_series(request: Request, name: str) -> Response:
    """The history of one series; `name` is its own, a suite's or a dataset's."""
    warehouse = find_warehouse(request)
    series, others = find_series(warehouse, name)
    if series is None:
        raise WarehouseError(
            f"no series with scores is called {name!r}; {suggest(name, others, otherwise='there are')}"
        )
    data = _read_kept(request, series)
    nights = _describe_nights(warehouse.read_rows(read_query("ui/gates"), {"series": series}))
    return render(
        request,
        "history_of.html",
        series=series,
        nights=nights,
        noted=[night for night in nights if night["checks"]],
        **describe_series(warehouse, data, ADDRESSES, lambda pair: compare_kept(request, pair).comparison),
    )


def _read_kept(request: Request, series: str) -> SeriesData:
    """The data of a series; what looks at the samples of many nights only where one of them is another since."""
    warehouse, kept = find_warehouse(request), find_kept(request)
    run_ids = warehouse.read(read_query("ui/series_runs"), {"series": series}).to_series().to_list()
    marks = read_marks(warehouse, run_ids)
    return read_series(warehouse, series, lambda name, read: kept.find((series, name), marks, read))


def _describe_nights(checks: Rows) -> list[dict[str, Any]]:
    """What the gate decided on each run, with the checks that did not pass in words."""
    nights = []
    for (run_id, started_at, gate), group in groupby(
        checks, key=lambda row: (row["run_id"], row["started_at"], row["gate"])
    ):
        failing = [check for check in group if check["kind"]]
        look = "undecided" if gate == "passed" and failing else gate
        said = [_describe_check(check) for check in failing]
        nights.append({"run_id": run_id, "started_at": started_at, "look": look, "checks": said})
    return nights


def _describe_check(check: Row) -> str:
    undecided = "undecided: " if check["outcome"] == "undecided" else ""
    return f"{undecided}{name_check(check)}, found {write_amount(check['kind'], check['value'])}"
