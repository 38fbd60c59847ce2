"""A conversation as tools write it down: a list of messages, read into the turns of which it consists.

The lists of OpenAI (`role`, `content` as text or in parts, `tool_calls`, results of tools), of ragas (`type`: human,
ai, tool), LangChain's own (`lc`, `kwargs`) and plain ones (`role` and `text`, or `question` and `answer` in one object)
are all read into `Message`. A turn is a message of the user with what the assistant did until the next one: its answer
is what it said after the last of its tools. What a tool returned counts as contexts only where it cannot be anything
but documents, and stays in the turn's `beside` otherwise. Which rows of a dataset are conversations is decided in
`turns`.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import orjson

from evalhouse.warehouse.messages import list_names, name_kind, quote_value

Role = Literal["user", "assistant", "tool", "system"]

_ROLES: Final[Mapping[str, Role]] = {
    "user": "user", "human": "user",
    "assistant": "assistant", "ai": "assistant", "agent": "assistant", "bot": "assistant", "model": "assistant",
    "tool": "tool", "function": "tool",
    "system": "system", "developer": "system",
}  # fmt: skip
_ROLE_KEYS: Final = ("role", "type", "speaker")
_TEXT_KEYS: Final = ("content", "text", "message")
# LangChain writes its messages' classes where others have roles.
_CLASS_ENDS: Final = ("messagechunk", "message")
_CONTEXTS: Final = ("contexts", "retrieved_contexts", "retrieval_context", "documents")
_TRUTHS: Final = ("ground_truth", "reference", "expected_output")
_QUESTIONS: Final = ("question", "user_input", "input", "query", "user")
_ANSWERS: Final = ("answer", "response", "output", "actual_output", "assistant")
_TEXT_PARTS: Final = ("text", "input_text", "output_text")
_DOCUMENT_LISTS: Final = ("documents", "contexts", "results", "source_documents")
# An object with a text is a document where it also says where the text comes from, or how well it fits.
_DOCUMENT_MARKS: Final = ("page_content", "id", "source", "url", "title", "doc_id", "document_id", "score", "metadata")


class UnreadableConversation(ValueError):
    """A list of messages that cannot be told for one; the text says which message, and what about it."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message. `contexts`, `context_ids` and `ground_truth` are as the file has them; `parts` are parts of its
    content that are no text, such as pictures."""

    role: Role
    text: str = ""
    contexts: object = None
    context_ids: object = None
    ground_truth: object = None
    tool_calls: Sequence[object] = ()
    parts: Sequence[object] = ()
    rest: Mapping[str, object] = field(default_factory=dict)


@dataclass(kw_only=True)
class CutTurn:
    """A question, what was answered, and the turns before it; `beside` is what else there was of this turn.

    `conversation` is the earlier turns as a sample has them: role and text, with contexts where there were any.
    """

    number: int
    question: str
    conversation: list[dict[str, object]]
    answer: str | None = None
    contexts: object = None
    context_ids: object = None
    ground_truth: object = None
    beside: dict[str, object] = field(default_factory=dict)


def open_messages(value: object) -> list[object] | None:
    """The list of messages that a cell holds, in JSON or as Python prints it; None where it holds none.

    What is inside an object under `messages` counts too; LangChain puts a chat model's messages into one list more.
    """
    value = _open(value)
    if isinstance(value, Mapping):
        value = _open(value.get("messages"))
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return value if isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value) else None


def _open(value: object) -> object:
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(value)
    with suppress(SyntaxError, ValueError, MemoryError, RecursionError):
        return ast.literal_eval(value)
    return value


def has_roles(items: Sequence[object]) -> bool:
    """Whether any of these objects is a message of somebody: it has a role that is known."""
    return any(_find_role(item) is not None for item in map(_unpack, items) if isinstance(item, Mapping))


def read_messages(items: Sequence[object]) -> list[Message]:
    """The messages of a list; raises UnreadableConversation for one that is none."""
    return [message for place, item in enumerate(items, start=1) for message in _read_item(item, place)]


def _read_item(item: object, place: int) -> Iterator[Message]:
    if not isinstance(item, Mapping):
        raise UnreadableConversation(f"message {place} is {name_kind(item)}, not an object: {quote_value(item)}")
    item = cast(Mapping[str, Any], _unpack(item))
    role = _find_role(item)
    if role is not None:
        yield _read_message(item, role, place)
        return
    question = next((key for key in _QUESTIONS if isinstance(item.get(key), str)), None)
    if question is None:
        known = ", ".join(dict.fromkeys(_ROLES))
        has = list_names([f"{key} {item[key]!r}" if key in _ROLE_KEYS else key for key in item], 8)
        raise UnreadableConversation(f"message {place} has no role that is known ({known}) and no question: {has}")
    yield from _read_pair(item, question)


def _unpack(item: object) -> object:
    """A message of LangChain without the object that it is serialised into; anything else as it is."""
    if not isinstance(item, Mapping):
        return item
    if isinstance(item.get("kwargs"), Mapping) and "lc" in item:
        return {"type": str((item.get("id") or [""])[-1]), **item["kwargs"]}
    if isinstance(item.get("data"), Mapping) and "type" in item:  # as `messages_to_dict` writes them
        return {**item["data"], "type": item["type"]}
    return item


def _find_role(item: Mapping[str, Any]) -> Role | None:
    for key in _ROLE_KEYS:
        name = item.get(key)
        if isinstance(name, str):
            spelled = name.casefold()
            ending = next((end for end in _CLASS_ENDS if spelled.endswith(end) and spelled != end), "")
            if role := _ROLES.get(spelled.removesuffix(ending)):
                return role
    return None


def _read_message(item: Mapping[str, Any], role: Role, place: int) -> Message:
    key = next((key for key in _TEXT_KEYS if item.get(key) is not None), None)
    text, parts, calls = _read_content(item[key] if key else None, place)
    kwargs = item.get("additional_kwargs")
    inner = kwargs.get("tool_calls") if isinstance(kwargs, Mapping) else None
    made = item.get("tool_calls") or item.get("tools_called") or inner
    listed = list(made) if isinstance(made, list) else [made] if made else []
    if not listed and isinstance(item.get("function_call"), Mapping):
        listed = [item["function_call"]]
    return Message(
        role=role,
        text=text,
        contexts=_pick(item, _CONTEXTS) if role != "tool" else _find_documents(item, text),
        context_ids=item.get("context_ids"),
        ground_truth=_pick(item, _TRUTHS),
        tool_calls=listed or calls,
        parts=parts,
        rest={name: item[name] for name in ("name", "tool_call_id") if item.get(name) is not None},
    )


def _read_content(content: object, place: int) -> tuple[str, list[object], list[object]]:
    """The text of a content, its parts that are none, and the calls of tools among them."""
    if content is None:
        return "", [], []
    if isinstance(content, str):
        return content, [], []
    if isinstance(content, Mapping) and isinstance(content.get("text"), str):  # as ragas writes a message with calls
        made = content.get("tool_calls")
        return content["text"], [], list(made) if isinstance(made, list) else []
    if not isinstance(content, list):
        came = f"message {place} has {name_kind(content)} for its content, not text: {quote_value(content)}"
        raise UnreadableConversation(came)
    texts: list[str] = []
    parts: list[object] = []
    calls: list[object] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if isinstance(part, str):
            texts.append(part)
        elif kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            (calls if kind == "tool_use" else parts).append(part)
    return "\n".join(texts), parts, calls


def _read_pair(item: Mapping[str, Any], question: str) -> Iterator[Message]:
    """A whole turn in one object."""
    answer = next((key for key in _ANSWERS if isinstance(item.get(key), str)), None)
    known = {question, answer, "context_ids", "tool_calls", *_CONTEXTS, *_TRUTHS}
    yield Message(
        role="user", text=item[question], rest={key: member for key, member in item.items() if key not in known}
    )
    calls = item.get("tool_calls")
    reply = Message(
        role="assistant",
        text=item[answer] if answer else "",
        contexts=_pick(item, _CONTEXTS),
        context_ids=item.get("context_ids"),
        ground_truth=_pick(item, _TRUTHS),
        tool_calls=tuple(calls) if isinstance(calls, list) else (),
    )
    if reply != Message(role="assistant"):
        yield reply


def _pick(item: Mapping[str, Any], names: Sequence[str]) -> object:
    return next((item[name] for name in names if item.get(name) is not None), None)


def _find_documents(item: Mapping[str, Any], text: str) -> list[object] | None:
    """What a tool returned, where it is documents and nothing else."""
    for returned in (item.get("artifact"), _open(text)):
        inner = returned if isinstance(returned, Mapping) else {}
        listed = next((inner[name] for name in _DOCUMENT_LISTS if isinstance(inner.get(name), list)), returned)
        if isinstance(listed, list) and listed and all(map(_is_document, listed)):
            return [_flatten(document) for document in listed]
    return None


def _flatten(document: Mapping[str, Any]) -> object:
    """A document of LangChain, which may be serialised with its class."""
    return document["kwargs"] if isinstance(document.get("kwargs"), Mapping) else dict(document)


def _is_document(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    item = cast(Mapping[str, object], _flatten(value))
    text = next((item[key] for key in ("page_content", "text", "content") if item.get(key) is not None), None)
    return isinstance(text, str) and bool(text.strip()) and any(mark in item for mark in _DOCUMENT_MARKS)


def cut_turns(messages: Sequence[Message]) -> list[CutTurn]:
    """The turns of a conversation: each that the assistant answered, and the last one where it waits for an answer.

    Where the assistant never speaks each message of the user is a turn. Two messages of the user in a row are the
    question and, before it, an earlier turn.
    """
    spoke = any(message.role == "assistant" for message in messages)
    cutting = _Cutting()
    for message in messages:
        cutting.take(message, spoke=spoke)
    cutting.end()
    if cutting.system:
        for turn in cutting.turns:
            turn.beside["system"] = "\n".join(cutting.system)
    return cutting.turns


class _Cutting:
    """The turns so far, and the one that is open."""

    def __init__(self) -> None:
        self.turns: list[CutTurn] = []
        self.system: list[str] = []
        self._history: list[dict[str, object]] = []
        self._open: Message | None = None
        self._replies: list[Message] = []

    def take(self, message: Message, *, spoke: bool) -> None:
        if message.role == "system":
            self.system.append(message.text)
        elif message.role == "user":
            if self._replies or not spoke:
                self.end()
            elif self._open is not None:
                self._remember("user", self._open.text)
            self._open = message
        elif self._open is None:
            self._remember(message.role, message.text)  # it spoke first
        else:
            self._replies.append(message)

    def end(self) -> None:
        """Close the turn that is open."""
        if self._open is None:
            return
        turn = self._make_turn(self._open, self._replies)
        self.turns.append(turn)
        self._remember("user", turn.question)
        self._remember("assistant", turn.answer or "", turn.contexts, turn.context_ids)
        self._open, self._replies = None, []

    def _make_turn(self, asked: Message, replies: Sequence[Message]) -> CutTurn:
        begins = max(
            (at + 1 for at, reply in enumerate(replies) if reply.role == "tool" or reply.tool_calls), default=0
        )
        said = [reply.text for reply in replies[begins:] if reply.role == "assistant" and reply.text.strip()]
        if not said and begins:  # it called tools with its last words
            said = [reply.text for reply in replies[-1:] if reply.role == "assistant" and reply.text.strip()]
        sources = [message for message in (*reversed(replies), asked) if message.contexts is not None]
        own = next((message for message in sources if message.role != "tool"), None)
        returned = [document for reply in replies if reply.role == "tool" for document in _list(reply.contexts)]
        truth = next((message.ground_truth for message in (*replies, asked) if message.ground_truth is not None), None)
        return CutTurn(
            number=len(self.turns) + 1,
            question=asked.text,
            conversation=list(self._history),
            answer="\n".join(said) or None,
            contexts=own.contexts if own else returned or None,
            context_ids=own.context_ids if own else None,
            ground_truth=truth,
            beside=_describe_beside(asked, replies),
        )

    def _remember(self, role: str, text: str, contexts: object = None, context_ids: object = None) -> None:
        if role not in ("user", "assistant") or not text.strip():
            return
        entry: dict[str, object] = {"role": role, "text": text}
        entry |= {} if contexts is None else {"contexts": contexts}
        self._history.append(entry | ({} if context_ids is None else {"context_ids": context_ids}))


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _describe_beside(asked: Message, replies: Sequence[Message]) -> dict[str, object]:
    """Calls of tools, what tools returned that is no document, and parts of messages that are no text."""
    calls = [call for reply in replies for call in reply.tool_calls]
    results = [
        {**reply.rest, "content": reply.text} for reply in replies if reply.role == "tool" and reply.contexts is None
    ]
    parts = [part for message in (asked, *replies) for part in message.parts]
    rest = {name: member for name, member in asked.rest.items() if name != "name"}
    named = {"tool_calls": calls, "tool_results": results, "content_parts": parts}
    return {**rest, **{name: values for name, values in named.items() if values}}
