"""One sample of a run: its verdicts drawn by the report's own scripts, its place in the list it was found in, and what
it was in the other runs of the series."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from evalhouse.flows.report.charts import draw_history, embed_data
from evalhouse.flows.report.samples import SharedTexts, build_samples
from evalhouse.flows.results.diagnosis import load_advice
from evalhouse.flows.results.output import write_value
from evalhouse.flows.ui.labels import list_items
from evalhouse.flows.ui.pages import find_flow_run_page, find_warehouse, link, render
from evalhouse.flows.ui.samples import Found, find
from evalhouse.warehouse.rows.found_samples import (
    read_found,
    read_found_scores,
    read_sample_answers,
    read_sample_scores,
)
from evalhouse.warehouse.rows.report import read_one
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.store import Warehouse

router = APIRouter()
_LANGUAGE: Final = "en"
_LONGEST_LIST: Final = 4000
"""Letters of an address that is handed on within another one."""


@router.get("/sample")
def lead_to_sample(id: str, run: str) -> Response:
    """The address of a sample with the run at its end, as points of a chart lead there."""
    return RedirectResponse(link(f"/runs/{run}/sample", id=id), status_code=303)


@router.get("/runs/{run}/sample")
def show_sample(request: Request, run: str, id: str, list: str = "", reviewer: str = "") -> Response:
    """A sample by its id; `list` are the parameters of the samples' page that it was found on, and `reviewer` is who
    labels."""
    if len(list) > _LONGEST_LIST:
        raise HTTPException(400, f"list has {len(list)} letters, of at most {_LONGEST_LIST}; open the sample by its id")
    warehouse, name = find_warehouse(request), reviewer.strip()
    row = find_run(warehouse, run)
    found = find(warehouse, row, parse_qsl(list))
    base = find_run(warehouse, found.base) if found.base else None
    data = collect(warehouse, found, base, id)
    return render(
        request, "sample.html", run=row, sample_id=id, base=base, found=found, list=list,
        steps=_find_steps(found, id, name), reviewer=name,
        items=list_items(warehouse, row.run_id, id, name) if name else [],
        data=embed_data(data), question=data["sample"].question,
        charts=_draw_charts(warehouse, found, id), versions=_list_versions(warehouse, row, id),
        flow_run=find_flow_run_page(row), command=f"evalhouse lineage {row.run_id} {quote_argument(id)}",
    )  # fmt: skip


def collect(warehouse: Warehouse, found: Found, base: RunRow | None, sample_id: str) -> dict[str, Any]:
    """What the script draws: the record, what an index of a report says of this one sample, and shared texts."""
    run, shared = found.run, SharedTexts()
    rows = read_one(warehouse, run, base, sample_id)
    (record,) = build_samples(rows, shared)
    (summary,) = read_found(warehouse, run, [sample_id])
    scores = read_found_scores(warehouse, run, found.base, [sample_id])
    return {"sample": record, "index": _build_index(found, sample_id, summary["cause"], scores), "fixed": shared.texts}


def _build_index(
    found: Found, sample_id: str, cause: str | None, scores: Mapping[tuple[str, str], Mapping[str, Any]]
) -> dict[str, Any]:
    of_metric = [scores.get((sample_id, name), {}) for name in found.metrics]
    return {
        "metrics": [*found.metrics],
        "scores": [[score.get("value")] for score in of_metric],
        "reasons": [[score.get("unscored_reason")] for score in of_metric],
        "base": [[_subtract(score.get("value"), score.get("change"))] for score in of_metric] if found.base else None,
        "causes": [cause],
        "cause_names": {cause: advice.name for cause, advice in load_advice(_LANGUAGE).items()},
    }


def _subtract(value: float | None, change: float | None) -> float | None:
    return None if value is None or change is None else value - change


def _find_steps(found: Found, sample_id: str, reviewer: str) -> dict[str, Any]:
    """Where the sample stands in its list, from 1, and the addresses beside it; one that has left the list, say after
    it was labelled, is followed by the list's first."""
    ids = found.sample_ids
    place = ids.index(sample_id) if sample_id in ids else -1
    around = {"before": ids[place - 1] if place > 0 else None, "next": ids[place + 1] if place + 1 < len(ids) else None}
    parameters = urlencode(replace(found.wanted, page=1).to_parameters())
    addresses = {
        name: other and link(f"/runs/{found.run.run_id}/sample", id=other, list=parameters, reviewer=reviewer)
        for name, other in around.items()
    }
    return {"place": place + 1, "n": len(ids), **addresses}


def _draw_charts(warehouse: Warehouse, found: Found, sample_id: str) -> list[dict[str, Any]]:
    """By metric of the table the scores of this sample over the runs of its series, where there are two or more."""
    rows = read_sample_scores(warehouse, found.run, sample_id, found.columns)
    nights = {metric: [*of_metric] for metric, of_metric in groupby(rows, key=lambda row: str(row["metric"]))}
    to_run = link("/sample", id=sample_id) + "&run="
    return [
        {
            "name": name,
            "value": write_value(nights[name][-1]["mean"]),
            "chart": draw_history(nights[name], of=f"{name} of sample {sample_id}", link=to_run),
        }
        for name in found.columns
        if len(nights.get(name, ())) > 1 and any(row["mean"] is not None for row in nights[name])
    ]


def _list_versions(warehouse: Warehouse, run: RunRow, sample_id: str) -> list[dict[str, Any]]:
    """The runs in which the answer was another than in the run before, the newest first."""
    rows = read_sample_answers(warehouse, run, sample_id)
    return [
        {
            **row,
            "sample": link(f"/runs/{row['run_id']}/sample", id=sample_id),
            "pair": row["previous_run_id"] and link("/compare", base=row["previous_run_id"], candidate=row["run_id"]),
        }
        for row in rows
    ]


def quote_argument(text: str) -> str:
    """A text as one argument of a shell; control characters as such a shell reads them."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = text.encode("unicode_escape").decode().replace("'", "\\'")
    return f"$'{escaped}'"
