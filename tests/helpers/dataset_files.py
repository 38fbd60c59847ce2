"""Helpers of the dataset tests: files written as users write them, read to the end or refused."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import duckdb
import polars as pl
import pytest

from evalhouse.tasks.datasets.read import DatasetError, SampleRow, read_samples

Row = dict[str, object]

FRANCE: Row = {
    "id": "q1",
    "question": "What is the capital of France?",
    "answer": "Paris.",
    "ground_truth": "Paris is the capital of France.",
    "contexts": ["Paris is a city.", "France is a country."],
    "lang": "en",
}
MOON: Row = {
    "id": "q2",
    "question": "月球绕什么转？",
    "answer": "地球",
    "ground_truth": "月球绕地球转。",
    "contexts": ["月球是地球的卫星。"],
    "lang": "zh",
}


def write_json_lines(path: Path, rows: Iterable[object]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def write_duckdb(path: Path, rows: list[Row]) -> Path:
    frame = pl.DataFrame(rows).to_arrow()
    with duckdb.connect(str(path)) as connection:
        connection.register("rows_to_keep", frame)
        connection.execute("create table qa as select * from rows_to_keep")
    return path


def read_all(source: object, mapping: Mapping[str, str] | None = None, limit: int | None = None) -> list[SampleRow]:
    """Every sample of a dataset that is taken."""
    batches = read_samples(source, mapping=mapping or {}, limit=limit)  # type: ignore[arg-type]
    return [row for batch in batches for row in batch]


def read_one(folder: Path, row: Row, mapping: Mapping[str, str] | None = None) -> SampleRow:
    """The sample that one JSON Lines row becomes."""
    [sample] = read_all(write_json_lines(folder / "one.jsonl", [row]), mapping)
    return sample


def refuse(source: object, mapping: Mapping[str, str] | None = None) -> DatasetError:
    """The error of a dataset that is not taken."""
    with pytest.raises(DatasetError) as caught:
        read_all(source, mapping)
    return caught.value


def refuse_rows(folder: Path, *rows: object) -> str:
    """The message about these JSON Lines rows, which follow one sound row on line 1."""
    return str(refuse(write_json_lines(folder / "rows.jsonl", [FRANCE, *rows])))
