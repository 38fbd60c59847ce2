"""The spool: what is written while another program keeps the file, and how it gets in afterwards."""

import json
import threading
import time
from pathlib import Path

import pytest
from warehouse_processes import FULL_DISK, count_by_batch, count_rows, held_file, make_batch, make_warehouse, run_script

from evalhouse.warehouse import store
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.store import Warehouse


def list_keys(warehouse: Warehouse) -> list[str]:
    """Batch keys in the order in which they were written."""
    return warehouse.read("select batch_key from batches order by rowid")["batch_key"].to_list()


def list_waiting(warehouse: Warehouse) -> list[str]:
    paths = store.list_spooled(warehouse.location.spool_path)
    return [json.loads((path / "batch.json").read_text())["key"] for path in paths]


@pytest.mark.parametrize("read_only", [True, False])
def test_a_held_file_makes_batches_wait_in_order(tmp_path: Path, read_only: bool) -> None:
    warehouse = make_warehouse(tmp_path)
    with held_file(warehouse.location.path, read_only=read_only):
        began = time.monotonic()
        assert warehouse.append(make_batch("b"), patience_s=0.4) is False
        assert 0.4 <= time.monotonic() - began < 2
        assert warehouse.append(make_batch("a", replaces=("b-1",), label="FP"), patience_s=0) is False
        assert list_waiting(warehouse) == ["b", "a"]
    assert warehouse.append(make_batch("c")) is True
    assert list_keys(warehouse) == ["b", "a", "c"]
    assert list_waiting(warehouse) == []
    labels = warehouse.read(
        "select sample_id, label from classifications where sample_id like 'b-%' order by all"
    ).rows()
    assert labels == [("b-1", "FP"), ("b-2", "TP"), ("b-3", "TP")]


def test_a_file_that_is_let_go_in_time_is_written_without_the_spool(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    holder = held_file(warehouse.location.path, read_only=True)
    holder.__enter__()
    letting_go = threading.Timer(0.3, holder.__exit__, [None, None, None])
    letting_go.start()
    assert warehouse.append(make_batch("k"), patience_s=20) is True
    letting_go.join()
    assert not warehouse.location.spool_path.exists()


def test_flush_says_how_many_still_wait_and_where(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    with held_file(warehouse.location.path, read_only=True) as pid:
        warehouse.flush(patience_s=0)  # nothing waits, nothing is opened
        warehouse.append(make_batch("a"), patience_s=0)
        with pytest.raises(WarehouseBusy, match=rf"PID {pid}.*; 1 batch waits safely in .*w\.duckdb\.spool.*resume"):
            warehouse.flush(patience_s=0.1)
        warehouse.append(make_batch("b"), patience_s=0)
        with pytest.raises(WarehouseBusy, match="; 2 batches wait safely"):
            warehouse.flush(patience_s=0.1)
    warehouse.flush()
    assert list_keys(warehouse) == ["a", "b"]
    assert list_waiting(warehouse) == []


def test_a_kill_while_spooling_leaves_no_whole_batch(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    script = "from pathlib import Path\nPath.rename = kill_self\nWarehouse(PATH).append(make_batch('k'), patience_s=0)"
    with held_file(warehouse.location.path, read_only=True):
        assert run_script(script, warehouse.location.path).code == -9
    assert [path.suffix for path in warehouse.location.spool_path.iterdir()] == [".partial"]
    assert list_waiting(warehouse) == []
    assert warehouse.append(make_batch("k")) is True
    assert count_by_batch(warehouse).rows() == [("k", 1, 3, 3, 3)]


@pytest.mark.parametrize(
    "patch",
    [
        "store.drop_spooled = kill_self",
        "remove_spooled = kill_self",
        # A removal that has come as far as the batch's head.
        "remove_spooled = lambda path: ((path / 'batch.json').unlink(), kill_self())",
    ],
)
def test_a_kill_between_commit_and_removal_is_harmless(tmp_path: Path, patch: str) -> None:
    warehouse = make_warehouse(tmp_path)
    store.spool_batch(warehouse.location.spool_path, make_batch("k"))
    script = f"""
from evalhouse.warehouse import store
remove = remove_spooled = store.shutil.rmtree
{patch}
store.shutil.rmtree = lambda path, **options: (remove_spooled if path.suffix == ".done" else remove)(path, **options)
Warehouse(PATH).flush()
"""
    assert run_script(script, warehouse.location.path).code == -9
    assert len(list(warehouse.location.spool_path.iterdir())) == 1
    # It is in, for good and once.
    assert count_by_batch(warehouse).rows() == [("k", 1, 3, 3, 3)]
    assert warehouse.append(make_batch("next")) is True
    assert count_by_batch(warehouse).rows() == [("k", 1, 3, 3, 3), ("next", 1, 3, 3, 3)]
    assert list(warehouse.location.spool_path.iterdir()) == []


def test_order_holds_when_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, now in (("a", 2_000), ("b", 1_000), ("c", 1_000), ("d", 3_000)):
        monkeypatch.setattr(time, "time_ns", lambda now=now: now)
        store.spool_batch(tmp_path, make_batch(key))
    assert [store.read_spooled(path).key for path in store.list_spooled(tmp_path)] == ["a", "b", "c", "d"]


def test_a_batch_comes_back_from_the_spool_as_it_went(tmp_path: Path) -> None:
    batch = make_batch("k/1:Ä", replaces=("s-1", "文"))
    found = store.read_spooled(store.spool_batch(tmp_path, batch))
    assert (found.key, found.run_id, found.replaces) == (batch.key, batch.run_id, batch.replaces)
    assert found.tables.keys() == batch.tables.keys()
    assert all(found.tables[name].equals(frame, null_equal=True) for name, frame in batch.tables.items())
    assert all(found.tables[name].schema == frame.schema for name, frame in batch.tables.items())


def test_a_damaged_batch_is_named_with_the_way_out(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    path = store.spool_batch(warehouse.location.spool_path, make_batch("k"))
    whole = {entry: entry.read_bytes() for entry in path.iterdir()}
    for entry in sorted(whole):
        entry.write_bytes(b"nonsense")
        with pytest.raises(WarehouseError, match=rf"{path} cannot be taken in \(.*\); move that folder away") as raised:
            warehouse.flush()
        assert "\n" not in str(raised.value)
        entry.write_bytes(whole[entry])
    warehouse.flush()
    assert list_keys(warehouse) == ["k"]


def test_a_batch_that_the_tables_refuse_is_named_too(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    frame = make_batch("k").tables["outcomes"].drop("step")
    path = store.spool_batch(
        warehouse.location.spool_path, type(make_batch("k"))(key="k", run_id="r", tables={"outcomes": frame})
    )
    with pytest.raises(WarehouseError, match=rf"{path} cannot be taken in \(Constraint Error"):
        warehouse.append(make_batch("next"))
    assert count_rows(warehouse, "batches") == 0


def test_full_disk_is_reported_and_leaves_no_half_batch(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    script = """
try: Warehouse(PATH).append(make_batch("k"), patience_s=0)
except Exception as error: print(type(error).__name__, error)
"""
    with held_file(warehouse.location.path, read_only=True):
        ended = run_script(FULL_DISK.format(size=500) + script, warehouse.location.path)
    assert ended.output.startswith("WarehouseUnwritable"), ended
    assert "the spool beside it cannot be written: File too large" in ended.output
    assert list(warehouse.location.spool_path.iterdir()) == []
