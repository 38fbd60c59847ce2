"""Responses of an application on record: stored at once, moved in batches, one row a sample, valid for a question or
not; the questions that have to be asked again; and each sample against the evaluation before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest
from live_runs import open_warehouse
from rows import fill, open_rows, read
from warehouse_processes import run_script
from warehouse_runs import make_run

from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.collection import UnaffectedResponses, find_unaffected, list_cited_documents
from evalhouse.tasks.targets.protocol import read_returned
from evalhouse.warehouse.mover import Mover, take_in_orphans
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.calls import StoredResponse, fetch_responses
from evalhouse.warehouse.rows.runs import RunRow, insert_run
from evalhouse.warehouse.rows.samples import (
    Staging,
    StoredSample,
    copy_samples,
    fetch_samples_between,
    find_owners,
    renew_samples,
    take_in_samples,
)
from evalhouse.warehouse.store import Warehouse

TARGET = TargetSettings(url="http://127.0.0.1:9/ask")
SAMPLE = StoredSample(
    ordinal=1, sample_id="s", input_hash="h", question="How deep?", answer=None, ground_truth="7 metres.",
    contexts=None, context_ids=None, reference_context_ids=None,
)  # fmt: skip


def make_response(**changes: Any) -> StoredResponse:  # noqa: ANN401  # fields of StoredResponse
    response = StoredResponse(
        sample_id="s", answer="7.", contexts=["One.", "Two."], context_ids=["a#1", "b#1"], status="ok", error=None,
        latency_ms=5.0, asked_run_id="r", question="How deep?", metadata_json=None,
    )  # fmt: skip
    return replace(response, **changes)


@pytest.mark.parametrize(
    ("context_id", "documents"),
    [
        ("doc", {"doc"}),
        ("doc#3", {"doc", "doc#3"}),
        ("doc:3", {"doc", "doc:3"}),
        ("doc|3", {"doc", "doc|3"}),
        ("doc@v2", {"doc", "doc@v2"}),
        ("a/b.md#2", {"a", "a/b.md", "a/b.md#2"}),
        ("doc3", {"doc3"}),
        ("doc-3", {"doc-3"}),
        (".\\Shop\\Faq.md:3", {"shop", "shop/faq.md", "shop/faq.md:3"}),
        ("./shop/u\u0308ber.md", {"shop", "shop/über.md"}),
        ("Faq.MD#Prices", {"faq.md", "faq.md#prices"}),
        ("aB3x", {"aB3x"}),
        ("v1.2", {"v1.2"}),
    ],
)
def test_a_context_belongs_to_the_document_its_id_begins_with(context_id: str, documents: set[str]) -> None:
    response = make_response(contexts=["One."], context_ids=[context_id])
    assert list_cited_documents(response, find_owners([context_id])) == documents


@pytest.mark.parametrize(
    ("contexts", "context_ids", "known"),
    [
        ([], None, True),
        ([], [], True),
        (["One."], None, False),
        (["One."], [""], False),
        (["One.", "Two."], ["a", ""], False),
        (["One.", "Two."], ["a"], False),
        (None, None, False),
        (None, ["a"], True),
    ],
)
def test_whether_it_is_known_what_was_cited(
    contexts: list[str] | None, context_ids: list[str] | None, known: bool
) -> None:
    response = make_response(contexts=contexts, context_ids=context_ids)
    cited = list_cited_documents(response, find_owners(context_ids or []))
    assert (cited is not None) is known


def add_run(warehouse: Warehouse, run_id: str, minute: int, **columns: Any) -> RunRow:  # noqa: ANN401
    """A run of the suite that asked TARGET."""
    config = {"target": columns.pop("target", TARGET).model_dump(mode="json")}
    run = make_run(run_id, minute=minute, **{"suite": "nightly", "config": config, **columns})
    insert_run(warehouse, run)
    return run


def add_response(warehouse: Warehouse, run_id: str, **changes: Any) -> None:  # noqa: ANN401
    """Add the bot's response of a run to the sample, which is loaded with it."""
    row: dict[str, Any] = {
        "sample_id": "s", "answer": f"Answer in {run_id}.", "contexts": ["One.", "Two."], "context_ids": ["a#1", "b#1"],
        "status": "ok",
    }  # fmt: skip
    loaded = {"question": "How deep?", "metadata": None, "ground_truth": "7 metres."}
    loaded |= {name: changes.pop(name) for name in tuple(changes) if name in loaded}
    row |= changes
    keep(warehouse, row, run_id=run_id)
    answered = {name: row[name] for name in ("answer", "contexts", "context_ids")}
    load(warehouse, stage({"given_id": "s", "sample_id": "s", "input_hash": run_id, **loaded, **answered}), run_id)


def find(warehouse: Warehouse, changed: tuple[str, ...], sample: StoredSample = SAMPLE) -> str | None:
    """Return the run whose response stays valid after these documents changed; None if the sample is asked again."""
    run = make_run("new", minute=500, suite="nightly", kb_changed=changed)
    known = find_unaffected(warehouse, run, TARGET)
    assert isinstance(known, UnaffectedResponses)
    found = known.find([sample]).get("s")
    return None if found is None else found.asked_run_id


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return open_warehouse(tmp_path)


@pytest.fixture
def asked(warehouse: Warehouse) -> Warehouse:
    """A warehouse with one run of the suite that asked, and got an answer from documents a and b."""
    add_run(warehouse, "first", 1)
    add_response(warehouse, "first")
    return warehouse


@pytest.mark.parametrize(
    ("changed", "expected"),
    [(("c",), "first"), (("a",), None), (("c", "b"), None), (("a#1",), None), (("a#2",), "first"), (("aa",), "first")],
)
def test_response_that_cited_no_changed_document_stays_valid(
    asked: Warehouse, changed: tuple[str, ...], expected: str | None
) -> None:
    assert find(asked, changed) == expected


@pytest.mark.parametrize(("changed", "expected"), [("a#2", None), ("c#1", "first")])
def test_a_changed_passage_counts_where_the_bot_cites_whole_documents(
    warehouse: Warehouse, changed: str, expected: str | None
) -> None:
    add_run(warehouse, "first", 1)
    add_response(warehouse, "first", context_ids=["a", "b"])
    assert find(warehouse, (changed,)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "failed", "error": "status 500", "answer": None, "contexts": None, "context_ids": None},
        {"context_ids": None},
        {"question": "How wide?"},
        {"metadata": '{"audience":"children"}'},
    ],
    ids=["failed", "without ids", "another question", "other metadata"],
)
def test_responses_that_do_not_count(asked: Warehouse, changes: dict[str, Any]) -> None:
    """The last response counts, and not an older one that was better."""
    add_run(asked, "second", 2)
    add_response(asked, "second", **changes)
    assert find(asked, ("c",)) is None


def test_the_newest_response_that_was_asked_for_counts(asked: Warehouse) -> None:
    add_run(asked, "second", 2)
    add_response(asked, "second", context_ids=["x#1", "y#1"])
    add_run(asked, "third", 3)
    add_response(asked, "third", status="reused", reused_run_id="first")
    assert find(asked, ("x",)) is None
    assert find(asked, ("a",)) == "second", "what was taken from the record is not newer for that"


def test_a_response_without_a_sample_counts_for_nothing(asked: Warehouse) -> None:
    """Its run died before it was loaded, so that its question is unknown."""
    add_run(asked, "second", 2)
    keep(asked, make_row("s", contexts=["y"], context_ids=["c#1"]), run_id="second")
    assert find(asked, ("c",)) == "first"


def test_documents_that_changed_in_between_count_too(asked: Warehouse) -> None:
    """The run with these changes stopped before it asked."""
    add_run(asked, "stopped", 2, trigger="event", kb_changed=("b",), status="cancelled")
    assert find(asked, ("c",)) is None
    add_run(asked, "third", 3)
    add_response(asked, "third")
    assert find(asked, ("c",)) == "third", "it was asked since"


def test_update_without_documents_invalidates_all_earlier_responses(asked: Warehouse) -> None:
    add_run(asked, "second", 2, trigger="event", kb_changed=None)
    assert find(asked, ("c",)) is None
    add_response(asked, "second")
    assert find(asked, ("c",)) == "second"


@pytest.mark.parametrize("kind", ["noise", "repeats"])
def test_noise_runs_do_not_count(asked: Warehouse, kind: str) -> None:
    add_run(asked, "measured", 2, kind=kind, trigger="event", kb_changed=None)
    add_response(asked, "measured")
    assert find(asked, ("c",)) == "first"


def test_responses_of_another_application_do_not_count(asked: Warehouse) -> None:
    patient = replace_target(timeout_s=5.0, concurrency=9, rpm=100, attempts=1)
    add_run(asked, "same", 2, target=patient)
    add_response(asked, "same")
    add_run(asked, "moved", 3, target=replace_target(url="http://127.0.0.1:10/ask"))
    add_response(asked, "moved")
    add_run(asked, "other suite", 4, suite="weekly")
    add_response(asked, "other suite")
    assert find(asked, ("c",)) == "same"


def replace_target(**changes: Any) -> TargetSettings:  # noqa: ANN401  # fields of TargetSettings
    return TARGET.model_copy(update=changes)


def test_a_resumed_run_decides_as_it_did_at_first(asked: Warehouse) -> None:
    """Runs that began after it, and its own responses, say nothing of what it had to ask."""
    run = add_run(asked, "updated", 5, kb_changed=("c",))
    add_run(asked, "later", 6, kb_changed=("a",))
    add_response(asked, "later")
    known = find_unaffected(asked, run, TARGET)
    assert known is not None
    assert known.find([SAMPLE])["s"].asked_run_id == "first"
    assert max(known.asking_runs.values()) < run.started_at
    assert known.announced == {"c": run.started_at}
    assert run.started_at - known.asking_runs["first"] == timedelta(minutes=4)


def make_row(sample_id: str, **columns: Any) -> dict[str, Any]:  # noqa: ANN401
    answer = f"Answer {sample_id}."
    return {"run_id": "r", "sample_id": sample_id, "status": "ok", "answer": answer, "attempts": 1, **columns}


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


def load(warehouse: Warehouse, staging: Staging, run_id: str = "r") -> None:
    """Take staged samples into a run."""
    take_in_samples(warehouse, run_id, staging)
    staging.discard()


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
    load(warehouse, staging)
    assert fetch_samples_between(warehouse, "r", 1, 5) == read
    assert read[1].metadata == {"topic": "tide"}


def test_shards_that_are_read_at_the_same_time_write_the_ids_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard read the ids that another one was writing: a run of a bot ended by chance."""
    queries: list[str] = []

    def note_query(name: str) -> str:
        queries.append(name)
        return read_query(name)

    monkeypatch.setattr("evalhouse.warehouse.rows.samples.read_query", note_query)
    staging = stage(*({"sample_id": f"s{number}"} for number in range(20_000)), part=5_000)
    begun = threading.Barrier(8)

    def read(first: int) -> list[int]:
        begun.wait()
        return [sample.ordinal for sample in staging.read_between(first, first + 9)]

    with ThreadPoolExecutor(8) as threads:
        shards = list(threads.map(read, range(1, 81, 10)))
    staging.discard()
    assert [ordinal for shard in shards for ordinal in shard] == list(range(1, 81))
    assert queries.count("samples/staged_ids") == 1


def test_a_sample_is_renewed_in_its_place(warehouse: Warehouse) -> None:
    insert_run(warehouse, make_run("r"))
    rows = [{"sample_id": name, "given_id": name, "metadata": '{"n":1}'} for name in "abc"]
    load(warehouse, stage(*rows))
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
    load(warehouse, stage(*({"sample_id": name, "given_id": name, **answered} for name in "abcdef")))
    failed = {"status": "failed", "answer": None, "error": "status 500"}
    changed = {"c": {"answer": "No."}, "d": {"contexts": ["Two."]}, "e": {"context_ids": ["a#2"]}}
    since = [make_row(name, **{**answered, **columns}) for name, columns in changed.items()]
    keep(warehouse, make_row("a", **answered), make_row("b", **failed), *since)
    assert list(warehouse.fetch("responses/open", run_id="r")["ordinal"]) == [2, 3, 4, 5, 6], (
        "failed, come since, and never asked"
    )


def test_sample_shows_its_failed_response(warehouse: Warehouse) -> None:
    insert_run(warehouse, make_run("r"))
    load(warehouse, stage({"sample_id": "a", "given_id": "a"}, {"sample_id": "b", "given_id": "b"}))
    keep(warehouse, make_row("a", status="failed", error="status 500", answer=None), make_row("b", answer=None))
    keep(warehouse, make_row("b", status="failed", error="another run's", answer=None), run_id="other")
    errors = {sample.sample_id: sample.target_error for sample in fetch_samples_between(warehouse, "r", 1, 2)}
    assert errors == {"a": "status 500", "b": None}


def test_a_sample_has_the_addresses_of_its_contexts_as_the_bot_returned_them(warehouse: Warehouse) -> None:
    """An answer cites them: without them every link of a right answer names nothing."""
    returned = read_returned(
        {
            "answer": "Seven metres ([pier](https://a.org/pier)).",
            "contexts": [
                {"text": "One.", "url": "https://a.org/pier"},
                {"page_content": "Two.", "metadata": {"source": Path("b.md")}},
            ],
        }
    )  # fmt: skip
    assert returned.context_sources == (("https://a.org/pier",), ("b.md",))
    insert_run(warehouse, make_run("r"))
    load(warehouse, stage({"sample_id": "a", "given_id": "a"}))
    sources = orjson.dumps(returned.context_sources).decode()
    keep(warehouse, make_row("a", contexts=["One.", "Two."], context_sources=sources))
    (sample,) = fetch_samples_between(warehouse, "r", 1, 1)
    assert sample.context_sources == fetch_responses(warehouse, "r", ["a"])["a"].context_sources == sources
    # Without them a noise run took each link for wrong, and the judge for another.
    copy_samples(warehouse, run_id="r", again_run_id="again", sample_ids=["a"])
    insert_run(warehouse, make_run("again", kind="noise", parent_run_id="r"))
    (again,) = fetch_samples_between(warehouse, "again", 1, 1)
    assert again.context_sources == sources


def test_the_name_of_a_file_that_is_not_utf_8_fails_no_answer() -> None:
    """Nor does metadata that holds itself, of which a callable can return some."""
    metadata: dict[str, object] = {"source": "caf\udce9.md"}
    metadata["metadata"] = metadata
    returned = read_returned({"answer": "Seven.", "contexts": [{"text": "One.", "metadata": metadata}]})
    assert returned.context_sources is not None
    assert set(returned.context_sources[0]) == {"caf\ufffd.md"}


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with open_rows() as opened:
        yield opened


def fill_run(con: duckdb.DuckDBPyConnection, run_id: str, day: int, samples: dict[str, str], **columns: Any) -> None:  # noqa: ANN401
    """A run of the suite `nightly` over samples, given with their input hashes."""
    fill(con, "runs", {"run_id": run_id, "suite": "nightly", "started_at": datetime(2026, 1, day), **columns})
    rows = [{"run_id": run_id, "sample_id": sample_id, "input_hash": text} for sample_id, text in samples.items()]
    fill(con, "run_samples", *rows)


def fill_calls(con: duckdb.DuckDBPyConnection, run_id: str, sample_id: str, *statuses: str) -> None:
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
    fill_run(con, "r1", 1, {"a": "1", "b": "1", "gone": "1"})
    fill_run(con, "r2", 2, {"a": "1", "b": "2", "c": "1"})
    assert read_changes(con, "r1") == dict.fromkeys(("a", "b", "gone"), ("new", None))
    assert read_changes(con, "r2") == {"a": ("unchanged", "r1"), "b": ("changed", "r1"), "c": ("new", "r1")}


def test_only_evaluations_that_reached_their_end_are_compared_with(con: duckdb.DuckDBPyConnection) -> None:
    fill_run(con, "r1", 1, {"a": "1"}, status="incomplete")
    for day, status in enumerate(("failed", "cancelled", "running"), start=2):
        fill_run(con, f"stopped {status}", day, {"a": "2"}, status=status)
    fill_run(con, "asked", 5, {"a": "2"}, kind="collection")
    fill_run(con, "noise", 6, {"a": "2"}, kind="noise")
    fill_run(con, "other", 7, {"a": "2"}, suite="weekly")
    fill_run(con, "r2", 8, {"a": "1"})
    assert read_changes(con, "r2") == {"a": ("unchanged", "r1")}
    assert read_changes(con, "stopped running") == {"a": ("changed", "r1")}, "while it runs it is compared as well"
    assert read_changes(con, "asked") == read_changes(con, "noise") == {}
    assert read_changes(con, "other") == {"a": ("new", None)}


def test_counts_of_verdicts_that_were_asked_for_again(con: duckdb.DuckDBPyConnection) -> None:
    fill_run(con, "r1", 1, dict.fromkeys(("cached", "part", "failed", "nothing"), "1"))
    fill_calls(con, "r1", "cached", "cached", "cached")
    fill_calls(con, "r1", "part", "cached", "ok")
    fill_calls(con, "r1", "failed", "error")
    fill_run(con, "r2", 2, {"part": "1"})
    fill_calls(con, "r2", "part", "cached")
    rows = read(con, "select run_id, sample_id, judged from sample_changes")
    assert {(row["run_id"], row["sample_id"]): row["judged"] for row in rows} == {
        ("r1", "cached"): "reused",
        ("r1", "part"): "asked anew",
        ("r1", "failed"): "asked anew",
        ("r1", "nothing"): None,
        ("r2", "part"): "reused",
    }
