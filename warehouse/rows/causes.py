"""The causes of one run, which pages ask for again and again.

A view that may have to compute takes longer to plan (0.1 s) than stored causes take to read, so a query that names
`sample_causes` or `run_causes` of one run goes to the table `stored_causes` where that is up to date.
"""

import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from evalhouse.warehouse.metric_files import read_view
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

Rows = list[dict[str, Any]]

_COUNTS = re.compile(r"\bfrom run_causes\b")
_CAUSES = re.compile(r"\bfrom sample_causes\b")


def read_of_causes(
    warehouse: Warehouse,
    query: str,
    parameters: Mapping[str, object],
    *,
    frames: Mapping[str, pl.DataFrame] | None = None,
) -> pl.DataFrame:
    """The rows of a query about the causes of the run `run_id` among its parameters and of no other run."""
    sql = read_query(query)
    if is_stored(warehouse, str(parameters["run_id"])):
        sql = read_stored_causes(sql)
    return warehouse.read(sql, parameters, frames=frames)


def read_causes(warehouse: Warehouse, run_id: str) -> Rows:
    """How many samples of a run have which cause, in the order of the causes' first rules."""
    return read_of_causes(warehouse, "diagnosis/causes", {"run_id": run_id}).to_dicts()


def is_stored(warehouse: Warehouse, run_id: str) -> bool:
    """Whether the causes of a run are stored and up to date."""
    return not warehouse.read(read_query("stored/is_stored"), {"run_id": run_id, "part": "causes"}).is_empty()


def read_stored_causes(sql: str) -> str:
    """SQL over the views of causes as SQL over the table, by the views' own text."""
    counted = _COUNTS.sub(lambda _: f"from ({read_view('run_causes')}) as run_causes", sql)
    return _CAUSES.sub("from stored_causes as sample_causes", counted)
