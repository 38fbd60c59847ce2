"""Numbered migrations: each `.sql` file is applied once, in order, in one transaction with its own record (an empty
lake gets all of them in one).

Views are not migrated but laid again whenever their text has changed, since they hold no rows. (A view that is
given up is dropped by a migration.) The files keep to what every kind of warehouse understands; what only a plain
DuckDB file takes stands in a comment `/* plain file: … */`, which is opened there.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from importlib.resources.abc import Traversable

import duckdb

from evalhouse.warehouse.engine.connection import explain_failure, open_reader, open_writer
from evalhouse.warehouse.errors import MigrationError, WarehouseBusy, WarehouseMissing, WarehouseUnwritable, first_line
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.metric_files import view_scripts
from evalhouse.warehouse.queries import read_query

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
_PLAIN_FILE = re.compile(r"/\* plain file: (.*?) \*/")
# DuckLake keeps comments on tables, their columns and views, and none on a view's columns.
_VIEW_COLUMN_COMMENT = re.compile(r"^comment on column .*;$", re.MULTILINE)
_VIEWS = 0  # the number under which the hash of all view texts is kept
_WRITE_PATIENCE_S = 30.0
_RECORD = read_query("upkeep/record")
_LIST_NAMES = "select name from (show all tables) where database = current_database() order by name"


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

    @property
    def title(self) -> str:
        """The file's name without its ending."""
        return f"{self.number:04}_{self.name}"


def load_migrations(folder: Traversable | None = None) -> list[Migration]:
    """All migrations in order; raises MigrationError when their numbers have a gap or a file has no number."""
    migrations = []
    for entry in (folder or files("evalhouse.warehouse").joinpath("migrations")).iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            migrations.append(Migration(number=int(match[1]), name=match[2], sql=entry.read_text(encoding="utf-8")))
        elif entry.name.endswith(".sql"):
            raise MigrationError(f"{entry.name} is not a name for a migration; write for example 0001_runs.sql")
    migrations.sort(key=lambda migration: migration.number)
    if [migration.number for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise MigrationError(f"migrations must be numbered 1, 2, 3 …; found {[m.number for m in migrations]}")
    return migrations


def migrate(location: Location, *, upto: int | None = None) -> list[str]:
    """Bring the warehouse to the newest shape and return the names of what was applied ([] when it was there).

    `upto` stops after that migration and lays no views; tests use it to start from an earlier state. Raises
    MigrationError for a file that is not ours or newer than we are, and the errors of `open_writer`.
    """
    wanted = load_migrations()
    if upto is None and not _pending(location, wanted):
        return []
    with open_writer(location, patience_s=_WRITE_PATIENCE_S) as connection:
        return apply_migrations(connection, location, wanted[:upto], views=upto is None)


def apply_migrations(
    connection: duckdb.DuckDBPyConnection, location: Location, wanted: Sequence[Migration], *, views: bool = True
) -> list[str]:
    """Apply what is missing on an open connection; see `migrate`."""
    applied = _read_record(connection, location)
    steps = [
        _Step(title=migration.title, write=partial(_run, connection, location, migration))
        for migration in _missing(applied, wanted)
    ]
    if views and applied.get(_VIEWS) != (views_hash := _views_hash()):
        steps.append(_Step(title="views", write=partial(_lay_views, connection, location, views_hash)))
    # To commit to a lake takes longer than to write a migration: an empty one is given all by one transaction.
    is_empty_lake = location.lake is not None and not applied
    for together in [steps] if is_empty_lake else [[step] for step in steps]:
        _apply(connection, location, together)
    return [step.title for step in steps]


@dataclass(frozen=True, kw_only=True)
class _Step:
    """A migration, or all views, and what writes it."""

    title: str
    write: Callable[[], None]


def _apply(connection: duckdb.DuckDBPyConnection, location: Location, steps: Sequence[_Step]) -> None:
    """One transaction; what it changed is then moved out of the log, which DuckDB 1.5 cannot always replay."""
    title = ""
    try:
        connection.begin()
        connection.execute(_RECORD)
        for step in steps:
            title = step.title
            step.write()
        connection.commit()
        if location.lake is None:
            connection.execute("checkpoint")
    except duckdb.Error as error:
        explained = explain_failure(location, error)
        if isinstance(explained, WarehouseUnwritable | WarehouseBusy):
            raise explained from None
        raise MigrationError(f"migration {title} of {location.name} failed: {first_line(str(error))}") from None


def _run(connection: duckdb.DuckDBPyConnection, location: Location, migration: Migration) -> None:
    connection.execute(_PLAIN_FILE.sub(r"\1" if location.lake is None else "", migration.sql))
    _record(connection, migration.number, migration.name, migration.sha256)


def _lay_views(connection: duckdb.DuckDBPyConnection, location: Location, views_hash: str) -> None:
    for script in view_scripts():
        connection.execute(script.sql if location.lake is None else _VIEW_COLUMN_COMMENT.sub("", script.sql))
    connection.execute("delete from migrations where number = ?", [_VIEWS])
    _record(connection, _VIEWS, "views", views_hash)


def is_older(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether a warehouse lacks what the next write brings; False for one that is newer than we are, or not ours."""
    try:
        applied = dict(connection.execute("select number, sha256 from migrations").fetchall())
    except duckdb.Error:
        return False
    newest, views = _find_newest()
    return max(applied, default=0) <= newest and (len(applied) <= newest or applied.get(_VIEWS) != views)


def _pending(location: Location, wanted: Sequence[Migration]) -> bool:
    try:
        with open_reader(location) as connection:
            applied = _read_record(connection, location)
    except WarehouseMissing:
        return True
    except duckdb.Error as error:
        raise explain_failure(location, error) from None
    return bool(_missing(applied, wanted)) or applied.get(_VIEWS) != _views_hash()


def _read_record(connection: duckdb.DuckDBPyConnection, location: Location) -> dict[int, str]:
    """What was applied, as hashes by number; {} for an empty file, MigrationError for one that is not ours."""
    try:
        rows = connection.execute("select number, sha256 from migrations").fetchall()
    except (duckdb.CatalogException, duckdb.BinderException):
        names = [str(row[0]) for row in connection.execute(_LIST_NAMES).fetchall()]
        if not names:
            return {}
        raise MigrationError(
            f"{location.name} holds tables that evalhouse did not make ({', '.join(names[:5])}); "
            "name another file with --warehouse"
        ) from None
    return {int(number): str(sha256) for number, sha256 in rows}


def _missing(applied: dict[int, str], wanted: Sequence[Migration]) -> list[Migration]:
    ours = {migration.number: migration for migration in wanted}
    newest = max(applied, default=0)
    if newest > len(wanted):
        raise MigrationError(
            f"the warehouse was written by a newer evalhouse (its migration {newest}, ours end at {len(wanted)}); "
            "update evalhouse or name another file with --warehouse"
        )
    for number, sha256 in applied.items():
        if number != _VIEWS and ours[number].sha256 != sha256:
            raise MigrationError(
                f"migration {ours[number].title} is not the one this warehouse was made with; "
                "a released migration never changes: reinstall evalhouse"
            )
    return [migration for migration in wanted if migration.number not in applied]


def _record(connection: duckdb.DuckDBPyConnection, number: int, name: str, sha256: str) -> None:
    connection.execute("insert into migrations values (?, ?, ?, now() at time zone 'UTC')", [number, name, sha256])


@cache
def _find_newest() -> tuple[int, str]:
    """How many migrations there are, and the hash of the views; asked for before every read."""
    return len(load_migrations()), _views_hash()


def _views_hash() -> str:
    return hashlib.sha256("\n".join(script.sql for script in view_scripts()).encode()).hexdigest()
