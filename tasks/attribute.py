"""Attribute: which retrieved contexts support each statement of the answer and of the ground truth.

Both texts' statements and all contexts go into one request, or with `contexts_alone` into one for each context. What
a request does not hold is split, contexts and statements alike, and a statement's supporting contexts are the union
over the parts. A single context that is longer than a request goes into several, part by part under its own id, and
supports what any of its parts supports: support that stands only in two parts together is not found, as it is not in
two contexts. A question or a statement that is longer than a request cannot be split and is sent as it is.

A retrieval that found nothing supports nothing, and nobody has to be asked about that.
"""

from collections.abc import Collection, Mapping, Sequence

from evalhouse.prompts import BlockValue, Item
from evalhouse.tasks.asking.tokens import estimate_items, leave_room, split_by_tokens
from evalhouse.tasks.asking.verdicts import Inquiry, JudgedItem, Verdicts, ask_verdicts, gather_all, read_supports
from evalhouse.tasks.judge.errors import JudgeFailed
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import make_task
from evalhouse.tasks.pipeline.shard import ID_PREFIXES, Extraction, SampleWork, Source
from evalhouse.tasks.pipeline.text_parts import set_apart, split_items

_STEPS: dict[Source, str] = {"answer": "attribute_answer", "ground_truth": "attribute_ground_truth"}


async def attribute_statements(live_run: LiveRun, work: SampleWork) -> None:
    """Find the supporting contexts for one sample's statements."""
    outcomes: dict[str, tuple[str | None, str | None]] = {}
    open_sides: dict[Source, Extraction] = {}
    for source, step in _STEPS.items():
        if live_run.needs(step, work):
            extraction = await work.wait_for_statements(source)
            outcomes[step] = (_why_not(work, extraction), None)
            if outcomes[step][0] is None:
                open_sides[source] = extraction
    if not work.sample.contexts:
        _deny_by_rule(work, open_sides)
    elif open_sides:
        try:
            await _ask_supports(live_run, work, open_sides)
        except JudgeFailed as error:
            outcomes |= {_STEPS[source]: (error.reason, str(error)) for source in open_sides}
    for step, (reason, detail) in outcomes.items():
        work.note_outcome(step, reason, detail)


attribute = make_task("attribute", attribute_statements)


def _why_not(work: SampleWork, extraction: Extraction) -> str | None:
    if extraction.reason in ("no_answer", "no_ground_truth"):
        return extraction.reason
    if work.sample.contexts is None:
        return "no_contexts"
    return extraction.reason or (None if extraction.items else "no_statements")


def _deny_by_rule(work: SampleWork, sides: Mapping[Source, Extraction]) -> None:
    columns = {"supported": False, "context_ranks": [], "reason": "no context was retrieved", "call_id": None}
    for item in (item for extraction in sides.values() for item in extraction.items):
        work.add_row("attributions", statement_id=item.id, **columns)


async def _ask_supports(live_run: LiveRun, work: SampleWork, sides: Mapping[Source, Extraction]) -> None:
    most = leave_room(live_run.settings.request_tokens, work.sample.question)
    statements = [item for extraction in sides.values() for item in extraction.items]
    asked = []
    for group in set_apart(work.context_items, alone=live_run.settings.contexts_alone):
        fits = estimate_items([*statements, *group]) <= most
        for part in split_by_tokens(statements, most if fits else most // 2):
            room = most - estimate_items(part)
            for contexts in split_items(group, max(room, most // 2)):
                inquiry = _make_inquiry(live_run, work, part, contexts)
                asked.append(ask_verdicts(live_run.asker, inquiry, [item.id for item in part]))
    replies = await gather_all(asked)
    for item in statements:
        _add(work, item.id, [judged[item.id] for judged in replies if item.id in judged])


def _make_inquiry(live_run: LiveRun, work: SampleWork, statements: Sequence[Item], contexts: Sequence[Item]) -> Inquiry:
    context_ids = frozenset(item.id for item in contexts)

    def build_data(ids: Collection[str]) -> Mapping[str, BlockValue]:
        def pick(source: Source) -> list[Item]:
            return [item for item in statements if item.id in ids and item.id[0] == ID_PREFIXES[source]]

        return {
            "question": work.sample.question,
            "contexts": contexts,
            "answer_statements": pick("answer"),
            "ground_truth_statements": pick("ground_truth"),
        }

    def read(text: str, ids: Collection[str]) -> Verdicts:
        return read_supports(text, ids, context_ids)

    return Inquiry(
        step="attribute",
        sample_id=work.sample.sample_id,
        prompt=live_run.prompts["attribute"],
        build_data=build_data,
        read=read,
        votes=live_run.settings.votes,
    )


def _add(work: SampleWork, statement_id: str, parts: Sequence[JudgedItem]) -> None:
    """One row from the verdicts over all parts: support anywhere is support, told with that part's reason and call."""
    ranks = sorted({int(context_id[1:]) for part in parts for context_id in part.verdict.contexts})
    telling = [part for part in parts if part.verdict.contexts] or parts
    columns = {"statement_id": statement_id, "supported": bool(ranks), "context_ranks": ranks}
    work.add_verdict("attributions", "attribute", statement_id, parts, telling, **columns)
