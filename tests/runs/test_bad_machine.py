"""Runs on a machine that is interrupted, full, read-only or shared: their messages, requests and stored replies."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import make_rows, place_at, write_dataset
from cli_process import Finished, Place, finish, in_terminal, wait_for
from endpoint import Endpoint, running_endpoint
from kill_runs import read_recorded, read_rows
from prefect_holder import find_server
from warehouse_processes import BIND_RIGHTS, FULL_DISK, make_warehouse
from warehouse_runs import make_run

from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.store import Warehouse

RUN = ("run", "berths.jsonl", "--judge", "openai:judge", "--embeddings", "openai:embedder", "--concurrency", "8")
INTERRUPTED, INCOMPLETE, BAD_INPUT = 130, 3, 2
N_ROWS = 16


@pytest.fixture(scope="module")
def server() -> dict[str, str]:
    """The variables of one Prefect server for those tests that are not about bringing one along."""
    return find_server()


@pytest.fixture
def own(tmp_path: Path, prefect_home: Path, endpoint: Endpoint) -> Place:
    """A place whose runs start their own Prefect server; temporary files are made in a separate folder."""
    folder = tmp_path / "place"
    folder.mkdir()
    (tmp_path / "temporary").mkdir()
    place = place_at(folder, prefect_home, endpoint.base_url, n_rows=N_ROWS)
    # A compiled module that is cut short by a limit on file sizes would break later processes.
    variables = {"TMPDIR": str(tmp_path / "temporary"), "PYTHONDONTWRITEBYTECODE": "1"}
    return replace(place.with_variables(**variables), own_server=True)


@pytest.fixture
def place(own: Place, server: dict[str, str]) -> Place:
    return own.with_variables(**server)


def warehouse_path(place: Place) -> Path:
    return place.folder / "evalhouse.duckdb"


def count_requests(endpoint: Endpoint) -> int:
    return sum(endpoint.stats.requests.values())


def list_runs(place: Place) -> list[dict[str, Any]]:
    """Return stored runs with their status; [] before their table exists, and while another process writes."""
    try:
        return read_rows(warehouse_path(place), "select run_id, status from runs")
    except (duckdb.CatalogException, duckdb.IOException):
        return []


def assert_no_crash(finished: Finished) -> None:
    assert "Traceback" not in finished.stdout + finished.stderr, finished


def find_resume(text: str) -> str:
    """The run that is named to be resumed."""
    named = re.search(r"evalhouse resume (\S+)", text)
    assert named is not None, text
    return named[1]


def assert_resumable(place: Place, run_id: str) -> None:
    finished = place.call("resume", run_id, "--json")
    assert finished.status == 0, finished.stderr
    assert finished.document["status"] == "completed"
    assert read_rows(warehouse_path(place), "select count(distinct sample_id) as n from scores") == [{"n": N_ROWS}]
    assert set(read_recorded(warehouse_path(place)).values()) == {1}, "nothing on record was asked again"


def test_interruption_before_the_run_is_stored_leaves_nothing(own: Place, endpoint: Endpoint) -> None:
    # A reader keeps the file, and so the process waits before its first write, with the signals and the lock taken.
    lock = make_warehouse(own.folder).location.path.rename(warehouse_path(own)).with_name("evalhouse.duckdb.lock")
    with duckdb.connect(str(warehouse_path(own)), read_only=True):
        process = own.start(*RUN)
        wait_for(lock.exists, process)
        process.send_signal(signal.SIGINT)
        stopped = finish(process)
    assert_no_crash(stopped)
    assert stopped.status == INTERRUPTED
    assert "Nothing was asked, and nothing was stored." in stopped.stderr
    assert count_requests(endpoint) == 0
    assert list_runs(own) == []
    assert list(Path(own.variables["TMPDIR"]).iterdir()) == []


@pytest.mark.slow
def test_interruption_while_prefect_starts_names_the_run(own: Place, endpoint: Endpoint) -> None:
    process = own.start(*RUN)
    wait_for(lambda: bool(list_runs(own)), process)
    process.send_signal(signal.SIGINT)
    stopped = finish(process)
    assert_no_crash(stopped)
    assert stopped.status == INTERRUPTED
    (run,) = list_runs(own)
    assert run == {"run_id": find_resume(stopped.stdout), "status": "cancelled"}
    assert count_requests(endpoint) == 0
    assert list(Path(own.variables["TMPDIR"]).iterdir()) == []
    assert_resumable(own, run["run_id"])


def test_run_that_is_held_by_another_process_is_not_resumed(place: Place) -> None:
    warehouse = Warehouse(str(make_warehouse(place.folder).location.path.rename(warehouse_path(place))))
    insert_run(warehouse, make_run("r1"))
    with hold_run(warehouse.location, "r1"):
        refused = place.call("resume", "latest")
    assert_no_crash(refused)
    assert refused.status == INCOMPLETE
    assert re.fullmatch(r"Error: run \S+ is running in another process; wait .*\n", refused.stderr)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.slow
def test_requests_that_hang_do_not_keep_an_interrupted_run(place: Place, endpoint: Endpoint, times: int) -> None:
    """Once: they are given up after seconds. Twice: the process is gone at once, and nothing needs to be tidied."""
    endpoint.configure(latency=0.05)
    process = place.start(*RUN)
    wait_for(lambda: count_requests(endpoint) >= 24, process)
    endpoint.configure(faults={"hang": 1.0})
    n_before = endpoint.stats.faults["hang"]
    wait_for(lambda: endpoint.stats.faults["hang"] >= n_before + 8, process)
    process.send_signal(signal.SIGINT)
    if times == 2:
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    stopped = finish(process, timeout_s=30)
    assert_no_crash(stopped)
    assert stopped.status == INTERRUPTED
    expected = stopped.stdout if times == 1 else stopped.stderr
    assert ("stopped at once" in stopped.stderr) == (times == 2)
    (run,) = list_runs(place)
    assert run == {"run_id": find_resume(expected), "status": "cancelled" if times == 1 else "running"}
    endpoint.configure(faults={}, latency=0.0)
    assert_resumable(place, run["run_id"])


@pytest.mark.slow
def test_a_terminal_that_is_closed_leaves_a_run_to_resume(place: Place, endpoint: Endpoint) -> None:
    endpoint.configure(latency=0.2)
    with in_terminal(place, *RUN) as terminal:
        terminal.read_until(lambda: count_requests(endpoint) >= 24)
    endpoint.configure(latency=0.0)
    assert_resumable(place, "latest")


@dataclass(frozen=True, kw_only=True)
class Trouble:
    """A problem of a warehouse's place, and what the message must contain.

    `spoil` is given the path, where a sound warehouse lies if `is_old`; `limits` is what the process takes from itself:
    the second of two replaces the first, and there is nothing that it can take back of its rights.
    """

    expected: tuple[str, ...]
    is_old: bool = True
    spoil: Callable[[Path], object] = Path.stat
    limits: str = ""


def write_newer(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute("insert into migrations values (999, 'to_come', 'x', now()::timestamp)")


TROUBLES = {
    "a folder": Trouble(expected=("evalhouse.duckdb", "is a folder"), is_old=False, spoil=Path.mkdir),
    "no warehouse": Trouble(
        expected=("evalhouse.duckdb", "not a warehouse that DuckDB", "--warehouse"),
        spoil=lambda path: path.write_text("x"),
    ),
    "newer": Trouble(expected=("newer evalhouse", "update evalhouse"), spoil=write_newer),
    "new on a full disk": Trouble(
        expected=("no room to stage the dataset", "TMPDIR"),
        is_old=False,
        spoil=lambda _: None,
        limits=FULL_DISK.format(size=1000),
    ),
    "old on a full disk": Trouble(
        expected=("evalhouse.duckdb", "no room for replies", "make room", "--warehouse"),
        limits=FULL_DISK.format(size=15 * 2**20),
    ),
    "read-only": Trouble(
        expected=("evalhouse.duckdb", "cannot be written"),
        spoil=lambda path: path.chmod(0o400),
        limits=FULL_DISK.format(size="resource.RLIM_INFINITY") + BIND_RIGHTS,
    ),
    "in a read-only folder": Trouble(
        expected=("evalhouse.duckdb", "cannot write"), spoil=lambda path: path.parent.chmod(0o500)
    ),
}
# One process for all: it takes as long to begin as all of them take together.
ONE_AFTER_THE_OTHER = """
import contextlib, io, json, os, sys
from evalhouse.flows.cli import main

for folder, limits in json.loads(sys.argv[1]):
    exec(limits)
    os.chdir(folder)
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2)]
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        try:
            main(sys.argv[2:])
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([status, *(stream.buffer.getvalue().decode() for stream in streams)]), flush=True)
"""


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The end of a run whose warehouse could not be written, and its place."""

    place: Place
    finished: Finished
    endpoint: Endpoint


@pytest.fixture(scope="module")
def refused(
    tmp_path_factory: pytest.TempPathFactory, prefect_home: Path, server: dict[str, str]
) -> Iterator[dict[str, Refused]]:
    """A run for each trouble, by its name."""
    folder = tmp_path_factory.mktemp("troubles")
    (folder / "temporary").mkdir()
    with running_endpoint() as endpoint:
        variables = {"TMPDIR": str(folder / "temporary"), "PYTHONDONTWRITEBYTECODE": "1", **server}
        own = place_at(folder, prefect_home, endpoint.base_url).with_variables(**variables)
        places = {name: replace(own, folder=folder / name) for name in TROUBLES}
        for name, place in places.items():
            place.folder.mkdir()
            write_dataset(place.folder, make_rows(N_ROWS), "berths.jsonl")
            if TROUBLES[name].is_old:
                make_warehouse(place.folder).location.path.rename(warehouse_path(place))
            TROUBLES[name].spoil(warehouse_path(place))
        asked = [(str(place.folder), TROUBLES[name].limits) for name, place in places.items()]
        try:
            done = subprocess.run(
                [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(asked), *RUN],
                cwd=folder, env=own.environment(), capture_output=True, text=True, timeout=90, check=False,
            )  # fmt: skip
        finally:
            for place in places.values():
                place.folder.chmod(0o700)
        ended = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(ended) == len(TROUBLES), done.stderr
        yield {
            name: Refused(place=place, finished=Finished(status=status, stdout=out, stderr=err), endpoint=endpoint)
            for (name, place), (status, out, err) in zip(places.items(), ended, strict=True)
        }


@pytest.mark.parametrize("name", TROUBLES)
def test_a_warehouse_that_cannot_be_written_is_refused_before_anything_is_asked(
    refused: dict[str, Refused], name: str
) -> None:
    trouble, finished, place = TROUBLES[name], refused[name].finished, refused[name].place
    assert_no_crash(finished)
    assert finished.status == BAD_INPUT
    assert finished.stdout == ""
    assert finished.stderr.startswith("Error: ")
    assert finished.stderr.count("\n") == 1, finished.stderr
    assert [text for text in trouble.expected if text not in finished.stderr] == [], finished.stderr
    assert count_requests(refused[name].endpoint) == 0
    journal = place.folder / "evalhouse.duckdb.journal"
    assert not journal.exists() or list(journal.iterdir()) == []


def test_a_warehouse_in_a_folder_that_does_not_exist_is_made(place: Place) -> None:
    finished = place.call(*RUN, "--limit", "2", "--warehouse", "new/folder/w.duckdb", "--json")
    assert finished.status == 0, finished.stderr
    assert read_rows(place.folder / "new/folder/w.duckdb", "select status from runs") == [{"status": "completed"}]


@pytest.mark.slow  # some ten seconds
def test_a_disk_that_fills_up_stops_the_run_and_keeps_what_was_answered(place: Place, endpoint: Endpoint) -> None:
    endpoint.configure(latency=0.1)
    process = place.start(*RUN)
    wait_for(lambda: endpoint.stats.statuses[200] >= 40, process)
    (segment,) = (place.folder / "evalhouse.duckdb.journal").glob("*.jsonl")
    # No file may grow beyond what the journal has now and a few replies: the warehouse is larger already.
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (segment.stat().st_size + 30_000, hard))
    stopped = finish(process)
    assert_no_crash(stopped)
    assert stopped.status == INCOMPLETE, stopped
    assert "make room" in stopped.stderr
    n_kept = sum(read_recorded(warehouse_path(place)).values())
    assert 40 - 8 <= n_kept <= endpoint.stats.statuses[200] <= n_kept + 2 * 8, "lost is at most what was in flight"
    (run,) = list_runs(place)
    assert run["run_id"] == find_resume(stopped.stdout)
    n_lost = endpoint.stats.statuses[200] - n_kept
    assert f"; {n_lost} replies came that could not be kept" in stopped.stderr
    endpoint.configure(latency=0.0)
    assert_resumable(place, run["run_id"])
    assert endpoint.stats.duplicates_answered <= n_lost
