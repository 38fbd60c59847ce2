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
