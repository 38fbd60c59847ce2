"""Verdicts as rows of cells, for a prompt that asks so much in one request that the names of keys would be most of its
reply:

    ["A1", "G1", "TP", "C1 C2"]                               a statement: id, evidence, label, support
    ["A2", "G2 says 30 km.", "FP", "none: C1 says 30 km."]
    ["C5", "About another cape.", "not_useful"]               a context: id, evidence, label

Evidence comes before the label that rests on it: a model that does not think before it writes looks for it while it
writes. Ids are evidence enough for a verdict in favour, and are what is on record as its reason; one against is
explained. The last cell names contexts that support the statement, those apart that do so alone ("C1 C2"), those joined
that do so together ("C1+C2"), or "none", and behind a colon a reason. A cell that was not asked for is "-".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

NOT_ASKED: Final = "-"
_LEAST_CELLS, _MOST_CELLS = 3, 4
_NONE = re.compile(r"none\b", re.IGNORECASE)
_ID = r"\[?[A-Z][1-9][0-9]*\]?"
_IDS = re.compile(rf"{_ID}(?:[\s,;+、，；]+{_ID})*", re.ASCII)
_ONE_ID = re.compile(r"[A-Z][1-9][0-9]*", re.ASCII)
_JOINED = re.compile(rf"{_ID}(?:\s*\+\s*{_ID})+", re.ASCII)
_COLON = re.compile("[:：]")

Schema = Mapping[str, Any]
_ROW: Final[Schema] = {"type": "array", "items": {"type": "string"}}


def is_row_schema(verdict: Schema) -> bool:
    """Whether a list of verdicts with items of this schema has rows."""
    return verdict.get("type") == "array"


def find_row_fault(verdict: Schema) -> str | None:
    """What keeps a schema of rows from being one."""
    return None if verdict == _ROW else "must be an array of texts, the cells of a row, where verdicts are rows"


def list_ids(text: str) -> list[str]:
    """The ids in a cell that holds nothing else; none in any other text."""
    return _ONE_ID.findall(text) if _IDS.fullmatch(text.strip()) else []


def unfold_row(cells: Sequence[object]) -> list[dict[str, object]]:
    """The verdicts of a row as objects, as other replies have them: with `label`, and with `contexts` and `together`.

    ValueError: says what keeps the row from being read. What was not asked for gives no verdict.
    """
    texts = [cell.strip() for cell in cells if isinstance(cell, str)]
    if len(texts) < len(cells) or not _LEAST_CELLS <= len(texts) <= _MOST_CELLS:
        raise ValueError(
            f"a row has {_LEAST_CELLS} cells for a context, {_MOST_CELLS} for a statement, all of them texts"
        )
    item_id, evidence, label = texts[:_LEAST_CELLS]
    evidence = "" if evidence == NOT_ASKED else evidence
    verdicts: list[dict[str, object]] = []
    if label != NOT_ASKED:
        verdicts.append({"id": item_id, "reason": ", ".join(list_ids(evidence)) or evidence, "label": label})
    if len(texts) == _MOST_CELLS and texts[-1] != NOT_ASKED:
        verdicts.append({"id": item_id, **_read_support(texts[-1])})
    return verdicts


def word_row(row: Sequence[str], *, in_favour: bool, reasons: Iterator[str]) -> list[str]:
    """The row with ids alone for what is in favour, and the next of these reasons for each verdict against."""
    item_id, _, label = row[:_LEAST_CELLS]
    evidence = ("A1" if item_id.startswith("G") else "G1") if in_favour else next(reasons)
    named = [_split_at_colon(cell)[0] for cell in row[_LEAST_CELLS:]]
    return [item_id, evidence, label, *(f"none: {next(reasons)}" if _NONE.fullmatch(cell) else cell for cell in named)]


def _read_support(cell: str) -> dict[str, object]:
    """No lists where neither ids nor "none" stand there: whoever checks the verdict says so."""
    named, reason = _split_at_colon(cell)
    if _NONE.fullmatch(named):
        return {"reason": reason, "contexts": [], "together": []}
    if not _IDS.fullmatch(named):
        return {"reason": cell, "contexts": None, "together": []}
    joined = [_ONE_ID.findall(group) for group in _JOINED.findall(named)]
    together = joined[0] if joined else []
    alone = _ONE_ID.findall(_JOINED.sub(" ", named))
    return {"reason": reason or ", ".join(alone) or " + ".join(together), "contexts": alone, "together": together}


def name_row(item_id: str, labels: Sequence[str], *, with_label: bool, with_support: bool) -> dict[str, Any]:
    """The schema of the row about one item in the reply to one request."""
    has_support = not item_id.startswith("C")
    cells: list[dict[str, Any]] = [
        {"type": "string", "enum": [item_id]},
        {"type": "string"} if with_label else {"type": "string", "enum": [NOT_ASKED]},
        {"type": "string", "enum": list(labels) if with_label else [NOT_ASKED]},
    ]
    if has_support:
        cells.append({"type": "string"} if with_support else {"type": "string", "enum": [NOT_ASKED]})
    return {"type": "array", "prefixItems": cells, "minItems": len(cells), "maxItems": len(cells)}


def _split_at_colon(cell: str) -> tuple[str, str]:
    """What stands before the first colon, and behind it; without one nothing does."""
    before, *behind = _COLON.split(cell, maxsplit=1)
    return before.strip(), behind[0].strip() if behind else ""
