"""Threads that read a warehouse through one open file, beside writers: turns, what is held, what is let go."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import polars as pl
import pytest
from filelock import FileLock
from warehouse_processes import count_rows, held_file, make_batch, make_warehouse, run_script

from evalhouse.warehouse.engine import shared
from evalhouse.warehouse.engine.connection import open_reader, reading_apart, serving_reads
from evalhouse.warehouse.engine.shared import one_reading
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseMissing
from evalhouse.warehouse.store import Warehouse

# Four seconds of a core or so: what a page must not do.
SLOW = "select count(distinct hash(i)) as n from range(40000000) as t(i)"

WRITES = """
for number in range(int(sys.argv[3])):
    began = time.monotonic()
    Warehouse(PATH).append_now(make_batch(f"{sys.argv[2]}-{number}"), patience_s=20)
    print(time.monotonic() - began, flush=True)
    time.sleep(float(sys.argv[4]))
"""


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows with each opening of a file by this process."""
    made: list[object] = []
    monkeypatch.setattr(duckdb, "connect", lambda *a, _real=duckdb.connect, **k: made.append(a) or _real(*a, **k))
    return made


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    """A warehouse that this process serves."""
    made = make_warehouse(tmp_path)
    made.append(make_batch("first"))
    with serving_reads(made.location):
        yield made


def write(warehouse: Warehouse, key: str) -> float:
    """Seconds that a batch takes from asking for the file."""
    began = time.monotonic()
    warehouse.append_now(make_batch(key), patience_s=10)
    return time.monotonic() - began


def wait_until(is_so: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_open(warehouse: Warehouse) -> bool:
    """Whether DuckDB keeps writers out of the file."""
    try:
        duckdb.connect(str(warehouse.location.path)).close()
    except duckdb.ConnectionException:  # of this process with another configuration
        return True
    return False


def test_many_threads_read_through_one_opening(warehouse: Warehouse, opened: list[object]) -> None:
    wanted = pl.DataFrame({"sample_id": ["first-1", "first-3"]})

    def read(number: int) -> int:
        if number % 2:
            return count_rows(warehouse, "statements")
        sql = "select count(*) as n from statements semi join wanted using (sample_id)"
        return int(warehouse.read(sql, frames={"wanted": wanted})["n"][0])

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(read, range(100))) == {2, 3}
    assert len(opened) == 1


@pytest.fixture
def never_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that waited until nobody has read for a while would give up before."""
    monkeypatch.setattr(shared, "_IDLE_S", 300.0)


@pytest.mark.usefixtures("never_idle")
def test_what_a_writer_wrote_is_read_after_it(warehouse: Warehouse, opened: list[object]) -> None:
    assert count_rows(warehouse, "batches") == 1
    ended = run_script(WRITES, warehouse.location.path, "theirs", "1", "0")
    assert ended.code == 0, ended.errors
    assert count_rows(warehouse, "batches") == 2
    write(warehouse, "mine")  # in the process that serves
    assert count_rows(warehouse, "batches") == 3


def test_a_file_that_nobody_reads_is_closed(warehouse: Warehouse) -> None:
    assert count_rows(warehouse, "batches") == 1
    assert is_open(warehouse)
    time.sleep(shared._IDLE_S + 0.2)
    assert not is_open(warehouse)


@pytest.mark.usefixtures("never_idle")
def test_a_page_reads_one_state_and_then_lets_the_writer_in(warehouse: Warehouse) -> None:
    with one_reading() as end:
        assert count_rows(warehouse, "batches") == 1
        writer = threading.Thread(target=write, args=[warehouse, "theirs"])
        writer.start()
        wait_until(lambda: is_writer_there(warehouse))
        assert count_rows(warehouse, "batches") == 1
        end()
        writer.join(5)
        assert count_rows(warehouse, "batches") == 2
        write(warehouse, "mine")  # what is read after its end is kept for nobody


def is_writer_there(warehouse: Warehouse) -> bool:
    lock = FileLock(warehouse.location.lock_path)
    try:
        lock.acquire(timeout=0)
    except TimeoutError:
        return True
    lock.release()
    return False


def test_a_page_that_stays_keeps_no_writer_out(warehouse: Warehouse) -> None:
    with one_reading():
        assert count_rows(warehouse, "batches") == 1
        assert write(warehouse, "theirs") < shared._PAGE_S + 0.5
        assert count_rows(warehouse, "batches") == 2


def test_who_waits_for_a_writer_goes_before_the_next_one(warehouse: Warehouse) -> None:
    lock = FileLock(warehouse.location.lock_path, thread_local=False)
    lock.acquire()
    counted: list[int] = []
    with ThreadPoolExecutor(5) as pool:
        readings = [pool.submit(lambda: counted.append(count_rows(warehouse, "batches"))) for _ in range(5)]
        time.sleep(0.1)
        assert counted == []
        lock.release()
        wait_until(lambda: len(counted) == 5)
    assert [reading.result() for reading in readings] == [None] * 5


def test_a_writer_that_stays_is_told_of(warehouse: Warehouse) -> None:
    with FileLock(warehouse.location.lock_path):
        began = time.monotonic()
        with pytest.raises(WarehouseBusy, match="is writing"), open_reader(warehouse.location, patience_s=0.3):
            pass
        assert time.monotonic() - began < 1
    assert count_rows(warehouse, "batches") == 1
    with held_file(warehouse.location.path, read_only=True):  # a notebook that reads is in nobody's way
        assert count_rows(warehouse, "batches") == 1


def test_a_long_query_is_stopped_where_a_writer_waits(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_LONGEST_S", 0.3)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(warehouse.read, SLOW)
        wait_until(lambda: is_open(warehouse))
        assert write(warehouse, "theirs") < 1.5
        with pytest.raises(WarehouseBusy, match="took too long"):
            reading.result()
    assert count_rows(warehouse, "batches") == 2


def test_beside_what_is_read_apart_pages_go_on_while_a_writer_waits(warehouse: Warehouse) -> None:
    writer = threading.Thread(target=write, args=[warehouse, "theirs"])
    with reading_apart(warehouse.location):
        writer.start()
        wait_until(lambda: is_writer_there(warehouse))
        assert [count_rows(warehouse, "batches") for _ in range(3)] == [1, 1, 1]
        with pytest.raises(WarehouseBusy), reading_apart(warehouse.location, patience_s=0.1):
            pass
    writer.join()
    assert count_rows(warehouse, "batches") == 2


def test_another_file_of_that_name_is_read_next(warehouse: Warehouse, tmp_path: Path) -> None:
    assert count_rows(warehouse, "batches") == 1
    other = make_warehouse(tmp_path / "other")
    other.location.path.replace(warehouse.location.path)
    assert count_rows(warehouse, "batches") == 0
    warehouse.location.path.unlink()
    with pytest.raises(WarehouseMissing):
        count_rows(warehouse, "batches")


def test_a_failed_query_leaves_nothing_behind(warehouse: Warehouse) -> None:
    wanted = pl.DataFrame({"a": [1]})
    for _ in range(2):
        with pytest.raises(Exception, match="nosuch"):
            warehouse.read("select nosuch from wanted", frames={"wanted": wanted})
        with pytest.raises(Exception, match="wanted"):
            warehouse.read("from wanted")
    assert count_rows(warehouse, "batches") == 1


@pytest.mark.parametrize(
    "sql",
    ["from read_text('/etc/hostname')", "set memory_limit = '20GB'", "attach ':memory:' as other", "load httpfs"],
)
def test_what_is_shared_is_shut_in(warehouse: Warehouse, sql: str) -> None:
    with open_reader(warehouse.location) as connection, pytest.raises(duckdb.Error):
        connection.execute(sql)
    with pytest.raises(WarehouseBusy, match="another process"), open_reader(warehouse.location, is_own=True):
        pass


def test_all_is_let_go_at_the_end(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    with serving_reads(warehouse.location):
        assert count_rows(warehouse, "batches") == 0
    with duckdb.connect(str(warehouse.location.path)):
        pass
    assert count_rows(warehouse, "batches") == 0


@pytest.mark.slow
def test_readers_and_writers_all_get_their_turn(warehouse: Warehouse) -> None:
    """Twenty threads without a pause, two processes that write without one, and labels from this process."""
    is_over = threading.Event()
    waits: list[float] = []

    def read() -> None:
        last = 0
        while not is_over.is_set():
            began = time.monotonic()
            with one_reading():
                counts = [count_rows(warehouse, table) for table in ("batches", "batches", "outcomes", "statements")]
            waits.append(time.monotonic() - began)
            assert counts[0] == counts[1] >= last
            assert counts[2] == counts[3] == 3 * counts[0]
            last = counts[0]

    with ThreadPoolExecutor(23) as pool:
        readings = [pool.submit(read) for _ in range(20)]
        path = warehouse.location.path
        writers = [pool.submit(run_script, WRITES, path, name, "20", "0") for name in ("a", "b")]
        for number in range(10):
            warehouse.append_now(make_batch(f"own-{number}"), patience_s=20)
            time.sleep(0.2)
        ended = [writer.result() for writer in writers]
        is_over.set()
        assert [reading.result() for reading in readings] == [None] * 20
    assert [end.code for end in ended] == [0, 0], ended
    writes = [float(line) for end in ended for line in end.output.split()]
    assert max(writes) < 4, writes
    assert max(waits) < 4
    assert count_rows(warehouse, "batches") == 51
