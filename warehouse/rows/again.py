"""A run's questions that were asked again: the runs of kind `repeats` and `replay` that belong to it, and what came
of them.

A replay, with the contexts of two runs, is a child of the second and says in its tags which one is the first. Its
samples are questions as they were asked: the id of the sample, the contexts it was given and which time that was, so
that no history of a sample has them in it.
"""

from collections.abc import Sequence
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


_AGAINST = "against "


def tag_replay(base_id: str) -> str:
    """What `runs.tags` of a replay says of the run that its candidate is compared with."""
    return f"{_AGAINST}{base_id}"


def find_replayed_base(run: RunRow) -> str | None:
    """The run that a replay's candidate is compared with."""
    return next((tag.removeprefix(_AGAINST) for tag in run.tags if tag.startswith(_AGAINST)), None)


def list_replays(warehouse: Warehouse, *, base: str, candidate: str) -> list[RunRow]:
    """The replays of two runs, the newest first."""
    replays = list_runs(warehouse, kinds=("replay",))
    return [run for run in replays if run.parent_run_id == candidate and find_replayed_base(run) == base]


def read_replay_samples(
    warehouse: Warehouse, *, base: str, candidate: str, sample_ids: Sequence[str]
) -> list[dict[str, Any]]:
    """One row per sample and run that has it: texts, contexts with their ids, metadata; of_candidate says which."""
    return warehouse.read(
        read_query("replay/samples"),
        {"base": base, "candidate": candidate},
        frames={"wanted": pl.DataFrame({"sample_id": list(sample_ids)}, schema={"sample_id": pl.String})},
    ).to_dicts()


def read_replay_scores(warehouse: Warehouse, run_ids: Sequence[str]) -> list[dict[str, Any]]:
    """One row per answer and metric of these replays: ask_id, metric, value, and why there is none."""
    wanted = pl.DataFrame({"run_id": list(run_ids)}, schema={"run_id": pl.String})
    return warehouse.read(read_query("replay/scores"), frames={"wanted": wanted}).to_dicts()


def read_usage(warehouse: Warehouse, run_id: str) -> dict[str, float]:
    """What judging one sample of a run takes: `requests`, and `cost_usd` as far as replies have a price."""
    (row,) = warehouse.read_rows(read_query("replay/usage"), {"run_id": run_id})
    return {name: float(str(row[name] or 0.0)) for name in ("requests", "cost_usd")}
