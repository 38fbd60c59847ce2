"""One run of a suite from its settings to its notification: the way that the command line and a served flow both take.

The run itself is `doors.start_to_end`; around it stands what a suite adds: settings of its file, a gate, a
notification.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from evalhouse.flows.doors.start_to_end import resume_run, start_run
from evalhouse.flows.preparing.request import BY_HAND, Trigger
from evalhouse.flows.preparing.settings import SUITE_ORIGIN, Resolved, resolve_settings
from evalhouse.flows.preparing.suites import Suite
from evalhouse.flows.run.outcome import RunOutcome, SuiteOutcome, Watch, explain_incomplete
from evalhouse.flows.serving.backlog import has_left_batch
from evalhouse.flows.serving.gate import check_suite_gate, decide_suite_gate
from evalhouse.flows.serving.notify import describe_end, notify_of_break, notify_of_end
from evalhouse.flows.serving.retention import forget_old
from evalhouse.tasks.settings.suite import Notify
from evalhouse.warehouse.store import Warehouse


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
        from evalhouse.flows.serving.living_set import refresh_living_set  # noqa: PLC0415  # imports what reads documents

        refreshed = refresh_living_set(suite, settings, wait_s=wait_s)
        settings = settings.model_copy(update={"refreshed": refreshed})
    with _notified_when_broken_off(suite.notify, suite.name, trigger):
        if settings.gate is not None:  # over metrics that are not scored: refused before anything is asked
            from evalhouse.flows.preparing.live_run import make_plan  # noqa: PLC0415  # imports what judges

            check_suite_gate(settings.gate, make_plan(settings))
        finish = _Finish(settings.warehouse, suite.notify)
        outcome = start_run(settings, trigger=trigger, watch=watch, finish=finish, wait_s=wait_s)
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
    changes = changes or {}
    outcome = resume_run(name, warehouse_url=warehouse_url, changes=changes, watch=watch, finish=finish, wait_s=wait_s)
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
    except Exception as error:
        if notify is not None:
            notify_of_break(notify, name, trigger, str(error))
        raise
