"""Messages of conversations, and the turns before a question: the one reader of both.

The lists of OpenAI (`role`, `content` as text or in parts, `tool_calls`, results of tools), of ragas (`type`: human,
ai, tool), LangChain's (`lc`, `kwargs`), ShareGPT's (`from`, `value`) and plain ones (`role` and `text`, or `question`
and `answer` in one object) are all read into `Message`, and so are the parts of Anthropic, Bedrock, Gemini and
OpenTelemetry, in which calls of tools and their results are beside the text.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from evalhouse.tasks.datasets.thoughts import find_thoughts, is_thought, join_thoughts, split_thoughts
from evalhouse.tasks.datasets.values import Say, is_empty, open_context, open_list, open_value, read_contexts, read_ids
from evalhouse.warehouse.messages import list_names, name_kind, quote_value
from evalhouse.warehouse.rows.samples import Role, Turn

Speaker = Literal["user", "assistant", "tool", "system"]

_ROLES: Final[Mapping[str, Speaker]] = {
    "user": "user", "human": "user",
    "assistant": "assistant", "ai": "assistant", "agent": "assistant", "bot": "assistant", "model": "assistant",
    "gpt": "assistant", "chatgpt": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool",
    "system": "system", "developer": "system",
}  # fmt: skip
_ROLE_KEYS: Final = ("role", "type", "speaker", "from")
_TEXT_KEYS: Final = ("content", "parts", "contents", "blocks", "text", "message", "value", "refusal")
# LangChain writes its messages' classes where others have roles.
_CLASS_ENDS: Final = ("messagechunk", "message")
_CONTEXTS: Final = ("contexts", "retrieved_contexts", "retrieval_context", "context", "documents")
_TRUTHS: Final = ("ground_truth", "reference", "expected_output")
_QUESTIONS: Final = ("question", "user_input", "input", "query", "user")
_ANSWERS: Final = ("answer", "response", "output", "actual_output", "assistant")
_TEXT_PARTS: Final = ("text", "input_text", "output_text", None)
# Parts that are a call of a tool, or its result: by their type, or by the member that holds it.
_CALL_PARTS: Final = ("tool_use", "tool_call", "function_call", "toolUse", "functionCall")
_RESULT_PARTS: Final = (
    "tool_result", "tool_call_response", "toolResult", "function_response", "functionResponse",
)  # fmt: skip
_RESULTS: Final = ("response", "result", "content", "output")
_DOCUMENT_LISTS: Final = ("documents", "contexts", "results", "source_documents")
# An object with a text is a document if it also states where the text comes from, or how well it fits.
_DOCUMENT_MARKS: Final = (
    "page_content", "pageContent", "id", "source", "url", "link", "href", "title", "doc_id", "document_id", "score",
    "metadata", "meta_data",
)  # fmt: skip


class UnreadableConversation(ValueError):
    """A list of messages that cannot be read as one; the text names the message and the problem."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message. `contexts`, `context_ids` and `ground_truth` are as the file has them; `parts` are parts of its
    content that are not text, such as pictures."""

    role: Speaker
    text: str = ""
    contexts: object = None
    context_ids: object = None
    ground_truth: object = None
    tool_calls: Sequence[object] = ()
    parts: Sequence[object] = ()
    rest: Mapping[str, object] = field(default_factory=dict)


# --- messages


def open_messages(value: object) -> list[object] | None:
    """Return the list of messages that a cell holds, in JSON or as Python prints it; None if it holds none.

    A list inside an object under `messages` counts too; LangChain puts a chat model's messages into one list more.
    """
    value = open_value(value)
    if isinstance(value, Mapping):
        value = open_value(value.get("messages"))
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return value if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value) else None


def _unpack(item: object) -> Mapping[str, Any]:
    """Return a message of LangChain without the object that it is serialised into; any other unchanged.

    A pair of a role and a text is a message too, as is the one inside a choice of a model, or alone in an object.
    """
    if isinstance(item, list | tuple):
        is_pair = len(item) == 2 and all(isinstance(part, str) for part in item)
        return {"role": item[0], "content": item[1]} if is_pair else {}
    if not isinstance(item, Mapping):
        return {}
    if isinstance(item.get("kwargs"), Mapping) and "lc" in item:
        path = item.get("id")
        return {"type": str(path[-1]) if isinstance(path, list) and path else "", **item["kwargs"]}
    if isinstance(item.get("data"), Mapping) and "type" in item:  # as `messages_to_dict` writes them
        return {**item["data"], "type": item["type"]}
    if item.get("type") == "function_call":  # as OpenAI's Responses API lists calls and results among messages
        return {"role": "assistant", "content": [item]}
    if item.get("type") == "function_call_output":
        return {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
    inner = _unpack(item.get("message")) if _find_role(item) is None else {}
    return inner if _find_role(inner) is not None else item


def _find_role(item: Mapping[str, Any]) -> Speaker | None:
    for key in _ROLE_KEYS:
        name = item.get(key)
        if isinstance(name, str):
            spelled = name.casefold()
            ending = next((end for end in _CLASS_ENDS if spelled.endswith(end) and spelled != end), "")
            if role := _ROLES.get(spelled.removesuffix(ending)):
                return role
    return None


def has_roles(items: Sequence[object]) -> bool:
    """Return True if any of these objects is a message with a known role."""
    return any(_find_role(_unpack(item)) is not None for item in items)


def read_known(items: Iterable[object]) -> list[Message]:
    """Return the messages among recorded items; what is not one is left out."""
    messages: list[Message] = []
    for item in items:
        unpacked = _unpack(item)
        role = _find_role(unpacked)
        if role is not None:
            with suppress(UnreadableConversation):
                messages += _read_message(unpacked, role)
    return messages


def read_messages(items: Sequence[object]) -> list[Message]:
    """Return the messages of a list; raises UnreadableConversation for an item that is not a message."""
    messages = []
    for place, item in enumerate(items, start=1):
        try:
            messages += _read_item(item)
        except UnreadableConversation as error:
            raise UnreadableConversation(f"message {place}: {error}") from None
    return messages


def _read_item(packed: object) -> list[Message]:
    """Return a message, or the question and the answer of an object that is a whole turn."""
    if not isinstance(packed, Mapping):
        raise UnreadableConversation(f"it is {name_kind(packed)}, not an object: {quote_value(packed)}")
    item = _unpack(packed)
    role = _find_role(item)
    if role is not None:
        return _read_message(item, role)
    question = next((key for key in _QUESTIONS if isinstance(item.get(key), str)), None)
    if question is None:
        known = ", ".join(dict.fromkeys(_ROLES))
        has = list_names([f"{key} {item[key]!r}" if key in _ROLE_KEYS else key for key in item], 8)
        raise UnreadableConversation(f"it has no role that is known ({known}) and no question: {has}")
    answer = next((key for key in _ANSWERS if isinstance(item.get(key), str)), None)
    read = {question, answer, "context_ids", "tool_calls", *_CONTEXTS, *_TRUTHS}
    rest = {key: member for key, member in item.items() if key not in read}
    calls = item.get("tool_calls")
    reply = Message(
        role="assistant",
        text=item[answer] if answer else "",
        contexts=_pick(item, _CONTEXTS),
        context_ids=item.get("context_ids"),
        ground_truth=_pick(item, _TRUTHS),
        tool_calls=tuple(calls) if isinstance(calls, list) else (),
    )
    asked = Message(role="user", text=item[question], rest=rest)
    return [asked, reply] if reply != Message(role="assistant") else [asked]


def _pick(item: Mapping[str, Any], names: Sequence[str]) -> object:
    return next((item[name] for name in names if item.get(name) is not None), None)


def _read_message(item: Mapping[str, Any], role: Speaker) -> list[Message]:
    """Return a message of a role, after the results of tools that are parts of it.

    Calls of tools are beside its content, in it, or where LangChain's classes keep them.
    """
    content = next((item[key] for key in _TEXT_KEYS if item.get(key) not in (None, "")), item.get("content"))
    texts: list[str] = []
    parts: list[object] = []
    results: list[Message] = []
    calls: object = item.get("tool_calls") or item.get("tools_called")
    kwargs = item.get("additional_kwargs")
    if not calls and isinstance(kwargs, Mapping):
        calls = kwargs.get("tool_calls")
    if not calls and isinstance(item.get("function_call"), Mapping):
        calls = item["function_call"]
    calls_inside: list[object] = []
    if isinstance(content, Mapping) and isinstance(content.get("text"), str):  # as ragas writes a message with calls
        texts = [content["text"]]
        inner = content.get("tool_calls")
        calls_inside = list(inner) if isinstance(inner, list) else []
    elif isinstance(content, list):
        for item_of_content in content:
            part = item_of_content
            if isinstance(part, Mapping):
                part = part.get("message_content", part)  # as OpenInference nests one
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, Mapping):
                kind = part.get("type", part.get("block_type"))
                kind = next((name for name in (*_CALL_PARTS, *_RESULT_PARTS) if name in part), kind)
                held = part.get(str(kind))
                text = part.get("text", part.get("refusal", part.get("content")))
                if kind in _CALL_PARTS:
                    calls_inside.append(held if isinstance(held, Mapping) else part)
                elif kind in _RESULT_PARTS:
                    result = held if isinstance(held, Mapping) else part
                    results += _read_message({**result, "content": _pick(result, _RESULTS)}, "tool")
                elif kind in (*_TEXT_PARTS, "refusal") and isinstance(text, str) and not is_thought(part):
                    texts.append(text)
                else:
                    parts.append(part)
            else:
                parts.append(part)
    elif isinstance(content, str):
        texts = [content]
    elif content is not None and role != "tool":
        came = f"its text is {name_kind(content)}, not text: {quote_value(content)}"
        raise UnreadableConversation(came)
    text = "\n".join(texts)
    thoughts = find_thoughts(item) if role == "assistant" else None
    if thoughts is not None and text.strip():
        text = join_thoughts(thoughts, text)
        parts = [part for part in parts if not is_thought(part)]
    elif thoughts is not None and not any(map(is_thought, parts)):
        parts.append({"type": "reasoning", "text": thoughts})
    contexts = _pick(item, _CONTEXTS)
    if role == "tool":
        contexts = find_returned(content, text, item.get("artifact"))
        if not text and content is not None and not parts:
            text = orjson.dumps(content, default=str).decode()
    message = Message(
        role=role,
        text=text,
        contexts=contexts,
        context_ids=item.get("context_ids"),
        ground_truth=_pick(item, _TRUTHS),
        tool_calls=(list(calls) if isinstance(calls, list) else [calls]) if calls else calls_inside,
        parts=parts,
        rest={name: item[name] for name in ("name", "tool_call_id") if item.get(name) is not None},
    )
    is_empty_carrier = results and not (text or message.tool_calls or parts)
    return results if is_empty_carrier else [*results, message]


def find_returned(*values: object) -> list[object] | None:
    """Return the documents that a tool returned; None for anything that may not be documents.

    They are a list, or in one under a usual name. Of several values the last one with documents counts.
    """
    found: list[object] | None = None
    for value in values:
        returned = open_value(value)
        if isinstance(returned, list) and len(returned) == 1 and isinstance(returned[0], Mapping):
            returned = returned[0].get("json", returned)  # a part of Bedrock's
        inner = returned if isinstance(returned, Mapping) else {}
        listed = next((inner[name] for name in _DOCUMENT_LISTS if isinstance(inner.get(name), list)), returned)
        if not isinstance(listed, list) or not listed or not all(isinstance(item, Mapping) for item in listed):
            continue
        # LangChain serialises a document with its class.
        documents = [item["kwargs"] if isinstance(item.get("kwargs"), Mapping) else item for item in listed]
        bodies = [context.text for context in map(open_context, documents) if context is not None]
        has_marks = all(any(mark in document for mark in _DOCUMENT_MARKS) for document in documents)
        if has_marks and all(isinstance(body, str) and body.strip() for body in bodies):
            found = documents
    return found


# --- earlier turns


def read_conversation(value: object, say: Say) -> tuple[list[Turn] | None, int]:
    """Return the turns before a question, the oldest first, None for none; reports what is not a turn to `say`.

    Instructions of a system are left out, and their number is the second value; what tools were asked and returned is
    left out too.
    """
    items = open_list(value)
    if is_empty(items):
        return None, 0
    if not isinstance(items, list):
        say("conversation", f"conversation is not a list of turns but {name_kind(items)}: {quote_value(items)}")
        return None, 0
    if all(isinstance(item, list | tuple) and len(item) == 2 and {*map(type, item)} == {str} for item in items):
        # Pairs of question and answer, or LangChain's of role and text.
        have_roles = all(first.strip().lower() in _ROLES for first, _ in items)
        names = ("role", "content") if have_roles else ("question", "answer")
        items = [dict(zip(names, item, strict=True)) for item in items]
    turns, n_system = [], 0
    for place, item in enumerate(items, start=1):
        if isinstance(item, Turn):  # it was read with another turn of its conversation
            turns.append(item)
            continue

        def complain(_: object, text: str, place: int = place) -> None:
            say("conversation", f"turn {place} of the conversation: {text}")

        try:
            messages = _read_item(item)
        except UnreadableConversation as error:
            complain(None, str(error))
            continue
        for message in messages:
            n_system += message.role == "system"
            is_blank = not message.text.strip()
            is_silent = message.role == "assistant" and split_thoughts(message.text).is_only_thoughts
            if message.role in ("system", "tool") or is_silent or (is_blank and message.tool_calls):
                continue
            if is_blank:
                complain(None, f"it has no text; it has: {list_names(list(item), 8)}")
            contexts = read_contexts(message.contexts, complain)
            given_ids = read_ids(message.context_ids, "context_ids", complain)
            ids = contexts.ids if given_ids is None else given_ids
            if message.role == "user" and not (contexts.texts is None and ids is None):
                complain(None, "it is the user's and has contexts; only an assistant's turn may have them")
            if ids is not None and len(ids) != len(contexts.texts or ()):
                complain(None, f"it has {len(ids)} context_ids for {len(contexts.texts or ())} contexts")
            role: Role = "user" if message.role == "user" else "assistant"
            text = message.text if role == "user" else split_thoughts(message.text).text
            turns.append(Turn(role=role, text=text, contexts=contexts.texts, context_ids=ids))
    return turns or None, n_system
