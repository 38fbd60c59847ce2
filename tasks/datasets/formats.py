"""The formats of datasets: which reader a dataset needs, and the readers.

A dataset is a file whose name states its format (text formats also gzipped), a table in a DuckDB file
(`qa.duckdb#test_set`) or a Polars frame. Each opens as a `DatasetSource`, whose `read` yields raw rows one after the
other with bounded memory and can be called again. A row that cannot be read is reported to `complain` and left out, so
that one reading finds all of them; where nothing after a mistake can be trusted, ReadingStopped ends the reading. What
the columns mean is decided in `rows`.
"""

import codecs
import csv
import gzip
import io
import json
import os
import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import BinaryIO, cast

import ijson
import orjson
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from evalhouse.tasks.datasets.encodings import Utf8Bytes, check_known, find_mark
from evalhouse.tasks.datasets.errors import Complain, Place, ReadingStopped, refuse_dataset
from evalhouse.tasks.datasets.excel import ENDINGS as EXCEL_ENDINGS
from evalhouse.tasks.datasets.excel import name_cells, name_columns, read_sheet
from evalhouse.tasks.datasets.rows import ALIASES, RawRow
from evalhouse.warehouse.engine.connection import TableSourceError, read_table
from evalhouse.warehouse.errors import WarehouseUrlError
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.messages import list_names, name_kind, name_setting, quote_value

_MAX_LINE = 2**28  # bytes of one JSON Lines row or one line of CSV: a file without line ends must not fill the memory
_MAX_CELL = 2**26  # characters of one CSV cell: more is a quote that is never closed
_MAX_COLUMNS = 2**28  # bytes of a JSON file that has a list for each column, and so has to be read whole
_CHUNK = 2**16
_SNIFFED = 2**20
_BUFFER = 2**20  # bytes of a Parquet column read ahead; without it a whole row group is in memory
_BEGINS_WITH_COLUMN = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*(?:\[\s*[^{\s]|\{)')
TABLE_BATCH = 1000  # rows of a table that are in memory at once
DUCKDB_PATIENCE_S = 5.0  # seconds to wait for a file that another program writes to

Read = Callable[[Complain], Iterator[RawRow]]


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file, and the encoding of its text; None for UTF-8, with or without a byte order mark."""

    path: Path
    encoding: str | None = None

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open its bytes, unpacked if its name ends in .gz."""
        packed = self.path.suffix.lower() == ".gz"
        with cast(BinaryIO, gzip.open(self.path) if packed else self.path.open("rb")) as opened:
            yield opened


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """A dataset that can be read, more than once, row by row.

    `place` is what a row's number counts. `tabular`: every row has the same columns, and cells may hold JSON text.
    `read` raises ReadingStopped where nothing more can be read. `file` is set for text, whose encoding may be unknown.
    """

    name: str
    place: Place
    tabular: bool
    read: Read
    file: DataFile | None = None


# --- text


@contextmanager
def open_text(file: DataFile) -> Iterator[BinaryIO]:
    """Open the text of a file as UTF-8, after a byte order mark."""
    with file.open() as opened:
        if file.encoding is not None:
            yield cast(BinaryIO, io.BufferedReader(Utf8Bytes(opened, file.encoding)))
            return
        if opened.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            opened.seek(0)
        yield opened


def _read_lines(file: DataFile) -> Iterator[tuple[int, bytes]]:
    with open_text(file) as opened:
        number = 0
        while line := opened.readline(_MAX_LINE):
            number += 1
            if len(line) == _MAX_LINE:
                raise ReadingStopped(number, "unreadable", f"a line of more than {_MAX_LINE // 2**20} MiB")
            yield number, line


def _describe_byte(data: bytes, index: int, position: int) -> str:
    """Describe where a line stops being UTF-8, with bytes counted from 1."""
    return f"not UTF-8: byte {position + 1:,} of the line is 0x{data[index]:02x}"


def read_csv(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """Yield the records under a header; the row is the line on which a record begins. An empty cell is None.

    The delimiter is the one that the first line has most of: comma, semicolon or tab.
    """

    def decode_lines() -> Iterator[str]:
        for number, line in _read_lines(file):
            try:
                text = line.decode()
            except UnicodeDecodeError as error:
                complain(number, "not_utf8", _describe_byte(line, error.start, error.start))
                text = line.decode(errors="replace")
            yield text

    # One setting for the whole process; its default of 128 KiB is too small for contexts.
    csv.field_size_limit(_MAX_CELL)
    lines = decode_lines()
    first = next(lines, "")
    records = csv.reader(chain([first], lines), delimiter=max(",;\t", key=first.count), strict=True)
    header: list[str] = []
    begin = 1
    try:
        for record in records:
            if not header:
                header = name_columns(record)
            elif len(record) == len(header):
                yield RawRow(row=begin, values=name_cells(header, [cell or None for cell in record], begin))
            elif record:
                complain(begin, "broken_table", f"{len(record)} cells where the header has {len(header)}")
            begin = records.line_num + 1
    except csv.Error as error:
        raise ReadingStopped(begin, "broken_table", f"broken CSV: {error}") from error


# --- JSON


def read_json_lines(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """Yield one JSON object a line; empty lines are skipped."""
    n_rows = 0
    for number, line in _read_lines(file):
        if line.isspace():
            continue
        n_rows += 1
        if n_rows == 1 and line.lstrip().startswith(b"["):
            raise ReadingStopped(number, "not_an_object", "a JSON list, where JSON Lines was expected: name it .json")
        try:
            try:
                value: object = orjson.loads(line)
            except orjson.JSONDecodeError:
                # Python writes NaN for nothing, which only its own parser reads.
                value = json.loads(line.decode())
                json.dumps(value, ensure_ascii=False).encode()
        except UnicodeDecodeError as error:
            complain(number, "not_utf8", _describe_byte(line, error.start, error.start))
        except UnicodeEncodeError:
            complain(number, "broken_json", "broken JSON: half of a surrogate pair (such as \\ud83d) is alone")
        except json.JSONDecodeError as error:
            complain(number, "broken_json", f"broken JSON: {error.msg} at column {error.colno}")
        except (ValueError, RecursionError) as error:
            complain(number, "broken_json", f"broken JSON: {error}")
        else:
            if isinstance(value, dict):
                yield RawRow(row=number, values=value)
            else:
                complain(number, "not_an_object", f"{name_kind(value)}, not a JSON object: {quote_value(value)}")


def read_json(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """Yield the elements of an array of objects, or of the one array of objects inside an object."""
    if not _read_start(file):
        return
    number = 0
    rows = _read_columns(file)
    try:
        for number, value in enumerate(_cut_rows(_parse_json(file)) if rows is None else rows, start=1):
            if isinstance(value, dict):
                yield RawRow(row=number, values=value)
            else:
                complain(number, "not_an_object", f"{name_kind(value)}, not a JSON object: {quote_value(value)}")
    except RecursionError:
        raise ReadingStopped(number + 1, "broken_json", "nested too deep to be read") from None


def _read_start(file: DataFile) -> bytes:
    with open_text(file) as opened:
        return opened.read(_SNIFFED).lstrip()


def _read_columns(file: DataFile) -> list[dict[str, object]] | None:
    """Return the rows of a JSON object that has a list for each column, or, as pandas writes a frame, an object by
    place; None for any other. Such a file is read into memory whole.
    """
    if not _BEGINS_WITH_COLUMN.match(_read_start(file)):
        return None
    with open_text(file) as opened:
        text = opened.read(_MAX_COLUMNS + 1)
    try:
        document = orjson.loads(text) if len(text) <= _MAX_COLUMNS else None
    except orjson.JSONDecodeError:
        return None  # the reader of rows reports where it is broken
    if not isinstance(document, dict):
        return None
    columns: dict[str, list[object]] = {}
    has_objects = False
    for name, column in document.items():
        if isinstance(column, dict) and all(key.isdecimal() for key in column):
            columns[name] = list(column.values())
        elif isinstance(column, list):
            columns[name] = column
            has_objects = has_objects or any(isinstance(cell, dict) for cell in column)
        else:
            return None
    # A list of objects under another name is the rows themselves.
    if has_objects and not any(name in ALIASES["question"] for name in columns):
        return None
    if len({len(column) for column in columns.values()}) > 1:
        listed = list_names([f"{name} {len(column):,}" for name, column in columns.items()], 8)
        raise ReadingStopped(None, "broken_table", f"columns of different lengths: {listed}")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


JsonEvent = tuple[str, object]  # what ijson gives: the name of the event and its value


def _parse_json(file: DataFile) -> Iterator[JsonEvent]:
    """Yield the events of a JSON text, fed line by line so that a mistake has a line number."""
    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events)
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, offset, chunk = 1, 0, b""
    with open_text(file) as opened:
        try:
            while chunk := opened.readline(_CHUNK):
                n_pending = len(decoder.getstate()[0])
                try:
                    decoder.decode(chunk)
                except UnicodeDecodeError as error:
                    text = _describe_byte(error.object, error.start, offset - n_pending + error.start)
                    raise ReadingStopped(None, "not_utf8", f"line {line:,} is {text}") from error
                parser.send(chunk)
                yield from events
                events.clear()
                line, offset = (line + 1, 0) if chunk.endswith(b"\n") else (line, offset + len(chunk))
            parser.close()
            yield from events
        except ijson.JSONError as error:
            yield from events
            words = error.args[0] if error.args else ""
            text = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
            text = text.splitlines()[0].rstrip(".") if text else "the file ends too early"
            has_nan = re.search(rb"\bNaN\b|\bInfinity\b", chunk)
            hint = " (NaN is not valid JSON: write null)" if has_nan else ""
            raise ReadingStopped(None, "broken_json", f"broken JSON on line {line:,}: {text}{hint}") from error


def _cut_rows(events: Iterator[JsonEvent]) -> Iterator[object]:
    """Yield the elements of an array, or the rows of an object's one array of objects.

    The object is read to its end, for the rows of a second such array would be left out.
    """
    event, value = next(events)
    if event == "start_array":
        yield from _cut_elements(events)
    elif event != "start_map":
        text = f"the file holds {name_kind(value)}, not an array of objects"
        raise ReadingStopped(None, "not_an_object", text)
    else:
        keys: list[str] = []
        chosen = ""
        for _, key in takewhile(_is_inside, events):
            keys.append(str(key))
            event, value = next(events)
            if event != "start_array":
                _build_value(event, value, events)  # read to its end and thrown away
                continue
            elements = _cut_elements(events)
            first = next(elements, None)
            if not isinstance(first, dict):
                deque(elements, maxlen=0)
                continue
            if chosen:
                text = f"two arrays of objects, {chosen!r} and {keys[-1]!r}, and only one can be the dataset"
                raise ReadingStopped(None, "not_an_object", text)
            chosen = keys[-1]
            yield first
            yield from elements
        if not chosen:
            text = f"no array of objects in it (under data, samples, rows, examples, …); keys: {list_names(keys)}"
            raise ReadingStopped(None, "not_an_object", text)
    for _ in events:  # check that the file ends here
        pass


def _is_inside(event: JsonEvent) -> bool:
    return event[0] not in ("end_array", "end_map")


def _cut_elements(events: Iterator[JsonEvent]) -> Iterator[object]:
    for event, value in takewhile(_is_inside, events):
        yield _build_value(event, value, events)


def _build_value(event: str, value: object, events: Iterator[JsonEvent]) -> object:
    """Return the value that begins with this event; reads on to its end."""
    if event == "start_map":
        return {str(key): _build_value(*next(events), events) for _, key in takewhile(_is_inside, events)}
    if event == "start_array":
        return list(_cut_elements(events))
    return float(value) if isinstance(value, Decimal) else value


# --- tables


def read_parquet(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """Yield the rows of a Parquet file."""
    with pq.ParquetFile(file.path, buffer_size=_BUFFER) as opened:
        yield from _read_batches(opened.iter_batches(TABLE_BATCH))


def read_arrow(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """Yield the rows of an Arrow file or stream, one record batch at a time."""
    with pa.memory_map(str(file.path)) as opened:
        if opened.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(opened)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            opened.seek(0)
            batches = iter(pa.ipc.open_stream(opened))
        yield from _read_batches(batches)


def _read_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[RawRow]:
    """Yield the rows of record batches, of which one may hold a whole file."""
    number = 0
    for batch in batches:
        names = batch.schema.names
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ReadingStopped(None, "broken_table", f"two columns have the same name: {list_names(repeated)}")
        for start in range(0, batch.num_rows, TABLE_BATCH):
            part = batch.slice(start, TABLE_BATCH)
            try:
                rows = cast(pl.DataFrame, pl.from_arrow(part)).to_dicts()
            except (ValueError, OverflowError) as error:
                rows_read = f"rows {number + 1:,} to {number + part.num_rows:,}"
                text = f"{rows_read} hold a value that cannot be read: {error}"
                raise ReadingStopped(None, "unreadable", text) from error
            for values in rows:
                number += 1
                yield RawRow(row=number, values=values)


def read_duckdb(path: Path, table: str, complain: Complain) -> Iterator[RawRow]:
    """Yield the rows of a table in a DuckDB file. Raises DatasetError when the file or the table cannot be read."""
    number = 0
    try:
        for batch in read_table(path, table, batch_size=TABLE_BATCH, patience_s=DUCKDB_PATIENCE_S):
            for values in batch:
                number += 1
                yield RawRow(row=number, values=values)
    except TableSourceError as error:
        match error.reason:
            case "no_table":
                came = f"{path} has no table {table!r}" if table else f"{path} is a DuckDB file: which table?"
                allowed, to_do = f"its tables: {list_names(error.tables)}", f"write {path}#TABLE"
            case "locked":
                came, allowed = f"{path} is locked: {error}", "a file that no program writes to"
                to_do = "close the program that writes to it, or export the table to Parquet"
            case "not_duckdb":
                came = f"{path} cannot be opened as a DuckDB file ({error})"
                allowed, to_do = "a file made by DuckDB", "check the file, or give it its right ending"
            case "unreadable":
                came, allowed = f"{path}#{table} cannot be read ({error})", "a table or view that can be selected from"
                to_do = "export it to Parquet"
        raise refuse_dataset(came, allowed=allowed, to_do=to_do) from error


# --- which reader a dataset needs


@dataclass(frozen=True, kw_only=True)
class Format:
    """How files of one ending are read."""

    read: Callable[[DataFile, Complain], Iterator[RawRow]]
    place: Place
    tabular: bool


FORMATS: dict[str, Format] = {
    ".jsonl": Format(read=read_json_lines, place="line", tabular=False),
    ".ndjson": Format(read=read_json_lines, place="line", tabular=False),
    ".json": Format(read=read_json, place="element", tabular=False),
    ".csv": Format(read=read_csv, place="line", tabular=True),
    ".tsv": Format(read=read_csv, place="line", tabular=True),
    ".parquet": Format(read=read_parquet, place="row", tabular=True),
    ".arrow": Format(read=read_arrow, place="row", tabular=True),
    ".feather": Format(read=read_arrow, place="row", tabular=True),
    ".ipc": Format(read=read_arrow, place="row", tabular=True),
}
DUCKDB_ENDINGS = (".duckdb", ".ddb", ".db")
_TEXT_ENDINGS = tuple(f"{ending}.gz" for ending, form in FORMATS.items() if form.place != "row")
_ENDINGS = (*FORMATS, *EXCEL_ENDINGS, *_TEXT_ENDINGS)
_ALLOWED = (
    f"{', '.join((*FORMATS, *EXCEL_ENDINGS))} (text formats also with .gz), a table as FILE.duckdb#TABLE, "
    "or a Polars frame"
)


def open_source(source: str | Path | pl.DataFrame | DatasetSource, encoding: str | None = None) -> DatasetSource:
    """Return the source of a dataset, of which no more than the start is read. Raises DatasetError."""
    if encoding is not None and not check_known(encoding):
        allowed = "utf-8, utf-16, cp1252, gb18030, latin-1 and the others that Python knows"
        to_do = "name the one that the file was saved in"
        raise refuse_dataset(f"{name_setting('encoding', encoding)} is not known", allowed=allowed, to_do=to_do)
    if isinstance(source, DatasetSource):
        return source
    if isinstance(source, pl.DataFrame):
        frame = source

        def read_frame(_: Complain) -> Iterator[RawRow]:
            for number, values in enumerate(frame.iter_rows(named=True, buffer_size=TABLE_BATCH), start=1):
                yield RawRow(row=number, values=values)

        opened = DatasetSource(name="the Polars frame", place="row", tabular=True, read=read_frame)
    elif not isinstance(source, str | Path):
        came = f"a {type(source).__module__}.{type(source).__name__} is not a dataset"
        raise refuse_dataset(came, allowed=_ALLOWED, to_do="save it to a file, or turn it into a polars.DataFrame")
    else:
        name = os.path.expanduser(source)
        try:
            opened = _open_named(name, encoding)
        except OSError as error:
            came = f"{name}: {error.strerror or error}"
            raise refuse_dataset(came, allowed="a file you may read", to_do="check path and rights") from error
    if encoding is not None and opened.file is None:
        to_do = "leave it out: this one states itself how its texts are written"
        raise refuse_dataset(
            f"{name_setting('encoding', encoding)} for {opened.name}", allowed="text files", to_do=to_do
        )
    return opened


def _open_named(name: str, encoding: str | None) -> DatasetSource:
    """Open a file by its name: one of a format, a sheet of a workbook, or a table of a DuckDB file."""
    file, hash_sign, part = name.rpartition("#")
    if not hash_sign or name.lower().endswith((*EXCEL_ENDINGS, *DUCKDB_ENDINGS)):
        file, part = name, ""
    if file.lower().endswith(EXCEL_ENDINGS):
        _check_file(Path(file), file)

        def read_workbook(_: Complain) -> Iterator[RawRow]:
            for number, values in read_sheet(Path(file), part):
                yield RawRow(row=number, values=values)

        return DatasetSource(name=name, place="row", tabular=True, read=read_workbook)
    if file.startswith("duckdb://"):
        try:
            path = parse_location(file).path
        except WarehouseUrlError as error:
            to_do = "write the file's path and the table's name"
            raise refuse_dataset(f"{name} names no DuckDB file", allowed="FILE.duckdb#TABLE", to_do=to_do) from error
        _check_file(path, file)
        return DatasetSource(name=name, place="row", tabular=True, read=partial(read_duckdb, path, part))
    if file.lower().endswith(DUCKDB_ENDINGS):
        _check_file(Path(file), file)
        return DatasetSource(name=name, place="row", tabular=True, read=partial(read_duckdb, Path(file), part))
    if "://" in name:
        raise refuse_dataset(f"{name} is an address", allowed=_ALLOWED, to_do="download it, then name the file")
    return _open_file(Path(name), name, encoding)


def _open_file(path: Path, name: str, encoding: str | None) -> DatasetSource:
    """Open a file of a known format."""
    packed = path.suffix.lower() == ".gz"
    ending = path.with_suffix("").suffix.lower() if packed else path.suffix.lower()
    form = FORMATS.get(ending)
    _check_file(path, name)
    if form is None or (packed and form.place == "row"):
        came = f"{name}: {f'unknown format {path.suffix!r}' if path.suffix else 'a file name without an ending'}"
        raise refuse_dataset(came, allowed=_ALLOWED, to_do="save the dataset as one of these")
    if form.place == "row":
        file = DataFile(path=path)
    else:
        file = DataFile(path=path, encoding=encoding)
        if encoding is None:
            with suppress(EOFError, zlib.error, gzip.BadGzipFile), file.open() as opened:
                start = opened.read(2)
                file = DataFile(path=path, encoding=None if start.isascii() else find_mark(start))
    if ending == ".json":
        # Some tools write one object a line under this ending.
        with suppress(ValueError, OSError, EOFError, zlib.error):  # the reader of JSON reports what is wrong
            line, _, following = _read_start(file).partition(b"\n")
            if following.lstrip().startswith(b"{") and isinstance(orjson.loads(line), dict):
                form = FORMATS[".jsonl"]

    def read(complain: Complain) -> Iterator[RawRow]:
        try:
            yield from form.read(file, complain)
        except UnicodeDecodeError as error:
            text = f"the file is not {file.encoding}: {error.reason} (0x{error.object[error.start]:02x})"
            raise ReadingStopped(None, "not_utf8", text) from error
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ReadingStopped(None, "unreadable", f"cannot be read as {ending}: {words}") from error

    source_file = None if form.place == "row" else file
    return DatasetSource(name=name, place=form.place, tabular=form.tabular, read=read, file=source_file)


def _check_file(path: Path, name: str) -> None:
    """Refuse what is not a file with content. Opens nothing: closing a live DuckDB file would drop its lock."""

    def list_datasets(folder: Path) -> str:
        # Whether a DuckDB file is a warehouse is not known without opening it, so none is proposed.
        return list_names(
            sorted(
                f"{name.rstrip('/')}/{entry.name}" if folder == path else entry.name
                for entry in folder.iterdir()
                if entry.name.lower().endswith(_ENDINGS)
            ),
            5,
        )

    if path.is_dir():
        to_do = f"name a file: {list_datasets(path)}"
        raise refuse_dataset(f"{name} is a directory", allowed="one dataset file", to_do=to_do)
    if not path.exists():
        if not path.parent.is_dir():
            to_do = f"the folder {path.parent} is not there either: check the path"
        elif close := get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=3, cutoff=0.75):
            to_do = f"did you mean {' or '.join(str(path.with_name(other)) for other in close)}?"
        else:
            to_do = f"check the path; datasets in that folder: {list_datasets(path.parent)}"
        raise refuse_dataset(f"{name}: no such file", allowed=_ALLOWED, to_do=to_do)
    if not path.is_file():
        raise refuse_dataset(f"{name} is not a regular file", allowed=_ALLOWED, to_do="save its content to a file")
    if path.stat().st_size == 0:
        to_do = "was it written to the end?"
        raise refuse_dataset(f"{name} is empty (0 bytes)", allowed="at least one row", to_do=to_do)
