"""Moving a warehouse: every row of one into another, a DuckDB file into a lake or back, and the proof that all came.

Rows go table by table and run by run, some runs to a transaction. What has come over is found out by counting and
hashing it on both sides, so that a move that was cut short goes on where it stopped; the hash of a set of rows is the
sum of the hashes of its rows, so that their order does not matter. The source is only read. What is stored of runs
that have ended follows from the other tables, and is stored anew.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import duckdb

from evalhouse.warehouse.engine.connection import explain_failure, open_reader
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse

_ROWS_AT_ONCE = 20_000
_ROWS_PER_COMMIT = 200_000

Watch = Callable[[str, int], None]


@dataclass(frozen=True, kw_only=True)
class Sum:
    """What the rows of a run in one table come to: how many they are, and the sum of their hashes."""

    n_rows: int
    digest: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table and its columns, as both sides must have it."""

    name: str
    columns: tuple[str, ...]

    @property
    def run(self) -> str:
        """Which run a row belongs to, in SQL; NULL for all where the table knows no runs."""
        return "run_id" if "run_id" in self.columns else "null::varchar"


def move_warehouse(source: Warehouse, target: Warehouse, watch: Watch) -> dict[str, int]:
    """Copy all rows that the target has not yet; returns the number of rows by table. `watch` is told of each table.

    Raises WarehouseError when the target holds other runs, when rows do not come over as they were, or when the two
    sides' tables are of different versions.
    """
    if source.location == target.location:
        raise WarehouseError(f"{source.location.name} is both where from and where to; name two warehouses")
    tables = _list_tables(source)
    target.migrate()
    if _list_tables(target) != tables:
        raise WarehouseError(
            f"the tables of {source.location.name} are of another version; bring them to this one first, with "
            "`evalhouse warehouse compact --warehouse …`"
        )
    _check_target(source, target)
    counts: dict[str, int] = {}
    # Runs themselves come last: a run that is there is there whole.
    for table in sorted(tables, key=lambda entry: (entry.name == "runs", entry.name)):
        counts[table.name] = _move_table(source, target, table)
        watch(table.name, counts[table.name])
    return counts


def _list_tables(warehouse: Warehouse) -> list[Table]:
    rows = warehouse.fetch("upkeep/tables").to_dicts()
    return [Table(name=row["table_name"], columns=tuple(row["columns"])) for row in rows]


def _check_target(source: Warehouse, target: Warehouse) -> None:
    """Refuse a target that holds something else."""
    sql = "select run_id from runs"
    of_source = {row["run_id"] for row in source.read_rows(sql)}
    others = sorted(str(row["run_id"]) for row in target.read_rows(sql) if row["run_id"] not in of_source)
    if others:
        raise WarehouseError(
            f"{target.location.name} holds {len(others)} runs that are not of {source.location.name}, such as "
            f"{others[0]}; move into an empty warehouse"
        )


def _move_table(source: Warehouse, target: Warehouse, table: Table) -> int:
    wanted = sum_table(source, table)
    missing = _find_missing(target, table, wanted)
    for run_ids in _group(missing, wanted):
        _copy(source, target, table, run_ids)
    if missing and _find_missing(target, table, wanted):
        raise WarehouseError(
            f"{table.name} did not come over as it was; was {source.location.name} written to meanwhile? Move again"
        )
    return sum(total.n_rows for total in wanted.values())


def sum_table(warehouse: Warehouse, table: Table) -> dict[str | None, Sum]:
    """Count and hash the rows of a table, by run."""
    # As text, because a JSON column of a file is a text column of its own kind in a lake.
    shown = ", ".join(f'"{name}"::varchar' for name in table.columns)
    sql = read_query("upkeep/sums").format(run=table.run, shown=shown, table=table.name)
    rows = warehouse.read(sql).to_dicts()
    return {row["run"]: Sum(n_rows=row["n_rows"], digest=int(row["digest"])) for row in rows}


def _find_missing(target: Warehouse, table: Table, wanted: Mapping[str | None, Sum]) -> list[str | None]:
    """The runs whose rows are not there yet; raises WarehouseError when others are in their place."""
    sums = sum_table(target, table)
    other = [run for run, total in sums.items() if total != wanted.get(run)]
    if other:
        of_run = f" of run {other[0]}" if other[0] else ""
        raise WarehouseError(
            f"{table.name}{of_run} in {target.location.name} has other rows than where they come from; move into an "
            "empty warehouse"
        )
    return [run for run in wanted if run not in sums]


def _group(runs: Sequence[str | None], sums: Mapping[str | None, Sum]) -> Iterator[list[str | None]]:
    """Runs in groups that one transaction takes."""
    group: list[str | None] = []
    n_rows = 0
    for run in sorted(runs, key=lambda run: run or ""):
        if group and n_rows + sums[run].n_rows > _ROWS_PER_COMMIT:
            yield group
            group, n_rows = [], 0
        group.append(run)
        n_rows += sums[run].n_rows
    if group:
        yield group


def _copy(source: Warehouse, target: Warehouse, table: Table, runs: Sequence[str | None]) -> None:
    with (
        open_reader(source.location) as reading,
        target.writing(patience_s=FLUSH_PATIENCE_S, run_id=runs[0] if len(runs) == 1 else None) as writing,
    ):
        try:
            # Ordered by nothing: rows keep the order of the file they are read from, which lineage joins rest on.
            rows = reading.sql(
                f"select * from {table.name} where {table.run} in (select unnest($runs::varchar[])) "
                f"or ($with_none and {table.run} is null)",
                params={"runs": [run for run in runs if run is not None], "with_none": None in runs},
            )
            batches = rows.to_arrow_reader(_ROWS_AT_ONCE)
        except duckdb.Error as error:
            raise explain_failure(source.location, error) from None
        for batch in batches:
            writing.register("incoming_rows", batch)
            writing.execute(f"insert into {table.name} by name select * from incoming_rows")
            writing.unregister("incoming_rows")
