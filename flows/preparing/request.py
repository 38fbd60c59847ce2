"""What is to be run and why, and the row of `runs` that it begins with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from evalhouse.flows.preparing.code_version import find_code_version
from evalhouse.flows.preparing.triggers import Trigger
from evalhouse.tasks.settings.run import RunSettings, leave_out
from evalhouse.warehouse.rows.runs import RunKind, RunRow, make_run_id

if TYPE_CHECKING:
    from evalhouse.tasks.datasets.read import StagedDataset
    from evalhouse.tasks.pipeline.plan import Plan

NO_JUDGE = "none"
"""What `runs.judge` says of a run that only collects."""


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What is to be run, and why."""

    settings: RunSettings
    kind: RunKind
    trigger: Trigger


def leave_out_judging(settings: RunSettings) -> RunSettings:
    """The settings of a run that judges nothing, so that neither a key nor a price need be there."""
    return leave_out(settings, lambda where: where.judges)


def make_row(request: RunRequest, plan: "Plan", staged: "StagedDataset") -> RunRow:
    """The row of an evaluation or a collection that begins now."""
    settings, trigger = request.settings, request.trigger
    return replace(
        begin_run(request.kind, settings, parent=settings.responses, tags=settings.tags, n_samples=staged.n_samples),
        suite=settings.suite,
        suite_hash=settings.suite_hash,
        label=settings.label,
        href=settings.href,
        dataset=settings.dataset,
        dataset_hash=staged.content_hash,
        judge=NO_JUDGE if request.kind == "collection" else settings.judge,
        embeddings=settings.embeddings if "similarity" in plan.steps else None,
        metrics=tuple(metric.name for metric in plan.metrics),
        trigger=trigger.kind,
        kb_name=trigger.kb_name,
        kb_version=trigger.kb_version,
        kb_changed=trigger.changed or None,
    )


def begin_run(
    kind: RunKind,
    settings: RunSettings,
    *,
    n_samples: int,
    parent: str | None = None,
    tags: Sequence[str] = (),
    repeats: RunRow | None = None,
) -> RunRow:
    """The row of a run of any kind that begins now, with the columns that every kind has.

    `repeats` is a run whose other columns (dataset, suite, metrics, trigger) it takes over; `parent` is a run's id.
    """
    started_at = now_utc()
    whole = repeats or RunRow(
        run_id="", judge=settings.judge, language=settings.language, started_at=started_at, config={},
        code_version=find_code_version(),
    )  # fmt: skip
    return replace(
        whole,
        run_id=make_run_id(started_at),
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


def now_utc() -> datetime:
    """Now in UTC without a zone, as the warehouse keeps times."""
    return datetime.now(UTC).replace(tzinfo=None)
