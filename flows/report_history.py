"""The page of a suite's history: a line for each metric over all its runs, and the runs with their means.

It has no samples and no script; how a page is made safe is told in `report_page`.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from markupsafe import Markup

from flows.output import write_value
from flows.report_charts import draw_history
from flows.report_page import load_template, read_style, write_policy
from warehouse.report_data import Row


def build_history(suite: str, rows: Sequence[Row], *, warehouse: str) -> str:
    """The page as text, of rows of `score_history` in time order within each metric; there must be one."""
    by_metric = {str(metric): list(found) for metric, found in groupby(rows, key=lambda row: row["metric"])}
    runs = _list_runs(rows)
    style = read_style()
    return load_template("history.html").render(
        policy=write_policy(style=style),
        style=Markup(style),
        title=f"History of suite {suite}",
        charts=[_draw_chart(metric, found) for metric, found in by_metric.items() if _list_scored(found)],
        metrics=list(by_metric),
        runs=runs,
        n_runs=len(runs),
        warehouse=warehouse,
    )


def _list_scored(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["mean"] is not None]


def _draw_chart(metric: str, rows: Sequence[Row]) -> dict[str, Any]:
    scored = _list_scored(rows)
    return {
        "name": metric,
        "history": draw_history(scored),
        "last": write_value(scored[-1]["mean"]),
        "n_runs": len(scored),
        "n_yardsticks": 1 + sum(row["same_yardstick"] is False for row in scored[1:]),
    }


def _list_runs(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The runs, newest first, with their means as they are to be read, by metric."""
    metrics = {str(row["metric"]) for row in rows}
    runs: dict[str, dict[str, Any]] = {}
    for row in rows:
        names = ("run_id", "started_at", "status", "judge")
        blank = {name: row[name] for name in names} | {"means": dict.fromkeys(metrics, "–")}
        runs.setdefault(str(row["run_id"]), blank)["means"][str(row["metric"])] = write_value(row["mean"])
    return sorted(runs.values(), key=lambda run: (run["started_at"], run["run_id"]), reverse=True)
