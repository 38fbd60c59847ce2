"""Updates that no run of a served suite has answered, and when a run for them is due.

Prefect keeps every update as an event, and the warehouse says which of them a run has answered. The difference decides
what a flow run has to do, not the event that started it: so a burst makes one run, an update during a run one more
however many flow runs wait, and what was announced while nobody served is found later.

A run is due when no update has followed for a while, which Prefect's trigger waits for, or when the first of those
without a run has waited for as long as any may: updates that come ever faster than that while would put it off for
good, and no trigger of Prefect's counts from the first. Nothing here imports Prefect.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from evalhouse.flows.preparing.request import Trigger, Update
from evalhouse.flows.preparing.suites import KnowledgeBase
from evalhouse.flows.server.api import PrefectApi
from evalhouse.flows.serving.flow_runs import (
    NOT_ENDED,
    ServedSuite,
    create_flow_run,
    has_event_run,
    list_flow_runs,
    read_updates,
)
from evalhouse.warehouse.errors import WarehouseMissing
from evalhouse.warehouse.rows.runs import KbUpdateRow, append_updates, list_answered
from evalhouse.warehouse.store import Warehouse

# Prefect writes an event some seconds after it has acted on it.
_EVENT_PATIENCE_S = 60.0
_EVENT_POLL_S = 0.5
# How much longer than its quiet time the trigger of an update, and what leads from that to a flow run, may take.
_TRIGGER_TIME: Final = timedelta(seconds=60)
# A sender's clock that is ahead does not put a run off for long.
_AT_MOST: Final = timedelta(days=1)


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    """Updates without a run, oldest first; `problems` are sentences about events that could not be read whole."""

    updates: tuple[Update, ...]
    problems: tuple[str, ...]


def find_unanswered(api: PrefectApi, suite: ServedSuite, *, event: str | None = None) -> Unanswered:
    """Updates since the suite was first served that no run of it has answered; waits until `event` can be seen."""
    if suite.source is None:
        return Unanswered(updates=(), problems=())
    answered = _list_answered(suite, suite.source.name)
    deadline = time.monotonic() + _EVENT_PATIENCE_S
    while True:
        announced = read_updates(api, suite.source, since=suite.served_since)
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


def queue_left(api: PrefectApi, suite: ServedSuite, updates: Sequence[Update], trigger: KnowledgeBase | None) -> None:
    """Queue one flow run for updates that a run has left, and that have waited long enough.

    Of those that have not, Prefect's trigger is still waiting for the last, and `catch_up` sees to it that it does not
    wait for ever. Without a `trigger` (of a deployment for work pools) nothing is known of waiting.
    """
    if trigger is not None and datetime.now(UTC) < _make_waiting(updates, trigger).due:
        return
    newest = updates[-1].event_id
    create_flow_run(api, suite, {"trigger": "event", "event": newest}, key=f"left {newest}")


@dataclass(frozen=True, kw_only=True)
class _Waiting:
    """When the first and the last of some updates came, UTC with a zone, and how long they may wait."""

    oldest: datetime
    newest: datetime
    trigger: KnowledgeBase

    @property
    def quiet(self) -> datetime:
        """When none will have followed for long enough, if none follows."""
        return self.newest + timedelta(seconds=self.trigger.debounce_s)

    @property
    def due(self) -> datetime:
        """When a run has to begin, quiet or not."""
        return min(self.quiet, self.oldest + timedelta(seconds=self.trigger.longest_wait_s))


def _make_waiting(updates: Sequence[Update], trigger: KnowledgeBase) -> _Waiting:
    oldest, newest = (updates[place].occurred_at.replace(tzinfo=UTC) for place in (0, -1))
    return _Waiting(oldest=oldest, newest=newest, trigger=trigger)


def catch_up(
    api: PrefectApi, suite: ServedSuite, trigger: KnowledgeBase, *, trigger_is_new: bool = False
) -> str | None:
    """Queue a flow run for updates that have none and have waited long enough; returns a line that says so.

    Fresh ones are left to Prefect's trigger, unless that is new: Prefect forgets what a trigger was waiting for when
    the suite is registered again. Then their quiet time is kept here.
    """
    if has_event_run(list_flow_runs(api, suite, state={"type": {"any_": NOT_ENDED}})):
        return None
    updates = find_unanswered(api, suite).updates
    if not updates:
        return None
    now, waiting = datetime.now(UTC), _make_waiting(updates, trigger)
    if not trigger_is_new and not _is_overdue(api, suite, waiting, now):
        return None
    newest = updates[-1].event_id
    key = f"caught up {newest} {now:%Y%m%d%H%M%S}"
    due = max(now, min(waiting.due, now + _AT_MOST))
    create_flow_run(api, suite, {"trigger": "event", "event": newest}, key=key, due=due)
    if waiting.due <= now < waiting.quiet:
        waited = f"have waited for {trigger.longest_wait_s:g} s while more came"
        return f"{suite.name}: updates of {trigger.source.name} that {waited}: {len(updates)}; a run is queued"
    return f"{suite.name}: updates of {trigger.source.name} without a run: {len(updates)}; one is queued"


def _is_overdue(api: PrefectApi, suite: ServedSuite, waiting: _Waiting, now: datetime) -> bool:
    """Whether a run should have begun by now. One that began and failed before its run was on record is not tried
    again for the same updates, nor sooner than updates may wait: it would fail again."""
    if now < waiting.quiet:
        since = now - timedelta(seconds=waiting.trigger.longest_wait_s)
        is_late = waiting.due <= now
    else:
        since = waiting.newest
        is_late = waiting.quiet + _TRIGGER_TIME <= now
    return is_late and not has_event_run(list_flow_runs(api, suite, start_time={"after_": since.isoformat()}))


def _list_answered(suite: ServedSuite, kb_name: str) -> frozenset[str]:
    try:
        return list_answered(Warehouse(suite.warehouse_url), suite=suite.name, kb_name=kb_name)
    except WarehouseMissing:
        return frozenset()
