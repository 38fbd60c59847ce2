"""A span as all formats are read: one step of a bot's work on one question, with its question and answer.

The second half finds the text of a question or an answer, earlier turns, tool calls and documents in the objects that
tracers record as a step's input and output. LangChain writes messages, or serialised objects of its classes;
OpenTelemetry messages with parts; decorators the arguments of a function; OpenAI's clients the whole request and
response. A question is the last that a person wrote: the messages before it are the conversation. Only what cannot be
anything else is read as a text.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from evalhouse.tasks.datasets.values import open_cell, open_context, open_value

Kind = Literal["chain", "llm", "retriever", "reranker", "tool", "embedding", "other"]
Tree = Mapping[str, Any]
Blame = Callable[[str], None]
"""Takes the problem of a row that no span can be read from."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document that a retriever found: a text, or None where only its id was recorded."""

    text: str | None
    id: str | None = None
    score: float | None = None
    metadata: Any = None


@dataclass(frozen=True, kw_only=True)
class Span:
    """One step. Times are seconds of the epoch; `ended_at` is None while it runs. `error` is why it failed.

    `turns` are the messages before the question, where the span has them: objects with role and text. `documents` is
    None for what retrieves nothing, and empty for a retriever that found nothing. `passed_on` are the ones that a chain
    returned with its answer.
    """

    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str = ""
    kind: Kind = "other"
    started_at: float | None = None
    ended_at: float | None = None
    error: str | None = None
    question: str | None = None
    turns: tuple[Tree, ...] = ()
    answer: str | None = None
    documents: tuple[Document, ...] | None = None
    passed_on: tuple[Document, ...] | None = None
    tool_calls: tuple[Tree, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None
    session: str | None = None
    service: str | None = None


LANGFUSE_KINDS: Final[Mapping[str, Kind]] = {
    "generation": "llm", "retriever": "retriever", "tool": "tool", "embedding": "embedding", "chain": "chain",
    "agent": "chain", "span": "chain",
}  # fmt: skip
"""Langfuse's types of observations, in small letters."""


def refine_kind(kind: Kind, name: str) -> Kind:
    """Return a retriever's kind by its name too: Langfuse has no type for what puts documents in another order."""
    return "reranker" if kind == "retriever" and "rerank" in name.lower() else kind


# --- values

_COUNT: Final = re.compile(r"\d{1,15}(\.0)?")
_LATEST: Final = 253_402_300_800  # seconds of the epoch at the end of the year 9999, the last one of dates


def read_time(value: object) -> float | None:
    """Return seconds of the epoch from a time as exports write it: ISO 8601, nanoseconds, milliseconds or seconds.

    None for what is not a time, or lies after all dates.
    """
    if isinstance(value, str):
        try:
            value = int(value) if value.isdecimal() else datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if isinstance(value, datetime):
        seconds = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        return seconds if seconds < _LATEST else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LATEST * 1e9:
        return None
    for factor, least in ((1e9, 1e17), (1e6, 1e14), (1e3, 1e11)):  # in seconds all of these are after the year 5000
        if value >= least:
            return value / factor
    return float(value)


def read_count(value: object) -> int | None:
    """Return a number of tokens, None for anything else."""
    if isinstance(value, str) and _COUNT.fullmatch(value):  # as text in a table with empty cells
        return int(float(value))
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return int(cast(float, value)) if is_count else None


def count_tokens(usage: Tree, side: Literal["input", "output"]) -> int | None:
    """Return the tokens that went into a model, or came out, of all kinds as Langfuse names them; cached ones are
    beside `input` and reasoning beside `output`. None if nothing states how many."""
    counts = [read_count(value) for name, value in usage.items() if side in name.lower()]
    known = [count for count in counts if count is not None]
    if known:
        return sum(known)
    names = ("prompt_tokens", "promptTokens") if side == "input" else ("completion_tokens", "completionTokens")
    return next((count for name in names if (count := read_count(usage.get(name))) is not None), None)


def read_score(value: object) -> float | None:
    """Return a retriever's score of a document."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_name(value: object) -> str | None:
    """Return a name or an id as text."""
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def read_tree(value: object) -> Tree:
    """Return an object, or the one that a text holds; an empty one for anything else."""
    value = open_value(value)
    return value if isinstance(value, Mapping) else {}


def read_list(value: object) -> list[Any] | None:
    """Return a list, the one that a text holds, or the members 0, 1, … of an object; None for anything else."""
    value = open_value(value)
    if isinstance(value, Mapping) and value and all(str(key).isdecimal() for key in value):
        return [value[key] for key in sorted(value, key=int)]
    return list(value) if isinstance(value, list | tuple) else None


def nest(attributes: Tree) -> dict[str, Any]:
    """Return attributes as a tree: `a.0.b` is member b of member 0 of a. A value gives way to a longer name."""
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        *around, last = name.split(".")
        place = tree
        for part in around:
            inner = place.get(part)
            place[part] = place = inner if isinstance(inner, dict) else {}
        if not isinstance(place.get(last), dict):
            place[last] = value
    return tree


# --- questions, answers and turns

Field = Literal["question", "answer"]
_ASKING: Final = ("user", "human", "HumanMessage")
_ANSWERING: Final = ("assistant", "ai", "model", "AIMessage", "AIMessageChunk")
# Names around a value, the outermost first.
_WRAPPERS: Final[Mapping[Field, tuple[str, ...]]] = {
    "question": ("inputs", "input", "messages", "new_message", "contents", "args", "kwargs", "params"),
    "answer": (
        "outputs", "output", "messages", "generations", "choices", "candidates", "message", "result", "returned",
    ),
}  # fmt: skip
_KEYS: Final[Mapping[Field, tuple[str, ...]]] = {
    "question": ("question", "user_input", "query", "prompt", "q", "text", "content"),
    "answer": ("answer", "response", "output_text", "text", "content", "final_output"),
}
# Beside the value in what LangChain's callbacks and decorators record: never the value.
_BESIDE: Final = frozenset({"tags", "metadata", "config", "run_manager", "callbacks", "self", "session_id", "user_id"})
_DEEPEST: Final = 12


def find_message(value: object, field: Field, depth: int = 0) -> str | None:
    """Return the question or the answer in a recorded value; None if there is not exactly one that it can be."""
    value = open_cell(value)
    if isinstance(value, str):
        return value if value.strip() else None
    if depth > _DEEPEST:
        return None
    if isinstance(value, Mapping):
        if _find_role(value) is not None:
            return read_content(value) or None
        members = {key: item for key, item in value.items() if key not in _BESIDE and item not in (None, "", [], {})}
        for key in (*_KEYS[field], *_WRAPPERS[field]):
            if key in members and (text := find_message(members[key], field, depth + 1)) is not None:
                return text
        return find_message(next(iter(members.values())), field, depth + 1) if len(members) == 1 else None
    if not isinstance(value, list | tuple):
        return None
    roles = [_find_role(item) for item in value]
    if any(role is not None for role in roles):
        speaking = _ASKING if field == "question" else _ANSWERING
        messages = [item for item, role in zip(value, roles, strict=True) if role in speaking]
        return (read_content(messages[-1]) or None) if messages else None
    # Of several choices of a model the first is the one that is used.
    are_choices = field == "answer" and all(isinstance(item, Mapping) and "finish_reason" in item for item in value)
    return find_message(value[0], field, depth + 1) if len(value) == 1 or (value and are_choices) else None


def find_turns(value: object, depth: int = 0) -> tuple[Tree, ...]:
    """Return the turns of a person and the bot before the question, from a recorded list of messages, oldest first."""
    value = open_cell(value)
    if isinstance(value, Mapping) and depth <= _DEEPEST:
        inner = next((value[key] for key in _WRAPPERS["question"] if value.get(key)), None)
        return find_turns(inner, depth + 1)
    if not isinstance(value, list | tuple) or depth > _DEEPEST:
        return ()
    if len(value) == 1 and isinstance(value[0], list):  # LangChain's callbacks have a list for each prompt
        return find_turns(value[0], depth + 1)
    roles = [_find_role(item) for item in value]
    last = max((place for place, role in enumerate(roles) if role in _ASKING), default=0)
    messages = [(role, read_content(item)) for role, item in zip(roles[:last], value, strict=False)]
    return tuple(
        {"role": "user" if role in _ASKING else "assistant", "text": text}
        for role, text in messages
        if role in (*_ASKING, *_ANSWERING) and text.strip()
    )


def _find_role(item: object) -> str | None:
    """Return the role of a message; None for what is not a message. `["human", "…"]` is one as well."""
    if isinstance(item, list | tuple) and len(item) == 2 and item[0] in (*_ASKING, *_ANSWERING, "system"):
        return str(item[0])
    if not isinstance(item, Mapping):
        return None
    if item.get("lc") and isinstance(item.get("id"), list):  # a serialised object of LangChain
        return str(item["id"][-1]) if str(item["id"][-1]).endswith(("Message", "MessageChunk")) else None
    role = item.get("role") or item.get("message.role")
    if isinstance(role, str):
        return role
    if {"content", "data"} & item.keys() and item.get("type") in (*_ASKING, *_ANSWERING, "system", "tool"):
        return str(item["type"])
    inner = item.get("message")
    return _find_role(inner) if isinstance(inner, Mapping) and len(item) == 1 else None


def read_content(item: object) -> str:
    """Return the text of a message, or its text parts, joined; "" for none."""
    if isinstance(item, list | tuple):
        return str(item[1])
    if not isinstance(item, Mapping):
        return ""
    for key in ("kwargs", "data", "message"):  # as LangChain dumps one, and as OpenInference nests one
        if isinstance(item.get(key), Mapping):
            return read_content(item[key])
    keys = ("content", "message.content", "parts", "contents", "text")
    content = open_cell(next((item[key] for key in keys if item.get(key) not in (None, "")), ""))
    if isinstance(content, str):
        return content
    texts = []
    for part in read_list(content) or []:
        inner = part.get("message_content", part) if isinstance(part, Mapping) else part
        if isinstance(inner, Mapping) and inner.get("type", "text") in ("text", "input_text", "output_text"):
            inner = inner.get("text", inner.get("content"))
        if isinstance(inner, str) and inner:
            texts.append(inner)
    return "\n".join(texts)


def list_messages(value: Any) -> list[Any]:  # noqa: ANN401  # any value of an attribute
    """Return messages as a list, each a tree."""
    return [nest(item) if isinstance(item, Mapping) else item for item in read_list(value) or []]


# --- tool calls


def list_tool_calls(messages: Sequence[object]) -> Iterator[Tree]:
    """Yield the tool calls in messages, each `{"name", "arguments"}`."""
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        inner = message
        for key in ("message", "kwargs"):
            inner = inner[key] if isinstance(inner.get(key), Mapping) else inner
        parts = read_list(inner.get("parts")) or []
        called = [part for part in parts if isinstance(part, Mapping) and part.get("type") == "tool_call"]
        for item in [*called, *(read_list(inner.get("tool_calls")) or [])]:
            if not isinstance(item, Mapping):
                continue
            call = read_tree(item.get("tool_call", item))
            function = read_tree(call.get("function", call))
            arguments = function.get("arguments", function.get("args", function.get("input")))
            if name := read_name(function.get("name")):
                yield make_call(name, arguments)


def read_calls(kind: Kind, name: str, given: object, made: object) -> tuple[Tree, ...]:
    """Return the call that a tool's step is, or the calls that a model made."""
    if kind == "tool":
        return (make_call(name, given),) if name else ()
    messages = read_list(made)
    return tuple(list_tool_calls(messages if messages is not None else [read_tree(made)])) if kind == "llm" else ()


def make_call(name: str, arguments: object) -> Tree:
    """Return one call of a tool, with its arguments as an object."""
    return {"name": name, "arguments": open_cell(arguments) or {}}


# --- documents

# Where chains of LangChain, and graphs of users, put retrieved documents beside the answer.
_PASSED_ON: Final = (
    "documents", "context", "contexts", "source_documents", "retrieved_documents", "retrieved_contexts",
    "retrieved_chunks", "chunks", "nodes", "source_nodes",
)  # fmt: skip


def read_documents(value: object) -> tuple[Document, ...] | None:
    """Return the documents that a value holds, in their order; None if it is not a list of them."""
    value = open_value(value)
    if isinstance(value, Mapping):
        inner = value.get("documents", value.get("outputs", value.get("output", value.get("results"))))
        return read_documents(read_list(value) if inner is None else inner)
    if not isinstance(value, list | tuple):
        return None
    documents = [read_document(item) for item in value]
    return None if None in documents else tuple(item for item in documents if item is not None)


def find_documents(made: object) -> tuple[Document, ...] | None:
    """Return the documents in a chain's output, under the names by which frameworks and people pass them on."""
    tree = read_tree(made)
    return next((found for name in _PASSED_ON if (found := read_documents(tree.get(name))) is not None), None)


def read_retrieved(made: object) -> tuple[Document, ...] | None:
    """Return the documents in a retriever's output: directly, or under a name by which chains pass them on."""
    found = read_documents(made)
    return find_documents(made) if found is None else found


def read_document(item: object) -> Document | None:
    """Return one document; None for what has neither a text nor an id. `(document, score)` is one with its score.

    Of an object the text and the id are among its members, or in its metadata.
    """
    context = open_context(item)
    if context is None:
        return None
    text, an_id = context.text if isinstance(context.text, str) else None, read_name(context.id)
    if text is None and an_id is None:
        return None
    metadata = read_tree(context.rest.get("metadata"))
    scores = (context.rest.get("score"), context.rest.get("relevance_score"), metadata.get("score"))
    score = next((value for value in scores if value is not None), None)
    return Document(text=text, id=an_id, score=read_score(score), metadata=dict(metadata) or None)
