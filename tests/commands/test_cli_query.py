"""`evalhouse query`: a person's SQL in, rows out in every format, and nothing but reading."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import duckdb
import pytest
from cli_house import HOSTILE_ID, House
from cli_process import COMMAND, Ask, finish, show_in_terminal
from kept_open import let_go

from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.sandbox.query import read_catalog

SAMPLES = "select sample_id, question, contexts, length(answer) as n from samples order by sample_id"
# One column of each kind that some format has no form for.
KINDS = """
select 7 as whole, 0.000123456::double as small, 1.50::decimal(9, 2) as money, null as nothing, true as yes,
       [1, 2] as list, {'a': 'b'} as struct, map {'k': 1} as map, 'ab'::blob as bytes, date '2025-01-02' as day,
       timestamp '2025-01-02 03:04:05.678' as moment, interval 3 days as span, 'nan'::double as nan,
       170141183460469231731687303715884105727::hugeint as huge, 'a|b' || chr(10) || 'c' as lines
"""


def test_table_is_the_default_and_rows_are_counted_aside(ask: Ask) -> None:
    finished = ask("query", SAMPLES)
    assert finished.status == 0
    assert finished.lines[0].split() == ["sample_id", "question", "contexts", "n"]
    assert len(finished.lines) == 5
    assert finished.stderr == "4 rows\n"
    assert "\x1b" not in finished.stdout
    assert ask("query", "select 1 as one").stderr == "1 row\n"


def test_json_is_an_array_of_objects_and_nothing_else(ask: Ask) -> None:
    finished = ask("query", SAMPLES, "--format", "json")
    assert finished.stderr == ""
    rows = finished.document
    assert [row["sample_id"] for row in rows] == [HOSTILE_ID, "silent-1", "tide-1", "zh-1"]
    assert rows[1]["n"] is None
    assert len(rows[2]["contexts"]) == 2
    assert ask("query", "select 1 where false", "--format", "json").document == []


@pytest.mark.parametrize(
    "arguments",
    [("query", "select 1", "--format", "csv", "-o"), ("report", "latest", "-o"), ("gate", "latest", "--junit")],
)
def test_an_output_in_place_of_a_warehouse_is_refused(ask: Ask, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """One letter and a Tab too many replaced all runs by one table."""
    database = tmp_path / "evalhouse.duckdb"
    duckdb.connect(str(database)).close()
    content = database.read_bytes()
    refused = ask(*arguments, str(database))
    assert refused.status == 2
    assert f"{database} is a DuckDB database, which would be lost; name another file" in refused.stderr
    assert database.read_bytes() == content


def test_json_lines_hold_the_same_rows(ask: Ask) -> None:
    rows = ask("query", KINDS, "--format", "json").document
    lines = ask("query", KINDS, "--format", "jsonl").lines
    assert [json.loads(line) for line in lines] == rows


def test_every_kind_of_value_has_a_form(ask: Ask) -> None:
    (row,) = ask("query", KINDS, "--format", "json").document
    assert row["whole"] == 7
    assert row["small"] == 0.000123456
    assert row["money"] == 1.5
    assert row["list"] == [1, 2]
    assert row["struct"] == {"a": "b"}
    assert row["bytes"] == "6162"
    assert row["day"] == "2025-01-02"
    assert row["nan"] is None
    assert row["lines"] == "a|b\nc"
    assert str(row["huge"]).startswith("1.70141183460469231") or row["huge"].startswith("17014118346046923")


def test_the_first_and_the_last_time_are_shown(ask: Ask) -> None:
    shown = ask("query", "select timestamp '0001-01-01' as a, date '9999-12-31' as b, timestamp_ns '2000-01-01' as c")
    assert shown.lines[1].split() == ["0001-01-01", "00:00:00", "9999-12-31", "2000-01-01", "00:00:00"]


def test_csv_is_read_back_with_lists_as_json(ask: Ask) -> None:
    finished = ask("query", SAMPLES, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(finished.stdout)))
    assert [row["sample_id"] for row in rows] == [HOSTILE_ID, "silent-1", "tide-1", "zh-1"]
    assert rows[0]["question"].count("\x1b") > 1, "a pipe gets the text unchanged"
    assert len(json.loads(rows[2]["contexts"])) == 2
    (kinds,) = csv.DictReader(io.StringIO(ask("query", KINDS, "--format", "csv").stdout))
    assert kinds["struct"] == '{"a":"b"}'
    assert kinds["lines"] == "a|b\nc"
    texts = "select '=1+1' as a, '- one' as b, -1.5 as c, ['+x'] as d, '@x' as \"=e\""
    (row,) = csv.DictReader(io.StringIO(ask("query", texts, "--format", "csv").stdout))
    assert row == {"a": "'=1+1", "b": "'- one", "c": "-1.5", "d": '["+x"]', "'=e": "'@x"}, "no spreadsheet runs it"
    exact = {"a": "=1+1", "b": "- one", "c": -1.5, "d": ["+x"], "=e": "@x"}
    assert ask("query", texts, "--format", "jsonl").document == exact


def test_a_table_shows_digits_that_three_decimals_would_lose(ask: Ask) -> None:
    finished = ask("query", "select 0.000123456::double as small, 1234.5::double as large, 'nan'::double as nan")
    assert finished.lines[1].split() == ["0.000123456", "1234.5", "nan"]


def test_markdown_keeps_a_row_on_its_line(ask: Ask) -> None:
    lines = ask("query", "select 'a|b' || chr(10) || 'c' as text, null as empty", "--format", "markdown").lines
    assert lines == ["| text | empty |", "| --- | --- |", "| a\\|b c |  |"]


def test_output_goes_to_a_file_in_the_format_of_its_name(ask: Ask, tmp_path: Path) -> None:
    for name in ("rows.csv", "rows.json", "rows.jsonl", "rows.ndjson", "rows.md", "rows.parquet", "rows.txt"):
        finished = ask("query", SAMPLES, "-o", str(tmp_path / name))
        assert finished.stdout == ""
        assert finished.stderr == f"4 rows in {tmp_path / name}\n"
    assert len(json.loads((tmp_path / "rows.json").read_text())) == 4
    assert (tmp_path / "rows.jsonl").read_text() == (tmp_path / "rows.ndjson").read_text()
    assert (tmp_path / "rows.md").read_text().startswith("| sample_id |")
    assert (tmp_path / "rows.txt").read_text().startswith("sample_id ")
    assert duckdb.sql(f"select count(*) from '{tmp_path / 'rows.parquet'}'").fetchall() == [(4,)]
    ask("query", SAMPLES, "-o", str(tmp_path / "forced.txt"), "--format", "json")
    assert len(json.loads((tmp_path / "forced.txt").read_text())) == 4


def test_sql_comes_from_a_file_or_standard_input(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "count.sql"
    path.write_text("-- how many\nselect count(*) as n from samples", encoding="utf-8")
    assert ask("query", "-f", str(path), "--format", "json").document == [{"n": 4}]
    for arguments in ((), ("-f", "-"), ("-",)):
        monkeypatch.setattr("sys.stdin", io.StringIO("select count(*) as n from samples"))
        assert ask("query", *arguments, "--format", "json").document == [{"n": 4}]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert "the SQL is empty" in ask("query").stderr


def test_a_plan_is_drawn_and_the_catalogue_can_be_asked(ask: Ask) -> None:
    assert "┌─" in ask("query", "explain select 1").stdout
    tables = {row["name"] for row in ask("query", "show tables", "--format", "json").document}
    assert {"runs", "scores", "llm_calls", "run_scores", "score_lineage"} <= tables


def test_d_lists_tables_and_views_with_what_a_row_is(ask: Ask) -> None:
    rows = {row["name"]: row for row in ask("query", "\\d", "--format", "json").document}
    assert rows["run_scores"]["kind"] == "view"
    assert rows["run_scores"]["comment"].startswith("One row per run and metric")
    assert rows["llm_calls"]["kind"] == "table"
    assert {row["name"] for row in ask("query", "show tables", "--format", "json").document} == set(rows)


@pytest.mark.parametrize("written", ["\\d unscored", " \\d  UNSCORED ; ", '\\d "unscored"'])
def test_d_with_a_name_lists_its_columns_in_order_with_their_comments(ask: Ask, written: str) -> None:
    rows = ask("query", written, "--format", "json").document
    assert [row["column"] for row in rows] == ["run_id", "sample_id", "metric", "reason", "steps", "detail"]
    assert rows[3] == {"column": "reason", "type": "VARCHAR", "comment": "Why, one of unscored_reasons."}


def test_every_column_of_every_view_has_a_comment(house: House) -> None:
    views = [one for one in read_catalog(parse_location(str(house.path))).relations if one.kind == "view"]
    assert len(views) > 20
    for view in views:
        assert [column.name for column in view.columns if not column.comment] == [], view.name


def test_without_sql_a_terminal_states_what_to_give_and_where_to_write_it(house: House) -> None:
    finished = show_in_terminal(house.place, "query", columns=200)
    assert finished.status == 2
    assert 'evalhouse query "from run_scores"' in finished.stdout
    assert "`evalhouse ui`" in finished.stdout


def test_ctrl_c_ends_a_long_query_at_once(house: House) -> None:
    process = house.place.start("query", "select max(md5(i::varchar)) from range(1000000000000) numbers(i)")
    time.sleep(2)
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    finished = finish(process, timeout_s=20)
    assert time.monotonic() - began < 5
    assert finished.status == 130
    assert finished.stderr.strip() == "interrupted"


def test_a_module_in_the_working_folder_is_not_imported(house: House, ask: Ask) -> None:
    """A script of the user named `random.py` broke each query, and one in a downloaded folder ran."""
    module = house.place.folder / "random.py"
    module.write_text("raise SystemExit(7)")
    try:
        assert ask("query", "select 40 + 2 as n", "--format", "csv").stdout == "n\n42\n"
    finally:
        module.unlink()


def test_a_query_leaves_no_trace(house: House, ask: Ask) -> None:
    let_go()
    before = {path.name: path.stat().st_mtime_ns for path in house.place.folder.glob("evalhouse.duckdb*")}
    assert ask("query", "from scores").status == 0
    assert {path.name: path.stat().st_mtime_ns for path in house.place.folder.glob("evalhouse.duckdb*")} == before


@pytest.mark.parametrize(("arguments", "status"), [
    (("query", "from range(20)"), 0),
    (("query", "from range(200000)", "--format", "csv"), 0),
    (("runs",), 0),
    (("gate", "latest", "--max-latency-p95-ms", "1", "--undecided", "fail"), 1),  # not a pass
])  # fmt: skip
def test_a_reader_that_has_gone_raises_nothing(house: House, arguments: tuple[str, ...], status: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    place: Any = house.place
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=place.folder,
        env=place.environment(),
        stdout=writing,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writing)
    assert done.returncode == status
    assert b"Error" not in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Broken" not in done.stderr
