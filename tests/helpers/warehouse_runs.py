"""An empty warehouse, and runs for it."""

from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse


@cache
def _make_template() -> bytes:
    """An empty warehouse, made once for all tests: the migrations take a third of a second."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "template.duckdb"
        Warehouse(str(path)).migrate()
        return path.read_bytes()


def lay_warehouse(path: Path) -> Warehouse:
    """An empty warehouse at `path`, with all its tables."""
    path.write_bytes(_make_template())
    return Warehouse(str(path))


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
