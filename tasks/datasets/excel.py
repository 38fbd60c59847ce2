"""Rows of a spreadsheet: the one sheet that has any, or the one that is named (`FILE.xlsx#SHEET`).

Read with calamine, the library that Polars reads them with, in a process of its own (`sheet_process`), which holds the
workbook in memory whole; a sheet has at most 1,048,576 rows.
"""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final

from evalhouse.tasks.datasets.errors import Complain, ReadingStopped, refuse_dataset
from evalhouse.tasks.datasets.rows import RawRow
from evalhouse.warehouse.messages import list_names

if sys.platform != "win32":
    import resource

MOST_GB: Final = 4
"""The memory the process may have, where the system keeps to that."""
LOCKED: Final = "the workbook is locked with a password: save it without"
_AT_ONCE: Final = 1000


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A sheet of cells, and whether it shows any: one that is hidden is read only if it is named."""

    name: str
    has_rows: bool


def main() -> None:
    """Say which sheets there are, and give the rows of the one whose place is named; a text is why that cannot be."""
    from python_calamine import (  # noqa: PLC0415  # the process that evaluates does without
        CalamineError,
        PasswordError,
        SheetTypeEnum,
        SheetVisibleEnum,
        load_workbook,
    )

    _limit_self()
    try:
        with load_workbook(sys.argv[1]) as workbook:
            known = [
                (sheet.name, sheet.typ == SheetTypeEnum.WorkSheet, sheet.visible == SheetVisibleEnum.Visible)
                for sheet in workbook.sheets_metadata
            ]
            _say([
                Sheet(name=name, has_rows=is_shown and workbook.get_sheet_by_name(name).height > 0)
                for name, is_sheet, is_shown in known
                if is_sheet
            ])  # fmt: skip
            if chosen := sys.stdin.readline():  # nothing where none of them will do
                _say_rows(workbook.get_sheet_by_name(json.loads(chosen)).iter_rows())
    except PasswordError:
        _say(LOCKED)
    except CalamineError as error:
        _say(str(error))


def _say_rows(rows: Iterable[list[Any]]) -> None:
    """Some at a time, and none at the end."""
    rows = iter(rows)
    while batch := list(islice(rows, _AT_ONCE)):
        _say(batch)
    _say([])


def _say(what: object) -> None:
    pickle.dump(what, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _limit_self() -> None:
    if sys.platform != "win32":
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_GB * 2**30, MOST_GB * 2**30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


ENDINGS: Final = (".xlsx", ".xlsm", ".xls", ".ods")
_CHILD: Final = "from evalhouse.tasks.datasets.excel import main; main()"


def read_sheet(path: Path, sheet: str, complain: Complain) -> Iterator[RawRow]:
    """Records under the first row that is not empty; the row is that of the sheet. An empty cell is None.

    Raises DatasetError where it cannot be known which sheet is meant.
    """
    with _opened(path) as process:
        name = _pick_sheet(process.hear(), path, sheet)
        process.tell(name)
        yield from _read_rows(process.hear_rows())


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """The process that reads a workbook, whose `ending` says what it is."""

    process: subprocess.Popen[bytes]
    ending: str

    def hear(self) -> Any:  # noqa: ANN401  # sheets, or cells
        """What it says next; raises ReadingStopped where it cannot go on."""
        assert self.process.stdout is not None
        try:
            said = pickle.load(self.process.stdout)  # of a process of ours
        except (EOFError, pickle.UnpicklingError):
            said = (
                f"the process that reads it ended with status {self.process.wait()}, as it does where that takes more "
                f"than {MOST_GB} GB: delete what stands far outside the table, or save the sheet as .csv"
            )
        if isinstance(said, str):
            told = said if said == LOCKED else f"cannot be read as {self.ending}: {said}"
            raise ReadingStopped(None, "unreadable", told)
        return said

    def hear_rows(self) -> Iterator[list[Any]]:
        while rows := self.hear():
            yield from rows

    def tell(self, name: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # its status says more
            self.process.stdin.write(f"{json.dumps(name)}\n".encode())
            self.process.stdin.flush()


@contextmanager
def _opened(path: Path) -> Iterator[_Reader]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield _Reader(process=process, ending=path.suffix)
    finally:
        process.kill()
        with suppress(BrokenPipeError):
            process.communicate()


def _pick_sheet(sheets: Sequence[Sheet], path: Path, wanted: str) -> str:
    names = [sheet.name for sheet in sheets]
    filled = [sheet.name for sheet in sheets if sheet.has_rows]
    if wanted in names:
        return wanted
    if len(filled) == 1 and not wanted:
        return filled[0]
    if not filled and not wanted:
        raise ReadingStopped(None, "no_rows", "no rows")
    came = f"{path} has no sheet {wanted!r}" if wanted else f"{path} has several sheets: which one?"
    raise refuse_dataset(came, allowed=f"its sheets: {list_names(names)}", to_do=f"write {path}#SHEET")


def _read_rows(rows: Iterable[Sequence[object]]) -> Iterator[RawRow]:
    header: list[str] = []
    for number, cells in enumerate(rows, start=1):
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
