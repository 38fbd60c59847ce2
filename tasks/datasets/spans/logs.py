"""What applications log about their spans: events of the GenAI conventions, which OTLP carries apart from the spans.

An application that captures content as events has its prompts and completions in log records and none of them in its
spans. A record names its span, and comes before it or after it: the two are joined where a trace is whole.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

from evalhouse.tasks.datasets.spans.otel import Recorded, read_span
from evalhouse.tasks.datasets.spans.span import Span, Tree

_SAID: Final = (
    "question", "turns", "answer", "tool_calls", "prompt_tokens", "completion_tokens", "model", "session",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Logged:
    """An event about a span. In `attributes` are the members of its body too. Time is seconds of the epoch."""

    trace_id: str
    span_id: str
    name: str
    service: str | None = None
    logged_at: float | None = None
    attributes: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Unplaced:
    """An event that names no span, or one whose id is all zeros: it can be joined to nothing, and is left out."""


def write_unplaced(n: int) -> str:
    """How many events were left out for that; "" for none."""
    events = "event that names" if n == 1 else "events that name"
    return f"{n:,} {events} no span left out" if n else ""


def join_logged(items: Iterable[Span | Logged]) -> list[Span]:
    """The spans of a trace with what was logged about them. A trace of which only that is there is a span that has not
    ended: what it belongs to is still to come."""
    spans, logged = list[Span](), list[Logged]()
    for item in items:
        if isinstance(item, Span):
            spans.append(item)
        else:
            logged.append(item)
    if not spans:
        return [Span(trace_id=item.trace_id, span_id=item.span_id, service=item.service) for item in logged[:1]]
    said = _read_said(logged)
    return [_complete(span, said[span.span_id]) if span.span_id in said else span for span in spans]


def _read_said(logged: Iterable[Logged]) -> dict[str, Span]:
    """By the id of a span what all events about it say together, read as if they stood in the span."""
    ordered = sorted(logged, key=lambda item: (item.span_id, item.logged_at or 0.0))
    said = {}
    for span_id, of_span in groupby(ordered, key=lambda item: item.span_id):
        events = list(of_span)
        recorded = Recorded(
            trace_id=events[0].trace_id,
            span_id=span_id,
            attributes={name: value for item in events for name, value in item.attributes.items()},
            events=tuple({"name": item.name, "attributes": item.attributes} for item in events),
        )
        said[span_id] = read_span(recorded)
    return said


def _complete(span: Span, said: Span) -> Span:
    """A span with what it does not say itself."""
    missing: dict[str, Any] = {name: getattr(said, name) for name in _SAID if not getattr(span, name)}
    return replace(span, kind=said.kind if span.kind == "other" else span.kind, **missing)
