"""One run of a suite from its settings to its notification: the way that the command line and a served flow both take.

The run itself is `flows.evaluate.start_run`; around it stands what a suite adds: settings of its file, a gate, a
notification, and what is old forgotten. The gate's limits come from the run's own settings and not from the file,
which may have changed since; so a run that is resumed is judged like one that went through.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.evaluate import start_run
from evalhouse.flows.preparing.request import BY_HAND, RunRequest, Trigger, find_unfinished
from evalhouse.flows.preparing.settings import SUITE_ORIGIN, Resolved, resolve_settings
from evalhouse.flows.preparing.suites import Suite
from evalhouse.flows.results.baseline import Baseline, find_baseline, make_decision
from evalhouse.flows.results.output import print_notice, write_count
from evalhouse.flows.run.outcome import RunOutcome, SuiteOutcome, Watch, explain_incomplete
from evalhouse.flows.serving.backlog import has_left_batch
from evalhouse.flows.serving.notify import describe_end, notify_of_break, notify_of_end
from evalhouse.tasks.settings.suite import Notify, SuiteGate, explain_low, find_cutoff
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.metric_files import Plan
from evalhouse.warehouse.rows.gates import Night, list_nights, record_decision
from evalhouse.warehouse.rows.runs import RunRow, now_utc
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.comparing.gate_checks import Score
import asyncio
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from evalhouse.flows.preparing.live_run import check_history
from evalhouse.flows.preparing.plan import describe_columns, make_plan
from evalhouse.flows.preparing.settings import CheckResult, Finding, count_limits, make_finding, show_target
from evalhouse.flows.preparing.suites import KnowledgeBase, LivingSet, Schedule, list_fires
from evalhouse.flows.results.output import write_dollars
from evalhouse.flows.serving.notify import find_webhook
from evalhouse.flows.testsets.refresh import RefreshedSet, RefreshPlan, estimate_refresh, plan_refresh
from evalhouse.prompts.errors import PromptError
from evalhouse.tasks.datasets.read import stage_of
from evalhouse.tasks.judge.errors import JudgeError, RunCancelled
from evalhouse.tasks.settings.run import LIMITS, RunSettings, list_settings
from evalhouse.tasks.settings.suite import RefreshedTestset
from evalhouse.tasks.settings.target import TargetSettings
from evalhouse.tasks.targets.collection import make_target
from evalhouse.tasks.testsets.errors import TestsetError
from evalhouse.tasks.testsets.sets import read_set
from evalhouse.warehouse.rows.runs import hold_suite

# How many samples a run takes is no limit of asking.
_SHARED = {*list_settings(lambda where: where.place == LIMITS), "embeddings", "prompts", "prices", "temperature",
           "reasoning_effort", "warehouse"} - {"limit", "request_tokens"}  # fmt: skip


def refresh_living_set(suite: Suite, settings: RunSettings, *, wait_s: float = 0.0) -> RefreshedTestset | None:
    """Refresh the suite's test set and print what became of it; None for a suite without one, and for a run over
    answers that are there already.

    Raises RunCancelled when somebody stopped it, WarehouseError where the run itself could not begin either.
    """
    if suite.testset is None or settings.responses is not None:
        return None
    with hold_suite(Warehouse(settings.warehouse), suite.name, wait_s=wait_s):
        refreshed = _refresh(suite.testset, settings)
    print_notice(refreshed.describe())
    return refreshed


def _refresh(testset: LivingSet, settings: RunSettings) -> RefreshedTestset:
    try:
        return _summarise(plan_living_set(testset, settings).refresh())
    except RunCancelled:
        raise
    except (SettingsError, TestsetError, PromptError, JudgeError, OSError) as error:
        return _explain(settings, str(error))


def _explain(settings: RunSettings, problem: str) -> RefreshedTestset:
    try:
        test_set = read_set(Path(settings.dataset))
    except (TestsetError, OSError):
        return RefreshedTestset(problem=problem)
    return RefreshedTestset(
        set_hash=test_set.set_hash,
        n_questions=len(test_set.questions),
        n_proposals=len(test_set.manifest.proposals),
        problem=problem,
    )


def _summarise(refreshed: RefreshedSet) -> RefreshedTestset:
    outcome, test_set = refreshed.outcome, refreshed.test_set
    return RefreshedTestset(
        set_hash=test_set.set_hash,
        parent_hash=refreshed.request.test_set.set_hash,
        run_id=outcome.run_id,
        n_questions=len(test_set.questions),
        changes={} if outcome.problem else {word: n for word, n in refreshed.counts.items() if n},
        n_proposals=len(test_set.manifest.proposals),
        n_failed=outcome.refreshing.n_failed,
        problem=outcome.problem,
    )


def plan_living_set(testset: LivingSet, settings: RunSettings) -> RefreshPlan:
    """The refresh that comes before the next run; raises SettingsError, TestsetError for what cannot be used."""
    judge = testset.judge or settings.judge
    options = (
        *(("--accept",) if testset.accept else ()),
        *(() if testset.new else ("--no-new",)),
        *(("--coverage", str(testset.coverage)) if testset.coverage else ()),
        *(("--encoding", testset.encoding) if testset.encoding else ()),
    )
    command = ("evalhouse", "testset", "refresh", settings.dataset, testset.documents, "--judge", judge, *options)
    return plan_refresh(
        Path(settings.dataset),
        testset.documents,
        Path(settings.dataset),
        coverage=testset.coverage,
        no_new=not testset.new,
        accept=testset.accept,
        encoding=testset.encoding,
        language=None,
        command=shlex.join((*command, "--warehouse", settings.warehouse)),
        flags={name: getattr(settings, name) for name in _SHARED} | {"judge": judge},
    )


def describe_estimate(testset: LivingSet, settings: RunSettings) -> str:
    """What refreshing before the next run would take; nothing is asked."""
    plan = plan_living_set(testset, settings)
    usage = estimate_refresh(plan.request)
    return (
        f"test set: {write_count(len(plan.request.looks), 'question')}, {plan.request.n_asked:,} to be asked about "
        f"after {len(plan.request.base.changed):,} new or changed passages: about {usage.requests:,} requests to "
        f"{plan.request.settings.judge}, {usage.reused:,} replies on record, cost {write_dollars(usage.cost_usd)}"
    )


def check_suite_gate(gate: SuiteGate, plan: Plan) -> None:
    """Refuse limits of metrics that the run does not score, or that are the wrong way round; raises SettingsError."""
    scored = {metric.name for metric in plan.metrics}
    missing = [name for name in gate.metrics if name not in scored]
    if missing:
        raise SettingsError(
            f"[gate] has limits of {', '.join(missing)}, which the run does not score; it scores: "
            f"{', '.join(sorted(scored))}"
        )
    problem = explain_low(gate.min, {metric.name: metric for metric in plan.metrics})
    if problem:
        raise SettingsError(f"[gate.min] {problem}")


@one_reader()
def decide_suite_gate(warehouse: Warehouse, run: RunRow) -> dict[str, Any] | None:
    """Decide on a run that has ended and put the outcome on record.

    None without a gate, and of a run that judged nothing or came to no end of its own.
    """
    limits = run.config.get("gate")
    if limits is None or run.kind != "evaluation" or run.status not in ("completed", "incomplete"):
        return None
    gate = SuiteGate.model_validate(limits, strict=False)
    nights = list_nights(warehouse, run) if gate.max_drop or gate.trends else []
    baseline = Baseline()
    if gate.max_drop:
        baseline = find_baseline(warehouse, run, gate.against, k=gate.k, nights=nights)
    document = _decide(warehouse, run, gate, baseline, nights)
    record_decision(warehouse, make_decision(document, "suite"))
    return document


def _decide(
    warehouse: Warehouse, run: RunRow, gate: SuiteGate, baseline: Baseline, nights: Sequence[Night]
) -> dict[str, Any]:
    # The statistics, which most runs do without.
    from evalhouse.flows.results.gate import decide, read_scores  # noqa: PLC0415
    from evalhouse.tasks.comparing.gate_checks import Limits  # noqa: PLC0415
    from evalhouse.tasks.comparing.runs import ComparisonError, ComparisonSettings  # noqa: PLC0415

    scores = read_scores(warehouse, run)
    limits = Limits(
        minimums=gate.min,
        maximums=gate.max,
        drops=gate.max_drop,
        trends=gate.trends,
        coverages=_find_coverages(gate, scores),
        cost_usd=gate.max_cost,
        latency_p95_ms=gate.max_latency_p95_ms,
    )
    hold = partial(decide, warehouse, run, scores=scores, undecided=gate.undecided)
    try:
        return hold(baseline, nights=nights, limits=limits, settings=ComparisonSettings(cluster=gate.cluster))
    except ComparisonError as error:
        # The run is paid for and on record; that it cannot be compared is no reason to lose what can be decided.
        missing = Baseline(against=baseline.against, missing=f"it cannot be compared: {error}")
        return hold(missing, limits=replace(limits, trends={}), settings=ComparisonSettings())


def _find_coverages(gate: SuiteGate, scores: Mapping[str, "Score"]) -> dict[str, float]:
    """Shares by metric; `min_coverage` is for all that have none of their own."""
    if gate.min_coverage is None:
        return dict(gate.coverage)
    return {metric: gate.coverage.get(metric, gate.min_coverage) for metric in scores}


def forget_old(suite: Suite, warehouse_url: str) -> None:
    """Forget the suite's runs that are older than it keeps them, and say so; what hinders it is said, and tried again
    after the next run."""
    from evalhouse.warehouse.upkeep.forget import Rule, forget  # noqa: PLC0415  # few suites have it

    for age, with_scores in suite.retention.list_ages() if suite.retention else ():
        what = "scores" if with_scores else "texts"
        rule = Rule(
            words=f'[retention] {what} = "{age}"',
            before=find_cutoff(age, now_utc()),
            suite=suite.name,
            with_scores=with_scores,
        )
        try:
            forgotten = forget(Warehouse(warehouse_url), rule)
        except WarehouseError as error:
            print_notice(f"{suite.name}: {rule.words} waits for the next run: {error}")
            continue
        if forgotten.run_ids:
            runs = write_count(len(forgotten.run_ids), "run")
            print_notice(f"{suite.name}: {what} of {runs} older than {age} were forgotten ({rule.words})")


def run_suite(
    suite: Suite,
    *,
    flags: Mapping[str, Any] | None = None,
    trigger: Trigger = BY_HAND,
    watch: Watch | None = None,
    wait_s: float = 0.0,
) -> SuiteOutcome:
    """Run a suite, decide on its gate, and send its notification.

    The test set of a suite that has one is refreshed before. `flags` are settings that win over all others, by name;
    `wait_s` is how long to wait for another run of the suite to end. Raises what `start_run` raises, after reporting
    it, and RunCancelled where somebody stopped the refresh.
    """
    settings = resolve_suite(suite, flags=flags or {}, trigger=trigger).settings
    if suite.testset is not None:
        refreshed = refresh_living_set(suite, settings, wait_s=wait_s)
        settings = settings.model_copy(update={"refreshed": refreshed})
    with _notified_when_broken_off(suite.notify, suite.name, trigger):
        if settings.gate is not None:  # over metrics that are not scored: refused before anything is asked
            from evalhouse.flows.preparing.plan import make_plan  # noqa: PLC0415  # imports what judges

            check_suite_gate(settings.gate, make_plan(settings))
        finish = _Finish(settings.warehouse, suite.notify)
        # A trigger that has a flow run is that of a served suite.
        is_served = trigger.flow_run_id is not None
        request = RunRequest(settings=settings, trigger=trigger, wait_s=wait_s, is_served=is_served)
        outcome = start_run(request, watch=watch, finish=finish)
    forget_old(suite, settings.warehouse)
    return SuiteOutcome(outcome=outcome, gate=finish.gate)


def resume_suite_run(
    name: str,
    *,
    warehouse_url: str,
    changes: Mapping[str, object] | None = None,
    watch: Watch | None = None,
    suite: Suite | None = None,
    wait_s: float = 0.0,
) -> SuiteOutcome:
    """Go on with a run where it stopped, and then do all that is done at the end of a run of its suite.

    The gate and the notification are those that the run was started with. A webhook's address that is written into the
    suite is no part of them, so it takes the `suite` itself to post there. Runs outside a suite have neither.
    """
    finish = _Finish(warehouse_url, suite.notify if suite else None, reads_stored=suite is None)
    request = find_unfinished(
        name,
        warehouse_url=warehouse_url,
        changes=changes,
        wait_s=wait_s,
        is_served=suite is not None,  # which only the flow that serves it has at hand
    )
    outcome = start_run(request, watch=watch, finish=finish)
    if suite is not None:
        forget_old(suite, warehouse_url)
    return SuiteOutcome(outcome=outcome, gate=finish.gate)


def resolve_suite(suite: Suite, *, flags: Mapping[str, Any], trigger: Trigger = BY_HAND) -> Resolved:
    """The settings of a run of the suite; raises SettingsError.

    Only a run that answers an update may ask about the affected documents alone: all others are complete.
    """
    resolved = resolve_settings(flags, suite=suite)
    if suite.trigger is None or not suite.trigger.only_affected or trigger.kind != "event":
        return resolved
    settings = resolved.settings.model_copy(update={"only_affected": True})
    return Resolved(
        settings=settings, origins={**resolved.origins, "only_affected": f"{SUITE_ORIGIN}{suite.path.name}"}
    )


class _Finish:
    """What comes after a run: its gate, on record, and the notification. One that only asked has neither.

    `reads_stored` takes the notification that the run was started with.
    """

    def __init__(self, url: str, notify: Notify | None, *, reads_stored: bool = False) -> None:
        self._warehouse, self._notify, self._reads_stored = Warehouse(url), notify, reads_stored
        self.gate: dict[str, Any] | None = None

    def __call__(self, outcome: RunOutcome) -> str | None:
        if has_left_batch(outcome.run):
            return None  # it has not ended
        self.gate = decide_suite_gate(self._warehouse, outcome.run)
        notify, stored = self._notify, outcome.run.config.get("notify")
        if self._reads_stored and stored:
            notify = Notify.model_validate(stored, strict=False)
        if notify is not None and outcome.run.kind == "evaluation":
            notify_of_end(notify, self._warehouse, outcome.run, outcome.problem, self.gate)
        if self.gate is not None and self.gate["outcome"] == "failed":
            return describe_end(outcome.run, self.gate)
        return explain_incomplete(outcome)


@contextmanager
def _notified_when_broken_off(notify: Notify | None, name: str, trigger: Trigger) -> Iterator[None]:
    """Notify of a run that cannot even begin as of one that has failed."""
    try:
        yield
    except Exception as error:  # people are notified whatever broke it off, and it is raised again
        if notify is not None:
            notify_of_break(notify, name, trigger, str(error))
        raise


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
