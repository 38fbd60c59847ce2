"""Connections to lakes that a process keeps after use, for whoever opens the same lake next."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import duckdb

from evalhouse.warehouse.location import Lake

NAME: Final = "evalhouse"
"""What the attached lake is called in its connections."""

# Which tables of the catalogue hold rows that are in no file yet. A connection goes on looking in those it knew, and
# compaction takes some of them away. Having to ask the catalogue, it fails as well where the server is gone.
_PROBE: Final = f"select count(*), bit_xor(hash(t)) from __ducklake_metadata_{NAME}.ducklake_inlined_data_tables as t"
# Of each lake, for reading as for writing. Each has two connections to PostgreSQL, which allows a hundred by itself.
_MOST_IDLE: Final = 1


@dataclass(frozen=True, kw_only=True)
class _Key:
    """What makes two connections interchangeable. A forked process must not use those of its parent."""

    lake: Lake
    read_only: bool
    catalogue: tuple[int, int] | None  # which file it is, where it is one: another may have taken its name
    pid: int


@dataclass(frozen=True, kw_only=True)
class _Kept:
    connection: duckdb.DuckDBPyConnection
    knows: object | None  # what it was told of the tables in the catalogue


_idle: dict[_Key, list[_Kept]] = {}
_guard = threading.Lock()


@contextmanager
def borrow_connection(
    lake: Lake, *, read_only: bool, connect: Callable[[], duckdb.DuckDBPyConnection]
) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that was kept and is still good, or else a new one; kept in turn unless the block raises.

    Whoever borrows it leaves no table, no frame and no setting behind. For writing, the lake's lock is held.
    """
    kept = _take(_find_key(lake, read_only=read_only)) or _make(connect)
    key = _find_key(lake, read_only=read_only)  # whoever writes first makes the catalogue's file
    try:
        yield kept.connection
    except BaseException:
        kept.connection.close()  # with the transaction that may be open
        raise
    # Whoever writes may have made such tables.
    _give_back(key, kept if read_only else _Kept(connection=kept.connection, knows=_probe(kept.connection)))


def _make(connect: Callable[[], duckdb.DuckDBPyConnection]) -> _Kept:
    connection = connect()
    return _Kept(connection=connection, knows=_probe(connection))


def _probe(connection: duckdb.DuckDBPyConnection) -> object | None:
    """What the catalogue says; None where it says nothing any more."""
    try:
        # All rows, so that the query is over, and with it its transaction in the catalogue.
        return connection.execute(_PROBE).fetchall()
    except duckdb.Error:
        return None


def _find_key(lake: Lake, *, read_only: bool) -> _Key:
    catalogue = None
    if lake.catalogue == "sqlite":
        with contextlib.suppress(OSError):
            found = os.stat(lake.dsn)
            catalogue = (found.st_dev, found.st_ino)
    return _Key(lake=lake, read_only=read_only, catalogue=catalogue, pid=os.getpid())


def _take(key: _Key) -> _Kept | None:
    while True:
        with _guard:
            all_kept = _idle.get(key)
            kept = all_kept.pop() if all_kept else None
        if kept is None:
            return None
        if kept.knows is not None and _probe(kept.connection) == kept.knows:
            return kept
        kept.connection.close()


def _give_back(key: _Key, kept: _Kept) -> None:
    with _guard:
        all_kept = _idle.setdefault(key, [])
        if len(all_kept) < _MOST_IDLE:
            all_kept.append(kept)
            return
    kept.connection.close()
