"""Spans of OpenTelemetry, by the conventions of GenAI, OpenInference, OpenLLMetry (traceloop) and Langfuse's SDKs.

A span as it is recorded (`Recorded`) comes from OTLP (`otlp.py`), from a row of its own there, or from the warehouse,
where the receiver put it. Which conventions it keeps is seen by its attributes, for an application may mix them:
`read_span` takes of each field the first attribute that is there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from evalhouse.tasks.datasets.spans.said import (
    find_documents,
    find_said,
    find_turns,
    list_messages,
    list_tool_calls,
    make_call,
    read_documents,
    read_found,
)
from evalhouse.tasks.datasets.spans.span import (
    LANGFUSE_KINDS,
    Document,
    Kind,
    Span,
    Tree,
    count_tokens,
    nest,
    read_count,
    read_name,
    read_tree,
    tell_reranker,
)

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
}  # fmt: skip
_INPUTS: Final = (
    "input.value", "traceloop.entity.input", "gen_ai.retrieval.query.text", "reranker.query", "gen_ai.task.input",
    "langfuse.trace.input", "langfuse.observation.input", "gen_ai.tool.call.arguments", "tool.parameters",
    "spring.ai.chat.client.user.text",
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
ERROR: Final = "error"


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
    if _LANGFUSE in attributes:
        kind = tell_reranker(kind, recorded.name)
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
            message = {"content": _read_body(attributes), **read_tree(attributes.get("message"))}
            replied = [*replied, message]
        else:
            asked = asked or _list_event(attributes, "gen_ai.input.messages", "gen_ai.prompt")
            replied = replied or _list_event(attributes, "gen_ai.output.messages", "gen_ai.completion")
    return asked, _as_replies(replied)


def _list_event(attributes: Tree, *names: str) -> list[Any]:
    """The messages of an event. Spring AI lists the texts of all, with an empty one for each that has none."""
    return [message for message in list_messages(pick(attributes, names)) if message != ""]


def _as_replies(messages: list[Any]) -> list[Any]:
    """A model's replies say so, where a convention leaves it out."""
    return [{"role": "assistant", **message} if isinstance(message, Mapping) else message for message in messages]


def _read_body(attributes: Tree) -> object:
    return attributes.get("content", attributes.get("gen_ai.event.content"))


def _find_error(recorded: Recorded) -> str | None:
    attributes = recorded.attributes
    if attributes.get("langfuse.observation.level") == "ERROR":
        return read_name(attributes.get("langfuse.observation.status_message")) or "no reason was recorded"
    if recorded.status != ERROR:
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
    if name is None and _LANGFUSE in attributes:  # which has no name for the tool but the span's
        name = read_name(recorded.name)
    arguments = read_tree(given)
    inner = arguments.get("input_str", arguments.get("inputs", given)) if "kwargs" in arguments else given
    return (make_call(name, inner),) if name else ()
