"""Short-lived connections to a warehouse: a DuckDB file here, a lake in `lake`.

Nobody holds the file: a writer opens it, commits one transaction and closes it, so that an analyst can read
between two batches of a running evaluation. A command that only reads keeps it open for a second at most
(`readers_kept`): opening takes longer than most of its reads. A run of a few samples, which is over in a second, keeps
it while one transaction follows the other (`writer_kept`). A process that serves pages opens it once for all its
threads, and lets go of it when a writer waits (`shared`). Our own writers queue behind a lock file, because bare
retries on DuckDB's own lock starve one of them for seconds; within a process a lock per path keeps read-only and
read-write openings apart, which DuckDB refuses to mix.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Literal

import duckdb
from filelock import FileLock, Timeout

from evalhouse.warehouse.engine.lake import is_broken_off, more_readers, open_lake_reader, open_lake_writer
from evalhouse.warehouse.engine.locks import ATTEMPT_S, try_again
from evalhouse.warehouse.engine.no_pandas import remember_absence
from evalhouse.warehouse.engine.shared import SharedReader, end_reading
from evalhouse.warehouse.errors import (
    RowsRefused,
    WarehouseBusy,
    WarehouseError,
    WarehouseMissing,
    WarehouseUnreachable,
    WarehouseUnwritable,
    first_line,
)
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.names import name_setting

remember_absence()
# Without these DuckDB reaches for the network when it is shown, say, an SQLite file.
_Config = dict[str, str | bool | int | float | list[str]]
_OFFLINE: _Config = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
# Files made with 1.5's format open in DuckDB 1.5 and 2.0 alike.
# One thread and little memory: loading and scoring then spill to disk instead of growing with the dataset. With
# DuckDB's own settings 100,000 samples took a gigabyte; scoring them takes 12 to 30 s either way.
_FOR_WRITING: _Config = {
    **_OFFLINE,
    "storage_compatibility_version": "v1.5.0",
    "threads": 1,
    "memory_limit": "192MB",
}
# Pages need no file but this one, and change no setting; a third of a small machine's memory is cache enough.
_FOR_SERVING: _Config = {
    **_OFFLINE,
    "enable_external_access": False,
    "python_enable_replacements": False,
    "memory_limit": "2GB",
}
_RETRY_S = 0.05
# A kept reader holds writers up no longer than this and the query it is at.
_KEPT_S = 1.0
# How long nothing may follow on what a short run keeps, and how long it may all take.
_IDLE_S = 0.05
_LONGEST_S = 1.0

_HOLDER = re.compile(r"Conflicting lock is held in (.+? \(PID \d+\))")
_UNWRITABLE = re.compile(
    r"could not write|no space left|file too large|quota exceeded|permission denied|read-only file system"
    r"|operation not permitted|input/output error",
    re.IGNORECASE,
)

# A number out of its column's range, a missing value, a text that is not valid UTF-8, or more than the memory holds.
_REFUSALS = (duckdb.DataError, duckdb.IntegrityError, duckdb.InvalidInputException, duckdb.OutOfMemoryException)

_path_locks: dict[Path, threading.Lock] = {}
_path_locks_guard = threading.Lock()


_Open = Callable[[float], AbstractContextManager[duckdb.DuckDBPyConnection]]
"""Takes the lock file and opens the file for writing before a deadline on `time.monotonic`; raises WarehouseError."""


class _KeptWriter:
    """The writer of one file that a short run keeps open, with the lock file that others queue at, from one transaction
    to what follows at once: opening and closing take 25 ms, which a run of one sample would spend fourteen times.

    It is closed when nothing follows, or when it has been open for as long as anybody should wait. Whoever takes the
    connection holds the lock that the threads of this process take turns by.
    """

    def __init__(self, lock: threading.Lock, open_file: _Open) -> None:
        self._lock, self._open = lock, open_file
        self._held = ExitStack()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._timer: threading.Timer | None = None
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def has(self, connection: duckdb.DuckDBPyConnection) -> bool:
        return connection is self._connection

    @contextmanager
    def taken(self, deadline: float) -> Iterator[duckdb.DuckDBPyConnection]:
        """The connection for one transaction or read; what has failed on it is not handed on."""
        self._timer = None
        if self._connection is None:
            self._connection = self._held.enter_context(self._open(deadline))
            self._until = time.monotonic() + _LONGEST_S
        try:
            yield self._connection
        except BaseException:  # whatever the block raised, it may have left a transaction open
            self.close()
            raise
        if time.monotonic() < self._until:
            self._wait()
        else:
            self.close()

    def close(self) -> None:
        """Let others have the file."""
        self._timer = self._connection = None
        self._held.close()

    def _wait(self) -> None:
        self._timer = timer = threading.Timer(_IDLE_S, lambda: self._close_if_idle(timer))
        timer.daemon = True
        timer.start()

    def _close_if_idle(self, timer: threading.Timer) -> None:
        with self._lock:
            if self._timer is timer:  # and nobody has come since
                self.close()


_kept_writers: dict[Path, _KeptWriter] = {}
"""By path, those of the runs that are within `writer_kept`."""


class _KeptReader:
    """The reader of one file that this thread keeps open from one read to the next."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._path, self._until = Path(), 0.0

    def get(self, location: Location, *, deadline: float) -> duckdb.DuckDBPyConnection:
        if self._connection is None or self._path != location.path or time.monotonic() > self._until:
            self.close()
            with _thread_lock(location, deadline):
                _end_writing(location)
                self._connection = _connect(location, read_only=True, deadline=deadline)
            self._path, self._until = location.path, time.monotonic() + _KEPT_S
        return self._connection

    def has(self, connection: duckdb.DuckDBPyConnection) -> bool:
        return connection is self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_kept: ContextVar[_KeptReader | None] = ContextVar("kept", default=None)


@contextmanager
def readers_kept() -> Iterator[None]:
    """Keep a file that was read open for the next read within this block; whatever else opens it closes it first.

    For what does nothing but read, one thing after another.
    """
    if _kept.get() is not None:
        yield
        return
    kept = _KeptReader()
    token = _kept.set(kept)
    try:
        yield
    finally:
        _kept.reset(token)
        kept.close()


_served: dict[Path, SharedReader] = {}


@contextmanager
def serving_reads(location: Location) -> Iterator[None]:
    """Within this block all threads of this process read a warehouse through one open file (`shared`)."""
    if location.lake is not None:
        with more_readers(location.lake):
            yield
        return
    if location.path in _served:
        yield
        return
    reader = SharedReader(location.path, location.lock_path, partial(_open_to_serve, location))
    _served[location.path] = reader
    try:
        yield
    finally:
        del _served[location.path]
        reader.close()


@contextmanager
def reading_apart(location: Location, *, patience_s: float = 10.0) -> Iterator[None]:
    """Let another process read on behalf of this one, which keeps no writer open then.

    Where this one serves pages, the other begins in a moment in which no writer waits."""
    deadline = time.monotonic() + patience_s
    if (reader := _served.get(location.path)) is not None:
        with reader.apart(deadline):
            yield
    elif location.lake is None:
        _let_go()
        with _thread_lock(location, deadline):
            _end_writing(location)
            yield
    else:
        yield


def _open_to_serve(location: Location, deadline: float) -> duckdb.DuckDBPyConnection:
    # Without the thread's lock: who writes in this process takes that first and then the lock file, which is held here.
    if not _is_file(location):
        raise _miss(location)
    connection = _connect(location, config=_FOR_SERVING, read_only=True, deadline=deadline)
    connection.execute("set lock_configuration = true")
    return connection


@contextmanager
def writer_kept(location: Location) -> Iterator[None]:
    """Within this block a file that was written stays open for what writes or reads it next, if that comes at once."""
    path = location.path.resolve()
    if location.lake is not None or path in _kept_writers:
        yield
        return
    kept = _KeptWriter(_find_thread_lock(location), partial(_open_file, location))
    _kept_writers[path] = kept
    try:
        yield
    finally:
        with _find_thread_lock(location):
            kept.close()
            del _kept_writers[path]


def _end_writing(location: Location) -> None:
    """Close what is kept of a file, for who opens it otherwise; with the thread's lock."""
    if (kept := _kept_writers.get(location.path.resolve())) is not None:
        kept.close()


def _let_go() -> None:
    if (kept := _kept.get()) is not None:
        kept.close()


@contextmanager
def open_writer(location: Location, *, patience_s: float, waits: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the file for one transaction and make it where there is none.

    Raises WarehouseBusy when others keep it longer than `patience_s` and the caller's run does not wait for them
    (`waiting`; with `waits` false none does), WarehouseUnwritable, or WarehouseError for what is not a warehouse.
    """
    with ExitStack() as stack:

        def attempt(seconds: float) -> duckdb.DuckDBPyConnection:
            return stack.enter_context(_open_writer(location, seconds))

        yield _enter(attempt, patience_s) if waits else attempt(patience_s)


def _enter(attempt: Callable[[float], duckdb.DuckDBPyConnection], patience_s: float) -> duckdb.DuckDBPyConnection:
    seconds = min(patience_s, ATTEMPT_S)
    try:
        return attempt(seconds)
    except WarehouseBusy as busy:
        return try_again(busy, attempt, tried_s=seconds, patience_s=patience_s)


@contextmanager
def _open_writer(location: Location, patience_s: float) -> Iterator[duckdb.DuckDBPyConnection]:
    if location.lake is not None:
        with open_lake_writer(location, location.lake, patience_s=patience_s) as connection:
            yield connection
        return
    _let_go()
    if _served:
        end_reading()
    deadline = time.monotonic() + patience_s
    _make_folder(location)
    with _thread_lock(location, deadline):
        kept = _kept_writers.get(location.path.resolve())
        with kept.taken(deadline) if kept is not None else _open_file(location, deadline) as connection:
            yield connection


@contextmanager
def _open_file(location: Location, deadline: float) -> Iterator[duckdb.DuckDBPyConnection]:
    """Queue at the lock file and open the file for writing."""
    with _process_lock(location, deadline):
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

    A caller that changes settings of the connection asks for its own (`is_own`): of a lake it may be used again.
    """
    with ExitStack() as stack:
        yield _enter(lambda seconds: stack.enter_context(_open_reader(location, is_own, seconds)), patience_s)


@contextmanager
def _open_reader(location: Location, is_own: bool, patience_s: float) -> Iterator[duckdb.DuckDBPyConnection]:
    if location.lake is not None:
        with open_lake_reader(location, location.lake, patience_s=patience_s, is_own=is_own) as connection:
            yield connection
        return
    if not _is_file(location):
        raise _miss(location)
    deadline = time.monotonic() + patience_s
    if (shared := _served.get(location.path)) is not None:
        if is_own:
            # DuckDB would give it the shared instance, and what it sets there would hold for all.
            raise WarehouseBusy(f"{location.path} is being served; open it in another process", who="own code")
        with shared.query(deadline) as connection:
            yield connection
        return
    if not is_own and (kept := _kept.get()) is not None:
        try:
            yield kept.get(location, deadline=deadline)
        except BaseException:  # what is amiss with it is not handed on
            kept.close()
            raise
        return
    _let_go()
    with _thread_lock(location, deadline):
        writer = _kept_writers.get(location.path.resolve())
        if writer is not None and writer.is_open and not is_own:
            with writer.taken(deadline) as connection:
                yield connection
            return
        _end_writing(location)
        connection = _connect(location, read_only=True, deadline=deadline)
        try:
            yield connection
        finally:
            connection.close()


def explain_failure(location: Location, error: duckdb.Error) -> WarehouseError:
    """DuckDB's error as one of ours, in one line: WarehouseUnwritable where the disk or its rights are to blame."""
    text = first_line(str(error))
    if isinstance(error, duckdb.InterruptException):
        return WarehouseBusy(f"{location.name} is being written, and a query was stopped that took too long beside it")
    if location.lake is not None and is_broken_off(location.lake, error):
        return WarehouseUnreachable(f"the catalogue of {location.name} has gone ({text}); is its server up?")
    # The path is the user's own words and may hold any of ours.
    if _UNWRITABLE.search(text.replace(str(location.path), "")):
        return WarehouseUnwritable(f"{location.name} cannot be written: {text}; make room, or name another place")
    kind = RowsRefused if isinstance(error, _REFUSALS) else WarehouseError
    return kind(f"{location.name}: {text}")


def _is_file(location: Location) -> bool:
    try:
        if location.path.is_dir():
            raise WarehouseError(
                f"{location.path} is a folder; name a file in it, such as {location.path / 'evalhouse.duckdb'}"
            )
        return location.path.exists()
    except OSError as error:
        raise WarehouseError(f"cannot reach {location.path}: {error.strerror or error}") from None


def _miss(location: Location) -> WarehouseMissing:
    return WarehouseMissing(
        f"there is no warehouse at {location.path}; `evalhouse run` makes one, --warehouse names another"
    )


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
    lock = _find_thread_lock(location)
    if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise WarehouseBusy(f"this process is still busy with {location.path}", who="own thread")
    try:
        yield
    finally:
        lock.release()


def _find_thread_lock(location: Location) -> threading.Lock:
    with _path_locks_guard:
        return _path_locks.setdefault(location.path.resolve(), threading.Lock())


@contextmanager
def _process_lock(location: Location, deadline: float) -> Iterator[None]:
    """Its file stays, for those who take the lock all the time."""
    lock = FileLock(location.lock_path, thread_local=False)  # what is kept may be let go by another thread
    try:
        lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
    except Timeout:
        raise WarehouseBusy(f"another evalhouse is writing to {location.path} and did not let go in time") from None
    except OSError as error:
        raise WarehouseUnwritable(f"cannot write {location.lock_path}: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()


def _connect(
    location: Location, *, read_only: bool, deadline: float, config: _Config | None = None
) -> duckdb.DuckDBPyConnection:
    config = dict(config or (_OFFLINE if read_only else _FOR_WRITING))
    while True:
        who: Literal["others", "own code"] = "others"
        try:
            return duckdb.connect(str(location.path), read_only=read_only, config=config)
        except duckdb.ConnectionException:
            # With a connection of another configuration.
            holder, who = "other code of this very process", "own code"
        except duckdb.Error as error:
            holder = _find_holder(str(error))
            if not holder:
                raise _explain_refusal(location, error) from None
        if time.monotonic() >= deadline:
            raise WarehouseBusy(f"{location.path} is kept open by {holder}; close it there", who=who)
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
        f"name another file with {name_setting('warehouse')}"
    )
