"""Runs for the warehouse's tests."""

from datetime import datetime, timedelta
from typing import Any

from evalhouse.warehouse.rows.runs import RunRow


def make_run(run_id: str, *, minute: int = 0, **columns: object) -> RunRow:
    """A run that began so many minutes after midnight."""
    values: dict[str, Any] = {
        "run_id": run_id,
        "suite": None,
        "label": None,
        "href": None,
        "tags": (),
        "dataset": "data.jsonl",
        "dataset_hash": "hash",
        "judge": "lexical",
        "embeddings": None,
        "language": "en",
        "metrics": ("factual_f1",),
        "trigger": "manual",
        "kb_name": None,
        "kb_version": None,
        "flow_run_id": None,
        "status": "running",
        "started_at": datetime(2026, 1, 1) + timedelta(minutes=minute),
        "finished_at": None,
        "n_samples": None,
        "config": {},
    }
    return RunRow(**{**values, **columns})
