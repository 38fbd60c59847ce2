"""A suite as Prefect knows it: its deployment, and its flow runs, which are queued here and named after their run.

Nothing here imports Prefect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from evalhouse.flows.server.api import PrefectApi


@dataclass(frozen=True, kw_only=True)
class ServedSuite:
    """A suite's name, the knowledge base whose updates start it, its deployment, and where its runs are kept.

    `served_since`, when it was first registered, is UTC without a zone."""

    name: str
    kb_name: str | None
    deployment_id: str
    served_since: datetime
    warehouse_url: str


def read_served_suite(
    api: PrefectApi, deployment_id: str, *, name: str, kb_name: str | None, warehouse_url: str
) -> ServedSuite:
    """The suite of a deployment that is registered."""
    created = datetime.fromisoformat(api.get(f"/deployments/{deployment_id}")["created"].replace("Z", "+00:00"))
    return ServedSuite(
        name=name,
        kb_name=kb_name,
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
    found: list[Mapping[str, Any]] = api.post("/flow_runs/filter", body)
    return found


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
