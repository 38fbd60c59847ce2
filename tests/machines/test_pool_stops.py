"""A run over workers that ends early and is resumed: a wrong key, Ctrl-C, a missing pool."""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_house import make_rows, write_dataset
from cli_process import finish
from kill_runs import NotingEndpoint, noting_endpoint
from pool_house import POOL, TIMEOUT_S, PoolHouse, open_pool_house

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="descendants of a worker are found in /proc"),
]

N_SAMPLES = 40
N_CALLS = 6
KEY = "sk-test"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolHouse]:
    folder = tmp_path_factory.mktemp("stops")
    with pytest.MonkeyPatch.context() as patch, noting_endpoint(latency=0.2, expected_key=KEY) as endpoint:
        patch.setenv("EVALHOUSE_STATE_DIR", str(folder / "state"))
        with open_pool_house(folder, _name_lake(folder, "shared"), endpoint) as house:
            house.start_worker()
            yield house


@pytest.fixture
def lake(house: PoolHouse, request: pytest.FixtureRequest) -> str:
    """A new lake, without replies of other tests; no worker is busy any more."""
    _wait_for_ends(house)
    house.endpoint.asked.clear()
    house.endpoint.settled.clear()
    house.url = _name_lake(house.folder, request.node.name)
    return house.url


def _wait_for_ends(house: PoolHouse) -> None:
    house.wait_until(lambda: all(one["end_time"] for one in house.list_parts()))


def _name_lake(folder: Path, name: str) -> str:
    return f"ducklake:sqlite:///{folder / name}.sqlite?data={folder / name}"


def _arguments(house: PoolHouse, *, first: int) -> tuple[str, ...]:
    """A run over two parts whose texts no other test has."""
    path = write_dataset(house.folder, make_rows(N_SAMPLES, first=first), f"items-{first}.jsonl")
    return ("run", path.name, "--judge", "openai:judge", "--part-size", "20", "--json")


def _count_repeated(endpoint: NotingEndpoint) -> int:
    asked = Counter(noted.texts for noted in endpoint.asked)
    assert len(asked) == N_SAMPLES * N_CALLS
    return sum(asked.values()) - len(asked)


def test_a_pool_that_is_not_there_is_named_beside_those_that_are(house: PoolHouse, lake: str) -> None:
    ended = house.place.call_process(*_arguments(house, first=0), "--pool", "jugdes", timeout_s=TIMEOUT_S)
    assert ended.status in (2, 3)
    expected = ended.stderr + ended.stdout
    assert "no work pool 'jugdes' (it has: judges)" in expected
    assert "prefect worker start --pool jugdes" in expected


def test_a_wrong_key_ends_the_run_as_in_one_process(house: PoolHouse, lake: str) -> None:
    house.endpoint.configure(expected_key="sk-other")
    try:
        ended = house.place.call_process(*_arguments(house, first=100), "--pool", POOL, timeout_s=TIMEOUT_S)
    finally:
        house.endpoint.configure(expected_key=KEY)
    assert ended.status == 3, (ended, house.read_logs())
    assert ended.document["status"] == "failed"
    assert "Incorrect API key" in ended.document["problem"]
    (run,) = house.query("select status, problem from runs")
    assert run["status"] == "failed"
    # No part continues alone, and none was given out again for it.
    _wait_for_ends(house)
    states = {one["state_type"] for one in house.list_parts() if one["parameters"]["warehouse"] == lake}
    assert states <= {"FAILED", "CANCELLED"}
    assert {one["parameters"]["attempt"] for one in house.list_parts()} == {1}


def _count_asked_until_cancelled(house: PoolHouse, lake: str) -> int:
    """Return how many requests were sent before all parts of the run were cancelled."""
    house.endpoint.settle()
    n_asked = len(house.endpoint.asked)
    assert n_asked < N_SAMPLES * N_CALLS
    _wait_for_ends(house)
    parts = [one for one in house.list_parts() if one["parameters"]["warehouse"] == lake]
    assert {one["state_type"] for one in parts} == {"CANCELLED"}
    return n_asked


def test_ctrl_c_ends_all_parts_and_resume_completes_them(house: PoolHouse, lake: str) -> None:
    process = house.place.start(*_arguments(house, first=200), "--pool", POOL, "--concurrency", "4")
    house.wait_until(lambda: len(house.endpoint.settled) >= N_CALLS * 4, process)
    process.send_signal(signal.SIGINT)
    stopped = finish(process, timeout_s=TIMEOUT_S)
    assert stopped.status == 130, (stopped, house.read_logs())
    assert stopped.document["status"] == "cancelled"
    n_asked = _count_asked_until_cancelled(house, lake)
    (calls,) = house.query("select count(*) as n from llm_calls where status = 'ok'")
    assert calls["n"] == n_asked  # requests in flight were waited for, and their replies stored

    resumed = house.place.call_process("resume", "latest", "--json", timeout_s=TIMEOUT_S)
    assert resumed.status == 0, (resumed, house.read_logs())
    assert _count_repeated(house.endpoint) == 0
    assert resumed.document["calls"]["requests"] == N_SAMPLES * N_CALLS - n_asked
    (row,) = house.query("select count(*) as n, count(distinct (sample_id, step)) as n_keys from outcomes")
    assert row["n"] == row["n_keys"]


def test_a_suspended_run_ends_with_its_parts_and_resume_completes_it(house: PoolHouse, lake: str) -> None:
    process = house.place.start(*_arguments(house, first=400), "--pool", POOL, "--concurrency", "4")
    house.wait_until(lambda: len(house.endpoint.settled) >= N_CALLS * 4, process)
    (run,) = house.query("select run_id, flow_run_id from runs")
    suspended = {"type": "PAUSED", "name": "Suspended", "state_details": {"pause_reschedule": True}}
    house.post(f"/flow_runs/{run['flow_run_id']}/set_state", {"state": suspended, "force": True})
    stopped = finish(process, timeout_s=TIMEOUT_S)
    assert (stopped.status, stopped.document["status"]) == (130, "cancelled"), (stopped, house.read_logs())
    n_asked = _count_asked_until_cancelled(house, lake)
    assert house.query("select count(*) as n from llm_calls where status = 'ok'") == [{"n": n_asked}]
    assert house.get(f"/flow_runs/{run['flow_run_id']}")["state_name"] == "Suspended"
    problems = house.place.call_process("runs", "--problems").stdout
    assert "suspended in Prefect; resumed there, or by `evalhouse resume`" in problems

    resumed = house.place.call_process("resume", "latest", "--json", timeout_s=TIMEOUT_S)
    assert (resumed.status, resumed.document["status"]) == (0, "completed"), (resumed, house.read_logs())
    assert _count_repeated(house.endpoint) == 0
    assert house.get(f"/flow_runs/{run['flow_run_id']}")["state_type"] == "CANCELLED", "it cannot be resumed twice"


def test_a_run_whose_coordinator_was_killed_takes_up_its_parts(house: PoolHouse, lake: str) -> None:
    process = house.place.start(*_arguments(house, first=300), "--pool", POOL, "--concurrency", "4")
    house.wait_until(lambda: len(house.endpoint.settled) >= N_CALLS * 2, process)
    process.kill()
    finish(process)
    resumed = house.place.call_process("resume", "latest", "--json", timeout_s=TIMEOUT_S)
    assert resumed.status == 0, (resumed, house.read_logs())
    assert _count_repeated(house.endpoint) == 0
    # The running part kept its worker; no other flow run was made for it.
    parts = [one for one in house.list_parts() if one["parameters"]["warehouse"] == lake]
    assert Counter(one["parameters"]["first"] for one in parts) == {1: 1, 21: 1}
    assert {one["state_type"] for one in parts} == {"COMPLETED"}
