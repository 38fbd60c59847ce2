"""Rank: judge whether each retrieved context is useful for reaching the ground truth; ranking metrics rest on this.

All contexts go into one request, or with `contexts_alone` each into a separate one. A context is useful when any part
of it is useful for any part of the ground truth, so that what is longer than a request can be split. A question longer
than a request cannot be split and is sent whole. A retrieval that found nothing needs no request and has no row.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from prefect import task

from evalhouse.tasks.asking.splitting import leave_room, set_apart, split_items, split_to_judge
from evalhouse.tasks.asking.usage import estimate_items, estimate_tokens
from evalhouse.tasks.asking.verdicts import Inquiry, JudgedItem, ask_in_parts, narrow_blocks
from evalhouse.tasks.judge.protocol import JudgeFailed
from evalhouse.tasks.pipeline.live_run import (
    STEP_OPTIONS,
    LiveRun,
    SampleWork,
    collect_turns,
    note_other_language,
    take_shard,
)
from evalhouse.warehouse.steps import collect_labels

_LABELS = collect_labels("rank")["C"]


@task(name="rank", task_run_name="rank shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def rank(run_id: str, shard: int) -> None:
    """Judge the usefulness of the contexts of a shard's samples."""
    await take_shard(run_id, shard, rank_contexts)


async def rank_contexts(live_run: LiveRun, work: SampleWork) -> None:
    """Judge the usefulness of one sample's contexts."""
    if not await is_usefulness_open(live_run, work):
        return
    before = collect_turns(work.sample, live_run.settings.request_tokens)
    ground_truth = join_accepted(work)

    def split(room: int) -> list[Inquiry]:
        inquiries = []
        for group in set_apart(work.context_items, alone=live_run.settings.contexts_alone):
            fits = estimate_tokens(ground_truth) + estimate_items(group) <= room
            # A ground truth that leaves too little room for contexts is split as well.
            for truth in [ground_truth] if fits else split_to_judge(ground_truth, room // 2):
                for contexts in split_items(group, leave_room(room, truth)):
                    data = {
                        **before.block,
                        "question": work.sample.question,
                        "ground_truth": truth,
                        "contexts": contexts,
                    }
                    inquiries.append(
                        Inquiry(
                            step="rank",
                            sample_id=work.sample.sample_id,
                            prompt=live_run.prompts["rank"].after(before.turns),
                            allowed={item.id: _LABELS for item in contexts},
                            build_data=partial(narrow_blocks, data, ["contexts"]),
                            votes=live_run.settings.votes,
                        )
                    )
        return inquiries

    try:
        add_usefulness(work, await ask_in_parts(live_run.asker, before.room, split))
    except JudgeFailed as error:
        work.note_outcome("rank", error.reason, str(error))


async def is_usefulness_open(live_run: LiveRun, work: SampleWork) -> bool:
    """Return whether the judge has to be asked which contexts are useful; what is settled without it is noted."""
    if "rank" not in live_run.steps or work.has_outcome("rank"):
        return False
    reason = None
    if work.sample.ground_truth is None:
        reason = "no_ground_truth"
    elif work.sample.contexts is None:
        reason = "no_contexts"
    elif "extract_ground_truth" in live_run.steps:
        truth = await work.wait_for_statements("ground_truth")
        # No context can be useful for reaching a ground truth that states nothing; one that failed to split may do.
        reason = None if truth.items or truth.reason else "no_statements"
    if reason is None and work.sample.contexts:
        return not note_other_language(live_run, work, "rank")
    work.note_outcome("rank", reason)
    return False


def join_accepted(work: SampleWork) -> str:
    """Return the ground truth that contexts are to help reach: all accepted answers, one a line."""
    return "\n".join(work.sample.accepted_answers)


def add_usefulness(work: SampleWork, judged: Mapping[str, Sequence[JudgedItem]]) -> None:
    """Add a row for each context, by its id: useful in one part is useful, with the reason and call of that part."""
    for context_id, parts in judged.items():
        useful = [part for part in parts if part.verdict.label == "useful"]
        columns = {"context_rank": int(context_id[1:]), "useful": bool(useful)}
        work.add_verdict("context_verdicts", "rank", context_id, parts, useful or parts, **columns)
    work.note_outcome("rank")
