"""What all runs cost by night, series, judge and step, what the record saved, and what is not known."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Final

import polars as pl
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from evalhouse.flows.report.charts import draw_amounts
from evalhouse.flows.results.output import write_dollars
from evalhouse.flows.results.run_origin import explain_joint_split
from evalhouse.flows.ui.pages import find_warehouse, render
from evalhouse.warehouse.rows.report import Row
from evalhouse.warehouse.rows.run_pages import read_cost_runs
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.rows.told import read_told

router = APIRouter()
DAYS: Final = (7, 30, 90, 365)
_CHARTS: Final = (
    ("Dollars", "priced_usd", "${:,.4g}"),
    ("Requests", "n_requests", "{:,.0f}"),
    ("Taken from the record", "n_reused", "{:,.0f}"),
    ("Tokens", "tokens", "{:,.0f}"),
)
_COUNTS: Final = ("n_requests", "n_reused", "n_failed", "tokens", "priced_usd", "n_unpriced", "saved_usd")


@router.get("/costs")
def show_costs(request: Request, days: Annotated[int, Query(ge=0, le=100_000)] = 30) -> Response:
    """The costs of the runs of so many days; of all where it is 0."""
    warehouse = find_warehouse(request)
    runs = read_cost_runs(warehouse, now_utc() - timedelta(days=days) if days else None)
    by_run = {str(run["run_id"]): run for run in runs}
    costs = read_told(warehouse, "costs", list(by_run)).to_dicts() if runs else []
    rows = [_describe_row(row, by_run[row["run_id"]]) for row in _add_saved(costs, by_run)]
    of_run = _gather(rows, "run_id")
    nights = [{**run, **_sum(of_run[run["run_id"]])} for run in runs if run["run_id"] in of_run]
    return render(
        request,
        "costs.html",
        days=days,
        choices=DAYS,
        total=_write(_sum(rows)),
        charts=_draw(nights),
        tables=[
            (title, _group(rows, key)) for title, key in (("By series", "series"), ("By judge and step", "judged"))
        ],
        batches=_describe_batches(runs),
        note=explain_joint_split(costs),
        nights=[_write(night) for night in reversed(nights)],
    )


def _draw(nights: Sequence[Row]) -> list[dict[str, Any]]:
    drawn = [(name, [night[key] for night in nights], form) for name, key, form in _CHARTS]
    return [
        {"name": name, "chart": draw_amounts(nights, values, what=name, form=form, link="/runs/")}
        for name, values, form in drawn
        if any(values)
    ]


def _add_saved(costs: Sequence[Row], runs: Mapping[str, Row]) -> list[dict[str, Any]]:
    """The rows with what the replies from the record would have cost: each what a priced request of that judge and step
    cost in these days on average; None where there was none."""
    if not costs:
        return []
    judges = {run_id: run["judge"] for run_id, run in runs.items()}
    frame = pl.DataFrame(costs).with_columns(judge=pl.col("run_id").replace_strict(judges))
    n_priced = (pl.col("n_requests") - pl.col("n_failed") - pl.col("n_unpriced")).clip(0)
    of_step = ["judge", "step"]
    price = pl.when(n_priced.sum().over(of_step) > 0).then(
        pl.col("priced_usd").sum().over(of_step) / n_priced.sum().over(of_step)
    )
    return frame.with_columns(saved_usd=pl.col("n_reused") * price).to_dicts()


def _describe_row(row: Row, run: Row) -> dict[str, Any]:
    return {
        **row,
        "tokens": row["prompt_tokens"] + row["completion_tokens"],
        "series": run["series"],
        "judged": f"{run['judge']} · {row['step']}",
    }


def _gather(rows: Sequence[Row], key: str) -> dict[str, list[Row]]:
    """The rows by what a column says."""
    gathered: dict[str, list[Row]] = {}
    for row in rows:
        gathered.setdefault(str(row[key]), []).append(row)
    return gathered


def _sum(rows: Sequence[Row]) -> dict[str, Any]:
    """What rows come to; of what was saved what is known."""
    return {name: sum(row[name] or 0 for row in rows) for name in _COUNTS}


def _group(rows: Sequence[Row], key: str) -> list[dict[str, Any]]:
    """What rows come to by a column, the dearest first."""
    sums = [{"name": name, **_sum(of_name)} for name, of_name in _gather(rows, key).items()]
    return [_write(row) for row in sorted(sums, key=lambda row: (-row["priced_usd"], -row["n_requests"], row["name"]))]


def _write(row: Mapping[str, Any]) -> dict[str, Any]:
    """The amounts as they are read: a sum of dollars that leaves calls out says so."""
    unknown = f" and {row['n_unpriced']:,} requests without a known price" if row["n_unpriced"] else ""
    return {
        **row,
        "dollars": f"{write_dollars(row['priced_usd'])}{unknown}",
        "saved": f"about {write_dollars(row['saved_usd'])}" if row["saved_usd"] else "–",
        **{name: f"{row[name]:,}" for name in ("n_requests", "n_reused", "n_failed", "tokens")},
    }


def _describe_batches(runs: Sequence[Row]) -> str:
    """What went by batch; empty where nothing did."""
    n = sum(run["n_batched"] for run in runs)
    return f"{n:,} requests went by batch, for {write_dollars(sum(run['batched_usd'] for run in runs))}." if n else ""
