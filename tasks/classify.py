"""Classify: hold the answer's statements against the ground truth's, as TP, FP and FN.

TP and FP are counted over the answer's statements and FN over the ground truth's; a ground-truth statement labelled
TP was found in the answer, and is no second true positive. When one of the texts makes no statement there is
nothing to ask: everything the other one says is then missing (FN) or unfounded (FP).

Lists longer than a request holds are split, and each part of one side meets each part of the other: a statement is
TP when it is found in any part.
"""

from collections.abc import Collection, Mapping, Sequence

from evalhouse.prompts import BlockValue, Item
from evalhouse.tasks.asking.tokens import estimate_items, leave_room, split_by_tokens
from evalhouse.tasks.asking.verdicts import Inquiry, JudgedItem, Verdicts, ask_verdicts, gather_all, read_labels
from evalhouse.tasks.judge.errors import JudgeFailed
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import make_task
from evalhouse.tasks.pipeline.shard import Extraction, SampleWork
from evalhouse.warehouse.steps import collect_labels

# The answer's statements (A1, A2, …) are TP or FP, those of the ground truth (G1, G2, …) TP or FN.
_LABELS = collect_labels("classify")


async def classify_statements(live_run: LiveRun, work: SampleWork) -> None:
    """Label one sample's statements."""
    if not live_run.needs("classify", work):
        return
    answer = await work.wait_for_statements("answer")
    truth = await work.wait_for_statements("ground_truth")
    reason = answer.reason or truth.reason
    if reason is None and not answer.items and not truth.items:
        reason = "no_statements"
    if reason is not None:
        work.note_outcome("classify", reason)
        return
    if not answer.items or not truth.items:
        _label_by_rule(work, answer, truth)
        return
    try:
        await _ask_labels(live_run, work, answer, truth)
    except JudgeFailed as error:
        work.note_outcome("classify", error.reason, str(error))


classify = make_task("classify", classify_statements)


def _label_by_rule(work: SampleWork, answer: Extraction, truth: Extraction) -> None:
    for item in answer.items:
        _add(work, item.id, "FP", "the ground truth makes no statement", truth.call_id)
    for item in truth.items:
        _add(work, item.id, "FN", "the answer makes no statement", answer.call_id)
    work.note_outcome("classify")


async def _ask_labels(live_run: LiveRun, work: SampleWork, answer: Extraction, truth: Extraction) -> None:
    most = leave_room(live_run.settings.request_tokens, work.sample.question)
    if estimate_items([*answer.items, *truth.items]) > most:
        most //= 2  # a part of each side
    pairs = [
        (answers, truths)
        for answers in split_by_tokens(answer.items, most)
        for truths in split_by_tokens(truth.items, most)
    ]
    replies = await gather_all([_ask_pair(live_run, work, answers, truths) for answers, truths in pairs])
    for item in (*answer.items, *truth.items):
        verdicts = [judged[item.id] for judged in replies if item.id in judged]
        # Reported with the first part that holds the statement, else with the first that does not.
        telling = next((part for part in verdicts if part.verdict.label == "TP"), verdicts[0])
        columns = {"statement_id": item.id, "label": telling.verdict.label}
        work.add_verdict("classifications", "classify", item.id, verdicts, [telling], **columns)
    work.note_outcome("classify")


async def _ask_pair(
    live_run: LiveRun, work: SampleWork, answers: Sequence[Item], truths: Sequence[Item]
) -> dict[str, JudgedItem]:
    def build_data(ids: Collection[str]) -> Mapping[str, BlockValue]:
        # When one side alone is asked for it is narrowed to that; the other one is needed whole to judge by.
        sides = {item_id[0] for item_id in ids}
        return {
            "question": work.sample.question,
            "answer_statements": _narrow(answers, ids) if sides == {"A"} else answers,
            "ground_truth_statements": _narrow(truths, ids) if sides == {"G"} else truths,
        }

    def read(text: str, ids: Collection[str]) -> Verdicts:
        return read_labels(text, {item_id: _LABELS[item_id[0]] for item_id in ids})

    inquiry = Inquiry(
        step="classify",
        sample_id=work.sample.sample_id,
        prompt=live_run.prompts["classify"],
        build_data=build_data,
        read=read,
        votes=live_run.settings.votes,
    )
    return await ask_verdicts(live_run.asker, inquiry, [item.id for item in (*answers, *truths)])


def _narrow(side: Sequence[Item], ids: Collection[str]) -> list[Item]:
    return [item for item in side if item.id in ids]


def _add(work: SampleWork, statement_id: str, label: str, reason: str, call_id: str | None) -> None:
    work.add_row("classifications", statement_id=statement_id, label=label, reason=reason, call_id=call_id)
