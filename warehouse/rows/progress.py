"""The progress of a run, read without asking or delaying its process: from the warehouse and the journal beside it.

A row is in the journal for up to 20 seconds before it is moved. Reading it there takes no lock: files are only ever
appended to, and a file that is gone has been taken in. A part of a file that was read is not read again.
"""

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import polars as pl

from evalhouse.warehouse.engine.locks import list_held
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.metric_files import MetricFile, load_metrics, set_metrics
from evalhouse.warehouse.mover import JournalledTable, Segment, find_journal, parse_line
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import RunRow, now_utc
from evalhouse.warehouse.rows.samples import FAILURE_REASONS
from evalhouse.warehouse.steps import PLANS, add_earlier, arrange_steps, find_step
from evalhouse.warehouse.store import Warehouse

_COLUMNS: Final[dict[str, Any]] = {
    "batch_key": pl.String, "run_id": pl.String, "sample_id": pl.String, "step": pl.String, "status": pl.String,
    "reused_call_id": pl.String, "prompt_tokens": pl.Int64, "completion_tokens": pl.Int64, "cost_usd": pl.Float64,
    "latency_ms": pl.Float64, "started_at": pl.Int64,
}  # fmt: skip


class JournalReader:
    """The rows in a warehouse's journal, of all processes; safe to use from several threads."""

    def __init__(self, location: Location) -> None:
        self._location = location
        # Of each file how far it was read, and the rows until there.
        self._tails: dict[Path, tuple[int, list[dict[str, Any]]]] = {}
        self._guard = threading.Lock()

    def read(self, table: JournalledTable) -> pl.DataFrame:
        """Return the rows on their way into a table, each with the key of the batch that it will be written in.

        They have the columns that show progress. A row may be in the warehouse by now: then its key is known.
        """
        folder = find_journal(self._location, table)
        rows: list[dict[str, Any]] = []
        with self._guard:
            files = sorted(folder.glob("*.jsonl")) if folder.exists() else []
            for gone in [path for path in self._tails if path.parent == folder and path not in files]:
                del self._tails[gone]
            for path in files:
                offset, known = self._tails.setdefault(path, (0, []))
                with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                    file.seek(offset)
                    added = file.read()
                    whole = added[: added.rfind(b"\n") + 1]
                    self._tails[path] = offset + len(whole), known
                    key = Segment(path=path).key
                    for line in whole.splitlines():
                        row = parse_line(line)
                        if row is not None:  # the mover sets such a line aside
                            known.append({**{name: row.get(name) for name in _COLUMNS}, "batch_key": key})
                rows += known
        # A value that a column cannot hold is missing here; the mover sets its row aside.
        frame = pl.DataFrame(
            [pl.Series(name, [row[name] for row in rows], kind, strict=False) for name, kind in _COLUMNS.items()]
        )
        return frame.with_columns(pl.from_epoch("started_at", time_unit="us"))


LATELY: Final = timedelta(seconds=60)
"""The time whose pace gives the time left."""


@dataclass(frozen=True, kw_only=True)
class StepProgress:
    """The number of samples for which a step has ended or has a reply; `n_failed` of them without verdicts."""

    step: str
    n_done: int
    n_failed: int


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """The progress of a run. `n_samples` is None while it is unknown; `is_alive` is True while a process works on it,
    None where that is unknown; `left` is the time left at the latest pace."""

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
        """The share of the judging that is done; None while it is unknown."""
        n_all = (self.n_samples or 0) * len(self.steps)
        return sum(step.n_done for step in self.steps) / n_all if n_all else None


@dataclass(frozen=True, kw_only=True)
class MeanSoFar:
    """The mean of a metric over the samples of a run with written verdicts."""

    metric: str
    mean: float | None
    n_scored: int


def fetch_progress(warehouse: Warehouse, run: RunRow, journal: JournalReader) -> RunProgress:
    """Return the progress of a run now."""
    # The steps that a run's samples take, in order, each after the steps that it rests on: by step its outcomes and
    # requests.
    needs = add_earlier([step for file in list_metric_files(run) for step in file.needs])
    steps = sorted(arrange_steps(needs, run.plan), key=lambda step: (_find_depth(step), step))
    asked = [
        (place, step, outcome, next(iter(find_step(step).calls), None))
        for place, step in enumerate(steps)
        for outcome in (PLANS[step].joins if step in PLANS else (step,))
    ]
    schema = {"place": pl.Int64, "step": pl.String, "outcome": pl.String, "call": pl.String}
    # The journal first: rows that are moved meanwhile are known by their key then, and counted once.
    frames = {
        "waiting": journal.read("llm_calls"),
        "responding": journal.read("responses"),
        "asked": pl.DataFrame(asked, schema=schema, orient="row"),
    }
    parameters: dict[str, object] = {"run_id": run.run_id, "since": now_utc() - LATELY}
    (row,) = warehouse.read(read_query("ui/progress"), parameters, frames=frames).to_dicts()
    parameters = {"run_id": run.run_id, "failures": list(FAILURE_REASONS)}
    rows = warehouse.read(read_query("ui/progress_steps"), parameters, frames=frames).to_dicts()
    progress = tuple(StepProgress(**step) for step in rows)
    n_samples = run.n_samples or row["n_loaded"] or None
    elapsed = max(timedelta(), min(LATELY, now_utc() - run.started_at))  # the clock may have been set back
    n_open = sum(max(0, (n_samples or 0) - step.n_done) for step in progress if find_step(step.step).calls)
    is_alive = None
    with contextlib.suppress(WarehouseError):
        # The lock of a run that belongs to another one is that one's.
        names = [f"run-{run_id}" for run_id in (run.run_id, run.parent_run_id) if run_id]
        is_alive = bool(list_held(warehouse.location, names))
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
        is_alive=is_alive,
        left=n_open / row["n_lately"] * elapsed if n_open and row["n_lately"] else None,
    )


def _find_depth(step: str) -> int:
    """Return the number of steps in the longest chain that ends in this one."""
    return 1 + max((_find_depth(earlier) for earlier in find_step(step).after), default=0)


def fetch_means_so_far(warehouse: Warehouse, run: RunRow, wanted: Sequence[str]) -> list[MeanSoFar]:
    """Return the current means of a run's metrics, leaving out metrics whose files are gone."""
    files = [file for file in list_metric_files(run) if file.name in wanted]
    settings = run.config.get("metric_settings") or {}
    means = []
    for metric in set_metrics(files, settings):
        sql = f"select avg(value) as mean, count(value) as n_scored from ({metric.file.sql})"
        (row,) = warehouse.read(sql, {"run_id": run.run_id, **metric.parameters}).to_dicts()
        means.append(MeanSoFar(metric=metric.file.name, mean=row["mean"], n_scored=row["n_scored"]))
    return means


def list_metric_files(run: RunRow) -> list[MetricFile]:
    """Return the files of a run's metrics, as far as they still exist."""
    files = load_metrics(run.metric_folder)
    return [files[name] for name in run.metrics if name in files]
