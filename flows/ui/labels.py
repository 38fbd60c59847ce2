"""A person's labels: taken in one at a time, under the rules of `evalhouse review import`, and how a page offers them.

Nothing is overwritten: another label of the same person for the same verdict is a further row, and the latest counts.
Who labels on a sample's page has chosen the sample and sees the judge's verdict, so such a label has no probability and
no first label; the page of a draw (`show_review`) has both: there what is said goes on record at once.
"""

from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from evalhouse.flows.report.page import pack
from evalhouse.flows.report.review_page import collect_asked
from evalhouse.flows.ui.pages import find_warehouse, link, render
from evalhouse.tasks.reviews.export import read_asked
from evalhouse.tasks.reviews.label_files import ReviewError, list_choices
from evalhouse.tasks.reviews.take_in import take_label
from evalhouse.warehouse.rows.reviews import Review, list_exports, read_answers, read_sample_items, read_texts
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.store import Warehouse

router = APIRouter()
ASKED: Final = {
    "classify answer": "Does the ground truth say this?",
    "classify ground_truth": "Does the answer say this?",
    "attribute": "Do the contexts say this, one alone or several together?",
    "rank": "Does this context help to reach the ground truth?",
}
_LARGEST: Final = 64 * 1024
_FIELDS: Final = (
    "sample_id", "step", "statement_id", "context_rank", "item_hash", "export_id", "label", "first_label",
    "reviewer", "note",
)  # fmt: skip


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form that was sent, without those that are empty; raises HTTPException for one that is too large
    or no form."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST:
            raise HTTPException(413, f"a label with more than {_LARGEST} bytes is not taken; write a shorter note")
    try:
        fields = parse_qsl(body.decode(), strict_parsing=True)
    except ValueError:
        raise HTTPException(400, "this is not a form: send label, reviewer and the verdict it is about") from None
    return {name: value.strip() for name, value in fields if value.strip()}


@router.post("/runs/{run}/labels")
def take(request: Request, run: str, form: Annotated[dict[str, str], Depends(read_form)]) -> Response:
    """Take in a label; answered with what is on record now, or for a form without a script with the page it is on."""
    warehouse = find_warehouse(request)
    values: dict[str, str] = {name: text for name, text in form.items() if name in _FIELDS}
    values["run_id"] = find_run(warehouse, run).run_id
    if "label" not in values:
        raise HTTPException(400, "the label is missing; it is one of those that the page offers")
    try:
        review = take_label(warehouse, values)
    except ReviewError as error:
        raise HTTPException(400, str(error)) from None
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse(_describe(review))
    address = link(
        f"/runs/{review.run_id}/sample", id=review.sample_id, list=form.get("list"), reviewer=review.reviewer
    )
    return RedirectResponse(f"{address}#{name_item(vars(review))}", status_code=303)


def _describe(review: Review) -> dict[str, Any]:
    return {
        "label": review.label,
        "judge_label": review.judge_label,
        "agrees": review.label == review.judge_label,
        "reviewer": review.reviewer,
        "note": review.note,
    }


def list_items(warehouse: Warehouse, run_id: str, sample_id: str, reviewer: str) -> list[dict[str, Any]]:
    """The verdicts of a sample as a person may label them, each with what `reviewer` has said and with the others."""
    return [
        {
            **item,
            "name": name_item(item),
            "target": item["statement_id"] or f"C{item['context_rank']}",
            "asked": ASKED[f"classify {item['source']}" if item["step"] == "classify" else item["step"]],
            "choices": list_choices(item["step"], item["source"]),
            "own": next((said for said in item["labels"] if said["reviewer"] == reviewer), None),
            "others": [said for said in item["labels"] if said["reviewer"] != reviewer],
        }
        for item in read_sample_items(warehouse, run_id, sample_id)
    ]


def name_item(item: dict[str, Any]) -> str:
    """The name of a verdict within its sample's page."""
    return f"{item['step']}-{item['statement_id'] or item['context_rank']}"


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
