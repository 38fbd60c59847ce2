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


class KeptFiles:
    """Opens a file for writing when it is first asked for, and again in the same way from then on: DuckDB has one
    instance of it."""

    def __init__(self, connect: Any) -> None:  # noqa: ANN401  # the product's own, of seven types
        self._connect = connect
        self._opened: dict[Path, duckdb.DuckDBPyConnection] = {}
        self._lock = threading.Lock()

    def connect(self, location: Location, **chosen: Any) -> duckdb.DuckDBPyConnection:  # noqa: ANN401
        chosen["read_only"] = False
        with self._lock:
            if location.path not in self._opened:
                self._opened[location.path] = self._connect(location, **chosen)
        return self._connect(location, **chosen)  # type: ignore[no-any-return]

    def close(self) -> None:
        for opened in self._opened.values():
            opened.close()


@contextmanager
def kept_open(place: Path) -> Iterator[None]:
    """For a plain file, or all in a folder, that no other process looks at meanwhile."""
    before, place = connection._connect, place.resolve()
    kept = KeptFiles(before)

    def connect(location: Location, **chosen: Any) -> duckdb.DuckDBPyConnection:  # noqa: ANN401
        is_kept = location.path.resolve().is_relative_to(place) and not chosen.get("config")
        return (kept.connect if is_kept else before)(location, **chosen)  # type: ignore[no-any-return]

    connection._connect = connect
    try:
        yield
    finally:
        connection._connect = before
        kept.close()
