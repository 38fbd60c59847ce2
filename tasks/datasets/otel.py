"""Spans and log records of OpenTelemetry.

They come as OTLP in JSON or protobuf, or as rows of SDKs and of Phoenix, and become `Recorded` spans and `Logged`
events. `read_span` reads a recorded span by the conventions of GenAI, OpenInference, OpenLLMetry (traceloop), MLflow,
promptflow and Langfuse's SDKs; an application may mix them, so of each field the first attribute that is there counts.
Events of the GenAI conventions, which hold prompts and completions apart from the spans, are joined to them once a
trace is whole.
"""

import re
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Any, Final, Literal

import orjson

from evalhouse.tasks.datasets.spans import (
    LANGFUSE_KINDS,
    Blame,
    Document,
    Kind,
    Span,
    Tree,
    count_tokens,
    leave_typed,
    list_messages,
    nest,
    read_count,
    read_documents,
    read_exchange,
    read_list,
    read_name,
    read_retrieved,
    read_time,
    read_tree,
    refine_kind,
)
from evalhouse.tasks.datasets.values import is_absent, open_cell, open_text, open_value

ERROR: Final = "error"
_LANGFUSE: Final = "langfuse.observation.type"
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
    _LANGFUSE: LANGFUSE_KINDS,
    "mlflow.spanType": {
        "llm": "llm", "chat_model": "llm", "retriever": "retriever", "reranker": "reranker", "tool": "tool",
        "embedding": "embedding", "chain": "chain", "agent": "chain", "workflow": "chain", "task": "chain",
    },
    "span_type": {
        "llm": "llm", "retrieval": "retriever", "embedding": "embedding", "function": "chain", "flow": "chain",
    },
}  # fmt: skip
_INPUTS: Final = (
    "input.value", "traceloop.entity.input", "gen_ai.retrieval.query.text", "reranker.query", "gen_ai.task.input",
    "langfuse.trace.input", "langfuse.observation.input", "gen_ai.tool.call.arguments", "tool.parameters",
    "spring.ai.chat.client.user.text", "mlflow.spanInputs", "promptflow.function.inputs", "promptflow.retrieval.query",
)  # fmt: skip
_OUTPUTS: Final = (
    "output.value", "traceloop.entity.output", "gen_ai.task.output", "langfuse.trace.output",
    "langfuse.observation.output", "gen_ai.tool.call.result", "mlflow.spanOutputs", "promptflow.function.output",
    "tool_response",
)  # fmt: skip
_IN_JSON: Final = ("traceloop.entity.input", "mlflow.spanInputs", "promptflow.function.inputs")
"""Inputs that are always JSON, also where they are one text."""
_TYPED: Final = (
    "spring.ai.chat.client.user.text", "gen_ai.retrieval.query.text", "reranker.query", "promptflow.retrieval.query",
)  # fmt: skip
"""Inputs that are always a text."""
_MAX_ATTRIBUTES: Final = 128  # OpenTelemetry's default; Python drops the oldest ones
_ASKED: Final = ("gen_ai.input.messages", "llm.input_messages", "gen_ai.prompt")
_REPLIED: Final = ("gen_ai.output.messages", "llm.output_messages", "gen_ai.completion")
_DOCUMENTS: Final = (
    "retrieval.documents", "reranker.output_documents", "gen_ai.retrieval.documents", "promptflow.retrieval.documents",
)  # fmt: skip
_SESSIONS: Final = (
    "session.id", "gen_ai.conversation.id", "traceloop.association.properties.session_id",
    "traceloop.association.properties.conversation_id", "traceloop.association.properties.thread_id",
    "langfuse.session.id",
)  # fmt: skip
_PROMPT_TOKENS: Final = (
    "llm.token_count.prompt", "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.usage.prompt_tokens",
)  # fmt: skip
_REPLY_TOKENS: Final = (
    "llm.token_count.completion", "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
)  # fmt: skip
_MODELS: Final = (
    "llm.model_name", "gen_ai.response.model", "gen_ai.request.model", "langfuse.observation.model.name",
    "mlflow.llm.model", "llm.response.model",
)  # fmt: skip
_USAGE: Final = "langfuse.observation.usage_details"
_TOOLS: Final = ("tool.name", "gen_ai.tool.name", "traceloop.entity.name", "mlflow.spanFunctionName")
# Conventions before 1.37 put messages into events.
_ASKED_EVENTS: Final[Mapping[str, str]] = {
    "gen_ai.user.message": "user", "gen_ai.system.message": "system", "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}  # fmt: skip
_STATUSES: Final[Mapping[object, str]] = {
    1: "ok", 2: ERROR, "STATUS_CODE_OK": "ok", "STATUS_CODE_ERROR": ERROR, "OK": "ok", "ERROR": ERROR,
}  # fmt: skip
_COMPONENTS: Final[Mapping[str, Kind]] = {"Retriever": "retriever", "Ranker": "reranker", "Joiner": "chain"}
"""Components of Haystack by the ends of their names, with the documents in their inputs and outputs."""
_MEMBERS: Final = ("replies", "replies\nmeta")
"""The names of its outputs, which OpenLLMetry writes as the reply of a generator of Haystack."""
_EVENTS: Final = "gen_ai."  # the names of GenAI's events begin with it
_NO_REASON: Final = "no reason was recorded"


def find_session(attributes: Tree) -> str | None:
    """Return the session, or conversation, that a span with these attributes belongs to. A text such as "None" is what
    a bot writes where it has no id: all its users would be one session."""
    name = read_name(_pick(attributes, _SESSIONS))
    return None if name is None or name.casefold() in ("none", "null", "undefined", "nan") else name


def rename_session(attributes: Tree, session: str) -> Tree:
    """Return attributes that have this session in place of theirs."""
    return {name: session if name in _SESSIONS else value for name, value in attributes.items()}


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
        return find_session(self.attributes)

    @property
    def duration_ms(self) -> float | None:
        """The time it took."""
        if self.started_at is None or self.ended_at is None:
            return None
        return max(0.0, (self.ended_at - self.started_at) * 1000)


@dataclass(frozen=True, kw_only=True)
class Logged:
    """An event about a span. `attributes` include the members of its body. Time is seconds of the epoch."""

    trace_id: str
    span_id: str
    name: str
    service: str | None = None
    logged_at: float | None = None
    attributes: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Unplaced:
    """An event without a span, or with one whose id is all zeros: it can be joined to nothing, and is left out."""


def describe_unplaced(n: int) -> str:
    """Return how many events were left out for that; "" for none."""
    events = "event that names" if n == 1 else "events that name"
    return f"{n:,} {events} no span left out" if n else ""


# --- the conventions


def _pick(attributes: Tree, names: Iterable[str]) -> Any:  # noqa: ANN401  # any value of an attribute
    """Return the first of these attributes that is there."""
    return next((attributes[name] for name in names if attributes.get(name) not in (None, "")), None)


def _open_given(attributes: Tree) -> object:
    """Return the text that a step was given: as an object where its tracer writes JSON, and in one under `question`
    where a person typed it, so that it is not opened. Where it may be either, it is returned unchanged."""
    name = next(name for name in _INPUTS if attributes.get(name) not in (None, ""))
    given, mime = attributes[name], str(attributes.get("input.mime_type", "")).lower() if name == _INPUTS[0] else ""
    if name in _IN_JSON or "json" in mime:
        with suppress(orjson.JSONDecodeError):
            opened = orjson.loads(given)
            if isinstance(opened, dict | list):
                return opened
            given = opened if isinstance(opened, str) else given
        return {"question": given}
    return {"question": given} if name in _TYPED or "text/plain" in mime else given


def _look_up(tree: Tree, name: str) -> Any:  # noqa: ANN401  # any value of an attribute
    """Return what a tree has under a dotted name; None for nothing."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _open_parts(value: object) -> object:
    """Return the parts of a message that an event holds as text; any other text unchanged."""
    opened = open_cell(value)
    return opened if isinstance(opened, list) and all(isinstance(part, Mapping) for part in opened) else value


_TEMPLATE: Final = "llm.prompt_template.template"
_HIDDEN: Final = "__REDACTED__"  # what OpenInference's OPENINFERENCE_HIDE_OUTPUTS and its like leave of a text


def read_span(recorded: Recorded) -> Span:
    """Return a recorded span, read by the conventions of its attributes."""
    # MLflow, promptflow and OpenLLMetry write values in JSON, texts too.
    in_json = ("mlflow.", "traceloop.entity.output")
    known = {name: value for name, value in recorded.attributes.items() if value != _HIDDEN}
    attributes = {
        name: open_text(value) if name.startswith(in_json) else value
        for name, value in known.items()
        if not (value == "null" and name.startswith(in_json))
    }
    events = [(str(event.get("name")), read_tree(event.get("attributes"))) for event in recorded.events]
    # Pydantic AI and Logfire wrote events into an attribute.
    listed = [event for event in read_list(attributes.get("events")) or [] if isinstance(event, Mapping)]
    events += [(str(event.get("event.name")), event) for event in listed]
    for event_name, of_event in events:
        if "payload" in of_event:
            attributes.setdefault(event_name, open_text(of_event["payload"]))
    tree = nest(attributes)
    kinds = (kinds.get(str(attributes.get(name, "")).lower()) for name, kinds in _KINDS.items())
    kind: Kind = next((kind for kind in kinds if kind is not None), "other")
    component = str(attributes.get("haystack.component.type", ""))
    of_component = next((kind for end, kind in _COMPONENTS.items() if component.endswith(end)), None)
    if of_component is not None:
        kind = of_component
        attributes |= {
            name: attributes.get(f"haystack.component.{name[:-6]}") for name in ("input.value", "output.value")
        }
    if _LANGFUSE in attributes:
        kind = refine_kind(kind, recorded.name)
    given, made = _pick(attributes, _INPUTS), _pick(attributes, _OUTPUTS)
    if made is None and isinstance(result := open_value(attributes.get("final_result")), Mapping | str):
        made = result  # of an agent of Pydantic AI: its answer after validation, or by a call of a tool
    if kind != "tool" and isinstance(given, str):
        given = _open_given({**attributes, **known})
    # The messages that a model was sent and its replies, from attributes or events of the span.
    asked = next((found for name in _ASKED if (found := list_messages(_look_up(tree, name), "user"))), [])
    if isinstance(_look_up(tree, _ASKED[-1]), str):
        asked = leave_typed(asked)
    replied = next((found for name in _REPLIED if (found := list_messages(_look_up(tree, name), "assistant"))), [])
    if recorded.name.startswith("haystack.") and "\n".join(message.text for message in replied) in _MEMBERS:
        replied = []
    if instructions := _look_up(tree, "gen_ai.system_instructions"):
        asked = [*list_messages([{"role": "system", "content": open_value(instructions)}], "user"), *asked]
    has_asked = bool(asked)
    for event_name, of_event in events:
        body = open_cell(of_event.get("gen_ai.event.content"))
        members = {**of_event, **body} if isinstance(body, Mapping) else {"content": body, **of_event}
        content, message = _open_parts(members.get("content")), _open_parts(members.get("message"))
        if event_name == "gen_ai.choice":
            inner = open_cell(message)
            inner = inner if isinstance(inner, Mapping) else {"content": message or content}
            if kind == "tool":  # Strands records what a tool returned as its choice
                made = made or message
            elif not replied:  # further choices are not used
                replied = list_messages([inner], "assistant")
        elif event_name in _ASKED_EVENTS:
            given = given or (content if kind == "tool" else None)
            named = {**members, "role": _ASKED_EVENTS[event_name], "content": content}
            asked += [] if has_asked else list_messages([named], "user")
        else:
            # Spring AI lists the texts of all messages, with an empty one for each that has none.
            sent = list_messages(_pick(of_event, ("gen_ai.input.messages", "gen_ai.prompt")), "user")
            received = list_messages(_pick(of_event, ("gen_ai.output.messages", "gen_ai.completion")), "assistant")
            asked, replied = asked or sent, replied or received
    name = ""
    if kind == "tool":
        # Langfuse has no name for the tool but the span's.
        name = read_name(_pick(attributes, _TOOLS)) or (recorded.name if _LANGFUSE in attributes else "")
        arguments = read_tree(given)
        if "kwargs" in arguments:  # the arguments of a function, or LangChain's, with the tool's beside them
            given = arguments.get("inputs", arguments.get("input_str", arguments["kwargs"]))
    error = None
    if attributes.get("langfuse.observation.level") == "ERROR":
        error = read_name(attributes.get("langfuse.observation.status_message")) or _NO_REASON
    elif recorded.status == ERROR:
        messages = [of_event.get("exception.message") for _, of_event in events]
        words = recorded.message or next((text for text in messages if isinstance(text, str) and text), None)
        error = words or str(attributes.get("error.type") or _NO_REASON)
    if kind == "llm" and _TEMPLATE in attributes and not (asked or replied):
        kind = "chain"  # OpenInference calls Haystack's builder of prompts a model
    reranked = read_documents(_look_up(tree, "reranker.input_documents"))
    of_reranker = {} if reranked is None else {"given": reranked}
    has_tokens = kind in ("llm", "chain") or bool(replied)
    return Span(
        trace_id=recorded.trace_id,
        span_id=recorded.span_id,
        parent_id=recorded.parent_id,
        name=recorded.name,
        kind=kind,
        started_at=recorded.started_at,
        ended_at=recorded.ended_at,
        error=error,
        documents=_find_documents(tree, kind, made),
        **{**read_exchange(kind, name, given, made, asked=asked, replied=replied), **of_reranker},
        prompt_tokens=_count(attributes, _PROMPT_TOKENS, "input") if has_tokens else None,
        completion_tokens=_count(attributes, _REPLY_TOKENS, "output") if has_tokens else None,
        model=read_name(_pick(attributes, _MODELS)) if kind == "llm" else None,
        session=recorded.session,
        service=recorded.service,
        is_cut=len(recorded.attributes) == _MAX_ATTRIBUTES,
        is_root=attributes.get("traceloop.span.kind") == "workflow"
        or str(attributes.get("langfuse.observation.metadata.is_langchain_root")).lower() == "true",
    )


def _count(attributes: Tree, names: Iterable[str], side: Literal["input", "output"]) -> int | None:
    count = read_count(_pick(attributes, names))
    if count is None:
        count = read_count(read_tree(attributes.get("mlflow.chat.tokenUsage")).get(f"{side}_tokens"))
    return count_tokens(read_tree(attributes.get(_USAGE)), side) if count is None else count


def _find_documents(tree: Tree, kind: Kind, made: object) -> tuple[Document, ...] | None:
    """Return the documents of a retriever or reranker. Ids that OpenInference leaves out are in its output."""
    listed = [of_one for name in _DOCUMENTS if (of_one := read_documents(_look_up(tree, name))) is not None]
    found = next(filter(None, listed), None)
    if kind not in ("retriever", "reranker"):
        return found
    in_output = read_retrieved(made)
    if found is None:
        # Another object may be documents in a form that is not known, and not an empty result.
        members = open_value(made)
        is_empty = not members or (isinstance(members, Mapping) and not any(members.values()))
        return () if in_output is None and is_empty and (listed or made is not None) else in_output
    if in_output is None or len(in_output) != len(found):
        return found
    return tuple(
        replace(document, text=document.text or other.text, id=document.id or other.id)
        for document, other in zip(found, in_output, strict=True)
    )


# --- events about spans

_FROM_EVENTS: Final = (
    "question", "turns", "beside", "answer", "returned", "tool_calls", "prompt_tokens", "completion_tokens", "model",
    "session",
)  # fmt: skip


def join_logged(items: Iterable[Span | Logged]) -> list[Span]:
    """Return the spans of a trace, completed by the events about them.

    A trace with events alone is a span that has not ended: its spans are still to come.
    """
    spans, logged = list[Span](), list[Logged]()
    for item in items:
        if isinstance(item, Span):
            spans.append(item)
        else:
            logged.append(item)
    if not spans:
        return [Span(trace_id=item.trace_id, span_id=item.span_id, service=item.service) for item in logged[:1]]
    # All events about a span are read together as if they were in the span.
    logged.sort(key=lambda item: (item.span_id, item.logged_at or 0.0))
    by_id = {}
    for span_id, of_span in groupby(logged, key=lambda item: item.span_id):
        events = list(of_span)
        recorded = Recorded(
            trace_id=events[0].trace_id,
            span_id=span_id,
            attributes={name: value for item in events for name, value in item.attributes.items()},
            events=tuple({"name": item.name, "attributes": item.attributes} for item in events),
        )
        by_id[span_id] = read_span(recorded)
    for place, span in enumerate(spans):
        if other := by_id.get(span.span_id):
            missing: dict[str, Any] = {name: getattr(other, name) for name in _FROM_EVENTS if not getattr(span, name)}
            spans[place] = replace(span, kind=other.kind if span.kind == "other" else span.kind, **missing)
    return spans


def _make_logged(
    trace_id: str,
    span_id: str,
    *,
    named: object,
    service: str | None,
    times: tuple[object, object],
    attributes: Tree,
    body: object,
) -> Logged | Unplaced | None:
    """Return a log record as an event of GenAI; None for any other. `times` are when it happened and was observed.

    Its attributes get the members of the body, where older conventions put a message.
    """
    name = read_name(named) or read_name(attributes.get("event.name")) or ""
    if not name.startswith(_EVENTS):
        return None
    if not (trace_id.strip("0") and span_id.strip("0")):
        return Unplaced()
    _check_ids(trace_id, span_id, "an event names")
    opened = open_value(body)
    if isinstance(opened, Mapping):
        attributes = {**attributes, **opened}
    elif opened not in (None, ""):
        attributes = {**attributes, "content": opened}
    return Logged(
        trace_id=trace_id.lower(),
        span_id=span_id.lower(),
        name=name,
        service=service,
        logged_at=read_time(times[0]) or read_time(times[1]),
        attributes=attributes,
    )


def _read_hex(value: object) -> str:
    """Return an id in hex, in which OTLP writes it, also from the base64 of protobuf's own JSON; "" for none."""
    text = str(value or "")
    if _BASE64_ID.fullmatch(text):
        return b64decode(text).hex()
    return text.lower()


def _check_ids(trace_id: str, span_id: str, needs: str) -> None:
    if not _TRACE_ID.fullmatch(trace_id) or not _SPAN_ID.fullmatch(span_id):
        raise ValueError(f"{needs} a traceId of 32 and a spanId of 16 hex digits; got {trace_id!r}, {span_id!r}")


# --- OTLP

_TRACE_ID: Final = re.compile("[0-9a-fA-F]{32}")
_SPAN_ID: Final = re.compile("[0-9a-fA-F]{16}")
_BASE64_ID: Final = re.compile("[0-9a-zA-Z+/]{22}==|[0-9a-zA-Z+/]{11}=")  # of 16 and 8 bytes
UNREADABLE: Final = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""The errors of reading what an application, or a person who talks to it, may have written in any shape."""


def read_otlp(message: Tree, blame: Blame) -> Iterator[Recorded]:
    """Yield the spans of an ExportTraceServiceRequest in JSON, as exporters and the collector's file exporter write it;
    one in protobuf becomes that by `MessageToDict`.

    Raises TypeError, AttributeError or KeyError for any other object; a single bad span is reported to `blame`.
    """
    for item, service in _list_items(message, "resourceSpans", ("scopeSpans", "instrumentationLibrarySpans"), "spans"):
        try:
            span = read_fields(item)
            trace_id, span_id = _read_hex(span.get("traceId")), _read_hex(span.get("spanId"))
            _check_ids(trace_id, span_id, "a span needs")
            status = read_tree(span.get("status"))
            recorded = Recorded(
                trace_id=trace_id,
                span_id=span_id,
                parent_id=_read_hex(span.get("parentSpanId")) or None,
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
        except UNREADABLE as error:
            blame(str(error))
        else:
            yield recorded


def read_otlp_logs(message: Tree, blame: Blame) -> Iterator[Logged | Unplaced]:
    """Yield the events of GenAI in an ExportLogsServiceRequest, in the same way."""
    for item, service in _list_items(message, "resourceLogs", ("scopeLogs",), "logRecords"):
        try:
            record = read_fields(item)
            logged = _make_logged(
                _read_hex(record.get("traceId")),
                _read_hex(record.get("spanId")),
                named=record.get("eventName"),
                service=service,
                times=(record.get("timeUnixNano"), record.get("observedTimeUnixNano")),
                attributes=_read_attributes(record.get("attributes")),
                body=_read_any(record.get("body")),
            )
        except UNREADABLE as error:
            blame(str(error))
        else:
            if logged is not None:
                yield logged


def _list_items(
    message: Tree, resources: str, scopes: tuple[str, ...], items: str
) -> Iterator[tuple[Tree, str | None]]:
    """Yield the items in the scopes of a request, each with its service."""
    for listed in read_fields(message).get(resources, []):
        of_resource = read_fields(listed)
        resource = _read_attributes(read_tree(of_resource.get("resource")).get("attributes"))
        service = read_name(resource.get("service.name"))
        for scope in next((found for name in scopes if (found := of_resource.get(name))), []):
            for item in read_fields(scope).get(items) or []:
                yield item, service


def read_fields(message: Tree) -> Tree:
    """Return the fields of a message in JSON by their lowerCamelCase names. Protobuf's JSON also allows the names of
    the .proto file, and null for a missing one; Phoenix's API writes both."""
    return {to_camel(name): value for name, value in message.items() if value is not None}


@lru_cache(maxsize=256)  # bounded: the sender of spans chooses their names
def to_camel(name: str) -> str:
    """Return a name such as `trace_id` as `traceId`."""
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


def _read_attributes(pairs: object) -> dict[str, Any]:
    return {str(pair["key"]): _read_any(pair.get("value")) for pair in read_list(pairs) or []}


def _read_any(value: object) -> Any:  # noqa: ANN401  # any value of an attribute
    """Return a value of OTLP in JSON, in which whole numbers are texts."""
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
            return None  # bytes are neither judged nor redacted
    return inner


# --- rows of SDKs and of Phoenix


def read_flat(row: Tree, blame: Blame) -> Recorded | Logged | Unplaced | None:
    """Return a span that is a row: as an SDK writes it, or a row of Phoenix's frame, whose columns are dotted.

    An SDK writes log records so as well; None for a record that is not an event of GenAI.
    """
    service = read_name(read_tree(read_tree(row.get("resource")).get("attributes")).get("service.name"))
    if "observed_timestamp" in row:
        return _make_logged(
            _read_id(row.get("trace_id")),
            _read_id(row.get("span_id")),
            named=row.get("event_name"),
            service=service,
            times=(row.get("timestamp"), row.get("observed_timestamp")),
            attributes=read_tree(row.get("attributes")),
            body=row.get("body"),
        )
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
        service=service,
        started_at=read_time(row.get("start_time")),
        ended_at=read_time(row.get("end_time")),
        status=_STATUSES.get(str(code or "").upper(), "unset"),
        message=read_name(row.get("status_message") or status.get("description")),
        attributes=attributes,
        events=tuple(event for event in read_list(row.get("events")) or [] if isinstance(event, Mapping)),
    )


def _read_id(value: object) -> str:
    """Return an id in hex, which an SDK writes after 0x; "" for none."""
    return (read_name(value) or "").removeprefix("0x")


def flatten(tree: Tree, around: str = "") -> dict[str, Any]:
    """Return a tree as attributes by full names; lists and texts are values."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if is_absent(value):  # NaN, where pandas had no value
            continue
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{around}{name}.")
        else:
            flat[f"{around}{name}"] = value
    return flat
