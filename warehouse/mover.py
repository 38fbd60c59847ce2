"""Rows that were paid for on their way into the warehouse: on disk when `keep` returns, moved in batches by a thread.

Calls to a judge, responses of a target and received spans go this way. Each row is appended to a segment file of the
journal (one JSON line, handed to the operating system before the row is used). Now and then the segment is closed, its
rows are written into their table under the segment's name as batch key, and the file is removed; a crash between the
two is harmless because the key is known then. A process that is killed loses only what was in flight: segments of a
dead process are taken in by the next run. A row that its table cannot hold is set aside in a file beside the warehouse,
and the others of its segment are stored.
"""

import contextlib
import errno
import json
import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import orjson
import polars as pl
from filelock import FileLock, Timeout

from evalhouse.warehouse import messages
from evalhouse.warehouse.errors import RowsRefused, WarehouseBusy, WarehouseError, WarehouseUnwritable, first_line
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse
from evalhouse.warehouse.tables import Batch, build_frame

logger = logging.getLogger(__name__)

_SEGMENT = ".jsonl"
_OWNER_LOCK = ".lock"
_SWEPT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A closed segment file: its batch key, its rows, and the lines that are not valid JSON."""

    path: Path
    rows: list[dict[str, object]]
    damaged: list[bytes] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The batch key under which the rows enter the warehouse."""
        return f"journal/{self.path.stem}"

    def remove(self) -> None:
        """Delete the file, once its rows are in the warehouse."""
        self.path.unlink(missing_ok=True)


class Journal:
    """The segments of this process in a folder; safe to use from several threads.

    The owner's lock file is held as long as the journal is open: a segment whose owner's lock is free belongs
    to nobody any more.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._owner = uuid.uuid4().hex[:16]
        # Not bound to a thread: another thread may close the journal.
        self._lock = FileLock(folder / f"{self._owner}{_OWNER_LOCK}", thread_local=False)
        # It is new, but a process that sweeps up after dead ones may hold it for a moment.
        self._lock.acquire(timeout=_SWEPT_S)
        self._guard = threading.Lock()
        self._number = 0
        self._file: int | None = None
        self._path: Path | None = None
        self._size = 0
        self._rows: list[dict[str, object]] = []

    def append(self, row: dict[str, object]) -> None:
        """Put one row on disk; raises OSError (a full disk, say) before anything is believed to be kept."""
        line = _dump(row) + b"\n"
        with self._guard:
            if self._file is None:
                self._number += 1
                self._path = self._folder / f"{self._owner}-{self._number:06d}{_SEGMENT}"
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                self._size = 0
            self._write(self._file, line)
            self._rows.append(row)

    def _write(self, file: int, line: bytes) -> None:
        try:
            written = os.write(file, line)
            if written != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        except OSError:
            # Half a line must not stay: the next row would be glued to it.
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._size)
            raise
        self._size += len(line)

    def __len__(self) -> int:
        """How many rows the open segment holds."""
        return len(self._rows)

    def rotate(self) -> Segment | None:
        """Close the open segment and hand it over; None when it is empty."""
        with self._guard:
            if self._file is None or self._path is None:
                return None
            os.close(self._file)
            segment = Segment(path=self._path, rows=self._rows)
            self._file, self._path, self._rows = None, None, []
            return segment

    def close(self) -> None:
        """Give the owner's lock back. Segments that are left are found by the next run."""
        with self._guard:
            if self._file is not None:
                os.close(self._file)
                self._file = None
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)


def find_orphans(folder: Path) -> Iterator[Segment]:
    """Segments whose process is gone, oldest first within an owner; a half-written last line is left out.

    Such a line is a reply that had not been used yet, so nothing else can rest on it.
    """
    if not folder.exists():
        return
    owners = {path.stem.split("-")[0] for path in folder.glob(f"*{_SEGMENT}")}
    # Those who left a lock and nothing else: killed before their first call, or a run's (`locks`).
    owners |= {path.stem for path in folder.glob(f"*{_OWNER_LOCK}")}
    for owner in sorted(owners):
        lock = FileLock(folder / f"{owner}{_OWNER_LOCK}", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        try:
            for path in sorted(folder.glob(f"{owner}-*{_SEGMENT}")):
                yield _read_segment(path)
        finally:
            # While it is still held: afterwards the file may already be somebody else's.
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


def _read_segment(path: Path) -> Segment:
    segment = Segment(path=path, rows=[])
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:  # a failing disk, or a text that is not valid UTF-8
            row = None
        if isinstance(row, dict):
            segment.rows.append(row)
        else:
            segment.damaged.append(line)
    return segment


def _dump(row: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(row)
    except TypeError:  # half a surrogate pair, or an integer of more than 64 bits: no table holds it, but the disk does
        return json.dumps(row).encode()


JournalledTable = Literal["llm_calls", "responses", "spans", "span_events"]

# How long a move waits for a file that another program holds.
_PATIENCE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How a table is filled: from which folder of the journal, how often, and after how many rows at the latest.

    A move costs 70 ms of CPU however few rows it has, so it waits for some.
    """

    folder: str
    every_s: float
    most_rows: int


# Responses have a folder of their own, because segments beside it are calls.
_WAYS: Final[dict[JournalledTable, _Way]] = {
    "llm_calls": _Way(folder="", every_s=20.0, most_rows=2000),
    "responses": _Way(folder="responses", every_s=5.0, most_rows=500),
    "spans": _Way(folder="spans", every_s=5.0, most_rows=2000),
    "span_events": _Way(folder="span_events", every_s=5.0, most_rows=2000),
}


class Mover:
    """Keeps rows of a table; safe to use from several threads. `close` before the process ends.

    `failure` is what stopped the moving, if anything did: rows that are kept afterwards are on disk alone. `moved` is
    called with each segment whose rows are in the warehouse now.
    """

    def __init__(
        self, warehouse: Warehouse, table: JournalledTable, *, moved: Callable[[Segment], None] = lambda _: None
    ) -> None:
        messages.note_environment()
        self._warehouse, self._table, self._moved = warehouse, table, moved
        self._journal = Journal(find_journal(warehouse.location, table))
        self._waiting: list[Segment] = []
        self._moving = threading.Lock()
        self._wake = threading.Event()
        self._has_ended = False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"evalhouse-{table}", daemon=True)
        self._thread.start()

    def keep(self, row: dict[str, object]) -> None:
        """Put a row on disk, without secrets; raises OSError when the disk does not take it."""
        if messages.noted:
            row = dict(messages.hide_in_rows([row])[0])
        self._journal.append(row)
        if len(self._journal) >= _WAYS[self._table].most_rows:
            self._wake.set()

    def __len__(self) -> int:
        """How many rows are on disk and not yet on their way into the table."""
        return len(self._journal)

    def flush(self, *, patience_s: float = FLUSH_PATIENCE_S) -> None:
        """Move everything; raises WarehouseBusy when the file stays locked (nothing is lost)."""
        self._move(patience_s)  # what still waited
        self._move(patience_s)  # and what came since

    def close(self) -> None:
        """Flush and let go of the journal; what cannot be moved is taken in by the next run."""
        self._has_ended = True
        self._wake.set()
        self._thread.join()
        try:
            self.flush()
        finally:
            self._journal.close()

    def _run(self) -> None:
        while self.failure is None:
            self._wake.wait(_WAYS[self._table].every_s)
            self._wake.clear()
            if self._has_ended:
                return
            self._try_to_move()

    def _try_to_move(self) -> None:
        """A locked file is waited out; anything else ends the moving."""
        try:
            self._move(_PATIENCE_S)
        except WarehouseBusy:
            return
        except WarehouseError as error:
            self.failure = error
        finally:
            # Whatever else may come, the run must learn that its rows are no longer moved.
            self.failure = self.failure or sys.exception()

    def _move(self, patience_s: float) -> None:
        with self._moving:
            # While a locked file keeps segments waiting the journal grows by one segment, not by one every tick.
            segment = None if self._waiting else self._journal.rotate()
            if segment is not None:
                self._waiting.append(segment)
            while self._waiting:
                take_in_segment(self._warehouse, self._table, self._waiting[0], patience_s=patience_s)
                self._moved(self._waiting.pop(0))


def take_in_segment(warehouse: Warehouse, table: JournalledTable, segment: Segment, *, patience_s: float) -> None:
    """Write a segment into its table, set aside what the table cannot hold, and remove the segment.

    Raises WarehouseBusy, or WarehouseUnwritable, and then keeps it.
    """
    refused = _store_rows(warehouse, table, segment.key, segment.rows, patience_s=patience_s)
    if segment.damaged:
        refused.append(_Refused(lines=segment.damaged, why="not valid JSON"))
    if refused:
        _set_aside(warehouse.location, table, segment, refused)
    segment.remove()


@dataclass(frozen=True, kw_only=True)
class _Refused:
    """Lines of a segment that cannot be stored, and why."""

    lines: list[bytes]
    why: str


def _store_rows(
    warehouse: Warehouse, table: JournalledTable, key: str, rows: list[dict[str, object]], *, patience_s: float
) -> list[_Refused]:
    """Write rows as a batch; where they are refused, halve them until each one that is refused is found.

    The halves are the same ones when a segment is taken in again, so none is written twice under its key.
    """
    if not rows:
        return []
    try:
        run_id = rows[0].get("run_id")  # spans belong to none
        tables: dict[str, pl.DataFrame] = {table: build_frame(table, rows)}
        batch = Batch(key=key, run_id=None if run_id is None else str(run_id), tables=tables)
        warehouse.append_now(batch, patience_s=patience_s)
    except (RowsRefused, OverflowError, TypeError, ValueError, KeyError, pl.exceptions.PolarsError) as error:
        if len(rows) == 1:
            return [_Refused(lines=[_dump(rows[0])], why=first_line(str(error)))]
        middle = len(rows) // 2
        return [
            refused
            for part, half in (("a", rows[:middle]), ("b", rows[middle:]))
            for refused in _store_rows(warehouse, table, f"{key}/{part}", half, patience_s=patience_s)
        ]
    return []


def _set_aside(location: Location, table: JournalledTable, segment: Segment, refused: list[_Refused]) -> None:
    """Write the lines that cannot be stored into a file that is named after the segment."""
    path = location.refused_path / table / f"{segment.path.stem}-refused{_SEGMENT}"
    lines = [line for one in refused for line in one.lines]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(line + b"\n" for line in lines))
    except OSError as error:
        raise WarehouseUnwritable(f"cannot write {path}: {error.strerror or error}") from None
    count = "1 row" if len(lines) == 1 else f"{len(lines)} rows"
    logger.warning(
        "%s of %s cannot be stored (%s) and %s set aside in %s; to have the next run store them, correct them there "
        "and move the file into %s; otherwise delete it",
        count, table, refused[0].why, "was" if len(lines) == 1 else "were", path, find_journal(location, table),
    )  # fmt: skip


def count_refused(location: Location) -> int:
    """Count the rows that were set aside because their table cannot hold them."""
    return sum(path.read_bytes().count(b"\n") for path in location.refused_path.glob(f"*/*{_SEGMENT}"))


def take_in_orphans(warehouse: Warehouse, *, patience_s: float = 30.0) -> int:
    """Take in what dead processes left in the journal; returns how many rows that were."""
    number = 0
    for table in _WAYS:
        for segment in find_orphans(find_journal(warehouse.location, table)):
            take_in_segment(warehouse, table, segment, patience_s=patience_s)
            number += len(segment.rows)
    return number


def list_journals(location: Location) -> list[Path]:
    """The folders of all tables' journals."""
    return [find_journal(location, table) for table in _WAYS]


def find_journal(location: Location, table: JournalledTable) -> Path:
    """The folder of the journal with the rows on their way into a table."""
    return location.journal_path / _WAYS[table].folder
