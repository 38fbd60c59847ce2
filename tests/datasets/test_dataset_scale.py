"""Large datasets: only the ids are held in memory, repeated ids are found, and reading is quick."""

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from dataset_files import refuse, write_json_lines

from evalhouse.tasks.datasets.read import read_samples

BATCH_SIZE = 250


def make_rows(n_rows: int, id_of: Callable[[int], str] = str) -> Iterator[dict[str, object]]:
    for n in range(n_rows):
        yield {"id": id_of(n), "question": f"question {n}?", "answer": "a" * 100, "contexts": ["c" * 200, str(n)]}


def write_lines(path: Path, n_rows: int) -> None:
    write_json_lines(path, make_rows(n_rows))


def write_json(path: Path, n_rows: int) -> None:
    path.write_text(json.dumps(list(make_rows(n_rows))))


def write_csv(path: Path, n_rows: int) -> None:
    rows = [{**row, "contexts": json.dumps(row["contexts"])} for row in make_rows(n_rows)]
    pl.DataFrame(rows).write_csv(path)


def write_parquet(path: Path, n_rows: int) -> None:
    pl.DataFrame(list(make_rows(n_rows))).write_parquet(path)


def write_arrow(path: Path, n_rows: int) -> None:
    pl.DataFrame(list(make_rows(n_rows))).write_ipc(path)


def measure_peak(path: Path) -> int:
    """Return the most bytes that Python held while the file was read."""
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
    # The ids, with about 200 bytes a row, are the one thing that grows; a row itself takes 1,500 as Python objects.
    assert peaks[1] < peaks[0] * 1.2 + n_rows * 9 * 200


@pytest.mark.slow
def test_reading_stays_quick(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    write_lines(path, 20_000)
    begin = time.process_time()
    assert sum(len(batch) for batch in read_samples(path)) == 20_000
    # Some 40,000 rows a second of processor time are usual; a tenth of it leaves room for slow and busy machines.
    assert 20_000 / (time.process_time() - begin) > 4_000


def test_file_full_of_repeated_ids_is_counted(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "qa.jsonl", make_rows(3_000, id_of=lambda n: str(n % 1000)))
    error = refuse(path)
    assert error.n_problems == 2_000
    assert "line 1,001: id '0' is that of line 1 already" in str(error)
    assert "and 1,980 more" in str(error)
