"""A warehouse as a DuckLake, its catalogue in SQLite and in a real PostgreSQL: the same tables, rows and promises."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import polars as pl
import psycopg
import pytest
from postgres_server import PostgresServer
from warehouse_processes import ROOT, make_batch
from warehouse_runs import make_run

import evalhouse.warehouse.engine.lake as lake_module
from evalhouse.warehouse.engine.connection import check_views, open_writer
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.errors import (
    QueryError,
    WarehouseBusy,
    WarehouseError,
    WarehouseMissing,
    WarehouseUnreachable,
    WarehouseUrlError,
)
from evalhouse.warehouse.location import Lake, Location, parse_location
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.runs import insert_run, update_run
from evalhouse.warehouse.rows.samples import Staging, renew_samples, score_run, take_in_samples
from evalhouse.warehouse.sandbox.query import read_catalog, run_query
from evalhouse.warehouse.store import Warehouse

_WRITER = """
import sys
from contextlib import suppress
from evalhouse.warehouse.errors import WarehouseUnreachable
from evalhouse.warehouse.store import Warehouse
from warehouse_processes import make_batch
warehouse = Warehouse(sys.argv[1])
for number in range(int(sys.argv[3])):
    # Every second batch is written by all of them, as after an unnoticed crash.
    name = f"shared-{number}" if number % 2 else f"{sys.argv[2]}-{number}"
    while True:
        with suppress(WarehouseUnreachable):
            warehouse.append_now(make_batch(name, n=5), patience_s=60)
            break
    print(name, flush=True)
"""


@pytest.fixture(scope="module")
def copy_lake(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Warehouse]:
    """Makes a lake with all tables for files in a folder, as the copy of one: the migrations take seconds."""
    folder = tmp_path_factory.mktemp("template")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALHOUSE_STATE_DIR", str(folder / "state"))
        Warehouse(f"ducklake:{postgres.make_database('template')}?data={folder / 'files'}").migrate()

    def copy(files: Path) -> Warehouse:
        shutil.copytree(folder / "files", files)
        address = postgres.copy_database("template", f"lake{time.time_ns()}")
        with psycopg.connect(address) as session:
            session.execute("update ducklake_metadata set value = %s where key = 'data_path'", [f"{files}/"])
        return Warehouse(f"ducklake:{address}?data={files}")

    return copy


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.slow), "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A lake that is not there yet."""
    monkeypatch.setenv("EVALHOUSE_STATE_DIR", str(tmp_path / "state"))
    files = tmp_path / "files"
    if request.param == "sqlite":
        return f"ducklake:sqlite:///{tmp_path / 'catalogue.sqlite'}?data={files}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return f"ducklake:{server.make_database(f'lake{time.time_ns()}')}?data={files}"


@pytest.fixture
def warehouse(copy_lake: Callable[[Path], Warehouse], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """A lake with all tables, its catalogue in PostgreSQL."""
    monkeypatch.setenv("EVALHOUSE_STATE_DIR", str(tmp_path / "state"))
    return copy_lake(tmp_path / "files")


@pytest.fixture(params=["sqlite", "postgres"])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    """A lake with all tables, its catalogue in either, for what others write at the same time."""
    if request.param == "postgres":
        of_server: Warehouse = request.getfixturevalue("warehouse")
        return of_server
    monkeypatch.setenv("EVALHOUSE_STATE_DIR", str(tmp_path / "state"))
    made = Warehouse(f"ducklake:sqlite:///{tmp_path / 'catalogue.sqlite'}?data={tmp_path / 'files'}")
    made.migrate()
    return made


def _start_writer(url: str, name: str, n_batches: int) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])
    return subprocess.Popen(
        [sys.executable, "-c", _WRITER, url, name, str(n_batches)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )


def _count(warehouse: Warehouse, sql: str) -> int:
    return int(warehouse.read(sql).item())


def test_a_lake_has_the_tables_views_and_comments_of_a_file(url: str, tmp_path: Path) -> None:
    lake, file = Warehouse(url), Warehouse(str(tmp_path / "plain.duckdb"))
    assert not lake.exists()
    with pytest.raises(WarehouseMissing):
        lake.read("select 1")
    assert lake.migrate() == file.migrate()
    assert lake.exists()
    assert lake.migrate() == []
    of_lake, of_file = read_catalog(lake.location), read_catalog(file.location)
    assert [relation.name for relation in of_lake.relations] == [relation.name for relation in of_file.relations]
    for one, other in zip(of_lake.relations, of_file.relations, strict=True):
        assert one.comment == other.comment
        assert one.columns == other.columns


@pytest.mark.slow
def test_writers_at_once_lose_nothing_and_double_nothing(lake: Warehouse) -> None:
    writers = [_start_writer(lake.location.url, f"w{number}", 6) for number in range(3)]
    seen: list[int] = []
    while any(writer.poll() is None for writer in writers):
        seen.append(_count(lake, "select count(*) from statements"))
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    # 3 x 3 separate batches, and 3 that all of them brought.
    assert _count(lake, "select count(*) from statements") == 5 * (3 * 3 + 3)
    assert _count(lake, "select count(*) from batches") == 3 * 3 + 3
    # Readers meanwhile saw whole batches, and never fewer than before.
    assert seen == sorted(seen)
    assert all(number % 5 == 0 for number in seen)


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_whole_batches_and_no_lock(lake: Warehouse) -> None:
    writer = _start_writer(lake.location.url, "victim", 500)
    assert writer.stdout is not None
    for _ in range(3):
        writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert lake.append(make_batch("after", n=5), patience_s=30)
    n_rows = _count(lake, "select count(*) from statements")
    assert n_rows == 5 * _count(lake, "select count(*) from batches")
    assert n_rows >= 20


@pytest.mark.slow
def test_a_catalogue_that_restarts_again_and_again_ends_no_writer(
    postgres: PostgresServer, warehouse: Warehouse
) -> None:
    """DuckDB aborted the process where a transaction was open, with nothing from evalhouse."""
    writer = _start_writer(warehouse.location.url, "steady", 60)
    assert writer.stdout is not None
    chance = random.Random(7)
    while writer.stdout.readline():
        time.sleep(chance.random() * 0.2)
        postgres.stop()
        postgres.start()
    writer.communicate()
    assert writer.returncode == 0
    assert _count(warehouse, "select count(*) from statements") == 5 * 60


def test_one_process_at_a_time_on_a_run(warehouse: Warehouse) -> None:
    location = warehouse.location
    with hold_run(location, "r1"):
        with pytest.raises(WarehouseBusy, match="r1 is running in another process"), hold_run(location, "r1"):
            pass
        with hold_run(location, "r2"):
            pass
    with hold_run(location, "r1"):
        pass


@pytest.mark.slow
def test_a_query_reads_the_lake_and_nothing_else_and_closes_off_only_its_connection(
    warehouse: Warehouse, tmp_path: Path
) -> None:
    warehouse.append(make_batch("one", n=3000))  # more than stays in the catalogue: a file
    warehouse.append(make_batch("three", n=3000))
    files = list((tmp_path / "files").rglob("*.parquet"))
    assert files
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    assert run_query(warehouse.location, "select count(*) from statements").item() == 6000
    for sql in (
        f"select * from read_csv('{secret}')",
        "select * from postgres_query('__ducklake_metadata_evalhouse', 'select 1')",
        "select * from sqlite_scan('x', 'y')",
        "select * from ducklake_cleanup_old_files('evalhouse', cleanup_all => true)",
        "from merge_adjacent_files()",
        'explain analyze from evalhouse.main."merge_adjacent_files"()',
    ):
        with pytest.raises(QueryError):
            run_query(warehouse.location, sql)
    assert list((tmp_path / "files").rglob("*.parquet")) == files  # to merge them writes before it fails
    with pytest.raises(WarehouseError, match="disabled by configuration"):  # as a view of its catalogue might
        warehouse.read(f"from '{secret}'")
    wanted = pl.DataFrame({"sample_id": ["one-1", "one-2", "two-1"]})
    found = warehouse.read(
        "select sample_id from statements semi join wanted using (sample_id)", frames={"wanted": wanted}
    )
    assert found.height == 2
    with pytest.raises(WarehouseError, match="wanted"):  # a frame is there for its query alone
        warehouse.read("from wanted")
    with open_writer(warehouse.location, patience_s=5) as connection:
        connection.execute(f"create view mine as from read_csv('{secret}')")
    with pytest.raises(WarehouseError, match="its view mine calls read_csv"):
        run_query(warehouse.location, "select 1")


@pytest.mark.slow
def test_every_snapshot_of_a_run_names_it_and_the_past_can_be_read_by_them(warehouse: Warehouse) -> None:
    sql = "select snapshot_id, commit_message from ducklake_snapshots('evalhouse') order by snapshot_id"
    n_before = run_query(warehouse.location, sql).height
    warehouse.append(make_batch("one", n=5))
    warehouse.append(make_batch("two", n=5))
    insert_run(warehouse, make_run("r"))
    staging = Staging()
    staging.add([{"ordinal": 1, "sample_id": "a", "input_hash": "h", "question": "?"}])
    take_in_samples(warehouse, "r", staging)
    renew_samples(warehouse, "r", staging)
    staging.discard()
    score_run(warehouse, "r", [load_metrics(None)["factual_f1"]], {})
    update_run(warehouse, "r", status="completed")
    snapshots = run_query(warehouse.location, sql)[n_before:]
    assert snapshots.height >= 7
    assert all(message.startswith("run r") for message in snapshots["commit_message"])
    first = snapshots["snapshot_id"][0]
    assert run_query(warehouse.location, f"select count(*) from statements at (version => {first})").item() == 5


def test_batches_wait_in_the_spool_while_the_catalogue_is_down(postgres: PostgresServer, warehouse: Warehouse) -> None:
    postgres.stop()
    try:
        assert not warehouse.append(make_batch("waits", n=5), patience_s=0.2)
        with pytest.raises(WarehouseBusy, match="does not answer"):
            warehouse.append_now(make_batch("raises", n=5), patience_s=0.2)
    finally:
        postgres.start()
    warehouse.flush()
    assert _count(warehouse, "select count(*) from statements") == 5


def test_a_lake_is_read_and_written_where_its_folder_was_moved(warehouse: Warehouse, tmp_path: Path) -> None:
    """To another disk, or another path in a container."""
    insert_run(warehouse, make_run("one"))
    moved = Warehouse(warehouse.location.url.replace(f"data={tmp_path / 'files'}", f"data={tmp_path / 'moved'}"))
    shutil.copytree(tmp_path / "files", tmp_path / "moved")
    with pytest.raises(WarehouseError, match=r"the files of this lake are at .*files, by its catalogue, and not at"):
        moved.read_rows("select run_id from runs")
    shutil.move(tmp_path / "moved", tmp_path / "later")
    shutil.move(tmp_path / "files", tmp_path / "away")
    with pytest.raises(WarehouseError, match="the files of this lake are at"):
        insert_run(moved, make_run("two"))  # neither place has them: a mistyped address, or a disk that is missing
    shutil.rmtree(tmp_path / "moved", ignore_errors=True)
    shutil.move(tmp_path / "later", tmp_path / "moved")
    insert_run(moved, make_run("two"))
    assert moved.read_rows("select run_id from runs order by all") == [{"run_id": "one"}, {"run_id": "two"}]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list that grows with each new connection: True where it only reads."""
    made: list[bool] = []
    connect = lake_module._connect

    def connect_and_note(location: Location, lake: Lake, *, read_only: bool, **others: Any) -> object:  # noqa: ANN401
        made.append(read_only)
        return connect(location, lake, read_only=read_only, **others)

    monkeypatch.setattr(lake_module, "_connect", connect_and_note)
    return made


@pytest.mark.slow
def test_a_connection_is_kept_and_sees_what_others_write_and_compact(warehouse: Warehouse, opened: list[bool]) -> None:
    warehouse.append(make_batch("mine", n=5))
    assert _count(warehouse, "select count(*) from statements") == 5
    n_opened = len(opened)
    _start_writer(warehouse.location.url, "theirs", 1).communicate()
    assert _count(Warehouse(warehouse.location.url), "select count(*) from statements") == 10
    warehouse.append(make_batch("mine too", n=5))
    tables = ("statements", "outcomes", "migrations", "batches")
    before = [_count(warehouse, f"select count(*) from {table}") for table in tables]
    assert before[0] == 15
    assert len(opened) == n_opened
    script = "import sys\nfrom evalhouse.warehouse.upkeep.check_and_compact import *\n"
    script += "compact_warehouse(Warehouse(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", script, warehouse.location.url], check=True, cwd=ROOT)
    assert [_count(warehouse, f"select count(*) from {table}") for table in tables] == before
    assert warehouse.append(make_batch("last", n=5))
    assert _count(warehouse, "select count(*) from statements") == 20


@contextmanager
def opening_new_reader(warehouse: Warehouse) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a new reader, like one that serves pages."""
    assert warehouse.location.lake is not None
    connect = lake_module._connect
    with closing(
        connect(warehouse.location, warehouse.location.lake, check=check_views, read_only=True, deadline=math.inf)
    ) as reader:
        yield reader


def test_unsigned_extensions_are_loaded_for_no_query_of_others_and_changed_ones_never(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _count(warehouse, "select count(*) from statements") == 0
    sql = "select current_setting('allow_unsigned_extensions') as allowed"
    with opening_new_reader(warehouse) as reader:
        assert reader.execute(sql).fetchall() == [(True,)]
    assert run_query(warehouse.location, sql).item() is False
    # Refused although others were checked before.
    changed = Path(shutil.copy(lake_module.find_extension("ducklake"), tmp_path))
    with changed.open("r+b") as file:
        file.seek(100_000)
        file.write(b"changed")
    monkeypatch.setattr(lake_module, "find_extension", lambda _: str(changed))
    with pytest.raises(duckdb.IOException, match="signature"), opening_new_reader(warehouse) as reader:
        reader.execute("select 1")


@pytest.mark.slow
def test_threads_that_read_leave_a_few_connections(warehouse: Warehouse) -> None:
    warehouse.append(make_batch("one", n=5))
    with ThreadPoolExecutor(8) as pool:
        for n_batches in (1, 2):
            counts = pool.map(lambda _: _count(warehouse, "select count(*) from statements"), range(24))
            assert set(counts) == {5 * n_batches}
            assert warehouse.append(make_batch("two", n=5))
    n_idle = sum(len(kept) for key, kept in lake_module._idle.items() if key.lake == warehouse.location.lake)
    assert n_idle <= lake_module._MAX_IDLE + 1


def test_a_catalogue_that_took_anothers_name_is_not_mistaken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVALHOUSE_STATE_DIR", str(tmp_path / "state"))
    warehouse = Warehouse(f"ducklake:sqlite:///{tmp_path / 'c.sqlite'}?data={tmp_path / 'files'}")
    warehouse.migrate()
    empty = {path: path.read_bytes() for path in tmp_path.glob("c.sqlite*")}
    warehouse.append(make_batch("one", n=5))
    assert _count(warehouse, "select count(*) from statements") == 5
    for path in tmp_path.glob("c.sqlite*"):
        path.rename(tmp_path / f"old-{path.name}")
    for path, content in empty.items():
        path.write_bytes(content)
    warehouse.append(make_batch("one", n=7))
    assert _count(warehouse, "select count(*) from statements") == 7


def test_returned_server_is_connected_to_again(postgres: PostgresServer, warehouse: Warehouse) -> None:
    assert warehouse.append(make_batch("before", n=5))
    assert _count(warehouse, "select count(*) from statements") == 5
    postgres.stop()
    postgres.start()
    assert _count(warehouse, "select count(*) from statements") == 5
    assert warehouse.append(make_batch("after", n=5))
    assert _count(warehouse, "select count(*) from statements") == 10


def test_a_kept_connection_leaves_no_transaction_open(postgres: PostgresServer, warehouse: Warehouse) -> None:
    for number in range(2):
        warehouse.append(make_batch(f"batch {number}", n=5))
        _count(warehouse, "select count(*) from statements")
    name = warehouse.location.url.partition("?")[0].rpartition("/")[2]
    with psycopg.connect(postgres.address("postgres"), autocommit=True) as session:
        states = session.execute("select state from pg_stat_activity where datname = %s", [name]).fetchall()
    # Two for reading and two for writing, after all of this.
    assert states == [("idle",)] * 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ducklake:postgresql://me:secret@host/db?data=/files", "PGPASSWORD"),
        ("ducklake:postgresql://me:se#cr?et@host/db?data=/files", "PGPASSWORD"),
        ("ducklake:postgresql://me@host/db?password=secret&data=/files", "PGPASSWORD"),
        ("ducklake:postgresql://me@host/db?data=s3%3A%2F%2Fkey%3Asecret%40bucket/files", "AWS_SECRET_ACCESS_KEY"),
        ("postgresql://me:secret@host/db", "PGPASSWORD"),
        ("s3://key:secret@bucket/files", "AWS_SECRET_ACCESS_KEY"),
        ("ducklake:postgresql://me@host/db", "the place of the files"),
        ("ducklake:postgresql://me@host?data=/files", "names no warehouse"),
        ("ducklake:sqlite:///?data=/files", "names no warehouse"),
        ("ducklake:mysql://me@host/db?data=/files", "names no warehouse"),
        ("ducklake:sqlite:////c.sqlite?data=gs://bucket", "allowed is a folder"),
        ("ducklake:sqlite:?data=/files", "names no warehouse"),
        ("ducklake:sqlite://data/c.sqlite?data=/files", "names no warehouse"),
    ],
)
def test_url_of_another_kind_is_refused(given: str, message: str) -> None:
    with pytest.raises(WarehouseUrlError, match=message) as refused:
        parse_location(given)
    assert not re.search(r"(?<!AWS_)\bsecret|se#cr", str(refused.value))


@pytest.mark.parametrize(
    ("given", "catalogue"),
    [
        ("sqlite:/data/big/c.sqlite", "/data/big/c.sqlite"),
        ("sqlite:////data/big/c.sqlite", "/data/big/c.sqlite"),
        ("sqlite:/c.sqlite", "/c.sqlite"),
        ("sqlite:////a%20b/c.sqlite", "/a b/c.sqlite"),
        ("sqlite:data/big/c.sqlite", "HERE/data/big/c.sqlite"),
        ("sqlite:./data/c.sqlite", "HERE/data/c.sqlite"),
        ("sqlite:c.sqlite", "HERE/c.sqlite"),
        ("sqlite:///c.sqlite", "HERE/c.sqlite"),
    ],
)
def test_a_path_after_sqlite_is_what_it_looks_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, catalogue: str
) -> None:
    monkeypatch.chdir(tmp_path)
    location = parse_location(f"ducklake:{given}?data=files")
    assert str(location.path) == catalogue.replace("HERE", str(tmp_path))
    assert location.lake is not None
    assert location.lake.data == str(tmp_path / "files")
    assert parse_location(location.url) == location


@pytest.mark.parametrize("path", ["data/big/c.sqlite", "data/c.sqlite", "a%20b/c.sqlite"])
def test_three_slashes_and_a_folder_are_refused_with_both_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WarehouseUrlError) as refused:
        parse_location(f"ducklake:sqlite:///{path}?data=/files")
    for meant, folder in ((f"ducklake:sqlite:/{path}?data=/files", "/"), (f"ducklake:sqlite:{path}?data=/files", "")):
        assert repr(meant) in str(refused.value)
        assert parse_location(meant).path == Path(folder, unquote(path)).absolute()
    assert list(tmp_path.iterdir()) == []


def test_a_catalogue_that_goes_in_the_middle_of_a_write_is_an_outage_and_the_write_is_done_again(
    postgres: PostgresServer, warehouse: Warehouse
) -> None:
    """The next attempt finds the server up again: rows that were kept elsewhere are written then."""

    def write_while_it_restarts(work: str) -> None:
        with warehouse.writing() as connection:
            postgres.stop()
            try:
                connection.execute(work)
                connection.execute("from samples").fetchall()
            finally:
                postgres.start()

    for work in ("insert into runs (run_id, kind) select 'r1', 'evaluation'", "from runs"):
        with pytest.raises(WarehouseUnreachable, match=r"has gone|does not answer"):
            write_while_it_restarts(work)
    assert warehouse.read_rows("from runs") == []
    assert warehouse.append(make_batch("b1"), patience_s=30)


# As the README sets up a role that may only read.
_GRANTS = """
create role analyst login;
grant connect on database {database} to analyst;
grant usage on schema public to analyst;
grant select on all tables in schema public to analyst;
alter default privileges for role evalhouse in schema public grant select on tables to analyst;
"""


@pytest.mark.slow
def test_an_analyst_reads_all_that_is_and_will_be_there_and_writes_nothing(warehouse: Warehouse) -> None:
    """Neither through evalhouse nor by hand."""
    assert warehouse.location.lake is not None
    dsn = warehouse.location.lake.dsn
    warehouse.append(make_batch("before", n=5))
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute(_GRANTS.format(database=session.info.dbname).encode())
    analyst = Warehouse(warehouse.location.url.replace("evalhouse@", "analyst@"))
    assert run_query(analyst.location, "select count(*) from statements").item() == 5
    warehouse.append(make_batch("small", n=5))
    warehouse.append(make_batch("large", n=3000))  # a file, and tables that the catalogue has made for it
    assert run_query(analyst.location, "select count(*) from statements").item() == 3010
    assert run_query(analyst.location, "select count(*) from run_scores").item() == 0
    with pytest.raises(WarehouseError):
        analyst.append_now(make_batch("theirs", n=5), patience_s=1)
    with psycopg.connect(dsn.replace("evalhouse@", "analyst@"), autocommit=True) as session:
        for statement in (
            "delete from ducklake_data_file",
            "drop table ducklake_snapshot",
            "create table mine (a int)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(statement.encode())
    assert run_query(warehouse.location, "select count(*) from statements").item() == 3010
