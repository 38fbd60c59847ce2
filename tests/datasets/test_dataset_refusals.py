"""Datasets that are not taken: each message says what came, what was allowed and what to do, and where."""

import gzip
import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_files import FRANCE, MOON, read_all, refuse, write_json_lines

from evalhouse.tasks.datasets.read import DatasetError, read_samples

LINE = json.dumps(FRANCE) + "\n"
KNOWN = ".jsonl, .ndjson, .json, .csv, .tsv, .parquet, .arrow, .feather, .ipc, .xlsx, .xlsm, .xls, .ods"

# --- the file itself


def test_a_missing_file_suggests_close_names(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "nightly.jsonl", [FRANCE])
    write_json_lines(tmp_path / "other.jsonl", [FRANCE])
    message = str(refuse(tmp_path / "nigthly.jsonl"))
    assert message.startswith(f"{tmp_path}/nigthly.jsonl: no such file; allowed: {KNOWN}")
    assert f"did you mean {tmp_path}/nightly.jsonl?" in message
    assert "\n" not in message


def test_a_missing_file_with_no_close_name_lists_datasets(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "other.jsonl", [FRANCE])
    (tmp_path / "notes.txt").write_text("x")
    assert "datasets in that folder: other.jsonl" in str(refuse(tmp_path / "zzz.parquet"))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert f"the folder {tmp_path}/nowhere is not there either" in str(refuse(tmp_path / "nowhere" / "qa.jsonl"))


def test_a_directory_is_refused(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "a.jsonl", [FRANCE])
    message = str(refuse(tmp_path))
    assert f"{tmp_path} is a directory; allowed: one dataset file; name a file: {tmp_path}/a.jsonl" in message


@pytest.mark.parametrize(
    ("name", "came"),
    [
        ("qa.docx", "unknown format '.docx'"),
        ("qa", "a file name without an ending"),
        ("qa.parquet.gz", "unknown format '.gz'"),
        ("qa.gz", "unknown format '.gz'"),
    ],
)
def test_an_unknown_format_lists_the_known_ones(tmp_path: Path, name: str, came: str) -> None:
    (tmp_path / name).write_text("x")
    message = str(refuse(tmp_path / name))
    assert f"{name}: {came}; allowed: {KNOWN} (text formats also with .gz)" in message
    assert "FILE.duckdb#TABLE, or a Polars frame; save the dataset as one of these" in message


def test_a_path_that_no_system_takes_is_refused() -> None:
    message = str(refuse("x" * 5000 + ".jsonl"))
    assert "File name too long; allowed: a file you may read; check path and rights" in message


def test_addresses_are_refused() -> None:
    assert "https://host/qa.jsonl is an address" in str(refuse("https://host/qa.jsonl"))


def test_other_objects_are_refused() -> None:
    message = str(refuse([{"question": "q"}]))
    assert "a builtins.list is not a dataset" in message
    assert "polars.DataFrame" in message


@pytest.mark.parametrize("name", ["qa.jsonl", "qa.json", "qa.csv", "qa.parquet", "qa.arrow", "qa.duckdb"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    message = str(refuse(f"{tmp_path / name}#t" if name == "qa.duckdb" else tmp_path / name))
    assert f"{name} is empty (0 bytes); allowed: at least one row; was it written to the end?" in message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qa.jsonl", "\n\n  \n"),
        ("qa.json", " \n"),
        ("qa.json", "[]"),
        ("qa.csv", "question,answer\n"),
        ("qa.csv", "\n"),
    ],
)
def test_a_file_without_rows_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    message = str(refuse(tmp_path / name))
    assert message == f"{tmp_path / name}: no rows; a dataset has at least one row; was it written to the end?"


def test_tables_without_rows_are_refused(tmp_path: Path) -> None:
    frame = pl.DataFrame({"question": []}, schema={"question": pl.String})
    frame.write_parquet(tmp_path / "qa.parquet")
    frame.write_ipc(tmp_path / "qa.arrow")
    for source in (frame, tmp_path / "qa.parquet", tmp_path / "qa.arrow"):
        assert "no rows" in str(refuse(source))


def test_a_pipe_is_no_file_that_can_be_read_twice(tmp_path: Path) -> None:
    assert "is not a regular file" in str(refuse("/dev/null"))


# --- columns


@pytest.mark.parametrize("name", ["qa.jsonl", "qa.parquet"])
def test_no_question_column_lists_the_columns_and_the_names(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    frame = pl.DataFrame({"frage": ["q", "r"], "answer": ["a", "b"]})
    frame.write_parquet(path) if name.endswith("parquet") else frame.write_ndjson(path)
    error = refuse(path)
    assert str(error) == (
        f"{path}: no question column; columns: frage, answer; read as the question: question, user_input, input, "
        "query, inputs.question, prompt, inputs; name the column with --map, as in --map question=COLUMN"
    )
    assert error.n_problems == 1


def test_no_question_column_is_told_with_what_was_found_before(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text('{"a": 1\n{"text": "t"}\n')
    message = str(refuse(path))
    assert "2 problems" in message
    assert "no question column; columns: text" in message
    assert "line 1: broken JSON" in message


# --- broken text


def test_broken_json_lines_are_told_with_line_and_words(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text(LINE + '{"question": "q" "answer": "a"}\n' + LINE.replace("q1", "q2") + "{'question': 1}\n" + '{"q')
    message = str(refuse(path))
    assert message.startswith(f"{path}: 3 problems; nothing was loaded\n")
    assert "  line 2: broken JSON: Expecting ',' delimiter at column 18\n" in message
    assert "  line 4: broken JSON: Expecting property name enclosed in double quotes at column 2\n" in message
    assert "  line 5: broken JSON: Unterminated string starting at at column 2\n" in message
    assert message.endswith(
        "to do: JSON has double quotes and no comma after the last member; fix or remove what is broken"
    )


def test_half_a_surrogate_pair_is_broken_json(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text(LINE + '{"question": "\\ud83d"}\n')
    assert "line 2: broken JSON: half of a surrogate pair" in str(refuse(path))


def test_json_nested_without_end_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text(LINE + '{"question": "q", "x": ' + "[" * 100_000 + "\n" + LINE.replace("q1", "q2"))
    assert "line 2: broken JSON: " in str(refuse(path))
    path.with_suffix(".json").write_text(f"[{LINE}, " + "[" * 100_000)
    assert "element 2: nested too deep" in str(refuse(path.with_suffix(".json")))


@pytest.mark.parametrize(("text", "kind"), [("[1, 2]", "a list"), ('"q"', "text"), ("5", "a number"), ("null", "null")])
def test_rows_that_are_no_objects_are_refused(tmp_path: Path, text: str, kind: str) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text(LINE + text + "\n")
    assert f"line 2: {kind}, not a JSON object: " in str(refuse(path))
    path = tmp_path / "qa.json"
    path.write_text(f"[{LINE}, {text}]")
    message = str(refuse(path))
    assert f"element 2: {kind}, not a JSON object: " in message
    assert 'every row is a JSON object such as {"question": "…", "answer": "…"}' in message


def test_a_json_list_named_jsonl_says_how_to_name_it(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl"
    path.write_text(json.dumps([FRANCE, MOON], indent=1))
    message = str(refuse(path))
    assert "1 problem;" in message
    assert "line 1: a JSON list, where JSON Lines was expected: name it .json" in message


def test_broken_json_says_the_line_and_what_was_wrong_before(tmp_path: Path) -> None:
    path = tmp_path / "qa.json"
    path.write_text('[\n{"question": ""},\n{"question": "b"},\n{"question": c}\n]')
    message = str(refuse(path))
    assert f"{path}: 2 problems; nothing was loaded" in message
    assert "broken JSON on line 4: lexical error: invalid char in json text" in message
    assert "element 1: the question is empty" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"question": "q"}', "broken JSON on line 1: parse error: premature EOF"),
        ('[{"question": "q"}] []', "broken JSON on line 1: parse error: trailing garbage"),
        ('{"rows": [{"question": "q"},\n{"question": "r"}]', "broken JSON on line 2: parse error: premature EOF"),
        (
            '[{"question": "q",\n "score": NaN}]',
            "broken JSON on line 2: lexical error: invalid char in json text (NaN is",
        ),
        ("5", "the file holds a number, not an array of objects"),
        ('{"question": "q", "tags": ["a", "b"]}', "no array of objects in it (under data, samples, rows, examples, …)"),
        ('{"rows": [{"question": "q"}], "more": [{"a": 1}]}', "two arrays of objects, 'rows' and 'more', and only one"),
    ],
)
def test_json_files_that_are_no_array_of_objects(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "qa.json"
    path.write_text(text)
    message = str(refuse(path))
    assert message.startswith(f"{path}: {words}")
    assert "\n" not in message


def test_text_that_is_not_utf8_is_told_with_line_and_byte(tmp_path: Path) -> None:
    bad = '{"question": "q", "answer": "caf\xe9"}\n'.encode("latin-1")
    path = tmp_path / "qa.jsonl"
    path.write_bytes(LINE.encode() + bad + bad)
    message = str(refuse(path))
    assert "2 problems" in message
    assert "line 2: not UTF-8: byte 33 of the line is 0xe9" in message
    assert "save the file as UTF-8" in message
    path = tmp_path / "qa.json"
    path.write_bytes(b"[\n" + bad + b"]")
    assert "line 2 is not UTF-8: byte 33 of the line is 0xe9" in str(refuse(path))
    path = tmp_path / "qa.csv"
    path.write_bytes(b"question,answer\nq,a\n\xe9,b\n")
    assert "line 3: not UTF-8: byte 1 of the line is 0xe9" in str(refuse(path))


def test_the_byte_is_right_in_a_line_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "qa.json"
    start = b'[{"question": "'
    path.write_bytes(start + "é".encode() * 100_000 + b"\xff" + b'"}]')
    assert f"line 1 is not UTF-8: byte {len(start) + 200_001:,} of the line is 0xff" in str(refuse(path))


def test_utf16_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    for name in ("qa.jsonl", "qa.json", "qa.csv"):
        (tmp_path / name).write_bytes(LINE.encode("utf-16")[:-1])
        assert "the file is not utf-16: truncated data" in str(refuse(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("question,answer\nq\nr,a,b\ns,t\n", "line 2: 1 cells where the header has 2\n  line 3: 3 cells where"),
        ('question,answer\nq,a\n"r,b\nc,d\n', "line 3: broken CSV: unexpected end of data"),
        ('question,answer\nq,"a" b\n', "line 2: broken CSV: ',' expected after '\"'"),
        ("question,answer,answer\nq,a,a\nq,a,b\n", "line 3: two columns have one name and two values: answer"),
    ],
)
def test_broken_csv_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "qa.csv"
    path.write_text(text)
    message = str(refuse(path))
    assert problem in message
    assert "a quote inside a quoted cell is doubled" in message


def test_a_broken_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "qa.jsonl.gz"
    path.write_text(LINE)
    assert "cannot be read as .jsonl: Not a gzipped file" in str(refuse(path))
    path.write_bytes(gzip.compress(LINE.encode() * 500)[:-20])
    assert "cannot be read as .jsonl: " in str(refuse(path))
    (tmp_path / "qa.json.gz").write_bytes(b"[1]")
    assert "cannot be read as .json: Not a gzipped file" in str(refuse(tmp_path / "qa.json.gz"))


# --- broken tables


@pytest.mark.parametrize("name", ["qa.parquet", "qa.arrow", "qa.feather", "qa.ipc"])
def test_a_wrong_binary_file_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(LINE)
    message = str(refuse(path))
    assert message.startswith(f"{path}: cannot be read as {path.suffix}: ")
    assert "write or download it again" in message
    assert "\n" not in message


def test_a_cut_off_parquet_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "qa.parquet"
    pl.DataFrame({"question": ["q"] * 1000}).write_parquet(path)
    path.write_bytes(path.read_bytes()[:-30])
    assert "cannot be read as .parquet" in str(refuse(path))


def test_columns_of_the_same_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([["q"], ["a"], ["b"]], names=["question", "answer", "answer"])
    pq.write_table(table, tmp_path / "qa.parquet")
    assert "two columns have the same name: answer" in str(refuse(tmp_path / "qa.parquet"))


# --- repeated ids


def test_a_repeated_id_is_told_with_both_rows(tmp_path: Path) -> None:
    rows = [{"id": given, "question": f"q{n}"} for n, given in enumerate(["a", "b", 7, "a", "7", None, None, "a"])]
    path = write_json_lines(tmp_path / "qa.jsonl", rows)
    message = str(refuse(path))
    assert message.startswith(f"{path}: 3 problems; nothing was loaded\n")
    assert "  line 4: id 'a' is that of line 1 already\n" in message
    assert "  line 5: id '7' is that of line 3 already\n" in message
    assert "  line 8: id 'a' is that of line 1 already\n" in message
    assert "an id names one row; make the ids differ" in message


def test_repeated_ids_are_found_in_every_kind_of_source(tmp_path: Path) -> None:
    frame = pl.DataFrame({"qid": ["a", "b", "a"], "question": ["x", "y", "z"]})
    frame.write_csv(tmp_path / "qa.csv")
    frame.write_parquet(tmp_path / "qa.parquet")
    (tmp_path / "qa.json").write_text(json.dumps(frame.to_dicts()))
    assert "line 4: id 'a' is that of line 2 already" in str(refuse(tmp_path / "qa.csv"))
    assert "row 3: id 'a' is that of row 1 already" in str(refuse(tmp_path / "qa.parquet"))
    assert "element 3: id 'a' is that of element 1 already" in str(refuse(tmp_path / "qa.json"))
    assert "row 3: id 'a' is that of row 1 already" in str(refuse(frame))


def test_repeated_ids_are_told_with_the_other_problems_in_file_order(tmp_path: Path) -> None:
    rows = [{"id": "a", "question": "q"}, {"id": "a", "question": ""}, {"id": "b", "question": " "}]
    message = str(refuse(write_json_lines(tmp_path / "qa.jsonl", rows)))
    places = [line.strip().split(":")[0] for line in message.splitlines() if line.startswith("  ")]
    assert places == ["line 2", "line 2", "line 3"]
    assert "line 2: id 'a' is that of line 1 already" in message


def test_limit_looks_for_repeated_ids_only_among_the_rows_it_reads(tmp_path: Path) -> None:
    path = write_json_lines(tmp_path / "qa.jsonl", [{"id": given, "question": "q"} for given in "aba"])
    assert len(read_all(path, limit=2)) == 2


# --- many problems


def test_at_most_twenty_problems_are_listed(tmp_path: Path) -> None:
    rows = [FRANCE, *({"question": "", "n": n} for n in range(1500)), {"question": "q", "contexts": "c"}]
    error = refuse(write_json_lines(tmp_path / "qa.jsonl", rows))
    lines = str(error).splitlines()
    assert lines[0].endswith("qa.jsonl: 1,501 problems; nothing was loaded")
    assert lines[1] == "  line 2: the question is empty"
    assert lines[20] == "  line 21: the question is empty"
    assert lines[21] == "  and 1,481 more"
    assert [line[:7] for line in lines[22:]] == ["to do: ", "to do: "]
    assert (error.n_problems, len(error.problems)) == (1501, 20)
    assert (error.problems[0].row, error.problems[0].kind) == (2, "no_question")


def test_after_the_first_problem_no_batch_comes(tmp_path: Path) -> None:
    rows = [{"question": "" if n == 15 else "q"} for n in range(1, 41)]
    batches = read_samples(write_json_lines(tmp_path / "qa.jsonl", rows), batch_size=10)
    assert len(next(batches)) == 10
    with pytest.raises(DatasetError, match="1 problem; nothing was loaded\n  line 15: the question is empty"):
        next(batches)
