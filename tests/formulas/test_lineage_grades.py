"""`evalhouse lineage` of what is graded, regenerated or measured: down to the reply, or to the numbers themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_house import place_at, write_dataset
from cli_process import Finished, Place
from endpoint import Asked, running_endpoint

Show = Callable[..., list[str]]

SAMPLE = {
    "id": "mill",
    "question": "Which river turns the Helm mill?",
    "answer": "select 1 as x",
    "ground_truth": "select 2 as x",
    "contexts": ["The Arl turns the mill."],
    "contexts_role": "supplementary",
    "expected_tool_calls": [{"name": "find_river", "args": {"mill": "Helm"}}],
    "tool_calls": [{"name": "find_river", "args": {"mill": "Holm"}}, {"name": "stop"}],
    "tables": {"t": [{"x": 1}]},
}
QUESTIONS = ["Which river turns it?", "What turns the Helm mill?", "Where is the mill?"]
RELEVANCE = {
    "unrelated": {"reason": "It is about the mill.", "verdict": False},
    "accuracy": {"reason": "The river is a different one.", "rating": 2},
    "comprehensiveness": {"reason": "All is there.", "rating": 9},
    "context_precision": {"reason": "It is in C1.", "rating": 3},
    "final": 0.9,
}
GRADED: dict[str, dict[str, Any]] = {
    "relevance": RELEVANCE,
    "questions": {"reason": "It names a river.", "noncommittal": False, "questions": QUESTIONS},
}
METRICS = "relevance_final,answer_relevancy,bleu,tool_call_accuracy,result_set_match,sql_equivalence"


def reply(asked: Asked) -> dict[str, Any]:
    return GRADED[asked.body["response_format"]["json_schema"]["name"]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("graded")
    write_dataset(folder, [SAMPLE], "mills.jsonl")
    with running_endpoint(script={"other": reply}) as endpoint:
        place = place_at(folder, prefect_home, endpoint.base_url)
        finished = place.call("run", "mills.jsonl", "--judge", "openai:judge", "--metrics", METRICS)
        assert finished.status == 0, finished.stdout + finished.stderr
        yield place


@pytest.fixture
def show(place: Place, monkeypatch: pytest.MonkeyPatch, ask: Callable[..., Finished]) -> Show:
    """The lines of a tree below the sample, without what draws it."""

    def lines(*arguments: str) -> list[str]:
        monkeypatch.chdir(place.folder)
        finished = ask("lineage", "latest", "mill", *arguments)
        assert finished.status == 0, finished.stderr
        return [line.lstrip("│├└─ ") for line in finished.lines]

    return lines


def test_score_of_a_rubric_leads_to_the_ratings_the_rules_and_the_reply(show: Show) -> None:
    lines = show("relevance_final")
    # The judge gave 2 + 9 + 3, the cap makes it 2 + 4 + 3, and 9 / 30 is 0.3.
    assert "relevance_final = 0.300  (from grade_relevance; formula version 1)" in lines
    at = lines.index("grade_relevance")
    assert lines[at + 1 : at + 6] == [
        "accuracy 2 of 10  — The river is a different one.",
        "comprehensiveness 4 of 10, said 9 (capped at 4: accuracy is 2, at most 2)  — All is there.",
        "context_precision 3 of 10  — It is in C1.",
        "final 0.3 of 1, said 0.9 (recomputed: the judge gave 0.9)  — (2 + 4 + 3) / 30",
        "unrelated 0 of 1  — It is about the mill.",
    ]
    assert re.fullmatch(r"call [0-9a-f]{8}: judge ok", lines[at + 6])
    assert re.fullmatch(r"prompt relevance version \d+ en \([0-9a-f]{8}\)", lines[at + 7])
    assert lines[at + 8].startswith('reply: {"unrelated":{"reason":"It is about the mill."')
    assert "contexts_role: supplementary" in lines


def test_text_overlap_leads_to_its_measures(show: Show) -> None:
    lines = show("bleu")
    measured = lines[lines.index("overlap") + 1 :]
    assert [line.split()[0] for line in measured] == ["bleu", "chrf", "rouge_l", "squad_exact_match", "token_f1"]
    assert f"bleu = {measured[0].split()[1]}" in "\n".join(lines)


def test_answer_relevancy_leads_to_the_questions_that_were_written(show: Show) -> None:
    lines = show("answer_relevancy")
    at = lines.index("relevancy")
    shown_lines = lines[at + 1 : at + 5]
    assert "noncommittal 0 of 1  — It names a river." in shown_lines
    shown = {
        text: float(cosine) for line in shown_lines for cosine, text in re.findall(r"^cosine ([0-9.]+)  (.*)", line)
    }
    assert sorted(shown) == sorted(QUESTIONS)
    (score,) = re.findall(r"^answer_relevancy = ([0-9.]+)", "\n".join(lines), re.MULTILINE)
    assert float(score) == pytest.approx(sum(shown.values()) / 3, abs=0.001)
    assert lines[at + 6].startswith("prompt questions version ")
    assert lines[at + 7].startswith('reply: {"reason":"It names a river."')


def test_tool_calls_lead_to_their_comparison_and_to_the_calls(show: Show) -> None:
    lines = show("tool_call_accuracy")
    assert 'expected_tool_calls: [{"name":"find_river","args":{"mill":"Helm"}}]' in lines
    assert any(line.startswith('tool_calls: [{"name":"find_river","args":{"mill":"Holm"}}') for line in lines)
    measured = lines[lines.index("tool_calls") + 1 :]
    assert [line.split()[0] for line in measured] == ["any_order", "arguments", "in_order", "names", "order"]
    assert [line.endswith("— extra stop; wrong arguments find_river: mill") for line in measured] == [True] + [
        False
    ] * 4
    assert not any(line.startswith("call ") for line in lines), "no judge was asked"


def test_what_was_settled_without_the_judge_says_so(show: Show) -> None:
    lines = show("sql_equivalence")
    (settled,) = [line for line in lines if line.startswith("sql_equivalence 0 of 1")]
    assert "(settled by running both)" in settled
    assert "run on the sample's data they differ: " in settled


def test_all_scores_of_a_sample_show_every_step_once(show: Show) -> None:
    lines = show()
    steps = (
        "relevancy", "overlap", "tool_calls", "result_sets", "grade_relevance", "grade_sql_equivalence",
    )  # fmt: skip
    assert [line for line in lines if line in steps] == list(steps)
    assert {line.split(" = ")[0] for line in lines if " = " in line} == set(METRICS.split(","))
