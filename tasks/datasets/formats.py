"""Which reader a dataset needs, and the readers of tables.

A dataset is a file whose name says its format, a table in a DuckDB file (`qa.duckdb#test_set`) or a Polars
frame. Each opens as a `DatasetSource`, whose `read` yields raw rows one after the other with bounded memory and
can be called again. Text formats are read by dataset_text, DuckDB by warehouse/table_source; what the columns
mean is dataset_rows' business.
"""

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from evalhouse.tasks.datasets.errors import Complain, DatasetError, Place, ReadingStopped, refuse_dataset
from evalhouse.tasks.datasets.rows import RawRow
from evalhouse.tasks.datasets.text_files import holds_json_lines, read_csv, read_json, read_json_lines
from evalhouse.tasks.messages import list_names
from evalhouse.warehouse.engine.foreign_tables import TableSourceError, read_table
from evalhouse.warehouse.errors import WarehouseUrlError
from evalhouse.warehouse.location import parse_location

TABLE_BATCH = 1000  # rows of a table that are held at once
DUCKDB_PATIENCE_S = 5.0  # how long a file that somebody writes to is waited for
_BUFFER = 2**20  # bytes of a Parquet column read ahead; without it a whole row group is held

Read = Callable[[Complain], Iterator[RawRow]]


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """A dataset that can be read, more than once, row by row.

    `place` says what a row's number counts. `tabular`: every row has the same columns, and cells may hold JSON text.
    `read` raises ReadingStopped where nothing more can be read.
    """

    name: str
    place: Place
    tabular: bool
    read: Read


@dataclass(frozen=True, kw_only=True)
class Format:
    """How files of one ending are read."""

    read: Callable[[Path, Complain], Iterator[RawRow]]
    place: Place
    tabular: bool


def read_parquet(path: Path, complain: Complain) -> Iterator[RawRow]:
    """Rows of a Parquet file."""
    with pq.ParquetFile(path, buffer_size=_BUFFER) as opened:
        yield from _number_rows(opened.iter_batches(TABLE_BATCH))


def read_arrow(path: Path, complain: Complain) -> Iterator[RawRow]:
    """Rows of an Arrow file or stream, one record batch at a time."""
    with pa.memory_map(str(path)) as opened:
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
_TEXT_ENDINGS = tuple(f"{ending}.gz" for ending, known in FORMATS.items() if known.place != "row")
_ENDINGS = (*FORMATS, *DUCKDB_ENDINGS, *_TEXT_ENDINGS)
_ALLOWED = f"{', '.join(FORMATS)} (text formats also with .gz), a table as FILE.duckdb#TABLE, or a Polars frame"


def open_source(source: str | Path | pl.DataFrame) -> DatasetSource:
    """Find out what a dataset is, without reading more than its start. Raises DatasetError."""
    if isinstance(source, pl.DataFrame):
        return DatasetSource(name="the Polars frame", place="row", tabular=True, read=partial(read_frame, source))
    if not isinstance(source, str | Path):
        came = f"a {type(source).__module__}.{type(source).__name__} is no dataset"
        raise refuse_dataset(came, allowed=_ALLOWED, to_do="save it to a file, or turn it into a polars.DataFrame")
    name = os.path.expanduser(source)
    try:
        return _open_named(name)
    except OSError as error:
        words = error.strerror or str(error)
        raise refuse_dataset(
            f"{name}: {words}", allowed="a file you may read", to_do="check path and rights"
        ) from error


def _open_named(name: str) -> DatasetSource:
    file, hash_sign, table = name.rpartition("#")
    if hash_sign and (file.startswith("duckdb://") or file.lower().endswith(DUCKDB_ENDINGS)):
        return _open_duckdb(name, file, table)
    if name.startswith("duckdb://") or name.lower().endswith(DUCKDB_ENDINGS):
        return _open_duckdb(name, name, "")
    return _open_file(name)


def _open_file(name: str) -> DatasetSource:
    if "://" in name:
        raise refuse_dataset(f"{name} is an address", allowed=_ALLOWED, to_do="download it, then name the file")
    path = Path(name)
    ending = path.with_suffix("").suffix.lower() if path.suffix.lower() == ".gz" else path.suffix.lower()
    known = FORMATS.get(ending)
    _check_file(path, name)
    if known is None or (path.suffix.lower() == ".gz" and known.place == "row"):
        came = f"{name}: {'a file name without an ending' if not path.suffix else f'unknown format {path.suffix!r}'}"
        raise refuse_dataset(came, allowed=_ALLOWED, to_do="save the dataset as one of these")
    if ending == ".json" and holds_json_lines(path):
        known = FORMATS[".jsonl"]
    return DatasetSource(
        name=name, place=known.place, tabular=known.tabular, read=partial(_read_file, known.read, path, ending)
    )


def _read_file(
    read: Callable[[Path, Complain], Iterator[RawRow]], path: Path, ending: str, complain: Complain
) -> Iterator[RawRow]:
    try:
        yield from read(path, complain)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        words = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ReadingStopped(None, "unreadable", f"cannot be read as {ending}: {words}") from error


def _check_file(path: Path, name: str) -> None:
    """Refuse what is no file with something in it. Opens nothing: closing a live DuckDB file would drop its lock."""
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
