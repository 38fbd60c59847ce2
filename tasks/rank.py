"""Rank: is each retrieved context useful for reaching the ground truth? Metrics of ranking rest on the answers.

All contexts go into one request, or with `contexts_alone` each into one of its own. More than a request holds are
split, and each is judged in its part alone. A single context that is longer than a request goes into several, part by
part under its own id, and so does a ground truth that leaves too little room: a context is useful when any part of it
is, for any part of the ground truth, since a piece of either is all that usefulness asks for. A question longer than a
request cannot be split and is sent as it is.

A retrieval that found nothing has been judged with no request and no row: none of what it found is useful. Where the
ground truth states nothing no context can be useful for reaching it, so that nobody is asked; its statements are waited
for where the run splits it, and where that fails it is ranked all the same.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from prefect import task

from evalhouse.prompts import BlockValue, Item
from evalhouse.tasks.asking.tokens import (
    ask_in_parts,
    estimate_items,
    estimate_tokens,
    leave_room,
    set_apart,
    split_items,
    split_to_judge,
)
from evalhouse.tasks.asking.verdicts import Inquiry, JudgedItem, Verdicts, ask_verdicts, gather_all, read_labels
from evalhouse.tasks.judge.errors import JudgeFailed
from evalhouse.tasks.pipeline.live_run import Before, LiveRun, SampleWork, collect_turns
from evalhouse.tasks.pipeline.run_step import STEP_OPTIONS, take_shard
from evalhouse.warehouse.steps import collect_labels

_LABELS = collect_labels("rank")["C"]


async def rank_contexts(live_run: LiveRun, work: SampleWork) -> None:
    """Judge the usefulness of one sample's contexts."""
    if not await is_usefulness_open(live_run, work):
        return
    try:
        await _ask_usefulness(live_run, work, join_accepted(work))
    except JudgeFailed as error:
        work.note_outcome("rank", error.reason, str(error))


@task(name="rank", task_run_name="rank shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def rank(run_id: str, shard: int) -> None:
    """Judge the usefulness of the contexts of a shard's samples."""
    await take_shard(run_id, shard, rank_contexts)


async def is_usefulness_open(live_run: LiveRun, work: SampleWork) -> bool:
    """Whether the judge has to be asked which contexts are useful; what is settled without it is noted."""
    if "rank" not in live_run.steps or work.has_outcome("rank"):
        return False
    reason = await _why_not(live_run, work)
    if reason is None and work.sample.contexts:
        return True
    work.note_outcome("rank", reason)
    return False


def join_accepted(work: SampleWork) -> str:
    """The ground truth that contexts are to help reach: all answers that are accepted."""
    return "\n".join(work.sample.accepted_answers)


def add_usefulness(work: SampleWork, judged: Mapping[str, Sequence[JudgedItem]]) -> None:
    """Put aside which contexts are useful: of each by its id the verdicts over all parts."""
    for context_id, parts in judged.items():
        _add(work, context_id, parts)
    work.note_outcome("rank")


async def _why_not(live_run: LiveRun, work: SampleWork) -> str | None:
    if work.sample.ground_truth is None:
        return "no_ground_truth"
    if work.sample.contexts is None:
        return "no_contexts"
    if "extract_ground_truth" not in live_run.steps:
        return None
    truth = await work.wait_for_statements("ground_truth")
    return None if truth.items or truth.reason else "no_statements"


async def _ask_usefulness(live_run: LiveRun, work: SampleWork, ground_truth: str) -> None:
    before = collect_turns(work.sample, live_run.settings.request_tokens)
    replies = await ask_in_parts(before.room, partial(_ask_parts, live_run, work, before, ground_truth))
    ids = [item.id for item in work.context_items]
    add_usefulness(work, {item_id: [judged[item_id] for judged in replies if item_id in judged] for item_id in ids})


async def _ask_parts(
    live_run: LiveRun, work: SampleWork, before: Before, ground_truth: str, most: int
) -> list[dict[str, JudgedItem]]:
    asked = []
    for group in set_apart(work.context_items, alone=live_run.settings.contexts_alone):
        fits = estimate_tokens(ground_truth) + estimate_items(group) <= most
        for truth in [ground_truth] if fits else split_to_judge(ground_truth, most // 2):
            for contexts in split_items(group, leave_room(most, truth)):
                asked.append(_ask_part(live_run, work, before, truth, contexts))
    return await gather_all(asked)


def _add(work: SampleWork, context_id: str, parts: Sequence[JudgedItem]) -> None:
    """One row from the verdicts over all parts: useful anywhere is useful, told with that part's reason and call."""
    useful = [part for part in parts if part.verdict.label == "useful"]
    columns = {"context_rank": int(context_id[1:]), "useful": bool(useful)}
    work.add_verdict("context_verdicts", "rank", context_id, parts, useful or parts, **columns)


async def _ask_part(
    live_run: LiveRun, work: SampleWork, before: Before, ground_truth: str, contexts: Sequence[Item]
) -> dict[str, JudgedItem]:
    def build_data(ids: Collection[str]) -> Mapping[str, BlockValue]:
        return {
            **before.block,
            "question": work.sample.question,
            "ground_truth": ground_truth,
            "contexts": [item for item in contexts if item.id in ids],
        }

    def read(text: str, ids: Collection[str]) -> Verdicts:
        return read_labels(text, dict.fromkeys(ids, _LABELS))

    inquiry = Inquiry(
        step="rank",
        sample_id=work.sample.sample_id,
        prompt=live_run.prompts["rank"].after(before.turns),
        build_data=build_data,
        read=read,
        votes=live_run.settings.votes,
    )
    return await ask_verdicts(live_run.asker, inquiry, [item.id for item in contexts])
