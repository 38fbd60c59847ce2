"""Classify: label the answer's statements TP or FP against the ground truth's, and the ground truth's TP or FN.

TP and FP are counted over the answer's statements and FN over the ground truth's; a ground-truth statement labelled
TP was found in the answer, and is not a second true positive. When one of the texts makes no statement there is
nothing to ask: everything the other one states is then missing (FN) or unfounded (FP).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

from prefect import task

from evalhouse.prompts import Item
from evalhouse.tasks.asking.embeddings import compare_spelling
from evalhouse.tasks.asking.splitting import split_by_tokens
from evalhouse.tasks.asking.usage import estimate_items
from evalhouse.tasks.asking.verdicts import Inquiry, JudgedItem, ask_in_parts, gather_all, narrow_blocks
from evalhouse.tasks.judge.protocol import JudgeFailed
from evalhouse.tasks.pipeline.live_run import (
    ID_PREFIXES,
    STEP_OPTIONS,
    LiveRun,
    SampleWork,
    collect_turns,
    note_other_language,
    take_shard,
)
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.steps import collect_labels

# Statements of the answer (A1, A2, …) are TP or FP, of the ground truth (G1, G2, …) TP or FN.
_LABELS = collect_labels("classify")


@task(name="classify", task_run_name="classify shard {shard}", retries=2, retry_delay_seconds=[5, 30], **STEP_OPTIONS)
async def classify(run_id: str, shard: int) -> None:
    """Label the statements of a shard's samples as TP, FP or FN."""
    await take_shard(run_id, shard, classify_statements)


async def classify_statements(live_run: LiveRun, work: SampleWork) -> None:
    """Label one sample's statements."""
    if not await is_label_open(live_run, work):
        return
    answer, truth = [work.extractions[source].result() for source in ID_PREFIXES]
    try:
        add_labels(work, await ask_labels(live_run, work.sample, answer.items, truth.items))
    except JudgeFailed as error:
        work.note_outcome("classify", error.reason, str(error))


async def is_label_open(live_run: LiveRun, work: SampleWork) -> bool:
    """Return whether the judge has to be asked for labels; what is settled without it is noted."""
    if "classify" not in live_run.steps or work.has_outcome("classify"):
        return False
    answer = await work.wait_for_statements("answer")
    truth = await work.wait_for_statements("ground_truth")
    reason = truth.reason if truth.reason == "no_ground_truth" else answer.reason or truth.reason
    if reason is None and not answer.items and not truth.items:
        reason = "no_statements"
    if reason is None and answer.items and truth.items:
        return not note_other_language(live_run, work, "classify")
    if reason is None:
        unfounded = {"label": "FP", "reason": "the ground truth makes no statement", "call_id": truth.call_id}
        missing = {"label": "FN", "reason": "the answer makes no statement", "call_id": answer.call_id}
        for extraction, columns in ((answer, unfounded), (truth, missing)):
            for item in extraction.items:
                work.add_row("classifications", statement_id=item.id, **columns)
    work.note_outcome("classify", reason)
    return False


async def ask_labels(
    live_run: LiveRun, sample: StoredSample, answers: Sequence[Item], truths: Sequence[Item]
) -> dict[str, list[JudgedItem]]:
    """Ask for the labels of all statements, and return them by statement, one from each request it was part of.

    Lists longer than a request holds are split, and each part of one side meets each part of the other. Raises
    JudgeFailed.
    """
    before = collect_turns(sample, live_run.settings.request_tokens)

    def split(room: int) -> list[Inquiry]:
        if estimate_items([*answers, *truths]) > room:
            room //= 2  # a part of each side
        inquiries = []
        for some_answers, some_truths in product(*(split_by_tokens(side, room) for side in (answers, truths))):
            data = {
                **before.block,
                "question": sample.question,
                "answer_statements": some_answers,
                "ground_truth_statements": some_truths,
            }
            inquiries.append(
                Inquiry(
                    step="classify",
                    sample_id=sample.sample_id,
                    prompt=live_run.prompts["classify"].after(before.turns),
                    allowed={item.id: _LABELS[item.id[0]] for item in (*some_answers, *some_truths)},
                    # When only one side is asked about, the other one is needed whole to judge by.
                    build_data=partial(narrow_blocks, data, ["answer_statements", "ground_truth_statements"]),
                    votes=live_run.settings.votes,
                )
            )
        return inquiries

    return await ask_in_parts(live_run.asker, before.room, split)


def add_labels(work: SampleWork, judged: Mapping[str, Sequence[JudgedItem]]) -> None:
    """Add a row for each statement, by its id, from the labels it has in all requests."""
    for item_id, verdicts in judged.items():
        deciding = pick_deciding(verdicts)
        columns = {"statement_id": item_id, "label": deciding.verdict.label}
        work.add_verdict("classifications", "classify", item_id, verdicts, [deciding], **columns)
    work.note_outcome("classify")


def pick_deciding(verdicts: Sequence[JudgedItem]) -> JudgedItem:
    """Return the verdict that counts: that of the first part that holds the statement, else of the first part."""
    return next((part for part in verdicts if part.verdict.label == "TP"), verdicts[0])


async def pick_accepted(
    live_run: LiveRun, work: SampleWork, texts: Sequence[str], statements: Sequence[Sequence[Item]]
) -> int:
    """Return the place of the accepted answer that counts, of several right ones in a dataset, and record it.

    It is the one that gives the answer the highest factual_f1, the earlier one among equals; to a refusal one that
    states nothing either; where nothing is classified the one that is spelled most like the answer. `statements` are
    listed by text, numbered as if it were the only one: what is asked here is then recorded for classify. Raises
    JudgeFailed.
    """

    async def rate(truths: Sequence[Item]) -> float:
        if not answer.items or not truths:
            return float(not answer.items and not truths and answer.reason is None)
        judged = await ask_labels(live_run, work.sample, answer.items, truths)
        labels = [(item_id[0], pick_deciding(verdicts).verdict.label) for item_id, verdicts in judged.items()]
        n_tp, n_fp, n_fn = (labels.count(pair) for pair in (("A", "TP"), ("A", "FP"), ("G", "FN")))
        return n_tp / max(1.0, n_tp + 0.5 * (n_fp + n_fn))

    if "classify" in live_run.steps:
        answer = await work.wait_for_statements("answer")
        values = await gather_all([rate(truths) for truths in statements])
    else:
        values = [compare_spelling(work.sample.answer or "", text) for text in texts]
    best = max(range(len(values)), key=lambda place: (values[place], -place))
    work.add_row("similarities", kind="accepted_answer", value=values[best], text=texts[best])
    return best
