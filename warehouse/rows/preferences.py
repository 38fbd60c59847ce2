"""Typed reads and writes of `preferences`, and the pairs of answers that they are about."""

from collections.abc import Mapping, Sequence
from typing import Any

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.tables import Batch, build_frame

Rows = Sequence[Mapping[str, Any]]


def count_common(pair: RunPair) -> int:
    """How many samples both runs have."""
    return pair.read_samples().filter("in_base", "in_candidate").height


def read_pairs(pair: RunPair, *, after: int, most: int) -> list[dict[str, Any]]:
    """Samples of both runs with the answers of both, those behind this ordinal of the candidate: see the query."""
    parameters = {"base": pair.base.run_id, "candidate": pair.candidate.run_id, "after": after, "most": most}
    return pair.warehouse.read_rows(read_query("preferences/pairs"), parameters)


def append_preferences(
    warehouse: Warehouse, run_id: str, part: str, preferences: Rows, outcomes: Rows, *, replaces: Sequence[str] = ()
) -> None:
    """Write what was preferred, and how it ended for each sample, as one batch; `part` tells those of a run apart.

    `replaces` names samples of which rows may be there, whose place these take.
    """
    rows = {"preferences": preferences, "outcomes": outcomes}
    frames = {
        table: build_frame(table, [{"run_id": run_id, **row} for row in of_table]) for table, of_table in rows.items()
    }
    key = f"{run_id}/preferences/{part}"
    warehouse.append(Batch(key=key, run_id=run_id, tables=frames, replaces=tuple(replaces)))


def read_preferences(warehouse: Warehouse, run_id: str) -> list[dict[str, Any]]:
    """One row per sample of a run of kind prefer: see the view `sample_preferences`."""
    return warehouse.read_rows(read_query("preferences/samples"), {"run_id": run_id})


def count_left_out(warehouse: Warehouse, run_id: str) -> dict[str, int]:
    """How many samples of the run have no preference, by the reason why."""
    rows: list[dict[str, Any]] = warehouse.read_rows(read_query("preferences/left_out"), {"run_id": run_id})
    return {row["reason"]: row["n_samples"] for row in rows}
