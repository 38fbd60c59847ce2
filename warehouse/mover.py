"""Rows that were paid for on their way into the warehouse: on disk when `keep` returns, moved in batches by a thread.

Calls to a judge, responses of a target and received spans take this way. Each row is appended to a segment file of the
journal (one JSON line, handed to the operating system before the row is used). From time to time the segment is closed,
its rows are written into their table under the segment's name as batch key, and the file is removed; a crash between
the two is harmless because the key is known then. A killed process loses only what was in flight: the next run takes in
the segments of dead processes. A row that its table cannot hold is set aside in a file beside the warehouse, and the
others of its segment are stored.
"""

import contextlib
import errno
import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import orjson
import polars as pl
from filelock import FileLock, Timeout

from evalhouse.warehouse import messages
from evalhouse.warehouse.errors import RowsRefused, WarehouseBusy, WarehouseError, WarehouseUnwritable, first_line
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Batch, Warehouse, build_frame

logger = logging.getLogger(__name__)

SEGMENT: Final = ".jsonl"
# A segment is read and written into its table at once, so this bounds what both take.
_SEGMENT_BYTES = 16_000_000
_OWNER_LOCK = ".lock"
_FIRST = "/first-"  # in the key of a batch that has this many rows of a segment
_SWEPT_S = 1.0
_LOG_EVERY_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A closed segment file: its batch key and, read when they are needed, its rows."""

    path: Path

    @property
    def key(self) -> str:
        """The batch key under which the rows enter the warehouse."""
        return f"journal/{self.path.stem}"

    @property
    def rows(self) -> list[dict[str, object]]:
        """Its rows, without a half-written last line: a reply that had not been used yet."""
        return self._contents[0]

    @property
    def damaged(self) -> list[bytes]:
        """The lines that are not valid JSON."""
        return self._contents[1]

    @cached_property
    def _contents(self) -> tuple[list[dict[str, object]], list[bytes]]:
        rows, damaged, content = [], [], b""
        with contextlib.suppress(FileNotFoundError):  # a file that is gone was taken in
            content = self.path.read_bytes()
        for line in content.split(b"\n")[:-1]:
            row = parse_line(line)
            if row is None:
                damaged.append(line)
            else:
                rows.append(row)
        return rows, damaged

    def remove(self) -> None:
        """Delete the file, once its rows are in the warehouse."""
        self.path.unlink(missing_ok=True)


class Journal:
    """The segments of this process in a folder; safe to use from several threads.

    The owner's lock file is held as long as the journal is open: a segment whose owner's lock is free has no process.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.owner = uuid.uuid4().hex[:16]
        # Not bound to a thread: another thread may close the journal.
        self._lock = FileLock(folder / f"{self.owner}{_OWNER_LOCK}", thread_local=False)
        # It is new, but a process that sweeps up after dead ones may hold it for a moment.
        self._lock.acquire(timeout=_SWEPT_S)
        self._guard = threading.Lock()
        self._number = 0
        self._file: int | None = None
        self._path: Path | None = None
        self._size = 0
        self._n_rows = 0
        self._full: list[Segment] = []

    def append(self, row: dict[str, object]) -> None:
        """Put one row on disk; raises OSError (a full disk, say) where it is not there."""
        line = _dump(row) + b"\n"
        with self._guard:
            if self._size + len(line) > _SEGMENT_BYTES:
                self._end_segment()
            if self._file is None:
                self._number += 1
                self._path = self._folder / f"{self.owner}-{self._number:06d}{SEGMENT}"
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                self._size = 0
            try:
                if os.write(self._file, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
            except OSError:
                # Half a line must not stay: the next row would be glued to it.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, self._size)
                raise
            self._size += len(line)
            self._n_rows += 1

    def __len__(self) -> int:
        """Return the number of rows in the open segment."""
        return self._n_rows

    @property
    def has_full(self) -> bool:
        """True if a segment is as large as one may be, and waits to be handed over."""
        return bool(self._full)

    def rotate(self) -> list[Segment]:
        """Close the open segment, and hand over all that were closed, the oldest first."""
        with self._guard:
            self._end_segment()
            segments, self._full = self._full, []
            return segments

    def close(self) -> None:
        """Release the owner's lock. The next run finds the segments that are left."""
        with self._guard:
            self._end_segment()
        self._lock.release()
        Path(self._lock.lock_file).unlink(missing_ok=True)

    def _end_segment(self) -> None:
        if self._file is not None and self._path is not None:
            os.close(self._file)
            self._full.append(Segment(path=self._path))
            self._file, self._path, self._size, self._n_rows = None, None, 0, 0


def find_orphans(folder: Path) -> Iterator[Segment]:
    """Yield segments of ended processes, oldest first within an owner."""
    if not folder.exists():
        return
    owners = {path.stem.split("-")[0] for path in folder.glob(f"*{SEGMENT}")}
    # A lock without segments: its process was killed before its first call, or held a run's lock (`locks`).
    owners |= {path.stem for path in folder.glob(f"*{_OWNER_LOCK}")}
    for owner in sorted(owners):
        lock = FileLock(folder / f"{owner}{_OWNER_LOCK}", thread_local=False)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            continue
        try:
            for path in sorted(folder.glob(f"{owner}-*{SEGMENT}")):
                yield Segment(path=path)
        finally:
            # While it is still held: afterwards the file may belong to another process.
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


def parse_line(line: bytes) -> dict[str, object] | None:
    """Return the row of a line; None for a line that a failing disk or a text of invalid UTF-8 has damaged."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) else None


def _dump(row: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(row)
    except TypeError:  # half a surrogate pair, as of an emoji that a model's limit cut
        row = {
            name: messages.join_surrogates(value) if isinstance(value, str) else value for name, value in row.items()
        }
    try:
        return orjson.dumps(row)
    except TypeError:  # an integer of more than 64 bits: no table holds it, but the disk does
        return json.dumps(row).encode()


JournalledTable = Literal["llm_calls", "responses", "spans", "span_events"]

# How long a move waits for a file that another program holds.
_PATIENCE_S = 0.5


@dataclass(frozen=True, kw_only=True)
class FlushPolicy:
    """The policy for moving rows into a table: after a time, or after a number of rows; `folder` holds its journal.

    A move costs 70 ms of CPU however few rows it has, so it waits for some.
    """

    folder: str
    every_s: float
    max_rows: int


# Responses have a separate folder, because segments beside it are calls.
FLUSH_POLICIES: Final[dict[JournalledTable, FlushPolicy]] = {
    "llm_calls": FlushPolicy(folder="", every_s=20.0, max_rows=2000),
    "responses": FlushPolicy(folder="responses", every_s=5.0, max_rows=500),
    "spans": FlushPolicy(folder="spans", every_s=5.0, max_rows=2000),
    "span_events": FlushPolicy(folder="span_events", every_s=5.0, max_rows=2000),
}


class Mover:
    """Keeps rows of a table; safe to use from several threads. `close` before the process ends.

    `failure` is the error that stopped the moving, if one did: rows that are kept afterwards are on disk alone. `moved`
    is called with each segment whose rows are in the warehouse now. In a process that runs for months (`is_lasting`) a
    full disk is logged, and the move tried again.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        table: JournalledTable,
        *,
        moved: Callable[[Segment], None] = lambda _: None,
        is_lasting: bool = False,
    ) -> None:
        messages.note_environment()
        self._is_lasting = is_lasting
        self._warehouse, self._table, self._moved = warehouse, table, moved
        self.journal = Journal(find_journal(warehouse.location, table))
        self._waiting: list[Path] = []
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
        self.journal.append(row)
        if self.journal.has_full or len(self.journal) >= FLUSH_POLICIES[self._table].max_rows:
            self._wake.set()

    def flush(self, *, patience_s: float = FLUSH_PATIENCE_S) -> None:
        """Move everything; raises WarehouseBusy when the file stays locked (nothing is lost)."""
        self._move(patience_s)  # segments that waited
        self._move(patience_s)  # and rows since then

    def close(self) -> None:
        """Flush and close the journal; the next run takes in what cannot be moved."""
        self._has_ended = True
        self._wake.set()
        self._thread.join()
        try:
            self.flush()
        finally:
            self.journal.close()

    def _run(self) -> None:
        log_at = 0.0
        while self.failure is None:
            self._wake.wait(FLUSH_POLICIES[self._table].every_s)
            self._wake.clear()
            if self._has_ended:
                return
            try:
                self._move(_PATIENCE_S)
            except WarehouseBusy:  # the rows wait for the next turn
                pass
            except WarehouseError as error:
                if not (self._is_lasting and isinstance(error, WarehouseUnwritable)):
                    self.failure = error
                elif time.monotonic() >= log_at:
                    logger.warning("rows of %s wait on disk, and are moved when there is room: %s", self._table, error)
                    log_at = time.monotonic() + _LOG_EVERY_S
            except BaseException as error:  # the run must learn of any error that ends the moving
                self.failure = error
                raise

    def _move(self, patience_s: float) -> None:
        with self._moving:
            # While a locked file keeps segments waiting the journal grows by its open one, not by one every tick.
            if not self._waiting:
                self._waiting = [segment.path for segment in self.journal.rotate()]
            while self._waiting:
                segment = Segment(path=self._waiting[0])
                take_in_segment(self._warehouse, self._table, segment, patience_s=patience_s)
                self._moved(segment)
                del self._waiting[0]


def take_in_segment(
    warehouse: Warehouse, table: JournalledTable, segment: Segment, *, patience_s: float, n_known: int = 0
) -> None:
    """Write a segment but for its first `n_known` rows into its table, set aside the rows that the table cannot hold,
    and remove the segment.

    Raises WarehouseBusy, or WarehouseUnwritable, and then keeps it.
    """
    rows = segment.rows[n_known:]
    if table in ("spans", "span_events"):  # of traces that were forgotten while these were in the journal
        named = warehouse.fetch("spans/forgotten_ones").iter_rows()
        forgotten = {trace_id: at.replace(tzinfo=UTC).timestamp() * 1e6 for trace_id, at in named}
        rows = [row for row in rows if int(str(row["received_at"])) > forgotten.get(str(row["trace_id"]), 0.0)]
    refused = _store_rows(warehouse, table, segment.key, rows, patience_s=patience_s)
    refused += [(line, "not valid JSON") for line in segment.damaged]
    if refused:
        path = warehouse.location.refused_path / table / f"{segment.path.stem}-refused{SEGMENT}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(line + b"\n" for line, _ in refused))
        except OSError as error:
            raise WarehouseUnwritable(f"cannot write {path}: {error.strerror or error}") from None
        count = "1 row" if len(refused) == 1 else f"{len(refused)} rows"
        logger.warning(
            "%s of %s cannot be stored (%s) and %s set aside in %s; to have the next run store them, correct them "
            "there and move the file into %s; otherwise delete it",
            count, table, refused[0][1], "was" if len(refused) == 1 else "were", path,
            find_journal(warehouse.location, table),
        )  # fmt: skip
    segment.remove()


def _store_rows(
    warehouse: Warehouse, table: JournalledTable, key: str, rows: list[dict[str, object]], *, patience_s: float
) -> list[tuple[bytes, str]]:
    """Write rows as a batch, and return each row that is refused, as a line, with the reason.

    A refused batch is halved until its refused rows are found. The halves are the same ones when a segment is taken in
    again, so none is written twice under its key.
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
            return [(_dump(rows[0]), first_line(str(error)))]
        middle = len(rows) // 2
        return [
            *_store_rows(warehouse, table, f"{key}/a", rows[:middle], patience_s=patience_s),
            *_store_rows(warehouse, table, f"{key}/b", rows[middle:], patience_s=patience_s),
        ]
    return []


def count_refused(location: Location) -> int:
    """Count the rows that were set aside because their table cannot hold them."""
    return sum(path.read_bytes().count(b"\n") for path in location.refused_path.glob(f"*/*{SEGMENT}"))


def delete_refused(
    location: Location, is_deleted: Callable[[str, Mapping[str, object]], bool], *, dry_run: bool
) -> Iterator[tuple[str, int, int]]:
    """Delete the set-aside rows that `is_deleted` selects by table and row; yields table, rows and bytes of each file.

    A line that is not valid JSON belongs to no run that could be named: it stays, and a warning names its file.
    """
    for path in sorted(location.refused_path.glob(f"*/*{SEGMENT}")):
        table = path.parent.name
        lines = path.read_bytes().splitlines(keepends=True)
        rows = [parse_line(line) for line in lines]
        kept = [line for line, row in zip(lines, rows, strict=True) if row is None or not is_deleted(table, row)]
        if None in rows:
            logger.warning("%s holds lines that cannot be read; they may hold texts: delete them if so", path)
        if len(kept) == len(lines):
            continue
        yield table, len(lines) - len(kept), sum(map(len, lines)) - sum(map(len, kept))
        if dry_run:
            continue
        if kept:
            fresh = path.with_suffix(".new")
            fresh.write_bytes(b"".join(kept))
            fresh.replace(path)
        else:
            path.unlink()


def take_in_orphans(warehouse: Warehouse, *, patience_s: float = 30.0) -> int:
    """Take in the rows that ended processes left in the journal; returns how many rows that were."""
    number = 0
    for table in FLUSH_POLICIES:
        for segment in find_orphans(find_journal(warehouse.location, table)):
            n_known = _count_known(warehouse, segment)
            take_in_segment(warehouse, table, segment, patience_s=patience_s, n_known=n_known)
            number += len(segment.rows)
    return number


def _count_known(warehouse: Warehouse, segment: Segment) -> int:
    """Return how many rows of a segment are in its table, from the first one on: all where it was moved, and its
    process was killed before it removed the file, and some where a backup of that time took the warehouse's place."""
    keys = warehouse.fetch("batches/of_segment", key=segment.key)["batch_key"].to_list()
    if segment.key in keys:
        return len(segment.rows)
    return max((int(key.rpartition(_FIRST)[2].partition("/")[0]) for key in keys if _FIRST in key), default=0)


def list_segments(location: Location) -> dict[JournalledTable, list[Segment]]:
    """Return by table all segments on this machine, with their rows, also where a process still writes to them."""
    found: dict[JournalledTable, list[Segment]] = {}
    for table in FLUSH_POLICIES:
        paths = sorted(find_journal(location, table).glob(f"*{SEGMENT}"))
        found[table] = [segment for path in paths if (segment := Segment(path=path)).rows]
    return found


def copy_segments(copy: Warehouse, segments: Mapping[JournalledTable, Sequence[Segment]]) -> dict[str, int]:
    """Write the rows of these segments into the copy of their warehouse, and return how many rows each table got.

    The segments stay, and may grow: the key has the number of their rows.
    """
    numbers: dict[str, int] = {}
    for table, of_table in segments.items():
        for segment in of_table:
            rows = segment.rows[_count_known(copy, segment) :]
            key = f"{segment.key}{_FIRST}{len(segment.rows)}"
            refused = _store_rows(copy, table, key, rows, patience_s=FLUSH_PATIENCE_S)
            numbers[table] = numbers.get(table, 0) + len(rows) - len(refused)
    return numbers


def find_journal(location: Location, table: JournalledTable) -> Path:
    """Return the folder of the journal with the rows on their way into a table."""
    return location.journal_path / FLUSH_POLICIES[table].folder
