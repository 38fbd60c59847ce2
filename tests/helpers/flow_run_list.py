"""Prefect's API as far as flow runs and events are concerned: two lists in memory that its filters narrow."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from evalhouse.flows.preparing.suites import make_kb_source
from evalhouse.flows.server.api import PrefectApi, PrefectApiError
from evalhouse.flows.serving.flow_runs import ServedSuite
from evalhouse.warehouse.store import Warehouse


class Api(PrefectApi):
    """Prefect's API as far as crashed runs are concerned: flow runs in a list, which the filters narrow."""

    def __init__(self, *flow_runs: dict[str, Any]) -> None:
        self.flow_runs = list(flow_runs)
        self.created: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.automations: list[dict[str, Any]] = []

    def get(self, path: str) -> Any:  # noqa: ANN401
        if path.startswith("/automations/related-to/"):
            return self.automations
        kind, key = path.split("/")[1:]
        if kind == "task_runs":  # named here after the flow run that they are in
            return {"flow_run_id": key}
        found = [one for one in self.flow_runs if one["id"] == key]
        if not found:
            raise PrefectApiError(f"{path} is unknown", status=404)
        return found[0]

    def post(self, path: str, body: Any) -> Any:  # noqa: ANN401
        match path.split("/")[1:]:
            case ["flow_runs", "filter"]:
                served = [one for one in self.flow_runs if one["deployment_id"] in body["deployments"]["id"]["any_"]]
                return [one for one in served if _fits(one, body["flow_runs"])]
            case ["flow_runs", flow_run_id, "set_state"]:
                found = self.get(f"/flow_runs/{flow_run_id}")
                found["state_type"] = body["state"]["type"]
                return None
            case ["deployments", _, "create_flow_run"]:
                self.created.append(body)
                made = make_flow_run(str(len(self.flow_runs)), "SCHEDULED")
                self.flow_runs.append(made | {"tags": body["tags"], "parameters": body["parameters"]})
                return None
            case ["events", "filter"]:
                return {"events": self.events, "next_page": None}
        raise AssertionError(path)

    def patch(self, path: str, body: Any) -> Any:  # noqa: ANN401
        self.get(path).update(body)


def _fits(flow_run: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    if "tags" in conditions:
        return set(conditions["tags"]["all_"]) <= set(flow_run["tags"])
    if "start_time" in conditions:
        return bool(flow_run["start_time"]) and flow_run["start_time"] > conditions["start_time"]["after_"]
    if flow_run["expected_start_time"] < conditions.get("expected_start_time", {"after_": ""})["after_"]:
        return False
    return flow_run["state_type"] in conditions["state"]["type"]["any_"]


def make_flow_run(key: str, state: str, *, since: datetime | None = None, **values: Any) -> dict[str, Any]:  # noqa: ANN401
    """A flow run of the deployment `d1` as Prefect's API has it, in its state `since` then."""
    now = datetime.now(UTC)
    row = {"id": key, "name": "sly-fox", "state_type": state, "tags": [], "parameters": {}, "start_time": None}
    row["state"] = {"timestamp": (since or now).isoformat()}
    return row | {"deployment_id": "d1", "expected_start_time": now.isoformat()} | values


def make_served(warehouse: Warehouse, kb_name: str | None = None) -> ServedSuite:
    return ServedSuite(
        name="nightly",
        source=make_kb_source(kb_name) if kb_name else None,
        deployment_id="d1",
        served_since=datetime(2026, 1, 1),
        warehouse_url=warehouse.location.url,
    )


def make_update(event_id: str, at: datetime) -> dict[str, Any]:
    return {"id": event_id, "occurred": at.replace(tzinfo=UTC).isoformat(), "payload": {}}
