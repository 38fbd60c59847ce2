"""The pages of runs: the list of all runs, one run, the series and one series, and what runs cost."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Annotated, Any, Final

import polars as pl
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.report.charts import draw_amounts, draw_spark, write_change
from evalhouse.flows.report.page import describe_series
from evalhouse.flows.report.sections import FINE, Addresses, describe_about, describe_run, draw_charts, write_share
from evalhouse.flows.results.comparison import name_check, write_amount
from evalhouse.flows.results.output import (
    write_count,
    write_dollars,
    write_json,
    write_shared,
    write_value,
)
from evalhouse.flows.results.run_facts import HEADLINE, explain_joint_split
from evalhouse.flows.ui.pages import Kept, find_flow_run_page, find_warehouse, link, render
from evalhouse.flows.ui.pair import compare_kept
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import clean_text
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.gates import read_checks
from evalhouse.warehouse.rows.history import find_series, read_series
from evalhouse.warehouse.rows.pages import find_runs, read_cost_runs, read_values, read_worst
from evalhouse.warehouse.rows.progress import (
    JournalReader,
    MeanSoFar,
    RunProgress,
    list_metric_files,
    read_means_so_far,
    read_progress,
)
from evalhouse.warehouse.rows.report import Row, Rows, read_summary
from evalhouse.warehouse.rows.runs import RunRow, find_run, now_utc
from evalhouse.warehouse.rows.scores import read_derived, read_histories
from evalhouse.warehouse.store import Warehouse

router = APIRouter()
_EVERY_S: Final = 2
_IDLE_S: Final = 15
_KEPT_S: Final = 1.0
"""Seconds for which an answer is kept for all requests."""
_MEANS_KEPT_S: Final = 15.0
_QUIET: Final = timedelta(minutes=10)
"""A run without news for so long is shown as quiet where it is unknown whether it is alive."""


class LiveReader:
    """Reads how far runs are, once for all who ask within a moment; safe to use from several threads."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._journal = JournalReader(warehouse.location)
        self._kept = Kept()

    def read_progress(self, run: RunRow) -> RunProgress:
        """Return how far a run is."""
        read = partial(read_progress, self._warehouse, run, self._journal)
        return self._kept.find(("progress", run.run_id), time.monotonic() // _KEPT_S, read)

    def read_means(self, run: RunRow) -> list[MeanSoFar]:
        """Return the main means of a run so far."""
        read = partial(read_means_so_far, self._warehouse, run, list_main(run))
        return self._kept.find(("means", run.run_id), time.monotonic() // _MEANS_KEPT_S, read)


def find_live(request: Request) -> LiveReader:
    """The reader of the app."""
    reader: LiveReader = request.app.state.live
    return reader


@router.get("/live")
def tell_all(request: Request) -> Response:
    """Send how far all running runs are."""
    texts = {f"{run_id}-status": stand for run_id, stand in describe_stands(request).items()}
    return _answer(make_stamp(find_warehouse(request)), texts, {}, "", _EVERY_S if texts else _IDLE_S)


@router.get("/runs/{run}/live")
def tell_one(request: Request, run: str) -> Response:
    """Send how far one run is."""
    row = find_run(find_warehouse(request), run)
    if row.status != "running":
        return _answer(row.status, {}, {}, f"The run is {row.status}", _IDLE_S)
    shown = describe_live(find_live(request), row)
    return _answer("running", shown["texts"], shown["values"], shown["say"], _EVERY_S)


def describe_stands(request: Request) -> dict[str, str]:
    """Return how far each running run is, by its id."""
    running = list_running(find_warehouse(request))
    return {run.run_id: describe_stand(find_live(request).read_progress(run)) for run in running}


def list_running(warehouse: Warehouse) -> list[RunRow]:
    """List the runs with the status running."""
    rows = warehouse.read_rows(read_query("ui/running"))
    return [find_run(warehouse, str(row["run_id"])) for row in rows]


def make_stamp(warehouse: Warehouse) -> str:
    """Return a text that changes whenever a run begins or ends."""
    (row,) = warehouse.read_rows(read_query("ui/stamp"))
    return str(row["stamp"])


def list_main(run: RunRow) -> list[str]:
    """The main metrics of a run."""
    names = [file.name for file in list_metric_files(run)]
    return [name for name in HEADLINE if name in names] or names[:1]


def describe_live(reader: LiveReader, run: RunRow) -> dict[str, Any]:
    """Return what the page of a running run shows, by the names that its elements have."""
    progress = reader.read_progress(run)
    n_all = progress.n_samples or 0
    if not progress.n_unpriced:
        cost = write_dollars(progress.priced_usd)
    else:
        cost = (
            f"{write_dollars(progress.priced_usd)} and {write_count(progress.n_unpriced, 'call')} without a known price"
        )
    texts = {
        "stand": describe_stand(progress),
        "warning": describe_warning(run, progress) or "",
        "requests": f"{progress.n_requests:,}",
        "reused": f"{progress.n_reused:,}",
        "failed": f"{progress.n_failed:,}",
        "tokens": f"{progress.n_tokens:,}",
        "cost": cost,
    }
    for step in progress.steps:
        failed = f", {step.n_failed:,} failed" if step.n_failed else ""
        texts[f"step-{step.step}"] = f"{step.n_done:,} of {n_all:,}{failed}"
    if any(step.n_done for step in progress.steps):
        texts |= {
            f"mean-{mean.metric}": (
                f"{write_value(mean.mean)} of {write_count(mean.n_scored, 'sample')}" if mean.n_scored else "none yet"
            )
            for mean in reader.read_means(run)
        }
    # Read aloud is every quarter.
    quarters = ("", "A quarter is done", "Half is done", "Three quarters are done", "All is judged")
    quarter = quarters[min(int(4 * (progress.share or 0)), 4)]
    values = {f"step-{step.step}": step.n_done / n_all if n_all else 0 for step in progress.steps}
    return {
        "texts": texts,
        "values": {**values, "all": progress.share or 0},
        "steps": [step.step for step in progress.steps],
        "means": list_main(run),
        "say": texts["warning"] or quarter,
    }


def describe_stand(progress: RunProgress) -> str:
    """Return how far a run is, in a few words."""
    if progress.is_alive is False:
        return f"stopped at {write_share(progress.share)}, no process is at work on it"
    if not any(step.n_done for step in progress.steps) and progress.n_responses:
        of = f" of {progress.n_samples:,}" if progress.n_samples else ""
        return f"running: {progress.n_responses:,}{of} responses of the application are there"
    left = f", about {write_time(progress.left)} left" if progress.left else ""
    return f"running: {write_share(progress.share or 0)} done{left}"


def describe_warning(run: RunRow, progress: RunProgress) -> str | None:
    """Return that a run is silent, and since when; None where it makes progress."""
    ago = now_utc() - progress.last_at
    if progress.is_alive or (progress.is_alive is None and ago < _QUIET):
        return None
    since = f"the last that came of it came at {progress.last_at:%Y-%m-%d %H:%M:%S} UTC, {write_time(ago)} ago"
    if progress.is_alive is None:
        return f"It is quiet: {since}."
    return (
        f"No process is at work on it on this machine: {since}. `evalhouse resume {run.run_id}` goes on with it; "
        "what was answered is on record and costs nothing."
    )


def write_time(time_left: timedelta) -> str:
    """A length of time in its largest units: 40 s, 3 min, 2 h 5 min, 3 days."""
    minutes, seconds = divmod(int(time_left.total_seconds()), 60)
    if not minutes:
        return f"{seconds} s"
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} days"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def _answer(stamp: str, texts: dict[str, str], values: dict[str, float], say: str, every_s: int) -> Response:
    cleaned = {name: clean_text(text) for name, text in texts.items()}
    return JSONResponse({"stamp": stamp, "texts": cleaned, "values": values, "say": clean_text(say), "every": every_s})


@router.get("/runs/{run}")
def show_run(request: Request, run: str) -> Response:
    """Show one run as a whole; `run` is any name that the commands take."""
    warehouse = find_warehouse(request)
    row = find_run(warehouse, run)
    if row.status == "running":
        # A run under way: its page fills until there is all that stands on that of a run that has ended.
        return render(request, "running.html", live=describe_live(find_live(request), row), **describe_about(row))
    summary = read_summary(warehouse, row)
    names = [str(metric["metric"]) for metric in summary.metrics]
    worst = []
    for sample in read_worst(warehouse, row, [name for name in names if name in HEADLINE] or names):
        # What is wrong with its statement, in words; the colours are those of labels.
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
    rows = find_runs(warehouse, wanted, order=order, start=(page - 1) * _A_PAGE, most=_A_PAGE)
    n_found = int(rows[0]["n_found"]) if rows else 0
    # Each run is shown with the mean of its first main metric.
    means: dict[str, dict[str, Any]] = {}
    for score in read_derived(warehouse, "scores", [str(row["run_id"]) for row in rows]).to_dicts():
        means.setdefault(score["run_id"], {})[score["metric"]] = score["mean"]
    for row in rows:
        of_run = means.get(row["run_id"], {})
        metric = next((name for name in HEADLINE if of_run.get(name) is not None), None)
        row |= {"metric": metric, "mean": write_value(of_run[metric]) if metric else "–"}

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
        stands=describe_stands(request),
        stamp=make_stamp(warehouse),
    )


ADDRESSES: Final = Addresses(run="/runs/", sample="/sample?id=", compare="/compare")
_LATELY: Final = 30
"""Nights of a spark."""


@router.get("/")
def show_all_series(request: Request) -> Response:
    """Show each series at a glance, the newest first."""
    warehouse = find_warehouse(request)
    series = warehouse.read_rows(read_query("ui/series"))
    run_ids = warehouse.read(read_query("ui/lately"), {"n_runs": _LATELY}).to_series().to_list()
    means = read_histories(warehouse, run_ids).to_dicts() if run_ids else []
    # By run which share of its judged answers has a problem; none for a run without judged answers.
    counts: dict[str, tuple[int, int]] = {}
    newest = [str(row["ended_run_id"]) for row in series if row["ended_run_id"]]
    for cause in read_derived(warehouse, "causes", newest).to_dicts():
        if cause["cause"] != "not_judged" and cause["n_of"]:
            n_wrong, _ = counts.get(cause["run_id"], (0, 0))
            n_new = cause["n_samples"] if cause["cause"] not in FINE else 0
            counts[cause["run_id"]] = (n_wrong + n_new, cause["n_of"])
    problems = {run_id: write_share(n_wrong / n) for run_id, (n_wrong, n) in counts.items()}
    # Of each series the main metrics: the last mean, its change, and the shape of the nights before.
    described = []
    for row in series:
        by_metric: dict[str, list[Row]] = {}
        for mean in means:
            if mean["series"] == row["series"] and mean["mean"] is not None:
                by_metric.setdefault(str(mean["metric"]), []).append(mean)
        metrics = []
        for name in [name for name in HEADLINE if name in by_metric] or list(by_metric)[:1]:
            last = by_metric[name][-1]
            if last["previous_run_id"] is None:
                change = ""
            elif last["same_yardstick"] is False:
                change = "measured otherwise"
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
        stands=describe_stands(request),
        stamp=make_stamp(warehouse),
    )


@router.get("/series")
def show_series(request: Request, name: str) -> Response:
    """Show the history of one series; `name` is that of the series, a suite or a dataset."""
    warehouse = find_warehouse(request)
    series, others = find_series(warehouse, name)
    if series is None:
        raise WarehouseError(
            f"no series with scores is called {name!r}; {suggest(name, others, otherwise='there are')}"
        )
    # What looks at the samples of many nights is read again only where one of the nights has changed.
    data = read_series(warehouse, series)
    # What the gate decided on each run, with the checks that did not pass in words.
    checks: Sequence[Row] = warehouse.read_rows(read_query("ui/gates"), {"series": series})
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
        **describe_series(warehouse, data, ADDRESSES, lambda pair: compare_kept(request, pair).comparison),
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
    cost in these days on average; None where there was none.
    """
    warehouse = find_warehouse(request)
    runs = read_cost_runs(warehouse, now_utc() - timedelta(days=days) if days else None)
    by_run = {str(run["run_id"]): run for run in runs}
    costs = read_derived(warehouse, "costs", list(by_run)).to_dicts() if runs else []
    rows: list[dict[str, Any]] = []
    if costs:
        judges = {run_id: run["judge"] for run_id, run in by_run.items()}
        frame = pl.DataFrame(costs).with_columns(judge=pl.col("run_id").replace_strict(judges))
        n_priced = (pl.col("n_requests") - pl.col("n_failed") - pl.col("n_unpriced")).clip(0).sum()
        of_step = ["judge", "step"]
        price = pl.when(n_priced.over(of_step) > 0).then(
            pl.col("priced_usd").sum().over(of_step) / n_priced.over(of_step)
        )
        for row in frame.with_columns(saved_usd=pl.col("n_reused") * price).to_dicts():
            run = by_run[row["run_id"]]
            tokens = row["prompt_tokens"] + row["completion_tokens"]
            rows.append({**row, "tokens": tokens, "series": run["series"], "judged": f"{run['judge']} · {row['step']}"})
    of_run = _gather(rows, "run_id")
    nights = [{**run, **_sum(of_run[run["run_id"]])} for run in runs if run["run_id"] in of_run]
    drawn = [(name, [night[key] for night in nights], form) for name, key, form in _CHARTS]
    # What went by batch; empty where nothing did.
    n = sum(run["n_batched"] for run in runs)
    tables = []
    for title, key in (("By series", "series"), ("By judge and step", "judged")):
        sums = [{"name": name, **_sum(of_name)} for name, of_name in _gather(rows, key).items()]
        sums.sort(key=lambda row: (-row["priced_usd"], -row["n_requests"], row["name"]))  # the dearest first
        tables.append((title, [_write(row) for row in sums]))
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
        tables=tables,
        batches=(
            f"{n:,} requests went by batch, for {write_dollars(sum(run['batched_usd'] for run in runs))}." if n else ""
        ),
        note=explain_joint_split(costs),
        nights=[_write(night) for night in reversed(nights)],
    )


def _gather(rows: Sequence[Row], key: str) -> dict[str, list[Row]]:
    """Return the rows by the value of a column."""
    gathered: dict[str, list[Row]] = {}
    for row in rows:
        gathered.setdefault(str(row[key]), []).append(row)
    return gathered


def _sum(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the sums of the rows; of what was saved the known part."""
    return {name: sum(row[name] or 0 for row in rows) for name in _COUNTS}


def _write(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its amounts as texts; a sum of dollars that leaves calls out says so."""
    unknown = f" and {row['n_unpriced']:,} requests without a known price" if row["n_unpriced"] else ""
    return {
        **row,
        "dollars": f"{write_dollars(row['priced_usd'])}{unknown}",
        "saved": f"about {write_dollars(row['saved_usd'])}" if row["saved_usd"] else "–",
        **{name: f"{row[name]:,}" for name in ("n_requests", "n_reused", "n_failed", "tokens")},
    }
