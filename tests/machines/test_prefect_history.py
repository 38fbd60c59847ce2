"""Prefect's history of served suites on a real server: what is old goes with all that hangs on it, and nothing of
anybody else's."""

from __future__ import annotations

import sqlite3
import time
import uuid
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from prefect_holder import find_home, find_server

from evalhouse.flows.server.api import TAG, PrefectApi, PrefectApiError, tag_run
from evalhouse.flows.serving.flow_runs import _REST_S, HistoryLimit, ServedSuite, delete_old, name_flow_run

OLD, YOUNG = timedelta(days=40), timedelta(days=20)
TIMEOUT_S = 60.0


@dataclass(kw_only=True)
class Records:
    """Flow runs at a real server, made by its API; when they ended is written into its database."""

    api: PrefectApi

    def make_suite(self) -> ServedSuite:
        """A deployment with a unique name, as the server is shared."""
        name = f"suite-{uuid.uuid4().hex[:8]}"
        flow_id = self.api.post("/flows/", {"name": "evaluate-suite"})["id"]
        deployment = self.api.post("/deployments/", {"name": name, "flow_id": flow_id})
        return ServedSuite(
            name=name,
            source=None,
            deployment_id=deployment["id"],
            served_since=datetime(2026, 1, 1),
            warehouse_url="duckdb:///never.duckdb",
        )

    def add(self, *, age: timedelta, state: str = "COMPLETED", **values: object) -> str:
        """A flow run with a log line, an artifact and a task run; ended so long ago."""
        flow_id = self.api.post("/flows/", {"name": "evaluate-suite"})["id"]
        body = {"flow_id": flow_id, "state": {"type": state}, **values}
        flow_run_id: str = self.api.post("/flow_runs/", body)["id"]
        self.add_task_run(flow_run_id)
        self.api.post("/artifacts/", {"key": f"page-{uuid.uuid4().hex}", "data": "x", "flow_run_id": flow_run_id})
        line = {"name": "flow", "level": 20, "message": "hello", "flow_run_id": flow_run_id}
        self.api.post("/logs/", [{**line, "timestamp": datetime.now(UTC).isoformat()}])
        if state != "RUNNING":
            ended = f"{datetime.now(UTC) - age:%Y-%m-%d %H:%M:%S.%f}"
            self._change("update flow_run set end_time = ? where id = ?", ended, flow_run_id)
        return flow_run_id

    def add_within(self, parent_id: str, **values: object) -> str:
        """A flow run that another started, as Prefect records it: by way of a task run of that."""
        return self.add(parent_task_run_id=self.add_task_run(parent_id), **{"age": OLD, **values})  # type: ignore[arg-type]

    def add_task_run(self, flow_run_id: str) -> str:
        body = {"flow_run_id": flow_run_id, "task_key": "t", "dynamic_key": uuid.uuid4().hex}
        task_run_id: str = self.api.post("/task_runs/", {**body, "state": {"type": "COMPLETED"}})["id"]
        return task_run_id

    def count(self, flow_run_id: str) -> dict[str, int]:
        """Rows that belong to a flow run, by table; only those there are."""
        own = {"flow_run": "id", "flow_run_state": "flow_run_id", "task_run": "flow_run_id"}
        own |= {"log": "flow_run_id", "artifact": "flow_run_id", "artifact_collection": "flow_run_id"}
        counts = {table: self._count(table, column, flow_run_id) for table, column in own.items()}
        return {table: n for table, n in counts.items() if n}

    def count_task_states(self) -> int:
        """States whose task run is not there any more."""
        return self._read("select count(*) from task_run_state where task_run_id not in (select id from task_run)")

    def wait_until_gone(self, *flow_run_ids: str) -> None:
        """Prefect deletes logs a moment later."""
        deadline = time.monotonic() + TIMEOUT_S
        while left := {one: self.count(one) for one in flow_run_ids if self.count(one)}:
            assert time.monotonic() < deadline, left
            time.sleep(0.05)

    def _count(self, table: str, column: str, value: str) -> int:
        return self._read(f"select count(*) from {table} where {column} = ?", value)

    def _read(self, sql: str, *values: str) -> int:
        with closing(self._connect()) as database:
            return int(database.execute(sql, values).fetchone()[0])

    def _change(self, sql: str, *values: str) -> None:
        with closing(self._connect()) as database, database:
            assert database.execute(sql, values).rowcount == 1

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(find_home() / "prefect.db", timeout=TIMEOUT_S)


@pytest.fixture
def records() -> Records:
    return Records(api=PrefectApi(find_server()))


def cut(records: Records, suite: ServedSuite) -> int:
    return delete_old(records.api, suite, before=datetime.now(UTC) - timedelta(days=30))


def test_an_old_flow_run_goes_with_all_that_hangs_on_it(records: Records) -> None:
    suite = records.make_suite()
    root = records.add(age=OLD, deployment_id=suite.deployment_id)
    child = records.add_within(root)
    grandchild = records.add_within(child, state="RUNNING")  # its process was killed, and Prefect never knew
    assert set(records.count(root)) == {
        "flow_run", "flow_run_state", "task_run", "log", "artifact", "artifact_collection"
    }  # fmt: skip
    assert cut(records, suite) == 1
    records.wait_until_gone(root, child, grandchild)
    assert records.count_task_states() == 0
    assert cut(records, suite) == 0


def test_young_running_and_foreign_flow_runs_stay(records: Records) -> None:
    suite, other = records.make_suite(), records.make_suite()
    old = records.add(age=OLD, deployment_id=suite.deployment_id)
    stays = [
        records.add(age=YOUNG, deployment_id=suite.deployment_id),
        records.add(age=OLD, deployment_id=suite.deployment_id, state="RUNNING"),
        records.add(age=OLD, deployment_id=other.deployment_id),
        records.add(age=OLD),  # by hand, of the same flow
        records.add_within(old, deployment_id=other.deployment_id),  # another deployment, started from within ours
    ]
    before = [records.count(one) for one in stays]
    assert cut(records, suite) == 1
    records.wait_until_gone(old)
    assert [records.count(one) for one in stays] == before


def test_parts_in_a_work_pool_go_with_their_run(records: Records) -> None:
    suite, pool = records.make_suite(), records.make_suite()
    run_id, other_id = uuid.uuid4().hex, uuid.uuid4().hex
    root = records.add(age=OLD, deployment_id=suite.deployment_id, name=name_flow_run(suite.name, run_id))
    part = records.add(age=OLD, deployment_id=pool.deployment_id, tags=[TAG, tag_run(run_id)])
    stays = [
        records.add(age=OLD, deployment_id=pool.deployment_id, tags=[TAG, tag_run(other_id)]),
        records.add(age=OLD, deployment_id=pool.deployment_id, tags=[tag_run(run_id)]),
    ]
    assert cut(records, suite) == 1
    records.wait_until_gone(root, part)
    assert all(records.count(one)["flow_run"] for one in stays)


def test_a_line_a_day_says_what_was_deleted(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.flows.serving.flow_runs._A_STEP", 2)
    suite, forever = records.make_suite(), records.make_suite()
    for kept in (suite, forever):
        records.add(age=OLD, deployment_id=kept.deployment_id)
    for _ in range(2):
        records.add(age=OLD, deployment_id=suite.deployment_id)
    limit = HistoryLimit(records.api, [(suite, "30d"), (forever, "never")])
    lines = [limit.step() for _ in range(5)]
    printed = f"deleted from Prefect's history: {suite.name} 3 flow runs older than 30d"
    assert lines == [[], [], [printed], [], []]
    assert records.api.post("/flow_runs/count", {"deployments": {"id": {"any_": [forever.deployment_id]}}}) == 1
    records.add(age=OLD, deployment_id=suite.deployment_id)
    assert limit.step() == []
    tomorrow = time.monotonic() + _REST_S
    monkeypatch.setattr("evalhouse.flows.serving.flow_runs.time.monotonic", lambda: tomorrow)
    assert [limit.step(), limit.step()] == [
        [],
        [f"deleted from Prefect's history: {suite.name} 1 flow run older than 30d"],
    ]


def test_a_server_that_refuses_is_spoken_of_once_a_day(records: Records) -> None:
    suite = records.make_suite()
    records.add(age=OLD, deployment_id=suite.deployment_id)

    class Refusing(PrefectApi):
        def delete(self, path: str) -> None:
            raise PrefectApiError(f"refused with status 403: {path}", status=403)

    limit = HistoryLimit(Refusing(find_server()), [(suite, "30d")])
    (line,) = limit.step()
    assert "not cut before tomorrow: refused with status 403" in line
    assert limit.step() == []


def test_deletion_continues_after_missing_rows(records: Records) -> None:
    suite = records.make_suite()
    roots = [records.add(age=OLD, deployment_id=suite.deployment_id) for _ in range(2)]

    class Twice(PrefectApi):
        """The answer to a request was lost, and it is sent again."""

        def delete(self, path: str) -> None:
            super().delete(path)
            super().delete(path)

    with pytest.raises(PrefectApiError):
        Twice(find_server()).delete(f"/flow_runs/{uuid.uuid4()}")
    assert delete_old(Twice(find_server()), suite, before=datetime.now(UTC) - timedelta(days=30)) == 2
    records.wait_until_gone(*roots)
