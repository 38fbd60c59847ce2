"""The spans that a receiver has accepted, and what was logged about them, on their way into the warehouse.

Each is redacted, and is on disk before it is acknowledged: in the journal of its table, from where a mover takes it to
the warehouse, or, while nothing says yet whether its trace is kept, in a journal of those that wait. A trace that
nothing has kept when it has waited long enough is dropped there. What a killed receiver left waits in the next one.
"""

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from evalhouse.tasks.datasets.spans.keep import Redactor, is_named, is_picked
from evalhouse.tasks.datasets.spans.logs import Logged, Unplaced
from evalhouse.tasks.datasets.spans.otel import Recorded
from evalhouse.tasks.datasets.spans.span import Blame
from evalhouse.tasks.datasets.spans.stored import to_event_row, to_row
from evalhouse.tasks.settings.receiver import ReceiverSettings
from evalhouse.tasks.settings.retention import find_cutoff
from evalhouse.warehouse.mover import Journal, Mover, Segment, find_journal, find_orphans
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.store import Warehouse
from evalhouse.warehouse.upkeep.forget import Rule, forget_traces

_WAITING: Final = "waiting"
_KEPT_FOR: Final = 10  # times the wait that a trace is remembered as kept
_FORGET_S: Final = 3600.0
_LEAST_TICK_S: Final = 0.05
Row = dict[str, Any]
Table = Literal["spans", "span_events"]


@dataclass(kw_only=True)
class _Open:
    """A trace of which nothing says yet that it is kept, and until when it waits."""

    until: float
    rows: list[Row] = field(default_factory=list)


@dataclass(kw_only=True)
class Kept:
    """What became of what was accepted; `n_logged` of it is what was logged about spans. `n_unplaced` beside it were
    logged about none."""

    n_accepted: int = 0
    n_logged: int = 0
    n_unplaced: int = 0
    n_kept: int = 0
    n_dropped: int = 0
    n_moved: int = 0


class SpanKeeper:
    """Keeps spans, and what was logged about them, by the settings; safe to use from several threads.

    `close` before the process ends.
    """

    def __init__(self, warehouse: Warehouse, settings: ReceiverSettings) -> None:
        self.counts = Kept()
        self._warehouse, self._settings = warehouse, settings
        self._redactor = Redactor(settings.redaction)
        self._guard = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._kept_until: dict[str, float] = {}
        self._movers: dict[Table, Mover] = {
            "spans": Mover(warehouse, "spans", moved=self._note_moved),
            "span_events": Mover(warehouse, "span_events", moved=self._note_moved),
        }
        folder = find_journal(warehouse.location, "spans") / _WAITING
        self._waiting = Journal(folder)
        self._wait_again(folder)
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evalhouse-waiting-spans", daemon=True)
        self._thread.start()

    @property
    def failure(self) -> BaseException | None:
        """What stopped the moving into the warehouse, if anything did."""
        return next((mover.failure for mover in self._movers.values() if mover.failure is not None), None)

    @property
    def n_on_disk(self) -> int:
        """How many rows are on disk and not in the warehouse."""
        with self._guard:
            return self.counts.n_kept - self.counts.n_moved + sum(len(trace.rows) for trace in self._open.values())

    def keep(self, items: Iterable[Recorded | Logged | Unplaced], blame: Blame) -> None:
        """Put them on disk as far as they are kept; raises OSError for a full disk. What no row can hold is blamed."""
        now, began_at = time.monotonic(), now_utc()
        with self._guard:
            for place, item in enumerate(items):
                if isinstance(item, Unplaced):
                    self.counts.n_unplaced += 1
                    continue
                # The order in which they came, which their own times need not tell, is that of their rows.
                try:
                    row = self._make_row(item, began_at + timedelta(microseconds=place))
                except (TypeError, ValueError, OverflowError, RecursionError) as error:
                    blame(f"span {item.span_id} of trace {item.trace_id} cannot be stored: {error}")
                    continue
                if self._is_kept(item, now):
                    self._keep_row(row)
                else:
                    self._waiting.append(row)
                    trace = self._open.setdefault(item.trace_id, _Open(until=0.0))
                    trace.until = now + self._settings.sampling.wait_s
                    trace.rows.append(row)
                self.counts.n_accepted += 1
                self.counts.n_logged += isinstance(item, Logged)

    def _make_row(self, item: Recorded | Logged, received_at: datetime) -> Row:
        if isinstance(item, Recorded):
            return to_row(self._redactor.redact(item), received_at)
        return to_event_row(self._redactor.redact_logged(item), received_at)

    def _is_kept(self, item: Recorded | Logged, now: float) -> bool:
        """Whether its trace is kept; what waited of a trace that it keeps is kept before it."""
        sampling, trace_id = self._settings.sampling, item.trace_id
        if is_picked(trace_id, sampling.share) or trace_id in self._kept_until:
            return True
        if not (isinstance(item, Recorded) and is_named(item, sampling)):
            return False
        for row in self._open[trace_id].rows if trace_id in self._open else ():
            self._keep_row(row)
        self._open.pop(trace_id, None)
        self._kept_until[trace_id] = now + _KEPT_FOR * sampling.wait_s
        return True

    def _keep_row(self, row: Row) -> None:
        self._movers[_find_table(row)].keep(row)
        self.counts.n_kept += 1

    def _note_moved(self, segment: Segment) -> None:
        self.counts.n_moved += len(segment.rows)

    def _wait_again(self, folder: Path) -> None:
        """Have what waited in a receiver that is gone wait here."""
        until = time.monotonic() + self._settings.sampling.wait_s
        for segment in find_orphans(folder):
            for row in segment.rows:
                self._waiting.append(row)
                self._open.setdefault(str(row["trace_id"]), _Open(until=until)).rows.append(row)
            segment.remove()

    def _run(self) -> None:
        wait_s = max(_LEAST_TICK_S, self._settings.sampling.wait_s / 2)
        forget_at = 0.0
        while True:
            if self._settings.retention.traces is not None and time.monotonic() >= forget_at:
                self._forget_old(self._settings.retention.traces)
                forget_at = time.monotonic() + _FORGET_S
            if self._has_ended.wait(wait_s):
                return
            self.drop_old()

    def _forget_old(self, age: str) -> None:
        rule = Rule(words=f'[retention] traces = "{age}"', before=find_cutoff(age, now_utc()))
        forget_traces(self._warehouse, rule)

    def drop_old(self) -> None:
        """Drop the traces that have waited long enough, and their bytes from the disk."""
        now = time.monotonic()
        with self._guard:
            old = [trace_id for trace_id, trace in self._open.items() if trace.until <= now]
            for trace_id in old:
                self.counts.n_dropped += len(self._open.pop(trace_id).rows)
            self._kept_until = {trace_id: until for trace_id, until in self._kept_until.items() if until > now}
            segment = self._waiting.rotate()
            if segment is None:
                return
            for trace in self._open.values():  # on disk again before the file that holds them goes
                for row in trace.rows:
                    self._waiting.append(row)
            segment.remove()

    def close(self) -> None:
        """Move what is kept into the warehouse; raises WarehouseBusy where it stays locked (nothing is lost)."""
        self._has_ended.set()
        self._thread.join()
        with ExitStack() as stack:
            stack.callback(self._waiting.close)
            for mover in self._movers.values():
                stack.callback(mover.close)


def _find_table(row: Row) -> Table:
    """Where a row belongs: those that wait for their trace wait together."""
    return "span_events" if "logged_at" in row else "spans"
