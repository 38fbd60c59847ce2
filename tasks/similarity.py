"""Similarity: how close answer and ground truth are in meaning."""

from evalhouse.tasks.judge.errors import BudgetExhausted, JudgeFailed
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import make_task
from evalhouse.tasks.pipeline.shard import SampleWork

KIND = "answer_ground_truth"


async def compare_meaning(live_run: LiveRun, work: SampleWork) -> None:
    """Compare one sample's answer with its ground truth."""
    if live_run.embedder is None or not live_run.needs("similarity", work):
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
            value = await live_run.embedder.compare(sample.sample_id, sample.answer, sample.ground_truth)
            work.add_row("similarities", kind=KIND, value=value)
        except BudgetExhausted as error:
            reason, detail = error.reason, str(error)
        except JudgeFailed as error:
            reason, detail = "embedding_failed", str(error)
    work.note_outcome("similarity", reason, detail)


similarity = make_task("similarity", compare_meaning)
