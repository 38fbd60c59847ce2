"""Parts of a run: how shards are put together, and what is done about a part by what is seen of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, call_here
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.pools import STOPPED, Part, PartState, Verdict, cut_parts, list_shards
from evalhouse.flows.run.open_run import check_pool
from evalhouse.tasks.settings.run import RunSettings


@given(
    numbers=st.sets(st.integers(0, 60)),
    shard_size=st.integers(1, 50),
    part_size=st.integers(1, 300),
    rest=st.integers(0, 49),
)
def test_every_shard_is_in_one_part(numbers: set[int], shard_size: int, part_size: int, rest: int) -> None:
    n_samples = 61 * shard_size - min(rest, shard_size - 1)
    parts = cut_parts("r1", sorted(numbers), shard_size=shard_size, part_size=part_size, n_samples=n_samples)
    found = [number for part in parts for number in list_shards(part, shard_size)]
    assert found == sorted(numbers)
    assert all(part.last - part.first < max(part_size, shard_size) for part in parts)
    assert all(1 <= part.first <= part.last <= n_samples for part in parts)
    assert len({part.lock_name for part in parts}) == len(parts)


@pytest.mark.parametrize(
    ("numbers", "n_workers", "ordinals"),
    [
        ([0, 1, 2, 3, 4, 7, 8], 1, [(1, 30), (31, 50), (71, 85)]),  # neighbours go together, and gaps divide
        ([0, 1, 2, 3, 4, 7, 8], 4, [(1, 20), (21, 40), (41, 50), (71, 85)]),  # no worker is left without a part
        ([0, 1], 40, [(1, 10), (11, 20)]),
        (range(9), 0, [(1, 30), (31, 60), (61, 85)]),  # before any worker is known
    ],
)
def test_parts_follow_the_shards_and_the_workers(
    numbers: list[int], n_workers: int, ordinals: list[tuple[int, int]]
) -> None:
    parts = cut_parts("r1", numbers, shard_size=10, part_size=30, n_samples=85, n_workers=n_workers)
    assert [(part.first, part.last) for part in parts] == ordinals


@pytest.mark.parametrize(
    ("state_type", "seen", "verdict"),
    [
        # A held lock counts more than any state in Prefect.
        *((state, {"held": True, "since_s": 3600.0}, "wait") for state in ("RUNNING", "PENDING", "CRASHED", "FAILED")),
        *((state, {"held": True, "since_s": 3600.0}, "wait") for state in ("CANCELLED", "CANCELLING")),
        ("RUNNING", {"was_held": True, "since_s": 1.0}, "wait"),
        ("RUNNING", {"was_held": True, "since_s": 10.0}, "lost"),
        # A start may take minutes while its worker lives.
        *((state, {"since_s": 300.0}, "wait") for state in ("RUNNING", "PENDING")),
        *((state, {"since_s": 3600.0}, "lost") for state in ("RUNNING", "PENDING")),
        *((state, {"since_s": 10.0, "worker_lives": False}, "wait") for state in ("RUNNING", "PENDING")),
        *((state, {"since_s": 60.0, "worker_lives": False}, "lost") for state in ("RUNNING", "PENDING")),
        *((state, {}, "lost") for state in ("CRASHED", "FAILED", "CANCELLED")),
        ("SCHEDULED", {"state_name": "Late", "since_s": 86_400.0}, "wait"),
        ("FAILED", {"state_name": STOPPED}, "stop"),
        ("COMPLETED", {}, "done"),
    ],
)
def test_verdict_on_part_follows_its_lock_then_its_state(
    state_type: str, seen: dict[str, Any], verdict: Verdict
) -> None:
    values = {"state_name": state_type, "worker_lives": True, **seen}
    since = time.monotonic() - values.pop("since_s", 0.0)
    state = PartState(part=Part(run_id="r1", first=1, last=30), state_type=state_type, since=since, **values)
    assert state.decide() == verdict


def test_shards_fit_into_parts() -> None:
    assert RunSettings(part_size=50).shard_size == 50
    assert RunSettings(part_size=50, shard_size=20).shard_size == 20
    assert RunSettings().shard_size == 128


LAKE = "ducklake:sqlite:///catalogue.sqlite?data=files"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE", "EVALHOUSE_WAREHOUSE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Finished:
    return call_here(capsys, "run", "sample", "--judge", "lexical", *arguments)


def test_a_pool_needs_a_server_and_a_lake(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = _run(capsys, "--pool", "judges", "--warehouse", "one.duckdb")
    assert refused.status == 2
    assert "set PREFECT_API_URL" in refused.stderr
    assert "ducklake:postgresql://" in refused.stderr
    assert "one.duckdb is one file" in refused.stderr
    assert not (folder / "one.duckdb").exists()


def test_a_budget_is_of_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    check_pool(RunSettings(pool="judges", warehouse=LAKE))
    with pytest.raises(SettingsError, match="--budget counts what one process spends"):
        check_pool(RunSettings(pool="judges", warehouse=LAKE, budget_usd=5.0))


def test_a_part_has_at_least_one_sample(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = _run(capsys, "--pool", "judges", "--part-size", "0", "--warehouse", LAKE)
    assert (refused.status, "--part-size" in refused.stderr) == (2, True)


def test_without_a_pool_one_process_judges(folder: Path) -> None:
    check_pool(RunSettings(budget_usd=5.0))
