"""Locks that show whether a process works: visible to others, free when their holder dies, and reported as lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg
import pytest
from postgres_server import PostgresServer
from warehouse_processes import ROOT

from evalhouse.warehouse.engine.locks import _SessionLock, find_lock_file, hold, hold_file, list_held
from evalhouse.warehouse.errors import WarehouseBusy
from evalhouse.warehouse.location import Lake, Location, parse_location

_HOLDER = """
import sys, time
from evalhouse.warehouse.engine.locks import hold
from evalhouse.warehouse.location import parse_location
location = parse_location(sys.argv[1])
with hold(location, sys.argv[2], patience_s=30, busy="taken"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["sqlite", "postgres"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setenv("EVALHOUSE_STATE_DIR", str(tmp_path / "state"))
    if request.param == "sqlite":
        return parse_location(f"ducklake:sqlite:///{tmp_path / 'catalogue.sqlite'}?data={tmp_path / 'files'}")
    server: PostgresServer = request.getfixturevalue("postgres")
    return parse_location(f"ducklake:{server.make_database(f'locks{time.time_ns()}')}?data={tmp_path / 'files'}")


def _lake(location: Location) -> Lake:
    assert location.lake is not None
    return location.lake


def _start_holder(location: Location, name: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, location.url, name],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_others_see_what_is_held(location: Location) -> None:
    names = ["part-r1-1", "part-r1-129", "part-r2-1"]
    assert list_held(location, names) == set()
    with hold(location, "part-r1-129", patience_s=5, busy="taken") as lock:
        assert lock.is_held()
        assert list_held(location, names) == {"part-r1-129"}
        with (
            pytest.raises(WarehouseBusy, match="it is taken"),
            hold(location, "part-r1-129", patience_s=0.1, busy="it is taken"),
        ):
            pass
    assert list_held(location, names) == set()


def test_a_lock_is_free_when_its_holder_is_killed(location: Location) -> None:
    holder = _start_holder(location, "part-r1-1")
    assert list_held(location, ["part-r1-1"]) == {"part-r1-1"}
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    with hold(location, "part-r1-1", patience_s=30, busy="taken"):
        assert list_held(location, ["part-r1-1"]) == {"part-r1-1"}


def test_lock_files_beside_a_catalogue_are_removed(tmp_path: Path) -> None:
    location = parse_location(f"ducklake:sqlite:///{tmp_path / 'catalogue.sqlite'}?data={tmp_path / 'files'}")
    with hold(location, "part-r1-1", patience_s=5, busy="taken"):
        assert list(tmp_path.glob("*part-r1-1*"))
    holder = _start_holder(location, "part-r1-2")
    holder.kill()
    holder.communicate()
    assert list_held(location, ["part-r1-2"]) == set()
    assert not list(tmp_path.glob("*part-r1*"))


def test_machines_that_see_the_files_at_two_paths_share_their_locks(postgres: PostgresServer, tmp_path: Path) -> None:
    """A container and its host wrote at once, and resumed a run that the other was at."""
    address = postgres.make_database("mounted")
    here, there = (parse_location(f"ducklake:{address}?data={tmp_path / name}") for name in ("here", "there"))
    with hold(here, "write", patience_s=5, busy="taken"):
        with pytest.raises(WarehouseBusy, match="taken"), hold(there, "write", patience_s=0.1, busy="taken"):
            pass
        assert list_held(there, ["write"]) == {"write"}


def test_a_lock_outlives_a_restart_of_the_server(postgres: PostgresServer, tmp_path: Path) -> None:
    location = parse_location(f"ducklake:{postgres.make_database('restarted')}?data={tmp_path}")
    with hold(location, "part-r1-1", patience_s=5, busy="taken") as lock:
        postgres.stop()
        try:
            assert lock.is_held()  # no other process can take it while the server is down
        finally:
            postgres.start()
        assert lock.is_held()
        assert list_held(location, ["part-r1-1"]) == {"part-r1-1"}


def test_lock_that_another_process_has_taken_is_lost(postgres: PostgresServer, tmp_path: Path) -> None:
    location = parse_location(f"ducklake:{postgres.make_database('taken')}?data={tmp_path}")
    with hold(location, "part-r1-1", patience_s=5, busy="taken") as lock:
        with psycopg.connect(_lake(location).dsn, autocommit=True) as session:
            session.execute("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory'")
        holder = _start_holder(location, "part-r1-1")
        assert not lock.is_held()
        holder.communicate()
        assert lock.is_held()  # free again, and taken


def test_a_server_that_is_out_of_reach_for_long_has_given_the_lock_away(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = parse_location(f"ducklake:{postgres.make_database('away')}?data={tmp_path}")
    with hold(location, "part-r1-1", patience_s=5, busy="taken") as lock:
        postgres.stop()
        try:
            assert lock.is_held()
            monkeypatch.setattr("evalhouse.warehouse.engine.locks.GONE_S", 0.0)
            assert not lock.is_held()
        finally:
            postgres.start()


def test_a_dead_machine_lets_go_within_seconds(postgres: PostgresServer, tmp_path: Path) -> None:
    """The server asks a silent session whether it is there, instead of waiting for two hours as systems do."""
    location = parse_location(f"ducklake:{postgres.make_database('silent')}?data={tmp_path}")
    with hold(location, "part-r1-1", patience_s=5, busy="taken") as lock:
        assert lock.is_held()
        assert isinstance(lock, _SessionLock)
        assert lock._session is not None
        shown = [
            int(str(next(iter(lock._session.execute(f"show {name}")))[0]))
            for name in ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
        ]
    idle_s, every_s, times = shown
    assert 0 < idle_s + every_s * times <= 30


def test_processes_of_a_machine_take_turns(location: Location) -> None:
    seen: list[str] = []

    def take_turn(name: str) -> None:
        with hold_file(find_lock_file(location, "orphans"), patience_s=30, busy="taken"):
            seen.append(f"{name} in")
            time.sleep(0.05)
            seen.append(f"{name} out")

    threads = [threading.Thread(target=take_turn, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.split()[1] for one in seen] == ["in", "out", "in", "out"]
    with (
        hold_file(find_lock_file(location, "orphans"), patience_s=5, busy="taken"),
        pytest.raises(WarehouseBusy, match="another process has it"),
        hold_file(find_lock_file(location, "orphans"), patience_s=0.1, busy="another process has it"),
    ):
        pass
