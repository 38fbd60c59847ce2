"""What was asked for and paid: responses of the application under test and replies of the judge, found again later."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

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
