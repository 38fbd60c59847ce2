"""Compare meaning: the similarity of answer and ground truth."""

from prefect import task

from evalhouse.tasks.judge.errors import BudgetExhausted, JudgeFailed
from evalhouse.tasks.pipeline.live_run import Bench
from evalhouse.tasks.pipeline.run_step import TASK_OPTIONS, run_step
from evalhouse.tasks.pipeline.shard import SampleWork

KIND = "answer_ground_truth"


@task(name="compare", task_run_name="compare shard {shard}", **TASK_OPTIONS)
async def compare(run_id: str, shard: int) -> None:
    """Compare the answers of a shard with their ground truths."""
    await run_step(run_id, shard, compare_meaning)


async def compare_meaning(bench: Bench, work: SampleWork) -> None:
    """Compare one sample's answer with its ground truth."""
    if bench.embedder is None or not bench.needs("similarity", work):
        return
    sample = work.sample
    reason, detail = None, None
    if sample.answer is None:
        reason = "no_answer"
    elif sample.ground_truth is None:
        reason = "no_ground_truth"
    else:
        try:
            value = await bench.embedder.compare(sample.sample_id, sample.answer, sample.ground_truth)
            work.add_row("similarities", kind=KIND, value=value)
        except BudgetExhausted as error:
            reason, detail = error.reason, str(error)
        except JudgeFailed as error:
            reason, detail = "embedding_failed", str(error)
    work.note_outcome("similarity", reason, detail)
