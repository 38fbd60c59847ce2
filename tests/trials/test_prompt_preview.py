"""`evalhouse prompts show NAME --sample`: the messages of a sample, as a run would send them, with none sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from cli_house import write_dataset
from cli_process import Ask, Place
from endpoint import running_endpoint
from prompt_files import ALL_NAMES, read_content, write_prompt

from evalhouse.warehouse.steps import APART_PROMPTS

ROWS: list[dict[str, Any]] = [
    {"id": "fort", "question": "谁修建了鹭洲炮台？",
     "reply": "鹭洲炮台由顾明远修建。炮台建于一八四一年，共有十二门炮。",
     "ground_truth": "鹭洲炮台由顾明远修建。炮台毁于一八六〇年。",
     "contexts": ["鹭洲炮台由顾明远修建，建于一八四一年。", "渔市逢五开张。"], "contexts_role": "supplementary"},
    {"id": "empty", "question": "渔市哪天开张？"},
]  # fmt: skip
READ_BY = {
    "rank": ["question", "ground_truth", "contexts"],
    "questions": ["answer", "count"],
    "sql_equivalence": ["question", "schema", "expected_sql", "sql"],
    "contexts_usefulness": ["question", "contexts"],
}


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    return str(write_dataset(tmp_path, ROWS, "forts.jsonl"))


def show(ask: Ask, name: str, dataset: str, *arguments: str) -> dict[str, Any]:
    shown = ask("prompts", "show", name, "--dataset", dataset, "--map", "answer=reply", "--json", *arguments)
    document: dict[str, Any] = shown.document
    return document


@pytest.mark.parametrize("name", [name for name in ALL_NAMES if name not in ("preference", "turns", *APART_PROMPTS)])
def test_every_prompt_is_shown_for_a_sample(ask: Ask, dataset: str, name: str) -> None:
    shown = show(ask, name, dataset, "--sample", "fort", "--language", "zh")
    assert shown["language"] == "zh"
    assert shown["why_none"] is None
    assert len(shown["requests"]) == (2 if name in ("extract", "attribute") else 1)
    for request in shown["requests"]:
        system, *examples, last = request["messages"]
        assert system["role"] == "system"
        assert [message["role"] for message in examples] == ["human", "ai"] * (len(examples) // 2)
        opened = [line.split()[0][1:] for line in last["content"].splitlines() if line[:1] == "<" and line[1] != "/"]
        assert opened == READ_BY.get(name, opened)
        # Only the regenerated questions are asked without the real one.
        assert ("谁修建了鹭洲炮台？" in last["content"]) is (name != "questions")
        assert "…" not in last["content"]


@pytest.mark.parametrize("name", ["turns", "extract", "attribute"])
def test_earlier_turns_are_shown_with_the_question(ask: Ask, tmp_path: Path, name: str) -> None:
    turns = [{"role": "user", "text": "Tell me of the fort."}, {"role": "assistant", "text": "Ada built it."}]
    row = {"id": "fort", "question": "When?", "reply": "Ada built it in 1870.", "contexts": ["Built in 1870."]}
    talk = {**row, "ground_truth": "In 1870.", "conversation": turns}
    requests = show(ask, name, str(write_dataset(tmp_path, [talk], "talk.jsonl")))["requests"]
    assert requests
    for request in requests:
        assert (
            "\n[T1] user: Tell me of the fort.\n[T2] assistant: Ada built it.\n" in request["messages"][-1]["content"]
        )
    if name == "turns":
        assert (
            show(ask, name, str(write_dataset(tmp_path, [row], "alone.jsonl")))["why_none"] == "turns: no_conversation"
        )


def test_a_prompt_of_test_sets_is_about_no_sample(ask: Ask) -> None:
    shown = ask("prompts", "show", "write_question", "--dataset", "sample")
    assert (shown.status, shown.stdout) == (2, "")
    assert "write_question is asked where test sets are made" in shown.stderr


def test_a_sample_may_say_what_its_contexts_are(ask: Ask, dataset: str) -> None:
    (request,) = show(ask, "relevance", dataset, "--sample", "fort")["requests"]
    assert "\nsupplementary\n" in request["messages"][-1]["content"]


def test_statements_of_the_lexical_judge_are_shown_with_a_note(ask: Ask, dataset: str) -> None:
    arguments = ("--dataset", dataset, "--map", "answer=reply", "--sample", "fort", "--language", "zh")
    text = ask("prompts", "show", "classify", *arguments).stdout
    assert text.startswith("The statements are from the lexical judge")
    assert "\n[A1] 鹭洲炮台由顾明远修建。\n" in text
    assert "\n[G2] 炮台毁于一八六〇年。\n" in text
    assert "lexical" not in ask("prompts", "show", "rank", *arguments).stdout


def test_what_is_shown_is_what_a_run_sends(
    ask: Ask, tmp_path: Path, prefect_home: Path, dataset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALHOUSE_LANGUAGE", "zh")
    shown = {
        tuple(message["content"] for message in request["messages"])
        for name in ("extract", "rank", "relevance")
        for request in show(ask, name, dataset, "--sample", "fort")["requests"]
    }
    with running_endpoint(keep_bodies=True) as endpoint:
        variables = {
            "PREFECT_HOME": str(prefect_home), "OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "sk-none",
            "EVALHOUSE_LANGUAGE": "zh",
        }  # fmt: skip
        place = Place(folder=tmp_path, variables=variables)
        metrics = "context_recall,faithfulness,context_precision,relevance_final"
        options = ("--judge", "openai:judge", "--metrics", metrics, "--map", "answer=reply", "--limit", "1")
        assert place.call("run", dataset, *options).status == 0
        sent = {tuple(message["content"] for message in body["messages"]) for body in endpoint.stats.bodies}
    assert len(shown) == 4
    assert shown <= sent


def test_where_nothing_would_be_asked_the_reason_is_given(ask: Ask, dataset: str) -> None:
    for name, why in (("accuracy", "grade_accuracy: no_ground_truth"), ("rank", "rank: no_contexts")):
        shown = show(ask, name, dataset, "--sample", "empty")
        assert shown["requests"] == []
        assert why in shown["why_none"] or "no_ground_truth" in shown["why_none"]
    text = ask("prompts", "show", "accuracy", "--dataset", dataset, "--sample", "empty").stdout
    assert text == "Nothing is asked with accuracy for sample empty: grade_accuracy: no_ground_truth\n"


def test_queries_that_differ_when_run_are_not_asked_about(ask: Ask, tmp_path: Path) -> None:
    row = {
        "id": "q", "question": "How many?", "ground_truth": "select count(*) from t", "answer": "select 3",
        "tables": {"t": [{"x": 1}]},
    }  # fmt: skip
    path = write_dataset(tmp_path, [row], "sql.jsonl")
    shown = ask("prompts", "show", "sql_equivalence", "--dataset", str(path), "--json").document
    assert shown["requests"] == []
    assert shown["why_none"].startswith("run on the sample's data they differ: ")


def test_custom_rubric_is_shown_for_a_sample(ask: Ask, tmp_path: Path, dataset: str) -> None:
    content = read_content("answer_validity", "zh")
    renamed = orjson.loads(orjson.dumps(content).replace(b"answer_validity", b"tone"))
    write_prompt(tmp_path / "own", renamed)
    shown = show(ask, "tone", dataset, "--language", "zh", "--prompts", str(tmp_path / "own"))
    (request,) = shown["requests"]
    assert request["step"] == "grade_tone"
    assert "共有十二门炮。" in request["messages"][-1]["content"]


@pytest.mark.parametrize(("arguments", "expected"), [
    (("--sample", "missing"), "dataset sample has no sample 'missing'; it has: en-warranty-01, "),
    (("--dataset", "missing.jsonl"), "missing.jsonl"),
    (("--dataset", "sample", "--map", "answer"), "--map got 'answer'; write NAME=VALUE"),
])  # fmt: skip
def test_missing_sample_is_one_message(ask: Ask, arguments: tuple[str, ...], expected: str) -> None:
    finished = ask("prompts", "show", "rank", *arguments)
    assert finished.status == 2
    assert finished.stdout == ""
    assert expected in finished.stderr
    assert len(finished.stderr.splitlines()) == 1


def test_nothing_is_written_or_needed(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALHOUSE_JUDGE", "openai:judge")
    monkeypatch.setenv("EVALHOUSE_BUDGET", "1")
    monkeypatch.setenv("EVALHOUSE_VOTES", "3")
    shown = ask("prompts", "show", "classify", "--sample", "en-warranty-01", "--json").document
    assert len(shown["requests"]) == 1, "votes ask the same thing again"
    assert list(tmp_path.iterdir()) == []
