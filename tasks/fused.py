"""Fused: what classify, attribute and rank ask, in one request in which each context and statement stands once.

It takes their place where the run's plan says so, and writes what they would, each verdict with the call of its reply:
a sample takes this request and one that splits its texts (`extract`) in place of six. Its replies are rows, in which
only what speaks against the answer or the retrieval is explained (`prompts/verdict_rows`). What is said of one thing is
then said in view of all the rest, so the verdicts of the two plans are not the same measure. What needs no judge is
settled by the rules of the three steps. They also ask by themselves about a sample for which only one of them is open,
or that is larger than a request or than the model's context window, which they know how to split; that it was too long
is on record as the outcome of `fused`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from prefect import task

from evalhouse.prompts import BlockValue, Item, name_support
from evalhouse.tasks.asking.tokens import estimate_items, estimate_tokens
from evalhouse.tasks.asking.verdicts import Inquiry, Poll, Verdicts, gather_all, poll_verdicts, read_joined
from evalhouse.tasks.attribute import ATTRIBUTE_STEPS, add_supports, attribute_statements, is_support_open
from evalhouse.tasks.classify import add_labels, classify_statements, is_label_open
from evalhouse.tasks.judge.errors import TooLong
from evalhouse.tasks.pipeline.live_run import Before, LiveRun, SampleWork, Source, collect_turns
from evalhouse.tasks.pipeline.run_step import STEP_OPTIONS, take_shard
from evalhouse.tasks.rank import add_usefulness, is_usefulness_open, join_accepted, rank_contexts
from evalhouse.warehouse.steps import PLANS, collect_labels

_SEPARATE = (classify_statements, attribute_statements, rank_contexts)
_BY_STEPS = "asked by the separate steps"
_SUPPORT = name_support("")[0]
_LABELS = collect_labels("classify") | collect_labels("rank")


@dataclass(frozen=True, kw_only=True)
class _Open:
    """What has to be asked about a sample: whether for labels, of which texts for supports, and for usefulness."""

    labels: bool
    sources: tuple[Source, ...]
    usefulness: bool

    @property
    def n_steps(self) -> int:
        """How many of the three steps would ask."""
        return self.labels + bool(self.sources) + self.usefulness


@dataclass(frozen=True, kw_only=True)
class _Material:
    """All that a sample's verdicts rest on."""

    before: Before
    question: str
    ground_truth: str
    contexts: Sequence[Item]
    statements: Mapping[Source, Sequence[Item]]

    @property
    def n_tokens(self) -> int:
        """Estimated, without the question."""
        items = [*self.contexts, *(item for side in self.statements.values() for item in side)]
        return estimate_tokens(self.ground_truth) + estimate_items(items)

    def build_data(self, names: Collection[str]) -> Mapping[str, BlockValue]:
        """What the verdicts of these names rest on: a label on all of the other side, a support on all contexts.

        A context is judged by the ground truth, of which its evidence names the statements.
        """
        firsts = {name[0] for name in names}
        ids = {name.rpartition(" ")[2] for name in names}

        def pick(items: Sequence[Item], *, all_for: str) -> Sequence[Item]:
            return items if firsts.intersection(all_for) else [item for item in items if item.id in ids]

        return {
            **self.before.block,
            "question": self.question,
            "ground_truth": self.ground_truth if "C" in firsts else "",
            "contexts": pick(self.contexts, all_for=_SUPPORT),
            "answer_statements": pick(self.statements["answer"], all_for="G"),
            "ground_truth_statements": pick(self.statements["ground_truth"], all_for="AC"),
        }


async def judge_together(live_run: LiveRun, work: SampleWork, *, least: int = 2) -> None:
    """Label one sample's statements, find what supports them and judge its contexts.

    Of fewer than `least` open steps each asks by itself.
    """
    still_open = _Open(
        labels=await is_label_open(live_run, work),
        sources=tuple([source for source in ATTRIBUTE_STEPS if await is_support_open(live_run, work, source)]),
        usefulness=await is_usefulness_open(live_run, work),
    )
    if still_open.n_steps >= least and await _ask_if_it_fits(live_run, work, still_open):
        return
    await gather_all([take(live_run, work) for take in _SEPARATE])


@task(name="fused", task_run_name="fused shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def fused(run_id: str, shard: int) -> None:
    """Label, attribute and rank the samples of a shard with one request each."""
    await take_shard(run_id, shard, judge_together)


async def _collect(live_run: LiveRun, work: SampleWork) -> _Material:
    return _Material(
        before=collect_turns(work.sample, live_run.settings.request_tokens),
        question=work.sample.question,
        ground_truth=join_accepted(work),
        contexts=work.context_items,
        statements={
            source: (await work.wait_for_statements(source)).items if f"extract_{source}" in live_run.steps else ()
            for source in ATTRIBUTE_STEPS
        },
    )


async def _ask_if_it_fits(live_run: LiveRun, work: SampleWork, still_open: _Open) -> bool:
    """Whether all could be asked in one request; why not is on record."""
    material = await _collect(live_run, work)
    most = material.before.room
    if material.n_tokens > most:
        why = f"about {material.n_tokens:,} tokens, where {most:,} go into one request"
        work.note_outcome("fused", detail=f"{why}: {_BY_STEPS}")
        return False
    try:
        await _ask(live_run, work, still_open, material)
    except TooLong as error:
        work.note_outcome("fused", detail=f"{error}: {_BY_STEPS}")
        return False
    return True


async def _ask(live_run: LiveRun, work: SampleWork, still_open: _Open, material: _Material) -> None:
    """Ask in one request and keep what came; raises TooLong where less can be asked."""
    by_step = _name_verdicts(still_open, material)
    names = [name for of_step in by_step.values() for name in of_step]
    supporting = frozenset(item.id for item in (*material.contexts, *material.before.turns))
    sent = supporting.union(item.id for side in material.statements.values() for item in side)

    def read(text: str, asked: Collection[str]) -> Verdicts:
        return read_joined(text, {name: _LABELS.get(name[0], ()) for name in asked}, supporting, sent)

    inquiry = Inquiry(
        step="fused",
        sample_id=work.sample.sample_id,
        prompt=live_run.prompts["fused"].after(material.before.turns),
        build_data=material.build_data,
        read=read,
        votes=live_run.settings.votes,
        is_part=by_step.keys() != set(PLANS["fused"].joins),
    )
    poll = await poll_verdicts(live_run.asker, inquiry, names)
    if isinstance(poll.failure, TooLong):
        raise poll.failure
    for step, of_step in by_step.items():
        _keep(work, step, of_step, poll)


def _name_verdicts(still_open: _Open, material: _Material) -> dict[str, list[str]]:
    """By step the names of the verdicts that it needs."""
    ids = {source: [item.id for item in items] for source, items in material.statements.items()}
    by_step: dict[str, list[str]] = {}
    if still_open.labels:
        by_step["classify"] = [item_id for side in ids.values() for item_id in side]
    for source in still_open.sources:
        by_step[ATTRIBUTE_STEPS[source]] = [name_support(item_id) for item_id in ids[source]]
    if still_open.usefulness:
        by_step["rank"] = [item.id for item in material.contexts]
    return by_step


def _keep(work: SampleWork, step: str, names: Sequence[str], poll: Poll) -> None:
    """Put the verdicts of one of the steps aside, or why some of them are missing; the others' stand all the same."""
    if poll.failure is not None and not poll.judged.keys() >= set(names):
        work.note_outcome(step, poll.failure.reason, str(poll.failure))
        return
    judged = {name.rpartition(" ")[2]: [poll.judged[name]] for name in names}
    if step == "classify":
        add_labels(work, judged)
    elif step == "rank":
        add_usefulness(work, judged)
    else:
        source: Source = "answer" if step == ATTRIBUTE_STEPS["answer"] else "ground_truth"
        add_supports(work, source, judged)
