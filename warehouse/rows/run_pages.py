"""What the pages of `evalhouse ui` about runs read beside what a report reads."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.report import Rows
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

N_WORST: Final = 5


def read_worst(warehouse: Warehouse, run: RunRow, metrics: list[str]) -> Rows:
    """The worst samples of a run by the mean of some metrics, each with the statement that is most wrong."""
    parameters = {"run_id": run.run_id, "metrics": metrics, "most": N_WORST}
    return warehouse.read_rows(read_query("ui/worst"), parameters)


def read_values(warehouse: Warehouse, run: RunRow) -> dict[str, list[float]]:
    """All scores of a run by metric."""
    return dict(warehouse.read(read_query("ui/values"), {"run_id": run.run_id}).iter_rows())


def find_runs(warehouse: Warehouse, wanted: Mapping[str, str | None], *, order: str, start: int, most: int) -> Rows:
    """Runs of any kind that are looked for: a row each, with how many there are in all.

    `wanted` has a value, or None, for each parameter of the query, and `order` is one of its columns, with a way.
    """
    sql = read_query("ui/find_runs").replace("$order", order)
    return warehouse.read_rows(sql, {**wanted, "start": start, "most": most})


def read_cost_runs(warehouse: Warehouse, since: datetime | None) -> Rows:
    """The runs since then, oldest first, with what each sent by batch."""
    return warehouse.read_rows(read_query("ui/cost_runs"), {"since": since})
