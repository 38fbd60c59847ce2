"""Lists that no request holds: split by tokens, judged in parts, merged by id, and never cut; and `contexts_alone`: no
context is seen beside another one.

Single texts that no request holds are in `test_steps_long_texts`.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from cli_house import place_at
from endpoint import Endpoint
from live_runs import (
    Says,
    ScriptedJudge,
    asked_of,
    find_odd,
    judge_one,
    lay_out_run,
    make_sample,
    measure,
    read_calls,
    read_ids,
    read_joint_ranks,
    read_labels,
    read_outcomes,
    read_ranks,
    read_useful,
    say_good,
    say_verdicts,
)

from evalhouse.tasks.asking.usage import estimate_tokens
from evalhouse.tasks.extract import extract_statements
from evalhouse.tasks.grade import grade_sample
from evalhouse.tasks.judge.protocol import NOT_IN_TEXT, Judge, Question, RefusedRequest
from evalhouse.tasks.lexical.judge import LexicalJudge
from evalhouse.tasks.measure import measure_sample
from evalhouse.tasks.pipeline.live_run import SampleWork, make_work
from evalhouse.tasks.rank import rank_contexts
from evalhouse.tasks.similarity import compare_meaning
from evalhouse.warehouse.rows.samples import StoredSample

TOKENS = 1000
TEXTS = ("question", "ground_truth")
LONG = " and the keeper writes it down" * 20  # some 150 tokens


async def judge_long(
    folder: Path,
    odd: Mapping[str, Says],
    *,
    answers: int = 2,
    truths: int = 2,
    contexts: int = 2,
    **settings: Any,  # noqa: ANN401
) -> tuple[ScriptedJudge, SampleWork]:
    """One sample of long items; the extraction is scripted, since its texts are of usual length."""

    def says(question: Question) -> str | Exception:
        if question.step in ("extract_answer", "extract_ground_truth"):
            count = answers if question.step == "extract_answer" else truths
            return orjson.dumps({"statements": [f"{question.step} {n}{LONG}" for n in range(1, count + 1)]}).decode()
        return find_odd(question, odd)(question)

    judge = ScriptedJudge(says)
    sample = make_sample(contexts=[f"Context {n}.{LONG}" for n in range(1, contexts + 1)])
    return judge, await judge_one(folder, sample, judge=judge, request_tokens=TOKENS, **settings)


async def test_contexts_of_a_ranking_are_judged_each_once_in_parts_that_fit(tmp_path: Path) -> None:
    def say_useful(question: Question) -> str:
        contexts = read_ids(question, "contexts")
        return say_verdicts(*({"id": item, "label": "useful" if item == "C9" else "not_useful"} for item in contexts))

    judge, work = await judge_long(tmp_path, {"rank": say_useful}, contexts=20)
    asked = asked_of(judge, "rank")
    assert len(asked) >= 3
    assert all(measure(question) <= TOKENS for question in asked)
    assert [item for question in asked for item in read_ids(question, "contexts")] == [
        f"C{rank}" for rank in range(1, 21)
    ]
    assert read_useful(work) == {rank: rank == 9 for rank in range(1, 21)}


async def test_data_beside_the_contexts_takes_room_as_well(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_good)
    sample = make_sample(ground_truth=f"It is dark.{LONG * 2}", contexts=[f"Context {n}.{LONG}" for n in range(6)])
    work = await judge_one(tmp_path, sample, judge=judge, request_tokens=TOKENS)
    asked = asked_of(judge, "rank")
    assert len(asked) == 2
    for question in asked:
        assert question.data["ground_truth"] == sample.ground_truth
        assert measure(question) + sum(estimate_tokens(str(question.data[name])) for name in TEXTS) <= TOKENS
    assert set(read_useful(work)) == set(range(1, 7))


async def test_supporting_contexts_are_the_union_over_all_parts(tmp_path: Path) -> None:
    def say_support(question: Question) -> str:
        contexts = read_ids(question, "contexts")
        statements = read_ids(question, "answer_statements") + read_ids(question, "ground_truth_statements")
        support = {"A1": ["C1", "C7", "C12"], "G2": ["C12"]}
        return say_verdicts(
            *(
                {
                    "id": item,
                    "reason": f"of {contexts[0]}",
                    "contexts": [c for c in support.get(item, []) if c in contexts],
                }
                for item in statements
            )
        )

    judge, work = await judge_long(tmp_path, {"attribute": say_support}, contexts=12)
    asked = asked_of(judge, "attribute")
    assert len(asked) >= 3
    assert all(measure(question) <= TOKENS for question in asked)
    assert read_ranks(work) == {"A1": [1, 7, 12], "A2": [], "G1": [], "G2": [12]}
    rows = {str(row["statement_id"]): row for row in work.rows["attributions"]}
    assert [rows[item]["supported"] for item in ("A1", "A2", "G1", "G2")] == [True, False, False, True]
    last = read_ids(asked[-1], "contexts")[0]
    assert rows["G2"]["reason"] == f"of {last}"  # from the part that supports it alone


async def test_joint_support_counts_where_no_single_context_supports(tmp_path: Path) -> None:
    """A1 has two sets in two parts, A2 a set in one part and C12 alone in another one."""

    def say_support(question: Question) -> str:
        contexts = read_ids(question, "contexts")
        last = "C12" in contexts
        together = {"A1": contexts[:2], "A2": [] if last else contexts[:2]}
        alone = {"A2": ["C12"] if last else []}
        side = read_ids(question, "answer_statements") + read_ids(question, "ground_truth_statements")
        return say_verdicts(*({"id": i, "contexts": alone.get(i, []), "together": together.get(i, [])} for i in side))

    judge, work = await judge_long(tmp_path, {"attribute": say_support}, contexts=12)
    parts = [read_ids(question, "contexts") for question in asked_of(judge, "attribute_answer")]
    assert len(parts) >= 2
    assert all(len(part) >= 2 for part in parts)
    assert read_ranks(work) == {"A1": [], "A2": [12], "G1": [], "G2": []}
    assert read_joint_ranks(work) == {"A1": [1, 2], "A2": [], "G1": [], "G2": []}
    assert {row["statement_id"] for row in work.rows["attributions"] if row["supported"]} == {"A1", "A2"}


async def test_many_statements_are_split_as_well_and_meet_all_contexts(tmp_path: Path) -> None:
    judge, work = await judge_long(tmp_path, {}, answers=8, truths=5, contexts=6)
    pairs = [
        (statement, context)
        for question in asked_of(judge, "attribute")
        for statement in read_ids(question, "answer_statements") + read_ids(question, "ground_truth_statements")
        for context in read_ids(question, "contexts")
    ]
    assert len(pairs) == len(set(pairs)) == 13 * 6
    assert all(measure(question) <= TOKENS for question in asked_of(judge, "attribute"))
    assert len(read_ranks(work)) == 13


async def test_each_part_of_one_side_meets_each_part_of_the_other(tmp_path: Path) -> None:
    """A2 is found in G9, which is in a different part from G1; nothing else is found."""

    def say_labels(question: Question) -> str:
        answers = read_ids(question, "answer_statements")
        truths = read_ids(question, "ground_truth_statements")
        both = "A2" in answers and "G9" in truths
        return say_verdicts(
            *({"id": item, "label": "TP" if both and item == "A2" else "FP"} for item in answers),
            *({"id": item, "label": "TP" if both and item == "G9" else "FN"} for item in truths),
        )

    judge, work = await judge_long(tmp_path, {"classify": say_labels}, answers=7, truths=9)
    asked = asked_of(judge, "classify")
    assert len(asked) >= 6
    assert all(measure(question) <= TOKENS for question in asked)
    labels = read_labels(work)
    assert {item for item, label in labels.items() if label == "TP"} == {"A2", "G9"}
    assert len(labels) == 16
    assert len(work.rows["classifications"]) == 16


async def test_a_statement_too_large_for_any_request_is_sent_whole(tmp_path: Path) -> None:
    giant = "A1 is " + "very " * 3000 + "long"

    def says(question: Question) -> str | Exception:
        if question.step == "extract_answer":
            return orjson.dumps({"statements": [giant, "A2 is short"]}).decode()
        return say_good(question)

    judge = ScriptedJudge(says)
    work = await judge_one(tmp_path, judge=judge, request_tokens=TOKENS)
    for step in ("attribute", "classify"):
        sent: list[Any] = [item for question in asked_of(judge, step) for item in question.data["answer_statements"]]
        assert [(item.id, item.text) for item in sent] == [("A1", giant), ("A2", "A2 is short")]
    assert set(read_ranks(work)) == set(read_labels(work)) == {"A1", "A2", "G1", "G2"}


async def test_what_is_missing_in_one_part_is_asked_for_again_in_that_part(tmp_path: Path) -> None:
    def leave_out(question: Question) -> str:
        contexts = read_ids(question, "contexts")
        given = [item for item in contexts if item != "C11" or question.number > 1]
        return say_verdicts(*({"id": item, "label": "useful"} for item in given))

    judge, work = await judge_long(tmp_path, {"rank": leave_out}, contexts=12)
    again = [question for question in asked_of(judge, "rank") if question.only]
    assert [question.only for question in again] == [("C11",)]
    assert read_ids(again[0], "contexts") == ["C11"]
    assert set(read_useful(work)) == set(range(1, 13))


@pytest.mark.parametrize("step", ["rank", "attribute_answer", "classify"])
async def test_one_part_that_fails_fails_the_step_when_all_have_ended(tmp_path: Path, step: str) -> None:
    failed: list[Question] = []

    def refuse_first(question: Question) -> str | Exception:
        if failed and failed[0].data != question.data:
            return say_good(question)
        failed.append(question)
        return RefusedRequest("too long for the model")

    judge, work = await judge_long(tmp_path, {step: refuse_first}, answers=7, truths=7, contexts=20)
    parts = len(asked_of(judge, step))
    assert parts >= 3
    outcomes = read_outcomes(work)
    assert [name for name, reason in outcomes.items() if reason == "judge_failed"] == [step]
    # A second try pays for no part that was answered.
    judge.asked.clear()
    again, _ = await judge_long(tmp_path, {}, answers=7, truths=7, contexts=20)
    assert len(again.asked) == 1


ANSWER = "It was founded in Brankmouth by Ode Varn."
WRONG, RIGHT, OTHER = "Mira Solveng founded it.", "Ode Varn founded it in Brankmouth.", "It was founded in 1911."


def make(*accepted: str, **changes: Any) -> StoredSample:  # noqa: ANN401  # fields of StoredSample
    metadata = orjson.dumps({"ground_truths": accepted}).decode() if len(accepted) > 1 else None
    sample = make_sample(answer=ANSWER, ground_truth=accepted[0], contexts=["Ode Varn came to Brankmouth in 1911."])
    return replace(sample, question="Who founded it?", metadata_json=metadata, **changes)


async def judge(folder: Path, sample: StoredSample, *metrics: str, by: Judge | None = None) -> SampleWork:
    return await judge_one(folder, sample, judge=by or LexicalJudge(), metrics=metrics)


def read_truth(work: SampleWork) -> list[object]:
    return [row["text"] for row in work.rows["statements"] if row["source"] == "ground_truth"]


def read_similarities(work: SampleWork) -> dict[object, tuple[object, object]]:
    return {row["kind"]: (row["value"], row.get("text")) for row in work.rows["similarities"]}


@pytest.mark.parametrize("accepted", [(RIGHT, OTHER), (OTHER, WRONG, RIGHT)])
async def test_the_best_accepted_answer_counts_and_is_named(tmp_path: Path, accepted: tuple[str, ...]) -> None:
    work = await judge(tmp_path, make(*accepted), "factual_f1")
    assert read_truth(work) == [RIGHT]
    assert [row["label"] for row in work.rows["classifications"]] == ["TP", "TP"]
    assert read_similarities(work) == {"accepted_answer": (1.0, RIGHT)}


@pytest.mark.parametrize("accepted", [("Not stated.", RIGHT), (WRONG, "Unknown", RIGHT)])
@pytest.mark.parametrize("answer", ["There isn't enough information to answer.", ""])
async def test_a_right_refusal_counts_wherever_it_is_named(
    tmp_path: Path, accepted: tuple[str, ...], answer: str
) -> None:
    work = await judge(tmp_path, make(*accepted, answer=answer), "factual_f1")
    assert read_truth(work) == []
    assert read_similarities(work)["accepted_answer"] == (
        1.0,
        next(text for text in accepted if text not in (RIGHT, WRONG)),
    )


async def test_among_equals_the_first_counts(tmp_path: Path) -> None:
    work = await judge(tmp_path, make(WRONG, OTHER, answer="Few know Lisbon."), "factual_f1")
    assert read_truth(work) == [WRONG]
    work = await judge(tmp_path, make(WRONG, OTHER, answer=None), "factual_f1")
    assert read_truth(work) == [WRONG]
    assert read_outcomes(work)["classify"] == "no_answer"


async def test_where_nothing_is_classified_the_one_spelled_most_alike_counts(tmp_path: Path) -> None:
    work = await judge(tmp_path, make(WRONG, RIGHT), "context_recall")
    assert read_truth(work) == [RIGHT]
    assert len(work.rows["attributions"]) == 1


async def test_each_measure_takes_its_best_and_names_it(tmp_path: Path) -> None:
    async with lay_out_run(tmp_path, judge=LexicalJudge(), metrics=["semantic_similarity", "rouge_l"]) as live_run:
        work = make_work(make(WRONG, ANSWER))
        await compare_meaning(live_run, work)
        await measure_sample(live_run, work)
    found = read_similarities(work)
    assert found["answer_ground_truth"] == (pytest.approx(1.0), ANSWER)
    assert found["squad_exact_match"] == (1.0, ANSWER)
    assert found["rouge_l"] == (1.0, ANSWER)


async def test_rubrics_and_ranking_are_shown_all_of_them(tmp_path: Path) -> None:
    def answer(question: Question) -> Any:  # noqa: ANN401  # what a scripted judge says
        if question.step == "grade_accuracy":
            raise RefusedRequest("what was asked is enough")
        return say_good(question)

    scripted = ScriptedJudge(answer)
    async with lay_out_run(tmp_path, judge=scripted, metrics=["context_precision"]) as live_run:
        live_run.rubrics = (live_run.prompts["accuracy"],)
        work = make_work(make(WRONG, RIGHT))
        for step in (extract_statements, rank_contexts, grade_sample):
            await step(live_run, work)
    asked = [question for question in scripted.asked if "ground_truth" in question.data]
    assert {question.step: question.data["ground_truth"] for question in asked} == {
        "rank": f"{WRONG}\n{RIGHT}",
        "grade_accuracy": f"{WRONG}\n{RIGHT}",
    }


async def test_classifying_the_chosen_one_again_costs_nothing(tmp_path: Path) -> None:
    judge_model = ScriptedJudge(say_good)
    await judge(tmp_path, make(WRONG, RIGHT, OTHER), "factual_f1", by=judge_model)
    assert Counter(asked.step for asked in judge_model.asked) == {
        "extract_answer": 1, "extract_ground_truth": 3, "classify": 3,
    }  # fmt: skip


async def test_one_that_cannot_be_judged_leaves_the_sample_unscored(tmp_path: Path) -> None:
    def refuse(question: Question) -> Any:  # noqa: ANN401  # what a scripted judge says
        if question.step == "extract_ground_truth" and question.data["text"] == OTHER:
            raise RefusedRequest("not this one")
        return say_good(question)

    async with asyncio.timeout(10):
        work = await judge(tmp_path, make(WRONG, OTHER), "factual_f1", by=ScriptedJudge(refuse))
    assert read_outcomes(work)["extract_ground_truth"] == read_outcomes(work)["classify"] == "judge_failed"
    assert read_truth(work) == []


async def test_statements_that_the_text_does_not_make_are_marked(tmp_path: Path) -> None:
    """The words decide, in any form; a statement may take words from the question and from earlier turns."""
    statements = {
        "A1": "The harbour lighthouse is powered by the tides.",
        "A2": "The lighthouse of the harbour was painted by Mira.",
        "A3": "Two million tourists come every summer.",
        "A4": "It is red.",
        "A5": "灯塔每年接待游客两百万。",
    }

    def says(question: Question) -> str:
        if question.step == "extract_answer":
            return orjson.dumps({"statements": list(statements.values())}).decode()
        return say_good(question)

    sample = make_sample(
        1,
        question="Who painted the harbour lighthouse?",
        answer="Mira did. It runs on tidal power and is red. Tides are.",
    )
    async with lay_out_run(tmp_path, judge=ScriptedJudge(says)) as live_run:
        work = make_work(sample)
        await extract_statements(live_run, work)
    details = {row["step"]: row["detail"] for row in work.rows["outcomes"]}
    assert details == {"extract_answer": f"{NOT_IN_TEXT}A3, A5", "extract_ground_truth": None}
    assert len(work.rows["statements"]) >= len(statements), "all of them count"


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
