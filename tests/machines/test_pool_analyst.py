"""A role that may only read, as the README sets it up: it reads everything that is there and will be, and writes
nothing, neither through evalhouse nor by hand."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from postgres_server import PostgresServer
from warehouse_processes import make_batch

from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.sandbox.query import run_query
from evalhouse.warehouse.store import Warehouse

_GRANTS = """
create role analyst login;
grant connect on database evalhouse to analyst;
grant usage on schema public to analyst;
grant select on all tables in schema public to analyst;
alter default privileges for role evalhouse in schema public grant select on tables to analyst;
"""


def test_an_analyst_reads_all_and_writes_nothing(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALHOUSE_STATE_DIR", str(tmp_path / "state"))
    address = postgres.make_database("evalhouse")
    owner = Warehouse(f"ducklake:{address}?data={tmp_path / 'files'}")
    owner.migrate()
    owner.append(make_batch("before", n=5))
    with psycopg.connect(address, autocommit=True) as session:
        session.execute(_GRANTS)
    analyst = Warehouse(owner.location.url.replace("evalhouse@", "analyst@"))
    assert run_query(analyst.location, "select count(*) from statements").item() == 5
    owner.append(make_batch("small", n=5))
    owner.append(make_batch("large", n=3000))  # a file, and tables that the catalogue has made for it
    assert run_query(analyst.location, "select count(*) from statements").item() == 3010
    assert run_query(analyst.location, "select count(*) from run_scores").item() == 0
    with pytest.raises(WarehouseError):
        analyst.append_now(make_batch("theirs", n=5), patience_s=1)
    with psycopg.connect(analyst.location.lake.dsn, autocommit=True) as session:  # type: ignore[union-attr]
        tables = [row[0] for row in session.execute("select tablename from pg_tables where schemaname = 'public'")]
        for statement in (
            "delete from ducklake_data_file",
            "drop table ducklake_snapshot",
            "create table mine (a int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(statement)
    assert "ducklake_data_file" in tables
    assert run_query(owner.location, "select count(*) from statements").item() == 3010
