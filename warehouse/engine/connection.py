"""Short-lived connections to a warehouse: a DuckDB file here, a lake in `lake`.

A writer opens the file, commits one transaction and closes it, so that an analyst can read between two batches of a
running evaluation. A command or a page of the ui, which reads several times, keeps one connection for at most a second
(`one_reader`), because opening takes longer than most of its reads. evalhouse's writers queue behind a lock file,
because bare retries on DuckDB's lock starve one of them for seconds, and readers let the writer that holds it go first.
Within a process a lock per path keeps read-only and read-write openings apart, which DuckDB refuses to mix. A table of
any other DuckDB file, such as the log of a bot, is read in the same way (`read_table`).
"""

import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import duckdb
import polars as pl
from filelock import FileLock, Timeout

from evalhouse.warehouse.engine.locks import ATTEMPT_S, Scratch, find_scratch, try_again
from evalhouse.warehouse.errors import (
    RowsRefused,
    WarehouseBusy,
    WarehouseError,
    WarehouseUnreachable,
    WarehouseUnwritable,
    explain_missing,
    first_line,
)
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.messages import name_setting
from evalhouse.warehouse.queries import read_query

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
    "memory_limit": "384MB",
}
VECTOR_ROWS: Final = 2_048
"""DuckDB decompresses so many rows of a row group to read one of them: a gigabyte where a row has half a megabyte. So
the row groups of long texts are not merged. Merging them also takes time in the square of their bytes."""
MAX_COMMIT_BYTES: Final = 32_000_000
"""The texts that one transaction can hold."""
_MERGED_BYTES: Final = 8_000_000  # in smaller files any row groups may be merged
_RETRY_S = 0.05
# A kept reader delays writers by no more than this and its current query.
_KEPT_S = 1.0
# How long a reader waits for a writer that is waiting for the file itself: another program may hold it open for hours.
_LET_FIRST_S = 2.0

_HOLDER = re.compile(r"Conflicting lock is held in (.+? \(PID \d+\))")
_UNWRITABLE = re.compile(
    r"could not write|no space left|file too large|quota exceeded|permission denied|read-only file system"
    r"|operation not permitted|input/output error",
    re.IGNORECASE,
)

# A number out of its column's range, a missing value, a text that is not valid UTF-8, or more than the memory holds.
_REFUSALS = (duckdb.DataError, duckdb.IntegrityError, duckdb.InvalidInputException, duckdb.OutOfMemoryException)

# The table functions of DuckDB that a view may call. Others read files, run a text as SQL, or change settings that no
# lock protects: in DuckDB 1.5 logging to a forbidden place ends the process.
_HARMLESS: Final = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "unnest"})
_WORD = re.compile(r'"(?:[^"]|"")*"|\w+|\S')
# With the schema, because the macros of a file come before DuckDB's functions.
_CATALOG: Final = """
    select database_name, 'view' as kind, view_name as name, sql from system.main.duckdb_views()
    union all
    select database_name, function_type, function_name, macro_definition from system.main.duckdb_functions()
"""
# The tables and views of a file, and whether each is a view.
_TABLES: Final = """
    select schema_name, table_name, false from system.main.duckdb_tables()
    union all
    select schema_name, view_name, true from system.main.duckdb_views() where database_name <> 'system'
    order by all
"""

_checked: dict[Path, tuple[int, ...]] = {}
"""The state of each file when its views were checked, or when this process had written it."""
_path_locks: dict[Path, threading.Lock] = {}
_path_locks_guard = threading.Lock()


@contextmanager
def needing_room(where: str) -> Iterator[None]:
    """Raise WarehouseUnwritable where this block cannot write temporary files; `where` has their folder and purpose."""
    try:
        yield
    except (OSError, pl.exceptions.ComputeError) as error:  # Polars raises ComputeError for a full disk
        advice = "make room, or name another folder in TMPDIR"
        raise WarehouseUnwritable(f"no room {where} ({first_line(str(error))}); {advice}") from None


@contextmanager
def lending(connection: duckdb.DuckDBPyConnection, frames: Mapping[str, pl.DataFrame]) -> Iterator[None]:
    """Make frames readable by SQL, by these names, within this block; raises WarehouseUnwritable.

    They go through Parquet files: `register` imports pyarrow with its datasets, which takes 50 MB of memory.
    """
    if not frames:
        yield
        return
    with ExitStack() as stack:
        with needing_room(f"in {tempfile.gettempdir()} for the rows"):
            folder = stack.enter_context(closing(Scratch())).folder
            for name, frame in frames.items():
                frame.write_parquet(folder / f"{name}.parquet", compression="uncompressed")
        for name in frames:
            path = str(folder / f"{name}.parquet").replace("'", "''")
            connection.execute(f"create or replace temp view {name} as from read_parquet('{path}')")
        yield
        for name in frames:
            connection.execute(f"drop view {name}")


def to_frame(relation: duckdb.DuckDBPyRelation) -> pl.DataFrame:
    """Return the rows of a query as a frame; raises duckdb.Error.

    Through Arrow's C interface: `pl()` imports pyarrow, which takes 35 MB of memory and 0.1 s.
    """
    try:
        return pl.DataFrame(relation)
    except pl.exceptions.ComputeError:
        relation.fetchall()  # fails with DuckDB's own error
        raise


class _KeptReader:
    """The reader of one file that is kept open from one read to the next."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._path, self._until = Path(), 0.0
        self.is_over = False

    def get(self, location: Location, *, deadline: float) -> duckdb.DuckDBPyConnection:
        if self._connection is None or self._path != location.path or time.monotonic() > self._until:
            self.close()
            with _thread_lock(location, deadline):
                self._connection = _connect_reader(location, deadline)
                _check_once(self._connection, location)
                shut_in(self._connection, find_scratch())
            self._path, self._until = location.path, time.monotonic() + _KEPT_S
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def end(self) -> None:
        """Close it and keep no other."""
        self.is_over = True
        self.close()


_kept: ContextVar[_KeptReader | None] = ContextVar("kept", default=None)


@contextmanager
def one_reader() -> Iterator[Callable[[], None]]:
    """Within this block the reads of a file share one connection; a writer that is opened closes it first.

    Gives a function that ends this before the block ends. For a block that only reads, in one thread at a time.
    """
    if (outer := _kept.get()) is not None and not outer.is_over:
        yield outer.end
        return
    kept = _KeptReader()
    token = _kept.set(kept)
    try:
        yield kept.end
    finally:
        _kept.reset(token)
        kept.end()


def close_kept() -> None:
    """Close the connection that reads of this thread share until its next read: only the last connection of a process
    to a file gives DuckDB's memory back."""
    if (kept := _kept.get()) is not None:
        kept.close()


@contextmanager
def open_writer(location: Location, *, patience_s: float, waits: bool = True) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the file for one transaction and make it where it is missing.

    Raises WarehouseBusy when others keep it longer than `patience_s` and the caller's run does not wait for them
    (`waiting_for_others`; with `waits` false none does), WarehouseUnwritable, or WarehouseError for another kind of
    file.
    """
    with ExitStack() as stack:

        def attempt(seconds: float) -> duckdb.DuckDBPyConnection:
            return stack.enter_context(_open_writer(location, seconds))

        yield _attempt(attempt, patience_s) if waits else attempt(patience_s)


@contextmanager
def open_reader(
    location: Location, *, patience_s: float = 10.0, is_own: bool = False, is_warehouse: bool = True
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open the file read-only; raises WarehouseMissing, WarehouseBusy, or WarehouseError for another kind of file.

    A caller that changes settings of the connection asks for a separate one (`is_own`): others may be used again. Views
    of a file that is not a warehouse are for the caller to check.
    """
    with ExitStack() as stack:
        yield _attempt(
            lambda seconds: stack.enter_context(_open_reader(location, is_own, is_warehouse, seconds)), patience_s
        )


def _attempt(attempt: Callable[[float], duckdb.DuckDBPyConnection], patience_s: float) -> duckdb.DuckDBPyConnection:
    seconds = min(patience_s, ATTEMPT_S)
    try:
        return attempt(seconds)
    except WarehouseBusy as busy:
        return try_again(busy, attempt, tried_s=seconds, patience_s=patience_s)


@contextmanager
def _open_writer(location: Location, patience_s: float) -> Iterator[duckdb.DuckDBPyConnection]:
    if location.lake is not None:
        from evalhouse.warehouse.engine.lake import open_lake_writer  # noqa: PLC0415  # few warehouses are lakes

        with open_lake_writer(location, location.lake, patience_s=patience_s, check=check_views) as connection:
            yield connection
        return
    if (kept := _kept.get()) is not None:
        kept.close()
    deadline = time.monotonic() + patience_s
    try:
        location.path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WarehouseUnwritable(f"cannot make the folder {location.path.parent}: {error.strerror or error}") from None
    with _thread_lock(location, deadline):
        # Queue at the lock file, which stays for the writers that take it all the time.
        lock = FileLock(location.lock_path, thread_local=False)  # another thread may release a kept one
        try:
            lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        except Timeout:
            raise WarehouseBusy(f"another evalhouse is writing to {location.path} and did not end in time") from None
        except OSError as error:
            raise WarehouseUnwritable(f"cannot write {location.lock_path}: {error.strerror or error}") from None
        try:
            if not _is_file(location):
                _make_file(location)
            with closing(_connect(location, read_only=False, deadline=deadline)) as connection:
                _check_once(connection, location)
                if location.path.stat().st_size > _MERGED_BYTES and _are_groups_apart(connection):
                    keep_groups_apart(connection)
                yield connection
            with suppress(FileNotFoundError):  # it was deleted meanwhile
                _checked[location.path] = _read_state(location.path)
        finally:
            lock.release()


@contextmanager
def _open_reader(
    location: Location, is_own: bool, is_warehouse: bool, patience_s: float
) -> Iterator[duckdb.DuckDBPyConnection]:
    if location.lake is not None:
        from evalhouse.warehouse.engine.lake import open_lake_reader  # noqa: PLC0415  # few warehouses are lakes

        with open_lake_reader(
            location, location.lake, patience_s=patience_s, check=check_views, is_own=is_own
        ) as connection:
            if not is_own:
                shut_in(connection, location.lake.data, find_scratch())
            yield connection
        return
    if not _is_file(location):
        raise explain_missing(location.name)
    deadline = time.monotonic() + patience_s
    if not is_own and (kept := _kept.get()) is not None and not kept.is_over:
        try:
            yield kept.get(location, deadline=deadline)
        except BaseException:  # after an error the next reader opens another one
            kept.close()
            raise
        return
    if (kept := _kept.get()) is not None:
        kept.close()
    with _thread_lock(location, deadline), closing(_connect_reader(location, deadline)) as connection:
        if is_warehouse:
            _check_once(connection, location)
        if not is_own:
            shut_in(connection, find_scratch())
        yield connection


def shut_in(connection: duckdb.DuckDBPyConnection, *folders: Path | str) -> None:
    """Let SQL read files of these folders alone, and no network: a view in the warehouse of anyone may name any.

    Connections that this process has to one file share this.
    """
    if connection.execute("select system.main.current_setting('enable_external_access')").fetchall() == [(True,)]:
        connection.execute("set allowed_directories = ?", [[f"{str(folder).rstrip('/')}/" for folder in folders]])
        connection.execute("set enable_external_access = false")


def split_words(sql: str) -> list[str]:
    """Return the words and signs of SQL as DuckDB splits it, in small letters, names without quotes, no comments."""
    text = sql.encode()
    words = []
    for (start, token), (end, _) in pairwise([*duckdb.tokenize(sql), (len(text), None)]):
        match = _WORD.match(text[start:end].decode(errors="replace"))
        if match and token != duckdb.token_type.comment:
            words.append(match[0].strip('"').lower())
    return words


def find_outreach(connection: duckdb.DuckDBPyConnection) -> str | None:
    """Return what may reach beyond the file, a view or a macro; None where nothing may.

    It only reads their texts: to bind some of them ends the process.
    """
    rows = connection.execute(_CATALOG).fetchall()
    built_in = {name for database, _, name, _ in rows if database == "system"}
    calls = {name for database, kind, name, _ in rows if (database, kind) == ("system", "table")} - _HARMLESS
    for database, kind, name, sql in rows:
        if database == "system":
            continue
        # To split the texts of all views takes a twentieth of a second.
        if not calls.isdisjoint(re.findall(r"\w+", sql.lower())):
            for word, after in pairwise(split_words(sql)):
                if after == "(" and word in calls:
                    return f"its {kind.replace('_', ' ')} {name} calls {word}"
        if kind != "view" and name.lower() in built_in:
            return f"its {kind.replace('_', ' ')} {name} has the name of a function of DuckDB"
    return None


def check_views(connection: duckdb.DuckDBPyConnection, location: Location) -> None:
    """Raise WarehouseError where a view or a macro may reach beyond the warehouse: anyone may have made it."""
    if outreach := find_outreach(connection):
        raise WarehouseError(
            f"{location.name} is not opened: {outreach}, and so may read or change other files; drop that in a DuckDB "
            f"client, or name another warehouse with {name_setting('warehouse')}"
        )


def _check_once(connection: duckdb.DuckDBPyConnection, location: Location) -> None:
    state = _read_state(location.path)
    if _checked.get(location.path) != state:
        check_views(connection, location)
        _checked[location.path] = state


def _read_state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def are_long(n_bytes: int, n_rows: int) -> bool:
    """Return whether as many of these rows as DuckDB reads at once have more bytes than one transaction can hold."""
    return n_bytes * VECTOR_ROWS > MAX_COMMIT_BYTES * n_rows


def keep_groups_apart(connection: duckdb.DuckDBPyConnection) -> None:
    """Let the checkpoints of a connection to a file merge no row groups."""
    connection.execute("set max_vacuum_tasks = 0")


def _are_groups_apart(connection: duckdb.DuckDBPyConnection) -> bool:
    """Return whether row groups of samples were kept apart; False for a file that has no samples."""
    try:
        return connection.execute(read_query("samples/are_apart")).fetchall() == [(True,)]
    except duckdb.CatalogException:
        return False


def explain_failure(location: Location, error: duckdb.Error) -> WarehouseError:
    """Return DuckDB's error as a WarehouseError of one line; WarehouseUnwritable where the disk or rights fail."""
    text = first_line(str(error))
    if location.lake is not None:
        from evalhouse.warehouse.engine.lake import is_broken_catalogue  # noqa: PLC0415

        if is_broken_catalogue(error):
            return WarehouseUnreachable(f"the catalogue of {location.name} has gone ({text}); is its server up?")
    # The path is chosen by the user and may hold any of these words.
    if _UNWRITABLE.search(text.replace(str(location.path), "")):
        return WarehouseUnwritable(f"{location.name} cannot be written: {text}; make room, or name another place")
    kind = RowsRefused if isinstance(error, _REFUSALS) else WarehouseError
    return kind(f"{location.name}: {text}")


def read_maker(location: Location) -> str | None:
    """Return the version of DuckDB that a file was last written by, such as `v2.0.1`; None for a lake.

    It is in the file's main header: 8 bytes of a checksum, `DUCK`, 8 of the storage's version, 32 of flags, and
    then 32 for the version.
    """
    if location.lake is not None:
        return None
    with location.path.open("rb") as file:
        header = file.read(84)
    return header[52:].rstrip(b"\0").decode("ascii", "replace")


def _is_file(location: Location) -> bool:
    try:
        if location.path.is_dir():
            raise WarehouseError(
                f"{location.path} is a folder; name a file in it, such as {location.path / 'evalhouse.duckdb'}"
            )
        return location.path.exists()
    except OSError as error:
        raise WarehouseError(f"cannot reach {location.path}: {error.strerror or error}") from None


def _make_file(location: Location) -> None:
    """Make an empty warehouse file under a temporary name: DuckDB cannot open one whose making was interrupted."""
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
        raise WarehouseBusy(f"this process is still busy with {location.path}", who="own thread")
    try:
        yield
    finally:
        lock.release()


def _connect_reader(location: Location, deadline: float) -> duckdb.DuckDBPyConnection:
    """Open the file for reading once the writer at the lock file has closed it, or has waited too long for it."""
    lock = FileLock(location.lock_path, thread_local=False)
    try:
        if not location.lock_path.exists():
            return _connect(location, read_only=True, deadline=deadline)
        lock.acquire(timeout=max(0.0, min(_LET_FIRST_S, deadline - time.monotonic())))
    except (Timeout, OSError):  # where the lock cannot be written, no writer waits
        return _connect(location, read_only=True, deadline=deadline)
    try:
        return _connect(location, read_only=True, deadline=deadline)
    finally:
        lock.release()


def _connect(location: Location, *, read_only: bool, deadline: float) -> duckdb.DuckDBPyConnection:
    """Connect as soon as no other connection is in the way; raises WarehouseBusy with the holder after the deadline."""
    config = dict(_OFFLINE if read_only else _FOR_WRITING)
    while True:
        who: Literal["others", "own code"] = "others"
        try:
            return duckdb.connect(str(location.path), read_only=read_only, config=config)
        except duckdb.ConnectionException:
            # With a connection of another configuration.
            holder, who = "other code of this very process", "own code"
        except duckdb.Error as error:
            text = str(error)
            if not text.startswith("IO Error: Could not set lock on file"):
                explained = explain_failure(location, error)
                if isinstance(explained, WarehouseUnwritable):
                    raise explained from None
                raise WarehouseError(
                    f"{location.path} is not a warehouse that DuckDB {duckdb.__version__} can open "
                    f"({first_line(text)}); name another file with {name_setting('warehouse')}"
                ) from None
            match = _HOLDER.search(text)
            holder = match[1] if match else "another program"
        if time.monotonic() >= deadline:
            raise WarehouseBusy(f"{location.path} is kept open by {holder}; close it there", who=who)
        time.sleep(_RETRY_S)


TableSourceReason = Literal["locked", "not_duckdb", "no_table", "unreadable"]


class TableSourceError(Exception):
    """A table that cannot be read; `reason` is the kind of fault, `tables` the existing ones (for `no_table`)."""

    def __init__(self, reason: TableSourceReason, detail: str, *, tables: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.reason = reason
        self.tables = tables


def read_table(
    path: Path,
    table: str,
    *,
    batch_size: int,
    open_columns: Callable[[Mapping[str, Any]], Callable[[dict[str, Any]], dict[str, Any]]],
    patience_s: float = 5.0,
) -> Iterator[list[dict[str, object]]]:
    """Yield the rows of `table` (`name` or `schema.name`, a view as well) of a DuckDB file as dictionaries.

    `open_columns` returns, for the types of DuckDB by column, the function that each row is read by.

    A file that another process writes is waited for `patience_s` seconds. The iterator holds a lock of the
    thread it is started in: start, drive and close it there. Raises TableSourceError.
    """
    try:
        location = Location(path=path.absolute())
        with open_reader(location, patience_s=patience_s, is_own=True, is_warehouse=False) as connection:
            shut_in(connection)
            # DuckDB would otherwise keep up to four fifths of the machine's memory as a cache of pages read once.
            connection.execute("set memory_limit = '256MB'")
            # The schema may be left out where it is `main`.
            tables: dict[str, tuple[str, bool]] = {}
            for schema, name, is_view in connection.execute(_TABLES).fetchall():
                quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name))
                tables[name if schema == "main" else f"{schema}.{name}"] = quoted, is_view
            if table.removeprefix("main.") not in tables:
                raise TableSourceError("no_table", f"no table {table!r}", tables=tuple(tables))
            quoted, is_view = tables[table.removeprefix("main.")]
            if is_view and (outreach := find_outreach(connection)):
                raise TableSourceError("unreadable", f"{outreach}, and so may read or change other files")
            rows = connection.sql(f"select * from {quoted}")
            columns = rows.columns
            open_row = open_columns(dict(zip(columns, rows.types, strict=True)))
            while batch := rows.fetchmany(batch_size):
                yield [open_row(dict(zip(columns, row, strict=True))) for row in batch]
    except WarehouseBusy as error:
        raise TableSourceError("locked", str(error)) from error
    except WarehouseError as error:
        raise TableSourceError("not_duckdb", str(error)) from error
    except duckdb.Error as error:
        raise TableSourceError("unreadable", str(error).splitlines()[0]) from error
