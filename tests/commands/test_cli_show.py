"""`runs`, `show` and `lineage`: what a person sees of a run, in a pipe and in a terminal, and what a program gets."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from cli_house import HOSTILE_ID, MARKUP, N_JUDGED, House
from cli_process import Ask, Finished, show_in_terminal
from rich.cells import cell_len
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.warehouse.rows.runs import insert_run

_OWN_STYLES = re.compile(r"\x1b\[[0-9;]*m")


def find_line(finished: Finished, start: str) -> str:
    return next(line for line in finished.lines if line.startswith(start))


def test_runs_lists_the_newest_first_with_means(house: House, ask: Ask) -> None:
    finished = ask("runs")
    assert finished.status == 0
    assert finished.lines[0].split()[:5] == ["run", "label", "dataset", "status", "samples"]
    assert finished.lines[2].startswith(house.run_id)
    assert "first night" in finished.lines[2]
    assert "harbour.jsonl" in finished.lines[2]
    assert len(ask("runs", "--limit", "1").lines) - len(finished.lines) == -1
    narrow = house.place.with_variables(COLUMNS="80").call("runs").lines
    assert "first night" in narrow[2]
    assert re.match(r"note: no room for .*faithfulness, .*; a wider terminal or --json has them$", narrow[-1])


def test_runs_as_json(house: House, ask: Ask) -> None:
    newest, first = ask("runs", "--json").document
    assert first["run_id"] == house.run_id
    assert first["label"] == "first night"
    assert first["tags"] == ["a", "b"]
    assert first["status"] == newest["status"] == "completed"
    means = {name: metric["mean"] for name, metric in house.first.document["metrics"].items()}
    assert first["metrics"] == pytest.approx(means)


def test_runs_with_problems_give_the_reason_and_the_next_command(tmp_path: Path, ask: Ask) -> None:
    warehouse = make_warehouse(tmp_path)
    where = ("--problems", "--warehouse", str(warehouse.location.path))
    insert_run(warehouse, make_run("good", suite="nightly", gate="passed"))
    assert ask("runs", *where).lines == [f"No run in {warehouse.location.name} went wrong."]
    went_wrong: dict[str, dict[str, Any]] = {
        "died": {"status": "failed", "problem": "its process ended"},
        "gated": {"status": "completed", "gate": "failed"},
        "quiet": {"status": "completed", "notify_problem": "HOOK is not set"},
    }
    for run_id, columns in went_wrong.items():
        insert_run(warehouse, make_run(run_id, suite="nightly", **columns))
    assert sorted(ask("runs", *where).lines) == [
        "died  nightly  failed: its process ended; evalhouse resume died",
        "gated  nightly  completed; gate failed; evalhouse show gated",
        "quiet  nightly  completed; the notification was not delivered: HOOK is not set; evalhouse show quiet",
    ]
    assert {run["run_id"] for run in ask("runs", "--json", *where).document} == {"died", "gated", "quiet"}


@pytest.mark.parametrize("word", ["run_id", "start", "label", "previous"])
def test_a_run_is_found_by_any_of_its_names(house: House, ask: Ask, word: str) -> None:
    names = {"run_id": house.run_id, "start": house.run_id[:-1], "label": "first night", "previous": "previous"}
    assert ask("show", names[word], "--json").document["run"]["run_id"] == house.run_id


def test_show_has_scores_worst_samples_calls_and_what_is_unscored(house: House, ask: Ask) -> None:
    finished = ask("show", house.run_id)
    assert finished.status == 0
    assert finished.lines[0].startswith(
        f"run {house.run_id} completed: {N_JUDGED} samples of harbour.jsonl; judge lexical"
    )
    assert "label: first night" in finished.lines
    assert "link: https://example.org/c/1" in finished.lines
    assert "tags: a, b" in finished.lines
    names = [line.split()[0] for line in finished.lines if line]
    shown = names[names.index("metric") + 1 :]
    main = ["answer_correctness", "faithfulness", "context_recall", "context_precision", "answer_rate"]
    assert shown[: len(main)] == main
    assert re.search(r"^\d+ more metrics are in `evalhouse show --all`$", finished.stdout, re.MULTILINE)
    assert find_line(ask("show", house.run_id, "--all"), "factual_f1")
    assert "Worst by answer_correctness" in finished.lines
    assert find_line(finished, "extract_answer").split()[1] == "3"
    assert find_line(finished, "no_answer").split()[1] == "1"
    assert "no change" not in finished.stdout
    assert finished.lines[-1].startswith(f"next: evalhouse lineage {house.run_id}")


def test_the_next_command_can_be_pasted_for_a_hostile_sample_id(house: House, ask: Ask) -> None:
    worst = ask("show", house.run_id, "--sort", "surface_similarity", "--worst", "9", "--json").document["worst"]
    assert [row["value"] for row in worst] == sorted(row["value"] for row in worst)
    assert HOSTILE_ID in {row["sample_id"] for row in worst}
    for where in ((), ("--warehouse", "./evalhouse.duckdb")):
        finished = ask("show", house.run_id, "--sort", "context_utilization", *where)
        command = shlex.split(find_line(finished, "next: ").removeprefix("next: evalhouse "))
        assert len(command) == 4 + len(where)
        assert ask(*command).status == 0


def test_worst_of_a_metric_of_faults_are_the_highest(ask: Ask) -> None:
    worst = ask("show", "latest", "--sort", "hallucination", "--json").document["worst"]
    values = [row["value"] for row in worst]
    assert values == sorted(values, reverse=True)
    assert ask("show", "latest", "--worst", "0", "--json").document["worst"] == []


def test_show_as_json(house: House, ask: Ask) -> None:
    document = ask("show", "latest", "--json").document
    assert document.keys() == {
        "run", "metrics", "worst_by", "worst", "changes", "responses", "costs", "replies", "votes", "noise", "warnings",
        "corrected", "acceptances", "unscored", "components", "forgotten", "preferences", "sampling", "notes", "by",
        "jury",
    }  # fmt: skip
    assert {row["metric"] for row in document["metrics"]} == house.first.document["metrics"].keys()
    assert all(row["change"] == 0 for row in document["metrics"] if row["mean"] is not None), "the same run again"
    assert sum(row["n_requests"] for row in document["costs"]) == 0
    assert {row["reason"] for row in document["unscored"]} >= {"no_answer"}


def test_lineage_walks_from_a_score_to_the_reply(house: House, ask: Ask) -> None:
    finished = ask("lineage", house.run_id, "tide-1", "factual_precision")
    assert finished.status == 0
    text = finished.stdout
    assert "tide-1 in run" in finished.lines[0]
    assert "question: When is high tide at Brankmouth?" in text
    assert "C2: Gulls nest on the pier." in text
    assert "factual_precision = 0.500  (from classify; formula version 1)" in text
    assert re.search(r"\[A1\] TP High tide at Brankmouth is at 6 in the morning\.  — \S", text)
    assert re.search(r"\[A2\] FP The harbour is closed on Mondays\.  — \S", text)
    assert re.search(r"call [0-9a-f]{8}: lexical-\d+ ok", text)
    assert re.search(r"prompt classify version lexical-\d+ \([0-9a-f]{8}\)", text)
    assert 'reply: {"verdicts":' in text
    assert "request: " not in text


def test_in_a_terminal_every_line_fits_and_no_text_reaches_it_raw(house: House) -> None:
    columns = 80
    for arguments in (
        ("runs",),
        ("show", house.run_id, "--worst", "9"),
        ("query", "select * from samples"),
        ("query", "select * from samples", "--format", "csv"),
        ("lineage", house.run_id, HOSTILE_ID),
    ):
        finished = show_in_terminal(house.place, *arguments, columns=columns)
        assert finished.status == 0, finished.stdout
        plain = _OWN_STYLES.sub("", finished.stdout)
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", plain), arguments
        # Rich's styles are bold and colours; red is what the dataset asks for.
        assert "\x1b[31m" not in finished.stdout
        if "csv" not in arguments:
            tables = [
                line for line in plain.splitlines() if not line.startswith(("run ", "next: ", "note: ", "warning: "))
            ]
            assert all(cell_len(line) <= columns for line in tables), arguments


def test_markup_in_texts_is_there_as_it_was_written(house: House, ask: Ask) -> None:
    for finished in (
        ask("lineage", house.run_id, HOSTILE_ID),
        ask("query", "select question from samples"),
        ask("show", house.run_id, "--worst", "9", "--sort", "answer_correctness"),
    ):
        assert MARKUP[:24] in finished.stdout


def test_the_metrics_that_are_better_when_low_are_named(ask: Ask, house: House) -> None:
    (line,) = [line for line in ask("show", house.run_id, "--all").lines if line.startswith("note: better when low: ")]
    low = {row["metric"] for row in ask("query", "from run_scores where better = 'low'", "--format", "json").document}
    assert {*line.removeprefix("note: better when low: ").split(", ")} == low
    assert "hallucination" in low


@pytest.mark.parametrize(("short", "whole"), [
    (("show",), ("show", "latest")),
    (("diagnose",), ("diagnose", "latest")),
    (("lineage", "tide-1"), ("lineage", "latest", "tide-1")),
    (("compare",), ("compare", "previous", "latest")),
])  # fmt: skip
def test_the_newest_run_is_meant_where_none_is_named(short: tuple[str, ...], whole: tuple[str, ...], ask: Ask) -> None:
    assert ask(*short, "--json").document == ask(*whole, "--json").document
