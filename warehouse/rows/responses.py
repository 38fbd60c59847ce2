"""Responses: what the application under test answered, found again by later runs."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

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
