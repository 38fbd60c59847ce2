"""Which model a server of one's own had under a name, run by run."""

from dataclasses import dataclass

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.tables import Batch, build_frame


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """A model by its name at an address, and what the server says of it: which one it is, and its window in tokens."""

    judge: str
    endpoint: str
    model: str
    identity: str | None = None
    context_window: int | None = None


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """What is on record of a name: the model `of_run`, that of the `last` run with it, and the `first` one."""

    of_run: str | None = None
    last: str | None = None
    first: str | None = None
    context_window: int | None = None


def find_known(warehouse: Warehouse, run_id: str, endpoint: str, model: str) -> KnownModel:
    """What is on record of the model of a name; nothing in a warehouse that is not there yet."""
    if not warehouse.exists():
        return KnownModel()
    (row,) = warehouse.read_rows(read_query("served/known"), {"run_id": run_id, "endpoint": endpoint, "model": model})
    return KnownModel(**row)  # type: ignore[arg-type]  # the columns are its fields


def has_answered(warehouse: Warehouse, judge: str) -> bool:
    """Whether any reply of a judge is on record."""
    return bool(warehouse.read_rows(read_query("served/asked"), {"judge": judge}))


def list_identified(warehouse: Warehouse, run_id: str) -> list[str]:
    """The models of a run of which the server said which ones they are."""
    return [str(row["model"]) for row in warehouse.read_rows(read_query("served/identified"), {"run_id": run_id})]


def note_served(warehouse: Warehouse, run_id: str, served: ServedModel) -> None:
    """Note the model that a run begins with; once a run."""
    row: dict[str, object] = {**vars(served), "run_id": run_id, "noted_at": now_utc()}
    key = f"served/{run_id}/{served.endpoint}/{served.model}"
    frame = build_frame("served_models", [row])
    warehouse.append(Batch(key=key, run_id=run_id, tables={"served_models": frame}))
