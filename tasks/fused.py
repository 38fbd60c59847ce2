"""Fused: ask what classify, attribute and rank ask in one request, in which each context and statement is sent once.

It takes their place where the run's plan has it, and writes the same rows, each verdict with the call of its reply:
a sample takes this request and one that splits its texts (`extract`) instead of six. Its replies are rows, in which
only what speaks against the answer or the retrieval is explained (`prompts/verdict_rows`). Each verdict is given in
view of all the rest, so the verdicts of the two plans are not the same measure. What needs no judge is settled by the
rules of the three steps. They also ask by themselves about a sample for which only one of them is open, or that is
larger than a request or than the model's context window, which they know how to split; the outcome of `fused`
records that.
"""

from collections.abc import Collection, Mapping, Sequence

from prefect import task

from evalhouse.prompts import BlockValue, Item, name_support
from evalhouse.tasks.asking.usage import estimate_items, estimate_tokens
from evalhouse.tasks.asking.verdicts import Inquiry, ask_verdicts, gather_all
from evalhouse.tasks.attribute import ATTRIBUTE_STEPS, add_supports, attribute_statements, is_support_open
from evalhouse.tasks.classify import add_labels, classify_statements, is_label_open
from evalhouse.tasks.judge.protocol import TooLong
from evalhouse.tasks.pipeline.live_run import STEP_OPTIONS, LiveRun, SampleWork, Source, collect_turns, take_shard
from evalhouse.tasks.rank import add_usefulness, is_usefulness_open, join_accepted, rank_contexts
from evalhouse.warehouse.steps import PLANS, collect_labels

_SUPPORT = name_support("")[0]
_LABELS = collect_labels("classify") | collect_labels("rank")


@task(name="fused", task_run_name="fused shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def fused(run_id: str, shard: int) -> None:
    """Label, attribute and rank the samples of a shard with one request each."""
    await take_shard(run_id, shard, judge_together)


async def judge_together(live_run: LiveRun, work: SampleWork, *, least: int = 2) -> None:
    """Label one sample's statements, find what supports them and judge its contexts.

    Where fewer than `least` of the three steps are open each asks by itself.
    """
    labels = await is_label_open(live_run, work)
    sources = [source for source in ATTRIBUTE_STEPS if await is_support_open(live_run, work, source)]
    usefulness = await is_usefulness_open(live_run, work)
    if labels + bool(sources) + usefulness >= least:
        statements: dict[Source, Sequence[Item]] = {
            source: (await work.wait_for_statements(source)).items if f"extract_{source}" in live_run.steps else ()
            for source in ATTRIBUTE_STEPS
        }
        # By step the names of the verdicts that it needs.
        names: dict[str, list[str]] = {}
        if labels:
            names["classify"] = [item.id for side in statements.values() for item in side]
        for source in sources:
            names[ATTRIBUTE_STEPS[source]] = [name_support(item.id) for item in statements[source]]
        if usefulness:
            names["rank"] = [item.id for item in work.context_items]
        problem = await _ask_together(live_run, work, statements, names)
        if problem is None:
            return
        work.note_outcome("fused", detail=f"{problem}: asked by the separate steps")
    await gather_all([take(live_run, work) for take in (classify_statements, attribute_statements, rank_contexts)])


async def _ask_together(
    live_run: LiveRun, work: SampleWork, statements: Mapping[Source, Sequence[Item]], names: Mapping[str, Sequence[str]]
) -> str | None:
    """Ask for these verdicts in one request and add their rows; return why not where it is too long."""
    before = collect_turns(work.sample, live_run.settings.request_tokens)
    ground_truth, contexts = join_accepted(work), work.context_items
    sent = [*contexts, *(item for side in statements.values() for item in side)]
    n_tokens = estimate_tokens(ground_truth) + estimate_items(sent)
    if n_tokens > before.room:
        return f"about {n_tokens:,} tokens, where {before.room:,} go into one request"
    supporting = frozenset(item.id for item in (*contexts, *before.turns))

    def build_data(asked: Collection[str]) -> Mapping[str, BlockValue]:
        """Return the data for these verdicts: a label needs the whole other side, a support all contexts, usefulness
        the ground truth, whose statements are named as evidence."""
        firsts = {name[0] for name in asked}
        ids = {name.rpartition(" ")[2] for name in asked}

        def pick(items: Sequence[Item], *, all_for: str) -> Sequence[Item]:
            return items if firsts.intersection(all_for) else [item for item in items if item.id in ids]

        return {
            **before.block,
            "question": work.sample.question,
            "ground_truth": ground_truth if "C" in firsts else "",
            "contexts": pick(contexts, all_for=_SUPPORT),
            "answer_statements": pick(statements["answer"], all_for="G"),
            "ground_truth_statements": pick(statements["ground_truth"], all_for="AC"),
        }

    inquiry = Inquiry(
        step="fused",
        sample_id=work.sample.sample_id,
        prompt=live_run.prompts["fused"].after(before.turns),
        allowed={name: _LABELS.get(name[0], ()) for of_step in names.values() for name in of_step},
        build_data=build_data,
        contexts=supporting,
        sent=supporting.union(item.id for item in sent),
        votes=live_run.settings.votes,
        is_part=names.keys() != set(PLANS["fused"].joins),
    )
    poll = await ask_verdicts(live_run.asker, inquiry)
    if isinstance(poll.failure, TooLong):
        return str(poll.failure)
    for step, of_step in names.items():
        if poll.failure is not None and not poll.judged.keys() >= set(of_step):
            work.note_outcome(step, poll.failure.reason, str(poll.failure))  # what the other steps asked is there
            continue
        judged = {name.rpartition(" ")[2]: [poll.judged[name]] for name in of_step}
        if step == "classify":
            add_labels(work, judged)
        elif step == "rank":
            add_usefulness(work, judged)
        else:
            add_supports(work, "answer" if step == ATTRIBUTE_STEPS["answer"] else "ground_truth", judged)
    return None
