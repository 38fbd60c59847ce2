"""Similarity and relevancy: how close texts are in meaning, as embeddings compare them.

`similarity` compares the answer with the ground truth. `relevancy` asks a judge, which sees only the answer and earlier
turns, for questions that the answer would answer, and compares each with the real one (Es et al. 2024,
arXiv:2309.15217). To a non-committal answer ("it depends", "I cannot say") no such question exists: it scores 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from prefect import task

from evalhouse.prompts import Grade
from evalhouse.tasks.asking.verdicts import gather_all, parse_object
from evalhouse.tasks.judge.protocol import BudgetExhausted, JudgeFailed, Question, UnusableReply
from evalhouse.tasks.pipeline.live_run import STEP_OPTIONS, LiveRun, SampleWork, collect_turns, take_shard


@task(
    name="similarity", task_run_name="similarity shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS
)
async def similarity(run_id: str, shard: int) -> None:
    """Compare answers and ground truths of a shard's samples in meaning."""
    await take_shard(run_id, shard, compare_meaning)


async def compare_meaning(live_run: LiveRun, work: SampleWork) -> None:
    """Compare one sample's answer with its ground truth, or with the accepted answer that is closest to it."""
    if live_run.embedder is None or "similarity" not in live_run.steps:
        return
    sample = work.sample
    reason, detail = None, None
    if sample.ground_truth is None:
        reason = "no_ground_truth"
    elif sample.answer is None:
        reason = "no_answer"
    elif not sample.answer:  # silence means nothing, and most embedding models refuse it
        work.add_row("similarities", kind="answer_ground_truth", value=0.0)
    else:
        accepted = sample.accepted_answers
        compare = partial(live_run.embedder.compare, sample.sample_id, sample.answer)
        try:
            values = await gather_all([compare(text) for text in accepted])
            value, text = max(zip(values, accepted, strict=True), key=lambda pair: pair[0])
            closest = text if len(accepted) > 1 else None
            work.add_row("similarities", kind="answer_ground_truth", value=value, text=closest)
        except BudgetExhausted as error:
            reason, detail = error.reason, str(error)
        except JudgeFailed as error:
            reason, detail = "embedding_failed", str(error)
    work.note_outcome("similarity", reason, detail)


@task(name="relevancy", task_run_name="relevancy shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def relevancy(run_id: str, shard: int) -> None:
    """Regenerate questions from the answers of a shard's samples and compare them."""
    await take_shard(run_id, shard, regenerate_questions)


async def regenerate_questions(live_run: LiveRun, work: SampleWork) -> None:
    """Regenerate questions from one sample's answer and compare them with its question."""
    sample, embedder = work.sample, live_run.embedder
    if "relevancy" not in live_run.steps:
        return
    if sample.answer is None:
        work.note_outcome("relevancy", "no_answer")
        return
    describe_flag = partial(Grade, criterion="noncommittal", scale_min=0.0, scale_max=1.0)
    if not sample.answer:
        work.add_grade("relevancy", describe_flag(rating=1.0, said=None, reason="the answer is empty"))
        work.note_outcome("relevancy")
        return
    count = live_run.settings.regenerated_questions
    before = collect_turns(sample, live_run.settings.request_tokens)
    question = Question(
        step="relevancy",
        sample_id=sample.sample_id,
        prompt=live_run.prompts["questions"].after(before.turns),
        data={**before.block, "answer": sample.answer, "count": str(count)},
    )
    try:
        reply = await live_run.asker.ask(question, lambda text: read_questions(text, count))
        flag = describe_flag(
            rating=float(reply.value.noncommittal), said=float(reply.value.noncommittal), reason=reply.value.reason
        )
        work.add_grade("relevancy", flag, reply.call_id)
    except JudgeFailed as error:
        work.note_outcome("relevancy", error.reason, str(error))
        return

    async def compare(text: str) -> None:
        assert embedder is not None
        value = await embedder.compare(sample.sample_id, sample.question, text)
        work.add_row("similarities", kind="regenerated_question", value=value, text=text, call_id=reply.call_id)

    reason, detail = None, None
    try:
        await gather_all([compare(text) for text in reply.value.questions])
    except BudgetExhausted as error:
        reason, detail = error.reason, str(error)
    except JudgeFailed as error:
        reason, detail = "embedding_failed", str(error)
    work.note_outcome("relevancy", reason, detail)


@dataclass(frozen=True, kw_only=True)
class Regenerated:
    """The content of a reply; a non-committal answer has no questions."""

    reason: str
    noncommittal: bool
    questions: Sequence[str]


def read_questions(text: str, count: int) -> Regenerated:
    """Return the content of a reply; raises UnusableReply unless it has `count` questions, or none to a non-committal
    answer."""
    reply = parse_object(text, "noncommittal")
    reason, noncommittal, questions = reply.get("reason"), reply.get("noncommittal"), reply.get("questions")
    if not isinstance(reason, str) or not reason.strip():
        raise UnusableReply("the reply gave no reason")
    if not isinstance(noncommittal, bool):
        raise UnusableReply(f"noncommittal is {noncommittal!r:.40}, allowed: true, false")
    if not isinstance(questions, list) or not all(isinstance(item, str) and item.strip() for item in questions):
        raise UnusableReply('the reply had no list of texts under "questions"')
    if not noncommittal and len(questions) != count:
        raise UnusableReply(f"the reply had {len(questions)} questions, not {count}")
    return Regenerated(
        reason=reason.strip(),
        noncommittal=noncommittal,
        questions=() if noncommittal else tuple(" ".join(item.split()) for item in questions),
    )
