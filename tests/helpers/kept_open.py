"""One open file for all that this process does with a warehouse: to open it takes 25 ms of CPU, to connect again one.

A test opens it a dozen times, and what comes and goes between two openings (another process) is what the tests of
`runs/`, `machines/`, `ui/` and of some files of `store/` are about. Starting a process closes all files
first.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb

from evalhouse.warehouse.engine import connection
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.mover import Mover
from evalhouse.warehouse.sandbox import query_process

Connect = Callable[..., duckdb.DuckDBPyConnection]
Open = Callable[..., AbstractContextManager[Any]]
_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.posix_spawn"})
"""The audit events before a process starts."""
_REPLACES = frozenset({"open", "os.rename", "os.remove"})
"""The audit events before a file may be replaced."""


class KeptFiles:
    """Opens a file for writing when it is first asked for, and again in the same way from then on: DuckDB has one
    instance of it."""

    def __init__(self, place: Path, connect: Connect, passing: Path | None = None) -> None:
        self._place, self._connect, self._passing = place.resolve(), connect, passing
        self._opened: dict[str, duckdb.DuckDBPyConnection] = {}
        self._put_off: dict[Path, Mover] = {}
        self._lock = threading.Lock()
        self._is_over = False

    def connect(
        self, database: str | Path = ":memory:", read_only: bool = False, config: Mapping[str, object] | None = None
    ) -> duckdb.DuckDBPyConnection:
        """Replace `duckdb.connect`; a connection with settings of its caller is opened by it."""
        path = Path(str(database)).resolve()
        self.catch_up(path)
        is_kept = path.is_file() and path.is_relative_to(self._place) and "enable_external_access" not in (config or {})
        with self._lock:
            if self._is_over or not is_kept:
                return self._connect(database, read_only=read_only, config=dict(config or {}))
            if str(path) not in self._opened:
                try:
                    self._opened[str(path)] = self._connect(str(path), config=dict(connection._FOR_WRITING))
                except duckdb.ConnectionException:  # the test has it open otherwise
                    return self._connect(database, read_only=read_only, config=dict(config or {}))
        return self._connect(str(path), config=dict(connection._FOR_WRITING))

    def begin(self) -> None:
        """Keep files again, after `close`."""
        self._is_over = False

    def put_off(self, path: Path, mover: Mover) -> bool:
        """Leave the last of a mover's rows until the file is asked for, if it is one of these."""
        if self._is_over or not path.resolve().is_relative_to(self._place):
            return False
        self.catch_up(path)
        self._put_off[path.resolve()] = mover
        return True

    def catch_up(self, path: Path) -> None:
        """Write what was put off for a file."""
        if self._put_off and (mover := self._put_off.pop(path.resolve(), None)):
            mover.close()

    def close_one(self, path: object) -> None:
        """Close a file until it is asked for again: what was written is in it then."""
        if self._put_off and isinstance(path, str | Path):
            self.catch_up(Path(path))
        if self._opened and isinstance(path, str | Path) and (opened := self._opened.pop(str(path), None)):
            opened.close()

    def close(self) -> None:
        """Close the files, for good."""
        for path in list(self._put_off):
            self.catch_up(path)
        with self._lock:
            self._is_over = True
            for opened in self._opened.values():
                opened.close()
            self._opened.clear()

    def leave(self) -> None:
        """Close them where they are not used again: rows of files in the passing folder stay in their
        log, for half of what closing costs, and what was put off in its journal."""
        for mover in self._put_off.values():
            with patch.object(mover, "flush"):
                mover.close()
        self._put_off.clear()
        with self._lock:
            for path, opened in self._opened.items():
                if self._passing is not None and Path(path).is_relative_to(self._passing):
                    with suppress(duckdb.Error):  # a file that a test has broken is closed
                        opened.execute("pragma disable_checkpoint_on_shutdown")
        self.close()


_kept: list[KeptFiles] = []
_staying: list[KeptFiles] = []


def let_go() -> None:
    """Close all files that are kept open, for good."""
    for kept in (*_kept, *_staying):
        kept.close()


def put_off(mover: Mover, path: Path) -> None:
    """Close a mover once its warehouse is asked for again, if that is before the end of the test: to open it and to
    write a few rows takes 30 ms, and most tests of single requests look at nothing but what was asked."""
    if not any(kept.put_off(path, mover) for kept in _kept):
        mover.close()


def catch_up(path: Path) -> None:
    """Write what was put off for a warehouse."""
    for kept in _kept:
        kept.catch_up(path)


def _catching_up(open_: Open) -> Open:
    """The same, with what was put off written before: within it the file is locked."""

    @wraps(open_)
    def opening(location: Location, *arguments: Any, **more: Any) -> AbstractContextManager[Any]:  # noqa: ANN401
        catch_up(location.path)
        return open_(location, *arguments, **more)

    return opening


connection._open_reader = _catching_up(connection._open_reader)
connection._open_writer = _catching_up(connection._open_writer)
_take_process = query_process._take


def _take_and_let_go() -> query_process._Process:
    """A query process that is used again reads files too, without being started."""
    let_go()
    return _take_process()


query_process._take = _take_and_let_go


def _heed(event: str, arguments: tuple[object, ...]) -> None:
    if event in _STARTS:
        let_go()
    elif event in _REPLACES:  # by Python, to copy it or to put another in its place
        for kept in (*_kept, *_staying):
            for path in arguments[:2]:
                kept.close_one(path)


sys.addaudithook(_heed)


@contextmanager
def _connecting_by(files: KeptFiles, listed: list[KeptFiles]) -> Iterator[None]:
    """Use these files in place of DuckDB, and close them when a process starts."""
    before, duckdb.connect = duckdb.connect, files.connect
    listed.append(files)
    try:
        yield
    finally:
        listed.remove(files)
        duckdb.connect = before


@contextmanager
def kept_open(place: Path, passing: Path | None = None) -> Iterator[None]:
    """Keep a file, or all in a folder, open until the end or until a process is started; within another such block that
    one's. What is in the folder `passing` is not looked at after the end."""
    if _kept:
        yield
        return
    for staying in _staying:
        staying.begin()
    kept = KeptFiles(place, duckdb.connect, passing.resolve() if passing else None)
    try:
        with _connecting_by(kept, _kept):
            yield
    finally:
        kept.leave()


@contextmanager
def stays_open(place: Path) -> Iterator[None]:
    """Keep a file open that many tests read in turn: between their blocks only a process or a copy closes it."""
    staying = KeptFiles(place, duckdb.connect)
    try:
        with _connecting_by(staying, _staying):
            yield
    finally:
        staying.close()
