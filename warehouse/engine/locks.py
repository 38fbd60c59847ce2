"""One process at a time on a run: a lock that dies with its process, of the operating system beside a file, of the
catalogue's server for a lake that many machines share."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from evalhouse.warehouse.engine.lake_locks import lock_by_name
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseUnwritable
from evalhouse.warehouse.location import Location

# Whoever sweeps up after dead processes holds each lock for a moment.
_PATIENCE_S = 1.0


@contextmanager
def hold_run(location: Location, run_id: str) -> Iterator[None]:
    """Keep other processes off a run for this block.

    Raises WarehouseBusy when one is on it already, WarehouseUnwritable when nothing can be written beside the file.
    """
    told = f"run {run_id} is under way in another process; wait for its end, or stop it there and resume it then"
    if location.lake is not None and location.lake.catalogue == "postgres":
        with lock_by_name(location, location.lake, f"run-{run_id}", time.monotonic() + _PATIENCE_S, told=told):
            yield
        return
    folder = location.journal_path
    # Not bound to a thread: whoever ends the run must be able to let go of it.
    lock = FileLock(folder / f"run-{run_id}.lock", thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_PATIENCE_S)
    except Timeout:
        raise WarehouseBusy(told) from None
    except OSError as error:
        raise WarehouseUnwritable(f"cannot write in {folder}: {error.strerror or error}") from None
    try:
        yield
    finally:
        # While it is still held: afterwards the file may already be the next process's.
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()
