"""A warehouse file that a short run keeps open from one transaction to the next.

Opening and closing a file takes 25 ms, and a run of one sample does so fourteen times within a second: half of what a
call of `evaluate` took. So within `writer_kept` the file stays open, with the lock file that others queue at, when a
transaction has ended: for the next one, or a read, that follows at once. It is closed when none does, or when it has
been open for as long as anybody should wait.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import duckdb

Open = Callable[[float], AbstractContextManager[duckdb.DuckDBPyConnection]]
"""Takes the lock file and opens the file for writing before a deadline on `time.monotonic`; raises WarehouseError."""
# How long nothing may follow, and how long it may all take.
_IDLE_S: Final = 0.05
_LONGEST_S: Final = 1.0


class KeptWriter:
    """Of one file. Whoever takes the connection holds the lock that the threads of this process take turns by."""

    def __init__(self, lock: threading.Lock, open_file: Open) -> None:
        self._lock, self._open = lock, open_file
        self._held = ExitStack()
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._timer: threading.Timer | None = None
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def has(self, connection: duckdb.DuckDBPyConnection) -> bool:
        return connection is self._connection

    @contextmanager
    def taken(self, deadline: float) -> Iterator[duckdb.DuckDBPyConnection]:
        """The connection for one transaction or read; what has failed on it is not handed on."""
        self._timer = None
        if self._connection is None:
            self._connection = self._held.enter_context(self._open(deadline))
            self._until = time.monotonic() + _LONGEST_S
        try:
            yield self._connection
        except BaseException:
            self.close()
            raise
        if time.monotonic() < self._until:
            self._wait()
        else:
            self.close()

    def close(self) -> None:
        """Let others have the file."""
        self._timer = self._connection = None
        self._held.close()

    def _wait(self) -> None:
        self._timer = timer = threading.Timer(_IDLE_S, lambda: self._close_if_idle(timer))
        timer.daemon = True
        timer.start()

    def _close_if_idle(self, timer: threading.Timer) -> None:
        with self._lock:
            if self._timer is timer:  # and nobody has come since
                self.close()


kept_writers: Final[dict[Path, KeptWriter]] = {}
"""By path, those of the runs that are within `writer_kept`."""
