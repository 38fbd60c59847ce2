"""A run over three workers of a work pool, of which two are killed at random.

The lake's catalogue and Prefect's database are on a real PostgreSQL: every sample is judged once, and what was answered
is not paid for again."""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from cli_house import make_rows, write_dataset
from cli_process import Finished, finish
from kill_runs import NotingEndpoint, noting_endpoint
from pool_house import POOL, TIMEOUT_S, PoolHouse, Worker, open_pool_house
from postgres_server import PostgresServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="descendants of a worker are found in /proc"),
]

N_CALLS = 6  # of a sample: two splits, classify, two attributions, rank
IN_FLIGHT = 12
N_SAMPLES, N_WORKERS, N_KILLS, PART_SIZE = 60, 3, 2, 15
# What was answered so long before a kill may not have been read by the process that died.
_UNREAD_S = 1.0


@dataclass(kw_only=True)
class PoolRun:
    """A run over the pool, and what was seen of it from outside."""

    house: PoolHouse
    ended: Finished
    endpoint: NotingEndpoint
    killed_at: list[float] = field(default_factory=list)


@pytest.fixture(scope="module")
def pool_run(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolRun]:
    """Samples over workers, of which some are killed at their work, one after the other."""
    folder = tmp_path_factory.mktemp("pool")
    url = f"ducklake:{postgres.make_database('lake')}?data={folder / 'files'}"
    write_dataset(folder, make_rows(N_SAMPLES), "items.jsonl")
    options = {"latency": 0.2, "max_in_flight": IN_FLIGHT}
    with pytest.MonkeyPatch.context() as patch, noting_endpoint(**options) as endpoint:
        patch.setenv("EVALHOUSE_STATE_DIR", str(folder / "state"))
        with open_pool_house(folder, url, endpoint, database=postgres.make_database("prefect")) as house:
            for _ in range(N_WORKERS):
                house.start_worker()
            killed_at, ended = _run_and_kill(house)
            yield PoolRun(house=house, ended=ended, endpoint=endpoint, killed_at=killed_at)


def _run_and_kill(house: PoolHouse) -> tuple[list[float], Finished]:
    """Kill a worker that is at a part each time another share of the requests was answered, and start a new one."""
    dice = random.Random(7)
    process = house.place.start(
        *("run", "items.jsonl", "--judge", "openai:judge", "--pool", POOL, "--part-size", str(PART_SIZE)),
        *("--concurrency", str(IN_FLIGHT), "--json"),
    )
    killed_at = []
    for number in range(1, N_KILLS + 1):
        enough = N_SAMPLES * N_CALLS * (2 * number - 1) // (2 * N_KILLS + 2)
        house.wait_until(lambda: len(house.endpoint.settled) >= enough, process)  # noqa: B023  # called at once
        time.sleep(dice.uniform(0.0, 0.5))
        _pick_busy(house, dice).kill()
        killed_at.append(time.monotonic())
        house.start_worker()
    return killed_at, finish(process, timeout_s=TIMEOUT_S)


def _pick_busy(house: PoolHouse, dice: random.Random) -> Worker:
    busy: list[Worker] = []
    while not busy:
        busy = [worker for worker in house.workers if worker.process.poll() is None and worker.is_busy()]
    return dice.choice(busy)


def test_run_completes_and_reports_its_requests(pool_run: PoolRun) -> None:
    assert pool_run.ended.status == 0, (pool_run.ended, pool_run.house.read_logs())
    document = pool_run.ended.document
    assert (document["status"], document["n_samples"]) == ("completed", N_SAMPLES)
    assert document["metrics"]["factual_f1"]["n_scored"] == N_SAMPLES
    (calls,) = pool_run.house.query("select count(*) as n from llm_calls where status <> 'cached'")
    assert document["calls"]["requests"] == calls["n"]


def test_every_sample_is_judged_once(pool_run: PoolRun) -> None:
    tables = ("outcomes", "statements", "classifications", "attributions", "context_verdicts", "scores")
    keys = {
        "outcomes": "step",
        "statements": "statement_id",
        "classifications": "statement_id",
        "attributions": "statement_id",
        "context_verdicts": "context_rank",
        "scores": "metric",
    }
    for table in tables:
        (row,) = pool_run.house.query(
            f"select count(*) as n, count(distinct (sample_id, {keys[table]})) as n_keys, "
            f"count(distinct sample_id) as n_samples from {table}"
        )
        assert row["n_samples"] == N_SAMPLES, table
        assert row["n"] == row["n_keys"], table


def test_nothing_is_paid_twice_beyond_what_was_in_flight_at_a_kill(pool_run: PoolRun) -> None:
    asked = Counter(noted.texts for noted in pool_run.endpoint.asked)
    assert len(asked) == N_SAMPLES * N_CALLS
    answered = {(noted.texts, noted.at) for noted in pool_run.endpoint.answered}
    for texts in [texts for texts, times in asked.items() if times > 1]:
        asked_at = sorted(noted.at for noted in pool_run.endpoint.asked if noted.texts == texts)
        answered_at = sorted(at for found, at in answered if found == texts)
        for began, again in itertools.pairwise(asked_at):
            kill = next((at for at in pool_run.killed_at if began <= at <= again), None)
            assert kill is not None, f"asked at {began} and at {again}, killed at {pool_run.killed_at}"
            assert not [at for at in answered_at if began <= at < kill - _UNREAD_S]
    # Each kill can have cost at most what one process had in flight.
    assert sum(asked.values()) - len(asked) <= len(pool_run.killed_at) * IN_FLIGHT
    (row,) = pool_run.house.query("select count(*) filter (where status = 'ok') as n from llm_calls")
    assert N_SAMPLES * N_CALLS <= row["n"] <= sum(asked.values())


def test_the_limit_holds_over_all_workers(pool_run: PoolRun) -> None:
    stats = pool_run.endpoint.stats
    assert stats.statuses[429] == 0
    assert IN_FLIGHT // 2 <= stats.max_in_flight <= IN_FLIGHT


def test_parts_are_child_flow_runs_between_load_and_score(pool_run: PoolRun) -> None:
    (run,) = pool_run.house.query("select flow_run_id from runs")
    nodes = dict(pool_run.house.get(f"/flow_runs/{run['flow_run_id']}/graph-v2")["nodes"])
    parts = {one["id"] for one in pool_run.house.list_parts()}
    assert {node_id for node_id, node in nodes.items() if node["kind"] == "flow-run"} == parts
    for part_id in parts:
        assert {nodes[one["id"]]["label"].split()[0] for one in nodes[part_id]["parents"]} == {"load"}
    scores = next(node for node in nodes.values() if node["label"].startswith("score"))
    ended = {part_id for part_id in parts if nodes[part_id]["state_type"] == "COMPLETED"}
    assert {one["id"] for one in scores["parents"]} == ended


def test_changes_of_parts_are_rows_log_lines_and_events(pool_run: PoolRun) -> None:
    parts = {one["id"]: one for one in pool_run.house.list_parts()}
    rows = pool_run.house.query("select * from part_changes order by changed_at")
    assert {(row["flow_run_id"], row["change"]) for row in rows} == {
        *((part_id, "given out") for part_id in parts),
        *((part_id, "done" if one["state_type"] == "COMPLETED" else "lost") for part_id, one in parts.items()),
    }
    workers = {f"worker-{number}" for number in range(1, len(pool_run.house.workers) + 1)}
    assert {row["worker"] for row in rows if row["change"] == "done"} <= workers
    assert all((row["change"] == "lost") == (row["reason"] is not None) for row in rows)
    (run,) = pool_run.house.query("select flow_run_id from runs")
    names = {f"evalhouse.part.{row['change'].replace(' ', '-')}" for row in rows}

    def list_events(part_id: str) -> dict[str, dict[str, Any]]:
        filters = {"resource": {"id": [f"prefect.flow-run.{part_id}"]}, "event": {"name": sorted(names)}}
        events = pool_run.house.post("/events/filter", {"filter": filters})["events"]
        return {event["event"]: event for event in events}

    expected = [(row["flow_run_id"], f"evalhouse.part.{row['change'].replace(' ', '-')}") for row in rows]
    # Prefect writes events some seconds later.
    pool_run.house.wait_until(lambda: all(name in list_events(part_id) for part_id, name in expected))
    for part_id in parts:
        related = [str(event["related"]) for event in list_events(part_id).values()]
        assert all(f"prefect.flow-run.{run['flow_run_id']}" in one for one in related)
    logs = pool_run.house.post("/logs/filter", {"logs": {"flow_run_id": {"any_": [run["flow_run_id"]]}}})
    printed = [line["message"] for line in logs]
    for row in rows:
        start = f"Samples {row['first_ordinal']} to {row['last_ordinal']} {row['change']}"
        assert any(line.startswith(start) for line in printed), (start, printed)


def test_a_lost_part_is_given_to_another_worker(pool_run: PoolRun) -> None:
    parts = pool_run.house.list_parts()
    lost = [one for one in parts if one["state_type"] == "CRASHED"]
    assert lost
    for one in lost:
        again = [other for other in parts if other["parameters"]["first"] == one["parameters"]["first"]]
        assert [other["parameters"]["attempt"] for other in again] == list(range(1, len(again) + 1))
        assert again[-1]["state_type"] == "COMPLETED"
