"""What is to be run and why, and the row of `runs` that it begins with."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from evalhouse.flows.preparing.code_version import find_code_version
from evalhouse.flows.preparing.triggers import Trigger
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.rows.runs import RunKind, RunRow

if TYPE_CHECKING:
    from evalhouse.tasks.datasets.stage import StagedDataset
    from evalhouse.tasks.pipeline.plan import Plan

NO_JUDGE = "none"
"""What `runs.judge` says of a run that only collects."""


# What a run that judges nothing does without, so that neither a key nor a price need be there.
_NOTHING_JUDGED: Mapping[str, Any] = {
    "judge": "lexical", "embeddings": "hashing", "metrics": (), "metric_files": None, "metric_settings": {},
    "prompts": None, "prices": None, "budget_usd": None, "votes": 1, "noise_share": 0.0, "gate": None, "notify": None,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What is to be run, and why."""

    settings: RunSettings
    kind: RunKind
    trigger: Trigger


def leave_out_judging(settings: RunSettings) -> RunSettings:
    """The settings of a run that judges nothing."""
    return settings.model_copy(update=_NOTHING_JUDGED)


def make_row(request: RunRequest, plan: "Plan", staged: "StagedDataset") -> RunRow:
    """The row of a run that begins now."""
    settings, trigger, started_at = request.settings, request.trigger, now_utc()
    return RunRow(
        run_id=f"{started_at:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        suite=settings.suite,
        label=settings.label,
        href=settings.href,
        tags=settings.tags,
        dataset=settings.dataset,
        dataset_hash=staged.content_hash,
        judge=NO_JUDGE if request.kind == "collection" else settings.judge,
        embeddings=settings.embeddings if "similarity" in plan.steps else None,
        language=settings.language,
        metrics=tuple(metric.name for metric in plan.metrics),
        trigger=trigger.kind,
        kb_name=trigger.kb_name,
        kb_version=trigger.kb_version,
        kb_changed=trigger.changed or None,
        flow_run_id=None,
        status="running",
        started_at=started_at,
        finished_at=None,
        n_samples=staged.n_samples,
        config=settings.model_dump(mode="json"),
        kind=request.kind,
        parent_run_id=settings.responses,
        suite_hash=settings.suite_hash,
        code_version=find_code_version(),
    )


def now_utc() -> datetime:
    """Now in UTC without a zone, as the warehouse keeps times."""
    return datetime.now(UTC).replace(tzinfo=None)
