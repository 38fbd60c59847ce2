"""How far a run is that is under way, for those who look on from elsewhere: by what it has written until now.

Nothing is asked of the run's own process and nothing keeps it waiting: the counts come from the warehouse and, for what
was answered since its last write, from the journal beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import polars as pl

from evalhouse.warehouse.engine.locks import list_held
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.metric_files import MetricFile, load_metrics, set_metrics
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import RunRow, now_utc
from evalhouse.warehouse.rows.samples import FAILURE_REASONS
from evalhouse.warehouse.steps import PLANS, add_earlier, arrange_steps, find_step
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.unmoved import JournalReader

LATELY: Final = timedelta(seconds=60)
"""The time whose pace says how long the rest will take."""


@dataclass(frozen=True, kw_only=True)
class StepProgress:
    """For how many samples of a run a step has ended or has a reply; `n_failed` of them without verdicts."""

    step: str
    n_done: int
    n_failed: int


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """How far a run is. `n_samples` is None as long as nobody knows how many there are; `is_alive` says whether a
    process is at it, None where that cannot be told; `left` is how long the rest will take at the latest pace."""

    n_samples: int | None
    steps: tuple[StepProgress, ...]
    n_responses: int
    n_requests: int
    n_reused: int
    n_failed: int
    n_tokens: int
    priced_usd: float
    n_unpriced: int
    last_at: datetime
    is_alive: bool | None
    left: timedelta | None

    @property
    def share(self) -> float | None:
        """How much of the judging is done; None while that cannot be said."""
        n_all = (self.n_samples or 0) * len(self.steps)
        return sum(step.n_done for step in self.steps) / n_all if n_all else None


@dataclass(frozen=True, kw_only=True)
class MeanSoFar:
    """The mean of a metric over those samples of a run whose verdicts are written."""

    metric: str
    mean: float | None
    n_scored: int


def read_progress(warehouse: Warehouse, run: RunRow, journal: JournalReader) -> RunProgress:
    """How far a run is now."""
    # The journal first: what is moved meanwhile is known by its key then, and counted once.
    waiting, responding = journal.read("llm_calls"), journal.read("responses")
    frames = {"waiting": waiting, "responding": responding, "asked": _list_asked(run)}
    of_run = {"run_id": run.run_id}
    (row,) = warehouse.read(
        read_query("ui/progress"), {**of_run, "since": now_utc() - LATELY}, frames=frames
    ).to_dicts()
    steps = warehouse.read(
        read_query("ui/progress_steps"), {**of_run, "failures": list(FAILURE_REASONS)}, frames=frames
    ).to_dicts()
    progress = tuple(StepProgress(**step) for step in steps)
    n_samples = run.n_samples or row["n_loaded"] or None
    n_open = sum(max(0, (n_samples or 0) - step.n_done) for step in progress if find_step(step.step).calls)
    return RunProgress(
        n_samples=n_samples,
        steps=progress,
        n_responses=row["n_responses"],
        n_requests=row["n_requests"],
        n_reused=row["n_reused"],
        n_failed=row["n_failed"],
        n_tokens=row["prompt_tokens"] + row["completion_tokens"],
        priced_usd=row["priced_usd"],
        n_unpriced=row["n_unpriced"],
        last_at=max(filter(None, (row["last_at"], run.started_at))),
        is_alive=_is_alive(warehouse, run),
        left=n_open / row["n_lately"] * min(LATELY, now_utc() - run.started_at) if n_open and row["n_lately"] else None,
    )


def read_means_so_far(warehouse: Warehouse, run: RunRow, wanted: Sequence[str]) -> list[MeanSoFar]:
    """What the means of a run's metrics are until now; none of those whose files are not here."""
    files = [file for file in list_metric_files(run) if file.name in wanted]
    settings = run.config.get("metric_settings") or {}
    means = []
    for metric in set_metrics(files, settings):
        sql = f"select avg(value) as mean, count(value) as n_scored from ({metric.file.sql})"
        (row,) = warehouse.read(sql, {"run_id": run.run_id, **metric.parameters}).to_dicts()
        means.append(MeanSoFar(metric=metric.file.name, mean=row["mean"], n_scored=row["n_scored"]))
    return means


def list_metric_files(run: RunRow) -> list[MetricFile]:
    """The files of a run's metrics, as far as they are where they were."""
    files = load_metrics(run.metric_folder)
    return [files[name] for name in run.metrics if name in files]


def _list_asked(run: RunRow) -> pl.DataFrame:
    """What a run's samples are asked for, in order: by step the outcomes and the requests that belong to it."""
    needs = add_earlier([step for file in list_metric_files(run) for step in file.needs])
    steps = sorted(arrange_steps(needs, run.plan), key=_place)
    rows = [
        (place, step, outcome, next(iter(find_step(step).calls), None))
        for place, step in enumerate(steps)
        for outcome in (PLANS[step].joins if step in PLANS else (step,))
    ]
    schema = {"place": pl.Int64, "step": pl.String, "outcome": pl.String, "call": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _place(step: str) -> tuple[int, str]:
    """A step after those that it rests on."""
    after = find_step(step).after
    return (1 + max((_place(earlier)[0] for earlier in after), default=0), step)


def _is_alive(warehouse: Warehouse, run: RunRow) -> bool | None:
    """Whether a process holds the run's lock, or, of one that belongs to another run, that one's."""
    names = [f"run-{run_id}" for run_id in (run.run_id, run.parent_run_id) if run_id]
    try:
        return bool(list_held(warehouse.location, names))
    except WarehouseError:
        return None
