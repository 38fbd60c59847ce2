"""The process that reads a workbook, for `excel`; what it says is pickled.

calamine takes memory for every cell between the first that is filled and the last, without saying how many these are:
a note in the last corner of a sheet takes 550 GB. Where there are none it ends its process without a word, so that is
not the one that evaluates.
"""

import json
import pickle
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

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
