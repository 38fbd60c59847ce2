"""What the pages of `evalhouse ui` about runs read beside what a report reads."""

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
