"""Documents: which were retrieved, which help, which mislead, and which are never useful; and the test sets.

A share counts each sample once, since nights ask the same questions again; its interval is Wilson's. Documents are
sorted by the certain end of that interval, and documents with few samples come last: two of three have a higher end
than four of twelve, and still should not be looked at first.
"""

from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from typing import Annotated, Any, Final, Literal

import numpy as np
import orjson
import polars as pl
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.report.charts import draw_amounts
from evalhouse.flows.results.output import write_share
from evalhouse.flows.ui.pages import PageNumber, find_warehouse, link, render
from evalhouse.flows.ui.pair import mark_changes
from evalhouse.tasks.comparing.intervals import find_share_interval
from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.rows.runs import find_run

router = APIRouter()
MIN_JUDGED: Final = 10
"""A document that was useless ten times of ten may still be useful once in four: 1 - 0.05^(1/10) = 0.26."""
_ROWS: Final = 50
_MAX_NIGHTS: Final = 30
_MAX_SAMPLES: Final = 100
_MAX_VERSIONS: Final = 10
_DRAWN: Final = {
    "n_retrieved": "retrieved for so many samples", "n_useful": "useful in", "n_misleads": "misleads in",
}  # fmt: skip
Show = Literal["all", "misleading", "useless", "missed", "unretrieved"]
Sort = Literal["misleads", "useful", "retrieved", "truth", "missed", "rank", "id"]

SHOWN: Final[Mapping[Show, str]] = {
    "all": "all documents",
    "misleading": "that mislead",
    "useless": "never useful",
    "missed": "referred to, and not always retrieved",
    "unretrieved": "referred to, and never retrieved",
}
_KEPT: Final[Mapping[Show, pl.Expr]] = {
    "all": pl.lit(value=True),
    "misleading": pl.col("n_misleads") > 0,
    "useless": (pl.col("n_useful") == 0) & (pl.col("n_samples_judged") >= MIN_JUDGED),
    "missed": pl.col("n_found") < pl.col("n_referred_to"),
    "unretrieved": (pl.col("n_referred_to") > 0) & (pl.col("n_found") == 0) & (pl.col("n_retrieved") == 0),
}


# Documents with few samples come last: a share is at most 1.
_BY_HARM: Final = pl.col("misleads_low") - pl.when(pl.col("n_samples") >= MIN_JUDGED).then(0).otherwise(2)
_BY_USE: Final = pl.col("useful_high") + pl.when(pl.col("n_samples_judged") >= MIN_JUDGED).then(0).otherwise(2)
_ORDERS: Final[Mapping[Sort, tuple[pl.Expr, bool]]] = {
    "misleads": (_BY_HARM, True),
    "useful": (_BY_USE, False),
    "retrieved": (pl.col("n_retrieved"), True),
    "truth": (pl.col("n_supports_truth"), True),
    "missed": (pl.col("n_referred_to") - pl.col("n_found"), True),
    "rank": (pl.col("median_rank"), False),
    "id": (pl.col("document"), False),
}


@router.get("/runs/{run}/documents")
def show_documents(
    request: Request,
    run: str,
    *,
    runs: Annotated[int, Query(ge=1, le=_MAX_NIGHTS)] = 1,
    words: str = "",
    show: Show = "all",
    sort: Sort = "misleads",
    page: PageNumber = 1,
) -> Response:
    """Show the documents of a run, or of it and the runs before it in its series, a page at a time."""
    warehouse = find_warehouse(request)
    row = find_run(warehouse, run)
    run_ids = list(warehouse.fetch("documents/series", run_id=row.run_id, most=runs)["run_id"])
    uses = add_intervals(warehouse.fetch("documents/uses", run_ids=run_ids, words=words.lower()))
    order, is_descending = _ORDERS[sort]
    found = uses.filter(_KEPT[show]).sort(
        order, pl.col("n_retrieved"), pl.col("document"), descending=[is_descending, True, False], nulls_last=True
    )
    start = (page - 1) * _ROWS
    shown = found.slice(start, _ROWS)
    texts = (
        dict(
            warehouse.fetch("documents/texts", {"document": shown["document"].to_list()}, run_id=row.run_id).iter_rows()
        )
        if len(shown)
        else {}
    )
    given: dict[str, object] = {"runs": runs, "words": words, "show": show, "sort": sort}

    def address(**other: object) -> str:
        return link(f"/runs/{row.run_id}/documents", **{**given, **other})

    return render(
        request,
        "documents.html",
        run=row,
        run_ids=run_ids,
        given=given,
        shown=SHOWN,
        counts={name: uses.filter(kept).height for name, kept in _KEPT.items()},
        rows=[describe_use(use, row.run_id, runs) | {"text": texts.get(use["document"])} for use in shown.to_dicts()],
        n=len(found),
        start=start,
        page=page,
        n_pages=-(-len(found) // _ROWS),
        address=address,
        paged=lambda number: address(page=number),
        least=MIN_JUDGED,
        is_judged=bool(uses["n_judged"].sum()),
    )


@router.get("/runs/{run}/document")
def show_document(
    request: Request,
    run: str,
    *,
    id: str,  # as in the address
    runs: Annotated[int, Query(ge=1, le=_MAX_NIGHTS)] = 1,
) -> Response:
    """Show one document: its use in each sample of the run, and over the nights up to it."""
    warehouse = find_warehouse(request)
    row = find_run(warehouse, run)
    samples = warehouse.fetch_rows("documents/samples", run_id=row.run_id, document=id)
    if not samples:
        raise HTTPException(404, f"no sample of run {row.run_id} has the document {id!r}, or refers to it")
    run_ids = list(warehouse.fetch("documents/series", run_id=row.run_id, most=_MAX_NIGHTS)["run_id"])
    of_document = {"run_ids": run_ids, "document": id, "has_id": not id.startswith("text ")}
    nights = warehouse.fetch_rows("documents/nights", **of_document)
    versions = warehouse.fetch_rows("documents/versions", **of_document)
    # The row of one document, from its samples, as `read_uses` would give it.
    retrieved = [sample for sample in samples if sample["context_ranks"]]
    judged = [sample for sample in retrieved if sample["useful"] is not None]
    ranks = [sample["context_ranks"][0] for sample in retrieved]
    supports = [sample["statement_ids"] or () for sample in retrieved]
    counts = {
        "document": "",
        "n_retrieved": len(retrieved),
        "n_samples": len(retrieved),
        "first_rank": min(ranks, default=None),
        "median_rank": float(np.median(ranks)) if ranks else None,
        "last_rank": max(ranks, default=None),
        "n_judged": len(judged),
        "n_useful": sum(sample["useful"] for sample in judged),
        "n_samples_judged": len(judged),
        "n_supports_truth": sum(any(name.startswith("G") for name in names) for names in supports),
        "n_misleads": sum(bool(sample["false_statements"]) for sample in retrieved),
        "n_referred_to": sum(sample["is_referred_to"] for sample in samples),
        "n_found": sum(sample["is_referred_to"] for sample in retrieved),
    }
    use = add_intervals(pl.DataFrame([counts])).to_dicts()[0]
    # The newest texts, the newest first, each with its differences from the one before it.
    shown = []
    for place in range(len(versions) - 1, max(-1, len(versions) - 1 - _MAX_VERSIONS), -1):
        before = versions[place - 1]["text"] if place else None
        shown.append({**versions[place], "sides": mark_changes(before, versions[place]["text"])})
    return render(
        request,
        "document.html",
        run=row,
        document=id,
        runs=runs,
        use=describe_use(use, row.run_id, runs),
        versions=shown,
        n_versions=len(versions),
        samples=samples[:_MAX_SAMPLES],
        n_samples=len(samples),
        nights=nights,
        charts=[
            {"name": what, "chart": draw_amounts(nights, [night[name] for night in nights], what=what, form="{:g}")}
            for name, what in _DRAWN.items()
            if len(nights) > 1
        ],
    )


def add_intervals(uses: pl.DataFrame) -> pl.DataFrame:
    """Add the ends of the intervals of both shares; NULL where nothing was counted."""
    misled = find_share_interval(*(uses[name].to_numpy() for name in ("n_misleads", "n_retrieved", "n_samples")))
    useful = find_share_interval(*(uses[name].to_numpy() for name in ("n_useful", "n_judged", "n_samples_judged")))
    names = ("misleads_low", "misleads_high", "useful_low", "useful_high")
    return uses.with_columns(
        pl.Series(name, ends).fill_nan(None) for name, ends in zip(names, (*misled, *useful), strict=True)
    )


def describe_use(use: Mapping[str, Any], run_id: str, runs: int) -> dict[str, Any]:
    """Return the use of a document in words."""
    if use["first_rank"] is None:
        ranks = "–"
    elif use["first_rank"] == use["last_rank"]:
        ranks = str(use["first_rank"])
    else:
        ranks = f"{use['first_rank']} to {use['last_rank']}, mostly {use['median_rank']:g}"
    return {
        "document": use["document"],
        "link": link(f"/runs/{run_id}/document", id=use["document"], runs=runs if runs > 1 else None),
        "n_retrieved": use["n_retrieved"],
        "n_samples": use["n_samples"],
        "ranks": ranks,
        "useful": _write_part(use, "n_useful", "n_judged", "useful"),
        "is_few": use["n_samples"] < MIN_JUDGED,
        "is_useless": use["n_useful"] == 0 and use["n_samples_judged"] >= MIN_JUDGED,
        "n_supports_truth": use["n_supports_truth"],
        "misleads": _write_part(use, "n_misleads", "n_retrieved", "misleads"),
        "n_misleads": use["n_misleads"],
        "n_referred_to": use["n_referred_to"],
        "n_missed": use["n_referred_to"] - use["n_found"],
    }


def _write_part(use: Mapping[str, Any], hits: str, counted: str, name: str) -> dict[str, str]:
    """Return the count and the total, and the share's interval in whole per cent."""
    if not use[counted]:
        return {"count": "–", "share": ""}
    low, high = use[f"{name}_low"], use[f"{name}_high"]
    share = f"{write_share(use[hits] / use[counted])} ({100 * low:.0f} to {100 * high:.0f})"
    return {"count": f"{use[hits]:,} of {use[counted]:,}", "share": share}


_FILTERS: Final = ("kind", "language", "reason")
_MAX_ROWS: Final = 500


@router.get("/testsets")
def show_testsets(request: Request) -> Response:
    """Show all test sets, the one that was changed last first."""
    rows = find_warehouse(request).fetch_rows("ui/testsets")
    sets = [(path, list(versions)) for path, versions in groupby(rows, key=lambda row: str(row["path"]))]
    return render(request, "testsets.html", sets=sets)


@router.get("/testsets/{set_hash}")
def show_testset(request: Request, set_hash: str) -> Response:
    """Show questions of a version by the filters of the address, questions that left it, and rejected candidates."""
    for name in request.query_params:
        if name not in _FILTERS:
            raise SettingsError(f"questions cannot be found by {name!r}; {suggest(name, list(_FILTERS))}")
    wanted = {name: request.query_params.get(name) or None for name in _FILTERS}
    warehouse = find_warehouse(request)
    version = next((row for row in warehouse.fetch_rows("ui/testsets") if row["set_hash"] == set_hash), None)
    if version is None:
        raise HTTPException(404, f"unknown version {set_hash!r} of a test set")
    found = {"set_hash": set_hash}
    by_words = found | {"kind": wanted["kind"], "language": wanted["language"]}
    rejected_of = found | {"kind": wanted["kind"], "reason": wanted["reason"]}
    left: list[dict[str, Any]] = warehouse.fetch_rows("ui/testset_left", **found)
    rejected = warehouse.fetch_rows("ui/testset_rejected", **rejected_of)
    questions: list[dict[str, Any]] = warehouse.fetch_rows("ui/testset_questions", **by_words)
    # By filter the values that there are, with how many have them.
    unset: dict[str, object] = {"set_hash": set_hash, "kind": None}
    all_questions = warehouse.fetch_rows("ui/testset_questions", **unset, language=None)
    all_rejected = warehouse.fetch_rows("ui/testset_rejected", **unset, reason=None)
    counts = {
        "kind": Counter(str(row["kind"]) for row in all_questions),
        "language": Counter(str(row["language"]) for row in all_questions),
        "reason": Counter(str(row["reason"]) for row in all_rejected),
    }
    return render(
        request,
        "testset.html",
        version=version,
        wanted=wanted,
        choices={name: {value: f"{value} ({n})" for value, n in sorted(of.items())} for name, of in counts.items()},
        questions=[
            {**row, "spans": orjson.loads(row["spans"]) if row["spans"] else []} for row in questions[:_MAX_ROWS]
        ],
        n_questions=len(questions),
        left=[{**row, "before": orjson.loads(row["before"]) if row["before"] else {}} for row in left],
        rejected=rejected[:_MAX_ROWS],
        n_rejected=len(rejected),
    )
