"""`evalhouse warehouse backup`: one moment of a warehouse as a separate file, while others write; and what takes how
much room."""

from __future__ import annotations

import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from cli_house import House, copy_house
from cli_process import Finished
from kept_open import let_go
from warehouse_processes import ROOT, count_rows, make_batch, make_warehouse, run_script
from warehouse_runs import make_row, make_run

from evalhouse.warehouse.engine.connection import open_writer
from evalhouse.warehouse.engine.locks import hold_run
from evalhouse.warehouse.errors import WarehouseError, WarehouseUnwritable
from evalhouse.warehouse.mover import Journal, take_in_orphans
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.upkeep import check_and_compact as compact_module
from evalhouse.warehouse.upkeep import copies as backup_module
from evalhouse.warehouse.upkeep.check_and_compact import check_warehouse, compact_warehouse, measure_size
from evalhouse.warehouse.upkeep.copies import back_up, move_warehouse

Ask = Callable[..., Finished]

_N_BATCHES = 15
_WRITER = f"""
import sys
from evalhouse.warehouse.store import Warehouse
from warehouse_processes import make_batch
warehouse = Warehouse(sys.argv[1])
for number in range({_N_BATCHES}):
    warehouse.append(make_batch(f"b{{number:02}}", n=20))
    print(number, flush=True)
warehouse.flush()
"""


@pytest.fixture
def house(tmp_path: Path, prefect_home: Path) -> House:
    """One of a test's own: what is backed up is written to and put in place again."""
    return copy_house(tmp_path / "house", prefect_home)


@pytest.mark.slow
def test_a_backup_beside_a_writer_is_one_moment_and_the_writer_loses_nothing(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path / "live")
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(warehouse.location.path)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'helpers'}:{':'.join(sys.path)}", "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        while writer.stdout.readline().strip() != "3":
            pass
        done = back_up(warehouse, str(tmp_path / "copies" / "one.duckdb"))
        writer.communicate(timeout=60)
    copy = Warehouse(str(done.path))
    keys = copy.read("select batch_key from batches order by batch_key")["batch_key"].to_list()
    assert keys == [f"b{number:02}" for number in range(len(keys))]
    assert len(keys) >= 4
    assert count_rows(copy, "statements") == 20 * len(keys) == done.tables["statements"]
    assert count_rows(warehouse, "batches") == _N_BATCHES
    assert count_rows(warehouse, "statements") == 20 * _N_BATCHES
    assert [path.name for path in done.path.parent.iterdir()] == ["one.duckdb"]


def _judge(folder: Path, n: int) -> tuple[Warehouse, Journal]:
    """A warehouse with verdicts of so many samples, and the calls behind them in the journal of a running process."""
    warehouse = make_warehouse(folder)
    journal = Journal(warehouse.location.journal_path)
    for number in range(n):
        journal.append(make_row(number, sample_id=f"b-{number + 1}"))
    batch = make_batch("b", n=n)
    calls = pl.Series("call_id", [f"c{number}" for number in range(n)])
    batch.tables["classifications"].replace_column(batch.tables["classifications"].get_column_index("call_id"), calls)
    insert_run(warehouse, make_run("r", status="running"))
    warehouse.append(batch)
    return warehouse, journal


def _list_wrong(warehouse: Warehouse) -> list[str]:
    return [finding.what for finding in check_warehouse(warehouse) if finding.verdict == "wrong"]


def test_a_backup_during_a_run_has_the_replies_that_its_verdicts_rest_on(tmp_path: Path) -> None:
    """They may be in the journal of the run's process for a while, and the disk may be lost with it."""
    warehouse, journal = _judge(tmp_path / "live", 5)
    done = back_up(warehouse, str(tmp_path / "copy.duckdb"))
    copy = Warehouse(str(done.path))
    assert count_rows(copy, "llm_calls") == done.tables["llm_calls"] == 5
    assert "verdicts whose call is not on record" not in [*_list_wrong(copy), *_list_wrong(warehouse)]
    assert count_rows(warehouse, "llm_calls") == 0
    # The copy takes the place of the file, and the journal of the process that was killed is still beside it.
    journal.append(make_row(5))
    journal.close()
    shutil.copyfile(done.path, warehouse.location.path)
    assert back_up(warehouse, str(tmp_path / "again.duckdb")).tables["llm_calls"] == 6
    assert take_in_orphans(warehouse) == 6
    assert warehouse.read("select call_id from llm_calls order by all")["call_id"].to_list() == [
        f"c{n}" for n in range(6)
    ]


def test_a_move_takes_the_replies_of_a_killed_run_along_and_waits_for_a_running_one(tmp_path: Path) -> None:
    warehouse, journal = _judge(tmp_path / "live", 5)
    target = Warehouse(str(tmp_path / "moved.duckdb"))
    with pytest.raises(WarehouseError, match=r"a process still writes to .* \(5 received rows\)"):
        move_warehouse(warehouse, target, lambda *_: None)
    with hold_run(warehouse.location, "r"), pytest.raises(WarehouseError, match=r"still writes to .* \(r\); stop it"):
        move_warehouse(warehouse, target, lambda *_: None)
    journal.close()
    assert move_warehouse(warehouse, target, lambda *_: None)["llm_calls"] == 5
    assert count_rows(target, "llm_calls") == 5
    assert "verdicts whose call is not on record" not in _list_wrong(target)


def test_a_backup_overwrites_nothing_and_names_itself_in_a_folder(house: House, tmp_path: Path, ask: Ask) -> None:
    place = tmp_path / "taken.duckdb"
    place.write_bytes(b"mine")
    refused = ask("warehouse", "backup", str(place), "--warehouse", str(house.path))
    assert refused.status == 2
    assert "overwrites nothing" in refused.stderr
    assert place.read_bytes() == b"mine"
    folder = tmp_path / "nights"
    folder.mkdir()
    made = ask("warehouse", "backup", str(folder), "--warehouse", str(house.path), "--json")
    assert made.status == 0
    (copy,) = folder.iterdir()
    assert copy.name.startswith("evalhouse-20")
    assert made.document == {
        "warehouse": Warehouse(str(house.path)).location.url, "backup": str(copy), "bytes": copy.stat().st_size,
        "rows": made.document["rows"],
    }  # fmt: skip


def test_what_was_backed_up_is_restored_by_putting_it_in_place(house: House, tmp_path: Path, ask: Ask) -> None:
    url = ("--warehouse", str(house.path))
    before = ask("show", "latest", "--json", *url).document
    copy = tmp_path / "copy.duckdb"
    assert ask("warehouse", "backup", str(copy), *url).status == 0
    house.path.write_bytes(b"the disk has failed")
    assert ask("show", "latest", *url).status == 2
    house.path.unlink()
    copy.rename(house.path)
    assert ask("show", "latest", "--json", *url).document == before
    assert ask("rescore", "latest", *url).status == 0
    assert ask("warehouse", "check", *url).status == 0


@pytest.mark.slow  # ends a run in a separate process
def test_running_run_is_resumed_from_a_backup(house: House, tmp_path: Path, ask: Ask) -> None:
    url = ("--warehouse", str(house.path))
    scores = f"select sample_id, metric, value from scores where run_id = '{house.run_id}' order by all"
    before = Warehouse(str(house.path)).read(scores)
    with open_writer(Warehouse(str(house.path)).location, patience_s=5) as connection:
        connection.execute(f"update runs set status = 'running', finished_at = null where run_id = '{house.run_id}'")
        for table in ("outcomes", "scores", "classifications"):
            connection.execute(f"delete from {table} where run_id = '{house.run_id}' and sample_id = 'zh-1'")
    copy = tmp_path / "copy.duckdb"
    assert ask("warehouse", "backup", str(copy), *url).status == 0
    resumed = house.place.call("resume", house.run_id, "--warehouse", str(copy), "--json")
    assert resumed.status == 0, resumed.stderr
    assert Warehouse(str(copy)).read(scores).equals(before)


def test_a_backup_whose_rows_differ_is_refused_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = make_warehouse(tmp_path)
    warehouse.append(make_batch("b"))
    copy_database = backup_module.copy_database

    def lose_a_row(connection: object, path: Path, name: str) -> None:
        copy_database(connection, path, name)  # type: ignore[arg-type]
        connection.execute(f"delete from {name}.statements where sample_id = 'b-1'")  # type: ignore[attr-defined]

    monkeypatch.setattr(backup_module, "copy_database", lose_a_row)
    with pytest.raises(WarehouseError, match=r"the copy of statements differs from its source \(2 rows of 3\)"):
        back_up(warehouse, str(tmp_path / "copy.duckdb"))
    assert not list(tmp_path.glob("copy*"))


@contextmanager
def _filling_disk(monkeypatch: pytest.MonkeyPatch, module: ModuleType, function: str) -> Iterator[None]:
    """Let no file grow beyond 2 MB once this function has returned, as on a disk that is full then."""
    whole, (soft, hard) = getattr(module, function), resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(*args: object) -> object:
        result = whole(*args)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, hard))
        return result

    monkeypatch.setattr(module, function, fill)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        monkeypatch.undo()


def test_a_backup_without_room_for_the_replies_of_the_journal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be room for them in the log of the copy, and none in its file, which alone is the backup."""
    warehouse = make_warehouse(tmp_path)
    journal = Journal(warehouse.location.journal_path)
    insert_run(warehouse, make_run("r", status="running"))
    noise = random.Random(0)
    for number in range(12):
        journal.append({**make_row(number), "reply": noise.randbytes(60_000).hex()})
    with (
        _filling_disk(monkeypatch, backup_module, "_copy_tables"),
        pytest.raises(WarehouseUnwritable, match="cannot be written"),
    ):
        back_up(warehouse, str(tmp_path / "copy.duckdb"))
    assert not list(tmp_path.glob("copy*"))
    done = back_up(warehouse, str(tmp_path / "copy.duckdb"))
    assert count_rows(Warehouse(str(done.path)), "llm_calls") == done.tables["llm_calls"] == 12


def test_compaction_leaves_no_log_of_the_old_file_beside_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB opens no file beside the log of another."""
    warehouse = make_warehouse(tmp_path)
    killed = run_script(
        "import duckdb\ncon = duckdb.connect(PATH)\n"
        "keys = \"array_to_string([md5((i * 999 + j)::varchar) for j in range(500)], '')\"\n"
        "con.execute(f\"insert into batches select {keys}, 'r', now() from range(200) as t (i)\")\n"
        "kill_self()",
        warehouse.location.path,
    )
    assert killed.code == -9
    with _filling_disk(monkeypatch, compact_module, "copy_database"):
        compact_warehouse(warehouse)
    assert count_rows(warehouse, "batches") == 200


def test_an_interrupted_backup_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB cannot detach the copy in the middle of a transaction, and that must not hide the signal."""
    warehouse = make_warehouse(tmp_path)
    warehouse.append(make_batch("b"))
    copy_database = backup_module.copy_database

    def interrupt(connection: Any, path: Path, name: str) -> None:  # noqa: ANN401  # of DuckDB
        copy_database(connection, path, name)
        connection.begin()
        connection.execute(f"delete from {name}.statements")
        raise KeyboardInterrupt

    monkeypatch.setattr(backup_module, "copy_database", interrupt)
    with pytest.raises(KeyboardInterrupt):
        back_up(warehouse, str(tmp_path / "copy.duckdb"))
    assert not list(tmp_path.glob("copy*"))
    monkeypatch.undo()
    assert back_up(warehouse, str(tmp_path / "copy.duckdb")).tables["statements"] == 3


@pytest.mark.slow  # the tables of a lake take seconds to make
def test_a_lake_is_backed_up_into_a_file(house: House, tmp_path: Path) -> None:
    source = Warehouse(str(house.path))
    lake = Warehouse(f"ducklake:sqlite:///{tmp_path / 'catalogue.sqlite'}?data={tmp_path / 'files'}")
    counts = move_warehouse(source, lake, lambda *_: None)
    let_go()  # copying the lake's catalogue attaches it
    done = back_up(lake, str(tmp_path / "copy.duckdb"))
    assert {name: n for name, n in done.tables.items() if name in counts} == counts
    scores = "select * from run_scores order by run_id, metric"
    assert Warehouse(str(done.path)).read(scores).equals(lake.read(scores))


def test_size_is_reported_by_group(house: House, ask: Ask) -> None:
    let_go()  # a file that is open has rows in its log
    warehouse = Warehouse(str(house.path))
    before = measure_size(warehouse)
    assert before.n_bytes == house.path.stat().st_size
    assert before.n_samples == count_rows(warehouse, "run_samples")
    assert sum(before.groups.values()) + before.n_free == pytest.approx(before.n_bytes, abs=len(before.groups))
    with open_writer(warehouse.location, patience_s=5) as connection:
        connection.execute(
            "insert into llm_calls by name select 'c' || i as call_id, 'r' as run_id, 'rank' as step, 'j' as judge, "
            "'h' as request_hash, i::ubigint as request_key, 'ok' as status, 1 as attempts, "
            "now()::timestamp as started_at, "
            "array_to_string([md5((i * j)::varchar) for j in range(1, 50)], ' ') as reply from range(5000) as t (i)"
        )
    after = measure_size(warehouse)
    more = (after.n_bytes - after.n_free) - (before.n_bytes - before.n_free)  # what was free is written first
    assert after.groups["calls"] - before.groups["calls"] > 0.8 * more > 1_000_000
    result = ask("warehouse", "check", "--warehouse", str(house.path), "--json").document["size"]
    assert result["bytes_by_group"] == dict(after.groups)
    assert result["bytes_per_1000_samples"] == pytest.approx((after.n_bytes - after.n_free) * 1000 / after.n_samples)
    shown = ask("warehouse", "check", "--warehouse", str(house.path)).stdout
    assert "MB a 1,000 samples" in shown
