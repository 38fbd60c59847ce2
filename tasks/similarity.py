"""Similarity: how close answer and ground truth are in meaning."""

from functools import partial

from prefect import task

from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.errors import BudgetExhausted, JudgeFailed
from evalhouse.tasks.pipeline.live_run import LiveRun, SampleWork
from evalhouse.tasks.pipeline.run_step import STEP_OPTIONS, take_shard

KIND = "answer_ground_truth"


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
        work.add_row("similarities", kind=KIND, value=0.0)
    else:
        try:
            accepted = sample.accepted_answers
            compare = partial(live_run.embedder.compare, sample.sample_id, sample.answer)
            values = await gather_all([compare(text) for text in accepted])
            value, text = max(zip(values, accepted, strict=True), key=lambda pair: pair[0])
            work.add_row("similarities", kind=KIND, value=value, text=text if len(accepted) > 1 else None)
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
