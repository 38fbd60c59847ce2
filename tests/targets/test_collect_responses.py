"""Responses on disk and in the warehouse: stored at once, moved in batches, always one row a sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from live_runs import open_warehouse
from warehouse_processes import run_script
from warehouse_runs import make_run

from evalhouse.warehouse.mover import Mover, take_in_orphans
from evalhouse.warehouse.rows.calls import fetch_responses
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.rows.samples import Staging, fetch_samples_between, renew_samples, take_in_samples
from evalhouse.warehouse.store import Warehouse


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return open_warehouse(tmp_path)


def make_row(sample_id: str, **columns: Any) -> dict[str, Any]:  # noqa: ANN401
    return {
        "run_id": "r",
        "sample_id": sample_id,
        "status": "ok",
        "answer": f"Answer {sample_id}.",
        "attempts": 1,
        **columns,
    }


def keep(warehouse: Warehouse, *rows: dict[str, Any], run_id: str = "r") -> None:
    record = Mover(warehouse, "responses")
    for row in rows:
        record.keep({**row, "run_id": run_id})
    record.close()


def read_answers(warehouse: Warehouse, run_id: str = "r") -> dict[str, str | None]:
    rows = warehouse.read_rows("select sample_id, answer from responses where run_id = $run_id", {"run_id": run_id})
    found: dict[str, Any] = {str(row["sample_id"]): row["answer"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_response_comes_back_as_it_was_kept(warehouse: Warehouse) -> None:
    texts = {"answer": "七米。", "contexts": ["One.", ""], "context_ids": ["a#1", ""]}
    keep(warehouse, make_row("s", **texts, latency_ms=12.5, asked_at=1_700_000_000_000_000))
    (row,) = warehouse.read_rows("select * from responses")
    assert {name: row[name] for name in texts} == texts
    assert (row["run_id"], row["latency_ms"], str(row["asked_at"])) == ("r", 12.5, "2023-11-14 22:13:20")
    found = fetch_responses(warehouse, "r", ["s", "t"])
    assert found.keys() == {"s"}
    assert (found["s"].answer, found["s"].asked_run_id, found["s"].question) == ("七米。", "r", None)


def test_a_later_response_takes_the_place_of_an_earlier_one_of_the_same_run(warehouse: Warehouse) -> None:
    keep(warehouse, make_row("s", status="failed", answer=None), make_row("t"))
    keep(warehouse, make_row("s"), run_id="other")
    keep(warehouse, make_row("s", answer="Better."))
    assert read_answers(warehouse) == {"s": "Better.", "t": "Answer t."}
    assert read_answers(warehouse, "other") == {"s": "Answer s."}


def test_what_a_killed_process_kept_is_taken_in_later(warehouse: Warehouse) -> None:
    script = """
from evalhouse.warehouse.mover import Mover
record = Mover(Warehouse(PATH), "responses")
for n in range(3):
    record.keep({"run_id": "r", "sample_id": f"s{n}", "status": "ok", "answer": "Yes."})
kill_self()
"""
    assert run_script(script, warehouse.location.path).code == -9
    assert read_answers(warehouse) == {}
    for _ in range(2):
        take_in_orphans(warehouse)
        assert read_answers(warehouse).keys() == {"s0", "s1", "s2"}
    assert list((warehouse.location.journal_path / "responses").iterdir()) == []


def test_a_segment_taken_in_twice_counts_once(warehouse: Warehouse) -> None:
    """Killed between the commit and the removal of the file, of which this is what is left."""
    record = Mover(warehouse, "responses")
    record.keep(make_row("a"))
    folder = warehouse.location.journal_path / "responses"
    (segment,) = folder.glob("*.jsonl")
    content = segment.read_bytes()
    record.close()
    warehouse_answers = read_answers(warehouse)
    segment.write_bytes(content.replace(b"Answer a.", b"Never."))
    take_in_orphans(warehouse)
    assert read_answers(warehouse) == warehouse_answers == {"a": "Answer a."}


def test_counts_and_errors(warehouse: Warehouse) -> None:
    ok = [make_row(f"s{n}", latency_ms=float(n)) for n in range(1, 102)]
    failed = [make_row(f"f{n}", status="failed", error="status 500", answer=None) for n in range(3)]
    late = make_row("late", status="failed", error="timeout", answer=None, latency_ms=1e9)
    keep(warehouse, *ok, *failed, late, make_row("old", status="reused", reused_run_id="before"))
    assert warehouse.fetch_row("responses/counts", run_id="r") == {
        "n_ok": 101, "n_failed": 4, "n_reused": 1, "latency_p50_ms": 51.0, "latency_p95_ms": 96.0
    }  # fmt: skip
    assert warehouse.fetch_rows("responses/errors", run_id="r") == [
        {"error": "status 500", "n_samples": 3, "example": "f0"},
        {"error": "timeout", "n_samples": 1, "example": "late"},
    ]
    nothing = warehouse.fetch_row("responses/counts", run_id="another")
    assert (nothing["n_ok"], nothing["latency_p50_ms"]) == (0, None)


def stage(*rows: dict[str, Any], part: int = 2) -> Staging:
    staging = Staging()
    numbered = [
        {"ordinal": ordinal, "input_hash": f"h{ordinal}", "question": f"Question {ordinal}?", **row}
        for ordinal, row in enumerate(rows, start=1)
    ]
    for begin in range(0, len(numbered), part):
        staging.add(numbered[begin : begin + part])
    return staging


def test_staged_questions_have_the_ids_that_they_are_loaded_under(warehouse: Warehouse) -> None:
    """They are read shard by shard in the dataset's order, in any parts."""
    same = {"sample_id": "same"}
    given = {"sample_id": "x", "given_id": "x", "metadata": '{"topic":"tide"}', "contexts": ["One."]}
    staging = stage(same, given, same, {"sample_id": "other"}, same, part=2)
    shards = [staging.read_between(first, first + 1) for first in (1, 3, 5, 7)]
    assert [len(shard) for shard in shards] == [2, 2, 1, 0]
    read = [sample for shard in shards for sample in shard]
    assert [sample.sample_id for sample in read] == ["same", "x", "same-2", "other", "same-3"]
    assert [sample.ordinal for sample in read] == [1, 2, 3, 4, 5]
    insert_run(warehouse, make_run("r"))
    take_in_samples(warehouse, "r", staging)
    staging.discard()
    assert fetch_samples_between(warehouse, "r", 1, 5) == read
    assert read[1].metadata == {"topic": "tide"}


def test_a_sample_is_renewed_in_its_place(warehouse: Warehouse) -> None:
    insert_run(warehouse, make_run("r"))
    rows = [{"sample_id": name, "given_id": name, "metadata": '{"n":1}'} for name in "abc"]
    staging = stage(*rows)
    take_in_samples(warehouse, "r", staging)
    staging.discard()
    again = Staging()
    again.add([{"ordinal": 2, **rows[1], "input_hash": "new", "question": "Question 2?", "answer": "Now.",
                "contexts": ["One."]}])  # fmt: skip
    for _ in range(2):
        renew_samples(warehouse, "r", again)
        samples = fetch_samples_between(warehouse, "r", 1, 9)
        assert [(sample.sample_id, sample.answer) for sample in samples] == [("a", None), ("b", "Now."), ("c", None)]
        assert {sample.metadata_json for sample in samples} == {'{"n":1}'}
    again.discard()
    assert warehouse.read("select count(*) as n from samples")["n"][0] == 4, "what it was is still on record"


def test_samples_are_open_until_their_response_is_taken_in(warehouse: Warehouse) -> None:
    insert_run(warehouse, make_run("r"))
    answered = {"answer": "Yes.", "contexts": ["One."], "context_ids": ["a#1"]}
    staging = stage(*({"sample_id": name, "given_id": name, **answered} for name in "abcdef"))
    take_in_samples(warehouse, "r", staging)
    staging.discard()
    failed = {"status": "failed", "answer": None, "error": "status 500"}
    changed = {"c": {"answer": "No."}, "d": {"contexts": ["Two."]}, "e": {"context_ids": ["a#2"]}}
    since = [make_row(name, **{**answered, **columns}) for name, columns in changed.items()]
    keep(warehouse, make_row("a", **answered), make_row("b", **failed), *since)
    assert list(warehouse.fetch("responses/open", run_id="r")["ordinal"]) == [2, 3, 4, 5, 6], (
        "failed, come since, and never asked"
    )


def test_sample_shows_its_failed_response(warehouse: Warehouse) -> None:
    insert_run(warehouse, make_run("r"))
    staging = stage({"sample_id": "a", "given_id": "a"}, {"sample_id": "b", "given_id": "b"})
    take_in_samples(warehouse, "r", staging)
    staging.discard()
    keep(warehouse, make_row("a", status="failed", error="status 500", answer=None), make_row("b", answer=None))
    keep(warehouse, make_row("b", status="failed", error="another run's", answer=None), run_id="other")
    errors = {sample.sample_id: sample.target_error for sample in fetch_samples_between(warehouse, "r", 1, 2)}
    assert errors == {"a": "status 500", "b": None}
