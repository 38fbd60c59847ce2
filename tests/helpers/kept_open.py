"""One open file for all that this process does with a warehouse: to open it takes 45 ms of CPU, to connect again one.

A run opens it a dozen times and a test of one step three times, and what comes and goes between two openings (another
process) is what the tests of `store/` and `runs/` are about, with processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import duckdb

from evalhouse.warehouse.engine import connection

Connect = Callable[..., duckdb.DuckDBPyConnection]


class KeptFiles:
    """Opens a file for writing when it is first asked for, and again in the same way from then on: DuckDB has one
    instance of it."""

    def __init__(self, place: Path, connect: Connect) -> None:
        self._place, self._connect = place.resolve(), connect
        self._opened: dict[str, duckdb.DuckDBPyConnection] = {}
        self._lock = threading.Lock()

    def connect(
        self, database: str | Path = ":memory:", read_only: bool = False, config: Mapping[str, object] | None = None
    ) -> duckdb.DuckDBPyConnection:
        """In place of `duckdb.connect`; what is opened to be served to people is opened as it is."""
        path = Path(str(database)).resolve()
        if not path.is_file() or not path.is_relative_to(self._place) or "enable_external_access" in (config or {}):
            return self._connect(database, read_only=read_only, config=dict(config or {}))
        with self._lock:
            if str(path) not in self._opened:
                try:
                    self._opened[str(path)] = self._connect(str(path), config=dict(connection._FOR_WRITING))
                except duckdb.ConnectionException:  # the test has it open otherwise
                    return self._connect(database, read_only=read_only, config=dict(config or {}))
        return self._connect(str(path), config=dict(connection._FOR_WRITING))

    def close(self) -> None:
        for opened in self._opened.values():
            opened.close()


@contextmanager
def kept_open(place: Path) -> Iterator[None]:
    """For a plain file, or all in a folder, that no other process looks at meanwhile."""
    kept = KeptFiles(place, duckdb.connect)
    before, duckdb.connect = duckdb.connect, kept.connect
    try:
        yield
    finally:
        duckdb.connect = before
        kept.close()
