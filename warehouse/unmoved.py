"""Calls and responses that are on disk and not yet in the warehouse, for those who look on while a run is under way.

A row lies in the journal for up to 20 seconds (`mover`). Reading it there takes no lock and keeps nobody waiting: files
are only ever added to, and one that is gone has been taken in. What a reader has seen of a file it does not read again.
"""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson
import polars as pl

from evalhouse.warehouse.location import Location
from evalhouse.warehouse.mover import JournalledTable, Segment, find_journal

_COLUMNS: Final[dict[str, Any]] = {
    "batch_key": pl.String, "run_id": pl.String, "sample_id": pl.String, "step": pl.String, "status": pl.String,
    "reused_call_id": pl.String, "prompt_tokens": pl.Int64, "completion_tokens": pl.Int64, "cost_usd": pl.Float64,
    "latency_ms": pl.Float64, "started_at": pl.Int64,
}  # fmt: skip


@dataclass(kw_only=True)
class _Tail:
    """A file that is being added to: how far it was read, and the rows until there."""

    offset: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)


class JournalReader:
    """The rows of a warehouse's journal, whoever writes them; safe to use from several threads."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._tails: dict[Path, _Tail] = {}
        self._guard = threading.Lock()

    def read(self, table: JournalledTable) -> pl.DataFrame:
        """The rows on their way into a table, each with the key of the batch that it will enter the warehouse in.

        Of their columns those that say how far a run is. A row may be in the warehouse by now: then its key is known.
        """
        with self._guard:
            rows = [row for path in self._list_files(table) for row in self._read_on(path)]
        # A value that a column cannot hold is missing here; the mover sets its row aside.
        frame = pl.DataFrame(
            [pl.Series(name, [row[name] for row in rows], kind, strict=False) for name, kind in _COLUMNS.items()]
        )
        return frame.with_columns(pl.from_epoch("started_at", time_unit="us"))

    def _list_files(self, table: JournalledTable) -> list[Path]:
        folder = find_journal(self._location, table)
        files = sorted(folder.glob("*.jsonl")) if folder.exists() else []
        for gone in [path for path in self._tails if path.parent == folder and path not in files]:
            del self._tails[gone]
        return files

    def _read_on(self, path: Path) -> list[dict[str, Any]]:
        tail = self._tails.setdefault(path, _Tail())
        try:
            with path.open("rb") as file:
                file.seek(tail.offset)
                added = file.read()
        except FileNotFoundError:
            return tail.rows
        whole = added[: added.rfind(b"\n") + 1]
        tail.offset += len(whole)
        key = Segment(path=path, rows=[]).key
        tail.rows += [{**_pick(line), "batch_key": key} for line in _parse(whole)]
        return tail.rows


def _parse(lines: bytes) -> Iterator[dict[str, Any]]:
    for line in lines.splitlines():
        with contextlib.suppress(orjson.JSONDecodeError):  # the mover sets such a line aside
            row = orjson.loads(line)
            if isinstance(row, dict):
                yield row


def _pick(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in _COLUMNS}
