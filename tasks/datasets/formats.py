"""Which reader a dataset needs, and the readers: a generator each, one row at a time, whatever the size.

A dataset is a file whose name says its format (text formats also gzipped), a table in a DuckDB file
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
from evalhouse.tasks.datasets.errors import Complain, DatasetError, Place, ReadingStopped, refuse_dataset
from evalhouse.tasks.datasets.excel import ENDINGS as EXCEL_ENDINGS
from evalhouse.tasks.datasets.excel import name_cells, name_columns, read_sheet
from evalhouse.tasks.datasets.rows import ALIASES, RawRow
from evalhouse.warehouse.engine.table_source import TableSourceError, read_table
from evalhouse.warehouse.errors import WarehouseUrlError
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.messages import list_names, name_kind, quote_value

_MAX_LINE = 2**28  # bytes of one JSON Lines row or one line of CSV: a file without line ends must not fill the memory
_MAX_CELL = 2**26  # characters of one CSV cell: more is a quote that is never closed
_CHUNK = 2**16
_SNIFFED = 2**20
_MOST_COLUMNS = 2**28  # bytes of a JSON file that has a list for each column, and so has to be read whole
_BEGINS_WITH_COLUMN = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*(?:\[\s*[^{\s]|\{)')
_ROUNDED = 2.0**63  # from here on a float may be a whole number beyond 64 bits, which orjson rounds
_DOUBTFUL = object()


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file, and the encoding of its text; None for UTF-8, with or without a byte order mark."""

    path: Path
    encoding: str | None = None

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Its bytes, unpacked when its name ends in .gz."""
        packed = self.path.suffix.lower() == ".gz"
        with cast(BinaryIO, gzip.open(self.path) if packed else self.path.open("rb")) as opened:
            yield opened


@contextmanager
def open_text(file: DataFile) -> Iterator[BinaryIO]:
    """The text of a file as UTF-8, after a byte order mark."""
    with file.open() as opened:
        if file.encoding is not None:
            yield cast(BinaryIO, io.BufferedReader(Utf8Bytes(opened, file.encoding)))
            return
        if opened.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            opened.seek(0)
        yield opened


def read_json_lines(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """One JSON object a line; empty lines are passed over."""
    n_rows = 0
    for number, line in enumerate(_read_lines(file), start=1):
        if line.isspace():
            continue
        n_rows += 1
        if n_rows == 1 and line.lstrip().startswith(b"["):
            raise ReadingStopped(number, "not_an_object", "a JSON list, where JSON Lines was expected: name it .json")
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            value = _DOUBTFUL
        if value is _DOUBTFUL or _may_be_rounded(value):
            value = _read_doubtful_json(number, line, complain)
        if isinstance(value, dict):
            yield RawRow(row=number, values=value)
        elif value is not _DOUBTFUL:
            complain(number, "not_an_object", f"{name_kind(value)}, not a JSON object: {quote_value(value)}")


def _may_be_rounded(row: object) -> bool:
    if not isinstance(row, dict):
        return False
    return any(type(value) is float and not -_ROUNDED < value < _ROUNDED for value in row.values())


def _read_doubtful_json(number: int, line: bytes, complain: Complain) -> object:
    """What the fast parser does not take, such as NaN, as Python writes it; _DOUBTFUL after a complaint."""
    try:
        text = line.decode()
        value: object = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        complain(number, "not_utf8", say_byte(line, error.start, error.start))
    except UnicodeEncodeError:
        complain(number, "broken_json", "broken JSON: half of a surrogate pair (such as \\ud83d) stands alone")
    except json.JSONDecodeError as error:
        complain(number, "broken_json", f"broken JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        complain(number, "broken_json", f"broken JSON: {error}")
    else:
        return value
    return _DOUBTFUL


def read_json(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """The elements of an array of objects, or of the one array of objects inside an object."""
    if not _read_start(file):
        return
    number = 0
    rows = read_columns(file)
    try:
        for number, value in enumerate(_cut_rows(_parse_json(file)) if rows is None else rows, start=1):
            if isinstance(value, dict):
                yield RawRow(row=number, values=value)
            else:
                complain(number, "not_an_object", f"{name_kind(value)}, not a JSON object: {quote_value(value)}")
    except RecursionError:
        raise ReadingStopped(number + 1, "broken_json", "nested too deep to be read") from None


def holds_json_lines(file: DataFile) -> bool:
    """Whether a .json file has one object a line, as some tools write it: one on the first line, another after it."""
    try:
        line, _, following = _read_start(file).partition(b"\n")
        return following.lstrip().startswith(b"{") and isinstance(orjson.loads(line), dict)
    except (ValueError, OSError, EOFError, zlib.error):
        return False  # whatever is wrong with it, the reader of JSON will say it


def _read_start(file: DataFile) -> bytes:
    with open_text(file) as opened:
        return opened.read(_SNIFFED).lstrip()


def read_columns(file: DataFile) -> list[dict[str, object]] | None:
    """The rows of a JSON object that has a list for each column, or as pandas writes a frame, an object by place.

    None for any other. Such a file is held in memory whole.
    """
    if not _BEGINS_WITH_COLUMN.match(_read_start(file)):
        return None
    with open_text(file) as opened:
        text = opened.read(_MOST_COLUMNS + 1)
    try:
        document = orjson.loads(text) if len(text) <= _MOST_COLUMNS else None
    except orjson.JSONDecodeError:
        return None  # the reader of rows says where it is broken
    if not isinstance(document, dict):
        return None
    named = any(name in ALIASES["question"] for name in document)
    columns = {name: _list_column(column) for name, column in document.items()}
    if None in columns.values() or not (named or _are_plain(document)):
        return None
    cells = {name: column or [] for name, column in columns.items()}
    if len({len(column) for column in cells.values()}) > 1:
        listed = list_names([f"{name} {len(column):,}" for name, column in cells.items()], 8)
        raise ReadingStopped(None, "broken_table", f"columns of different lengths: {listed}")
    return [dict(zip(cells, row, strict=True)) for row in zip(*cells.values(), strict=True)]


def _list_column(column: object) -> list[object] | None:
    """The cells of a list, or of an object with the places 0, 1, … as pandas writes one."""
    if isinstance(column, dict) and all(key.isdecimal() for key in column):
        return list(column.values())
    return column if isinstance(column, list) else None


def _are_plain(document: dict[str, object]) -> bool:
    """Whether no column has objects: a list of those would be rows."""
    columns = [column for column in document.values() if isinstance(column, list)]
    return not any(isinstance(cell, dict) for column in columns for cell in column)


JsonEvent = tuple[str, object]  # what ijson gives: the name of the event and its value


def _parse_json(file: DataFile) -> Iterator[JsonEvent]:
    """The events of a JSON text, fed line by line so that a mistake has a line number."""
    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events)
    line = 1
    chunk = b""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with open_text(file) as opened:
        try:
            while chunk := opened.readline(_CHUNK):
                _check_utf8(decoder, chunk, line, offset)
                parser.send(chunk)
                yield from events
                events.clear()
                ended = chunk.endswith(b"\n")
                line, offset = (line + 1, 0) if ended else (line, offset + len(chunk))
            parser.close()
            yield from events
        except ijson.JSONError as error:
            yield from events
            text = f"broken JSON on line {line:,}: {_say_parser_words(error)}"
            raise ReadingStopped(None, "broken_json", text + _hint_at_nan(chunk)) from error


def _check_utf8(decoder: codecs.IncrementalDecoder, chunk: bytes, line: int, offset: int) -> None:
    pending: bytes = decoder.getstate()[0]
    try:
        decoder.decode(chunk)
    except UnicodeDecodeError as error:
        text = say_byte(error.object, error.start, offset - len(pending) + error.start)
        raise ReadingStopped(None, "not_utf8", f"line {line:,} is {text}") from error


def _say_parser_words(error: Exception) -> str:
    words = error.args[0] if error.args else ""
    text = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
    return text.splitlines()[0].rstrip(".") if text else "the file ends too early"


def _hint_at_nan(chunk: bytes) -> str:
    return " (NaN is not valid JSON: write null)" if re.search(rb"\bNaN\b|\bInfinity\b", chunk) else ""


def _cut_rows(events: Iterator[JsonEvent]) -> Iterator[object]:
    event, value = next(events)
    if event == "start_array":
        yield from _cut_elements(events)
    elif event == "start_map":
        yield from _cut_members(events)
    else:
        text = f"the file holds {name_kind(value)}, not an array of objects"
        raise ReadingStopped(None, "not_an_object", text)
    for _ in events:  # nothing but the check that the file ends here
        pass


def _cut_members(events: Iterator[JsonEvent]) -> Iterator[object]:
    """The rows of an object's one array of objects; the whole object is read, for a second one would be left out."""
    keys: list[str] = []
    chosen = ""
    for _, key in takewhile(_goes_on, events):
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


def _goes_on(event: JsonEvent) -> bool:
    return event[0] not in ("end_array", "end_map")


def _cut_elements(events: Iterator[JsonEvent]) -> Iterator[object]:
    for event, value in takewhile(_goes_on, events):
        yield _build_value(event, value, events)


def _build_value(event: str, value: object, events: Iterator[JsonEvent]) -> object:
    """The value that begins with this event; reads on to its end."""
    if event == "start_map":
        return {str(key): _build_value(*next(events), events) for _, key in takewhile(_goes_on, events)}
    if event == "start_array":
        return list(_cut_elements(events))
    return float(value) if isinstance(value, Decimal) else value


def read_csv(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """Records under a header; the row is the line on which a record begins. An empty cell is None.

    The delimiter is the one the first line has most of: comma, semicolon or tab.
    """
    csv.field_size_limit(
        _MAX_CELL
    )  # one setting for the whole process; its default of 128 KiB is too small for contexts
    lines = _decode_lines(file, complain)
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


def _decode_lines(file: DataFile, complain: Complain) -> Iterator[str]:
    for number, line in enumerate(_read_lines(file), start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            complain(number, "not_utf8", say_byte(line, error.start, error.start))
            text = line.decode(errors="replace")
        yield text


def _read_lines(file: DataFile) -> Iterator[bytes]:
    with open_text(file) as opened:
        number = 0
        while line := opened.readline(_MAX_LINE):
            number += 1
            if len(line) == _MAX_LINE:
                raise ReadingStopped(number, "unreadable", f"a line of more than {_MAX_LINE // 2**20} MiB")
            yield line


def say_byte(data: bytes, index: int, position: int) -> str:
    """Where a line stops being UTF-8, with bytes counted from 1."""
    return f"not UTF-8: byte {position + 1:,} of the line is 0x{data[index]:02x}"


TABLE_BATCH = 1000  # rows of a table that are held at once
DUCKDB_PATIENCE_S = 5.0  # how long a file that somebody writes to is waited for
_BUFFER = 2**20  # bytes of a Parquet column read ahead; without it a whole row group is held

Read = Callable[[Complain], Iterator[RawRow]]


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """A dataset that can be read, more than once, row by row.

    `place` says what a row's number counts. `tabular`: every row has the same columns, and cells may hold JSON text.
    `read` raises ReadingStopped where nothing more can be read. `file` is there where it is text, whose encoding
    may have to be found.
    """

    name: str
    place: Place
    tabular: bool
    read: Read
    file: DataFile | None = None


@dataclass(frozen=True, kw_only=True)
class Format:
    """How files of one ending are read."""

    read: Callable[[DataFile, Complain], Iterator[RawRow]]
    place: Place
    tabular: bool


def read_parquet(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """Rows of a Parquet file."""
    with pq.ParquetFile(file.path, buffer_size=_BUFFER) as opened:
        yield from _number_rows(opened.iter_batches(TABLE_BATCH))


def read_arrow(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """Rows of an Arrow file or stream, one record batch at a time."""
    with pa.memory_map(str(file.path)) as opened:
        if opened.read(6) == b"ARROW1":
            reader = pa.ipc.open_file(opened)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            opened.seek(0)
            batches = iter(pa.ipc.open_stream(opened))
        yield from _number_rows(_slice_batches(batches))


def read_frame(frame: pl.DataFrame, complain: Complain) -> Iterator[RawRow]:
    """Rows of a Polars frame."""
    for number, values in enumerate(frame.iter_rows(named=True, buffer_size=TABLE_BATCH), start=1):
        yield RawRow(row=number, values=values)


def read_duckdb(path: Path, table: str, complain: Complain) -> Iterator[RawRow]:
    """Rows of a table in a DuckDB file. Raises DatasetError when the file or the table is not to be had."""
    number = 0
    try:
        for batch in read_table(path, table, batch_size=TABLE_BATCH, patience_s=DUCKDB_PATIENCE_S):
            for values in batch:
                number += 1
                yield RawRow(row=number, values=values)
    except TableSourceError as error:
        raise _refuse_table(path, table, error) from error


def _number_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[RawRow]:
    number = 0
    for batch in batches:
        if not number:
            _check_names(batch.schema.names)
        for values in _list_rows(batch, number):
            number += 1
            yield RawRow(row=number, values=values)


def _list_rows(batch: pa.RecordBatch, n_before: int) -> list[dict[str, object]]:
    """The rows as Python objects, whose times know no nanoseconds and no year beyond 9999."""
    coarser = pa.schema([field.with_type(_drop_nanoseconds(field.type)) for field in batch.schema])
    if coarser != batch.schema:
        batch = batch.cast(coarser, safe=False)
    try:
        rows: list[dict[str, object]] = batch.to_pylist()
    except (ValueError, OverflowError) as error:
        text = f"rows {n_before + 1:,} to {n_before + batch.num_rows:,} hold a value that cannot be read: {error}"
        raise ReadingStopped(None, "unreadable", text) from error
    return rows


def _drop_nanoseconds(kind: pa.DataType) -> pa.DataType:
    """The same type with microseconds in place of nanoseconds, inside lists and structs as well."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_drop_nanoseconds(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_drop_nanoseconds(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_drop_nanoseconds(kind.value_type)))
    if getattr(kind, "unit", None) != "ns":
        return kind
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def _slice_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are small as Python objects; a file's own may hold all of it."""
    for batch in batches:
        for start in range(0, batch.num_rows, TABLE_BATCH):
            yield batch.slice(start, TABLE_BATCH)


def _check_names(names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ReadingStopped(None, "broken_table", f"two columns have the same name: {list_names(repeated)}")


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


def open_source(source: str | Path | pl.DataFrame, encoding: str | None = None) -> DatasetSource:
    """Find out what a dataset is, without reading more than its start. Raises DatasetError."""
    if encoding is not None and not check_known(encoding):
        allowed = "utf-8, utf-16, cp1252, gb18030, latin-1 and the others that Python knows"
        to_do = "name the one that the file was saved in"
        raise refuse_dataset(f"--encoding {encoding} is not known", allowed=allowed, to_do=to_do)
    opened = _open(source, encoding)
    if encoding is not None and opened.file is None:
        to_do = "leave it out: this one says itself how its texts are written"
        raise refuse_dataset(f"--encoding {encoding} for {opened.name}", allowed="text files", to_do=to_do)
    return opened


def _open(source: str | Path | pl.DataFrame, encoding: str | None) -> DatasetSource:
    if isinstance(source, pl.DataFrame):
        return DatasetSource(name="the Polars frame", place="row", tabular=True, read=partial(read_frame, source))
    if not isinstance(source, str | Path):
        came = f"a {type(source).__module__}.{type(source).__name__} is not a dataset"
        raise refuse_dataset(came, allowed=_ALLOWED, to_do="save it to a file, or turn it into a polars.DataFrame")
    name = os.path.expanduser(source)
    try:
        return _open_named(name, encoding)
    except OSError as error:
        words = error.strerror or str(error)
        raise refuse_dataset(
            f"{name}: {words}", allowed="a file you may read", to_do="check path and rights"
        ) from error


def _open_named(name: str, encoding: str | None) -> DatasetSource:
    file, hash_sign, table = name.rpartition("#")
    if name.lower().endswith(EXCEL_ENDINGS) or file.lower().endswith(EXCEL_ENDINGS):
        return _open_workbook(name, *((name, "") if name.lower().endswith(EXCEL_ENDINGS) else (file, table)))
    if hash_sign and (file.startswith("duckdb://") or file.lower().endswith(DUCKDB_ENDINGS)):
        return _open_duckdb(name, file, table)
    if name.startswith("duckdb://") or name.lower().endswith(DUCKDB_ENDINGS):
        return _open_duckdb(name, name, "")
    return _open_file(name, encoding)


def _open_workbook(name: str, file: str, sheet: str) -> DatasetSource:
    _check_file(Path(file), file)
    return DatasetSource(name=name, place="row", tabular=True, read=partial(read_sheet, Path(file), sheet))


def _open_file(name: str, encoding: str | None) -> DatasetSource:
    if "://" in name:
        raise refuse_dataset(f"{name} is an address", allowed=_ALLOWED, to_do="download it, then name the file")
    path = Path(name)
    ending = path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    form = FORMATS.get(ending)
    _check_file(path, name)
    if form is None or (path.suffix.lower() == ".gz" and form.place == "row"):
        came = f"{name}: {'a file name without an ending' if not path.suffix else f'unknown format {path.suffix!r}'}"
        raise refuse_dataset(came, allowed=_ALLOWED, to_do="save the dataset as one of these")
    file = DataFile(path=path, encoding=None if form.place == "row" else encoding or _find_mark(path))
    if ending == ".json" and holds_json_lines(file):
        form = FORMATS[".jsonl"]
    return DatasetSource(
        name=name,
        place=form.place,
        tabular=form.tabular,
        read=partial(_read_file, form.read, file, ending),
        file=None if form.place == "row" else file,
    )


def _find_mark(path: Path) -> str | None:
    """The encoding that the file's byte order mark names, where it is not UTF-8."""
    with suppress(EOFError, zlib.error, gzip.BadGzipFile), DataFile(path=path).open() as opened:
        start = opened.read(2)
        return None if start.isascii() else find_mark(start)
    return None


def _read_file(
    read: Callable[[DataFile, Complain], Iterator[RawRow]], file: DataFile, ending: str, complain: Complain
) -> Iterator[RawRow]:
    try:
        yield from read(file, complain)
    except UnicodeDecodeError as error:
        text = f"the file is not {file.encoding}: {error.reason} (0x{error.object[error.start]:02x})"
        raise ReadingStopped(None, "not_utf8", text) from error
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ReadingStopped(None, "unreadable", f"cannot be read as {ending}: {words}") from error


def _check_file(path: Path, name: str) -> None:
    """Refuse what is not a file with something in it. Opens nothing: closing a live DuckDB file would drop its lock."""
    if path.is_dir():
        inside = list_names([f"{name.rstrip('/')}/{entry}" for entry in _list_datasets(path)], 5)
        raise refuse_dataset(f"{name} is a directory", allowed="one dataset file", to_do=f"name a file: {inside}")
    if not path.exists():
        raise refuse_dataset(f"{name}: no such file", allowed=_ALLOWED, to_do=_suggest_file(path))
    if not path.is_file():
        raise refuse_dataset(f"{name} is not a regular file", allowed=_ALLOWED, to_do="save what it gives to a file")
    if path.stat().st_size == 0:
        raise refuse_dataset(
            f"{name} is empty (0 bytes)", allowed="at least one row", to_do="was it written to the end?"
        )


def _list_datasets(folder: Path) -> list[str]:
    """Of a DuckDB file nobody can say without opening it whether it is a warehouse, so none is proposed."""
    return sorted(entry.name for entry in folder.iterdir() if entry.name.lower().endswith(_ENDINGS))


def _suggest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the folder {path.parent} is not there either: check the path"
    close = get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=3, cutoff=0.75)
    if close:
        return f"did you mean {' or '.join(str(path.with_name(name)) for name in close)}?"
    return f"check the path; datasets in that folder: {list_names(_list_datasets(path.parent), 5)}"


def _open_duckdb(name: str, file: str, table: str) -> DatasetSource:
    if file.startswith("duckdb://"):
        try:
            path = parse_location(file).path
        except WarehouseUrlError as error:
            to_do = "write the file's path and the table's name"
            raise refuse_dataset(f"{name} names no DuckDB file", allowed="FILE.duckdb#TABLE", to_do=to_do) from error
    else:
        path = Path(file)
    _check_file(path, file)
    return DatasetSource(name=name, place="row", tabular=True, read=partial(read_duckdb, path, table))


def _refuse_table(path: Path, table: str, error: TableSourceError) -> DatasetError:
    match error.reason:
        case "no_table":
            came = f"{path} has no table {table!r}" if table else f"{path} is a DuckDB file: which table?"
            allowed = f"its tables: {list_names(error.tables)}"
            return refuse_dataset(came, allowed=allowed, to_do=f"write {path}#TABLE")
        case "locked":
            to_do = "close the program that writes to it, or export the table to Parquet"
            return refuse_dataset(f"{path} is locked: {error}", allowed="a file that nobody is writing to", to_do=to_do)
        case "not_duckdb":
            came, allowed = f"{path} cannot be opened as a DuckDB file", "a file made by DuckDB"
            return refuse_dataset(
                f"{came} ({error})", allowed=allowed, to_do="check the file, or give it its right ending"
            )
        case "unreadable":
            came = f"{path}#{table} cannot be read ({error})"
            return refuse_dataset(
                came, allowed="a table or view that can be selected from", to_do="export it to Parquet"
            )
