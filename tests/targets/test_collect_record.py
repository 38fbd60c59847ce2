"""The recorded responses that are valid for a question, and the questions that have to be asked again."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from live_runs import open_warehouse
from warehouse_runs import make_run

from evalhouse.tasks.settings.suite import TargetSettings
from evalhouse.tasks.targets.collection import UnaffectedResponses, find_unaffected, list_cited_documents
from evalhouse.warehouse.mover import Mover
from evalhouse.warehouse.rows.calls import StoredResponse
from evalhouse.warehouse.rows.runs import RunRow, insert_run
from evalhouse.warehouse.rows.samples import Staging, StoredSample, find_owners, take_in_samples
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
    record = Mover(warehouse, "responses")
    record.keep({"run_id": run_id, **row})
    record.close()
    staging = Staging()
    answered = {name: row[name] for name in ("answer", "contexts", "context_ids")}
    staging.add([{"ordinal": 1, "given_id": "s", "sample_id": "s", "input_hash": run_id, **loaded, **answered}])
    take_in_samples(warehouse, run_id, staging)
    staging.discard()


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
    record = Mover(asked, "responses")
    row = {
        "run_id": "second",
        "sample_id": "s",
        "status": "ok",
        "answer": "x",
        "contexts": ["y"],
        "context_ids": ["c#1"],
    }
    record.keep(row)
    record.close()
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
