"""Rank: is each retrieved context useful for reaching the ground truth? Metrics of ranking rest on the answers.

All contexts go into one request; more than it holds are split, and each is judged in its part alone.
"""

from collections.abc import Collection, Mapping, Sequence

from prefect import task

from prompts import BlockValue, Item
from tasks.bench import Bench
from tasks.judge_errors import JudgeFailed
from tasks.reading import Verdicts, read_labels
from tasks.shard import SampleWork
from tasks.step_runs import TASK_OPTIONS, run_step
from tasks.tokens import split_by_tokens
from tasks.verdicts import Inquiry, JudgedItem, ask_verdicts, gather_all

_LABELS = ("useful", "not_useful")


@task(name="rank", task_run_name="rank shard {shard}", **TASK_OPTIONS)
async def rank(run_id: str, shard: int) -> None:
    """Judge the usefulness of the contexts of a shard."""
    await run_step(run_id, shard, rank_contexts)


async def rank_contexts(bench: Bench, work: SampleWork) -> None:
    """Judge the usefulness of one sample's contexts."""
    if not bench.needs("rank", work):
        return
    reason, detail = None, None
    if work.sample.ground_truth is None:
        reason = "no_ground_truth"
    elif not work.sample.contexts:
        reason = "no_contexts"
    else:
        try:
            await _ask_usefulness(bench, work, work.sample.ground_truth)
        except JudgeFailed as error:
            reason, detail = error.reason, str(error)
    work.note_outcome("rank", reason, detail)


async def _ask_usefulness(bench: Bench, work: SampleWork, ground_truth: str) -> None:
    parts = split_by_tokens(work.context_items, bench.settings.request_tokens)
    for judged in await gather_all([_ask_part(bench, work, ground_truth, part) for part in parts]):
        for item_id, item in judged.items():
            work.add_row(
                "context_verdicts",
                context_rank=int(item_id[1:]),
                useful=item.verdict.label == "useful",
                reason=item.verdict.reason,
                call_id=item.call_id,
            )


async def _ask_part(
    bench: Bench, work: SampleWork, ground_truth: str, contexts: Sequence[Item]
) -> dict[str, JudgedItem]:
    def build_data(ids: Collection[str]) -> Mapping[str, BlockValue]:
        return {
            "question": work.sample.question,
            "ground_truth": ground_truth,
            "contexts": [item for item in contexts if item.id in ids],
        }

    def read(text: str, ids: Collection[str]) -> Verdicts:
        return read_labels(text, dict.fromkeys(ids, _LABELS))

    inquiry = Inquiry(
        step="rank",
        sample_id=work.sample.sample_id,
        prompt=bench.prompts["rank"],
        build_data=build_data,
        read=read,
    )
    return await ask_verdicts(bench.asker, inquiry, [item.id for item in contexts])
