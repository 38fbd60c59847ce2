"""Classify: hold the answer's statements against the ground truth's, as TP, FP and FN.

TP and FP are counted over the answer's statements and FN over the ground truth's; a ground-truth statement labelled
TP was found in the answer, and is no second true positive. When one of the texts makes no statement there is
nothing to ask: everything the other one says is then missing (FN) or unfounded (FP).
What is asked, and how lists longer than a request are split, stands in `pipeline/labels`.
"""

from collections.abc import Mapping, Sequence

from evalhouse.tasks.asking.verdicts import JudgedItem
from evalhouse.tasks.judge.errors import JudgeFailed
from evalhouse.tasks.pipeline.labels import ask_labels, pick_telling
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import make_task
from evalhouse.tasks.pipeline.shard import ID_PREFIXES, Extraction, SampleWork


async def classify_statements(live_run: LiveRun, work: SampleWork) -> None:
    """Label one sample's statements."""
    if not await is_label_open(live_run, work):
        return
    answer, truth = [await work.wait_for_statements(source) for source in ID_PREFIXES]
    try:
        add_labels(work, await ask_labels(live_run, work.sample, answer.items, truth.items))
    except JudgeFailed as error:
        work.note_outcome("classify", error.reason, str(error))


classify = make_task("classify", classify_statements)


async def is_label_open(live_run: LiveRun, work: SampleWork) -> bool:
    """Whether the judge has to be asked for labels; what is settled without it is noted."""
    if not live_run.needs("classify") or work.has_outcome("classify"):
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
