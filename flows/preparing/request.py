"""The request for a run, with its trigger, and the row of `runs` that the run begins with."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evalhouse.tasks.settings.run import RunSettings, read_settings
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.runs import RunKind, RunRow, find_run, make_run_id, now_utc, refuse_forgotten
from evalhouse.warehouse.steps import list_calls
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    import polars as pl

    from evalhouse.tasks.datasets.formats import DatasetSource
    from evalhouse.tasks.datasets.read import StagedDataset
    from evalhouse.warehouse.metric_files import Plan

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("flows", "prompts", "tasks", "warehouse")
_SUFFIXES = (".py", ".sql", ".yaml")

NO_JUDGE = "none"
"""The value of `runs.judge` for a run that only collects."""
TriggerKind = Literal["manual", "schedule", "event"]


@dataclass(frozen=True, kw_only=True)
class Update:
    """One announced update of a knowledge base. `changed` are ids of documents; `occurred_at` is UTC without a zone."""

    event_id: str
    version: str | None
    changed: tuple[str, ...]
    occurred_at: datetime


@dataclass(frozen=True, kw_only=True)
class Trigger:
    """The cause of a run; for an event the knowledge base and all updates that this run answers, oldest first.

    `flow_run_id` is Prefect's flow run that the run is within, on record from the beginning: until the run has one of
    its own, nothing else says which of them a killed process worked on.
    """

    kind: TriggerKind = "manual"
    flow_run_id: str | None = None
    kb_name: str | None = None
    updates: tuple[Update, ...] = ()

    @property
    def kb_version(self) -> str | None:
        """The version of the newest update that named one."""
        return next((update.version for update in reversed(self.updates) if update.version is not None), None)

    @property
    def changed(self) -> tuple[str, ...]:
        """The ids of all changed documents, each once, in the order they were announced."""
        return tuple(dict.fromkeys(document for update in self.updates for document in update.changed))


BY_HAND = Trigger()


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A run to be started or resumed, and its trigger.

    `source` are samples for which `settings.dataset` is just a name; `resumed` is the run that is resumed, `holds` the
    id of a run that no other process may take up meanwhile; `wait_s` is how long to wait for the end of another run of
    the same suite. A run that `is_served` is resumed by `evalhouse serve` when an outage has interrupted it.
    """

    settings: RunSettings
    kind: RunKind = "evaluation"
    trigger: Trigger = BY_HAND
    source: "str | pl.DataFrame | DatasetSource | None" = None
    resumed: RunRow | None = None
    holds: str | None = None
    wait_s: float = 0.0
    is_served: bool = False


def find_unfinished(
    wanted: str,
    *,
    warehouse_url: str,
    changes: Mapping[str, object] | None = None,
    wait_s: float = 0.0,
    is_served: bool = False,
) -> RunRequest:
    """Return the request to resume a run with its own settings but for `changes`.

    Raises WarehouseError for a run that is resumed with its parent, or by another command.
    """
    warehouse = Warehouse(warehouse_url)
    run = find_run(warehouse, wanted)
    if run.kind == "noise":
        raise WarehouseError(
            f"run {run.run_id} measured the noise of {run.parent_run_id}; the next run measures it again"
        )
    if run.kind == "repeats":
        raise WarehouseError(
            f"run {run.run_id} asks questions of {run.parent_run_id} again; `evalhouse resume {run.parent_run_id}` "
            "resumes both"
        )
    if run.kind == "replay":
        raise WarehouseError(
            f"run {run.run_id} is of kind replay; stored answers are used when its command is given again: "
            f"evalhouse replay {run.replayed_base} {run.parent_run_id}"
        )
    if run.kind in ("prefer", "testset"):
        raise WarehouseError(f"run {run.run_id} is of kind {run.kind}; `evalhouse resume {run.run_id}` resumes it")
    if run.kind in ("prompts", "benchmark"):
        raise WarehouseError(
            f"run {run.run_id} is of kind {run.kind}; give its command again: stored answers are not asked for twice"
        )
    refuse_forgotten(warehouse, run, "start a new run: nothing is left to be resumed")
    settings = read_settings({**run.config, **(changes or {}), "warehouse": warehouse_url})
    return RunRequest(
        settings=settings, kind=run.kind, resumed=run, holds=run.run_id, wait_s=wait_s, is_served=is_served
    )


def make_row(request: RunRequest, plan: "Plan", staged: "StagedDataset") -> RunRow:
    """Return the row of an evaluation or a collection that begins now."""
    settings, trigger = request.settings, request.trigger
    return replace(
        begin_run(
            request.kind,
            settings,
            parent=settings.responses,
            tags=settings.tags,
            n_samples=count_judged(settings, staged),
        ),
        suite=settings.suite,
        suite_hash=settings.suite_hash,
        label=settings.label,
        href=settings.href,
        dataset=settings.dataset,
        dataset_hash=staged.content_hash,
        judge=NO_JUDGE if request.kind == "collection" else settings.judge,
        embeddings=settings.embeddings if "similarity" in list_calls(plan.steps) else None,
        metrics=tuple(metric.name for metric in plan.metrics),
        trigger=trigger.kind,
        flow_run_id=trigger.flow_run_id,
        kb_name=trigger.kb_name,
        kb_version=trigger.kb_version,
        kb_changed=trigger.changed or None,
    )


def count_judged(settings: RunSettings, staged: "StagedDataset") -> int:
    """Return how many samples of a dataset are judged: all, or as many as there is a budget for."""
    return min(staged.n_samples, settings.sample_budget or staged.n_samples)


def begin_run(
    kind: RunKind,
    settings: RunSettings,
    *,
    n_samples: int,
    parent: str | None = None,
    tags: Sequence[str] = (),
    repeats: RunRow | None = None,
) -> RunRow:
    """Return the row of a run of any kind that begins now, with the columns that every kind has.

    `repeats` is a run whose other columns (dataset, suite, metrics, trigger) it takes over; `parent` is a run's id.
    """
    run_id = make_run_id(started_at := now_utc())
    whole = repeats or RunRow(
        run_id="", judge=settings.judge, language=settings.language, started_at=started_at, config={},
        code_version=find_code_version(),
    )  # fmt: skip
    return replace(
        whole,
        run_id=run_id,
        kind=kind,
        parent_run_id=parent,
        label=None,
        tags=tuple(tags),
        config=settings.model_dump(mode="json"),
        status="running",
        started_at=started_at,
        finished_at=None,
        n_samples=n_samples,
        flow_run_id=None,
        problem=None,
        gate=None,
    )


@cache
def find_code_version() -> str:
    """Return for example `0.1.0+3f2a9c1b7e04`: the hash is over all Python, SQL and prompt files."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in _FOLDERS for path in (_ROOT / folder).rglob("*") if path.suffix in _SUFFIXES):
        digest.update(f"{path.relative_to(_ROOT).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return f"{version('evalhouse')}+{digest.hexdigest()[:12]}"
