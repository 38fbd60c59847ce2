"""Batches on disk while another process keeps the warehouse file.

A batch becomes a folder of Parquet files, written under a name of its own and then renamed, so that a folder
with a final name is always whole. The next successful write takes the spool in, oldest first.
"""

import hashlib
import json
import shutil
import time
from pathlib import Path

import polars as pl

from warehouse.batch import Batch

_HEAD = "batch.json"


def spool_batch(folder: Path, batch: Batch) -> Path:
    """Write the batch into the spool and return its folder."""
    digest = hashlib.sha256(batch.key.encode()).hexdigest()[:16]
    final = folder / f"{time.time_ns():020d}-{digest}"
    partial = final.with_suffix(".partial")
    partial.mkdir(parents=True)
    for table, frame in batch.tables.items():
        frame.write_parquet(partial / f"{table}.parquet")
    head = {"key": batch.key, "run_id": batch.run_id, "replaces": list(batch.replaces)}
    (partial / _HEAD).write_text(json.dumps(head), encoding="utf-8")
    partial.rename(final)
    return final


def list_spooled(folder: Path) -> list[Path]:
    """Folders of whole batches, oldest first."""
    if not folder.exists():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.suffix != ".partial")


def read_spooled(path: Path) -> Batch:
    """Read one spooled batch back."""
    head = json.loads((path / _HEAD).read_text(encoding="utf-8"))
    tables = {entry.stem: pl.read_parquet(entry) for entry in sorted(path.glob("*.parquet"))}
    return Batch(key=head["key"], run_id=head["run_id"], tables=tables, replaces=tuple(head["replaces"]))


def drop_spooled(path: Path) -> None:
    """Remove a batch that is in the warehouse now."""
    shutil.rmtree(path)
