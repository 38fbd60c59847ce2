"""Classify: hold the answer's statements against the ground truth's, as TP, FP and FN.

TP and FP are counted over the answer's statements and FN over the ground truth's; a ground-truth statement labelled
TP was found in the answer, and is no second true positive. When one of the texts makes no statement there is
nothing to ask: everything the other one says is then missing (FN) or unfounded (FP).
Lists longer than a request holds are split, and each part of one side meets each part of the other: a statement is
TP when it is found in any part.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from prefect import task

from evalhouse.prompts import BlockValue, Item
from evalhouse.tasks.asking.tokens import ask_in_parts, estimate_items, split_by_tokens
from evalhouse.tasks.asking.verdicts import Inquiry, JudgedItem, Verdicts, ask_verdicts, gather_all, read_labels
from evalhouse.tasks.judge.errors import JudgeFailed
from evalhouse.tasks.pipeline.live_run import ID_PREFIXES, Before, Extraction, LiveRun, SampleWork, collect_turns
from evalhouse.tasks.pipeline.run_step import STEP_OPTIONS, take_shard
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.steps import collect_labels


async def classify_statements(live_run: LiveRun, work: SampleWork) -> None:
    """Label one sample's statements."""
    if not await is_label_open(live_run, work):
        return
    answer, truth = [work.extractions[source].result() for source in ID_PREFIXES]
    try:
        add_labels(work, await ask_labels(live_run, work.sample, answer.items, truth.items))
    except JudgeFailed as error:
        work.note_outcome("classify", error.reason, str(error))


@task(name="classify", task_run_name="classify shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def classify(run_id: str, shard: int) -> None:
    """Label the statements of a shard's samples as TP, FP or FN."""
    await take_shard(run_id, shard, classify_statements)


async def is_label_open(live_run: LiveRun, work: SampleWork) -> bool:
    """Whether the judge has to be asked for labels; what is settled without it is noted."""
    if "classify" not in live_run.steps or work.has_outcome("classify"):
        return False
    answer = await work.wait_for_statements("answer")
    truth = await work.wait_for_statements("ground_truth")
    reason = answer.reason or truth.reason
    if reason is None and not answer.items and not truth.items:
        reason = "no_statements"
    if reason is not None:
        work.note_outcome("classify", reason)
    elif not answer.items or not truth.items:
        _label_by_rule(work, answer, truth)
    else:
        return True
    return False


def add_labels(work: SampleWork, judged: Mapping[str, Sequence[JudgedItem]]) -> None:
    """Put the labels aside, of each statement by its id those of all parts."""
    for item_id, verdicts in judged.items():
        telling = pick_telling(verdicts)
        columns = {"statement_id": item_id, "label": telling.verdict.label}
        work.add_verdict("classifications", "classify", item_id, verdicts, [telling], **columns)
    work.note_outcome("classify")


def _label_by_rule(work: SampleWork, answer: Extraction, truth: Extraction) -> None:
    for item in answer.items:
        _add(work, item.id, "FP", "the ground truth makes no statement", truth.call_id)
    for item in truth.items:
        _add(work, item.id, "FN", "the answer makes no statement", answer.call_id)
    work.note_outcome("classify")


def _add(work: SampleWork, statement_id: str, label: str, reason: str, call_id: str | None) -> None:
    work.add_row("classifications", statement_id=statement_id, label=label, reason=reason, call_id=call_id)


# The answer's statements (A1, A2, …) are TP or FP, those of the ground truth (G1, G2, …) TP or FN.
_LABELS = collect_labels("classify")


async def ask_labels(
    live_run: LiveRun, sample: StoredSample, answers: Sequence[Item], truths: Sequence[Item]
) -> dict[str, list[JudgedItem]]:
    """By id of a statement of either side its verdicts, one from each part it met; raises JudgeFailed."""
    before = collect_turns(sample, live_run.settings.request_tokens)
    ask = partial(_ask_pair, live_run, sample, before)
    replies = await ask_in_parts(before.room, partial(_ask_pairs, ask, answers, truths))
    return {item.id: [judged[item.id] for judged in replies if item.id in judged] for item in (*answers, *truths)}


async def _ask_pairs(
    ask: Callable[[Sequence[Item], Sequence[Item]], Awaitable[dict[str, JudgedItem]]],
    answers: Sequence[Item],
    truths: Sequence[Item],
    most: int,
) -> list[dict[str, JudgedItem]]:
    if estimate_items([*answers, *truths]) > most:
        most //= 2  # a part of each side
    pairs = [
        (some_answers, some_truths)
        for some_answers in split_by_tokens(answers, most)
        for some_truths in split_by_tokens(truths, most)
    ]
    return await gather_all([ask(*pair) for pair in pairs])


def pick_telling(verdicts: Sequence[JudgedItem]) -> JudgedItem:
    """The verdict that counts: that of the first part that holds the statement, else of the first that does not."""
    return next((part for part in verdicts if part.verdict.label == "TP"), verdicts[0])


async def _ask_pair(
    live_run: LiveRun, sample: StoredSample, before: Before, answers: Sequence[Item], truths: Sequence[Item]
) -> dict[str, JudgedItem]:
    def build_data(ids: Collection[str]) -> Mapping[str, BlockValue]:
        # When one side alone is asked for it is narrowed to that; the other one is needed whole to judge by.
        sides = {item_id[0] for item_id in ids}
        return {
            **before.block,
            "question": sample.question,
            "answer_statements": _narrow(answers, ids) if sides == {"A"} else answers,
            "ground_truth_statements": _narrow(truths, ids) if sides == {"G"} else truths,
        }

    def read(text: str, ids: Collection[str]) -> Verdicts:
        return read_labels(text, {item_id: _LABELS[item_id[0]] for item_id in ids})

    inquiry = Inquiry(
        step="classify",
        sample_id=sample.sample_id,
        prompt=live_run.prompts["classify"].after(before.turns),
        build_data=build_data,
        read=read,
        votes=live_run.settings.votes,
    )
    return await ask_verdicts(live_run.asker, inquiry, [item.id for item in (*answers, *truths)])


def _narrow(side: Sequence[Item], ids: Collection[str]) -> list[Item]:
    return [item for item in side if item.id in ids]
