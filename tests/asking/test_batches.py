"""Requests that go by batch: in rounds, found again by later processes, paid once whatever happens on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from endpoint_batches import BatchEndpoint, batch_endpoint
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to, read_calls, read_outcomes

from evalhouse.flows.preparing.batches import add_parking
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.store import Warehouse

N_SAMPLES = 6
STEPS = {"extract_answer", "extract_ground_truth", "classify", "attribute_answer", "attribute_ground_truth", "rank"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, quick_backoff: None) -> None:
    """What is still is so after a twentieth of a second, and a batch is looked after as often."""
    monkeypatch.setattr("evalhouse.tasks.asking.activity._STILL_S", 0.05)
    monkeypatch.setattr("evalhouse.tasks.asking.activity._LOOKED_AT_AGAIN_S", 0.01)
    monkeypatch.setattr("evalhouse.tasks.asking.parking._LOOK_FIRST_S", 0.03)
    monkeypatch.setattr("evalhouse.tasks.asking.parking._LOOK_MOST_S", 0.05)


@pytest.fixture
def endpoint() -> Iterator[BatchEndpoint]:
    with batch_endpoint(takes_s=0.0) as running:
        point_to(running.base_url)
        yield running


@asynccontextmanager
async def lay_out_night(folder: Path, run_id: str = "run-1", **changes: Any) -> AsyncIterator[LiveRun]:  # noqa: ANN401
    settings = make_settings(batch=True, **changes)
    async with lay_out_run(folder, settings, run_id=run_id) as live_run:
        take_in_orphans(live_run.warehouse)
        add_parking(live_run.asker, settings, run_id, live_run.warehouse)
        yield live_run


async def judge_night(folder: Path, run_id: str = "run-1", **changes: Any) -> list[dict[str, str | None]]:  # noqa: ANN401
    async with lay_out_night(folder, run_id, **changes) as live_run:
        works = await judge_samples(live_run, [make_sample(number) for number in range(1, N_SAMPLES + 1)])
        return [read_outcomes(work) for work in works]


def read_batches(folder: Path) -> list[dict[str, Any]]:
    sql = "select * from provider_batches order by noted_at, batch_id"
    return Warehouse(str(folder / "w.duckdb")).read_rows(sql)


async def test_a_night_takes_two_rounds_and_pays_each_request_once_at_the_rate(
    endpoint: BatchEndpoint, tmp_path: Path
) -> None:
    outcomes = await judge_night(tmp_path)
    assert all(set(outcome.values()) == {None} for outcome in outcomes)
    assert [len(batch.lines) for batch in endpoint.batches.values()] == [2 * N_SAMPLES, 4 * N_SAMPLES]
    calls = read_calls(tmp_path)
    assert Counter(call["step"] for call in calls) == dict.fromkeys(STEPS, N_SAMPLES)
    assert {(call["status"], call["batch_id"] is None, call["latency_ms"]) for call in calls} == {("ok", False, None)}
    assert set(endpoint.paid.values()) == {1}
    noted = read_batches(tmp_path)
    assert [row["status"] for row in noted] == ["planned", "sent", "over"] * 2
    assert {row["provider_batch_id"] for row in noted} == {None, "batch_1", "batch_2"}
    assert not list((tmp_path / "w.duckdb.journal").rglob("batches/*/*"))
