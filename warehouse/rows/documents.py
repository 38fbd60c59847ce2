"""Documents: what was retrieved, by the id of a context or, without ids, by its text, and what it did in the samples.

Each function is one question about one run or the newest runs of a series; texts are read of those that are shown.
"""

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

TEXT_PREFIX: Final = "text "
"""What the name of a document begins with that has no id, before the start of its text's hash."""
Rows = list[dict[str, Any]]


def list_series_runs(warehouse: Warehouse, run_id: str, most: int) -> list[str]:
    """So many runs of the run's series up to it, itself first."""
    rows = warehouse.read(read_query("documents/series"), {"run_id": run_id, "most": most})
    return list(rows["run_id"])


def read_uses(warehouse: Warehouse, run_ids: Sequence[str], words: str = "") -> pl.DataFrame:
    """One row per document of these runs, those alone that have the words in their id or text: see the query."""
    return warehouse.read(read_query("documents/uses"), {"run_ids": list(run_ids), "words": words.lower()})


def read_document_texts(warehouse: Warehouse, run_id: str, documents: Sequence[str]) -> dict[str, str]:
    """A text of each of these documents that the run retrieved."""
    wanted = pl.DataFrame({"document": list(documents)}, schema={"document": pl.String})
    rows = warehouse.read(read_query("documents/texts"), {"run_id": run_id}, frames={"wanted": wanted})
    return dict(rows.iter_rows())


def read_document_samples(warehouse: Warehouse, run_id: str, document: str) -> Rows:
    """One row per sample of a run that has the document or refers to it, those that it misleads first."""
    return warehouse.read_rows(read_query("documents/samples"), {"run_id": run_id, "document": document})


def read_document_nights(warehouse: Warehouse, run_ids: Sequence[str], document: str) -> Rows:
    """One row per run, in time order: in how many samples the document was, useful, and misleading."""
    return warehouse.read_rows(read_query("documents/nights"), _name(run_ids, document))


def read_document_versions(warehouse: Warehouse, run_ids: Sequence[str], document: str) -> Rows:
    """One row per text that the document has had in these runs, in the order they came."""
    return warehouse.read_rows(read_query("documents/versions"), _name(run_ids, document))


def _name(run_ids: Sequence[str], document: str) -> dict[str, object]:
    return {"run_ids": list(run_ids), "document": document, "has_id": not document.startswith(TEXT_PREFIX)}
