"""The pages of runs: the list of all runs, one run, the series and one series, and what runs cost."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Annotated, Any, Final

import polars as pl
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.report.charts import draw_amounts, draw_spark, write_change
from evalhouse.flows.report.history import describe_series
from evalhouse.flows.report.sections import FINE, Addresses, describe_about, describe_run, draw_charts, write_share
from evalhouse.flows.results.gate import name_check, write_amount
from evalhouse.flows.results.output import write_dollars, write_json, write_shared, write_value
from evalhouse.flows.results.run_origin import HEADLINE, explain_joint_split
from evalhouse.flows.ui.live import describe_live, describe_stands, find_live, make_stamp
from evalhouse.flows.ui.pages import find_flow_run_page, find_kept, find_warehouse, link, render
from evalhouse.flows.ui.pair import compare_kept
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.gates import read_checks
from evalhouse.warehouse.rows.history import SeriesData, find_series, read_series
from evalhouse.warehouse.rows.report import Row, Rows, read_summary
from evalhouse.warehouse.rows.run_pages import find_runs, read_cost_runs, read_values, read_worst
from evalhouse.warehouse.rows.runs import find_run, now_utc
from evalhouse.warehouse.rows.told import read_histories, read_marks, read_told
from evalhouse.warehouse.store import Warehouse

router = APIRouter()


@router.get("/runs/{run}")
def show_run(request: Request, run: str) -> Response:
    """One run as a whole; `run` is whatever the commands take for one."""
    warehouse = find_warehouse(request)
    row = find_run(warehouse, run)
    if row.status == "running":
        # A run under way: its page fills until there is all that stands on that of a run that has ended.
        return render(request, "running.html", live=describe_live(find_live(request), row), **describe_about(row))
    summary = read_summary(warehouse, row)
    names = [str(metric["metric"]) for metric in summary.metrics]
    worst = read_worst(warehouse, row, [name for name in names if name in HEADLINE] or names)
    # What a run was made with, by name; what was left as it is by default has no value of its own.
    given = {name: value for name, value in sorted(row.config.items()) if value not in (None, "", [], {})}
    versions = {"code_version": row.code_version, "suite_hash": row.suite_hash, "dataset_hash": row.dataset_hash}
    shown = {**given, **{name: value for name, value in versions.items() if value}}
    return render(
        request,
        "run.html",
        worst=[_describe_worst(sample) for sample in worst],
        charts=draw_charts(read_values(warehouse, row), summary.history, link="/runs/"),
        checks=[
            {**check, "name": name_check(check), "found": write_amount(check["kind"], check["value"])}
            for check in read_checks(warehouse, row.run_id)
        ],
        settings=[
            (name, value if isinstance(value, str) else write_json(value, indent=False))
            for name, value in shown.items()
        ],
        series=row.series,
        prefect=find_flow_run_page(row),
        samples_address=link(f"/runs/{row.run_id}/samples"),
        **describe_run(warehouse, row, None, summary, compare=lambda pair: compare_kept(request, pair).comparison),
    )


def _describe_worst(sample: Row) -> dict[str, Any]:
    """A sample with what is wrong with its statement, in words; the colours are those of labels."""
    if sample["label"] == "FN":
        return {**sample, "tag": "is-fn", "wrong": "left out"}
    if sample["label"] == "FP":
        return {**sample, "tag": "is-fp", "wrong": "wrong" if sample["supported"] else "wrong, and without support"}
    return {**sample, "tag": "is-fp", "wrong": "without support"}


FILTERS: Final = ("kind", "status", "suite", "dataset", "judge", "label", "tag")
_WANTED: Final = (*FILTERS, "series", "words")
SORTS: Final = {
    "started": "started_at", "run": "run_id", "status": "status", "samples": "n_samples", "time": "seconds",
    "judge": "judge", "label": "label",
}  # fmt: skip
_A_PAGE: Final = 50
_MOST_CHOICES: Final = 200


@router.get("/runs")
def show_runs(
    request: Request,
    sort: str = "started",
    ascending: str = "",
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
) -> Response:
    """The runs that the address asks for."""
    wanted = {name: request.query_params.get(name) or None for name in _WANTED}
    _check(request, sort)
    warehouse = find_warehouse(request)
    order = f"{SORTS[sort]} {'asc' if ascending else 'desc'} nulls last, run_id desc"
    rows = find_runs(warehouse, wanted, order=order, start=(page - 1) * _A_PAGE, most=_A_PAGE)
    n_found = int(rows[0]["n_found"]) if rows else 0

    def address(**changes: object) -> str:
        given: dict[str, object] = {**wanted, "sort": sort if sort != "started" else None, "ascending": ascending}
        return link("/runs", **(given | changes))

    # By filter the values that runs have, the most frequent first.
    choices: dict[str, Rows] = {name: [] for name in FILTERS}
    for row in warehouse.read_rows(read_query("ui/run_choices")):
        if len(choices[str(row["name"])]) < _MOST_CHOICES:
            choices[str(row["name"])].append(row)
    return render(
        request,
        "runs.html",
        runs=_add_means(warehouse, rows),
        choices=choices,
        wanted=wanted,
        sort=sort,
        ascending=ascending,
        sorts=SORTS,
        address=address,
        n_found=n_found,
        page=page,
        n_pages=max(1, -(-n_found // _A_PAGE)),
        stands=describe_stands(request),
        stamp=make_stamp(warehouse),
    )


def _check(request: Request, sort: str) -> None:
    known = (*_WANTED, "sort", "ascending", "page")
    for name in request.query_params:
        if name not in known:
            raise SettingsError(f"runs cannot be found by {name!r}; {suggest(name, known)}")
    if sort not in SORTS:
        raise SettingsError(f"runs cannot be sorted by {sort!r}; {suggest(sort, list(SORTS))}")


def _add_means(warehouse: Warehouse, rows: Rows) -> Rows:
    """The runs with the mean of their first main metric."""
    means: dict[str, dict[str, Any]] = {}
    for row in read_told(warehouse, "scores", [str(row["run_id"]) for row in rows]).to_dicts():
        means.setdefault(row["run_id"], {})[row["metric"]] = row["mean"]
    for row in rows:
        of_run = means.get(row["run_id"], {})
        name = next((name for name in HEADLINE if of_run.get(name) is not None), None)
        row |= {"metric": name, "mean": write_value(of_run[name]) if name else "–"}
    return rows


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
    # What the gate decided on each run, with the checks that did not pass in words.
    checks = warehouse.read_rows(read_query("ui/gates"), {"series": series})
    nights = []
    for (run_id, started_at, gate), group in groupby(
        checks, key=lambda row: (row["run_id"], row["started_at"], row["gate"])
    ):
        failing = [check for check in group if check["kind"]]
        look = "undecided" if gate == "passed" and failing else gate
        said = []
        for check in failing:
            undecided = "undecided: " if check["outcome"] == "undecided" else ""
            said.append(f"{undecided}{name_check(check)}, found {write_amount(check['kind'], check['value'])}")
        nights.append({"run_id": run_id, "started_at": started_at, "look": look, "checks": said})
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


DAYS: Final = (7, 30, 90, 365)
_CHARTS: Final = (
    ("Dollars", "priced_usd", "${:,.4g}"),
    ("Requests", "n_requests", "{:,.0f}"),
    ("Taken from the record", "n_reused", "{:,.0f}"),
    ("Tokens", "tokens", "{:,.0f}"),
)
_COUNTS: Final = ("n_requests", "n_reused", "n_failed", "tokens", "priced_usd", "n_unpriced", "saved_usd")


@router.get("/costs")
def show_costs(request: Request, days: Annotated[int, Query(ge=0, le=100_000)] = 30) -> Response:
    """The costs of the runs of so many days; of all where it is 0."""
    warehouse = find_warehouse(request)
    runs = read_cost_runs(warehouse, now_utc() - timedelta(days=days) if days else None)
    by_run = {str(run["run_id"]): run for run in runs}
    costs = read_told(warehouse, "costs", list(by_run)).to_dicts() if runs else []
    rows = [_describe_row(row, by_run[row["run_id"]]) for row in _add_saved(costs, by_run)]
    of_run = _gather(rows, "run_id")
    nights = [{**run, **_sum(of_run[run["run_id"]])} for run in runs if run["run_id"] in of_run]
    drawn = [(name, [night[key] for night in nights], form) for name, key, form in _CHARTS]
    # What went by batch; empty where nothing did.
    n = sum(run["n_batched"] for run in runs)
    groups = []
    for title, key in (("By series", "series"), ("By judge and step", "judged")):
        # What rows come to by a column, the dearest first.
        sums = [{"name": name, **_sum(of_name)} for name, of_name in _gather(rows, key).items()]
        groups.append(
            (
                title,
                [
                    _write(row)
                    for row in sorted(sums, key=lambda row: (-row["priced_usd"], -row["n_requests"], row["name"]))
                ],
            )
        )
    return render(
        request,
        "costs.html",
        days=days,
        choices=DAYS,
        total=_write(_sum(rows)),
        charts=[
            {"name": name, "chart": draw_amounts(nights, values, what=name, form=form, link="/runs/")}
            for name, values, form in drawn
            if any(values)
        ],
        tables=groups,
        batches=(
            f"{n:,} requests went by batch, for {write_dollars(sum(run['batched_usd'] for run in runs))}." if n else ""
        ),
        note=explain_joint_split(costs),
        nights=[_write(night) for night in reversed(nights)],
    )


def _add_saved(costs: Sequence[Row], runs: Mapping[str, Row]) -> list[dict[str, Any]]:
    """The rows with what the replies from the record would have cost: each what a priced request of that judge and step
    cost in these days on average; None where there was none."""
    if not costs:
        return []
    judges = {run_id: run["judge"] for run_id, run in runs.items()}
    frame = pl.DataFrame(costs).with_columns(judge=pl.col("run_id").replace_strict(judges))
    n_priced = (pl.col("n_requests") - pl.col("n_failed") - pl.col("n_unpriced")).clip(0)
    of_step = ["judge", "step"]
    price = pl.when(n_priced.sum().over(of_step) > 0).then(
        pl.col("priced_usd").sum().over(of_step) / n_priced.sum().over(of_step)
    )
    return frame.with_columns(saved_usd=pl.col("n_reused") * price).to_dicts()


def _describe_row(row: Row, run: Row) -> dict[str, Any]:
    return {
        **row,
        "tokens": row["prompt_tokens"] + row["completion_tokens"],
        "series": run["series"],
        "judged": f"{run['judge']} · {row['step']}",
    }


def _gather(rows: Sequence[Row], key: str) -> dict[str, list[Row]]:
    """The rows by what a column says."""
    gathered: dict[str, list[Row]] = {}
    for row in rows:
        gathered.setdefault(str(row[key]), []).append(row)
    return gathered


def _sum(rows: Sequence[Row]) -> dict[str, Any]:
    """What rows come to; of what was saved what is known."""
    return {name: sum(row[name] or 0 for row in rows) for name in _COUNTS}


def _write(row: Mapping[str, Any]) -> dict[str, Any]:
    """The amounts as they are read: a sum of dollars that leaves calls out says so."""
    unknown = f" and {row['n_unpriced']:,} requests without a known price" if row["n_unpriced"] else ""
    return {
        **row,
        "dollars": f"{write_dollars(row['priced_usd'])}{unknown}",
        "saved": f"about {write_dollars(row['saved_usd'])}" if row["saved_usd"] else "–",
        **{name: f"{row[name]:,}" for name in ("n_requests", "n_reused", "n_failed", "tokens")},
    }
