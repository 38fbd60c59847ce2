"""Files of verdicts to label, as a spreadsheet or a program takes them: one row per verdict.

The judge's verdict is left out unless it is asked for, since it is easily taken over. A row is known again by
`export_id` and `item_hash`; everything else in it is for whoever labels.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from evalhouse.tasks.reviews.draw import Pick
from evalhouse.tasks.reviews.export import Export
from evalhouse.tasks.reviews.labels import list_labels

_JUDGE = ("judge_label", "judge_reason")
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def list_rows(export: Export, *, reviewer: str, with_verdicts: bool) -> list[dict[str, Any]]:
    """What is asked, in the order of asking."""
    return [_describe(export, pick, reviewer, with_verdicts=with_verdicts) for pick in export.picks]


def write_csv(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """A table with a byte order mark, without which spreadsheets spoil what is not ASCII."""
    rows = list(rows)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows({name: _write_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode("utf-8-sig")


def write_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """JSON Lines."""
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)


def _describe(export: Export, pick: Pick, reviewer: str, *, with_verdicts: bool) -> dict[str, Any]:
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
        row |= dict(zip(_JUDGE, (item.judge_label, item.reason), strict=True))
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
