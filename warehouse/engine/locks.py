"""Locks by name: who writes, and who is on a run, a suite or a part of a run. And waiting for what cannot be had.

All end with their process, however that ends. A lock is one of the operating system on a file beside the
warehouse, and holds on one machine. Of a lake with its catalogue in PostgreSQL it is an advisory lock of a session
there and holds over all machines. With SQLite all processes are on one machine.

By itself an opening of a warehouse (a file that another program keeps, a catalogue whose server is down) gives up after
its patience and raises WarehouseBusy. Within `waiting_for_others`, which a run is, it is tried again for as long as it
takes, and what is waited for is said. Only threads and tasks that were started with the context of that block wait.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from filelock import FileLock, Timeout

from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseUnreachable, WarehouseUnwritable
from evalhouse.warehouse.location import Lake, Location
from evalhouse.warehouse.queries import read_query

if TYPE_CHECKING:
    import psycopg

Busy = str | Callable[[], str]
"""What to say when a lock is not free in time."""

SWEPT_S: Final = 1.0
"""Patience for a lock that ought to be free: it is held for a moment where dead processes are swept up after."""
_IN_JOURNAL = ("run-", "suite-")  # what a killed process leaves of them is swept up with its journal
_RETRY_S = 0.02
_SLOWEST_RETRY_S = 0.25
_CONNECT_S = 10
# Of a machine that loses its power the server hears nothing; it asks after so long, and lets go of its locks then.
_IDLE_S, _ASK_EVERY_S, _ASK_TIMES = 5, 5, 3
GONE_S: Final = float(_IDLE_S + _ASK_EVERY_S * _ASK_TIMES)
"""After so many seconds without a sign of life a session's locks are free."""
_KEEPALIVES: dict[str, Any] = {
    "keepalives_idle": _IDLE_S, "keepalives_interval": _ASK_EVERY_S, "keepalives_count": _ASK_TIMES,
    "tcp_user_timeout": int(1000 * GONE_S),
}  # fmt: skip
_SERVER_KEEPALIVES = (
    f"set tcp_keepalives_idle = {_IDLE_S}; set tcp_keepalives_interval = {_ASK_EVERY_S}; "
    f"set tcp_keepalives_count = {_ASK_TIMES}; set tcp_user_timeout = {int(1000 * GONE_S)}"
)


class HeldLock(Protocol):
    """A lock that was taken."""

    def is_held(self) -> bool:
        """Whether nobody else can have it."""

    def close(self) -> None:
        """Let go; a second time it does nothing."""


@contextmanager
def hold(location: Location, name: str, *, patience_s: float = SWEPT_S, busy: Busy) -> Iterator[HeldLock]:
    """Hold a warehouse's lock of that name for this block.

    Raises WarehouseBusy with `busy` when it is not free in time, WarehouseUnreachable, or WarehouseUnwritable when
    nothing can be written beside the file.
    """
    if location.lake is not None and location.lake.catalogue == "postgres":
        lock: _SessionLock | _FileLock = _SessionLock(location, location.lake, name)
    else:
        lock = _FileLock(find_lock_file(location, name))
    with ExitStack() as stack:

        def attempt(seconds: float) -> None:
            stack.enter_context(_held(lock, busy, seconds))

        try:
            attempt(patience_s)
        except WarehouseUnreachable as error:
            try_again(error, attempt, tried_s=patience_s, patience_s=patience_s, kind=WarehouseUnreachable)
        yield lock


@contextmanager
def hold_file(path: Path, *, patience_s: float, busy: Busy) -> Iterator[None]:
    """Keep the other processes of this machine out for this block; raises WarehouseBusy, or WarehouseUnwritable."""
    with _held(_FileLock(path), busy, patience_s):
        yield


@contextmanager
def hold_run(location: Location, run_id: str) -> Iterator[None]:
    """Keep other processes off a run for this block; raises as `hold`."""
    busy = f"run {run_id} is under way in another process; wait for its end, or stop it there and resume it then"
    with hold(location, f"run-{run_id}", busy=busy):
        yield


def list_held(location: Location, names: Collection[str], *, patience_s: float = 10.0) -> set[str]:
    """Which of these locks somebody holds; raises WarehouseUnreachable."""
    if location.lake is None or location.lake.catalogue == "sqlite":
        return {name for name in names if is_file_held(find_lock_file(location, name))}
    session = _open_session(location, location.lake, time.monotonic() + patience_s)
    try:
        held = {row[0] for row in session.execute(read_query("upkeep/held_locks"))}
    finally:
        session.close()
    return {name for name in names if _make_key(location.lake, name) in held}


def is_file_held(path: Path) -> bool:
    """Whether somebody holds the lock on a file; the file of a process that was killed is removed."""
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
    """The file of a lock beside the warehouse."""
    if name.startswith(_IN_JOURNAL):
        return location.journal_path / f"{name}.lock"
    return location.path.with_name(f"{location.path.name}.{name}.lock")


class _FileLock:
    """A lock of the operating system, which this machine's processes see."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Not bound to a thread: another thread may end the run and let go of it.
        self._lock = FileLock(path, thread_local=False)

    def take(self, deadline: float, busy: Busy) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        except Timeout:
            raise WarehouseBusy(_say(busy)) from None
        except OSError as error:
            raise WarehouseUnwritable(f"cannot write {self._path}: {error.strerror or error}") from None

    def is_held(self) -> bool:
        return True

    def close(self) -> None:
        if self._lock.is_locked:
            # While it is still held: afterwards the file may already be the next process's.
            self._path.unlink(missing_ok=True)
            self._lock.release()


class _SessionLock:
    """A lock of the catalogue's server, which all machines see.

    A session ends with the server, or when the way to it is broken. The lock is then taken again, and is lost only when
    somebody else was faster, or when the server has been out of reach for so long that it takes this session for dead.
    """

    def __init__(self, location: Location, lake: Lake, name: str) -> None:
        self._location, self._lake, self._key = location, lake, _make_key(lake, name)
        self._session: psycopg.Connection[tuple[object, ...]] | None = None
        self._seen_at = time.monotonic()

    def take(self, deadline: float, busy: Busy) -> None:
        session = _open_session(self._location, self._lake, deadline)
        try:
            _take(session, self._key, deadline, busy)
        except BaseException:  # Ctrl-C while it waits too: the session would hold its place
            session.close()
            raise
        self._session, self._seen_at = session, time.monotonic()

    def is_held(self) -> bool:
        if self._session is None or not self._is_answered():
            try:
                self.take(time.monotonic() + _RETRY_S, "")
            except WarehouseUnreachable:
                return time.monotonic() - self._seen_at < GONE_S
            except WarehouseBusy:
                return False
        self._seen_at = time.monotonic()
        return True

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()  # which lets go of the lock

    def _is_answered(self) -> bool:
        import psycopg  # noqa: PLC0415

        try:
            assert self._session is not None
            self._session.execute("select 1")
        except psycopg.OperationalError:
            self.close()
            return False
        return True


@contextmanager
def _held(lock: "_FileLock | _SessionLock", busy: Busy, patience_s: float) -> Iterator[None]:
    lock.take(time.monotonic() + patience_s, busy)
    try:
        yield
    finally:
        lock.close()


def _say(busy: Busy) -> str:
    return busy if isinstance(busy, str) else busy()


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


def _take(session: "psycopg.Connection[tuple[object, ...]]", key: int, deadline: float, busy: Busy) -> None:
    """Wait in the server's queue, which is fair, for as long as there is time."""
    import psycopg  # noqa: PLC0415

    left_ms = max(1, int(1000 * (deadline - time.monotonic())))
    try:
        session.execute(f"set lock_timeout = {left_ms}")
        session.execute("select pg_advisory_lock(%s)", [key])
    except psycopg.errors.LockNotAvailable:
        raise WarehouseBusy(_say(busy)) from None
    except psycopg.OperationalError as error:
        raise WarehouseUnreachable(f"the catalogue's server went away: {str(error).strip()}") from None


def _make_key(lake: Lake, name: str) -> int:
    """A key of 63 bits; two warehouses in one database differ by their folder of files."""
    digest = hashlib.sha256(f"evalhouse/{lake.data}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


T = TypeVar("T")
ATTEMPT_S: Final = 5.0
"""The longest of an attempt: a run that waits anyway shall soon say what it waits for."""
Say = Callable[[str], None]


class _Wait:
    """One wait at a time for all threads of a run: what is waited for is said once, and so is its end."""

    def __init__(self, say: Say, is_stopped: Callable[[], bool]) -> None:
        self._say, self._is_stopped = say, is_stopped
        self._guard = threading.Lock()
        self._since: datetime | None = None
        self._said = ""

    def goes_on(self, busy: WarehouseBusy, *, waited_s: float) -> bool:
        if busy.who == "own code" or self._is_stopped():
            return False
        with self._guard:
            self._since = self._since or datetime.now() - timedelta(seconds=waited_s)
            if busy.who == "others" and str(busy) != self._said:
                self._said = str(busy)
                self._say(f"{datetime.now():%H:%M:%S} the run waits since {self._since:%H:%M:%S}, as {busy}")
        return True

    def end(self) -> None:
        with self._guard:
            if self._since is not None and self._said:
                seconds = (datetime.now() - self._since).total_seconds()
                self._say(f"{datetime.now():%H:%M:%S} the run goes on, after {seconds:.0f} s in which it waited")
            self._since, self._said = None, ""


_wait: ContextVar[_Wait | None] = ContextVar("wait", default=None)


@contextmanager
def waiting_for_others(say: Say, *, is_stopped: Callable[[], bool]) -> Iterator[None]:
    """Wait for the warehouse within this block for as long as it takes, or until `is_stopped`; `say` takes a line."""
    token = _wait.set(_Wait(say, is_stopped))
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
    """Make an attempt again that was `busy` for `tried_s`: until `patience_s` are over, or where the caller waits for
    others as often as it takes. Raises the last error of this kind."""
    wait = _wait.get()
    if wait is None and tried_s < patience_s:
        return attempt(patience_s - tried_s)
    while wait is not None and wait.goes_on(busy, waited_s=tried_s):
        try:
            result = attempt(tried_s)
        except kind as error:
            busy = error
        else:
            wait.end()
            return result
    raise busy
