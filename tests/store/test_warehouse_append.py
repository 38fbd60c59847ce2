"""Appending batches: whole or not at all, once by key, through kills, beside other writers and full disks."""

import re
from pathlib import Path

import polars as pl
import pytest
from warehouse_processes import (
    FULL_DISK,
    count_by_batch,
    count_rows,
    make_batch,
    make_warehouse,
    run_script,
)

from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.store import TABLES, Batch, Warehouse, build_frame

# One process that forks its writers: so each begins within a millisecond, and 20 of them fit into a test.
_FORKING = """
import random
rng = random.Random(7)
acknowledged = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def write(names):
    warehouse = Warehouse(PATH)
    for name in names:
        assert warehouse.append(make_batch(name), patience_s=30)
        os.write(acknowledged, name.encode() + b"\\n")
    os._exit(0)
"""
_KILLS = """
began, n_committing = 0, 0
for turn in range(int(sys.argv[3])):
    # The next writer begins with the rows that the killed one may or may not have committed.
    names = [f"{number:04}" for number in range(began, began + 100)]
    child = os.fork()
    if child == 0:
        write(names)
    deadline = time.monotonic() + 20
    wanted = os.fstat(acknowledged).st_size + 5 * rng.randrange(3)
    while os.fstat(acknowledged).st_size < wanted and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.08))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    began = len(set(open(sys.argv[2]).read().split()))
print(began)
"""
_WHOLE = {"batches": 1, "statements": 3, "classifications": 3, "outcomes": 3}


def expect_whole(warehouse: Warehouse, acknowledged: set[str]) -> None:
    """Check that every acknowledged batch is stored, and each stored one once and whole."""
    found = count_by_batch(warehouse)
    assert acknowledged - set(found["key"]) == set()
    torn = found.filter(pl.any_horizontal(pl.col(name) != number for name, number in _WHOLE.items()))
    assert torn.rows(named=True) == []


def test_a_batch_is_written_to_all_its_tables(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    assert warehouse.append(make_batch("k")) is True
    expect_whole(warehouse, {"k"})
    row = warehouse.read_rows("select * from classifications order by sample_id")[0]
    expected = {"run_id": "r", "sample_id": "k-1", "statement_id": "A1", "label": "TP", "reason": "why"}
    assert row == {**expected, "call_id": None}
    ledger = warehouse.read(
        "select batch_key, run_id, now() at time zone 'UTC' - written_at < '1 min' as new from batches"
    )
    assert ledger.rows() == [("k", "r", True)]


def test_a_known_key_is_not_written_again(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    for _ in range(2):
        assert warehouse.append(make_batch("k")) is True
        warehouse.append_now(make_batch("k", replaces=("k-1",), label="FP"))
    expect_whole(warehouse, {"k"})
    assert count_rows(warehouse, "classifications", "label = 'FP'") == 0


def test_replacing_rewrites_the_verdicts_of_these_samples_of_this_run_alone(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    warehouse.append(make_batch("k"))
    other_run = {name: frame.with_columns(run_id=pl.lit("other")) for name, frame in make_batch("k").tables.items()}
    warehouse.append(Batch(key="other", run_id="other", tables=other_run))
    warehouse.append(make_batch("again", replaces=("k-1", "k-3"), label="FP"))
    labels = warehouse.read("select run_id, sample_id, label from classifications order by all").rows()
    assert labels == [
        *(("other", f"k-{number}", "TP") for number in (1, 2, 3)),
        ("r", "k-1", "FP"),
        ("r", "k-2", "TP"),
        ("r", "k-3", "FP"),
    ]
    assert count_rows(warehouse, "statements") == count_rows(warehouse, "outcomes") == 6


def test_a_batch_that_fails_in_its_last_table_leaves_nothing(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    warehouse.append(make_batch("first"))
    faulty = make_batch("first-again", replaces=("first-1",), label="FP")
    outcomes = faulty.tables["outcomes"].with_columns(step=pl.lit(None, dtype=pl.String))
    with pytest.raises(WarehouseError, match=r"w.duckdb: Constraint Error: .*step") as raised:
        warehouse.append(
            Batch(key="x", run_id="r", replaces=("first-1",), tables={**faulty.tables, "outcomes": outcomes})
        )
    assert "\n" not in str(raised.value)
    assert count_by_batch(warehouse).rows() == [("first", 1, 3, 3, 3)]
    assert count_rows(warehouse, "classifications", "label = 'FP'") == 0


def test_any_text_comes_back_as_it_was(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    texts = ["", "NULL", "null\0byte", "文字 🙂", "quote \" ' ; --", "a\nb\r\n", "é", "x" * 200_000]
    rows = [
        {"run_id": "r", "sample_id": str(number), "statement_id": "A1", "source": "answer", "ordinal": 1, "text": text}
        for number, text in enumerate(texts)
    ]
    warehouse.append(Batch(key="k", run_id="r", tables={"statements": build_frame("statements", rows)}))
    assert warehouse.read("select text from statements order by sample_id")["text"].to_list() == texts


def test_every_table_takes_a_batch_of_nulls_and_none(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    tables = {name: build_frame(name, []) for name in TABLES if name != "staged_samples"}
    warehouse.append(Batch(key="k", run_id="r", tables=tables))
    assert count_rows(warehouse, "batches") == 1
    row = {"run_id": "r", "sample_id": "s", "statement_id": "A1", "supported": False, "context_ranks": []}
    frame = build_frame("attributions", [row, {**row, "context_ranks": None}])
    warehouse.append(Batch(key="k2", run_id="r", tables={"attributions": frame}))
    assert warehouse.read("select context_ranks, reason from attributions").rows() == [([], None), (None, None)]


def test_prompt_of_two_runs_is_kept_once(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    row = {"prompt": "extract", "version": "1", "language": "en", "template": "…"}
    one, two = {"prompt_hash": "1", **row}, {"prompt_hash": "2", **row}
    for key, rows in (("a", [one, one]), ("b", [one, two]), ("c", [two])):
        warehouse.append(Batch(key=key, run_id=key, tables={"prompts": build_frame("prompts", rows)}))
    assert warehouse.read("select prompt_hash from prompts order by all")["prompt_hash"].to_list() == ["1", "2"]


def test_a_column_that_is_none_is_refused_before_the_file_is_touched() -> None:
    good = {"run_id": "r", "sample_id": "s", "kind": "k", "value": 0.5}
    with pytest.raises(KeyError, match="similarities has no column wert"):
        build_frame("similarities", [good, {**good, "wert": 1}])
    with pytest.raises(TypeError):
        build_frame("similarities", [{**good, "value": "much"}])


def test_killed_writers_lose_nothing_they_acknowledged_and_tear_nothing(tmp_path: Path) -> None:
    warehouse, n_kills = make_warehouse(tmp_path), 4
    ended = run_script(_FORKING + _KILLS, warehouse.location.path, str(tmp_path / "acknowledged"), str(n_kills))
    assert ended.code == 0, ended
    acknowledged = set((tmp_path / "acknowledged").read_text().split())
    assert len(acknowledged) >= n_kills // 4
    expect_whole(warehouse, acknowledged)
    assert warehouse.append(make_batch("after"))
    assert warehouse.migrate() == []


def test_full_disk_is_reported_in_one_line_and_harms_nothing(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    warehouse.append(make_batch("before"))
    script = """
import random
batch = make_batch("big", n=20)
texts = [random.randbytes(20_000).hex() for _ in range(20)]
frame = batch.tables["statements"].with_columns(text=__import__("polars").Series(texts))
batch = Batch(key="big", run_id="r", tables={**batch.tables, "statements": frame})
try: Warehouse(PATH).append(batch)
except Exception as error: print(type(error).__name__, error)
"""
    ended = run_script(FULL_DISK.format(size=100_000) + script, warehouse.location.path)
    assert re.match(
        r"WarehouseUnwritable no room in /\S+ for the rows \(.*\); make room, or name another", ended.output
    ), ended
    assert "\n" not in ended.output
    assert count_by_batch(warehouse)["key"].to_list() == ["before"]
    assert warehouse.append(make_batch("after"))
    expect_whole(warehouse, {"before", "after"})


def test_reading_says_when_a_file_is_not_ours(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    with pytest.raises(
        WarehouseError, match=r"is not an evalhouse warehouse, or one of another version \(.*not_a_table"
    ):
        warehouse.read("select * from not_a_table")
    with pytest.raises(WarehouseError, match=r"Conversion Error: .*") as raised:
        warehouse.read("select 'x'::int")
    assert "\n" not in str(raised.value)
