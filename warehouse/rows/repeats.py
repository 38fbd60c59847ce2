"""A run's questions that were asked again: the runs of kind `repeats` that belong to it, and what came of them."""

from dataclasses import dataclass
from typing import Any

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import RunRow, list_runs
from evalhouse.warehouse.store import Warehouse

_COMPONENTS = read_query("repeats/components")


@dataclass(frozen=True, kw_only=True)
class RepeatCounts:
    """Questions of a run that were answered again, these answers, and the questions answered otherwise at least once.

    Another answer is one whose text or contexts differ in anything.
    """

    n_questions: int
    n_answers: int
    n_otherwise: int


def list_repeats(warehouse: Warehouse, run_id: str) -> list[RunRow]:
    """The runs that asked questions of a run again, the first one first."""
    repeats = list_runs(warehouse, kinds=("repeats",))
    return sorted((run for run in repeats if run.parent_run_id == run_id), key=lambda run: (run.started_at, run.run_id))


def list_asked(warehouse: Warehouse, run_id: str) -> dict[str, bool]:
    """The samples of a run in their order, each with whether the run itself asked for its response and got one."""
    rows = warehouse.read_rows(read_query("repeats/asked"), {"run_id": run_id})
    return {str(row["sample_id"]): bool(row["is_asked"]) for row in rows}


def read_components(warehouse: Warehouse, run_id: str) -> list[dict[str, Any]]:
    """The rows of the view `noise_components` of a run, without the run; none where nothing was asked again."""
    if not any(one.status in ("completed", "incomplete") for one in list_repeats(warehouse, run_id)):
        return []
    of_run = f"with repeated_runs as (select $run_id as run_id) from ({_COMPONENTS})"
    return warehouse.read_rows(f"select * exclude (run_id) from ({of_run}) order by metric", {"run_id": run_id})


def read_answer_means(warehouse: Warehouse, *, base: str, candidate: str) -> pl.DataFrame:
    """One row per metric and sample that both runs scored by one formula: `base` and `candidate`, the means over all
    answers, those of the repeats too, and n_base and n_candidate, how many these are."""
    return warehouse.read(read_query("repeats/answer_means"), {"base": base, "candidate": candidate})


def count_repeats(warehouse: Warehouse, run_id: str) -> RepeatCounts:
    """What came of asking a run's questions again, by those of its repeats that came to their end."""
    (row,) = warehouse.read_rows(read_query("repeats/otherwise"), {"run_id": run_id})
    return RepeatCounts(**{name: int(str(row[name])) for name in ("n_questions", "n_answers", "n_otherwise")})
