"""A dataset whose rows are spans: its formats, and the traces in it as rows of samples.

Spans of one trace stand anywhere in a file. It is read twice: once to count the spans of each trace, and once to make a
sample of each trace when the last of its spans has come, so that only traces that are still open are held.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import orjson

from evalhouse.tasks.datasets.errors import Complain, ReadingStopped
from evalhouse.tasks.datasets.formats import DatasetSource, open_text
from evalhouse.tasks.datasets.rows import RawRow
from evalhouse.tasks.datasets.spans.otel import (
    Logged,
    Recorded,
    Unplaced,
    join_logged,
    read_fields,
    read_flat,
    read_otlp,
    read_otlp_logs,
    read_span,
    write_unplaced,
)
from evalhouse.tasks.datasets.spans.samples import REASONS, LeftOut, Reason, join_sessions, make_row
from evalhouse.tasks.datasets.spans.span import Blame, Span, Tree
from evalhouse.tasks.datasets.spans.vendors import read_langfuse, read_langsmith
from evalhouse.tasks.settings.traces import TraceFormat

_NAMED: Final = 3  # traces that are named of those left out for one reason
_MOST_OF_DOCUMENT: Final = 2**28  # bytes of a file that is one JSON object


Item = Span | Logged
"""What there is of a trace: a span, or what was logged about one."""


def _read_otel(row: Tree, blame: Blame) -> Iterator[Item | Unplaced]:
    """Spans and log records of OTLP in JSON, or one that is a row of its own."""
    fields = read_fields(row) if _OTLP.intersection(row) else {}
    if "startTimeUnixNano" in fields:  # a span of OTLP by itself, as Phoenix's API lists them
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


Read = Callable[[Tree, Blame], Iterator[Item | Unplaced]]
FORMATS: Final[Mapping[TraceFormat, Read]] = {
    "otel": _read_otel,
    "openinference": _read_otel,
    "langfuse": read_langfuse,
    "langsmith": read_langsmith,
    "phoenix": _read_otel,
}
"""How the rows of an export are read, by the name of `--format`."""


_OTLP: Final = frozenset(
    {
        "resourceSpans", "resource_spans", "scopeSpans", "scope_spans", "startTimeUnixNano", "start_time_unix_nano",
        "resourceLogs", "resource_logs", "scopeLogs", "scope_logs",
    }
)  # fmt: skip
"""Names of which a message of OTLP has one, as protobuf's JSON writes them."""
_SCOPES: Final = {"scopeSpans": "resourceSpans", "scopeLogs": "resourceLogs"}
_COLUMNS: Final[Mapping[str, TraceFormat]] = {
    "resourceSpans": "otel", "resourceLogs": "otel", "start_time_unix_nano": "otel", "run_type": "langsmith",
    "observations": "langfuse", "parentObservationId": "langfuse", "parent_observation_id": "langfuse",
    "context.trace_id": "phoenix", "span_id": "otel", "trace_id": "otel",
}  # fmt: skip
"""Columns by which an export is known to a person who left out its name."""


def guess_format(columns: Collection[str]) -> TraceFormat | None:
    """The tool whose traces a file with these columns may hold."""
    return next((form for name, form in _COLUMNS.items() if name in columns), None)


@dataclass(kw_only=True)
class Tally:
    """What became of the traces of a dataset; `forgotten` says of which there is nothing left to read, and `n_unplaced`
    events are of no trace."""

    n_spans: int = 0
    n_traces: int = 0
    n_unplaced: int = 0
    forgotten: str | None = None
    left_out: dict[Reason, list[LeftOut]] = field(default_factory=dict)
    _n: Counter[Reason] = field(default_factory=Counter)

    def begin(self) -> None:
        """Count from nothing: a dataset may be read more than once."""
        self.n_spans = self.n_traces = self.n_unplaced = 0
        self.left_out, self._n = {}, Counter()

    def count(self, spans: Sized, row: object) -> None:
        """Take note of a trace, and of what became of it."""
        self.n_spans += len(spans)
        self.n_traces += 1
        if isinstance(row, LeftOut):
            self._n[row.reason] += 1
            listed = self.left_out.setdefault(row.reason, [])
            if len(listed) < _NAMED:
                listed.append(row)

    def leave_out_unplaced(self, items: Iterable[Item | Unplaced]) -> Iterator[Item]:
        """What is of a trace; the rest is counted."""
        for item in items:
            if isinstance(item, Unplaced):
                self.n_unplaced += 1
            else:
                yield item

    @property
    def n_samples(self) -> int:
        """How many traces became samples."""
        return self.n_traces - self._n.total()

    def describe(self) -> str:
        """All of it in a line."""
        said = [f"{self._n[reason]:,} {REASONS[reason]} ({_name(listed)})" for reason, listed in self.left_out.items()]
        counts = f"traces: {self.n_traces:,} of {self.n_spans:,} spans, {self.n_samples:,} became samples"
        left_out = f"left out: {'; '.join(said)}" if said else ""
        return "; ".join(filter(None, (counts, left_out, write_unplaced(self.n_unplaced), self.forgotten)))


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The spans of a trace; `is_earlier` where it is an earlier turn of a session and no sample."""

    spans: list[Span]
    is_earlier: bool = False


def _name(listed: Iterable[LeftOut]) -> str:
    return ", ".join(f"{item.trace_id}: {item.detail}" if item.detail else item.trace_id for item in listed)


def read_traces(source: DatasetSource, form: TraceFormat, tally: Tally) -> DatasetSource:
    """A source of spans as one of samples, a row a trace; what became of the traces is counted in the tally."""
    read = partial(_read_source, source)
    return replace(source, tabular=False, read=partial(_read_samples, read, FORMATS[form], form, tally))


def _read_samples(
    read_rows: Callable[[Complain], Iterator[RawRow]], read: Read, form: TraceFormat, tally: Tally, complain: Complain
) -> Iterator[RawRow]:
    items = _read_items(read_rows, read, form, complain)
    n_items = Counter(hash(item.trace_id) for item in items if not isinstance(item, Unplaced))
    again = tally.leave_out_unplaced(_read_items(read_rows, read, form, lambda _row, _kind, _text: None))
    traces = (Trace(spans=join_logged(of_trace)) for of_trace in group_traces(again, n_items))
    return make_samples(traces, tally, are_in_order=False)


def _read_items(
    read_rows: Callable[[Complain], Iterator[RawRow]], read: Read, form: TraceFormat, complain: Complain
) -> Iterator[Item | Unplaced]:
    for raw in read_rows(complain):
        yield from read(raw.values, partial(_complain_of, complain, raw.row, form))


def _complain_of(complain: Complain, row: int, form: str, text: str) -> None:
    complain(row, "no_span", f"{text} (--format {form})")


def group_traces(items: Iterable[Item], n_items: Counter[int]) -> Iterator[list[Item]]:
    """What there is of each trace together, once the last of it has come."""
    left, open_traces = Counter(n_items), dict[str, list[Item]]()
    for item in items:
        key = hash(item.trace_id)
        open_traces.setdefault(item.trace_id, []).append(item)
        left[key] -= 1
        if left[key] == 0:
            yield open_traces.pop(item.trace_id)
    yield from open_traces.values()  # of two traces whose ids share a hash


def make_samples(traces: Iterable[Trace], tally: Tally, *, are_in_order: bool) -> Iterator[RawRow]:
    """A row for each trace that can be judged. Raises ReadingStopped where there is something and none can.

    Unless they are in order already, session by session, the rows of sessions come last: a trace may end after later
    ones of its session.
    """
    rows = _make_rows(traces, tally)
    ordered = rows if are_in_order else _put_in_order(rows)
    for number, row in enumerate(join_sessions(ordered), start=1):
        yield RawRow(row=number, values=row)
    if (tally.n_traces or tally.n_unplaced) and not tally.n_samples:
        raise ReadingStopped(None, "no_rows", tally.describe())


def _make_rows(traces: Iterable[Trace], tally: Tally) -> Iterator[tuple[dict[str, Any], bool]]:
    tally.begin()
    for trace in traces:
        row = make_row(trace.spans)
        if not trace.is_earlier:
            tally.count(trace.spans, row)
        if not isinstance(row, LeftOut):
            yield row, trace.is_earlier


def _put_in_order(rows: Iterable[tuple[dict[str, Any], bool]]) -> Iterator[tuple[dict[str, Any], bool]]:
    of_sessions = []
    for row in rows:
        if "conversation_id" in row[0]:
            of_sessions.append(row)
        else:
            yield row
    yield from sorted(of_sessions, key=lambda row: (row[0]["conversation_id"], row[0].get("asked_at", 0.0)))


def _read_source(source: DatasetSource, complain: Complain) -> Iterator[RawRow]:
    """The rows of a file; one that is a single JSON object, as a trace that was downloaded, is one row or has them."""
    document = _read_document(source)
    if document is None:
        yield from source.read(complain)
        return
    data = document.get("data")
    rows = data if isinstance(data, list) else [document]
    for number, row in enumerate(rows, start=1):
        if isinstance(row, dict):
            yield RawRow(row=number, values=row)
        else:
            complain(number, "not_an_object", f"{row!r:.40}, not a JSON object")


def _read_document(source: DatasetSource) -> dict[str, object] | None:
    if source.file is None or source.place != "element":
        return None
    with open_text(source.file) as opened:
        start = opened.read(2**16)
        if not start.lstrip().startswith(b"{"):
            return None
        text = start + opened.read(_MOST_OF_DOCUMENT)
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None  # the reader of rows says where it is broken
    return document if isinstance(document, dict) else None
