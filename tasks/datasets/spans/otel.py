"""Spans of OpenTelemetry, by the conventions of GenAI, OpenInference and OpenLLMetry (traceloop).

A span as it is recorded (`Recorded`) comes from OTLP, in JSON or protobuf, from an SDK's own JSON, from a frame of
Phoenix, or from the warehouse, where the receiver put it. Which conventions it keeps is seen by its attributes, for an
application may mix them: `read_span` takes of each field the first attribute that is there.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

from evalhouse.tasks.datasets.spans.said import (
    find_documents,
    find_said,
    find_turns,
    list_messages,
    list_tool_calls,
    make_call,
    read_content,
    read_documents,
    read_found,
)
from evalhouse.tasks.datasets.spans.span import (
    Blame,
    Document,
    Kind,
    Span,
    Tree,
    count_tokens,
    nest,
    read_count,
    read_list,
    read_name,
    read_time,
    read_tree,
)
from evalhouse.tasks.datasets.values import is_absent

if TYPE_CHECKING:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_KINDS: Final[Mapping[str, Mapping[str, Kind]]] = {
    "openinference.span.kind": {
        "llm": "llm", "retriever": "retriever", "reranker": "reranker", "tool": "tool", "embedding": "embedding",
        "chain": "chain", "agent": "chain",
    },
    "gen_ai.operation.name": {
        "chat": "llm", "text_completion": "llm", "generate_content": "llm", "embeddings": "embedding",
        "execute_tool": "tool", "retrieval": "retriever", "vector_db_retrieve": "retriever", "rerank": "reranker",
        "invoke_agent": "chain", "invoke_workflow": "chain", "execute_task": "chain",
    },
    "llm.request.type": {"chat": "llm", "completion": "llm", "embedding": "embedding", "rerank": "reranker"},
    "traceloop.span.kind": {"workflow": "chain", "agent": "chain", "task": "chain", "tool": "tool"},
    "langfuse.observation.type": {
        "generation": "llm", "retriever": "retriever", "tool": "tool", "embedding": "embedding", "chain": "chain",
        "agent": "chain", "span": "chain",
    },
}  # fmt: skip
_INPUTS: Final = (
    "input.value", "traceloop.entity.input", "gen_ai.retrieval.query.text", "reranker.query", "gen_ai.task.input",
    "langfuse.trace.input", "langfuse.observation.input", "gen_ai.tool.call.arguments", "tool.parameters",
)  # fmt: skip
_OUTPUTS: Final = (
    "output.value", "traceloop.entity.output", "gen_ai.task.output", "langfuse.trace.output",
    "langfuse.observation.output", "gen_ai.tool.call.result",
)  # fmt: skip
_ASKED: Final = ("gen_ai.input.messages", "llm.input_messages", "gen_ai.prompt")
_REPLIED: Final = ("gen_ai.output.messages", "llm.output_messages", "gen_ai.completion")
_DOCUMENTS: Final = ("retrieval.documents", "reranker.output_documents", "gen_ai.retrieval.documents")
_SESSIONS: Final = (
    "session.id", "gen_ai.conversation.id", "traceloop.association.properties.session_id",
    "traceloop.association.properties.conversation_id", "traceloop.association.properties.thread_id",
    "langfuse.session.id",
)  # fmt: skip
_PROMPT_TOKENS: Final = ("llm.token_count.prompt", "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_REPLY_TOKENS: Final = ("llm.token_count.completion", "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_MODELS: Final = (
    "llm.model_name", "gen_ai.response.model", "gen_ai.request.model", "langfuse.observation.model.name",
)  # fmt: skip
_USAGE: Final = "langfuse.observation.usage_details"
_TOOLS: Final = ("tool.name", "gen_ai.tool.name", "traceloop.entity.name")
# Messages that conventions before 1.37 put into events.
_ASKED_EVENTS: Final[Mapping[str, str]] = {
    "gen_ai.user.message": "user", "gen_ai.system.message": "system", "gen_ai.assistant.message": "assistant",
}  # fmt: skip
_ERROR: Final = "error"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A span as it was recorded: ids in hex, times in seconds of the epoch, attributes by their full names."""

    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str = ""
    service: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    status: str = "unset"
    message: str | None = None
    attributes: Tree = field(default_factory=dict)
    events: tuple[Tree, ...] = ()

    @property
    def session(self) -> str | None:
        """The session, or conversation, that it belongs to."""
        return read_name(pick(self.attributes, _SESSIONS))

    @property
    def duration_ms(self) -> float | None:
        """How long it took."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, (self.ended_at - self.started_at) * 1000)


def pick(attributes: Tree, names: Iterable[str]) -> Any:  # noqa: ANN401  # whatever an attribute holds
    """The first of these attributes that is there."""
    return next((attributes[name] for name in names if attributes.get(name) not in (None, "")), None)


def read_span(recorded: Recorded) -> Span:
    """A recorded span, by whichever conventions it keeps."""
    attributes = recorded.attributes
    tree = nest(attributes)
    asked, replied = _list_said(recorded, tree)
    kind = _find_kind(attributes)
    given, made = pick(attributes, _INPUTS), pick(attributes, _OUTPUTS)
    question, answer = find_said(given, "question"), find_said(made, "answer")
    if kind == "llm" or question is None:
        question = find_said(asked, "question") or question
    if kind == "llm" or answer is None:
        answer = find_said(replied, "answer") or answer
    is_done = kind in ("llm", "chain") or replied
    return Span(
        trace_id=recorded.trace_id,
        span_id=recorded.span_id,
        parent_id=recorded.parent_id,
        name=recorded.name,
        kind=kind,
        started_at=recorded.started_at,
        ended_at=recorded.ended_at,
        error=_find_error(recorded),
        question=question,
        turns=find_turns(asked) or find_turns(given),
        answer=answer,
        documents=_find_documents(tree, kind, made),
        passed_on=find_documents(made) if kind == "chain" else None,
        tool_calls=_find_calls(recorded, given) if kind == "tool" else tuple(list_tool_calls(replied)),
        prompt_tokens=_count(attributes, _PROMPT_TOKENS, "input") if is_done else None,
        completion_tokens=_count(attributes, _REPLY_TOKENS, "output") if is_done else None,
        model=read_name(pick(attributes, _MODELS)) if kind == "llm" else None,
        session=recorded.session,
        service=recorded.service,
    )


def _count(attributes: Tree, names: Iterable[str], side: Literal["input", "output"]) -> int | None:
    count = read_count(pick(attributes, names))
    return count_tokens(read_tree(attributes.get(_USAGE)), side) if count is None else count


def look_up(tree: Tree, name: str) -> Any:  # noqa: ANN401  # whatever an attribute holds
    """What a tree has under a dotted name; None for nothing."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _find_kind(attributes: Tree) -> Kind:
    for name, kinds in _KINDS.items():
        kind = kinds.get(str(attributes.get(name, "")).lower())
        if kind is not None:
            return kind
    return "other"


def _list_said(recorded: Recorded, tree: Tree) -> tuple[list[Any], list[Any]]:
    """The messages that a model was sent, and those that it replied; in attributes, or in events of the span."""
    asked = next((found for name in _ASKED if (found := list_messages(look_up(tree, name)))), [])
    replied = next((found for name in _REPLIED if (found := list_messages(look_up(tree, name)))), [])
    if asked or replied:
        return asked, _as_replies(replied)
    for event in recorded.events:
        name, attributes = event.get("name"), read_tree(event.get("attributes"))
        if isinstance(name, str) and name in _ASKED_EVENTS:
            asked = [*asked, {"role": _ASKED_EVENTS[name], "content": _read_body(attributes)}]
        elif name == "gen_ai.choice":
            message = read_tree(attributes.get("message"))
            replied = [*replied, {"role": "assistant", "content": read_content(message) or _read_body(attributes)}]
        else:
            asked = asked or list_messages(attributes.get("gen_ai.input.messages", attributes.get("gen_ai.prompt")))
            replied = replied or list_messages(
                attributes.get("gen_ai.output.messages", attributes.get("gen_ai.completion"))
            )
    return asked, _as_replies(replied)


def _as_replies(messages: list[Any]) -> list[Any]:
    """A model's replies say so, where a convention leaves it out."""
    return [{"role": "assistant", **message} if isinstance(message, Mapping) else message for message in messages]


def _read_body(attributes: Tree) -> object:
    return attributes.get("content", attributes.get("gen_ai.event.content"))


def _find_error(recorded: Recorded) -> str | None:
    attributes = recorded.attributes
    if attributes.get("langfuse.observation.level") == "ERROR":
        return read_name(attributes.get("langfuse.observation.status_message")) or "no reason was recorded"
    if recorded.status != _ERROR:
        return None
    said = [read_tree(event.get("attributes")).get("exception.message") for event in recorded.events]
    words = recorded.message or next((text for text in said if isinstance(text, str) and text), None)
    return words or str(attributes.get("error.type") or "no reason was recorded")


def _find_documents(tree: Tree, kind: Kind, made: object) -> tuple[Document, ...] | None:
    """The documents of a retriever or reranker. Ids that OpenInference leaves out stand in the output beside."""
    found = next((listed for name in _DOCUMENTS if (listed := read_documents(look_up(tree, name)))), None)
    if kind not in ("retriever", "reranker"):
        return found
    beside = read_found(made)
    if found is None:
        return beside if beside is not None or made is None else ()
    if beside is None or len(beside) != len(found):
        return found
    return tuple(
        replace(own, text=own.text or other.text, id=own.id or other.id)
        for own, other in zip(found, beside, strict=True)
    )


def _find_calls(recorded: Recorded, given: object) -> tuple[Tree, ...]:
    attributes = recorded.attributes
    name = read_name(pick(attributes, _TOOLS))
    if name is None and "langfuse.observation.type" in attributes:  # which has no name for the tool but the span's
        name = read_name(recorded.name)
    arguments = read_tree(given)
    inner = arguments.get("input_str", arguments.get("inputs", given)) if "kwargs" in arguments else given
    return (make_call(name, inner),) if name else ()


def read_otlp(message: Tree, blame: Blame) -> Iterator[Recorded]:
    """The spans of an ExportTraceServiceRequest in JSON, as exporters send it and the collector's file exporter writes.

    Raises TypeError, AttributeError or KeyError for what is no such request; of one span it is blamed.
    """
    for listed in read_fields(message).get("resourceSpans", []):
        of_resource = read_fields(listed)
        resource = _read_attributes(read_tree(of_resource.get("resource")).get("attributes"))
        scopes = of_resource.get("scopeSpans") or of_resource.get("instrumentationLibrarySpans") or []
        for scope in scopes:
            for span in scope.get("spans") or []:
                try:
                    yield _read_otlp_span(read_fields(span), read_name(resource.get("service.name")))
                except (ValueError, AttributeError, TypeError, KeyError) as error:
                    blame(str(error))


def read_fields(message: Tree) -> Tree:
    """The fields of a message in JSON by their lowerCamelCase names. Protobuf's JSON allows those of the .proto file as
    well, and null for what is not there; Phoenix's API writes both."""
    return {_find_field(name): value for name, value in message.items() if value is not None}


@lru_cache(maxsize=256)  # bounded: whoever sends spans chooses their names
def _find_field(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _read_otlp_span(span: Tree, service: str | None) -> Recorded:
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


_STATUSES: Final[Mapping[object, str]] = {
    1: "ok", 2: _ERROR, "STATUS_CODE_OK": "ok", "STATUS_CODE_ERROR": _ERROR, "OK": "ok", "ERROR": _ERROR,
}  # fmt: skip


def _is_id(value: str, digits: int) -> bool:
    return len(value) == digits and all(digit in "0123456789abcdefABCDEF" for digit in value)


def _read_attributes(pairs: object) -> dict[str, Any]:
    return {str(pair["key"]): _read_any(pair.get("value")) for pair in read_list(pairs) or []}


def _read_any(value: object) -> Any:  # noqa: ANN401  # whatever an attribute holds
    """A value of OTLP in JSON, in which whole numbers are texts."""
    kind, inner = next(iter(read_fields(value).items()), ("", None)) if isinstance(value, Mapping) else ("", None)
    match kind:
        case "intValue":
            return int(str(inner))
        case "arrayValue":
            return [_read_any(item) for item in read_tree(inner).get("values") or []]
        case "kvlistValue":
            return _read_attributes(read_tree(inner).get("values"))
        case "bytesValue":
            return None  # nothing that is judged, and nothing that a pattern could be looked for in
    return inner


def read_protobuf(message: "ExportTraceServiceRequest", blame: Blame) -> Iterator[Recorded]:
    """The same of a message in protobuf."""
    for of_resource in message.resource_spans:
        resource = _read_pairs(of_resource.resource.attributes)
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                if len(span.trace_id) != 16 or len(span.span_id) != 8:
                    blame("a span needs a trace_id of 16 and a span_id of 8 bytes")
                    continue
                yield Recorded(
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex() or None,
                    name=span.name,
                    service=read_name(resource.get("service.name")),
                    started_at=read_time(span.start_time_unix_nano),
                    ended_at=read_time(span.end_time_unix_nano),
                    status=_STATUSES.get(span.status.code, "unset"),
                    message=span.status.message or None,
                    attributes=_read_pairs(span.attributes),
                    events=tuple(
                        {"name": item.name, "attributes": _read_pairs(item.attributes)} for item in span.events
                    ),
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


def read_flat(row: Tree, blame: Blame) -> Recorded | None:
    """A span that is a row of its own: as an SDK writes it, or a row of Phoenix's frame, whose columns are dotted."""
    tree = nest(row)
    context = read_tree(tree.get("context"))
    trace_id = read_name(context.get("trace_id") or row.get("trace_id") or row.get("traceId"))
    span_id = read_name(context.get("span_id") or row.get("span_id") or row.get("spanId"))
    if trace_id is None or span_id is None:
        blame("no trace_id and span_id, which every span has")
        return None
    attributes = flatten(read_tree(tree.get("attributes")))
    kind = row.get("span_kind")
    if isinstance(kind, str) and kind:
        attributes.setdefault("openinference.span.kind", kind)
    status = read_tree(row.get("status"))
    code = row.get("status_code") or status.get("status_code")
    parent = row.get("parent_id") or row.get("parent_span_id") or row.get("parentSpanId")
    resource = read_tree(read_tree(row.get("resource")).get("attributes"))
    return Recorded(
        trace_id=trace_id.removeprefix("0x"),
        span_id=span_id.removeprefix("0x"),
        parent_id=(read_name(parent) or "").removeprefix("0x") or None,
        name=str(row.get("name") or ""),
        service=read_name(resource.get("service.name")),
        started_at=read_time(row.get("start_time")),
        ended_at=read_time(row.get("end_time")),
        status=_STATUSES.get(str(code or "").upper(), "unset"),
        message=read_name(row.get("status_message") or status.get("description")),
        attributes=attributes,
        events=tuple(event for event in read_list(row.get("events")) or [] if isinstance(event, Mapping)),
    )


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
