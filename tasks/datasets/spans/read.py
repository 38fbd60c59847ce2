"""A dataset whose rows are spans: its formats, and the traces in it as rows of samples.

Spans of one trace may be anywhere in a file. It is read twice: once to count the spans of each trace, and once to make
a sample of each trace when the last of its spans has come, so that only open traces are in memory.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from evalhouse.tasks.datasets.errors import Complain, ReadingStopped
from evalhouse.tasks.datasets.formats import DatasetSource, open_text
from evalhouse.tasks.datasets.rows import RawRow
from evalhouse.tasks.datasets.spans.otel import (
    Logged,
    Recorded,
    Unplaced,
    describe_unplaced,
    join_logged,
    read_fields,
    read_flat,
    read_otlp,
    read_otlp_logs,
    read_span,
)
from evalhouse.tasks.datasets.spans.samples import REASONS, LeftOut, Reason, join_sessions, make_row
from evalhouse.tasks.datasets.spans.span import Blame, Span, Tree
from evalhouse.tasks.datasets.spans.vendors import read_langfuse, read_langsmith
from evalhouse.tasks.settings.suite import TraceFormat
from evalhouse.warehouse.messages import name_setting

_MAX_NAMED: Final = 3  # traces that are named of those left out for one reason
_MAX_DOCUMENT: Final = 2**28  # bytes of a file that is one JSON object

Item = Span | Logged
"""A part of a trace: a span, or an event about one."""


# --- formats

_OTLP: Final = frozenset(
    {
        "resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "startTimeUnixNano", "start_time_unix_nano",
        "resourceLogs", "resource_logs", "scopeLogs", "scope_logs",
    }
)  # fmt: skip
"""Names of which a message of OTLP has one, as protobuf's JSON writes them."""
_SCOPES: Final = {"scopeSpans": "resourceSpans", "scopeLogs": "resourceLogs"}


def _read_otel(row: Tree, blame: Blame) -> Iterator[Item | Unplaced]:
    """Yield spans and log records of OTLP in JSON, or one that is a row."""
    fields = read_fields(row) if _OTLP.intersection(row) else {}
    if "startTimeUnixNano" in fields:  # a single span of OTLP, as Phoenix's API lists them
        fields = {"scopeSpans": [{"spans": [row]}]}
    # Of a file that is one request:
    fields = {resources: [fields] for scopes, resources in _SCOPES.items() if scopes in fields} or fields
    if fields:
        try:
            yield from map(read_span, read_otlp(fields, blame))
            yield from read_otlp_logs(fields, blame)
        except (AttributeError, TypeError, KeyError) as error:
            blame(f"not OTLP: {error}")
    elif (found := read_flat(row, blame)) is not None:
        yield read_span(found) if isinstance(found, Recorded) else found


FORMATS: Final[Mapping[TraceFormat, Callable[[Tree, Blame], Iterator[Item | Unplaced]]]] = {
    "otel": _read_otel,
    "openinference": _read_otel,
    "langfuse": read_langfuse,
    "langsmith": read_langsmith,
    "phoenix": _read_otel,
}
"""How the rows of an export are read, by the name of `--format`."""
_COLUMNS: Final[Mapping[str, TraceFormat]] = {
    "resourceSpans": "otel", "resourceLogs": "otel", "start_time_unix_nano": "otel", "run_type": "langsmith",
    "observations": "langfuse", "parentObservationId": "langfuse", "parent_observation_id": "langfuse",
    "context.trace_id": "phoenix", "span_id": "otel", "trace_id": "otel",
}  # fmt: skip
"""Columns by which an export is known when the user did not name its format."""


def guess_format(columns: Collection[str]) -> TraceFormat | None:
    """Return the tool whose traces a file with these columns may hold."""
    return next((form for name, form in _COLUMNS.items() if name in columns), None)


# --- traces


@dataclass(kw_only=True)
class Tally:
    """Counts what the traces of a dataset became; `forgotten` states which were deleted, and `n_unplaced` events belong
    to no trace."""

    n_spans: int = 0
    n_traces: int = 0
    n_unplaced: int = 0
    forgotten: str | None = None
    left_out: dict[Reason, list[LeftOut]] = field(default_factory=dict)
    _n: Counter[Reason] = field(default_factory=Counter)

    def begin(self) -> None:
        """Count from zero: a dataset may be read more than once."""
        self.n_spans = self.n_traces = self.n_unplaced = 0
        self.left_out, self._n = {}, Counter()

    def count(self, spans: Sized, row: object) -> None:
        """Count a trace, and what it became."""
        self.n_spans += len(spans)
        self.n_traces += 1
        if isinstance(row, LeftOut):
            self._n[row.reason] += 1
            listed = self.left_out.setdefault(row.reason, [])
            if len(listed) < _MAX_NAMED:
                listed.append(row)

    @property
    def n_samples(self) -> int:
        """The number of traces that became samples."""
        return self.n_traces - self._n.total()

    def describe(self) -> str:
        """Return all of it in a line."""
        reasons = []
        for reason, listed in self.left_out.items():
            names = [f"{item.trace_id}: {item.detail}" if item.detail else item.trace_id for item in listed]
            reasons.append(f"{self._n[reason]:,} {REASONS[reason]} ({', '.join(names)})")
        counts = f"traces: {self.n_traces:,} of {self.n_spans:,} spans, {self.n_samples:,} became samples"
        left_out = f"left out: {'; '.join(reasons)}" if reasons else ""
        return "; ".join(filter(None, (counts, left_out, describe_unplaced(self.n_unplaced), self.forgotten)))


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The spans of a trace; `is_earlier` if it is an earlier turn of a session and not a sample."""

    spans: list[Span]
    is_earlier: bool = False


def read_traces(source: DatasetSource, form: TraceFormat, tally: Tally) -> DatasetSource:
    """Return a source of spans as one of samples, a row a trace; the tally counts what the traces became."""

    def read_items(complain: Complain) -> Iterator[Item | Unplaced]:
        for raw in _read_rows(source, complain):

            def blame(text: str, row: int = raw.row) -> None:
                complain(row, "no_span", f"{text} ({name_setting('format', form)})")

            yield from FORMATS[form](raw.values, blame)

    def read_placed() -> Iterator[Item]:
        for item in read_items(lambda _row, _kind, _text: None):  # the first reading reported all problems
            if isinstance(item, Unplaced):
                tally.n_unplaced += 1
            else:
                yield item

    def read(complain: Complain) -> Iterator[RawRow]:
        n_items = Counter(hash(item.trace_id) for item in read_items(complain) if not isinstance(item, Unplaced))
        traces = (Trace(spans=join_logged(of_trace)) for of_trace in group_traces(read_placed(), n_items))
        return make_samples(traces, tally, are_in_order=False)

    return replace(source, tabular=False, read=read)


def group_traces(items: Iterable[Item], n_items: Counter[int]) -> Iterator[list[Item]]:
    """Yield the items of each trace together, once the last of them has come."""
    missing, open_traces = Counter(n_items), dict[str, list[Item]]()
    for item in items:
        key = hash(item.trace_id)
        open_traces.setdefault(item.trace_id, []).append(item)
        missing[key] -= 1
        if missing[key] == 0:
            yield open_traces.pop(item.trace_id)
    yield from open_traces.values()  # of two traces whose ids share a hash


def make_samples(traces: Iterable[Trace], tally: Tally, *, are_in_order: bool) -> Iterator[RawRow]:
    """Yield a row for each trace that can be judged. Raises ReadingStopped if there are traces and none can.

    Unless they are in order already, session by session, the rows of sessions come last: a trace may end after later
    ones of its session.
    """

    def make_rows() -> Iterator[tuple[dict[str, Any], bool]]:
        tally.begin()
        of_sessions = []
        for trace in traces:
            row = make_row(trace.spans)
            if not trace.is_earlier:
                tally.count(trace.spans, row)
            if isinstance(row, LeftOut):
                continue
            if are_in_order or "conversation_id" not in row:
                yield row, trace.is_earlier
            else:
                of_sessions.append((row, trace.is_earlier))
        yield from sorted(of_sessions, key=lambda row: (row[0]["conversation_id"], row[0].get("asked_at", 0.0)))

    for number, row in enumerate(join_sessions(make_rows()), start=1):
        yield RawRow(row=number, values=row)
    if (tally.n_traces or tally.n_unplaced) and not tally.n_samples:
        raise ReadingStopped(None, "no_rows", tally.describe())


def _read_rows(source: DatasetSource, complain: Complain) -> Iterator[RawRow]:
    """Yield the rows of a file; one that is a single JSON object, as a downloaded trace, is one row or has them."""
    document: object = None
    if source.file is not None and source.place == "element":
        with open_text(source.file) as opened:
            start = opened.read(2**16)
            text = start + opened.read(_MAX_DOCUMENT) if start.lstrip().startswith(b"{") else b""
        try:
            document = orjson.loads(text)
        except orjson.JSONDecodeError:
            document = None  # the reader of rows reports where it is broken
    if not isinstance(document, dict):
        yield from source.read(complain)
        return
    data = document.get("data")
    for number, row in enumerate(data if isinstance(data, list) else [document], start=1):
        if isinstance(row, dict):
            yield RawRow(row=number, values=row)
        else:
            complain(number, "not_an_object", f"{row!r:.40}, not a JSON object")
