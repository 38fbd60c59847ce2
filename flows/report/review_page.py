"""The page on which a person labels verdicts: one HTML file that works offline and keeps what was said in the browser.

The same care as for a report (`report_page`), whose head, looks and policy it shares: texts come packed and become
nodes and texts, never markup, and the page can load and send nothing. What leaves it is the file that a person
downloads. The judge's verdicts are in the page, packed with the rest, and each is shown once the person has decided.
"""

import base64
import csv
import gzip
import io
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import orjson
from markupsafe import Markup

from evalhouse.flows.display.output import clean_text
from evalhouse.flows.report.page import read_style, write_policy
from evalhouse.tasks.reviews.draw import Pick
from evalhouse.tasks.reviews.export import Export
from evalhouse.tasks.reviews.labels import list_choices, list_labels

_JUDGE = ("judge_label", "judge_reason")
# A spreadsheet takes a cell that begins so for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_ASSETS = Path(__file__).with_name("review_assets")
_SHARED = Path(__file__).with_name("assets")
_SCRIPTS = (_SHARED / "data.js", _ASSETS / "answers.js", _ASSETS / "items.js", _ASSETS / "review.js")


def build_review_page(export: Export, reviewer: str) -> str:
    """The page as text; `reviewer` is the name it begins with, empty for none."""
    style, script = read_style() + _read(_ASSETS / "review.css"), _read_scripts()
    return _load_template().render(
        policy=write_policy(script=script, style=style),
        style=Markup(style),
        script=Markup(script),
        title=f"Review of {export.run.label or export.run.dataset or 'a run'}",
        run_id=export.run.run_id,
        n=len(export.picks),
        reviewer=reviewer,
        packed=_pack(_collect(export)),
    )


def _collect(export: Export) -> dict[str, Any]:
    """What the script reads: texts once a sample, and the items in the order of asking."""
    sample_ids = list(dict.fromkeys(pick.item.sample_id for pick in export.picks))
    places = {sample_id: place for place, sample_id in enumerate(sample_ids)}
    names = ("question", "answer", "ground_truth", "contexts")
    return {
        "export_id": export.export_id,
        "run_id": export.run.run_id,
        "samples": [{name: export.texts[sample_id][name] for name in names} for sample_id in sample_ids],
        "items": [_describe(pick, places[pick.item.sample_id]) for pick in export.picks],
    }


def _describe(pick: Pick, place: int) -> dict[str, Any]:
    item = pick.item
    return {
        "item_hash": item.item_hash,
        "sample": place,
        "sample_id": item.sample_id,
        "step": item.step,
        "statement_id": item.statement_id,
        "context_rank": item.context_rank,
        "source": item.source,
        "text": item.text,
        "choices": list_choices(item.step, item.source),
        "judge_label": item.judge_label,
        "reason": item.reason,
    }


def _pack(value: object) -> Markup:
    # The letters of base64 cannot end an element.
    return Markup(base64.b64encode(gzip.compress(orjson.dumps(value), compresslevel=9, mtime=0)).decode())


@cache
def _load_template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_ASSETS, _SHARED]), autoescape=True, undefined=jinja2.StrictUndefined,
        finalize=lambda value: clean_text(value) if type(value) is str else value, trim_blocks=True,
    )  # fmt: skip
    return environment.get_template("review.html")


@cache
def _read_scripts() -> str:
    return "".join(_read(path) for path in _SCRIPTS)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def list_rows(export: Export, *, reviewer: str, with_verdicts: bool) -> list[dict[str, Any]]:
    """What is asked, in the order of asking."""
    return [_describe_row(export, pick, reviewer, with_verdicts=with_verdicts) for pick in export.picks]


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
