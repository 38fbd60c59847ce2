"""Refresh a suite's test set before a run, and check the parts of a suite for `doctor`. Imports Prefect."""

import asyncio
import contextlib
import shlex
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from math import ceil, log, log1p
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import (
    check_budget,
    check_history,
    describe_columns,
    make_plan,
    make_prompts,
    make_tools,
    refuse_budget_of_answers,
    try_own_metrics,
)
from evalhouse.flows.preparing.request import CheckResult, count_limits, make_finding, show_target
from evalhouse.flows.preparing.suites import LivingSet, Suite
from evalhouse.flows.results.output import print_notice, write_count, write_dollars
from evalhouse.flows.serving.flow_runs import list_fires
from evalhouse.flows.serving.notify import find_webhook
from evalhouse.flows.testsets.refresh import RefreshPlan, estimate_refresh, plan_refresh
from evalhouse.prompts import PromptError
from evalhouse.tasks.datasets.read import StagedDataset, describe_language, stage_of
from evalhouse.tasks.judge.protocol import JudgeError, RunCancelled
from evalhouse.tasks.settings.run import LIMITS, RunSettings, list_night, list_settings
from evalhouse.tasks.settings.suite import (
    MARK,
    RefreshedTestset,
    SuiteGate,
    TargetSettings,
    explain_direction,
    explain_scale,
)
from evalhouse.tasks.targets.collection import make_target
from evalhouse.tasks.testsets import TestsetError
from evalhouse.tasks.testsets.questions import load_set
from evalhouse.warehouse.messages import Finding
from evalhouse.warehouse.metric_files import Plan

_CONNECT_S = 5.0
# Settings of the run that its refresh has too; the number of samples limits only the run.
_SHARED = {*list_settings(lambda where: where.place == LIMITS), "embeddings", "prompts", "prices", "temperature",
           "reasoning_effort", "warehouse"} - {"limit", "request_tokens"}  # fmt: skip


class _Unpayable(SettingsError):
    """A refresh that would spend the budget of the run as well."""


def refresh_living_set(suite: Suite, settings: RunSettings) -> RefreshedTestset | None:
    """Refresh the suite's test set and print the result; None for a suite without one, and for a run that takes the
    responses of another run.

    A run that could not begin or be paid afterwards is refused, and nothing is refreshed. Raises the error that the run
    itself would, SettingsError for a target that no connection reaches and for a budget that the refresh alone would
    spend, and RunCancelled when the refresh was stopped.
    """
    if suite.testset is None or settings.responses is not None:
        return None
    refuse_budget_of_answers(settings)
    tools = make_tools(settings, "evaluation")
    try_own_metrics(tools.plan, settings)
    make_prompts(tools.settings, tools.judges)
    check_budget("", settings, tools.judges, None)
    for of_variant in (settings, *list_night(settings)):
        if of_variant.target is not None:
            make_target(of_variant.target)
            if of_variant.target.url is not None:
                check_reachable(of_variant.target.url)
    try:
        plan = plan_living_set(suite.testset, settings)
        if settings.budget_usd is not None:
            expected_usd = estimate_refresh(plan).usage.cost_usd
            if expected_usd is not None and expected_usd >= settings.budget_usd:
                raise _Unpayable(
                    f"the refresh of {settings.dataset} costs about {write_dollars(expected_usd)}, and the budget of "
                    f"the whole run is {write_dollars(settings.budget_usd)}; raise budget_usd"
                )
        refreshed = plan.refresh()
    except (RunCancelled, _Unpayable):
        raise
    except (SettingsError, TestsetError, PromptError, JudgeError, OSError) as error:
        result = RefreshedTestset(problem=str(error))
        with contextlib.suppress(TestsetError, OSError):  # the run uses the set as it was before
            test_set = load_set(Path(settings.dataset))
            result = RefreshedTestset(
                set_hash=test_set.set_hash,
                n_questions=len(test_set.questions),
                n_proposals=len(test_set.manifest.proposals),
                problem=str(error),
            )
    else:
        test_set = refreshed.test_set
        result = RefreshedTestset(
            set_hash=test_set.set_hash,
            parent_hash=refreshed.plan.test_set.set_hash,
            run_id=refreshed.run_id,
            n_questions=len(test_set.questions),
            changes={} if refreshed.problem else {word: n for word, n in refreshed.counts.items() if n},
            n_proposals=len(test_set.manifest.proposals),
            n_failed=len(refreshed.failed),
            problem=refreshed.problem,
        )
    print_notice(result.describe())
    return result


def check_reachable(url: str) -> None:
    """Refuse an application whose server takes no connection; one behind a proxy is not tried. Raises SettingsError."""
    parts = urlsplit(url)
    if parts.hostname is None or MARK.search(parts.netloc) or getproxies().get(parts.scheme):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname, port), timeout=_CONNECT_S).close()
    except OSError as error:
        raise SettingsError(
            f"no connection to the target {parts.hostname}:{port}: {error}; check url, and that it runs there; nothing "
            "was asked"
        ) from None


def plan_living_set(testset: LivingSet, settings: RunSettings) -> RefreshPlan:
    """Return the refresh before the next run; raises SettingsError, TestsetError for what cannot be used."""
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
    """Return the requests and the cost of the refresh before the next run; nothing is asked."""
    plan = plan_living_set(testset, settings)
    estimated = estimate_refresh(plan)
    usage = estimated.usage
    return (
        f"test set: {write_count(len(plan.looks), 'question')}, about {estimated.n_asked:,} to be asked about "
        f"after {len(plan.base.changed):,} new or changed passages: about {usage.requests:,} requests to "
        f"{plan.settings.judge}, {usage.reused:,} replies on record, cost {write_dollars(usage.cost_usd)}"
    )


def check_suite_gate(gate: SuiteGate, settings: RunSettings) -> Plan:
    """Return the plan of a run. Refuse limits of metrics that it does not score, or that are the wrong way round, and
    of slices where it judges a part; raises SettingsError."""
    plan = make_plan(settings)
    if gate.by and settings.sample_budget is not None:
        raise SettingsError(
            f"[gate.by.{next(iter(gate.by))}] and [limits] sample_budget: a budget of samples picks them with unequal "
            "probabilities, so that means of slices would mislead; leave one of the two out"
        )
    scored = {metric.name for metric in plan.metrics}
    missing = [name for name in gate.metrics if name not in scored]
    if missing:
        raise SettingsError(
            f"[gate] has limits of {', '.join(missing)}, which the run does not score; it scores: "
            f"{', '.join(sorted(scored))}"
        )
    metrics = {metric.name: metric for metric in plan.metrics}
    for kind, limits in (("min", gate.min), ("max_drop", gate.max_drop), ("trend", gate.trends)):
        if problem := explain_direction(kind, limits, metrics):
            raise SettingsError(f"[gate.{kind}] {problem}")
    for kind, limits in (("min", gate.min), ("max", gate.max), ("max_drop", gate.max_drop)):
        if problem := explain_scale(limits, metrics):  # a rubric's too
            raise SettingsError(f"[gate.{kind}] {problem}")
    return plan


def count_needed(share: float) -> int | None:
    """Return how many independent samples pass a limit when none of them moves, or all are perfect; None if no number.

    `share` is how far the limit is from that, on a scale of 0 to 1: n samples leave open that a share of
    1 - 0.025 ^ (1 / n) of the others differs (see `intervals.find_interval`).
    """
    from evalhouse.tasks.comparing.intervals import ALPHA  # noqa: PLC0415  # the statistics, as below
    from evalhouse.tasks.comparing.paired import MIN_CLUSTERS, ROUNDING  # noqa: PLC0415

    if share <= 0:
        return None
    return max(MIN_CLUSTERS, ceil(log(ALPHA / 2) / log1p(-share) - ROUNDING)) if share < 1 else MIN_CLUSTERS


def list_shortages(gate: SuiteGate, minimums: Mapping[str, float], n_samples: int) -> list[str]:
    """Return a sentence for each limit that so many samples cannot pass, unless nothing changed that its metric reads.

    `minimums` has the lowest value of each metric from there to 1; limits of others are left out.
    """
    needed: dict[tuple[str, float], dict[str, int | None]] = {}
    for kind, by_metric in (("max_drop", gate.max_drop), ("min", gate.min), ("max", gate.max)):
        for name, limit in by_metric.items():
            if name not in minimums:
                continue
            lowest = minimums[name]
            share = {"max_drop": limit, "min": (1 - limit) / (1 - lowest), "max": (limit - lowest) / (1 - lowest)}[kind]
            n = count_needed(share)
            if n is None or n > n_samples:
                needed.setdefault((kind, limit), {})[name] = n
    sentences = []
    for (kind, limit), by_name in needed.items():
        even = "every score is the best possible"
        if kind == "max_drop":
            even = "no score differs, and passes only where nothing changed that the metric reads"
        counts = [n for n in by_name.values() if n is not None]
        enough = f"it takes {max(counts)}" if counts else "no number is enough"
        sentences.append(
            f"{n_samples} samples are too few for {kind} {limit:g} of {', '.join(sorted(by_name))}: it stays undecided "
            f"even where {even}; {enough}"
        )
    return sentences


def check_suite(suite: Suite, settings: RunSettings) -> list[Finding]:
    """Return findings on the parts of a suite; `settings` are the ones of its next run."""
    n_samples: int | None = None

    def check_dataset() -> CheckResult:
        nonlocal n_samples
        staged = stage_of(settings)
        n_samples = staged.n_samples
        try:
            return _check_dataset(settings, staged)
        finally:
            staged.staging.discard()

    checks: dict[str, Callable[[], CheckResult]] = {
        f"suite {suite.name}": lambda: ("ok", f"{suite.path}, hash {suite.suite_hash[:12]}"),
        "dataset": check_dataset,
    }

    def check_target(target: TargetSettings) -> CheckResult:
        async def make_and_close() -> None:
            await make_target(target).close()

        asyncio.run(make_and_close())
        return "ok", "it can be asked with these settings; whether it answers is not tried"

    for of_variant in (settings, *list_night(settings)):
        variant = f"variant {of_variant.variant}: " if of_variant.variant else ""
        if (target := of_variant.target) is not None:
            checks[f"{variant}target {show_target(target)}"] = partial(check_target, target)
    if (schedule := suite.schedule) is not None:

        def check_schedule() -> CheckResult:
            fires = asyncio.run(list_fires(schedule.cron, schedule.timezone, n=3, after=datetime.now(UTC)))
            times = ", ".join(f"{fire:%a %Y-%m-%d %H:%M %Z}" for fire in fires)
            return "ok", f"in {schedule.timezone}; next: {times}"

        checks[f"schedule {schedule.cron}"] = check_schedule
    if (trigger := suite.trigger) is not None:
        asked = "only what cites a changed document is asked" if trigger.only_affected else "everything is asked"
        waits = f"after {trigger.debounce_s:g} s without another, or {trigger.max_total_wait_s:g} s in any case"
        checks[f"trigger {trigger.source.name}"] = lambda: ("ok", f"an update starts a run {waits}; {asked}")
    if suite.testset is not None:
        checks[f"testset {suite.testset.documents}"] = partial(_check_testset, suite.testset, settings)
    if (gate := settings.gate) is not None:

        def check_gate() -> CheckResult:
            plan = check_suite_gate(gate, settings)
            shortages: list[str] = []
            # A sample budget estimates the means of all samples from some.
            if n_samples is not None and settings.sample_budget is None:
                minimums = {metric.name: metric.minimum for metric in plan.metrics if not metric.is_own}
                shortages = list_shortages(gate, minimums, n_samples)
            return "note" if shortages else "ok", "; ".join([count_limits(gate), *shortages])

        checks["gate"] = check_gate
    if (notify := suite.notify) is not None:

        def check_notify() -> CheckResult:
            find_webhook(notify)
            return "ok", f"on {', '.join(notify.on)}; the webhook is not tried"

        checks["notify"] = check_notify
    return [make_finding(what, check) for what, check in checks.items()]


def _check_dataset(settings: RunSettings, staged: StagedDataset) -> CheckResult:
    check_history(settings, staged)
    detail = f"{settings.dataset}: {write_count(staged.n_samples, 'sample')}"
    if settings.target is None and settings.responses is None and not staged.n_answered:
        detail += ", none with an answer, without a [target] to ask for one"
        return "wrong", "; ".join([detail, staged.use.describe(is_asked=False), *staged.use.suggest(is_asked=False)])
    columns, *warnings = describe_columns(staged, settings, make_plan(settings).metrics)
    warnings += describe_language(staged.read_first(), settings.judge)
    return "note" if warnings else "ok", "; ".join([detail, columns, *warnings])


def _check_testset(testset: LivingSet, settings: RunSettings) -> CheckResult:
    plan = plan_living_set(testset, settings)
    judge, n_waiting = plan.settings.judge, len(plan.test_set.manifest.proposals)
    waiting = f"; {n_waiting} proposals for a person (`evalhouse review questions`)" if n_waiting else ""
    accepted = "accepted unseen" if testset.accept else "left for a person"
    return "ok", (
        f"{len(plan.looks):,} questions; {len(plan.base.changed):,} of "
        f"{len(plan.base.passages):,} passages are new or changed; before each run {judge} is asked about what "
        f"they touch, and proposals are {accepted}{waiting}"
    )
