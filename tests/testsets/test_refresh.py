"""`testset refresh`: exactly the questions that an update touches change, each in its way, and only they are asked
about."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from cli_process import Place, call_here, finish, wait_for
from kill_runs import noting_endpoint, read_recorded
from live_runs import point_to
from port_answers import PortAnswers, port_endpoint
from port_base import EDITS, Edit, build_base, expect_change

from evalhouse.tasks.testsets.questions import find_manifest, load_set
from evalhouse.warehouse.store import Warehouse

KINDS = "fact=5,number=3,several=1,unanswerable=1"
# What refresh calls a question that now has an answer.
ANSWERABLE = {("unanswerable", "changed"): "answerable"}
EDITED = [edit for edit in EDITS if edit.language == "en" and edit.document.startswith("en/quays")]
PATHS = {path for edit in EDITED for path in (edit.document, edit.to)} | {"en/overview/quays-at-a-glance.md"}
Capture = pytest.CaptureFixture[str]


def write_some(folder: Path, edits: list[Edit], paths: set[str]) -> Path:
    """Some documents of the base with these edits made."""
    for path, document in build_base(edits).items():
        if path in paths:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(document.write(), encoding="utf-8")
    return folder


def copy_set(path: Path, to: Path) -> None:
    for own, copy in ((path, to), (find_manifest(path), find_manifest(to))):
        copy.write_bytes(own.read_bytes())


def read_lines(path: Path) -> dict[str, str]:
    """The lines of a set's file by the ids of their questions."""
    return {json.loads(line)["id"]: line for line in path.read_text(encoding="utf-8").splitlines()}


def leave_out_places(line: str) -> dict[str, Any]:
    """A line without what edits elsewhere in a document move: where a span begins and how it is broken into lines."""
    row: dict[str, Any] = json.loads(line)
    spans = [span | {"start": 0, "text": span["text"].split()} for span in row.get("spans", ())]
    return row | {"spans": spans}


def list_changes(path: Path) -> dict[str, str]:
    manifest = load_set(path).manifest
    changes = (*manifest.versions[-1].changes, *manifest.proposals)
    return {change.id: change.change for change in changes if change.change != "new"}


def check_outcomes(before: Path, after: Path) -> dict[str, str]:
    """Check that every question changed as its edits require, and nothing else. Returns the changes."""
    lines, lines_after, became = read_lines(before), read_lines(after), list_changes(after)
    rows = {name: json.loads(line) for name, line in lines.items()}
    expected = {name: expect_change(row) for name, row in rows.items()}
    expected_words = {name: ANSWERABLE.get((rows[name]["kind"], word), word) for name, word in expected.items()}
    assert became == {name: word for name, word in expected_words.items() if word != "same"}
    for name in lines.keys() - became.keys():
        assert leave_out_places(lines[name]) == leave_out_places(lines_after[name])
    return became


def test_update_changes_the_questions_it_touches_and_no_others(capsys: Capture, tmp_path: Path) -> None:
    first, second = write_some(tmp_path / "1", [], PATHS), write_some(tmp_path / "2", EDITED, PATHS)
    path, warehouse = tmp_path / "set.jsonl", str(tmp_path / "own.duckdb")
    shared = ("--warehouse", warehouse, "--judge", "openai:judge", "--embeddings", "hashing", "--json")
    with port_endpoint() as (endpoint, _):
        point_to(endpoint.base_url)
        made = call_here(capsys, "testset", "make", str(first), "-n", "20", "--kinds", KINDS, "-o", str(path), *shared)
        assert made.status == 0, made.stderr
        before = tmp_path / "before.jsonl"
        copy_set(path, before)
        command = ("testset", "refresh", str(path), str(second), *shared)
        refreshed = call_here(capsys, *command)
        assert refreshed.status == 0, refreshed.stderr
        n_asked = endpoint.stats.requests.total()
        again = call_here(capsys, *command).document
    became = check_outcomes(before, path)
    assert set(became.values()) >= {"repointed", "void"}
    assert (again["run_id"], again["changes"]["same"]) == (None, len(read_lines(path)))
    assert endpoint.stats.requests.total() == n_asked
    assert again["set_hash"] == refreshed.document["set_hash"] == load_set(path).manifest.versions[-1].hash
    assert load_set(path).manifest.versions[-1].parent == made.document["set_hash"]
    rows = Warehouse(warehouse).read_rows(
        "select distinct sample_id from llm_calls where run_id = $run_id and sample_id like 'q-%'",
        {"run_id": refreshed.document["run_id"]},
    )
    assert len(rows) == refreshed.document["n_asked_about"] < 20


@pytest.mark.slow
def test_faults_and_a_kill_lose_nothing_and_nothing_is_paid_twice(tmp_path: Path) -> None:
    first, second = write_some(tmp_path / "1", [], PATHS), write_some(tmp_path / "2", EDITED, PATHS)
    path, before = tmp_path / "set.jsonl", tmp_path / "before.jsonl"
    asking = ("--judge", "openai:judge", "--embeddings", "hashing", "--attempts", "50", "--concurrency", "8", "--json")
    with noting_endpoint(compose=PortAnswers().compose, seed=7, retry_after=0) as endpoint:
        variables = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": endpoint.base_url}
        place = Place(folder=tmp_path, variables=variables)
        made = place.call("testset", "make", first.name, "-n", "20", "--kinds", KINDS, "-o", path.name, *asking)
        assert made.status == 0, made.stderr
        endpoint.configure(faults={"rate_limit": 0.1, "server_error": 0.1, "reset": 0.1})
        copy_set(path, before)
        command, n_asked = ("testset", "refresh", path.name, second.name, *asking), len(endpoint.asked)
        recorded = read_recorded(tmp_path / "evalhouse.duckdb").keys()
        process = place.start(*command)
        wait_for(lambda: len(endpoint.asked) >= n_asked + 4, process)
        process.send_signal(signal.SIGKILL)
        assert finish(process).status == -signal.SIGKILL
        endpoint.settle()
        assert recorded.isdisjoint(noted.texts for noted in endpoint.asked[n_asked:])
        assert path.read_bytes() == before.read_bytes()
        assert find_manifest(path).read_bytes() == find_manifest(before).read_bytes()
        recorded, n_asked = read_recorded(tmp_path / "evalhouse.duckdb").keys(), len(endpoint.asked)
        done = place.call(*command)
        assert done.status == 0, done.stderr
        assert recorded.isdisjoint(noted.texts for noted in endpoint.asked[n_asked:])
        assert read_recorded(tmp_path / "evalhouse.duckdb").most_common(1)[0][1] == 1
        again = place.call(*command).document
    assert (again["run_id"], again["calls"]["requests"]) == (None, 0)
    check_outcomes(before, path)
