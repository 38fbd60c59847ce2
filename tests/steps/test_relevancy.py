"""Answer relevancy: questions out of the answer alone, their likeness to the real one, and answers that commit to
nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest
from cli_house import write_dataset
from cli_process import Place
from endpoint import Inject, running_endpoint
from grades import score_work
from live_runs import (
    PROMPTS,
    ScriptedJudge,
    lay_out_run,
    make_sample,
    make_settings,
    point_to,
    read_calls,
    read_detail,
    read_outcomes,
)

from evalhouse.tasks.pipeline.live_run import SampleWork, make_work
from evalhouse.tasks.similarity import read_questions, regenerate_questions
from evalhouse.warehouse.rows.samples import StoredSample

QUESTIONS = ("When was lighthouse 1 built, and by whom?", "Who was the architect of lighthouse 1?", "What is a cape?")


def reply(*questions: object, noncommittal: object = False, reason: object = "It names a year.") -> dict[str, Any]:
    return {"reason": reason, "noncommittal": noncommittal, "questions": list(questions)}


async def regenerate(
    folder: Path,
    *replies: Mapping[str, Any] | Exception,
    sample: StoredSample | None = None,
    **options: Any,  # noqa: ANN401
) -> tuple[ScriptedJudge, SampleWork]:
    """One sample; the replies are given in turn, the last one for ever."""
    left = list(replies)

    def say(_: object) -> str | Exception:
        written = left.pop(0) if len(left) > 1 else left[0]
        return written if isinstance(written, Exception) else orjson.dumps(written).decode()

    judge = ScriptedJudge(say)
    settings = make_settings(**options)
    async with lay_out_run(folder, settings, judge=judge, metrics=["answer_relevancy"]) as live_run:
        work = make_work(sample or make_sample())
        await regenerate_questions(live_run, work)
    return judge, work


async def test_three_questions_are_compared_with_the_real_one(tmp_path: Path) -> None:
    judge, work = await regenerate(tmp_path, reply(*QUESTIONS))
    (call,) = read_calls(tmp_path)
    rows = sorted(work.rows["similarities"], key=lambda row: QUESTIONS.index(str(row["text"])))
    assert [row["text"] for row in rows] == list(QUESTIONS)
    assert {(row["kind"], row["call_id"]) for row in rows} == {("regenerated_question", call["call_id"])}
    values: list[float] = [row["value"] for row in rows]  # type: ignore[misc]
    assert values[0] == pytest.approx(1)
    assert 1 > values[1] > values[2] >= 0
    assert score_work(work, "answer_relevancy")[0] == pytest.approx(sum(values) / 3)
    assert judge.asked[0].data == {"answer": make_sample().answer, "count": "3"}


async def test_the_judge_sees_neither_the_question_nor_the_ground_truth(tmp_path: Path) -> None:
    judge, _ = await regenerate(tmp_path, reply(*QUESTIONS))
    sent = "\n".join(message.content for message in PROMPTS["questions"].render(judge.asked[0].data))
    sample = make_sample()
    assert str(sample.answer) in sent
    assert sample.question not in sent
    assert "Mira Solveng1" not in sent


@pytest.mark.parametrize("questions", [(), QUESTIONS, QUESTIONS[:1]])
async def test_a_noncommittal_answer_scores_zero_with_any_questions(tmp_path: Path, questions: tuple[str, ...]) -> None:
    judge, work = await regenerate(tmp_path, reply(*questions, noncommittal=True, reason="It says it depends."))
    assert len(judge.asked) == 1
    assert work.rows["similarities"] == []
    (row,) = work.rows["grades"]
    assert (row["rubric"], row["criterion"], row["rating"], row["reason"]) == (
        "relevancy", "noncommittal", 1.0, "It says it depends.",
    )  # fmt: skip
    assert row["call_id"] == read_calls(tmp_path)[0]["call_id"]
    assert score_work(work, "answer_relevancy") == (0, None)


@pytest.mark.parametrize("count", [1, 5])
async def test_the_number_of_questions_is_a_setting(tmp_path: Path, count: int) -> None:
    questions = [f"What is the {place}. thing?" for place in range(count)]
    judge, work = await regenerate(tmp_path, reply(*questions), regenerated_questions=count)
    assert judge.asked[0].data["count"] == str(count)
    assert len(work.rows["similarities"]) == count


@pytest.mark.parametrize(("wrong", "message"), [
    (reply(*QUESTIONS[:2]), "had 2 questions, not 3"),
    (reply(*QUESTIONS, "And?"), "had 4 questions, not 3"),
    (reply(*QUESTIONS[:2], "  "), 'no list of texts under "questions"'),
    (reply(*QUESTIONS[:2], 7), 'no list of texts under "questions"'),
    (reply(*QUESTIONS) | {"questions": QUESTIONS[0]}, 'no list of texts under "questions"'),
    (reply(*QUESTIONS, noncommittal="partly"), "noncommittal is 'partly', allowed: true, false"),
    (reply(*QUESTIONS, noncommittal=None), "noncommittal is None"),
    (reply(*QUESTIONS, reason=" "), "no reason"),
    ({"questions": list(QUESTIONS)}, "no reason"),
])  # fmt: skip
async def test_a_reply_that_breaks_the_rules_is_asked_for_again(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    judge, work = await regenerate(tmp_path, wrong, reply(*QUESTIONS))
    assert len(judge.asked) == 2
    assert message in read_calls(tmp_path)[0]["error"]
    assert len(work.rows["similarities"]) == 3
    assert read_outcomes(work) == {"relevancy": None}


async def test_without_an_answer_nothing_is_asked(tmp_path: Path) -> None:
    judge, work = await regenerate(tmp_path, reply(*QUESTIONS), sample=make_sample(answer=None))
    assert judge.asked == []
    assert score_work(work, "answer_relevancy") == (None, "no_answer")


async def test_an_embedding_that_fails_leaves_no_score(tmp_path: Path) -> None:
    """Two of the three questions have been compared by then; the rest does not make a mean."""
    with running_endpoint() as endpoint:
        point_to(endpoint.base_url)
        endpoint.configure(
            script={
                "embeddings": lambda asked: (
                    Inject(fault="context_length_exceeded") if any("cape" in text for text in asked.texts) else None
                )
            }
        )
        _, work = await regenerate(tmp_path, reply(*QUESTIONS), embeddings="openai:embedder")
    assert read_outcomes(work) == {"relevancy": "embedding_failed"}
    assert read_detail(work, "relevancy")
    assert score_work(work, "answer_relevancy") == (None, "embedding_failed")


async def test_the_real_question_is_embedded_once(tmp_path: Path) -> None:
    with running_endpoint(keep_bodies=True) as endpoint:
        point_to(endpoint.base_url)
        _, work = await regenerate(tmp_path, reply(*QUESTIONS[1:], "Why?"), embeddings="openai:embedder")
        assert [len(body["input"]) for body in endpoint.stats.bodies] == [4]
    assert len(work.rows["similarities"]) == 3


def test_questions_come_in_one_line_each() -> None:
    text = "Here they are.\n```json\n" + orjson.dumps(reply("When\n was it  built?")).decode() + "\n```"
    assert read_questions(text, 1).questions == ("When was it built?",)


def test_the_lexical_judge_says_which_metrics_it_cannot_give(tmp_path: Path, prefect_home: Path) -> None:
    write_dataset(tmp_path, [{"question": "When?", "answer": "In 1911.", "ground_truth": "In 1911."}], "one.jsonl")
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    metrics = "answer_relevancy,accuracy,faithfulness"
    done = place.call("run", "one.jsonl", "--judge", "lexical", "--metrics", metrics)
    assert done.status == 2
    assert "the judge 'lexical' cannot take the steps relevancy, grade" in done.stderr
    assert "(answer_relevancy, accuracy)" in done.stderr
    assert "Traceback" not in done.stderr
