"""Rows for reports and for pages of `evalhouse ui`: a run, its samples, a search among them, and a series' history.

Rows about a run as a whole are read at once. Rows about its samples are read in slices of the run's order, because
texts, verdicts and raw calls of a large run do not fit into memory together. A series is all runs of a suite, or,
outside suites, of a dataset (view `run_series`); it has no end, so rows of single samples are read of few of its runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any, Final

import polars as pl

from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.rows.samples import fetch_derived, fetch_score_history, fetch_shared_with
from evalhouse.warehouse.store import Warehouse

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run as a whole, as rows of the views; each metric's row has the change since the run before it in its series.

    `gate` are the checks that did not pass, none where no gate decided; `flips` is empty where nothing was voted on.
    """

    metrics: Rows
    history: Rows
    costs: Rows
    flips: Rows
    unscored: Rows
    gate: Rows


def fetch_summary(warehouse: Warehouse, run: RunRow) -> RunSummary:
    """Return the rows about a run as a whole."""
    run_id = run.run_id
    history = fetch_score_history(warehouse, run_id)
    names = ("metric", "change", "n_shared", "previous_n_scored", "previous_run_id", "same_yardstick")
    changes = history.filter(pl.col("run_id") == run_id).select(names)
    return RunSummary(
        metrics=fetch_derived(warehouse, "scores", [run_id]).join(changes, on="metric", how="left").to_dicts(),
        history=history.to_dicts(),
        costs=fetch_derived(warehouse, "costs", [run_id]).sort("step").to_dicts(),
        flips=warehouse.fetch_rows("report/flips", run_id=run_id) if run.takes_votes else [],
        unscored=warehouse.fetch_rows("report/unscored", run_id=run_id),
        gate=warehouse.fetch_rows("report/gate", run_id=run_id),
    )


SLICE_SAMPLES: Final = 1000
"""Samples whose rows are read together, at most; thirty megabytes with the requests of a chat model."""
_SLICE_BYTES: Final = 4_000_000
"""Bytes of the texts of samples that are read together; requests repeat them several times."""
_CALLS_TOGETHER: Final = 3000
"""Calls that are read together, about: DuckDB takes several times the memory of their requests. A sample that was asked
about while the judge was down has ten times the calls of the others."""
_CALLS_BYTES: Final = 40_000_000
"""Bytes of a run's texts from which on its calls would make a page that browsers open badly."""


@dataclass(frozen=True, kw_only=True)
class SampleSlice:
    """All rows about some samples in the run's order; all but `samples` have a `sample_id` to join by.

    `calls` has one row per call, as JSON, and one per text that requests share: see `report/slice_calls.sql`. `of_both`
    are the verdicts of both runs where a base is given, as `RunPair.fetch_verdicts` returns them.
    """

    samples: Rows
    statements: Rows
    contexts: Rows
    measures: Rows
    failures: Rows
    calls: Rows
    votes: Rows
    base_answers: Rows
    of_both: Mapping[str, pl.DataFrame]


@contextmanager
def reading_slices(
    warehouse: Warehouse, run: RunRow, base: RunRow | None, *, with_calls: bool
) -> Iterator[Iterator[SampleSlice]]:
    """Give the slices of a run in its order, which another thread reads from now on, one ahead."""

    def read() -> Iterator[SampleSlice]:
        n = min(SLICE_SAMPLES, max(1, _SLICE_BYTES // measure_samples(warehouse, run)))
        for start in count(step=n):
            with one_reader():  # for one slice: DuckDB keeps hundreds of megabytes until its connection closes
                places = warehouse.fetch("report/slice_places", run_id=run.run_id, start=start, n=n)
                if places.is_empty():
                    return
                rows = _fetch_slice(warehouse, run, base, places, with_calls=with_calls)
            yield rows

    slices = read()
    with ThreadPoolExecutor(max_workers=1) as other:
        coming = other.submit(next, slices, None)

        def take() -> Iterator[SampleSlice]:
            nonlocal coming
            while (rows := coming.result()) is not None:
                coming = other.submit(next, slices, None)
                yield rows

        try:
            yield take()
        finally:
            coming.cancel()


def measure_samples(warehouse: Warehouse, run: RunRow) -> int:
    """Return about how many bytes of texts a sample of a run has, at least 1."""
    return max(1, warehouse.fetch_row("report/sample_bytes", run_id=run.run_id)["n"] or 0)


def has_room_for_calls(warehouse: Warehouse, run: RunRow) -> bool:
    """Return whether a report of a run may have its calls: their requests repeat all contexts."""
    return measure_samples(warehouse, run) * (run.n_samples or 0) <= _CALLS_BYTES


def fetch_sample(warehouse: Warehouse, run: RunRow, base: RunRow | None, sample_id: str) -> SampleSlice:
    """Return one sample of a run with its calls; raises WarehouseError that names similar ones for an unknown one."""
    places = warehouse.fetch("report/slice_place", run_id=run.run_id, sample_id=sample_id)
    if places.is_empty():
        raise WarehouseError(explain_no_sample(warehouse, run, sample_id))
    return _fetch_slice(warehouse, run, base, places, with_calls=True)


def explain_no_sample(warehouse: Warehouse, run: RunRow, sample_id: str) -> str:
    """Return the message that a run has no such sample, with similar names of its samples."""
    names = list(warehouse.fetch("report/like_samples", run_id=run.run_id, sample_id=sample_id)["sample_id"])
    return f"run {run.run_id} has no sample {sample_id!r}; {suggest(sample_id, names, otherwise='its samples')}"


def _fetch_slice(
    warehouse: Warehouse, run: RunRow, base: RunRow | None, places: pl.DataFrame, *, with_calls: bool
) -> SampleSlice:
    def read(kind: str, places: pl.DataFrame = places, **parameters: object) -> Rows:
        return warehouse.read(read_query(f"report/slice_{kind}"), parameters, frames={"slice": places}).to_dicts()

    run_id = run.run_id
    parts: list[pl.DataFrame] = []
    if with_calls:
        counted = pl.DataFrame(read("call_counts", run_id=run_id))
        part = (pl.col("n_calls").cum_sum() - pl.col("n_calls")) // _CALLS_TOGETHER
        parts = counted.with_columns(part=part).partition_by("part")
    return SampleSlice(
        samples=read("samples", run_id=run_id),
        statements=read("statements", run_id=run_id),
        contexts=read("contexts", run_id=run_id),
        measures=read("measures", run_id=run_id),
        failures=read("failures", run_id=run_id),
        calls=[row for part in parts for row in read("calls", part, run_id=run_id)],
        votes=read("votes", run_id=run_id) if run.takes_votes else [],
        base_answers=read("base_answers", base=base.run_id) if base else [],
        of_both=RunPair(warehouse, base, run).fetch_verdicts(list(places["sample_id"])) if base else {},
    )


def find_runs(warehouse: Warehouse, wanted: Mapping[str, str | None], *, order: str, start: int, limit: int) -> Rows:
    """Return a row per run of any kind that fits, each with the number of all that do.

    `wanted` has a value, or None, for each parameter of the query, and `order` is a column of it with a direction.
    """
    sql = read_query("ui/find_runs").replace("$order", order)
    return warehouse.read(sql, {**wanted, "start": start, "most": limit}).to_dicts()


Scores = Mapping[tuple[str, str], Mapping[str, Any]]
"""The value, unscored_reason and change by sample and metric."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition on a sample's score of a metric, or with `is_change` on the change of it since the base.

    `test` is one of <, <=, >, >=, =, and `unscored`, which has no number.
    """

    metric: str
    is_change: bool
    test: str
    number: float | None


@dataclass(frozen=True, kw_only=True)
class Search:
    """A search among the samples of a run; None and empty match all.

    `sort` is score or change (of `metric`), order or id; `base` the run that changes are counted from.
    """

    metric: str | None
    sort: str
    descending: bool
    conditions: Sequence[Condition] = ()
    cause: str | None = None
    verdicts: Sequence[str] = ()
    label: str | None = None
    language: str | None = None
    tags: Sequence[tuple[str, str]] = ()
    words: Sequence[str] = ()
    base: str | None = None


def find_samples(warehouse: Warehouse, run: RunRow, search: Search) -> list[str]:
    """Return the ids of the samples that fit, in their order."""
    conditions = {"metric": pl.String, "is_change": pl.Boolean, "test": pl.String, "number": pl.Float64}
    tags = {"key": pl.String, "value": pl.String}
    frames = {
        "conditions": pl.DataFrame([vars(condition) for condition in search.conditions], schema=conditions),
        "tags": pl.DataFrame(list(search.tags), schema=tags, orient="row"),
    }
    names = ("metric", "sort", "descending", "cause", "label", "language", "base")
    parameters: dict[str, object] = {
        **{name: getattr(search, name) for name in names},
        "run_id": run.run_id,
        "run_language": run.language,
        "verdicts": list(search.verdicts),
        "words": [word.lower() for word in search.words],
        "reads_texts": bool(search.words or search.language or search.tags),
    }
    return list(warehouse.read(read_query("ui/find_samples"), parameters, frames=frames)["sample_id"])


def fetch_found_scores(warehouse: Warehouse, run: RunRow, base: str | None, sample_ids: Sequence[str]) -> Scores:
    """Return the scores of these samples; changes are counted from the run `base`."""
    rows = warehouse.fetch_rows("ui/found_scores", {"sample_id": sample_ids}, run_id=run.run_id, base=base)
    return {(row["sample_id"], row["metric"]): row for row in rows}


def count_labelled(warehouse: Warehouse, run: RunRow, sample_ids: Sequence[str]) -> dict[str, int]:
    """Return by sample the number of its verdicts that have a person's label; samples without one are left out."""
    # Finding the labelled contents takes hashes of all texts of the run, and most warehouses have no label.
    if warehouse.read("from reviews select 1 limit 1").is_empty():
        return {}
    rows = warehouse.fetch("ui/found_labels", {"sample_id": sample_ids}, run_id=run.run_id)
    return dict(rows.iter_rows())


FLAKY_RUNS: Final = 20
"""Newest runs in which flaky samples are looked for."""
MAX_SAMPLES: Final = 20
"""Samples listed of each kind."""
SINCE: Final = timedelta(days=7)
"""The age of the run that the newest one is compared with, where there is one so old."""


@dataclass(frozen=True, kw_only=True)
class SeriesData:
    """A series as rows, runs oldest first.

    `means` has a row per metric and run, in time order within the metric; `causes` is by run id,
    and `latencies` of runs that asked a target. `worse` lists samples that are worse in the newest run with
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
    """Return the series of that suite, that dataset, or that name, and all series with scores.

    A suite goes before a dataset of the same name.
    """
    all_series = list(warehouse.fetch("history/known")["series"])
    names = (f"suite {wanted}", f"dataset {wanted}", wanted)
    return next((series for series in names if series in all_series), None), all_series


def fetch_series(warehouse: Warehouse, series: str, *, n_cause_runs: int = 0) -> SeriesData:
    """Return all rows about a series of which at least one run has scores.

    The causes are of so many newest runs, of all where it is 0.
    """
    runs = warehouse.fetch_rows("history/runs", series=series)
    means = fetch_score_history(warehouse, series=series).to_dicts()
    scored = {row["run_id"] for row in means}
    with_scores = [run for run in runs if run["run_id"] in scored]
    # A running run has scores of some samples only, and is the newest only where no other has any.
    with_scores = [run for run in with_scores if run["status"] != "running"] or with_scores
    newest, since = with_scores[-1], None
    shared: Mapping[str, Row] = {}
    worse: Rows = []
    if len(with_scores) > 1:
        # The newest run that is a week older, or the first where none is that old.
        old = [run for run in with_scores if run["started_at"] <= newest["started_at"] - SINCE]
        since = old[-1] if old else with_scores[0]
        pair = {"candidate": newest["run_id"], "base": since["run_id"]}
        metrics = [row["metric"] for row in means if row["run_id"] == newest["run_id"]]
        shared = fetch_shared_with(warehouse, newest["run_id"], since["run_id"], metrics)
        worse = warehouse.fetch_rows("history/worse", **pair, most=MAX_SAMPLES)
    costs = warehouse.fetch_rows("history/costs", {"run_id": [run["run_id"] for run in runs]})
    latencies = warehouse.fetch_rows("history/latencies", series=series)
    recent = [run["run_id"] for run in with_scores[-n_cause_runs:]]
    causes = fetch_derived(warehouse, "causes", recent).sort("precedence").to_dicts()
    return SeriesData(
        series=series,
        runs=runs,
        means=means,
        costs={row["run_id"]: row for row in costs},
        latencies={row["run_id"]: row for row in latencies},
        prompts=warehouse.fetch_rows("history/prompts", series=series),
        causes={run_id: [row for row in causes if row["run_id"] == run_id] for run_id in recent},
        flaky=warehouse.fetch_rows("history/flaky", series=series, n_runs=FLAKY_RUNS, most=MAX_SAMPLES),
        since=since,
        newest=newest,
        shared=shared,
        worse=worse,
    )
