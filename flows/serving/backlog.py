"""Find what crashes have left of a served suite: runs without a process, and updates without a run.

A process that works on a flow run holds a lock of the operating system on it, as on the run in the warehouse
(`evalhouse.warehouse.engine.locks`). Both locks die with the process, so a run that is `running` while its lock is free
has crashed. A process that was killed before it had a lock, or runs on another machine, is recognized by its silence:
it shows a sign of life in Prefect every half minute. Prefect itself notices only when heartbeats stop that have come
before, and resumes nothing. Nothing here imports Prefect.
"""

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from evalhouse.flows.preparing.request import Trigger, Update
from evalhouse.flows.preparing.suites import KnowledgeBase
from evalhouse.flows.server.api import PrefectApi, PrefectApiError
from evalhouse.flows.server.environment import load_user_settings, prefect_home
from evalhouse.flows.server.local import SERVE_LOG
from evalhouse.flows.serving.flow_runs import (
    ENDED,
    NOT_ENDED,
    SILENCE,
    START_TIME,
    Announced,
    ServedSuite,
    create_flow_run,
    fetch_updates,
    find_named_run,
    has_event_run,
    is_trigger_disabled,
    list_flow_runs,
    name_flow_run,
)
from evalhouse.flows.serving.notify import notify_of_crash
from evalhouse.tasks.asking.batches import WAITS
from evalhouse.warehouse.engine.locks import hold_file, hold_run, is_file_held, remove_abandoned
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseMissing, WarehouseUnreachable
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_night_runs, list_runs, now_utc, update_run
from evalhouse.warehouse.store import WRITE_PATIENCE_S, Warehouse

_GONE: Final = "its process ended before the run did"
_NOT_AGAIN: Final = "and what was answered is not asked again"
# In the problem of a run that `evalhouse serve` resumes; a run by hand is resumed by the person who started it.
_BY_SERVE: Final = "`evalhouse serve` resumes it"
_IN_PROGRESS = ["RUNNING", "PENDING", "CANCELLING"]
# States in which a process shows signs of life, or is about to.
_ALIVE = ("PENDING", "RUNNING")
# A run that kills its process each time (out of memory, say) is not tried for ever, and from the third time on not at
# once: a minute later each time.
_MAX_RESUMES = 10
_AT_ONCE = 2
# Prefect's tags: of a flow run that another was queued for, and of that one, with the number of the try.
_REPLACED, _AGAIN = "queued again", "try again "
# Prefect's message at the end of a flow run that its runner stops because it ends itself.
_SHUT_DOWN = "Runner is shutting down."
# How long to wait before looking after a batch, at first, and by which factor it grows.
_LOOK_FIRST, _LOOK_GROWTH, _LOOK_MAX = timedelta(minutes=2), 1.5, timedelta(minutes=20)
# Runs of a suite among which one that waits is looked for.
_LATEST = 20
_LOST_WITHIN: Final = timedelta(days=1)
_SEE_LOG: Final = f"see {SERVE_LOG} in Prefect's folder"
# Prefect writes an event some seconds after it has acted on it.
_EVENT_PATIENCE_S = 60.0
_EVENT_POLL_S = 0.5
# How much longer than its quiet time the trigger of an update, and the way from that to a flow run, may take.
_TRIGGER_TIME: Final = timedelta(seconds=60)
# A sender's clock that is ahead does not delay a run for longer.
_MAX_DELAY: Final = timedelta(days=1)


@contextmanager
def hold_flow_run(flow_run_id: str) -> Iterator[None]:
    """Show to other processes, for this block, that the process of a flow run is alive."""
    with hold_file(_find_lock(flow_run_id), patience_s=10, busy=f"flow run {flow_run_id} is held by another process"):
        yield


def _find_lock(flow_run_id: str) -> Path:
    home = load_user_settings().get("PREFECT_HOME")
    return (Path(home).expanduser() if home else prefect_home()) / "evalhouse-flow-runs" / f"{flow_run_id}.lock"


def sweep_crashed(api: PrefectApi, suites: Sequence[ServedSuite], *, alone: bool = False) -> list[str]:
    """Mark what has crashed, in Prefect and in the warehouse, and queue flow runs that resume it.

    `alone` says that no other process can be working on these suites: what shows no sign of life is then dead. Returns
    a line for each thing found.
    """
    lines: list[str] = []
    for suite in suites:
        warehouse = Warehouse(suite.warehouse_url)
        flow_runs = list_flow_runs(api, suite, state={"type": {"any_": _IN_PROGRESS}})
        dead = [flow_run for flow_run in flow_runs if _is_dead(api, flow_run, alone=alone)]
        # The lock on a run may be lost while its process lives: with the server of a lake's catalogue.
        alive = {find_named_run(flow_run, suite.name) for flow_run in flow_runs if flow_run not in dead}
        crashed = {run.run_id: run for run in _mark_runs(api, warehouse, suite, alive)}
        for flow_run in dead:
            mark_flow_run(api, str(flow_run["id"]))
            run_id = find_named_run(flow_run, suite.name)
            for run in _list_runs_of(warehouse, suite.name):
                if run.run_id == run_id and (run.status in ("failed", "cancelled") or is_night_cut(warehouse, run)):
                    crashed.setdefault(run.run_id, run)
        for run in crashed.values():
            if run.flow_run_id is not None:
                # A flow run whose process died before it could name it after its run would be taken for one that has
                # no run yet, and queued again.
                of_run = _find_flow_run_of(api, suite, run)
                if of_run is not None and find_named_run(of_run, suite.name) is None:
                    api.patch(f"/flow_runs/{of_run['id']}", {"name": name_flow_run(suite.name, run.run_id)})
                mark_flow_run(api, run.flow_run_id)
            reason = f" ({run.problem})" if run.problem else ""
            lines.append(f"{suite.name}: {resume_crashed(api, suite, run, f'run {run.run_id} had crashed{reason}')}")
        if crashed:
            remove_abandoned()  # what their processes had in temporary folders
        lines += _queue_lost(api, suite)
        lines += _resume_left(api, warehouse, suite, alive | crashed.keys())
    return lines


def _is_dead(api: PrefectApi, flow_run: Mapping[str, Any], *, alone: bool) -> bool:
    """Return whether the process of a flow run is gone: its lock is free, or it has shown no sign of life for long."""
    path = _find_lock(str(flow_run["id"]))
    if path.exists():
        return not is_file_held(path)
    # It has not come as far as its lock, has just ended, or is on another machine.
    if alone or flow_run["state_type"] not in _ALIVE:
        return alone
    conditions = {"resource": {"id": [f"prefect.flow-run.{flow_run['id']}"]}, "order": "DESC"}
    events = api.post("/events/filter", {"filter": conditions, "limit": 1})["events"]
    is_starting = flow_run["state_type"] == "PENDING" and flow_run.get("work_pool_name") is not None
    # A change of its state, and a heartbeat of its process.
    signs = [flow_run["state"]["timestamp"], *(event["occurred"] for event in events)]
    last = max(datetime.fromisoformat(sign.replace("Z", "+00:00")).astimezone(UTC) for sign in signs)
    return datetime.now(UTC) - last > (START_TIME if is_starting else SILENCE)


def _mark_runs(
    api: PrefectApi, warehouse: Warehouse, suite: ServedSuite, alive: Collection[str | None]
) -> list[RunRow]:
    """Mark as failed the runs of a suite that are `running` without a process that holds them, except `alive` ones.

    Returns the served ones, with their columns before; runs by hand are only marked.
    """
    marked: list[RunRow] = []
    for run in _list_runs_of(warehouse, suite.name):
        if run.status != "running" or run.run_id in alive:
            continue
        of_serve = is_served(api, suite, run)
        holder = (run.is_part_of_run and run.parent_run_id) or run.run_id
        with _tried_to_hold(warehouse, holder) as is_held:
            if not is_held or find_run(warehouse, run.run_id).status != "running":
                continue
            reason = f" ({run.problem})" if run.problem else ""
            resume = f"`evalhouse resume {holder}`"
            advice = f"{_BY_SERVE}, or {resume}" if of_serve else f"{resume} resumes it"
            problem = f"{_GONE}{reason}; {advice}"
            update_run(
                warehouse,
                run.run_id,
                status="failed",
                problem=problem,
                finished_at=now_utc(),
                patience_s=WRITE_PATIENCE_S,
            )
        if of_serve:
            marked.append(run)
    return marked


@contextmanager
def _tried_to_hold(warehouse: Warehouse, run_id: str) -> Iterator[bool]:
    """Hold a run for this block unless another process does; yields whether it is held here."""
    with ExitStack() as held:
        try:
            held.enter_context(hold_run(warehouse.location, run_id))
            is_held = True
        except WarehouseUnreachable:
            raise
        except WarehouseBusy:
            is_held = False
        yield is_held


def mark_flow_run(api: PrefectApi, flow_run_id: str) -> None:
    """Mark a flow run in Prefect as crashed, unless it has ended there or never existed there."""
    with _unless_unknown():
        if api.get(f"/flow_runs/{flow_run_id}")["state_type"] not in ENDED:
            state = {"type": "CRASHED", "name": "Crashed", "message": f"{_GONE}."}
            api.post(f"/flow_runs/{flow_run_id}/set_state", {"state": state, "force": True})


@contextmanager
def _unless_unknown() -> Iterator[None]:
    """End the block early if Prefect does not know the object that the block asks for."""
    try:
        yield
    except PrefectApiError as error:
        if error.status != 404:
            raise


def _queue_lost(api: PrefectApi, suite: ServedSuite) -> list[str]:
    """Queue again the flow runs of the last day that have crashed before their run was stored; return a line for each.

    Flow runs that were queued again already are left out.
    """
    since = {"after_": (datetime.now(UTC) - _LOST_WITHIN).isoformat()}
    lines: list[str] = []
    for flow_run in list_flow_runs(api, suite, state={"type": {"any_": ["CRASHED"]}}, expected_start_time=since):
        if find_named_run(flow_run, suite.name) is not None or _REPLACED in flow_run["tags"]:
            continue
        n_tries, result = _queue_again(api, suite, flow_run)
        problem = f"a run had crashed before it was on record: {result}"
        if suite.notify is not None and n_tries in (0, _MAX_RESUMES):
            problem = notify_of_crash(suite.notify, suite.name, Warehouse(suite.warehouse_url), None, problem)
        lines.append(f"{suite.name}: {problem}")
    return lines


def _queue_again(api: PrefectApi, suite: ServedSuite, flow_run: Mapping[str, Any]) -> tuple[int, str]:
    """Queue a flow run again that has begun no run; return how often that was done before, and the result in words."""
    tags = list(flow_run["tags"])
    n_tries = sum(tag.startswith(_AGAIN) for tag in tags)
    result = f"it was queued again {_MAX_RESUMES} times already and is left; {_SEE_LOG}"
    if n_tries < _MAX_RESUMES:
        again = [*tags, f"{_AGAIN}{n_tries + 1}"]
        key = f"again {flow_run['id']}"
        create_flow_run(api, suite, flow_run["parameters"], key=key, tags=again, due=_delay(n_tries))
        result = "it is queued again"
    api.patch(f"/flow_runs/{flow_run['id']}", {"tags": [*tags, _REPLACED]})
    return n_tries, result


def list_unbegun(api: PrefectApi, suite: ServedSuite) -> list[str]:
    """Return the flow runs of a suite that have begun no run: they start, refresh its test set, or prepare."""
    flow_runs = list_flow_runs(api, suite, state={"type": {"any_": ["PENDING", "RUNNING"]}})
    return [str(flow_run["id"]) for flow_run in flow_runs if find_named_run(flow_run, suite.name) is None]


def queue_unbegun(api: PrefectApi, suite: ServedSuite, flow_run_ids: Collection[str]) -> bool:
    """Queue the flow runs again that were stopped with this process before they had begun a run; return whether there
    are some.

    They are these, and others that Prefect started to run since they were listed.
    """
    any_queued = False
    since = {"after_": (datetime.now(UTC) - _LOST_WITHIN).isoformat()}
    stopped = {"type": {"any_": ["CANCELLED", "CRASHED"]}}
    for flow_run in list_flow_runs(api, suite, state=stopped, expected_start_time=since):
        is_own = flow_run["id"] in flow_run_ids or (flow_run["state"] or {}).get("message") == _SHUT_DOWN
        if is_own and find_named_run(flow_run, suite.name) is None and _REPLACED not in flow_run["tags"]:
            _queue_again(api, suite, flow_run)
            any_queued = True
    return any_queued


def _resume_left(api: PrefectApi, warehouse: Warehouse, suite: ServedSuite, known: Collection[str | None]) -> list[str]:
    """Resume runs of the last day that no process works on or will, except `known` ones; return a line for each.

    Their process died between their end and their gate, or they were found crashed earlier and the flow run that
    should have resumed them failed before it did.
    """
    since = (datetime.now(UTC) - _LOST_WITHIN).replace(tzinfo=None)
    lines: list[str] = []
    for run in _list_runs_of(warehouse, suite.name):
        if run.finished_at is None or run.finished_at <= since or run.run_id in known:
            continue
        if is_gate_due(run):
            event = "had crashed before its gate"
        elif is_night_cut(warehouse, run):
            event = "had crashed before its variants"
        elif is_marked(run):
            event = "was not taken up to its end"
        else:
            continue
        attempts = list_flow_runs(api, suite, tags={"all_": [f"resume {run.run_id}"]})
        if any(flow_run["state_type"] in NOT_ENDED for flow_run in attempts):
            continue
        with _tried_to_hold(warehouse, run.run_id) as is_free:
            pass
        if is_free and is_served(api, suite, run) and queue_resume(api, suite, run.run_id):
            lines.append(f"{suite.name}: run {run.run_id} {event}: it is resumed, {_NOT_AGAIN}")
    return lines


def is_served(api: PrefectApi, suite: ServedSuite, run: RunRow) -> bool:
    """Return whether `evalhouse serve` may resume a run: an evaluation that the suite's deployment has started.

    A run that a command started is left to the person who gave the command.
    """
    if run.kind != "evaluation":
        return False
    return run.trigger != "manual" or _find_flow_run_of(api, suite, run) is not None


def _find_flow_run_of(api: PrefectApi, suite: ServedSuite, run: RunRow) -> Mapping[str, Any] | None:
    """Return the flow run of the suite's deployment that worked on a run last; None for another deployment's."""
    if run.flow_run_id is None:
        return None
    with _unless_unknown():
        flow_run: Mapping[str, Any] = api.get(f"/flow_runs/{run.flow_run_id}")
        if (task_run := flow_run.get("parent_task_run_id")) is not None:
            flow_run = api.get(f"/flow_runs/{api.get(f'/task_runs/{task_run}')['flow_run_id']}")
        if flow_run["deployment_id"] == suite.deployment_id:
            return flow_run
    return None


def is_gate_due(run: RunRow) -> bool:
    """Return whether a run has ended without a decision of its suite's gate."""
    return run.status in ("completed", "incomplete") and run.config.get("gate") is not None and run.gate is None


def has_variants_left(warehouse: Warehouse, run: RunRow) -> bool:
    """Return whether variants of the night of a suite's run have not reached their end."""
    if run.night != run.run_id:
        return False
    runs = list_night_runs(warehouse, run.night, kinds=("evaluation",))
    ended = {of_night.variant for of_night in runs if of_night.status in ("completed", "incomplete")}
    return not ended.issuperset(run.config.get("variants", {}))


def is_night_cut(warehouse: Warehouse, run: RunRow) -> bool:
    """Return whether the process of a suite's run has died before it asked the next variant.

    Variants that were not asked after one that failed are left to a person, as are those for which a budget may be
    spent.
    """
    if run.config.get("budget_usd") is not None or not has_variants_left(warehouse, run):
        return False
    runs = list_night_runs(warehouse, run.run_id, kinds=("evaluation",))
    return all(of_night.status in ("completed", "incomplete") for of_night in runs)


def is_marked(run: RunRow) -> bool:
    """Return whether a run was found crashed, and is resumed."""
    problem = run.problem or ""
    if run.status != "failed" or not problem.startswith(_GONE):
        return False
    return run.trigger != "manual" or _BY_SERVE in problem


def _list_runs_of(warehouse: Warehouse, suite: str) -> list[RunRow]:
    """Return all runs of a suite, newest first; none if the warehouse does not exist yet."""
    try:
        return [run for run in list_runs(warehouse) if run.suite == suite]
    except WarehouseMissing:
        return []


def resume_crashed(api: PrefectApi, suite: ServedSuite, run: RunRow, problem: str) -> str:
    """Queue the resumption of a run that has crashed; return the problem and the result in a sentence.

    The suite's notification is sent for the first crash of a run, and for the last, after which it is left.
    """
    is_first = not list_flow_runs(api, suite, tags={"all_": [f"resume {run.run_id}"]})
    is_queued = queue_resume(api, suite, run.run_id)
    by_hand = f"`evalhouse resume {run.run_id}` tries once more"
    result = f"it was resumed {_MAX_RESUMES} times already and is left; {by_hand}"
    if is_queued:
        result = f"it is resumed, {_NOT_AGAIN}"
    problem = f"{problem}: {result}"
    if suite.notify is not None and (is_first or not is_queued):
        problem = notify_of_crash(suite.notify, suite.name, Warehouse(suite.warehouse_url), run, problem)
    return problem


def queue_resume(api: PrefectApi, suite: ServedSuite, run_id: str) -> bool:
    """Queue a flow run that resumes a run; return False when that has been tried often enough."""
    tag = f"resume {run_id}"
    attempts = list_flow_runs(api, suite, tags={"all_": [tag]})
    if any(flow_run["state_type"] == "SCHEDULED" for flow_run in attempts):
        return True
    if len(attempts) >= _MAX_RESUMES:
        return False
    key, due = f"resume {run_id} {len(attempts) + 1}", _delay(len(attempts))
    create_flow_run(api, suite, {"resume": run_id}, key=key, tags=[tag], due=due)
    return True


def _delay(n_tries: int) -> datetime:
    return datetime.now(UTC) + timedelta(minutes=max(0, n_tries - _AT_ONCE))


def queue_fetching(api: PrefectApi, suite: ServedSuite, run_id: str) -> datetime:
    """Queue a flow run that looks whether the batch of a run has come, later each time; return when it is due."""
    n_looks = len(list_flow_runs(api, suite, tags={"all_": [f"fetch {run_id}"]}))
    due = datetime.now(UTC) + min(_LOOK_FIRST * _LOOK_GROWTH**n_looks, _LOOK_MAX)
    key = f"fetch {run_id} {n_looks + 1}"
    create_flow_run(api, suite, {"resume": run_id}, key=key, tags=[f"fetch {run_id}"], due=due)
    return due


def find_waiting(api: PrefectApi, suite: ServedSuite) -> str | None:
    """Return the run of a suite that waits for its batch and will be resumed; None without such a run."""
    runs = _list_runs_of(Warehouse(suite.warehouse_url), suite.name)
    for run in [run for run in runs if run.kind == "evaluation" and run.trigger != "manual"][:_LATEST]:
        if has_left_batch(run):
            queued = list_flow_runs(api, suite, tags={"all_": [f"fetch {run.run_id}"]})
            if any(flow_run["state_type"] in NOT_ENDED for flow_run in queued):
                return run.run_id
    return None


def has_left_batch(run: RunRow) -> bool:
    """Return whether a run was left because it can do nothing before its batch has come."""
    return run.status == "cancelled" and (run.problem or "").startswith(WAITS)


def find_unanswered(api: PrefectApi, suite: ServedSuite, *, event: str | None = None) -> Announced:
    """Return updates since the suite was first served that no run of it has answered; wait until `event` is visible."""
    if suite.source is None:
        return Announced(updates=(), problems={})
    try:
        warehouse = Warehouse(suite.warehouse_url)
        rows = warehouse.fetch_rows("runs/answered_updates", suite=suite.name, kb_name=suite.source.name)
        answered = frozenset(str(row["event_id"]) for row in rows)
    except WarehouseMissing:
        answered = frozenset()
    deadline = time.monotonic() + _EVENT_PATIENCE_S
    while True:
        announced = fetch_updates(api, suite.source, since=suite.served_since)
        seen = answered.union(update.event_id for update in announced.updates)
        if event is None or event in seen or time.monotonic() > deadline:
            break
        time.sleep(_EVENT_POLL_S)
    updates = tuple(update for update in announced.updates if update.event_id not in answered)
    ids = [update.event_id for update in updates if update.event_id in announced.problems]
    return Announced(updates=updates, problems={event_id: announced.problems[event_id] for event_id in ids})


def put_answered(warehouse: Warehouse, trigger: Trigger, run_id: str) -> None:
    """Store that a run answers the updates that started it.

    Call it when the run is stored and not at its end: a run that crashes is resumed and then answers them, and no
    second run is made for them meanwhile.
    """
    rows = [
        {
            "event_id": update.event_id,
            "kb_name": trigger.kb_name or "",
            "kb_version": update.version,
            "kb_changed": update.changed or None,
            "occurred_at": update.occurred_at,
            "run_id": run_id,
        }
        for update in trigger.updates
    ]
    warehouse.append_rows(f"kb_updates:{run_id}", run_id, {"kb_updates": rows})


def queue_left(api: PrefectApi, suite: ServedSuite, updates: Sequence[Update], trigger: KnowledgeBase | None) -> None:
    """Queue one flow run for updates that a run has left unanswered, if they have waited long enough.

    Otherwise Prefect's trigger still waits for the last of them, and `catch_up` ends its wait. Without a `trigger` (in
    a deployment for work pools) nothing waits.
    """
    if trigger is not None and datetime.now(UTC) < _find_times(updates, trigger)[1]:
        return
    if is_trigger_disabled(api, suite):
        return
    newest = updates[-1].event_id
    create_flow_run(api, suite, {"trigger": "event", "event": newest}, key=f"left {newest}")


def _find_times(updates: Sequence[Update], trigger: KnowledgeBase) -> tuple[datetime, datetime]:
    """Return the end of the quiet time after the last update, and when a run has to begin at the latest."""
    oldest, newest = (updates[place].occurred_at.replace(tzinfo=UTC) for place in (0, -1))
    quiet = newest + timedelta(seconds=trigger.debounce_s)
    return quiet, min(quiet, oldest + timedelta(seconds=trigger.max_total_wait_s))


def catch_up(
    api: PrefectApi, suite: ServedSuite, trigger: KnowledgeBase, *, trigger_is_new: bool = False
) -> str | None:
    """Queue a flow run for updates that have none and have waited long enough; return a line about it.

    Fresh updates are left to Prefect's trigger, unless that is new: Prefect forgets what a trigger was waiting for when
    the suite is registered again. Then their quiet time is kept here.
    """
    if has_event_run(list_flow_runs(api, suite, state={"type": {"any_": NOT_ENDED}})):
        return None
    updates = find_unanswered(api, suite).updates
    if not updates:
        return None
    now, (quiet, due) = datetime.now(UTC), _find_times(updates, trigger)
    if not trigger_is_new:
        # A run should have begun by now. A flow run that began and failed before its run was stored is not tried again
        # for the same updates, nor sooner than updates may wait: it would fail again.
        if now < quiet:
            since, is_late = now - timedelta(seconds=trigger.max_total_wait_s), due <= now
        else:
            since, is_late = updates[-1].occurred_at.replace(tzinfo=UTC), quiet + _TRIGGER_TIME <= now
        if not is_late or has_event_run(list_flow_runs(api, suite, start_time={"after_": since.isoformat()})):
            return None
    if is_trigger_disabled(api, suite):
        return None
    newest = updates[-1].event_id
    key = f"caught up {newest} {now:%Y%m%d%H%M%S}"
    create_flow_run(
        api, suite, {"trigger": "event", "event": newest}, key=key, due=max(now, min(due, now + _MAX_DELAY))
    )
    if due <= now < quiet:
        waited = f"have waited for {trigger.max_total_wait_s:g} s while more came"
        return f"{suite.name}: updates of {trigger.source.name} that {waited}: {len(updates)}; a run is queued"
    return f"{suite.name}: updates of {trigger.source.name} without a run: {len(updates)}; one is queued"
