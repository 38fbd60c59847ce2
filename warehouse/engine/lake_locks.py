"""Locks of a DuckLake warehouse: who may write, and who is on a run.

With the catalogue in PostgreSQL they are advisory locks of a session there, which hold over all machines and end with
their process, however that ends. With SQLite all processes are on one machine, and a lock of its operating system does.
"""

import hashlib
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock, Timeout

from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseUnreachable, WarehouseUnwritable
from evalhouse.warehouse.location import Lake, Location

if TYPE_CHECKING:
    import psycopg

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
_HELD = """
select (classid::bigint << 32) | objid::bigint
from pg_locks
where locktype = 'advisory' and objsubid = 1 and granted
  and database = (select oid from pg_database where datname = current_database())
"""


@contextmanager
def lock_for_writing(location: Location, lake: Lake, deadline: float) -> Iterator[None]:
    """Keep other writers out for this block; raises WarehouseBusy, or WarehouseUnreachable."""
    told = f"another evalhouse is writing to {location.name} and did not let go in time"
    with lock_by_name(location, lake, "write", deadline, told=told):
        yield


@contextmanager
def lock_by_name(location: Location, lake: Lake, name: str, deadline: float, *, told: str) -> Iterator[None]:
    """Hold the lock of that name for this block; raises WarehouseBusy with `told` when it is not free in time."""
    if lake.catalogue == "sqlite":
        with _lock_file(_name_file(location, name), deadline, told):
            yield
        return
    session = _open_session(location, lake, deadline)
    try:
        _take(session, _make_key(lake, name), deadline, told)
        yield
    finally:
        session.close()  # which lets go of the lock


class WatchedLock:
    """A lock by name that is held for longer than a batch; whoever holds it asks now and then whether it still does.

    A session ends with the server, or when the way to it is broken. The lock is then taken anew, and is lost only when
    somebody else was faster, or when the server has been out of reach for so long that it takes this session for dead.
    """

    def __init__(self, location: Location, lake: Lake, name: str) -> None:
        self._location, self._lake, self._key = location, lake, _make_key(lake, name)
        self._file = FileLock(_name_file(location, name), thread_local=False)
        self._session: psycopg.Connection[tuple[object, ...]] | None = None
        self._seen_at = time.monotonic()

    def take(self, deadline: float, told: str) -> None:
        """Take the lock; raises WarehouseBusy with `told` when it is not free in time."""
        if self._lake.catalogue == "sqlite":
            _acquire(self._file, deadline, told)
            return
        session = _open_session(self._location, self._lake, deadline)
        try:
            _take(session, self._key, deadline, told)
        except BaseException:
            session.close()
            raise
        self._session, self._seen_at = session, time.monotonic()

    def is_held(self) -> bool:
        """Whether nobody else can have it; asks the server."""
        if self._lake.catalogue == "sqlite":
            return True
        if self._session is None or not self._is_answered():
            try:
                self.take(time.monotonic() + _RETRY_S, "")
            except WarehouseUnreachable:
                return time.monotonic() - self._seen_at < GONE_S
            except WarehouseBusy:
                return False
        self._seen_at = time.monotonic()
        return True

    def _is_answered(self) -> bool:
        import psycopg  # noqa: PLC0415

        try:
            assert self._session is not None
            self._session.execute("select 1")
        except psycopg.OperationalError:
            self.close()
            return False
        return True

    def close(self) -> None:
        """Let go; a second time it does nothing."""
        if self._file.is_locked:
            # While it is still held: afterwards the file may already be somebody else's.
            Path(self._file.lock_file).unlink(missing_ok=True)
            self._file.release()
        session, self._session = self._session, None
        if session is not None:
            session.close()


@contextmanager
def hold_watched(location: Location, lake: Lake, name: str, deadline: float, *, told: str) -> Iterator[WatchedLock]:
    """As `lock_by_name`, for a block of minutes, within which the lock can be asked whether it is still held."""
    lock = WatchedLock(location, lake, name)
    lock.take(deadline, told)
    try:
        yield lock
    finally:
        lock.close()


def list_held(location: Location, lake: Lake, names: Collection[str], *, patience_s: float = 10.0) -> set[str]:
    """Which of these locks somebody holds; raises WarehouseUnreachable."""
    if lake.catalogue == "sqlite":
        return {name for name in names if _is_locked(_name_file(location, name))}
    session = _open_session(location, lake, time.monotonic() + patience_s)
    try:
        held = {row[0] for row in session.execute(_HELD)}
    finally:
        session.close()
    return {name for name in names if _make_key(lake, name) in held}


@contextmanager
def lock_on_machine(location: Location, name: str, deadline: float, *, told: str) -> Iterator[None]:
    """Keep the other processes of this machine out; raises WarehouseBusy with `told`."""
    location.path.parent.mkdir(parents=True, exist_ok=True)
    with _lock_file(_name_file(location, name), deadline, told):
        yield


def _name_file(location: Location, name: str) -> Path:
    return location.path.with_name(f"{location.path.name}.{name}.lock")


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    path.unlink(missing_ok=True)  # of a process that was killed
    lock.release()
    return False


@contextmanager
def _lock_file(path: Path, deadline: float, told: str) -> Iterator[None]:
    lock = FileLock(path, thread_local=False)
    _acquire(lock, deadline, told)
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: FileLock, deadline: float, told: str) -> None:
    try:
        lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
    except Timeout:
        raise WarehouseBusy(told) from None
    except OSError as error:
        folder = Path(lock.lock_file).parent
        raise WarehouseUnwritable(f"cannot write in {folder}: {error.strerror or error}") from None


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
                told = str(error).strip().splitlines()[-1]
                raise WarehouseUnreachable(f"the catalogue of {location.name} does not answer: {told}") from None
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _SLOWEST_RETRY_S)


def _take(session: "psycopg.Connection[tuple[object, ...]]", key: int, deadline: float, told: str) -> None:
    """Wait in the server's queue, which is fair, for as long as there is time."""
    import psycopg  # noqa: PLC0415

    left_ms = max(1, int(1000 * (deadline - time.monotonic())))
    try:
        session.execute(f"set lock_timeout = {left_ms}")
        session.execute("select pg_advisory_lock(%s)", [key])
    except psycopg.errors.LockNotAvailable:
        raise WarehouseBusy(told) from None
    except psycopg.OperationalError as error:
        raise WarehouseUnreachable(f"the catalogue's server went away: {str(error).strip()}") from None


def _make_key(lake: Lake, name: str) -> int:
    """A key of 63 bits; two warehouses in one database differ by their folder of files."""
    digest = hashlib.sha256(f"evalhouse/{lake.data}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
