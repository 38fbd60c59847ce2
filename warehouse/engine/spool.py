"""Batches on disk while another process keeps the warehouse file.

A batch becomes a folder of Parquet files, written under a name of its own and then renamed, so that a folder
with a final name is always whole; it loses that name again before it is removed. The next successful write takes
the spool in, oldest first.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import time
from pathlib import Path

import polars as pl

from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.tables import Batch

_HEAD = "batch.json"


def spool_batch(folder: Path, batch: Batch) -> Path:
    """Write the batch into the spool and return its folder; raises OSError and leaves nothing when that fails."""
    # Later than all that wait, even when the clock was set back: a batch may replace rows of one before it.
    newest = max((int(path.name.split("-")[0]) for path in list_spooled(folder)), default=0)
    stamp = max(time.time_ns(), newest + 1)
    final = folder / f"{stamp:020d}-{hashlib.sha256(batch.key.encode()).hexdigest()[:16]}"
    partial = final.with_suffix(".partial")
    partial.mkdir(parents=True)
    try:
        for table, frame in batch.tables.items():
            buffer = io.BytesIO()
            frame.write_parquet(buffer)
            _write_file(partial / f"{table}.parquet", buffer.getvalue())
        head = {"key": batch.key, "run_id": batch.run_id, "replaces": list(batch.replaces)}
        _write_file(partial / _HEAD, json.dumps(head).encode())
        partial.rename(final)
    except OSError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def list_spooled(folder: Path) -> list[Path]:
    """Folders of whole batches, oldest first."""
    if not folder.exists():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.suffix)


def read_spooled(path: Path) -> Batch:
    """Read one spooled batch back; raises WarehouseError when somebody has meddled with it."""
    try:
        head = json.loads((path / _HEAD).read_text(encoding="utf-8"))
        tables = {entry.stem: pl.read_parquet(entry) for entry in sorted(path.glob("*.parquet"))}
        return Batch(key=head["key"], run_id=head["run_id"], tables=tables, replaces=tuple(head["replaces"]))
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise refuse_spooled(path, str(error)) from None


def refuse_spooled(path: Path, why: str) -> WarehouseError:
    """The error for a batch that cannot be taken in and therefore keeps every later one waiting."""
    return WarehouseError(
        f"the spooled batch {path} cannot be taken in ({why.splitlines()[0] if why else 'no reason given'}); "
        "move that folder away and go on with `evalhouse resume`: replies on record are not paid for again"
    )


def drop_spooled(path: Path) -> None:
    """Remove a batch that is in the warehouse now."""
    gone = path.with_suffix(".done")
    path.rename(gone)
    shutil.rmtree(gone)


def sweep_dropped(folder: Path) -> None:
    """Remove what an earlier `drop_spooled` was killed over."""
    for path in folder.glob("*.done"):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def _write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
