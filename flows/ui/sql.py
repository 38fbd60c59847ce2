"""The SQL page: a query with its result as table, chart and download; the address keeps the query.

A query may take long, and the page around its result need not wait for it: if the query is not done in a moment, the
page is sent up to the place of the result, and the rest when the result is ready. Leaving the page ends the query.
"""

import asyncio
import math
import re
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, Final, Generic, Literal, TypeVar

import polars as pl
import polars.selectors
from fastapi import APIRouter, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from evalhouse.flows.report.charts import Chart, draw_distribution, draw_result
from evalhouse.flows.results.output import disarm_formulas, write_cell, write_json
from evalhouse.flows.ui.pages import find_warehouse, is_from_elsewhere, link, render, use_cached
from evalhouse.warehouse.errors import QueryError, WarehouseError
from evalhouse.warehouse.location import Location
from evalhouse.warehouse.messages import clean_text
from evalhouse.warehouse.sandbox.query import Catalog, read_catalog, suggest_words, write_name
from evalhouse.warehouse.sandbox.query_process import MEMORY_MB, TIMEOUT_S, answer_apart

SPREAD: Final = "-"
"""Given in place of the column across: the distribution of the other column."""
_MAX_BARS: Final = 40
_MAX_POINTS: Final = 2000
_MAX_SERIES: Final = 8
_ALIKE: Final = 3
"""Columns whose largest values differ by more than this factor share no axis."""


@dataclass(frozen=True, kw_only=True)
class ResultChart:
    """A chart with the columns it can be made of; `note` says what it leaves out."""

    chart: Chart | None
    x: str
    y: str
    xs: Sequence[str]
    ys: Sequence[str]
    note: str = ""


def chart_result(frame: pl.DataFrame, x: str, y: str) -> ResultChart | None:
    """Draw columns `x` and `y`, each "" for a choice by types; None if nothing can be drawn."""
    frame = frame.select(column for column in frame if column.null_count() < column.len())
    ys = [name for name, dtype in frame.schema.items() if dtype.is_numeric()]
    times = [name for name, dtype in frame.schema.items() if dtype in (pl.Date, pl.Datetime)]
    texts = [name for name, dtype in frame.schema.items() if dtype == pl.String]
    # The first is the default: the column with the most different names.
    texts = sorted(texts, key=lambda name: -frame[name].n_unique())
    xs = [*times, *texts, *(ys if len(ys) > 1 else ())]
    if not ys or frame.height < 2:
        return None
    unknown = [name for name, known in ((x, [*xs, SPREAD, ""]), (y, [*ys, ""])) if name not in known]
    if unknown:
        x, y = "", ""
    across = x or (xs[0] if xs else SPREAD)
    n_drawn = frame.height
    if across == SPREAD:
        y = y or ys[0]
        numbers = [float(value) for value in frame[y].drop_nulls() if math.isfinite(value)]
        chart = draw_distribution(numbers, of=clean_text(y), unit="row") if numbers else None
    else:
        others = [name for name in ys if name != across]
        # One axis fits columns whose values are about as large as the values of the first.
        sizes: list[Any] = [frame[name].abs().max() or 0 for name in others]
        alike = [
            name
            for place, (name, size) in enumerate(zip(others, sizes, strict=True))
            if not place or sizes[0] / _ALIKE <= size <= sizes[0] * _ALIKE
        ]
        drawn = [y] if y and y != across else alike[:_MAX_SERIES]
        if across in texts and frame[across].is_duplicated().any():
            # A name that several rows share gets that of another column of texts beside it.
            beside = (name for name in texts if name != across and not frame.select(across, name).is_duplicated().any())
            if (other := next(beside, None)) is not None:
                frame = frame.with_columns(
                    pl.concat_str(across, other, separator=" · ", ignore_nulls=True).alias(across)
                )
        by = None
        if across in times and frame[across].is_duplicated().any():
            # If a time comes once for each of a few names, lines of all numbers would jump from name to name.
            few = (name for name in texts if frame[name].n_unique() <= _MAX_SERIES)
            by = next((name for name in few if not frame.select(across, name).is_duplicated().any()), None)
            drawn = drawn[:1] if by else drawn
        n_drawn = min(n_drawn, _MAX_BARS if frame[across].dtype == pl.String else _MAX_POINTS)
        # Numbers as a browser has them, times as UTC, and names that fit into a page.
        shown = frame.select(across, *drawn, *([by] if by else [])).head(n_drawn)
        shown = shown.with_columns(
            pl.selectors.string().str.head(LONG),
            pl.selectors.numeric().cast(pl.Float64),
            pl.selectors.date().cast(pl.Datetime),
            pl.selectors.datetime(time_zone="*").dt.convert_time_zone("UTC").dt.replace_time_zone(None),
        )
        columns = {clean_text(name): column.to_list() for name, column in shown.to_dict().items()}
        over: Literal["time", "number", "text"] = "time" if across in times else "text" if across in texts else "number"
        chart = draw_result(columns, over=over, by=by and clean_text(by)) if drawn else None
    if chart is None and not (x or y or unknown):
        return None
    note = f"the first {n_drawn:,} rows" if n_drawn < frame.height else ""
    if unknown:
        note = f"unknown column {unknown[0]!r}, so nothing is drawn by it"
    return ResultChart(chart=chart, x=x, y=y, xs=xs, ys=ys, note=note)


MAX_SHOWN: Final = 1000
"""Rows in a page, unless they have more cells than `MAX_CELLS`."""
MAX_CELLS: Final = 30_000
LONG: Final = 160
"""Characters of a text before it is folded."""
_MAX_WHOLE: Final = 1_000_000  # characters of folded texts in a page; later texts are cut
_RUN_ID = re.compile(r"\w[\w.-]{0,99}", re.ASCII)
_KINDS: Final[Mapping[str, Callable[[pl.DataType], bool]]] = {
    "whole number": lambda dtype: dtype.is_integer(),
    "number": lambda dtype: dtype.is_numeric(),
    "time": lambda dtype: dtype.is_temporal(),
    "struct": lambda dtype: dtype == pl.Struct,
    "list": lambda dtype: dtype.is_nested(),
    "yes or no": lambda dtype: dtype == pl.Boolean,
    "bytes": lambda dtype: dtype == pl.Binary,
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value: `text` is shown, None for NULL; `whole` is the full text if that is cut, unless the page already has
    enough of them; `n` is its number of characters."""

    text: str | None
    whole: str | None = None
    n: int = 0
    address: str | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column by its name, and the kind of its values in words."""

    name: str
    kind: str

    @property
    def is_number(self) -> bool:
        """Return True for a column that is aligned to the right."""
        return self.kind.endswith("number")


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """The first rows of a result."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def lay_result(frame: pl.DataFrame) -> ResultTable:
    """Lay out a result as a table; run ids, and sample ids beside them, link to their pages."""
    columns = [
        Column(name=name, kind=next((kind for kind, fits in _KINDS.items() if fits(dtype)), "text"))
        for name, dtype in frame.schema.items()
    ]
    room = _MAX_WHOLE
    rows = []
    for row in frame.head(min(MAX_SHOWN, max(1, MAX_CELLS // max(1, frame.width)))).iter_rows(named=True):
        cells = []
        for name, value in row.items():
            if value is None:
                cells.append(Cell(text=None))
                continue
            # Ids of runs and samples have the same names in all tables and views of the warehouse.
            address = None
            run = value if name.endswith("run_id") else row.get("run_id")
            if isinstance(value, str) and isinstance(run, str) and _RUN_ID.fullmatch(run):
                if name.endswith("run_id"):
                    address = link(f"/runs/{run}")
                elif name == "sample_id" and value:
                    address = link(f"/runs/{run}/sample", id=value)
            text = write_cell(value)
            if len(text) <= LONG:
                cells.append(Cell(text=text, address=address))
                continue
            whole: str | None = write_json(value) if isinstance(value, list | dict) else text
            if whole is not None and len(whole) <= room:
                room -= len(whole)
            else:
                whole = None
            cells.append(Cell(text=text[:LONG], whole=whole, n=len(text), address=address))
        rows.append(cells)
    return ResultTable(columns=columns, rows=rows)


_COOKBOOK: Final = Path(__file__).parent / "assets" / "cookbook.sql"
_RECIPE = re.compile(r"^-- (?P<title>[^\n]+)\n-- gives (?P<columns>[^\n]+)\n(?P<sql>.+?;\n)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A query of the cookbook: its title and columns, from its first two lines, and its SQL."""

    title: str
    columns: tuple[str, ...]
    sql: str


@cache
def read_recipes() -> tuple[Recipe, ...]:
    """Return all queries of the cookbook, in their order."""
    return tuple(
        Recipe(title=match["title"], columns=tuple(match["columns"].split(", ")), sql=match["sql"])
        for match in _RECIPE.finditer(_COOKBOOK.read_text(encoding="utf-8"))
    )


router = APIRouter()
_FILES: Final[Mapping[str, tuple[str, Callable[[pl.DataFrame, IO[bytes]], None]]]] = {
    # With the UTF-8 mark, without which Excel assumes another encoding.
    "csv": ("text/csv; charset=utf-8", lambda frame, file: disarm_formulas(frame).write_csv(file, include_bom=True)),
    "parquet": ("application/vnd.apache.parquet", pl.DataFrame.write_parquet),
}
MAX_ADDRESS: Final = 30_000
"""Characters of an address: the server refuses twice as many."""
MAX_COUNTED: Final = 10_000
"""Rows that are fetched for a page; it says if there are more."""
_MAX_WORDS: Final = 50
_MOMENT_S: Final = 0.35  # how long the page waits for its result before its first part is sent
_LOOK_S: Final = 0.2
_CATALOG_CACHED_S: Final = 30  # tables and views rarely change, and every key asks for words
_AROUND: Final = 60  # characters shown on either side of a mistake
_CHUNK: Final = 2**18
_MARK: Final = b"<!--result-->"
_LETTERS = re.compile(r"[a-z0-9]+")
_TITLE = re.compile(r"\s*--[ \t]*([^\n]+)")
_WORD = re.compile(r"\w{1,200}|.")
_T = TypeVar("_T")


class _Answer(Generic[_T]):
    """Work in a thread; `stop` asks it to end early."""

    def __init__(self, work: Callable[[threading.Event], _T]) -> None:
        self.stop = threading.Event()
        self.future = asyncio.get_running_loop().run_in_executor(None, work, self.stop)
        # The error of abandoned work is dropped.
        self.future.add_done_callback(lambda future: future.cancelled() or future.exception())

    async def wait(self, seconds: float | None) -> bool:
        """Return True if it is done within that time; cancelling the wait ends the work."""
        try:
            done, _ = await asyncio.wait({self.future}, timeout=seconds)
        except asyncio.CancelledError:
            self.stop.set()
            raise
        return bool(done)


@router.get("/sql")
async def show_sql(request: Request, q: str = "", x: str = "", y: str = "", held: bool = False) -> Response:
    """Show the page with the result of `q`, drawn over column `x`, as high as column `y`.

    A query that a link of another site holds is shown, and not run: anyone may have written it.
    """
    sql = _read_sql(request, q)
    held = held or is_from_elsewhere(request)
    page = await run_in_threadpool(_render_page, request, sql, held=held)
    head, waiting, tail = page.split(_MARK)
    if held or not sql.strip():
        return HTMLResponse(head + tail)
    answer = _Answer(partial(_render_result, request, sql, x, y))
    if await answer.wait(_MOMENT_S):
        result = answer.future.result()
        return HTMLResponse(head + bytes(result.body) + tail, result.status_code)
    return StreamingResponse(_send_when_done(head + waiting, answer, tail), media_type="text/html")


@router.get("/sql/words")
def list_words(request: Request, before: str = "", after: str = "") -> Response:
    """Send the words that may come between the two texts."""
    words = suggest_words(before, after, _read_catalog(request))[:_MAX_WORDS]
    return JSONResponse(
        [
            {"text": word.text, "replaced": word.n_replaced, "note": clean_text(word.note), "comment": word.comment}
            for word in words
        ]
    )


def _read_sql(request: Request, q: str) -> str:
    """Return the query of an address; forms end lines with two characters."""
    if len(request.url.query) > MAX_ADDRESS:
        raise HTTPException(
            HTTPStatus.REQUEST_URI_TOO_LONG,
            f"the SQL makes an address of {len(request.url.query):,} characters, and {MAX_ADDRESS:,} are allowed; "
            "shorten it, or write it to a file for `evalhouse query --file`",
        )
    return q.replace("\r\n", "\n")


def _render_page(request: Request, sql: str, *, held: bool) -> bytes:
    catalog = _read_catalog(request)
    relations = sorted(catalog.relations, key=lambda one: one.kind == "table")  # views first
    page = render(
        request,
        "sql.html",
        sql=sql,
        held=held and bool(sql.strip()),
        title=f"{_find_title(sql)} · SQL" if _find_title(sql) else "SQL",
        relations=[(one, f"from {write_name(one.name, catalog)} limit 100") for one in relations],
        recipes=read_recipes(),
        most_address=MAX_ADDRESS,
        timeout_s=TIMEOUT_S,
        memory_mb=MEMORY_MB,
    )
    return bytes(page.body)


def _render_result(request: Request, sql: str, x: str, y: str, stop: threading.Event) -> HTMLResponse:
    """Render the result or the error as a part of the page, with the status of the page."""
    began = time.monotonic()
    try:
        frame = answer_apart(find_warehouse(request).location, sql, most_rows=MAX_COUNTED + 1, stop=stop)
    except QueryError as error:
        mistake = None
        if (place := error.place) is not None:
            # The line of the mistake, cut where it is long, in parts: before the mistake, its word, and after it.
            start, end = sql.rfind("\n", 0, place) + 1, sql.find("\n", place)
            before, rest = sql[start:place], sql[place : end if end >= 0 else None]
            match = _WORD.match(rest)
            word = match[0] if match else ""
            after = rest[len(word) :]
            mistake = {
                "place": len(sql[:place].encode("utf-16-le")) // 2,  # as a script in the page counts
                "line": sql.count("\n", 0, place) + 1,
                "column": place - start + 1,
                "before": ("…" if len(before) > _AROUND else "") + before[-_AROUND:],
                "word": word,
                "after": after[:_AROUND] + ("…" if len(after) > _AROUND else ""),
            }
        return render(request, "sql_error.html", HTTPStatus.BAD_REQUEST, text=str(error), mistake=mistake)
    except WarehouseError as error:
        return render(request, "sql_error.html", HTTPStatus.SERVICE_UNAVAILABLE, text=str(error), mistake=None)
    seconds = time.monotonic() - began
    rows = frame.head(MAX_COUNTED)
    is_plan = frame.columns == ["explain_key", "explain_value"]
    return render(
        request,
        "sql_result.html",
        sql=sql,
        n=rows.height,
        is_more=frame.height > MAX_COUNTED,
        seconds=seconds,
        plan="\n".join(frame["explain_value"]) if is_plan else None,
        table=lay_result(rows),
        drawn=chart_result(rows, x, y),
        spread=SPREAD,
    )


async def _send_when_done(head: bytes, answer: _Answer[HTMLResponse], tail: bytes) -> AsyncIterator[bytes]:
    try:
        yield head
        await answer.wait(None)
        yield bytes(answer.future.result().body)
        yield tail
    finally:  # also where the browser has gone
        answer.stop.set()


@router.get("/sql.{kind}")
async def send_file(request: Request, kind: str, q: str = "") -> Response:
    """Send all rows as a file: CSV, for spreadsheets too, or Parquet."""
    if kind not in _FILES:
        raise HTTPException(404, f"page {request.url.path!r} does not exist")
    media_type, write = _FILES[kind]
    sql = _read_sql(request, q)
    if not sql.strip():
        raise QueryError("the SQL is empty; write one SELECT")
    answer = _Answer(partial(_write_result, find_warehouse(request).location, sql, write))
    while not await answer.wait(_LOOK_S):
        if await request.is_disconnected():
            answer.stop.set()
    file = answer.future.result()
    if answer.stop.is_set():  # the browser has gone
        file.close()
        return Response()
    # The file is named by the comment that the query begins with, in letters that are safe everywhere.
    name = "-".join(_LETTERS.findall(_find_title(sql).lower()))[:60].strip("-") or "query"
    headers = {
        "Content-Disposition": f'attachment; filename="{name}.{kind}"',
        "Content-Length": str(file.seek(0, 2)),
    }
    return StreamingResponse(_read_chunks(file), media_type=media_type, headers=headers)


def _write_result(
    location: Location, sql: str, write: Callable[[pl.DataFrame, IO[bytes]], None], stop: threading.Event
) -> IO[bytes]:
    frame = answer_apart(location, sql, stop=stop)
    file = tempfile.TemporaryFile()  # noqa: SIM115  # closed when it has been sent
    write(frame, file)
    return file


def _read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        file.seek(0)
        while chunk := file.read(_CHUNK):
            yield chunk


def _find_title(sql: str) -> str:
    """Return the comment that the query begins with, as in the cookbook; empty without one."""
    match = _TITLE.match(sql)
    return match[1].strip() if match else ""


def _read_catalog(request: Request) -> Catalog:
    read = partial(read_catalog, find_warehouse(request).location)
    return use_cached(request, "catalog", time.monotonic() // _CATALOG_CACHED_S, read)
