"""`testset make` with the lexical judge: the set, its rows in the warehouse, and the cost of a second time."""

import json
from collections import Counter
from pathlib import Path

import pytest
from cli_process import call_here
from port_base import write_base

from evalhouse.tasks.testsets.documents import load_documents
from evalhouse.tasks.testsets.questions import load_set
from evalhouse.warehouse.store import Warehouse

N = 14


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    write_base(tmp_path / "docs", version=1)
    return tmp_path / "docs"


def test_set_is_made_written_and_recorded(capsys: pytest.CaptureFixture[str], documents: Path, tmp_path: Path) -> None:
    path, url = tmp_path / "questions.jsonl", f"duckdb:///{tmp_path / 'own.duckdb'}"
    command = ("testset", "make", str(documents), "-n", str(N), "-o", str(path), "--warehouse", url, "--json")
    made = json.loads(call_here(capsys, *command).stdout)
    assert made["n_questions"] == N
    test_set = load_set(path)
    assert Counter(question.kind for question in test_set.questions) == made["kinds"]
    assert {question.language for question in test_set.questions} == {"en", "zh"}
    texts = {document.document_id: document.text for document in load_documents(documents)}
    for question in test_set.questions:
        assert (question.ground_truth is None) == (question.kind == "unanswerable") == (not question.spans)
        for span in question.spans:
            assert texts[span.document_id][span.start : span.start + len(span.text)] == span.text
            assert span.document_id in question.reference_context_ids
    warehouse = Warehouse(url)
    outcomes = warehouse.read_rows("select outcome, count(*) as n from testset_candidates group by all")
    assert {row["outcome"]: row["n"] for row in outcomes} == made["outcomes"]
    failed = warehouse.read_rows(
        "select candidate_id from testset_candidates join testset_checks using (run_id, candidate_id) "
        "where outcome = 'kept' and not passed"
    )
    assert failed == []
    ids = [row["question_id"] for row in warehouse.read_rows("select question_id from testset_questions")]
    assert sorted(ids) == sorted(question.id for question in test_set.questions)
    assert made["set_hash"] == test_set.set_hash == test_set.manifest.versions[-1].hash

    again = call_here(capsys, *command)
    assert again.status == 2
    assert f"{path} exists already; --force replaces it" in again.stderr
    repeated = json.loads(call_here(capsys, *command, "--force").stdout)
    assert repeated["set_hash"] == made["set_hash"]
    assert repeated["calls"] == made["calls"] | {
        "requests": 0,
        "reused": made["calls"]["requests"] + made["calls"]["reused"],
    }


def test_a_made_set_is_a_dataset(capsys: pytest.CaptureFixture[str], documents: Path, tmp_path: Path) -> None:
    path, url = tmp_path / "questions.jsonl", f"duckdb:///{tmp_path / 'own.duckdb'}"
    call_here(capsys, "testset", "make", str(documents), "-n", "7", "-o", str(path), "--warehouse", url)
    run = call_here(capsys, "run", str(path), "--dry-run", "--judge", "lexical", "--warehouse", url)
    assert run.status == 0
    assert "7 samples" in run.stdout
