"""Migrations: numbered, recorded, whole or not at all, and safe for rows that are there already."""

import re
from collections.abc import Mapping
from pathlib import Path

import duckdb
import polars as pl
import pytest
from warehouse_processes import make_warehouse, run_script

from evalhouse.warehouse.engine import migrate as migrate_module
from evalhouse.warehouse.engine.connection import open_reader, open_writer
from evalhouse.warehouse.engine.migrate import Migration, apply_migrations, load_migrations, migrate
from evalhouse.warehouse.errors import MigrationError
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.metric_files import view_scripts
from evalhouse.warehouse.store import TABLES, Warehouse

MIGRATIONS = load_migrations()
NEXT = Migration(
    number=len(MIGRATIONS) + 1,
    name="next",
    sql="create table next_notes (note varchar); alter table runs add column next_kind varchar;",
)


def test_a_migration_does_not_change_once_warehouses_are_made_with_it() -> None:
    """Another comment in it was enough: no warehouse of before could be written, until the edit was taken back.

    A change belongs into the next migration.
    """
    hashes = {
        1: "2562414d108bc10c32d8f2a9679615d0dab1e54c0feb149b108dcafc4e012502",
        2: "594fda3d8f5cb32a31d6e62508eb61ac18f115e5893c076aab0206ade1e6e50f",
    }
    assert {migration.number: migration.sha256 for migration in MIGRATIONS if migration.number in hashes} == hashes


_POLARS_NAMES: dict[str, pl.DataType | type[pl.DataType]] = {
    "VARCHAR": pl.String,
    "JSON": pl.String,
    "VARCHAR[]": pl.List(pl.String),
    "INTEGER": pl.Int32,
    "INTEGER[]": pl.List(pl.Int32),
    "BIGINT": pl.Int64,
    "UBIGINT": pl.UInt64,
    "DOUBLE": pl.Float64,
    "BOOLEAN": pl.Boolean,
    "TIMESTAMP": pl.Datetime("us"),
}
# A value of each type, as SQL.
_VALUES = {
    "VARCHAR": "'文 text'",
    "JSON": """'{"a": 1}'""",
    "VARCHAR[]": "['a', 'b']",
    "INTEGER": "1",
    "INTEGER[]": "[1, 2]",
    "BIGINT": "2",
    "UBIGINT": "18446744073709551615",
    "DOUBLE": "0.5",
    "BOOLEAN": "true",
    "TIMESTAMP": "timestamp '2026-01-01 02:03:04'",
}


def read_columns(path: Path) -> dict[str, dict[str, str]]:
    """The types of all columns by table, as DuckDB names them."""
    with duckdb.connect(str(path), read_only=True) as con:
        rows = con.execute(
            "select table_name, column_name, data_type from duckdb_columns() where not internal order by column_index"
        ).fetchall()
        tables = {row[0] for row in con.execute("select table_name from duckdb_tables()").fetchall()}
    columns: dict[str, dict[str, str]] = {table: {} for table in tables}
    for table, column, kind in rows:
        if table in tables:
            columns[table][column] = kind
    return columns


def fill_tables(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Put one row into every table but the record of migrations, and give all rows back."""
    columns = {table: kinds for table, kinds in read_columns(path).items() if table != "migrations"}
    with duckdb.connect(str(path)) as con:
        con.begin()
        for table, kinds in columns.items():
            con.execute(f"insert into {table} values ({', '.join(_VALUES[kind] for kind in kinds.values())})")
        con.commit()
    return read_tables(path, list(columns))


def read_tables(path: Path, tables: list[str]) -> dict[str, list[tuple[object, ...]]]:
    with duckdb.connect(str(path), read_only=True) as con:
        return {table: con.execute(f"select * from {table}").fetchall() for table in tables}


def read_again(path: Path, rows: Mapping[str, list[tuple[object, ...]]]) -> dict[str, list[tuple[object, ...]]]:
    """Read the same tables, without the columns that a later migration added."""
    return {
        table: [row[: len(rows[table][0])] for row in found] for table, found in read_tables(path, list(rows)).items()
    }


def read_record(path: Path) -> list[tuple[int, str]]:
    with duckdb.connect(str(path), read_only=True) as con:
        return con.execute("select number, name from migrations order by number").fetchall()


def test_a_second_time_there_is_nothing_to_do(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path / "w.duckdb"))
    assert warehouse.migrate() == [*(migration.title for migration in MIGRATIONS), "views"]
    before = warehouse.location.path.read_bytes()
    assert warehouse.migrate() == []
    assert warehouse.location.path.read_bytes() == before
    assert read_record(warehouse.location.path) == [(0, "views"), *((m.number, m.name) for m in MIGRATIONS)]


def test_rows_survive_the_next_migration(tmp_path: Path) -> None:
    location = make_warehouse(tmp_path).location
    rows = fill_tables(location.path)
    with open_writer(location, patience_s=5) as con:
        assert apply_migrations(con, location, [*MIGRATIONS, NEXT]) == ["0003_next"]
    assert read_again(location.path, rows) == rows
    with open_reader(location) as con:
        for script in view_scripts():
            con.execute(f"select * from {script.name}").fetchall()


@pytest.mark.parametrize("number", [0, 1, 2, NEXT.number])
def test_a_kill_within_a_migration_leaves_the_state_before_it(tmp_path: Path, number: int) -> None:
    location = parse_location(str(tmp_path / "w.duckdb"))
    if number == NEXT.number:
        make_warehouse(tmp_path)
        rows = fill_tables(location.path)
    # The tables of that migration are made, and its record is about to be written.
    killed = run_script(
        "from evalhouse.warehouse.engine import migrate as m\nrecord, load = m._record, m.load_migrations\n"
        f"m.load_migrations = lambda: [*load(), m.Migration(number={NEXT.number}, name='next', sql={NEXT.sql!r})]\n"
        f"m._record = lambda con, one: kill_self() if one.number == {number} else record(con, one)\n"
        "Warehouse(PATH).migrate()",
        location.path,
    )
    assert killed.code == -9, killed
    with open_writer(location, patience_s=5) as con:
        applied = apply_migrations(con, location, [*MIGRATIONS, NEXT])
    titles = [*(one.title for one in MIGRATIONS), "0003_next"]
    assert applied == {0: ["views"], 1: [*titles, "views"], 2: [*titles[1:], "views"], 3: ["0003_next"]}[number]
    if number == NEXT.number:
        assert read_again(location.path, rows) == rows


def test_several_processes_may_begin_at_once(tmp_path: Path) -> None:
    script = """
children = [os.fork() for _ in range(2)]
if 0 in children:
    Warehouse(PATH).migrate()
    os._exit(0)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""
    # A child of the first fork forks as well: three processes in all migrate.
    ended = run_script(script, tmp_path / "w.duckdb")
    assert ended.output.endswith("[0, 0]"), ended
    assert len(read_record(tmp_path / "w.duckdb")) == len(MIGRATIONS) + 1


def test_a_migration_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    location = make_warehouse(tmp_path).location
    broken = Migration(number=NEXT.number, name="broken", sql="create table extra (a int); select nonsense;")
    with (
        open_writer(location, patience_s=5) as con,
        pytest.raises(MigrationError, match=r"00\d\d_broken of .* failed: .*nonsense"),
    ):
        apply_migrations(con, location, [*MIGRATIONS, broken])
    assert "extra" not in read_columns(location.path)
    assert migrate(location) == []


def test_numbers_of_migrations_have_no_gap(tmp_path: Path) -> None:
    for number, names in enumerate((["0001_a", "0003_c"], ["0002_a"], ["0001_a", "0001_b"], ["0001_a", "2_b"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in names:
            (folder / f"{name}.sql").write_text("select 1")
        with pytest.raises(MigrationError, match=f"{names[-1]}.sql: migrations are named"):
            load_migrations(folder)


def test_a_changed_migration_is_noticed(tmp_path: Path) -> None:
    location = make_warehouse(tmp_path).location
    with duckdb.connect(str(location.path)) as con:
        con.execute("update migrations set sha256 = 'other' where number = 1")
    with pytest.raises(MigrationError, match=f"{MIGRATIONS[0].title} is not the one"):
        migrate(location)


def test_a_newer_warehouse_is_refused_and_left_alone(tmp_path: Path) -> None:
    location = make_warehouse(tmp_path).location
    with duckdb.connect(str(location.path)) as con:
        con.execute(f"insert into migrations values ({len(MIGRATIONS) + 1}, 'x', 'y', now())")
    before = location.path.read_bytes()
    with pytest.raises(MigrationError, match=r"written by a newer evalhouse.*update evalhouse"):
        migrate(location)
    assert location.path.read_bytes() == before


@pytest.mark.parametrize(
    "sql",
    ["create table theirs (a int)", "create table migrations (version int)", "create view theirs as select 1 as a"],
)
def test_foreign_file_is_refused_and_left_alone(tmp_path: Path, sql: str) -> None:
    path = tmp_path / "theirs.duckdb"
    with duckdb.connect(str(path)) as con:
        con.execute(sql)
    before = path.read_bytes()
    with pytest.raises(MigrationError, match=r"evalhouse did not make \((theirs|migrations)\).*--warehouse"):
        migrate(parse_location(str(path)))
    assert path.read_bytes() == before


def test_migrate_accepts_tables_and_views_of_a_user(tmp_path: Path) -> None:
    location = make_warehouse(tmp_path).location
    with duckdb.connect(str(location.path)) as con:
        con.execute("create table my_notes (a int); create view my_view as select * from runs")
    assert migrate(location) == []


def test_views_are_made_again_when_their_text_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = make_warehouse(tmp_path).location
    scripts = view_scripts()
    changed = type(scripts[0])(name="run_costs", sql="create or replace view run_costs as select 42 as cost;")
    monkeypatch.setattr(migrate_module, "view_scripts", lambda: [changed])
    assert migrate(location) == ["views"]
    assert read_tables(location.path, ["run_costs"]) == {"run_costs": [(42,)]}
    assert migrate(location) == []
    monkeypatch.undo()
    assert migrate(location) == ["views"]


def test_tables_in_python_are_those_of_the_migrations(tmp_path: Path) -> None:
    found = read_columns(make_warehouse(tmp_path).location.path)
    for table, expected in TABLES.items():
        if table != "staged_samples":
            assert {name: _POLARS_NAMES[kind] for name, kind in found[table].items()} == expected, table
    staged = {**TABLES["staged_samples"]}
    assert (staged.pop("ordinal"), staged.pop("given_id")) == (pl.Int64, pl.String)
    assert {name: _POLARS_NAMES[kind] for name, kind in found["samples"].items()} == staged
    assert found["run_samples"]["ordinal"] == "BIGINT"


def test_long_texts_are_packed_with_zstd_on_a_plain_file(tmp_path: Path) -> None:
    location = make_warehouse(tmp_path).location
    with open_writer(location, patience_s=5) as con:
        con.execute(
            """
            insert into llm_calls (call_id, run_id, step, judge, request_hash, request_key, status, attempts,
                                   started_at, request, reply)
            select i, 'r', 's', 'j', i, i, 'ok', 1, now(),
                   to_json(repeat(md5(i::varchar), 30)), repeat(md5(i::varchar), 9)
            from range(3000) numbers (i)
            """
        )
    with open_reader(location) as con:
        packed = con.execute(
            "select distinct column_name, compression from pragma_storage_info('llm_calls') "
            "where segment_type <> 'VALIDITY' and column_name in ('request', 'reply') order by all"
        ).fetchall()
    assert packed == [("reply", "ZSTD"), ("request", "ZSTD")]
    # Other kinds of warehouse read the same file without its comments.
    assert all("compression" not in re.sub(r"/\*.*?\*/", "", m.sql) for m in MIGRATIONS)
