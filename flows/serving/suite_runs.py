"""One run of a suite from its settings to its notification, for the command line and for served flows.

The run itself is `flows.evaluate.start_run`. A suite adds the settings of its file, a gate, a notification and the
deletion of old runs. The gate's limits come from the stored settings of the run and not from the file, which may have
changed since, so that a resumed run has the same limits as an uninterrupted one.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from evalhouse.flows.evaluate import start_run
from evalhouse.flows.preparing.request import (
    BY_HAND,
    SUITE_ORIGIN,
    Resolved,
    RunRequest,
    Trigger,
    find_unfinished,
    resolve_settings,
)
from evalhouse.flows.preparing.suites import Suite
from evalhouse.flows.results.baseline import Baseline, find_baseline, make_decision
from evalhouse.flows.results.output import print_notice, write_count
from evalhouse.flows.run.outcome import RunOutcome, SuiteOutcome, Watch, explain_incomplete
from evalhouse.flows.server.local import prefect_server
from evalhouse.flows.serving.backlog import has_left_batch
from evalhouse.flows.serving.notify import describe_end, notify_of_break, notify_of_end
from evalhouse.tasks.judge.protocol import RunCancelled
from evalhouse.tasks.settings.suite import Notify, SuiteGate, find_cutoff
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.gates import list_nights, record_decision
from evalhouse.warehouse.rows.runs import RunRow, now_utc
from evalhouse.warehouse.store import Warehouse


@one_reader()
def decide_suite_gate(warehouse: Warehouse, run: RunRow) -> dict[str, Any] | None:
    """Decide on a run that has ended and store the outcome.

    None without a gate, and for a run that judged nothing or did not reach its end.
    """
    gate_config = run.config.get("gate")
    if gate_config is None or run.kind != "evaluation" or run.status not in ("completed", "incomplete"):
        return None
    # The statistics, which most runs do without.
    from evalhouse.flows.results.gate import decide, read_scores  # noqa: PLC0415
    from evalhouse.tasks.comparing.gate_checks import Limits, cover_all  # noqa: PLC0415
    from evalhouse.tasks.comparing.runs import ComparisonError, ComparisonSettings, NothingCommon  # noqa: PLC0415

    gate = SuiteGate.model_validate(gate_config, strict=False)
    nights = list_nights(warehouse, run) if gate.has_drops or gate.trends else []
    baseline = Baseline()
    if gate.has_drops:
        baseline = find_baseline(warehouse, run, gate.against, k=gate.k, nights=nights)
    scores = read_scores(warehouse, run)
    # `min_coverage` is for all metrics without a limit in [gate.coverage].
    for_all = {} if gate.min_coverage is None else cover_all(scores, gate.min_coverage)
    limits = Limits(
        minimums=gate.min,
        maximums=gate.max,
        drops=gate.max_drop,
        trends=gate.trends,
        coverages=for_all | dict(gate.coverage),
        cost_usd=gate.max_cost,
        latency_p95_ms=gate.max_latency_p95_ms,
    )
    decide_by = partial(decide, warehouse, run, scores=scores, undecided=gate.undecided, slices=gate.slices)
    try:
        settings = ComparisonSettings(cluster=gate.cluster)
        document = decide_by(baseline, nights=nights, limits=limits, settings=settings)
    except ComparisonError as error:
        # The run is paid for: the limits that need no comparison are still decided.
        missing = Baseline(
            against=baseline.against,
            missing=f"it cannot be compared: {error}",
            is_unrelated=isinstance(error, NothingCommon),
        )
        document = decide_by(missing, limits=replace(limits, trends={}), settings=ComparisonSettings())
    record_decision(warehouse, make_decision(document, "suite"))
    return document


def forget_old(suite: Suite, warehouse_url: str) -> None:
    """Forget the suite's runs that are older than it keeps them; report this, and an error, after which the next run
    tries again."""
    from evalhouse.warehouse.upkeep.forget import Rule, forget  # noqa: PLC0415  # few suites have it

    if suite.retention is None:
        return
    for age, with_scores in ((suite.retention.scores, True), (suite.retention.texts, False)):
        if age is None:
            continue
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
    it, and RunCancelled when the refresh was stopped.
    """
    settings = resolve_suite(suite, flags=flags or {}, trigger=trigger).settings
    try:
        # Both checks import Prefect, which by then must find its server's settings and those for a quiet terminal.
        with prefect_server():
            if settings.gate is not None:  # one on metrics that are not scored is refused before anything is asked
                from evalhouse.flows.preparing.live_run import make_plan  # noqa: PLC0415
                from evalhouse.flows.serving.suite_checks import check_suite_gate  # noqa: PLC0415

                check_suite_gate(settings.gate, make_plan(settings))
            if suite.testset is not None:
                from evalhouse.flows.serving.suite_checks import refresh_living_set  # noqa: PLC0415

                refreshed = refresh_living_set(suite, settings, wait_s=wait_s)
                settings = settings.model_copy(update={"refreshed": refreshed})
        finish = _Finish(settings.warehouse, suite.notify)
        # A trigger that has a flow run is that of a served suite.
        is_served = trigger.flow_run_id is not None
        request = RunRequest(settings=settings, trigger=trigger, wait_s=wait_s, is_served=is_served)
        outcome = start_run(request, watch=watch, finish=finish)
    except RunCancelled:
        raise
    except Exception as error:  # the suite notifies of any error, and it is raised again
        if suite.notify is not None:
            notify_of_break(suite.notify, suite.name, trigger, str(error))
        raise
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
    """Resume a run where it stopped, and then do everything that is done at the end of a run of its suite.

    The run keeps the gate and the notification that it was started with. A webhook's address that is written into the
    suite is not stored with them, so posting there requires the `suite` itself. Runs outside a suite have neither.
    """
    finish = _Finish(warehouse_url, suite.notify if suite else None, reads_stored=suite is None)
    request = find_unfinished(
        name,
        warehouse_url=warehouse_url,
        changes=changes,
        wait_s=wait_s,
        is_served=suite is not None,  # only the flow that serves it gives the suite
    )
    outcome = start_run(request, watch=watch, finish=finish)
    if suite is not None:
        forget_old(suite, warehouse_url)
    return SuiteOutcome(outcome=outcome, gate=finish.gate)


def resolve_suite(suite: Suite, *, flags: Mapping[str, Any], trigger: Trigger = BY_HAND) -> Resolved:
    """Return the settings of a run of the suite; raises SettingsError.

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
    """The steps after a run: its gate is decided and stored, and its notification sent; a collection has neither.

    With `reads_stored` the notification is the one that the run was started with.
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
