"""Rows of tables: workbooks, Parquet and Arrow files, and tables of DuckDB files. `formats` imports this file when it
meets one of these.

A workbook is read with calamine in a child process. calamine takes memory for every cell between the first filled one
and the last before it reports how many these are, and aborts its process when memory runs out: with a note in the last
corner a workbook of 7 kB takes 550 GB. A bound before that would need a separate parser for .xlsx and .ods: the
dimension that a sheet states is optional, and .ods repeats cells by a number.
"""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from evalhouse.tasks.datasets.values import ReadingStopped, refuse_dataset
from evalhouse.warehouse.messages import list_names

if sys.platform != "win32":
    import resource
if TYPE_CHECKING:
    import pyarrow as pa

_CHILD: Final = "from evalhouse.tasks.datasets.tables import run_child; run_child()"
_MAX_GB: Final = 4  # memory of the child process
_BUFFER: Final = 2**20  # bytes of a Parquet column read ahead; without it a whole row group is in memory
TABLE_BATCH = 1000  # rows of a table that are in memory at once
DUCKDB_PATIENCE_S = 5.0  # seconds to wait for a file that another program writes to


def read_workbook(path: Path, sheet: str) -> Iterator[tuple[int, list[object]]]:
    """Yield the rows that are not empty, each with its number in the sheet; the first is the header.

    The sheet is the named one (`FILE.xlsx#SHEET`), or the one visible sheet that has any rows. An empty cell is None.
    Raises ReadingStopped for an unreadable workbook, and DatasetError where it is not known which sheet is meant.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, str(path), sheet],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    number = 0
    try:
        while True:
            try:
                kind, content = pickle.load(process.stdout)  # written by `run_child`
            except (EOFError, pickle.UnpicklingError):
                kind = "unreadable"
                content = (
                    f"the process that reads it ended with status {process.wait()}, as it does where that takes more "
                    f"than {_MAX_GB} GB: delete what is far outside the table, or save the sheet as .csv"
                )
            match kind:
                case "locked":
                    raise ReadingStopped(None, "unreadable", "the workbook is locked with a password: save it without")
                case "unreadable":
                    raise ReadingStopped(None, "unreadable", f"cannot be read as {path.suffix}: {content}")
                case "which":
                    came = f"{path} has no sheet {sheet!r}" if sheet else f"{path} has several sheets: which one?"
                    allowed = f"its sheets: {list_names(content)}"
                    raise refuse_dataset(came, allowed=allowed, to_do=f"write {path}#SHEET")
            if not content:
                return
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
    finally:
        process.kill()
        with suppress(BrokenPipeError):
            process.communicate()


def run_child() -> None:
    """Send the parent the rows of a sheet, or why they cannot be read, as pairs of kind and content."""
    from python_calamine import CalamineError, PasswordError, SheetTypeEnum, SheetVisibleEnum, load_workbook  # noqa: PLC0415  # the parent does not need it

    def send(kind: str, content: object) -> None:
        pickle.dump((kind, content), sys.stdout.buffer)
        sys.stdout.buffer.flush()

    path, sheet = sys.argv[1:]
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_DATA, (_MAX_GB * 2**30, _MAX_GB * 2**30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
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
                send("which", names)
            elif chosen := sheet or "".join(filled):
                rows = workbook.get_sheet_by_name(chosen).iter_rows()
                while batch := list(islice(rows, TABLE_BATCH)):
                    send("rows", batch)
        send("rows", [])
    except PasswordError:
        send("locked", "")
    except CalamineError as error:
        send("unreadable", str(error))


def read_arrow(path: Path, ending: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a Parquet file, or of an Arrow file or stream, a batch at a time."""
    import polars as pl  # noqa: PLC0415  # the child that reads a workbook needs none of these
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    def read_batches() -> "Iterator[pa.RecordBatch]":
        if ending == ".parquet":
            with pq.ParquetFile(path, buffer_size=_BUFFER) as parquet:
                yield from parquet.iter_batches(TABLE_BATCH)
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
            for start in range(0, batch.num_rows, TABLE_BATCH):  # a batch may be a whole file
                part = batch.slice(start, TABLE_BATCH)
                try:
                    frame = pl.from_arrow(part)
                    assert isinstance(frame, pl.DataFrame)
                    rows = frame.to_dicts()
                except (ValueError, OverflowError) as error:
                    rows_read = f"rows {number + 1:,} to {number + part.num_rows:,}"
                    text = f"{rows_read} hold a value that cannot be read: {error}"
                    raise ReadingStopped(None, "unreadable", text) from error
                number += part.num_rows
                yield from rows
    except pa.ArrowException as error:
        first_line = str(error).partition("\n")[0] or type(error).__name__
        raise ReadingStopped(None, "unreadable", f"cannot be read as {ending}: {first_line}") from error


def read_duckdb(path: Path, table: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table in a DuckDB file. Raises DatasetError when the file or the table cannot be read."""
    from evalhouse.warehouse.engine.connection import TableSourceError, read_table  # noqa: PLC0415  # loads DuckDB

    try:
        for batch in read_table(path, table, batch_size=TABLE_BATCH, patience_s=DUCKDB_PATIENCE_S):
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
