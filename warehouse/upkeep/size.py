"""What a warehouse takes on disk, by what is kept there: texts, calls, verdicts, scores.

A DuckDB file is made of blocks; a block that several tables share counts for each of them by its part. What no table
has is free: room for rows to come, which compacting gives back to the disk. In a lake the files of a table are its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import duckdb

from evalhouse.warehouse.engine.connection import explain_failure, open_reader
from evalhouse.warehouse.engine.lake import NAME
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.tables import VERDICT_TABLES

Group = Literal["texts", "calls", "verdicts", "scores", "other"]
GROUPS: Final[Mapping[Group, frozenset[str]]] = {
    "texts": frozenset({"samples", "run_samples", "responses"}),
    "calls": frozenset({"llm_calls", "prompts", "provider_batches", "batch_requests"}),
    "verdicts": frozenset({*VERDICT_TABLES, "reviews", "review_picks", "stored_causes"}),
    "scores": frozenset({"scores", "noise", "stored_scores", "stored_costs"}),
    "other": frozenset(),
}
"""By group its tables; those of no other are of the last."""
PER_SAMPLES: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Size:
    """Bytes on disk: all of them, those that are free, and those of each group; and the samples of all runs."""

    n_bytes: int
    n_free: int
    groups: Mapping[Group, int]
    n_samples: int

    def per_thousand(self, n_bytes: float) -> float | None:
        """Bytes a 1,000 samples of runs; None without samples."""
        return n_bytes * PER_SAMPLES / self.n_samples if self.n_samples else None


def measure_size(warehouse: Warehouse) -> Size:
    """What a warehouse takes; raises the errors of one that cannot be read."""
    with open_reader(warehouse.location) as connection:
        try:
            tables = _measure_file(connection) if warehouse.location.lake is None else _measure_lake(connection)
            ((n_samples,),) = connection.execute("select count(*) from run_samples").fetchall()
        except duckdb.Error as error:
            raise explain_failure(warehouse.location, error) from None
    used = sum(tables.values())
    n_bytes = round(used) if warehouse.location.lake is not None else warehouse.location.path.stat().st_size
    groups: dict[Group, int] = dict.fromkeys(GROUPS, 0)
    for table, size in tables.items():
        groups[find_group(table)] += round(size)
    return Size(n_bytes=n_bytes, n_free=max(0, round(n_bytes - used)), groups=groups, n_samples=n_samples)


def find_group(table: str) -> Group:
    """The group of a table."""
    return next((group for group, tables in GROUPS.items() if table in tables), "other")


def _measure_file(connection: duckdb.DuckDBPyConnection) -> dict[str, float]:
    """Bytes by table, from the blocks that its segments stand in."""
    names = [row[0] for row in connection.execute(read_query("upkeep/table_names")).fetchall()]
    segments = " union all ".join(
        f"select '{name}' as table_name, block_id, additional_block_ids "
        f"from pragma_storage_info('{name}') where persistent"
        for name in names
    )
    return dict(connection.execute(read_query("upkeep/file_size").format(segments=segments)).fetchall())


def _measure_lake(connection: duckdb.DuckDBPyConnection) -> dict[str, float]:
    return dict(connection.execute(read_query("upkeep/lake_table_sizes").format(lake=NAME)).fetchall())
