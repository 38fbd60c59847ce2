"""Prefect's database under a served suite: `evalhouse serve` deletes old flow runs and events by itself."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from serve_house import ServeHouse, open_serve_house

pytestmark = pytest.mark.slow

SUITE, KB = "nightly", "handbook"


def open_database(house: ServeHouse) -> closing[sqlite3.Connection]:
    path = Path(house.place.variables["PREFECT_HOME"]) / "prefect.db"
    return closing(sqlite3.connect(path, timeout=60))


def count(house: ServeHouse, what: str) -> int:
    with open_database(house) as database:
        return int(database.execute(f"select count(*) from {what}").fetchone()[0])


def test_serving_deletes_old_flow_runs_and_old_events(tmp_path: Path) -> None:
    """A night that was served is made old, and the suite served again."""
    with open_serve_house(tmp_path) as house:
        house.serve(house.write_suite(SUITE, kb_name=KB))
        house.announce(KB, "v1")
        house.wait_for_runs(SUITE, 1)
        assert house.stop() == 0
        then = f"{datetime.now(UTC) - timedelta(days=40):%Y-%m-%d %H:%M:%S.%f}"
        with open_database(house) as database, database:
            for change in ("flow_run set end_time", "events set occurred", "event_resources set occurred"):
                database.execute(f"update {change} = ?", (then,))
        n_old = count(house, "flow_run where deployment_id is not null")
        house.serve(house.folder / f"{SUITE}.toml")
        runs = f"{n_old} flow run{'s' if n_old > 1 else ''}"
        house.wait_until(lambda: f"deleted from Prefect's history: {SUITE} {runs} older than 30d" in house.output)
        assert [count(house, table) for table in ("flow_run", "task_run", "artifact")] == [0, 0, 0]
        house.wait_until(lambda: count(house, "log") == 0)
        house.wait_until(lambda: count(house, f"events where occurred <= '{then}'") == 0)
        house.wait_until(lambda: count(house, f"event_resources where occurred <= '{then}'") == 0)
        assert count(house, "deployment") == 1
        assert house.stop() == 0
