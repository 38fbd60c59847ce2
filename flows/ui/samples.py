"""The samples of a run as a table: found, sorted and paged by the server, and all of it in the address."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from evalhouse.flows.display.output import write_value
from evalhouse.flows.documents.diagnosis import CAUSES, load_advice
from evalhouse.flows.documents.run_origin import HEADLINE
from evalhouse.flows.report.charts import write_change
from evalhouse.flows.report.head import sort_headline
from evalhouse.flows.ui.pages import find_warehouse, link, render
from evalhouse.flows.ui.wanted import LABELS, METADATA, SORTS, TESTS, VERDICTS, Parameters, Wanted, read_wanted
from evalhouse.warehouse.messages import shorten
from evalhouse.warehouse.rows.found_samples import (
    Scores,
    Search,
    count_labelled,
    find_samples,
    list_run_metrics,
    list_tags,
    read_found,
    read_found_scores,
)
from evalhouse.warehouse.rows.reviews import find_previous
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.store import Warehouse

router = APIRouter()
PAGE: Final = 50
MOST_VALUES: Final = 30
"""Metadata with more values than this are no help in choosing among samples."""
_LONGEST: Final = 300
_MAIN: Final = 5


@dataclass(frozen=True, kw_only=True)
class Found:
    """The samples of a run that an address asks for, in their order."""

    run: RunRow
    wanted: Wanted
    metrics: Mapping[str, bool]
    """By name whether low values are good; those that say most come first."""
    metric: str | None
    base: str | None
    is_descending: bool
    sample_ids: Sequence[str]

    @property
    def columns(self) -> list[str]:
        """The metrics that the table shows: those asked for, else those that say most, and the one it is sorted by."""
        chosen = (
            self.wanted.columns or [name for name in self.metrics if name in HEADLINE] or list(self.metrics)[:_MAIN]
        )
        return [*chosen, *([self.metric] if self.metric and self.metric not in chosen else [])]

    def address(self, kind: str = "", **changes: Any) -> str:  # noqa: ANN401  # fields of Wanted
        """The address of this table, or of another `kind` of it, with something else asked for."""
        parameters = urlencode(replace(self.wanted, **changes).to_parameters())
        return f"{link(f'/runs/{self.run.run_id}/samples{kind}')}{'?' if parameters else ''}{parameters}"


def find(warehouse: Warehouse, run: RunRow, given: Sequence[tuple[str, str]]) -> Found:
    """What the parameters of an address ask for; raises HTTPException 400, in words, for what is not allowed."""
    rows = {str(row["metric"]): row for row in list_run_metrics(warehouse, run)}
    metrics = {name: rows[name]["better"] == "low" for name in sort_headline(sorted(rows))}
    wanted = read_wanted(given, list(metrics), CAUSES)
    scored = (name for name in metrics if rows[name]["n_scored"])
    metric = wanted.metric or next(scored, None)
    base = find_run(warehouse, wanted.base).run_id if wanted.base else find_previous(warehouse, run.run_id)
    _check_base(wanted, base)
    is_worst_high = wanted.sort in ("score", "change") and metrics.get(metric or "", False)
    is_descending = is_worst_high if wanted.descending is None else wanted.descending
    search = Search(
        metric=metric, sort=wanted.sort, descending=is_descending, conditions=wanted.where, cause=wanted.cause,
        verdicts=wanted.verdicts, label=wanted.label, language=wanted.language, tags=wanted.tags,
        words=wanted.words.split(), base=base,
    )  # fmt: skip
    return Found(
        run=run, wanted=wanted, metrics=metrics, metric=metric, base=base, is_descending=is_descending,
        sample_ids=find_samples(warehouse, run, search),
    )  # fmt: skip


def _check_base(wanted: Wanted, base: str | None) -> None:
    if base is None and (wanted.sort == "change" or any(condition.is_change for condition in wanted.where)):
        raise HTTPException(400, "no run of this series is before this one; name a run to count changes from: base=RUN")


@router.get("/runs/{run}/samples")
def show_samples(request: Request, run: str) -> Response:
    """A page of the samples that are looked for."""
    warehouse = find_warehouse(request)
    given = request.query_params.multi_items()
    found = find(warehouse, find_run(warehouse, run), given)
    if given != found.wanted.to_parameters():
        # A form sends what is empty, and its own fields: the address that is passed on says the same in short.
        return RedirectResponse(found.address(), status_code=303)
    n_pages = max(1, -(-len(found.sample_ids) // PAGE))
    if found.wanted.page > n_pages:
        raise HTTPException(400, f"page is {found.wanted.page}; what is found has {n_pages}")
    start = (found.wanted.page - 1) * PAGE
    tags = list_tags(warehouse, found.run, most=MOST_VALUES)
    shown = found.sample_ids[start : start + PAGE]
    return render(
        request, "samples.html", found=found, run=found.run, wanted=found.wanted, n_pages=n_pages, start=start,
        rows=_describe_rows(warehouse, found, shown), causes={cause: load_advice("en")[cause].name for cause in CAUSES},
        tags=tags, metadata=METADATA, sorts=SORTS, tests=TESTS,
        verdicts=VERDICTS, labels=LABELS, metric_names=[(name, name) for name in found.metrics],
        kept=_list_kept(found.wanted, [METADATA + key for key in tags]),
        chips=[(text, found.address(**vars(without))) for text, without in found.wanted.list_filters()],
    )  # fmt: skip


@router.get("/runs/{run}/samples.csv")
def save_samples(request: Request, run: str) -> Response:
    """All samples that are found as a table for a spreadsheet, with all metrics."""
    from evalhouse.tasks.reviews.export import write_csv  # noqa: PLC0415  # imports the lexical judge

    warehouse = find_warehouse(request)
    found = find(warehouse, find_run(warehouse, run), request.query_params.multi_items())
    scores = read_found_scores(warehouse, found.run, found.base, found.sample_ids)
    rows = [_list_cells(row, found, scores) for row in read_found(warehouse, found.run, found.sample_ids)]
    names = {"Content-Disposition": f'attachment; filename="samples-{found.run.run_id}.csv"'}
    return Response(write_csv(rows, _list_cells({}, found, {})), media_type="text/csv; charset=utf-8", headers=names)


def _list_cells(row: Mapping[str, Any], found: Found, scores: Scores) -> dict[str, Any]:
    """The cells of a row by their columns."""
    held = {name: scores.get((row.get("sample_id", ""), name), {}) for name in found.metrics}
    texts = {name: row.get(name) for name in ("sample_id", "question", "answer", "ground_truth", "metadata", "cause")}
    counts = {name: row.get(f"n_{name}") for name in ("tp", "fp", "fn", "unsupported")}
    changes = {f"change.{name}": score.get("change") for name, score in held.items()} if found.base else {}
    return {**texts, **counts, **{name: score.get("value") for name, score in held.items()}, **changes}


def _list_kept(wanted: Wanted, fields: Collection[str]) -> Parameters:
    """What a form holds beside its fields: tests and verdicts that are set already, the base, and metadata that has
    no field."""
    return [
        pair
        for pair in wanted.to_parameters()
        if pair[0] in ("where", "verdict", "base") or (pair[0].startswith(METADATA) and pair[0] not in fields)
    ]


def _describe_rows(warehouse: Warehouse, found: Found, shown: Sequence[str]) -> list[dict[str, Any]]:
    scores = read_found_scores(warehouse, found.run, found.base, shown)
    labelled = count_labelled(warehouse, found.run, shown)
    came_from = urlencode(found.wanted.to_parameters())
    return [
        {
            **row,
            "link": link(f"/runs/{found.run.run_id}/sample", id=row["sample_id"], list=came_from),
            "n_labels": labelled.get(row["sample_id"], 0),
            "answer": shorten(row["answer"], _LONGEST) if row["answer"] else None,
            "cells": [
                _describe_score(scores.get((row["sample_id"], name)), found.metrics[name]) for name in found.columns
            ],
        }
        for row in read_found(warehouse, found.run, shown)
    ]


def _describe_score(score: Mapping[str, Any] | None, is_low_good: bool) -> dict[str, Any]:
    if score is None:
        return {"value": "–", "reason": "not scored yet", "change": None, "tone": ""}
    change = score["change"]
    gain = (change or 0) * (-1 if is_low_good else 1)
    return {
        "value": write_value(score["value"]),
        "reason": score["unscored_reason"],
        "change": write_change(change) if change else None,
        "tone": "better" if gain > 0 else "worse" if gain < 0 else "",
    }
