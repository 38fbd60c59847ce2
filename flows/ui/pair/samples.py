"""Samples of two runs: those whose scores moved, the furthest first, those of one run alone, and one in both."""

from typing import Annotated, Any, Final, Literal

import polars as pl
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from evalhouse.flows.report.head import sort_headline
from evalhouse.flows.ui.pages import check_choice, link, render
from evalhouse.flows.ui.pair.kept import compare_kept, find_pair
from evalhouse.flows.ui.pair.page import describe_moved
from evalhouse.tasks.comparing.runs import rank_samples
from evalhouse.warehouse.rows.run_pairs import RunPair

router = APIRouter()
_ROWS: Final = 25
_TITLES: Final = {
    "moved": "Samples that moved",
    "base": "Samples only in the base",
    "candidate": "Samples only in the candidate",
}


@router.get("/compare/samples")
def show_samples(
    request: Request,
    base: str,
    candidate: str,
    *,
    which: Literal["moved", "base", "candidate"] = "moved",
    by: str = "",
    page: Annotated[int, Query(ge=1)] = 1,
) -> Response:
    """The samples with another score, or those that one run alone has, so many at a time."""
    pair = find_pair(request, base, candidate)
    comparison = compare_kept(request, pair).comparison
    names = sort_headline([compared.metric for compared in comparison.metrics])
    check_choice("by", by, names)
    ranked = rank_samples(comparison.moves, by or None) if which == "moved" else _list_alone(pair, which)
    start = (page - 1) * _ROWS
    shown = ranked[start : start + _ROWS]
    given = {"base": base, "candidate": candidate, "which": which, "by": by}
    return render(
        request,
        "pair_samples.html",
        pair=pair,
        given=given,
        title=_TITLES[which],
        titles=_TITLES,
        choices={name: name for name in names},
        samples=describe_moved(pair, comparison, shown) if which == "moved" else _describe_alone(pair, which, shown),
        n=len(ranked),
        start=start,
        page=page,
        n_pages=-(-len(ranked) // _ROWS),
        address=lambda number: link("/compare/samples", **given, page=number),
    )


def _list_alone(pair: RunPair, side: str) -> list[str]:
    samples = pair.read_samples()
    other = "candidate" if side == "base" else "base"
    return list(samples.filter(pl.col(f"in_{side}") & ~pl.col(f"in_{other}"))["sample_id"])


def _describe_alone(pair: RunPair, side: str, sample_ids: list[str]) -> list[dict[str, Any]]:
    """These samples with their questions, each with the address of its page in its run."""
    run = pair.base if side == "base" else pair.candidate
    questions = {row["sample_id"]: row["question"] for row in pair.read_texts(sample_ids).to_dicts()}
    return [
        {
            "sample_id": sample_id,
            "question": questions.get(sample_id),
            "link": link(f"/runs/{run.run_id}/sample", id=sample_id),
        }
        for sample_id in sample_ids
    ]
