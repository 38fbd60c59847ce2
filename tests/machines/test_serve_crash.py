"""A run whose process is killed, and updates that come in a burst, during a run, or while no process
serves. One story: each test checks the state after a further step."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from endpoint import running_endpoint
from serve_house import DOCUMENTS, QUESTIONS, ServeHouse, open_serve_house, soon

pytestmark = pytest.mark.slow

SUITE, KB = "watch", "docs"
BURST = [f"v{number}" for number in range(1, 21)]
N_ANSWERED = 2


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeHouse]:
    with open_serve_house(tmp_path_factory.mktemp("crash")) as house:
        house.write_suite(SUITE, kb_name=KB)
        house.serve(house.folder / f"{SUITE}.toml")
        yield house


@pytest.fixture(scope="module")
def killed(house: ServeHouse) -> ServeHouse:
    """The house after a burst has started a run, and all was killed while the bot was being asked."""
    house.bot.configure(hold_after=N_ANSWERED)
    house.announce(KB, *BURST)
    house.bot.wait_for(N_ANSWERED + 1)
    house.kill()
    return house


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The house, and what its bot was asked until the first run had completed."""

    house: ServeHouse
    questions: list[str]


@pytest.fixture(scope="module")
def resumed(killed: ServeHouse) -> Resumed:
    """The house after it was served again and its run has completed."""
    assert [run["status"] for run in killed.list_runs(SUITE)] == ["running"]
    killed.bot.configure(hold_after=None)
    killed.serve(killed.folder / f"{SUITE}.toml")
    killed.wait_for_runs(SUITE, 1)
    return Resumed(house=killed, questions=list(killed.bot.stats.questions))


@pytest.fixture(scope="module")
def disturbed(resumed: Resumed) -> ServeHouse:
    """The house after two further updates have come during a run, each with a flow run, and all runs have ended."""
    house = resumed.house
    house.bot.reset()
    house.bot.configure(hold_after=1)
    house.write_document("lamp.txt", DOCUMENTS["lamp.txt"].replace("green", "red"))
    house.announce(KB, "during-0")
    house.bot.wait_for(2)
    for number in (1, 2):
        house.announce(KB, f"during-{number}")
        house.wait_until(lambda: house.count_waiting(SUITE) == number)  # noqa: B023
    house.bot.configure(hold_after=None)
    house.wait_for_runs(SUITE, 3)
    house.wait_until(lambda: house.count_waiting(SUITE) == 0)
    house.wait_for_runs(SUITE, 3)
    return house


def find_by_state(house: ServeHouse, state: str) -> list[dict[str, Any]]:
    return [one for one in house.list_flow_runs(SUITE) if one["state_name"] == state]


def test_a_burst_of_twenty_makes_one_run(resumed: Resumed) -> None:
    run = resumed.house.list_runs(SUITE)[0]
    assert (run["trigger"], run["kb_name"], run["kb_version"]) == ("event", KB, BURST[-1])
    answered = resumed.house.query(SUITE, f"from kb_updates where run_id = '{run['run_id']}'")
    assert sorted(row["kb_version"] for row in answered) == sorted(BURST)


def test_a_killed_run_is_marked_as_crashed_and_resumed(resumed: Resumed) -> None:
    run = resumed.house.list_runs(SUITE)[0]
    assert f"run {run['run_id']} had crashed: it is resumed" in resumed.house.printed[1].read_text(encoding="utf-8")
    (crashed,) = find_by_state(resumed.house, "Crashed")
    assert crashed["name"] == f"{SUITE} {run['run_id']}"
    assert (run["status"], run["problem"]) == ("completed", None)


def test_no_reply_is_asked_for_twice(resumed: Resumed) -> None:
    times = Counter(resumed.questions)
    # The question that was in flight at the kill was never answered.
    assert sorted(times.values()) == [1] * (len(QUESTIONS) - 1) + [2]
    calls = resumed.house.query(SUITE, "select request_hash from llm_calls where status = 'ok'")
    assert set(Counter(call["request_hash"] for call in calls).values()) == {1}


def test_updates_during_a_run_make_exactly_one_more(disturbed: ServeHouse) -> None:
    runs = disturbed.list_runs(SUITE)
    assert [run["kb_version"] for run in runs] == [BURST[-1], "during-0", "during-2"]
    rows = disturbed.query(SUITE, f"select kb_version from kb_updates where run_id = '{runs[2]['run_id']}'")
    assert {row["kb_version"] for row in rows} == {"during-1", "during-2"}
    assert len(find_by_state(disturbed, "NothingNew")) >= 1


def test_runs_of_a_suite_never_overlap(disturbed: ServeHouse) -> None:
    runs = disturbed.list_runs(SUITE)
    assert all(first["finished_at"] <= second["started_at"] for first, second in pairwise(runs))


def test_a_run_whose_process_gets_sigterm_crashes_in_prefect_and_is_resumed(disturbed: ServeHouse) -> None:
    """A stopped worker, container or machine sends this signal; a person who cancels uses Prefect."""
    house = disturbed
    house.bot.reset()
    house.bot.configure(hold_after=1)
    house.write_document("lamp.txt", DOCUMENTS["lamp.txt"])
    house.announce(KB, "terminated")
    house.bot.wait_for(2)
    (running,) = (run for run in house.list_runs(SUITE) if run["status"] == "running")
    assert house.process is not None
    for folder in Path("/proc").glob("[0-9]*"):  # the processes of flow runs that `serve` has started
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == house.process.pid and b"prefect.engine" in (folder / "cmdline").read_bytes():
                os.kill(int(folder.name), signal.SIGTERM)
    house.bot.configure(hold_after=None)
    house.wait_for_runs(SUITE, 4)
    run = house.list_runs(SUITE)[-1]
    assert (run["run_id"], run["status"], run["problem"]) == (running["run_id"], "completed", None)
    crashed = find_by_state(house, "Crashed")
    assert f"{SUITE} {run['run_id']}" in [one["name"] for one in crashed]


def test_broken_suite_fails_its_flow_run_and_serving_continues(disturbed: ServeHouse) -> None:
    """A gate that is not passed then fails the flow run, and not the run."""
    house = disturbed
    house.write_suite(SUITE, kb_name=KB, more="judge_ = 1")
    flow_run = start_by_hand(house)
    assert flow_run["state_type"] == "FAILED"
    assert f"{SUITE}.toml, line 4: judge_" in flow_run["state"]["message"]
    house.wait_until(lambda: "judge_" in house.output)
    assert house.list_runs(SUITE, "manual") == []
    house.write_suite(SUITE, kb_name=KB, more="[gate]\nmax_latency_p95_ms = 0.001\n[gate.max_drop]\nmrr = 1")
    flow_run = start_by_hand(house)
    assert flow_run["state_type"] == "FAILED"
    assert "gate failed: " in flow_run["state"]["message"]
    assert [(run["status"], run["gate"]) for run in house.list_runs(SUITE, "manual")] == [("completed", "failed")]


def start_by_hand(house: ServeHouse) -> dict[str, Any]:
    """Start a flow run as a person does in Prefect, and return it when it has ended."""
    (deployment,) = house.post("/deployments/filter", {"deployments": {"name": {"any_": [SUITE]}}})
    begun = house.post(f"/deployments/{deployment['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
    house.wait_until(lambda: house.api.get(f"/flow_runs/{begun['id']}")["end_time"])
    ended: dict[str, Any] = house.api.get(f"/flow_runs/{begun['id']}")
    return ended


def test_a_night_that_is_stopped_while_its_test_set_is_refreshed_begins_again(tmp_path: Path) -> None:
    """Nothing of the night was on record yet, and no notification was sent."""
    with open_serve_house(tmp_path) as house, running_endpoint(latency=1.0) as endpoint:
        house.place = house.place.with_variables(OPENAI_BASE_URL=endpoint.base_url, OPENAI_API_KEY="sk-test")
        house.place.call(
            "testset", "make", "documents", "-o", "set.jsonl", "--kinds", "fact=3", "--judge", "lexical",
            "--embeddings", "hashing", "--warehouse", "night.duckdb",
        )  # fmt: skip
        house.write_document("lamp.txt", DOCUMENTS["lamp.txt"].replace("green", "red"))
        path = house.write_suite(
            "night", cron=soon(20), more='embeddings = "hashing"\n[testset]\ndocuments = "documents"'
        )
        text = path.read_text(encoding="utf-8").replace('"questions.jsonl"', '"set.jsonl"')
        path.write_text(text.replace('"lexical"', '"openai:judge"'), encoding="utf-8")
        house.serve(path)
        house.wait_until(lambda: endpoint.stats.requests)
        assert house.stop() == 0
        assert "stopping a run of night that has not begun to ask in good order" in house.output
        assert "night: the run that was about to begin begins when this suite is served again" in house.output
        assert {run["kind"] for run in house.list_runs("night")} == {"testset"}
        endpoint.configure(latency=0.0)
        house.serve(path)
        house.wait_until(lambda: any(run["kind"] == "evaluation" for run in house.list_runs("night")))
        assert house.list_runs("night")[-1]["trigger"] == "schedule"
