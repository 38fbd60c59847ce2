"""A new database of our Prefect server has the schema that Prefect's migrations give it, and is made in one piece."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import prefect
import pytest
from prefect.settings import PREFECT_SERVER_DATABASE_MIGRATE_ON_START

from evalhouse.flows.server.local import prepare_database

SCHEMA = Path(__file__).resolve().parents[2] / "flows" / "server" / "prefect_schema.sql"
MIGRATE = """
import asyncio
from prefect.server.database import provide_database_interface
asyncio.run(provide_database_interface().create_db())
"""


def to_url(path: Path) -> str:
    return f"sqlite+aiosqlite:///{path}"


def read_schema(path: Path) -> dict[tuple[str, str], list[str]]:
    """Return the parts of each table and index: SQLAlchemy writes a table's constraints in another order each time."""
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("select type, name, sql from sqlite_master").fetchall()
    return {
        (kind, name): sorted(re.split(r" ?, (?=CONSTRAINT )", " ".join((sql or "").split()).removesuffix(" )")))
        for kind, name, sql in rows
    }


def read_revision(path: Path) -> list[tuple[str]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("select version_num from alembic_version").fetchall()


@pytest.mark.slow
def test_schema_is_that_of_prefects_own_migrations(tmp_path: Path) -> None:
    """`EVALHOUSE_WRITE_GENERATED=1` writes the file again, for another version of Prefect."""
    migrated, prepared = tmp_path / "migrated.db", tmp_path / "prepared.db"
    environ = {**os.environ, "PREFECT_HOME": str(tmp_path), "PREFECT_SERVER_DATABASE_CONNECTION_URL": to_url(migrated)}
    subprocess.run([sys.executable, "-c", MIGRATE], env=environ, check=True, capture_output=True, timeout=300)
    if os.environ.get("EVALHOUSE_WRITE_GENERATED"):
        with closing(sqlite3.connect(migrated)) as database:
            made = database.execute("select sql from sqlite_master where sql is not null order by rowid").fetchall()
        lines = [f"-- Prefect {prefect.__version__}", SCHEMA.read_text(encoding="utf-8").splitlines()[1], ""]
        lines += [line.rstrip() for (sql,) in made for line in f"{sql};".splitlines()]
        lines.append(f"insert into alembic_version values ('{read_revision(migrated)[0][0]}');")
        SCHEMA.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert prepare_database(to_url(prepared), prefect.__version__)
    assert read_schema(prepared) == read_schema(migrated)
    assert read_revision(prepared) == read_revision(migrated)
    with closing(sqlite3.connect(migrated)) as database:
        tables = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
        filled = [name for name in tables if database.execute(f'select count(*) from "{name}"').fetchone() != (0,)]
    assert filled == ["alembic_version"]


def test_schema_is_for_the_version_that_is_installed(tmp_path: Path) -> None:
    path = tmp_path / "prefect.db"
    assert prepare_database(to_url(path), prefect.__version__)
    assert [found.name for found in tmp_path.iterdir()] == ["prefect.db"]
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("pragma journal_mode").fetchone() == ("wal",)
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    assert prepare_database(to_url(path), prefect.__version__), "the second start has nothing to migrate"
    assert PREFECT_SERVER_DATABASE_MIGRATE_ON_START.value(), "the setting that is switched off then still exists"


async def test_starts_at_once_make_one_database(tmp_path: Path) -> None:
    path = tmp_path / "prefect.db"
    starts = [asyncio.to_thread(prepare_database, to_url(path), prefect.__version__) for _ in range(8)]
    assert await asyncio.gather(*starts) == [True] * 8
    assert read_schema(path)
    assert [found.name for found in tmp_path.iterdir()] == ["prefect.db"]


@pytest.mark.parametrize(
    ("url", "version"),
    [
        ("sqlite+aiosqlite:///{}/prefect.db", "3.8.0"),
        ("sqlite+aiosqlite:///file::memory:?cache=shared&uri=true", prefect.__version__),
        ("sqlite+aiosqlite://", prefect.__version__),
        ("postgresql+asyncpg://user@host/prefect", prefect.__version__),
        ("sqlite+aiosqlite:///{}/no/such/folder/prefect.db", prefect.__version__),
    ],
    ids=["another version", "shared memory", "memory", "postgres", "no folder"],
)
def test_other_databases_are_left_to_prefect(tmp_path: Path, url: str, version: str) -> None:
    assert not prepare_database(url.format(tmp_path), version)
    assert not list(tmp_path.iterdir())


OLD = "create table alembic_version(version_num); insert into alembic_version values ('f92143d30c24')"


@pytest.mark.parametrize("sql", ["", OLD.partition(";")[0], OLD], ids=["empty", "no revision", "old revision"])
def test_database_of_another_state_is_left_to_prefect(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "prefect.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(sql)
    before = read_schema(path)
    assert not prepare_database(to_url(path), prefect.__version__)
    assert read_schema(path) == before
