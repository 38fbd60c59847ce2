"""The test set of a suite held against its documents before each run, so that the run is over questions that are true.

A refresh that fails does not stop the night: the set is evaluated as it was, and the run says why.
"""

import shlex
from pathlib import Path

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.suites import LivingSet, Suite
from evalhouse.flows.results.output import print_notice, write_count, write_dollars
from evalhouse.flows.testsets.refresh import RefreshedSet, RefreshPlan, estimate_refresh, plan_refresh
from evalhouse.prompts.errors import PromptError
from evalhouse.tasks.judge.errors import JudgeError, RunCancelled
from evalhouse.tasks.settings.run import LIMITS, RunSettings, list_settings
from evalhouse.tasks.settings.suite import RefreshedTestset
from evalhouse.tasks.testsets.errors import TestsetError
from evalhouse.tasks.testsets.sets import read_set
from evalhouse.warehouse.rows.runs import hold_suite
from evalhouse.warehouse.store import Warehouse

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
