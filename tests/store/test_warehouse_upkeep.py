"""`evalhouse warehouse`: checking finds what must never be, compacting and moving lose nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import House
from cli_process import Finished
from kept_open import let_go
from warehouse_processes import count_rows, make_warehouse, run_script
from warehouse_runs import make_row, make_run

from evalhouse.warehouse.engine.connection import open_writer
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.sandbox.query import read_catalog
from evalhouse.warehouse.store import Batch, Warehouse, build_frame
from evalhouse.warehouse.upkeep import copies
from evalhouse.warehouse.upkeep.check_and_compact import check_warehouse, compact_warehouse
from evalhouse.warehouse.upkeep.copies import move_warehouse

Ask = Callable[..., Finished]

_FAULTS = {
    "verdicts, scores or calls of a run that is not on record": (
        "delete from runs where run_id = (select max(run_id) from runs)"
    ),
    "samples of a run whose texts are missing": "delete from samples where sample_id = 'zh-1'",
    "scores of a sample that the run has not": "delete from run_samples where sample_id = 'tide-1'",
    "scores that are there twice": "insert into scores select * from scores limit 1",
    "stored means that differ from the scores": "update stored_scores set mean = mean / 2",
    "statements that are there twice": "insert into statements select * from statements limit 1",
    "calls that are there twice": "insert into llm_calls select * from llm_calls limit 1",
    "verdicts whose call is not on record": "delete from llm_calls where step = 'rank'",
    "calls whose prompt is not on record": "delete from prompts",
    "batches that were written twice": "insert into batches select * from batches limit 1",
}


@pytest.fixture
def filled(house: House, tmp_path: Path) -> Warehouse:
    """A copy of the house's warehouse."""
    path = tmp_path / "filled.duckdb"
    shutil.copyfile(house.place.folder / "evalhouse.duckdb", path)
    return Warehouse(str(path))


@pytest.fixture
def lake(tmp_path: Path) -> Warehouse:
    return Warehouse(f"ducklake:sqlite:///{tmp_path / 'catalogue.sqlite'}?data={tmp_path / 'files'}")


def _change(warehouse: Warehouse, sql: str) -> None:
    with open_writer(warehouse.location, patience_s=5) as connection:
        connection.execute(sql)


def _list_wrong(warehouse: Warehouse) -> list[str]:
    return [finding.what for finding in check_warehouse(warehouse) if finding.verdict == "wrong"]


_DERIVED = ("stored_scores", "stored_causes", "stored_costs")
"""The rows that each warehouse makes of its others: means without them are missing on every page."""


def _assert_same_rows(one: Path, other: Path, tables: Iterable[str]) -> None:
    """Two plain files have the same rows in these tables."""
    let_go()  # DuckDB attaches no file that this process has open
    with duckdb.connect() as connection:
        connection.execute(f"attach '{one}' as one (read_only); attach '{other}' as other (read_only)")
        for table in tables:
            for left, right in (("one", "other"), ("other", "one")):
                only = f"select count(*) from (from {left}.{table} except all from {right}.{table})"
                assert connection.execute(only).fetchall() == [(0,)], table


def test_each_fault_is_found_and_a_sound_warehouse_has_nothing_wrong(filled: Warehouse) -> None:
    assert _list_wrong(filled) == []
    _change(filled, ";".join(_FAULTS.values()))
    assert set(_FAULTS) <= set(_list_wrong(filled))


def test_check_says_so_and_fails(filled: Warehouse, ask: Ask) -> None:
    path = str(filled.location.path)
    sound = ask("warehouse", "check", "--warehouse", path)
    assert sound.status == 0
    assert "nothing is wrong" in sound.stdout
    _change(filled, _FAULTS["scores that are there twice"])
    broken = ask("warehouse", "check", "--warehouse", path, "--json")
    assert broken.status == 1
    document = broken.document
    assert not document["ok"]
    assert {row["what"] for row in document["findings"] if row["verdict"] == "wrong"} >= {"scores that are there twice"}


@pytest.mark.slow
def test_reply_that_cannot_be_stored_stops_no_command(filled: Warehouse, house: House, ask: Ask) -> None:
    warehouse, url = filled, filled.location.url
    run = ("run", str(house.place.folder / "harbour.jsonl"), "--warehouse", url, "--judge", "lexical", "--json")
    script = """
from warehouse_runs import make_row
from evalhouse.warehouse.mover import Mover
mover = Mover(Warehouse(sys.argv[2]), "llm_calls")
mover.keep(make_row(1))
mover.keep(make_row(2, prompt_tokens=2**64 - 1))
kill_self()
"""
    assert run_script(script, warehouse.location.path, url).code == -9
    again = house.place.call(*run)
    assert again.status == 0
    assert "1 row of llm_calls cannot be stored" in again.stderr
    assert f"set aside in {warehouse.location.refused_path}" in again.stderr
    resumed = house.place.call("resume", again.document["run_id"], "--warehouse", url)
    assert resumed.status in (0, 2)
    assert "cannot be stored" not in resumed.stderr
    assert warehouse.read("select count(*) from llm_calls where call_id = 'c1'").item() == 1
    findings = ask("warehouse", "check", "--warehouse", url, "--json").document["findings"]
    assert {row["what"]: row["verdict"] for row in findings}["rows that cannot be stored"] == "note"


def test_a_file_is_compacted_without_losing_a_row_or_a_comment(filled: Warehouse, ask: Ask) -> None:
    let_go()  # a file that is open has rows in its log
    for _ in range(6):  # holes: rows that come and go
        _change(filled, "insert into llm_calls select * replace (call_id || '-x' as call_id) from llm_calls")
    _change(filled, "delete from llm_calls where call_id like '%-x'")
    before = Path(shutil.copy(filled.location.path, filled.location.path.with_name("before.duckdb")))
    catalog, size = read_catalog(filled.location), filled.location.path.stat().st_size
    result = ask("warehouse", "compact", "--warehouse", str(filled.location.path), "--json")
    assert result.status == 0
    assert result.document["bytes_after"] == filled.location.path.stat().st_size < size
    tables = [relation.name for relation in catalog.relations if relation.kind == "table"]
    assert tables
    _assert_same_rows(before, filled.location.path, tables)
    assert read_catalog(filled.location) == catalog
    assert filled.migrate() == []
    assert _list_wrong(filled) == []


@pytest.mark.slow  # a move from file to file is tried by default
def test_moving_into_a_lake_and_back_keeps_every_row(filled: Warehouse, lake: Warehouse, tmp_path: Path) -> None:
    seen: list[str] = []
    counts = move_warehouse(filled, lake, lambda table, _: seen.append(table))
    assert seen[-1] == "runs"
    compacted = compact_warehouse(lake)
    assert compacted.after > 0
    assert "snapshots forgotten" in compacted.detail
    assert _list_wrong(lake) == []
    back = make_warehouse(tmp_path / "back")
    assert move_warehouse(lake, back, lambda *_: None) == counts
    assert sum(counts.values()) > 100
    _assert_same_rows(filled.location.path, back.location.path, [*counts, *_DERIVED])


def test_interrupted_move_resumes(filled: Warehouse, tmp_path: Path) -> None:
    def stop_after_scores(table: str, _: int) -> None:
        if table == "scores":
            raise KeyboardInterrupt

    other = make_warehouse(tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        move_warehouse(filled, other, stop_after_scores)
    assert other.read("select count(*) from runs").item() == 0
    half = other.read("select count(*) from llm_calls").item()
    counts = move_warehouse(filled, other, lambda *_: None)
    assert other.read("select count(*) from llm_calls").item() == half == counts["llm_calls"]
    assert other.read("select count(*) from runs").item() == counts["runs"] == 2
    _assert_same_rows(filled.location.path, other.location.path, [*counts, *_DERIVED])


@pytest.mark.slow
def test_a_users_own_tables_are_in_a_backup_and_named_where_a_move_leaves_them(
    filled: Warehouse, tmp_path: Path, ask: Ask
) -> None:
    """A table in another schema ended each backup, and any table each move, with a false reason."""
    for sql in (
        "create schema mart", "create table mart.runs as select 1 as a",
        'create table "my ""own"" table" as select 2 as b', "create view mine as select run_id from runs",
    ):  # fmt: skip
        _change(filled, sql)
    here = ("--warehouse", str(filled.location.path))
    backup = Warehouse(str(tmp_path / "backup.duckdb"))
    for command in (("compact",), ("backup", str(backup.location.path))):
        let_go()
        done = ask("warehouse", *command, *here)
        assert done.status == 0, done.stderr
    assert backup.read('select a, b from mart.runs, "my ""own"" table"').rows() == [(1, 2)]
    assert [finding.what for finding in check_warehouse(filled) if finding.verdict == "wrong"] == []
    target = tmp_path / "target.duckdb"
    let_go()
    moved = ask("warehouse", "move", str(filled.location.path), str(target), "--json")
    assert moved.status == 0, moved.stderr
    assert moved.document["left"] == ['table main.my "own" table', "table mart.runs", "view main.mine"]
    assert "your own: table main.my" in moved.stderr
    assert count_rows(Warehouse(str(target)), "runs") == count_rows(filled, "runs")


def test_a_move_refuses_a_place_that_holds_something_else(filled: Warehouse, tmp_path: Path, ask: Ask) -> None:
    other = tmp_path / "other.duckdb"
    shutil.copyfile(filled.location.path, other)
    _change(Warehouse(str(other)), "update runs set run_id = 'stranger' where run_id = (select min(run_id) from runs)")
    refused = ask("warehouse", "move", str(filled.location.path), str(other))
    assert refused.status == 2
    assert "stranger" in refused.stderr
    with pytest.raises(WarehouseError, match="both the source and the target"):
        move_warehouse(filled, filled, lambda *_: None)


def test_a_move_to_a_warehouse_whose_rows_differ_is_refused(filled: Warehouse, tmp_path: Path) -> None:
    other = tmp_path / "other.duckdb"
    shutil.copyfile(filled.location.path, other)
    _change(Warehouse(str(other)), "update scores set value = 0.123 where rowid = (select min(rowid) from scores)")
    with pytest.raises(WarehouseError, match=r"scores of run .* has other rows"):
        move_warehouse(filled, Warehouse(str(other)), lambda *_: None)


def test_the_table_of_every_step_is_looked_at(filled: Warehouse) -> None:
    with filled.writing() as connection:
        connection.execute("insert into votes values ('gone', 's', 'rank', 'C1', 1, 'useful', true, 'so', 'gone')")
    assert _list_wrong(filled) == [
        "verdicts, scores or calls of a run that is not on record", "verdicts whose call is not on record",
    ]  # fmt: skip


@pytest.mark.parametrize("limit", ["engine.connection", "upkeep.copies"], ids=["long", "short"])
@pytest.mark.parametrize("table", ["samples", pytest.param("llm_calls", marks=pytest.mark.slow)])
def test_a_move_that_was_cut_within_the_rows_of_a_table_resumes(
    filled: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, limit: str
) -> None:
    """Rows are committed some at a time, so that a part of them may be there; all other tables are empty."""
    for name, value in (("_BYTES_AT_ONCE", 500), ("_FEWEST_ROWS", 2)):
        monkeypatch.setattr(copies, name, value)
    monkeypatch.setattr(f"evalhouse.warehouse.{limit}.MAX_COMMIT_BYTES", 1)
    others = [
        row["table_name"] for row in filled.fetch_rows("upkeep/tables") if row["table_name"] not in {table, "runs"}
    ]
    _change(filled, ";".join(f"delete from {name}" for name in others))
    other = make_warehouse(tmp_path / "other")
    cut = copies.cut_by_bytes

    def stop(*arguments: Any, **more: Any) -> Iterator[list[Any]]:  # noqa: ANN401
        yield from islice(cut(*arguments, **more), 2)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(copies, "cut_by_bytes", stop)
        with pytest.raises(KeyboardInterrupt):
            move_warehouse(filled, other, lambda *_: None)
    assert 0 < count_rows(other, table) < count_rows(filled, table)
    counts = move_warehouse(filled, other, lambda *_: None)
    _assert_same_rows(filled.location.path, other.location.path, counts)


_SIZES = {"short": [(40, 3)], "long first": [(3, 900), (40, 3)], "one": [(1, 5_000)]}


@pytest.mark.parametrize("sizes", _SIZES.values(), ids=_SIZES)
def test_move_takes_rows_of_any_length_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(copies, "_BYTES_AT_ONCE", 1_000)
    monkeypatch.setattr(copies, "_FEWEST_ROWS", 2)
    source, target = make_warehouse(tmp_path), make_warehouse(tmp_path / "other")
    lengths = [length for n_rows, length in sizes for _ in range(n_rows)]
    rows = [make_row(number, reply="x" * length, run_id=f"r{number % 3}") for number, length in enumerate(lengths)]
    for run_id in ("r0", "r1", "r2"):
        insert_run(source, make_run(run_id))
        own = [row for row in rows if row["run_id"] == run_id]
        source.append_now(Batch(key=run_id, run_id=run_id, tables={"llm_calls": build_frame("llm_calls", own)}))
    inserted = []
    read = copies.cut_by_bytes

    def note(pieces: Iterable[Any], measure: Callable[[Any], int], *, max_bytes: int) -> Iterator[list[Any]]:
        for batches in read(pieces, measure, max_bytes=max_bytes):
            inserted.append(sum(batch.nbytes for batch in batches if batch.num_rows > 1))
            yield batches

    monkeypatch.setattr(copies, "cut_by_bytes", note)
    counts = move_warehouse(source, target, lambda *_: None)
    assert counts["llm_calls"] == len(rows)
    assert max(inserted) <= 2_000
    query = "select call_id, reply from llm_calls order by started_at"
    assert target.read(query).equals(source.read(query))


_MOVE = """
import os, resource, sys
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.rows.samples import Staging, take_in_samples
from evalhouse.warehouse.upkeep.copies import move_warehouse
from warehouse_runs import make_run
source, lake = Warehouse(PATH), Warehouse(sys.argv[2])
insert_run(source, make_run("r"))
staging = Staging()
size = int(sys.argv[4]) // 2
for first in range(0, int(sys.argv[3]), 100):
    row = {"question": "?", "answer": os.urandom(size).hex()}
    numbers = range(first, min(first + 100, int(sys.argv[3])))
    staging.add([{"ordinal": n + 1, "sample_id": f"s{n}", "input_hash": str(n), **row} for n in numbers])
take_in_samples(source, "r", staging)
staging.discard()
move_warehouse(source, lake, lambda *_: None)
print(lake.read("select count(*) as n from samples").item(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("n", "size"), [(2_500, 28_000), (150, 525_000)])
def test_long_texts_move_into_a_lake_with_bounded_memory(tmp_path: Path, n: int, size: int) -> None:
    lake = f"ducklake:sqlite:{tmp_path / 'catalogue.sqlite'}?data={tmp_path / 'files'}"
    ended = run_script(_MOVE, make_warehouse(tmp_path).location.path, lake, str(n), str(size))
    n_moved, n_mb = map(int, ended.output.split())
    assert n_moved == n
    assert n_mb < 1_000
