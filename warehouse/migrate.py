"""Numbered migrations: each `.sql` file is applied once, in order, in one transaction with its own record.

Views are not migrated but laid anew whenever their text has changed, since they hold no rows.
"""

import hashlib
import re
from dataclasses import dataclass
from importlib.resources import files

import duckdb

from warehouse.connection import open_reader, open_writer
from warehouse.errors import MigrationError
from warehouse.location import Location
from warehouse.metric_files import view_scripts

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_RECORD = """
create table if not exists migrations (
    number      integer not null,
    name        varchar not null,
    sha256      varchar not null,
    applied_at  timestamp not null
)
"""
_VIEWS = 0  # the number under which the hash of all view texts is kept
_WRITE_PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One migration file."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """Hash of the text, kept with the record so that a changed file is noticed."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


def load_migrations() -> list[Migration]:
    """All migrations in order; raises MigrationError when their numbers have a gap."""
    found = []
    for entry in files("warehouse").joinpath("migrations").iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            found.append(Migration(number=int(match[1]), name=match[2], sql=entry.read_text(encoding="utf-8")))
    found.sort(key=lambda migration: migration.number)
    if [migration.number for migration in found] != list(range(1, len(found) + 1)):
        raise MigrationError(f"migrations must be numbered 1, 2, 3 …; found {[m.number for m in found]}")
    return found


def migrate(location: Location, *, upto: int | None = None) -> list[str]:
    """Bring the warehouse to the newest shape and return the names of what was applied ([] when it was there).

    `upto` stops after that migration and lays no views; tests use it to start from an earlier state.
    """
    wanted = load_migrations()
    if location.path.exists() and upto is None and not _pending(location, wanted):
        return []
    with open_writer(location, patience_s=_WRITE_PATIENCE_S) as connection:
        return apply_migrations(connection, wanted if upto is None else wanted[:upto], views=upto is None)


def apply_migrations(
    connection: duckdb.DuckDBPyConnection, wanted: list[Migration], *, views: bool = True
) -> list[str]:
    """Apply what is missing on an open connection; see `migrate`."""
    connection.execute(_RECORD)
    applied = _read_record(connection)
    names = []
    for migration in _missing(applied, wanted):
        connection.begin()
        connection.execute(migration.sql)
        _record(connection, migration.number, migration.name, migration.sha256)
        connection.commit()
        names.append(f"{migration.number:04}_{migration.name}")
    if views and applied.get(_VIEWS) != _views_hash():
        connection.begin()
        for script in view_scripts():
            connection.execute(script.sql)
        connection.execute("delete from migrations where number = ?", [_VIEWS])
        _record(connection, _VIEWS, "views", _views_hash())
        connection.commit()
        names.append("views")
    return names


def _pending(location: Location, wanted: list[Migration]) -> bool:
    with open_reader(location) as connection:
        tables = {row[0] for row in connection.execute("select table_name from duckdb_tables()").fetchall()}
        if "migrations" not in tables:
            if tables:
                raise MigrationError(
                    f"{location.path} holds tables that evalhouse did not make ({', '.join(sorted(tables)[:5])}); "
                    "name another file with --warehouse"
                )
            return True
        applied = _read_record(connection)
    return bool(_missing(applied, wanted)) or applied.get(_VIEWS) != _views_hash()


def _read_record(connection: duckdb.DuckDBPyConnection) -> dict[int, str]:
    rows = connection.execute("select number, sha256 from migrations").fetchall()
    return {int(number): str(sha256) for number, sha256 in rows}


def _missing(applied: dict[int, str], wanted: list[Migration]) -> list[Migration]:
    known = {migration.number: migration for migration in wanted}
    newest = max(applied, default=0)
    if newest > len(wanted):
        raise MigrationError(
            f"the warehouse was written by a newer evalhouse (its migration {newest}, ours end at {len(wanted)}); "
            "update evalhouse or name another file with --warehouse"
        )
    for number, sha256 in applied.items():
        if number != _VIEWS and known[number].sha256 != sha256:
            raise MigrationError(
                f"migration {number:04}_{known[number].name} is not the one this warehouse was made with; "
                "a released migration never changes: reinstall evalhouse"
            )
    return [migration for migration in wanted if migration.number not in applied]


def _record(connection: duckdb.DuckDBPyConnection, number: int, name: str, sha256: str) -> None:
    connection.execute(
        "insert into migrations values (?, ?, ?, now() at time zone 'UTC')", [number, name, sha256]
    )


def _views_hash() -> str:
    return hashlib.sha256("\n".join(script.sql for script in view_scripts()).encode()).hexdigest()
