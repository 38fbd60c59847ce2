"""A suite as Prefect's API knows it: its deployment, its flow runs and their deletion, and updates as events.

Anyone who can reach the server may send an event, in any language, so only its id and its time, which Prefect has
checked, are taken for granted. With a flow run Prefect deletes its task runs, states and logs; artifacts and flow runs
that were started within it stay, so they are deleted before it. Nothing here imports Prefect at the top.
"""

import json
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote, urlsplit
from zoneinfo import ZoneInfo

from evalhouse.flows.preparing.request import Update
from evalhouse.flows.preparing.suites import KB_RESOURCE, UpdateSource, make_kb_source
from evalhouse.flows.results.output import write_count
from evalhouse.flows.server.api import TAG, PrefectApi, PrefectApiError, tag_run
from evalhouse.tasks.settings.suite import NEVER, Notify, find_cutoff
from evalhouse.warehouse.messages import cut

if TYPE_CHECKING:
    from evalhouse.flows.preparing.suites import Suite

# Prefect keeps events for a week unless it is set otherwise; this bounds the search where they are kept for good.
WINDOW: Final = timedelta(days=30)
# A sender's clock may be ahead of this one.
_AHEAD: Final = timedelta(days=1)
# Four beats missed: a machine that was busy for a minute has not crashed.
SILENCE: Final = timedelta(seconds=120)
# In a work pool a machine or a container has to start before a flow run does. After as long Prefect itself gives the
# deployment's one slot away.
START_TIME: Final = timedelta(seconds=300)
NOT_ENDED: Final = ("SCHEDULED", "PENDING", "RUNNING")
ENDED: Final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
_PAGE = 50
_MAX_CHANGED = 100_000
_MAX_TEXT = 1_000
# Flow runs a step, so that a running evaluation does not wait long for the database.
_A_STEP = 10
# As many as Prefect lists at once.
_HISTORY_PAGE = 200
_REST_S: Final = 86_400.0
# The shortest that Prefect allows.
HEARTBEAT_S: Final = 30


@dataclass(frozen=True, kw_only=True)
class ServedSuite:
    """A suite's name, the source of updates that start it, its deployment, warehouse and notification.

    `served_since`, when it was first registered, is UTC without a zone.
    """

    name: str
    source: UpdateSource | None
    deployment_id: str
    served_since: datetime
    warehouse_url: str
    notify: Notify | None = None


def fetch_served_suite(api: PrefectApi, deployment_id: str, suite: "Suite", *, warehouse_url: str) -> ServedSuite:
    """Return the suite of a registered deployment."""
    created = datetime.fromisoformat(api.get(f"/deployments/{deployment_id}")["created"].replace("Z", "+00:00"))
    return ServedSuite(
        name=suite.name,
        source=suite.trigger.source if suite.trigger else None,
        deployment_id=deployment_id,
        served_since=created.astimezone(UTC).replace(tzinfo=None),
        warehouse_url=warehouse_url,
        notify=suite.notify,
    )


async def list_fires(cron: str, timezone: str, *, n: int, after: datetime) -> list[datetime]:
    """Return the next times at which Prefect fires a schedule, in its time zone; `after` has a zone."""
    # Prefect may be imported only when the server's address is known.
    from prefect.server.schemas.schedules import CronSchedule  # noqa: PLC0415

    zone = ZoneInfo(timezone)
    dates = await CronSchedule(cron=cron, timezone=timezone).get_dates(n, after)
    return [date.astimezone(zone) for date in dates]


def name_flow_run(suite: str, run_id: str) -> str:
    """Return the name of a flow run from when its run is stored; `find_named_run` parses it."""
    return f"{suite} {run_id}"


def find_named_run(flow_run: Mapping[str, Any], suite: str) -> str | None:
    """Return the run that a flow run works on; None before the run is stored."""
    name, prefix = str(flow_run["name"]), f"{suite} "
    return name.removeprefix(prefix) if name.startswith(prefix) else None


def list_flow_runs(api: PrefectApi, suite: ServedSuite, **conditions: object) -> list[Mapping[str, Any]]:
    """Return flow runs of a suite's deployment by Prefect's filter for flow runs, at most 200."""
    body = {"deployments": {"id": {"any_": [suite.deployment_id]}}, "flow_runs": conditions, "limit": 200}
    flow_runs: list[Mapping[str, Any]] = api.post("/flow_runs/filter", body)
    return flow_runs


def has_event_run(flow_runs: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether one of these flow runs answers updates."""
    return any(flow_run["parameters"].get("trigger") == "event" for flow_run in flow_runs)


def create_flow_run(
    api: PrefectApi,
    suite: ServedSuite,
    parameters: Mapping[str, object],
    *,
    key: str,
    tags: Sequence[str] = (),
    due: datetime | None = None,
) -> None:
    """Queue a flow run of a suite's deployment, for now or when it is `due`; the same key twice makes one."""
    due = due or datetime.now(UTC)
    body = {
        "parameters": dict(parameters),
        "idempotency_key": f"evalhouse {key}",
        "tags": list(tags),
        "state": {
            "type": "SCHEDULED",
            "name": "Scheduled",
            "state_details": {"scheduled_time": due.astimezone(UTC).isoformat()},
        },
    }
    api.post(f"/deployments/{suite.deployment_id}/create_flow_run", body)


@dataclass(frozen=True, kw_only=True)
class Announced:
    """The updates of one knowledge base, oldest first; `problems` has by event id what could not be read."""

    updates: tuple[Update, ...]
    problems: Mapping[str, str]


def make_event(kb_name: str, *, version: str | None, changed: Sequence[str]) -> dict[str, Any]:
    """Return an update that happens now, as Prefect's API takes it."""
    source = make_kb_source(kb_name)
    payload = {"version": version, "changed": list(changed) or None}
    return {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": source.event,
        "resource": {"prefect.resource.id": source.resource, "prefect.resource.name": source.name},
        "payload": {name: value for name, value in payload.items() if value is not None},
    }


def announce_update(api: PrefectApi, kb_name: str, *, version: str | None, changed: Sequence[str]) -> str:
    """Announce an update to the server; return the event's id."""
    event = make_event(kb_name, version=version, changed=changed)
    api.post("/events", [event])
    return str(event["id"])


def name_trigger(suite: str, source: UpdateSource) -> str:
    """Return the name of the automation by which updates start a suite."""
    return f"{suite}: {source.name} was updated"


def list_automations(api: PrefectApi, deployment_id: str) -> dict[str, bool]:
    """Return whether each automation that concerns a deployment is enabled, by its name."""
    automations = api.get(f"/automations/related-to/prefect.deployment.{deployment_id}")
    return {str(automation["name"]): bool(automation["enabled"]) for automation in automations}


def is_trigger_disabled(api: PrefectApi, suite: ServedSuite) -> bool:
    """Return whether a person has disabled the automation by which updates start a suite: they wait for it."""
    if suite.source is None:
        return False
    return not list_automations(api, suite.deployment_id).get(name_trigger(suite.name, suite.source), True)


def list_awaited(api: PrefectApi) -> set[str]:
    """Return the names of the knowledge bases that an enabled automation waits for."""
    names: set[str] = set()
    for automation in api.post("/automations/filter", {}):
        resource = (automation["trigger"].get("match") or {}).get("prefect.resource.id")
        for name in [resource] if isinstance(resource, str) else resource or []:
            if automation["enabled"] and name.startswith(KB_RESOURCE):
                names.add(name.removeprefix(KB_RESOURCE))
    return names


def fetch_updates(api: PrefectApi, source: UpdateSource, *, since: datetime | None = None) -> Announced:
    """Return all updates that the server has kept, not older than `WINDOW` and `since` (UTC, no zone)."""
    now = datetime.now(UTC)
    start = max(now - WINDOW, since.replace(tzinfo=UTC)) if since else now - WINDOW
    conditions = {
        "occurred": {"since": start.isoformat(), "until": (now + _AHEAD).isoformat()},
        "event": {"name": [source.event]},
        "resource": {"id": [source.resource]},
        "order": "ASC",
    }
    updates: dict[str, Update] = {}
    problems: dict[str, str] = {}
    page = api.post("/events/filter", {"filter": conditions, "limit": _PAGE})
    while True:
        for event in page["events"]:
            update, problem = parse_update(event)
            updates[update.event_id] = update
            if problem:
                problems[update.event_id] = f"update {update.event_id} of {source.name}: {problem}"
        # The link names the host as the server sees itself, which need not be its address from here.
        token = parse_qs(urlsplit(page.get("next_page") or "").query).get("page-token")
        if not token:
            break
        page = api.get(f"/events/filter/next?page-token={quote(token[0], safe='')}")
    ordered = sorted(updates.values(), key=lambda update: (update.occurred_at, update.event_id))
    return Announced(updates=tuple(ordered), problems=problems)


def parse_update(event: Mapping[str, Any]) -> tuple[Update, str | None]:
    """Return an event as an update, and a sentence about parts of its payload that could not be read."""
    payload = event.get("payload")
    payload = payload if isinstance(payload, dict) else {}
    problems = []

    version, text = payload.get("version"), None
    if version is not None and (isinstance(version, bool) or not isinstance(version, str | int | float)):
        shown = cut(json.dumps(version, ensure_ascii=False), 60)
        problems.append(f"its version is not a text but {shown}, and is left out")
    elif version is not None:
        text = str(version).strip()
        if len(text) > _MAX_TEXT:
            problems.append(f"its version is longer than {_MAX_TEXT} characters, and is cut")
        text = text[:_MAX_TEXT] or None

    changed = payload.get("changed")
    items = [] if changed is None else [changed] if isinstance(changed, str) else changed
    if not isinstance(items, list):
        shown = cut(json.dumps(changed, ensure_ascii=False), 60)
        problems.append(f"its changed ids are not a list but {shown}, and are left out")
        items = []
    plain = [str(item) for item in items if isinstance(item, str | int) and not isinstance(item, bool)]
    ids = [item for item in plain if 0 < len(item) <= _MAX_TEXT][:_MAX_CHANGED]
    if left_out := len(items) - len(ids):
        problems.append(f"{left_out} of its {len(items)} changed ids are not texts, or too many, and are left out")

    occurred = datetime.fromisoformat(str(event["occurred"]).replace("Z", "+00:00"))
    update = Update(
        event_id=str(event["id"]),
        version=text,
        changed=tuple(dict.fromkeys(ids)),
        occurred_at=occurred.astimezone(UTC).replace(tzinfo=None),
    )
    return update, "; ".join(problems) or None


class HistoryLimit:
    """Deletes what is older than each suite's age, a few flow runs a step, once a day until none is left."""

    def __init__(self, api: PrefectApi, suites: Sequence[tuple[ServedSuite, str]]) -> None:
        self._api = api
        self._suites = [(suite, age) for suite, age in suites if age != NEVER]
        self._n_deleted: Counter[str] = Counter()
        self._due = time.monotonic()

    def step(self) -> list[str]:
        """Do what is due; return a line when the day's work is done, and one when an error postpones it by a day."""
        if not self._suites or time.monotonic() < self._due:
            return []
        try:
            for suite, age in self._suites:
                n_deleted = delete_old(self._api, suite, before=find_cutoff(age, datetime.now(UTC)))
                self._n_deleted[suite.name] += n_deleted
                if n_deleted:
                    return []
        except PrefectApiError as error:
            self._due = time.monotonic() + _REST_S
            return [f"Prefect's history is not cut before tomorrow: {' '.join(str(error).split())}"]
        self._due = time.monotonic() + _REST_S
        counts = [
            f"{suite.name} {write_count(self._n_deleted[suite.name], 'flow run')} older than {age}"
            for suite, age in self._suites
            if self._n_deleted[suite.name]
        ]
        self._n_deleted.clear()
        return [f"deleted from Prefect's history: {', '.join(counts)}"] if counts else []


def delete_old(api: PrefectApi, suite: ServedSuite, *, before: datetime) -> int:
    """Delete some flow runs of a suite that ended before a time with a zone; return how many, 0 when none is left."""
    ended = {"state": {"type": {"any_": ENDED}}, "end_time": {"before_": before.isoformat()}}
    flow_runs = list_flow_runs(api, suite, **ended)[:_A_STEP]
    for flow_run in flow_runs:
        roots = [str(flow_run["id"])]
        if run_id := find_named_run(flow_run, suite.name):
            # Parts in a work pool are flow runs of another deployment.
            of_run = {"tags": {"all_": [TAG, tag_run(run_id)]}, **ended}
            roots = [*_list_ids(api, "/flow_runs/filter", {"flow_runs": of_run}), *roots]
        for root in roots:
            _delete_tree(api, root)
    return len(flow_runs)


def _delete_tree(api: PrefectApi, flow_run_id: str) -> None:
    """Delete a flow run, after its artifacts and what was started within it; an interrupted deletion is repeated."""
    # Flow runs of a deployment within it are kept: they may be the record of another user.
    children = {"parent_flow_run_id": {"any_": [flow_run_id]}, "deployment_id": {"is_null_": True}}
    for child_id in _list_ids(api, "/flow_runs/filter", {"flow_runs": children}):
        _delete_tree(api, child_id)
    artifacts = _list_ids(api, "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [flow_run_id]}}})
    for path in [*(f"/artifacts/{artifact_id}" for artifact_id in artifacts), f"/flow_runs/{flow_run_id}"]:
        try:
            api.delete(path)
        except PrefectApiError as error:
            if error.status != 404:  # another process has deleted it, or this request when it was sent before
                raise


def _list_ids(api: PrefectApi, path: str, conditions: Mapping[str, object]) -> list[str]:
    ids: list[str] = []
    while True:
        rows = api.post(path, {**conditions, "limit": _HISTORY_PAGE, "offset": len(ids)})
        ids += [str(row["id"]) for row in rows]
        if len(rows) < _HISTORY_PAGE:
            return ids
