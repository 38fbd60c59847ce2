"""Locks by name, for writing and for a run, a suite or a part of a run; temporary folders; waiting for a warehouse.

All locks end with their process, however that ends. A lock is one of the operating system on a file beside the
warehouse, and holds on one machine. Of a lake with its catalogue in PostgreSQL it is an advisory lock of a session
there and holds over all machines. With SQLite all processes are on one machine.

Opening a warehouse that is not free (a file that another program keeps, a catalogue whose server is down) ends after
its patience in WarehouseBusy. Within `waiting_for_others`, as in a run, it is tried again for as long as it takes, and
the reason is printed. Only threads and tasks that were started with the context of that block wait.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import struct
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from glob import escape, iglob
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from filelock import FileLock, Timeout

from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseUnreachable, WarehouseUnwritable
from evalhouse.warehouse.location import Lake, Location
from evalhouse.warehouse.queries import read_query

if TYPE_CHECKING:
    import psycopg

Busy = str | Callable[[], str]
"""The message when a lock is not free in time."""

_PREFIX: Final = "evalhouse-scratch-"
_PROCESS: Final = uuid.uuid4().hex
_making = threading.Lock()
SWEPT_S: Final = 1.0
"""Patience for a lock that should be free: cleaning up after ended processes holds it for a moment."""
_IN_JOURNAL = ("run-", "suite-")  # the files of a killed process are removed with its journal
_RETRY_S = 0.02
_SLOWEST_RETRY_S = 0.25
_CONNECT_S = 10
# The server hears nothing from a machine that loses its power; it asks after so long, and releases its locks then.
_IDLE_S, _ASK_EVERY_S, _ASK_TIMES = 5, 5, 3
# On Linux alone: other systems have other fields in `struct flock`.
_OFD_LOCK: Final[int | None] = getattr(fcntl, "F_OFD_SETLK", None) if sys.platform == "linux" else None
_WRITE_LOCK, _UNLOCK = fcntl.F_WRLCK, fcntl.F_UNLCK
GONE_S: Final = float(_IDLE_S + _ASK_EVERY_S * _ASK_TIMES)
"""After so many seconds without a sign of life the server releases a session's locks."""
_KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": _IDLE_S, "keepalives_interval": _ASK_EVERY_S, "keepalives_count": _ASK_TIMES,
    "tcp_user_timeout": int(1000 * GONE_S),
}  # fmt: skip
_SERVER_KEEPALIVES = (
    f"set tcp_keepalives_idle = {_IDLE_S}; set tcp_keepalives_interval = {_ASK_EVERY_S}; "
    f"set tcp_keepalives_count = {_ASK_TIMES}; set tcp_user_timeout = {int(1000 * GONE_S)}"
)


class _FileLock:
    """A lock of the operating system, which this machine's processes see."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Not bound to a thread: another thread may end the run and release it.
        self._lock = FileLock(path, thread_local=False)

    def take(self, deadline: float, busy: Busy) -> None:
        """Wait for the lock until the deadline; raises WarehouseBusy, or WarehouseUnwritable."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        except Timeout:
            raise WarehouseBusy(busy if isinstance(busy, str) else busy()) from None
        except OSError as error:
            raise WarehouseUnwritable(f"cannot write {self._path}: {error.strerror or error}") from None

    def is_held(self) -> bool:
        """Return True: the operating system takes no lock away."""
        return True

    def close(self) -> None:
        """Release the lock; a second time it does nothing."""
        if self._lock.is_locked:
            # While it is still held: afterwards the file may already belong to the next process.
            self._path.unlink(missing_ok=True)
            self._lock.release()


class _SessionLock:
    """A lock of the catalogue's server, which all machines see.

    A session ends with the server, or when the connection breaks. The lock is then taken again, and is lost only when
    another process was faster, or when the server was out of reach for so long that it takes this session for dead.
    """

    def __init__(self, location: Location, lake: Lake, name: str) -> None:
        self._location, self._lake, self._key = location, lake, _make_key(name)
        self._session: psycopg.Connection[tuple[object, ...]] | None = None
        self._seen_at = time.monotonic()

    def take(self, deadline: float, busy: Busy) -> None:
        """Wait in the server's queue, which is fair, until the deadline; raises WarehouseBusy or Unreachable."""
        session = _open_session(self._location, self._lake, deadline)
        import psycopg  # noqa: PLC0415  # of the extra `lake`

        try:
            left_ms = max(1, int(1000 * (deadline - time.monotonic())))
            session.execute(f"set lock_timeout = {left_ms}")
            session.execute("select pg_advisory_lock(%s)", [self._key])
        except BaseException as error:  # after Ctrl-C too: the session would hold its place
            session.close()
            if isinstance(error, psycopg.errors.LockNotAvailable):
                raise WarehouseBusy(busy if isinstance(busy, str) else busy()) from None
            if isinstance(error, psycopg.OperationalError):
                raise WarehouseUnreachable(f"the catalogue's server went away: {str(error).strip()}") from None
            raise
        self._session, self._seen_at = session, time.monotonic()

    def is_held(self) -> bool:
        """Return whether no other process can have the lock; takes it again where the session has ended."""
        import psycopg  # noqa: PLC0415

        if self._session is not None:
            try:
                self._session.execute("select 1")
            except psycopg.OperationalError:
                self.close()
        if self._session is None:
            try:
                self.take(time.monotonic() + _RETRY_S, "")
            except WarehouseUnreachable:
                return time.monotonic() - self._seen_at < GONE_S
            except WarehouseBusy:
                return False
        self._seen_at = time.monotonic()
        return True

    def close(self) -> None:
        """Release the lock; a second time it does nothing."""
        session, self._session = self._session, None
        if session is not None:
            session.close()  # which releases the lock


HeldLock = _FileLock | _SessionLock
"""A lock that was taken."""


@contextmanager
def hold(location: Location, name: str, *, patience_s: float = SWEPT_S, busy: Busy) -> Iterator[HeldLock]:
    """Hold a warehouse's lock of that name for this block.

    Raises WarehouseBusy with `busy` when it is not free in time, WarehouseUnreachable, or WarehouseUnwritable when
    no file can be written beside the warehouse.
    """
    lock: HeldLock
    if location.lake is not None and location.lake.catalogue == "postgres":
        lock = _SessionLock(location, location.lake, name)
    else:
        lock = _FileLock(find_lock_file(location, name))

    def attempt(seconds: float) -> None:
        lock.take(time.monotonic() + seconds, busy)

    try:
        attempt(patience_s)
    except WarehouseUnreachable as error:
        try_again(error, attempt, tried_s=patience_s, patience_s=patience_s, kind=WarehouseUnreachable)
    try:
        yield lock
    finally:
        lock.close()


@contextmanager
def hold_file(path: Path, *, patience_s: float, busy: Busy) -> Iterator[None]:
    """Keep other processes of this machine out for this block; raises WarehouseBusy, or WarehouseUnwritable."""
    lock = _FileLock(path)
    lock.take(time.monotonic() + patience_s, busy)
    try:
        yield
    finally:
        lock.close()


@contextmanager
def hold_run(location: Location, run_id: str) -> Iterator[None]:
    """Keep other processes off a run for this block; raises as `hold`."""
    busy = f"run {run_id} is running in another process; wait for its end, or stop it there and resume it then"
    with hold(location, f"run-{run_id}", busy=busy):
        yield


class Claims:
    """Numbers that this object has claimed, out of the ones that all processes claim in a file; for one thread.

    A claim is a lock of the operating system on one byte of the file, so that it is void once its process has ended.
    Claims only save requests: where the system or the file system has no locks that belong to an open file, or the file
    cannot be opened (it belongs to another user, or the disk is full), every claim is granted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        if _OFD_LOCK is not None:
            self._open()

    def take(self, number: int) -> bool:
        """Claim a number of 64 bits; False if another process has it."""
        if not self._set(_WRITE_LOCK, number):
            return False
        if self._file is None or os.fstat(self._file).st_nlink:
            return True
        # The last one who had it open has removed it in the moment before.
        os.close(self._file)
        self._open()
        return self.take(number)

    def release(self, number: int) -> None:
        """Give a claim back."""
        self._set(_UNLOCK, number)

    def close(self) -> None:
        """Give all claims back, and remove the file where no other process has claims in it."""
        if self._file is None:
            return
        self._set(_UNLOCK)
        if self._set(_WRITE_LOCK):
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        os.close(self._file)
        self._file = None

    def _open(self) -> None:
        self._file = None
        with suppress(OSError):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)

    def _set(self, kind: int, number: int | None = None) -> bool:
        """Lock or unlock the byte of a number, or all bytes; False where that conflicts with another lock."""
        if _OFD_LOCK is None or self._file is None:
            return True
        # A place in a file has 63 bits. The fields of `struct flock`: type, whence, start, length, process.
        start, length = (0, 0) if number is None else (number >> 2, 1)
        try:
            fcntl.fcntl(self._file, _OFD_LOCK, struct.pack("hhqqi0q", kind, os.SEEK_SET, start, length, 0))
        except OSError as error:
            return error.errno not in (errno.EAGAIN, errno.EACCES)  # others: a file system without such locks
        return True


def list_held(location: Location, names: Collection[str]) -> set[str]:
    """Return the locks that a process holds, out of these; raises WarehouseUnreachable."""
    if location.lake is None or location.lake.catalogue == "sqlite":
        return {name for name in names if is_file_held(find_lock_file(location, name))}
    with closing(_open_session(location, location.lake, time.monotonic() + _CONNECT_S)) as session:
        held = {row[0] for row in session.execute(read_query("upkeep/held_locks"))}
    return {name for name in names if _make_key(name) in held}


def is_file_held(path: Path) -> bool:
    """Return whether a process holds the lock on a file; the file of a killed process is removed."""
    if not path.exists():
        return False
    lock = _FileLock(path)
    try:
        lock.take(0.0, "")
    except WarehouseBusy:
        return True
    lock.close()
    return False


def find_lock_file(location: Location, name: str) -> Path:
    """Return the file of a lock beside the warehouse."""
    if name.startswith(_IN_JOURNAL):
        return location.journal_path / f"{name}.lock"
    return location.path.with_name(f"{location.path.name}.{name}.lock")


def _open_session(location: Location, lake: Lake, deadline: float) -> "psycopg.Connection[tuple[object, ...]]":
    try:
        import psycopg  # noqa: PLC0415  # of the extra `lake`
    except ImportError:
        raise WarehouseError(
            "a catalogue in PostgreSQL needs psycopg; install it with `pip install 'evalhouse[lake]'`"
        ) from None
    wait_s = _RETRY_S
    while True:
        try:
            session = psycopg.connect(lake.dsn, autocommit=True, connect_timeout=_CONNECT_S, **_KEEPALIVES)
            session.execute(_SERVER_KEEPALIVES)
            return session
        except psycopg.OperationalError as error:
            if time.monotonic() >= deadline:
                reason = str(error).strip().splitlines()[-1]
                raise WarehouseUnreachable(f"the catalogue of {location.name} does not answer: {reason}") from None
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _SLOWEST_RETRY_S)


def _make_key(name: str) -> int:
    """Return a key of 63 bits. PostgreSQL keeps the locks of a database apart, and a database has one lake at most.

    The folder of files is not in it: two machines may see it at two paths.
    """
    digest = hashlib.sha256(f"evalhouse/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


T = TypeVar("T")
ATTEMPT_S: Final = 5.0
"""The longest attempt: a run that waits anyway shall soon print the reason."""


class _Wait:
    """The wait of all threads of a run: its reason is printed once, and so is its end."""

    def __init__(self, report: Callable[[str], None], is_stopped: Callable[[], bool]) -> None:
        self._report, self._is_stopped = report, is_stopped
        self._guard = threading.Lock()
        self._since: datetime | None = None
        self._began = 0.0  # on the monotonic clock
        self._reported = ""

    def may_continue(self, busy: WarehouseBusy, *, waited_s: float) -> bool:
        """Return whether to wait longer, and print the reason where it is new."""
        if busy.who == "own code" or self._is_stopped():
            return False
        with self._guard:
            if self._since is None:
                self._since, self._began = datetime.now() - timedelta(seconds=waited_s), time.monotonic() - waited_s
            if busy.who == "others" and str(busy) != self._reported:
                self._reported = str(busy)
                self._report(f"{datetime.now():%H:%M:%S} the run waits since {self._since:%H:%M:%S}, as {busy}")
        return True

    def end(self) -> None:
        """Print that the wait is over, if its reason was printed."""
        with self._guard:
            if self._since is not None and self._reported:
                seconds = time.monotonic() - self._began
                self._report(f"{datetime.now():%H:%M:%S} the run continues after a wait of {seconds:.0f} s")
            self._since, self._reported = None, ""


_wait: ContextVar[_Wait | None] = ContextVar("wait", default=None)


@contextmanager
def waiting_for_others(report: Callable[[str], None], *, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Wait for the warehouse in this block for as long as it takes, or until `is_stopped`; `report` takes a line."""
    token = _wait.set(_Wait(report, is_stopped))
    try:
        yield
    finally:
        _wait.reset(token)


def try_again(
    busy: WarehouseBusy,
    attempt: Callable[[float], T],
    *,
    tried_s: float,
    patience_s: float,
    kind: type[WarehouseBusy] = WarehouseBusy,
) -> T:
    """Repeat an attempt that was `busy` for `tried_s`: until `patience_s` are over, or, where the caller waits for
    others, as often as it takes. Raises the last error of this kind."""
    wait = _wait.get()
    if wait is None and tried_s < patience_s:
        return attempt(patience_s - tried_s)
    while wait is not None and wait.may_continue(busy, waited_s=tried_s):
        try:
            result = attempt(tried_s)
        except kind as error:
            busy = error
        else:
            wait.end()
            return result
    raise busy


def find_scratch() -> Path:
    """Return the folder of all temporary folders of this process, which readers of a warehouse may read."""
    return Path(tempfile.gettempdir()) / f"{_PREFIX}{_PROCESS}"


class Scratch:
    """A temporary folder that its process alone may read; `close` it when done.

    A lock beside the folder, taken before the folder is made, shows the next process whether it is still in use.
    """

    def __init__(self) -> None:
        self.folder = find_scratch() / uuid.uuid4().hex
        # Not bound to a thread: another thread may end the run and release it.
        self._lock = FileLock(self.folder.with_name(f"{self.folder.name}.lock"), thread_local=False)
        with _making:
            self.folder.parent.mkdir(mode=0o700, exist_ok=True)
            self._lock.acquire()
            self.folder.mkdir(mode=0o700)

    def close(self) -> None:
        """Remove the folder with its files; a second time it does nothing."""
        if self._lock.is_locked:
            _remove_folder(self.folder, self._lock)


def remove_abandoned() -> None:
    """Remove the temporary folders of processes that were killed."""
    # Unlike Path.glob this one passes over a folder that its process removes meanwhile.
    for folder in map(Path, iglob(f"{escape(tempfile.gettempdir())}/{_PREFIX}*/*/")):
        lock = FileLock(folder.with_name(f"{folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):  # in use, or another user's
            continue
        _remove_folder(folder, lock)


def _remove_folder(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    # While it is still held: no other process can have begun to use it.
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
    with _making, suppress(OSError):  # it has others
        folder.parent.rmdir()
