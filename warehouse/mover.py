"""Rows that were paid for on their way into the warehouse: on disk when `keep` returns, moved in batches by a thread.

Calls to a judge and responses of a target both go this way. Until a batch is in its table the journal has its rows, so
a process that is killed loses only what was in flight; what it leaves is taken in by the next one.
"""

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from evalhouse.warehouse.batch import Batch
from evalhouse.warehouse.engine.journal import Journal, Segment, find_orphans
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse
from evalhouse.warehouse.tables import build_frame

JournalledTable = Literal["llm_calls", "responses"]

_TICK_S = 0.5


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How a table is filled: from which folder of the journal, how often, and after how many rows at the latest.

    A move costs 70 ms of CPU however few rows it has, so it waits for some.
    """

    folder: str
    every_s: float
    most_rows: int


# Responses have a folder of their own, because segments beside it are calls.
_WAYS: Final[dict[JournalledTable, _Way]] = {
    "llm_calls": _Way(folder="", every_s=20.0, most_rows=2000),
    "responses": _Way(folder="responses", every_s=5.0, most_rows=500),
}


class Mover:
    """Keeps rows of a table; safe to use from several threads. `close` before the process ends.

    `failure` is what stopped the moving, if anything did: rows that are kept afterwards are on disk alone. `moved` is
    called with each segment whose rows are in the warehouse now.
    """

    def __init__(
        self, warehouse: Warehouse, table: JournalledTable, *, moved: Callable[[Segment], None] = lambda _: None
    ) -> None:
        self._warehouse, self._table, self._moved = warehouse, table, moved
        self._journal = Journal(_find_folder(warehouse.location, table))
        self._waiting: list[Segment] = []
        self._moving = threading.Lock()
        self._ended = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"evalhouse-{table}", daemon=True)
        self._thread.start()

    def keep(self, row: dict[str, object]) -> None:
        """Put a row on disk; raises OSError when the disk does not take it."""
        self._journal.append(row)

    def __len__(self) -> int:
        """How many rows are on disk and not yet on their way into the table."""
        return len(self._journal)

    def flush(self, *, patience_s: float = FLUSH_PATIENCE_S) -> None:
        """Move everything; raises WarehouseBusy when the file stays locked (nothing is lost)."""
        self._move(patience_s)  # what still waited
        self._move(patience_s)  # and what came since

    def close(self) -> None:
        """Flush and let go of the journal; what cannot be moved is taken in by the next run."""
        self._ended.set()
        self._thread.join()
        try:
            self.flush()
        finally:
            self._journal.close()

    def _run(self) -> None:
        way, waited_s = _WAYS[self._table], 0.0
        while self.failure is None and not self._ended.wait(_TICK_S):
            waited_s += _TICK_S
            if waited_s >= way.every_s or len(self._journal) >= way.most_rows:
                waited_s = 0.0
                self._try_to_move()

    def _try_to_move(self) -> None:
        """A locked file is waited out; anything else ends the moving."""
        try:
            self._move(_TICK_S)
        except WarehouseBusy:
            return
        except WarehouseError as error:
            self.failure = error
        finally:
            # Whatever else may come, the run must learn that its rows are no longer moved.
            self.failure = self.failure or sys.exception()

    def _move(self, patience_s: float) -> None:
        with self._moving:
            # While a locked file keeps segments waiting the journal grows by one segment, not by one every tick.
            segment = None if self._waiting else self._journal.rotate()
            if segment is not None:
                self._waiting.append(segment)
            while self._waiting:
                take_in_segment(self._warehouse, self._table, self._waiting[0], patience_s=patience_s)
                self._moved(self._waiting.pop(0))


def take_in_segment(warehouse: Warehouse, table: JournalledTable, segment: Segment, *, patience_s: float) -> None:
    """Write a segment into its table and remove it; raises WarehouseBusy and keeps it otherwise."""
    if segment.rows:
        batch = Batch(
            key=segment.key, run_id=str(segment.rows[0]["run_id"]), tables={table: build_frame(table, segment.rows)}
        )
        warehouse.append_now(batch, patience_s=patience_s)
    segment.remove()


def take_in_orphans(warehouse: Warehouse, *, patience_s: float = 30.0) -> int:
    """Take in what dead processes left in the journal; returns how many calls and responses that were."""
    number = 0
    for table in _WAYS:
        for segment in find_orphans(_find_folder(warehouse.location, table)):
            take_in_segment(warehouse, table, segment, patience_s=patience_s)
            number += len(segment.rows)
    return number


def _find_folder(location: Location, table: JournalledTable) -> Path:
    return location.journal_path / _WAYS[table].folder
