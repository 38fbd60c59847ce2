"""The page of a comparison: of two runs (`pair`), or of up to ten side by side, each against the first one.

The numbers are the same as in `evalhouse compare A B C`; below them are the samples with the answers of all runs.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

import polars as pl
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from evalhouse.flows.results.comparison import write_difference, write_p
from evalhouse.flows.results.output import write_interval, write_value
from evalhouse.flows.results.variants import FOUND, describe_variants, pick_headline_metrics
from evalhouse.flows.ui.pages import PageNumber, check_choice, find_warehouse, link, render, use_cached
from evalhouse.flows.ui.pair import describe_form, describe_side, mark_changes, show_pair
from evalhouse.tasks.comparing.runs import ComparisonError, ComparisonSettings
from evalhouse.tasks.comparing.variants import VariantComparison, compare_variants
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, list_runs, pick_run

router = APIRouter()
_ROWS: Final = 10
_MAX_CHOICES: Final = 8


@router.get("/compare")
def show_compared(
    request: Request,
    *,
    runs: Annotated[Sequence[str], Query()] = (),
    base: str = "",
    candidate: str = "",
    by: str = "",
    column: str = "",
    differ: bool = False,
    page: PageNumber = 1,
) -> Response:
    """Show two runs, or all in `runs`, repeated or with commas between, each by any name that the commands take."""
    names = [name.strip() for names in runs for name in names.split(",") if name.strip()]
    if not names:
        return show_pair(request, base=base, candidate=candidate, by=by)
    stored = list_runs(find_warehouse(request))
    choices = describe_form(stored, "", "")["choices"][:_MAX_CHOICES]
    given = {"runs": ",".join(names), "column": column, "by": by, "differ": "true" if differ else ""}
    try:
        picked = [pick_run(stored, name) for name in names]
        if len(picked) == 1:
            return show_pair(request, base=base or picked[0].run_id, candidate=candidate, by=by)
        comparison, document = _compare_cached(request, picked, column)
    except (WarehouseError, ComparisonError) as error:
        return render(request, "variants.html", 404, given=given, choices=choices, problem=str(error), document=None)
    check_choice("by", by, comparison.scores)
    ranked = [sample_id for sample_id, distance in comparison.rank_samples(by or None) if distance or not differ]
    start = (page - 1) * _ROWS
    first = comparison.runs[0].run_id
    return render(
        request,
        "variants.html",
        given=given,
        choices=choices,
        problem=None,
        document=document,
        runs=[
            {**run, "link": link(f"/runs/{run['run_id']}"),
             "pair": link("/compare", base=first, candidate=run["run_id"]) if run["run_id"] != first else None}
            for run in document["runs"]
        ],
        tables=_lay_out(document),
        by_choices={of["metric"]: of["metric"] for of in document["metrics"]},
        samples=_describe_samples(request, comparison, ranked[start : start + _ROWS], by),
        n=len(ranked),
        start=start,
        page=page,
        n_pages=-(-len(ranked) // _ROWS),
        address=lambda number: link("/compare", **given, page=number),
    )  # fmt: skip


def _compare_cached(request: Request, runs: Sequence[RunRow], column: str) -> tuple[VariantComparison, dict[str, Any]]:
    """Return the comparison as `evalhouse compare` makes it, and its document without samples."""
    warehouse = find_warehouse(request)
    settings = ComparisonSettings(metrics=pick_headline_metrics(runs))

    def compare() -> tuple[VariantComparison, dict[str, Any]]:
        comparison = compare_variants(warehouse, runs, settings, by=column or None)
        return comparison, describe_variants(comparison, settings, top=0)

    state = None
    if all(run.status != "running" for run in runs):
        state = tuple(RunPair(warehouse, runs[0], run).fetch_state() for run in runs[1:])
    return use_cached(request, ("variants", column, *(run.run_id for run in runs)), state, compare)


def _lay_out(document: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return by title the rows of the scores, and of the slices in which a run is better or worse."""
    tables: dict[str, list[dict[str, Any]]] = {"": []}
    for of in (*document["metrics"], *document["by"]):
        if "slice" in of and not any(run.get("verdict") in FOUND for run in of["runs"]):
            continue
        cells = [{"name": run["name"], "mean": write_value(run["mean"]), "n": run["n_scored"]} for run in of["runs"]]
        for cell, run in zip(cells[1:], of["runs"][1:], strict=True):
            cell |= {"difference": write_difference(run["difference"]), "verdict": run["verdict"],
                     "interval": write_interval(run["ci_low"], run["ci_high"]), "p": write_p(run["p_adjusted"]),
                     "n": run["n_common"], "first": write_value(run["common_first"])}  # fmt: skip
        title = f"{of['by']}: {of['slice']}" if "slice" in of else ""
        tables.setdefault(title, []).append({"metric": of["metric"], "is_low": of["better"] == "low", "cells": cells})
    return tables


def _describe_samples(
    request: Request, comparison: VariantComparison, sample_ids: Sequence[str], by: str
) -> list[dict[str, Any]]:
    """Return these samples with the answer, the scores and the verdicts of each run, side by side."""
    warehouse = find_warehouse(request)
    places = {sample_id: place for place, sample_id in enumerate(comparison.sample_ids)}
    shown = [by] if by else list(comparison.scores)
    sides: dict[str, list[dict[str, Any]]] = {sample_id: [] for sample_id in sample_ids}
    questions: dict[str, str | None] = {}
    firsts: dict[str, str | None] = {}
    for number, (run, name) in enumerate(zip(comparison.runs, comparison.names, strict=True)):
        alone = RunPair(warehouse, run, run)  # all rows of this run, once
        texts = {row["sample_id"]: row for row in alone.fetch("texts", {"sample_id": sample_ids}).to_dicts()}
        # The statements of the answer, and the statements of the ground truth that it left out.
        is_shown = (pl.col("source") == "answer") | (pl.col("label") == "FN")
        statements = alone.fetch_statements(sample_ids).filter(is_shown)
        statements = statements.unique(["sample_id", "statement_id"], maintain_order=True)
        by_sample = statements.partition_by("sample_id", as_dict=True)
        for sample_id in sample_ids:
            text = texts.get(sample_id)
            answer: str | None = text["answer"] if text else None
            if number == 0:
                questions[sample_id], firsts[sample_id] = text["question"] if text else None, answer
            rows = by_sample[(sample_id,)].to_dicts() if (sample_id,) in by_sample else []
            values = {metric: float(comparison.scores[metric][places[sample_id], number]) for metric in shown}
            sides[sample_id].append(
                {
                    "name": name,
                    "is_there": text is not None,
                    "answer": mark_changes(firsts[sample_id], answer).candidate if text else None,
                    "scores": {name: write_value(value) for name, value in values.items() if not math.isnan(value)},
                    "statements": [{"text": row["text"], **describe_side("answer", row)} for row in rows],
                    "link": link(f"/runs/{run.run_id}/sample", id=sample_id),
                }
            )
    return [
        {"sample_id": sample_id, "question": questions[sample_id], "runs": of_runs}
        for sample_id, of_runs in sides.items()
    ]
