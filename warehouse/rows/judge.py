"""What is on record of the judge in the newest runs of a series: its noise, its votes, and how its verdicts moved."""

from collections.abc import Sequence
from typing import Any

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

Rows = list[dict[str, Any]]


def read_judge_state(warehouse: Warehouse) -> str:
    """A text that is another one whenever something that is told of a judge may be."""
    (row,) = warehouse.read_rows(read_query("judge/state"))
    return str(row["state"])


def list_judged_runs(warehouse: Warehouse, series: str, most: int) -> Rows:
    """So many runs of a series that came to an end, the newest first."""
    return warehouse.read_rows(read_query("judge/runs"), {"series": series, "most": most})


def list_reviewed_of_series(warehouse: Warehouse, series: str, most: int) -> list[str]:
    """So many runs of a series whose verdicts were reviewed, the oldest first."""
    rows = warehouse.read(read_query("judge/reviewed_runs"), {"series": series, "most": most})
    return list(rows["run_id"])


def read_asked_by_run(warehouse: Warehouse, run_ids: Sequence[str]) -> Rows:
    """One row per run and step of its calls: prompts and models, each as a text."""
    return warehouse.read(read_query("judge/asked"), frames={"wanted": _frame(run_ids)}).to_dicts()


def read_verdict_moves(warehouse: Warehouse, run_ids: Sequence[str]) -> Rows:
    """One row per run and step against the run after it in the list, newest first: see the query."""
    pairs = pl.DataFrame(
        {"run_id": list(run_ids[:-1]), "previous_run_id": list(run_ids[1:])},
        schema={"run_id": pl.String, "previous_run_id": pl.String},
    )
    frames = {"pairs": pairs, "listed": _frame(run_ids)}
    return warehouse.read(read_query("judge/moves"), frames=frames).to_dicts()


def read_noise_of_series(warehouse: Warehouse, series: str, most: int) -> Rows:
    """One row per noise run, of so many, and metric, in time order."""
    return warehouse.read_rows(read_query("judge/noise"), {"series": series, "most": most})


def read_votes_by_run(warehouse: Warehouse, run_ids: Sequence[str]) -> Rows:
    """One row per run and step that was voted on, in time order."""
    return warehouse.read(read_query("judge/votes"), frames={"wanted": _frame(run_ids)}).to_dicts()


def _frame(run_ids: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
