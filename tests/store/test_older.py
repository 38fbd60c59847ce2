"""A warehouse that an older evalhouse wrote last: every command that reads it shows what it will show."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import House
from cli_process import Finished

from evalhouse.warehouse.engine.connection import serving_reads
from evalhouse.warehouse.engine.migrate import migrate
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.store import Warehouse

Ask = Callable[..., Finished]
_COLUMNS = "select column_name from duckdb_columns() where database_name = ? and table_name = ? order by column_index"


@pytest.fixture(scope="module", params=[8, *(pytest.param(state, marks=pytest.mark.slow) for state in (12, 16))])
def files(request: pytest.FixtureRequest, house: House, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the house's rows in the tables of an earlier state, and with the same after the next write."""
    folder = tmp_path_factory.mktemp("older")
    path = str(folder / "older.duckdb")
    migrate(parse_location(path), upto=request.param)
    with duckdb.connect(path) as con:
        con.execute(f"attach '{house.path}' as today (read_only)")
        tables = con.execute(
            "select table_name from duckdb_tables() where database_name = 'older' and table_name <> 'migrations'"
        ).fetchall()
        for (table,) in tables:
            here, there = (
                [name for (name,) in con.execute(_COLUMNS, [database, table]).fetchall()]
                for database in ("older", "today")
            )
            columns = ", ".join(name for name in here if name in there)
            con.execute(f"insert into {table} by name select {columns} from today.{table}")
    migrate(parse_location(str(shutil.copy(path, folder / "migrated.duckdb"))))
    return folder


@pytest.fixture
def older(files: Path, tmp_path: Path) -> str:
    return str(shutil.copy(files / "older.duckdb", tmp_path))


@pytest.fixture
def migrated(files: Path, tmp_path: Path) -> str:
    return str(shutil.copy(files / "migrated.duckdb", tmp_path))


def hash_file(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_reading_commands_show_what_they_show_once_it_is_migrated_and_change_nothing(
    house: House, older: str, migrated: str, ask: Ask, tmp_path: Path
) -> None:
    before = hash_file(older)
    for arguments in (
        ("runs",),
        ("show", house.run_id),
        ("compare", "previous", "latest"),
        ("diagnose", house.run_id),
        ("lineage", house.run_id, "tide-1", "faithfulness"),
    ):
        documents: list[Any] = []
        for warehouse in (migrated, older):
            finished = ask(*arguments, "--json", "--warehouse", warehouse)
            assert finished.status == 0, finished.stderr
            documents.append(finished.document)
        assert documents[1] == documents[0], arguments
    report = ask("report", "latest", "--against", "previous", "-o", str(tmp_path / "r.html"), "--warehouse", older)
    assert report.status == 0, report.stderr
    series = ask("query", "select series from run_series limit 1", "--format", "json", "--warehouse", migrated).document
    history = ask("report", "--history", series[0]["series"], "-o", str(tmp_path / "h.html"), "--warehouse", older)
    assert history.status == 0, history.stderr
    assert hash_file(older) == before


def test_a_process_that_serves_pages_reads_it_the_same_and_changes_nothing(older: str, migrated: str) -> None:
    before = hash_file(older)
    warehouses = [Warehouse(path) for path in (migrated, older)]
    sql = "select run_id, metric, mean, n_scored from run_scores order by all"
    with serving_reads(warehouses[0].location), serving_reads(warehouses[1].location), ThreadPoolExecutor(4) as pool:
        for _ in range(2):
            today, *then = pool.map(lambda warehouse: warehouse.read_rows(sql), [warehouses[0], *[warehouses[1]] * 6])
            assert today
            assert then == [today] * 6
    assert hash_file(older) == before


def test_a_gate_decides_although_it_cannot_be_put_on_record(older: str, migrated: str, ask: Ask) -> None:
    drop = ("--against", "previous", "--max-drop", "factual_f1=0.02", "--min", "factual_f1=0.01")
    today, then = (ask("gate", "latest", *drop, "--json", "--warehouse", warehouse) for warehouse in (migrated, older))
    assert then.document == today.document
    assert "The decision is not on record" in then.stderr
