"""Which updates of a knowledge base a suite has still to answer.

Prefect keeps every update as an event, and the warehouse says which of them a run has answered. The difference decides
what a flow run has to do, not the event that started it: so a burst makes one run, an update during a run one more
however many flow runs wait, and what was announced while nobody served is found later. Nothing here imports Prefect.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from evalhouse.flows.preparing.triggers import Trigger, Update
from evalhouse.flows.server.api import PrefectApi
from evalhouse.flows.serving.flow_runs import ServedSuite, create_flow_run, list_flow_runs
from evalhouse.flows.serving.kb_events import read_updates
from evalhouse.warehouse.errors import WarehouseMissing
from evalhouse.warehouse.rows.kb_updates import KbUpdateRow, append_updates, list_answered
from evalhouse.warehouse.store import Warehouse

# Prefect writes an event some seconds after it has acted on it.
_EVENT_PATIENCE_S = 60.0
_EVENT_POLL_S = 0.5
# How much longer than its quiet time the trigger of an update, and what leads from that to a flow run, may take.
_TRIGGER_TIME: Final = timedelta(seconds=60)
# A sender's clock that is ahead does not put a run off for long.
_AT_MOST: Final = timedelta(days=1)
_NOT_ENDED = ["SCHEDULED", "PENDING", "RUNNING"]


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """Updates without a run, oldest first; `problems` are sentences about events that could not be read whole."""

    updates: tuple[Update, ...]
    problems: tuple[str, ...]


def find_unanswered(api: PrefectApi, suite: ServedSuite, *, event: str | None = None) -> Unanswered:
    """Updates since the suite was first served that no run of it has answered; waits until `event` can be seen."""
    if suite.kb_name is None:
        return Unanswered(updates=(), problems=())
    answered = _list_answered(suite, suite.kb_name)
    deadline = time.monotonic() + _EVENT_PATIENCE_S
    while True:
        announced = read_updates(api, suite.kb_name, since=suite.served_since)
        seen = answered.union(update.event_id for update in announced.updates)
        if event is None or event in seen or time.monotonic() > deadline:
            break
        time.sleep(_EVENT_POLL_S)
    updates = tuple(update for update in announced.updates if update.event_id not in answered)
    problems = [announced.problems[update.event_id] for update in updates if update.event_id in announced.problems]
    return Unanswered(updates=updates, problems=tuple(problems))


def put_answered(warehouse: Warehouse, trigger: Trigger, run_id: str) -> None:
    """Put on record that a run answers the updates that started it.

    That is done when the run is on record and not at its end: one that crashes is resumed and then answers them, with
    what it had asked already, and no second run is made for them meanwhile.
    """
    rows = [
        KbUpdateRow(
            event_id=update.event_id,
            kb_name=trigger.kb_name or "",
            kb_version=update.version,
            kb_changed=update.changed or None,
            occurred_at=update.occurred_at,
            run_id=run_id,
        )
        for update in trigger.updates
    ]
    if rows:
        append_updates(warehouse, rows, run_id)


def queue_left(api: PrefectApi, suite: ServedSuite, updates: Sequence[Update]) -> None:
    """Queue one flow run for updates that have none of their own."""
    newest = updates[-1].event_id
    create_flow_run(api, suite, {"trigger": "event", "event": newest}, key=f"left {newest}")


def catch_up(api: PrefectApi, suite: ServedSuite, *, quiet_s: float, trigger_is_new: bool = False) -> int:
    """Queue a flow run for updates that have none; returns how many updates there are.

    Fresh ones are left to their trigger, unless that is new: Prefect forgets what a trigger was waiting for when the
    suite is registered again. Then their quiet time is kept here.
    """
    waiting = list_flow_runs(api, suite, state={"type": {"any_": _NOT_ENDED}})
    if any(one["parameters"].get("trigger") == "event" for one in waiting):
        return 0
    updates = find_unanswered(api, suite).updates
    if not updates:
        return 0
    newest, now = updates[-1], datetime.now(UTC)
    due = newest.occurred_at.replace(tzinfo=UTC) + timedelta(seconds=quiet_s)
    if not trigger_is_new and (now < due + _TRIGGER_TIME or _was_tried(api, suite, newest)):
        return 0
    parameters = {"trigger": "event", "event": newest.event_id}
    key = f"caught up {newest.event_id} {now:%Y%m%d%H%M%S}"
    create_flow_run(api, suite, parameters, key=key, due=max(now, min(due, now + _AT_MOST)))
    return len(updates)


def _was_tried(api: PrefectApi, suite: ServedSuite, newest: Update) -> bool:
    """Whether a flow run for updates has begun since; one that failed before its run was on record would fail again."""
    begun = list_flow_runs(api, suite, start_time={"after_": newest.occurred_at.replace(tzinfo=UTC).isoformat()})
    return any(one["parameters"].get("trigger") == "event" for one in begun)


def _list_answered(suite: ServedSuite, kb_name: str) -> frozenset[str]:
    try:
        return list_answered(Warehouse(suite.warehouse_url), suite=suite.name, kb_name=kb_name)
    except WarehouseMissing:
        return frozenset()
