"""Runs whose Prefect server dies, whose serving process dies, or both, and the lines about them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from serve_house import QUESTIONS, ServeHouse, open_serve_house

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="what is left of a house is found in /proc"),
]

SUITE = "shop"


@pytest.fixture
def house(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ServeHouse]:
    """The house when a run has begun, as a person starts it in Prefect, and waits for the bot's second answer.

    A parameter makes Prefect's client try again once and not five times, for a test in which the run itself notices
    that the server is gone: the other five would take six minutes.
    """
    with open_serve_house(tmp_path) as house:
        if hasattr(request, "param"):
            house.place.variables["PREFECT_CLIENT_MAX_RETRIES"] = request.param
        suite = house.write_suite(SUITE, cron="0 0 1 1 *", more="[gate]\nmax_latency_p95_ms = 0.001\n")
        house.serve(suite)
        begin_run(house)
        house.wait_until(lambda: "was started by hand" in house.output)
        yield house


def begin_run(house: ServeHouse) -> None:
    house.bot.reset()
    house.bot.configure(hold_after=1)
    (deployment,) = house.post("/deployments/filter", {"deployments": {"name": {"any_": [SUITE]}}})
    house.post(f"/deployments/{deployment['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
    house.bot.wait_for(2)


def find_server(house: ServeHouse) -> int:
    assert house.process is not None
    listing = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listing.splitlines()]
    (pid,) = [int(pid) for pid, parent, args in rows if int(parent) == house.process.pid and "server.local" in args]
    return pid


def kill_serve(house: ServeHouse) -> None:
    """Kill only the process that serves: its run lives on."""
    assert house.process is not None
    house.process.kill()
    house.process.wait()
    house.process = None


def read_log(house: ServeHouse) -> str:
    return (Path(house.place.variables["PREFECT_HOME"]) / "evalhouse-serve.log").read_text(encoding="utf-8")


def test_a_run_outlives_its_server_and_its_serving_process_and_both_are_reported(house: ServeHouse) -> None:
    os.kill(find_server(house), signal.SIGKILL)
    house.wait_until(lambda: "the Prefect server answers again" in house.output)
    house.bot.configure(hold_after=None)
    first = house.list_runs(SUITE)[0]["run_id"]
    house.wait_until(lambda: f"run {first} completed" in house.output)
    assert f"{first} is resumed" not in house.output, "it was never broken off"
    assert len(house.bot.stats.questions) == len(set(house.bot.stats.questions)) == len(QUESTIONS)
    assert "has ended by itself (signal 9) and is started again; its log is" in house.output
    assert "Traceback" not in house.output
    assert "start it (" not in house.output
    (line,) = [line for line in house.output.splitlines() if f"{first} completed" in line]
    assert "gate failed: latency (p95) at most 0.001 ms, found" in line
    assert f"serve: {line[9:]}" in read_log(house)

    begin_run(house)
    second = house.list_runs(SUITE)[1]["run_id"]
    kill_serve(house)
    house.serve(house.folder / f"{SUITE}.toml")
    house.wait_until(lambda: f"run {second}, begun before this start, is still running" in house.output)
    house.bot.configure(hold_after=None)
    house.wait_until(lambda: f"run {second} completed" in house.output)
    assert f"{second} is resumed" not in house.output
    assert "was started by hand" in read_log(house), "earlier lines are kept"

    kill_each_server(house)


def kill_each_server(house: ServeHouse) -> None:
    """A server that dies each time ends the serving within seconds."""
    assert house.process is not None
    deadline = time.monotonic() + 240
    killed: set[int] = set()
    ended_at = time.monotonic()
    while house.process.poll() is None:
        assert time.monotonic() < deadline, house.output
        try:
            pid = find_server(house)
        except ValueError:
            pid = 0
        if pid and pid not in killed:
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
            ended_at = time.monotonic()
        time.sleep(0.1)
    status, house.process = house.process.returncode, None
    assert status == 2
    assert time.monotonic() - ended_at < 60
    assert "Traceback" not in house.output


@pytest.mark.parametrize("house", ["1"], indirect=True)
def test_a_run_whose_server_stays_away_is_broken_off_and_resumed_by_the_next_start(house: ServeHouse) -> None:
    first = house.list_runs(SUITE)[0]["run_id"]
    server = find_server(house)
    kill_serve(house)
    house.wait_until(lambda: _has_ended(server))  # a second or two after its parent, in which the run could complete
    house.bot.configure(hold_after=None)
    # It gives the server two minutes, and Prefect's client then tries to report each state of its end.
    deadline = time.monotonic() + 600
    while _is_left(house):
        assert time.monotonic() < deadline
        time.sleep(1)
    (run,) = house.list_runs(SUITE)
    assert (run["status"], "the Prefect server cannot be reached" in run["problem"]) == ("running", True)
    house.serve(house.folder / f"{SUITE}.toml")
    house.wait_until(lambda: f"run {first} completed" in house.output)
    assert f"run {first} had crashed (the Prefect server cannot be reached" in house.output
    assert house.list_runs(SUITE)[0]["problem"] is None


def _has_ended(pid: int) -> bool:
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()  # it is empty for a zombie
    except OSError:
        return True


def _is_left(house: ServeHouse) -> bool:
    """Return whether a process of the house is running, besides this one."""
    home = f"PREFECT_HOME={house.place.variables['PREFECT_HOME']}".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if home in environ.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False
