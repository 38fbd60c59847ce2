"""The flow that Prefect runs for a served suite: on its schedule, after updates of its knowledge base, or to resume.

It decides whether there is anything to do, calls `suite_runs`, as the command line does, and reports the end to
Prefect. `serving` registers it; `flows/prefect.yaml` does for work pools.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.exceptions import Abort
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed
from prefect.utilities.urls import url_for

from evalhouse.flows.errors import SettingsError, explain
from evalhouse.flows.preparing.request import BY_HAND, Trigger, TriggerKind, resolve_suite
from evalhouse.flows.preparing.suites import Suite, load_suite, make_kb_source
from evalhouse.flows.results.output import print_notice
from evalhouse.flows.results.run_facts import describe_testset, read_silent
from evalhouse.flows.run.outcome import STORED, SuiteOutcome, list_shortfalls, make_result, show_end
from evalhouse.flows.server.api import PrefectApi, PrefectApiError, describe_outage, find_api, is_outage
from evalhouse.flows.server.interrupts import wait_for_warehouse
from evalhouse.flows.serving.backlog import (
    find_unanswered,
    find_waiting,
    has_left_batch,
    has_variants_left,
    hold_flow_run,
    is_gate_due,
    mark_flow_run,
    put_answered,
    queue_fetching,
    queue_left,
    resume_crashed,
    sweep_crashed,
)
from evalhouse.flows.serving.flow_runs import (
    ServedSuite,
    fetch_served_suite,
    find_named_run,
    list_flow_runs,
    name_flow_run,
)
from evalhouse.flows.serving.notify import describe_end, write_page
from evalhouse.flows.serving.suite_runs import resume_suite_run, run_suite
from evalhouse.tasks.judge.protocol import RunCancelled
from evalhouse.tasks.pipeline.live_run import FLOW_OPTIONS
from evalhouse.tasks.settings.suite import make_artifact_key
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

# For a run by hand, which may take long; Prefect sees that this process lives.
_PATIENCE_S = 86_400.0
_MAX_SILENT = 3
# For a server that is started again, by hand or by its supervisor.
_OUTAGE_S = 120.0
# A run that only waits for its batch for so long ends, and is resumed later.
_LEAVES_BATCH_S = 60.0
# How long a night waits for the resumption of one before it, whose process was killed, to begin.
_AFTER_CRASHED = timedelta(seconds=30)
# Prefect's tag of flow runs that its scheduler has made; it stays when they are queued again after a crash.
_SCHEDULED = "auto-scheduled"
_MADE_UP = "a later time of the schedule has passed too, and its run makes up for this one"


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One flow run: its server, its row in Prefect's API, its suite, and the warehouse of the suite's runs."""

    api: PrefectApi
    row: dict[str, Any]
    suite: Suite
    served: ServedSuite
    warehouse: Warehouse


@flow(name="evaluate-suite", **FLOW_OPTIONS)
@wait_for_warehouse()
def evaluate_suite(
    suite: str,
    trigger: TriggerKind = "schedule",
    resume: str | None = None,
    event: str | None = None,
    knowledge_base: str | None = None,
) -> "State[Any]":
    """Run the suite in the file `suite`, which must be that of the deployment, or resume its run `resume`.

    A run that passes is a RunResult for the flow that calls this one.

    `event` is the id of an update that must be visible before unanswered ones are looked for; `knowledge_base` the one
    that was updated, for a suite without a [trigger] that names it.
    """
    with hold_flow_run(str(flow_run.id)):
        try:
            return _work(_open_job(str(flow_run.id), suite, knowledge_base), trigger, resume, event)
        except RunCancelled as error:  # during the refresh; a run that is cancelled has an outcome
            stop = f"{error} while the test set was refreshed; it is as it was"
            with suppress(PrefectApiError):  # a server that is stopped as well knows of no person who cancelled
                if _is_cancelled(find_api("a suite is served"), str(flow_run.id)):
                    return Cancelled(message=stop)
            return _break_off(f"{Path(suite).name}: {stop}, and the run begins again when the suite is served again")
        except Exception as error:  # its message, and whether it is an outage, decide how the flow run ends
            message = explain(error)
            if is_outage(error):
                return _break_off(f"{Path(suite).name}: {message or describe_outage(error)}")
            if message is None:
                raise
            # For the terminal of the process that serves the suite.
            print_notice(f"{Path(suite).name}: {message}")
            return Failed(message=message)


@flow(name="recover-suite", **FLOW_OPTIONS)
@wait_for_warehouse()
def recover_suite(lost: str) -> "State[Any]":
    """Resume what has crashed of a suite in a work pool, of which `lost` is a flow run that crashed or fell silent.

    `lost` is an id, or the resource of an event, `prefect.flow-run.ID`. A recovery that was lost itself is
    repeated. A suite of `evalhouse serve` is left to that.
    """
    try:
        api, row = find_api("a suite is recovered", patience_s=_OUTAGE_S), {"parameters": {"lost": lost}}
        while (of_recovery := row["parameters"].get("lost")) is not None:
            flow_run_id = of_recovery.removeprefix("prefect.flow-run.")
            row = api.get(f"/flow_runs/{flow_run_id}")
            if "lost" in row["parameters"]:
                mark_flow_run(api, flow_run_id)
        if row["work_pool_name"] is None:
            return _skip("NothingNew", "the suite is served by `evalhouse serve`, which resumes its runs")
        job = _open_job(flow_run_id, None, None)
        lines = sweep_crashed(job.api, [job.served])
    except (SettingsError, WarehouseError) as error:
        return Failed(message=str(error))
    for line in lines:
        get_run_logger().warning(line)
    return Completed(message="; ".join(lines)) if lines else _skip("NothingNew", "no run of the suite has crashed")


def _is_cancelled(api: PrefectApi, flow_run_id: str) -> bool:
    """Return whether a person cancelled a flow run; else its worker or its machine is stopped."""
    return api.get(f"/flow_runs/{flow_run_id}")["state_type"] in ("CANCELLING", "CANCELLED")


def _break_off(message: str) -> "State[Any]":
    """Return the state of a flow run whose warehouse or server was away: `evalhouse serve` resumes it."""
    print_notice(message)
    return Crashed(message=message)


def _open_job(flow_run_id: str, path: str | None, kb_name: str | None) -> _Job:
    """Return the job of a flow run; `path` None takes the suite that its deployment names."""
    api = find_api("a suite is served by way of a Prefect server", patience_s=_OUTAGE_S)
    row = api.get(f"/flow_runs/{flow_run_id}")
    if row["deployment_id"] is None:
        raise SettingsError("evaluate_suite is the flow of a deployment; by hand a suite runs with `evalhouse run`")
    own = api.get(f"/deployments/{row['deployment_id']}")["parameters"].get("suite")
    path = path or str(own)
    if path != own:  # a suite names functions to import, which a person who starts a flow run must not choose
        raise SettingsError(f"this deployment runs the suite {own}, not {path}; another suite needs another deployment")
    suite = load_suite(path)
    warehouse = Warehouse(resolve_suite(suite, flags={}).settings.warehouse)
    served = fetch_served_suite(api, row["deployment_id"], suite, warehouse_url=warehouse.location.url)
    if served.source is None and kb_name is not None:
        served = replace(served, source=make_kb_source(kb_name))
    return _Job(api=api, row=row, suite=suite, served=served, warehouse=warehouse)


def _work(job: _Job, trigger: TriggerKind, resume: str | None, event: str | None) -> "State[Any]":
    # Prefect starts a flow run again that waited, was retried, or whose pod was moved: it has begun a run.
    resume = resume or find_named_run(job.row, job.suite.name)
    if resume is not None:
        run = find_run(job.warehouse, resume)
        if run.status == "completed" and not is_gate_due(run) and not has_variants_left(job.warehouse, run):
            done = f"run {resume} has completed; for another run start the deployment again"
            if run.gate == "failed":  # a retry does not make it pass
                return Failed(message=f"The gate failed, and {done}: evalhouse show {resume}")
            return _skip("NothingNew", done)
        url = job.warehouse.location.url
        watch = _watch(job, BY_HAND)
        return _report(
            job, resume_suite_run(resume, warehouse_url=url, suite=job.suite, watch=watch, wait_s=_PATIENCE_S)
        )
    if trigger == "event":
        return _answer_updates(job, event)
    # A person who starts the deployment in Prefect does not change the parameter.
    kind: TriggerKind = "schedule" if trigger == "schedule" and _SCHEDULED in job.row["tags"] else "manual"
    if kind == "schedule":
        if _supersede(job):
            return _skip("Superseded", _MADE_UP)
        lines = sweep_crashed(job.api, [job.served])  # nights whose worker was killed
        for line in lines:
            get_run_logger().warning(line)
        if lines and job.row["work_pool_name"] is not None:  # these come first; `evalhouse serve` looks by itself
            _come_again(job, "AwaitingResumption", datetime.now(UTC) + _AFTER_CRASHED, "; ".join(lines))
    if kind == "schedule" and (waiting := find_waiting(job.api, job.served)) is not None:
        return _skip("Superseded", f"run {waiting} still waits for its batch, and is resumed when that has come")
    return _run(job, Trigger(kind=kind))


def _supersede(job: _Job) -> bool:
    """Return whether a later time of the schedule has passed as well; end the flow runs of all earlier times.

    Of the times missed, while no process served the suite or while its slot was held, only the last is made up. The
    others end here, because each would need a turn and a process only to find that out.
    """
    own, now = datetime.fromisoformat(job.row["expected_start_time"]), datetime.now(UTC).isoformat()
    nights = {"all_": [_SCHEDULED]}
    waiting = list_flow_runs(
        job.api,
        job.served,
        tags=nights,
        expected_start_time={"before_": now},
        state={"type": {"any_": ["SCHEDULED"]}},
    )
    times = {row["id"]: datetime.fromisoformat(row["expected_start_time"]) for row in waiting}
    last = max([own, *times.values()])
    for row in waiting:
        # One that has begun a run resumes it.
        if times[row["id"]] < last and row["id"] != job.row["id"] and find_named_run(row, job.suite.name) is None:
            state = {"type": "COMPLETED", "name": "Superseded", "message": f"Nothing to do: {_MADE_UP}."}
            job.api.post(f"/flow_runs/{row['id']}/set_state", {"state": state})
    # Prefect postpones flow runs of a suite that is busy, so that a later one may well have run before.
    after_own = {"after_": own.isoformat(), "before_": now}
    later = list_flow_runs(job.api, job.served, tags=nights, expected_start_time=after_own)
    begins = [row["expected_start_time"] for row in later if row["state_type"] != "CANCELLED"]
    return any(datetime.fromisoformat(begin) > own for begin in begins)


def _answer_updates(job: _Job, event: str | None) -> "State[Any]":
    """Run once for all updates that no run of this suite has answered."""
    source = job.served.source
    if source is None:
        raise SettingsError(
            f"{job.suite.path} has no [trigger], so its deployment has to say which knowledge base was updated; give "
            "that the parameter knowledge_base"
        )
    unanswered = find_unanswered(job.api, job.served, event=event)
    for problem in unanswered.problems.values():
        get_run_logger().warning(problem)
        print_notice(f"{job.suite.name}: {problem}")
    if not unanswered.updates:
        return _skip("NothingNew", f"every announced update of {source.name} has been answered by a run already")
    state = _run(job, Trigger(kind="event", kb_name=source.name, updates=unanswered.updates))
    # An update that Prefect had not written before the look may have no flow run.
    left = find_unanswered(job.api, job.served)
    if left.updates:
        queue_left(job.api, job.served, left.updates, job.suite.trigger)
    return state


def _run(job: _Job, trigger: Trigger) -> "State[Any]":
    within = replace(trigger, flow_run_id=str(job.row["id"]))
    return _report(job, run_suite(job.suite, trigger=within, watch=_watch(job, trigger), wait_s=_PATIENCE_S))


def _watch(job: _Job, trigger: Trigger) -> "Callable[[LiveRun], AbstractContextManager[None]]":
    """Return the `watch` of the run: what is done as soon as the run is stored."""

    @contextmanager
    def watch(live_run: "LiveRun") -> Iterator[None]:
        for notice in live_run.notices:
            get_run_logger().info(notice)
        for queue in live_run.batch_queues:
            queue.leave_after(_LEAVES_BATCH_S)
        if live_run.settings.night is not None or live_run.kind != "evaluation":
            yield  # the flow run has the name of the suite's own run, which answers the updates
            return
        put_answered(job.warehouse, trigger, live_run.run_id)
        try:
            # By now Prefect's own `flow_run` is the evaluation's, which runs within the suite's.
            job.api.patch(f"/flow_runs/{job.row['id']}", {"name": name_flow_run(job.suite.name, live_run.run_id)})
        except PrefectApiError as error:
            # The run is the same without its name in Prefect.
            get_run_logger().warning(str(error))
        yield

    return watch


def _come_again(job: _Job, name: str, due: datetime, message: str) -> NoReturn:
    """Give the flow run back to Prefect, which starts it again when it is due, and end this process."""
    get_run_logger().info("%s The flow run comes again at %s.", message, f"{due.astimezone():%H:%M:%S}")
    details = {"scheduled_time": due.isoformat()}
    state = {"type": "SCHEDULED", "name": name, "message": message, "state_details": details}
    job.api.post(f"/flow_runs/{job.row['id']}/set_state", {"state": state})
    raise Abort(message)


def _skip(name: str, why: str) -> "State[Any]":
    get_run_logger().info("Nothing to do: %s.", why)
    return Completed(name=name, message=f"Nothing to do: {why}.")


def _report(job: _Job, outcome: SuiteOutcome) -> "State[Any]":
    """Write the run's page; return the state of this flow run, Failed for every end that a person should look at."""
    last = find_run(job.warehouse, outcome.last.run.run_id)
    if has_left_batch(last):
        due = queue_fetching(job.api, job.served, last.run_id).astimezone()
        message = f"Run {last.run_id} {last.problem}; a flow run resumes it at {due:%H:%M} if that has come by then."
        get_run_logger().info(message)
        show_end(last, message, "Cancelled")
        # Not scheduled again itself: the automation that misses its heartbeats would mark it as crashed.
        return Cancelled(name="WaitsForBatch", message=message)
    night = outcome.night
    run = find_run(job.warehouse, last.night or last.run_id)
    if testset := describe_testset(run):
        get_run_logger().info("Test set: %s", testset)
    flow_run_url = url_for("flow-run", UUID(run.flow_run_id)) if run.flow_run_id else None
    create_markdown_artifact(
        write_page(job.warehouse, run, outcome.gate, flow_run_url=flow_run_url, night=night),
        key=make_artifact_key("suite", job.suite.name),
        description=f"Run {run.run_id} of suite {job.suite.name}",
    )
    message = describe_end(run, outcome.gate, read_silent(job.warehouse, run).describe(max_names=_MAX_SILENT))
    if night is not None:
        message = "; ".join([*night.lines[:1], message, *list_shortfalls(night)])
    get_run_logger().info(message)
    if last.status == "running":
        return _break_off(f"{job.suite.name}: run {last.run_id} was broken off: {outcome.last.problem}")
    if night is not None and night.is_interrupted:
        last, stop = run, night.problem
    else:
        stop = last.problem if last.status == "cancelled" else None
    if stop is not None:
        is_cancelled = _is_cancelled(job.api, str(job.row["id"]))
        if not is_cancelled:  # a worker or its machine is stopped: the next process resumes the run
            message = resume_crashed(job.api, job.served, last, f"Run {last.run_id} was {stop}")
        show_end(last, message, "Cancelled" if is_cancelled else "Crashed")
        return Cancelled(message=message) if is_cancelled else Crashed(message=message)
    if run.status != "completed" or outcome.gate_failed or (night is not None and list_shortfalls(night)):
        return Failed(name="TimedOut" if STORED in str(run.problem) else "Failed", message=message)
    return Completed(message=message, data=make_result(job.warehouse, run, outcome.gate))
