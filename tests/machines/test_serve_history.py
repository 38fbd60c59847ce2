"""Prefect's database under a served suite: `evalhouse serve` deletes old flow runs by itself, and half a year of nights
takes no more room than its last weeks. The nights are copies of one that was really served."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from serve_house import ServeHouse, open_serve_house

from evalhouse.flows.server.api import PrefectApi
from evalhouse.flows.serving.flow_runs import ServedSuite, delete_old

pytestmark = pytest.mark.slow

SUITE, KB = "nightly", "handbook"
TABLES = ("flow_run", "flow_run_state", "task_run", "task_run_state", "log", "artifact", "artifact_collection")
NIGHTS, WEEK, KEPT = 182, 7, timedelta(days=30)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeHouse]:
    """A suite that was served for one night, and is served no more."""
    with open_serve_house(tmp_path_factory.mktemp("history")) as house:
        house.serve(house.write_suite(SUITE, kb_name=KB))
        house.announce(KB, "v1")
        house.wait_for_runs(SUITE, 1)
        assert house.stop() == 0
        yield house


def open_database(house: ServeHouse) -> closing[sqlite3.Connection]:
    path = Path(house.place.variables["PREFECT_HOME"]) / "prefect.db"
    return closing(sqlite3.connect(path, timeout=60))


def count(house: ServeHouse, what: str) -> int:
    with open_database(house) as database:
        return int(database.execute(f"select count(*) from {what}").fetchone()[0])


class Night:
    """The rows of the one night, by table, to be copied as other nights."""

    def __init__(self, database: sqlite3.Connection) -> None:
        database.row_factory = sqlite3.Row
        self._rows = {table: [dict(row) for row in database.execute(f"select * from {table}")] for table in TABLES}
        self._ids = [row["id"] for rows in self._rows.values() for row in rows]
        names = {row["name"] for row in self._rows["flow_run"] if row["deployment_id"]}
        (self._run_id,) = (str(name).removeprefix(f"{SUITE} ") for name in names)

    def write(self, database: sqlite3.Connection, ended: datetime) -> None:
        others = {one: str(uuid.uuid4()) for one in self._ids} | {self._run_id: f"{ended:%Y%m%d-%H%M%S}-abcd"}
        for table, rows in self._rows.items():
            for row in rows:
                copy = {column: _replace(value, others) for column, value in row.items()}
                if table == "flow_run":
                    copy["end_time"] = f"{ended:%Y-%m-%d %H:%M:%S.%f}"
                    copy["idempotency_key"] = uuid.uuid4().hex
                names, marks = ", ".join(f'"{name}"' for name in copy), ", ".join("?" * len(copy))
                # The page of a suite has one row for all its versions.
                database.execute(f"insert or ignore into {table} ({names}) values ({marks})", list(copy.values()))


def _replace(value: Any, others: dict[str, str]) -> Any:  # noqa: ANN401  # any value of SQLite
    if isinstance(value, str):
        for one, other in others.items():
            value = value.replace(one, other)
    return value


def measure(database: sqlite3.Connection) -> int:
    """Bytes of the file, with what is free in it."""
    pages, size = (database.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages) * int(size)


def test_half_a_year_of_nights_takes_no_more_room_than_its_last_weeks(house: ServeHouse) -> None:
    house.serve(house.folder / f"{SUITE}.toml")
    api = PrefectApi({"PREFECT_API_URL": house.api_url})
    (deployment,) = api.post("/deployments/filter", {})
    suite = ServedSuite(
        name=SUITE, source=None, deployment_id=deployment["id"], served_since=datetime(2026, 1, 1), warehouse_url=""
    )
    first, sizes = datetime.now(UTC) + timedelta(days=60), []  # not yet old for the process that serves
    with open_database(house) as database:
        night = Night(database)
        for number in range(NIGHTS):
            ended = first + timedelta(days=number)
            with database:
                night.write(database, ended)
            if number % WEEK == WEEK - 1:
                while delete_old(api, suite, before=ended - KEPT):
                    pass
                with database:  # events of the deletions, which Prefect keeps for 30 days of its clock
                    for table in ("events", "event_resources"):
                        database.execute(f"delete from {table}")
                sizes.append(measure(database))
    orphans = "flow_run_id not in (select id from flow_run)"
    house.wait_until(lambda: count(house, f"log where {orphans}") == 0)
    assert house.stop() == 0
    a_week = (sizes[3] - sizes[0]) / 3
    kept_weeks = KEPT.days / WEEK + 2
    assert max(sizes) - sizes[0] < kept_weeks * a_week * 1.5, sizes
    assert len(sizes) * a_week > 3 * (max(sizes) - sizes[0]), sizes  # what it would have come to
    assert count(house, "flow_run") <= 2 * (1 + KEPT.days + WEEK)
    assert [count(house, f"{table} where {orphans}") for table in ("artifact", "artifact_collection")] == [0, 0]


def test_serving_deletes_old_flow_runs_and_old_events(house: ServeHouse) -> None:
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
