"""What a person asked and a bot said, in the objects that tracers record as a step's input and output.

LangChain writes messages, or objects that stand for its classes; OpenTelemetry messages with parts; decorators the
arguments of a function; OpenAI's clients the whole request and response. A question is the last that a person said:
what was said before it is the conversation. Only what cannot be anything else is read as a text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from evalhouse.tasks.datasets.spans.span import (
    Document,
    Kind,
    Tree,
    nest,
    open_value,
    read_list,
    read_name,
    read_score,
    read_tree,
)
from evalhouse.tasks.datasets.values import open_cell

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
