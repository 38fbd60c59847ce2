"""Short-lived connections to a DuckDB file.

Nobody holds the file: a writer opens it, commits one transaction and closes it, so that an analyst can read
between two batches of a running evaluation. Our own writers queue behind a lock file, because bare retries on
DuckDB's own lock starve one of them for seconds; within a process a lock per path keeps read-only and
read-write openings apart, which DuckDB refuses to mix.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
from filelock import FileLock, Timeout

from warehouse.errors import WarehouseBusy, WarehouseError, WarehouseMissing, WarehouseUnwritable
from warehouse.location import Location

# Files made with 1.5's format open in DuckDB 1.5 and 2.0 alike.
_STORAGE_VERSION = "v1.5.0"
_RETRY_S = 0.05

_path_locks: dict[Path, threading.RLock] = {}
_path_locks_guard = threading.Lock()


@contextmanager
def open_writer(location: Location, *, patience_s: float) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the file for one transaction; raises WarehouseBusy when others keep it longer than `patience_s`."""
    deadline = time.monotonic() + patience_s
    _make_folder(location)
    with _thread_lock(location, deadline):
        lock = FileLock(location.lock_path)
        try:
            lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        except Timeout:
            raise WarehouseBusy(f"another evalhouse is writing to {location.path}; it kept its lock too long") from None
        except OSError as error:
            raise WarehouseUnwritable(f"cannot write beside {location.path}: {error.strerror or error}") from None
        try:
            connection = _connect(location, read_only=False, deadline=deadline)
            try:
                yield connection
            finally:
                connection.close()
        finally:
            lock.release()


@contextmanager
def open_reader(location: Location, *, patience_s: float = 10.0) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the file read-only; raises WarehouseMissing or WarehouseBusy."""
    if not location.path.exists():
        raise WarehouseMissing(
            f"there is no warehouse at {location.path}; `evalhouse run` makes one, --warehouse names another"
        )
    deadline = time.monotonic() + patience_s
    with _thread_lock(location, deadline):
        connection = _connect(location, read_only=True, deadline=deadline)
        try:
            yield connection
        finally:
            connection.close()


def _make_folder(location: Location) -> None:
    try:
        location.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WarehouseUnwritable(f"cannot make the folder {location.path.parent}: {error.strerror or error}") from None


@contextmanager
def _thread_lock(location: Location, deadline: float) -> Iterator[None]:
    with _path_locks_guard:
        lock = _path_locks.setdefault(location.path, threading.RLock())
    if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise WarehouseBusy(f"this process is still busy with {location.path}")
    try:
        yield
    finally:
        lock.release()


def _connect(location: Location, *, read_only: bool, deadline: float) -> duckdb.DuckDBPyConnection:
    config: dict[str, str | bool | int | float | list[str]] = (
        {} if read_only else {"storage_compatibility_version": _STORAGE_VERSION}
    )
    while True:
        try:
            return duckdb.connect(str(location.path), read_only=read_only, config=config)
        except duckdb.IOException as error:
            text = str(error)
            if "lock" not in text.lower():
                raise _explain(location, text) from None
            if time.monotonic() >= deadline:
                raise WarehouseBusy(f"{location.path} is kept open by another program: {_first_line(text)}") from None
        except duckdb.Error as error:
            raise _explain(location, str(error)) from None
        time.sleep(_RETRY_S)


def _explain(location: Location, text: str) -> WarehouseError:
    lowered = text.lower()
    if "permission denied" in lowered or "read-only" in lowered or "no space" in lowered or "cannot open file" in lowered:
        return WarehouseUnwritable(f"cannot open {location.path}: {_first_line(text)}")
    return WarehouseError(
        f"{location.path} is not a warehouse that DuckDB {duckdb.__version__} can open: {_first_line(text)}"
    )


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"
