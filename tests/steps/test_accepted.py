"""Several accepted answers: the best counts, is named, and costs what it takes to find it."""

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from live_runs import ScriptedJudge, judge_samples, lay_out_run, make_sample, read_outcomes, say_good

from evalhouse.tasks.extract import extract_statements
from evalhouse.tasks.grade import grade_sample
from evalhouse.tasks.judge.errors import RefusedRequest
from evalhouse.tasks.judge.protocol import Judge, Question
from evalhouse.tasks.lexical.judge import LexicalJudge
from evalhouse.tasks.measure import measure_sample
from evalhouse.tasks.pipeline.live_run import SampleWork, make_work
from evalhouse.tasks.rank import rank_contexts
from evalhouse.tasks.similarity import compare_meaning
from evalhouse.warehouse.rows.samples import StoredSample

ANSWER = "It was founded in Brankmouth by Ode Varn."
WRONG, RIGHT, OTHER = "Mira Solveng founded it.", "Ode Varn founded it in Brankmouth.", "It was founded in 1911."


def make(*accepted: str, **changes: Any) -> StoredSample:  # noqa: ANN401  # fields of StoredSample
    metadata = orjson.dumps({"ground_truths": accepted}).decode() if len(accepted) > 1 else None
    sample = make_sample(answer=ANSWER, ground_truth=accepted[0], contexts=["Ode Varn came to Brankmouth in 1911."])
    return replace(sample, question="Who founded it?", metadata_json=metadata, **changes)


async def judge(folder: Path, sample: StoredSample, *metrics: str, by: Judge | None = None) -> SampleWork:
    async with lay_out_run(folder, judge=by or LexicalJudge(), metrics=metrics) as live_run:
        (work,) = await judge_samples(live_run, [sample])
    return work


def read_truth(work: SampleWork) -> list[object]:
    return [row["text"] for row in work.rows["statements"] if row["source"] == "ground_truth"]


def read_similarities(work: SampleWork) -> dict[object, tuple[object, object]]:
    return {row["kind"]: (row["value"], row.get("text")) for row in work.rows["similarities"]}


def count_labels(work: SampleWork) -> Counter[object]:
    return Counter(row["label"] for row in work.rows["classifications"])


@pytest.mark.parametrize("accepted", [(WRONG, RIGHT, OTHER), (RIGHT, OTHER), (OTHER, WRONG, RIGHT)])
async def test_the_best_accepted_answer_counts_and_is_named(tmp_path: Path, accepted: tuple[str, ...]) -> None:
    work = await judge(tmp_path, make(*accepted), "factual_f1")
    assert read_truth(work) == [RIGHT]
    assert count_labels(work) == {"TP": 2}
    assert read_similarities(work) == {"accepted_answer": (1.0, RIGHT)}


async def test_among_equals_the_first_counts(tmp_path: Path) -> None:
    work = await judge(tmp_path, make(WRONG, OTHER, answer="Nobody knows Lisbon."), "factual_f1")
    assert read_truth(work) == [WRONG]
    work = await judge(tmp_path, make(WRONG, OTHER, answer=None), "factual_f1")
    assert read_truth(work) == [WRONG]
    assert read_outcomes(work)["classify"] == "no_answer"


async def test_a_single_answer_is_not_named(tmp_path: Path) -> None:
    work = await judge(tmp_path, make(RIGHT), "factual_f1", "semantic_similarity")
    assert [kind for kind, (_, text) in read_similarities(work).items() if text is not None] == []


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
        "extract_answer": 1,
        "extract_ground_truth": 3,
        "classify": 3,
    }


async def test_one_that_cannot_be_judged_leaves_the_sample_unscored(tmp_path: Path) -> None:
    def refuse(question: Question) -> Any:  # noqa: ANN401  # what a scripted judge says
        if question.step == "extract_ground_truth" and question.data["text"] == OTHER:
            raise RefusedRequest("not this one")
        return say_good(question)

    async with asyncio.timeout(10):
        work = await judge(tmp_path, make(WRONG, OTHER), "factual_f1", by=ScriptedJudge(refuse))
    assert read_outcomes(work)["extract_ground_truth"] == read_outcomes(work)["classify"] == "judge_failed"
    assert read_truth(work) == []
