"""Similarity: how close answer and ground truth are in meaning."""

from dataclasses import dataclass
from functools import partial

from prefect import task

from evalhouse.prompts import Grade
from evalhouse.tasks.asking.verdicts import gather_all, parse_object
from evalhouse.tasks.judge.errors import BudgetExhausted, JudgeFailed, UnusableReply
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import LiveRun, SampleWork, collect_turns
from evalhouse.tasks.pipeline.run_step import STEP_OPTIONS, take_shard

ANSWER_KIND = "answer_ground_truth"


async def compare_meaning(live_run: LiveRun, work: SampleWork) -> None:
    """Compare one sample's answer with its ground truth."""
    if live_run.embedder is None or "similarity" not in live_run.steps:
        return
    sample = work.sample
    reason, detail = None, None
    if sample.answer is None:
        reason = "no_answer"
    elif sample.ground_truth is None:
        reason = "no_ground_truth"
    elif not sample.answer:  # silence means nothing, and most embedding models refuse it
        work.add_row("similarities", kind=ANSWER_KIND, value=0.0)
    else:
        try:
            accepted = sample.accepted_answers
            compare = partial(live_run.embedder.compare, sample.sample_id, sample.answer)
            values = await gather_all([compare(text) for text in accepted])
            value, text = max(zip(values, accepted, strict=True), key=lambda pair: pair[0])
            work.add_row("similarities", kind=ANSWER_KIND, value=value, text=text if len(accepted) > 1 else None)
        except BudgetExhausted as error:
            reason, detail = error.reason, str(error)
        except JudgeFailed as error:
            reason, detail = "embedding_failed", str(error)
    work.note_outcome("similarity", reason, detail)


@task(
    name="similarity", task_run_name="similarity shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS
)
async def similarity(run_id: str, shard: int) -> None:
    """Compare answers and ground truths of a shard's samples in meaning."""
    await take_shard(run_id, shard, compare_meaning)


QUESTION_KIND = "regenerated_question"
RUBRIC = "relevancy"


@dataclass(frozen=True, kw_only=True)
class Regenerated:
    """What a reply held; there are no questions to a non-committal answer."""

    reason: str
    noncommittal: bool
    questions: tuple[str, ...]


async def regenerate_questions(live_run: LiveRun, work: SampleWork) -> None:
    """Regenerate questions from one sample's answer and compare them with its question."""
    if "relevancy" not in live_run.steps:
        return
    reason, detail = None, None
    if work.sample.answer is None:
        reason = "no_answer"
    elif not work.sample.answer:
        work.add_grade(RUBRIC, _describe_flag(1.0, said=None, reason="the answer is empty"))
    else:
        try:
            reason, detail = await _find_relevancy(live_run, work, work.sample.answer)
        except JudgeFailed as error:
            reason, detail = error.reason, str(error)
    work.note_outcome("relevancy", reason, detail)


@task(name="relevancy", task_run_name="relevancy shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def relevancy(run_id: str, shard: int) -> None:
    """Regenerate questions from the answers of a shard's samples and compare them."""
    await take_shard(run_id, shard, regenerate_questions)


async def _find_relevancy(live_run: LiveRun, work: SampleWork, answer: str) -> tuple[str | None, str | None]:
    count = live_run.settings.regenerated_questions
    before = collect_turns(work.sample, live_run.settings.request_tokens)
    question = Question(
        step="relevancy",
        sample_id=work.sample.sample_id,
        prompt=live_run.prompts["questions"].after(before.turns),
        data={**before.block, "answer": answer, "count": str(count)},
    )
    reply = await live_run.asker.ask(question, lambda text: read_questions(text, count))
    flag = float(reply.value.noncommittal)
    work.add_grade(RUBRIC, _describe_flag(flag, said=flag, reason=reply.value.reason), reply.call_id)
    try:
        await gather_all([_compare_questions(live_run, work, text, reply.call_id) for text in reply.value.questions])
    except BudgetExhausted:
        raise
    except JudgeFailed as error:
        return "embedding_failed", str(error)
    return None, None


def _describe_flag(flag: float, *, said: float | None, reason: str) -> Grade:
    return Grade(criterion="noncommittal", said=said, rating=flag, scale_min=0.0, scale_max=1.0, reason=reason)


async def _compare_questions(live_run: LiveRun, work: SampleWork, regenerated: str, call_id: str) -> None:
    assert live_run.embedder is not None
    value = await live_run.embedder.compare(work.sample.sample_id, work.sample.question, regenerated)
    work.add_row("similarities", kind=QUESTION_KIND, value=value, text=regenerated, call_id=call_id)


def read_questions(text: str, count: int) -> Regenerated:
    """The questions of a reply; raises UnusableReply unless there are `count`, or none for a non-committal answer."""
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
