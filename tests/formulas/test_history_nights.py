"""The benchmark of a long history: its warehouse is what it says, and it times every query and command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from cli_process import ROOT
from history_nights import Size, write_nights

from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.sandbox.query import run_query
from evalhouse.warehouse.store import Warehouse

SIZE = Size(nights=6, samples=15)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nights") / "nights.duckdb"
    write_nights(path, SIZE)
    return path


def test_it_has_a_score_for_every_night_sample_and_metric(nights: Path) -> None:
    with duckdb.connect(str(nights), read_only=True) as connection:
        (n_scores,) = connection.execute("select count(*) from scores").fetchall()[0]
        (n_verdicts,) = connection.execute("select count(*) from classifications").fetchall()[0]
        (n_lost,) = connection.execute("""
            select count(*) from llm_calls where reused_call_id is not null
                and reused_call_id not in (select call_id from llm_calls where status = 'ok')
        """).fetchall()[0]
    assert n_scores == SIZE.nights * SIZE.samples * SIZE.metrics
    assert n_verdicts == SIZE.nights * SIZE.samples * 7
    assert n_lost == 0, "what is reused was asked in a night before"


def test_equal_sizes_give_equal_warehouses(nights: Path, tmp_path: Path) -> None:
    write_nights(tmp_path / "again.duckdb", SIZE)
    sums = "select sum(hash(scores)) from scores", "select sum(hash(llm_calls)) from llm_calls"
    found = []
    for path in (nights, tmp_path / "again.duckdb"):
        with duckdb.connect(str(path), read_only=True) as connection:
            found.append([connection.execute(sql).fetchall() for sql in sums])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "metric", ["factual_f1", "faithfulness", "context_recall", "hallucination", "context_precision"]
)
def test_scores_are_what_the_verdicts_beside_them_say(nights: Path, metric: str) -> None:
    file = load_metrics()[metric]
    run = find_run(Warehouse(str(nights)), "latest")
    with duckdb.connect(str(nights), read_only=True) as connection:
        own = connection.execute(file.sql, {"run_id": run.run_id, **file.parameters}).fetchall()
        there = connection.execute(
            "select sample_id, value from scores where run_id = ? and metric = ?", [run.run_id, metric]
        ).fetchall()
    counted = {row[1]: row[2] for row in own}
    assert len(there) == SIZE.samples
    for sample_id, value in there:
        assert value == pytest.approx(counted[sample_id])


@pytest.mark.slow
def test_every_command_is_timed(tmp_path: Path) -> None:
    program = ROOT / "tests" / "benchmarks" / "history.py"
    arguments = ("--nights", "3", "--samples", "4", "--metrics", "3", "--only", "latest", "--folder", str(tmp_path))
    done = subprocess.run(
        [sys.executable, str(program), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    timed = [line.split() for line in done.stdout.splitlines() if "latest" in line]
    assert len(timed) == 6
    assert all(float(line[0]) > 0 and float(line[4]) > 1 for line in timed)
    assert (tmp_path / "3x4x3.duckdb").exists()


def test_queries_can_name_the_two_newest_runs(nights: Path) -> None:
    sql = "select getvariable('latest') as latest, getvariable('previous') as previous"
    (found,) = run_query(parse_location(str(nights)), sql).to_dicts()
    store = Warehouse(str(nights))
    assert found == {name: find_run(store, name).run_id for name in ("latest", "previous")}
    one = "select count(*) as n from statement_verdicts where run_id = getvariable('latest')"
    assert run_query(parse_location(str(nights)), one).item() == SIZE.samples * 7


@pytest.mark.parametrize("left", ["", "create table runs (run_id varchar)"])
def test_a_file_without_such_runs_is_queried_all_the_same(tmp_path: Path, left: str) -> None:
    path = tmp_path / "other.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"create table numbers as select 7 as n; {left}")
    sql = "select n, getvariable('latest') as latest from numbers"
    assert run_query(parse_location(str(path)), sql).to_dicts() == [{"n": 7, "latest": None}]
