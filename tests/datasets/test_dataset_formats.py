"""Every format gives the same samples, with row numbers as a person counts them."""

import csv
import gzip
import io
import json
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_files import FRANCE, MOON, Row, read_all, refuse, write_duckdb, write_json_lines
from pyarrow import feather

from evalhouse.tasks.datasets.read import DatasetError, read_samples

# Nothing retrieved is something else than nothing known.
ROWS: list[Row] = [
    FRANCE, MOON, {**FRANCE, "id": "q3", "contexts": []}, {**FRANCE, "id": "q4", "contexts": None},
]  # fmt: skip


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def to_csv(rows: list[Row], delimiter: str = ",") -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(rows[0])
    writer.writerows([dump(cell) if isinstance(cell, list) else cell for cell in row.values()] for row in rows)
    return text.getvalue()


WRAPPED = {"version": 3, "tags": ["a"], "about": {"rows": [1]}, "samples": ROWS, "empty": []}


def write_table(path: Path) -> str:
    """Write all rows in the format of the file's name, as a library does; return the name of the dataset."""
    frame = pl.DataFrame(ROWS)
    match path.name:
        case "qa.parquet":
            frame.write_parquet(path)
        case "stream.arrow":
            frame.write_ipc_stream(path)
        case "qa.duckdb":
            return f"{write_duckdb(path, ROWS)}#qa"
        case _:
            frame.write_ipc(path, compression="zstd")
    return str(path)


LINES = "".join(dump(row) + "\n" for row in ROWS)


FORMATS: dict[str, tuple[str | None, list[int]]] = {
    "qa.jsonl": (LINES, [1, 2, 3, 4]),
    "qa.ndjson": ("\n" + LINES.replace("\n", "\r\n\n"), [2, 4, 6, 8]),
    "QA.JSONL": (LINES.rstrip("\n"), [1, 2, 3, 4]),
    "qa.json": (dump(ROWS), [1, 2, 3, 4]),
    "wrapped.json": (json.dumps(WRAPPED, ensure_ascii=False, indent=2), [1, 2, 3, 4]),
    "qa.json.gz": (dump(ROWS), [1, 2, 3, 4]),
    "lines.json": (LINES, [1, 2, 3, 4]),
    "european.csv": (to_csv(ROWS, ";"), [2, 3, 4, 5]),
    "qa.tsv": (to_csv(ROWS, "\t"), [2, 3, 4, 5]),
    "qa.csv.gz": (to_csv(ROWS), [2, 3, 4, 5]),
    **dict.fromkeys(("qa.parquet", "qa.arrow", "stream.arrow", "qa.ipc", "qa.duckdb"), (None, [1, 2, 3, 4])),
}
"""Text and row numbers by the name of a file; the text of a table is None."""


def test_every_format_gives_the_same_samples(tmp_path: Path) -> None:
    for name, (text, rows) in FORMATS.items():
        path = tmp_path / name
        if text is None:
            source = write_table(path)
        else:
            data = text.encode()
            path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
            source = str(path)
        samples = read_all(source)
        assert [sample.row for sample in samples] == rows, name
        assert [sample.ordinal for sample in samples] == [1, 2, 3, 4], name
        for sample, row in zip(samples, ROWS, strict=True):
            assert sample.given_id == sample.sample_id == row["id"], name
            assert (sample.question, sample.answer) == (row["question"], row["answer"]), name
            assert (sample.ground_truth, sample.contexts) == (row["ground_truth"], row["contexts"]), name
            assert (sample.context_ids, sample.reference_context_ids) == (None, None), name
            assert sample.metadata == {"lang": row["lang"]}, name


def test_hashes_do_not_depend_on_the_format(tmp_path: Path) -> None:
    bare = [{key: value for key, value in row.items() if key != "id"} for row in ROWS]
    lines = read_all(write_json_lines(tmp_path / "qa.jsonl", bare))
    frame = read_all(pl.DataFrame(bare))
    assert [(row.sample_id, row.input_hash) for row in lines] == [(row.sample_id, row.input_hash) for row in frame]


def test_byte_order_mark_is_skipped(tmp_path: Path) -> None:
    for name, text in {"qa.jsonl": LINES, "qa.json": dump(ROWS), "qa.csv": to_csv(ROWS)}.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8-sig")
        assert [sample.given_id for sample in read_all(path)] == ["q1", "q2", "q3", "q4"], name


def test_batches_keep_the_order_and_the_size(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "qa.jsonl", [{"question": f"q{n}"} for n in range(25)])
    batches = list(read_samples(path, batch_size=10))
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert [row.ordinal for batch in batches for row in batch] == list(range(1, 26))


def test_limit_reads_the_first_rows_and_looks_no_further(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text(LINES + "{broken\n" + LINES, encoding="utf-8")
    assert [sample.given_id for sample in read_all(path, limit=2)] == ["q1", "q2"]
    assert [sample.given_id for sample in read_all(path, limit=1)] == ["q1"]


@pytest.mark.parametrize("bounds", [{"limit": 0}, {"batch_size": 0}, {"limit": -1}])
def test_bounds_below_one_are_refused(tmp_path: Path, bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        read_samples(tmp_path / "qa.jsonl", **bounds)  # type: ignore[arg-type]


# --- text

LONG_LINE = [{"question": f"第{n}个问题？", "answer": "é" * 50} for n in range(2000)]
# By name a file's name, its text, and fields of the samples in it.
TEXTS: dict[str, tuple[str, str, list[Row]]] = {
    "numbers of JSON": (
        "qa.json", '[{"question": "q", "answer": 0.5, "n": 3, "share": 0.25, "big": 123456789012345678901234}]',
        [{"answer": "0.5", "metadata": {"n": 3, "share": 0.25, "big": "123456789012345678901234"}}],
    ),
    "keys with dots": (
        "qa.json", '{"a": {"b": [{"question": "no"}]}, "a.b": [{"question": "yes"}, {"question": "also"}]}',
        [{"question": "yes"}, {"question": "also"}],
    ),
    "one long line, read in pieces": ("qa.json", dump(LONG_LINE), [dict(row) for row in LONG_LINE]),
    "NaN as Python writes it": (
        "qa.jsonl", '{"question": "q", "answer": NaN, "contexts": NaN, "id": NaN, "score": NaN, "n": 1}\n',
        [{"answer": None, "contexts": None, "given_id": None, "metadata": {"score": None, "n": 1}}],
    ),
    "CSV rows are numbered by their first line": (
        "qa.csv", '\nquestion,answer\n"one\nover ""three""\nlines",a\n\nnext,"b, c"\n',
        [{"row": 3, "question": 'one\nover "three"\nlines', "answer": "a"},
         {"row": 7, "question": "next", "answer": "b, c"}],
    ),
    "line ends of Windows": (
        "qa.csv", 'question,answer\r\n"a\r\nb",c\r\nd,e\r\n',
        [{"row": 2, "question": "a\r\nb", "answer": "c"}, {"row": 4, "question": "d", "answer": "e"}],
    ),
    "empty cells": (
        "qa.csv", 'id,question,answer,contexts,note\n,q,"",,\n,q,a,[],x\n',
        [{"given_id": None, "answer": None, "contexts": None, "metadata": {"note": None}}, {"contexts": []}],
    ),
    "missing values as pandas writes them in texts": (
        "qa.csv", "question,answer,contexts,ground_truth\nq,nan,NaN,nan\nq,None,c,nano\n",
        [{"answer": None, "contexts": None, "ground_truth": None}, {"answer": "None", "ground_truth": "nano"}],
    ),
    "cells larger than Python's own limit": (
        "qa.csv", to_csv([{"question": "q", "contexts": ["x" * 500_000]}]), [{"contexts": ["x" * 500_000]}],
    ),
    "columns without a name": ("qa.csv", ",question \n0,q\n", [{"metadata": {"column_1": "0"}}]),
    "nested columns in cells": (
        "qa.csv", 'inputs.question,outputs,ground_truths\nq,"{""answer"": ""a"", ""ms"": 3}","[""g1"", ""g2""]"\n',
        [{"question": "q", "answer": "a", "ground_truth": "g1",
          "metadata": {"outputs": {"ms": 3}, "ground_truths": ["g1", "g2"]}}],
    ),
}  # fmt: skip


def test_text_is_read(tmp_path: Path) -> None:
    for title, (name, text, expected) in TEXTS.items():
        path = tmp_path / name
        path.write_bytes(text.encode())
        samples = read_all(path)
        assert len(samples) == len(expected), title
        for sample, fields in zip(samples, expected, strict=True):
            assert {field: getattr(sample, field) for field in fields} == fields, title


def test_id_beyond_64_bits_is_refused_and_not_rounded(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text('{"question": "q", "id": 123456789012345678901}\n')
    assert "id is a number too large to be exact" in str(refuse(path))


# --- tables


def test_types_of_tables_become_json(tmp_path: Path) -> None:
    table = pa.table(
        {
            "question": ["q"],
            "answer": [Decimal("1.50")],
            "asked": pa.array([datetime(2024, 5, 1, 12, 30)], pa.timestamp("us")),
            "day": [date(2024, 5, 1)],
            "price": [Decimal("0.10")],
            "took": pa.array([timedelta(seconds=90)]),
            "raw": [b"\xff\x00"],
            "score": [float("nan")],
            "kind": pa.array(["a"]).dictionary_encode(),
            "counts": pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())),
            "inner": [{"at": date(2024, 5, 2), "none": None}],
        }
    )
    path = tmp_path / "qa.parquet"
    pq.write_table(table, path)
    [sample] = read_all(path)
    assert sample.answer == "1.50"
    assert sample.metadata == {
        "asked": "2024-05-01T12:30:00",
        "day": "2024-05-01",
        "price": "0.10",
        "took": "0:01:30",
        "raw": "ff00",
        "score": None,
        "kind": "a",
        "counts": {"x": 1},
        "inner": {"at": "2024-05-02", "none": None},
    }
    json.dumps(sample.metadata, allow_nan=False)


def test_categories_as_polars_writes_them_are_read(tmp_path: Path) -> None:
    path = tmp_path / "qa.arrow"
    kinds = {"kind": pl.Series(["a"], dtype=pl.Categorical), "level": pl.Series(["b"], dtype=pl.Enum(["b", "c"]))}
    pl.DataFrame({"question": ["q"], "answer": ["x"], **kinds}).write_ipc(path)
    table = pa.table({"question": ["q"], "year": pa.array([2024]).dictionary_encode()})
    assert read_all(path)[0].metadata == {"kind": "a", "level": "b"}
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    assert read_all(path)[0].metadata == {"year": 2024}


def test_nanoseconds_as_pandas_writes_them_are_cut_off(tmp_path: Path) -> None:
    at = 1_700_000_000_123_456_789
    table = pa.table(
        {
            "question": ["q"],
            "asked": pa.array([at], pa.timestamp("ns")),
            "took": pa.array([1_500_000_001], pa.duration("ns")),
            "clock": pa.array([1_500_000_001], pa.time64("ns")),
            "spans": pa.array([[{"at": at}]], pa.list_(pa.struct([("at", pa.timestamp("ns", "UTC"))]))),
        }
    )
    for name, write in (("qa.parquet", pq.write_table), ("qa.arrow", feather.write_feather)):
        write(table, str(tmp_path / name))
        [sample] = read_all(tmp_path / name)
        assert sample.metadata == {
            "asked": "2023-11-14T22:13:20.123456",
            "took": "0:00:01.500000",
            "clock": "00:00:01.500000",
            "spans": [{"at": "2023-11-14T22:13:20.123456+00:00"}],
        }


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (pa.array([10**15], pa.timestamp("ms")), "column 'at' has a time before year 1 or after year 9999"),
        (pa.array([2**62], pa.timestamp("ms")), "column 'at' has a time before year 1 or after year 9999"),
        (pa.array([2**31 - 1], pa.date32()), "column 'at' has a time before year 1 or after year 9999"),
        (pa.array([[2**31 - 1]], pa.list_(pa.date32())), "out-of-range date"),
        (pa.array([1], pa.timestamp("us", "Mars/Olympus")), "unable to parse time zone: 'Mars/Olympus'"),
    ],
)
def test_times_that_python_does_not_have_are_refused(tmp_path: Path, values: pa.Array, why: str) -> None:
    """Some programs write a far time for `never`."""
    path = tmp_path / "qa.parquet"
    pq.write_table(pa.table({"question": ["q"], "at": values}), path)
    assert f"rows 1 to 1 hold a value that cannot be read: {why}" in str(refuse(path))


def test_a_time_with_a_fixed_offset_is_one_in_utc(tmp_path: Path) -> None:
    path = tmp_path / "qa.parquet"
    table = pa.table({"question": ["q"], "at": pa.array([0], pa.timestamp("us", "+05:30")), "n": [1]})
    pq.write_table(table, path)
    [sample] = read_all(path)
    assert sample.metadata == {"at": "1970-01-01T00:00:00+00:00", "n": 1}


def test_text_that_is_not_utf8_is_refused_in_a_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "qa.parquet"
    unchecked = pa.StringArray.from_buffers(1, *pa.array([b"q\xff"], pa.binary()).buffers()[1:])
    pq.write_table(pa.table({"question": unchecked}), path)
    assert "Invalid UTF8 sequence" in str(refuse(path))


def test_rows_of_several_row_groups_are_counted_on(tmp_path: Path) -> None:
    path = tmp_path / "qa.parquet"
    pl.DataFrame({"question": [f"q{n}" for n in range(2500)]}).write_parquet(path, row_group_size=700)
    samples = read_all(path)
    assert [sample.row for sample in samples] == list(range(1, 2501))
    assert samples[-1].question == "q2499"


def test_null_and_nan_in_a_frame_are_absent() -> None:
    frame = pl.DataFrame(
        {
            "question": ["a", "b"],
            "answer": [None, "x"],
            "ground_truth": [1.5, float("nan")],
            "contexts": [None, ["c"]],
            "id": [1.0, None],
        }
    )
    [first, second] = read_all(frame)
    assert (first.answer, first.ground_truth, first.contexts, first.given_id) == (None, "1.5", None, "1")
    assert (second.answer, second.ground_truth, second.contexts, second.given_id) == ("x", None, ["c"], None)


def test_a_hash_sign_in_a_file_name_is_part_of_it(tmp_path: Path) -> None:
    assert len(read_all(write_json_lines(tmp_path / "run#2.jsonl", ROWS))) == 4
    assert "no such file" in str(refuse(tmp_path / "run#3.jsonl"))


@pytest.mark.parametrize(("n_rows", "length", "refused"), [(60, 70_000_000, True), (3000, 1_000_000, False)])
@pytest.mark.slow
def test_value_that_parquet_repeats_is_measured_before_it_is_written_out(
    tmp_path: Path, n_rows: int, length: int, refused: bool
) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * (n_rows - 1), pa.int32()), pa.array(["x" * length]))
    lists = pa.ListArray.from_arrays(pa.array([0, *range(n_rows)], pa.int32()), texts)
    path = tmp_path / "repeated.parquet"
    pq.write_table(pa.table({"question": ["q"] * n_rows, "contexts": lists}), path)
    assert path.stat().st_size < 5_000_000
    if refused:
        with pytest.raises(DatasetError, match=r"row 2: 67 MB in one row; at most 64 MB are read"):
            list(read_samples(path))
        return
    first = next(read_samples(path, limit=100))
    assert len(first) < 80, "a batch is bounded by its bytes"
    assert list(first[1].contexts or ()) == ["x" * length]
