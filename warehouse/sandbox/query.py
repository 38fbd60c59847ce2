"""SQL that others wrote, run in the query process: read-only, without files, network or settings.

It is one SELECT or EXPLAIN; what DuckDB types as SELECT is one: WITH, FROM, VALUES, TABLE, DESCRIBE, SHOW, SUMMARIZE,
and PIVOT when it lists its values. At the command line and in the browser a backslash with `d` or `d NAME` is too.
"""

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import duckdb
import polars as pl

from evalhouse.warehouse.engine.connection import open_reader, shut_in, split_words
from evalhouse.warehouse.errors import QueryError, QueryStopped, TableError, first_line
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.messages import suggest
from evalhouse.warehouse.metric_files import view_scripts
from evalhouse.warehouse.queries import read_query

_VIEW_COMMENT = re.compile(r"^comment on column (\w+)\.(\w+) is '(.*)';$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column; `comment` is None where nothing was written about it."""

    name: str
    type: str
    comment: str | None


@dataclass(frozen=True, kw_only=True)
class Relation:
    """A table or a view, with its columns in their order."""

    name: str
    kind: Literal["table", "view"]
    comment: str | None
    columns: tuple[Column, ...]


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """All tables, then all views, by name; and the keywords and functions of this DuckDB."""

    relations: tuple[Relation, ...]
    keywords: tuple[str, ...]
    functions: tuple[str, ...]

    def find(self, name: str) -> Relation:
        """Return the table or view of that name, in any case; raises QueryError that names similar ones."""
        by_name = {relation.name.lower(): relation for relation in self.relations}
        if relation := by_name.get(name.lower()):
            return relation
        raise QueryError(f"unknown table or view {name!r}; {suggest(name, by_name)} (\\d lists what there is)")


def read_catalog(location: Location) -> Catalog:
    """Read the catalogue; raises WarehouseMissing, WarehouseBusy, or WarehouseError for what is not a warehouse."""
    # A lake keeps no comments on the columns of its views; they come from the files that make the views.
    written = {}
    if location.lake is not None:
        for script in view_scripts():
            for view, name, comment in _VIEW_COMMENT.findall(script.sql):
                written[view, name] = comment.replace("''", "'")
    with open_reader(location) as connection:
        columns: dict[str, list[Column]] = {}
        for table, name, kind, comment in connection.execute(read_query("catalog/columns")).fetchall():
            column = Column(name=name, type=kind, comment=comment or written.get((table, name)))
            columns.setdefault(table, []).append(column)
        relations = tuple(
            Relation(name=name, kind=kind, comment=comment, columns=tuple(columns.get(name, ())))
            for name, kind, comment in connection.execute(read_query("catalog/relations")).fetchall()
        )
        keywords, functions = (
            tuple(word for (word,) in connection.execute(read_query(query)).fetchall())
            for query in ("catalog/keywords", "catalog/functions")
        )
    return Catalog(relations=relations, keywords=keywords, functions=functions)


_DESCRIBED_AT_END = re.compile(r"\A\s*\\d\s+\w*\Z")
_OWNER_AT_END = re.compile(r'(\w+|"[^"]+")\.\w*\Z')
_TABLE_AT_END = re.compile(r"\b(from|join|describe|summarize|table)\s+\w*\Z", re.IGNORECASE)
_NAMED = re.compile(r"(?:\b(?:from|join)|,)\s+(\w+)(?:\s+(?:as\s+)?(\w+))?", re.IGNORECASE)
_PLAIN_NAME = re.compile(r"[a-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A word for the place of the last `n_replaced` characters; `note` says what it is, `comment` what it means."""

    text: str
    n_replaced: int
    note: str
    comment: str | None = None


def suggest_words(before: str, after: str, catalog: Catalog) -> list[Suggestion]:
    """Return what may come between the two texts, the likeliest first; each word once, in any case of its letters.

    Within a string or a comment that is nothing.
    """
    word = re.split(r"\W", before)[-1]
    if not _DESCRIBED_AT_END.match(before):
        # DuckDB makes no token of a string that is open, nor of a comment: a letter typed there is part of no word.
        tokens = duckdb.tokenize(f"{before}x")
        if not tokens or tokens[-1][0] < len(before.encode()) - len(word.encode()):
            return []
    # The tables and views that the text names, by name and by alias.
    by_name = {relation.name.lower(): relation for relation in catalog.relations}
    named: list[tuple[str, Relation]] = []
    for match in _NAMED.finditer(f"{before} {after}"):
        if relation := by_name.get(match[1].lower()):
            named += [(name.lower(), relation) for name in match.groups() if name]
    relations = [(relation.name, relation.kind, relation.comment) for relation in catalog.relations]
    # Each candidate is a name, a note on what it is, and a comment.
    candidates: list[tuple[str, str, str | None]] = []
    owners: Sequence[Relation] = [relation for _, relation in named] or catalog.relations
    owner = _OWNER_AT_END.search(before)
    if owner:
        owners = [relation for name, relation in named if name == owner[1].strip('"').lower()]
    if not owner and (_DESCRIBED_AT_END.match(before) or _TABLE_AT_END.search(before)):
        candidates += relations
    else:
        for relation in owners:
            candidates += [
                (column.name, f"{relation.name}, {column.type.lower()}", column.comment) for column in relation.columns
            ]
        if not owner:
            candidates += [(keyword, "keyword", None) for keyword in catalog.keywords]
            candidates += relations
            candidates += [(name, "function", None) for name in catalog.functions]
    suggestions: dict[str, Suggestion] = {}
    for name, note, comment in candidates:
        if name.lower().startswith(word.lower()):
            if note == "keyword":
                text = name.upper() if word.isupper() else name
            else:
                text = name if note == "function" else write_name(name, catalog)
            suggestions.setdefault(text, Suggestion(text=text, n_replaced=len(word), note=note, comment=comment))
    return list(suggestions.values())


def write_name(name: str, catalog: Catalog) -> str:
    """Return the name of a table, view or column as SQL spells it, in quotes where it needs them."""
    if _PLAIN_NAME.fullmatch(name) and name not in catalog.keywords:
        return name
    return '"' + name.replace('"', '""') + '"'


_ALLOWED = {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}
_SANDBOX = (
    "set errors_as_json = true",  # which says where in the SQL
    "set python_enable_replacements = false",
    "set enable_external_access = false",
    "set lock_configuration = true",
)
_LATEST = """
    select max_by(run_id, (started_at <= now() at time zone 'UTC', started_at, run_id)) from runs
    where kind = 'evaluation' and variant is null
"""
_PREVIOUS = """
    select max_by(runs.run_id, (runs.started_at, runs.run_id))
    from runs
    join runs as newest on newest.run_id = getvariable('latest') and newest.suite is not distinct from runs.suite
    where runs.kind = 'evaluation' and runs.variant is null
        and (runs.suite is not null or runs.dataset is not distinct from newest.dataset)
        and (runs.started_at, runs.run_id) < (newest.started_at, newest.run_id)
"""
# Table functions that change settings past the lock (in DuckDB 1.5 logging to a forbidden place ends the process),
# and functions that run a text as SQL, in which the others could hide.
_FORBIDDEN = re.compile(
    r"(enable|disable)_\w+|(force_)?checkpoint|truncate_duckdb_logs|write_log|\w+_external_resource(_type)?"
    r"|query|json_execute_serialized_sql"
    # What reaches past a lake's tables into its catalogue's database, and what removes or merges its files.
    r"|merge_adjacent_files|rewrite_data_files|expire_snapshots|cleanup_old_files|delete_orphaned_files"
    r"|flush_inlined_data|add_data_files|set_option|set_commit_message|commit"
    r"|(postgres|sqlite|pg)_(?!size|total|catalog|typeof)\w+|ducklake_(?!snapshots|table_info|list_files|options)\w+"
)
_SPILLED_PER_MEMORY = 4
# How often a running query is looked at: is it to be stopped, has it run too long?
_WATCH_S = 0.05
_DEEPEST = 20  # lists within lists: Arrow refuses more than 64
_FOREIGN_TYPE = re.compile(r"\b(INTERVAL|UNION|BIT|BIGNUM|VARIANT|GEOMETRY|TIME WITH TIME ZONE)\b")


def run_query(
    location: Location,
    sql: str,
    *,
    timeout_s: float = 300.0,
    memory_mb: int | None = None,
    most_rows: int | None = None,
    spill: Path | None = None,
) -> pl.DataFrame:
    """Run one statement and return its rows, no more than `most_rows`.

    Raises QueryError with DuckDB's own words where it has some. Without `memory_mb` DuckDB takes up to four fifths of
    the machine's memory. Intervals and other types that Polars has not come as text. What memory does not hold is put
    into the folder `spill`, up to a limit, and otherwise beside the warehouse. The query can name two runs:
    getvariable('latest') is the id of the newest evaluation, getvariable('previous') that of the run before it in its
    series.
    """
    with open_reader(location, is_own=True) as connection:
        if spill is not None:
            connection.execute("set temp_directory = $folder", {"folder": str(spill)})
        if spill is not None and memory_mb is not None:
            connection.execute(f"set max_temp_directory_size = '{_SPILLED_PER_MEMORY * memory_mb}MB'")
        shut_in(connection, *([location.lake.data] if location.lake else []))  # views have a part in what follows
        # A variable is a value before the query is planned, unlike a subquery, so that a filter by it reaches the
        # tables: over a long history the causes of one run come in 0.3 s and not in a minute. A file without our table
        # of runs, or with one from before runs had kinds, is queried without these names.
        with suppress(duckdb.CatalogException, duckdb.BinderException):
            connection.execute(f"set variable latest = ({_LATEST})")
            connection.execute(f"set variable previous = ({_PREVIOUS})")
        return run_shut_in(connection, sql, timeout_s=timeout_s, memory_mb=memory_mb, most_rows=most_rows)


def run_shut_in(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    *,
    timeout_s: float,
    memory_mb: int | None = None,
    most_rows: int | None = None,
) -> pl.DataFrame:
    """Run one statement as `run_query` does, on a connection that is shut in from here on.

    No more than `most_rows` rows are fetched, because they are held beside DuckDB's own memory and its limit.
    """
    if memory_mb:
        connection.execute(f"set memory_limit = '{memory_mb}MB'")
    # Before the text is parsed: for that alone DuckDB reads the files of an IMPORT DATABASE.
    for setting in _SANDBOX:
        connection.execute(setting)
    try:
        kinds = [statement.type for statement in connection.extract_statements(sql)]
        words = split_words(sql)
    except duckdb.Error as error:
        raise _explain(error, sql) from None
    # A PIVOT without its values is several statements, of which the first makes a type.
    if words[:1] == ["pivot"] and kinds != [duckdb.StatementType.SELECT]:
        raise QueryError("PIVOT must list its values here: PIVOT … ON metric IN ('factual_f1', …) USING …")
    if len(kinds) != 1:
        raise QueryError(f"got {len(kinds)} statements; query takes exactly one SELECT")
    # DuckDB 1.5 types some PRAGMAs as SELECT.
    if kinds[0] not in _ALLOWED or words[:1] == ["pragma"]:
        kind = "PRAGMA" if words[:1] == ["pragma"] else kinds[0].name
        raise QueryError(f"got a statement of kind {kind}; the warehouse is read-only here: write one SELECT")
    if kinds[0] == duckdb.StatementType.EXPLAIN and not _explains_select(connection, sql):
        raise QueryError("EXPLAIN takes one SELECT here: with ANALYZE a statement runs, and the warehouse is read-only")
    for word, after in pairwise(words):
        if after == "(" and _FORBIDDEN.fullmatch(word):
            raise QueryError(f"the function {word}() is not for queries here; write one SELECT over tables and views")
    with limiting_time(connection, sql, timeout_s):
        relation = connection.sql(sql)
        # Types that Polars does not have are shown as DuckDB writes them.
        as_text = [
            '"' + name.replace('"', '""') + '"'
            for name, kind in zip(relation.columns, relation.types, strict=True)
            if _FOREIGN_TYPE.search(str(kind)) or _is_nested_deeper(kind, _DEEPEST)
        ]
        if as_text:
            relation = relation.select(f"* replace ({', '.join(f'{name}::varchar as {name}' for name in as_text)})")
        return (relation if most_rows is None else relation.limit(most_rows)).pl()


def _explains_select(connection: duckdb.DuckDBPyConnection, sql: str) -> bool:
    """Return whether an EXPLAIN is of a SELECT. EXPLAIN ANALYZE of a COPY would write, the open warehouse included."""
    # The explained statement is the first end of the text that parses as a statement and not as the EXPLAIN: words and
    # options come before it, and comments, which are tokens in DuckDB 2.
    for start, _ in duckdb.tokenize(sql):
        rest = sql.encode()[start:].decode()
        with suppress(duckdb.Error):
            kinds = [statement.type for statement in connection.extract_statements(rest)]
            if kinds != [duckdb.StatementType.EXPLAIN]:
                return kinds == [duckdb.StatementType.SELECT] and split_words(rest)[:1] != ["pragma"]
    return False


@contextmanager
def limiting_time(connection: duckdb.DuckDBPyConnection, sql: str, timeout_s: float) -> Iterator[None]:
    """Interrupt the statement `sql` that this block runs when it takes too long; raises QueryError for its errors."""
    over, deadline = threading.Event(), time.monotonic() + timeout_s

    def interrupt() -> None:
        # Repeatedly: DuckDB forgets an interrupt that comes before it has begun to execute.
        while not over.wait(_WATCH_S):
            if time.monotonic() >= deadline:
                connection.interrupt()

    watch = threading.Thread(target=interrupt, name="evalhouse-query-watch", daemon=True)
    watch.start()
    try:
        yield
    except duckdb.InterruptException:
        raise QueryStopped(
            f"the query was stopped after {timeout_s:g} s; narrow it, or give it longer by `evalhouse query --timeout`"
        ) from None
    except duckdb.OutOfMemoryException as error:
        text = _one_line(_describe(error)["text"])
        raise QueryStopped(f"{text}; narrow the query, or give it more by `evalhouse query --memory-limit`") from None
    except duckdb.Error as error:
        # The place that a relation names, if any, is one in a text that DuckDB wrote; planning ours again finds it.
        place, plan = None, "explain "
        try:
            connection.execute(plan + sql)
        except duckdb.Error as again:
            place = _explain(again, plan + sql).place
        place = None if place is None else max(0, place - len(plan))
        raise QueryError(_one_line(_describe(error)["text"]), place=place) from None
    except pl.exceptions.PolarsError as error:
        raise QueryError(_one_line(str(error))) from None
    finally:
        over.set()
        watch.join()


def _is_nested_deeper(kind: duckdb.sqltypes.DuckDBPyType, levels: int) -> bool:
    if kind.id not in ("list", "array", "struct", "map"):
        return False
    parts = [part for _, part in kind.children if isinstance(part, duckdb.sqltypes.DuckDBPyType)]  # or an array's size
    return levels == 0 or any(_is_nested_deeper(part, levels - 1) for part in parts)


def _explain(error: duckdb.Error, sql: str) -> QueryError:
    """Return DuckDB's error as a QueryError of one line, with its place in the SQL."""
    described = _describe(error)
    place = len(sql.encode()[: int(described["position"])].decode(errors="ignore")) if "position" in described else None
    return QueryError(_one_line(described["text"]), place=place)


def _describe(error: duckdb.Error) -> dict[str, str]:
    """Return the `text` of an error, and the `position` in bytes where DuckDB knows it."""
    kind, _, text = str(error).strip().partition(": ")
    try:
        details = json.loads(text)
        return {**details, "text": f"{kind}: {details['exception_message']}"}
    except (ValueError, TypeError, KeyError):  # some errors are plain text, and the function error() raises any text
        return {"text": str(error)}


def _one_line(text: str) -> str:
    """Return the text without the picture of the place and the advice after the first blank line."""
    return " ".join(re.split(r"\n\s*\n|\nLINE ", text.strip())[0].split())


_DESCRIBE = re.compile(r'\s*\\d(?:\s+"?([^\s;"]+)"?)?\s*;?\s*')
_DAY_S = 86_400
_PER_DAY = {"ms": _DAY_S * 10**3, "us": _DAY_S * 10**6, "ns": _DAY_S * 10**9}
_NESTED_TIME = re.compile(r"\b(Date|Time|Datetime)\b")
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH


def answer_statement(
    location: Location,
    text: str,
    *,
    timeout_s: float,
    memory_mb: int | None = None,
    most_rows: int | None = None,
    spill: Path | None = None,
) -> pl.DataFrame:
    r"""Return the rows of a SELECT, no more than `most_rows`, or of `\d`; raises as `run_query` and `read_catalog`."""
    if match := _DESCRIBE.fullmatch(text):
        # A row per table and view, or per column of the one that is named, each with its comment.
        catalog = read_catalog(location)
        name = match[1]
        if name is None:
            columns = ["name", "kind", "comment"]
            rows = [[entry.name, entry.kind, entry.comment] for entry in catalog.relations]
        else:
            columns = ["column", "type", "comment"]
            rows = [[entry.name, entry.type, entry.comment] for entry in catalog.find(name).columns]
        return pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")
    frame = run_query(location, text, timeout_s=timeout_s, memory_mb=memory_mb, most_rows=most_rows, spill=spill)
    _check_times(frame)
    # Sums of whole numbers as whole numbers: DuckDB gives 128 bits for them, which come as decimals.
    sums = [name for name, dtype in frame.schema.items() if isinstance(dtype, pl.Decimal) and dtype.scale == 0]
    whole = {name: frame[name].cast(pl.Int64, strict=False) for name in sums}
    fitting = [series for name, series in whole.items() if series.null_count() == frame[name].null_count()]
    return frame.with_columns(fitting)


def _check_times(frame: pl.DataFrame) -> None:
    """Raise QueryError for a time that Python has not: DuckDB's go far beyond the year 9999, and to infinity."""
    for name, dtype in frame.schema.items():
        is_held = True
        if isinstance(dtype, pl.Date | pl.Datetime):
            per_day = _PER_DAY[dtype.time_unit] if isinstance(dtype, pl.Datetime) else 1
            days = frame[name].to_physical() // per_day
            is_held = days.drop_nulls().is_between(_FIRST_DAY, _LAST_DAY).all()
        elif dtype.is_temporal() or (dtype.is_nested() and _NESTED_TIME.search(str(dtype))):
            try:
                frame[name].to_list()
            except (pl.exceptions.PanicException, ValueError, OverflowError):
                is_held = False
        if not is_held:
            raise QueryError(
                f"column {name!r} holds a time outside of the years 1 to 9999, or an infinite one; "
                "write it as text: ::varchar"
            )


_FILES = {
    ".csv": "read_csv",
    ".tsv": "read_csv",
    ".parquet": "read_parquet",
    ".json": "read_json",
    ".jsonl": "read_json",
}
_GIVEN = "evalhouse_given_rows"
MOST_COMPARED = 100_000


def query_tables(
    sql: str, tables: Mapping[str, Any], setup: str, *, timeout_s: float, memory_mb: int, spill: Path
) -> pl.DataFrame:
    """Return the rows of `sql` in a DuckDB that holds nothing but `tables` and what the script `setup` has made.

    A table is {"columns": [...], "rows": [[...], ...]}, or a path to CSV, Parquet or JSON. The script holds CREATE and
    INSERT statements. Raises QueryError when the query fails, is refused or takes too long or returns more than
    100,000 rows, and TableError when a table or the script is at fault.
    """
    settings: dict[str, Any] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "temp_directory": "",  # what has no room in memory must not fill the disk
        "threads": 1,
    }
    with duckdb.connect(":memory:", config=settings) as connection:
        for name, source in tables.items():
            try:
                if isinstance(source, str):
                    reader = _FILES.get(Path(source).suffix.lower())
                    if reader is None:
                        raise TableError(f"table {name!r} is at {source!r}; files may end in {', '.join(_FILES)}")
                    made_of, parameters = f"{reader}(?)", [source]
                else:
                    given = pl.DataFrame(
                        source["rows"], schema=source["columns"], orient="row", infer_schema_length=None
                    )
                    connection.register(_GIVEN, given)
                    made_of, parameters = _GIVEN, []
                quoted = '"' + name.replace('"', '""') + '"'
                connection.execute(f"create table {quoted} as select * from {made_of}", parameters)
                connection.unregister(_GIVEN)
            # ValueError: numbers of more than 64 bits, which Arrow has not.
            except (duckdb.Error, pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
                raise TableError(f"table {name!r} cannot be made: {first_line(str(error))}") from None
        if setup:
            connection.execute("set enable_external_access = false")
            try:
                connection.execute(setup)
            except duckdb.Error as error:
                raise TableError(f"the set-up script failed: {first_line(str(error))}") from None
        connection.execute("set TimeZone = 'UTC'")
        frame = run_shut_in(connection, sql, timeout_s=timeout_s, memory_mb=memory_mb, most_rows=MOST_COMPARED + 1)
    if frame.height > MOST_COMPARED:
        raise QueryError(f"the query returns more than {MOST_COMPARED} rows, which is the most that is compared")
    # A 32-bit 0.1 becomes 0.1 by its digits, and 0.10000000149 as a number.
    frame = frame.with_columns(pl.col(pl.Float32).cast(pl.String).cast(pl.Float64))
    _check_times(frame)
    return frame
