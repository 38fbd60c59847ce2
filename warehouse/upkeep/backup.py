"""A backup of a warehouse as one DuckDB file, whole as of one moment, while runs go on writing.

DuckDB itself copies (a copy of the file by other means would lose what is in its log), under the writers' lock: runs
wait for it or spool beside the warehouse meanwhile, and lose nothing. A lake is copied table by table in one
transaction, which sees one snapshot. The copy has another name until every row of it was counted and hashed, and it
was opened and read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import duckdb

from evalhouse.warehouse.engine.connection import explain_failure, open_writer
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

    Raises WarehouseError where that is there already, or when the copy is not what was copied; WarehouseUnwritable.
    """
    path = _find_place(warehouse.location, target)
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        warehouse.flush()
        tables = _copy(warehouse, partial)
        _verify(warehouse, partial)
        _give_name(partial, path)
        return Backup(path=path, tables=tables, n_bytes=path.stat().st_size)
    except OSError as error:
        raise WarehouseUnwritable(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        for left in (partial, partial.with_name(f"{partial.name}.wal"), partial.with_name(f"{partial.name}.lock")):
            left.unlink(missing_ok=True)


def _find_place(location: Location, target: str) -> Path:
    path = Path(target).expanduser().resolve()
    if path.is_dir():
        stem = location.path.stem if location.lake is None else "lake"
        path /= f"{stem}-{now_utc():%Y%m%d-%H%M%S}.duckdb"
    if path.exists():
        raise WarehouseError(f"{path} is there already, and a backup overwrites nothing; name a new file, or a folder")
    return path


def _copy(warehouse: Warehouse, path: Path) -> dict[str, int]:
    location = warehouse.location
    if location.lake is not None:
        # A file has the tables of a lake and types of its own for some columns.
        Warehouse(str(path)).migrate()
    with open_writer(location, patience_s=FLUSH_PATIENCE_S) as connection:
        try:
            if location.lake is None:
                copy_database(connection, path, _COPY)
            else:
                _copy_lake(connection, location, path)
            return _compare(connection, location)
        except duckdb.Error as error:
            raise explain_failure(location, error) from None
        finally:
            connection.execute(f"detach database if exists {_COPY}")


def _copy_lake(connection: duckdb.DuckDBPyConnection, location: Location, path: Path) -> None:
    if find_missing(connection, location, load_migrations()):
        raise WarehouseError(
            f"{location.name} lacks what the newest evalhouse adds; bring it up to date first, with "
            f"`evalhouse warehouse compact --warehouse '{location.url}'`"
        )
    connection.execute(f"attach '{_quote(path)}' as {_COPY}")
    connection.begin()
    for table in _list_tables(connection):
        if table != "migrations":  # the record of how a lake's tables were made is not that of the file's
            connection.execute(f"insert into {_COPY}.{table} by name select * from {table}")
    connection.commit()
    connection.execute(f"checkpoint {_COPY}")


def _compare(connection: duckdb.DuckDBPyConnection, location: Location) -> dict[str, int]:
    """Rows by table, counted and hashed on both sides while nobody can write."""
    counts: dict[str, int] = {}
    for table in _list_tables(connection):
        if table == "migrations" and location.lake is not None:
            continue
        shown = ", ".join(
            f'"{row[0]}"::varchar'
            for row in connection.execute(f"select column_name from (describe {table}) order by column_name").fetchall()
        )
        sums = [
            connection.execute(read_query("upkeep/sum").format(table=name, shown=shown)).fetchall()
            for name in (table, f"{_COPY}.{table}")
        ]
        if sums[0] != sums[1]:
            raise WarehouseError(
                f"the copy of {table} is not what was copied ({sums[1][0][0]} rows of {sums[0][0][0]}); the disk "
                "of the backup may be failing: name another place"
            )
        counts[table] = int(sums[0][0][0])
    return counts


def _list_tables(connection: duckdb.DuckDBPyConnection) -> list[str]:
    return [str(row[0]) for row in connection.execute(read_query("upkeep/table_names")).fetchall()]


def _verify(warehouse: Warehouse, path: Path) -> None:
    """Open the copy as a warehouse and look for what must never be; what is wrong at its source is no news."""
    wrong, known = (
        {finding.what: finding.detail for finding in check_warehouse(house) if finding.verdict == "wrong"}
        for house in (Warehouse(str(path)), warehouse)
    )
    for what, detail in wrong.items():
        if what not in known:
            raise WarehouseError(f"the copy has something wrong that its source has not: {what}: {detail}")


def _give_name(partial: Path, path: Path) -> None:
    try:
        # Unlike a rename a link never takes another file's place.
        path.hardlink_to(partial)
    except FileExistsError:
        raise WarehouseError(f"{path} has come to be meanwhile, and a backup overwrites nothing") from None
    except OSError:  # a file system without links
        partial.rename(path)


def _quote(path: Path) -> str:
    return str(path).replace("'", "''")
