"""Questions that were asked again with the contexts of two runs: the runs of kind `replay`, and what came of them.

A replay is a child of the second run and says in its tags which one is the first. Its samples are questions as they
were asked: the id of the sample, the contexts it was given and which time that was, so that no history of a sample has
them in it.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import RunRow, list_runs
from evalhouse.warehouse.store import Warehouse

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
