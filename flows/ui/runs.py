"""The pages of runs: the list of all runs, one run, the series and one series, and what runs cost."""

import json
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import groupby
from pathlib import PurePath
from typing import Annotated, Any, Final

import polars as pl
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.report.charts import draw_amounts, draw_spark, write_change
from evalhouse.flows.report.page import describe_series
from evalhouse.flows.report.sections import Addresses, describe_about, describe_run, describe_slices, draw_charts
from evalhouse.flows.results.comparison import name_check, write_amount
from evalhouse.flows.results.output import (
    write_count,
    write_dollars,
    write_json,
    write_share,
    write_shared,
    write_value,
)
from evalhouse.flows.results.run_facts import explain_joint_split, list_first, sort_first
from evalhouse.flows.ui.pages import PageNumber, find_flow_run_page, find_warehouse, link, render, use_cached
from evalhouse.flows.ui.pair import compare_cached
from evalhouse.tasks.comparing.changes import FINE
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import clean_text, suggest
from evalhouse.warehouse.rows.pages import Row, Rows, fetch_series, fetch_summary, find_runs, find_series
from evalhouse.warehouse.rows.progress import RunProgress, fetch_means_so_far, fetch_progress, list_metric_files
from evalhouse.warehouse.rows.runs import RunRow, find_run, now_utc
from evalhouse.warehouse.rows.samples import fetch_derived, fetch_histories
from evalhouse.warehouse.store import Warehouse

router = APIRouter()
_EVERY_S: Final = 2
_IDLE_S: Final = 15
_PROGRESS_CACHED_S: Final = 1.0
"""Seconds for which all requests get the same answer."""
_MEANS_CACHED_S: Final = 15.0
_QUIET: Final = timedelta(minutes=10)
"""Time without activity after which a run is shown as quiet if it is unknown whether its process is alive."""


def read_run_progress(request: Request, run: RunRow) -> RunProgress:
    """Read how far a run is, once a second for all requests."""
    read = partial(fetch_progress, find_warehouse(request), run, request.app.state.journal)
    return use_cached(request, ("progress", run.run_id), time.monotonic() // _PROGRESS_CACHED_S, read)


@router.get("/live")
def send_progress_of_all(request: Request) -> Response:
    """Send how far all running runs are."""
    texts = {f"{run_id}-status": words for run_id, words in describe_running(request).items()}
    return _answer(make_stamp(find_warehouse(request)), texts, {}, "", _EVERY_S if texts else _IDLE_S)


@router.get("/runs/{run}/live")
def send_progress(request: Request, run: str) -> Response:
    """Send how far one run is."""
    row = find_run(find_warehouse(request), run)
    if row.status != "running":
        return _answer(row.status, {}, {}, f"The run is {row.status}", _IDLE_S)
    shown = describe_live(request, row)
    return _answer("running", shown["texts"], shown["values"], shown["say"], _EVERY_S)


def _answer(stamp: str, texts: dict[str, str], values: dict[str, float], say: str, every_s: int) -> Response:
    """Send the texts and numbers of a page by the names of its elements, and what a screen reader should read.

    While the stamp is that of the page only texts are replaced; another one means that the page has to be loaded again.
    """
    cleaned = {name: clean_text(text) for name, text in texts.items()}
    return JSONResponse({"stamp": stamp, "texts": cleaned, "values": values, "say": clean_text(say), "every": every_s})


def describe_running(request: Request) -> dict[str, str]:
    """Return how far each running run is, by its id."""
    warehouse = find_warehouse(request)
    running = [find_run(warehouse, str(row["run_id"])) for row in warehouse.fetch_rows("ui/running")]
    return {run.run_id: describe_progress(read_run_progress(request, run)) for run in running}


def make_stamp(warehouse: Warehouse) -> str:
    """Return a text that changes whenever a run begins or ends."""
    (row,) = warehouse.fetch_rows("ui/stamp")
    return str(row["stamp"])


def describe_live(request: Request, run: RunRow) -> dict[str, Any]:
    """Return what the page of a running run shows, by the names of its elements."""
    progress = read_run_progress(request, run)
    n_all = progress.n_samples or 0
    cost = write_dollars(progress.priced_usd)
    if progress.n_unpriced:
        cost = f"{cost} and {write_count(progress.n_unpriced, 'call')} without a known price"
    # A warning where the run is silent; empty while it makes progress.
    warning, ago = "", max(timedelta(), now_utc() - progress.last_at)
    if not progress.is_alive and (progress.is_alive is False or ago >= _QUIET):
        since = f"last activity at {progress.last_at:%Y-%m-%d %H:%M:%S} UTC, {write_time(ago)} ago"
        if progress.is_alive is None:
            warning = f"It is quiet: {since}."
        else:
            warning = (
                f"No process on this machine works on it: {since}. `evalhouse resume {run.run_id}` continues it; "
                "what was answered is stored and costs nothing."
            )
    texts = {
        "stand": describe_progress(progress),
        "warning": warning,
        "requests": f"{progress.n_requests:,}",
        "reused": f"{progress.n_reused:,}",
        "failed": f"{progress.n_failed:,}",
        "tokens": f"{progress.n_tokens:,}",
        "cost": cost,
    }
    for step in progress.steps:
        failed = f", {step.n_failed:,} failed" if step.n_failed else ""
        texts[f"step-{step.step}"] = f"{step.n_done:,} of {n_all:,}{failed}"
    names = [file.name for file in list_metric_files(run)]
    metrics = list_first(names, run.config)
    if any(step.n_done for step in progress.steps):
        read = partial(fetch_means_so_far, find_warehouse(request), run, metrics)
        for mean in use_cached(request, ("means", run.run_id), time.monotonic() // _MEANS_CACHED_S, read):
            n_scored = write_count(mean.n_scored, "sample")
            texts[f"mean-{mean.metric}"] = f"{write_value(mean.mean)} of {n_scored}" if mean.n_scored else "none yet"
    # A screen reader reads every quarter.
    quarters = ("", "A quarter is done", "Half is done", "Three quarters are done", "All is judged")
    quarter = quarters[min(int(4 * (progress.share or 0)), 4)]
    values = {f"step-{step.step}": step.n_done / n_all if n_all else 0 for step in progress.steps}
    return {
        "texts": texts,
        "values": {**values, "all": progress.share or 0},
        "steps": [step.step for step in progress.steps],
        "means": metrics,
        "say": texts["warning"] or quarter,
    }


def describe_progress(progress: RunProgress) -> str:
    """Return how far a run is, in a few words."""
    if progress.is_alive is False:
        return f"stopped at {write_share(progress.share)}, no process works on it"
    if not any(step.n_done for step in progress.steps) and progress.n_responses:
        of = f" of {progress.n_samples:,}" if progress.n_samples else ""
        return f"running: {progress.n_responses:,}{of} responses of the application have arrived"
    left = f", about {write_time(progress.left)} left" if progress.left else ""
    return f"running: {write_share(progress.share or 0)} done{left}"


def write_time(time_left: timedelta) -> str:
    """Write a length of time in its largest units: 40 s, 3 min, 2 h 5 min, 3 days."""
    minutes, seconds = divmod(int(time_left.total_seconds()), 60)
    if not minutes:
        return f"{seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


@router.get("/runs/{run}")
def show_run(request: Request, run: str, by: str | None = None) -> Response:
    """Show one run as a whole; `run` is any name that the commands take, `by` a column for means by slice."""
    warehouse = find_warehouse(request)
    row = find_run(warehouse, run)
    if row.status == "running":
        # The page of a running run fills until it has everything that the page of a finished run has.
        return render(request, "running.html", live=describe_live(request, row), **describe_about(row))
    summary = fetch_summary(warehouse, row)
    names = [str(metric["metric"]) for metric in summary.metrics]
    worst = []
    for sample in warehouse.fetch_rows("ui/worst", run_id=row.run_id, metrics=list_first(names, row.config), most=5):
        # The fault of its statement in words, in the colours of labels.
        if sample["label"] == "FN":
            wrong = "left out"
        elif sample["label"] == "FP":
            wrong = "wrong" if sample["supported"] else "wrong, and without support"
        else:
            wrong = "without support"
        worst.append({**sample, "tag": "is-fn" if sample["label"] == "FN" else "is-fp", "wrong": wrong})
    # The settings of the run by name; those left at their defaults have no value.
    given = {name: value for name, value in sorted(row.config.items()) if value not in (None, "", [], {})}
    versions = {"code_version": row.code_version, "suite_hash": row.suite_hash, "dataset_hash": row.dataset_hash}
    shown = {**given, **{name: value for name, value in versions.items() if value}}
    return render(
        request,
        "run.html",
        worst=worst,
        charts=draw_charts(
            dict(warehouse.fetch("ui/values", run_id=row.run_id).iter_rows()), summary.history, link="/runs/"
        ),
        checks=[
            {**check, "name": name_check(check), "found": write_amount(check["kind"], check["value"])}
            for check in warehouse.fetch_rows("gate/newest", run_id=row.run_id)
        ],
        settings=[
            (name, value if isinstance(value, str) else write_json(value, indent=False))
            for name, value in shown.items()
        ],
        series=row.series,
        slices=describe_slices(warehouse, row, by) if summary.metrics else {},
        prefect=find_flow_run_page(row),
        samples_address=link(f"/runs/{row.run_id}/samples"),
        **describe_run(
            warehouse, row, None, summary, by=by, compare=lambda pair: compare_cached(request, pair).comparison
        ),
    )


FILTERS: Final = ("kind", "status", "suite", "dataset", "judge", "label", "tag")
_WANTED: Final = (*FILTERS, "series", "words")
SORTS: Final = {
    "started": "started_at", "run": "run_id", "status": "status", "samples": "n_samples", "time": "seconds",
    "judge": "judge", "label": "label",
}  # fmt: skip
_A_PAGE: Final = 50
_MAX_CHOICES: Final = 200


@router.get("/runs")
def show_runs(
    request: Request,
    sort: str = "started",
    ascending: str = "",
    page: PageNumber = 1,
) -> Response:
    """Show the runs that the address asks for."""
    known = (*_WANTED, "sort", "ascending", "page")
    for name in request.query_params:
        if name not in known:
            raise SettingsError(f"runs cannot be found by {name!r}; {suggest(name, known)}")
    if sort not in SORTS:
        raise SettingsError(f"runs cannot be sorted by {sort!r}; {suggest(sort, list(SORTS))}")
    wanted = {name: request.query_params.get(name) or None for name in _WANTED}
    warehouse = find_warehouse(request)
    order = f"{SORTS[sort]} {'asc' if ascending else 'desc'} nulls last, run_id desc"
    rows = find_runs(warehouse, wanted, order=order, start=(page - 1) * _A_PAGE, limit=_A_PAGE)
    n_found = int(rows[0]["n_found"]) if rows else 0
    # Each run is shown with the mean of its first metric.
    means: dict[str, dict[str, Any]] = {}
    for score in fetch_derived(warehouse, "scores", [str(row["run_id"]) for row in rows]).to_dicts():
        means.setdefault(score["run_id"], {})[score["metric"]] = score["mean"]
    for row in rows:
        of_run = means.get(row["run_id"], {})
        metric = next((name for name in sort_first([*of_run]) if of_run[name] is not None), None)
        row |= {
            "metric": metric,
            "mean": write_value(of_run[metric]) if metric else "–",
            "dataset_name": PurePath(row["dataset"] or "").name,
        }

    def address(**changes: object) -> str:
        given: dict[str, object] = {**wanted, "sort": sort if sort != "started" else None, "ascending": ascending}
        return link("/runs", **(given | changes))

    # By filter the values that runs have, the most frequent first.
    choices: dict[str, Rows] = {name: [] for name in FILTERS}
    for row in warehouse.fetch_rows("ui/run_choices"):
        if len(choices[str(row["name"])]) < _MAX_CHOICES:
            choices[str(row["name"])].append(row)
    return render(
        request,
        "runs.html",
        runs=rows,
        choices=choices,
        wanted=wanted,
        sort=sort,
        ascending=ascending,
        sorts=SORTS,
        address=address,
        n_found=n_found,
        page=page,
        n_pages=max(1, -(-n_found // _A_PAGE)),
        progress=describe_running(request),
        stamp=make_stamp(warehouse),
    )


ADDRESSES: Final = Addresses(run="/runs/", sample="/sample?id=", compare="/compare")
_LATELY: Final = 30
"""Nights of a spark."""


@router.get("/")
def show_all_series(request: Request) -> Response:
    """Show each series at a glance, the newest first."""
    warehouse = find_warehouse(request)
    series = warehouse.fetch_rows("ui/series")
    run_ids = warehouse.fetch("ui/lately", n_runs=_LATELY).to_series().to_list()
    means = fetch_histories(warehouse, run_ids).to_dicts() if run_ids else []
    # By run which share of its judged answers has a problem; none for a run without judged answers.
    shares: dict[str, float] = {}
    newest = [str(row["ended_run_id"]) for row in series if row["ended_run_id"]]
    for cause in fetch_derived(warehouse, "causes", newest).to_dicts():
        if cause["cause"] != "not_judged" and cause["n_of"]:
            new = cause["share"] if cause["cause"] not in FINE else 0.0
            shares[cause["run_id"]] = shares.get(cause["run_id"], 0.0) + new
    problems = {run_id: write_share(share) for run_id, share in shares.items()}
    # Of each series the first metrics: the last mean, its change, and the shape of the nights before.
    described = []
    for row in series:
        by_metric: dict[str, list[Row]] = {}
        for mean in means:
            if mean["series"] == row["series"] and mean["mean"] is not None:
                by_metric.setdefault(str(mean["metric"]), []).append(mean)
        metrics = []
        for name in list_first([*by_metric], json.loads(row["config"] or "{}")):
            last = by_metric[name][-1]
            if last["previous_run_id"] is None:
                change = ""
            elif last["same_yardstick"] is False:
                change = "measured differently"
            else:
                shared = write_shared(last)
                change = f"{write_change(last['change'])}{f', {shared}' if shared else ''}"
            spark = draw_spark(by_metric[name]) if len(by_metric[name]) > 1 else None
            metrics.append({"name": name, "mean": write_value(last["mean"]), "change": change, "spark": spark})
        described.append({**row, "metrics": metrics, "problem": problems.get(str(row["ended_run_id"]))})
    return render(
        request,
        "series.html",
        series=described,
        progress=describe_running(request),
        stamp=make_stamp(warehouse),
    )


_CAUSE_RUNS: Final = (14, 60, 365)


@router.get("/series")
def show_series(request: Request, name: str, causes: Annotated[int, Query(ge=0, le=1_000_000)] = 60) -> Response:
    """Show the history of one series; `name` is that of the series, a suite or a dataset.

    Causes are shown over so many newest runs, over all where it is 0.
    """
    warehouse = find_warehouse(request)
    series, others = find_series(warehouse, name)
    if series is None:
        raise WarehouseError(
            f"no series with scores is called {name!r}; {suggest(name, others, otherwise='there are')}"
        )
    data = fetch_series(warehouse, series, n_cause_runs=causes)
    # What the gate decided on each run, with the checks that did not pass in words.
    checks: Sequence[Row] = warehouse.fetch_rows("ui/gates", series=series)
    nights = []
    for (run_id, started_at, gate), group in groupby(
        checks, key=lambda row: (row["run_id"], row["started_at"], row["gate"])
    ):
        failing = [check for check in group if check["kind"]]
        look = "undecided" if gate == "passed" and failing else gate
        failed = []
        for check in failing:
            undecided = "undecided: " if check["outcome"] == "undecided" else ""
            failed.append(f"{undecided}{name_check(check)}, found {write_amount(check['kind'], check['value'])}")
        nights.append({"run_id": run_id, "started_at": started_at, "look": look, "checks": failed})
    return render(
        request,
        "history_of.html",
        series=series,
        nights=nights,
        noted=[night for night in nights if night["checks"]],
        cause_choices=_CAUSE_RUNS,
        n_cause_runs=causes,
        **describe_series(warehouse, data, ADDRESSES, lambda pair: compare_cached(request, pair).comparison),
    )


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
    """Show the costs of the runs of so many days; of all where it is 0.

    What the replies from the record would have cost is estimated: each what a priced request of that judge and step
    cost in these days on average; None without one.
    """
    warehouse = find_warehouse(request)
    runs = warehouse.fetch_rows("ui/cost_runs", since=now_utc() - timedelta(days=days) if days else None)
    by_run = {str(run["run_id"]): run for run in runs}
    costs = fetch_derived(warehouse, "costs", list(by_run)).to_dicts() if runs else []
    counts: dict[str, Any] = dict.fromkeys(_COUNTS, 0)
    nights: list[dict[str, Any]] = []
    tables: list[tuple[str, list[dict[str, Any]]]] = [("By series", []), ("By judge and step", [])]
    if costs:
        columns = {name: {run_id: run[name] for run_id, run in by_run.items()} for name in ("judge", "series")}
        n_priced = (pl.col("n_requests") - pl.col("n_failed") - pl.col("n_unpriced")).clip(0).sum()
        of_step = ["judge", "step"]
        price = pl.when(n_priced.over(of_step) > 0).then(
            pl.col("priced_usd").sum().over(of_step) / n_priced.over(of_step)
        )
        frame = (
            pl.DataFrame(costs, infer_schema_length=None)
            .with_columns(
                *(pl.col("run_id").replace_strict(values).alias(name) for name, values in columns.items()),
                tokens=pl.col("prompt_tokens") + pl.col("completion_tokens"),
            )
            .with_columns(saved_usd=pl.col("n_reused") * price, judged=pl.format("{} · {}", "judge", "step"))
        )
        sums = [pl.col(name).sum() for name in _COUNTS]
        counts = frame.select(sums).to_dicts()[0]
        of_run = {row["run_id"]: row for row in frame.group_by("run_id").agg(sums).to_dicts()}
        nights = [{**run, **of_run[run["run_id"]]} for run in runs if run["run_id"] in of_run]
        for (_, table), key in zip(tables, ("series", "judged"), strict=True):
            named = frame.group_by(pl.col(key).alias("name")).agg(sums).to_dicts()
            named.sort(key=lambda row: (-row["priced_usd"], -row["n_requests"], row["name"]))  # highest cost first
            table.extend(map(_write, named))
    drawn = [(name, [night[key] for night in nights], form) for name, key, form in _CHARTS]
    n_batched = sum(run["n_batched"] for run in runs)
    batched_cost = write_dollars(sum(run["batched_usd"] for run in runs))
    return render(
        request,
        "costs.html",
        days=days,
        choices=DAYS,
        total=_write(counts),
        charts=[
            {"name": name, "chart": draw_amounts(nights, values, what=name, form=form, link="/runs/")}
            for name, values, form in drawn
            if any(values)
        ],
        tables=tables,
        batches=f"{n_batched:,} requests were sent in batches, for {batched_cost}." if n_batched else "",
        note=explain_joint_split(costs),
        nights=[_write(night) for night in reversed(nights)],
    )


def _write(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its amounts as texts; a sum of dollars names the calls that it leaves out."""
    unknown = f" and {row['n_unpriced']:,} requests without a known price" if row["n_unpriced"] else ""
    return {
        **row,
        "dollars": f"{write_dollars(row['priced_usd'])}{unknown}",
        "saved": f"about {write_dollars(row['saved_usd'])}" if row["saved_usd"] else "–",
        **{name: f"{row[name]:,}" for name in ("n_requests", "n_reused", "n_failed", "tokens")},
    }
