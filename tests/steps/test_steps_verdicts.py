"""The steps of one sample: their verdicts, and the same ids out as in when the judge omits or invents some."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Endpoint, Inject
from endpoint_replies import Fault
from live_runs import (
    ScriptedJudge,
    judge_one,
    judge_samples,
    judge_with,
    lay_out_run,
    make_sample,
    make_settings,
    read_calls,
    read_detail,
    read_joint_ranks,
    read_labels,
    read_outcomes,
    read_ranks,
    read_useful,
    say_good,
    say_verdicts,
)  # fmt: skip

from evalhouse.tasks.asking.usage import Price
from evalhouse.tasks.judge.protocol import Question, RefusedRequest

ALL_STEPS = (
    "extract_answer", "extract_ground_truth", "classify", "attribute_answer", "attribute_ground_truth", "rank",
    "similarity",
)  # fmt: skip
DONE: dict[str, str | None] = dict.fromkeys(ALL_STEPS)
LABELS = {"A1": "TP", "A2": "FP", "G1": "TP", "G2": "FN"}


def read_names(body: Mapping[str, Any]) -> str:
    """Return the ids that a request asks for behind its data."""
    last: str = body["messages"][-1]["content"]
    return last.partition("for these ids only: ")[2].partition(".")[0]


async def test_contexts_that_carry_a_statement_only_together_support_it(tmp_path: Path) -> None:
    def say_joint(question: Question) -> str:
        supports = {
            "A1": {"contexts": ["C2"], "together": ["C1", "C3"]},
            "A2": {"contexts": [], "together": ["C3", "C1"]},
            "G1": {"contexts": [], "together": []},
            "G2": {"contexts": [], "together": ["C1", "C2"]},
        }
        side = "answer_statements" if question.step == "attribute_answer" else "ground_truth_statements"
        return say_verdicts(*({"id": item.id, **supports[item.id]} for item in question.data[side]))  # type: ignore[union-attr]

    _, work = await judge_with(tmp_path, {"attribute": say_joint})
    assert read_ranks(work) == {"A1": [2], "A2": [], "G1": [], "G2": []}
    assert read_joint_ranks(work) == {"A1": [], "A2": [1, 3], "G1": [], "G2": [1, 2]}
    assert {row["statement_id"]: row["supported"] for row in work.rows["attributions"]} == {
        "A1": True, "A2": True, "G1": False, "G2": True,
    }  # fmt: skip


async def test_a_single_context_together_is_asked_about_again_alone(tmp_path: Path) -> None:
    def say_half(question: Question) -> str:
        if question.step == "attribute_ground_truth" or question.number > 1:
            return say_good(question)
        return say_verdicts(
            {"id": "A1", "contexts": [], "together": ["C2"]}, {"id": "A2", "contexts": [], "together": []}
        )

    judge, work = await judge_with(tmp_path, {"attribute": say_half})
    assert [question.only for question in judge.asked if question.step == "attribute_answer"] == [(), ("A1",)]
    assert read_ranks(work)["A1"] == [1]
    assert read_joint_ranks(work)["A1"] == []


async def test_a_sample_takes_six_requests_and_brings_every_verdict(endpoint: Endpoint, tmp_path: Path) -> None:
    work = await judge_one(tmp_path)
    assert endpoint.stats.kinds == {"extract": 2, "classify": 1, "attribute": 2, "rank": 1}
    assert read_outcomes(work) == DONE
    rows = work.rows["statements"]
    statements = sorted((row["statement_id"], row["source"], row["ordinal"], row["text"]) for row in rows)
    assert statements == [
        ("A1", "answer", 1, "Lighthouse 1 was built in 1911."),
        ("A2", "answer", 2, "The architect was Ode Varn1."),
        ("G1", "ground_truth", 1, "Lighthouse 1 was built in 1911."),
        ("G2", "ground_truth", 2, "The builder was Mira Solveng1."),
    ]
    assert read_labels(work) == LABELS
    assert read_ranks(work) == {"A1": [1], "A2": [], "G1": [1], "G2": [2]}
    assert {row["statement_id"]: row["supported"] for row in work.rows["attributions"]} == {
        "A1": True, "A2": False, "G1": True, "G2": True,
    }  # fmt: skip
    assert read_useful(work) == {1: True, 2: True, 3: False}
    assert 0.4 < work.rows["similarities"][0]["value"] < 1.0  # type: ignore[operator]


async def test_every_verdict_names_the_call_it_came_from(endpoint: Endpoint, tmp_path: Path) -> None:
    work = await judge_one(tmp_path)
    steps = {call["call_id"]: call["step"] for call in read_calls(tmp_path)}
    expected = {
        "statements": {"extract_answer", "extract_ground_truth"},
        "classifications": {"classify"},
        "attributions": {"attribute_answer", "attribute_ground_truth"},
        "context_verdicts": {"rank"},
    }
    for table, names in expected.items():
        assert {steps[str(row["call_id"])] for row in work.rows[table]} == names
        assert all("reason" not in row or row["reason"] for row in work.rows[table])


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({"answer": None}, {"extract_answer": "no_answer", "classify": "no_answer", "attribute_answer": "no_answer",
                            "similarity": "no_answer"}),
        ({"ground_truth": None}, {"extract_ground_truth": "no_ground_truth", "classify": "no_ground_truth",
                                  "attribute_ground_truth": "no_ground_truth", "rank": "no_ground_truth",
                                  "similarity": "no_ground_truth"}),
        ({"contexts": None}, dict.fromkeys(["attribute_answer", "attribute_ground_truth", "rank"], "no_contexts")),
        ({"contexts": []}, {}),
        ({"contexts": [], "answer": ""}, {"attribute_answer": "no_statements"}),
        ({"answer": ""}, {"attribute_answer": "no_statements"}),
        ({"answer": "...", "ground_truth": "!"}, dict.fromkeys(
            ["classify", "attribute_answer", "attribute_ground_truth", "rank"], "no_statements")),
        ({"answer": None, "ground_truth": None, "contexts": None}, {
            "extract_answer": "no_answer", "extract_ground_truth": "no_ground_truth", "classify": "no_answer",
            "attribute_answer": "no_answer", "attribute_ground_truth": "no_ground_truth", "rank": "no_ground_truth",
            "similarity": "no_answer"}),
    ],
)  # fmt: skip
async def test_missing_texts_are_noted_once_for_each_step(
    endpoint: Endpoint, tmp_path: Path, changes: dict[str, Any], reasons: dict[str, str]
) -> None:
    work = await judge_one(tmp_path, make_sample(**changes))
    assert Counter(str(row["step"]) for row in work.rows["outcomes"]) == Counter(ALL_STEPS)
    assert read_outcomes(work) == DONE | reasons


async def test_an_empty_retrieval_supports_nothing_without_a_request(endpoint: Endpoint, tmp_path: Path) -> None:
    work = await judge_one(tmp_path, make_sample(contexts=[]))
    assert endpoint.stats.kinds == {"extract": 2, "classify": 1}
    assert read_ranks(work) == {"A1": [], "A2": [], "G1": [], "G2": []}
    rows = work.rows["attributions"]
    assert {(row["supported"], row["reason"], row["call_id"]) for row in rows} == {
        (False, "no context was retrieved", None)
    }
    assert work.rows["context_verdicts"] == []


async def test_an_empty_answer_is_a_refusal_without_a_request(endpoint: Endpoint, tmp_path: Path) -> None:
    work = await judge_one(tmp_path, make_sample(answer=""))
    assert endpoint.stats.kinds == {"extract": 1, "attribute": 1, "rank": 1}
    assert read_labels(work) == {"G1": "FN", "G2": "FN"}
    assert [row["value"] for row in work.rows["similarities"]] == [0]


@pytest.mark.parametrize(("changes", "labels", "reasons"), [
    ({"answer": "..."}, {"G1": "FN", "G2": "FN"}, {"attribute_answer": "no_statements"}),
    ({"ground_truth": "..."}, {"A1": "FP", "A2": "FP"},
     {"attribute_ground_truth": "no_statements", "rank": "no_statements"}),
])  # fmt: skip
async def test_where_one_text_says_nothing_all_of_the_other_is_missing_or_unfounded_without_asking(
    endpoint: Endpoint, tmp_path: Path, changes: dict[str, Any], labels: dict[str, str], reasons: dict[str, str]
) -> None:
    work = await judge_one(tmp_path, make_sample(**changes))
    assert read_labels(work) == labels
    assert read_outcomes(work) == DONE | reasons
    assert endpoint.stats.kinds["classify"] == 0
    assert all(row["call_id"] and row["reason"] for row in work.rows["classifications"])


async def test_only_the_steps_of_the_chosen_metrics_are_taken(endpoint: Endpoint, tmp_path: Path) -> None:
    work = await judge_one(tmp_path, metrics=["context_recall"])
    assert read_outcomes(work) == {"extract_ground_truth": None, "attribute_ground_truth": None}
    assert endpoint.stats.kinds == {"extract": 1, "attribute": 1}
    assert set(read_ranks(work)) == {"G1", "G2"}


@pytest.mark.parametrize("fault", ["missing_id", "doubled_id", "unknown_label"])
async def test_what_is_missing_is_asked_for_again_alone(endpoint: Endpoint, tmp_path: Path, fault: Fault) -> None:
    """The endpoint spoils the first verdict of each kind, and answers the second request for all items it is shown."""
    spoiled = {kind: [Inject(fault=fault)] for kind in ("classify", "attribute", "rank")}
    endpoint.configure(script=spoiled)
    work = await judge_one(tmp_path)
    assert read_outcomes(work) == DONE
    assert read_labels(work) == LABELS
    assert read_ranks(work) == {"A1": [1], "A2": [], "G1": [1], "G2": [2]}
    assert read_useful(work) == {1: True, 2: True, 3: False}
    assert endpoint.stats.kinds == {"extract": 2, "classify": 2, "attribute": 3, "rank": 2}
    again = {body["response_format"]["json_schema"]["name"]: body for body in endpoint.stats.bodies if read_names(body)}
    # The requests of both texts come in any order.
    first, other = ("A1", "G") if read_names(again["attribute"]) == "A1" else ("G1", "A")
    assert {kind: read_names(body) for kind, body in again.items()} == {
        "classify": "A1", "attribute": first, "rank": "C1",
    }  # fmt: skip
    last = {kind: body["messages"][-1]["content"] for kind, body in again.items()}
    assert "[A2]" not in last["classify"]
    assert "[G2]" in last["classify"]  # what A1 is judged against
    assert f"[{first}]" in last["attribute"]
    assert f"[{first[0]}2]" not in last["attribute"]
    assert f"[{other}" not in last["attribute"]
    assert "[C3]" in last["attribute"]
    assert "[C2]" not in last["rank"]


@pytest.mark.parametrize("step", ["classify", "attribute_ground_truth", "rank"])
async def test_what_stays_missing_fails_the_step_and_is_named(tmp_path: Path, step: str) -> None:
    lost = "C2" if step == "rank" else "G2"

    def leave_out(question: Question) -> str:
        verdicts = [entry for entry in orjson.loads(say_good(question))["verdicts"] if entry["id"] != lost]
        return say_verdicts(*verdicts)

    judge, work = await judge_with(tmp_path, {step: leave_out}, attempts=3)
    outcomes = read_outcomes(work)
    failed = [name for name, reason in outcomes.items() if reason == "judge_failed"]
    assert failed == [step]
    assert lost in read_detail(work, failed[0])
    tables = ("classifications", "attributions", "context_verdicts")
    kept = {table: {str(row.get("statement_id", "C"))[0] for row in work.rows[table]} for table in tables}
    whole = {"classifications": {"A", "G"}, "attributions": {"A", "G"}, "context_verdicts": {"C"}}
    # Nothing is padded, and half a verdict does not count.
    less = {"classify": ("classifications", set()), "rank": ("context_verdicts", set())}
    table, left = less.get(step, ("attributions", {"A"}))
    assert kept == {**whole, table: left}
    assert [question.only for question in judge.asked if question.step == step] == [(), (lost,), (lost,)]


async def test_a_failed_extraction_fails_what_rests_on_it_with_the_same_reason(tmp_path: Path) -> None:
    def refuse(question: Question) -> RefusedRequest:
        return RefusedRequest("content filter")

    _, work = await judge_with(tmp_path, {"extract_answer": refuse})
    assert read_outcomes(work) == DONE | dict.fromkeys(
        ["extract_answer", "classify", "attribute_answer"], "judge_failed"
    )
    assert read_detail(work, "extract_answer") == "content filter"
    assert set(read_ranks(work)) == {"G1", "G2"}


async def test_a_failed_embedding_is_named_as_such(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(script={"embeddings": lambda asked: Inject(fault="context_length_exceeded")})
    work = await judge_one(tmp_path, embeddings="openai:embedder")
    assert read_outcomes(work) == DONE | {"similarity": "embedding_failed"}


async def test_a_spent_budget_is_the_reason_of_all_that_was_not_asked(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_good)
    settings = make_settings(budget_usd=0.02, concurrency=1)
    async with lay_out_run(tmp_path, settings, judge=judge, price=Price(input_usd=100.0, output_usd=0.0)) as live_run:
        works = await judge_samples(live_run, [make_sample(number) for number in range(1, 6)])
    assert len(judge.asked) == 2
    reasons = Counter(reason for work in works for reason in read_outcomes(work).values())
    assert reasons["budget_exhausted"] == 5 * 6 - 2
    assert reasons[None] == 5 + 2  # the similarities cost nothing, and two extractions were paid for
