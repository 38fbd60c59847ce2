"""Received spans and logged events, read by trace."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.store import Warehouse

_TRACES_AT_ONCE: Final = 500
_NAMED: Final = 3  # rules that are named of those by which traces were forgotten
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class TraceRows:
    """A trace as rows of `spans` and `span_events`; `is_earlier` where it is an earlier one of a wanted session."""

    spans: list[Row]
    events: list[Row]
    is_earlier: bool


def fetch_trace_rows(
    warehouse: Warehouse, since: datetime, until: datetime, service: str | None
) -> Iterator[TraceRows]:
    """Yield the traces that began in [since, until), and earlier ones of their sessions.

    Traces of a session follow each other in the order in time. A warehouse that does not exist yet has none.
    """
    if not warehouse.exists():
        return
    wanted = {"since": since, "until": until, "service": service}
    traces = warehouse.fetch("spans/between", **wanted).with_row_index("ordinal")
    for chunk in traces.iter_slices(_TRACES_AT_ONCE):
        rows = warehouse.read(read_query("spans/of_traces"), frames={"wanted": chunk}).to_dicts()
        events = defaultdict[str, list[Row]](list)
        for row in warehouse.read(read_query("spans/events_of_traces"), frames={"wanted": chunk}).to_dicts():
            events[row["trace_id"]].append(row)
        for trace_id, of_trace in groupby(rows, itemgetter("trace_id")):
            spans = list(of_trace)
            yield TraceRows(spans=spans, events=events[trace_id], is_earlier=spans[0]["is_earlier"])


@dataclass(frozen=True, kw_only=True)
class ForgottenTraces:
    """Deleted traces: how many, when they began, and the rules by which they were forgotten."""

    n_traces: int
    first_began_at: datetime
    last_began_at: datetime
    forgotten_at: datetime
    rules: list[str]

    @property
    def words(self) -> str:
        """The sentence for a person who looks for them."""
        began = write_began(self.first_began_at, self.last_began_at)
        rules = list_names(self.rules, _NAMED)
        return f"forgotten by {self.forgotten_at:%Y-%m-%d}: {self.n_traces:,} that began {began} ({rules})"


def write_began(first: datetime, last: datetime) -> str:
    """Return the time at which traces began, to the minute."""
    since, until = f"{first:%Y-%m-%d %H:%M}", f"{last:%Y-%m-%d %H:%M}"
    return f"at {since} UTC" if since == until else f"from {since} to {until} UTC"


def find_forgotten_traces(warehouse: Warehouse, since: datetime, until: datetime) -> ForgottenTraces | None:
    """Return the forgotten traces of every forgetting that reached into [since, until); None without one."""
    if not warehouse.exists():
        return None
    rows = warehouse.fetch("spans/forgotten_between", since=since, until=until).to_dicts()
    return ForgottenTraces(**rows[0]) if rows else None
