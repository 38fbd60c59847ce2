"""Spans on their way into the warehouse and back: redaction, sampling, rows of `spans` and `span_events`, and stored
traces as a dataset."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from hashlib import sha256
from typing import Any, Final

import orjson

from evalhouse.tasks.datasets.errors import Complain, ReadingStopped
from evalhouse.tasks.datasets.formats import DatasetSource
from evalhouse.tasks.datasets.rows import RawRow
from evalhouse.tasks.datasets.spans.otel import Logged, Recorded, join_logged, read_span
from evalhouse.tasks.datasets.spans.read import Tally, Trace, make_samples
from evalhouse.tasks.datasets.values import open_cell
from evalhouse.tasks.settings.traces import PATTERNS, TRACES, Redaction, Sampling, TraceWindow
from evalhouse.warehouse.rows.runs import now_utc
from evalhouse.warehouse.rows.spans import TraceRows, find_forgotten_traces, read_trace_rows
from evalhouse.warehouse.store import Warehouse


def to_row(recorded: Recorded, received_at: datetime) -> dict[str, Any]:
    """A recorded span as a row of `spans`; times are microseconds of the epoch, as the journal keeps them."""
    received_us = _to_us(received_at)
    return {
        "trace_id": recorded.trace_id,
        "span_id": recorded.span_id,
        "parent_id": recorded.parent_id,
        "name": recorded.name or None,
        "service": recorded.service,
        "session_id": recorded.session,
        "started_at": received_us if recorded.started_at is None else round(recorded.started_at * 1e6),
        "duration_ms": recorded.duration_ms,
        "status": recorded.status,
        "message": recorded.message,
        "attributes": _write_json(recorded.attributes),
        "events": _write_json(recorded.events) if recorded.events else None,
        "received_at": received_us,
    }


def to_event_row(logged: Logged, received_at: datetime) -> dict[str, Any]:
    """What was logged about a span as a row of `span_events`; times as in `to_row`."""
    received_us = _to_us(received_at)
    return {
        "trace_id": logged.trace_id,
        "span_id": logged.span_id,
        "name": logged.name,
        "service": logged.service,
        "logged_at": received_us if logged.logged_at is None else round(logged.logged_at * 1e6),
        "attributes": _write_json(logged.attributes),
        "received_at": received_us,
    }


def _to_us(at: datetime) -> int:
    return int(at.replace(tzinfo=UTC).timestamp() * 1e6)


def _write_json(value: object) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def from_row(row: dict[str, Any]) -> Recorded:
    """A row of `spans` as the span that it was."""
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


def _from_event_row(row: dict[str, Any]) -> Logged:
    return Logged(
        trace_id=row["trace_id"],
        span_id=row["span_id"],
        name=row["name"],
        service=row["service"],
        logged_at=row["logged_at"].replace(tzinfo=UTC).timestamp(),
        attributes=orjson.loads(row["attributes"]),
    )


def open_stored(warehouse: Warehouse, window: TraceWindow, tally: Tally) -> DatasetSource:
    """The traces of a window as a dataset; what became of them is counted in the tally."""
    return DatasetSource(
        name=TRACES, place="row", tabular=False, read=partial(_read_window, warehouse, window, now_utc(), tally)
    )


def _read_window(
    warehouse: Warehouse, window: TraceWindow, now: datetime, tally: Tally, _: Complain
) -> Iterator[RawRow]:
    since, until = window.find_bounds(now)
    forgotten = find_forgotten_traces(warehouse, since, until)
    tally.forgotten = None if forgotten is None else forgotten.words
    traces = read_trace_rows(warehouse, since, until, window.service)
    yield from make_samples(map(_read_trace, traces), tally, are_in_order=True)
    if not tally.n_traces:
        of_service = f" of service {window.service!r}" if window.service else ""
        text = (
            f"no traces{of_service} from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC (last = {window.last!r})"
        )
        raise ReadingStopped(None, "no_traces", f"{text}; {tally.forgotten}" if tally.forgotten else text)


def _read_trace(rows: TraceRows) -> Trace:
    spans = [read_span(from_row(row)) for row in rows.spans]
    return Trace(spans=join_logged([*spans, *map(_from_event_row, rows.events)]), is_earlier=rows.is_earlier)


_DEEPEST: Final = 50
_TOO_DEEP: Final = "[nested too deep]"
_RANGE: Final = 2**64


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

    def redact(self, recorded: Recorded) -> Recorded:
        """The same span without it; its ids, times and status stay."""
        if not self._patterns:
            return recorded
        return replace(
            recorded,
            name=self._redact_text(recorded.name),
            service=None if recorded.service is None else self._redact_text(recorded.service),
            message=None if recorded.message is None else self._redact_text(recorded.message),
            attributes=self._redact_value(recorded.attributes),
            events=tuple(self._redact_value(event) for event in recorded.events),
        )

    def redact_logged(self, logged: Logged) -> Logged:
        """The same of what was logged about a span."""
        if not self._patterns:
            return logged
        return replace(
            logged,
            name=self._redact_text(logged.name),
            service=None if logged.service is None else self._redact_text(logged.service),
            attributes=self._redact_value(logged.attributes),
        )

    def _redact_value(self, value: Any, depth: int = 0) -> Any:  # noqa: ANN401  # whatever an attribute holds
        if isinstance(value, str):
            opened = open_cell(value)
            if isinstance(opened, str):
                return self._redact_text(value)
            return _spell(self._redact_value(opened, depth + 1))
        if depth > _DEEPEST:
            return _TOO_DEEP
        if isinstance(value, Mapping):
            return {self._redact_text(str(key)): self._redact_value(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._redact_value(item, depth + 1) for item in value]
        return self._redact_number(value)

    def _redact_number(self, value: Any) -> Any:  # noqa: ANN401  # a number, a truth value or None
        """A number may be what a pattern looks for, such as a card's."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        text = str(value)
        redacted = self._redact_text(text)
        return value if redacted == text else redacted

    def _redact_text(self, text: str) -> str:
        for pattern, replacement in self._patterns:
            text = pattern.sub(replacement, text)
        return text


def is_picked(trace_id: str, share: float) -> bool:
    """Whether a trace is of the share that is kept of all: by its id, so that all receivers pick the same ones."""
    return int.from_bytes(sha256(trace_id.encode()).digest()[:8], "big") < share * _RANGE


def is_named(recorded: Recorded, sampling: Sampling) -> bool:
    """Whether a span has its trace kept, whatever the share."""
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
    """A value as a rule writes it."""
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
