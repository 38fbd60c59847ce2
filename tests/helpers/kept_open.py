"""One open file for all that this process does with a warehouse: to open it takes 45 ms of CPU, to connect again one.

A run opens it a dozen times and a test of one step three times, and what comes and goes between two openings (another
process) is what the tests of `store/` and `runs/` are about, with processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from evalhouse.warehouse.engine import connection
from evalhouse.warehouse.location import Location


class KeptFile:
    """Opens the file for writing when it is first asked for, and again in the same way from then on: DuckDB has one
    instance of it."""

    def __init__(self, path: Path, connect: Any) -> None:  # noqa: ANN401  # the product's own, of seven types
        self._path, self._connect = path.resolve(), connect
        self._opened: duckdb.DuckDBPyConnection | None = None
        self._lock = threading.Lock()

    def connect(self, location: Location, **chosen: Any) -> duckdb.DuckDBPyConnection:  # noqa: ANN401
        if location.path.resolve() != self._path or chosen.get("config"):
            return self._connect(location, **chosen)  # type: ignore[no-any-return]
        chosen["read_only"] = False
        with self._lock:
            if self._opened is None:
                self._opened = self._connect(location, **chosen)
        return self._connect(location, **chosen)  # type: ignore[no-any-return]

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


@contextmanager
def kept_open(path: Path) -> Iterator[None]:
    """For a plain file that no other process looks at meanwhile."""
    before = connection._connect
    kept = KeptFile(path, before)
    connection._connect = kept.connect
    try:
        yield
    finally:
        connection._connect = before
        kept.close()
