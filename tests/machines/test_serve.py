"""`evalhouse serve` from the schedule to the answered update: a real Prefect server, a real bot, real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serve_house import DOCUMENTS, QUESTIONS, ServeHouse, open_serve_house

from evalhouse.flows.server.api import PrefectApiError

SUITE = "nightly"


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeHouse]:
    with open_serve_house(tmp_path_factory.mktemp("serve")) as house:
        house.serve(house.write_suite(SUITE, cron="0 3 * * *", kb_name=SUITE))
        yield house


@pytest.fixture(scope="module")
def scheduled(night: ServeHouse) -> ServeHouse:
    """The house after its suite has run on its schedule: what Prefect makes of one is made here, and due at once.

    A schedule that comes is awaited in test_serve_batches.py."""
    (deployment,) = night.post("/deployments/filter", {"deployments": {"name": {"any_": [SUITE]}}})
    due = {"tags": ["auto-scheduled"], "parameters": deployment["parameters"], "state": {"type": "SCHEDULED"}}
    night.post(f"/deployments/{deployment['id']}/create_flow_run", due)
    night.wait_for_runs(SUITE, 1)
    return night


@pytest.fixture(scope="module")
def updated(scheduled: ServeHouse) -> ServeHouse:
    """The house after a document has changed, this was announced, and the run for it has ended."""
    scheduled.write_document("lamp.txt", DOCUMENTS["lamp.txt"].replace("green", "red"))
    done = scheduled.client.call("kb-updated", SUITE, "--version", "v2", "--changed", "lamp.txt#1", "--json")
    assert done.status == 0, done.stderr
    assert set(done.document) == {"event_id", "knowledge_base", "version", "changed"}
    scheduled.wait_for_runs(SUITE, 1, trigger="event")
    return scheduled


@pytest.mark.slow
def test_introduction_names_server_schedule_and_next_command(night: ServeHouse) -> None:
    assert night.api_url in night.output
    assert "next 20" in night.output
    assert f"evalhouse kb-updated {SUITE} --version V --changed ID" in night.output


def test_a_suite_runs_on_its_schedule_and_logs_what_was_made_of_the_columns(scheduled: ServeHouse) -> None:
    (run,) = scheduled.list_runs(SUITE, "schedule")
    assert (run["suite"], run["n_samples"], run["kb_name"]) == (SUITE, len(QUESTIONS), None)
    (flow_run,) = scheduled.list_flow_runs(SUITE)
    assert flow_run["state_type"] == "COMPLETED"
    assert flow_run["name"] == f"{SUITE} {run['run_id']}"
    of_run = {"logs": {"flow_run_id": {"any_": [run["flow_run_id"]]}}}
    scheduled.wait_until(
        lambda: any("columns: question" in log["message"] for log in scheduled.post("/logs/filter", of_run))
    )


@pytest.mark.slow
def test_an_announced_update_leads_to_a_run_that_says_so(updated: ServeHouse) -> None:
    (run,) = updated.list_runs(SUITE, "event")
    assert (run["kb_name"], run["kb_version"], run["kb_changed"]) == (SUITE, "v2", ["lamp.txt#1"])
    assert run["suite_hash"]
    (answered,) = updated.query(SUITE, "from kb_updates")
    assert (answered["run_id"], answered["kb_version"]) == (run["run_id"], "v2")


@pytest.mark.slow
def test_only_what_changed_is_judged_again(updated: ServeHouse) -> None:
    (before,) = updated.list_runs(SUITE, "schedule")
    (run,) = updated.list_runs(SUITE, "event")
    assert updated.count_judged(SUITE, before["run_id"]) == {"asked": set(QUESTIONS), "reused": set()}
    first, second = (updated.list_responses(SUITE, one["run_id"]) for one in (before, run))
    changed = {sample_id for sample_id in QUESTIONS if first[sample_id] != second[sample_id]}
    assert "red" in second["lamp"]["answer"]
    assert "tide" not in changed
    assert updated.count_judged(SUITE, run["run_id"])["asked"] == changed


@pytest.mark.slow
def test_prefect_shows_the_run_with_its_page(updated: ServeHouse) -> None:
    (run,) = updated.list_runs(SUITE, "event")
    flow_run = updated.list_flow_runs(SUITE)[-1]
    assert flow_run["name"] == f"{SUITE} {run['run_id']}"
    assert run["run_id"] in flow_run["state"]["message"]
    (page,) = updated.post("/artifacts/filter", {"flow_runs": {"id": {"any_": [flow_run["id"]]}}})
    assert (page["key"], page["type"]) == (f"suite-{SUITE}", "markdown")
    assert f"evalhouse show {run['run_id']}" in page["data"]
    assert "was updated to version v2, 1 changed document" in page["data"]
    assert run["flow_run_id"] in page["data"]


@pytest.mark.slow
def test_each_run_is_reported_when_it_starts_and_when_it_ends(updated: ServeHouse) -> None:
    for run in updated.list_runs(SUITE):
        updated.wait_until(lambda: f"{SUITE}: run {run['run_id']} completed" in updated.output)  # noqa: B023
        lines = [line for line in updated.output.splitlines() if run["run_id"] in line]
        assert len(lines) == 2, lines


@pytest.mark.slow
def test_ctrl_c_ends_it_and_its_server_and_leaves_nothing_behind(scheduled: ServeHouse) -> None:
    """The last test of the module: nothing is served afterwards."""
    assert scheduled.stop() == 0
    assert scheduled.output.splitlines()[-1].endswith("stopping; no run is in progress")
    assert "Traceback" not in scheduled.output
    with pytest.raises(PrefectApiError, match="cannot be asked"):
        scheduled.post("/flow_runs/filter", {})
