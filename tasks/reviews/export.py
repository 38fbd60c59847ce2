"""An export: which verdicts of a run a person is asked about, drawn, put on record, and written as a table.

Items that have a label already are left out. An estimate from this export and the labels from before takes these as
known, each standing for itself (stratum `reviewed`, probability 1), and the picked ones as drawn from the others:
unbiased however the earlier labels came about. So they are put on record too, as not asked.
"""

import csv
import io
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson

from evalhouse.tasks.judge.names import LEXICAL, find_judge
from evalhouse.tasks.reviews.draw import (
    Item,
    Pick,
    Stratum,
    StratumDraw,
    collect_items,
    draw,
    label_lexically,
    pick_samples,
    share_places,
    sort_into_strata,
)
from evalhouse.tasks.reviews.label_files import ReviewError, list_labels
from evalhouse.warehouse.rows.forgotten import refuse_forgotten
from evalhouse.warehouse.rows.reviews import (
    read_items,
    read_moved,
    read_picks,
    read_statements,
    read_texts,
    write_picks,
)
from evalhouse.warehouse.rows.runs import RunRow, make_run_id, now_utc
from evalhouse.warehouse.steps import REVIEWED_PROMPTS
from evalhouse.warehouse.store import Warehouse

REVIEWED = "reviewed"
_OF_ITEM = ("sample_id", "step", "statement_id", "context_rank", "item_hash", "question_hash", "judge_label")
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """What an export is to hold: `steps` None for all that have verdicts; `seed` repeats a draw."""

    n: int
    steps: tuple[str, ...] | None
    share_random: float
    seed: int
    again: bool


@dataclass(frozen=True, kw_only=True)
class Export:
    """What was drawn: `picks` in the order of asking, groups with their sizes, and the texts of the samples."""

    export_id: str
    run: RunRow
    seed: int
    drawn: tuple[StratumDraw, ...]
    picks: tuple[Pick, ...]
    reviewed: tuple[Item, ...]
    n_samples: int
    n_read_lexically: int
    texts: dict[str, Any]

    @property
    def n_items(self) -> int:
        """Items that were drawn from."""
        return sum(group.size for group in self.drawn)


def plan_export(warehouse: Warehouse, run: RunRow, request: ExportRequest) -> Export:
    """Draw what to ask; raises ReviewError when there is nothing, or less than one item a step, to draw."""
    items = _list_items(warehouse, run, request)
    generator = random.Random(request.seed)
    open_items = items if request.again else [item for item in items if not item.is_reviewed]
    by_step = {step: [item for item in open_items if item.step == step] for step in REVIEWED_PROMPTS}
    by_step = {step: of_step for step, of_step in by_step.items() if of_step}
    if request.n < len(by_step):
        raise ReviewError(
            f"-n {request.n} is less than one verdict for each of {', '.join(by_step)}; name fewer --steps"
        )
    places = share_places(request.n, {step: len(of_step) for step, of_step in by_step.items()})
    lexical, n_read = _read_lexically(warehouse, run, request, open_items, generator)
    moved = read_moved(warehouse, run.run_id)
    drawn: list[StratumDraw] = []
    for step, of_step in by_step.items():
        # A plain random sample has no groups.
        groups: dict[Stratum, list[Item]] = (
            {"rest": of_step}
            if request.share_random >= 1
            else sort_into_strata(of_step, lexical_labels=lexical, moved=moved)
        )
        drawn += draw(groups, places[step], share_random=request.share_random, generator=generator)
    picks = [_stand_for_itself(pick) for group in drawn for pick in group.picks]
    generator.shuffle(picks)
    picked_at = datetime.now(UTC)
    return Export(
        export_id=make_run_id(picked_at),
        run=run,
        seed=request.seed,
        drawn=tuple(drawn),
        picks=tuple(picks),
        reviewed=tuple(item for item in items if item.is_reviewed),
        n_samples=len({item.sample_id for item in open_items}),
        n_read_lexically=n_read,
        texts=dict(read_texts(warehouse, run.run_id, {pick.item.sample_id for pick in picks})),
    )


def record_export(warehouse: Warehouse, export: Export) -> None:
    """Put on record what is asked, and what had been reviewed before."""
    asked = {pick.item.item_hash for pick in export.picks}
    labelled = [
        Pick(item=item, stratum=REVIEWED, probability=1.0) for item in export.reviewed if item.item_hash not in asked
    ]
    picked_at = now_utc()
    rows = [
        {
            "export_id": export.export_id,
            "run_id": export.run.run_id,
            **{name: getattr(pick.item, name) for name in _OF_ITEM},
            "stratum": pick.stratum,
            "probability": pick.probability,
            "asked": pick.item.item_hash in asked,
            "picked_at": picked_at,
        }
        for pick in (*export.picks, *labelled)
    ]
    write_picks(warehouse, export.run.run_id, export.export_id, rows)


def read_asked(warehouse: Warehouse, run: RunRow, export_id: str) -> list[Pick]:
    """What an export on record asks of a run, in the order of asking; a verdict that the run has no more is left out.

    Raises ReviewError for an export that asks nothing of this run.
    """
    rows = [row for row in read_picks(warehouse, [export_id]) if row["asked"] and row["run_id"] == run.run_id]
    if not rows:
        raise ReviewError(f"export {export_id!r} asks nothing of run {run.run_id}")
    items = {item.item_hash: item for item in collect_items(read_items(warehouse, run.run_id, REVIEWED_PROMPTS))}
    return [
        Pick(item=items[row["item_hash"]], stratum=row["stratum"], probability=row["probability"])
        for row in rows
        if row["item_hash"] in items
    ]


def _stand_for_itself(pick: Pick) -> Pick:
    """An item that is asked about again has a label already, and so stands for nothing but itself."""
    return Pick(item=pick.item, stratum=REVIEWED, probability=1.0) if pick.item.is_reviewed else pick


def _list_items(warehouse: Warehouse, run: RunRow, request: ExportRequest) -> list[Item]:
    if run.status == "running":
        raise ReviewError(
            f"run {run.run_id} is not finished; wait for it, or finish it with `evalhouse resume {run.run_id}`"
        )
    refuse_forgotten(warehouse, run, "there is nothing to show a person; name a later run")
    items = collect_items(read_items(warehouse, run.run_id, request.steps or REVIEWED_PROMPTS))
    missing = [step for step in request.steps or () if not any(item.step == step for item in items)]
    if missing:
        raise ReviewError(
            f"run {run.run_id} has no verdict of {', '.join(missing)}; its metrics do not ask for it, or every sample "
            f"failed there (`evalhouse show {run.run_id}`)"
        )
    if not items:
        raise ReviewError(f"run {run.run_id} has no verdict of {', '.join(REVIEWED_PROMPTS)} to review")
    if not request.again and all(item.is_reviewed for item in items):
        raise ReviewError(
            f"all {len(items)} verdicts of run {run.run_id} have been reviewed; --again asks about them once more"
        )
    return items


def _read_lexically(
    warehouse: Warehouse, run: RunRow, request: ExportRequest, items: Sequence[Item], generator: random.Random
) -> tuple[dict[tuple[str, str, str], str], int]:
    """What the lexical judge says, and of how many samples. With a step of its own it cannot disagree."""
    others = [item for item in items if find_judge(run.judge, item.step) != LEXICAL]
    if request.share_random >= 1 or not others:
        return {}, 0
    samples = pick_samples(others, generator)
    texts = read_texts(warehouse, run.run_id, samples)
    statements = read_statements(warehouse, run.run_id, samples)
    steps = sorted({item.step for item in others})
    return label_lexically(texts, statements, steps), len(samples)


def list_rows(export: Export, *, reviewer: str, with_verdicts: bool) -> list[dict[str, Any]]:
    """What is asked, in the order of asking."""
    return [_describe_row(export, pick, reviewer, with_verdicts=with_verdicts) for pick in export.picks]


def write_csv(rows: Iterable[Mapping[str, Any]], names: Iterable[str]) -> bytes:
    """A table with these columns and a byte order mark, without which spreadsheets spoil what is not ASCII; what a
    spreadsheet would take for a formula is kept from being one."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(names))
    writer.writeheader()
    writer.writerows({name: _write_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode("utf-8-sig")


def write_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """JSON Lines."""
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def _describe_row(export: Export, pick: Pick, reviewer: str, *, with_verdicts: bool) -> dict[str, Any]:
    item, sample = pick.item, export.texts[pick.item.sample_id]
    row = {
        "label": None,
        "labels": " or ".join(list_labels(item.step, item.source)),
        "note": None,
        "reviewer": reviewer or None,
        "step": item.step,
        "question": sample["question"],
        "statement": None if item.step == "rank" else item.text,
        "context": item.text if item.step == "rank" else None,
        **_list_against(item.step, item.source, sample),
        "run_id": export.run.run_id,
        "sample_id": item.sample_id,
        "statement_id": item.statement_id,
        "context_rank": item.context_rank,
        "export_id": export.export_id,
        "item_hash": item.item_hash,
    }
    if with_verdicts:
        row |= {"judge_label": item.judge_label, "judge_reason": item.reason}
    return row


def _list_against(step: str, source: str | None, sample: Mapping[str, Any]) -> dict[str, Any]:
    """The texts that the verdict is about, and no other."""
    of_truth = step == "rank" or (step == "classify" and source == "answer")
    return {
        "ground_truth": sample["ground_truth"] if of_truth else None,
        "answer": sample["answer"] if step == "classify" and source == "ground_truth" else None,
        "contexts": sample["contexts"] if step == "attribute" else None,
    }


def _write_cell(value: object) -> object:
    if isinstance(value, list):
        value = "\n\n".join(f"[C{n}] {text}" for n, text in enumerate(value, start=1))
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
