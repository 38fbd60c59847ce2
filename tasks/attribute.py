"""Attribute: find which retrieved contexts support each statement of the answer and of the ground truth.

The statements of each text go into a separate request with all contexts, or with `contexts_alone` into one for each
context: verdicts on a ground truth must not depend on the answer beside it, and stay valid while the contexts do.
A statement is supported by contexts that carry it alone, or where none does by several together.

What a request does not hold is split, contexts and statements alike: what supports a statement alone is the union over
the parts, and of several sets that support it together the first is taken. A single context that is longer than a
request goes into several, part by part under its id. A question or a statement that is longer than a request cannot
be split and is sent whole.

Earlier turns of a conversation may support a statement too. They are cited like contexts and kept apart from them: what
only turns support, or contexts only with the help of turns, no retrieval has found. Where a set of both supports a
statement, its contexts are `joint_ranks` and its turns `turn_ranks`.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from prefect import task

from evalhouse.prompts import TURN_PREFIX
from evalhouse.tasks.asking.splitting import set_apart, split_by_tokens, split_items
from evalhouse.tasks.asking.usage import estimate_items
from evalhouse.tasks.asking.verdicts import Inquiry, JudgedItem, ask_in_parts, gather_all, list_ranks, narrow_blocks
from evalhouse.tasks.judge.protocol import JudgeFailed
from evalhouse.tasks.pipeline.live_run import (
    STEP_OPTIONS,
    LiveRun,
    SampleWork,
    Source,
    collect_turns,
    note_other_language,
    take_shard,
)

ATTRIBUTE_STEPS: dict[Source, str] = {"answer": "attribute_answer", "ground_truth": "attribute_ground_truth"}


@task(name="attribute", task_run_name="attribute shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def attribute(run_id: str, shard: int) -> None:
    """Find which contexts support each statement of a shard's samples."""
    await take_shard(run_id, shard, attribute_statements)


async def attribute_statements(live_run: LiveRun, work: SampleWork) -> None:
    """Find the supporting contexts for the statements of both texts of one sample."""
    await gather_all([attribute_text(live_run, work, source) for source in ATTRIBUTE_STEPS])


async def attribute_text(live_run: LiveRun, work: SampleWork, source: Source) -> None:
    """Find the supporting contexts for the statements of one text of a sample."""
    step = ATTRIBUTE_STEPS[source]
    if not await is_support_open(live_run, work, source):
        return
    all_statements = work.extractions[source].result().items
    before = collect_turns(work.sample, live_run.settings.request_tokens)

    def split(room: int) -> list[Inquiry]:
        inquiries = []
        # Where nothing was retrieved earlier turns may still support a statement.
        for group in set_apart(work.context_items, alone=live_run.settings.contexts_alone) or [()]:
            fits = estimate_items([*all_statements, *group]) <= room
            for statements in split_by_tokens(all_statements, room if fits else room // 2):
                for contexts in split_items(group, max(room - estimate_items(statements), room // 2)) or [[]]:
                    data = {
                        **before.block,
                        "question": work.sample.question,
                        "contexts": contexts,
                        "answer_statements": statements if source == "answer" else [],
                        "ground_truth_statements": statements if source == "ground_truth" else [],
                    }
                    inquiries.append(
                        Inquiry(
                            step=step,
                            sample_id=work.sample.sample_id,
                            prompt=live_run.prompts["attribute"].after(before.turns),
                            allowed={item.id: () for item in statements},
                            build_data=partial(narrow_blocks, data, [f"{source}_statements"]),
                            contexts=frozenset(item.id for item in (*contexts, *before.turns)),
                            votes=live_run.settings.votes,
                        )
                    )
        return inquiries

    try:
        add_supports(work, source, await ask_in_parts(live_run.asker, before.room, split))
    except JudgeFailed as error:
        work.note_outcome(step, error.reason, str(error))


async def is_support_open(live_run: LiveRun, work: SampleWork, source: Source) -> bool:
    """Return whether the judge has to be asked what supports a text's statements; what needs no judge is noted."""
    step = ATTRIBUTE_STEPS[source]
    # Done already where the step is taken again because the endpoint was down for the other text.
    if step not in live_run.steps or work.has_outcome(step):
        return False
    extraction = await work.wait_for_statements(source)
    reason = extraction.reason
    if reason not in ("no_answer", "no_ground_truth") and work.sample.contexts is None:
        reason = "no_contexts"
    elif reason is None and not extraction.items:
        reason = "no_statements"
    if reason is None and (work.sample.contexts or work.sample.conversation):
        return not note_other_language(live_run, work, step)
    if reason is None:  # a retrieval that found nothing supports nothing
        columns = {"supported": False, "context_ranks": [], "joint_ranks": [], "reason": "no context was retrieved"}
        for item in extraction.items:
            work.add_row("attributions", statement_id=item.id, **columns, call_id=None)
    work.note_outcome(step, reason)
    return False


def add_supports(work: SampleWork, source: Source, judged: Mapping[str, Sequence[JudgedItem]]) -> None:
    """Add a row for each statement, by its id: support in one part is support, with that part's reason and call."""
    for statement_id, parts in judged.items():
        alone = [part for part in parts if part.verdict.contexts]
        together = [] if alone else [part for part in parts if part.verdict.together][:1]
        alone_ids = [context_id for part in alone for context_id in part.verdict.contexts]
        joint_ids = [context_id for part in together for context_id in part.verdict.together]
        turn_ids = [*alone_ids, *joint_ids]
        work.add_verdict(
            "attributions",
            "attribute",
            statement_id,
            parts,
            alone or together or parts,
            statement_id=statement_id,
            supported=bool(alone_ids or joint_ids),
            context_ranks=list_ranks(alone_ids),
            joint_ranks=list_ranks(joint_ids),
            turn_ranks=list_ranks(turn_ids, TURN_PREFIX) if work.sample.conversation else None,
        )
    work.note_outcome(ATTRIBUTE_STEPS[source])
