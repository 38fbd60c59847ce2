"""How far a run is, read without asking or keeping up its process: from the warehouse, and from the journal beside it.

A row is in the journal for up to 20 seconds before it is moved. Reading it there takes no lock: files are only ever
appended to, and one that is gone has been taken in. What was read of a file is not read again.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import orjson
import polars as pl

from evalhouse.warehouse.engine.locks import list_held
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.metric_files import MetricFile, load_metrics, set_metrics
from evalhouse.warehouse.mover import JournalledTable, Segment, find_journal
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


@dataclass(kw_only=True)
class _Tail:
    """A file that is being added to: how far it was read, and the rows until there."""

    offset: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


class JournalReader:
    """The rows of a warehouse's journal, whoever writes them; safe to use from several threads."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._tails: dict[Path, _Tail] = {}
        self._guard = threading.Lock()

    def read(self, table: JournalledTable) -> pl.DataFrame:
        """The rows on their way into a table, each with the key of the batch that it will enter the warehouse in.

        Of their columns those that say how far a run is. A row may be in the warehouse by now: then its key is known.
        """
        with self._guard:
            rows = [row for path in self._list_files(table) for row in self._read_on(path)]
        # A value that a column cannot hold is missing here; the mover sets its row aside.
        frame = pl.DataFrame(
            [pl.Series(name, [row[name] for row in rows], kind, strict=False) for name, kind in _COLUMNS.items()]
        )
        return frame.with_columns(pl.from_epoch("started_at", time_unit="us"))

    def _list_files(self, table: JournalledTable) -> list[Path]:
        folder = find_journal(self._location, table)
        files = sorted(folder.glob("*.jsonl")) if folder.exists() else []
        for gone in [path for path in self._tails if path.parent == folder and path not in files]:
            del self._tails[gone]
        return files

    def _read_on(self, path: Path) -> list[dict[str, Any]]:
        tail = self._tails.setdefault(path, _Tail())
        try:
            with path.open("rb") as file:
                file.seek(tail.offset)
                added = file.read()
        except FileNotFoundError:
            return tail.rows
        whole = added[: added.rfind(b"\n") + 1]
        tail.offset += len(whole)
        key = Segment(path=path, rows=[]).key
        tail.rows += [{**_pick(line), "batch_key": key} for line in _parse(whole)]
        return tail.rows


def _parse(lines: bytes) -> Iterator[dict[str, Any]]:
    for line in lines.splitlines():
        with contextlib.suppress(orjson.JSONDecodeError):  # the mover sets such a line aside
            row = orjson.loads(line)
            if isinstance(row, dict):
                yield row


def _pick(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in _COLUMNS}


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
    parameters = {**of_run, "since": now_utc() - LATELY}
    (row,) = warehouse.read(read_query("ui/progress"), parameters, frames=frames).to_dicts()
    parameters = {**of_run, "failures": list(FAILURE_REASONS)}
    steps = warehouse.read(read_query("ui/progress_steps"), parameters, frames=frames).to_dicts()
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
