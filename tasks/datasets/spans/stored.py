"""Recorded spans, and what was logged about them, as rows of the warehouse, and the traces there as a dataset."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import orjson

from evalhouse.tasks.datasets.errors import Complain, ReadingStopped
from evalhouse.tasks.datasets.formats import DatasetSource
from evalhouse.tasks.datasets.rows import RawRow
from evalhouse.tasks.datasets.spans.logs import Logged, join_logged
from evalhouse.tasks.datasets.spans.otel import Recorded, read_span
from evalhouse.tasks.datasets.spans.read import Tally, Trace, make_samples
from evalhouse.tasks.settings.traces import TRACES, TraceWindow
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
