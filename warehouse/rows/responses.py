"""Responses: what the application under test answered, on disk as soon as it came, and found again by later runs.

As with the calls to a judge a response is a line in a journal before anything rests on it; whole segments of it move
into `responses` now and then. A killed process loses only what was in flight.
"""

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import polars as pl

from evalhouse.warehouse.engine.journal import Journal, Segment, find_orphans
from evalhouse.warehouse.errors import WarehouseBusy
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse, delete_rows, insert_frame
from evalhouse.warehouse.tables import build_frame

ResponseStatus = Literal["ok", "failed", "reused"]


@dataclass(frozen=True, kw_only=True)
class StoredResponse:
    """One response on record. `asked_run_id` is the run that asked for it; `question` is None when it is not known."""

    sample_id: str
    answer: str | None
    contexts: list[str] | None
    context_ids: list[str] | None
    status: ResponseStatus
    error: str | None
    latency_ms: float | None
    asked_run_id: str
    question: str | None
    metadata_json: str | None


class ResponseRecord:
    """Keeps the responses of one run; safe to use from several threads. `close` before the process ends."""

    def __init__(self, warehouse: Warehouse, run_id: str) -> None:
        self._warehouse = warehouse
        self._run_id = run_id
        self._journal = Journal(_find_journal(warehouse.location))
        self._waiting: list[Segment] = []
        self._moving = threading.Lock()

    def keep(self, row: Mapping[str, object]) -> None:
        """Put a row of `responses` on disk; raises OSError when the disk does not take it."""
        self._journal.append({"run_id": self._run_id, **row})

    @property
    def n_unmoved(self) -> int:
        """How many rows are on disk and not yet on their way into `responses`."""
        return len(self._journal)

    def move(self, *, patience_s: float) -> bool:
        """Bring what was kept into `responses`; False when somebody else keeps the file, and nothing is lost then."""
        try:
            self._move(patience_s)
        except WarehouseBusy:
            return False
        return True

    def flush(self) -> None:
        """Bring everything into `responses`; raises WarehouseBusy when the file stays locked."""
        self._move(FLUSH_PATIENCE_S)

    def close(self) -> None:
        """Flush and let go of the journal; what cannot be moved is taken in by the next run."""
        try:
            self.flush()
        finally:
            self._journal.close()

    def _move(self, patience_s: float) -> None:
        with self._moving:
            segment = self._journal.rotate()
            if segment is not None:
                self._waiting.append(segment)
            while self._waiting:
                _take_in(self._warehouse, self._waiting[0], patience_s=patience_s)
                self._waiting.pop(0)


def take_in_lost_responses(warehouse: Warehouse, *, patience_s: float = 30.0) -> None:
    """Take in what dead processes left in the journal of responses."""
    for segment in find_orphans(_find_journal(warehouse.location)):
        _take_in(warehouse, segment, patience_s=patience_s)


def read_responses(warehouse: Warehouse, run_id: str, sample_ids: Collection[str]) -> dict[str, StoredResponse]:
    """The responses of a run to some samples, by sample."""
    return _read(warehouse, read_query("responses/own"), {"run_id": run_id}, sample_ids)


def read_brought_responses(warehouse: Warehouse, run_id: str, sample_ids: Collection[str]) -> dict[str, StoredResponse]:
    """What the dataset of a run without a target brought for some samples, by sample."""
    return _read(warehouse, read_query("responses/brought"), {"run_id": run_id}, sample_ids)


def read_last_asked(
    warehouse: Warehouse, asking_runs: Mapping[str, datetime], sample_ids: Collection[str]
) -> dict[str, StoredResponse]:
    """The newest response to each sample that one of these runs, given with their starts, asked for itself."""
    frame = pl.DataFrame(
        {"run_id": list(asking_runs), "started_at": list(asking_runs.values())},
        schema={"run_id": pl.String, "started_at": pl.Datetime("us")},
    )
    return _read(warehouse, read_query("responses/last_asked"), None, sample_ids, asking_runs=frame)


def list_open_samples(warehouse: Warehouse, run_id: str) -> list[int]:
    """Ordinals of a loaded run's samples that have no response, a failed one, or one not yet taken in."""
    return [int(ordinal) for ordinal in warehouse.read(read_query("responses/open"), {"run_id": run_id})["ordinal"]]


def count_responses(warehouse: Warehouse, run_id: str) -> dict[str, Any]:
    """n_ok, n_failed, n_reused, and latency_p50_ms and latency_p95_ms of those that were asked for and came."""
    (counts,) = warehouse.read_rows(read_query("responses/counts"), {"run_id": run_id})
    return counts


def list_response_errors(warehouse: Warehouse, run_id: str) -> list[dict[str, Any]]:
    """Failures of a run by their text: error, n_samples and one sample as an example; the most frequent first."""
    return warehouse.read_rows(read_query("responses/errors"), {"run_id": run_id})


def _read(
    warehouse: Warehouse,
    sql: str,
    parameters: Mapping[str, object] | None,
    sample_ids: Iterable[str],
    **frames: pl.DataFrame,
) -> dict[str, StoredResponse]:
    wanted = pl.DataFrame({"sample_id": list(sample_ids)}, schema={"sample_id": pl.String})
    rows = warehouse.read(sql, parameters, frames={"wanted": wanted, **frames})
    return {row["sample_id"]: StoredResponse(**row) for row in rows.iter_rows(named=True)}


def _find_journal(location: Location) -> Path:
    # A folder of its own, because segments beside it are calls.
    return location.journal_path / "responses"


def _take_in(warehouse: Warehouse, segment: Segment, *, patience_s: float) -> None:
    if segment.rows:
        _write(warehouse, segment.key, segment.rows, patience_s)
    segment.remove()


def _write(warehouse: Warehouse, key: str, rows: Sequence[dict[str, object]], patience_s: float) -> None:
    """One transaction under the segment's key; a response takes the place of an earlier one of the same run."""
    run_id = str(rows[0]["run_id"])
    with warehouse.writing(patience_s=patience_s, run_id=run_id) as connection:
        if connection.execute("select 1 from batches where batch_key = ?", [key]).fetchone():
            return
        delete_rows(connection, ("responses",), run_id, [str(row["sample_id"]) for row in rows])
        insert_frame(connection, "responses", build_frame("responses", rows))
        connection.execute("insert into batches values (?, ?, now() at time zone 'UTC')", [key, run_id])
