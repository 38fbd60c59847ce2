"""`testset refresh`: exactly the questions that an update touches change, each in its way, and only they are asked
about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_process import call_here
from live_runs import point_to
from port_answers import port_endpoint
from port_base import EDITS, Edit, build_base
from port_expected import expect_change

from evalhouse.tasks.testsets.sets import find_manifest, read_set
from evalhouse.warehouse.store import Warehouse

KINDS = "fact=5,number=3,several=1,unanswerable=1"
# What refresh calls a question that now has an answer.
ANSWERABLE = {("unanswerable", "changed"): "answerable"}
Capture = pytest.CaptureFixture[str]


def write_some(folder: Path, edits: list[Edit], paths: set[str]) -> Path:
    """Some documents of the base with these edits made."""
    for path, document in build_base(edits).items():
        if path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(document.write(), encoding="utf-8")
    return folder


def read_lines(path: Path) -> dict[str, str]:
    """The lines of a set's file by the ids of their questions."""
    return {json.loads(line)["id"]: line for line in path.read_text(encoding="utf-8").splitlines()}


def leave_out_places(line: str) -> dict[str, Any]:
    """A line without what edits elsewhere in a document move: where a span begins and how it is broken into lines."""
    row: dict[str, Any] = json.loads(line)
    spans = [span | {"start": 0, "text": span["text"].split()} for span in row.get("spans", ())]
    return row | {"spans": spans}


def list_changes(path: Path) -> dict[str, str]:
    manifest = read_set(path).manifest
    changes = (*manifest.versions[-1].changes, *manifest.proposals)
    return {change.id: change.change for change in changes if change.change != "new"}


def check_outcomes(before: Path, after: Path) -> dict[str, str]:
    """Every question became what the edits say; all else is as it was. Returns what became of those that changed."""
    lines, lines_after, became = read_lines(before), read_lines(after), list_changes(after)
    rows = {name: json.loads(line) for name, line in lines.items()}
    expected = {name: expect_change(row) for name, row in rows.items()}
    expected_words = {name: ANSWERABLE.get((rows[name]["kind"], word), word) for name, word in expected.items()}
    assert became == {name: word for name, word in expected_words.items() if word != "same"}
    for name in lines.keys() - became.keys():
        assert leave_out_places(lines[name]) == leave_out_places(lines_after[name])
    return became


def test_what_an_update_touches_changes_and_nothing_else(capsys: Capture, tmp_path: Path) -> None:
    edits = [edit for edit in EDITS if edit.language == "en" and edit.document.startswith("en/quays")]
    paths = {path for edit in edits for path in (edit.document, edit.to)} | {"en/overview/quays-at-a-glance.md"}
    first, second = write_some(tmp_path / "1", [], paths), write_some(tmp_path / "2", edits, paths)
    path, warehouse = tmp_path / "set.jsonl", str(tmp_path / "own.duckdb")
    shared = ("--warehouse", warehouse, "--judge", "openai:judge", "--embeddings", "hashing", "--json")
    with port_endpoint() as (endpoint, _):
        point_to(endpoint.base_url)
        made = call_here(capsys, "testset", "make", str(first), "-n", "20", "--kinds", KINDS, "-o", str(path), *shared)
        assert made.status == 0, made.stderr
        before = tmp_path / "before.jsonl"
        for own, copy in ((path, before), (find_manifest(path), find_manifest(before))):
            copy.write_bytes(own.read_bytes())
        command = ("testset", "refresh", str(path), str(second), *shared)
        refreshed = call_here(capsys, *command)
        assert refreshed.status == 0, refreshed.stderr
        n_asked = endpoint.stats.requests.total()
        again = call_here(capsys, *command).document
    became = check_outcomes(before, path)
    assert set(became.values()) >= {"repointed", "void"}
    assert (again["run_id"], again["changes"]) == (None, {"same": len(read_lines(path))})
    assert endpoint.stats.requests.total() == n_asked
    assert again["set_hash"] == refreshed.document["set_hash"] == read_set(path).manifest.versions[-1].hash
    assert read_set(path).manifest.versions[-1].parent == made.document["set_hash"]
    rows = Warehouse(warehouse).read_rows(
        "select distinct sample_id from llm_calls where run_id = $run_id and sample_id like 'q-%'",
        {"run_id": refreshed.document["run_id"]},
    )
    assert len(rows) == refreshed.document["n_asked_about"] < 20
