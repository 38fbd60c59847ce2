"""Runs over data without columns that metrics need: reported before anything is asked, and again at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, Place

from evalhouse.flows.results.run_facts import read_silent
from evalhouse.flows.serving.notify import describe_end
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse

ROWS: list[dict[str, Any]] = [
    {"question": "Who keeps the light?", "answer": "Maud keeps it.", "gold": "Maud keeps it.", "topic": "light"},
    {"question": "When is high tide?", "answer": "At six.", "gold": "At six.", "topic": "tide"},
]
OPTIONS = ("--judge", "lexical")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Place:
    folder = tmp_path_factory.mktemp("unscorable")
    (folder / "qa.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS), encoding="utf-8")
    return Place(folder=folder, variables={"PREFECT_HOME": str(prefect_home)})


@pytest.fixture(scope="module")
def ended(place: Place) -> Finished:
    return place.call("run", "qa.jsonl", *OPTIONS)


ANNOUNCED = [
    "columns: question, answer; not found: ground_truth, contexts; kept as metadata: gold, topic",
    "warning: no sample has ground_truth, without which 19 of the 25 metrics cannot be scored: "
    "factual_precision, factual_recall, statement_recall, factual_f1 and 15 more",
    "warning: no sample has contexts, without which 12 of the 25 metrics cannot be scored: "
    "context_recall, context_precision, faithfulness, context_utilization and 8 more",
    "is 'gold' the ground_truth? --map ground_truth=gold reads it",
]


def test_columns_and_metrics_they_leave_unscored_are_reported_first(place: Place, ended: Finished) -> None:
    assert ended.stderr.splitlines() == ANNOUNCED
    assert place.call("run", "qa.jsonl", *OPTIONS, "--dry-run").stderr.splitlines() == ANNOUNCED


def test_doctor_and_collect_say_the_same_of_a_suite(place: Place) -> None:
    (place.folder / "bot.py").write_text("def ask(question):\n    return 'At six.'\n")
    suite = 'dataset = "qa.jsonl"\njudge = "lexical"\nmetrics = ["factual_f1", "answer_relevancy"]\n'
    (place.folder / "qa.toml").write_text(f'{suite}[target]\ncallable = "bot:ask"\n')
    printed = [
        "columns: question, answer; not found: ground_truth; kept as metadata: gold, topic",
        "warning: no sample has ground_truth, without which 1 of the 2 metrics cannot be scored: factual_f1",
        ANNOUNCED[-1],
    ]
    checked = place.call("doctor", "qa.toml", "--json").document
    [finding] = [finding for finding in checked["findings"] if finding["what"] == "dataset"]
    assert (finding["verdict"], finding["detail"].split("; ", 1)[1]) == ("note", "; ".join(printed))
    collected = place.call("collect", "qa.toml").stderr.splitlines()
    assert [line for line in printed if line not in collected and "metrics" not in line] == []


def test_metrics_without_scores_are_named_at_the_end_with_reasons(place: Place, ended: Finished) -> None:
    assert ended.status == 0
    run_id = ended.stdout.split()[1]
    for shown in (ended.stdout, place.call("show", run_id).stdout):
        [line] = [line for line in shown.splitlines() if "nothing was scored by" in line]
        assert line.startswith("warning: nothing was scored by factual_precision, ")
        assert "(no_ground_truth 2); " in line
        assert "faithfulness (no_contexts 2); " in line
        assert line.endswith("recall_at_k (no_reference_ids 2)")
        assert "\nfactual_f1 " not in shown, "a table of dashes says less than the line"


def test_a_message_about_the_end_names_the_first_of_them(place: Place, ended: Finished) -> None:
    warehouse = Warehouse(str(place.folder / "evalhouse.duckdb"))
    run = find_run(warehouse, ended.stdout.split()[1])
    message = describe_end(run, None, read_silent(warehouse, run).describe(max_names=2))
    assert message == (
        f"run {run.run_id} completed, nothing was scored by factual_precision, factual_recall and 17 more "
        f"(no_ground_truth 2); faithfulness (no_contexts 2); next: evalhouse show {run.run_id}"
    )


def test_a_named_metric_without_scores_is_listed_with_its_reason(place: Place) -> None:
    ended = place.call("run", "qa.jsonl", *OPTIONS, "--metrics", "factual_f1")
    assert "warning: no sample has ground_truth, without which the metric cannot be scored" in ended.stderr
    assert "\nfactual_f1 " in ended.stdout
    assert "warning: nothing was scored by factual_f1 (no_ground_truth 2)" in ended.stdout


def test_rubrics_need_what_they_say_they_need(place: Place) -> None:
    """Predicted by the `needs` of the rubric's file, not by its prompt."""
    options = ("--judge", "openai:judge", "--metrics", "accuracy,answer_validity", "--dry-run")
    printed = place.call("run", "qa.jsonl", *options).stderr
    assert (
        "warning: no sample has ground_truth, without which 1 of the 2 metrics cannot be scored: accuracy\n" in printed
    )


def test_sample_costs_nothing_even_with_keys(tmp_path: Path, place: Place) -> None:
    """The address does not answer, so that a request would fail."""
    keys = {"OPENAI_API_KEY": "sk-of-a-newcomer", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    there = Place(folder=tmp_path, variables={**place.variables, **keys})
    ended = there.call("run", "sample", "--limit", "2", "--json")
    assert (ended.status, ended.document["judge"], ended.document["embeddings"]) == (0, "lexical", "hashing")
    assert "No judge was named and the dataset is 'sample', so the built-in lexical judge" in ended.stderr
