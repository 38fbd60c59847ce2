"""Refused datasets: each message states what came, what is allowed and what to do, and where."""

import gzip
import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_files import FRANCE, MOON, refuse, write_json_lines

from evalhouse.tasks.datasets.read import DatasetError, read_samples

LINE = json.dumps(FRANCE) + "\n"
KNOWN = ".jsonl, .ndjson, .json, .csv, .tsv, .parquet, .arrow, .feather, .ipc, .xlsx, .xlsm, .xls, .ods"

BAD = '{"question": "q", "answer": "caf\xe9"}\n'.encode("latin-1")
LATIN_START = b'[{"question": "'
NO_ROWS = "{path}: no rows; a dataset has at least one row; was it written to the end?"
EMPTY = "{path} is empty (0 bytes); allowed: at least one row; was it written to the end?"
BROKEN = "broken JSON on line"
DEEP = "[" * 100_000
TO_DO = "to do: JSON has double quotes and no comma after the last member; fix or remove what is broken"
# By the file's name: its content, and texts of the message; `^` for its start, `$` for its end.
FILES: list[tuple[str, str | bytes, tuple[str, ...]]] = [
    # --- the file itself
    *(
        (name, "x", (f"{name}: {came}; allowed: {KNOWN} (text formats also with .gz)",
                     "FILE.duckdb#TABLE, or a Polars frame; save the dataset as one of these"))
        for name, came in [
            ("qa.docx", "unknown format '.docx'"),
            ("qa", "a file name without an ending"),
            ("qa.parquet.gz", "unknown format '.gz'"),
            ("qa.gz", "unknown format '.gz'"),
        ]
    ),
    *((name, "", (EMPTY,)) for name in ("qa.jsonl", "qa.json", "qa.csv", "qa.parquet", "qa.arrow")),
    ("qa.jsonl", "\n\n  \n", (NO_ROWS,)),
    ("qa.json", " \n", (NO_ROWS,)),
    ("qa.json", "[]", (NO_ROWS,)),
    ("qa.csv", "question,answer\n", (NO_ROWS,)),
    ("qa.csv", "\n", (NO_ROWS,)),
    ("qa.jsonl", '{"a": 1\n{"text": "t"}\n',
     ("2 problems", "no question column; columns: text", "line 1: broken JSON")),
    # --- JSON Lines
    ("qa.jsonl",
     LINE + '{"question": "q" "answer": "a"}\n' + LINE.replace("q1", "q2") + "{'question': 1}\n" + '{"q',
     ("^{path}: 3 problems; nothing was loaded\n",
      "  line 2: broken JSON: Expecting ',' delimiter at column 18\n",
      "  line 4: broken JSON: Expecting property name enclosed in double quotes at column 2\n",
      "  line 5: broken JSON: Unterminated string starting at at column 2\n", f"{TO_DO}$")),
    ("qa.jsonl", LINE + '{"question": "\\ud83d"}\n', ("line 2: broken JSON: half of a surrogate pair",)),
    ("qa.jsonl", LINE + '{"question": "q", "x": ' + DEEP + "\n" + LINE.replace("q1", "q2"),
     ("line 2: broken JSON: ",)),
    ("qa.jsonl", json.dumps([FRANCE, MOON], indent=1),
     ("1 problem;", "line 1: a JSON list, where JSON Lines was expected: name it .json")),
    *(
        (name, f"{LINE}{text}\n" if name == "qa.jsonl" else f"[{LINE}, {text}]",
         (f"{place} 2: {kind}, not a JSON object: ",
          'every row is a JSON object such as {"question": "…", "answer": "…"}'))
        for text, kind in [("[1, 2]", "a list"), ('"q"', "text"), ("5", "a number"), ("null", "null")]
        for name, place in [("qa.jsonl", "line"), ("qa.json", "element")]
    ),
    ("qa.jsonl", LINE.encode() + BAD + BAD,
     ("2 problems", "line 2: not UTF-8: byte 33 of the line is 0xe9", "save the file as UTF-8")),
    # --- JSON
    ("qa.json", f"[{LINE}, {DEEP}", ("element 2: nested too deep",)),
    ("qa.json", '[\n{"question": ""},\n{"question": "b"},\n{"question": c}\n]',
     ("{path}: 2 problems; nothing was loaded", f"{BROKEN} 4: lexical error: invalid char in json text",
      "element 1: the question is empty")),
    *(
        ("qa.json", text, (f"^{{path}}: {words}",))
        for text, words in [
            ('[{"question": "q"}', f"{BROKEN} 1: parse error: premature EOF"),
            ('[{"question": "q"}] []', f"{BROKEN} 1: parse error: trailing garbage"),
            ('{"rows": [{"question": "q"},\n{"question": "r"}]', f"{BROKEN} 2: parse error: premature EOF"),
            ('[{"question": "q",\n "score": NaN}]', f"{BROKEN} 2: lexical error: invalid char in json text (NaN is"),
            ("5", "the file holds a number, not an array of objects"),
            ('{"question": "q", "tags": ["a", "b"]}',
             "no array of objects in it (under data, samples, rows, examples, …)"),
            ('{"rows": [{"question": "q"}], "more": [{"a": 1}]}',
             "two arrays of objects, 'rows' and 'more', and only one"),
        ]
    ),
    ("qa.json", b"[\n" + BAD + b"]", ("line 2 is not UTF-8: byte 33 of the line is 0xe9",)),
    # a line that is read in pieces
    ("qa.json", LATIN_START + "é".encode() * 100_000 + b"\xff" + b'"}]',
     (f"line 1 is not UTF-8: byte {len(LATIN_START) + 200_001:,} of the line is 0xff",)),
    # --- other text
    ("qa.csv", b"question,answer\nq,a\n\xe9,b\n", ("line 3: not UTF-8: byte 1 of the line is 0xe9",)),
    *(
        (name, LINE.encode("utf-16")[:-1], ("the file is not utf-16: truncated data",))
        for name in ("qa.jsonl", "qa.json", "qa.csv")
    ),
    *(
        ("qa.csv", text, (problem, "a quote inside a quoted cell is doubled"))
        for text, problem in [
            ("question,answer\nq\nr,a,b\ns,t\n", "line 2: 1 cells where the header has 2\n  line 3: 3 cells where"),
            ('question,answer\nq,a\n"r,b\nc,d\n', "line 3: broken CSV: unexpected end of data"),
            ('question,answer\nq,"a" b\n', "line 2: broken CSV: ',' expected after '\"'"),
            ("question,answer,answer\nq,a,a\nq,a,b\n", "line 3: two columns have one name and two values: answer"),
        ]
    ),
    ("qa.jsonl.gz", LINE, ("cannot be read as .jsonl: Not a gzipped file",)),
    ("qa.jsonl.gz", gzip.compress(LINE.encode() * 500)[:-20], ("cannot be read as .jsonl: ",)),
    ("qa.json.gz", b"[1]", ("cannot be read as .json: Not a gzipped file",)),
    # --- tables
    *(
        (name, LINE, (f"^{{path}}: cannot be read as {ending}: ", "write or download it again"))
        for name, ending in [(f"qa{ending}", ending) for ending in (".parquet", ".arrow", ".feather", ".ipc")]
    ),
]  # fmt: skip


def test_files_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    for number, (name, content, texts) in enumerate(FILES):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        message = str(refuse(path))
        for text in texts:
            whole = text.replace("{path}", str(path))
            if whole.startswith("^"):
                assert message.startswith(whole[1:]), (name, message)
                assert "\n" not in message or "problems" in whole, "a problem with the whole file takes one line"
            elif whole.endswith("$"):
                assert message.endswith(whole[:-1]), (name, message)
            else:
                assert whole in message, (name, message)


def test_missing_files_suggest_others(tmp_path: Path) -> None:
    write_json_lines(tmp_path / "nightly.jsonl", [FRANCE])
    write_json_lines(tmp_path / "other.jsonl", [FRANCE])
    (tmp_path / "notes.txt").write_text("x")
    message = str(refuse(tmp_path / "nigthly.jsonl"))
    assert message.startswith(f"{tmp_path}/nigthly.jsonl: no such file; allowed: {KNOWN}")
    assert f"did you mean {tmp_path}/nightly.jsonl?" in message
    assert "\n" not in message
    assert "datasets in that folder: nightly.jsonl, other.jsonl" in str(refuse(tmp_path / "zzz.parquet"))
    assert f"the folder {tmp_path}/missing is not there either" in str(refuse(tmp_path / "missing" / "qa.jsonl"))
    first = f"{tmp_path} is a directory; allowed: one dataset file; name a file: {tmp_path}/nightly.jsonl"
    assert first in str(refuse(tmp_path))
    for name, target in {"gone.jsonl": "nothing.jsonl", "loop.jsonl": "loop.jsonl"}.items():
        (tmp_path / name).symlink_to(target)
        message = str(refuse(tmp_path / name))
        assert message.startswith(f"{tmp_path}/{name} is a link to nothing; allowed: {KNOWN}")
        assert message.endswith("let it lead to a file")


def test_other_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "qa.duckdb").touch()
    frame = pl.DataFrame({"question": []}, schema={"question": pl.String})
    frame.write_parquet(tmp_path / "empty.parquet")
    frame.write_ipc(tmp_path / "empty.arrow")
    pl.DataFrame({"question": ["q"] * 1000}).write_parquet(tmp_path / "cut.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "cut.parquet").read_bytes()[:-30])
    table = pa.table([["q"], ["a"], ["b"]], names=["question", "answer", "answer"])
    pq.write_table(table, tmp_path / "twice.parquet")
    for source, text in [
        ("x" * 5000 + ".jsonl", "File name too long; allowed: a file you may read; check path and rights"),
        ("https://host/qa.jsonl", "https://host/qa.jsonl is an address"),
        ([{"question": "q"}], "a builtins.list is not a dataset"),
        ([{"question": "q"}], "polars.DataFrame"),
        ("/dev/null", "is a device"),
        (f"{tmp_path}/qa.duckdb#t", "qa.duckdb is empty (0 bytes); allowed: at least one row"),
        (frame, "no rows"),
        (tmp_path / "empty.parquet", "no rows"),
        (tmp_path / "empty.arrow", "no rows"),
        (tmp_path / "cut.parquet", "cannot be read as .parquet"),
        (tmp_path / "twice.parquet", "two columns have the same name: answer"),
    ]:
        assert text in str(refuse(source)), source


@pytest.mark.parametrize("name", ["qa.jsonl", "qa.parquet"])
def test_missing_question_column_lists_the_columns_and_the_names(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    frame = pl.DataFrame({"frage": ["q", "r"], "answer": ["a", "b"]})
    frame.write_parquet(path) if name.endswith("parquet") else frame.write_ndjson(path)
    error = refuse(path)
    assert str(error) == (
        f"{path}: no question column; columns: frage, answer; read as the question: question, user_input, input, "
        "query, inputs.question, vars.question, vars.query, prompt, inputs, questions; name the "
        "column with --map, as in --map question=COLUMN"
    )
    assert error.n_problems == 1


# --- repeated ids


def test_repeated_id_is_reported_with_both_rows(tmp_path: Path) -> None:
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


# --- many problems


def test_at_most_twenty_problems_are_listed(tmp_path: Path) -> None:
    rows = [FRANCE, *({"question": "", "n": n} for n in range(1500)), {"question": "q", "contexts": 3}]
    error = refuse(write_json_lines(tmp_path / "qa.jsonl", rows))
    lines = str(error).splitlines()
    assert lines[0].endswith("qa.jsonl: 1,501 problems; nothing was loaded")
    assert lines[1] == "  line 2: the question is empty"
    assert lines[20] == "  line 21: the question is empty"
    assert lines[21] == "  and 1,481 more"
    assert [line[:7] for line in lines[22:]] == ["to do: ", "to do: "]
    assert (error.n_problems, len(error.problems)) == (1501, 20)
    assert (error.problems[0].row, error.problems[0].kind) == (2, "no_question")


def test_no_batch_comes_after_the_first_problem(tmp_path: Path) -> None:
    rows = [{"question": "" if n == 15 else "q"} for n in range(1, 41)]
    batches = read_samples(write_json_lines(tmp_path / "qa.jsonl", rows), batch_size=10)
    assert len(next(batches)) == 10
    with pytest.raises(DatasetError, match="1 problem; nothing was loaded\n  line 15: the question is empty"):
        next(batches)
