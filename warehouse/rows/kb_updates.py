"""Announced updates of knowledge bases and the runs that answered them.

A suite answers an update once: two suites that watch the same knowledge base each answer it for themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from evalhouse.warehouse.batch import Batch
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.tables import TABLES


@dataclass(frozen=True, kw_only=True)
class KbUpdateRow:
    """One row of `kb_updates`."""

    event_id: str
    kb_name: str
    kb_version: str | None
    kb_changed: tuple[str, ...] | None
    occurred_at: datetime
    run_id: str


def list_answered(warehouse: Warehouse, *, suite: str, kb_name: str) -> frozenset[str]:
    """The ids of the events that runs of a suite have answered."""
    rows = warehouse.read_rows(read_query("runs/answered_updates"), {"suite": suite, "kb_name": kb_name})
    return frozenset(str(row["event_id"]) for row in rows)


def append_updates(warehouse: Warehouse, updates: Sequence[KbUpdateRow], run_id: str) -> None:
    """Put on record which updates a run answers; a second call for the same run does nothing."""
    rows = [
        {
            "event_id": update.event_id,
            "kb_name": update.kb_name,
            "kb_version": update.kb_version,
            "kb_changed": None if update.kb_changed is None else list(update.kb_changed),
            "occurred_at": update.occurred_at,
            "run_id": run_id,
        }
        for update in updates
    ]
    frame = pl.DataFrame(rows, schema=TABLES["kb_updates"])
    warehouse.append(Batch(key=f"kb_updates:{run_id}", run_id=run_id, tables={"kb_updates": frame}))
