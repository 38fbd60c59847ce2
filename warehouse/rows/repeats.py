"""A run's questions that were asked again: the runs of kind `repeats` that belong to it, and what came of them."""

from dataclasses import dataclass

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import RunRow, list_runs
from evalhouse.warehouse.store import Warehouse


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


def count_repeats(warehouse: Warehouse, run_id: str) -> RepeatCounts:
    """What came of asking a run's questions again, by those of its repeats that came to their end."""
    (row,) = warehouse.read_rows(read_query("repeats/otherwise"), {"run_id": run_id})
    return RepeatCounts(**{name: int(str(row[name])) for name in ("n_questions", "n_answers", "n_otherwise")})
