"""A dataset that is a table in a DuckDB file: how it is named, what is read, when it is refused."""

from pathlib import Path

import duckdb
import polars as pl
import pytest
from dataset_files import FRANCE, MOON, read_all, refuse, write_duckdb, write_json_lines
from warehouse_processes import held_file

from evalhouse.tasks.datasets.read import read_samples
from evalhouse.tasks.datasets.values import DatasetError

ROWS = [FRANCE, MOON]


def test_duckdb_tables_are_named_in_several_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_duckdb(tmp_path / "nightly.duckdb", ROWS)
    with duckdb.connect(str(path)) as connection:
        connection.execute("create schema bot")
        connection.execute('create table bot."a.b" as select * from qa limit 1')
        connection.execute("create view last_asked as select * from qa where id = 'q2'")
    monkeypatch.chdir(tmp_path)
    for source in (f"{path}#qa", f"duckdb:///{path}#qa", "duckdb:///nightly.duckdb#qa", "nightly.duckdb#main.qa"):
        assert [sample.given_id for sample in read_all(source)] == ["q1", "q2"]
    assert [sample.given_id for sample in read_all(f"{path}#last_asked")] == ["q2"]
    assert [sample.given_id for sample in read_all(f"{path}#bot.a.b")] == ["q1"]


# Values of several types in one column, of which DuckDB makes JSON.
MIXED = [
    {"question": "q1", "answer": 'a "red"', "ground_truth": ["a", "b"], "contexts": [{"text": "one", "id": "d1"}],
     "lang": "de", "rows": [{"q": 1}], "given": {"at": 1}},
    {"question": "q2", "answer": "b", "ground_truth": "b", "contexts": ["two"], "lang": 5, "rows": [{"q": "x"}],
     "given": {"at": "noon"}},
    {"question": "q3", "answer": 118, "ground_truth": None, "contexts": [], "lang": None, "rows": None, "given": None},
]  # fmt: skip


@pytest.mark.parametrize("source", ["qa.duckdb#qa", "qa.parquet"])
def test_values_of_several_types_are_read_as_from_json_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """They were read in their JSON spelling, with quotes, which no other answer has."""
    monkeypatch.chdir(tmp_path)
    lines = write_json_lines(tmp_path / "qa.jsonl", MIXED)
    with duckdb.connect("qa.duckdb") as connection:
        connection.execute("create table qa as select * from read_json('qa.jsonl')")
        connection.execute("copy qa to 'qa.parquet'")
    assert read_all(source) == read_all(lines)


@pytest.mark.parametrize("source", ["qa.duckdb#qa", "qa.parquet", "qa.arrow"])
def test_members_that_a_nested_column_fills_in_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Right tool calls scored 0.6, as each call had the arguments of all; later a query that named a column of nulls
    of its tables failed."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"question": "q1", "calls": [{"name": "get", "args": {"id": 1}}], "outputs": {"answer": "a", "ms": 1},
         "run": {"out": {"answer": "b", "n": 1}},
         "tables": {"t": [{"id": 1, "gone": None}, {"id": 2, "gone": None}]}},
        {"question": "q2", "calls": [{"name": "get", "args": {"id": 1, "p": 2}}], "outputs": {"answer": None, "ms": 2},
         "run": {"out": {"answer": None, "n": 1}},
         "tables": {"t": [{"id": 1, "gone": "2026-01-02"}]}},
    ]  # fmt: skip
    lines = write_json_lines(tmp_path / "qa.jsonl", rows)
    pl.DataFrame(rows).write_parquet("qa.parquet")
    pl.DataFrame(rows).write_ipc("qa.arrow")
    with duckdb.connect("qa.duckdb") as connection:
        connection.execute("create table qa as select * from 'qa.parquet'")
    assert read_all(source) == read_all(pl.DataFrame(rows)) == read_all(lines)


@pytest.mark.parametrize("source", ["qa.duckdb#qa", "qa.parquet", "qa.arrow"])
def test_calls_and_rows_keep_the_nulls_of_a_nested_column_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = [[{"name": "get", "args": {"id": 1, "p": p}}] for p in (None, 2)]
    rows = [
        {"question": f"q{place}", "tool_calls": made, "expected_rows": [{"n": 1}], "notes": [{"a": 1, "b": None}]}
        for place, made in enumerate(calls)
    ]
    pl.DataFrame(rows).write_parquet("qa.parquet")
    pl.DataFrame(rows).write_ipc("qa.arrow")
    with duckdb.connect("qa.duckdb") as connection:
        connection.execute("create table qa as select * from 'qa.parquet'")
    first, second = read_all(source)
    assert (first.metadata["tool_calls"], first.metadata["nulls_filled_in"]) == (calls[0], ["tool_calls"])
    assert first.metadata["notes"] == [{"a": 1}]
    assert (second.metadata["tool_calls"], "nulls_filled_in" in second.metadata) == (calls[1], False)


@pytest.mark.parametrize("source", ["qa.duckdb#qa", "qa.parquet"])
def test_an_id_may_be_a_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.chdir(tmp_path)
    name = "12345678-1234-5678-1234-567812345678"
    with duckdb.connect("qa.duckdb") as connection:
        connection.execute(
            f"create table qa as select uuid '{name}' as id, 'q' as question, ['c'] as contexts, "
            f"[uuid '{name}'] as context_ids, {{'by': uuid '{name}'}} as source, uuid '{name}' as \"span.id\""
        )
        connection.execute("copy qa to 'qa.parquet'")
    [sample] = read_all(source)
    assert (sample.given_id, sample.context_ids, sample.metadata) == (
        name,
        [name],
        {"source": {"by": name}, "span.id": name},
    )


@pytest.mark.parametrize("source", ["qa.duckdb#qa", "qa.parquet"])
def test_a_number_of_32_bits_is_read_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with duckdb.connect("qa.duckdb") as connection:
        connection.execute(
            "create table qa as select 'q' || row_number() over () as question, n::float as answer, "
            "[0.1::float, null, 1e-8::float] as vector from (values (0.1), (1e9), ('nan'::float), (null)) numbers(n)"
        )
        connection.execute("copy qa to 'qa.parquet'")
    samples = read_all(source)
    assert [sample.answer for sample in samples] == ["0.1", "1000000000", None, None]
    assert samples[0].metadata == {"vector": [0.1, None, 1e-8]}


def test_duckdb_json_columns_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "qa.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            """create table qa as select 'q' as question, '["a", "b"]'::json as contexts,
            '{"answer": "x", "ms": 3}'::json as outputs, '{"topic": "t"}'::json as metadata,
            170141183460469231731687303715884105727::hugeint as big, map {'k': 1} as counts,
            uuid '12345678-1234-5678-1234-567812345678' as trace, timestamp '2024-05-01 12:00:00' as asked"""
        )
        connection.execute("create view seen as select *, row(1, '{\"a\": null}'::json) as pair from qa")
    [sample] = read_all(f"{path}#seen")
    assert (sample.contexts, sample.answer) == (["a", "b"], "x")
    assert sample.metadata == {
        "topic": "t",
        "outputs": {"ms": 3},
        "big": "170141183460469231731687303715884105727",
        "counts": {"k": 1},
        "trace": "12345678-1234-5678-1234-567812345678",
        "asked": "2024-05-01T12:00:00",
        "pair": [1, {"a": None}],
    }


def test_a_duckdb_file_is_let_go_of_when_the_rows_are_read(tmp_path: Path) -> None:
    path = write_duckdb(tmp_path / "qa.duckdb", ROWS)
    rows = read_samples(f"{path}#qa", batch_size=1)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    read_all(f"{path}#qa")
    with duckdb.connect(str(path)) as connection:
        connection.execute("insert into qa select * replace ('q3' as id) from qa where id = 'q1'")
    assert [sample.given_id for sample in read_all(f"{path}#qa")] == ["q1", "q2", "q3"]


# --- refusals


def make_duckdb(path: Path) -> Path:
    with duckdb.connect(str(path)) as connection:
        connection.execute("create table qa as select 'q' as question")
        connection.execute("create schema bot; create view bot.asked as select * from qa")
    return path


def test_other_files_and_tables_are_refused(tmp_path: Path) -> None:
    path, text = make_duckdb(tmp_path / "qa.duckdb"), tmp_path / "text.duckdb"
    text.write_text("not a database" * 1000)
    missing = f"{path} has no table 'qas'; allowed: its tables: bot.asked, qa; write {path}#TABLE"
    which = f"{path} is a DuckDB file: which table?; allowed: its tables: bot.asked, qa"
    for source, message in [
        (f"{path}#qas", missing),
        (f"duckdb:///{path}#qas", missing),
        (path, which),
        (f"duckdb:///{path}", which),
        (f"{path}#", which),
        ("duckdb://qa.duckdb#t", "names no DuckDB file; allowed: FILE.duckdb#TABLE"),
        ("duckdb://#t", "names no DuckDB file; allowed: FILE.duckdb#TABLE"),
        (f"{text}#qa", f"{text} cannot be opened as a DuckDB file"),
        (f"{tmp_path}/none.duckdb#qa", "no such file"),
    ]:
        assert message in str(refuse(source)), source


def test_a_view_that_fails_is_refused(tmp_path: Path) -> None:
    path = make_duckdb(tmp_path / "qa.duckdb")
    with duckdb.connect(str(path)) as connection:
        connection.execute("create view broken as select error('boom') as question from qa")
    message = str(refuse(f"{path}#broken"))
    assert f"{path}#broken cannot be read" in message
    assert "boom" in message


def test_a_locked_duckdb_file_is_refused_after_some_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_duckdb(tmp_path / "qa.duckdb")
    monkeypatch.setattr("evalhouse.tasks.datasets.tables.DUCKDB_PATIENCE_S", 0.2)
    with held_file(path, read_only=False):
        message = str(refuse(f"{path}#qa"))
    assert f"{path} is locked: " in message
    assert "allowed: a file that no program writes to; close the program that writes to it" in message
    assert len(read_all(f"{path}#qa")) == 1


def test_a_view_of_the_file_reads_no_other_file(tmp_path: Path) -> None:
    """A dataset may come from anyone, and its texts go to the judge."""
    secret = tmp_path / "secret.csv"
    secret.write_text("API_KEY=topsecret")
    path = tmp_path / "their.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("create table asked as select 'When?' as question")
        connection.execute("create view own as select * from asked")
        connection.execute(f"create view file as select '?' as question from '{secret}'")
    assert [sample.question for sample in read_all(f"{path}#own")] == ["When?"]
    with pytest.raises(DatasetError, match="file system operations are disabled"):
        read_all(f"{path}#file")


def test_a_view_of_a_file_whose_views_may_reach_other_files_is_refused(tmp_path: Path) -> None:
    path = make_duckdb(tmp_path / "their.duckdb")
    with duckdb.connect(str(path)) as connection:
        # To read it ends the process in DuckDB 1.5, because no file may be written.
        connection.execute("create view logged as select '?' as question from enable_logging('QueryLog')")
    assert [sample.question for sample in read_all(f"{path}#qa")] == ["q"]
    for view in ("bot.asked", "logged"):
        assert "its view logged calls enable_logging, and so may" in str(refuse(f"{path}#{view}"))
