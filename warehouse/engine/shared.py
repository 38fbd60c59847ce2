"""One open file for all threads of a process that serves pages, beside runs that write.

DuckDB lets one process write a file or many read it. Opening takes 20 ms, more than most queries of a page, and
readers that each open the file for themselves can keep a writer out for as long as they overlap. So this process
opens it once, read-only, and each query gets a connection of its own on it.

Who writes takes the lock file first and then waits for the file. Both sides get their turn: a reader that finds the
lock taken waits, those that are inside end, the file is closed and the writer has it; after the writer all readers
that waited are let in before the next writer. What reads several times for one page (`one_reading`) is inside from its
first query on, so that it waits once at most and sees one state of the file. A file that nobody reads is closed.
"""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

import duckdb
from filelock import FileLock, Timeout

from evalhouse.warehouse.errors import WarehouseBusy

Connect = Callable[[float], duckdb.DuckDBPyConnection]
"""Opens the file read-only before a deadline on `time.monotonic`; raises WarehouseError."""
_LOOK_S: Final = 0.02
_IDLE_S: Final = 1.0
# What reads for one page goes in again like all others after so long, and a query may keep a writer out for so long:
# less than a run waits before it spools a batch.
_PAGE_S: Final = 1.0
_LONGEST_S: Final = 3.0
# Where the lock cannot be looked at (no rights): open for so long at a time, then closed while a writer looks twice.
_BLIND_S: Final = 1.0
_PAUSE_S: Final = 0.12


class _Reading:
    """What reads one state of a file, for one page or one query."""

    def __init__(self) -> None:
        self.reader: SharedReader | None = None
        self.until, self.n_queries = 0.0, 0
        self.is_over = False

    def end(self) -> None:
        self.is_over = True
        if self.reader is not None:
            self.reader.end(self)


_reading: ContextVar[_Reading | None] = ContextVar("reading", default=None)


@contextmanager
def one_reading() -> Iterator[Callable[[], None]]:
    """All reads of a shared file within this block are of one state, and wait for writers once at most.

    Gives what ends it before the block does. After a second the next read waits its turn again.
    """
    reading = _Reading()
    token = _reading.set(reading)
    try:
        yield reading.end
    finally:
        _reading.reset(token)
        reading.end()


def end_reading() -> None:
    """Whoever has read for a page and is to write now lets go of the file, or would wait for itself."""
    if (reading := _reading.get()) is not None:
        reading.end()


class SharedReader:
    """The one open instance of a file, and who is inside it."""

    def __init__(self, path: Path, lock_path: Path, connect: Connect) -> None:
        self._path, self._lock_path, self._connect = path, lock_path, connect
        self._changed = threading.Condition()
        self._instance: duckdb.DuckDBPyConnection | None = None
        self._file: tuple[int, int] | None = None
        self._is_opening = self._is_over = False
        self._tickets = itertools.count()
        self._waiting: set[int] = set()
        self._owed: set[int] = set()
        self._inside: set[_Reading] = set()
        self._n_apart = 0
        self._idle: list[duckdb.DuckDBPyConnection] = []
        self._busy: set[duckdb.DuckDBPyConnection] = set()
        self._opened_at = self._left_at = self._wanted_at = 0.0

    @contextmanager
    def query(self, deadline: float) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for one query. Raises WarehouseBusy when the writers leave no turn before the deadline."""
        reading = _reading.get()
        if reading is None or reading.is_over:
            reading = _Reading()
            reading.is_over = True
        self._enter(reading, deadline)
        try:
            with self._borrow() as connection:
                yield connection
        finally:
            self._leave(reading)

    @contextmanager
    def apart(self, deadline: float) -> Iterator[None]:
        """While another process of ours reads the file for long: writers wait for it, our own readers need not."""
        reading = _Reading()
        self._enter(reading, deadline, passes=False)
        with self._changed:
            self._n_apart += 1
        try:
            yield
        finally:
            with self._changed:
                self._n_apart -= 1
            reading.is_over = True
            self._leave(reading)

    def has(self, connection: duckdb.DuckDBPyConnection) -> bool:
        """Whether it is one of these connections, which serve one query after the other."""
        return connection in self._busy

    def end(self, reading: _Reading) -> None:
        """Let go of what was kept for a page."""
        with self._changed:
            self._drop_ended(reading)
            self._close_when_due()

    def close(self) -> None:
        """Close the file as soon as nobody is inside; nobody is let in any more."""
        with self._changed:
            self._is_over = True
            self._close_when_due()
            self._changed.notify_all()

    def _enter(self, reading: _Reading, deadline: float, *, passes: bool = True) -> None:
        with self._changed:
            self._drop_ended(reading)
            if reading in self._inside:
                reading.n_queries += 1
                return
            self._wait_for_turn(deadline, passes=passes)
            reading.reader, reading.until, reading.n_queries = self, time.monotonic() + _PAGE_S, 1
            self._inside.add(reading)

    def _wait_for_turn(self, deadline: float, *, passes: bool) -> None:
        ticket = next(self._tickets)
        self._waiting.add(ticket)
        try:
            while not self._lets_in(ticket, passes=passes):
                if self._is_over or time.monotonic() >= deadline:
                    raise WarehouseBusy(f"{self._path} is being written; try again", who="others")
                if self._instance is None and not self._is_opening:
                    self._open(deadline)
                else:
                    self._changed.wait(_LOOK_S)
        finally:
            self._waiting.discard(ticket)
            self._owed.discard(ticket)

    def _lets_in(self, ticket: int, *, passes: bool) -> bool:
        if self._instance is None or self._is_over:
            return False
        return ticket in self._owed or (passes and self._n_apart > 0) or not self._is_wanted()

    def _leave(self, reading: _Reading) -> None:
        with self._changed:
            reading.n_queries -= 1
            self._left_at = time.monotonic()
            self._drop_ended(reading)
            self._close_when_due()

    def _drop_ended(self, reading: _Reading) -> None:
        if reading.n_queries == 0 and (reading.is_over or time.monotonic() >= reading.until):
            self._inside.discard(reading)

    @contextmanager
    def _borrow(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._changed:
            assert self._instance is not None
            connection = self._idle.pop() if self._idle else self._instance.cursor()
            self._busy.add(connection)
        is_good = False  # what is amiss with it is not handed on
        try:
            yield connection
            is_good = True
        finally:
            with self._changed:
                self._busy.discard(connection)
                if is_good:
                    self._idle.append(connection)
                else:
                    connection.close()

    def _open(self, deadline: float) -> None:
        """Open the file in a moment without a writer; all who wait then are let in. The condition is held."""
        self._is_opening = True
        self._changed.release()
        try:
            instance, file = self._open_unwritten(deadline)
        finally:
            self._changed.acquire()
            self._is_opening = False
            self._changed.notify_all()
        self._instance, self._file, self._owed = instance, file, set(self._waiting)
        self._opened_at, self._wanted_at = time.monotonic(), 0.0
        threading.Thread(target=self._watch, name="evalhouse-shared-reader", daemon=True).start()

    def _open_unwritten(self, deadline: float) -> tuple[duckdb.DuckDBPyConnection, tuple[int, int] | None]:
        if not self._lock_path.exists():
            return self._connect(deadline), self._find_file()
        lock = FileLock(self._lock_path, thread_local=False)
        try:
            lock.acquire(timeout=max(0.0, deadline - time.monotonic()), poll_interval=_LOOK_S / 2)
        except Timeout:
            raise WarehouseBusy(f"another evalhouse is writing to {self._path}; try again") from None
        except OSError:
            time.sleep(max(0.0, self._left_at + _PAUSE_S - time.monotonic()))
            return self._connect(deadline), self._find_file()
        try:
            return self._connect(deadline), self._find_file()
        finally:
            lock.release()

    def _is_wanted(self) -> bool:
        """Whether a writer waits for the file, or what is open is no longer the file of that name."""
        if self._find_file() != self._file:
            return True
        if not self._lock_path.exists():
            return False
        lock = FileLock(self._lock_path, thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            return True
        except OSError:
            return time.monotonic() > self._opened_at + _BLIND_S
        lock.release()
        return False

    def _find_file(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _watch(self) -> None:
        """Close the file when it is due, also where nobody comes or goes; end queries that keep writers out."""
        with self._changed:
            while self._instance is not None:
                self._changed.wait(_LOOK_S)
                for reading in tuple(self._inside):
                    self._drop_ended(reading)
                self._close_when_due()
                self._stop_long_queries()

    def _close_when_due(self) -> None:
        if self._instance is None or self._inside or (self._owed and not self._is_over):
            return
        is_idle = time.monotonic() >= max(self._left_at, self._opened_at) + _IDLE_S
        if not (self._is_over or is_idle or self._is_wanted()):
            return
        for connection in (*self._idle, self._instance):
            connection.close()
        self._idle.clear()
        self._instance = None
        self._left_at = time.monotonic()
        self._changed.notify_all()

    def _stop_long_queries(self) -> None:
        if self._instance is None or self._n_apart or not self._is_wanted():
            self._wanted_at = 0.0
            return
        self._wanted_at = self._wanted_at or time.monotonic()
        if time.monotonic() > self._wanted_at + _LONGEST_S:
            for connection in self._busy:
                connection.interrupt()
