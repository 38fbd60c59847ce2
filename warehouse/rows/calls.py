"""The record of calls: replies by the hash of what was asked."""

from collections.abc import Collection
from dataclasses import dataclass

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

_KEYS = "select distinct request_key from llm_calls where status = 'ok' and ($run_id is null or run_id = $run_id)"
_COST = "select coalesce(sum(cost_usd), 0) as cost_usd from llm_calls where run_id = $run_id and status <> 'cached'"


@dataclass(frozen=True, kw_only=True)
class RecordedReply:
    """A usable reply on record, with the log-probabilities that were kept of it."""

    call_id: str
    reply: str
    logprobs: str | None = None


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
    return warehouse.read(_KEYS, {"run_id": only_run})["request_key"]


def sum_cost(warehouse: Warehouse, run_id: str) -> float:
    """Dollars of a run's calls so far, as far as they are in the warehouse and have a price.

    A reused reply was paid for by the call that first got it, and has no cost of its own.
    """
    (row,) = warehouse.read_rows(_COST, {"run_id": run_id})
    return float(str(row["cost_usd"]))
