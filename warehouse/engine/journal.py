"""The journal: replies on disk before they are used.

A run appends each call's row to a segment file (one JSON line, handed to the operating system before the reply
is used, so that a killed process loses none). A mover closes the segment now and then, writes its rows into
`llm_calls` under the segment's name as batch key, and removes the file; a crash between the two is harmless
because the key is known then. Segments of a process that died are taken in by the next run.
"""

import contextlib
import errno
import logging
import os
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import orjson
from filelock import FileLock, Timeout

logger = logging.getLogger(__name__)

_SEGMENT = ".jsonl"
_OWNER_LOCK = ".lock"
_SWEPT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A closed segment file: its batch key and its rows."""

    path: Path
    rows: list[dict[str, object]]

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
        # Not bound to a thread: whoever closes the journal must be able to let go of it.
        self._lock = FileLock(folder / f"{self._owner}{_OWNER_LOCK}", thread_local=False)
        # It is new, but whoever sweeps up after dead processes may hold it for a moment.
        self._lock.acquire(timeout=_SWEPT_S)
        self._guard = threading.Lock()
        self._number = 0
        self._file: int | None = None
        self._path: Path | None = None
        self._size = 0
        self._rows: list[dict[str, object]] = []

    def append(self, row: dict[str, object]) -> None:
        """Put one row on disk; raises OSError (a full disk, say) before anything is believed to be kept."""
        line = orjson.dumps(row) + b"\n"
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

    def __enter__(self) -> "Journal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


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
                yield Segment(path=path, rows=_read_rows(path))
        finally:
            # While it is still held: afterwards the file may already be somebody else's.
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()


def _read_rows(path: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            rows.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            # Only a failing disk leaves such a line. One lost record must not keep every later run from starting.
            logger.warning("line %d of %s is no JSON and is left out", number, path)
    return rows
