"""Batches of requests at a provider: what was planned, sent and fetched, so that any later process can go on."""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.tables import Batch, build_frame

BatchStatus = Literal["planned", "sent", "over", "never_sent"]


@dataclass(frozen=True, kw_only=True)
class StoredBatch:
    """A batch on record, with the hashes of those of its requests whose answers are not.

    `provider_id` is None where nothing says that the provider ever got it; `planned_at` is in seconds of the epoch.
    """

    batch_id: str
    planned_at: float
    provider_id: str | None = None
    unread: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, kw_only=True)
class BatchLedger:
    """The batches of one judge at one endpoint, written for a run; `only_run` finds those of this run alone."""

    warehouse: Warehouse
    run_id: str
    judge: str
    endpoint: str
    only_run: bool = False

    def plan(self, batch_id: str, request_hashes: Collection[str]) -> None:
        """Note a batch before it is sent; in the spool where the file is held."""
        rows: list[dict[str, object]] = [
            {"batch_id": batch_id, "run_id": self.run_id, "request_hash": item} for item in request_hashes
        ]
        head = self._make_head(batch_id, "planned", len(request_hashes))
        self._append(
            batch_id,
            "planned",
            {"provider_batches": [head], "batch_requests": rows},
        )

    def note(self, batch_id: str, status: BatchStatus, provider_id: str | None, said: str | None, n: int) -> None:
        """Note what became of a batch of `n` requests; `said` is the provider's own word for it."""
        head = self._make_head(batch_id, status, n)
        row = {**head, "provider_batch_id": provider_id, "provider_status": said}
        self._append(batch_id, status, {"provider_batches": [row]})

    def list_open(self) -> list[StoredBatch]:
        """Batches whose answers are not all on record, in the order in which they were planned."""
        rows = self.warehouse.read_rows(
            read_query("batches/open"),
            {"judge": self.judge, "endpoint": self.endpoint, "run_id": self.run_id if self.only_run else None},
        )
        return [self._read(row) for row in rows]

    def _read(self, row: dict[str, object]) -> StoredBatch:
        batch_id, planned_at = str(row["batch_id"]), row["planned_at"]
        assert isinstance(planned_at, datetime)
        unread = self.warehouse.read(read_query("batches/unread"), {"batch_id": batch_id})["request_hash"]
        provider_id = row["provider_batch_id"]
        return StoredBatch(
            batch_id=batch_id,
            provider_id=None if provider_id is None else str(provider_id),
            planned_at=planned_at.replace(tzinfo=UTC).timestamp(),
            unread=frozenset(unread),
        )

    def _make_head(self, batch_id: str, status: BatchStatus, n: int) -> dict[str, object]:
        return {
            "batch_id": batch_id,
            "run_id": self.run_id,
            "judge": self.judge,
            "endpoint": self.endpoint,
            "status": status,
            "n_requests": n,
            "noted_at": now_utc(),
        }

    def _append(self, batch_id: str, status: str, rows: dict[str, list[dict[str, object]]]) -> None:
        frames = {table: build_frame(table, of_table) for table, of_table in rows.items()}
        self.warehouse.append(Batch(key=f"batch/{batch_id}/{status}", run_id=self.run_id, tables=frames))
