"""What `evalhouse serve` prints of runs, read from the warehouses, and the file that keeps it.

A line for a run is the same however the run was started: by a schedule, after an update or by hand.
"""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from evalhouse.flows.results.output import write_count
from evalhouse.flows.serving.backlog import is_marked
from evalhouse.flows.serving.flow_runs import ServedSuite
from evalhouse.flows.serving.notify import describe_failures, describe_trigger
from evalhouse.warehouse.errors import WarehouseMissing
from evalhouse.warehouse.rows.gates import list_failures
from evalhouse.warehouse.rows.runs import RunRow, list_runs, now_utc
from evalhouse.warehouse.store import Warehouse

Print = Callable[[str], None]
# Newest runs of a warehouse that are looked at: more do not start between two looks.
_NEWEST = 50
# A gate decides in the seconds after its run has ended. One that does not (its process was killed) is not waited for.
_GATE_TIME: Final = timedelta(minutes=2)
_MOST_BYTES = 5 * 2**20
_MOST_OLD = 3


class ServeLog:
    """Says lines at the terminal, with their time, and puts them with their date at the end of a file."""

    def __init__(self, path: Path, say: Print) -> None:
        self._path, self._say = path, say
        self.rotate()

    def __call__(self, line: str) -> None:
        now = datetime.now()
        self._say(f"{now:%H:%M:%S} {line}")
        # A full disk must not end the serving.
        with contextlib.suppress(OSError), self._path.open("a", encoding="utf-8") as log:
            log.write(f"{now:%Y-%m-%d %H:%M:%S} serve: {line}\n")

    def rotate(self) -> None:
        """Put a file that has grown large aside, as `NAME.1`; what was there becomes `NAME.2`, and so on."""
        with contextlib.suppress(OSError):
            if not self._path.exists() or self._path.stat().st_size <= _MOST_BYTES:
                return
            for number in range(_MOST_OLD - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    self._name_old(number).rename(self._name_old(number + 1))
            # Copied and emptied, because the server goes on writing into the one it has open.
            shutil.copyfile(self._path, self._name_old(1))
            with self._path.open("r+b") as log:
                log.truncate()

    def _name_old(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """A run and the warehouse that has it."""

    run: RunRow
    warehouse: Warehouse


class RunLines:
    """Looks at the warehouses of some suites; `read_news` gives what has changed since the look before."""

    def __init__(self, suites: Sequence[ServedSuite]) -> None:
        self._names = {suite.name for suite in suites}
        self._urls = sorted({suite.warehouse_url for suite in suites})
        self._seen: dict[str, RunRow] | None = None

    def list_under_way(self) -> list[RunRow]:
        """The runs that were under way at the last look."""
        return [run for run in (self._seen or {}).values() if run.status == "running"]

    def read_news(self) -> list[str]:
        """A line for each run that has started, ended or gone on, oldest first; at the first look, how the last run of
        each suite has ended."""
        all_kept = sorted(self._list_runs(), key=lambda kept: (kept.run.started_at, kept.run.run_id))
        if self._seen is None:
            self._seen = {kept.run.run_id: kept.run for kept in all_kept}
            last = {kept.run.suite: kept for kept in all_kept}
            return [_describe_last(kept) for kept in last.values() if not is_marked(kept.run)]
        lines = []
        for kept in all_kept:
            if not _is_before_its_gate(kept.run):  # its end is said together with what its gate says
                lines += _describe_change(self._seen.get(kept.run.run_id), kept)
                self._seen[kept.run.run_id] = kept.run
        return lines

    def _list_runs(self) -> list[_Kept]:
        all_kept = []
        for warehouse in map(Warehouse, self._urls):
            with contextlib.suppress(WarehouseMissing):
                all_kept += [_Kept(run=run, warehouse=warehouse) for run in list_runs(warehouse, limit=_NEWEST)]
        return [kept for kept in all_kept if kept.run.suite in self._names and not kept.run.is_part_of_run]


def _is_before_its_gate(run: RunRow) -> bool:
    has_gate = run.kind == "evaluation" and run.config.get("gate") is not None and run.gate is None
    if not has_gate or run.status not in ("completed", "incomplete") or run.finished_at is None:
        return False
    return now_utc() - run.finished_at < _GATE_TIME


def _describe_last(kept: _Kept) -> str:
    run = kept.run
    if run.status == "running":
        return f"{run.suite}: run {run.run_id}, begun before this start, is still under way"
    return f"{run.suite}: the last was run {_describe_end(kept)}"


def _describe_change(before: RunRow | None, kept: _Kept) -> list[str]:
    run, lines = kept.run, []
    if is_marked(run):  # which whoever has found it crashed has said
        return []
    if before is None or (before.status != "running" and run.status == "running"):
        lines.append(f"{run.suite}: run {run.run_id} {'goes on' if before else _describe_start(run)}")
    # By its time too, for one that is resumed may go on and end between two looks.
    is_news = before is None or (before.status, before.finished_at) != (run.status, run.finished_at)
    if run.status != "running" and is_news:
        lines.append(f"{run.suite}: run {_describe_end(kept)}")
    return lines


def _describe_start(run: RunRow) -> str:
    return "was started by hand" if run.trigger == "manual" else f"has started {describe_trigger(run)}"


def _describe_end(kept: _Kept) -> str:
    run = kept.run
    seconds = (run.finished_at - run.started_at).total_seconds() if run.finished_at else 0.0
    problem = f": {' '.join(run.problem.split())}" if run.problem else ""
    command = f"evalhouse {'show' if run.status == 'completed' else 'resume'} {run.run_id}"
    end = f"{run.run_id} {run.status} after {seconds:.0f} s, {write_count(run.n_samples or 0, 'sample')}{problem}"
    if run.gate is not None:
        end += f", gate {run.gate}"
    if run.gate == "failed":
        end += f": {describe_failures(list_failures(kept.warehouse, run.run_id))}"
    return end if command in end else f"{end}; {command}"
