"""Rows of tables: workbooks, Parquet and Arrow files, and tables of DuckDB files. `formats` imports this file when it
meets one of these.

A workbook is read with calamine in a child process. calamine takes memory for every cell between the first filled one
and the last before it reports how many these are, and aborts its process when memory runs out: with a note in the last
corner a workbook of 7 kB takes 550 GB. A bound before that would need a separate parser for .xlsx and .ods: the
dimension that a sheet states is optional, and .ods repeats cells by a number.

A Parquet file of 5 MB may repeat one value of 100 MB in every row. So its texts are read as pyarrow stores them, each
value once, and measured before they are written out.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from evalhouse.tasks.datasets.limited import FileTooLarge, LimitedReader
from evalhouse.tasks.datasets.values import (
    CALL_COLUMNS,
    EXPECTED_CALL_COLUMNS,
    MAX_ROW,
    NULLS_FILLED_IN,
    ReadingStopped,
    parse_json,
    refuse_dataset,
)
from evalhouse.warehouse.errors import first_line
from evalhouse.warehouse.messages import list_names

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

_BUFFER: Final = 2**20  # bytes of a Parquet column read ahead; without it a whole row group is in memory
_FIRST_S: Final = -62_135_596_800  # of the year 1 in seconds of the epoch
_LAST_S: Final = 253_402_300_799  # of the year 9999
TABLE_BATCH = 1000  # rows of a table that are in memory at once
_MAX_UNPACKED: Final = 2**28  # bytes that a column of a row group may unpack to from less than a hundredth of that
_COMPARED: Final = ("rows", "expected_rows", *CALL_COLUMNS, *EXPECTED_CALL_COLUMNS)
"""The columns that hold values of a bot and the expected ones, which are compared."""
DUCKDB_PATIENCE_S = 5.0  # seconds to wait for a file that another program writes to


def read_workbook(path: Path, sheet: str) -> Iterator[tuple[int, list[object]]]:
    """Yield the rows that are not empty, each with its number in the sheet; the first is the header.

    The sheet is the named one (`FILE.xlsx#SHEET`), or the one visible sheet that has any rows. An empty cell is None.
    Raises ReadingStopped for an unreadable workbook, and DatasetError where it is not known which sheet is meant.
    """
    number = 0
    with LimitedReader() as reader:
        try:
            for kind, content in reader.read(f"{__name__}:list_cells", path, sheet):
                match kind:
                    case "locked":
                        raise ReadingStopped(
                            None, "unreadable", "the workbook is locked with a password: save it without"
                        )
                    case "unreadable":
                        raise ReadingStopped(None, "unreadable", f"cannot be read as {path.suffix}: {content}")
                    case "which":
                        came = f"{path} has no sheet {sheet!r}" if sheet else f"{path} has several sheets: which one?"
                        raise refuse_dataset(
                            came, allowed=f"its sheets: {list_names(content)}", to_do=f"write {path}#SHEET"
                        )
                for cells in content:
                    number += 1
                    for place, cell in enumerate(cells):
                        if isinstance(cell, float) and cell.is_integer():  # a spreadsheet has no whole numbers
                            cells[place] = int(cell)
                        elif isinstance(cell, timedelta):
                            cells[place] = str(cell)
                        elif cell == "":
                            cells[place] = None
                    if any(cell is not None for cell in cells):
                        yield number, cells
        except FileTooLarge as error:
            to_do = "delete what is far outside the table, or save the sheet as .csv"
            raise ReadingStopped(None, "unreadable", f"cannot be read as {path.suffix}: {error}: {to_do}") from error


def list_cells(path: Path, sheet: str) -> Iterator[tuple[str, Any]]:
    """Yield the rows of a sheet by batches, or why they cannot be read, as pairs of kind and content.

    It is called in the child process.
    """
    from python_calamine import CalamineError, PasswordError, SheetTypeEnum, SheetVisibleEnum, load_workbook  # noqa: PLC0415  # the parent does not need it

    try:
        with load_workbook(path) as workbook:
            sheets = [item for item in workbook.sheets_metadata if item.typ == SheetTypeEnum.WorkSheet]
            # A hidden sheet is read only if it is named.
            filled = [
                item.name
                for item in sheets
                if item.visible == SheetVisibleEnum.Visible and workbook.get_sheet_by_name(item.name).height > 0
            ]
            names = [item.name for item in sheets]
            if sheet not in names and (sheet or len(filled) > 1):
                yield "which", names
            elif chosen := sheet or "".join(filled):
                batch: list[Sequence[object]] = []
                length = 0
                for number, row in enumerate(workbook.get_sheet_by_name(chosen).iter_rows(), start=1):
                    batch.append(row)
                    length += (size := sum(len(cell) for cell in row if isinstance(cell, str)))
                    if size > MAX_ROW:
                        yield "unreadable", f"row {number:,} has {size:,} characters; at most {MAX_ROW:,} are read"
                        return
                    if len(batch) == TABLE_BATCH or length > MAX_ROW:
                        yield "rows", batch
                        batch, length = [], 0
                yield "rows", batch
    except PasswordError:
        yield "locked", ""
    except CalamineError as error:
        yield "unreadable", str(error)


def _read_json(text: str | bytes) -> object:
    try:
        return parse_json(text)
    except ValueError:  # the type is what the file states
        return text


def _read_short(value: float) -> float:
    """Return the number of the fewest digits for a number of 32 bits: 0.1, and not 0.10000000149011612."""
    import numpy as np  # noqa: PLC0415  # the child that reads a workbook needs none

    return float(str(np.float32(value)))


Opens = Callable[[Any], Any]
"""Reads a value of one type, or None, as the same value of JSON Lines is read."""
OpenRow = Callable[[dict[str, Any]], dict[str, Any]]


def _open_single(read: Opens) -> Opens:
    return lambda value: None if value is None else read(value)


_JSON: Final = _open_single(_read_json)
_UUID: Final = _open_single(lambda value: str(UUID(bytes=value) if isinstance(value, bytes) else value))
_SHORT: Final = _open_single(_read_short)


def _read_shorts(values: list[float | None]) -> list[float | None]:
    """Return a list of them, as a vector has a thousand."""
    import polars as pl  # noqa: PLC0415  # as above

    return pl.Series(values, dtype=pl.Float32).cast(pl.String).cast(pl.Float64).to_list()


_SHORTS: Final = _open_single(_read_shorts)


def _open_list(opens: Opens | None) -> Opens | None:
    if opens is _SHORT:
        return _SHORTS
    return None if opens is None else _open_single(lambda items: [opens(item) for item in items])


def _open_struct(members: Sequence[tuple[str, Opens | None]], n_kept: int) -> Opens:
    """A member that is null is left out: a nested column has the members of all its rows.

    It stays in `n_kept` levels of lists from the outermost: an object by itself may be where a bot gave no answer.
    """
    by_member = dict(members)

    def read(value: Mapping[str, Any] | tuple[Any, ...]) -> object:
        if isinstance(value, tuple):  # DuckDB's members without names, as of row(1, 'x')
            return [one if opens is None else opens(one) for one, (_, opens) in zip(value, members, strict=True)]
        by_name = ((name, one, by_member.get(name)) for name, one in value.items() if n_kept > 0 or one is not None)
        return {name: one if opens is None else opens(one) for name, one, opens in by_name}

    return _open_single(read)


def _open_map(opens: Opens | None) -> Opens:
    return _open_single(lambda value: {str(key): opens(one) if opens else one for key, one in value.items()})


def _open_arrow_type(kind: "pa.DataType", n_kept: int) -> Opens | None:
    import pyarrow as pa  # noqa: PLC0415  # the child that reads a workbook needs none

    extension = getattr(kind, "extension_name", None)
    if extension in ("arrow.json", "arrow.uuid"):
        return _JSON if extension == "arrow.json" else _UUID
    if pa.types.is_float32(kind):
        return _SHORT
    if pa.types.is_struct(kind):
        members = [(field.name, _open_arrow_type(field.type, n_kept)) for field in kind]
        return _open_struct(members, n_kept)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return _open_list(_open_arrow_type(kind.value_type, n_kept - 1)) if is_list else None


def _open_polars_type(kind: Any, n_kept: int) -> Opens | None:  # noqa: ANN401  # Polars has instances and classes
    import polars as pl  # noqa: PLC0415  # as above

    if isinstance(kind, pl.Struct):
        members = [(field.name, _open_polars_type(field.dtype, n_kept)) for field in kind.fields]
        return _open_struct(members, n_kept)
    if isinstance(kind, pl.List | pl.Array):
        return _open_list(_open_polars_type(kind.inner, n_kept - 1))
    return _SHORT if kind == pl.Float32 else None


def _open_duckdb_type(kind: Any, n_kept: int) -> Opens | None:  # noqa: ANN401  # DuckDB moves the class of its types
    if single := {"JSON": _JSON, "UUID": _UUID, "FLOAT": _SHORT}.get(str(kind)):
        return single
    if kind.id == "struct":
        members = [(name, _open_duckdb_type(child, n_kept)) for name, child in kind.children]
        return _open_struct(members, n_kept)
    if kind.id == "map":
        return _open_map(_open_duckdb_type(dict(kind.children)["value"], n_kept - 1))
    return _open_list(_open_duckdb_type(kind.children[0][1], n_kept - 1)) if kind.id in ("list", "array") else None


def _open_columns(open_type: Callable[[Any, int], Opens | None], kinds: Mapping[str, Any]) -> OpenRow:
    """Nulls stay in objects that are in no list, as in `outputs.answer` where the bot gave none, in `tables`, where a
    query may name a column of nulls, and in rows and calls, where the other side may have the same null: there the
    metadata names the columns."""
    kept = dict.fromkeys((*_COMPARED, "tables"), sys.maxsize)
    by_name = {name: open_type(kind, kept.get(name, 1)) for name, kind in kinds.items()}
    opens = {name: of_type for name, of_type in by_name.items() if of_type is not None}
    if not opens:
        return lambda row: row
    compared = [name for name in _COMPARED if name in opens and opens[name] is not _JSON]

    def open_row(row: dict[str, Any]) -> dict[str, Any]:
        row = row | {name: of_type(row[name]) for name, of_type in opens.items()}
        filled = [name for name in compared if row[name] is not None and _has_null(row[name])]
        return row | {NULLS_FILLED_IN: filled} if filled else row

    return open_row


def _has_null(value: object) -> bool:
    """Return True if a member of an object in it is null."""
    if isinstance(value, Mapping):
        return any(member is None or _has_null(member) for member in value.values())
    return isinstance(value, list) and any(map(_has_null, value))


def read_arrow(path: Path, ending: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, or of an Arrow file or stream, a batch at a time."""
    import polars as pl  # noqa: PLC0415  # the child that reads a workbook needs none of these
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    def read_batches() -> "Iterator[pa.RecordBatch]":
        if ending == ".parquet":
            metadata = pq.read_metadata(path)
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
            unpacked = max((chunk.total_uncompressed_size for chunk in chunks), default=0)
            if unpacked > max(_MAX_UNPACKED, 100 * path.stat().st_size):
                text = f"a column unpacks to {unpacked / 2**20:,.0f} MB, more than a hundred times the file"
                raise ReadingStopped(None, "unreadable", f"cannot be read as {ending}: {text}")
            columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
            texts = [column.path for column in columns if column.logical_type.type == "STRING"]
            for number, group in enumerate(groups):
                with pq.ParquetFile(path, buffer_size=_BUFFER, read_dictionary=texts) as parquet:
                    start = next(parquet.iter_batches(1, row_groups=[number]), None)
                    leaves = [] if start is None else [leaf for array in start.columns for leaf in _list_leaves(array)]
                    lengths = [_count_letters(leaf) for leaf in leaves if pa.types.is_dictionary(leaf.type)]
                    longest = max([pc.max(length).as_py() or 0 for length in lengths], default=0)
                    n_values = max([group.column(place).num_values for place in range(group.num_columns)], default=0)
                    if longest * n_values > _MAX_UNPACKED:
                        yield from parquet.iter_batches(TABLE_BATCH, row_groups=[number])
                        continue
                with pq.ParquetFile(path, buffer_size=_BUFFER) as parquet:
                    yield from parquet.iter_batches(TABLE_BATCH, row_groups=[number])
            return
        with pa.memory_map(str(path)) as opened:
            if opened.read(6) == b"ARROW1":
                reader = pa.ipc.open_file(opened)
                yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
            else:
                opened.seek(0)
                yield from pa.ipc.open_stream(opened)

    number = 0
    try:
        for batch in read_batches():
            names = batch.schema.names
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                raise ReadingStopped(None, "broken_table", f"two columns have the same name: {list_names(repeated)}")
            open_row = _open_columns(_open_arrow_type, dict(zip(names, batch.schema.types, strict=True)))
            parts = [batch]
            while parts:
                part = parts.pop()
                # The bytes of the values when each is written out.
                size = 0
                for leaf in (leaf for array in part.columns for leaf in _list_leaves(array)):
                    if pa.types.is_dictionary(leaf.type) and part.num_rows <= TABLE_BATCH:
                        lengths = _count_letters(leaf)
                        size += pc.sum(pc.take(lengths, leaf.indices)).as_py() or 0 if len(lengths) else leaf.nbytes
                    else:
                        size += leaf.nbytes
                if part.num_rows > TABLE_BATCH or (size > MAX_ROW and part.num_rows > 1):
                    half = part.num_rows // 2  # a batch may be a whole file
                    parts += [part.slice(half), part.slice(0, half)]
                    continue
                if size > MAX_ROW:
                    text = f"{size / 2**20:,.0f} MB in one row; at most {MAX_ROW // 2**20} MB are read"
                    raise ReadingStopped(number + 1, "unreadable", text)
                part.validate(full=True)
                try:
                    # Polars panics at these, which prints a hundred lines.
                    for place, (name, array) in enumerate(zip(names, part.columns, strict=True)):
                        if pa.types.is_timestamp(array.type) and (array.type.tz or "")[:1] in ("+", "-"):
                            # As pandas writes a fixed offset, which Polars does not know.
                            utc = array.cast(pa.timestamp(array.type.unit, "UTC"))
                            part = part.set_column(place, name, utc)
                        if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
                            ends = pc.min_max(array.cast(pa.timestamp("s"), safe=False)).values()
                            if any(end.is_valid and not _FIRST_S <= end.value <= _LAST_S for end in ends):
                                raise ValueError(f"column {name!r} has a time before year 1 or after year 9999")
                    frame = pl.from_arrow(part)
                    assert isinstance(frame, pl.DataFrame)
                    rows = frame.to_dicts()
                except (ValueError, OverflowError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
                    rows_read = f"rows {number + 1:,} to {number + part.num_rows:,}"
                    text = f"{rows_read} hold a value that cannot be read: {first_line(str(error))}"
                    raise ReadingStopped(None, "unreadable", text) from error
                number += part.num_rows
                yield from map(open_row, rows)
    except pa.ArrowException as error:
        text = first_line(str(error)) or type(error).__name__
        raise ReadingStopped(None, "unreadable", f"cannot be read as {ending}: {text}") from error


def _list_leaves(array: "pa.Array") -> Iterator["pa.Array"]:
    """Yield the arrays of single values in an array of lists and objects."""
    import pyarrow as pa  # noqa: PLC0415  # as above

    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        yield from _list_leaves(array.flatten())
    elif pa.types.is_struct(array.type):
        for member in array.flatten():
            yield from _list_leaves(member)
    else:
        yield array


def _count_letters(leaf: "pa.DictionaryArray") -> "pa.Array":
    """Return the length in bytes of each text that an array refers to; none where it refers to other values."""
    import pyarrow as pa  # noqa: PLC0415  # as above
    import pyarrow.compute as pc  # noqa: PLC0415

    value, texts = leaf.type.value_type, leaf.dictionary
    if pa.types.is_string_view(value):  # as Polars writes categories
        texts = texts.cast(pa.large_string())
    elif not (pa.types.is_string(value) or pa.types.is_large_string(value)):
        return pa.array([], pa.int32())
    return pc.binary_length(texts)


def read_frame(frame: "pl.DataFrame", batch_size: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Polars frame. Its own types are read, as Arrow has no numbers of 128 bits."""
    open_row = _open_columns(_open_polars_type, frame.schema)
    yield from map(open_row, frame.iter_rows(named=True, buffer_size=batch_size))


def read_duckdb(path: Path, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in a DuckDB file. Raises DatasetError when the file or the table cannot be read."""
    from evalhouse.warehouse.engine.connection import TableSourceError, read_table  # noqa: PLC0415  # loads DuckDB

    try:
        for batch in read_table(
            path,
            table,
            batch_size=TABLE_BATCH,
            open_columns=partial(_open_columns, _open_duckdb_type),
            patience_s=DUCKDB_PATIENCE_S,
        ):
            yield from batch
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
