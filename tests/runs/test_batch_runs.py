"""Runs that go by batch as a person starts them: refused, estimated, killed and resumed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from cli_house import place_at
from cli_process import Place, finish, wait_for
from endpoint import Endpoint, running_endpoint

from evalhouse.tasks.settings.run import find_deadline

N_ROWS = 8
RUN = ("run", "berths.jsonl", "--judge", "openai:gpt-4.1-mini", "--embeddings", "hashing", "--batch")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(takes_s=None) as running:
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
def test_a_night_that_is_killed_with_its_batch_at_the_provider_is_resumed_and_paid_once(
    place: Place, endpoint: Endpoint
) -> None:
    process = place.start(*RUN)
    wait_for(lambda: bool(endpoint.batches), process)
    process.kill()
    finish(process)
    endpoint.takes_s = 0.0
    resumed = place.call("resume", "latest", "--json")
    assert resumed.status == 0, resumed.stderr
    assert resumed.document["metrics"]["faithfulness"]["n_scored"] == N_ROWS
    assert not endpoint.paid_twice
    assert sum(endpoint.paid.values()) == 6 * N_ROWS
