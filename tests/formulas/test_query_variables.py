"""The variables `latest` and `previous`, by which queries name the two newest runs."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from history_nights import Size, write_nights

from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.sandbox.query import run_query
from evalhouse.warehouse.store import Warehouse


def test_queries_can_name_the_two_newest_runs(tmp_path: Path) -> None:
    path = tmp_path / "nights.duckdb"
    write_nights(path, Size(nights=3, samples=5))
    store = Warehouse(str(path))
    newest = {name: find_run(store, name).run_id for name in ("latest", "previous")}
    sql = (
        "select getvariable('latest') as latest, getvariable('previous') as previous, "
        "(select count(*) from statement_verdicts where run_id = getvariable('latest')) as n"
    )
    assert run_query(parse_location(str(path)), sql).to_dicts() == [newest | {"n": 5 * 7}]


@pytest.mark.parametrize("left", ["", "create table runs (run_id varchar)"])
def test_file_without_such_runs_can_be_queried(tmp_path: Path, left: str) -> None:
    path = tmp_path / "other.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"create table numbers as select 7 as n; {left}")
    sql = "select n, getvariable('latest') as latest from numbers"
    assert run_query(parse_location(str(path)), sql).to_dicts() == [{"n": 7, "latest": None}]
