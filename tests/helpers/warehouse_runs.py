"""An empty warehouse, and runs for it."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evalhouse.warehouse.engine import connection
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.rows.calls import make_request_key
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

_make_file = connection._make_file
_TEMPLATE = "empty-template.duckdb"
_laid: dict[Path, int] = {}
"""The time at which each was made."""


@cache
def _make_template() -> bytes:
    """An empty warehouse, made once for all tests: the migrations take a third of a second."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / _TEMPLATE
        Warehouse(str(path)).migrate()
        return path.read_bytes()


def _lay_file(location: Location) -> None:
    if location.path.name == _TEMPLATE:
        _make_file(location)
        return
    template = _make_template()
    try:
        location.path.write_bytes(template)
    except OSError:  # of which the product has its words
        _make_file(location)


@contextmanager
def tables_laid() -> Iterator[None]:
    """A warehouse that this process makes has all its tables from the beginning, by no migration."""
    connection._make_file = _lay_file
    try:
        yield
    finally:
        connection._make_file = _make_file


def lay_warehouse(path: Path) -> Warehouse:
    """An empty warehouse at `path`, with all its tables."""
    path.write_bytes(_make_template())
    _laid[path] = path.stat().st_mtime_ns
    return Warehouse(str(path))


def is_as_laid(path: Path) -> bool:
    """Return whether a warehouse is unchanged since `lay_warehouse`."""
    return _laid.get(path) == path.stat().st_mtime_ns and not path.with_name(f"{path.name}.wal").exists()


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


def make_row(number: int, **columns: object) -> dict[str, object]:
    digest = f"{number:064x}"
    row: dict[str, object] = {
        "call_id": f"c{number}",
        "run_id": "r",
        "step": "classify",
        "judge": "j",
        "request_hash": digest,
        "request_key": make_request_key(digest),
        "request": "{}",
        "reply": "yes",
        "status": "ok",
        "attempts": 1,
        "started_at": 1_767_225_600_000_000 + number,
    }
    return {**row, **columns}


def hash_request(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def make_call(number: int, text: str, **columns: object) -> dict[str, object]:
    request_hash = hash_request(text)
    return make_row(number, request_hash=request_hash, request_key=make_request_key(request_hash), **columns)
