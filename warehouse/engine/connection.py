"""Short-lived connections to a warehouse: a DuckDB file here, a lake in `lake`.

Nobody holds the file: a writer opens it, commits one transaction and closes it, so that an analyst can read
between two batches of a running evaluation. Our own writers queue behind a lock file, because bare retries on
DuckDB's own lock starve one of them for seconds; within a process a lock per path keeps read-only and
read-write openings apart, which DuckDB refuses to mix.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from evalhouse.warehouse.engine.lake import open_lake_reader, open_lake_writer
from evalhouse.warehouse.engine.locks import hold_file
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseMissing, WarehouseUnwritable
from evalhouse.warehouse.location import Location

# Without these DuckDB reaches for the network when it is shown, say, an SQLite file.
_OFFLINE: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
# Files made with 1.5's format open in DuckDB 1.5 and 2.0 alike.
# One thread and little memory: loading and scoring then spill to disk instead of growing with the dataset. With
# DuckDB's own settings 100,000 samples took a gigabyte; scoring them takes 12 to 30 s either way.
_FOR_WRITING = {
    **_OFFLINE,
    "storage_compatibility_version": "v1.5.0",
    "threads": 1,
    "memory_limit": "192MB",
}
_RETRY_S = 0.05

_HOLDER = re.compile(r"Conflicting lock is held in (.+? \(PID \d+\))")
_UNWRITABLE = re.compile(
    r"could not write|no space left|file too large|quota exceeded|permission denied|read-only file system"
    r"|operation not permitted|input/output error",
    re.IGNORECASE,
)

_path_locks: dict[Path, threading.Lock] = {}
_path_locks_guard = threading.Lock()


@contextmanager
def open_writer(location: Location, *, patience_s: float) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the file for one transaction and make it where there is none.

    Raises WarehouseBusy when others keep it longer than `patience_s`, WarehouseUnwritable, or WarehouseError for a
    file that is not a warehouse.
    """
    if location.lake is not None:
        with open_lake_writer(location, location.lake, patience_s=patience_s) as connection:
            yield connection
        return
    deadline = time.monotonic() + patience_s
    _make_folder(location)
    busy = f"another evalhouse is writing to {location.path} and did not let go in time"
    with (
        _thread_lock(location, deadline),
        hold_file(location.lock_path, patience_s=max(0.0, deadline - time.monotonic()), busy=busy, is_kept=True),
    ):
        if not _is_file(location):
            _make_file(location)
        connection = _connect(location, read_only=False, deadline=deadline)
        try:
            yield connection
        finally:
            connection.close()


@contextmanager
def open_reader(
    location: Location, *, patience_s: float = 10.0, is_own: bool = False
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the file read-only; raises WarehouseMissing, WarehouseBusy, or WarehouseError for what is not a warehouse.

    Whoever changes settings of the connection asks for one of their own (`is_own`): of a lake it may be used again.
    """
    if location.lake is not None:
        with open_lake_reader(location, location.lake, patience_s=patience_s, is_own=is_own) as connection:
            yield connection
        return
    if not _is_file(location):
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


def explain_failure(location: Location, error: duckdb.Error) -> WarehouseError:
    """DuckDB's error as one of ours, in one line: WarehouseUnwritable where the disk or its rights are to blame."""
    text = first_line(str(error))
    # The path is the user's own words and may hold any of ours.
    if _UNWRITABLE.search(text.replace(str(location.path), "")):
        return WarehouseUnwritable(f"{location.name} cannot be written: {text}; make room, or name another place")
    return WarehouseError(f"{location.name}: {text}")


def first_line(text: str) -> str:
    """The first line of an error's text."""
    return text.strip().splitlines()[0] if text.strip() else "no reason given"


def _is_file(location: Location) -> bool:
    try:
        if location.path.is_dir():
            raise WarehouseError(
                f"{location.path} is a folder; name a file in it, such as {location.path / 'evalhouse.duckdb'}"
            )
        return location.path.exists()
    except OSError as error:
        raise WarehouseError(f"cannot reach {location.path}: {error.strerror or error}") from None


def _make_folder(location: Location) -> None:
    try:
        location.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WarehouseUnwritable(f"cannot make the folder {location.path.parent}: {error.strerror or error}") from None


def _make_file(location: Location) -> None:
    """Make an empty warehouse file under a name of its own: DuckDB cannot open one whose making was cut short."""
    unborn = location.unborn_path
    try:
        unborn.unlink(missing_ok=True)
        duckdb.connect(str(unborn), config=dict(_FOR_WRITING)).close()
        unborn.rename(location.path)
    except OSError as error:
        raise WarehouseUnwritable(f"cannot make {location.path}: {error.strerror or error}") from None
    except duckdb.Error as error:
        raise WarehouseUnwritable(f"cannot make {location.path}: {first_line(str(error))}") from None


@contextmanager
def _thread_lock(location: Location, deadline: float) -> Iterator[None]:
    with _path_locks_guard:
        lock = _path_locks.setdefault(location.path.resolve(), threading.Lock())
    if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise WarehouseBusy(f"this process is still busy with {location.path}")
    try:
        yield
    finally:
        lock.release()


def _connect(location: Location, *, read_only: bool, deadline: float) -> duckdb.DuckDBPyConnection:
    config = dict(_OFFLINE if read_only else _FOR_WRITING)
    while True:
        try:
            return duckdb.connect(str(location.path), read_only=read_only, config=config)
        except duckdb.ConnectionException:
            holder = "other code of this very process"  # with a connection of another configuration
        except duckdb.Error as error:
            holder = _find_holder(str(error))
            if not holder:
                raise _explain_refusal(location, error) from None
        if time.monotonic() >= deadline:
            raise WarehouseBusy(f"{location.path} is kept open by {holder}; close it there")
        time.sleep(_RETRY_S)


def _find_holder(text: str) -> str:
    """Who holds DuckDB's lock on the file, "" when the error is about something else."""
    if not text.startswith("IO Error: Could not set lock on file"):
        return ""
    match = _HOLDER.search(text)
    return match[1] if match else "another program"


def _explain_refusal(location: Location, error: duckdb.Error) -> WarehouseError:
    explained = explain_failure(location, error)
    if isinstance(explained, WarehouseUnwritable):
        return explained
    return WarehouseError(
        f"{location.path} is not a warehouse that DuckDB {duckdb.__version__} can open ({first_line(str(error))}); "
        "name another file with --warehouse"
    )
