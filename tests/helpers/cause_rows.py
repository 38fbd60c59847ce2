"""Samples whose statements are long enough to be facts, and unlike the statements of any other sample."""

from collections.abc import Iterable, Mapping

import duckdb
from rows import Sample, add_runs

FACT = "The lighthouse of Brankmouth is forty-two metres high."


def add_stated(con: duckdb.DuckDBPyConnection, *samples: Sample, run_id: str = "r") -> None:
    """Write the samples of one run."""
    add_stated_runs(con, {run_id: samples})


def add_stated_runs(con: duckdb.DuckDBPyConnection, runs: Mapping[str, Iterable[Sample]]) -> None:
    """Write the samples of several runs."""
    add_runs(con, runs)
    con.execute(
        "update statements set text = concat($start, statement_id, ' of sample ', sample_id)"
        " where list_contains($run_ids, run_id)",
        {"start": "The statement ", "run_ids": list(runs)},
    )
