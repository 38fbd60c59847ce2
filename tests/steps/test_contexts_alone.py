"""`contexts_alone`: no context is seen beside another one, dry or for real."""

from pathlib import Path
from typing import Any

import pytest
from cli_house import place_at
from endpoint import Endpoint
from live_runs import (
    Says,
    ScriptedJudge,
    judge_one,
    make_sample,
    read_calls,
    read_ids,
    read_labels,
    read_outcomes,
    read_ranks,
    read_useful,
    say_good,
    say_verdicts,
)  # fmt: skip

from evalhouse.tasks.judge.protocol import Question, RefusedRequest
from evalhouse.tasks.pipeline.live_run import SampleWork
from evalhouse.warehouse.rows.samples import StoredSample

JUDGED_BY_CONTEXT = ("attribute_answer", "attribute_ground_truth", "rank")


async def judge_alone(
    folder: Path,
    says: Says = say_good,
    sample: StoredSample | None = None,
    *,
    alone: bool = True,
    **settings: Any,  # noqa: ANN401
) -> tuple[ScriptedJudge, SampleWork]:
    """One sample of three contexts unless another one is given."""
    judge = ScriptedJudge(says)
    return judge, await judge_one(folder, sample, judge=judge, contexts_alone=alone, **settings)


def contexts_of(judge: ScriptedJudge, step: str) -> list[list[str]]:
    return sorted(read_ids(question, "contexts") for question in judge.asked if question.step == step)


def say_own(question: Question) -> str:
    """C2 is useful and supports A1, C3 supports A1 and G1; the reason names the context."""
    if question.step not in JUDGED_BY_CONTEXT:
        return say_good(question)
    (context,) = read_ids(question, "contexts")
    if question.step == "rank":
        return say_verdicts({"id": context, "label": "useful" if context == "C2" else "not_useful", "reason": context})
    support = {"A1": ("C2", "C3"), "G1": ("C3",)}
    asked = read_ids(question, "answer_statements") + read_ids(question, "ground_truth_statements")
    return say_verdicts(
        *({"id": i, "contexts": [context] if context in support.get(i, ()) else [], "reason": context} for i in asked)
    )


async def test_each_context_has_a_separate_request_with_all_statements(tmp_path: Path) -> None:
    judge, _ = await judge_alone(tmp_path)
    for step in JUDGED_BY_CONTEXT:
        assert contexts_of(judge, step) == [["C1"], ["C2"], ["C3"]]
    for question in judge.asked:
        if question.step.startswith("attribute"):
            own = "answer" if question.step == "attribute_answer" else "ground_truth"
            ids = {side: read_ids(question, f"{side}_statements") for side in ("answer", "ground_truth")}
            assert ids == {"answer": [], "ground_truth": [], own: ["A1", "A2"] if own == "answer" else ["G1", "G2"]}
    assert len(judge.asked) == 3 + 3 * 3


async def test_verdicts_on_each_context_come_together_in_the_same_rows_as_ever(tmp_path: Path) -> None:
    judge, work = await judge_alone(tmp_path / "alone", say_own)
    _, together = await judge_alone(tmp_path / "together", alone=False)
    assert read_useful(work) == {1: False, 2: True, 3: False}
    assert read_ranks(work) == {"A1": [2, 3], "A2": [], "G1": [3], "G2": []}
    assert [row["reason"] for row in work.rows["context_verdicts"]] == ["C1", "C2", "C3"]
    reasons = {str(row["statement_id"]): row["reason"] for row in work.rows["attributions"]}
    assert reasons == {"A1": "C2 C3", "A2": "C1 C2 C3", "G1": "C3", "G2": "C1 C2 C3"}
    assert {table: len(rows) for table, rows in work.rows.items()} == {
        table: len(rows) for table, rows in together.rows.items()
    }
    assert read_outcomes(work) == read_outcomes(together) == dict.fromkeys(read_outcomes(together))
    assert read_labels(work) == read_labels(together)
    asked = {question.step for question in judge.asked}
    assert asked == {"extract_answer", "extract_ground_truth", "classify", *JUDGED_BY_CONTEXT}


async def test_a_verdict_names_the_call_about_its_own_context(tmp_path: Path) -> None:
    _, work = await judge_alone(tmp_path, say_own)
    replies = {call["call_id"]: str(call["reply"]) for call in read_calls(tmp_path)}
    for row in work.rows["context_verdicts"]:
        assert f'"C{row["context_rank"]}"' in replies[str(row["call_id"])]
    attributed = {str(row["statement_id"]): replies[str(row["call_id"])] for row in work.rows["attributions"]}
    assert '"contexts":["C2"]' in attributed["A1"]
    assert '"contexts":["C3"]' in attributed["G1"]
    assert len({row["call_id"] for row in work.rows["context_verdicts"]}) == 3


@pytest.mark.parametrize("step", JUDGED_BY_CONTEXT)
async def test_one_context_that_cannot_be_judged_fails_the_step_and_is_asked_again_alone(
    tmp_path: Path, step: str
) -> None:
    def refuse(question: Question) -> str | Exception:
        if question.step == step and read_ids(question, "contexts") == ["C2"]:
            return RefusedRequest("no verdict about C2")
        return say_good(question)

    _, work = await judge_alone(tmp_path, refuse)
    failed = {name for name, reason in read_outcomes(work).items() if reason == "judge_failed"}
    assert failed == {step}
    ids = {str(row["statement_id"])[0] for row in work.rows["attributions"]}
    assert ids == {"attribute_answer": {"G"}, "attribute_ground_truth": {"A"}, "rank": {"A", "G"}}[step]
    assert len(work.rows["context_verdicts"]) == (0 if step == "rank" else 3)
    again, work = await judge_alone(tmp_path)
    assert [(question.step, read_ids(question, "contexts")) for question in again.asked] == [(step, ["C2"])]
    assert set(read_outcomes(work).values()) == {None}


async def test_only_steps_that_see_contexts_are_asked_again_when_contexts_are_alone(tmp_path: Path) -> None:
    await judge_alone(tmp_path, alone=False)
    judge, _ = await judge_alone(tmp_path)
    assert sorted(question.step for question in judge.asked) == sorted(JUDGED_BY_CONTEXT * 3)
    together, _ = await judge_alone(tmp_path, alone=False)
    assert together.asked == []


async def test_equal_contexts_are_judged_each_under_its_own_id(tmp_path: Path) -> None:
    """C1 and C2 read the same: what is asked differs by the id, so that each verdict is stored for its context."""
    sample = make_sample(contexts=["The lamp is green.", "The lamp is green."])
    judge, work = await judge_alone(tmp_path, sample=sample)
    assert contexts_of(judge, "rank") == [["C1"], ["C2"]]
    assert read_useful(work) == {1: True, 2: True}


async def test_what_no_request_holds_is_split_here_too(tmp_path: Path) -> None:
    long = "\n\n".join(f"Berth {number} lies behind the pier" + " and the next one" * 20 + "." for number in range(20))
    sample = make_sample(contexts=["short", long])
    judge, work = await judge_alone(tmp_path, sample=sample, request_tokens=1000)
    for step in JUDGED_BY_CONTEXT:
        asked = contexts_of(judge, step)
        assert asked[0] == ["C1"]
        assert len(asked) > 2
        assert {tuple(ids) for ids in asked[1:]} == {("C2",)}
    assert set(read_useful(work)) == {1, 2}
    assert read_ranks(work)["A1"] == [1, 2]


def test_the_command_counts_beforehand_what_it_sends(tmp_path: Path, prefect_home: Path, endpoint: Endpoint) -> None:
    place = place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=4)
    run = ("run", "berths.jsonl", "--judge", "openai:judge", "--contexts-alone", "--dry-run", "--json")
    assert place.call(*run).document["requests"] == 4 * (3 + 3 * 2)
    assert endpoint.stats.requests.total() == 0
