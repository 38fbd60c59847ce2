"""DuckDB asks for pandas at each value that a query is given, in case it is one of pandas' own.

Where pandas is not installed Python then looks through its whole path, three times for a value and for a tenth of a
millisecond each: most of what a small insert costs. Here that look is taken once and remembered while the path stays
as it is.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

_NAME: Final = "pandas"


class AbsenceFinder:
    """Says at once that there is no pandas, once it was looked for in vain."""

    def __init__(self) -> None:
        self._searched: list[str] | None = None

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Leave every other module, a pandas that is there, and whoever only asks whether it is, to the finders after
        this one."""
        if fullname != _NAME or path is not None or not _is_import():
            return None
        if self._searched != sys.path:
            if any(finder.find_spec(_NAME, None) for finder in sys.meta_path if finder is not self):
                return None
            self._searched = list(sys.path)
        raise ModuleNotFoundError(f"No module named '{_NAME}'", name=_NAME)


def _is_import() -> bool:
    """Whether an import looks for the module: `importlib.util.find_spec`, which asks by the same way, is to have None,
    and torch cannot be imported where it raises."""
    return sys._getframe(3).f_code.co_name == "_find_and_load_unlocked"  # which no other way tells


def remember_absence() -> None:
    """For this process, however often it is asked for."""
    if not any(isinstance(finder, AbsenceFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AbsenceFinder())
