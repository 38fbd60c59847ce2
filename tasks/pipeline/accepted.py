"""Several accepted answers to one question, of which the best counts.

A dataset may name more than one right answer (`ground_truths`). A judge that reads the ground truth as a text is shown
them all, one a line. Statements, though, are held against one of them: each is split and classified, and the one that
gives the answer the highest factual_f1 counts, the earlier one among equals. Where nothing is classified it is the one
that is spelled most like the answer. `similarities` names it, under `accepted_answer`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from evalhouse.prompts import Item
from evalhouse.tasks.asking.embedders import compare_spelling
from evalhouse.tasks.asking.verdicts import JudgedItem, gather_all
from evalhouse.tasks.pipeline.labels import ask_labels, pick_telling
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.shard import Extraction, SampleWork

KIND = "accepted_answer"


@dataclass(frozen=True, kw_only=True)
class AcceptedAnswer:
    """One accepted answer with its statements as they would be numbered were it the only one."""

    text: str
    items: Sequence[Item]


async def pick_accepted(live_run: LiveRun, work: SampleWork, accepted: Sequence[AcceptedAnswer]) -> int:
    """The place of the accepted answer that counts, put on record; raises JudgeFailed where one cannot be judged.

    What is asked here is what classify asks for the one that counts, so that there it is on record.
    """
    if live_run.needs("classify"):
        answer = await work.wait_for_statements("answer")
        values = await gather_all([_rate(live_run, work, answer, one.items) for one in accepted])
    else:
        values = [compare_spelling(work.sample.answer or "", one.text) for one in accepted]
    best = max(range(len(values)), key=lambda place: (values[place], -place))
    work.add_row("similarities", kind=KIND, value=values[best], text=accepted[best].text)
    return best


async def _rate(live_run: LiveRun, work: SampleWork, answer: Extraction, truths: Sequence[Item]) -> float:
    """factual_f1 of the answer against the statements of one accepted answer."""
    if not answer.items or not truths:
        return 0.0
    return _compute_f1(await ask_labels(live_run, work.sample, answer.items, truths))


def _compute_f1(verdicts: dict[str, list[JudgedItem]]) -> float:
    labels = [(item_id[0], pick_telling(judged).verdict.label) for item_id, judged in verdicts.items()]
    n_tp, n_fp, n_fn = (labels.count(pair) for pair in (("A", "TP"), ("A", "FP"), ("G", "FN")))
    return n_tp / max(1.0, n_tp + 0.5 * (n_fp + n_fn))
