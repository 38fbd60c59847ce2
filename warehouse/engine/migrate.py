"""The tables of a warehouse, made by numbered files that are each applied once with a record, and its views.

`0001_schema.sql` makes all tables; the changes of later releases come in files after it. Views hold no rows and are
made again whenever their text has changed. The files use only SQL that a DuckDB file and a lake both understand; SQL
for a DuckDB file alone is in a comment `/* plain file: … */`, which is opened there.
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


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One migration file; the views are one as well, with the number 0."""

    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        """The hash of the text, recorded so that a changed file is noticed."""
        return hashlib.sha256(self.sql.encode()).hexdigest()

    @property
    def title(self) -> str:
        """The file's name without its ending."""
        return self.name if self.number == _VIEWS else f"{self.number:04}_{self.name}"


def load_migrations(folder: Traversable | None = None) -> list[Migration]:
    """Load all migrations in order; raises MigrationError for a file whose name does not continue the numbers."""
    migrations: list[Migration] = []
    entries = (folder or files("evalhouse.warehouse").joinpath("migrations")).iterdir()
    for entry in sorted((entry for entry in entries if entry.name.endswith(".sql")), key=lambda entry: entry.name):
        match = _NAME.fullmatch(entry.name)
        if match is None or int(match[1]) != len(migrations) + 1:
            raise MigrationError(f"{entry.name}: migrations are named 0001_NAME.sql, 0002_NAME.sql and so on")
        migrations.append(Migration(number=int(match[1]), name=match[2], sql=entry.read_text(encoding="utf-8")))
    return migrations


def migrate(location: Location) -> list[str]:
    """Bring the warehouse to the newest version and return the names of what was applied.

    Raises MigrationError for a foreign file or one of a newer evalhouse, and the errors of `open_writer`.
    """
    try:
        with open_reader(location) as connection:
            if not find_missing(connection, location, load_migrations()):
                return []
    except WarehouseMissing:
        pass
    except duckdb.Error as error:
        raise explain_failure(location, error) from None
    with open_writer(location, patience_s=30.0) as connection:
        return apply_migrations(connection, location, load_migrations())


def apply_migrations(
    connection: duckdb.DuckDBPyConnection, location: Location, wanted: Sequence[Migration]
) -> list[str]:
    """Apply missing migrations on an open connection, each in one transaction with its record; see `migrate`."""
    missing = find_missing(connection, location, wanted)
    for migration in missing:
        sql = _PLAIN_FILE.sub(r"\1" if location.lake is None else "", migration.sql)
        if location.lake is not None and migration.number == _VIEWS:
            sql = _VIEW_COLUMN_COMMENT.sub("", sql)
        try:
            connection.begin()
            connection.execute(read_query("upkeep/record"))
            connection.execute(sql)
            _record(connection, migration)
            connection.commit()
            if location.lake is None:
                connection.execute("checkpoint")  # DuckDB 1.5 cannot always replay such a change from its log
        except duckdb.Error as error:
            explained = explain_failure(location, error)
            if isinstance(explained, WarehouseUnwritable | WarehouseBusy):
                raise explained from None
            text = first_line(str(error))
            raise MigrationError(f"migration {migration.title} of {location.name} failed: {text}") from None
    return [migration.title for migration in missing]


def _record(connection: duckdb.DuckDBPyConnection, migration: Migration) -> None:
    connection.execute("delete from migrations where number = ?", [migration.number])
    values = [migration.number, migration.name, migration.sha256]
    connection.execute("insert into migrations values (?, ?, ?, now() at time zone 'UTC')", values)


def find_missing(
    connection: duckdb.DuckDBPyConnection, location: Location, wanted: Sequence[Migration]
) -> list[Migration]:
    """Return the migrations to apply, and the views where their text has changed; raises MigrationError."""
    try:
        rows = connection.execute("select number, sha256 from migrations").fetchall()
    except (duckdb.CatalogException, duckdb.BinderException):
        sql = "select name from (show all tables) where database = current_database() order by name"
        rows = []
        if names := [str(row[0]) for row in connection.execute(sql).fetchall()]:
            raise MigrationError(
                f"{location.name} holds tables that evalhouse did not make ({', '.join(names[:5])}); "
                f"name another file with {name_setting('warehouse')}"
            ) from None
    applied = {int(number): str(sha256) for number, sha256 in rows}
    newest = max(applied, default=0)
    if newest > len(wanted):
        raise MigrationError(
            f"the warehouse was written by a newer evalhouse (its migration {newest}, this one has {len(wanted)}); "
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
