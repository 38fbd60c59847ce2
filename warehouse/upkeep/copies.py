"""A backup of a warehouse as one DuckDB file, whole as of one moment, while runs go on writing.

DuckDB itself copies (a copy of the file by other means would lose what is in its log), under the writers' lock: runs
wait for it or spool beside the warehouse meanwhile, and lose nothing. A lake is copied table by table in one
transaction, which sees one snapshot. The copy has another name until every row of it was counted and hashed, and it
was opened and read.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from evalhouse.warehouse.engine.connection import explain_failure, open_reader, open_writer
from evalhouse.warehouse.engine.migrate import find_missing, load_migrations
from evalhouse.warehouse.errors import WarehouseError, WarehouseUnwritable
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse
from evalhouse.warehouse.upkeep.check_and_compact import check_warehouse, copy_database

_COPY: Final = "fresh"


@dataclass(frozen=True, kw_only=True)
class Backup:
    """A backup that was made: where, its rows by table, and its bytes."""

    path: Path
    tables: dict[str, int]
    n_bytes: int


def back_up(warehouse: Warehouse, target: str) -> Backup:
    """Copy a warehouse into a new DuckDB file `target`, or into one named after now within the folder `target`.

    Raises WarehouseError where that file exists, or when the copy differs from its source; WarehouseUnwritable.
    """
    location = warehouse.location
    path = Path(target).expanduser().resolve()
    if path.is_dir():
        stem = location.path.stem if location.lake is None else "lake"
        path /= f"{stem}-{now_utc():%Y%m%d-%H%M%S}.duckdb"
    if path.exists():
        raise WarehouseError(f"{path} is there already, and a backup overwrites nothing; name a new file, or a folder")
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        warehouse.flush()
        tables = _copy(warehouse, partial)
        # Open the copy as a warehouse and check its invariants; violations that the source has too are ignored.
        wrong, known = (
            {finding.what: finding.detail for finding in check_warehouse(house) if finding.verdict == "wrong"}
            for house in (Warehouse(str(partial)), warehouse)
        )
        for what, detail in wrong.items():
            if what not in known:
                raise WarehouseError(f"the copy has something wrong that its source has not: {what}: {detail}")
        try:
            # Unlike a rename a link never takes another file's place.
            path.hardlink_to(partial)
        except FileExistsError:
            raise WarehouseError(f"{path} was made meanwhile, and a backup overwrites nothing") from None
        except OSError:  # a file system without links
            partial.rename(path)
        return Backup(path=path, tables=tables, n_bytes=path.stat().st_size)
    except OSError as error:
        raise WarehouseUnwritable(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        for left in (partial, partial.with_name(f"{partial.name}.wal"), partial.with_name(f"{partial.name}.lock")):
            left.unlink(missing_ok=True)


def _copy(warehouse: Warehouse, path: Path) -> dict[str, int]:
    """Copy all tables into a new file and return their rows, counted and hashed on both sides under the lock."""
    location = warehouse.location
    if location.lake is not None:
        # A file has the tables of a lake, with other types for some columns.
        Warehouse(str(path)).migrate()
    with open_writer(location, patience_s=FLUSH_PATIENCE_S) as connection:
        try:
            names = [str(row[0]) for row in connection.execute(read_query("upkeep/table_names")).fetchall()]
            if location.lake is None:
                copy_database(connection, path, _COPY)
            else:
                # The record of how a lake's tables were made is not that of the file's.
                names.remove("migrations")
                _copy_lake(connection, location, path, names)
            return {name: _compare(connection, name) for name in names}
        except duckdb.Error as error:
            raise explain_failure(location, error) from None
        finally:
            connection.execute(f"detach database if exists {_COPY}")


def _copy_lake(connection: duckdb.DuckDBPyConnection, location: Location, path: Path, names: list[str]) -> None:
    if find_missing(connection, location, load_migrations()):
        raise WarehouseError(
            f"{location.name} lacks what the newest evalhouse adds; bring it up to date first, with "
            f"`evalhouse warehouse compact --warehouse '{location.url}'`"
        )
    quoted = str(path).replace("'", "''")
    connection.execute(f"attach '{quoted}' as {_COPY}")
    connection.begin()
    for name in names:
        connection.execute(f"insert into {_COPY}.{name} by name select * from {name}")
    connection.commit()
    connection.execute(f"checkpoint {_COPY}")


def _compare(connection: duckdb.DuckDBPyConnection, name: str) -> int:
    """Return the rows of a table; raises WarehouseError where the copy has others."""
    columns = connection.execute(f"select column_name from (describe {name}) order by column_name").fetchall()
    shown = ", ".join(f'"{column}"::varchar' for (column,) in columns)
    own, copied = (
        connection.execute(read_query("upkeep/sum").format(table=table, shown=shown)).fetchall()
        for table in (name, f"{_COPY}.{name}")
    )
    if own != copied:
        raise WarehouseError(
            f"the copy of {name} is not what was copied ({copied[0][0]} rows of {own[0][0]}); the disk of the backup "
            "may be failing: name another place"
        )
    return int(own[0][0])


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
        _copy_rows(source, target, table, run_ids)
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


def _copy_rows(source: Warehouse, target: Warehouse, table: Table, runs: Sequence[str | None]) -> None:
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
