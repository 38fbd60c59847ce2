"""Attribute: which retrieved contexts support each statement of the answer and of the ground truth.

The statements of each text go into a request of their own with all contexts, or with `contexts_alone` into one for
each context: what is said of a ground truth must not hang on the answer beside it, and stays on record while the
contexts do. A statement is supported by contexts that carry it alone, or where none does by several together.

What a request does not hold is split, contexts and statements alike, and what supports a statement alone is the union
over the parts. A single context that is longer than a request goes into several, part by part under its own
id, and supports what any of its parts supports. What contexts, or parts of one, support together is found only where
they stand in one request; of several such sets the first is taken. A question or a statement that is longer than a
request cannot be split and is sent as it is.

A retrieval that found nothing supports nothing, and nobody has to be asked about that, unless earlier turns of a
conversation may. These are cited like contexts and kept apart from them: what only turns support, or contexts only with
the help of turns, no retrieval has found. Where a set of both supports a statement, its contexts are `joint_ranks` and
its turns `turn_ranks`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from prefect import task

from evalhouse.prompts import TURN_PREFIX, BlockValue, Item
from evalhouse.tasks.asking.tokens import (
    ask_in_parts,
    estimate_items,
    set_apart,
    split_by_tokens,
    split_items,
)
from evalhouse.tasks.asking.verdicts import (
    Inquiry,
    JudgedItem,
    Verdicts,
    ask_verdicts,
    gather_all,
    list_ranks,
    read_supports,
)
from evalhouse.tasks.judge.errors import JudgeFailed
from evalhouse.tasks.pipeline.live_run import Before, Extraction, LiveRun, SampleWork, Source, collect_turns
from evalhouse.tasks.pipeline.run_step import STEP_OPTIONS, take_shard

ATTRIBUTE_STEPS: dict[Source, str] = {"answer": "attribute_answer", "ground_truth": "attribute_ground_truth"}


async def attribute_statements(live_run: LiveRun, work: SampleWork) -> None:
    """Find the supporting contexts for one sample's statements."""
    await gather_all([_attribute(live_run, work, source) for source in ATTRIBUTE_STEPS])


@task(name="attribute", task_run_name="attribute shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def attribute(run_id: str, shard: int) -> None:
    """Find which contexts support each statement of a shard's samples."""
    await take_shard(run_id, shard, attribute_statements)


async def _attribute(live_run: LiveRun, work: SampleWork, source: Source) -> None:
    if not await is_support_open(live_run, work, source):
        return
    try:
        await _ask_supports(live_run, work, source)
    except JudgeFailed as error:
        work.note_outcome(ATTRIBUTE_STEPS[source], error.reason, str(error))


async def is_support_open(live_run: LiveRun, work: SampleWork, source: Source) -> bool:
    """Whether the judge has to be asked what supports a text's statements; what is settled without it is noted."""
    step = ATTRIBUTE_STEPS[source]
    # Done already where the step is taken again because the endpoint was down for the other text.
    if step not in live_run.steps or work.has_outcome(step):
        return False
    extraction = await work.wait_for_statements(source)
    reason = _why_not(work, extraction)
    if reason is None and (work.sample.contexts or work.sample.conversation):
        return True
    if reason is None:
        _deny_by_rule(work, extraction)
    work.note_outcome(step, reason)
    return False


def add_supports(work: SampleWork, source: Source, judged: Mapping[str, Sequence[JudgedItem]]) -> None:
    """Put aside what supports each statement of a text: of each by its id the verdicts over all parts."""
    for statement_id, parts in judged.items():
        _add(work, statement_id, parts)
    work.note_outcome(ATTRIBUTE_STEPS[source])


def _why_not(work: SampleWork, extraction: Extraction) -> str | None:
    if extraction.reason in ("no_answer", "no_ground_truth"):
        return extraction.reason
    if work.sample.contexts is None:
        return "no_contexts"
    return extraction.reason or (None if extraction.items else "no_statements")


def _deny_by_rule(work: SampleWork, extraction: Extraction) -> None:
    columns = {
        "supported": False,
        "context_ranks": [],
        "joint_ranks": [],
        "reason": "no context was retrieved",
        "call_id": None,
    }
    for item in extraction.items:
        work.add_row("attributions", statement_id=item.id, **columns)


@dataclass(frozen=True, kw_only=True)
class _Material:
    """The statements of one text of a sample, and what came before its question."""

    source: Source
    statements: Sequence[Item]
    before: Before


async def _ask_supports(live_run: LiveRun, work: SampleWork, source: Source) -> None:
    statements = work.extractions[source].result().items
    before = collect_turns(work.sample, live_run.settings.request_tokens)
    material = _Material(source=source, statements=statements, before=before)
    replies = await ask_in_parts(before.room, partial(_ask_parts, live_run, work, material))
    parts_of = {item.id: [judged[item.id] for judged in replies if item.id in judged] for item in statements}
    add_supports(work, source, parts_of)


async def _ask_parts(
    live_run: LiveRun, work: SampleWork, material: _Material, most: int
) -> list[dict[str, JudgedItem]]:
    asked = []
    # Where nothing was retrieved earlier turns may support a statement all the same.
    for group in set_apart(work.context_items, alone=live_run.settings.contexts_alone) or [()]:
        fits = estimate_items([*material.statements, *group]) <= most
        for part in split_by_tokens(material.statements, most if fits else most // 2):
            room = most - estimate_items(part)
            for contexts in split_items(group, max(room, most // 2)) or [[]]:
                inquiry = _make_inquiry(live_run, work, material, part, contexts)
                asked.append(ask_verdicts(live_run.asker, inquiry, [item.id for item in part]))
    return await gather_all(asked)


def _make_inquiry(
    live_run: LiveRun, work: SampleWork, material: _Material, statements: Sequence[Item], contexts: Sequence[Item]
) -> Inquiry:
    before, source = material.before, material.source
    supporting = frozenset(item.id for item in (*contexts, *before.turns))

    def build_data(ids: Collection[str]) -> Mapping[str, BlockValue]:
        blocks: dict[str, BlockValue] = {f"{side}_statements": [] for side in ATTRIBUTE_STEPS}
        blocks[f"{source}_statements"] = [item for item in statements if item.id in ids]
        return {**before.block, "question": work.sample.question, "contexts": contexts, **blocks}

    def read(text: str, ids: Collection[str]) -> Verdicts:
        return read_supports(text, ids, supporting)

    return Inquiry(
        step=ATTRIBUTE_STEPS[source],
        sample_id=work.sample.sample_id,
        prompt=live_run.prompts["attribute"].after(before.turns),
        build_data=build_data,
        read=read,
        votes=live_run.settings.votes,
    )


def _add(work: SampleWork, statement_id: str, parts: Sequence[JudgedItem]) -> None:
    """One row from the verdicts over all parts: support anywhere is support, told with that part's reason and call."""
    alone = [part for part in parts if part.verdict.contexts]
    together = [] if alone else [part for part in parts if part.verdict.together][:1]
    alone_ids = [context_id for part in alone for context_id in part.verdict.contexts]
    joint_ids = [context_id for part in together for context_id in part.verdict.together]
    columns = {
        "supported": bool(alone_ids or joint_ids),
        "context_ranks": list_ranks(alone_ids),
        "joint_ranks": list_ranks(joint_ids),
        "turn_ranks": list_ranks([*alone_ids, *joint_ids], TURN_PREFIX) if work.sample.conversation else None,
    }
    telling = alone or together or parts
    work.add_verdict("attributions", "attribute", statement_id, parts, telling, statement_id=statement_id, **columns)
