"""OTLP's messages, and spans and log records that are rows of their own, as what was recorded.

OTLP comes in protobuf and in JSON, whose names may be those of its .proto files; rows are those of an SDK's printer and
of a frame of Phoenix. Of log records only those are read that are events of the GenAI conventions; of one that names no
span no more than that it came.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeVar

from evalhouse.tasks.datasets.spans.logs import Logged, Unplaced
from evalhouse.tasks.datasets.spans.otel import ERROR, Recorded
from evalhouse.tasks.datasets.spans.span import (
    Blame,
    Tree,
    nest,
    open_value,
    read_list,
    read_name,
    read_time,
    read_tree,
)
from evalhouse.tasks.datasets.values import is_absent

if TYPE_CHECKING:
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

T = TypeVar("T")
R = TypeVar("R")
_STATUSES: Final[Mapping[object, str]] = {
    1: "ok", 2: ERROR, "STATUS_CODE_OK": "ok", "STATUS_CODE_ERROR": ERROR, "OK": "ok", "ERROR": ERROR,
}  # fmt: skip
_EVENTS: Final = "gen_ai."  # how the names of GenAI's events begin


def read_otlp(message: Tree, blame: Blame) -> Iterator[Recorded]:
    """The spans of an ExportTraceServiceRequest in JSON, as exporters send it and the collector's file exporter writes.

    Raises TypeError, AttributeError or KeyError for what is no such request; of one span it is blamed.
    """
    scopes = ("scopeSpans", "instrumentationLibrarySpans")
    return _read_each(_list_items(message, "resourceSpans", scopes, "spans"), _read_otlp_span, blame)


def read_otlp_logs(message: Tree, blame: Blame) -> Iterator[Logged | Unplaced]:
    """The events of GenAI in an ExportLogsServiceRequest, in the same way."""
    return _read_each(_list_items(message, "resourceLogs", ("scopeLogs",), "logRecords"), _read_otlp_log, blame)


def _read_each(
    items: Iterable[tuple[T, str | None]], read: Callable[[T, str | None], R | None], blame: Blame
) -> Iterator[R]:
    """What each item is read as, given the service that it is of; those that cannot be read are blamed."""
    for item, service in items:
        try:
            result = read(item, service)
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            blame(str(error))
            continue
        if result is not None:
            yield result


def _list_items(
    message: Tree, resources: str, scopes: tuple[str, ...], items: str
) -> Iterator[tuple[Tree, str | None]]:
    """What the scopes of a request hold, each with the service that it is of."""
    for listed in read_fields(message).get(resources, []):
        of_resource = read_fields(listed)
        resource = _read_attributes(read_tree(of_resource.get("resource")).get("attributes"))
        service = read_name(resource.get("service.name"))
        for scope in next((found for name in scopes if (found := of_resource.get(name))), []):
            for item in read_fields(scope).get(items) or []:
                yield item, service


def read_fields(message: Tree) -> Tree:
    """The fields of a message in JSON by their lowerCamelCase names. Protobuf's JSON allows those of the .proto file as
    well, and null for what is not there; Phoenix's API writes both."""
    return {_find_field(name): value for name, value in message.items() if value is not None}


@lru_cache(maxsize=256)  # bounded: whoever sends spans chooses their names
def _find_field(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _read_otlp_span(message: Tree, service: str | None) -> Recorded:
    span = read_fields(message)
    trace_id, span_id = str(span.get("traceId")), str(span.get("spanId"))
    if not _is_id(trace_id, 32) or not _is_id(span_id, 16):
        raise ValueError(f"a span needs a traceId of 32 and a spanId of 16 hex digits; got {trace_id!r}, {span_id!r}")
    status = read_tree(span.get("status"))
    return Recorded(
        trace_id=trace_id.lower(),
        span_id=span_id.lower(),
        parent_id=str(span.get("parentSpanId") or "").lower() or None,
        name=str(span.get("name") or ""),
        service=service,
        started_at=read_time(span.get("startTimeUnixNano")),
        ended_at=read_time(span.get("endTimeUnixNano")),
        status=_STATUSES.get(status.get("code") or 0, "unset"),
        message=read_name(status.get("message")),
        attributes=_read_attributes(span.get("attributes")),
        events=tuple(
            {"name": event.get("name"), "attributes": _read_attributes(event.get("attributes"))}
            for event in span.get("events") or []
        ),
    )


def _read_otlp_log(message: Tree, service: str | None) -> Logged | Unplaced | None:
    record = read_fields(message)
    attributes = _read_attributes(record.get("attributes"))
    trace_id, span_id = str(record.get("traceId") or ""), str(record.get("spanId") or "")
    name = _find_event(record.get("eventName"), attributes)
    if name is None:
        return None
    if not (trace_id.strip("0") and span_id.strip("0")):
        return Unplaced()
    if not _is_id(trace_id, 32) or not _is_id(span_id, 16):
        raise ValueError(f"an event names a traceId of 32 and a spanId of 16 hex digits; got {trace_id!r}, {span_id!r}")
    return Logged(
        trace_id=trace_id.lower(),
        span_id=span_id.lower(),
        name=name,
        service=service,
        logged_at=read_time(record.get("timeUnixNano")) or read_time(record.get("observedTimeUnixNano")),
        attributes=_add_body(attributes, _read_any(record.get("body"))),
    )


def _find_event(named: object, attributes: Tree) -> str | None:
    """The name of an event of GenAI; None for any other log record."""
    name = read_name(named) or read_name(attributes.get("event.name")) or ""
    return name if name.startswith(_EVENTS) else None


def _add_body(attributes: dict[str, Any], body: object) -> dict[str, Any]:
    """Attributes of an event with what its body holds: where older conventions put a message."""
    opened = open_value(body)
    if isinstance(opened, Mapping):
        return {**attributes, **opened}
    return attributes if opened in (None, "") else {**attributes, "content": opened}


def _is_id(value: str, digits: int) -> bool:
    return len(value) == digits and all(digit in "0123456789abcdefABCDEF" for digit in value)


def _read_attributes(pairs: object) -> dict[str, Any]:
    return {str(pair["key"]): _read_any(pair.get("value")) for pair in read_list(pairs) or []}


def _read_any(value: object) -> Any:  # noqa: ANN401  # whatever an attribute holds
    """A value of OTLP in JSON, in which whole numbers are texts."""
    kind, inner = next(iter(read_fields(value).items()), ("", None)) if isinstance(value, Mapping) else ("", None)
    match kind:
        case "intValue":
            number = int(str(inner))
            if not -(2**63) <= number < 2**63:
                raise ValueError("an intValue has more than 64 bits")
            return number
        case "arrayValue":
            return [_read_any(item) for item in read_tree(inner).get("values") or []]
        case "kvlistValue":
            return _read_attributes(read_tree(inner).get("values"))
        case "bytesValue":
            return None  # nothing that is judged, and nothing that a pattern could be looked for in
    return inner


def read_protobuf(message: "ExportTraceServiceRequest", blame: Blame) -> Iterator[Recorded]:
    """The same of a message in protobuf."""
    spans = (
        (span, service)
        for listed in message.resource_spans
        for service in [_find_name(listed.resource)]
        for scope in listed.scope_spans
        for span in scope.spans
    )
    return _read_each(spans, _read_protobuf_span, blame)


def read_protobuf_logs(message: "ExportLogsServiceRequest", blame: Blame) -> Iterator[Logged | Unplaced]:
    """The same of log records."""
    records = (
        (record, service)
        for listed in message.resource_logs
        for service in [_find_name(listed.resource)]
        for scope in listed.scope_logs
        for record in scope.log_records
    )
    return _read_each(records, _read_protobuf_log, blame)


def _find_name(resource: Any) -> str | None:  # noqa: ANN401  # a Resource
    return read_name(_read_pairs(resource.attributes).get("service.name"))


def _read_protobuf_span(span: Any, service: str | None) -> Recorded:  # noqa: ANN401  # a Span
    if len(span.trace_id) != 16 or len(span.span_id) != 8:
        raise ValueError("a span needs a trace_id of 16 and a span_id of 8 bytes")
    return Recorded(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex() or None,
        name=span.name,
        service=service,
        started_at=read_time(span.start_time_unix_nano),
        ended_at=read_time(span.end_time_unix_nano),
        status=_STATUSES.get(span.status.code, "unset"),
        message=span.status.message or None,
        attributes=_read_pairs(span.attributes),
        events=tuple({"name": event.name, "attributes": _read_pairs(event.attributes)} for event in span.events),
    )


def _read_protobuf_log(record: Any, service: str | None) -> Logged | Unplaced | None:  # noqa: ANN401  # a LogRecord
    attributes = _read_pairs(record.attributes)
    name = _find_event(record.event_name, attributes)
    if name is None:
        return None
    if not (any(record.trace_id) and any(record.span_id)):
        return Unplaced()
    if len(record.trace_id) != 16 or len(record.span_id) != 8:
        raise ValueError("an event names a trace_id of 16 and a span_id of 8 bytes")
    return Logged(
        trace_id=record.trace_id.hex(),
        span_id=record.span_id.hex(),
        name=name,
        service=service,
        logged_at=read_time(record.time_unix_nano) or read_time(record.observed_time_unix_nano),
        attributes=_add_body(attributes, _read_value(record.body)),
    )


def _read_pairs(pairs: Any) -> dict[str, Any]:  # noqa: ANN401  # repeated KeyValue
    return {pair.key: _read_value(pair.value) for pair in pairs}


def _read_value(value: Any) -> Any:  # noqa: ANN401  # an AnyValue
    kind = value.WhichOneof("value")
    if kind is None or kind == "bytes_value":
        return None
    if kind == "array_value":
        return [_read_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return _read_pairs(value.kvlist_value.values)
    return getattr(value, kind)


def read_flat(row: Tree, blame: Blame) -> Recorded | Logged | Unplaced | None:
    """A span that is a row of its own: as an SDK writes it, or a row of Phoenix's frame, whose columns are dotted.

    An SDK writes log records so as well; None for those that are not events of GenAI.
    """
    if "observed_timestamp" in row:
        return _read_flat_log(row)
    tree = nest(row)
    context = read_tree(tree.get("context"))
    trace_id = _read_id(context.get("trace_id") or row.get("trace_id") or row.get("traceId"))
    span_id = _read_id(context.get("span_id") or row.get("span_id") or row.get("spanId"))
    if not (trace_id and span_id):
        blame("no trace_id and span_id, which every span has")
        return None
    attributes = flatten(read_tree(tree.get("attributes")))
    kind = row.get("span_kind")
    if isinstance(kind, str) and kind:
        attributes.setdefault("openinference.span.kind", kind)
    status = read_tree(row.get("status"))
    code = row.get("status_code") or status.get("status_code")
    return Recorded(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_read_id(row.get("parent_id") or row.get("parent_span_id") or row.get("parentSpanId")) or None,
        name=str(row.get("name") or ""),
        service=_find_service(row),
        started_at=read_time(row.get("start_time")),
        ended_at=read_time(row.get("end_time")),
        status=_STATUSES.get(str(code or "").upper(), "unset"),
        message=read_name(row.get("status_message") or status.get("description")),
        attributes=attributes,
        events=tuple(event for event in read_list(row.get("events")) or [] if isinstance(event, Mapping)),
    )


def _read_flat_log(row: Tree) -> Logged | Unplaced | None:
    attributes = dict(read_tree(row.get("attributes")))
    trace_id, span_id = _read_id(row.get("trace_id")), _read_id(row.get("span_id"))
    name = _find_event(row.get("event_name"), attributes)
    if name is None:
        return None
    if not (trace_id.strip("0") and span_id.strip("0")):
        return Unplaced()
    return Logged(
        trace_id=trace_id,
        span_id=span_id,
        name=name,
        service=_find_service(row),
        logged_at=read_time(row.get("timestamp")) or read_time(row.get("observed_timestamp")),
        attributes=_add_body(attributes, row.get("body")),
    )


def _read_id(value: object) -> str:
    """An id in hex, which an SDK writes after 0x; "" for none."""
    return (read_name(value) or "").removeprefix("0x")


def _find_service(row: Tree) -> str | None:
    return read_name(read_tree(read_tree(row.get("resource")).get("attributes")).get("service.name"))


def flatten(tree: Tree, around: str = "") -> dict[str, Any]:
    """A tree as attributes by full names; lists and texts are values."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if is_absent(value):  # NaN, where pandas had no value
            continue
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{around}{name}.")
        else:
            flat[f"{around}{name}"] = value
    return flat
