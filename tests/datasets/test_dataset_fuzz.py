"""Any file is read or refused with a DatasetError; and the samples read fit into the warehouse."""

import json
from pathlib import Path

import polars as pl
import pytest
from dataset_files import Row, read_all, write_json_lines
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalhouse.tasks.datasets.read import DatasetError, SampleRow

QUICK = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
COLUMNS = st.sampled_from(
    [
        "question",
        "query",
        "inputs",
        "inputs.question",
        "answer",
        "outputs",
        "contexts",
        "documents",
        "id",
        "context_ids",
        "reference_context_ids",
        "ground_truths",
        "metadata",
        "text",
        "a.b",
    ]
)
ROWS = st.lists(st.dictionaries(COLUMNS, VALUES, max_size=6), max_size=5)
SOUND_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "question": TEXTS.filter(lambda text: text.strip() != ""),
            "answer": st.none() | TEXTS,
            "contexts": st.none() | st.lists(TEXTS, max_size=3),
            "score": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        }
    ),
    min_size=1,
    max_size=5,
)


def read_or_refuse(path: Path) -> list[SampleRow]:
    try:
        samples = read_all(path)
    except DatasetError:
        return []
    for sample in samples:
        json.dumps([sample.metadata, sample.question, sample.contexts], allow_nan=False, ensure_ascii=False).encode()
        assert sample.question.strip()
        assert sample.context_ids is None or sample.contexts is None or len(sample.context_ids) == len(sample.contexts)
    return samples


@QUICK
@given(rows=ROWS)
def test_any_json_rows_are_read_or_refused(tmp_path: Path, rows: list[Row]) -> None:
    read_or_refuse(write_json_lines(tmp_path / "qa.jsonl", rows))
    (tmp_path / "qa.json").write_text(json.dumps(rows))
    read_or_refuse(tmp_path / "qa.json")


@pytest.mark.parametrize("name", ["qa.json", "qa.csv.gz", "qa.parquet"])
@QUICK
@given(content=st.binary(max_size=60) | TEXTS.map(str.encode) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_read_or_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    read_or_refuse(tmp_path / name)


@QUICK
@given(content=st.text("question,answer;\t\"\n\r'[]{} é", max_size=40))
def test_any_csv_is_read_or_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "qa.csv").write_text("question,answer\n" + content, encoding="utf-8", newline="")
    read_or_refuse(tmp_path / "qa.csv")


@QUICK
@given(rows=SOUND_ROWS)
def test_json_lines_json_parquet_and_arrow_agree(tmp_path: Path, rows: list[Row]) -> None:
    schema = {"question": pl.String, "answer": pl.String, "contexts": pl.List(pl.String), "score": pl.Float64}
    frame = pl.DataFrame(rows, schema=schema)
    frame.write_parquet(tmp_path / "qa.parquet")
    frame.write_ipc(tmp_path / "qa.arrow")
    (tmp_path / "qa.json").write_text(json.dumps(rows))
    expected = read_all(write_json_lines(tmp_path / "qa.jsonl", rows))
    for source in (tmp_path / "qa.json", tmp_path / "qa.parquet", tmp_path / "qa.arrow", frame):
        assert read_all(source) == expected
