"""Opening and making the file: errors for places of another kind, busy ones, and ones without rights."""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import polars as pl
import pytest
import warehouse_processes
from filelock import FileLock
from warehouse_processes import BIND_RIGHTS, count_rows, held_file, make_batch, make_warehouse, run_script

from evalhouse.warehouse.engine import connection as engine
from evalhouse.warehouse.engine.connection import one_reader, open_reader, open_writer
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError, WarehouseMissing, WarehouseUnwritable
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.sandbox.query import run_query
from evalhouse.warehouse.store import Warehouse


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose rights a test may take away."""
    yield tmp_path
    tmp_path.chmod(0o700)


def expect_refusal(path: Path, *words: str) -> None:
    """Both ways of opening give one line with the path and these words."""
    location = Location(path=path)
    for way in (open_reader, open_writer):
        with pytest.raises(WarehouseError) as raised, way(location, patience_s=1):
            pass
        text = str(raised.value)
        assert "\n" not in text
        assert "http" not in text
        assert not isinstance(raised.value, WarehouseBusy)
        assert [word for word in (str(path), *words) if word not in text] == []


def test_a_missing_warehouse_says_how_to_get_one(tmp_path: Path) -> None:
    for path in (tmp_path / "w.duckdb", tmp_path / "no" / "folder" / "w.duckdb"):
        with pytest.raises(WarehouseMissing, match=r"evalhouse run.*--warehouse"):
            Warehouse(str(path)).read("select 1")
        assert list(tmp_path.iterdir()) == []


def test_a_writer_makes_missing_folders(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path / "a" / "b" / "w.duckdb"))
    warehouse.migrate()
    assert count_rows(warehouse, "runs") == 0


def test_a_folder_is_refused_as_a_warehouse(tmp_path: Path) -> None:
    expect_refusal(tmp_path, "is a folder", "evalhouse.duckdb")


@pytest.mark.parametrize("content", [b"", b"hello", b"hello " * 5000])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "block-of-locks.txt"  # the name holds words that distinguish DuckDB's errors
    path.write_bytes(content)
    expect_refusal(path, "not a warehouse that DuckDB", "--warehouse")
    assert path.read_bytes() == content


def test_an_sqlite_file_is_refused_without_a_look_at_the_network(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s.db") as con:
        con.execute("create table a (b)")
    con.close()
    expect_refusal(tmp_path / "s.db", "not a warehouse that DuckDB")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = make_warehouse(tmp_path).location.path
    content = bytearray(path.read_bytes())
    for place in range(4096, 16384, 64):
        content[place] ^= 255
    path.write_bytes(content)
    expect_refusal(path, "not a warehouse that DuckDB", "orrupt")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(WarehouseUnwritable, match=r"cannot make the folder .*file"):
        Warehouse(str(tmp_path / "file" / "w.duckdb")).migrate()


def test_folder_without_rights_is_reported(folder: Path) -> None:
    folder.chmod(0o555)
    ended = run_script(
        BIND_RIGHTS + "try: Warehouse(PATH).migrate()\nexcept Exception as error: print(type(error).__name__, error)",
        folder / "w.duckdb",
    )
    assert ended.output.startswith("WarehouseUnwritable cannot write "), ended
    assert "Permission denied" in ended.output


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (
            "view runs as select (select content from READ_text('secret.csv')) as run_id",
            "its view runs calls read_text",
        ),
        # DuckDB 1.5 ends the process of a reader that logs into a file, and that of a query logged into any file.
        ("view mine as from enable_logging('QueryLog')", "its view mine calls enable_logging"),
        ("macro mine(a) as table from glob(a)", "its table macro mine calls glob"),
        ("macro current_setting(a) as false", "its macro current_setting has the name of a function of DuckDB"),
    ],
)
def test_a_warehouse_whose_views_may_reach_other_files_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret.csv").write_text("a")
    warehouse = make_warehouse(tmp_path)
    with duckdb.connect(str(warehouse.location.path)) as connection:
        connection.execute("alter table runs rename to other_runs")
        connection.execute(f"create {made}")
    expect_refusal(warehouse.location.path, "is not opened", words, "drop that")
    with one_reader(), pytest.raises(WarehouseError, match=words):
        warehouse.read("select 1")
    with pytest.raises(WarehouseError, match=words):
        run_query(warehouse.location, "select 1")


def test_views_and_macros_over_the_tables_of_the_warehouse_are_welcome(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    with duckdb.connect(str(warehouse.location.path)) as connection:
        connection.execute("create macro share(a, b) as round(100 * a / b)")
        connection.execute("create view mine as select share(count(*), 3) as n, 'read_text(a)' as glob from statements")
    warehouse.append(make_batch("k"))
    assert warehouse.read("select n from mine, range(1)").item() == 100
    assert run_query(warehouse.location, "select n from mine").item() == 100


def test_a_file_is_checked_again_when_another_has_taken_its_place(tmp_path: Path) -> None:
    warehouse, other = make_warehouse(tmp_path), make_warehouse(tmp_path / "other")
    assert count_rows(warehouse, "statements") == 0
    with duckdb.connect(str(other.location.path)) as connection:
        connection.execute("create view mine as from glob('*')")
    shutil.copyfile(other.location.path, warehouse.location.path)
    with pytest.raises(WarehouseError, match="its view mine calls glob"):
        warehouse.read("select 1")


def test_a_reader_reads_no_other_file(tmp_path: Path) -> None:
    """A view may name a file as it names a table."""
    warehouse = make_warehouse(tmp_path)
    secret = tmp_path / "secret.csv"
    secret.write_text("run_id\nof the user")
    with duckdb.connect(str(warehouse.location.path)) as connection:
        connection.execute("alter table runs rename to other_runs")
        connection.execute(
            f"create view runs as select other_runs.* replace (run_id || (select run_id from '{secret}') as run_id) "
            "from other_runs"
        )
    refused = pytest.raises(WarehouseError, match=r"secret\.csv.*disabled by configuration")
    with refused:
        warehouse.read("from runs")
    with one_reader(), refused:
        warehouse.read("from runs")
    with pytest.raises(duckdb.PermissionException):
        run_query(warehouse.location, "select getvariable('latest')")
    assert warehouse.read("select count(*) from wanted", frames={"wanted": pl.DataFrame({"a": [1, 2]})}).item() == 2
    warehouse.append(make_batch("later"))
    assert count_rows(warehouse, "statements") > 0, "writers are as before"


def test_who_may_only_read_reads_even_what_a_killed_writer_left_in_the_log(folder: Path) -> None:
    warehouse = make_warehouse(folder)
    killed = run_script(
        "import duckdb\ncon = duckdb.connect(PATH)\ncon.execute(\"insert into batches values ('k', 'r', now())\")\n"
        "kill_self()",
        warehouse.location.path,
    )
    assert killed.code == -9
    assert (folder / "w.duckdb.wal").stat().st_size > 0
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    script = """
print(Warehouse(PATH).migrate(), Warehouse(PATH).read_rows("select batch_key from batches"))
try: Warehouse(PATH).append(make_batch("b"))
except Exception as error: print(type(error).__name__, error)
"""
    lines = run_script(BIND_RIGHTS + script, warehouse.location.path).output.splitlines()
    assert lines[0] == "[] [{'batch_key': 'k'}]"
    assert lines[1].startswith("WarehouseUnwritable")


def test_unreadable_file_is_not_waited_for(folder: Path) -> None:
    path = make_warehouse(folder).location.path
    path.chmod(0o000)
    ended = run_script(
        BIND_RIGHTS
        + "begin = time.monotonic()\ntry: Warehouse(PATH).read('select 1')\n"
        + "except Exception as error: print(type(error).__name__, time.monotonic() - begin < 3, error)",
        path,
    )
    assert ended.output.startswith("WarehouseUnwritable True"), ended


def test_making_the_file_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    killed = run_script("from pathlib import Path\nPath.rename = kill_self\nWarehouse(PATH).migrate()", path)
    assert killed.code == -9
    assert not path.exists()
    (tmp_path / "w.duckdb.new").write_bytes(b"half")
    Warehouse(str(path)).migrate()
    assert count_rows(Warehouse(str(path)), "runs") == 0
    assert not (tmp_path / "w.duckdb.new").exists()


def test_a_new_file_opens_in_both_supported_releases(tmp_path: Path) -> None:
    path = tmp_path / "w.duckdb"
    Warehouse(str(path)).migrate()
    with duckdb.connect(str(path), read_only=True) as con:
        found = con.execute("select tags['storage_version'] from duckdb_databases() where not internal").fetchone()
    assert found is not None
    assert str(found[0]).startswith("v1.5")


@pytest.mark.parametrize("read_only", [True, False])
def test_a_holder_is_named_by_its_process(tmp_path: Path, read_only: bool) -> None:
    warehouse = make_warehouse(tmp_path)
    with held_file(warehouse.location.path, read_only=read_only) as pid:
        with pytest.raises(WarehouseBusy, match=rf"kept open by .*python.* \(PID {pid}\); close it there"):
            warehouse.append_now(make_batch("b"), patience_s=0.2)
        if not read_only:
            with pytest.raises(WarehouseBusy), open_reader(warehouse.location, patience_s=0.2):
                pass
        else:
            assert count_rows(warehouse, "batches") == 0
    warehouse.append_now(make_batch("b"), patience_s=5)
    assert count_rows(warehouse, "batches") == 1


def test_a_connection_of_the_same_process_counts_as_a_holder(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    with duckdb.connect(str(warehouse.location.path)), pytest.raises(WarehouseBusy, match="this very process"):
        warehouse.append_now(make_batch("b"), patience_s=0.2)
    with open_reader(warehouse.location), pytest.raises(WarehouseBusy, match="this process is still busy"):
        warehouse.append_now(make_batch("b"), patience_s=0.2)


@pytest.mark.slow
def test_threads_that_read_and_write_take_turns(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    # One of them comes by another name of the same file.
    (tmp_path / "link.duckdb").symlink_to(warehouse.location.path)
    linked = Location(path=tmp_path / "link.duckdb")
    failures: list[BaseException] = []

    def guard(number: int) -> None:
        try:
            for turn in range(4):
                if number % 2:
                    warehouse.append_now(make_batch(f"{number}-{turn}"), patience_s=20)
                else:
                    with open_reader(linked, patience_s=20) as con:
                        con.execute("select count(*) from statements").fetchall()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guard, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert count_rows(warehouse, "batches") == 12
    assert os.listdir(tmp_path).count("w.duckdb.spool") == 0


def test_reads_after_each_other_share_one_opening_until_a_writer_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse, opened = make_warehouse(tmp_path), []
    monkeypatch.setattr(
        duckdb, "connect", lambda *a, _connect=duckdb.connect, **k: opened.append(k) or _connect(*a, **k)
    )
    with one_reader():
        for _ in range(3):
            assert count_rows(warehouse, "batches") == 0
        assert len(opened) == 1
        warehouse.append(make_batch("one"))
        assert [count_rows(warehouse, "batches") for _ in range(2)] == [1, 1]
        assert len(opened) == 3
        with open_reader(warehouse.location, is_own=True) as connection:
            connection.execute("set threads = 1")
    with duckdb.connect(str(warehouse.location.path)):  # nothing is held any more
        pass


def test_reader_lets_a_waiting_writer_go_first_but_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_LET_FIRST_S", 0.5)
    warehouse = make_warehouse(tmp_path)
    with FileLock(warehouse.location.lock_path):
        began = time.monotonic()
        assert count_rows(warehouse, "batches") == 0
        assert time.monotonic() - began >= 0.5


WRITES = """
for number in range(int(sys.argv[3])):
    began = time.monotonic()
    Warehouse(PATH).append_now(make_batch(f"{sys.argv[2]}-{number}"), patience_s=20)
    print(time.monotonic() - began, flush=True)
"""


@pytest.mark.slow
def test_readers_and_writers_all_get_their_turn(tmp_path: Path) -> None:
    """Threads that read without a pause, two processes that write without one, and labels from this process."""
    warehouse = make_warehouse(tmp_path)
    warehouse.append(make_batch("first"))
    is_over = threading.Event()
    waits: list[float] = []

    def read() -> None:
        last = 0
        while not is_over.is_set():
            began = time.monotonic()
            with one_reader():
                counts = [count_rows(warehouse, table) for table in ("batches", "batches", "outcomes", "statements")]
            waits.append(time.monotonic() - began)
            assert counts[0] == counts[1] >= last
            assert counts[2] == counts[3] == 3 * counts[0]
            last = counts[0]

    with ThreadPoolExecutor(8) as pool:
        readings = [pool.submit(read) for _ in range(5)]
        path = warehouse.location.path
        writers = [pool.submit(run_script, WRITES, path, name, "20") for name in ("a", "b")]
        for number in range(10):
            warehouse.append_now(make_batch(f"own-{number}"), patience_s=20)
            time.sleep(0.2)
        ended = [writer.result() for writer in writers]
        is_over.set()
        assert [reading.result() for reading in readings] == [None] * 5
    assert [end.code for end in ended] == [0, 0], ended
    writes = [float(line) for end in ended for line in end.output.split()]
    assert max(writes) < 15, writes
    assert max(waits) < 15
    assert count_rows(warehouse, "batches") == 51


def test_rows_go_in_and_come_out_without_pyarrow(tmp_path: Path) -> None:
    script = """
import sys
from warehouse_processes import make_batch
from evalhouse.warehouse.store import Warehouse
warehouse = Warehouse(sys.argv[1])
warehouse.migrate()
warehouse.append(make_batch("k"))
print(warehouse.fetch_rows("calls/request_keys", run_ids=None), "pyarrow" in sys.modules)
"""
    path = tmp_path / "it's" / "w.duckdb"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": str(Path(warehouse_processes.__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.strip() == "[] False", done.stderr


def test_a_failure_in_the_middle_of_a_result_is_one_of_the_warehouse(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    with pytest.raises(WarehouseError, match=r"w\.duckdb: .*too far"):
        warehouse.read("select if(i = 300000, error('too far'), i) as i from range(400000) as numbers(i)")


def test_no_room_for_rows_on_their_way_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse, temporary = make_warehouse(tmp_path), tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    warehouse.append(make_batch("whole"))
    assert list(temporary.iterdir()) == []
    temporary.rmdir()
    temporary.touch()
    with pytest.raises(WarehouseUnwritable, match=r"no room in .*temporary .*another folder in TMPDIR"):
        warehouse.append(make_batch("half"))
    assert count_rows(warehouse, "batches") == 1
