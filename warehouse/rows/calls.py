"""What was asked for and paid: responses of the application under test, replies of the judge, batches at a provider
(what was planned, sent and fetched, so that any later process can go on), and which model a server had under a name,
run by run.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.tables import Batch, build_frame

ResponseStatus = Literal["ok", "failed", "reused"]


@dataclass(frozen=True, kw_only=True)
class StoredResponse:
    """One response on record. `asked_run_id` is the run that asked for it; `question` is None when it is not known.

    `conversation_json` are the turns it was asked after, as far as the question is known.
    """

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
    conversation_json: str | None = None


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
    """n_ok, n_failed, n_reused, and latency_p50_ms and latency_p95_ms of the n_ok that this run asked for."""
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


@dataclass(frozen=True, kw_only=True)
class RecordedReply:
    """A usable reply on record, with the log-probabilities that were kept of it."""

    call_id: str
    reply: str
    logprobs: str | None = None


@lru_cache(maxsize=4096)  # looked up when it is asked, and kept when it is answered
def make_request_key(request_hash: str) -> int:
    """The first eight bytes of a request's hash as a number."""
    return int(request_hash[:16], 16)


def find_replies(
    warehouse: Warehouse, request_hashes: Collection[str], *, only_run: str | None = None
) -> dict[str, RecordedReply]:
    """The newest good reply for each request hash that has one; `only_run` looks at one run's calls alone."""
    hashes = list(request_hashes)
    if not hashes:
        return {}
    keys = pl.Series(name="request_key", values=[make_request_key(item) for item in hashes], dtype=pl.UInt64)
    wanted = pl.DataFrame({"request_key": keys, "request_hash": hashes})
    rows = warehouse.read(read_query("calls/replies"), {"run_id": only_run}, frames={"wanted": wanted})
    return {
        row["request_hash"]: RecordedReply(call_id=row["call_id"], reply=row["reply"], logprobs=row.get("logprobs"))
        for row in rows.iter_rows(named=True)
    }


def read_request_keys(warehouse: Warehouse, *, only_run: str | None = None) -> pl.Series:
    """The keys of all requests with a good reply on record; `only_run` looks at one run's calls alone."""
    return warehouse.read(read_query("calls/request_keys"), {"run_id": only_run})["request_key"]


def sum_cost(warehouse: Warehouse, run_id: str) -> float:
    """Dollars of a run's calls so far, as far as they are in the warehouse and have a price.

    A reused reply was paid for by the call that first got it, and has no cost of its own.
    """
    (row,) = warehouse.read_rows(read_query("calls/cost"), {"run_id": run_id})
    return float(str(row["cost_usd"]))


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model by its name at an address, and what the server says of it: which one it is, and its window in tokens."""

    judge: str
    endpoint: str
    model: str
    identity: str | None = None
    context_window: int | None = None


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """What is on record of a name: the model `of_run`, that of the `last` run with it, and the `first` one."""

    of_run: str | None = None
    last: str | None = None
    first: str | None = None
    context_window: int | None = None


def find_known(warehouse: Warehouse, run_id: str, endpoint: str, model: str) -> KnownModel:
    """What is on record of the model of a name; nothing in a warehouse that is not there yet."""
    if not warehouse.exists():
        return KnownModel()
    (row,) = warehouse.read_rows(read_query("served/known"), {"run_id": run_id, "endpoint": endpoint, "model": model})
    return KnownModel(**row)  # type: ignore[arg-type]  # the columns are its fields


def has_answered(warehouse: Warehouse, judge: str) -> bool:
    """Whether any reply of a judge is on record."""
    return bool(warehouse.read_rows(read_query("served/asked"), {"judge": judge}))


def list_identified(warehouse: Warehouse, run_id: str) -> list[str]:
    """The models of a run of which the server said which ones they are."""
    return [str(row["model"]) for row in warehouse.read_rows(read_query("served/identified"), {"run_id": run_id})]


def note_served(warehouse: Warehouse, run_id: str, served: ServedModel) -> None:
    """Note the model that a run begins with; once a run."""
    row: dict[str, object] = {**vars(served), "run_id": run_id, "noted_at": now_utc()}
    key = f"served/{run_id}/{served.endpoint}/{served.model}"
    frame = build_frame("served_models", [row])
    warehouse.append(Batch(key=key, run_id=run_id, tables={"served_models": frame}))


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
