"""The tables of a warehouse, made by numbered files that are each applied once with a record, and its views.

`0001_schema.sql` makes all tables; what a later release changes comes in files after it. Views hold no rows and are
made again whenever their text has changed. The files keep to what a DuckDB file and a lake both understand; what only a
DuckDB file takes is in a comment `/* plain file: … */`, which is opened there.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

import duckdb

from evalhouse.warehouse.engine.connection import explain_failure, open_reader, open_writer
from evalhouse.warehouse.errors import MigrationError, WarehouseBusy, WarehouseMissing, WarehouseUnwritable, first_line
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.messages import name_setting
from evalhouse.warehouse.metric_files import view_scripts
from evalhouse.warehouse.queries import read_query

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_PLAIN_FILE = re.compile(r"/\* plain file: (.*?) \*/")
# DuckLake keeps comments on tables, their columns and views, and none on a view's columns.
_VIEW_COLUMN_COMMENT = re.compile(r"^comment on column .*;$", re.MULTILINE)
_VIEWS = 0  # the number under which the hash of all view texts is recorded
_WRITE_PATIENCE_S = 30.0
_LIST_NAMES = "select name from (show all tables) where database = current_database() order by name"


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One migration file; the views are one as well, with the number 0."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """Hash of the text, kept with the record so that a changed file is noticed."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def title(self) -> str:
        """The file's name without its ending."""
        return self.name if self.number == _VIEWS else f"{self.number:04}_{self.name}"


def load_migrations(folder: Traversable | None = None) -> list[Migration]:
    """Load all migrations in order; raises MigrationError when their numbers have a gap or a file has no number."""
    migrations = []
    for entry in (folder or files("evalhouse.warehouse").joinpath("migrations")).iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            migrations.append(Migration(number=int(match[1]), name=match[2], sql=entry.read_text(encoding="utf-8")))
        elif entry.name.endswith(".sql"):
            raise MigrationError(f"{entry.name} is not a name for a migration; write for example 0002_tones.sql")
    migrations.sort(key=lambda migration: migration.number)
    if [migration.number for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise MigrationError(f"migrations must be numbered 1, 2, 3 …; found {[m.number for m in migrations]}")
    return migrations


def migrate(location: Location) -> list[str]:
    """Bring the warehouse to the newest shape and return the names of what was applied ([] when nothing was missing).

    Raises MigrationError for a file that is not ours or newer than we are, and the errors of `open_writer`.
    """
    try:
        with open_reader(location) as connection:
            if not find_missing(connection, location, load_migrations()):
                return []
    except WarehouseMissing:
        pass
    except duckdb.Error as error:
        raise explain_failure(location, error) from None
    with open_writer(location, patience_s=_WRITE_PATIENCE_S) as connection:
        return apply_migrations(connection, location, load_migrations())


def apply_migrations(
    connection: duckdb.DuckDBPyConnection, location: Location, wanted: Sequence[Migration]
) -> list[str]:
    """Apply what is missing on an open connection, each in one transaction with its record; see `migrate`."""
    missing = find_missing(connection, location, wanted)
    for migration in missing:
        try:
            connection.begin()
            connection.execute(read_query("upkeep/record"))
            _write(connection, location, migration)
            connection.commit()
            if location.lake is None:
                connection.execute("checkpoint")  # DuckDB 1.5 cannot always replay such a change from its log
        except duckdb.Error as error:
            explained = explain_failure(location, error)
            if isinstance(explained, WarehouseUnwritable | WarehouseBusy):
                raise explained from None
            raise MigrationError(
                f"migration {migration.title} of {location.name} failed: {first_line(str(error))}"
            ) from None
    return [migration.title for migration in missing]


def _write(connection: duckdb.DuckDBPyConnection, location: Location, migration: Migration) -> None:
    if location.lake is None:
        connection.execute(_PLAIN_FILE.sub(r"\1", migration.sql))
    else:
        sql = _PLAIN_FILE.sub("", migration.sql)
        connection.execute(_VIEW_COLUMN_COMMENT.sub("", sql) if migration.number == _VIEWS else sql)
    connection.execute("delete from migrations where number = ?", [migration.number])
    _record(connection, migration)


def _record(connection: duckdb.DuckDBPyConnection, migration: Migration) -> None:
    values = [migration.number, migration.name, migration.sha256]
    connection.execute("insert into migrations values (?, ?, ?, now() at time zone 'UTC')", values)


def find_missing(
    connection: duckdb.DuckDBPyConnection, location: Location, wanted: Sequence[Migration]
) -> list[Migration]:
    """Return the migrations to apply, and the views where their text has changed.

    Raises MigrationError for a file that is not ours or newer than we are.
    """
    try:
        rows = connection.execute("select number, sha256 from migrations").fetchall()
    except (duckdb.CatalogException, duckdb.BinderException):
        names = [str(row[0]) for row in connection.execute(_LIST_NAMES).fetchall()]
        if names:
            raise MigrationError(
                f"{location.name} holds tables that evalhouse did not make ({', '.join(names[:5])}); "
                f"name another file with {name_setting('warehouse')}"
            ) from None
        rows = []
    applied = {int(number): str(sha256) for number, sha256 in rows}
    newest = max(applied, default=0)
    if newest > len(wanted):
        raise MigrationError(
            f"the warehouse was written by a newer evalhouse (its migration {newest}, ours end at {len(wanted)}); "
            f"update evalhouse or name another file with {name_setting('warehouse')}"
        )
    for migration in wanted:
        if applied.get(migration.number, migration.sha256) != migration.sha256:
            raise MigrationError(
                f"migration {migration.title} is not the one this warehouse was made with; "
                "a released migration never changes: reinstall evalhouse"
            )
    missing = [migration for migration in wanted if migration.number not in applied]
    views = Migration(number=_VIEWS, name="views", sql="\n".join(script.sql for script in view_scripts()))
    return missing if applied.get(_VIEWS) == views.sha256 else [*missing, views]
