"""`evalhouse lineage` of a score with a history: a failed step, other weights, a user's metric, very long texts.

Tests of a complete tree are in test_cli_show.py, tests of the sources of grades and measures in
test_lineage_grades.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
from cli_house import HOSTILE, MARKUP, House, write_metric
from cli_process import Ask

LONG = "The pier is long. " * 60 + "Here it ends."


def change(url: str, sql: str, *values: object) -> None:
    with duckdb.connect(url) as connection:
        connection.execute(sql, list(values))


def select(ask: Ask, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ask("query", sql, "--format", "json").document
    return rows


def test_every_id_in_the_tree_can_be_looked_up(ask: Ask) -> None:
    tree = ask("lineage", "latest", "tide-1").stdout
    calls = {row["call_id"][:8] for row in select(ask, "select call_id from llm_calls")}
    prompts = {row["prompt_hash"][:8] for row in select(ask, "select prompt_hash from prompts")}
    shown_calls = set(re.findall(r"call ([0-9a-f]+):", tree))
    shown_prompts = set(re.findall(r"prompt .*\(([0-9a-f]+)\)", tree))
    assert len(shown_calls) == 6, "two splittings, classify, rank, and an attribution of each text"
    assert shown_calls <= calls
    assert len(shown_prompts) == 4
    assert shown_prompts <= prompts


def test_every_score_in_the_tree_is_the_one_stored(house: House, ask: Ask) -> None:
    tree = ask("lineage", house.run_id, "tide-1").stdout
    shown = dict(re.findall(r"── (\w+) = ([0-9.]+) ", tree))
    sql = f"select metric, value from scores where run_id = '{house.run_id}' and sample_id = 'tide-1'"
    rows = [row for row in select(ask, sql) if row["value"] is not None]
    assert shown == {row["metric"]: f"{row['value']:.3f}" for row in rows}


def test_json_holds_the_rows_of_the_view_whole_and_those_of_the_splitting(house: House, ask: Ask) -> None:
    rows = ask("lineage", "first night", "tide-1", "context_recall", "--json").document
    assert [row.pop("metadata") for row in rows] == [{"harbour": "Brankmouth"}] * 2
    assert rows[0]["thoughts"] is None
    sql = f"""
        select * from score_lineage
        where run_id = '{house.run_id}' and sample_id = 'tide-1' and metric = 'context_recall'
    """
    supported, split = rows
    (expected,) = select(ask, sql)
    assert {name: supported[name] for name in expected} == expected
    assert supported["context_ranks"] == [1]
    assert split.keys() == supported.keys()
    message = ("metric", "value", "metric_version", "question", "statement_id", "statement")
    assert [split[name] for name in message] == [supported[name] for name in message]
    assert (split["step"], split["prompt"], split["call_id"]) == (
        "extract_ground_truth", "extract", supported["statement_call_id"],
    )  # fmt: skip
    assert "High tide at Brankmouth is at 6 in the morning." in split["reply"]


def test_statements_lead_to_the_reply_they_are_in(url: str, ask: Ask) -> None:
    lines = [line.lstrip("│├└─ ") for line in ask("lineage", "latest", "tide-1", "faithfulness").lines]
    at = lines.index("extract_answer")
    assert lines[at + 1] == "[A1] High tide at Brankmouth is at 6 in the morning."
    assert lines[at + 2] == "[A2] The harbour is closed on Mondays."
    assert re.match(r"call [0-9a-f]{8}: lexical-\d+ cached, reused from run ", lines[at + 3])
    assert lines[at + 4].startswith("prompt extract version ")
    assert lines[at + 5].startswith('reply: {"statements":')
    assert lines[at + 6] == "attribute_answer", "what is split comes before what is judged"
    assert "extract_ground_truth" not in lines, "faithfulness asks nothing of the ground truth"


def test_a_text_without_statements_leads_to_the_reply_that_says_so(url: str, ask: Ask) -> None:
    for table in ("statements", "classifications", "attributions"):
        change(url, f"delete from {table} where sample_id = 'tide-1' and statement_id like 'A%'")
    change(
        url, "update llm_calls set reply = '{\"statements\": []}' where step = 'extract_answer' and reply is not null"
    )
    ask("rescore", "latest", "--warehouse", url)
    tree = ask("lineage", "latest", "tide-1", "faithfulness", "--warehouse", url).stdout
    assert "faithfulness = unscored: no_statements  (from attribute_answer; formula version 3)" in tree
    assert 'reply: {"statements": []}' in tree


def test_other_weights_are_shown_by_the_version_of_the_formula(url: str, ask: Ask) -> None:
    before = ask("lineage", "latest", "tide-1", "answer_correctness", "--warehouse", url).stdout
    ask("rescore", "latest", "--set", "answer_correctness.similarity_weight=0", "--warehouse", url)
    after = ask("lineage", "latest", "tide-1", "answer_correctness", "--warehouse", url).stdout
    assert "formula version 1)" in before
    assert "answer_correctness = 0.667  (from classify, similarity; formula version 1;similarity_weight=0)" in after
    verdicts = [tree[tree.index("extract_answer") :] for tree in (before, after)]
    assert verdicts[0] == verdicts[1], "the verdicts are the same ones"


def test_a_metric_that_rests_on_no_verdict_has_the_sample_and_its_score(url: str, ask: Ask, tmp_path: Path) -> None:
    ask("rescore", "latest", "--metric-files", str(write_metric(tmp_path)), "--warehouse", url)
    finished = ask("lineage", "latest", "silent-1", "answer_length", "--warehouse", url)
    assert finished.lines[1:] == [
        "├── sample",
        "│   ├── question: Who keeps the light?",
        "│   ├── answer: –",
        "│   └── ground_truth: Maud Tregarthen keeps the light.",
        "└── answer_length = unscored: no_answer  (formula version 3)",
    ]


def test_a_step_that_failed_says_what_happened(url: str, ask: Ask) -> None:
    change(url, "delete from classifications where sample_id = 'tide-1'")
    change(
        url,
        "update outcomes set reason = 'judge_failed', detail = ? where sample_id = 'tide-1' and step = 'classify'",
        f"status 500 {MARKUP} {HOSTILE}",
    )
    assert ask("rescore", "latest", "--warehouse", url).status == 0
    finished = ask("lineage", "latest", "tide-1", "factual_f1", "--warehouse", url)
    assert finished.status == 0
    assert "factual_f1 = unscored: judge_failed  (from classify; formula version 1)" in finished.stdout
    assert f"└── classify: judge_failed status 500 {MARKUP} \\x1b[31mred" in finished.stdout
    assert "\x1b" not in finished.stdout


def test_long_texts_are_cut_unless_they_are_asked_for(url: str, ask: Ask) -> None:
    change(url, "update samples set answer = ? where sample_id = 'tide-1'", LONG)
    arguments = ("lineage", "latest", "tide-1", "factual_f1", "--warehouse", url)
    brief, full = ask(*arguments).stdout, ask(*arguments, "--full").stdout
    assert "Here it ends." not in brief
    (line,) = [line for line in brief.splitlines() if "answer: " in line]
    assert line.endswith("…")
    assert len(line) < 350
    assert f"answer: {LONG}\n" in full


def test_a_reply_can_neither_colour_the_tree_nor_add_branches(url: str, ask: Ask) -> None:
    reply = f"{MARKUP} {HOSTILE}\n├── factual_f1 = 1.000"
    change(url, "update llm_calls set reply = ? where reply is not null", reply)
    arguments = ("lineage", "first night", "tide-1", "factual_f1", "--warehouse", url)
    for finished in (ask(*arguments), ask(*arguments, "--full")):
        assert MARKUP in finished.stdout
        assert "\\x1b[31mred" in finished.stdout
        assert not set("\x1b\x07\x9b\u202e") & set(finished.stdout)
        assert "\n├── factual_f1 = 1.000" not in finished.stdout
    rows = ask(*arguments, "--json").document
    assert {row["reply"] for row in rows} == {reply}, "a program gets what came back, unaltered"
    change(url, "update run_samples set metadata = ?", '{"tool_calls": "\\u001b[31mred"}')
    change(url, "update scores set metric = 'tool_call_accuracy' where metric = 'factual_f1'")
    finished = ask("lineage", "first night", "tide-1", "tool_call_accuracy", "--warehouse", url)
    assert "tool_calls: \\x1b[31mred\n" in finished.stdout


def test_lineage_of_a_run_without_scores_names_the_command_that_resumes_it(house: House, url: str, ask: Ask) -> None:
    change(url, "delete from scores where run_id = ?", house.run_id)
    finished = ask("lineage", house.run_id, "tide-1", "--warehouse", url)
    assert finished.status == 2
    assert finished.stdout == ""
    advice = f"run {house.run_id} has no scores yet; `evalhouse resume {house.run_id}` continues it"
    assert finished.stderr == f"Error: {advice}\n"
