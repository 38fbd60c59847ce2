"""The same two samples come out of every format, with row numbers as a person counts them."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_files import FRANCE, MOON, Row, read_all, refuse, write_duckdb, write_json_lines
from pyarrow import feather

from evalhouse.tasks.datasets.read import read_samples

ROWS: list[Row] = [FRANCE, MOON]


def dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def to_csv(rows: list[Row], delimiter: str = ",") -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    writer.writerow(rows[0])
    writer.writerows([dump(cell) if isinstance(cell, list) else cell for cell in row.values()] for row in rows)
    return text.getvalue()


def write_json(path: Path) -> str:
    path.write_text(dump(ROWS), encoding="utf-8")
    return str(path)


def write_wrapped_json(path: Path) -> str:
    wrapped = {"version": 3, "tags": ["a"], "about": {"rows": [1]}, "samples": ROWS, "empty": []}
    path.write_text(json.dumps(wrapped, ensure_ascii=False, indent=2), encoding="utf-8")
    return str(path)


def write_text(text: str) -> Callable[[Path], str]:
    def write(path: Path) -> str:
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def write_packed(text: str) -> Callable[[Path], str]:
    def write(path: Path) -> str:
        path.write_bytes(gzip.compress(text.encode()))
        return str(path)

    return write


def write_parquet(path: Path) -> str:
    pl.DataFrame(ROWS).write_parquet(path)
    return str(path)


def write_ipc(path: Path) -> str:
    pl.DataFrame(ROWS).write_ipc(path, compression="zstd")
    return str(path)


def write_ipc_stream(path: Path) -> str:
    pl.DataFrame(ROWS).write_ipc_stream(path)
    return str(path)


def write_feather(path: Path) -> str:
    feather.write_feather(pl.DataFrame(ROWS).to_arrow(), str(path))
    return str(path)


def write_table(path: Path) -> str:
    return f"{write_duckdb(path, ROWS)}#qa"


LINES = "".join(dump(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    ("name", "write", "rows"),
    [
        ("qa.jsonl", write_text(LINES), [1, 2]),
        ("qa.ndjson", write_text("\n" + LINES.replace("\n", "\r\n\n")), [2, 4]),
        ("QA.JSONL", write_text(LINES.rstrip("\n")), [1, 2]),
        ("qa.jsonl.gz", write_packed(LINES), [1, 2]),
        ("qa.json", write_json, [1, 2]),
        ("wrapped.json", write_wrapped_json, [1, 2]),
        ("qa.json.gz", write_packed(dump(ROWS)), [1, 2]),
        ("lines.json", write_text(LINES), [1, 2]),
        ("qa.csv", write_text(to_csv(ROWS)), [2, 3]),
        ("european.csv", write_text(to_csv(ROWS, ";")), [2, 3]),
        ("qa.tsv", write_text(to_csv(ROWS, "\t")), [2, 3]),
        ("qa.csv.gz", write_packed(to_csv(ROWS)), [2, 3]),
        ("qa.parquet", write_parquet, [1, 2]),
        ("qa.arrow", write_ipc, [1, 2]),
        ("stream.arrow", write_ipc_stream, [1, 2]),
        ("qa.feather", write_feather, [1, 2]),
        ("qa.ipc", write_ipc, [1, 2]),
        ("qa.duckdb", write_table, [1, 2]),
    ],
)
def test_every_format_gives_the_same_samples(
    tmp_path: Path, name: str, write: Callable[[Path], str], rows: list[int]
) -> None:
    samples = read_all(write(tmp_path / name))
    assert [sample.row for sample in samples] == rows
    assert [sample.ordinal for sample in samples] == [1, 2]
    for sample, row in zip(samples, ROWS, strict=True):
        assert sample.given_id == sample.sample_id == row["id"]
        assert (sample.question, sample.answer) == (row["question"], row["answer"])
        assert (sample.ground_truth, sample.contexts) == (row["ground_truth"], row["contexts"])
        assert (sample.context_ids, sample.reference_context_ids) == (None, None)
        assert sample.metadata == {"lang": row["lang"]}


def test_hashes_do_not_depend_on_the_format(tmp_path: Path) -> None:
    bare = [{key: value for key, value in row.items() if key != "id"} for row in ROWS]
    lines = read_all(write_json_lines(tmp_path / "qa.jsonl", bare))
    frame = read_all(pl.DataFrame(bare))
    assert [(row.sample_id, row.input_hash) for row in lines] == [(row.sample_id, row.input_hash) for row in frame]


def test_a_polars_frame_is_read(tmp_path: Path) -> None:
    [first, second] = read_all(pl.DataFrame(ROWS))
    assert (first.given_id, first.row, second.contexts, second.row) == ("q1", 1, MOON["contexts"], 2)


def test_paths_may_be_path_objects(tmp_path: Path) -> None:
    assert len(read_all(write_json_lines(tmp_path / "qa.jsonl", ROWS))) == 2


@pytest.mark.parametrize("name", ["qa.jsonl", "qa.json", "qa.csv"])
def test_a_byte_order_mark_is_passed_over(tmp_path: Path, name: str) -> None:
    texts = {"qa.jsonl": LINES, "qa.json": dump(ROWS), "qa.csv": to_csv(ROWS)}
    path = tmp_path / name
    path.write_text(texts[name], encoding="utf-8-sig")
    assert [sample.given_id for sample in read_all(path)] == ["q1", "q2"]


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
def test_bounds_below_one_are_a_mistake_of_the_caller(tmp_path: Path, bounds: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        read_samples(tmp_path / "qa.jsonl", **bounds)  # type: ignore[arg-type]


# --- JSON


def test_json_numbers_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "qa.json"
    path.write_text('[{"question": "q", "answer": 0.5, "n": 3, "share": 0.25, "big": 123456789012345678901234}]')
    [sample] = read_all(path)
    assert sample.answer == "0.5"
    assert sample.metadata == {"n": 3, "share": 0.25, "big": "123456789012345678901234"}


def test_keys_of_a_json_object_may_hold_dots(tmp_path: Path) -> None:
    path = tmp_path / "qa.json"
    path.write_text('{"a": {"b": [{"question": "no"}]}, "a.b": [{"question": "yes"}, {"question": "also"}]}')
    assert [sample.question for sample in read_all(path)] == ["yes", "also"]


def test_a_json_file_of_one_long_line_is_read_in_pieces(tmp_path: Path) -> None:
    rows = [{"question": f"第{n}个问题？", "answer": "é" * 50} for n in range(2000)]
    path = tmp_path / "qa.json"
    path.write_text(dump(rows), encoding="utf-8")
    assert [sample.question for sample in read_all(path)] == [row["question"] for row in rows]


# --- JSON Lines


def test_nan_as_python_writes_it_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text('{"question": "q", "answer": NaN, "contexts": NaN, "id": NaN, "score": NaN, "n": 1}\n')
    [sample] = read_all(path)
    assert (sample.answer, sample.contexts, sample.given_id) == (None, None, None)
    assert sample.metadata == {"score": None, "n": 1}


def test_id_beyond_64_bits_is_refused_and_not_rounded(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text('{"question": "q", "id": 123456789012345678901}\n')
    assert "id is a number too large to be exact" in str(refuse(path))


# --- CSV


def test_csv_rows_are_numbered_by_their_first_line(tmp_path: Path) -> None:
    path = tmp_path / "qa.csv"
    path.write_text('\nquestion,answer\n"one\nover ""three""\nlines",a\n\nnext,"b, c"\n')
    [first, second] = read_all(path)
    assert (first.row, first.question, first.answer) == (3, 'one\nover "three"\nlines', "a")
    assert (second.row, second.question, second.answer) == (7, "next", "b, c")


def test_csv_with_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "qa.csv"
    path.write_bytes(b'question,answer\r\n"a\r\nb",c\r\nd,e\r\n')
    assert [(sample.row, sample.question, sample.answer) for sample in read_all(path)] == [
        (2, "a\r\nb", "c"),
        (4, "d", "e"),
    ]


def test_empty_csv_cells_are_absent(tmp_path: Path) -> None:
    path = tmp_path / "qa.csv"
    path.write_text('id,question,answer,contexts,note\n,q,"",,\n,q,a,[],x\n')
    [first, second] = read_all(path)
    assert (first.given_id, first.answer, first.contexts) == (None, None, None)
    assert first.metadata == {"note": None}
    assert second.contexts == []


def test_csv_cells_may_be_larger_than_python_allows_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "qa.csv"
    path.write_text(to_csv([{"question": "q", "contexts": ["x" * 500_000]}]))
    [sample] = read_all(path)
    assert sample.contexts == ["x" * 500_000]


def test_csv_columns_without_a_name_are_named_by_their_place(tmp_path: Path) -> None:
    path = tmp_path / "qa.csv"
    path.write_text(",question \n0,q\n")
    [sample] = read_all(path)
    assert sample.metadata == {"column_1": "0"}


def test_nested_columns_in_csv_cells(tmp_path: Path) -> None:
    path = tmp_path / "qa.csv"
    path.write_text('inputs.question,outputs,ground_truths\nq,"{""answer"": ""a"", ""ms"": 3}","[""g1"", ""g2""]"\n')
    [sample] = read_all(path)
    assert (sample.question, sample.answer, sample.ground_truth) == ("q", "a", "g1")
    assert sample.metadata == {"outputs": {"ms": 3}, "ground_truths": ["g1", "g2"]}


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


def test_times_that_python_does_not_know_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "qa.parquet"
    pq.write_table(pa.table({"question": ["q"], "at": pa.array([10**15], pa.timestamp("ms"))}), path)
    assert "rows 1 to 1 hold a value that cannot be read" in str(refuse(path))


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
    assert len(read_all(write_json_lines(tmp_path / "run#2.jsonl", ROWS))) == 2
    assert "no such file" in str(refuse(tmp_path / "run#3.jsonl"))
