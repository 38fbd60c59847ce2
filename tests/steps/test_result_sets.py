"""Result sets: what counts as the same row, and queries that are to do no harm."""

from __future__ import annotations

import datetime
import decimal
import doctest
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from evalhouse.tasks.measures import structured_answers as result_sets
from evalhouse.tasks.measures.structured_answers import (
    ResultSet,
    compare_result_sets,
    must_differ,
    read_rows,
    run_on_tables,
)
from evalhouse.warehouse.errors import QueryError, QueryStopped, TableError

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


def test_a_row_counts_as_often_as_it_comes() -> None:
    agreement = compare_result_sets(table("x", (1,), (1,), (2,)), table("x", (1,), (2,), (2,), (2,)))
    assert (agreement.row_precision, agreement.row_recall) == (2 / 4, 2 / 3)
    assert agreement.note == "2 of 3 expected and 4 returned rows agree"


def test_the_order_of_rows_is_distinguished_from_their_agreement() -> None:
    one, other = table("x", (1,), (2,), (3,)), table("x", (3,), (1,), (2,))
    assert compare(one, one) == (1, 1)
    assert compare(one, other) == (1, pytest.approx(2 / 3))


@pytest.mark.parametrize(
    ("one", "other", "f1"),
    [
        (table("x"), table("x"), 1),
        (table(""), table("x y"), 1),  # a list of no rows names no columns
        (table("x"), table("x", (1,)), 0),
        (table(""), table("x", (1,)), 0),
        (table("x y"), table("x"), 2 / 3),
    ],
)
def test_empty_sets(one: ResultSet, other: ResultSet, f1: float) -> None:
    assert compare(one, other)[0] == pytest.approx(f1)
    assert compare(other, one)[0] == pytest.approx(f1)


def test_order_and_names_of_columns_are_of_no_matter() -> None:
    one = table("id name", (1, "Tern"), (2, "Gull"))
    assert compare(one, table("NAME Id", ("Tern", 1), ("Gull", 2))) == (1, 1)
    assert compare(one, table("a b", ("Tern", 1), ("Gull", 2))) == (1, 1)
    assert compare(one, table("name id", (1, "Tern"), (2, "Gull"))) == (1, 1)  # names that mislead


def test_columns_of_the_same_values_are_distinguished_by_the_rows() -> None:
    one = table("a b c", (1, 2, 3), (2, 3, 1), (3, 1, 1))
    for order in ((2, 0, 1), (1, 2, 0), (1, 0, 2)):
        turned = table("x y z", *(tuple(row[place] for place in order) for row in one.rows))
        assert compare(one, turned) == (1, 1)
        assert not must_differ(one, turned)


def test_names_decide_where_the_values_leave_a_choice() -> None:
    """Any two of these columns have half of their values in common."""
    agreement = compare_result_sets(table("id count", (1, 3), (3, 2)), table("count id", (3, 1), (5, 2)))
    assert (agreement.column_precision, agreement.row_precision, agreement.row_recall) == (1, 0.5, 0.5)


def test_missing_and_extra_columns_cost_precision_or_recall() -> None:
    wide, narrow = table("id name", (1, "Tern"), (2, "Gull")), table("name", ("Tern",), ("Gull",))
    missing, extra = compare_result_sets(wide, narrow), compare_result_sets(narrow, wide)
    assert (missing.column_precision, missing.column_recall) == (1, 0.5)
    assert (extra.column_precision, extra.column_recall) == (0.5, 1)
    assert missing.f1 == extra.f1 == pytest.approx(2 / 3)
    assert missing.note.endswith("missing columns: id")
    assert extra.note.endswith("extra columns: id")
    assert must_differ(wide, narrow)


def test_a_column_of_one_name_with_other_values_is_wrong_and_not_missing() -> None:
    agreement = compare_result_sets(table("id n", (1, 5)), table("id n", (1, 6)))
    assert (agreement.column_recall, agreement.row_recall) == (1, 0)


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
])  # fmt: skip
def test_rows_are_objects_or_lists_under_columns(source: object, columns: Any, rows: Any) -> None:  # noqa: ANN401
    assert read_rows(source, "column rows") == ResultSet(columns=columns, rows=rows)


@pytest.mark.parametrize(
    "source", [None, 7, "rows", [1], [[1, 2]], {"columns": ["a"]}, {"columns": ["a"], "rows": [[1, 2]]}, {"rows": []}]
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
    ("with recursive r (n) as (select 1 union all select n + 1 from r) select n from r", r"stopped after 0\.3 s"),
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
