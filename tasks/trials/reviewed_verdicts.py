"""Asking a judge again about verdicts on record, in other words: the steps of a run over the statements of that run.

People labelled the statements a run had split its texts into, so nothing is split again; the steps classify, attribute
and rank get the same data as in the run and differ by their prompts alone. A request that was sent before is on record
and is not paid for twice.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalhouse.prompts import Item
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import find_tasks
from evalhouse.tasks.pipeline.shard import Extraction, SampleWork, make_work
from evalhouse.warehouse.rows.corrected_means import JudgedTexts


@dataclass(frozen=True, kw_only=True)
class Said:
    """What the judge said of one item: a statement's id, or a context's as C1, C2, …"""

    sample_id: str
    step: str
    item_id: str
    label: str


async def judge_again(live_run: LiveRun, texts: Sequence[JudgedTexts], steps: Sequence[str]) -> list[Said]:
    """All verdicts of these samples by the live run's judge and prompts; a step that failed has none."""
    works = [_lay_out(one) for one in texts]
    await asyncio.gather(*(step.take(live_run, work) for work in works for step in find_tasks(steps)))
    return [said for work in works for said in _read(work)]


def _lay_out(texts: JudgedTexts) -> SampleWork:
    """A sample whose statements are those of its run."""
    work = make_work(texts.sample)
    for source in work.extractions:
        work.hand_over(source, _to_extraction([row for row in texts.splits if row["source"] == source]))
    return work


def _to_extraction(rows: Sequence[Mapping[str, object]]) -> Extraction:
    reason = next((str(row["reason"]) for row in rows if row["reason"] is not None), None)
    if reason is not None:
        return Extraction(reason=reason)
    return Extraction(items=tuple(Item(id=str(row["statement_id"]), text=str(row["text"])) for row in rows))


def _read(work: SampleWork) -> list[Said]:
    found = [("classify", row["statement_id"], row["label"]) for row in work.rows["classifications"]]
    found += [
        ("attribute", row["statement_id"], "supported" if row["supported"] else "unsupported")
        for row in work.rows["attributions"]
    ]
    found += [
        ("rank", f"C{row['context_rank']}", "useful" if row["useful"] else "not_useful")
        for row in work.rows["context_verdicts"]
    ]
    sample_id = work.sample.sample_id
    return [Said(sample_id=sample_id, step=step, item_id=str(item), label=str(label)) for step, item, label in found]
