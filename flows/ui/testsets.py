"""Test sets: every version by the file it was written to, and the questions of one with what was turned down for it."""

from collections import Counter
from itertools import groupby
from typing import Any, Final

import orjson
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.ui.pages import find_warehouse, render
from evalhouse.warehouse.names import suggest
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

router = APIRouter()
_FILTERS: Final = ("kind", "language", "reason")
_MOST: Final = 500


@router.get("/testsets")
def show_testsets(request: Request) -> Response:
    """All sets on record, the one that was changed last first."""
    rows = find_warehouse(request).read_rows(read_query("ui/testsets"))
    sets = [(path, list(versions)) for path, versions in groupby(rows, key=lambda row: str(row["path"]))]
    return render(request, "testsets.html", sets=sets)


@router.get("/testsets/{set_hash}")
def show_testset(request: Request, set_hash: str) -> Response:
    """The questions of a version that the address asks for, what left it, and candidates that were turned down."""
    for name in request.query_params:
        if name not in _FILTERS:
            raise SettingsError(f"questions cannot be found by {name!r}; {suggest(name, list(_FILTERS))}")
    wanted = {name: request.query_params.get(name) or None for name in _FILTERS}
    warehouse = find_warehouse(request)
    version = next((row for row in warehouse.read_rows(read_query("ui/testsets")) if row["set_hash"] == set_hash), None)
    if version is None:
        raise HTTPException(404, f"no version {set_hash!r} of a test set is on record")
    found = {"set_hash": set_hash}
    by_words = found | {"kind": wanted["kind"], "language": wanted["language"]}
    rejected_of = found | {"kind": wanted["kind"], "reason": wanted["reason"]}
    left = warehouse.read_rows(read_query("ui/testset_left"), found)
    rejected = warehouse.read_rows(read_query("ui/testset_rejected"), rejected_of)
    questions = warehouse.read_rows(read_query("ui/testset_questions"), by_words)
    return render(
        request,
        "testset.html",
        version=version,
        wanted=wanted,
        choices=_read_choices(warehouse, set_hash),
        questions=[{**row, "spans": _read_json(row["spans"]) or []} for row in questions[:_MOST]],
        n_questions=len(questions),
        left=[{**row, "before": _read_json(row["before"]) or {}} for row in left],
        rejected=rejected[:_MOST],
        n_rejected=len(rejected),
    )


def _read_choices(warehouse: Warehouse, set_hash: str) -> dict[str, dict[str, str]]:
    """By filter the values that there are, with how many have them."""
    unset: dict[str, object] = {"set_hash": set_hash, "kind": None}
    questions = warehouse.read_rows(read_query("ui/testset_questions"), {**unset, "language": None})
    rejected = warehouse.read_rows(read_query("ui/testset_rejected"), {**unset, "reason": None})
    counts = {
        "kind": Counter(str(row["kind"]) for row in questions),
        "language": Counter(str(row["language"]) for row in questions),
        "reason": Counter(str(row["reason"]) for row in rejected),
    }
    return {name: {value: f"{value} ({n})" for value, n in sorted(of.items())} for name, of in counts.items()}


def _read_json(text: object) -> Any:  # noqa: ANN401  # whatever the row has
    return orjson.loads(str(text)) if text else None
