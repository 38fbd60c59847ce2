"""All series: what is evaluated again and again, and how it stands; and one of them over all its nights."""

from itertools import groupby
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from evalhouse.flows.documents.gate import name_check, write_amount
from evalhouse.flows.report.history import describe_series
from evalhouse.flows.report.sections import Addresses
from evalhouse.flows.ui.kept import find_kept
from evalhouse.flows.ui.pages import find_warehouse, render
from evalhouse.flows.ui.pair_kept import compare_kept
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.history import SeriesData, find_series, read_series
from evalhouse.warehouse.rows.report import Row, Rows
from evalhouse.warehouse.rows.told import read_marks

router = APIRouter()
ADDRESSES = Addresses(run="/runs/", sample="/sample?id=", compare="/compare")


@router.get("/")
def show_all_series(request: Request) -> Response:
    """A row for each series, the newest first."""
    rows = find_warehouse(request).read_rows(read_query("ui/series"))
    return render(request, "series.html", series=rows)


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
    nights = list(_describe_nights(warehouse.read_rows(read_query("ui/gates"), {"series": series})))
    return render(
        request,
        "history_of.html",
        series=series,
        nights=nights,
        noted=[night for night in nights if night["checks"]],
        **describe_series(warehouse, data, ADDRESSES, lambda pair: compare_kept(pair).comparison),
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
