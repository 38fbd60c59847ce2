"""Samples whose statements are long enough to be knowledge, and unlike those of any other sample."""

import duckdb
from rows import Sample, add_samples

FACT = "The lighthouse of Brankmouth is forty-two metres high."


def add_stated(con: duckdb.DuckDBPyConnection, *samples: Sample, run_id: str = "r") -> None:
    """Write the samples of one run."""
    add_samples(con, *samples, run_id=run_id)
    con.execute(
        "update statements set text = concat($start, statement_id, ' of sample ', sample_id) where run_id = $run_id",
        {"start": "The statement ", "run_id": run_id},
    )
