"""A span as all formats are read: one step of a bot's work on one question, with what was asked and answered in it."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

import orjson

from evalhouse.tasks.datasets.values import open_cell

Kind = Literal["chain", "llm", "retriever", "reranker", "tool", "embedding", "other"]
Tree = Mapping[str, Any]
Blame = Callable[[str], None]
"""Takes what is wrong with a row that no span can be read from."""


_COUNT: Final = re.compile(r"\d{1,15}(\.0)?")
_LATEST: Final = 253_402_300_800  # seconds of the epoch at the end of the year 9999, beyond which there are no dates
# What Python reads takes some hundred bytes for each member.
_LONGEST_PYTHON: Final = 4_000_000
_MOST_IN_PYTHON: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a retriever found: a text, or None where only its id was recorded."""

    text: str | None
    id: str | None = None
    score: float | None = None
    metadata: Any = None


@dataclass(frozen=True, kw_only=True)
class Span:
    """One step. Times are seconds of the epoch; `ended_at` is None while it runs. `error` is why it failed.

    `turns` is what was said before the question, where the span has it: objects with role and text. `documents` is None
    for what retrieves nothing, and empty for a retriever that found nothing. `passed_on` are those that a chain gave
    out with its answer.
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
    metadata: Tree = field(default_factory=dict)


LANGFUSE_KINDS: Final[Mapping[str, Kind]] = {
    "generation": "llm", "retriever": "retriever", "tool": "tool", "embedding": "embedding", "chain": "chain",
    "agent": "chain", "span": "chain",
}  # fmt: skip
"""Langfuse's types of observations, in small letters."""


def tell_reranker(kind: Kind, name: str) -> Kind:
    """A retriever's kind by its name as well: Langfuse has no type for what puts documents in another order."""
    return "reranker" if kind == "retriever" and "rerank" in name.lower() else kind


def read_time(value: object) -> float | None:
    """Seconds of the epoch from a time as exports write it: ISO 8601, nanoseconds, milliseconds or seconds.

    None for what is no time, or lies after all dates.
    """
    value = _read_number(value) if isinstance(value, str) else value
    if isinstance(value, datetime):
        seconds = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        return seconds if seconds < _LATEST else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LATEST * 1e9:
        return None
    for factor, least in ((1e9, 1e17), (1e6, 1e14), (1e3, 1e11)):  # in seconds all of these lie after the year 5000
        if value >= least:
            return value / factor
    return float(value)


def _read_number(text: str) -> object:
    try:
        return int(text) if text.isdecimal() else datetime.fromisoformat(text.strip())
    except ValueError:
        return None


def read_count(value: object) -> int | None:
    """A number of tokens, None for anything else."""
    if isinstance(value, str) and _COUNT.fullmatch(value):  # as text in a table with empty cells
        return int(float(value))
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return int(cast(float, value)) if is_count else None


def count_tokens(usage: Tree, side: Literal["input", "output"]) -> int | None:
    """Tokens that went into a model, or came out, of all kinds as Langfuse names them; cached ones stand beside `input`
    and reasoning beside `output`. None where nothing says how many."""
    counts = [read_count(value) for name, value in usage.items() if side in name.lower()]
    known = [count for count in counts if count is not None]
    if known:
        return sum(known)
    names = ("prompt_tokens", "promptTokens") if side == "input" else ("completion_tokens", "completionTokens")
    return next((count for name in names if (count := read_count(usage.get(name))) is not None), None)


def read_score(value: object) -> float | None:
    """A retriever's score of a document."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_name(value: object) -> str | None:
    """A name or an id as text."""
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def open_value(value: object) -> object:
    """The list or object that a text holds, in JSON or as Python prints it, which is how pandas writes one to CSV."""
    opened = open_cell(value)
    if isinstance(opened, str) and opened.lstrip()[:1] in ("[", "{"):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return _read_python(opened.strip())
    return opened


def _read_python(text: str) -> object:
    """What Python prints; raises ValueError for more of it than is read, and for what JSON has nothing for."""
    if len(text) > _LONGEST_PYTHON or text.count(",") > _MOST_IN_PYTHON:
        raise ValueError("too long")
    value: object = ast.literal_eval(text)
    try:
        orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError as error:  # a number of hundreds of digits, half a character
        raise ValueError(str(error)) from None
    return value


def read_tree(value: object) -> Tree:
    """An object, or the one that a text holds; an empty one for anything else."""
    value = open_value(value)
    return value if isinstance(value, Mapping) else {}


def read_list(value: object) -> list[Any] | None:
    """A list, the one that a text holds, or the members 0, 1, … of an object; None for anything else."""
    value = open_value(value)
    if isinstance(value, Mapping) and value and all(str(key).isdecimal() for key in value):
        return [value[key] for key in sorted(value, key=int)]
    return list(value) if isinstance(value, list | tuple) else None


def nest(attributes: Tree) -> dict[str, Any]:
    """Attributes as a tree: `a.0.b` is member b of member 0 of a. What is in the way of a longer name gives way."""
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


Field = Literal["question", "answer"]
_ASKING: Final = ("user", "human", "HumanMessage")
_ANSWERING: Final = ("assistant", "ai", "model", "AIMessage", "AIMessageChunk")
# What stands around a value, the outermost first.
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
_IDS: Final = ("id", "id_", "document_id", "doc_id", "chunk_id", "node_id")
_TEXTS: Final = ("page_content", "content", "text", "pageContent", "text_resource")
# Where chains of LangChain, and people in graphs of their own, put what was retrieved beside the answer.
_PASSED_ON: Final = (
    "documents", "context", "contexts", "source_documents", "retrieved_documents", "retrieved_contexts",
    "retrieved_chunks", "chunks", "nodes", "source_nodes",
)  # fmt: skip


def find_said(value: object, field: Field, depth: int = 0) -> str | None:
    """The question or the answer in a recorded value; None where there is not exactly one that it can be."""
    value = open_cell(value)
    if isinstance(value, str):
        return value if value.strip() else None
    if depth > _DEEPEST or not isinstance(value, list | tuple | Mapping):
        return None
    return _find_in_object(value, field, depth) if isinstance(value, Mapping) else _find_in_list(value, field, depth)


def _find_in_object(value: Tree, field: Field, depth: int) -> str | None:
    if _find_role(value) is not None:
        return read_content(value) or None
    kept = {key: item for key, item in value.items() if key not in _BESIDE and item not in (None, "", [], {})}
    for key in (*_KEYS[field], *_WRAPPERS[field]):
        if key in kept and (text := find_said(kept[key], field, depth + 1)) is not None:
            return text
    if len(kept) == 1:
        return find_said(next(iter(kept.values())), field, depth + 1)
    return None


def _find_in_list(items: Sequence[object], field: Field, depth: int) -> str | None:
    roles = [_find_role(item) for item in items]
    if any(role is not None for role in roles):
        wanted = _ASKING if field == "question" else _ANSWERING
        said = [item for item, role in zip(items, roles, strict=True) if role in wanted]
        return (read_content(said[-1]) or None) if said else None
    if field == "answer" and items and all(isinstance(item, Mapping) and "finish_reason" in item for item in items):
        return find_said(items[0], field, depth + 1)  # of several choices the first is the one that is used
    return find_said(items[0], field, depth + 1) if len(items) == 1 else None


def find_turns(value: object, depth: int = 0) -> tuple[Tree, ...]:
    """What a person and the bot said in a recorded list of messages before the question, the oldest first."""
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
    said = [(role, read_content(item)) for role, item in zip(roles[:last], value, strict=False)]
    return tuple(
        {"role": "user" if role in _ASKING else "assistant", "text": text}
        for role, text in said
        if role in (*_ASKING, *_ANSWERING) and text.strip()
    )


def _find_role(item: object) -> str | None:
    """Whose message it is; None where it is no message. `["human", "…"]` is one as well."""
    if isinstance(item, list | tuple) and len(item) == 2 and item[0] in (*_ASKING, *_ANSWERING, "system"):
        return str(item[0])
    if not isinstance(item, Mapping):
        return None
    if item.get("lc") and isinstance(item.get("id"), list):  # an object that stands for one of LangChain's classes
        return str(item["id"][-1]) if str(item["id"][-1]).endswith(("Message", "MessageChunk")) else None
    role = item.get("role") or item.get("message.role")
    if isinstance(role, str):
        return role
    if {"content", "data"} & item.keys() and item.get("type") in (*_ASKING, *_ANSWERING, "system", "tool"):
        return str(item["type"])
    inner = item.get("message")
    return _find_role(inner) if isinstance(inner, Mapping) and len(item) == 1 else None


def read_content(item: object) -> str:
    """The text of a message; its parts that are texts, joined; "" for none."""
    if isinstance(item, list | tuple):
        return str(item[1])
    if not isinstance(item, Mapping):
        return ""
    for key in ("kwargs", "data", "message"):  # as LangChain dumps one, and as OpenInference nests one
        if isinstance(item.get(key), Mapping):
            return read_content(item[key])
    for key in ("content", "message.content", "parts", "contents", "text"):
        if item.get(key) not in (None, ""):
            return _join_parts(item[key])
    return ""


def _join_parts(content: object) -> str:
    parts = open_cell(content)
    if isinstance(parts, str):
        return parts
    return "\n".join(text for part in read_list(parts) or [] if (text := _read_part(part)))


def _read_part(part: object) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    part = part.get("message_content", part)
    if not isinstance(part, Mapping) or part.get("type", "text") not in ("text", "input_text", "output_text"):
        return ""
    text = part.get("text", part.get("content"))
    return text if isinstance(text, str) else ""


def list_tool_calls(messages: Sequence[object]) -> Iterator[Tree]:
    """The tool calls in messages, each `{"name", "arguments"}`."""
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        inner = message
        for key in ("message", "kwargs"):
            inner = inner[key] if isinstance(inner.get(key), Mapping) else inner
        parts = read_list(inner.get("parts")) or []
        called = [part for part in parts if isinstance(part, Mapping) and part.get("type") == "tool_call"]
        for call in [*called, *(read_list(inner.get("tool_calls")) or [])]:
            if (tool_call := _read_call(call)) is not None:
                yield tool_call


def _read_call(call: object) -> Tree | None:
    if not isinstance(call, Mapping):
        return None
    call = read_tree(call.get("tool_call", call))
    function = read_tree(call.get("function", call))
    name = read_name(function.get("name"))
    arguments = function.get("arguments", function.get("args", function.get("input")))
    return make_call(name, arguments) if name else None


def read_calls(kind: Kind, name: str, given: object, made: object) -> tuple[Tree, ...]:
    """The call that a step of a tool is, or those that a model made."""
    if kind == "tool":
        return (make_call(name, given),) if name else ()
    messages = read_list(made)
    return tuple(list_tool_calls(messages if messages is not None else [read_tree(made)])) if kind == "llm" else ()


def make_call(name: str, arguments: object) -> Tree:
    """One call of a tool, with its arguments as the object that they are."""
    return {"name": name, "arguments": open_cell(arguments) or {}}


def read_documents(value: object) -> tuple[Document, ...] | None:
    """The documents that a value holds, in their order; None where it is no list of them."""
    value = open_value(value)
    if isinstance(value, Mapping):
        inner = value.get("documents", value.get("outputs", value.get("output", value.get("results"))))
        return read_documents(inner) if inner is not None else _read_numbered(value)
    if not isinstance(value, list | tuple):
        return None
    documents = [read_document(item) for item in value]
    return None if None in documents else tuple(item for item in documents if item is not None)


def find_documents(made: object) -> tuple[Document, ...] | None:
    """The documents among what a chain gave out, under the names by which frameworks and people pass them on."""
    tree = read_tree(made)
    return next((found for name in _PASSED_ON if (found := read_documents(tree.get(name))) is not None), None)


def read_found(made: object) -> tuple[Document, ...] | None:
    """The documents that a retriever gave out: as they are, or under a name by which chains pass them on."""
    found = read_documents(made)
    return find_documents(made) if found is None else found


def _read_numbered(value: Tree) -> tuple[Document, ...] | None:
    items = read_list(value)
    return None if items is None else read_documents(items)


def read_document(item: object) -> Document | None:
    """One document; None for what has neither a text nor an id. `(document, score)` is one with its score."""
    if isinstance(item, str):
        return Document(text=item)
    if isinstance(item, list | tuple) and len(item) == 2:
        return _add_score(read_document(item[0]), item[1])
    if not isinstance(item, Mapping):
        return None
    inner = item.get("document", item.get("node", item.get("kwargs")))
    return _add_score(read_document(inner), item.get("score")) if isinstance(inner, Mapping) else _read_fields(item)


def _add_score(document: Document | None, score: object) -> Document | None:
    if document is None or document.score is not None:
        return document
    return replace(document, score=read_score(score))


def _read_fields(item: Tree) -> Document | None:
    item = {key.removeprefix("document."): value for key, value in item.items()}
    metadata = read_tree(item.get("metadata"))
    text = next((item[key] for key in _TEXTS if item.get(key)), None)
    text = text.get("text") if isinstance(text, Mapping) else text  # LlamaIndex's text_resource
    text = text if isinstance(text, str) else None
    named = (read_name(place.get(key)) for key in _IDS for place in (item, metadata))
    an_id = next((name for name in named if name), None)
    if text is None and an_id is None:
        return None
    score = next(
        (item[key] for key in ("score", "relevance_score") if item.get(key) is not None), metadata.get("score")
    )
    return Document(text=text, id=an_id, score=read_score(score), metadata=dict(metadata) or None)


def list_messages(value: Any) -> list[Any]:  # noqa: ANN401  # whatever an attribute holds
    """Messages as a list, each a tree."""
    return [nest(item) if isinstance(item, Mapping) else item for item in read_list(value) or []]
