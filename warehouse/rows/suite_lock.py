"""One run of a suite at a time: a lock like that of a run (`run_lock`); whoever finds it taken is told by which run."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from evalhouse.warehouse.engine.lake_locks import lock_by_name
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseUnwritable
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

# Whoever sweeps up after dead processes holds each lock for a moment.
_PATIENCE_S = 1.0


@contextmanager
def hold_suite(warehouse: Warehouse, suite: str, *, wait_s: float = 0.0) -> Iterator[None]:
    """Keep other runs of a suite away for this block, after waiting up to `wait_s` seconds for the end of another.

    Raises WarehouseBusy when one is still under way then, WarehouseUnwritable when no lock can be laid.
    """
    location = warehouse.location
    name = f"suite-{hashlib.sha256(suite.encode()).hexdigest()[:16]}"
    patience_s = max(wait_s, _PATIENCE_S)
    if location.lake is not None and location.lake.catalogue == "postgres":
        told = _tell(suite, None)
        with lock_by_name(location, location.lake, name, time.monotonic() + patience_s, told=told):
            yield
        return
    with _hold_file(warehouse, location, f"{name}.lock", patience_s, suite):
        yield


@contextmanager
def _hold_file(warehouse: Warehouse, location: Location, name: str, patience_s: float, suite: str) -> Iterator[None]:
    folder = location.journal_path
    # Not bound to a thread: whoever ends the run must be able to let go of it.
    lock = FileLock(folder / name, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=patience_s)
    except Timeout:
        raise WarehouseBusy(_tell(suite, _find_run_under_way(warehouse, suite))) from None
    except OSError as error:
        raise WarehouseUnwritable(f"cannot write in {folder}: {error.strerror or error}") from None
    try:
        yield
    finally:
        # While it is still held: afterwards the file may already be the next process's.
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def _find_run_under_way(warehouse: Warehouse, suite: str) -> str | None:
    """The run that holds the lock; None while it is still starting, and has made no warehouse or no row yet."""
    if not warehouse.exists():
        return None
    rows = warehouse.read_rows(read_query("runs/under_way"), {"suite": suite})
    return str(rows[0]["run_id"]) if rows else None


def _tell(suite: str, run_id: str | None) -> str:
    which = f"run {run_id} of suite {suite!r}" if run_id else f"another run of suite {suite!r}"
    return f"{which} is under way, and runs of one suite never overlap; wait for its end, or stop it there"
