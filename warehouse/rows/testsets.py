"""Writes of what test sets are made of: candidates and what they stood, versions, and changes between them; and reads
of what people decided on their questions."""

from collections.abc import Mapping, Sequence
from typing import Any

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.tables import Batch, build_frame

Rows = Sequence[Mapping[str, Any]]


def append_testset_rows(warehouse: Warehouse, run_id: str, part: str, tables: Mapping[str, Rows]) -> None:
    """Write rows of a run of kind testset as one batch; `part` tells the run's batches apart. Tables without rows are
    left out."""
    frames = {table: build_frame(table, rows) for table, rows in tables.items() if rows}
    if frames:
        warehouse.append(Batch(key=f"{run_id}/testset/{part}", run_id=run_id, tables=frames))


def find_versions(warehouse: Warehouse, prefix: str) -> list[str]:
    """The hashes of all versions on record that begin so."""
    rows = warehouse.read_rows(read_query("testsets/versions_named"), {"prefix": prefix})
    return [str(row["set_hash"]) for row in rows]


def list_written(warehouse: Warehouse, run_id: str) -> list[str]:
    """The hashes of the versions that a run made."""
    rows = warehouse.read_rows(read_query("testsets/versions_written"), {"run_id": run_id})
    return [str(row["set_hash"]) for row in rows]


def read_questions(warehouse: Warehouse, set_hash: str) -> list[dict[str, Any]]:
    """The questions of a version as rows."""
    return warehouse.read_rows(read_query("testsets/questions"), {"set_hash": set_hash})


def read_decisions(warehouse: Warehouse, set_hashes: Sequence[str]) -> list[dict[str, Any]]:
    """What people decided on questions of these versions: question_id, change, and `before` and `after` as JSON."""
    return warehouse.read_rows(read_query("testsets/decisions"), {"set_hashes": list(set_hashes)})


def read_acceptance(warehouse: Warehouse, set_hashes: Sequence[str]) -> list[dict[str, Any]]:
    """How many questions people accepted, fixed and dropped by kind, language and judge: of these versions, or with
    none of all sets."""
    return warehouse.read_rows(read_query("testsets/acceptance"), {"set_hashes": list(set_hashes)})
