"""Rows of a spreadsheet: the one sheet that has any, or the one that is named (`FILE.xlsx#SHEET`).

Read with calamine, the library that Polars reads them with. A workbook is held in memory whole; a sheet has at most
1,048,576 rows.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from evalhouse.tasks.datasets.errors import Complain, ReadingStopped, refuse_dataset
from evalhouse.tasks.datasets.rows import RawRow
from evalhouse.warehouse.messages import list_names

if TYPE_CHECKING:
    from python_calamine import CalamineSheet, CalamineWorkbook

ENDINGS: Final = (".xlsx", ".xlsm", ".xls", ".ods")


def read_sheet(path: Path, sheet: str, complain: Complain) -> Iterator[RawRow]:
    """Records under the first row that is not empty; the row is that of the sheet. An empty cell is None.

    Raises DatasetError where it cannot be known which sheet is meant.
    """
    from python_calamine import CalamineError, PasswordError, load_workbook  # noqa: PLC0415  # few datasets need it

    try:
        with load_workbook(path) as workbook:
            yield from _read_rows(_pick_sheet(workbook, path, sheet))
    except PasswordError as error:
        raise ReadingStopped(None, "unreadable", "the workbook is locked with a password: save it without") from error
    except CalamineError as error:
        raise ReadingStopped(None, "unreadable", f"cannot be read as {path.suffix}: {error}") from error


def _pick_sheet(workbook: "CalamineWorkbook", path: Path, wanted: str) -> "CalamineSheet":
    from python_calamine import SheetTypeEnum, SheetVisibleEnum  # noqa: PLC0415

    names = [sheet.name for sheet in workbook.sheets_metadata if sheet.typ == SheetTypeEnum.WorkSheet]
    shown = [sheet.name for sheet in workbook.sheets_metadata if sheet.visible == SheetVisibleEnum.Visible]
    filled = [name for name in names if name in shown and workbook.get_sheet_by_name(name).height]
    if wanted in names:
        return workbook.get_sheet_by_name(wanted)
    if len(filled) == 1 and not wanted:
        return workbook.get_sheet_by_name(filled[0])
    if not filled and not wanted:
        raise ReadingStopped(None, "no_rows", "no rows")
    came = f"{path} has no sheet {wanted!r}" if wanted else f"{path} has several sheets: which one?"
    raise refuse_dataset(came, allowed=f"its sheets: {list_names(names)}", to_do=f"write {path}#SHEET")


def _read_rows(sheet: "CalamineSheet") -> Iterator[RawRow]:
    header: list[str] = []
    for number, cells in enumerate(sheet.iter_rows(), start=1):
        values = [_read_cell(cell) for cell in cells]
        if not any(value is not None for value in values):
            continue
        if not header:
            header = name_columns(["" if value is None else str(value) for value in values])
            continue
        yield RawRow(row=number, values=name_cells(header, values, number))


def _read_cell(cell: object) -> object:
    """A cell as a dataset has it: a spreadsheet knows no whole numbers, and no cell without a text."""
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    return str(cell) if isinstance(cell, timedelta) else cell if cell != "" else None


def name_columns(names: Sequence[str]) -> list[str]:
    """The columns' names; one without a name, as pandas writes its index, is named by its place."""
    return [name.strip() or f"column_{place}" for place, name in enumerate(names, start=1)]


def name_cells(header: Sequence[str], cells: Sequence[object], row: int) -> dict[str, object]:
    """A row's cells by their columns' names. A name may stand there twice if both cells say the same, as where pandas
    writes an index that is a column too."""
    values = dict(zip(header, cells, strict=True))
    if len(values) < len(header):
        differing = sorted({name for name, cell in zip(header, cells, strict=True) if values[name] != cell})
        if differing:
            told = f"two columns have one name and two values: {list_names(differing)}"
            raise ReadingStopped(row, "broken_table", told)
    return values
