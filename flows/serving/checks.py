"""What `evalhouse doctor SUITE.toml` looks at: all of a suite that can be checked without asking anybody anything.

Whether its application and its webhook can be reached is not asked: a question to the one may cost money, and the other
would post to people.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

from evalhouse.flows.preparing.live_run import check_history
from evalhouse.flows.preparing.plan import describe_columns, make_plan
from evalhouse.flows.preparing.settings import CheckResult, Finding, count_limits, make_finding, show_target
from evalhouse.flows.preparing.suites import KnowledgeBase, LivingSet, Schedule, Suite, list_fires
from evalhouse.flows.results.output import write_count
from evalhouse.flows.serving.living_set import plan_living_set
from evalhouse.flows.serving.notify import find_webhook
from evalhouse.flows.serving.suite_runs import check_suite_gate
from evalhouse.tasks.datasets.read import stage_of
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.settings.suite import Notify, SuiteGate
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.collection import make_target

_N_FIRES = 3


def check_suite(suite: Suite, settings: RunSettings) -> list[Finding]:
    """Findings on the parts that a suite has; `settings` are those of its next run."""
    checks: dict[str, Callable[[], CheckResult]] = {
        f"suite {suite.name}": lambda: ("ok", f"{suite.path}, hash {suite.suite_hash[:12]}"),
        "dataset": partial(_check_dataset, settings),
    }
    if settings.target is not None:
        checks[f"target {show_target(settings.target)}"] = partial(_check_target, settings.target)
    if suite.schedule is not None:
        checks[f"schedule {suite.schedule.cron}"] = partial(_describe_schedule, suite.schedule)
    if suite.trigger is not None:
        checks[f"trigger {suite.trigger.source.name}"] = partial(_describe_trigger, suite.trigger)
    if suite.testset is not None:
        checks[f"testset {suite.testset.documents}"] = partial(_check_testset, suite.testset, settings)
    if settings.gate is not None:
        checks["gate"] = partial(_check_gate, settings.gate, settings)
    if suite.notify is not None:
        checks["notify"] = partial(_check_notify, suite.notify)
    return [make_finding(what, check) for what, check in checks.items()]


def _check_dataset(settings: RunSettings) -> CheckResult:
    staged = stage_of(settings)
    staged.staging.discard()
    check_history(settings, staged)
    detail = f"{settings.dataset}: {write_count(staged.n_samples, 'sample')}"
    if settings.target is None and settings.responses is None and not staged.n_answered:
        detail += ", none with an answer, and there is no [target] to ask for one"
        return "wrong", "; ".join([detail, staged.use.describe(is_asked=False), *staged.use.suggest(is_asked=False)])
    columns, *warnings = describe_columns(staged, settings, make_plan(settings).metrics)
    return "note" if warnings else "ok", "; ".join([detail, columns, *warnings])


def _check_target(target: TargetSettings) -> CheckResult:
    async def make_and_close() -> None:
        await make_target(target).close()

    asyncio.run(make_and_close())
    return "ok", "it can be asked with these settings; whether it answers is not tried"


def _describe_schedule(schedule: Schedule) -> CheckResult:
    fires = list_fires(schedule.cron, schedule.timezone, n=_N_FIRES, after=datetime.now(UTC))
    times = ", ".join(f"{fire:%a %Y-%m-%d %H:%M %Z}" for fire in fires)
    return "ok", f"in {schedule.timezone}; next: {times}"


def _describe_trigger(trigger: KnowledgeBase) -> CheckResult:
    asked = "only what cites a changed document is asked" if trigger.only_affected else "everything is asked"
    waits = f"after {trigger.debounce_s:g} s without another, or {trigger.longest_wait_s:g} s in any case"
    return "ok", f"an update starts a run {waits}; {asked}"


def _check_testset(testset: LivingSet, settings: RunSettings) -> CheckResult:
    plan = plan_living_set(testset, settings)
    judge, n_waiting = plan.request.settings.judge, len(plan.request.test_set.manifest.proposals)
    waiting = f"; {n_waiting} proposals for a person (`evalhouse review questions`)" if n_waiting else ""
    taken = "taken as they are" if testset.accept else "left for a person"
    return "ok", (
        f"{len(plan.request.looks):,} questions; {len(plan.request.base.changed):,} of "
        f"{len(plan.request.base.passages):,} passages are new or changed; before each run {judge} is asked about what "
        f"they touch, and proposals are {taken}{waiting}"
    )


def _check_gate(gate: SuiteGate, settings: RunSettings) -> CheckResult:
    check_suite_gate(gate, make_plan(settings))
    return "ok", count_limits(gate)


def _check_notify(notify: Notify) -> CheckResult:
    find_webhook(notify)
    return "ok", f"on {', '.join(notify.on)}; the webhook is not tried"
