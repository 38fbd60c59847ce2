"""Large datasets: only the ids are held in memory."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from dataset_files import Row, write_json_lines

from evalhouse.tasks.datasets.read import read_samples

N_ROWS = 1_000


def write_csv(path: Path, rows: list[Row]) -> object:
    return pl.DataFrame([{**row, "contexts": json.dumps(row["contexts"])} for row in rows]).write_csv(path)


WRITE: dict[str, Callable[[Path, list[Row]], object]] = {
    "jsonl": write_json_lines,
    "json": lambda path, rows: path.write_text(json.dumps(rows)),
    "csv": write_csv,
    "parquet": lambda path, rows: pl.DataFrame(rows).write_parquet(path),
}


def measure_peak(path: Path) -> int:
    """Return the most bytes that Python held while the file was read."""
    tracemalloc.start()
    assert sum(len(batch) for batch in read_samples(path, batch_size=250))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.slow
@pytest.mark.parametrize("ending", WRITE)
def test_ten_times_the_rows_need_the_same_memory(tmp_path: Path, ending: str) -> None:
    small, large = tmp_path / f"small.{ending}", tmp_path / f"large.{ending}"
    for path, n_rows in ((small, N_ROWS), (large, N_ROWS * 10)):
        texts: Row = {"answer": "a" * 100, "contexts": ["c" * 200]}
        WRITE[ending](path, [{"id": str(n), "question": f"question {n}?", **texts} for n in range(n_rows)])
    measure_peak(small)  # all that is imported or cached on first use
    peaks = measure_peak(small), measure_peak(large)
    # The ids, with about 200 bytes a row, are the one thing that grows; a row itself takes 1,500 as Python objects.
    assert peaks[1] < peaks[0] * 1.2 + N_ROWS * 9 * 200
