"""A DuckLake warehouse: tables as Parquet files in a folder or a bucket, their catalogue in PostgreSQL or SQLite.

Every connection is a separate in-memory DuckDB with the lake attached and made the default, so that the caller sees the
same tables as in a plain file. Any number of processes on any number of machines may read and write; a writer takes a
lock first (`locks`), because DuckLake lets two racing transactions of one batch both commit, and refuses one of two
that change the same rows.

Opening takes a tenth of a second, in which DuckLake reads all of the catalogue, and a query or a commit then a
fiftieth. So a process keeps a connection for the next caller; it sees the later commits of others.

The extensions come as wheels (`pip install evalhouse[lake]`) and are loaded by path: nothing is downloaded.
"""

import contextlib
import ctypes
import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import duckdb

from evalhouse.warehouse.engine.locks import hold
from evalhouse.warehouse.errors import WarehouseError, WarehouseUnreachable, explain_missing, first_line
from evalhouse.warehouse.location import Lake, Location

_CATALOGUES = {"postgres": "postgres_scanner", "sqlite": "sqlite_scanner"}
NAME: Final = "evalhouse"
FORGETTING: Final = "forgotten"
"""The message of a snapshot before which none may stay: rows were forgotten with it."""
_RETRY_S = 0.2
_BUSY_MS = 10_000
# One thread and little memory for writers, as for a plain file; connections that serve pages have several threads.
_FOR_WRITING: Mapping[str, str | int] = {"threads": 1, "memory_limit": "384MB"}
_MOVED = "override_data_path true"
_OTHER_PLACE = re.compile('does not match existing data path in the catalog "(.+?)/?"')
_NO_LAKE = ("does not exist", "no such table", "unable to open database")
_UNREACHABLE = ("unable to connect", "could not connect", "connection refused", "server closed", "timeout expired")
# The messages when the server ends during a query. The last ones are about no answer at all, which DuckLake takes for
# an empty one, and about what DuckDB can do no more after that.
_BROKEN_OFF = (
    *_UNREACHABLE, "terminating connection", "no connection to the server", "unsuccessful query result",
    "index 0 within vector of size 0", 'failed to execute query "rollback"', "current transaction is aborted",
)  # fmt: skip

Check = Callable[[duckdb.DuckDBPyConnection, Location], None]
"""Raises WarehouseError for a lake that is not to be opened; called with each new connection to it."""

_checked: set[str] = set()
"""The extensions that this process has loaded. DuckDB checks their signatures, which takes a third of a second, and the
system gives the next connection the very code that was checked."""


@contextmanager
def open_lake_writer(
    location: Location, lake: Lake, *, patience_s: float, check: Check
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection for one transaction, the only one that changes rows until it is closed.

    Raises WarehouseBusy when others write for longer than `patience_s`, WarehouseUnreachable when the catalogue does
    not answer for so long, and WarehouseError.
    """
    deadline = time.monotonic() + patience_s
    for folder in [location.path.parent, *([] if lake.is_remote else [Path(lake.data)])]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WarehouseError(f"cannot make the folder {folder}: {error.strerror or error}") from None
    busy = f"another evalhouse is writing to {location.name} and did not end in time"
    with hold(location, "write", patience_s=patience_s, busy=busy):
        connect = partial(_connect, location, lake, check=check, read_only=False, deadline=deadline)
        with borrow_connection(lake, read_only=False, connect=connect) as connection:
            yield connection


@contextmanager
def open_lake_reader(
    location: Location, lake: Lake, *, patience_s: float, check: Check, is_own: bool = False
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a connection that reads; raises WarehouseMissing, WarehouseUnreachable or WarehouseError.

    With `is_own` it is a new one that is closed afterwards, so that its settings may be changed.
    """
    deadline = time.monotonic() + patience_s
    connect = partial(_connect, location, lake, check=check, read_only=True, is_own=is_own, deadline=deadline)
    if is_own:
        with contextlib.closing(connect()) as connection:
            yield connection
        return
    with borrow_connection(lake, read_only=True, connect=connect) as connection:
        yield connection


def is_broken_catalogue(error: BaseException) -> bool:
    """Return whether an error of DuckDB reports that the catalogue's server has gone."""
    return isinstance(error, duckdb.Error) and any(word in str(error).lower() for word in _BROKEN_OFF)


def describe_commit(connection: duckdb.DuckDBPyConnection, run_id: str | None) -> None:
    """Name the snapshot of the open transaction after the run it belongs to and that run's flow run."""
    if run_id is None:
        return
    row = connection.execute("select flow_run_id from runs where run_id = ?", [run_id]).fetchone()
    flow_run = f", flow run {row[0]}" if row and row[0] else ""
    connection.execute(f"call {NAME}.set_commit_message('evalhouse', ?)", [f"run {run_id}{flow_run}"])


def _connect(
    location: Location, lake: Lake, *, check: Check, read_only: bool, deadline: float, is_own: bool = False
) -> duckdb.DuckDBPyConnection:
    names = ("ducklake", _CATALOGUES[lake.catalogue], *(["httpfs"] if lake.is_remote else []))
    paths = [find_extension(name) for name in names]
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "temp_directory": str(location.spill_path),
        # A connection for foreign SQL loads only signed extensions.
        "allow_unsigned_extensions": not is_own and _checked.issuperset(paths),
        **({} if read_only else _FOR_WRITING),
    }
    connection = duckdb.connect(config=config)
    try:
        for path in paths:
            connection.execute(f"load '{_quote(path)}'")
        _checked.update(paths)
        if lake.is_remote:
            # The AWS variables, for this connection alone and for this bucket alone.
            endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
            address = urlsplit(endpoint)
            options = {
                "key_id": os.environ.get("AWS_ACCESS_KEY_ID", ""),
                "secret": os.environ.get("AWS_SECRET_ACCESS_KEY", ""),
                "session_token": os.environ.get("AWS_SESSION_TOKEN", ""),
                "region": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION", ""),
                "endpoint": f"{address.netloc}{address.path}".rstrip("/"),
                # An endpoint other than Amazon's seldom has a host name for each bucket.
                "url_style": "path" if endpoint else "",
            }
            named = "".join(f", {name} '{_quote(value)}'" for name, value in options.items() if value)
            plain = ", use_ssl false" if address.scheme == "http" else ""
            connection.execute(f"create secret lake_files (type s3, scope '{_quote(lake.data)}'{named}{plain})")
        _attach(connection, location, lake, read_only=read_only, deadline=deadline)
        connection.execute(f"use {NAME}")
        check(connection, location)
    except BaseException as error:  # also Ctrl-C: no caller may get an incomplete connection
        connection.close()
        if is_broken_catalogue(error):
            raise WarehouseUnreachable(
                f"the catalogue of {location.name} has gone ({first_line(str(error))}); is its server up?"
            ) from None
        raise
    return connection


def _attach(
    connection: duckdb.DuckDBPyConnection, location: Location, lake: Lake, *, read_only: bool, deadline: float
) -> None:
    """Attach the lake, waiting for a catalogue that does not answer until the deadline.

    A lake whose folder was moved is read and written where it is now, since paths in the catalogue are relative; unless
    its files are still at the old place too.
    """
    options = [f"data_path '{_quote(lake.data)}'", *(["read_only"] if read_only else [])]
    if lake.catalogue == "sqlite":
        if read_only and not Path(lake.dsn).exists():
            raise explain_missing(location.name)
        options += [f"meta_busy_timeout {_BUSY_MS}"] + ([] if read_only else ["meta_journal_mode 'wal'"])
    attach = f"attach 'ducklake:{lake.catalogue}:{_quote(lake.dsn)}' as {NAME}"
    while True:
        try:
            connection.execute(f"{attach} ({', '.join(options)})")
            return
        except duckdb.Error as error:
            if other := _OTHER_PLACE.search(str(error)):
                was_moved = (Path(lake.data) / "main").is_dir() and not Path(other[1]).exists()
                if "://" in other[1] or not was_moved or _MOVED in options:
                    raise WarehouseError(
                        f"the files of this lake are at {other[1]}, by its catalogue, and not at {lake.data}; correct "
                        "`data=` in its address, or move the folder"
                    ) from None
                options.append(_MOVED)
                continue
            text = str(error).lower()
            if read_only and "ducklake" in text and any(word in text for word in _NO_LAKE):
                raise explain_missing(location.name) from None
            if not any(word in text for word in _UNREACHABLE):
                raise WarehouseError(f"{location.name} cannot be opened: {first_line(str(error))}") from None
            if time.monotonic() >= deadline:
                raise WarehouseUnreachable(
                    f"the catalogue of {location.name} does not answer ({first_line(str(error))}); is the server up, "
                    "and is its address right?"
                ) from None
        time.sleep(_RETRY_S)


def find_extension(name: str) -> str:
    """Return the path of an extension's file in its wheel; raises WarehouseError that names what to install."""
    try:
        package = importlib.import_module(f"duckdb_extension_{name}")
    except ImportError:
        raise WarehouseError(
            f"a DuckLake warehouse needs the DuckDB extension {name!r}; install it with `pip install 'evalhouse[lake]'`"
        ) from None
    folder = Path(str(package.__file__)).parent / "extensions" / f"v{duckdb.__version__}"
    path = next(iter(folder.glob("*.duckdb_extension")), None)
    if path is None:
        raise WarehouseError(
            f"the DuckDB extension {name!r} that is installed is not for DuckDB {duckdb.__version__}; install both in "
            f"one version, such as `pip install 'evalhouse[lake]'` does"
        )
    return str(path)


def _quote(text: str) -> str:
    return text.replace("'", "''")


# The tables of the catalogue with rows that are in no file yet. A connection continues to look in the ones it knew, and
# compaction removes some of them. The query also fails where the server is gone.
_PROBE: Final = f"select count(*), bit_xor(hash(t)) from __ducklake_metadata_{NAME}.ducklake_inlined_data_tables as t"
# Of each lake. Each has two connections to PostgreSQL, whose default limit is a hundred.
_MAX_IDLE: Final = 4


@dataclass(frozen=True, kw_only=True)
class _Key:
    """The properties in which two interchangeable connections agree; a forked process may not use its parent's."""

    lake: Lake
    read_only: bool
    catalogue: tuple[int, int] | None  # device and inode of a catalogue's file: another file may get its name
    pid: int


_Kept = tuple[duckdb.DuckDBPyConnection, object]
"""An idle connection, and the tables in the catalogue as it has seen them."""
_idle: dict[_Key, list[_Kept]] = {}
_guard = threading.Lock()


@contextmanager
def borrow_connection(
    lake: Lake, *, read_only: bool, connect: Callable[[], duckdb.DuckDBPyConnection]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Give an idle connection that is still good, or else a new one; it is kept again unless the block raises.

    The caller leaves no table, no frame and no setting behind. For writing, the lake's lock is held.
    """
    key = _find_key(lake, read_only=read_only)
    connection, known = None, None
    while connection is None:
        with _guard:
            kept = _idle[key].pop() if _idle.get(key) else None
        if kept is None:
            connection = connect()
            known = _probe(connection)
        elif kept[1] is not None and _probe(kept[0]) == kept[1]:
            connection, known = kept
        else:
            kept[0].close()
    key = _find_key(lake, read_only=read_only)  # the first writer makes the catalogue's file
    try:
        yield connection
    except BaseException:  # after any error a transaction may be open
        # Closing would end it, and DuckDB's extension aborts the process where PostgreSQL does not answer that.
        is_fatal = False
        try:
            connection.rollback()
        except duckdb.Error as error:
            is_fatal = isinstance(error, duckdb.FatalException)
        if is_fatal:  # closing aborts in this case too, so it is never collected
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        else:
            connection.close()
        raise
    if not read_only:  # a writer may have made such tables
        known = _probe(connection)
    with _guard:
        idle = _idle.setdefault(key, [])
        if len(idle) < (_MAX_IDLE if read_only else 1):
            idle.append((connection, known))
            return
    connection.close()


def _probe(connection: duckdb.DuckDBPyConnection) -> object | None:
    """Return the state of the tables in the catalogue; None where it does not answer."""
    try:
        # All rows, so that the query ends, and with it its transaction in the catalogue.
        return connection.execute(_PROBE).fetchall()
    except duckdb.Error:
        return None


def _find_key(lake: Lake, *, read_only: bool) -> _Key:
    catalogue = None
    if lake.catalogue == "sqlite":
        with contextlib.suppress(OSError):
            status = os.stat(lake.dsn)
            catalogue = (status.st_dev, status.st_ino)
    return _Key(lake=lake, read_only=read_only, catalogue=catalogue, pid=os.getpid())
