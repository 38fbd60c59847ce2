"""Pages that everybody asks for, which are made before anybody does."""

from typing import Final

from evalhouse.flows.ui.pages import link
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

_N_SERIES: Final = 3


def list_common(warehouse: Warehouse) -> list[str]:
    """Their addresses as links have them, those first that come first for most; raises WarehouseError."""
    rows = [row for row in warehouse.read_rows(read_query("ui/series")) if row["ended_run_id"]][:_N_SERIES]
    return [
        "/",
        *(link(f"/runs/{row['ended_run_id']}") for row in rows),
        *(link("/series", name=row["series"]) for row in rows),
        "/runs",
        *(link(f"/runs/{row['ended_run_id']}/{part}") for row in rows[:1] for part in ("samples", "documents")),
        "/costs",
        "/judge",
    ]
