"""Spans on their way into the warehouse and back: redaction, sampling, rows of `spans` and `span_events`, and stored
traces as a dataset."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from hashlib import sha256
from typing import Any, Final, TypeVar

import orjson

from evalhouse.tasks.datasets.errors import Complain, ReadingStopped
from evalhouse.tasks.datasets.formats import DatasetSource
from evalhouse.tasks.datasets.rows import RawRow
from evalhouse.tasks.datasets.spans.otel import Logged, Recorded, join_logged, read_span
from evalhouse.tasks.datasets.spans.read import Tally, Trace, make_samples
from evalhouse.tasks.datasets.values import open_cell
from evalhouse.tasks.settings.suite import PATTERNS, TRACES, Redaction, Sampling, TraceWindow
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.rows.spans import TraceRows, find_forgotten_traces, read_trace_rows
from evalhouse.warehouse.store import Warehouse

# --- what is kept of received spans

Item = TypeVar("Item", bound=Recorded | Logged)
_DEEPEST: Final = 50
_TOO_DEEP: Final = "[nested too deep]"


@dataclass(frozen=True)
class Redactor:
    """Takes what the patterns find out of spans.

    Text that is JSON is opened first: in it a letter may be written as an escape, which no pattern would find.
    """

    redaction: Redaction

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        own = [(re.compile(item.pattern), item.replacement) for item in self.redaction.own]
        return [*own, *((re.compile(PATTERNS[name]), f"[{name}]") for name in self.redaction.patterns)]

    def redact(self, item: Item) -> Item:
        """Return the same span or event without it; ids, times and status stay."""
        if not self._patterns:
            return item
        fields: dict[str, Any] = {
            "name": self._redact_text(item.name),
            "service": None if item.service is None else self._redact_text(item.service),
            "attributes": self._redact_value(item.attributes),
        }
        if isinstance(item, Recorded):
            fields["message"] = None if item.message is None else self._redact_text(item.message)
            fields["events"] = tuple(self._redact_value(event) for event in item.events)
        return replace(item, **fields)

    def _redact_value(self, value: Any, depth: int = 0) -> Any:  # noqa: ANN401  # any value of an attribute
        if isinstance(value, str):
            opened = open_cell(value)
            is_text = isinstance(opened, str)
            return self._redact_text(value) if is_text else _spell(self._redact_value(opened, depth + 1))
        if depth > _DEEPEST:
            return _TOO_DEEP
        if isinstance(value, Mapping):
            return {self._redact_text(str(key)): self._redact_value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._redact_value(item, depth + 1) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            # A number may be what a pattern looks for, such as a card's.
            redacted = self._redact_text(str(value))
            return value if redacted == str(value) else redacted
        return value

    def _redact_text(self, text: str) -> str:
        for pattern, replacement in self._patterns:
            text = pattern.sub(replacement, text)
        return text


def is_picked(trace_id: str, share: float) -> bool:
    """Return True if a trace is in the share that is kept: by its id, so that all receivers pick the same ones."""
    return int.from_bytes(sha256(trace_id.encode()).digest()[:8], "big") < share * 2**64


def is_named(recorded: Recorded, sampling: Sampling) -> bool:
    """Return True if a rule keeps the trace of this span, whatever the share."""
    if sampling.errors and recorded.status == "error":
        return True
    duration_ms = recorded.duration_ms
    if sampling.slower_than_ms is not None and duration_ms is not None and duration_ms > sampling.slower_than_ms:
        return True
    return any(
        name in recorded.attributes and (not values or _spell(recorded.attributes[name]) in values)
        for name, values in sampling.attributes.items()
    )


def _spell(value: object) -> str:
    """Return a value as a rule writes it."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


# --- rows of the warehouse


def to_row(item: Recorded | Logged, received_at: datetime) -> dict[str, Any]:
    """Return a recorded span as a row of `spans`, or an event about one as a row of `span_events`.

    Times are microseconds of the epoch, as the journal stores them.
    """
    write = partial(orjson.dumps, default=str, option=orjson.OPT_NON_STR_KEYS)
    received_us = int(received_at.replace(tzinfo=UTC).timestamp() * 1e6)
    row: dict[str, Any] = {"trace_id": item.trace_id, "span_id": item.span_id, "service": item.service}
    if isinstance(item, Logged):
        row |= {
            "name": item.name,
            "logged_at": received_us if item.logged_at is None else round(item.logged_at * 1e6),
        }
    else:
        row |= {
            "parent_id": item.parent_id,
            "name": item.name or None,
            "session_id": item.session,
            "started_at": received_us if item.started_at is None else round(item.started_at * 1e6),
            "duration_ms": item.duration_ms,
            "status": item.status,
            "message": item.message,
            "events": write(item.events).decode() if item.events else None,
        }
    return row | {"attributes": write(item.attributes).decode(), "received_at": received_us}


def from_row(row: dict[str, Any]) -> Recorded:
    """Return the span of a row of `spans`."""
    started_at = row["started_at"].replace(tzinfo=UTC)
    ended_at = None if row["duration_ms"] is None else started_at + timedelta(milliseconds=row["duration_ms"])
    return Recorded(
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        parent_id=row["parent_id"],
        name=row["name"] or "",
        service=row["service"],
        started_at=started_at.timestamp(),
        ended_at=None if ended_at is None else ended_at.timestamp(),
        status=row["status"],
        message=row["message"],
        attributes=orjson.loads(row["attributes"]),
        events=tuple(orjson.loads(row["events"])) if row["events"] else (),
    )


def open_stored(warehouse: Warehouse, window: TraceWindow, tally: Tally) -> DatasetSource:
    """Return the traces of a window as a dataset; the tally counts what they became."""
    since, until = window.find_bounds(now_utc())

    def read(_: Complain) -> Iterator[RawRow]:
        forgotten = find_forgotten_traces(warehouse, since, until)
        tally.forgotten = None if forgotten is None else forgotten.words
        traces = read_trace_rows(warehouse, since, until, window.service)
        yield from make_samples(map(_read_trace, traces), tally, are_in_order=True)
        if not tally.n_traces:
            of_service = f" of service {window.service!r}" if window.service else ""
            bounds = f"from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC (last = {window.last!r})"
            text = f"no traces{of_service} {bounds}"
            raise ReadingStopped(None, "no_traces", f"{text}; {tally.forgotten}" if tally.forgotten else text)

    return DatasetSource(name=TRACES, place="row", tabular=False, read=read)


def _read_trace(rows: TraceRows) -> Trace:
    spans = [read_span(from_row(row)) for row in rows.spans]
    events = [
        Logged(
            trace_id=row["trace_id"],
            span_id=row["span_id"],
            name=row["name"],
            service=row["service"],
            logged_at=row["logged_at"].replace(tzinfo=UTC).timestamp(),
            attributes=orjson.loads(row["attributes"]),
        )
        for row in rows.events
    ]
    return Trace(spans=join_logged([*spans, *events]), is_earlier=rows.is_earlier)
