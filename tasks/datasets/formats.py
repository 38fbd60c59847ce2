"""The formats of datasets: which reader a dataset needs, and the readers of text.

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
import stat
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from itertools import chain, takewhile
from pathlib import Path
from typing import BinaryIO, Final, cast

import ijson
import orjson
import polars as pl

from evalhouse.tasks.datasets.rows import ALIASES, ColumnPath, RawRow
from evalhouse.tasks.datasets.values import MAX_ROW, Complain, Place, ReadingStopped, parse_json, refuse_dataset
from evalhouse.warehouse.errors import WarehouseUrlError
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.messages import list_names, name_kind, name_setting, quote_value

_MAX_DOCUMENT = 2**28  # bytes of a JSON file that is an object, and so has to be read whole
_CHUNK = 2**16
_SNIFFED = 2**20
_FRAME_BATCH = 1000  # rows of a Polars frame that are in memory as Python objects

Read = Callable[[Complain], Iterator[RawRow]]


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file; `part` is the sheet, the table or the place in a JSON object that is meant.

    `encoding` is None for UTF-8 and for files that are not text.
    """

    path: Path
    ending: str
    part: str = ""
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
    `leave_out` is for rows that were made of something else, such as traces: it takes a row that cannot be a
    sample, and the problem, for which another dataset is refused. The texts of such rows are not looked into.
    """

    name: str
    place: Place
    tabular: bool
    read: Read
    file: DataFile | None = None
    leave_out: Callable[[RawRow, str], None] | None = None


# --- encodings

_SAMPLED: Final = 2**22  # bytes of lines with more than ASCII that the encoding is found by
_MARKS: Final = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_CHINESE: Final = "gb18030"
_MISSING: Final = frozenset({"", "nan", "NaN"})  # in CSV: pandas writes NaN so as a text
_WESTERN: Final = "cp1252"
# They agree on German, on é and on typographic quotes; French and Polish read differently in each.
_NEIGHBOURS: Final = ("cp1250", "cp1254", "cp1257")
_PROPOSED: Final = (_WESTERN, _CHINESE, "cp1250", "cp1251", "cp1254", "cp1256", "big5", "shift_jis", "euc_kr")
_HIGH: Final = re.compile(rb"[\x80-\xff]+")
# What DOS code pages have as letters, the Windows ones have as these signs.
_WITHIN_WORD: Final = re.compile(r"[^\W\d_][„“”‚†‡‰‹›«»•][^\W\d_]")


def find_mark(start: bytes) -> str | None:
    """Return the encoding that a byte order mark at the start of a file names, or the zeros that only UTF-16 has."""
    zeros = {place % 2 for place, byte in enumerate(start[:1024]) if byte == 0}
    without_mark = "utf-16-le" if zeros == {1} else "utf-16-be" if zeros == {0} else None
    return next((name for mark, name in _MARKS if start.startswith(mark)), without_mark)


def is_utf8(line: bytes) -> bool:
    """Return True if the bytes are valid UTF-8."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_known(encoding: str) -> bool:
    """Return True if Python has an encoding of this name that decodes bytes to text."""
    try:
        b"a".decode(encoding)
    except UnicodeDecodeError:
        return True
    except LookupError:
        return False
    return True


def find_encoding(lines: Iterable[bytes]) -> str | None:
    """Return the encoding of the lines of a file that is not UTF-8, where it is certain; None otherwise.

    charset-normalizer names an encoding for nearly any bytes, and in a short file often a wrong one: a French question
    in cp1252 is cp1250 to it, a Japanese one in Shift JIS is Korean. So its answer counts for Chinese alone; cp1252 is
    certain where all code pages that may be confused with it give the same text. Otherwise the user chooses between the
    readings of a line.
    """
    from charset_normalizer import from_bytes  # noqa: PLC0415  # few files are not UTF-8

    data = bytearray()
    for line in lines:
        if _HIGH.search(line):
            data += line
        if len(data) > _SAMPLED:
            break
    match = from_bytes(bytes(data)).best()
    if match is None:
        return None
    candidates = set(match.could_be_from_charset)
    if {_CHINESE, "gbk"} <= candidates:
        return _CHINESE
    try:
        texts = {bytes(data).decode(name) for name in (_WESTERN, *_NEIGHBOURS)}
    except UnicodeDecodeError:
        return None
    return _WESTERN if len(texts) == 1 and not _WITHIN_WORD.search(texts.pop()) else None


def show_readings(lines: Iterable[bytes]) -> str:
    """Return how the first line that is not UTF-8 reads in the encodings it may be in, for the user to choose from."""
    number, line = next((number, line) for number, line in enumerate(lines, start=1) if not is_utf8(line))
    readings: dict[str, str] = {}
    for name in _PROPOSED:
        try:
            text = line.decode(name)
        except UnicodeDecodeError:
            continue
        place = next((at for at, letter in enumerate(text) if letter > "\x7f"), 0)
        readings.setdefault(text[max(0, place - 12) : place + 12].strip(), name)
    shown = ", ".join(f"{reading!r} with {name_setting('encoding', name)}" for reading, name in readings.items())
    return f"line {number:,} reads {shown}" if shown else ""


class Utf8Bytes(io.RawIOBase):
    """The bytes of a file of another encoding as UTF-8. Raises UnicodeDecodeError where the file is not in it."""

    def __init__(self, opened: BinaryIO, encoding: str) -> None:
        self._opened = opened
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._decoded = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]  # what io.BufferedReader passes
        ended = False
        while not self._decoded and not ended:
            chunk = self._opened.read(_CHUNK)
            ended = not chunk
            self._decoded = self._decoder.decode(chunk, final=ended).removeprefix("\ufeff").encode()
        n = min(len(buffer), len(self._decoded))
        buffer[:n], self._decoded = self._decoded[:n], self._decoded[n:]
        return n


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
        while line := opened.readline(MAX_ROW):
            number += 1
            if len(line) == MAX_ROW:
                raise ReadingStopped(number, "unreadable", f"a line of more than {MAX_ROW // 2**20} MiB")
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

    def read_records() -> Iterator[tuple[int, list[object]]]:
        # One setting for the whole process; its default of 128 KiB is too small for contexts.
        csv.field_size_limit(MAX_ROW)
        lines = decode_lines()
        first = next(lines, "")
        records = csv.reader(chain([first], lines), delimiter=max(",;\t", key=first.count), strict=True)
        begin = 1
        try:
            for record in records:
                yield begin, [None if cell in _MISSING else cell for cell in record]
                begin = records.line_num + 1
        except csv.Error as error:
            raise ReadingStopped(begin, "broken_table", f"broken CSV: {error}") from error

    yield from _name_cells(read_records(), complain)


def _name_cells(records: Iterable[tuple[int, Sequence[object]]], complain: Complain) -> Iterator[RawRow]:
    """Yield the records under the first one, the header, with their cells by the columns' names.

    A column without a name, as pandas writes its index, is named by its place. Two columns may have one name if their
    cells are equal, as where pandas writes an index that is a column too.
    """
    header: list[str] = []
    for number, cells in records:
        if not header:
            names = ["" if cell is None else str(cell).strip() for cell in cells]
            header = [name or f"column_{place}" for place, name in enumerate(names, start=1)]
        elif len(cells) == len(header):
            values = dict(zip(header, cells, strict=True))
            if len(values) < len(header):
                differing = sorted({name for name, cell in zip(header, cells, strict=True) if values[name] != cell})
                if differing:
                    text = f"two columns have one name and two values: {list_names(differing)}"
                    raise ReadingStopped(number, "broken_table", text)
            yield RawRow(row=number, values=values)
        elif cells:
            complain(number, "broken_table", f"{len(cells)} cells where the header has {len(header)}")


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
            value = parse_json(line)
        except UnicodeDecodeError as error:
            complain(number, "not_utf8", _describe_byte(line, error.start, error.start))
        except UnicodeEncodeError:
            complain(number, "broken_json", "broken JSON: half of a surrogate pair (such as \\ud83d) is alone")
        except json.JSONDecodeError as error:
            complain(number, "broken_json", f"broken JSON: {error.msg} at column {error.colno}")
        except ValueError as error:
            complain(number, "broken_json", f"broken JSON: {error}")
        else:
            if isinstance(value, dict):
                yield RawRow(row=number, values=value)
            else:
                complain(number, "not_an_object", f"{name_kind(value)}, not a JSON object: {quote_value(value)}")


def read_json(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """Yield the elements of an array of objects, or of the one array of objects inside an object."""
    start = _read_start(file)
    if not start:
        return
    is_array = start.startswith(b"[") and not file.part
    events = _parse_json(file)
    number = 0
    try:
        if is_array:
            next(events)
        for number, value in enumerate(_cut_elements(events) if is_array else _read_document(file), start=1):
            if isinstance(value, dict):
                yield RawRow(row=number, values=value)
            else:
                complain(number, "not_an_object", f"{name_kind(value)}, not a JSON object: {quote_value(value)}")
        if is_array:
            deque(events, maxlen=0)  # check that the file ends here
    except RecursionError:
        raise ReadingStopped(number + 1, "broken_json", "nested too deep to be read") from None


def _read_start(file: DataFile) -> bytes:
    with open_text(file) as opened:
        return opened.read(_SNIFFED).lstrip()


_ROWS: Final = ("results", "data", "rows", "samples", "examples", "records", "items")  # names of the array of rows
JsonEvent = tuple[str, object]  # the name of an event of ijson and its value


def _cut_elements(events: Iterator[JsonEvent]) -> Iterator[object]:
    """Yield the elements of an array whose beginning was read."""
    for event, value in takewhile(_is_inside, events):
        yield _build_value(event, value, events)


def _is_inside(event: JsonEvent) -> bool:
    return event[0] not in ("end_array", "end_map")


def _build_value(event: str, value: object, events: Iterator[JsonEvent]) -> object:
    """Return the value that begins with this event; reads on to its end.

    ijson's builder takes memory in the square of the depth, and refuses long whole numbers if it makes floats.
    """
    if event == "start_map":
        return {str(key): _build_value(*next(events), events) for _, key in takewhile(_is_inside, events)}
    if event == "start_array":
        return list(_cut_elements(events))
    return float(value) if isinstance(value, Decimal) else value


def _parse_json(file: DataFile, *, many: bool = False) -> Iterator[JsonEvent]:
    """Yield the events of a JSON value, or of many after each other, fed by lines so that a mistake has its number."""
    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events, multiple_values=many)
    decoder = codecs.getincrementaldecoder("utf-8")()
    line, offset, chunk = 1, 0, b""
    length = 0  # of a text that has not ended
    with open_text(file) as opened:
        try:
            while chunk := opened.readline(_CHUNK):
                length += len(chunk)
                if length > MAX_ROW:
                    text = f"line {line:,} has a text of more than {MAX_ROW // 2**20} MiB"
                    raise ReadingStopped(None, "unreadable", text)
                n_pending = len(decoder.getstate()[0])
                try:
                    decoder.decode(chunk)
                except UnicodeDecodeError as error:
                    text = _describe_byte(error.object, error.start, offset - n_pending + error.start)
                    raise ReadingStopped(None, "not_utf8", f"line {line:,} is {text}") from error
                parser.send(chunk)
                length = 0 if events else length
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
        except (SystemError, ArithmeticError) as error:  # from the parser, for a number that Python does not read
            text = f"broken JSON on line {line:,}: a number with thousands of digits, or beyond all numbers"
            raise ReadingStopped(None, "broken_json", text) from error


def _read_document(file: DataFile) -> list[object]:
    """Return the rows of a JSON object: the array at the place that the user named, else its one array of objects,
    there or one level further inside, or a list for each column.

    pandas writes a frame as an object by place for each column. Such a file is read into memory whole.
    """
    with open_text(file) as opened:
        text = opened.read(_MAX_DOCUMENT + 1)
    if len(text) > _MAX_DOCUMENT:
        problem = f"a JSON object of more than {_MAX_DOCUMENT // 2**20} MiB; save its rows as JSON Lines or as an array"
        raise ReadingStopped(None, "unreadable", problem)
    try:
        document = parse_json(text)
    except ValueError as error:
        # Objects printed over several lines one after the other, as jq and OpenTelemetry's console exporter write them.
        events = _parse_json(file, many=True)  # raises with the line of a mistake
        values = [_build_value(event, value, events) for event, value in events]
        if len(values) < 2:
            raise ReadingStopped(None, "broken_json", f"broken JSON: {error}") from error
        return values
    if file.part and isinstance(document, dict):
        place = ColumnPath(file.part).find(document)
        if not isinstance(place, list):
            problem = f"no array at {file.part!r}; places with one: {list_names(list(_find_arrays(document)))}"
            raise ReadingStopped(None, "not_an_object", problem)
        return place
    if not isinstance(document, dict):
        raise ReadingStopped(None, "not_an_object", f"the file holds {name_kind(document)}, not an array of objects")
    columns: dict[str, list[object]] = {}
    indexes: dict[str, list[str]] = {}  # the names of rows, where a frame was written with them
    arrays: dict[str, list[object]] = {}  # of objects
    for name, member in document.items():
        if isinstance(member, dict) and all(key.isdecimal() for key in member):
            indexes[name] = sorted(member, key=lambda row: (len(row), row))
            columns[name] = [member[row] for row in indexes[name]]
        elif isinstance(member, list):
            columns[name] = member
            if member and isinstance(member[0], dict):
                arrays[name] = member
    # An array of objects that comes first, or beside no question, is the rows themselves.
    has_columns = document and len(columns) == len(document) and next(iter(document)) not in arrays
    if has_columns and (not arrays or any(name in ALIASES["question"] for name in columns)):
        if len({len(column) for column in columns.values()}) > 1:
            lengths = list_names([f"{name} {len(column):,}" for name, column in columns.items()], 8)
            raise ReadingStopped(None, "broken_table", f"columns of different lengths: {lengths}")
        first = next(iter(indexes), "")
        for name, index in indexes.items():
            if index != indexes[first]:
                lacking = list_names(sorted({*index} ^ {*indexes[first]}), 3)
                raise ReadingStopped(None, "broken_table", f"{first!r} and {name!r} do not both have rows {lacking}")
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if not arrays:
        arrays = _find_arrays(document)
        # promptfoo has its rows in results.results, beside lists of prompts and tests.
        named = {name: array for name, array in arrays.items() if name.rpartition(".")[2] in _ROWS}
        arrays = named if len(named) == 1 else arrays
    if len(arrays) != 1:
        names = list(arrays)
        problem = (
            f"no array of objects in it (under data, samples, rows, examples, …); keys: {list_names(list(document))}"
        )
        if arrays:
            problem = (
                f"two arrays of objects, {names[0]!r} and {names[1]!r}, and only one can be the dataset: name it, as "
                f"in {file.path}#{names[0]}"
            )
        raise ReadingStopped(None, "not_an_object", problem)
    return next(iter(arrays.values()))


def _find_arrays(document: Mapping[str, object]) -> dict[str, list[object]]:
    """Return the arrays of objects in an object and in those inside it, by their places."""
    inside = {
        f"{name}.{key}": member
        for name, item in document.items()
        if isinstance(item, dict)
        for key, member in item.items()
    }
    return {
        name: member
        for name, member in {**document, **inside}.items()
        if isinstance(member, list) and member and isinstance(member[0], dict)
    }


# --- which reader a dataset needs


def read_table(file: DataFile, complain: Complain) -> Iterator[RawRow]:
    """Yield the rows of a table that is not text."""
    # The libraries for these formats take longer to load than a small dataset to read: imported where one is met.
    from evalhouse.tasks.datasets import tables  # noqa: PLC0415

    if file.ending in EXCEL_ENDINGS:
        yield from _name_cells(tables.read_workbook(file.path, file.part), complain)
        return
    if file.ending in DUCKDB_ENDINGS:
        rows = tables.read_duckdb(file.path, file.part)
    else:
        rows = tables.read_arrow(file.path, file.ending)
    for number, values in enumerate(rows, start=1):
        yield RawRow(row=number, values=values)


@dataclass(frozen=True, kw_only=True)
class Format:
    """The reader of the files of one ending."""

    read: Callable[[DataFile, Complain], Iterator[RawRow]]
    place: Place
    tabular: bool


EXCEL_ENDINGS = (".xlsx", ".xlsm", ".xls", ".ods")
DUCKDB_ENDINGS = (".duckdb", ".ddb", ".db")
_TABLE = Format(read=read_table, place="row", tabular=True)
FORMATS: dict[str, Format] = {
    ".jsonl": Format(read=read_json_lines, place="line", tabular=False),
    ".ndjson": Format(read=read_json_lines, place="line", tabular=False),
    ".json": Format(read=read_json, place="element", tabular=False),
    ".csv": Format(read=read_csv, place="line", tabular=True),
    ".tsv": Format(read=read_csv, place="line", tabular=True),
    **dict.fromkeys((".parquet", ".arrow", ".feather", ".ipc", *EXCEL_ENDINGS), _TABLE),
}
_TEXT_ENDINGS = tuple(f"{ending}.gz" for ending, form in FORMATS.items() if form.place != "row")
_ALLOWED = f"{', '.join(FORMATS)} (text formats also with .gz), a table as FILE.duckdb#TABLE, or a Polars frame"


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
            from evalhouse.tasks.datasets import tables  # noqa: PLC0415  # few datasets are a frame

            for number, values in enumerate(tables.read_frame(frame, _FRAME_BATCH), start=1):
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
    """Open a file by its name: text, a sheet of a workbook, or a table of a DuckDB file."""
    path_text, hash_sign, part = name.rpartition("#")
    if not hash_sign or name.lower().endswith((*EXCEL_ENDINGS, *DUCKDB_ENDINGS)):
        path_text, part = name, ""
    is_url = path_text.startswith("duckdb://")
    if is_url or path_text.lower().endswith((*EXCEL_ENDINGS, *DUCKDB_ENDINGS)):
        path = Path(path_text)
        if is_url:
            try:
                path = parse_location(path_text).path
            except WarehouseUrlError as error:
                came, to_do = f"{name} names no DuckDB file", "write the file's path and the table's name"
                raise refuse_dataset(came, allowed="FILE.duckdb#TABLE", to_do=to_do) from error
        _check_file(path, path_text)
        ending = DUCKDB_ENDINGS[0] if is_url else path.suffix.lower()
        file = DataFile(path=path, ending=ending, part=part)
        return DatasetSource(name=name, place="row", tabular=True, read=partial(read_table, file))
    if "://" in name:
        raise refuse_dataset(f"{name} is an address", allowed=_ALLOWED, to_do="download it, then name the file")
    path = Path(name)
    if not path.exists() and path_text.lower().endswith((".json", ".json.gz")):
        path = Path(path_text)  # FILE.json#results.results
    else:
        part = ""
    packed = path.suffix.lower() == ".gz"
    ending = path.with_suffix("").suffix.lower() if packed else path.suffix.lower()
    form = FORMATS.get(ending)
    _check_file(path, name)
    if form is None or (packed and form.place == "row"):
        came = f"{name}: {f'unknown format {path.suffix!r}' if path.suffix else 'a file name without an ending'}"
        raise refuse_dataset(came, allowed=_ALLOWED, to_do="save the dataset as one of these")
    is_text = form.place != "row"
    file = DataFile(path=path, ending=ending, part=part, encoding=encoding if is_text else None)
    if is_text and encoding is None:
        with suppress(EOFError, zlib.error, gzip.BadGzipFile), file.open() as opened:
            found = find_mark(opened.read(1024))
            file = replace(file, encoding=None if found == "utf-8" else found)
    if ending in (".json", ".jsonl", ".ndjson") and not part:
        # Some tools write one object a line under the first ending, or each over several lines under the others.
        with suppress(ValueError, OSError, EOFError, zlib.error):  # the reader of JSON reports what is wrong
            line, _, following = _read_start(file).partition(b"\n")
            if line.strip() == b"{":
                form = FORMATS[".json"]
            elif following.lstrip().startswith(b"{") and isinstance(orjson.loads(line), dict):
                form = FORMATS[".jsonl"]

    def read(complain: Complain) -> Iterator[RawRow]:
        try:
            yield from form.read(file, complain)
        except UnicodeDecodeError as error:
            text = f"the file is not {file.encoding}: {error.reason} (0x{error.object[error.start]:02x})"
            raise ReadingStopped(None, "not_utf8", text) from error
        except (OSError, EOFError, zlib.error) as error:
            words = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ReadingStopped(None, "unreadable", f"cannot be read as {ending}: {words}") from error

    return DatasetSource(name=name, place=form.place, tabular=form.tabular, read=read, file=file if is_text else None)


_SPECIAL: Final = {
    stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


def find_special(path: Path) -> str | None:
    """Return what a path is that reading may never end, or open something else than a file; None for others."""
    try:
        return _SPECIAL.get(stat.S_IFMT(path.stat().st_mode))
    except OSError:
        return "a link to nothing"


def _check_file(path: Path, name: str) -> None:
    """Refuse what is not a file with content. Opens nothing: closing a live DuckDB file would drop its lock."""

    def list_datasets(folder: Path) -> str:
        # Whether a DuckDB file is a warehouse is not known without opening it, so none is proposed.
        return list_names(
            sorted(
                f"{name.rstrip('/')}/{entry.name}" if folder == path else entry.name
                for entry in folder.iterdir()
                if entry.name.lower().endswith((*FORMATS, *_TEXT_ENDINGS))
            ),
            5,
        )

    if path.is_dir():
        to_do = f"name a file: {list_datasets(path)}"
        raise refuse_dataset(f"{name} is a directory", allowed="one dataset file", to_do=to_do)
    is_cut_link = path.is_symlink() and not path.exists()
    if not path.exists() and not is_cut_link:
        if not path.parent.is_dir():
            to_do = f"the folder {path.parent} is not there either: check the path"
        elif close := get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=3, cutoff=0.75):
            to_do = f"did you mean {' or '.join(str(path.with_name(other)) for other in close)}?"
        else:
            to_do = f"check the path; datasets in that folder: {list_datasets(path.parent)}"
        raise refuse_dataset(f"{name}: no such file", allowed=_ALLOWED, to_do=to_do)
    if kind := find_special(path):
        to_do = "let it lead to a file" if is_cut_link else "save its content to a file"
        raise refuse_dataset(f"{name} is {kind}", allowed=_ALLOWED, to_do=to_do)
    if path.stat().st_size == 0:
        to_do = "was it written to the end?"
        raise refuse_dataset(f"{name} is empty (0 bytes)", allowed="at least one row", to_do=to_do)
