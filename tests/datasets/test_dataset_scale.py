"""Large datasets: memory does not grow with the file, repeated ids are found exactly, and reading is quick."""

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from dataset_files import refuse, write_json_lines

from evalhouse.tasks.datasets import read as dataset
from evalhouse.tasks.datasets.read import DuplicateIds, GivenId, RepeatedId, read_samples

BATCH_SIZE = 250


def make_rows(n_rows: int, id_of: Callable[[int], str] = str) -> Iterator[dict[str, object]]:
    for n in range(n_rows):
        yield {"id": id_of(n), "question": f"question {n}?", "answer": "a" * 100, "contexts": ["c" * 200, str(n)]}


def write_lines(path: Path, n_rows: int) -> None:
    write_json_lines(path, make_rows(n_rows))


def write_json(path: Path, n_rows: int) -> None:
    path.write_text(json.dumps({"version": 1, "data": list(make_rows(n_rows))}))


def write_csv(path: Path, n_rows: int) -> None:
    rows = [{**row, "contexts": json.dumps(row["contexts"])} for row in make_rows(n_rows)]
    pl.DataFrame(rows).write_csv(path)


def write_parquet(path: Path, n_rows: int) -> None:
    pl.DataFrame(list(make_rows(n_rows))).write_parquet(path)


def write_arrow(path: Path, n_rows: int) -> None:
    pl.DataFrame(list(make_rows(n_rows))).write_ipc(path)


def measure_peak(path: Path) -> int:
    """The most bytes that Python held while the file was read."""
    tracemalloc.start()
    n_rows = sum(len(batch) for batch in read_samples(path, batch_size=BATCH_SIZE))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert n_rows
    return peak


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "write", "n_rows"),
    [
        (".jsonl", write_lines, 5_000),
        (".json", write_json, 1_000),
        (".csv", write_csv, 1_000),
        (".parquet", write_parquet, 1_000),
        (".arrow", write_arrow, 1_000),
    ],
)
def test_ten_times_the_rows_need_the_same_memory(
    tmp_path: Path, ending: str, write: Callable[[Path, int], None], n_rows: int
) -> None:
    small, large = tmp_path / f"small{ending}", tmp_path / f"large{ending}"
    write(small, n_rows)
    write(large, n_rows * 10)
    measure_peak(small)  # all that is imported or cached on first use
    peaks = measure_peak(small), measure_peak(large)
    # Eight bytes a row for the ids, doubled while the array grows and is sorted, are the one thing that grows.
    assert peaks[1] < peaks[0] * 1.2 + n_rows * 9 * 24


@pytest.mark.slow
def test_reading_stays_quick(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    write_lines(path, 20_000)
    begin = time.process_time()
    assert sum(len(batch) for batch in read_samples(path)) == 20_000
    # Some 40,000 rows a second of processor time are usual; a tenth of it leaves room for slow and busy machines.
    assert 20_000 / (time.process_time() - begin) > 4_000


def test_hash_collisions_are_not_repeated_ids() -> None:
    ids = DuplicateIds(hash_id=len)
    rows = [GivenId(row=row, given_id=given_id) for row, given_id in enumerate(["aa", "bb", "c", "bb", "dd"], start=1)]
    for row in rows:
        ids.add(row.given_id)
    assert list(ids.find_repeated(lambda: rows)) == [RepeatedId(row=4, first_row=2, given_id="bb")]


def test_without_a_candidate_nothing_is_read_again() -> None:
    ids = DuplicateIds()
    for n in range(10_000):
        ids.add(str(n))

    def read_again() -> list[GivenId]:
        raise AssertionError("read again")

    assert list(ids.find_repeated(read_again)) == []
    assert list(DuplicateIds().find_repeated(read_again)) == []


def test_a_file_full_of_repeated_ids_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_MAX_TRACKED_IDS", 5)
    path = write_json_lines(tmp_path / "qa.jsonl", make_rows(3_000, id_of=lambda n: str(n % 1000)))
    error = refuse(path)
    assert error.n_problems == 2_000
    assert "line 1,001: id '0' is that of line 1 already" in str(error)
    assert "and 1,990 more" in str(error)


def test_one_repetition_among_many_rows_is_found(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "qa.jsonl", make_rows(30_000, id_of=lambda n: "0" if n == 29_999 else str(n)))
    assert "line 30,000: id '0' is that of line 1 already" in str(refuse(path))
