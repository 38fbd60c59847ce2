"""A suite as Prefect's API knows it: its deployment, its flow runs, and updates of its knowledge base or its asset
as events.

An event may come from anybody who can reach the server, in any language, so nothing in it but its id and its time,
which Prefect has checked, is taken for granted. Nothing here imports Prefect.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, quote, urlsplit

from evalhouse.flows.preparing.request import Update
from evalhouse.flows.preparing.suites import UpdateSource, make_kb_source
from evalhouse.flows.server.api import PrefectApi
from evalhouse.warehouse.messages import cut

if TYPE_CHECKING:
    from evalhouse.flows.preparing.suites import Suite

# Prefect keeps events for a week unless it is set otherwise; this bounds the search where they are kept for good.
WINDOW: Final = timedelta(days=30)
# A sender's clock may be ahead of ours.
_AHEAD: Final = timedelta(days=1)
# Four beats missed: a machine that was busy for a minute has not crashed.
SILENCE: Final = timedelta(seconds=120)
NOT_ENDED: Final = ("SCHEDULED", "PENDING", "RUNNING")
ENDED: Final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
_PAGE = 50
_MOST_CHANGED = 100_000
_LONGEST_TEXT = 1_000


@dataclass(frozen=True, kw_only=True)
class ServedSuite:
    """A suite's name, what starts it by its updates, its deployment, and where its runs are kept.

    `served_since`, when it was first registered, is UTC without a zone."""

    name: str
    source: UpdateSource | None
    deployment_id: str
    served_since: datetime
    warehouse_url: str


def read_served_suite(api: PrefectApi, deployment_id: str, suite: "Suite", *, warehouse_url: str) -> ServedSuite:
    """The suite of a deployment that is registered."""
    created = datetime.fromisoformat(api.get(f"/deployments/{deployment_id}")["created"].replace("Z", "+00:00"))
    return ServedSuite(
        name=suite.name,
        source=suite.trigger.source if suite.trigger else None,
        deployment_id=deployment_id,
        served_since=created.astimezone(UTC).replace(tzinfo=None),
        warehouse_url=warehouse_url,
    )


def name_flow_run(suite: str, run_id: str) -> str:
    """What a flow run is called as soon as its run is on record; `find_named_run` reads it back."""
    return f"{suite} {run_id}"


def find_named_run(flow_run: Mapping[str, Any], suite: str) -> str | None:
    """The run that a flow run works on; None when none is on record yet."""
    name, prefix = str(flow_run["name"]), f"{suite} "
    return name.removeprefix(prefix) if name.startswith(prefix) else None


def list_flow_runs(api: PrefectApi, suite: ServedSuite, **conditions: object) -> list[Mapping[str, Any]]:
    """Flow runs of a suite's deployment by Prefect's filter for flow runs, at most 200."""
    body = {"deployments": {"id": {"any_": [suite.deployment_id]}}, "flow_runs": conditions, "limit": 200}
    flow_runs: list[Mapping[str, Any]] = api.post("/flow_runs/filter", body)
    return flow_runs


def has_event_run(flow_runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of these flow runs answers updates."""
    return any(flow_run["parameters"].get("trigger") == "event" for flow_run in flow_runs)


def find_last_sign(api: PrefectApi, flow_run: Mapping[str, Any]) -> datetime:
    """When the process of a flow run, or the server for it, last did anything: changed its state, or sent a heartbeat.

    UTC, with a zone."""
    conditions = {"resource": {"id": [f"prefect.flow-run.{flow_run['id']}"]}, "order": "DESC"}
    events = api.post("/events/filter", {"filter": conditions, "limit": 1})["events"]
    signs = [flow_run["state"]["timestamp"], *(event["occurred"] for event in events)]
    return max(datetime.fromisoformat(sign.replace("Z", "+00:00")).astimezone(UTC) for sign in signs)


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
    """What the events of one knowledge base say, oldest first; `problems` says by event id what could not be read."""

    updates: tuple[Update, ...]
    problems: Mapping[str, str]


def make_event(kb_name: str, *, version: str | None, changed: Sequence[str]) -> dict[str, Any]:
    """An update that happens now, as Prefect's API takes it."""
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
    """Announce an update to the server; returns the event's id."""
    event = make_event(kb_name, version=version, changed=changed)
    api.post("/events", [event])
    return str(event["id"])


def read_updates(api: PrefectApi, source: UpdateSource, *, since: datetime | None = None) -> Announced:
    """All updates that the server has kept, not older than `WINDOW` and `since` (UTC, no zone)."""
    now = datetime.now(UTC)
    start = max(now - WINDOW, since.replace(tzinfo=UTC)) if since else now - WINDOW
    updates: dict[str, Update] = {}
    problems: dict[str, str] = {}
    for event in _read_events(api, source, start, now + _AHEAD):
        update, problem = read_update(event)
        updates[update.event_id] = update
        if problem:
            problems[update.event_id] = f"update {update.event_id} of {source.name}: {problem}"
    ordered = sorted(updates.values(), key=lambda update: (update.occurred_at, update.event_id))
    return Announced(updates=tuple(ordered), problems=problems)


def read_update(event: Mapping[str, Any]) -> tuple[Update, str | None]:
    """An event as an update, and what of its payload could not be read."""
    payload = event.get("payload")
    payload = payload if isinstance(payload, dict) else {}
    version, version_problem = _read_version(payload.get("version"))
    changed, changed_problem = _read_changed(payload.get("changed"))
    problems = [problem for problem in (version_problem, changed_problem) if problem]
    occurred = datetime.fromisoformat(str(event["occurred"]).replace("Z", "+00:00"))
    update = Update(
        event_id=str(event["id"]),
        version=version,
        changed=changed,
        occurred_at=occurred.astimezone(UTC).replace(tzinfo=None),
    )
    return update, "; ".join(problems) or None


def _read_events(api: PrefectApi, source: UpdateSource, start: datetime, end: datetime) -> Iterator[Mapping[str, Any]]:
    conditions = {
        "occurred": {"since": start.isoformat(), "until": end.isoformat()},
        "event": {"name": [source.event]},
        "resource": {"id": [source.resource]},
        "order": "ASC",
    }
    page = api.post("/events/filter", {"filter": conditions, "limit": _PAGE})
    while True:
        yield from page["events"]
        # The link names the host as the server sees itself, which need not be where we reach it.
        token = parse_qs(urlsplit(page.get("next_page") or "").query).get("page-token")
        if not token:
            return
        page = api.get(f"/events/filter/next?page-token={quote(token[0], safe='')}")


def _read_version(value: object) -> tuple[str | None, str | None]:
    if value is None:
        return None, None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None, f"its version is not a text but {_show(value)}, and is left out"
    text = str(value).strip()
    if len(text) > _LONGEST_TEXT:
        return text[:_LONGEST_TEXT], f"its version is longer than {_LONGEST_TEXT} characters, and is cut"
    return text or None, None


def _read_changed(value: object) -> tuple[tuple[str, ...], str | None]:
    if value is None:
        return (), None
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list):
        return (), f"its changed ids are not a list but {_show(value)}, and are left out"
    plain = [str(item) for item in items if isinstance(item, str | int) and not isinstance(item, bool)]
    usable = [item for item in plain if 0 < len(item) <= _LONGEST_TEXT][:_MOST_CHANGED]
    left_out = len(items) - len(usable)
    problem = f"{left_out} of its {len(items)} changed ids are not texts, or too many, and are left out"
    return tuple(dict.fromkeys(usable)), problem if left_out else None


def _show(value: object) -> str:
    return cut(json.dumps(value, ensure_ascii=False), 60)
