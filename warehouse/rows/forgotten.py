"""What of a run was forgotten: for what shows a run, and for what would ask or judge by texts that are gone."""

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.store import Warehouse

_MARK: Final = re.compile(r"forgotten on \d{4}-\d\d-\d\d \(\d+ bytes(?:, 中文)?, ([0-9a-f]{16})\)")


@dataclass(frozen=True, kw_only=True)
class ForgottenTexts:
    """Texts of a run that were forgotten: on which day first, and of how many samples (`is_whole`: of all)."""

    forgotten_at: datetime
    is_whole: bool
    n_samples: int

    @property
    def words(self) -> str:
        """What a person reads above the run."""
        of_what = "texts, requests and replies" if self.is_whole else f"texts of {self.n_samples:,} of its samples"
        return f"its {of_what} were forgotten on {self.forgotten_at:%Y-%m-%d}; scores and verdicts are what they were"


def find_forgotten(warehouse: Warehouse, run_id: str) -> ForgottenTexts | None:
    """What was forgotten of a run that is on record; None where nothing was."""
    rows = warehouse.read(read_query("forget/of_run"), {"run_id": run_id}).to_dicts()
    return ForgottenTexts(**rows[0]) if rows else None


def refuse_forgotten(warehouse: Warehouse, run: RunRow, instead: str) -> None:
    """Raise WarehouseError where all texts of a run are gone, with what to do instead."""
    forgotten = find_forgotten(warehouse, run.run_id)
    if forgotten is not None and forgotten.is_whole:
        raise WarehouseError(
            f"the texts of run {run.run_id} were forgotten on {forgotten.forgotten_at:%Y-%m-%d}; {instead}"
        )


def read_hash(text: str | None) -> str | None:
    """The hash of the text whose place a mark has; None for what is no mark."""
    match = _MARK.fullmatch(text or "")
    return match[1] if match else None


def hash_text(text: str) -> str:
    """The hash that the mark of a text ends in."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:16]
