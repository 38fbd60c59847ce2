"""Answers that are SQL queries or tool calls, compared with the expected ones without a judge.

A sample's `tables` (rows, or paths) and `setup` (a script) are the data that its expected query (the ground truth) and
the bot's query (the answer) run on; `expected_rows` and `rows` may be given in their place. Queries run in the query
process, in a DuckDB in memory that holds the sample's tables and nothing else. Rows are compared as values, so that two
queries of different wording, column names or number types can agree.

A made tool call agrees with an expected one of the same name by the share of what is right in it: the name, and each of
the arguments that either of them has. Expected and made calls are paired so that the agreements add up to the most, in
order or in any order, and the score is 2 x agreements / (expected + made): a missing call costs as much as an extra
one, and no call where none was expected is right.
"""

import asyncio
import datetime
import decimal
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any, Final

import numpy as np
from rapidfuzz.distance import LCSseq

from evalhouse.prompts import Grade
from evalhouse.tasks.datasets.values import NULLS_FILLED_IN, open_value
from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.settings.run import locate_file
from evalhouse.warehouse.errors import QueryError, QueryStopped, TableError
from evalhouse.warehouse.rows.samples import StoredSample

_TIMEOUT_S: Final = 20.0
_MEMORY_MB: Final = 512
_MAX_BYTES: Final = 64 * 2**20  # of the rows that a query returns
# Sums in another order differ in the last of their sixteen digits. Those beyond _NOISE are dropped first, so that a
# half at the end of _DIGITS goes one way in both sums.
_NOISE, _DIGITS = 15, 12
_PATTERN = re.compile(r"[*?\[{]")  # DuckDB reads all files whose names fit one
_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d\S*)?$", re.ASCII)
# How many cells are read to find out which of several equal columns is which.
_MAX_CELLS_TRIED = 2_000_000

Cell = Any


@dataclass(frozen=True, kw_only=True)
class ResultSet:
    """Columns and rows in order.

    `fillers` are the places of columns that may be none of this result: a nested column of a table has the members of
    all its rows, so that members of other samples are null in the rows of this one.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    fillers: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Shares from 0 to 1 of the expected rows and columns that were returned, and of the returned that were expected.

    `in_order` is the share of rows that agree in the same order, of the longer set. `note` describes the differences.
    """

    row_precision: float
    row_recall: float
    column_precision: float
    column_recall: float
    in_order: float
    note: str

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall of cells, each that of rows times that of columns."""
        precision = self.row_precision * self.column_precision
        recall = self.row_recall * self.column_recall
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def read_rows(source: Any, name: str, *, is_filled_in: bool = False) -> ResultSet:  # noqa: ANN401  # as a dataset has it
    """Return rows given as a list of objects or of lists, or as {"columns": [...], "rows": [[...], ...]}, or as JSON.

    `is_filled_in`: a nested column may have added members that are null. Raises TableError.
    """
    source = open_value(source)
    if isinstance(source, list) and all(isinstance(row, dict) for row in source):
        columns = tuple(dict.fromkeys(key for row in source for key in row))
        rows = tuple(tuple(row.get(key) for key in columns) for row in source)
        of_nulls = [place for place in range(len(columns)) if all(row[place] is None for row in rows)]
        return ResultSet(columns=columns, rows=rows, fillers=frozenset(of_nulls if is_filled_in else ()))
    are_lists = isinstance(source, list) and all(isinstance(row, list | tuple) for row in source)
    if are_lists and len(set(map(len, source))) == 1:
        n_columns = len(source[0])
        return ResultSet(columns=tuple(map(str, range(1, n_columns + 1))), rows=tuple(map(tuple, source)))
    if isinstance(source, dict) and isinstance(source.get("columns"), list) and isinstance(source.get("rows"), list):
        columns, rows = tuple(map(str, source["columns"])), source["rows"]
        if all(isinstance(row, list) and len(row) == len(columns) for row in rows):
            return ResultSet(columns=columns, rows=tuple(map(tuple, rows)))
    raise TableError(
        f"{name} is {str(source)[:80]!r}; it must be a list of objects, a list of lists of equal lengths, or "
        '{"columns": […], "rows": [[…], …]} with as many cells in each row as there are columns'
    )


def run_on_tables(sql: str, tables: Mapping[str, Any], *, setup: str = "", timeout_s: float = _TIMEOUT_S) -> ResultSet:
    """Return the rows of `sql` over `tables` (rows, or a path to CSV, Parquet or JSON) and what `setup` has made.

    `setup` is a script of CREATE and INSERT statements. Raises QueryError when the query fails, is refused or returns
    more than 100,000 rows, QueryStopped when it takes too long or too much memory or ends its process, and TableError
    when a table or the script is at fault.
    """
    # Few runs have SQL answers.
    from evalhouse.warehouse.sandbox.query import query_tables  # noqa: PLC0415
    from evalhouse.warehouse.sandbox.query_process import run_apart  # noqa: PLC0415

    sources: dict[str, object] = {}
    for name, source in tables.items():
        given = source if isinstance(source, str) else read_rows(source, f"table {name!r}")
        sources[name] = given if isinstance(given, str) else {"columns": given.columns, "rows": given.rows}
    frame = run_apart(
        query_tables,
        timeout_s=timeout_s,
        memory_mb=_MEMORY_MB,
        max_bytes=_MAX_BYTES,
        sql=sql,
        tables=sources,
        setup=setup,
    )
    return ResultSet(columns=tuple(frame.columns), rows=tuple(frame.rows()))


def compare_result_sets(expected: ResultSet, made: ResultSet) -> Agreement:
    """Compare two sets of rows.

    - Types: numbers of any type are equal by value, whole ones exactly and others to twelve digits; a date is midnight
      of its day, and a text in ISO form is the time it names; times are UTC; true is not 1.
    - NULLs are equal to each other, as are NaNs.
    - Columns are paired by what they hold, equal names (in any case) first where that leaves a choice; the order of
      columns does not matter.
    - A row counts as often as it comes. Rows are compared by the paired columns alone.
    - Two sets without rows agree; a list of no rows has no columns that could differ.
    - A column of `fillers` counts where it is paired, and is left out otherwise.

    >>> ab = ResultSet(columns=("a", "b"), rows=((1, "x"), (2, "y")))
    >>> ba = ResultSet(columns=("n", "a"), rows=(("y", 2.0), ("x", 1.0)))
    >>> agreement = compare_result_sets(ab, ba)
    >>> agreement.f1, agreement.in_order
    (1.0, 0.5)
    """
    wanted, given = ([tuple(map(_settle, row)) for row in side.rows] for side in (expected, made))
    if not wanted and not given and not (expected.columns and made.columns):
        return Agreement(row_precision=1, row_recall=1, column_precision=1, column_recall=1, in_order=1, note="no rows")
    pairs = _pair_columns(expected, made, wanted, given)
    places = ([place for place, _ in pairs], [other for _, other in pairs])
    missing, extra = (
        [name for place, name in enumerate(side.columns) if place not in side.fillers.union(paired)]
        for side, paired in zip((expected, made), places, strict=True)
    )
    wanted, given = _pick(wanted, places[0]), _pick(given, places[1])
    # Without one common column no row agrees, unless both have nothing but fillers.
    common = (Counter(wanted) & Counter(given)).total() if pairs or not (missing or extra) else 0
    in_order = 0
    if common:
        # Equal rows get one number, and a common subsequence of numbers is found.
        numbers: dict[Cell, int] = {}
        numbered = [[numbers.setdefault(row, len(numbers)) for row in rows] for rows in (wanted, given)]
        in_order = LCSseq.similarity(*numbered)
    notes = [f"{common} of {len(expected.rows)} expected and {len(made.rows)} returned rows agree"]
    notes += [f"missing columns: {', '.join(missing)}"] if missing else []
    notes += [f"extra columns: {', '.join(extra)}"] if extra else []
    return Agreement(
        row_precision=_share(common, len(given)) if given or not wanted else 0.0,
        row_recall=_share(common, len(wanted)) if wanted or not given else 0.0,
        column_precision=_share(len(pairs), len(pairs) + len(extra)),
        column_recall=_share(len(pairs), len(pairs) + len(missing)),
        in_order=_share(in_order, max(len(wanted), len(given))),
        note="; ".join(notes),
    )


def _pair_columns(
    expected: ResultSet,
    made: ResultSet,
    wanted_rows: Sequence[tuple[Cell, ...]],
    given_rows: Sequence[tuple[Cell, ...]],
) -> list[tuple[int, int]]:
    """Return the places of columns that belong together: they share most of their values, or else a name."""
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  # half a second, which few runs need

    wanted = [Counter(row[place] for row in wanted_rows) for place in range(len(expected.columns))]
    given = [Counter(row[place] for row in given_rows) for place in range(len(made.columns))]
    # The share of values that two columns have in common, of the longer; 1 when neither has any.
    alike = np.array(
        [[_share((own & other).total(), max(own.total(), other.total())) for other in given] for own in wanted]
    )
    named = np.array([[own.casefold() == other.casefold() for other in made.columns] for own in expected.columns])
    nulls = {_settle(None)}
    for own, other in np.ndindex(alike.shape):
        if own in expected.fillers or other in made.fillers:
            # A name says more than that both are null. Two fillers prove nothing.
            are_null = wanted[own].keys() <= nulls and given[other].keys() <= nulls
            alike[own, other] = (1.0 if named[own, other] else 5e-4) if are_null else 0.0
            if own in expected.fillers and other in made.fillers:
                alike[own, other] = named[own, other] = 0
    placed = np.eye(*alike.shape)
    worth = alike + named * 1e-3 + placed * 1e-6
    # Of pairings of equal worth the same one is taken if expected and made change places.
    if repr(expected) <= repr(made):
        rows, columns = linear_sum_assignment(worth, maximize=True)
    else:
        columns, rows = linear_sum_assignment(worth.T, maximize=True)
    groups: dict[Cell, list[tuple[int, int]]] = {}
    for own, other in zip(rows.tolist(), columns.tolist(), strict=True):
        if alike[own, other] or named[own, other]:
            held = (frozenset(wanted[own].items()), frozenset(given[other].items()))
            groups.setdefault(held, []).append((own, other))
    # Columns that hold the same values as a whole can be distinguished by the rows alone: try their orders, the given
    # one first, for as many cells as may be read.
    n_cells = (len(wanted_rows) + len(given_rows)) * sum(map(len, groups.values()))
    n_tries = max(1, _MAX_CELLS_TRIED // max(1, n_cells))
    best: list[tuple[int, int]] = []
    most = -1
    for orders in islice(product(*(permutations([other for _, other in group]) for group in groups.values())), n_tries):
        pairs = [
            (own, other)
            for group, order in zip(groups.values(), orders, strict=True)
            for (own, _), other in zip(group, order, strict=True)
        ]
        sides = _pick(wanted_rows, [own for own, _ in pairs]), _pick(given_rows, [other for _, other in pairs])
        common = (Counter(sides[0]) & Counter(sides[1])).total()
        if common > most:
            best, most = pairs, common
        if most == min(len(wanted_rows), len(given_rows)):
            break
    return sorted(best)


def must_differ(expected: ResultSet, made: ResultSet) -> bool:
    """Return True if the two sets differ under all names and orders of their columns."""
    if len(expected.columns) != len(made.columns):
        return True
    sides = [Counter(tuple(map(_settle, row)) for row in side.rows) for side in (expected, made)]
    # Most sets that agree have their columns in one order; only the others are worth looking into each row, as a bag of
    # its values.
    if sides[0] == sides[1]:
        return False
    bags: list[Counter[Cell]] = [Counter(), Counter()]
    for side, bag in zip(sides, bags, strict=True):
        for row, times in side.items():
            bag[frozenset(Counter(row).items())] += times
    return bags[0] != bags[1]


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 1.0


def _pick(rows: Sequence[tuple[Cell, ...]], places: Sequence[int]) -> list[tuple[Cell, ...]]:
    return [tuple(row[place] for place in places) for row in rows]


def _settle(value: Cell) -> Cell:
    """Return a value in the form it is compared in, hashable."""
    kind, settled = type(value).__name__, value
    match value:
        case str() if _TIME.match(value):
            try:
                return _settle(datetime.datetime.fromisoformat(value))
            except (ValueError, OverflowError):
                pass
        case str() | None | bool() | bytes():
            pass
        case int() | float() | decimal.Decimal():
            kind = "number"
            if isinstance(value, int):
                settled = value
            elif not math.isfinite(value):
                settled = str(float(value))
            elif isinstance(value, decimal.Decimal) and value == value.to_integral_value():
                settled = int(value)
            else:
                number = float(f"{float(value):.{_NOISE}g}")
                settled = int(number) if number.is_integer() else float(f"{number:.{_DIGITS}g}")
        case datetime.datetime():
            utc = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
            kind, settled = "time", utc.isoformat()
        case datetime.date():
            kind, settled = "time", datetime.datetime.combine(value, datetime.time()).isoformat()
        case list() | tuple():
            kind, settled = "list", tuple(map(_settle, value))
        case dict():
            kind, settled = "struct", tuple(sorted((str(key), _settle(inner)) for key, inner in value.items()))
        case _:
            settled = str(value)
    return kind, settled


RESULT_SETS = "result_sets"
# Models write a query into a code block, or behind a label as LangChain's chain asks for it.
_BLOCK: Final = re.compile(
    r"(?P<fence>```|~~~)[ \t]*+(?P<tag>[\w+-]*+)[ \t]*+\r?\n(?P<code>.*?)(?:(?P=fence)|\Z)", re.DOTALL
)
_IN_LINE: Final = re.compile(
    r"```(?:sql\b)?(?P<code>[^`\n]++)```|`(?P<ticked>[^`\n]++)`|<sql>(?P<tagged>(?:(?!</?sql>).)+)</sql>",
    re.DOTALL | re.IGNORECASE,
)
_LABEL: Final = re.compile(r"(?:SQL\s?Query|SQL|Query)\s?[:：]", re.IGNORECASE)
_QUERY: Final = re.compile(r"(?:--[^\n]*+\n\s*+)*\(?+\s?+(?:select|with)\b", re.IGNORECASE)
_SQL_TAGS: Final = ("sql", "duckdb", "sqlite", "postgres", "mysql", "tsql", "bigquery", "snowflake")


def compare_results(sample: StoredSample, dataset: str, *, made_rows: str | None = "rows") -> list[Grade] | str:
    """Return grades from 0 to 1, or the reason without grades; files of the sample are in the dataset's folder.

    The column `made_rows` may have the rows that the bot's query returned; None where a target was asked.

    `row_precision`, `row_recall`, `column_precision`, `column_recall`, and the scores `any_order` (F1 of the cells) and
    `in_order` (F1 times the share of rows in the expected order). A bot's query that fails scores 0.
    Raises QueryStopped where it ran over a limit or ended its process, FatalJudgeError for tables that cannot be read.
    """
    try:
        expected = _find_rows(sample, sample.ground_truth, "expected_rows", dataset)
    except QueryError as error:
        raise FatalJudgeError(f"sample {sample.sample_id}: the expected query fails: {error}") from None
    except TableError as error:
        raise FatalJudgeError(f"sample {sample.sample_id}: {error}") from None
    if expected is None:
        return "no_ground_truth"
    names = ("row_precision", "row_recall", "column_precision", "column_recall", "any_order", "in_order")
    ratings = dict.fromkeys(names, 0.0)
    try:
        made = _find_rows(sample, sample.answer, made_rows, dataset)
        if made is None:
            return "no_answer"
        agreement = compare_result_sets(expected, made)
        ratings = {name: getattr(agreement, name) for name in names[:4]}
        ratings |= {"any_order": agreement.f1, "in_order": agreement.f1 * agreement.in_order}
        note = agreement.note
    except QueryStopped as error:
        raise QueryStopped(f"the bot's query: {error}") from None
    except QueryError as error:
        note = f"the bot's query fails: {error}"  # `runs/failed_queries` counts these
    except TableError as error:
        if made_rows is None or sample.metadata.get(made_rows) is None:  # then the tables are at fault, and not the bot
            raise FatalJudgeError(f"sample {sample.sample_id}: {error}") from None
        note = f"the bot's rows cannot be read: {error}"
    return [Grade(criterion=name, rating=rating, reason=note) for name, rating in ratings.items()]


async def prove_by_running(sample: StoredSample, dataset: str) -> Grade | None:
    """Return a grade where both queries return different rows on the sample's data; anything else proves nothing.

    A query that fails proves nothing either: it may be written for another database. Raises FatalJudgeError for tables
    that cannot be read.
    """
    results = []
    for sql in (sample.ground_truth, sample.answer):
        try:
            results.append(await asyncio.to_thread(_find_rows, sample, sql, None, dataset))
        except QueryError:
            return None
        except TableError as error:
            raise FatalJudgeError(f"sample {sample.sample_id}: {error}") from None
    expected, made = results
    if expected is None or made is None or not await asyncio.to_thread(must_differ, expected, made):
        return None
    agreement = await asyncio.to_thread(compare_result_sets, expected, made)
    return Grade(
        criterion="sql_equivalence",
        rating=0.0,
        reason=f"run on the sample's data they differ: {agreement.note}",
        rule="settled by running both",
    )


def _find_rows(sample: StoredSample, sql: str | None, column: str | None, dataset: str) -> ResultSet | None:
    """Return the rows in a column of the dataset, else the result of a query; None without either.

    Raises QueryError or TableError.
    """
    given = sample.metadata.get(column) if column else None
    if given is not None:
        return read_rows(given, f"column {column}", is_filled_in=column in sample.metadata.get(NULLS_FILLED_IN, ()))
    tables, setup = sample.metadata.get("tables") or {}, str(sample.metadata.get("setup") or "")
    if isinstance(tables, str):
        with suppress(ToolCallError):
            tables = _open_json(tables)
    if isinstance(tables, dict):  # a nested column has the tables of all samples
        tables = {name: source for name, source in tables.items() if source is not None}
    if sql is None or not (tables or setup):
        return None
    if not isinstance(tables, dict):
        raise TableError(f"column tables is {str(tables)[:80]!r}; it must be an object: table name to rows or a path")
    # The dataset of anyone may name any file.
    folder = locate_file(dataset).absolute().parent
    placed = {}
    for name, source in tables.items():
        placed[name] = source
        if isinstance(source, str):
            paths = [(base / source).resolve() for base in (folder, Path.cwd())]
            found = [path for path in paths if path.is_relative_to(folder.resolve()) and path.is_file()]
            if not found or _PATTERN.search(source):
                raise TableError(
                    f"table {name!r} is at {source!r}; it must be one file in {folder}, the folder of the dataset, or "
                    "below it"
                )
            placed[name] = str(found[0])
    return run_on_tables(find_query(sql), placed, setup=setup)


def find_query(text: str) -> str:
    """Return the query in a text: the one in its code blocks, or all of it; raises QueryError for several queries.

    >>> find_query("It is:\\n```sql\\nselect 1\\n```\\nwhich returns\\n```\\n1\\n```").strip()
    'select 1'
    """
    blocks = [(match["tag"].lower(), match["code"]) for match in _BLOCK.finditer(text)]
    queries = [
        code
        for tag, code in blocks
        if _QUERY.match(code.lstrip()) or (code.strip() and any(one in tag for one in _SQL_TAGS))
    ]
    if not queries and not _QUERY.match(text.lstrip()):
        found = ("".join(filter(None, match.groups())) for match in _IN_LINE.finditer(text))
        queries = [code for code in found if _QUERY.match(code.lstrip())]
    if len({code.strip().rstrip(";") for code in queries}) > 1:
        raise QueryError(f"the answer has {len(queries)} queries, and it is not known which of them counts")
    if queries:
        return queries[0]
    label = _LABEL.match(text.strip())
    return text.strip()[label.end() :] if label else text


TOOL_CALLS = "tool_calls"
_SHAPES = '{"name": …, "args": {…}}, {"function": {"name": …, "arguments": …}} or {"name": …, "input": {…}}'
# Around a call: of OpenAI, Gemini in its two spellings, Bedrock.
_AROUND: Final = ("function", "functionCall", "function_call", "toolUse")
# Of LangChain, OpenAI, Anthropic, deepeval, Llama, LlamaIndex and LangChain's agents.
_ARGUMENTS: Final = ("args", "arguments", "input", "input_parameters", "parameters", "tool_kwargs", "tool_input")
# Of most, Pydantic AI and LlamaIndex, the AI SDK, LangChain's agents.
_NAMES: Final = ("name", "tool_name", "toolName", "tool")
_UNREADABLE = "(unreadable)"


class ToolCallError(ValueError):
    """Expected tool calls have an unknown shape; the text names the value and the known shapes."""


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call. `accepted` gives arguments several right values, None among them when the argument may be left out."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    accepted: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def read_tool_calls(value: object, *, strict: bool, without_nulls: bool = False) -> list[ToolCall]:
    """Return calls from a list of objects as OpenAI, Anthropic, LangChain and others have them, or one; also as JSON.

    If `strict`, anything that cannot be read raises ToolCallError. Otherwise it is a call that agrees with none, for
    the bot made it; `runs/unreadable_calls` counts these. `without_nulls` leaves out arguments that are null.
    """
    try:
        entries = _open_json(value)
        entries = [entries] if isinstance(entries, dict) and entries else entries
        if not isinstance(entries, list):
            raise ToolCallError(f"tool calls are {str(value)[:80]!r}; they must be a list of {_SHAPES}")
    except ToolCallError:
        if strict:
            raise
        return [ToolCall(name=_UNREADABLE)]
    calls = []
    for entry in entries:
        inner = [entry[key] for key in _AROUND if isinstance(entry.get(key), dict)] if isinstance(entry, dict) else []
        call = inner[0] if inner else entry
        named = [call[key] for key in _NAMES if isinstance(call.get(key), str)] if isinstance(call, dict) else []
        name = named[0] if named else None
        read: ToolCall | None = None
        if isinstance(call, dict) and name is not None:
            given: object = next((call[key] for key in _ARGUMENTS if call.get(key) is not None), {})
            accepted = call.get("accepted") or {}
            if without_nulls:
                accepted = _leave_nulls_out(accepted)
            are_lists = isinstance(accepted, dict) and all(isinstance(values, list) for values in accepted.values())
            with suppress(ToolCallError):
                arguments = _open_json(given)
                if without_nulls:
                    arguments = _leave_nulls_out(arguments)
                if isinstance(arguments, dict) and are_lists:
                    read = ToolCall(name=name, arguments=arguments, accepted=accepted)
        if read is None and strict:
            raise ToolCallError(f"an expected tool call is {str(entry)[:120]!r}; it must be {_SHAPES}")
        unreadable = f"{name} {_UNREADABLE}" if name is not None else _UNREADABLE
        calls.append(read or ToolCall(name=unreadable))
    return calls


def _leave_nulls_out(value: object) -> object:
    """Return a JSON value without the members of its objects that are null."""
    if isinstance(value, dict):
        return {name: _leave_nulls_out(member) for name, member in value.items() if member is not None}
    return [_leave_nulls_out(item) for item in value] if isinstance(value, list) else value


def grade_tool_calls(expected: Sequence[ToolCall], made: Sequence[ToolCall]) -> list[Grade]:
    """Return grades from 0 to 1: `names`, `arguments`, `order`, and the scores `in_order` and `any_order`.

    `names` is the F1 of the names alone, `arguments` the mean agreement of paired calls, `order` what pairing in order
    keeps of what pairing in any order gives; each is 1 where there is nothing to go wrong.

    >>> ask, book = ToolCall(name="ask", arguments={"day": 1}), ToolCall(name="book")
    >>> {grade.criterion: grade.rating for grade in grade_tool_calls([ask, book], [book, ask])}
    {'names': 1.0, 'arguments': 1.0, 'order': 0.5, 'in_order': 0.5, 'any_order': 1.0}
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  # half a second, which few runs need

    agreements = np.zeros((len(expected), len(made)))
    for row, column in np.ndindex(agreements.shape):
        want, call = expected[row], made[column]
        if want.name == call.name:
            n_parts = 1 + len(want.arguments.keys() | want.accepted.keys() | call.arguments.keys())
            agreements[row, column] = (n_parts - len(_list_wrong(want, call))) / n_parts
    rows, columns = linear_sum_assignment(agreements, maximize=True)
    pairs = [(int(row), int(column)) for row, column in zip(rows, columns, strict=True)]
    # The most that pairs add up to if the calls come in the same order on both sides, as in sequence alignment.
    best = np.zeros((len(expected) + 1, len(made) + 1))
    for row, column in np.ndindex(agreements.shape):
        paired = best[row, column] + agreements[row, column]
        best[row + 1, column + 1] = max(paired, best[row, column + 1], best[row + 1, column])
    ordered, free = float(best[-1, -1]), float(sum(agreements[pair] for pair in pairs))
    named = [pair for pair in pairs if expected[pair[0]].name == made[pair[1]].name]
    faults = {
        "missing": [call.name for place, call in enumerate(expected) if place not in {row for row, _ in named}],
        "extra": [call.name for place, call in enumerate(made) if place not in {column for _, column in named}],
        "wrong arguments": [
            f"{expected[row].name}: {', '.join(_list_wrong(expected[row], made[column]))}"
            for row, column in named
            if agreements[row, column] < 1
        ],
    }
    note = "; ".join(f"{name} {', '.join(items)}" for name, items in faults.items() if items)
    right = "all calls as expected, in another order" if ordered < free else "all calls as expected"
    total = len(expected) + len(made)
    ratings = {
        "names": _share(2 * len(named), total),
        "arguments": _share(sum(agreements[pair] for pair in named), len(named)),
        "order": _share(ordered, free),
        "in_order": _share(2 * ordered, total),
        "any_order": _share(2 * free, total),
    }
    return [Grade(criterion=name, rating=float(rating), reason=note or right) for name, rating in ratings.items()]


def _list_wrong(want: ToolCall, call: ToolCall) -> list[str]:
    """Return the names of the arguments that differ, are missing or were not expected."""
    wrong = []
    for name in want.arguments.keys() | want.accepted.keys() | call.arguments.keys():
        given = call.arguments.get(name)
        if name in want.accepted:
            is_right = any(_equal(value, given) for value in want.accepted[name])
        else:
            has_both = name in want.arguments and name in call.arguments
            is_right = has_both and _equal(want.arguments[name], given)
        if not is_right:
            wrong.append(name)
    return sorted(wrong)


def _equal(one: Any, other: Any) -> bool:  # noqa: ANN401  # JSON values
    """Return True if two JSON values are equal: 1 is 1.0 and not true; texts are equal but for space around them."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, str) and isinstance(other, str):
        return unicodedata.normalize("NFC", one.strip()) == unicodedata.normalize("NFC", other.strip())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(one == other)


def _open_json(value: object) -> object:
    """Return the list or object that a text holds, in JSON or as Python prints it, an empty one as no arguments."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return {}
    opened = open_value(value)
    if isinstance(opened, str):
        raise ToolCallError(f"tool calls hold {value[:80]!r}, which is not valid JSON")
    return opened
