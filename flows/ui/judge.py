"""The judge of a series: its agreement with people and with itself, its changes, and the labels that people give it.

The page shows the newest runs, and its sections are cached until a run, a noise run or a label changes.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from math import sqrt
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

import numpy as np
import polars as pl
from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response

from evalhouse.flows.report.charts import draw_amounts
from evalhouse.flows.report.page import collect_verdicts, pack
from evalhouse.flows.report.sections import show_jury
from evalhouse.flows.results.output import write_share
from evalhouse.flows.results.run_facts import FIRST, sort_first
from evalhouse.flows.ui.pages import check_choice, find_warehouse, link, render, use_cached
from evalhouse.tasks.comparing.agreement import MEASURES, describe_agreement
from evalhouse.tasks.comparing.intervals import find_share_interval
from evalhouse.tasks.comparing.noise import Noise, find_floor, has_noise, pool_noise, sum_squares
from evalhouse.tasks.reviews.export import read_asked
from evalhouse.tasks.reviews.labels import ReviewError, list_choices, take_label
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.reviews import fetch_reviewed, fetch_texts, remove_answer
from evalhouse.warehouse.rows.runs import find_run, list_runs
from evalhouse.warehouse.store import Warehouse

router = APIRouter()
_RUNS: Final = 30
_REVIEWED: Final = 10
"""Newest runs whose labels are counted, and whose verdicts are compared with the run before."""
_POOLED: Final = 10
_YARDSTICKS: Final = {
    "judge": "judge", "embeddings": "embeddings", "language": "language of the prompts", "plan": "way of asking",
    "votes": "votes on a verdict",
}  # fmt: skip
_Z: Final = 1.96
_MIN_MOVED: Final = 10
_MIN_SHOWN: Final = 0.00005
Row = Mapping[str, Any]


@router.get("/judge")
def show_judge(request: Request, series: str = "") -> Response:
    """Show the judge of one series, the newest where none is named."""
    warehouse = find_warehouse(request)
    names = [str(row["series"]) for row in warehouse.fetch_rows("ui/series")]
    check_choice("series", series, names)
    chosen = series or next(iter(names), "")
    sections: dict[str, Any] = {}
    if chosen:
        # It changes whenever anything that this page shows may change.
        state = str(warehouse.fetch_rows("judge/state")[0]["state"])
        sections = use_cached(request, ("judge", chosen), state, partial(_describe_judge, warehouse, chosen))
    return render(request, "judge.html", series=chosen, names={name: name for name in names}, **sections)


def _describe_judge(warehouse: Warehouse, series: str) -> dict[str, Any]:
    """Return the sections of the page."""
    runs: Sequence[Row] = warehouse.fetch_rows("judge/runs", series=series, most=_RUNS)
    # The changes of the judge, its model and its prompts from run to run, the newest first.
    asked: dict[str, dict[str, Row]] = {row["run_id"]: {} for row in runs}
    for row in warehouse.fetch("judge/asked", {"run_id": asked}).to_dicts():
        asked[row["run_id"]][row["step"]] = row
    changes: list[Row] = []
    for now, before in pairwise(runs):
        found = [
            {"what": what, "before": before[name], "now": now[name]}
            for name, what in _YARDSTICKS.items()
            if now[name] != before[name]
        ]
        # Prompts and models of the steps that both runs asked; a run that reused all replies asked no model.
        for step, answered in asked[now["run_id"]].items():
            earlier = asked[before["run_id"]].get(step, {})
            for name, what in (("prompts", "prompt"), ("models", "model that answered")):
                if answered[name] and earlier.get(name) and answered[name] != earlier[name]:
                    of_step = f"{what} of {step.replace('_', ' ')}"
                    found.append({"what": of_step, "before": earlier[name], "now": answered[name]})
        if found:
            changes.append({"run_id": now["run_id"], "started_at": now["started_at"], "changes": found})
    # How verdicts moved since the run before on unchanged texts, with the 95 % interval of the move.
    moves: list[Row] = []
    run_ids = [row["run_id"] for row in runs[: _REVIEWED + 1]]
    if len(run_ids) > 1:
        # Each run beside the one after it in the list, newest first.
        pairs = pl.DataFrame({"run_id": run_ids[:-1], "previous_run_id": run_ids[1:]})
        frames = {"pairs": pairs, "listed": pl.DataFrame({"run_id": run_ids})}
        moved = warehouse.read(read_query("judge/moves"), frames=frames)
        for row in moved.to_dicts():
            # In percentage points, with the normal interval of the mean of the samples' moves; without an interval if
            # so few samples moved that it would be wrong.
            move = "±0.00" if abs(row["difference"]) < _MIN_SHOWN else f"{100 * row['difference']:+.2f}"
            is_clear = False
            if row["n_otherwise"] >= _MIN_MOVED:
                width = _Z * row["deviation"] / sqrt(row["n_samples"])
                low, high = row["difference"] - width, row["difference"] + width
                move += f" ({100 * low:+.2f} to {100 * high:+.2f})"
                is_clear = low > 0 or high < 0
            shares = {name: write_share(row[name]) for name in ("before", "now")}
            moves.append({**row, **shares, "move": move, "is_clear": is_clear})
    # How often votes differed, by step of the newest run and as charts over all runs.
    votes: dict[str, Any] | None = None
    voted = [run.run_id for run in list_runs(warehouse) if run.run_id in asked and run.takes_votes]
    rows = warehouse.fetch("judge/votes", {"run_id": voted}).to_dicts() if voted else []
    if rows:
        by_step: dict[str, list[Row]] = {}
        for row in rows:
            by_step.setdefault(row["step"], []).append(row)
        newest = rows[-1]["run_id"]
        votes = {
            "run_id": newest,
            "jury": show_jury(warehouse, find_run(warehouse, newest)),
            "steps": [
                {**row, "flipped": write_share(row["flip_rate"]), "against": write_share(row["against_rate"])}
                for row in rows
                if row["run_id"] == newest
            ],
            "charts": [
                {
                    "name": f"{step}: verdicts whose votes differed",
                    "chart": draw_amounts(of_step, [row["flip_rate"] for row in of_step], what=step, form="{:.1%}"),
                }
                for step, of_step in by_step.items()
                if len(of_step) > 1
            ],
        }
    return {
        "runs": runs,
        "newest": runs[0] if runs else None,
        "has_noise": bool(runs) and has_noise(runs[0]["judge"], runs[0]["embeddings"]),
        "agreement": _describe_agreement(warehouse, series),
        "noise": _describe_noise(warehouse, series),
        "changes": changes,
        "moves": moves,
        "votes": votes,
    }


def _describe_agreement(warehouse: Warehouse, series: str) -> dict[str, Any] | None:
    """Return how far judge and people agree in the reviewed runs; `by_run` is over time."""
    of_series = {"series": series, "most": _REVIEWED}
    run_ids: list[str] = warehouse.fetch("judge/reviewed_runs", **of_series)["run_id"].to_list()
    reviewed = fetch_reviewed(warehouse, run_ids)
    if reviewed.is_empty():
        return None
    groupings = [by for by in ("step", "judge", "language") if by == "step" or reviewed[by].n_unique() > 1]
    document = describe_agreement(reviewed, groupings)
    groups = []
    for row in document["judge"]:
        measures = []  # each a figure and its interval, separately
        for measure in (row[name] for name in MEASURES):
            has_interval = measure["value"] is not None and measure["ci_low"] is not None
            measures.append(
                {
                    "value": "–" if measure["value"] is None else f"{measure['value']:.2f}",
                    "interval": f"{measure['ci_low']:.2f} to {measure['ci_high']:.2f}" if has_interval else "",
                }
            )
        groups.append(
            {
                "step": row["step"],
                "of": "all" if row["by"] == "step" else f"{row['by']} {row['value'] or 'none'}",
                "n": row["n_verdicts"],
                "n_samples": row["n_samples"],
                "measures": measures,
                "notes": "; ".join(row["notes"]),
                "confusion": row["confusion"] if row["by"] == "step" else None,
            }
        )
    # By run and step how many labels agree with the judge; the newest run first.
    rows = (
        reviewed.group_by("run_id", "step")
        .agg(
            n=pl.len(),
            n_agreeing=(pl.col("label") == pl.col("judge_label")).sum(),
            n_samples=pl.col("sample_id").n_unique(),
        )
        .sort("run_id", "step", descending=[True, False])
    )
    low, high = find_share_interval(*(rows[name].to_numpy() for name in ("n_agreeing", "n", "n_samples")))
    by_run = []
    for of_step, start, end in zip(rows.to_dicts(), low.tolist(), high.tolist(), strict=True):
        share = write_share(of_step["n_agreeing"] / of_step["n"])
        by_run.append({**of_step, "share": f"{share} ({100 * start:.0f} to {100 * end:.0f})"})
    return {"document": document, "groups": groups, "by_run": by_run, "run_ids": run_ids}


def _describe_noise(warehouse: Warehouse, series: str) -> dict[str, Any] | None:
    """Return what noise runs show: by metric, pooled over the newest of them, by step, and the floors over time."""
    rows: Sequence[Row] = warehouse.fetch_rows("judge/noise", series=series, most=_RUNS)
    run_ids = list(dict.fromkeys(row["noise_run_id"] for row in rows))
    if not run_ids:
        return None
    pooled = run_ids[-_POOLED:]
    by_metric: dict[str, list[Row]] = {}
    for row in rows:
        by_metric.setdefault(row["metric"], []).append(row)
    names = sort_first(list(by_metric))
    charts = []
    for name in names:
        of_metric = by_metric[name]
        if name in FIRST and len(of_metric) > 1:
            # The floor that was known at each noise run, from it and the runs before.
            floors = []
            for place in range(1, len(of_metric) + 1):
                _, floor = _pool(of_metric[max(0, place - _POOLED) : place])
                floors.append(floor)
            named = [{**row, "run_id": row["noise_run_id"]} for row in of_metric]
            charts.append({"name": name, "chart": draw_amounts(named, floors, what="noise floor", form="{:.4f}")})
    metrics = []
    for name in names:
        noise, floor = _pool([row for row in by_metric[name] if row["noise_run_id"] in pooled])
        cells = {"n": 0, "changed": "–", "deviation": "–", "floor": "–" if floor is None else f"±{floor:.4f}"}
        if noise:
            changed = f"{noise.n_changed:,} ({write_share(noise.n_changed / noise.n_pairs)})"
            cells |= {"n": noise.n_pairs, "changed": changed, "deviation": f"{noise.deviation:.3f}"}
        metrics.append({"metric": name, **cells})
    return {
        "n_runs": len(run_ids),
        "n_pooled": len(pooled),
        "metrics": metrics,
        "steps": warehouse.fetch_rows("noise/flips", {"run_id": pooled}),
        "charts": charts,
    }


def _pool(rows: Sequence[Row]) -> tuple[Noise | None, float | None]:
    """Return the noise of one metric over several noise runs, and the noise floor.

    The floor is the largest change that noise alone would reach between two runs as large as the newest, all judged
    again.
    """
    measured = []
    for row in rows:
        squares = sum_squares(n=row["n_samples"], mean=row["mean_difference"], sd=row["sd_difference"])
        measured.append(Noise(n_pairs=row["n_samples"], n_changed=row["n_changed"], sum_squares=squares))
    noise, n = pool_noise(measured), rows[-1]["n_of_run"] if rows else None
    if noise is None or not n:
        return noise, None
    return noise, find_floor(noise, n=n, again=np.ones(n, dtype=np.int64), scale=1.0)


ASKED: Final = {
    "classify answer": "Does the ground truth say this?",
    "classify ground_truth": "Does the answer say this?",
    "attribute answer": "Do the contexts, or earlier turns if there are any, say this, alone or together?",
    "attribute ground_truth": "Do the contexts say this, one alone or several together?",
    "rank": "Does this context help to reach the ground truth?",
}
_MAX_BYTES: Final = 64 * 1024
_FIELDS: Final = (
    "sample_id", "step", "statement_id", "context_rank", "item_hash", "export_id", "label", "first_label",
    "reviewer", "note",
)  # fmt: skip


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that are not empty; raises HTTPException for a body that is too large or no form."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise HTTPException(413, f"a label with more than {_MAX_BYTES} bytes is not accepted; write a shorter note")
    try:
        fields = parse_qsl(body.decode(), strict_parsing=True)
    except ValueError:
        raise HTTPException(400, "this is not a form: send label, reviewer and the verdict it is about") from None
    return {name: value.strip() for name, value in fields if value.strip()}


@router.post("/runs/{run}/labels")
def take(request: Request, run: str, form: Annotated[dict[str, str], Depends(read_form)]) -> Response:
    """Store a label, and answer with what is stored now, or without a script with the page that has the form.

    With `withdrawn` the reviewer's labels of an item of an export are removed.
    """
    warehouse = find_warehouse(request)
    if "withdrawn" in form:
        named = {name: form.get(name, "") for name in ("export_id", "item_hash", "reviewer")}
        return JSONResponse({"n_removed": remove_answer(warehouse, **named)})
    values: dict[str, str] = {name: text for name, text in form.items() if name in _FIELDS}
    values["run_id"] = find_run(warehouse, run).run_id
    if "label" not in values:
        raise HTTPException(400, "the label is missing; it is one of the labels that the page offers")
    try:
        review = take_label(warehouse, values)
    except ReviewError as error:
        raise HTTPException(400, str(error)) from None
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse(
            {
                "label": review.label,
                "judge_label": review.judge_label,
                "agrees": review.label == review.judge_label,
                "reviewer": review.reviewer,
                "note": review.note,
            }
        )
    address = link(
        f"/runs/{review.run_id}/sample", id=review.sample_id, list=form.get("list"), reviewer=review.reviewer
    )
    return RedirectResponse(f"{address}#{name_item(vars(review))}", status_code=303)


def list_items(warehouse: Warehouse, run_id: str, sample_id: str, reviewer: str) -> list[dict[str, Any]]:
    """Return the verdicts of a sample as a person may label them, each with the label of `reviewer` and the others."""
    return [
        {
            **item,
            "name": name_item(item),
            "target": item["statement_id"] or f"C{item['context_rank']}",
            "asked": ASKED["rank" if item["step"] == "rank" else f"{item['step']} {item['source']}"],
            "choices": list_choices(item["step"], item["source"]),
            "own": next((label for label in item["labels"] if label["reviewer"] == reviewer), None),
            "others": [label for label in item["labels"] if label["reviewer"] != reviewer],
        }
        for item in warehouse.fetch_rows("reviews/sample_items", run_id=run_id, sample_id=sample_id)
    ]


def name_item(item: dict[str, Any]) -> str:
    """Return the name of a verdict within its sample's page."""
    return f"{item['step']}-{item['statement_id'] or item['context_rank']}"


@router.get("/runs/{run}/review")
def show_review(request: Request, run: str, export: str = "", reviewer: str = "") -> Response:
    """Show the exports of a run, or one of them for `reviewer` to label."""
    warehouse = find_warehouse(request)
    row = find_run(warehouse, run)
    if not export:
        return render(
            request, "reviews.html", run=row, exports=warehouse.fetch_rows("reviews/exports", run_id=row.run_id)
        )
    try:
        picks = read_asked(warehouse, row, export)
        texts = fetch_texts(warehouse, row.run_id, {pick.item.sample_id for pick in picks})
        answers = {
            row["item_hash"]: row
            for row in warehouse.fetch_rows("reviews/answers", export_id=export, reviewer=reviewer.strip())
        }
    except ReviewError as error:
        raise HTTPException(404, str(error)) from None
    # As in the file, with what the reviewer has answered before and where to send the answers.
    data = collect_verdicts(export, row.run_id, picks, texts)
    items = [{**item, "own": answers.get(item["item_hash"])} for item in data["items"]]
    address = link(f"/runs/{row.run_id}/labels")
    data = {**data, "items": items, "reviewer": reviewer.strip(), "address": address}
    return render(
        request, "review_draw.html", run=row, export_id=export, reviewer=reviewer.strip(), n=len(data["items"]),
        packed=pack(data), is_sent=True, about="verdicts",
    )  # fmt: skip
