"""Locks of a DuckLake warehouse: who may write, and who is on a run.

With the catalogue in PostgreSQL they are advisory locks of a session there, which hold over all machines and end with
their process, however that ends. With SQLite all processes are on one machine, and a lock of its operating system does.
"""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from warehouse.errors import WarehouseBusy, WarehouseError, WarehouseUnreachable, WarehouseUnwritable
from warehouse.location import Lake, Location

if TYPE_CHECKING:
    import psycopg

_RETRY_S = 0.02
_SLOWEST_RETRY_S = 0.25
_CONNECT_S = 10


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
        with _lock_file(location.path.with_name(f"{location.path.name}.{name}.lock"), deadline, told):
            yield
        return
    session = _open_session(location, lake, deadline)
    try:
        _take(session, _make_key(lake, name), deadline, told)
        yield
    finally:
        session.close()  # which lets go of the lock


@contextmanager
def _lock_file(path: Path, deadline: float, told: str) -> Iterator[None]:
    lock = FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
    except Timeout:
        raise WarehouseBusy(told) from None
    except OSError as error:
        raise WarehouseUnwritable(f"cannot write beside {path}: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.release()


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
            return psycopg.connect(lake.dsn, autocommit=True, connect_timeout=_CONNECT_S)
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
