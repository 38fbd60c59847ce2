"""The refusals of `evalhouse serve`, its pages in Prefect, and how often it resumes a crashed run."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from cli_process import ROOT, Place
from flow_run_list import Api, make_flow_run, make_served, make_update
from kept_open import kept_open
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.flows.server.api import PrefectApiError, is_outage
from evalhouse.flows.serving.backlog import hold_flow_run, queue_resume, sweep_crashed
from evalhouse.flows.serving.flow_runs import name_flow_run
from evalhouse.flows.serving.notify import describe_end, write_page
from evalhouse.flows.serving.serve import RunLines, ServeLog
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.rows.gates import Decision, record_decision
from evalhouse.warehouse.rows.runs import (
    find_run,
    insert_run,
    now_utc,
    update_run,
)
from evalhouse.warehouse.store import Warehouse

SCHEDULED = 'dataset = "sample"\njudge = "lexical"\n[schedule]\ncron = "0 3 * * *"\n'

HOLDING = """
import time
from evalhouse.flows.serving.backlog import hold_flow_run
with hold_flow_run("out"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    # They block SIGINT for ever, and so in all processes that later tests start.
    monkeypatch.setattr("evalhouse.flows.server.interrupts.StopOrders", object)
    (tmp_path / "nightly.toml").write_text(SCHEDULED)
    return Place(folder=tmp_path, variables={"PREFECT_HOME": str(tmp_path / "home")})


@pytest.mark.parametrize(
    ("arguments", "variables", "expected"),
    [
        (["nightly.toml"], {}, ["--with-server", "PREFECT_API_URL"]),
        (["nightly.toml", "--with-server"], {"PREFECT_API_URL": "http://127.0.0.1:9/api"}, ["leave out --with-server"]),
        (["nightly.toml"], {"PREFECT_API_URL": "http://127.0.0.1:9/api"}, ["does not answer"]),
        (["nightly.toml", "--port", "4200"], {}, ["--with-server starts"]),
        (["nightly.toml", "--with-server", "--port", "70000"], {}, ["70000"]),
        (["nightly.toml", "--with-server", "--parallel", "0"], {}, ["--parallel"]),
        (["bare.toml"], {}, ["bare.toml", "needs a [schedule], a [trigger] or both"]),
        (["nightly.toml", "sub/nightly.toml"], {}, ["both named 'nightly'"]),
        (["kb.toml"], {}, ["cannot name a knowledge base"]),
        (["missing.toml"], {}, ["missing.toml"]),
        ([], {}, ["SUITE.toml"]),
    ],
)
def test_suites_that_cannot_be_served_are_refused(
    *,
    place: Place,
    arguments: list[str],
    variables: dict[str, str],
    expected: list[str],
) -> None:
    (place.folder / "bare.toml").write_text('dataset = "sample"\n')
    (place.folder / "kb.toml").write_text('dataset = "sample"\n[trigger]\nknowledge_base = "docs*"\n')
    (place.folder / "sub").mkdir()
    (place.folder / "sub" / "nightly.toml").write_text(SCHEDULED)
    done = place.with_variables(**variables).call("serve", *arguments)
    assert done.status == 2
    assert "Traceback" not in done.stderr
    for text in expected:
        assert text in done.stderr


def test_a_port_that_is_taken_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.flows.server.local._PORT_WAIT_S", 0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = place.call("serve", "nightly.toml", "--with-server", "--port", port)
    assert done.status == 2
    assert f"port {port} of this machine is not available" in done.stderr


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Warehouse]:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    with kept_open(tmp_path):
        yield make_warehouse(tmp_path)


def test_running_run_without_a_process_is_failed_and_resumed(warehouse: Warehouse) -> None:
    insert_run(
        warehouse, make_run(run_id="r1", suite="nightly", trigger="schedule", status="running", flow_run_id="in")
    )
    inner = make_flow_run("in", "RUNNING", deployment_id=None)
    api = Api(inner, make_flow_run("out", "RUNNING", name=name_flow_run("nightly", "r1")))
    expected = sweep_crashed(api, [make_served(warehouse)], alone=True)
    run = find_run(warehouse, "r1")
    assert (run.status, run.finished_at is None) == ("failed", False)
    assert "its process ended before the run did" in str(run.problem)
    assert [one["state_type"] for one in api.flow_runs[:2]] == ["CRASHED", "CRASHED"]
    assert [one["parameters"] for one in api.created] == [{"resume": "r1"}]
    assert len(expected) == 1


def test_a_run_that_is_held_is_left_alone(warehouse: Warehouse) -> None:
    insert_run(warehouse, make_run(run_id="r1", suite="nightly", trigger="schedule", status="running"))
    api = Api(make_flow_run("out", "RUNNING", name=name_flow_run("nightly", "r1")))
    with hold_run(warehouse.location, "r1"), hold_flow_run("out"):
        assert sweep_crashed(api, [make_served(warehouse)], alone=True) == []
    assert find_run(warehouse, "r1").status == "running"
    assert (api.created, api.flow_runs[0]["state_type"]) == ([], "RUNNING")


def test_runs_by_hand_and_of_other_suites_are_not_resumed(warehouse: Warehouse) -> None:
    insert_run(warehouse, make_run(run_id="r1", suite="nightly", trigger="manual", status="running"))
    insert_run(warehouse, make_run(run_id="r2", suite="other", trigger="schedule", status="running"))
    api = Api()
    assert sweep_crashed(api, [make_served(warehouse)]) == []
    assert (find_run(warehouse, "r1").status, find_run(warehouse, "r2").status) == ("failed", "running")
    assert api.created == []


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_process_that_was_killed_within_seconds_of_its_start_is_found_by_its_silence(
    warehouse: Warehouse, state: str
) -> None:
    """On a server that others use as well: it has no lock yet, and so might be at work on another machine."""
    start, beat = (datetime.now(UTC) - timedelta(seconds=ago) for ago in (150, 60))
    parameters = {"trigger": "event", "event": "e1"}
    api = Api(make_flow_run("out", state, parameters=parameters, since=start))
    api.events = [make_update("beat", beat)]
    assert sweep_crashed(api, [make_served(warehouse)]) == []
    api.events = []
    assert sweep_crashed(api, [make_served(warehouse)]) == [
        "nightly: a run had crashed before it was on record: it is queued again"
    ]
    assert api.flow_runs[0]["state_type"] == "CRASHED"
    assert [one["parameters"] for one in api.created] == [parameters]


@pytest.mark.parametrize("within", ["out", "in"])
def test_a_run_that_was_on_record_before_its_flow_run_was_named_is_resumed_and_not_made_again(
    warehouse: Warehouse, within: str
) -> None:
    """Killed before the evaluation's own flow run began, and after that; whether or not Prefect has seen the crash."""
    run = make_run(run_id="r1", suite="nightly", trigger="schedule", status="running", flow_run_id=within)
    insert_run(warehouse, run)
    inner = make_flow_run("in", "RUNNING", deployment_id=None, parent_task_run_id="out")
    api = Api(inner, make_flow_run("out", "CRASHED"))
    assert len(sweep_crashed(api, [make_served(warehouse)])) == 1
    assert api.flow_runs[1]["name"] == name_flow_run("nightly", "r1")
    update_run(warehouse, "r1", flow_run_id="of the resumption")
    assert sweep_crashed(api, [make_served(warehouse)]) == []
    assert [one["parameters"] for one in api.created] == [{"resume": "r1"}]


def test_flow_run_that_crashed_before_its_run_was_stored_is_queued_again_ten_times(
    warehouse: Warehouse,
) -> None:
    """The runner that started a process marks it so when it is killed, sooner than the next look."""
    parameters, served = {"trigger": "schedule"}, make_served(warehouse)
    api = Api(
        make_flow_run("lost", "CRASHED", parameters=parameters, tags=["auto-scheduled"]),
        make_flow_run("named", "CRASHED", name=name_flow_run("nightly", "r1")),
        make_flow_run("old", "CRASHED", expected_start_time="2026-01-01T00:00:00+00:00"),
    )
    for n in range(1, 11):
        (line,) = sweep_crashed(api, [served])
        assert line.endswith("it is queued again")
        assert sweep_crashed(api, [served]) == []
        assert (len(api.created), api.created[-1]["parameters"]) == (n, parameters)
        assert api.created[-1]["tags"][0] == "auto-scheduled"
        api.flow_runs[-1]["state_type"] = "CRASHED"
    (line,) = sweep_crashed(api, [served])
    assert "is left; see evalhouse-serve.log" in line
    assert sweep_crashed(api, [served]) == []
    assert len(api.created) == 10


@pytest.mark.parametrize("within", ["out", "in"])
def test_a_run_that_a_person_started_in_prefect_is_resumed_as_one_by_the_schedule(
    warehouse: Warehouse, within: str
) -> None:
    """Its flow run has ended before anybody looked, as that of a process which has outlived its server does."""
    run = make_run(run_id="r1", suite="nightly", trigger="manual", status="running", flow_run_id=within)
    insert_run(warehouse, run)
    inner = make_flow_run("in", "FAILED", deployment_id=None, parent_task_run_id="out")
    api = Api(inner, make_flow_run("out", "CRASHED", name=name_flow_run("nightly", "r1")))
    lines = RunLines([make_served(warehouse)])
    lines.read_news()
    (line,) = sweep_crashed(api, [make_served(warehouse)])
    assert "run r1 had crashed: it is resumed" in line
    assert [one["parameters"] for one in api.created] == [{"resume": "r1"}]
    assert lines.read_news() == [], "it was reported already"
    assert sweep_crashed(api, [make_served(warehouse)]) == []


def test_a_run_whose_lock_was_lost_is_left_alone_as_long_as_its_process_lives(warehouse: Warehouse) -> None:
    """The lock on a run of a lake ends with the server of the catalogue."""
    insert_run(warehouse, make_run(run_id="r1", suite="nightly", trigger="schedule", status="running"))
    api = Api(make_flow_run("out", "RUNNING", name=name_flow_run("nightly", "r1")))
    with hold_flow_run("out"):
        assert sweep_crashed(api, [make_served(warehouse)], alone=True) == []
    assert len(sweep_crashed(api, [make_served(warehouse)], alone=True)) == 1


@pytest.mark.parametrize(
    ("columns", "is_due"),
    [
        ({}, True),
        ({"status": "incomplete"}, True),
        ({"gate": "passed"}, False),
        ({"config": {"gate": None}}, False),
        ({"trigger": "manual"}, False),
        ({"suite": "other"}, False),
        ({"finished_at": datetime(2026, 1, 1)}, False),
    ],
)
def test_a_run_whose_process_died_before_its_gate_is_taken_up_once(
    warehouse: Warehouse, columns: dict[str, Any], is_due: bool
) -> None:
    ended = {"status": "completed", "finished_at": now_utc(), "config": {"gate": {"min": {"faithfulness": 0.5}}}}
    insert_run(warehouse, make_run("r1", **({"suite": "nightly", "trigger": "schedule"} | ended | columns)))
    api = Api(make_flow_run("out", "RUNNING", name=name_flow_run("nightly", "r1")))
    with hold_flow_run("out"):  # its process is about to decide
        assert sweep_crashed(api, [make_served(warehouse)], alone=True) == []
    expected = sweep_crashed(api, [make_served(warehouse)], alone=True)
    assert [line.partition(": it is")[0] for line in expected] == [
        "nightly: run r1 had crashed before its gate"
    ] * is_due
    assert [one["parameters"] for one in api.created] == [{"resume": "r1"}] * is_due
    assert sweep_crashed(api, [make_served(warehouse)], alone=True) == []


def test_a_resumption_that_failed_before_it_was_one_is_queued_again(warehouse: Warehouse) -> None:
    """Its process has lost the server, or its submitter was killed: the run is unchanged."""
    insert_run(warehouse, make_run("r1", suite="nightly", trigger="schedule", status="running"))
    api, served = Api(), make_served(warehouse)
    assert len(sweep_crashed(api, [served])) == 1
    assert sweep_crashed(api, [served]) == []  # it is queued
    api.flow_runs[-1]["state_type"] = "FAILED"
    (line,) = sweep_crashed(api, [served])
    assert line.startswith("nightly: run r1 was not taken up to its end: it is resumed")
    assert [one["parameters"] for one in api.created] == [{"resume": "r1"}] * 2
    for _ in range(8):
        api.flow_runs[-1]["state_type"] = "FAILED"
        sweep_crashed(api, [served])
    api.flow_runs[-1]["state_type"] = "FAILED"
    assert (sweep_crashed(api, [served]), len(api.created)) == ([], 10)
    api.flow_runs[-1]["state_type"] = "CRASHED"
    assert len(sweep_crashed(api, [served])) == 1  # one line, by any way that it is found


def test_a_run_that_dies_each_time_is_left_after_ten_resumptions_ever_further_apart(warehouse: Warehouse) -> None:
    api, suite = Api(), make_served(warehouse)
    for _ in range(10):
        assert queue_resume(api, suite, "r1")
        assert queue_resume(api, suite, "r1")  # one waits already
        api.flow_runs[-1]["state_type"] = "CRASHED"
    assert len({one["idempotency_key"] for one in api.created}) == 10
    due = [datetime.fromisoformat(one["state"]["state_details"]["scheduled_time"]) for one in api.created]
    assert [round((at - datetime.now(UTC)).total_seconds() / 60) for at in due] == [0, 0, 0, *range(1, 8)]
    assert not queue_resume(api, suite, "r1")
    assert queue_resume(api, suite, "r2")


def test_each_suite_answers_an_update_for_itself(warehouse: Warehouse) -> None:
    insert_run(warehouse, make_run(run_id="r1", suite="nightly", trigger="event"))
    row = {"event_id": "e1", "kb_name": "docs", "kb_version": "v1", "occurred_at": datetime(2026, 2, 1), "run_id": "r1"}
    for _ in range(2):
        warehouse.append_rows("kb_updates:r1", "r1", {"kb_updates": [row]})
    assert warehouse.read_rows("select count(*) as n from kb_updates") == [{"n": 1}]
    assert set(warehouse.fetch("runs/answered_updates", suite="nightly", kb_name="docs")["event_id"]) == {"e1"}
    assert set(warehouse.fetch("runs/answered_updates", suite="other", kb_name="docs")["event_id"]) == frozenset()
    assert set(warehouse.fetch("runs/answered_updates", suite="nightly", kb_name="doc")["event_id"]) == frozenset()


def test_starts_and_ends_are_reported_once(warehouse: Warehouse) -> None:
    insert_run(warehouse, make_run(run_id="old", suite="nightly", status="completed"))
    lines = RunLines([make_served(warehouse)])
    (last,) = lines.read_news()
    assert "nightly: the last was run old completed" in last
    insert_run(
        warehouse,
        make_run(run_id="r1", suite="nightly", status="running", trigger="event", kb_name="docs", kb_version="v7"),
    )
    insert_run(warehouse, make_run(run_id="r2", suite="other", status="running"))
    (started,) = lines.read_news()
    assert "nightly: run r1 has started because docs was updated to version v7" in started
    assert [run.run_id for run in lines.list_running()] == ["r1"]
    update_run(warehouse, "r1", status="failed", problem="the bot\nis away", finished_at=datetime(2026, 3, 1))
    (ended,) = lines.read_news()
    assert "run r1 failed" in ended
    assert "the bot is away; evalhouse resume r1" in ended
    update_run(warehouse, "r1", status="running", finished_at=None)
    assert "r1 is resumed" in lines.read_news()[0]
    assert lines.read_news() == []
    for end in (datetime(2026, 3, 2), datetime(2026, 3, 3)):  # gone on with since the last look, and at its end again
        update_run(warehouse, "r1", status="completed", problem=None, finished_at=end)
        assert ["run r1 completed" in line for line in lines.read_news()] == [True]
    assert lines.read_news() == []


def test_first_look_reports_running_runs_and_later_looks_their_end(warehouse: Warehouse) -> None:
    insert_run(warehouse, make_run(run_id="r1", suite="nightly", status="running", trigger="schedule"))
    lines = RunLines([make_served(warehouse)])
    assert lines.read_news() == ["nightly: run r1, begun before this start, is still running"]
    update_run(warehouse, "r1", status="completed", finished_at=datetime(2026, 3, 1))
    assert ["run r1 completed" in line for line in lines.read_news()] == [True]


def test_failed_gate_is_reported_with_its_checks(warehouse: Warehouse) -> None:
    run = make_run(run_id="r1", suite="nightly", status="running", trigger="schedule", config={"gate": {"min": {}}})
    insert_run(warehouse, run)
    lines = RunLines([make_served(warehouse)])
    lines.read_news()
    update_run(warehouse, "r1", status="completed", finished_at=now_utc())
    assert lines.read_news() == [], "what the gate says belongs to the end"
    check = {
        "kind": "min", "metric": "factual_f1", "limit": 0.8, "value": 0.5, "ci_low": None, "ci_high": None, "n": 4,
        "beyond": 0.3, "noise_floor": None, "reason": "below", "detail": "4 samples", "outcome": "failed",
    }  # fmt: skip
    checks = [check, {**check, "metric": "mrr", "outcome": "passed"}]
    checks += [{**check, "metric": f"m{number}"} for number in range(3)]
    decision = Decision(
        run_id="r1", origin="suite", outcome="failed", is_baseline=False, undecided="pass", against=None,
        base_run_ids=[], checks=checks,
    )  # fmt: skip
    record_decision(warehouse, decision)
    (line,) = lines.read_news()
    assert "gate failed: factual_f1: mean at least 0.800, found 0.500, beyond the limit by 0.300: 4 samples;" in line
    assert "mrr" not in line
    assert "and 1 more; evalhouse show r1" in line


def test_a_log_is_kept_over_starts_and_put_aside_when_it_is_large(tmp_path: Path) -> None:
    path, printed = tmp_path / "serve.log", list[str]()
    ServeLog(path, printed.append)("one")
    with path.open("ab") as server:  # which has it open all the time, as its standard error
        for size in (1, 2):
            ServeLog(path, printed.append)("two")
            server.write(b"x" * 6 * 2**20 * size)
            server.flush()
            ServeLog(path, printed.append)("three")
            assert path.read_text(encoding="utf-8").count("serve: three") == 1
    assert "serve: one" in (tmp_path / "serve.log.2").read_text(encoding="utf-8")
    assert (tmp_path / "serve.log.1").stat().st_size > 12 * 2**20
    assert [line[8:] for line in printed[:2]] == [" one", " two"]


def test_text_from_outside_is_escaped_on_a_page(warehouse: Warehouse) -> None:
    run = make_run(
        run_id="r1",
        suite="a|b",
        trigger="event",
        kb_name="docs",
        kb_version="[x](http://evil) <script>",
        status="failed",
    )
    page = write_page(warehouse, run, None, flow_run_url=None)
    assert "[x](" not in page
    assert "<script>" not in page
    assert "evalhouse resume r1" in page
    assert describe_end(run, None).endswith("next: evalhouse resume r1")


def test_a_process_that_was_killed_holds_no_flow_run(warehouse: Warehouse) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLDING], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    api = Api(make_flow_run("out", "RUNNING", parameters={"trigger": "schedule"}))
    assert sweep_crashed(api, [make_served(warehouse)]) == []
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert len(sweep_crashed(api, [make_served(warehouse)])) == 1
    assert api.flow_runs[0]["state_type"] == "CRASHED"


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (WarehouseBusy("kept open"), True),
        (WarehouseError("metric 'x' failed"), False),
        (duckdb.Error("Failed to get table information: server closed the connection unexpectedly"), True),
        (duckdb.Error("Binder Error: no column x"), False),
        (PrefectApiError("cannot be asked"), True),
        (PrefectApiError("refused", status=404), False),
        (httpx.ConnectError("All connection attempts failed"), True),
        (ExceptionGroup("both", [httpx.ReadError(""), WarehouseBusy("kept open")]), True),
        (ExceptionGroup("both", [httpx.ReadError(""), ValueError("x")]), False),
        (ValueError("x"), False),
    ],
)
def test_outage_is_distinguished_from_other_errors(error: Exception, outage: bool) -> None:
    assert is_outage(error) == outage
    wrapped = RuntimeError("around it")
    wrapped.__cause__ = error
    assert is_outage(wrapped) == outage
