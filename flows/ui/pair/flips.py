"""Verdicts of two runs on the same thing that are not the same: found by step, way, metric and what had changed."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import polars as pl
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from evalhouse.flows.documents.comparison import name_part
from evalhouse.flows.ui.pages import check_choice, link, render
from evalhouse.flows.ui.pair.kept import find_pair, list_flips_kept
from evalhouse.tasks.comparing.verdict_flips import WAYS
from evalhouse.tasks.pipeline.step_inputs import find_graded
from evalhouse.warehouse.rows.run_pairs import RunPair

router = APIRouter()
_PATH: Final = "/compare/verdicts"
_ROWS: Final = 25
_REASONS: Final = {"classify": "label_reason", "attribute": "support_reason"}


@router.get(_PATH)
def show_flips(
    request: Request,
    base: str,
    candidate: str,
    *,
    step: str = "",
    way: str = "",
    metric: str = "",
    around: str = "",
    page: Annotated[int, Query(ge=1)] = 1,
) -> Response:
    """The verdicts that fit all that is given, so many at a time; a table above counts them by step and way."""
    pair = find_pair(request, base, candidate)
    flips = list_flips_kept(request, pair)
    metrics = _list_metric_steps(pair, flips)
    check_choice("metric", metric, metrics)
    given = {"base": base, "candidate": candidate, "metric": metric, "around": around}
    counted = _filter(flips, steps=metrics.get(metric) if metric else None, around=around)
    found = _filter(counted, steps=frozenset([step]) if step else None, way=way)
    shown = found.slice((page - 1) * _ROWS, _ROWS)
    return render(
        request,
        "pair_flips.html",
        pair=pair,
        given={**given, "step": step, "way": way},
        counts=_count(counted, given),
        n_all=len(flips),
        n=len(found),
        rows=_describe(pair, shown, given),
        start=(page - 1) * _ROWS,
        page=page,
        n_pages=-(-len(found) // _ROWS),
        address=lambda number: link(_PATH, **given, step=step, way=way, page=number),
        choices={
            "step": {name: name.replace("_", " ") for name in sorted(flips["step"].unique())},
            "way": {name: name for name in WAYS},
            "metric": {name: name for name in sorted(metrics)},
            "around": {name: name_part(name) for name in sorted(flips["around"].unique())},
        },
    )


def _list_metric_steps(pair: RunPair, flips: pl.DataFrame) -> dict[str, frozenset[str]]:
    """By metric of either run the steps it rests on, where one of them has a verdict that flipped."""
    there = frozenset(flips["step"].unique())
    steps = find_graded(pair.read_rubrics()) | pair.read_metric_steps()
    wanted = {*pair.base.metrics, *pair.candidate.metrics}
    return {name: of_metric for name, of_metric in steps.items() if name in wanted and of_metric & there}


def _filter(
    flips: pl.DataFrame, *, steps: frozenset[str] | None = None, way: str = "", around: str = ""
) -> pl.DataFrame:
    if steps is not None:
        flips = flips.filter(pl.col("step").is_in(list(steps)))
    for column, value in (("way", way), ("around", around)):
        if value:
            flips = flips.filter(pl.col(column) == value)
    return flips


def _count(flips: pl.DataFrame, given: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row per step: how many came to be worse and better, each with the address of just these."""
    counts = {(step, way): n for step, way, n in flips.group_by("step", "way").len().sort("step", "way").iter_rows()}
    return [
        {
            "step": step.replace("_", " "),
            "ways": [
                {"way": way, "n": counts.get((step, way), 0), "link": link(_PATH, **given, step=step, way=way)}
                for way in WAYS
            ],
        }
        for step in dict.fromkeys(step for step, _ in counts)
    ]


def _describe(pair: RunPair, shown: pl.DataFrame, given: Mapping[str, str]) -> list[dict[str, Any]]:
    """What was judged, with both verdicts and their reasons."""
    items = _read_items(pair, shown["sample_id"].unique().to_list()) if len(shown) else {}
    rows = []
    for row in shown.to_dicts():
        sides = {
            side: items.get((side == "candidate", row["sample_id"], row["source"], row[f"{side}_id"]), {})
            for side in ("base", "candidate")
        }
        reason = _REASONS.get(row["step"].partition("_")[0], "reason")
        rows.append(
            row
            | {
                "text": sides["candidate"].get("text"),
                "step": row["step"].replace("_", " "),
                "around": name_part(row["around"]),
                "sides": [
                    {"name": side, "verdict": row[side], "id": row[f"{side}_id"], "reason": item.get(reason)}
                    for side, item in sides.items()
                ],
                "link": link("/compare/sample", base=given["base"], candidate=given["candidate"], id=row["sample_id"]),
            }
        )
    return rows


def _read_items(pair: RunPair, sample_ids: list[str]) -> dict[tuple[bool, str, str, str], Mapping[str, Any]]:
    """What these samples have been judged by, by run, sample, source and name: statements, contexts and ratings."""
    named = [
        *((row["source"], row["statement_id"], row) for row in pair.read_statements(sample_ids).to_dicts()),
        *(("context", str(row["context_rank"]), row) for row in pair.read_contexts(sample_ids).to_dicts()),
        *(("rating", row["text"], row) for row in pair.read_grades(sample_ids).to_dicts()),
    ]
    return {(row["of_candidate"], row["sample_id"], source, name): row for source, name, row in named}
