"""Rows of runs that judged a part of their dataset, as a judge would have scored it, without a judge."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import duckdb
import polars as pl
from rows import fill

from evalhouse.warehouse.store import derive

METRIC = "faithfulness"
Values = Sequence[float]


def rate_doubts(signals: Values) -> list[float]:
    """The largest distance of a score from its signal."""
    return [math.sqrt(max(one * (1 - one), 0.01)) for one in signals]


def put_run(
    con: duckdb.DuckDBPyConnection,
    run_id: str,
    picked: Collection[int],
    *,
    probabilities: Values,
    signals: Values,
    values: Sequence[float | None],
) -> None:
    """A run with a budget that picked these places of a dataset and scored them by these values."""
    n = len(values)
    columns = {"sample_id": [f"s{place}" for place in range(n)], "ordinal": range(n), "probability": probabilities}
    given = pl.DataFrame(
        {**columns, "picked": [place in picked for place in range(n)], "signal": signals, "value": values},
        schema_overrides={"value": pl.Float64, "probability": pl.Float64},
    ).with_columns(run_id=pl.lit(run_id), metric=pl.lit(METRIC), origin=pl.lit("lexical"))
    con.register("given", given)
    con.execute("insert into sample_picks by name select run_id, sample_id, ordinal, probability, picked from given")
    con.execute("insert into sample_signals by name select run_id, sample_id, metric, signal, origin from given")
    con.execute(
        "insert into scores by name select run_id, sample_id, metric, value, '1' as metric_version from given "
        "where picked"
    )
    con.unregister("given")
    fill(con, "runs", {"run_id": run_id})
    derive(con, [run_id])
