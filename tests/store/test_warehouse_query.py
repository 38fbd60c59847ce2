"""`query`: what a person may ask, how it is answered, and that nothing beyond the warehouse can be reached."""

import os
import shutil
import time
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from warehouse_processes import make_batch, make_warehouse

from evalhouse.warehouse.errors import QueryError, WarehouseMissing
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.sandbox.query import answer_statement, run_query

Ask = Callable[[str], pl.DataFrame]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warehouse with one batch, and files beside it that no query may see."""
    folder = tmp_path_factory.mktemp("query")
    make_warehouse(folder).append(make_batch("k"))
    make_warehouse(folder / "others")
    (folder / "secret.csv").write_text("a\nsecret\n")
    (folder / "exported").mkdir()
    (folder / "exported" / "schema.sql").write_text("secret")
    (folder / "exported" / "load.sql").write_text("")
    return folder


@pytest.fixture
def ask(folder: Path) -> Ask:
    location = parse_location(str(folder / "w.duckdb"))
    return lambda sql: run_query(location, sql, timeout_s=20)


def expect_refusal(ask: Ask, sql: str, *words: str) -> None:
    """A QueryError of one line with these words."""
    with pytest.raises(QueryError) as raised:
        ask(sql)
    text = str(raised.value)
    assert "\n" not in text
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    "sql",
    [
        "select label from classifications limit 1",
        "with found as (select label from classifications) select * from found limit 1;",
        "(select 'TP' as label)",
        "from (values ('TP')) as rows (label)",
        "-- a comment; with a semicolon\nselect 'TP' as label /* and another ; */",
    ],
)
def test_one_select_in_any_form(ask: Ask, sql: str) -> None:
    assert ask(sql).to_dicts() == [{"label": "TP"}]


def test_what_is_there_can_be_asked(ask: Ask) -> None:
    assert {"runs", "run_scores", "llm_calls"} <= set(ask("show tables")["name"])
    assert "run_id" in ask("describe runs")["column_name"].to_list()
    assert ask("summarize classifications")["count"].to_list() == [3] * 6
    assert ask("select count(*) as n from duckdb_views() where not internal")["n"][0] > 5


def test_a_pivot_lists_its_values(ask: Ask) -> None:
    pivot = "pivot classifications on label in ('TP', 'FP') using count(*) group by run_id"
    assert ask(pivot).to_dicts() == [{"run_id": "r", "TP": 3, "FP": 0}]
    expect_refusal(ask, "pivot classifications on label using count(*)", "PIVOT must list its values")


def test_every_type_comes_out(ask: Ask) -> None:
    sql = '''
    select 1 as a, 'x' as b, null as c, [1, 2] as d, {'k': 1} as e, timestamp '2026-01-01' as f, 1::hugeint as g,
        'yes'::enum('yes', 'no') as h, uuid '00000000-0000-0000-0000-000000000001' as i, '{"a": 1}'::json as j,
        timestamp '2026-01-02' - timestamp '2026-01-01' as k, [interval 1 hour] as l, union_value(n := 1) as m,
        '101'::bit as n, time '10:00' as o, 'inf'::double as p, map {'a': 1} as "q ""r""", interval 1 day as "s ""t"""
    '''
    row = ask(sql).row(0, named=True)
    assert (row["a"], row["b"], row["c"], row["d"], row["e"]) == (1, "x", None, [1, 2], {"k": 1})
    assert (row["f"], row["g"], row["h"]) == (datetime(2026, 1, 1), Decimal(1), "yes")
    assert (row["i"], row["j"]) == ("00000000-0000-0000-0000-000000000001", '{"a": 1}')
    # What Polars has no type for is text.
    assert (row["k"], row["l"], row["m"], row["n"]) == ("1 day", "['01:00:00']", "1", "101")
    assert row['s "t"'] == "1 day"


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("insert into runs select * from runs", "INSERT"),
        ("update runs set label = 'x'", "UPDATE"),
        ("delete from runs", "DELETE"),
        ("drop table runs", "DROP"),
        ("create temp table x as select 1", "CREATE"),
        ("alter table runs add column x int", "ALTER"),
        ("attach 'other.duckdb'", "ATTACH"),
        ("copy runs to 'out.csv'", "COPY"),
        ("export database 'out'", "EXPORT"),
        ("load httpfs", "LOAD"),
        ("set threads = 1", "SET"),
        ("/* x */ pragma table_info('runs')", "PRAGMA"),
        ("call pragma_version()", "CALL"),
        ("checkpoint", "CALL"),
        ("begin", "TRANSACTION"),
        ("prepare p as select 1", "PREPARE"),
        ("vacuum", "VACUUM"),
    ],
)
def test_other_statements_are_refused_by_name(ask: Ask, sql: str, kind: str) -> None:
    expect_refusal(ask, sql, "write one SELECT", kind)


@pytest.mark.parametrize("sql", ["", "  ", "-- nothing", "select 1; select 2", "select 1; drop table runs"])
def test_exactly_one_statement(ask: Ask, sql: str) -> None:
    expect_refusal(ask, sql, "statements; query takes exactly one SELECT")


@pytest.mark.parametrize(
    "sql",
    [
        "select * from 'FOLDER/secret.csv'",
        "select * from read_csv('FOLDER/secret.csv')",
        "select * from read_text('FOLDER/secret.csv')",
        "select * from read_parquet('FOLDER/*')",
        "select * from parquet_metadata('FOLDER/secret.csv')",
        "select * from sniff_csv('FOLDER/secret.csv')",
        "select * from glob('FOLDER/*')",
        "select * from read_duckdb('FOLDER/others/w.duckdb', table_name = 'runs')",
        "select * from 'https://example.org/a.csv'",
        "select * from sqlite_scan('FOLDER/s.db', 't')",
        "select * from duckdb_secrets()",
        "import database 'FOLDER/exported'",
        "select getenv('HOME')",
    ],
)
def test_nothing_outside_can_be_reached(ask: Ask, folder: Path, sql: str) -> None:
    before = sorted(os.listdir(folder))
    with pytest.raises(QueryError) as raised:
        ask(sql.replace("FOLDER", str(folder)))
    # Not even by way of an error.
    assert 'near "secret"' not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize(
    "sql",
    [
        "select * from enable_logging(storage = 'file', storage_config = {'path': 'FOLDER/logs'})",
        "select * from enable_logging(storage = 'stdout')",
        'select * from "ENABLE_logging" /* ( */ ()',
        "select '中文', x.* from (from main.enable_profiling(save_location = 'FOLDER/p')) x",
        "select * from disable_logging()",
        "select * from query('select * from enable_' || 'logging()')",
        "select * from json_execute_serialized_sql('{}')",
        "select * from force_checkpoint()",
    ],
)
def test_functions_that_change_settings_or_run_text_are_refused(
    ask: Ask, folder: Path, capfd: pytest.CaptureFixture[str], sql: str
) -> None:
    expect_refusal(ask, sql.replace("FOLDER", str(folder)), "is not for queries here")
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    "written",
    [
        "explain analyze copy (select 1) to 'WAREHOUSE' (format csv, use_tmp_file false)",
        "EXPLAIN /* of */ ANALYZE -- a line\n copy (select 1) to 'WAREHOUSE' (use_tmp_file false)",
        "explain (analyze, format json) copy (select 1) to 'WAREHOUSE' (use_tmp_file false)",
        "explain (format json, analyze) copy runs to 'WAREHOUSE.wal' (format csv)",
        "explain analyze copy (select 1) to 'FOLDER/out.csv'",
        "explain analyze attach 'FOLDER/out.duckdb'",
        "explain analyze export database 'FOLDER/out'",
        "explain analyze pragma enable_profiling",
        "explain analyze create temp table a as select 1",
        "explain (analyze) insert into runs (run_id) values ('x')",
    ],
)
def test_what_is_explained_writes_nothing_not_even_the_open_warehouse(
    folder: Path, tmp_path: Path, written: str
) -> None:
    store = Path(shutil.copy(folder / "w.duckdb", tmp_path))
    before = store.read_bytes()
    sql = written.replace("WAREHOUSE", str(store)).replace("FOLDER", str(tmp_path))
    with pytest.raises(QueryError, match=r"^(EXPLAIN takes one SELECT here|Parser Error)"):
        run_query(parse_location(str(store)), sql, timeout_s=20)
    assert store.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["w.duckdb"]


@pytest.mark.parametrize(
    "sql",
    [
        "explain select 1",
        "explain analyze select count(*) from runs",
        "explain (analyze, format json) select 1",
        "explain analyze (select 1) union all (select 2)",
        "explain (format text) (select 1)",
        "-- a plan\nexplain analyze with a as (select 'copy') from a",
    ],
)
def test_plans_of_a_select_are_shown(ask: Ask, sql: str) -> None:
    assert ask(sql).height


def test_no_python_object_can_be_seen(ask: Ask) -> None:
    secret_frame = pl.DataFrame({"a": [1]})
    expect_refusal(ask, "select * from secret_frame", "secret_frame does not exist")
    assert secret_frame.height == 1


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("select valu from scores", ['"valu" not found', '"value"']),
        ("select * from score", ["score does not exist", '"scores"']),
        ("select 'x'::int", ["Conversion Error", "'x'"]),
    ],
)
def test_mistakes_are_reported_in_one_line(ask: Ask, sql: str, words: list[str]) -> None:
    expect_refusal(ask, sql, *words)


@pytest.mark.parametrize(
    ("sql", "at"),
    [
        ("selec 1", "selec"),
        ("select '灯塔' as x,\n  foo from (select 1 as a)", "foo"),
        ("-- first\nselect * from not_a_table", "not_a_table"),
        ("select '灯塔', fob(1)", "fob"),
        ("select 'unclosed", "'unclosed"),
        ("select * from runs where", ""),
        ("explain select 1 +", ""),
        ("select 1; select 2", None),
        ("select error('{\"a\":') from range(3)", None),
        ("select ('a' || range)::int from range(3)", None),
        ("delete from runs", None),
    ],
)
def test_a_mistake_is_reported_with_its_place(ask: Ask, sql: str, at: str | None) -> None:
    with pytest.raises(QueryError) as raised:
        ask(sql)
    if at is None:
        assert raised.value.place is None
    else:
        assert raised.value.place == (sql.index(at) if at else len(sql))


def test_a_long_query_is_stopped(folder: Path) -> None:
    began = time.monotonic()
    with pytest.raises(
        QueryError, match=r"stopped after 0\.3 s; narrow it, or give it longer by `evalhouse query --timeout`"
    ):
        run_query(
            parse_location(str(folder / "w.duckdb")),
            "select sum(a.range * b.range) from range(1000000) a, range(1000000) b",
            timeout_s=0.3,
        )
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("sql", "n_rows"),
    [
        ("from range(10)", 3),
        ("from range(2)", 2),
        ("select interval 1 day, range from range(10) -- the end", 3),
        ("explain select 1", 1),
        ("show tables", 3),
    ],
)
def test_no_more_rows_than_asked_for_are_fetched(folder: Path, sql: str, n_rows: int) -> None:
    location = parse_location(str(folder / "w.duckdb"))
    assert answer_statement(location, sql, timeout_s=20, most_rows=3).height == n_rows


def test_a_memory_limit_holds(folder: Path) -> None:
    location = parse_location(str(folder / "w.duckdb"))
    greedy = "select list(repeat('x', 100) || i) from range(10000000) numbers (i)"
    with pytest.raises(
        QueryError,
        match=r"Out of Memory Error: .*; narrow the query, or give it more by `evalhouse query --memory-limit`",
    ) as raised:
        run_query(location, greedy, memory_mb=60)
    assert "\n" not in str(raised.value)
    assert run_query(location, "select 1 as a", memory_mb=100).rows() == [(1,)]


def test_the_warehouse_is_unchanged_and_free_afterwards(folder: Path, ask: Ask) -> None:
    path = folder / "w.duckdb"
    before = path.read_bytes()
    ask("select * from statements")
    expect_refusal(ask, "delete from statements")
    assert path.read_bytes() == before
    assert sorted(entry.name for entry in folder.iterdir()) == [
        "exported",
        "others",
        "secret.csv",
        "w.duckdb",
        "w.duckdb.lock",
    ]


def test_a_query_without_a_warehouse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WarehouseMissing, match="no warehouse at"):
        run_query(parse_location(str(tmp_path / "w.duckdb")), "select 1")
