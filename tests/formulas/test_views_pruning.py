"""A long history: reading one run must not carry rows of the others through a join, a group or a window."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import duckdb
import pytest
from rows import Sample, add_samples, derive_all, fill, list_steps, open_rows, read_metrics

RUNS = [f"r{n:02}" for n in range(40)]
ONE_RUN = Sample(
    answer=["TP", "FP"],
    ground_truth=["TP"],
    answer_support=[[1], []],
    ground_truth_support=[[1]],
    useful=[True],
    similarity=0.5,
)
ROWS_OF_ONE_RUN = {
    "run_samples": 1, "outcomes": len(list_steps()), "statements": 3, "classifications": 3, "attributions": 3,
    "context_verdicts": 1, "similarities": 1, "votes": 3, "scores": 2, "llm_calls": 1, "responses": 1,
    "stored_scores": 2, "stored_causes": 1, "stored_costs": 1,
}  # fmt: skip
LOOK_BACK = {"sample_causes", "run_causes", "earlier_support"}  # at no more earlier runs than cause_thresholds says
VIEWS = [
    "earlier_support", "sample_steps", "statement_verdicts", "sample_statement_counts", "sample_rankings", "verdicts",
    "run_scores", "run_costs", "run_latencies", "vote_flips", "sample_causes", "run_causes", "unscored", "fact_lists",
    "review_items", "retrieved_contexts", "reviewed_verdicts",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scan:
    """One scan of a table in a plan that was run."""

    table: str
    n_rows: int


@pytest.fixture(scope="module")
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    """A warehouse of more runs of one suite than any view looks back at."""
    with open_rows() as filled:
        start = datetime(2026, 1, 1)
        fill(
            filled,
            "runs",
            *({"run_id": run_id, "suite": "s", "started_at": start + timedelta(n)} for n, run_id in enumerate(RUNS)),
        )
        for run_id in RUNS:
            add_samples(filled, ONE_RUN, run_id=run_id)
        keys = [{"run_id": run_id, "sample_id": "s"} for run_id in RUNS]
        fill(filled, "scores", *({**key, "metric": "mrr", "value": 1.0} for key in keys))
        missing = {"metric": "faithfulness", "unscored_reason": "cancelled"}
        fill(filled, "scores", *({**key, **missing} for key in keys))
        fill(filled, "responses", *({**key, "status": "ok", "latency_ms": 5.0} for key in keys))
        fill(filled, "llm_calls", *({**key, "step": "rank", "call_id": f"c-{key['run_id']}"} for key in keys))
        votes = [{"step": "rank", "item_id": "C1", "vote": n, "verdict": "useful", "agrees": True} for n in (1, 2, 3)]
        fill(filled, "votes", *({**key, **vote} for key in keys for vote in votes))
        filled.execute("update context_verdicts set call_id = 'c-' || run_id")
        derive_all(filled)
        yield filled


def list_scans(plan: dict[str, Any]) -> list[Scan]:
    """All scans of tables below this node, by the names that DuckDB 1.5 or 2.0 gives its figures."""
    table = str(plan.get("extra_info", {}).get("Table", "")).split(".")[-1]
    n_rows = plan.get("operator_cardinality", plan.get("intermediate_rows", 0))
    here = [Scan(table=table, n_rows=int(n_rows))] if table else []
    below = [*plan.get("children", []), *plan.get("operator", [])]
    return here + [scan for child in below for scan in list_scans(child)]


def run_and_list_scans(con: duckdb.DuckDBPyConnection, sql: str, parameters: dict[str, object]) -> list[Scan]:
    con.execute("pragma enable_profiling = 'no_output'")
    try:
        con.execute(sql, parameters).fetchall()
        return list_scans(json.loads(con.get_profiling_information(format="json")))
    finally:
        con.execute("pragma disable_profiling")


def list_unpruned(scans: list[Scan], n_runs: int = 1) -> list[Scan]:
    """Scans that let through more than so many runs have."""
    return [scan for scan in scans if scan.n_rows > n_runs * ROWS_OF_ONE_RUN.get(scan.table, len(RUNS))]


def test_views_read_one_run(con: duckdb.DuckDBPyConnection) -> None:
    [(n_earlier,)] = con.sql("select value::int from cause_thresholds where threshold = 'earlier_runs'").fetchall()
    assert n_earlier + 1 < len(RUNS)
    for view in VIEWS:
        scans = run_and_list_scans(con, f"select * from {view} where run_id = $run_id", {"run_id": RUNS[-1]})
        assert {scan.table for scan in scans} & ROWS_OF_ONE_RUN.keys(), view
        if view in LOOK_BACK:
            # Where `samples` is as small as `run_samples`, the two are joined before any run is picked.
            scans = [scan for scan in scans if scan.table != "run_samples"]
        assert list_unpruned(scans, n_runs=n_earlier + 1 if view in LOOK_BACK else 1) == [], view


def test_metrics_read_one_run(con: duckdb.DuckDBPyConnection) -> None:
    for metric, file in read_metrics().items():
        scans = run_and_list_scans(con, file.sql, {"run_id": RUNS[1], **file.parameters})
        assert {"run_samples", "outcomes"} <= {scan.table for scan in scans}, metric
        assert list_unpruned(scans) == [], metric


def test_lineage_reads_one_run_and_the_calls_it_reused(con: duckdb.DuckDBPyConnection) -> None:
    scans = run_and_list_scans(
        con, "from score_lineage where run_id = $run_id and sample_id = 's'", {"run_id": RUNS[1]}
    )
    assert [scan for scan in list_unpruned(scans) if scan.table != "llm_calls"] == []
    assert min(scan.n_rows for scan in scans if scan.table == "llm_calls") == 1


def test_an_unpruned_read_would_be_noticed(con: duckdb.DuckDBPyConnection) -> None:
    assert list_unpruned(run_and_list_scans(con, "select run_id, count(*) from statement_verdicts group by all", {}))
