"""Every night's run completes once and no process is left over, though processes are killed and files held meanwhile.

Two suites with a schedule of one run a minute are served by a process that a supervisor starts again. Server, serving
process, runs and PostgreSQL are killed at random, and others hold the file open. Ninety seconds by default; an hour by

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
from collections.abc import Callable
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

pytestmark = pytest.mark.slow

MINUTES = float(os.environ.get("NIGHT_DRILL_MINUTES", "1"))
SEED = int(os.environ.get("NIGHT_DRILL_SEED", str(time.time_ns() % 10_000)))
FILE, LAKE = "file", "lake"
SUPERVISED_S = (1.0, 30.0)  # after so long a supervisor starts what has ended
PAUSE_S = (15.0, 45.0)  # between two blows
HELD_S, DOWN_S = (3.0, 30.0), (1.0, 15.0)
SETTLED_S = 600.0
# Columns that distinguish the rows of a run.
KEYS = {
    "run_samples": "sample_id",
    "responses": "sample_id",
    "statements": "sample_id, statement_id",
    "scores": "sample_id, metric",
}


@dataclass(kw_only=True)
class Drill:
    """One drill; `notes` is what happened, in order."""

    house: ServeHouse
    postgres: PostgresServer
    lake_url: str
    suites: tuple[Path, ...]
    chance: random.Random
    notes: list[str] = field(default_factory=list)
    helper: threading.Thread | None = None

    def serve(self) -> None:
        """Start `serve`, and again when it does not come up: something that it needs may have been killed."""
        for _ in range(5):
            try:
                self.house.serve(*self.suites, parallel=len(self.suites))
                return
            except AssertionError:
                self.note(f"serve did not come up: {self.house.output[-300:]}")
                self.kill_serve()
        raise AssertionError(self.house.output)

    def note(self, text: str) -> None:
        self.notes.append(f"{time.strftime('%H:%M:%S')} {text}")

    def wait(self, seconds: float) -> None:
        """Wait, and be the supervisor meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            process = self.house.process
            if process is not None and process.poll() is not None:
                self.note(f"serve ended with status {process.returncode}")
                time.sleep(self.chance.uniform(*SUPERVISED_S))
                self.serve()
            time.sleep(0.2)

    def wait_until(self, is_reached: Callable[[], bool]) -> None:
        end = time.monotonic() + SETTLED_S
        while not is_reached():
            assert time.monotonic() < end, (
                f"it does not settle: {[self.list_unfinished(name) for name in (FILE, LAKE)]}"
            )
            self.wait(1.0)

    def strike(self) -> None:
        """Kill a process or, one at a time beside everything else, stop PostgreSQL or hold the file."""
        name = self.chance.choice(["server.local", "serve", "prefect.engine", "postgres", "reading", "writing"])
        self.note(name)
        if name == "serve":
            self.kill_serve()
        elif "." in name:
            processes = [pid for pid, command in self.list_processes().items() if name in command]
            if processes:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.chance.choice(processes), signal.SIGKILL)
        elif self.helper is None or not self.helper.is_alive():
            act = self.stop_postgres if name == "postgres" else self.hold_file
            self.helper = threading.Thread(target=act, args=(name,), daemon=True)
            self.helper.start()

    def kill_serve(self) -> None:
        """Kill only the process that serves: its runs live on. The supervisor finds it."""
        assert self.house.process is not None
        self.house.process.kill()
        self.house.process.wait()

    def stop_postgres(self, _: str) -> None:
        self.postgres.stop()
        time.sleep(self.chance.uniform(*DOWN_S))
        self.postgres.start()

    def hold_file(self, how: str) -> None:
        path = self.house.folder / f"{FILE}.duckdb"
        if path.exists():
            script = f"{open_when_free(read_only=how == 'reading')}time.sleep({self.chance.uniform(*HELD_S)})"
            subprocess.run([sys.executable, "-c", script, str(path)], check=True)

    def list_processes(self) -> dict[int, str]:
        """Return the commands of all processes whose Prefect folder is that of the house."""
        home = f"PREFECT_HOME={self.house.place.variables['PREFECT_HOME']}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if home in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def read(self, suite: str, sql: str = "from runs order by started_at") -> list[dict[str, Any]]:
        """Return rows of a suite's warehouse, by default its runs; none while it cannot be read."""
        url = self.lake_url if suite == LAKE else f"duckdb:///{self.house.folder / f'{suite}.duckdb'}"
        with contextlib.suppress(WarehouseError):
            return Warehouse(url).read_rows(sql)
        return []

    def list_unfinished(self, suite: str) -> list[str]:
        """Return runs that have not completed, and times of the schedule that have passed without their result:
        a run that has completed, a later run that made up for it, or another flow run in its place."""
        runs = self.read(suite)
        left = [f"{run['run_id']} {run['status']}" for run in runs if run["status"] != "completed"]
        completed = {run["run_id"] for run in runs}
        body = {"deployments": {"name": {"any_": [suite]}}, "limit": 200, "sort": "EXPECTED_START_TIME_DESC"}
        begun = {"state": {"type": {"not_any_": ["SCHEDULED"]}}}
        now = datetime.now(UTC).isoformat()
        queued = {"state": {"type": {"any_": ["SCHEDULED"]}}, "expected_start_time": {"before_": now}}
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

    def run(self) -> None:
        """Serve and strike, then let it settle and stop it in good order."""
        self.serve()
        end = time.monotonic() + 60 * MINUTES
        while time.monotonic() < end:
            self.wait(self.chance.uniform(*PAUSE_S))
            self.strike()
        if self.helper is not None:
            self.helper.join()
        for name in (FILE, LAKE):
            before = {run["run_id"] for run in self.read(name)}
            self.wait_until(
                lambda: any(run["status"] == "completed" and run["run_id"] not in before for run in self.read(name))  # noqa: B023
            )
        assert self.house.stop() == 0, self.house.output
        # Runs that were stopped in good order are resumed when they are served again; nothing new falls due.
        for path in self.suites:
            path.write_text(path.read_text(encoding="utf-8").replace('"* * * * *"', '"0 0 1 1 *"'), encoding="utf-8")
        self.serve()
        self.wait_until(lambda: not any(self.list_unfinished(name) for name in (FILE, LAKE)))
        assert self.house.stop() == 0, self.house.output


def test_every_run_completes_once_after_kills(tmp_path: Path) -> None:
    with start_postgres() as postgres, open_serve_house(tmp_path) as house:
        lake_url = f"ducklake:{postgres.make_database('night')}?data={tmp_path / 'lake'}"
        suites = house.write_suite(FILE, cron="* * * * *"), house.write_suite(LAKE, cron="* * * * *")
        text = suites[1].read_text(encoding="utf-8").replace(f'"{LAKE}.duckdb"', f'"{lake_url}"')
        suites[1].write_text(text, encoding="utf-8")
        house.bot.configure(slow_s=1.0)
        drill = Drill(house=house, postgres=postgres, lake_url=lake_url, suites=suites, chance=random.Random(SEED))
        began = time.time()
        try:
            drill.run()
        finally:
            print(f"NIGHT_DRILL_SEED={SEED} NIGHT_DRILL_MINUTES={MINUTES:g}", *drill.notes, sep="\n")
            print("\n".join(path.read_text(encoding="utf-8") for path in house.printed))
        n_minutes = int((time.time() - began) // 60) + 2
        for name in (FILE, LAKE):
            runs = drill.read(name)
            assert {run["status"] for run in runs} == {"completed"}
            assert len(runs) <= n_minutes
            scored = "select run_id, count(distinct sample_id) as n from scores where value >= 0 group by all"
            counts = {row["run_id"]: row["n"] for row in drill.read(name, scored)}
            assert counts == {run["run_id"]: len(QUESTIONS) for run in runs}
            for table, columns in KEYS.items():
                assert drill.read(name, f"select run_id, {columns} from {table} group by all having count(*) > 1") == []
        assert drill.list_processes() == {}
