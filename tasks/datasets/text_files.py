"""Raw rows from text files: JSON Lines, JSON and CSV, plain or gzipped.

Each reader is a generator that holds one row (and one line) at a time, whatever the file's size. A row that
cannot be read is told to `complain` and left out, so that one reading finds all of them; where nothing after a
mistake can be trusted, ReadingStopped ends the reading. dataset_formats picks the reader by the file's name.
"""

import codecs
import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

import ijson
import orjson

from evalhouse.tasks.datasets.errors import Complain, ReadingStopped
from evalhouse.tasks.datasets.rows import RawRow
from evalhouse.tasks.messages import list_names, name_kind, quote_value

_MAX_LINE = 2**28  # bytes of one JSON Lines row or one line of CSV: a file without line ends must not fill the memory
_MAX_CELL = 2**26  # characters of one CSV cell: more is a quote that is never closed
_CHUNK = 2**16
_SNIFFED = 2**20
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_ROUNDED = 2.0**63  # from here on a float may be a whole number beyond 64 bits, which orjson rounds
_DOUBTFUL = object()


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked when its name ends in .gz, after a byte order mark."""
    packed = path.suffix.lower() == ".gz"
    with cast(BinaryIO, gzip.open(path) if packed else path.open("rb")) as opened:
        start = opened.read(3)
        if start[:2] in _UTF16:
            raise ReadingStopped(None, "not_utf8", "the file is UTF-16, not UTF-8")
        if start != codecs.BOM_UTF8:
            opened.seek(0)
        yield opened


def read_json_lines(path: Path, complain: Complain) -> Iterator[RawRow]:
    """One JSON object a line; empty lines are passed over."""
    n_rows = 0
    for number, line in enumerate(_read_lines(path), start=1):
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


def read_json(path: Path, complain: Complain) -> Iterator[RawRow]:
    """The elements of an array of objects, or of the one array of objects inside an object."""
    if not _read_start(path):
        return
    number = 0
    try:
        for number, value in enumerate(_cut_rows(_parse_json(path)), start=1):
            if isinstance(value, dict):
                yield RawRow(row=number, values=value)
            else:
                complain(number, "not_an_object", f"{name_kind(value)}, not a JSON object: {quote_value(value)}")
    except RecursionError:
        raise ReadingStopped(number + 1, "broken_json", "nested too deep to be read") from None


def holds_json_lines(path: Path) -> bool:
    """Whether a .json file has one object a line, as some tools write it: one on the first line, another after it."""
    try:
        line, _, following = _read_start(path).partition(b"\n")
        return following.lstrip().startswith(b"{") and isinstance(orjson.loads(line), dict)
    except (orjson.JSONDecodeError, OSError, EOFError, zlib.error, ReadingStopped):
        return False  # whatever is wrong with it, the reader of JSON will say it


def _read_start(path: Path) -> bytes:
    with open_text(path) as opened:
        return opened.read(_SNIFFED).lstrip()


JsonEvent = tuple[str, object]  # what ijson gives: the name of the event and its value


def _parse_json(path: Path) -> Iterator[JsonEvent]:
    """The events of a JSON text, fed line by line so that a mistake has a line number."""
    found = ijson.sendable_list()
    parser = ijson.basic_parse_coro(found)
    line = 1
    chunk = b""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with open_text(path) as opened:
        try:
            while chunk := opened.readline(_CHUNK):
                _check_utf8(decoder, chunk, line, offset)
                parser.send(chunk)
                yield from found
                found.clear()
                ended = chunk.endswith(b"\n")
                line, offset = (line + 1, 0) if ended else (line, offset + len(chunk))
            parser.close()
            yield from found
        except ijson.JSONError as error:
            yield from found
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
    return " (NaN is no JSON: write null)" if re.search(rb"\bNaN\b|\bInfinity\b", chunk) else ""


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
    for event, key in events:
        if event == "end_map":
            break
        keys.append(str(key))
        if not _enters_rows(events):
            continue
        if chosen:
            text = f"two arrays of objects, {chosen!r} and {keys[-1]!r}, and only one can be the dataset"
            raise ReadingStopped(None, "not_an_object", text)
        chosen = keys[-1]
        yield _build_value("start_map", None, events)
        yield from _cut_elements(events)
    if not chosen:
        text = f"no array of objects in it (under data, samples, rows, examples, …); keys: {list_names(keys)}"
        raise ReadingStopped(None, "not_an_object", text)


def _enters_rows(events: Iterator[JsonEvent]) -> bool:
    """Whether the next value is an array of objects, which is entered then; any other value is read to its end."""
    event, _ = next(events)
    if event != "start_array":
        _skip_value(event, events)
        return False
    event, _ = next(events)
    if event == "start_map":
        return True
    while event != "end_array":
        _skip_value(event, events)
        event, _ = next(events)
    return False


def _cut_elements(events: Iterator[JsonEvent]) -> Iterator[object]:
    for event, value in events:
        if event == "end_array":
            return
        yield _build_value(event, value, events)


def _build_value(event: str, value: object, events: Iterator[JsonEvent]) -> object:
    """The value that begins with this event; reads on to its end."""
    if event == "start_map":
        members: dict[str, object] = {}
        for inner, key in events:
            if inner == "end_map":
                break
            members[str(key)] = _build_value(*next(events), events)
        return members
    if event == "start_array":
        return list(_cut_elements(events))
    return float(value) if isinstance(value, Decimal) else value


def _skip_value(event: str, events: Iterator[JsonEvent]) -> None:
    depth = 0
    while True:
        depth += event.startswith("start_") - event.startswith("end_")
        if depth == 0:
            return
        event, _ = next(events)


def read_csv(path: Path, complain: Complain) -> Iterator[RawRow]:
    """Records under a header; the row is the line on which a record begins. An empty cell is None.

    The delimiter is the one the first line has most of: comma, semicolon or tab.
    """
    csv.field_size_limit(
        _MAX_CELL
    )  # one setting for the whole process; its default of 128 KiB is too small for contexts
    lines = _decode_lines(path, complain)
    first = next(lines, "")
    records = csv.reader(chain([first], lines), delimiter=max(",;\t", key=first.count), strict=True)
    header: list[str] = []
    begin = 1
    try:
        for record in records:
            if not header:
                header = _read_header(record, begin)
            elif len(record) == len(header):
                cells = [cell or None for cell in record]
                yield RawRow(row=begin, values=dict(zip(header, cells, strict=True)))
            elif record:
                complain(begin, "broken_table", f"{len(record)} cells where the header has {len(header)}")
            begin = records.line_num + 1
    except csv.Error as error:
        raise ReadingStopped(begin, "broken_table", f"broken CSV: {error}") from error


def _read_header(record: list[str], line: int) -> list[str]:
    """The columns' names; one without a name, as pandas writes its index, is named by its place."""
    header = [name.strip() or f"column_{place}" for place, name in enumerate(record, start=1)]
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise ReadingStopped(line, "broken_table", f"the header names a column twice: {list_names(repeated)}")
    return header


def _decode_lines(path: Path, complain: Complain) -> Iterator[str]:
    for number, line in enumerate(_read_lines(path), start=1):
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            complain(number, "not_utf8", say_byte(line, error.start, error.start))
            text = line.decode(errors="replace")
        yield text


def _read_lines(path: Path) -> Iterator[bytes]:
    with open_text(path) as opened:
        number = 0
        while line := opened.readline(_MAX_LINE):
            number += 1
            if len(line) == _MAX_LINE:
                raise ReadingStopped(number, "unreadable", f"a line of more than {_MAX_LINE // 2**20} MiB")
            yield line


def say_byte(data: bytes, index: int, position: int) -> str:
    """Where a line stops being UTF-8, with bytes counted from 1."""
    return f"not UTF-8: byte {position + 1:,} of the line is 0x{data[index]:02x}"
