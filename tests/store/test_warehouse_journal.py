"""The journal: what `append` has returned for survives a kill, and gets into `llm_calls` once."""

import threading
from contextlib import closing
from datetime import datetime
from pathlib import Path

import orjson
import pytest
from warehouse_processes import FULL_DISK, count_rows, held_file, make_warehouse, run_script
from warehouse_runs import make_row

from evalhouse.warehouse.errors import WarehouseBusy
from evalhouse.warehouse.mover import (
    Journal,
    Mover,
    count_refused,
    find_orphans,
    take_in_orphans,
    take_in_segment,
)
from evalhouse.warehouse.rows.progress import JournalReader
from evalhouse.warehouse.store import Warehouse

_MAKE_ROW = """
from evalhouse.warehouse.mover import Journal
def make_row(number, reply="yes"):
    digest = f"{number:064x}"
    return {
        "call_id": f"c{number}", "run_id": "r", "step": "classify", "judge": "j", "request_hash": digest,
        "request_key": int(digest[:16], 16), "request": "{}", "reply": reply, "status": "ok", "attempts": 1,
        "started_at": 1_767_225_600_000_000 + number,
    }
journal = Journal(Warehouse(PATH).location.journal_path)
"""


def list_calls(warehouse: Warehouse) -> list[str]:
    return warehouse.read("select call_id from llm_calls order by started_at")["call_id"].to_list()


def test_rows_survive_a_kill_right_after_append_returns(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    script = "for number in range(50): journal.append(make_row(number))\nkill_self()"
    assert run_script(_MAKE_ROW + script, warehouse.location.path).code == -9
    assert take_in_orphans(warehouse) == 50
    assert list_calls(warehouse) == [f"c{number}" for number in range(50)]
    assert take_in_orphans(warehouse) == 0
    assert list(warehouse.location.journal_path.iterdir()) == []


def test_a_row_comes_back_as_it_went(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    columns: dict[str, object] = {
        "reply": 'two\nlines, "quotes", 文 and \0',
        "request": '{"a": ["文"]}',
        "request_key": 2**64 - 1,
        "cost_usd": 0.25,
        "prompt_tokens": 2**40,
        "error": None,
    }
    with closing(Journal(warehouse.location.journal_path)) as journal:
        journal.append(make_row(1, **columns))
    take_in_orphans(warehouse)
    row = warehouse.read_rows("select * from llm_calls")[0]
    assert {name: row[name] for name in columns} == columns
    assert row["started_at"] == datetime(2026, 1, 1, 0, 0, 0, 1)


def test_segments_go_in_once_even_after_a_kill_before_their_removal(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    script = """
from pathlib import Path
from evalhouse.warehouse.mover import take_in_segment
journal.append(make_row(1))
(segment,) = journal.rotate()
type(segment).remove = kill_self
take_in_segment(Warehouse(PATH), "llm_calls", segment, patience_s=5)
"""
    assert run_script(_MAKE_ROW + script, warehouse.location.path).code == -9
    assert list_calls(warehouse) == ["c1"]
    assert take_in_orphans(warehouse) == 1
    assert list_calls(warehouse) == ["c1"]
    assert list(find_orphans(warehouse.location.journal_path)) == []


_BAD_ROWS: dict[str, dict[str, object]] = {
    "number too large": {"prompt_tokens": 2**64 - 1},
    "number far too large": {"completion_tokens": 10**30},
    "number for a text": {"reply": ["a", 1]},
    "text for a time": {"started_at": "soon"},
    "no id": {"call_id": None},
    "unknown column": {"colour": "red"},
}


@pytest.fixture(params=["file", pytest.param("lake", marks=pytest.mark.slow)])
def any_warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Warehouse:
    if request.param == "file":
        return make_warehouse(tmp_path)
    lake = Warehouse(f"ducklake:sqlite:///{tmp_path / 'catalogue.sqlite'}?data={tmp_path / 'files'}")
    lake.migrate()
    return lake


def test_rows_that_cannot_be_stored_are_set_aside_alone(
    any_warehouse: Warehouse, caplog: pytest.LogCaptureFixture
) -> None:
    folder = any_warehouse.location.journal_path
    with closing(Journal(folder)) as journal:
        for number, columns in enumerate(_BAD_ROWS.values()):
            journal.append(make_row(2 * number))
            journal.append(make_row(2 * number + 1, **columns))
    (segment,) = folder.glob("*.jsonl")
    refused = [orjson.loads(line) for line in segment.read_bytes().splitlines()[1::2]]
    segment.write_bytes(segment.read_bytes() + b'"no row"\n{"reply": "\xff"}\n')
    take_in_orphans(any_warehouse)
    assert list_calls(any_warehouse) == [f"c{2 * number}" for number in range(len(_BAD_ROWS))]
    (aside,) = (any_warehouse.location.refused_path / "llm_calls").iterdir()
    *rows, no_row, no_text = aside.read_bytes().splitlines()
    assert [orjson.loads(line) for line in rows] == refused
    assert (no_row, no_text) == (b'"no row"', b'{"reply": "\xff"}')
    assert f"{len(_BAD_ROWS) + 2} rows of llm_calls cannot be stored" in caplog.text
    assert f"set aside in {aside}" in caplog.text
    assert count_refused(any_warehouse.location) == len(_BAD_ROWS) + 2
    caplog.clear()
    assert take_in_orphans(any_warehouse) == 0
    assert not caplog.text


def test_row_that_was_set_aside_is_stored_once_it_is_corrected(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    with closing(Journal(warehouse.location.journal_path)) as journal:
        journal.append(make_row(1, prompt_tokens=2**64 - 1))
    take_in_orphans(warehouse)
    (aside,) = (warehouse.location.refused_path / "llm_calls").iterdir()
    aside.write_bytes(aside.read_bytes().replace(str(2**64 - 1).encode(), b"12"))
    aside.rename(warehouse.location.journal_path / aside.name)
    assert take_in_orphans(warehouse) == 1
    assert list_calls(warehouse) == ["c1"]
    assert count_refused(warehouse.location) == 0


def test_living_mover_sets_a_row_aside_and_keeps_moving(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    with closing(Mover(warehouse, "llm_calls")) as mover:
        mover.keep(make_row(1, prompt_tokens=2**64 - 1))
        mover.keep(make_row(2, reply="half \ud83d"))
        mover.keep(make_row(3))
        reader = JournalReader(warehouse.location)
        assert reader.read("llm_calls")["prompt_tokens"].to_list() == [None, None, None]
        mover.flush()
        mover.keep(make_row(4))
        assert mover.failure is None
    assert list_calls(warehouse) == ["c2", "c3", "c4"]
    # An emoji of which the model's limit left half: its row was paid for, and is kept without that half.
    assert warehouse.read_rows("select reply from llm_calls where call_id = 'c2'")[0]["reply"] == "half \ufffd"
    assert count_refused(warehouse.location) == 1


@pytest.mark.parametrize("tail", [b'{"call_id": "c9', b'{"call_id": "c9"}', b"\0\0\0", b""])
def test_a_torn_last_line_is_dropped(tmp_path: Path, tail: bytes) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.append(make_row(1))
    segment = next(tmp_path.glob("*.jsonl"))
    segment.write_bytes(segment.read_bytes() + tail)
    assert [row["call_id"] for found in find_orphans(tmp_path) for row in found.rows] == ["c1"]


def test_a_damaged_line_costs_that_line_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    warehouse = make_warehouse(tmp_path)
    with closing(Journal(warehouse.location.journal_path)) as journal:
        for number in (1, 2, 3):
            journal.append(make_row(number))
    segment = next(warehouse.location.journal_path.glob("*.jsonl"))
    lines = segment.read_bytes().split(b"\n")
    segment.write_bytes(b"\n".join([lines[0], b"\0" * 40, *lines[2:]]))
    take_in_orphans(warehouse)
    assert list_calls(warehouse) == ["c1", "c3"]
    assert "1 row of llm_calls cannot be stored (not valid JSON) and was set aside" in caplog.text


def test_rows_of_living_processes_are_left_alone(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    dead = run_script(_MAKE_ROW + "journal.append(make_row(1))\nkill_self()", warehouse.location.path)
    assert dead.code == -9
    with closing(Journal(warehouse.location.journal_path)) as journal:
        journal.append(make_row(2))
        (closed,) = journal.rotate()
        journal.append(make_row(3))
        # Neither this process nor another takes what is still in use.
        taken = run_script(
            "from evalhouse.warehouse.mover import take_in_orphans\nprint(take_in_orphans(Warehouse(PATH)))",
            warehouse.location.path,
        )
        assert taken.output == "1", taken
        assert take_in_orphans(warehouse) == 0
        assert list_calls(warehouse) == ["c1"]
        take_in_segment(warehouse, "llm_calls", closed, patience_s=5)
        assert len(journal) == 1
    assert take_in_orphans(warehouse) == 1
    assert list_calls(warehouse) == ["c1", "c2", "c3"]
    assert list(warehouse.location.journal_path.iterdir()) == []


def test_threads_append_whole_lines(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:

        def append_fifty(first: int) -> None:
            for number in range(first, first + 50):
                journal.append(make_row(number))

        threads = [threading.Thread(target=append_fifty, args=[first]) for first in (0, 100, 200, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(journal) == 200
        (segment,) = journal.rotate()
        assert journal.rotate() == []
    kept = [row["call_id"] for found in find_orphans(tmp_path) for row in found.rows]
    assert kept == [row["call_id"] for row in segment.rows]
    assert len(set(kept)) == 200


def test_a_held_file_keeps_the_segment(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    with closing(Journal(warehouse.location.journal_path)) as journal:
        journal.append(make_row(1))
        (segment,) = journal.rotate()
        with held_file(warehouse.location.path, read_only=True), pytest.raises(WarehouseBusy):
            take_in_segment(warehouse, "llm_calls", segment, patience_s=0.1)
        assert segment.path.exists()
        take_in_segment(warehouse, "llm_calls", segment, patience_s=5)
        assert not segment.path.exists()
    assert count_rows(warehouse, "llm_calls") == 1


def test_a_full_disk_is_an_error_before_anything_is_believed_kept(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    # Room for some rows, then for half of one; when there is room again nothing is glued to that half.
    script = """
import resource
n_kept = 0
try:
    while True:
        journal.append(make_row(n_kept, reply="x" * 300))
        n_kept += 1
except OSError as error:
    print(n_kept, len(journal), error.strerror)
for _ in range(2):
    try: journal.append(make_row(900, reply="x" * 300))
    except OSError as error: print(len(journal))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
journal.append(make_row(1000))
print(len(journal), flush=True)
kill_self()
"""
    ended = run_script(FULL_DISK.format(size=4000) + _MAKE_ROW + script, warehouse.location.path)
    n_kept = int(ended.output.split()[0])
    assert n_kept > 2
    first, *others = ended.output.splitlines()
    assert first.startswith(f"{n_kept} {n_kept} ")
    assert others == [str(n_kept), str(n_kept), str(n_kept + 1)]
    take_in_orphans(warehouse)
    assert list_calls(warehouse) == [*(f"c{number}" for number in range(n_kept)), "c1000"]
