"""`sample_changes`: each sample of an evaluation against the one before it, and what its verdicts took."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import duckdb
import pytest
from rows import fill, open_rows, read


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with open_rows() as opened:
        yield opened


def add_run(con: duckdb.DuckDBPyConnection, run_id: str, day: int, samples: dict[str, str], **columns: Any) -> None:  # noqa: ANN401
    """A run of the suite `nightly` over samples, given with their input hashes."""
    fill(con, "runs", {"run_id": run_id, "suite": "nightly", "started_at": datetime(2026, 1, day), **columns})
    rows = [{"run_id": run_id, "sample_id": sample_id, "input_hash": text} for sample_id, text in samples.items()]
    fill(con, "run_samples", *rows)


def add_calls(con: duckdb.DuckDBPyConnection, run_id: str, sample_id: str, *statuses: str) -> None:
    calls = [
        {"run_id": run_id, "sample_id": sample_id, "call_id": f"{sample_id}{n}", "step": "rank", "status": status}
        for n, status in enumerate(statuses)
    ]
    fill(con, "llm_calls", *calls)


def read_changes(con: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, tuple[object, object]]:
    rows = read(con, f"select * from sample_changes where run_id = '{run_id}' order by sample_id")
    assert len({row["sample_id"] for row in rows}) == len(rows)
    return {str(row["sample_id"]): (row["change"], row["previous_run_id"]) for row in rows}


def test_samples_are_new_changed_or_unchanged(con: duckdb.DuckDBPyConnection) -> None:
    add_run(con, "r1", 1, {"a": "1", "b": "1", "gone": "1"})
    add_run(con, "r2", 2, {"a": "1", "b": "2", "c": "1"})
    assert read_changes(con, "r1") == dict.fromkeys(("a", "b", "gone"), ("new", None))
    assert read_changes(con, "r2") == {"a": ("unchanged", "r1"), "b": ("changed", "r1"), "c": ("new", "r1")}


def test_only_evaluations_that_reached_their_end_are_compared_with(con: duckdb.DuckDBPyConnection) -> None:
    add_run(con, "r1", 1, {"a": "1"}, status="incomplete")
    for day, status in enumerate(("failed", "cancelled", "running"), start=2):
        add_run(con, f"stopped {status}", day, {"a": "2"}, status=status)
    add_run(con, "asked", 5, {"a": "2"}, kind="collection")
    add_run(con, "noise", 6, {"a": "2"}, kind="noise")
    add_run(con, "other", 7, {"a": "2"}, suite="weekly")
    add_run(con, "r2", 8, {"a": "1"})
    assert read_changes(con, "r2") == {"a": ("unchanged", "r1")}
    assert read_changes(con, "stopped running") == {"a": ("changed", "r1")}, "while it runs it is compared as well"
    assert read_changes(con, "asked") == read_changes(con, "noise") == {}
    assert read_changes(con, "other") == {"a": ("new", None)}


def test_counts_of_verdicts_that_were_asked_for_again(con: duckdb.DuckDBPyConnection) -> None:
    add_run(con, "r1", 1, dict.fromkeys(("cached", "part", "failed", "nothing"), "1"))
    add_calls(con, "r1", "cached", "cached", "cached")
    add_calls(con, "r1", "part", "cached", "ok")
    add_calls(con, "r1", "failed", "error")
    add_run(con, "r2", 2, {"part": "1"})
    add_calls(con, "r2", "part", "cached")
    rows = read(con, "select run_id, sample_id, judged from sample_changes")
    assert {(row["run_id"], row["sample_id"]): row["judged"] for row in rows} == {
        ("r1", "cached"): "reused",
        ("r1", "part"): "asked anew",
        ("r1", "failed"): "asked anew",
        ("r1", "nothing"): None,
        ("r2", "part"): "reused",
    }
