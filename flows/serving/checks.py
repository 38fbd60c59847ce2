"""What `evalhouse doctor SUITE.toml` looks at: all of a suite that can be checked without asking anybody anything.

Whether its application and its webhook can be reached is not asked: a question to the one may cost money, and the other
would post to people.
"""

import asyncio
from datetime import UTC, datetime

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import make_plan
from evalhouse.flows.preparing.shown import Finding, count_limits, show_target
from evalhouse.flows.preparing.suites import KnowledgeBase, Schedule, Suite
from evalhouse.flows.preparing.triggers import list_fires
from evalhouse.flows.serving.gate import check_suite_gate
from evalhouse.flows.serving.notify import NotifyError, find_webhook
from evalhouse.prompts.errors import PromptError
from evalhouse.tasks.datasets.errors import DatasetError
from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.settings.suite import Notify, SuiteGate
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.collection import make_target
from evalhouse.tasks.targets.protocol import TargetError
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.metric_files import UnknownMetric

_N_FIRES = 3


def check_suite(suite: Suite, settings: RunSettings) -> list[Finding]:
    """Findings on the parts that a suite has; `settings` are those of its next run."""
    findings = [
        Finding(what=f"suite {suite.name}", verdict="ok", detail=f"{suite.path}, hash {suite.suite_hash[:12]}"),
        _check_dataset(settings),
    ]
    if settings.target is not None:
        findings.append(_check_target(settings.target))
    if suite.schedule is not None:
        findings.append(_describe_schedule(suite.schedule))
    if suite.trigger is not None:
        findings.append(_describe_trigger(suite.trigger))
    if settings.gate is not None:
        findings.append(_check_gate(settings.gate, settings))
    if suite.notify is not None:
        findings.append(_check_notify(suite.notify))
    return findings


def _check_dataset(settings: RunSettings) -> Finding:
    what = "dataset"
    try:
        staged = stage_dataset(settings.dataset, mapping=settings.mapping, limit=settings.limit)
    except (DatasetError, WarehouseError, OSError) as error:
        return Finding(what=what, verdict="wrong", detail=str(error))
    staged.staging.discard()
    detail = f"{settings.dataset}: {staged.n_samples:,} samples"
    if settings.target is None and settings.responses is None and not staged.n_answered:
        return Finding(
            what=what, verdict="wrong", detail=f"{detail}, none with an answer, and there is no [target] to ask for one"
        )
    return Finding(what=what, verdict="ok", detail=detail)


def _check_target(target: TargetSettings) -> Finding:
    what = f"target {show_target(target)}"

    async def make_and_close() -> None:
        await make_target(target).close()

    try:
        asyncio.run(make_and_close())
    except TargetError as error:
        return Finding(what=what, verdict="wrong", detail=str(error))
    return Finding(
        what=what, verdict="ok", detail="it can be asked with these settings; whether it answers is not tried"
    )


def _describe_schedule(schedule: Schedule) -> Finding:
    fires = list_fires(schedule.cron, schedule.timezone, n=_N_FIRES, after=datetime.now(UTC))
    times = ", ".join(f"{fire:%a %Y-%m-%d %H:%M %Z}" for fire in fires)
    return Finding(what=f"schedule {schedule.cron}", verdict="ok", detail=f"in {schedule.timezone}; next: {times}")


def _describe_trigger(trigger: KnowledgeBase) -> Finding:
    asked = "only what cites a changed document is asked" if trigger.only_affected else "everything is asked"
    detail = f"an update starts a run after {trigger.debounce_s:g} s without another; {asked}"
    return Finding(what=f"trigger {trigger.knowledge_base}", verdict="ok", detail=detail)


def _check_gate(gate: SuiteGate, settings: RunSettings) -> Finding:
    what = "gate"
    try:
        check_suite_gate(gate, make_plan(settings))
    except (SettingsError, UnknownMetric, WarehouseError, PromptError) as error:
        return Finding(what=what, verdict="wrong", detail=str(error))
    return Finding(what=what, verdict="ok", detail=count_limits(gate))


def _check_notify(notify: Notify) -> Finding:
    what = "notify"
    try:
        find_webhook(notify)
    except NotifyError as error:
        return Finding(what=what, verdict="wrong", detail=str(error))
    return Finding(what=what, verdict="ok", detail=f"on {', '.join(notify.on)}; the webhook is not tried")
