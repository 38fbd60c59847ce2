"""Every night's run completes once and no process is left over, though processes are killed and files held meanwhile.

Ninety seconds by default; an hour by

    NIGHT_DRILL_MINUTES=60 pytest -n 0 -m slow -s tests/machines/test_night_drill.py
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer, start_postgres
from serve_house import QUESTIONS, ServeHouse, open_serve_house
from warehouse_processes import open_when_free

from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.store import Warehouse

FILE, LAKE = "file", "lake"
SUPERVISED_S = (1.0, 30.0)  # after so long a supervisor starts what has ended
PAUSE_S = (15.0, 45.0)  # between two blows
HELD_S = (3.0, 30.0)
DOWN_S = (1.0, 15.0)
SETTLED_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process of the drill's house."""

    pid: int
    parent: int
    command: str


@dataclass(kw_only=True)
class Drill:
    """One drill; `blows` counts what was done, `notes` is what happened, in order."""

    house: ServeHouse
    postgres: PostgresServer
    lake_url: str
    suites: tuple[Path, ...]
    chance: random.Random
    blows: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    helpers: list[threading.Thread] = field(default_factory=list)

    def run(self, minutes: float) -> None:
        """Serve and strike for so long, then let it settle and stop it in good order."""
        self._serve()
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            self._wait(self.chance.uniform(*PAUSE_S))
            self._strike()
        for helper in self.helpers:
            helper.join()
        before = {name: {run["run_id"] for run in self.list_runs(name)} for name in (FILE, LAKE)}
        self._wait_until(lambda: all(self._has_run_since(name, before[name]) for name in (FILE, LAKE)))
        assert self.house.stop() == 0, self.house.output
        # Runs that were stopped in good order are resumed when they are served again; nothing new falls due.
        for path in self.suites:
            path.write_text(path.read_text(encoding="utf-8").replace('"* * * * *"', '"0 0 1 1 *"'), encoding="utf-8")
        self._serve()
        self._wait_until(lambda: not any(self.list_unfinished(name) for name in (FILE, LAKE)))
        assert self.house.stop() == 0, self.house.output

    def list_unfinished(self, suite: str) -> list[str]:
        """Return runs that have not completed, and times of the schedule that have passed without their result:
        a run that has completed, a later run that made up for it, or another flow run in its place."""
        runs = self.list_runs(suite)
        left = [f"{run['run_id']} {run['status']}" for run in runs if run["status"] != "completed"]
        completed = {run["run_id"] for run in runs}
        body = {"deployments": {"name": {"any_": [suite]}}, "limit": 200, "sort": "EXPECTED_START_TIME_DESC"}
        begun = {"state": {"type": {"not_any_": ["SCHEDULED"]}}}
        queued = {"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": _now()}}
        for conditions in (begun, queued):
            for flow_run in self.house.post("/flow_runs/filter", {**body, "flow_runs": conditions}):
                is_answered = (
                    flow_run["state_name"] in ("Superseded", "NothingNew")
                    or flow_run["name"].removeprefix(f"{suite} ") in completed
                    or "queued again" in flow_run["tags"]
                )
                if not is_answered:
                    left.append(f"{flow_run['expected_start_time']} {flow_run['name']} {flow_run['state_name']}")
        return left

    def list_runs(self, suite: str) -> list[dict[str, Any]]:
        """The runs of a suite, oldest first; none while its warehouse cannot be read."""
        return self._read(suite, "from runs order by started_at")

    def list_doubled(self, suite: str) -> list[dict[str, Any]]:
        """Samples, statements and scores that a run has more than once."""
        keys = {
            "run_samples": "sample_id",
            "responses": "sample_id",
            "statements": "sample_id, statement_id",
            "scores": "sample_id, metric",
        }
        counts = [
            f"select '{table}' as name, run_id, {keyed}::varchar as key from {table} group by all having count(*) > 1"
            for table, keyed in ((table, f"({columns})") for table, columns in keys.items())
        ]
        return self._read(suite, " union all ".join(counts))

    def count_scored(self, suite: str) -> dict[str, int]:
        """Return the number of scored samples of each run."""
        rows = self._read(
            suite, "select run_id, count(distinct sample_id) as n from scores where value >= 0 group by all"
        )
        return {row["run_id"]: row["n"] for row in rows}

    def list_processes(self) -> list[Process]:
        """All processes whose Prefect folder is that of the house."""
        home = f"PREFECT_HOME={self.house.place.variables['PREFECT_HOME']}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if home in (folder / "environ").read_bytes().split(b"\0"):
                    parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                    command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found.append(Process(pid=int(folder.name), parent=parent, command=command))
        return found

    def _read(self, suite: str, sql: str) -> list[dict[str, Any]]:
        url = self.lake_url if suite == LAKE else f"duckdb:///{self.house.folder / f'{suite}.duckdb'}"
        with contextlib.suppress(WarehouseError):
            return Warehouse(url).read_rows(sql)
        return []

    def _note(self, text: str) -> None:
        self.notes.append(f"{time.strftime('%H:%M:%S')} {text}")

    def _serve(self) -> None:
        """Start `serve`, and again when it does not come up: something that it needs may have been killed."""
        for _ in range(5):
            try:
                self.house.serve(*self.suites, parallel=len(self.suites))
                return
            except AssertionError:
                assert self.house.process is not None
                self._note(f"serve did not come up: {self.house.output[-300:]}")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.house.process.pid, signal.SIGKILL)
                self.house.process.wait()
        raise AssertionError(self.house.output)

    def _wait(self, seconds: float) -> None:
        """Wait, and be the supervisor meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            process = self.house.process
            if process is not None and process.poll() is not None:
                self._note(f"serve ended with status {process.returncode}")
                time.sleep(self.chance.uniform(*SUPERVISED_S))
                self._serve()
            time.sleep(0.2)

    def _strike(self) -> None:
        blows: Mapping[str, Callable[[], object]] = {
            "server": lambda: self._kill("server.local"),
            "serve": self._kill_serve,
            "run": lambda: self._kill("prefect.engine"),
            "postgres": lambda: self._aside(self._stop_postgres),
            "reader": lambda: self._aside(lambda: self._hold("reading")),
            "writer": lambda: self._aside(lambda: self._hold("writing")),
        }
        name = self.chance.choice(list(blows))
        if blows[name]() is not False:
            self.blows[name] += 1
            self._note(name)

    def _kill(self, what: str) -> bool:
        """Send `kill -9` to one of the processes with this in their command; False without one."""
        found = [process for process in self.list_processes() if what in process.command]
        if not found:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.chance.choice(found).pid, signal.SIGKILL)
        return True

    def _kill_serve(self) -> None:
        """Kill only the process that serves: its runs live on. The supervisor finds it."""
        assert self.house.process is not None
        self.house.process.kill()
        self.house.process.wait()

    def _aside(self, act: Callable[[], None]) -> bool:
        """Do what takes a while beside everything else, one such thing at a time."""
        self.helpers = [helper for helper in self.helpers if helper.is_alive()]
        if self.helpers:
            return False
        helper = threading.Thread(target=act, daemon=True)
        helper.start()
        self.helpers.append(helper)
        return True

    def _stop_postgres(self) -> None:
        self.postgres.stop()
        time.sleep(self.chance.uniform(*DOWN_S))
        self.postgres.start()

    def _hold(self, how: str) -> None:
        path = self.house.folder / f"{FILE}.duckdb"
        if path.exists():
            script = f"{open_when_free(read_only=how == 'reading')}time.sleep({self.chance.uniform(*HELD_S)})"
            subprocess.run([sys.executable, "-c", script, str(path)], check=True)

    def _wait_until(self, is_reached: Callable[[], bool]) -> None:
        end = time.monotonic() + SETTLED_S
        while not is_reached():
            left = [self.list_unfinished(name) for name in (FILE, LAKE)] if time.monotonic() > end else []
            assert time.monotonic() < end, f"it does not settle: {left}"
            self._wait(1.0)

    def _has_run_since(self, name: str, before: set[str]) -> bool:
        return any(run["run_id"] not in before and run["status"] == "completed" for run in self.list_runs(name))

    def describe(self) -> str:
        """Return what was done, and the results."""
        lines = [f"blows: {dict(self.blows)}", *self.notes]
        for name in (FILE, LAKE):
            lines += [f"{name} {run['run_id']} {run['status']} {run['problem'] or ''}" for run in self.list_runs(name)]
        return "\n".join(lines)


def write_suites(house: ServeHouse, lake_url: str) -> tuple[Path, ...]:
    """Two suites that run every minute: one with a file, one with a lake whose catalogue is in PostgreSQL."""
    paths = house.write_suite(FILE, cron="* * * * *"), house.write_suite(LAKE, cron="* * * * *")
    text = paths[1].read_text(encoding="utf-8").replace(f'"{LAKE}.duckdb"', f'"{lake_url}"')
    paths[1].write_text(text, encoding="utf-8")
    house.bot.configure(slow_s=1.0)
    return paths


def _now() -> str:
    return datetime.now(UTC).isoformat()


N_SAMPLES = len(QUESTIONS)


pytestmark = pytest.mark.slow

MINUTES = float(os.environ.get("NIGHT_DRILL_MINUTES", "1.5"))
SEED = int(os.environ.get("NIGHT_DRILL_SEED", str(time.time_ns() % 10_000)))


def test_every_run_completes_once_after_kills(tmp_path: Path) -> None:
    print(f"NIGHT_DRILL_SEED={SEED} NIGHT_DRILL_MINUTES={MINUTES:g}")
    with start_postgres() as postgres, open_serve_house(tmp_path) as house:
        lake_url = f"ducklake:{postgres.make_database('night')}?data={tmp_path / 'lake'}"
        suites = write_suites(house, lake_url)
        drill = Drill(house=house, postgres=postgres, lake_url=lake_url, suites=suites, chance=random.Random(SEED))
        began = time.time()
        try:
            drill.run(MINUTES)
        finally:
            print(drill.describe())
            print("\n".join(path.read_text(encoding="utf-8") for path in house.printed))
        n_minutes = int((time.time() - began) // 60) + 2
        for name in (FILE, LAKE):
            runs = drill.list_runs(name)
            assert {run["status"] for run in runs} == {"completed"}
            assert len(runs) <= n_minutes
            assert drill.count_scored(name) == {run["run_id"]: N_SAMPLES for run in runs}
            assert drill.list_doubled(name) == []
        assert drill.list_processes() == []
