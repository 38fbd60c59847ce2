"""Runs that go by batch as a person starts them: refused, estimated, killed and resumed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from cli_house import make_rows, place_at, write_dataset
from cli_process import Place, finish
from endpoint import Endpoint, running_endpoint
from kill_runs import read_rows

from evalhouse.tasks.settings.run import find_deadline

N_ROWS = 8
# Of a night: so many as are worth their time, or a hundred by EVALHOUSE_TEST_KILLS=100.
N_KILLS = int(os.environ.get("EVALHOUSE_TEST_KILLS", "5"))
RUN = ("run", "berths.jsonl", "--judge", "openai:gpt-4.1-mini", "--embeddings", "hashing", "--batch")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(takes_s=2.0) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, endpoint: Endpoint, prefect_home: Path) -> Place:
    return place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=N_ROWS)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ("--judge", "lexical", "--batch"),
            "'lexical' takes no batches; judges that do: openai:MODEL, anthropic:MODEL",
        ),
        (("--judge", "openai:judge", "--deadline", "06:00"), "--deadline says how long to wait for a batch"),
        (("--judge", "openai:judge", "--batch", "--deadline", "6am"), "not a deadline; write a local time like 06:00"),
        (("--judge", "openai:judge", "--batch", "--pool", "p"), "--batch asks for all samples of a run at once"),
    ],
)
def test_what_cannot_go_by_batch_is_refused(place: Place, options: tuple[str, ...], problem: str) -> None:
    finished = place.call("run", "berths.jsonl", *options, "--dry-run")
    assert finished.status == 2
    assert problem in finished.stderr


def test_a_dry_run_reckons_with_half_the_price(place: Place) -> None:
    whole, half = (
        place.call(*RUN[:-1], *batch, "--dry-run", "--json").document["cost_usd"] for batch in ((), ("--batch",))
    )
    assert half == pytest.approx(whole / 2)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("06:00", "2026-11-23T06:00:00"), ("23:30", "2026-11-22T23:30:00"), ("8h", "2026-11-23T06:15:00"),
        ("90m", "2026-11-22T23:45:00"), ("1h30m", "2026-11-22T23:45:00"),
    ],
)  # fmt: skip
def test_a_deadline_is_the_next_such_time_or_so_long_from_now(written: str, expected: str) -> None:
    assert find_deadline(written, datetime(2026, 11, 22, 22, 15)) == datetime.fromisoformat(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("plan", "n_requests"), [("separate", 6), ("fused", 2)])
def test_nights_that_are_killed_again_and_again_end_with_every_score_and_pay_nothing_twice(
    plan: str, n_requests: int, place: Place, endpoint: Endpoint
) -> None:
    """One night after the other, each with separate samples, until there were as many kills as asked for."""
    dice, n_kills, n_nights = random.Random(N_KILLS), 0, 0
    while n_kills < N_KILLS:
        n_nights += 1
        write_dataset(place.folder, make_rows(N_ROWS * n_nights)[-N_ROWS:], "berths.jsonl")
        n_kills += live_through_a_night(place, dice, plan, n_before=n_nights - 1, most=N_KILLS - n_kills)
    print(f"{n_kills} kills in {n_nights} nights")
    assert not endpoint.paid_twice
    assert sum(endpoint.paid.values()) == n_requests * N_ROWS * n_nights
    scored = "select count(value) as n from scores where metric = 'faithfulness' group by run_id"
    assert read_rows(place.folder / "evalhouse.duckdb", scored) == [{"n": N_ROWS}] * n_nights


def live_through_a_night(place: Place, dice: random.Random, plan: str, *, n_before: int, most: int) -> int:
    """Bring a night to its end, killed up to so many times; returns how often it was."""
    n_kills = 0
    while True:
        known = count_runs(place.folder / "evalhouse.duckdb") > n_before
        process = place.start("resume", "latest") if known else place.start(*RUN, "--plan", plan)
        if n_kills < most:
            try:
                process.wait(dice.uniform(0.5, 8.0))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                n_kills += 1
        ended = finish(process)
        if ended.status != -signal.SIGKILL:
            assert ended.status == 0, ended
            return n_kills


def count_runs(path: Path) -> int:
    begun = path.exists() and read_rows(path, "select 1 from duckdb_tables() where table_name = 'runs'")
    return len(read_rows(path, "select run_id from runs")) if begun else 0


@pytest.mark.slow  # it waits for its deadline
def test_what_has_not_come_by_the_deadline_is_asked_by_itself(place: Place, endpoint: Endpoint) -> None:
    endpoint.takes_s = None
    ended = place.call(*RUN, "--deadline", "15s", "--limit", "4", "--json")
    assert ended.status == 0, ended.stderr
    assert ended.document["metrics"]["faithfulness"]["n_scored"] == 4
    assert not endpoint.paid_twice
    (batch,) = endpoint.batches.values()
    assert batch.status == "cancelled"
    calls = read_rows(place.folder / "evalhouse.duckdb", "select batch_id, status from llm_calls")
    assert {(call["batch_id"], call["status"]) for call in calls} >= {(None, "ok")}
    n_by_batch = len({*batch.answered}) - 1  # one of its lines answers no request
    assert sum(call["batch_id"] is None for call in calls) == sum(endpoint.paid.values()) - n_by_batch
    assert n_by_batch == sum(call["batch_id"] is not None for call in calls)
