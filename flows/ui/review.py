"""Draws of a run to label: those on record, and one worked through on the page that `evalhouse review export` writes
too, with the difference that what is said goes on record at once."""

from typing import Any

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response

from evalhouse.flows.report.page import pack
from evalhouse.flows.report.review_page import collect_asked
from evalhouse.flows.ui.pages import find_warehouse, link, render
from evalhouse.tasks.reviews.export import read_asked
from evalhouse.tasks.reviews.label_files import ReviewError
from evalhouse.warehouse.rows.reviews import list_exports, read_answers, read_texts
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.store import Warehouse

router = APIRouter()


@router.get("/runs/{run}/review")
def show_review(request: Request, run: str, export: str = "", reviewer: str = "") -> Response:
    """The draws of a run, or one to work through by `reviewer`."""
    warehouse = find_warehouse(request)
    row = find_run(warehouse, run)
    if not export:
        return render(request, "reviews.html", run=row, exports=list_exports(warehouse, row.run_id))
    try:
        data = _collect(warehouse, row, export, reviewer.strip())
    except ReviewError as error:
        raise HTTPException(404, str(error)) from None
    return render(
        request, "review_draw.html", run=row, export_id=export, reviewer=reviewer.strip(), n=len(data["items"]),
        packed=pack(data), is_sent=True, about="verdicts",
    )  # fmt: skip


def _collect(warehouse: Warehouse, run: RunRow, export_id: str, reviewer: str) -> dict[str, Any]:
    """What the script reads: as in the file, with what the reviewer has said before and where to send what is said."""
    picks = read_asked(warehouse, run, export_id)
    texts = read_texts(warehouse, run.run_id, {pick.item.sample_id for pick in picks})
    data = collect_asked(export_id, run.run_id, picks, texts)
    said = read_answers(warehouse, export_id, reviewer)
    items = [{**item, "own": said.get(item["item_hash"])} for item in data["items"]]
    return {**data, "items": items, "reviewer": reviewer, "address": link(f"/runs/{run.run_id}/labels")}
