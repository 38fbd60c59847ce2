"""Result sets: what counts as the same row, queries that are to do no harm, and SQL answers in a run: which rows are
compared, whose fault a failure is, and what running proves of two queries."""

from __future__ import annotations

import datetime
import decimal
import doctest
import json
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cli_house import write_dataset
from cli_process import Place
from grades import flag, grade_with, measure, score_work
from hypothesis import example, given
from hypothesis import strategies as st
from live_runs import ScriptedJudge, lay_out_run, make_sample, read_outcomes

from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.measure import describe_deaths, find_mark, measure_sample
from evalhouse.tasks.measures import structured_answers as result_sets
from evalhouse.tasks.measures.structured_answers import (
    ResultSet,
    compare_result_sets,
    compare_results,
    must_differ,
    prove_by_running,
    read_rows,
    run_on_tables,
)
from evalhouse.tasks.pipeline.live_run import make_work
from evalhouse.warehouse.errors import QueryError, QueryStopped, TableError
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse

D = decimal.Decimal
SHIPS = {
    "ship": [{"id": 1, "name": "Tern", "length_m": 12.5, "yard": "Orm"},
     {"id": 2, "name": "Gull", "length_m": None, "yard": "Orm"}, {"id": 3, "name": "Auk", "length_m": 9, "yard": None}],
}  # fmt: skip


def table(columns: str, *rows: tuple[Any, ...]) -> ResultSet:
    return ResultSet(columns=tuple(columns.split()), rows=rows)


def compare(one: ResultSet, other: ResultSet) -> Any:  # noqa: ANN401  # a pair, also of approximate numbers
    """F1 and the share in order."""
    agreement = compare_result_sets(one, other)
    return agreement.f1, agreement.in_order


def test_the_worked_examples_hold() -> None:
    assert doctest.testmod(result_sets).failed == 0
    assert doctest.testmod(result_sets).attempted > 0


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        (1, 1.0, True), (1, D("1.00"), True), (0.1, D("0.1"), True), (0.1 + 0.2, 0.3, True), (1, 2, False),
        (1_700_000_001, 1_700_000_002, False),  # whole numbers agree in every digit
        (2**63 + 1, 2**63 + 2, False), (D("12345678.91"), D("12345678.92"), False), (1e10 + 1e-5, 10**10, True),
        (12345678.95, 12345678.949999999, True),  # the same sum in another order
        (float("nan"), float("nan"), True), (float("inf"), float("inf"), True), (float("inf"), float("nan"), False),
        (None, None, True), (None, 0, False), (None, "", False), (None, float("nan"), False), (0.0, -0.0, True),
        (True, True, True), (True, 1, False), (False, 0, False), ("1", 1, False), ("a", "a ", False), ("a", "A", False),
        (b"a", b"a", True), (b"a", "a", False), ([1, 2], (1.0, 2), True), ([1, 2], [2, 1], False),
        ({"a": 1, "b": 2}, {"b": 2.0, "a": 1}, True), ({"a": 1}, {"a": 2}, False),
    ],
)  # fmt: skip
def test_values_are_equal_across_types(one: Any, other: Any, is_equal: bool) -> None:  # noqa: ANN401
    left, right = table("x", (one,)), table("x", (other,))
    assert (compare(left, right)[0] == 1) is is_equal
    assert must_differ(left, right) is not is_equal


NOON = datetime.datetime(2024, 3, 1, 12, 0)


@pytest.mark.parametrize(("one", "other", "is_equal"), [
    (datetime.date(2024, 3, 1), datetime.datetime(2024, 3, 1), True),
    (datetime.date(2024, 3, 1), NOON, False),
    (datetime.date(2024, 3, 1), "2024-03-01", True),
    (NOON, "2024-03-01 12:00:00", True),
    (NOON, "2024-03-01T12:00:00Z", True),
    (NOON, NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=2))), False),
    (NOON, NOON.replace(tzinfo=datetime.UTC), True),
    (NOON, datetime.datetime(2024, 3, 1, 14, tzinfo=datetime.timezone(datetime.timedelta(hours=2))), True),
    ("2024-03-01", "2024-03-01 00:00:00", True),
    ("2024-99-99", "2024-99-99", True),
    ("2024-99-99", "2024-99-98", False),
    (datetime.time(12), datetime.time(12), True),
])  # fmt: skip
def test_times_are_equal_when_they_name_the_same_moment(one: Any, other: Any, is_equal: bool) -> None:  # noqa: ANN401
    assert (compare(table("x", (one,)), table("x", (other,)))[0] == 1) is is_equal


def test_columns_of_the_same_values_are_distinguished_by_the_rows() -> None:
    one = table("a b c", (1, 2, 3), (2, 3, 1), (3, 1, 1))
    for order in ((2, 0, 1), (1, 2, 0), (1, 0, 2)):
        turned = table("x y z", *(tuple(row[place] for place in order) for row in one.rows))
        assert compare(one, turned) == (1, 1)
        assert not must_differ(one, turned)


NAMED, RIGHT = table("id name", (1, "Tern"), (2, "Gull")), {"f1": 1.0, "in_order": 1.0}
THREE, NAMES = table("x", (1,), (2,), (3,)), table("name", ("Tern",), ("Gull",))
# By case the expected and the returned rows, their shares, and the note.
SETS: dict[str, tuple[ResultSet, ResultSet, dict[str, float], str]] = {
    "a row as often as it comes": (
        table("x", (1,), (1,), (2,)), table("x", (1,), (2,), (2,), (2,)), {"row_precision": 2 / 4, "row_recall": 2 / 3},
        "2 of 3 expected and 4 returned rows agree",
    ),
    "the same": (THREE, THREE, RIGHT, ""),
    "another order of rows": (THREE, table("x", (3,), (1,), (2,)), {"f1": 1.0, "in_order": 2 / 3}, ""),
    "no rows": (table("x"), table("x"), {"f1": 1.0}, ""),
    "a list of no rows names no columns": (table(""), table("x y"), {"f1": 1.0}, ""),
    "no rows, and one": (table("x"), table("x", (1,)), {"f1": 0.0}, ""),
    "an empty list, and one row": (table(""), table("x", (1,)), {"f1": 0.0}, ""),
    "no rows of a column less": (table("x y"), table("x"), {"f1": 2 / 3}, ""),
    "another order of columns": (NAMED, table("NAME Id", ("Tern", 1), ("Gull", 2)), RIGHT, ""),
    "other names of columns": (NAMED, table("a b", ("Tern", 1), ("Gull", 2)), RIGHT, ""),
    "names that mislead": (NAMED, table("name id", (1, "Tern"), (2, "Gull")), RIGHT, ""),
    # Any two of these columns have half of their values in common, so that the names decide.
    "a choice": (
        table("id count", (1, 3), (3, 2)), table("count id", (3, 1), (5, 2)),
        {"column_precision": 1.0, "row_precision": 0.5, "row_recall": 0.5}, "",
    ),
    "a column less": (
        NAMED, NAMES, {"column_precision": 1.0, "column_recall": 0.5, "f1": 2 / 3}, "missing columns: id",
    ),
    "a column more": (NAMES, NAMED, {"column_precision": 0.5, "column_recall": 1.0, "f1": 2 / 3}, "extra columns: id"),
    "other values, and nothing missing": (
        table("id n", (1, 5)), table("id n", (1, 6)), {"column_recall": 1.0, "row_recall": 0.0}, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SETS)
def test_shares_are_those_of_the_cells_that_agree(case: str) -> None:
    expected, returned, shares, note = SETS[case]
    agreement = compare_result_sets(expected, returned)
    assert {name: getattr(agreement, name) for name in shares} == pytest.approx(shares)
    assert note in agreement.note
    assert compare(returned, expected)[0] == pytest.approx(agreement.f1)


def test_another_number_of_columns_proves_a_difference() -> None:
    assert must_differ(NAMED, NAMES)


def test_a_query_with_one_column_twice_can_be_compared() -> None:
    twice = run_on_tables("select id, id from ship", SHIPS)
    assert compare(twice, table("id id2", (1, 1), (2, 2), (3, 3))) == (1, 1)


cells = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(-3, 3), st.sampled_from("abc"))


@st.composite
def sets(draw: st.DrawFn) -> ResultSet:
    width = draw(st.integers(1, 4))
    rows = draw(st.lists(st.tuples(*[cells] * width), max_size=6))
    return ResultSet(columns=tuple("abcd"[:width]), rows=tuple(rows))


@given(sets(), st.randoms(use_true_random=False))
def test_a_set_agrees_with_any_permutation_of_itself(one: ResultSet, random: Any) -> None:  # noqa: ANN401
    order = random.sample(range(len(one.columns)), k=len(one.columns))
    rows = [tuple(row[place] for place in order) for row in random.sample(one.rows, k=len(one.rows))]
    turned = ResultSet(columns=tuple(f"x{place}" for place in order), rows=tuple(rows))
    assert compare_result_sets(one, turned).f1 == 1
    assert not must_differ(one, turned)
    assert compare(one, one) == (1, 1)


@example(
    ResultSet(columns=("a", "b", "c", "d"), rows=((None,) * 4, (None, "c", None, None), (1, None, None, None))),
    ResultSet(columns=("a", "b", "c", "d"), rows=((False, None, 1, False), (False, None, "c", False))),
)
@given(sets(), sets())
def test_precision_and_recall_change_places_when_the_sides_do(one: ResultSet, other: ResultSet) -> None:
    there, back = compare_result_sets(one, other), compare_result_sets(other, one)
    assert (there.column_precision, there.column_recall) == (back.column_recall, back.column_precision)
    for share in (there.row_precision, there.row_recall, there.in_order, there.f1):
        assert 0 <= share <= 1
    if there.f1 == 1:
        assert not must_differ(one, other)


@pytest.mark.parametrize(("source", "columns", "rows"), [
    ([{"a": 1}, {"b": 2}], ("a", "b"), ((1, None), (None, 2))),
    ({"columns": ["a", "b"], "rows": [[1, 2]]}, ("a", "b"), ((1, 2),)),
    ({"columns": ["a"], "rows": []}, ("a",), ()),
    ([], (), ()),
    ('[{"a": 1}]', ("a",), ((1,),)),
    ([[1, "x"], [2, "y"]], ("1", "2"), ((1, "x"), (2, "y"))),
    ("[(1, 'x'), (2, None)]", ("1", "2"), ((1, "x"), (2, None))),
])  # fmt: skip
def test_rows_are_objects_or_lists_under_columns(source: object, columns: Any, rows: Any) -> None:  # noqa: ANN401
    assert read_rows(source, "column rows") == ResultSet(columns=columns, rows=rows)


@pytest.mark.parametrize(
    "source",
    [None, 7, "rows", "[1", [1], [[1, 2], [3]], {"columns": ["a"]}, {"columns": ["a"], "rows": [[1, 2]]}, {"rows": []}],
)
def test_rows_of_no_known_shape_are_refused(source: object) -> None:
    with pytest.raises(TableError, match=r"column rows is .* must be a list of objects"):
        read_rows(source, "column rows")


def test_queries_see_rows_files_and_what_the_script_made(tmp_path: Path) -> None:
    pl.DataFrame({"ship_id": [1, 3], "day": [4, 5]}).write_parquet(tmp_path / "call.parquet")
    (tmp_path / "fee.csv").write_text("day,crowns\n4,10\n5,14\n")
    tables: dict[str, Any] = {**SHIPS, "call": str(tmp_path / "call.parquet"), "fee": str(tmp_path / "fee.csv")}
    setup = "create table yard (name text, town text); insert into yard values ('Orm', 'Quillon')"
    sql = """
        select ship.name, crowns, town
        from ship join call on ship.id = call.ship_id join fee using (day) left join yard on yard.name = ship.yard
        order by ship.id
    """
    found = run_on_tables(sql, tables, setup=setup)
    assert found.rows == (("Tern", 10, "Quillon"), ("Auk", 14, None))


def test_a_table_without_rows_has_its_columns() -> None:
    empty = {"ship": {"columns": ["id", "name"], "rows": []}}
    assert run_on_tables("select name from ship where id > 1", empty) == table("name")


def test_an_odd_name_is_only_a_name() -> None:
    odd = 'a"b; drop table x'
    assert run_on_tables('select n from "a""b; drop table x"', {odd: [{"n": 1}]}).rows == ((1,),)
    with pytest.raises(QueryError, match="does not exist"):
        run_on_tables("select * from evalhouse_given_rows", SHIPS)


def test_numbers_of_32_bits_are_what_their_digits_say() -> None:
    setup = "create table fee (crowns real); insert into fee values (0.1)"
    assert run_on_tables("select crowns from fee", {}, setup=setup).rows == ((0.1,),)


def test_times_are_utc_wherever_the_tests_run() -> None:
    moment = "timestamptz '2024-03-01 14:00:00+02'"
    found = run_on_tables(f"select {moment} as x, hour({moment}) as y", SHIPS)
    assert compare(found, table("x y", (NOON, 12))) == (1, 1)


@pytest.mark.parametrize(("tables", "setup", "message"), [
    ({"ship": 7}, "", "table 'ship' is '7'; it must be a list of objects"),
    ({"ship": []}, "", "table 'ship' cannot be made"),
    ({"ship": [{"id": 2**70}]}, "", "table 'ship' cannot be made"),
    ({"ship": "ships.xlsx"}, "", "files may end in .csv"),
    ({"ship": "no-such.csv"}, "", "table 'ship' cannot be made"),
    (SHIPS, "create tabel x", "the set-up script failed"),
    (SHIPS, "create table x as select * from 'no-such.csv'", "the set-up script failed"),
])  # fmt: skip
def test_tables_that_cannot_be_made_are_named(tables: dict[str, Any], setup: str, message: str) -> None:
    with pytest.raises(TableError) as error:
        run_on_tables("select 1", tables, setup=setup)
    assert message in str(error.value)


@pytest.mark.parametrize("inside", [True, False])
def test_a_table_is_read_from_the_folder_of_its_dataset_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool
) -> None:
    """The dataset of anyone may name a file with passwords, whose values an error message would quote."""
    folder = tmp_path / "data"
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "ship.csv").write_text("id,name\n1,Ada\n")
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nhunter2\n")
    (folder / "link.csv").symlink_to(secret)
    monkeypatch.chdir(tmp_path)
    names = ("tables/ship.csv", "data/tables/ship.csv", str(folder / "tables" / "ship.csv"))
    if not inside:
        names = (
            str(secret),
            "../secret.csv",
            "secret.csv",
            "link.csv",
            "tables/*.csv",
            "tables/none.csv",
            f"{tmp_path}/*.csv",
        )
    for name in names:
        sample = make_pair("select 1", "select error((select string_agg(t::varchar, ';') from t))", tables={"t": name})
        if inside:
            assert "Ada" in compare_results(sample, "data/ships.jsonl")[0].reason
        else:
            with pytest.raises(FatalJudgeError, match=r"it must be one file in .*, the folder of the dataset"):
                compare_results(sample, str(folder / "ships.jsonl#part"))


@pytest.mark.parametrize(
    "sql",
    [
        "copy ship to '{path}'", "export database '{path}'", "attach '{path}' as x", "create table x as select 1",
        "insert into ship select * from ship", "drop table ship", "set threads = 4", "install httpfs",
        "call enable_logging()", "select * from read_csv('{secret}')", "select * from '{secret}'",
        "from read_text('{secret}')", "select * from glob('{folder}/*')", "from sniff_csv('{secret}')",
        "select * from read_csv('https://example.org')", "select * from query('select 1')",
        "select 1; drop table ship", "", "selec 1", "select * from no_such", "select * from frame",
    ],
)  # fmt: skip
def test_a_query_that_fails_or_reaches_out_is_refused(tmp_path: Path, sql: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nxyzzy\n")
    path = tmp_path / "written"
    frame = pl.DataFrame({"x": [1]})  # not to be found by its name
    with pytest.raises(QueryError) as error:
        run_on_tables(sql.format(path=path, secret=secret, folder=tmp_path), SHIPS)
    assert "xyzzy" not in str(error.value)
    assert sorted(tmp_path.iterdir()) == [secret]
    assert frame.height == 1


@pytest.mark.parametrize("value", [
    "date 'infinity'", "timestamptz 'infinity'", "date '4000-01-01 (BC)'", "{'far': timestamp '290000-01-01'}",
])  # fmt: skip
def test_times_that_python_has_not_are_refused_like_any_failure(value: str) -> None:
    with pytest.raises(QueryError, match="outside of the years 1 to 9999"):
        run_on_tables(f"select {value}", SHIPS)


@pytest.mark.parametrize(("sql", "message"), [
    ("select * from pandas_scan(NULL)", "ended the process that it ran in"),
    ("select levenshtein(repeat('a', 2000000), repeat('b', 2000000))", r"stopped after 0\.3 s"),
    ("select list_resize([1], 500000000)", "Out of Memory|more than the 512 MB"),
])  # fmt: skip
def test_what_ends_its_process_or_never_ends_is_stopped_and_the_next_query_runs(sql: str, message: str) -> None:
    with pytest.raises(QueryStopped, match=message):
        run_on_tables(sql, SHIPS, timeout_s=0.3 if "0" in message else 20)
    assert run_on_tables("select id from ship where id = 2", SHIPS) == table("id", (2,))


def test_a_value_in_many_lists_is_compared_as_text() -> None:
    nested = f"select {'[' * 70}1{']' * 70} as x"
    assert run_on_tables(nested, SHIPS).rows == ((f"{'[' * 70}1{']' * 70}",),)
    assert run_on_tables("select [[1, 2]] as x", SHIPS).rows == (([[1, 2]],),)


def test_a_result_of_too_many_bytes_is_refused() -> None:
    with pytest.raises(QueryError, match="more than the 64 MB"):
        run_on_tables("select repeat('x', 70000000) as x", SHIPS)


def test_more_rows_than_can_be_compared_are_refused() -> None:
    assert len(run_on_tables("from range(100000)", SHIPS).rows) == 100_000
    with pytest.raises(QueryError, match="more than 100000 rows"):
        run_on_tables("from range(100001)", SHIPS)


def test_memory_is_limited_and_nothing_spills_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hungry = "select count(*) from (select distinct range, hash(range) from range(200000000))"
    with pytest.raises(QueryStopped, match="Out of Memory"):
        run_on_tables(hungry, SHIPS)
    assert list(tmp_path.iterdir()) == []


DATASET = "ships.jsonl"
ALL = "select id, name from ship order by id"
TURNED = "select name as ship, id from ship order by id desc"
SOME = "select id, name from ship where yard = 'Orm'"
BROKEN = "select nmae from ship"
CRASHES = "select * from pandas_scan(NULL)"
ENDLESS = "with recursive r (n) as (select 1 union all select n + 1 from r) select n from r"


def make_pair(expected: str | None = ALL, made: str | None = ALL, **metadata: object) -> StoredSample:
    given = metadata or {"tables": SHIPS}
    return make_sample(ground_truth=expected, answer=made, metadata_json=json.dumps(given))


def rate(sample: StoredSample) -> dict[str, float]:
    grades = compare_results(sample, DATASET)
    assert not isinstance(grades, str), grades
    return {grade.criterion: grade.rating for grade in grades}


def explain(sample: StoredSample) -> str:
    grades = compare_results(sample, DATASET)
    assert not isinstance(grades, str)
    (reason,) = {grade.reason for grade in grades}
    return reason


ROWS = [{"id": 1, "name": "Tern"}, {"id": 2, "name": "Gull"}, {"id": 3, "name": "Auk"}]
SCRIPT = "create table ship (id int, name text); insert into ship values (1, 'Tern')"


@pytest.mark.parametrize(("sample", "ratings"), [
    (make_pair(ALL, SOME), {"row_precision": 1, "row_recall": 2 / 3, "any_order": 0.8}),
    (make_pair(ALL, TURNED, setup=SCRIPT), {"any_order": 1}),
    (make_pair(None, ALL, tables=SHIPS, expected_rows=ROWS), {"in_order": 1}),
    (make_pair(ALL, None, tables=SHIPS, rows=ROWS), {"in_order": 1}),
    (make_pair(None, None, expected_rows=ROWS, rows=ROWS[:2]), {"row_recall": 2 / 3}),
    (make_pair(None, None, expected_rows=[], rows=[]), {"any_order": 1}),
])  # fmt: skip
def test_rows_come_from_tables_or_a_script_or_are_given_for_either_side(
    sample: StoredSample, ratings: dict[str, float]
) -> None:
    found = rate(sample)
    assert {name: found[name] for name in ratings} == pytest.approx(ratings)


@pytest.mark.parametrize(
    "made",
    [
        f"```sql\n{ALL};\n```",
        f"```postgresql\r\n{ALL};\r\n```",
        f"Here is the query:\n\n```sql\n{ALL}\n```\nIt lists all of them.",
        f"1. Run:\n   ```sql\n   {ALL};\n   ```\n2. Done",
        f"```\n{ALL}\n```\nThis returns:\n```\nid\n1\n```\nor with psql:\n```bash\npsql -f q.sql\n```",
        f"From the schema:\n~~~SQL\n{ALL}\n",
        f"```{ALL}```",
        f"```sql {ALL} ```",
        f"Use `{ALL}` on the table `ship`.",
        f"<sql>{ALL}</sql>",
        f"SQLQuery: {ALL}",
        f"SQL：{ALL}",
        f"```sql\n{ALL}\n```\nonce more:\n```sql\n{ALL};\n```",
    ],
)
def test_a_query_in_a_code_block_is_the_query(made: str) -> None:
    """Chat models answer so unless their prompt forbids it."""
    assert rate(make_pair(ALL, made))["in_order"] == 1
    assert rate(make_pair(made, ALL))["in_order"] == 1


def test_tables_and_rows_may_be_in_texts() -> None:
    """A cell of CSV holds one."""
    assert rate(make_pair(tables=json.dumps(SHIPS)))["in_order"] == 1
    assert rate(make_pair(tables={**SHIPS, "port": None}))["in_order"] == 1
    assert compare_results(make_pair(tables={"port": None}), DATASET) == "no_ground_truth"
    rows = [{"a": 1}, {"a": 2}]
    given = make_pair(None, None, tables=SHIPS, expected_rows=json.dumps(rows), rows=str(rows))
    assert rate(given)["in_order"] == 1


BOTH = ["rows", "expected_rows"]


@pytest.mark.parametrize(("expected", "made", "filled", "f1"), [
    # A member of other samples' rows, in either of the two or in both.
    ([{"n": "a", "k": None}], [{"n": "a"}], ["expected_rows"], 1),
    ([{"n": "a"}], [{"n": "a", "k": None}], ["rows"], 1),
    ([{"n": "a", "k": None}], [{"n": "a", "x": None, "y": None}], BOTH, 1),
    # A null that both have, or that is all they have, under another name as well.
    ([{"n": "a", "boss": None}], [{"n": "a", "boss": None}], BOTH, 1),
    ([{"n": "a", "boss": None}], [{"n": "a", "chief": None, "y": None}], ["rows"], 1),
    ([{"sum": None}], [{"total": None, "y": None}], BOTH, 1),
    ([{"sum": None}], [{"sum": None}], BOTH, 1),
    # A value where null is right, and null where a value is.
    ([{"sum": None, "k": None}], [{"sum": 5, "y": None}], BOTH, 0),
    ([{"sum": None}], [{"sum": 5, "y": None}], ["rows"], 0),
    ([{"n": "a", "m": None}, {"n": "b", "m": None}], [{"n": "a", "m": 1}, {"n": "b", "m": 1}], BOTH, 0),
    ([{"sum": 5, "k": None}], [{"sum": None, "y": None}], BOTH, 0),
    ([{"n": "a", "m": 1}], [{"n": "a", "m": None}], ["rows"], 0),
    # Members of other samples' rows on both sides.
    ([{"age": 31, "city": None, "n": None}], [{"mean": 77, "city": None, "n": None}], BOTH, 0),
    ([{"a": 1, "b": 2, "city": None}], [{"a": 1, "x": 5, "city": None}], BOTH, 1 / 2),
    ([{"sum": None, "city": None}] * 2, [{"sum": None, "city": None}], BOTH, 2 / 3),
    # Without such columns null is a value.
    ([{"n": "a", "k": None}], [{"n": "a"}], [], 2 / 3),
])  # fmt: skip
def test_a_column_that_a_table_fills_in_counts_where_the_other_side_has_it(
    expected: list[Any], made: list[Any], filled: list[str], f1: float
) -> None:
    """Right results with a null scored 0 or 0.667 in Parquet and frames, as one side kept its nulls and one did not."""
    given = make_pair(None, None, expected_rows=expected, rows=made, nulls_filled_in=filled)
    assert rate(given)["any_order"] == pytest.approx(f1)


def test_of_two_queries_none_is_picked() -> None:
    made = make_pair(ALL, f"```sql\n{ALL}\n```\nor all of them:\n```sql\n{SOME}\n```")
    assert explain(made) == "the bot's query fails: the answer has 2 queries, and it is not known which of them counts"


@pytest.mark.parametrize(("sample", "reason"), [
    (make_pair(None, ALL), "no_ground_truth"),
    (make_pair(ALL, None), "no_answer"),
    (make_pair(ALL, ALL, note="no data"), "no_ground_truth"),
    (make_pair(None, ALL, expected_rows=[]), "no_answer"),
])  # fmt: skip
def test_what_is_not_there_is_the_reason(sample: StoredSample, reason: str) -> None:
    assert compare_results(sample, DATASET) == reason


@pytest.mark.parametrize("made", [BROKEN, "", "I cannot tell.", "drop table ship"])
def test_a_bots_query_that_fails_scores_zero_and_states_why(made: str) -> None:
    assert set(rate(make_pair(ALL, made)).values()) == {0.0}
    assert explain(make_pair(ALL, made)).startswith("the bot's query fails: ")


@pytest.mark.parametrize(("made", "message"), [
    (ENDLESS, "the bot's query: the query was stopped after 0.3 s"),
    (CRASHES, "the bot's query: the query ended the process that it ran in"),
])  # fmt: skip
async def test_a_bots_query_that_is_stopped_leaves_the_sample_unscored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, message: str
) -> None:
    monkeypatch.setattr(
        "evalhouse.tasks.measures.structured_answers.run_on_tables", partial(run_on_tables, timeout_s=0.3)
    )
    work = await measure(tmp_path, make_pair(ALL, made), "result_set_match")
    (outcome,) = work.rows["outcomes"]
    assert (outcome["step"], outcome["reason"]) == ("result_sets", "measure_failed")
    assert str(outcome["detail"]).startswith(message)
    assert score_work(work, "result_set_match") == (None, "measure_failed")
    if made == ENDLESS:  # to start the process again takes a second
        assert await prove_by_running(make_pair(ALL, made), DATASET) is None


def test_a_bots_rows_that_cannot_be_read_score_zero() -> None:
    assert "the bot's rows cannot be read: column rows is" in explain(make_pair(ALL, None, tables=SHIPS, rows="none"))


@pytest.mark.parametrize(("sample", "message"), [
    (make_pair(BROKEN, ALL), "sample s1: the expected query fails: .*nmae"),
    (make_pair(ALL, ALL, tables=[SHIPS]), "sample s1: column tables is .* it must be an object"),
    (make_pair(ALL, ALL, tables={"ship": 7}), "sample s1: table 'ship' is '7'"),
    (make_pair(ALL, ALL, setup="create tabel"), "sample s1: the set-up script failed"),
    (make_pair(None, ALL, tables=SHIPS, expected_rows=7), "sample s1: column expected_rows is '7'"),
    (make_pair(None, ALL, tables={"ship": 7}, expected_rows=[]), "sample s1: table 'ship' is '7'"),
])  # fmt: skip
def test_an_error_of_the_dataset_stops_the_run_and_is_not_the_bots(sample: StoredSample, message: str) -> None:
    with pytest.raises(FatalJudgeError, match=message):
        compare_results(sample, DATASET)


async def test_a_score_is_the_f1_of_cells_in_any_order_unless_order_is_asked_for(tmp_path: Path) -> None:
    work = await measure(tmp_path, make_pair(ALL, TURNED), "result_set_match")
    assert read_outcomes(work) == {"result_sets": None}
    assert score_work(work, "result_set_match") == (1, None)
    assert score_work(work, "result_set_match", ordered=1)[0] == pytest.approx(1 / 3)
    assert len({row["criterion"] for row in work.rows["grades"]}) == len(work.rows["grades"]) == 6


async def test_a_sample_that_ended_the_process_twice_is_not_measured_again(tmp_path: Path) -> None:
    sample = make_pair(ALL, TURNED)
    path = find_mark(Warehouse(str(tmp_path / "w.duckdb")), "run-1", sample.sample_id)
    path.parent.mkdir(parents=True)
    judge = ScriptedJudge(lambda _: "nothing is asked")
    async with lay_out_run(tmp_path, judge=judge, metrics=["result_set_match"]) as live_run:
        live_run.resumed = True
        for n_deaths, reason in ((0, None), (1, None), (2, "measure_failed"), (0, None)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b'"s1"\n' * n_deaths)  # what processes that ended while they measured have left
            notices = describe_deaths(live_run.warehouse, live_run.run_id)
            assert [notice for notice in notices if "sample s1, which is not measured again" in notice] == notices
            assert len(notices) == (reason is not None)
            await measure_sample(live_run, work := make_work(sample))
            assert read_outcomes(work) == {"result_sets": reason}
            assert not path.parent.parent.exists()


async def test_a_sample_is_marked_while_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def look(sample: StoredSample, _: str, **__: object) -> str:
        seen.append(find_mark(Warehouse(str(tmp_path / "w.duckdb")), "run-1", sample.sample_id).read_bytes())
        return "no_answer"

    monkeypatch.setattr("evalhouse.tasks.measures.structured_answers.compare_results", look)
    await measure(tmp_path, make_pair(), "result_set_match")
    assert seen == [b'"s1"\n']


# sql_equivalence: settled by running, or asked


@pytest.mark.parametrize("made", [SOME, "select id from ship"])
async def test_a_difference_in_what_they_return_is_a_proof(made: str) -> None:
    proof = await prove_by_running(make_pair(ALL, made), DATASET)
    assert proof is not None
    assert (proof.rating, proof.said, proof.rule) == (0, None, "settled by running both")
    assert proof.reason.startswith("run on the sample's data they differ: ")


@pytest.mark.parametrize(
    "sample",
    [
        make_pair(ALL, TURNED),  # the same rows, this time
        make_pair(ALL, "select name as id, id as name from ship"),  # names that mislead
        make_pair(ALL, BROKEN),  # perhaps it is for another database
        make_pair(BROKEN, ALL),
        make_pair(ALL, SOME, note="no data"),
        make_pair(ALL, None),
    ],
)
async def test_anything_else_proves_nothing(sample: StoredSample) -> None:
    assert await prove_by_running(sample, DATASET) is None


async def test_what_is_settled_by_running_costs_no_request(tmp_path: Path) -> None:
    judge, work = await grade_with(
        tmp_path, "sql_equivalence", flag(True, "sql_equivalence"), sample=make_pair(ALL, SOME)
    )
    assert judge.asked == []
    (row,) = work.rows["grades"]
    assert (row["rating"], row["said"], row["call_id"], row["rule"]) == (0, None, None, "settled by running both")
    assert score_work(work, "sql_equivalence") == (0, None)


async def test_what_is_not_settled_is_asked_with_schema_and_both_queries(tmp_path: Path) -> None:
    sample = make_pair(ALL, TURNED, tables=SHIPS, schema="ship (id int, name text)")
    judge, work = await grade_with(tmp_path, "sql_equivalence", flag(True, "sql_equivalence"), sample=sample)
    (question,) = judge.asked
    assert question.data == {
        "question": sample.question, "schema": "ship (id int, name text)", "expected_sql": ALL, "sql": TURNED,
    }  # fmt: skip
    assert score_work(work, "sql_equivalence") == (1, None)


def test_the_measures_run_from_a_dataset_without_a_model(tmp_path: Path, prefect_home: Path) -> None:
    call = {"name": "ask_tide", "args": {"day": 1}}
    rows: list[dict[str, Any]] = [
        {
            "id": "same", "question": "Which ships?", "answer": TURNED, "ground_truth": ALL, "tables": SHIPS,
            "expected_tool_calls": [call], "tool_calls": [{"function": {"name": "ask_tide", "arguments": '{"day":1}'}}],
        },
        {"id": "bare", "question": "Which ships?", "answer": SOME, "ground_truth": ALL},
    ]  # fmt: skip
    write_dataset(tmp_path, rows, "ships.jsonl")
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    metrics = "result_set_match,tool_call_accuracy,bleu,exact_match"
    done = place.call("run", "ships.jsonl", "--judge", "lexical", "--metrics", metrics, "--json")
    assert done.status == 0, done.stderr
    assert done.document["calls"]["requests"] == 0
    found = done.document["metrics"]
    assert (found["result_set_match"]["mean"], found["result_set_match"]["n_unscored"]) == (1, 1)
    assert (found["tool_call_accuracy"]["mean"], found["tool_call_accuracy"]["n_unscored"]) == (1, 1)
    assert found["exact_match"]["n_scored"] == found["bleu"]["n_scored"] == 2


def test_what_the_dataset_recorded_of_a_bot_is_not_what_a_target_did(tmp_path: Path, prefect_home: Path) -> None:
    """The dataset is a log with right calls and right rows; the bot that is asked today makes no call and errs."""
    (tmp_path / "bot.py").write_text("def ask(question):\n    return 'select 999 as n'\n")
    call = {"name": "ask_tide", "args": {"day": 1}}
    row = {
        "id": "one", "question": "Which ships?", "answer": ALL, "ground_truth": ALL, "tables": SHIPS, "rows": ROWS,
        "expected_rows": ROWS, "expected_tool_calls": [call], "tool_calls": [call],
    }  # fmt: skip
    write_dataset(tmp_path, [row], "ships.jsonl")
    (tmp_path / "s.toml").write_text(
        'name = "s"\ndataset = "ships.jsonl"\njudge = "lexical"\nmetrics = ["result_set_match", "tool_call_accuracy"]\n'
        '[target]\ncallable = "bot:ask"\n'
    )
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    of_log = place.call(
        "run", "ships.jsonl", "--judge", "lexical", "--metrics", "result_set_match,tool_call_accuracy", "--json"
    )
    assert {name: score["mean"] for name, score in of_log.document["metrics"].items()} == {
        "result_set_match": 1, "tool_call_accuracy": 1
    }  # fmt: skip
    done = place.call("run", "s.toml", "--json")
    assert done.status == 0, done.stderr
    assert "a target returns no tool calls, without which tool_call_accuracy cannot be scored" in done.stderr
    found = done.document["metrics"]
    assert found["result_set_match"]["mean"] == 0
    assert (found["tool_call_accuracy"]["mean"], found["tool_call_accuracy"]["n_unscored"]) == (None, 1)
