"""`evalhouse serve` from the schedule to the answered update: a real Prefect server, a real bot, real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from serve_house import DOCUMENTS, QUESTIONS, ServeHouse, open_serve_house, soon

from evalhouse.flows.server.api import PrefectApiError

PYTHON = """
from prefect.events import emit_event
emit_event(
    event="knowledge-base.updated",
    resource={"prefect.resource.id": "knowledge-base.python"},
    payload={"version": "v2", "changed": ["lamp.txt#1"]},
)
"""


@dataclass(frozen=True, kw_only=True)
class Night:
    """The serving process and its suites, each named after the way in which updates are announced to it."""

    house: ServeHouse
    ways: tuple[str, ...]


COMMAND, OTHERS = ("command",), ("python", "curl")


@pytest.fixture(scope="module", params=[COMMAND, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=" ".join)
def night(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Night]:
    """Suites that run once on their schedule, and are served on."""
    ways: tuple[str, ...] = request.param
    with open_serve_house(tmp_path_factory.mktemp("serve")) as house:
        for ahead_s in (24, 60, 150):
            due = time.monotonic() + ahead_s
            suites = [house.write_suite(way, cron=soon(ahead_s), kb_name=way) for way in ways]
            house.serve(*suites, parallel=len(ways))
            if time.monotonic() < due - 7:  # Prefect looks for new schedules every five seconds
                break
            house.stop()  # a busy machine was so slow to serve that the time has passed
        yield Night(house=house, ways=ways)


def announce(house: ServeHouse, way: str) -> None:
    environment = house.client.environment()
    match way:
        case "command":
            done = house.client.call("kb-updated", way, "--version", "v2", "--changed", "lamp.txt#1", "--json")
            assert done.status == 0, done.stderr
            assert set(done.document) == {"event_id", "knowledge_base", "version", "changed"}
        case "python":
            subprocess.run([sys.executable, "-c", PYTHON], env=environment, check=True, timeout=60)
        case "curl":
            event = {
                "id": "9b2f3c54-0f0a-4a0e-9d2c-5a7a2f3c1e11",
                "occurred": subprocess.check_output(["date", "-u", "+%Y-%m-%dT%H:%M:%SZ"], text=True).strip(),
                "event": "knowledge-base.updated",
                "resource": {"prefect.resource.id": "knowledge-base.curl"},
                "payload": {"version": "v2", "changed": ["lamp.txt#1"]},
            }
            assert house.auth is not None
            post = ["curl", "-sSf", "-u", house.auth, "--noproxy", "*", "-X", "POST", f"{house.api_url}/events"]
            data = ["-H", "Content-Type: application/json", "-d", json.dumps([event])]
            subprocess.run([*post, *data], check=True, timeout=60)


@pytest.fixture(scope="module")
def scheduled(night: Night) -> Night:
    """The night after every suite has run on its schedule."""
    for way in night.ways:
        night.house.wait_for_runs(way, 1)
    return night


@pytest.fixture(scope="module")
def updated(scheduled: Night) -> Night:
    """The night after a document has changed, each way of announcing it was used, and its run has ended."""
    house = scheduled.house
    house.write_document("lamp.txt", DOCUMENTS["lamp.txt"].replace("green", "red"))
    for way in scheduled.ways:
        announce(house, way)
    for way in scheduled.ways:
        house.wait_for_runs(way, 1, trigger="event")
    return scheduled


def test_introduction_names_server_schedule_and_next_command(night: Night) -> None:
    assert night.house.api_url in night.house.output
    assert "next 20" in night.house.output
    assert f"evalhouse kb-updated {night.ways[0]} --version V --changed ID" in night.house.output


def test_a_suite_runs_on_its_schedule(scheduled: Night) -> None:
    for way in scheduled.ways:
        (run,) = scheduled.house.list_runs(way, "schedule")
        assert (run["suite"], run["n_samples"], run["kb_name"]) == (way, len(QUESTIONS), None)
        (flow_run,) = scheduled.house.list_flow_runs(way)
        assert flow_run["state_type"] == "COMPLETED"
        assert flow_run["name"] == f"{way} {run['run_id']}"


def test_a_run_logs_what_was_made_of_the_columns(scheduled: Night) -> None:
    house = scheduled.house
    (run,) = house.list_runs(scheduled.ways[0], "schedule")
    of_run = {"logs": {"flow_run_id": {"any_": [run["flow_run_id"]]}}}
    house.wait_until(lambda: any("columns: question" in log["message"] for log in house.post("/logs/filter", of_run)))


def test_an_announced_update_leads_to_a_run_that_says_so(updated: Night) -> None:
    for way in updated.ways:
        (run,) = updated.house.list_runs(way, "event")
        assert (run["kb_name"], run["kb_version"], run["kb_changed"]) == (way, "v2", ["lamp.txt#1"])
        assert run["suite_hash"]
        (answered,) = updated.house.query(way, "from kb_updates")
        assert (answered["run_id"], answered["kb_version"]) == (run["run_id"], "v2")


def test_only_what_changed_is_judged_again(updated: Night) -> None:
    house = updated.house
    for way in updated.ways:
        (before,) = house.list_runs(way, "schedule")
        (run,) = house.list_runs(way, "event")
        assert house.count_judged(way, before["run_id"]) == {"asked": set(QUESTIONS), "reused": set()}
        first, second = (house.list_responses(way, one["run_id"]) for one in (before, run))
        changed = {sample_id for sample_id in QUESTIONS if first[sample_id] != second[sample_id]}
        assert "red" in second["lamp"]["answer"]
        assert "tide" not in changed
        assert house.count_judged(way, run["run_id"])["asked"] == changed


def test_prefect_shows_the_run_with_its_page(updated: Night) -> None:
    for way in updated.ways:
        (run,) = updated.house.list_runs(way, "event")
        flow_run = updated.house.list_flow_runs(way)[-1]
        assert flow_run["name"] == f"{way} {run['run_id']}"
        assert run["run_id"] in flow_run["state"]["message"]
        (page,) = updated.house.post("/artifacts/filter", {"flow_runs": {"id": {"any_": [flow_run["id"]]}}})
        assert (page["key"], page["type"]) == (f"suite-{way}", "markdown")
        assert f"evalhouse show {run['run_id']}" in page["data"]
        assert "was updated to version v2, 1 changed document" in page["data"]
        assert run["flow_run_id"] in page["data"]


def test_each_run_is_reported_when_it_starts_and_when_it_ends(updated: Night) -> None:
    house = updated.house
    for way in updated.ways:
        for run in house.list_runs(way):
            house.wait_until(lambda: f"{way}: run {run['run_id']} completed" in house.output)  # noqa: B023
            lines = [line for line in house.output.splitlines() if run["run_id"] in line]
            assert len(lines) == 2, lines


@pytest.mark.parametrize("night", [pytest.param(OTHERS, marks=pytest.mark.slow)], ids=" ".join, indirect=True)
def test_broken_suite_fails_its_flow_run_and_serving_continues(updated: Night) -> None:
    """A gate that is not passed then fails the flow run, and not the run."""
    house, way = updated.house, updated.ways[0]
    house.write_suite(way, kb_name=way, more="judge_ = 1")
    flow_run = start(house, way)
    assert flow_run["state_type"] == "FAILED"
    assert f"{way}.toml, line 4: judge_" in flow_run["state"]["message"]
    house.wait_until(lambda: "judge_" in house.output)
    assert house.list_runs(way, "manual") == []
    house.write_suite(way, kb_name=way, more="[gate.min]\nfactual_f1 = 1.5\n[gate.max_drop]\nmrr = 1")
    flow_run = start(house, way)
    assert flow_run["state_type"] == "FAILED"
    assert "gate failed: " in flow_run["state"]["message"]
    assert [(run["status"], run["gate"]) for run in house.list_runs(way, "manual")] == [("completed", "failed")]


def start(house: ServeHouse, suite: str) -> dict[str, Any]:
    """Start a flow run as a person does in Prefect, and return it when it has ended."""
    (deployment,) = house.post("/deployments/filter", {"deployments": {"name": {"any_": [suite]}}})
    begun = house.post(f"/deployments/{deployment['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
    found: list[dict[str, Any]] = []

    def has_ended() -> bool:
        found[:] = [one for one in house.list_flow_runs(suite) if one["id"] == begun["id"] and one["end_time"]]
        return bool(found)

    house.wait_until(has_ended)
    return found[0]


def test_ctrl_c_ends_it_and_its_server_and_leaves_nothing_behind(updated: Night) -> None:
    """The last test of the module: nothing is served afterwards."""
    assert updated.house.stop() == 0
    assert "stopping; no run is in progress" in updated.house.output
    assert updated.house.output.splitlines()[-1].endswith("stopping; no run is in progress")
    assert "Traceback" not in updated.house.output
    with pytest.raises(PrefectApiError, match="cannot be asked"):
        updated.house.post("/flow_runs/filter", {})
