"""Rows of a spreadsheet: of the one visible sheet that has any, or of the sheet that is named (`FILE.xlsx#SHEET`).

The workbook is read with calamine in a child process. calamine takes memory for every cell between the first filled one
and the last before it says how many these are, and aborts its process when memory runs out: with a note in the last
corner a workbook of 7 kB takes 550 GB. A bound before that would need a parser of ours for .xlsx and .ods: the
dimension that a sheet states is optional, and .ods repeats cells by a number.
"""

import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

from evalhouse.tasks.datasets.errors import ReadingStopped, refuse_dataset
from evalhouse.warehouse.messages import list_names

if sys.platform != "win32":
    import resource

ENDINGS: Final = (".xlsx", ".xlsm", ".xls", ".ods")
_CHILD: Final = "from evalhouse.tasks.datasets.excel import run_child; run_child()"
_MAX_GB: Final = 4  # memory of the child process
_BATCH: Final = 1000


def read_sheet(path: Path, sheet: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the records under the first row that is not empty, each with its row in the sheet. An empty cell is None.

    Raises ReadingStopped for an unreadable workbook, and DatasetError where it is not known which sheet is meant.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, str(path), sheet],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    header: list[str] = []
    number = 0
    try:
        while batch := _receive(process, path):
            for cells in batch:
                number += 1
                values = [_read_cell(cell) for cell in cells]
                if not any(value is not None for value in values):
                    continue
                if header:
                    yield number, name_cells(header, values, number)
                else:
                    header = name_columns(["" if value is None else str(value) for value in values])
    finally:
        process.kill()
        with suppress(BrokenPipeError):
            process.communicate()


def _read_cell(cell: object) -> object:
    """Return a cell as a dataset has it: a spreadsheet has no whole numbers, and an empty text in an empty cell."""
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    if isinstance(cell, timedelta):
        return str(cell)
    return cell if cell != "" else None


def _receive(process: "subprocess.Popen[bytes]", path: Path) -> list[list[Any]]:
    """Return the next rows that the child sends, none at the end; raise what it reports instead."""
    assert process.stdout is not None
    try:
        kind, content = pickle.load(process.stdout)  # of a process of ours
    except (EOFError, pickle.UnpicklingError):
        text = (
            f"the process that reads it ended with status {process.wait()}, as it does where that takes more than "
            f"{_MAX_GB} GB: delete what is far outside the table, or save the sheet as .csv"
        )
        raise ReadingStopped(None, "unreadable", f"cannot be read as {path.suffix}: {text}") from None
    match kind:
        case "locked":
            raise ReadingStopped(None, "unreadable", "the workbook is locked with a password: save it without")
        case "unreadable":
            raise ReadingStopped(None, "unreadable", f"cannot be read as {path.suffix}: {content}")
        case "which":
            wanted, names = content
            came = f"{path} has no sheet {wanted!r}" if wanted else f"{path} has several sheets: which one?"
            raise refuse_dataset(came, allowed=f"its sheets: {list_names(names)}", to_do=f"write {path}#SHEET")
    rows: list[list[Any]] = content
    return rows


def run_child() -> None:
    """Send the parent the rows of the sheet that is meant, or why they cannot be read, as pairs of kind and content."""
    from python_calamine import (  # noqa: PLC0415  # the parent does not need it
        CalamineError,
        PasswordError,
        SheetTypeEnum,
        SheetVisibleEnum,
        load_workbook,
    )

    def send(kind: str, content: object) -> None:
        pickle.dump((kind, content), sys.stdout.buffer)
        sys.stdout.buffer.flush()

    path, wanted = sys.argv[1:]
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_DATA, (_MAX_GB * 2**30, _MAX_GB * 2**30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with load_workbook(path) as workbook:
            sheets = [sheet for sheet in workbook.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet]
            # A hidden sheet is read only if it is named.
            filled = [
                sheet.name
                for sheet in sheets
                if sheet.visible == SheetVisibleEnum.Visible and workbook.get_sheet_by_name(sheet.name).height > 0
            ]
            names = [sheet.name for sheet in sheets]
            if wanted not in names and (wanted or len(filled) > 1):
                send("which", (wanted, names))
            elif chosen := wanted or "".join(filled):
                rows = workbook.get_sheet_by_name(chosen).iter_rows()
                while batch := list(islice(rows, _BATCH)):
                    send("rows", batch)
        send("rows", [])
    except PasswordError:
        send("locked", "")
    except CalamineError as error:
        send("unreadable", str(error))


def name_columns(names: Sequence[str]) -> list[str]:
    """Return the columns' names; a column without one, as pandas writes its index, is named by its place."""
    return [name.strip() or f"column_{place}" for place, name in enumerate(names, start=1)]


def name_cells(header: Sequence[str], cells: Sequence[object], row: int) -> dict[str, object]:
    """Return a row's cells by their columns' names.

    Two columns may have one name if their cells are equal, as where pandas writes an index that is a column too.
    """
    values = dict(zip(header, cells, strict=True))
    if len(values) < len(header):
        differing = sorted({name for name, cell in zip(header, cells, strict=True) if values[name] != cell})
        if differing:
            text = f"two columns have one name and two values: {list_names(differing)}"
            raise ReadingStopped(row, "broken_table", text)
    return values
