"""Rows of what was asked for and paid: responses of the target, replies of the judge, batches at a provider (stored as
planned, sent and fetched, so that any later process can resume them), and which model a server had under a name.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal

import polars as pl

from evalhouse.warehouse.engine.locks import HeldLock, hold
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.store import Warehouse

ResponseStatus = Literal["ok", "failed", "reused"]


@dataclass(frozen=True, kw_only=True)
class StoredResponse:
    """A stored response. `asked_run_id` is the run that asked for it; `question` is None when it is not known.

    `conversation_json` holds the turns before the question, as far as the question is known.
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
    thoughts: str | None = None  # what was left out of the answer
    context_sources: str | None = None  # as JSON, the names of each context besides its id


def fetch_responses(
    warehouse: Warehouse, run_id: str, sample_ids: Collection[str], *, source: Literal["own", "brought"] = "own"
) -> dict[str, StoredResponse]:
    """Return the responses of a run to some samples by sample; `brought` came with its dataset."""
    rows = warehouse.fetch_rows(f"responses/{source}", {"sample_id": sample_ids}, run_id=run_id)
    return {row["sample_id"]: StoredResponse(**row) for row in rows}


def fetch_last_asked(
    warehouse: Warehouse, asking_runs: Mapping[str, datetime], sample_ids: Collection[str]
) -> dict[str, StoredResponse]:
    """Return by sample the newest response that one of these runs, given with their starts, asked for itself."""
    starts = {"run_id": list(asking_runs), "started_at": list(asking_runs.values())}
    frames = {
        "wanted": pl.DataFrame({"sample_id": list(sample_ids)}, schema={"sample_id": pl.String}),
        "asking_runs": pl.DataFrame(starts, schema={"run_id": pl.String, "started_at": pl.Datetime("us")}),
    }
    rows = warehouse.read(read_query("responses/last_asked"), frames=frames).to_dicts()
    return {row["sample_id"]: StoredResponse(**row) for row in rows}


@dataclass(frozen=True, kw_only=True)
class StoredReply:
    """A usable stored reply, with the log-probabilities that were kept of it."""

    call_id: str
    reply: str
    logprobs: str | None = None


def fetch_rubric_templates(warehouse: Warehouse, run_id: str) -> dict[str, str]:
    """Return the prompts of the rubrics that graded in a run, by rubric."""
    rows = warehouse.fetch_rows("lineage/rubrics", run_id=run_id)
    return {str(row["prompt"]): str(row["template"]) for row in rows}


@lru_cache(maxsize=4096)  # looked up when it is asked, and kept when it is answered
def make_request_key(request_hash: str) -> int:
    """Return the first eight bytes of a request's hash as a number."""
    return int(request_hash[:16], 16)


def find_replies(
    warehouse: Warehouse, request_hashes: Collection[str], *, only_runs: Sequence[str] | None = None
) -> dict[str, StoredReply]:
    """Return the newest good reply for each request hash that has one; `only_runs` looks at the calls of these runs."""
    hashes = list(request_hashes)
    if not hashes:
        return {}
    keys = pl.Series(name="request_key", values=[make_request_key(item) for item in hashes], dtype=pl.UInt64)
    wanted = pl.DataFrame({"request_key": keys, "request_hash": hashes})
    rows = warehouse.read(read_query("calls/replies"), {"run_ids": only_runs}, frames={"wanted": wanted})
    return {
        row["request_hash"]: StoredReply(call_id=row["call_id"], reply=row["reply"], logprobs=row.get("logprobs"))
        for row in rows.iter_rows(named=True)
    }


def sum_cost(warehouse: Warehouse, run_id: str) -> float:
    """Return the dollars of a run's calls so far: of the calls in the warehouse that have a price.

    A reused reply was paid for by the call that first received it.
    """
    return float(warehouse.fetch_row("calls/cost", run_id=run_id)["cost_usd"])


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """The stored identities of a model name: of the run `of_run`, of the `last` run with it, and of the `first` one."""

    of_run: str | None = None
    last: str | None = None
    first: str | None = None
    context_window: int | None = None


def fetch_known_model(warehouse: Warehouse, run_id: str, endpoint: str, model: str) -> KnownModel:
    """Return what is stored about a model name; an empty record without a warehouse."""
    if not warehouse.exists():
        return KnownModel()
    return KnownModel(**warehouse.fetch_row("served/known", run_id=run_id, endpoint=endpoint, model=model))


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A judge at an address, and what its server reports of the model: None where it is not asked or says nothing."""

    judge: str
    endpoint: str
    model: str
    identity: str | None = None
    context_window: int | None = None


def write_served_models(warehouse: Warehouse, run_id: str, models: Collection[ServedModel]) -> None:
    """Store the models that a run begins with, once a run."""
    names = sorted(f"{model.endpoint} {model.model} {model.identity}" for model in models)
    key = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
    rows = [{**vars(model), "run_id": run_id, "noted_at": now_utc()} for model in models]
    warehouse.append_rows(f"served/{run_id}/{key}", run_id, {"served_models": rows})


BatchStatus = Literal["planned", "sent", "over", "never_sent"]


@dataclass(frozen=True, kw_only=True)
class StoredBatch:
    """A stored batch, with the hashes of its requests whose answers are not stored yet; `is_own`: of the ledger's run.

    `provider_id` is None where no row shows that the provider received it; `planned_at` is in seconds of the epoch.
    """

    batch_id: str
    planned_at: float
    provider_id: str | None = None
    unread: frozenset[str] = field(default_factory=frozenset)
    is_own: bool = True


@dataclass(frozen=True, kw_only=True)
class BatchLedger:
    """The batches of one judge at one endpoint, written for a run; `only_run` lists the batches of this run alone."""

    warehouse: Warehouse
    run_id: str
    judge: str
    endpoint: str
    only_run: bool = False

    def write(
        self,
        batch_id: str,
        status: BatchStatus,
        n_requests: int,
        *,
        provider_id: str | None = None,
        provider_status: str | None = None,
        request_hashes: Collection[str] = (),
    ) -> None:
        """Store a new status of a batch; its `request_hashes` before it is sent.

        `provider_status` is the provider's own word for the status.
        """
        row = {
            "batch_id": batch_id, "run_id": self.run_id, "judge": self.judge, "endpoint": self.endpoint,
            "status": status, "n_requests": n_requests, "noted_at": now_utc(), "provider_batch_id": provider_id,
            "provider_status": provider_status,
        }  # fmt: skip
        requests: list[dict[str, object]] = [
            {"batch_id": batch_id, "run_id": self.run_id, "request_hash": item} for item in request_hashes
        ]
        tables = {"provider_batches": [row], "batch_requests": requests}
        self.warehouse.append_rows(f"batch/{batch_id}/{status}", self.run_id, tables)

    def hold_turn(self) -> AbstractContextManager[HeldLock]:
        """Hold the lock under which a run sends a round for this judge; raises WarehouseBusy while another one does."""
        name = hashlib.sha256(f"{self.judge} {self.endpoint}".encode()).hexdigest()[:16]
        return hold(self.warehouse.location, f"batches-{name}", patience_s=0.0, busy="another run sends a batch")

    def list_open(self) -> list[StoredBatch]:
        """Return the batches whose answers are not all stored, in the order in which they were planned."""
        only_run = self.run_id if self.only_run else None
        return [
            StoredBatch(
                batch_id=row["batch_id"],
                provider_id=row["provider_batch_id"],
                planned_at=row["planned_at"].replace(tzinfo=UTC).timestamp(),
                is_own=row["run_id"] == self.run_id,
                unread=frozenset(self.warehouse.fetch("batches/unread", batch_id=row["batch_id"])["request_hash"]),
            )
            for row in self.warehouse.fetch_rows(
                "batches/open", judge=self.judge, endpoint=self.endpoint, run_id=only_run
            )
        ]
