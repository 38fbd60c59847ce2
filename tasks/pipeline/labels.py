"""TP, FP and FN: an answer's statements and those of a ground truth, held against each other by the judge.

Lists longer than a request holds are split, and each part of one side meets each part of the other: a statement is
TP when it is found in any part.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

from evalhouse.prompts import BlockValue, Item
from evalhouse.tasks.asking.tokens import estimate_items, leave_room, split_by_tokens
from evalhouse.tasks.asking.verdicts import Inquiry, JudgedItem, Verdicts, ask_verdicts, gather_all, read_labels
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.text_parts import ask_in_parts
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.steps import collect_labels

# The answer's statements (A1, A2, …) are TP or FP, those of the ground truth (G1, G2, …) TP or FN.
_LABELS = collect_labels("classify")


async def ask_labels(
    live_run: LiveRun, sample: StoredSample, answers: Sequence[Item], truths: Sequence[Item]
) -> dict[str, list[JudgedItem]]:
    """By id of a statement of either side its verdicts, one from each part it met; raises JudgeFailed."""
    most = leave_room(live_run.settings.request_tokens, sample.question)
    replies = await ask_in_parts(most, partial(_ask_pairs, live_run, sample, answers, truths))
    return {item.id: [judged[item.id] for judged in replies if item.id in judged] for item in (*answers, *truths)}


async def _ask_pairs(
    live_run: LiveRun, sample: StoredSample, answers: Sequence[Item], truths: Sequence[Item], most: int
) -> list[dict[str, JudgedItem]]:
    if estimate_items([*answers, *truths]) > most:
        most //= 2  # a part of each side
    pairs = [
        (some_answers, some_truths)
        for some_answers in split_by_tokens(answers, most)
        for some_truths in split_by_tokens(truths, most)
    ]
    return await gather_all([_ask_pair(live_run, sample, *pair) for pair in pairs])


def pick_telling(verdicts: Sequence[JudgedItem]) -> JudgedItem:
    """The verdict that counts: that of the first part that holds the statement, else of the first that does not."""
    return next((part for part in verdicts if part.verdict.label == "TP"), verdicts[0])


async def _ask_pair(
    live_run: LiveRun, sample: StoredSample, answers: Sequence[Item], truths: Sequence[Item]
) -> dict[str, JudgedItem]:
    def build_data(ids: Collection[str]) -> Mapping[str, BlockValue]:
        # When one side alone is asked for it is narrowed to that; the other one is needed whole to judge by.
        sides = {item_id[0] for item_id in ids}
        return {
            "question": sample.question,
            "answer_statements": _narrow(answers, ids) if sides == {"A"} else answers,
            "ground_truth_statements": _narrow(truths, ids) if sides == {"G"} else truths,
        }

    def read(text: str, ids: Collection[str]) -> Verdicts:
        return read_labels(text, {item_id: _LABELS[item_id[0]] for item_id in ids})

    inquiry = Inquiry(
        step="classify",
        sample_id=sample.sample_id,
        prompt=live_run.prompts["classify"],
        build_data=build_data,
        read=read,
        votes=live_run.settings.votes,
    )
    return await ask_verdicts(live_run.asker, inquiry, [item.id for item in (*answers, *truths)])


def _narrow(side: Sequence[Item], ids: Collection[str]) -> list[Item]:
    return [item for item in side if item.id in ids]
