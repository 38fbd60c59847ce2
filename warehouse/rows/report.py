"""What a report of a run is made of, read from the warehouse in a few queries.

What is about the run as a whole comes at once. What is about its samples comes in slices of the run's order, because
texts, verdicts and raw calls of a large run are too much for memory together. `flows/report/samples.py` makes records
of these rows, `flows/report/page.py` the page.
"""

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import polars as pl

from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.rows.scores import read_derived, read_score_history
from evalhouse.warehouse.store import Warehouse

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]

SLICE_SAMPLES: Final = 1000
"""Samples whose rows are read together; thirty megabytes with the requests of a chat model."""
_AHEAD: Final = 3
"""Slices that are read before they are asked for."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """What there is to tell about the run as a whole, as rows of the views.

    `gate` are the checks that did not pass, none where no gate decided; `flips` is empty where nothing was voted on.
    """

    metrics: Rows
    history: Rows
    costs: Rows
    flips: Rows
    unscored: Rows
    gate: Rows


@dataclass(frozen=True, kw_only=True)
class SampleScores:
    """A row per sample and metric in the run's order, the causes by sample, and those of the other run's scores whose
    sample is in this run as well."""

    scores: Rows
    causes: Mapping[str, str]
    base_scores: Rows


@dataclass(frozen=True, kw_only=True)
class SampleSlice:
    """Everything about some samples, as rows in the run's order; all but `samples` have a `sample_id` to join by.

    `calls` has one row per call, as JSON, and one per text that requests share: see `report/slice_calls.sql`. `of_both`
    are the verdicts of both runs where there is another one, as `RunPair.read_verdicts` gives them.
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


def read_summary(warehouse: Warehouse, run: RunRow) -> RunSummary:
    """The run as a whole."""
    of_run = {"run_id": run.run_id}
    history = read_score_history(warehouse, run.run_id)
    return RunSummary(
        metrics=_read_metrics(warehouse, run.run_id, history),
        history=history.to_dicts(),
        costs=read_derived(warehouse, "costs", [run.run_id]).sort("step").to_dicts(),
        flips=warehouse.read_rows(read_query("report/flips"), of_run) if was_voted(run) else [],
        unscored=warehouse.read_rows(read_query("report/unscored"), of_run),
        gate=read_gate(warehouse, run.run_id),
    )


def _read_metrics(warehouse: Warehouse, run_id: str, history: pl.DataFrame) -> Rows:
    """The means of a run, each with the change since the run before it in its series."""
    names = ("metric", "change", "n_shared", "previous_n_scored", "previous_run_id", "same_yardstick")
    changes = history.filter(pl.col("run_id") == run_id).select(names)
    return read_derived(warehouse, "scores", [run_id]).join(changes, on="metric", how="left").to_dicts()


def read_sample_scores(warehouse: Warehouse, run: RunRow, base: RunRow | None) -> SampleScores:
    """Its samples' scores and causes, beside another run's scores or alone."""
    of_run = {"run_id": run.run_id}
    of_base = {**of_run, "base": base.run_id} if base else None
    return SampleScores(
        scores=warehouse.read_rows(read_query("report/scores"), of_run),
        causes=dict(warehouse.read(read_query("report/causes"), of_run).iter_rows()),
        base_scores=warehouse.read_rows(read_query("report/base_scores"), of_base) if of_base else [],
    )


def read_gate(warehouse: Warehouse, run_id: str) -> Rows:
    """What a run's gate decided: a row per check that did not pass, one without a check where all did, else none."""
    return warehouse.read_rows(read_query("report/gate"), {"run_id": run_id})


def read_slices(
    warehouse: Warehouse, run: RunRow, base: RunRow | None, *, with_calls: bool, size: int = SLICE_SAMPLES
) -> Generator[SampleSlice, None, None]:
    """The run's samples in its order, so many at a time."""
    of_run, start = {"run_id": run.run_id}, 0
    with one_reader():
        while True:
            places = warehouse.read(read_query("report/slice_places"), {**of_run, "start": start, "n": size})
            if places.is_empty():
                return
            yield _read_slice(warehouse, run, base, places, with_calls=with_calls)
            start += size


@contextmanager
def reading_slices(
    warehouse: Warehouse, run: RunRow, base: RunRow | None, *, with_calls: bool
) -> Iterator[Iterator[SampleSlice]]:
    """The same slices, read by another thread from now on, and some ahead of this one."""
    slices = read_slices(warehouse, run, base, with_calls=with_calls)
    with ThreadPoolExecutor(max_workers=1) as other:
        coming = deque(other.submit(next, slices, None) for _ in range(_AHEAD))

        def take() -> Iterator[SampleSlice]:
            while (rows := coming.popleft().result()) is not None:
                coming.append(other.submit(next, slices, None))
                yield rows

        try:
            yield take()
        finally:
            for future in coming:
                future.cancel()
            other.submit(slices.close).result()


def read_one(warehouse: Warehouse, run: RunRow, base: RunRow | None, sample_id: str) -> SampleSlice:
    """One sample of a run, with its calls; raises WarehouseError that names like ones for one that is not there."""
    places = warehouse.read(read_query("report/slice_place"), {"run_id": run.run_id, "sample_id": sample_id})
    if places.is_empty():
        raise WarehouseError(explain_no_sample(warehouse, run, sample_id))
    return _read_slice(warehouse, run, base, places, with_calls=True)


def explain_no_sample(warehouse: Warehouse, run: RunRow, sample_id: str) -> str:
    """That a run has no such sample, and which of its samples are like it."""
    of_sample = {"run_id": run.run_id, "sample_id": sample_id}
    names = [str(row["sample_id"]) for row in warehouse.read_rows(read_query("report/like_samples"), of_sample)]
    return f"run {run.run_id} has no sample {sample_id!r}; {suggest(sample_id, names, otherwise='its samples')}"


def _read_slice(
    warehouse: Warehouse, run: RunRow, base: RunRow | None, places: pl.DataFrame, *, with_calls: bool
) -> SampleSlice:
    read, of_run = partial(_read_part, warehouse, places), {"run_id": run.run_id}
    return SampleSlice(
        samples=read("samples", of_run),
        statements=read("statements", of_run),
        contexts=read("contexts", of_run),
        measures=read("measures", of_run),
        failures=read("failures", of_run),
        calls=read("calls", of_run) if with_calls else [],
        votes=read("votes", of_run) if was_voted(run) else [],
        base_answers=read("base_answers", {"base": base.run_id}) if base else [],
        of_both=RunPair(warehouse, base, run).read_verdicts(list(places["sample_id"])) if base else {},
    )


def _read_part(warehouse: Warehouse, places: pl.DataFrame, kind: str, parameters: Mapping[str, object]) -> Rows:
    return warehouse.read(read_query(f"report/slice_{kind}"), parameters, frames={"slice": places}).to_dicts()


def was_voted(run: RunRow) -> bool:
    """Whether verdicts were voted on; only then the warehouse is sure to have the table of votes."""
    return int(run.config.get("votes", 1)) > 1
