"""Suites served by the user's Prefect server, which requires a key: runs that Ctrl-C stops and `serve` resumes later,
updates that come while no process serves, and deployments for work pools."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from cli_process import ROOT
from serve_house import QUESTIONS, ServeHouse, open_serve_house, start_prefect_server

pytestmark = pytest.mark.slow

SUITE, KB = "night_watch", "the handbook"
MISSED, N_MISSED = "missed", 4


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeHouse]:
    with open_serve_house(tmp_path_factory.mktemp("server")) as house, start_prefect_server(house):
        house.write_suite(SUITE, kb_name=KB)
        missed = f'dataset = "sample"\njudge = "lexical"\nwarehouse = "{MISSED}.duckdb"\n[limits]\nlimit = 2\n'
        (house.folder / f"{MISSED}.toml").write_text(f'{missed}[schedule]\ncron = "0 0 1 1 *"\n')
        yield house


@pytest.fixture(scope="module")
def stopped(house: ServeHouse) -> ServeHouse:
    """The house after Ctrl-C in the middle of a run, and one more update after that."""
    house.serve(house.folder / f"{SUITE}.toml", with_server=False)
    house.bot.configure(hold_after=1)
    house.announce(KB, "v1")
    house.bot.wait_for(2)
    assert house.stop() == 0
    house.announce(KB, "v2")
    house.bot.configure(hold_after=None)
    miss_schedule(house)
    return house


def miss_schedule(house: ServeHouse) -> None:
    """Flow runs of one suite that were due in the last minutes, while no process served."""
    flow_id = house.post("/flows/", {"name": "evaluate-suite"})["id"]
    parameters = {"suite": str(house.folder / f"{MISSED}.toml")}
    deployment = house.post("/deployments/", {"name": MISSED, "flow_id": flow_id, "parameters": parameters})
    for minutes in range(N_MISSED):
        due = datetime.now(UTC) - timedelta(minutes=minutes + 1)
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": due.isoformat()}}
        body = {"tags": ["auto-scheduled"], "parameters": parameters, "state": state}
        house.post(f"/deployments/{deployment['id']}/create_flow_run", body)


@pytest.fixture(scope="module")
def served_again(stopped: ServeHouse) -> ServeHouse:
    stopped.serve(stopped.folder / f"{SUITE}.toml", stopped.folder / f"{MISSED}.toml", parallel=2, with_server=False)
    stopped.wait_for_runs(SUITE, 2)
    return stopped


def test_ctrl_c_stops_a_run_that_is_resumed_later(stopped: ServeHouse) -> None:
    (run,) = stopped.list_runs(SUITE)
    assert (run["status"], run["problem"]) == ("cancelled", "stopped by SIGTERM")
    assert f"run {run['run_id']} is resumed when this suite is served again" in stopped.output
    assert "Traceback" not in stopped.output


def test_run_is_resumed_and_an_update_meanwhile_is_answered(served_again: ServeHouse) -> None:
    runs = served_again.list_runs(SUITE)
    assert [(run["status"], run["kb_version"]) for run in runs] == [("completed", "v1"), ("completed", "v2")]
    answered = served_again.query(SUITE, "from kb_updates")
    assert {row["kb_version"]: row["run_id"] for row in answered} == {run["kb_version"]: run["run_id"] for run in runs}
    asked = Counter(served_again.bot.stats.questions)
    # Twice for two runs, and the one in flight at Ctrl-C once more.
    assert sorted(asked.values()) == [2] * (len(QUESTIONS) - 1) + [3]


def test_of_the_schedule_that_was_missed_one_run_is_made_up(served_again: ServeHouse) -> None:
    served_again.wait_for_runs(MISSED, 1)
    served_again.wait_until(lambda: len(served_again.list_flow_runs(MISSED)) >= N_MISSED)
    served_again.wait_for_runs(MISSED, 1)
    assert [run["trigger"] for run in served_again.list_runs(MISSED)] == ["schedule"]
    flow_runs = served_again.list_flow_runs(MISSED)
    assert Counter(one["state_name"] for one in flow_runs) == {"Superseded": N_MISSED - 1, "Completed": 1}
    # Most of the others end without a process.
    assert sum(one["run_count"] for one in flow_runs) <= 3


def test_a_second_process_does_not_serve_the_same_suite(served_again: ServeHouse) -> None:
    done = served_again.client.call_process("serve", f"{SUITE}.toml")
    assert done.status == 2
    assert f"suite {SUITE} is served by another process of this machine already" in done.stderr


def test_without_its_key_nothing_is_announced(house: ServeHouse) -> None:
    done = house.place.with_variables(PREFECT_API_URL=house.api_url).call_process("kb-updated", KB, "--version", "v9")
    assert done.status == 2
    assert "PREFECT_API_AUTH_STRING" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_file_for_work_pools_deploys_its_schedule_and_its_trigger(house: ServeHouse) -> None:
    prefect = [sys.executable, "-m", "prefect", "--no-prompt"]
    _run(house, [*prefect, "work-pool", "create", "evalhouse", "--type", "process"])
    path = house.folder / "prefect.yaml"
    path.write_text((ROOT / "flows" / "prefect.yaml").read_text().replace("/srv/suites", str(house.folder)))
    _run(house, [*prefect, "deploy", "--all", "--prefect-file", str(path)])

    found = {one["name"]: one for one in house.post("/deployments/filter", {}) if one["work_pool_name"]}
    assert found.keys() == {one["name"] for one in yaml.safe_load(path.read_text(encoding="utf-8"))["deployments"]}
    assert found["evaluate"]["entrypoint"] == "evalhouse.flows.evaluation.evaluate_run"
    assert not any(deployment["pull_steps"] for deployment in found.values())
    assert found["recovery"]["entrypoint"] == "evalhouse.flows.suite.recover_suite"
    for deployment in found.values():
        assert deployment["job_variables"] == {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}}
        if deployment["name"] in ("nightly", "handbook"):
            assert deployment["entrypoint"] == "evalhouse.flows.suite.evaluate_suite"
            assert deployment["global_concurrency_limit"]["limit"] == 1
    (schedule,) = found["nightly"]["schedules"]
    assert (schedule["schedule"]["cron"], schedule["schedule"]["timezone"]) == ("0 3 * * *", "Europe/Berlin")
    names = {one["name"] for one in house.post("/automations/filter", {})}
    assert {"handbook: handbook was updated", "a suite's process has crashed or is silent"} <= names


def test_a_suite_without_a_trigger_runs_after_an_update_as_the_file_deploys_it(house: ServeHouse) -> None:
    """The trigger's own waiting is Prefect's; what it starts is started here with the parameters that it gives."""
    (written,) = [
        one
        for one in yaml.safe_load((ROOT / "flows" / "prefect.yaml").read_text(encoding="utf-8"))["deployments"]
        if one["name"] == "handbook"
    ]
    suite = house.write_suite("handbook")
    house.announce("handbook", "v7")
    (deployment,) = house.post("/deployments/filter", {"deployments": {"name": {"any_": [written["name"]]}}})
    assert deployment["parameters"] == {"suite": str(suite)}
    given = {**written["triggers"][0]["parameters"], "event": None}
    due = {"state": {"type": "SCHEDULED"}, "parameters": given}
    house.post(f"/deployments/{deployment['id']}/create_flow_run", due)
    # A night whose worker died before its run was stored, and what Prefect starts then.
    house.write_suite("nightly")
    ids = {one["name"]: one["id"] for one in house.post("/deployments/filter", {})}
    lost = house.post(f"/deployments/{ids['nightly']}/create_flow_run", {"state": {"type": "SCHEDULED"}})["id"]
    house.post(f"/flow_runs/{lost}/set_state", {"state": {"type": "CRASHED"}, "force": True})
    given = {"state": {"type": "SCHEDULED"}, "parameters": {"lost": f"prefect.flow-run.{lost}"}}
    recovery = house.post(f"/deployments/{ids['recovery']}/create_flow_run", given)["id"]
    _run(house, [sys.executable, "-m", "prefect", "worker", "start", "--pool", "evalhouse", "--run-once"])
    (run,) = house.list_runs("handbook")
    assert (run["status"], run["kb_name"], run["kb_version"]) == ("completed", "handbook", "v7")
    state = house.api.get(f"/flow_runs/{recovery}")["state"]
    queued_again = "nightly: a run had crashed before it was on record: it is queued again"
    assert (state["type"], state["message"]) == ("COMPLETED", queued_again)
    assert "queued again" in house.api.get(f"/flow_runs/{lost}")["tags"]


def _run(house: ServeHouse, command: list[str]) -> None:
    done = subprocess.run(
        command,
        cwd=house.folder,
        env=house.client.environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
