"""One run of a suite from its settings to its notification, for the command line and for served flows.

The run itself is `flows.start.start_run`. A suite adds the settings of its file, a gate, a notification and the
deletion of old runs. The gate's limits come from the stored settings of the run and not from the file, which may have
changed since, so that a resumed run has the same limits as an uninterrupted one.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from evalhouse.flows.preparing.live_run import list_paid
from evalhouse.flows.preparing.request import (
    BY_HAND,
    RunRequest,
    Trigger,
    Update,
    find_unfinished,
    resolve_suite,
)
from evalhouse.flows.preparing.suites import Suite
from evalhouse.flows.results.baseline import Baseline, find_baseline, make_decision
from evalhouse.flows.results.output import print_notice, write_count, write_dollars
from evalhouse.flows.run.outcome import NightOutcome, RunOutcome, SuiteOutcome, Watch, explain_incomplete, publish_end
from evalhouse.flows.server.interrupts import Interrupts
from evalhouse.flows.server.local import prefect_server
from evalhouse.flows.serving.backlog import has_left_batch, has_variants_left, is_gate_due
from evalhouse.flows.serving.notify import describe_end, notify_of_break, notify_of_end
from evalhouse.flows.start import start_run
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.judge.protocol import RunCancelled
from evalhouse.tasks.settings.run import RunSettings, list_night, read_settings
from evalhouse.tasks.settings.suite import Notify, SuiteGate, find_cutoff
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.rows.gates import list_nights, record_decision
from evalhouse.warehouse.rows.runs import RunRow, find_run, hold_suite, list_night_runs, now_utc
from evalhouse.warehouse.store import Warehouse


@one_reader()
def decide_suite_gate(warehouse: Warehouse, run: RunRow, *, stores: bool = True) -> dict[str, Any] | None:
    """Decide on a run that has ended, and store the outcome unless it was decided before.

    None without a gate, and for a run that judged nothing or did not reach its end.
    """
    gate_config = run.config.get("gate")
    if gate_config is None or run.kind != "evaluation" or run.status not in ("completed", "incomplete"):
        return None
    # The statistics, which most runs do without.
    from evalhouse.flows.results.gate import decide, read_scores  # noqa: PLC0415
    from evalhouse.tasks.comparing.gate_checks import Limits, cover_all  # noqa: PLC0415
    from evalhouse.tasks.comparing.runs import ComparisonError, ComparisonSettings  # noqa: PLC0415

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
        missing = Baseline(against=baseline.against, missing=f"it cannot be compared: {error}", is_unrelated=True)
        document = decide_by(missing, limits=limits, settings=ComparisonSettings())
    if stores:
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
    variant: str | None = None,
    watch: Watch | None = None,
    wait_s: float = 0.0,
) -> SuiteOutcome:
    """Run a suite and its variants, or one `variant` alone, decide on its gate, and send its notification.

    The test set of a suite that has one is refreshed before. `flags` are settings that win over all others, by name;
    `wait_s` is how long to wait for another run of the suite to end. Raises what `start_run` raises, after reporting
    it, and RunCancelled when the refresh was stopped.
    """
    settings = resolve_suite(suite, flags=flags or {}, trigger=trigger, variant=variant).settings
    # A trigger that has a flow run is that of a served suite.
    request = RunRequest(
        settings=settings, trigger=trigger, holds_suite=True, is_served=trigger.flow_run_id is not None
    )
    try:
        # The checks import Prefect, which by then must find its server's settings and those for a quiet terminal.
        with prefect_server():
            if settings.gate is not None:  # one on metrics that are not scored is refused before anything is asked
                from evalhouse.flows.serving.suite_checks import check_suite_gate  # noqa: PLC0415

                check_suite_gate(settings.gate, settings)
            for of_variant in list_night(settings) if suite.testset is None else ():  # the refresh makes them itself
                if of_variant.target is not None:
                    from evalhouse.tasks.targets.collection import make_target  # noqa: PLC0415

                    make_target(of_variant.target)
            with Interrupts(), hold_suite(Warehouse(settings.warehouse), suite.name, wait_s=wait_s):
                if suite.testset is not None:
                    from evalhouse.flows.serving.suite_checks import refresh_living_set  # noqa: PLC0415

                    refreshed = refresh_living_set(suite, settings)
                    request = replace(request, settings=settings.model_copy(update={"refreshed": refreshed}))
                outcome = _Night(settings.warehouse, suite.notify, watch=watch).take_to_end(request)
    except RunCancelled:
        raise
    except Exception as error:  # the suite notifies of any error, and it is raised again
        if suite.notify is not None:
            notify_of_break(suite.notify, suite.name, trigger, str(error))
        raise
    forget_old(suite, settings.warehouse)
    return outcome


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

    The variants of its night that have not reached their end follow. The run keeps the gate and the notification that
    it was started with. A webhook's address that is written into the suite is not stored with them, so posting there
    requires the `suite` itself. Runs outside a suite have neither.
    """
    request = find_unfinished(
        name,
        warehouse_url=warehouse_url,
        changes=changes,
        wait_s=wait_s,
        is_served=suite is not None,  # only the flow that serves it gives the suite
    )
    night = _Night(
        warehouse_url, suite.notify if suite else None, watch=watch, changes=changes, reads_stored=suite is None
    )
    with ExitStack() as held:
        if request.settings.suite is not None:
            held.enter_context(Interrupts())
            held.enter_context(hold_suite(Warehouse(warehouse_url), request.settings.suite, wait_s=wait_s))
        outcome = night.take_to_end(replace(request, holds_suite=True))
    if suite is not None:
        forget_old(suite, warehouse_url)
    return outcome


class _Night:
    """One run of a suite, and after it one of each of its variants, with what is done at their ends.

    The run of the suite itself has the gate, which is decided when it has ended. The notification is sent when all have
    ended; a collection has neither. With `reads_stored` it is the one that the run was started with. `changes` are
    settings of runs that are resumed.
    """

    def __init__(
        self,
        url: str,
        notify: Notify | None,
        *,
        watch: Watch | None,
        changes: Mapping[str, object] | None = None,
        reads_stored: bool = False,
    ) -> None:
        self._warehouse, self._notify, self._watch = Warehouse(url), notify, watch
        self._changes, self._reads_stored = changes, reads_stored
        self._gate: dict[str, Any] | None = None

    def take_to_end(self, request: RunRequest) -> SuiteOutcome:
        """Carry out the run that was requested, then the variants of its night that have not reached their end."""
        resumed = request.resumed
        if resumed is not None and resumed.status == "completed" and has_variants_left(self._warehouse, resumed):
            # The process was stopped between two runs of the night.
            self._gate = decide_suite_gate(self._warehouse, resumed, stores=is_gate_due(resumed))
            outcome = RunOutcome(run=resumed, status=resumed.status, counts=Usage(), problem=None)
        else:
            outcome = start_run(request, watch=self._watch, finish=self._finish)
        run = outcome.run
        if run.night is None:
            self._send(outcome)
            return SuiteOutcome(outcome=outcome, gate=self._gate)
        own = run if run.run_id == run.night else find_run(self._warehouse, run.night)
        variants: list[RunOutcome] = []
        try:
            problem, is_interrupted = self._ask_variants(own, outcome, request, variants), False
        except KeyboardInterrupt as error:  # between two runs: within one it is the run's outcome
            problem, is_interrupted = f"stopped by {error}", True
        runs = list_night_runs(self._warehouse, run.night, kinds=("evaluation",))
        from evalhouse.flows.results.variants import describe_night  # noqa: PLC0415  # the statistics

        lines = describe_night(self._warehouse, own)
        night = NightOutcome(runs=runs, variants=variants, problem=problem, lines=lines, is_interrupted=is_interrupted)
        if not is_interrupted and not any(map(is_stopped, (outcome, *variants))):
            if own.run_id != run.run_id:
                self._gate = decide_suite_gate(self._warehouse, own, stores=False)
            self._send(replace(outcome, run=own), night)
            if (folder := own.config.get("reports")) is not None:  # that of the suite itself opens with the night
                publish_end(
                    self._warehouse, own, request.settings.model_copy(update={"reports": folder}), in_prefect=False
                )
        return SuiteOutcome(outcome=outcome, gate=self._gate, night=night)

    def _ask_variants(
        self, own: RunRow, before: RunOutcome, request: RunRequest, outcomes: list[RunOutcome]
    ) -> str | None:
        """Ask the variants of the night of the suite's `own` run, one after the other, and add how they ended to
        `outcomes`; return why others were not asked."""
        settings = read_settings({**own.config, **(self._changes or {}), "warehouse": request.settings.warehouse})
        changed = own.kb_changed or ()
        update = Update(event_id="", version=own.kb_version, changed=changed, occurred_at=own.started_at)
        trigger = Trigger(
            kind=own.trigger,  # type: ignore[arg-type]  # which the column holds
            kb_name=own.kb_name,
            updates=(update,) if own.kb_name else (),
            flow_run_id=own.flow_run_id if request.is_served else None,
        )
        left = list_night(settings, own.run_id)
        for place, of_variant in enumerate(left):
            runs = list_night_runs(self._warehouse, own.run_id, kinds=("evaluation",))
            begun = {run.variant: run for run in runs}
            run = begun.get(of_variant.variant)
            if run is not None and (run.run_id == before.run.run_id or run.status in ("completed", "incomplete")):
                continue
            if (problem := self._explain_stop(outcomes[-1] if outcomes else before, settings)) is not None:
                names = [str(later.variant) for later in left[place:] if later.variant not in begun]
                return f"{', '.join(names)} not asked: {problem}" if names else problem
            if run is None:
                asked = RunRequest(settings=of_variant, trigger=trigger, is_served=request.is_served)
            else:
                asked = find_unfinished(
                    run.run_id,
                    warehouse_url=settings.warehouse,
                    changes=self._changes,
                    is_served=request.is_served,
                )
            outcomes.append(start_run(replace(asked, holds_suite=True), watch=self._watch))
        return None

    def _explain_stop(self, outcome: RunOutcome, settings: RunSettings) -> str | None:
        """Return why no variant is asked after a run that ended so; None if one is.

        A bot that does not answer is a result of the night, and the next one may; a judge that fails would fail again.
        """
        run = outcome.run
        if is_stopped(outcome):
            return f"run {run.run_id} was stopped"
        if run.status == "failed" and (
            settings.target is None or self._warehouse.fetch_row("responses/counts", run_id=run.run_id)["n_ok"]
        ):
            return f"run {run.run_id} failed"
        if settings.budget_usd is not None:
            paid = list_paid(self._warehouse, str(run.night), settings)
            if sum(sum_cost(self._warehouse, run_id) for run_id in paid) >= settings.budget_usd:
                return f"the budget of {write_dollars(settings.budget_usd)} is spent"
        return None

    def _finish(self, outcome: RunOutcome) -> str | None:
        """Decide the gate of a run that has ended; return why the run is not a success."""
        if has_left_batch(outcome.run):
            return None  # it has not ended
        self._gate = decide_suite_gate(self._warehouse, outcome.run)
        if self._gate is not None and self._gate["outcome"] == "failed":
            return describe_end(outcome.run, self._gate)
        return explain_incomplete(outcome)

    def _send(self, outcome: RunOutcome, night: NightOutcome | None = None) -> None:
        """Send the notification of a run that has ended, or of the whole night."""
        notify, stored = self._notify, outcome.run.config.get("notify")
        if self._reads_stored and stored:
            notify = Notify.model_validate(stored, strict=False)
        if notify is not None and outcome.run.kind == "evaluation" and not has_left_batch(outcome.run):
            notify_of_end(notify, self._warehouse, outcome.run, outcome.problem, self._gate, night=night)


def is_stopped(outcome: RunOutcome) -> bool:
    """Return whether a run will be resumed: it was stopped, an outage broke it off, or it waits for its batch."""
    return outcome.status in ("cancelled", "running")
