"""Rows that hold a whole conversation, cut into a row for each of its turns before anything else is read of them.

A row is a conversation if its question is a list of messages with more than one question in it, or if it has no
question but such a list under `messages`, `turns` or `conversation`. The other columns of the row belong to every turn,
except ground truth, contexts and answer: they are the last turn's, or there is one for each.

The lists of OpenAI (`role`, `content` as text or in parts, `tool_calls`, results of tools), of ragas (`type`: human,
ai, tool), LangChain's (`lc`, `kwargs`) and plain ones (`role` and `text`, or `question` and `answer` in one object)
are all read into `Message`. A turn is a message of the user with all that the assistant did until the next one: its
answer is the assistant's text after the last of its tools. The result of a tool counts as contexts only where it cannot
be anything but documents, and is in the turn's `beside` otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from evalhouse.tasks.datasets.rows import RUN_MARKS, ColumnPath, Columns, ColumnUse, Field, RawRow, Turns, hash_json
from evalhouse.tasks.datasets.values import (
    MISSING,
    RECORDED_COLUMNS,
    Complain,
    find_text,
    is_absent,
    is_recorded,
    open_cell,
    open_value,
)
from evalhouse.warehouse.messages import list_names, name_kind, name_setting, quote_value

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
# An object with a text is a document if it also states where the text comes from, or how well it fits.
_DOCUMENT_MARKS: Final = ("page_content", "id", "source", "url", "title", "doc_id", "document_id", "score", "metadata")
_WHOLE: Final = ("messages", "turns")
_NAMES: Final = ("conversation_id", "thread_id", "session_id")
_OF_LAST: Final[tuple[Field, ...]] = ("ground_truths", "context_ids", "reference_context_ids")


class UnreadableConversation(ValueError):
    """A list of messages that cannot be read as one; the text names the message and the problem."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message. `contexts`, `context_ids` and `ground_truth` are as the file has them; `parts` are parts of its
    content that are not text, such as pictures."""

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
    """A question, its answer, and the turns before it; `beside` are the other members of this turn.

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


def _unpack(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message of LangChain without the object that it is serialised into; any other unchanged."""
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


def _has_roles(items: Sequence[object]) -> bool:
    """Return True if any of these objects is a message with a known role."""
    return any(_find_role(_unpack(item)) is not None for item in items if isinstance(item, Mapping))


def read_messages(items: Sequence[object]) -> list[Message]:
    """Return the messages of a list; raises UnreadableConversation for an item that is not a message."""
    messages = []
    for place, packed in enumerate(items, start=1):
        if not isinstance(packed, Mapping):
            text = f"message {place} is {name_kind(packed)}, not an object: {quote_value(packed)}"
            raise UnreadableConversation(text)
        item = _unpack(packed)
        role = _find_role(item)
        question = next((key for key in _QUESTIONS if isinstance(item.get(key), str)), None)
        if role is not None:
            messages.append(_read_message(item, role, place))
            continue
        if question is None:
            known = ", ".join(dict.fromkeys(_ROLES))
            has = list_names([f"{key} {item[key]!r}" if key in _ROLE_KEYS else key for key in item], 8)
            raise UnreadableConversation(f"message {place} has no role that is known ({known}) and no question: {has}")
        # A whole turn in one object: its question and its answer.
        answer = next((key for key in _ANSWERS if isinstance(item.get(key), str)), None)
        read = {question, answer, "context_ids", "tool_calls", *_CONTEXTS, *_TRUTHS}
        rest = {key: member for key, member in item.items() if key not in read}
        messages.append(Message(role="user", text=item[question], rest=rest))
        calls = item.get("tool_calls")
        reply = Message(
            role="assistant",
            text=item[answer] if answer else "",
            contexts=_pick(item, _CONTEXTS),
            context_ids=item.get("context_ids"),
            ground_truth=_pick(item, _TRUTHS),
            tool_calls=tuple(calls) if isinstance(calls, list) else (),
        )
        messages += [reply] if reply != Message(role="assistant") else []
    return messages


def _pick(item: Mapping[str, Any], names: Sequence[str]) -> object:
    return next((item[name] for name in names if item.get(name) is not None), None)


def _read_message(item: Mapping[str, Any], role: Role, place: int) -> Message:
    """Return a message of a role; calls of tools are beside its content, in it, or where LangChain's classes keep
    them."""
    content = _pick(item, _TEXT_KEYS)
    texts: list[str] = []
    parts: list[object] = []
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
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else None
            if isinstance(part, str):
                texts.append(part)
            elif kind in _TEXT_PARTS and isinstance(part.get("text"), str):
                texts.append(part["text"])
            else:
                (calls_inside if kind == "tool_use" else parts).append(part)
    elif isinstance(content, str):
        texts = [content]
    elif content is not None:
        came = f"message {place} has {name_kind(content)} for its content, not text: {quote_value(content)}"
        raise UnreadableConversation(came)
    text = "\n".join(texts)
    contexts = _pick(item, _CONTEXTS)
    if role == "tool":
        # The result of a tool counts as contexts if it is documents and nothing else; an artifact takes precedence.
        contexts = None
        for returned in (open_value(text), item.get("artifact")):
            inner = returned if isinstance(returned, Mapping) else {}
            listed = next((inner[name] for name in _DOCUMENT_LISTS if isinstance(inner.get(name), list)), returned)
            if not isinstance(listed, list) or not listed or not all(isinstance(value, Mapping) for value in listed):
                continue
            # LangChain serialises a document with its class.
            documents = [
                value["kwargs"] if isinstance(value.get("kwargs"), Mapping) else dict(value) for value in listed
            ]
            bodies = [_pick(document, ("page_content", "text", "content")) for document in documents]
            has_marks = all(any(mark in document for mark in _DOCUMENT_MARKS) for document in documents)
            if has_marks and all(isinstance(body, str) and body.strip() for body in bodies):
                contexts = documents
    return Message(
        role=role,
        text=text,
        contexts=contexts,
        context_ids=item.get("context_ids"),
        ground_truth=_pick(item, _TRUTHS),
        tool_calls=(list(calls) if isinstance(calls, list) else [calls]) if calls else calls_inside,
        parts=parts,
        rest={name: item[name] for name in ("name", "tool_call_id") if item.get(name) is not None},
    )


# --- turns


def cut_turns(messages: Sequence[Message]) -> list[CutTurn]:
    """Return the turns of a conversation: each that the assistant answered, and the last where it waits for an answer.

    If the assistant never speaks, each message of the user is a turn. Two messages of the user in a row are the
    question and, before it, an earlier turn.
    """
    turns: list[CutTurn] = []
    system: list[str] = []
    history: list[dict[str, object]] = []
    asked: Message | None = None
    replies: list[Message] = []
    has_answers = any(message.role == "assistant" for message in messages)

    def remember(role: str, text: str, **contexts: object) -> None:
        if role in ("user", "assistant") and text.strip():
            given = {name: value for name, value in contexts.items() if value is not None}
            history.append({"role": role, "text": text, **given})

    def close_turn(asked: Message) -> None:
        """Add the turn of a question and the replies so far."""
        after_tools = max(
            (place + 1 for place, reply in enumerate(replies) if reply.role == "tool" or reply.tool_calls), default=0
        )
        answers = [reply.text for reply in replies[after_tools:] if reply.role == "assistant" and reply.text.strip()]
        if not answers and after_tools:  # it called tools with its last words
            answers = [reply.text for reply in replies[-1:] if reply.role == "assistant" and reply.text.strip()]
        sources = [
            message
            for message in (*reversed(replies), asked)
            if message.contexts is not None and message.role != "tool"
        ]
        tools = [reply for reply in replies if reply.role == "tool"]
        returned = [document for reply in tools if isinstance(reply.contexts, list) for document in reply.contexts]
        named = {
            "tool_calls": [call for reply in replies for call in reply.tool_calls],
            "tool_results": [{**reply.rest, "content": reply.text} for reply in tools if reply.contexts is None],
            "content_parts": [part for message in (asked, *replies) for part in message.parts],
        }
        beside: dict[str, object] = {name: member for name, member in asked.rest.items() if name != "name"}
        turn = CutTurn(
            number=len(turns) + 1,
            question=asked.text,
            conversation=list(history),
            answer="\n".join(answers) or None,
            contexts=sources[0].contexts if sources else returned or None,
            context_ids=sources[0].context_ids if sources else None,
            ground_truth=next((item.ground_truth for item in (*replies, asked) if item.ground_truth is not None), None),
            beside=beside | {name: values for name, values in named.items() if values},
        )
        turns.append(turn)
        remember("user", turn.question)
        remember("assistant", turn.answer or "", contexts=turn.contexts, context_ids=turn.context_ids)
        replies.clear()

    for message in messages:
        if message.role == "system":
            system.append(message.text)
        elif message.role == "user":
            if asked is not None and (replies or not has_answers):
                close_turn(asked)
            elif asked is not None:
                remember("user", asked.text)
            asked = message
        elif asked is None:
            remember(message.role, message.text)  # the assistant spoke first
        else:
            replies.append(message)
    if asked is not None:
        close_turn(asked)
    if system:
        for turn in turns:
            turn.beside["system"] = "\n".join(system)
    return turns


# --- rows


def cut_row(
    row: RawRow, columns: Columns, turns: Turns, *, tabular: bool, complain: Complain, use: ColumnUse
) -> list[RawRow]:
    """Return the rows of a conversation's turns, or of its last one; a row that is a single turn unchanged.

    A run of LangSmith is one turn: if it was given the turns before its question, these are its conversation.
    """
    place = _find_messages(row.values, columns, tabular=tabular)
    if place is None:
        return [row]
    path, items = place
    try:
        messages = read_messages(items)
        cut = cut_turns(messages)
        if not cut:
            raise UnreadableConversation("no message is the user's")
        rows = _TurnRows(row=row, path=path, columns=columns, messages=messages, turns=cut, use=use).make()
    except UnreadableConversation as error:
        complain(row.row, "conversation", f"the conversation in {path.name!r}: {error}")
        return []
    is_run = not RUN_MARKS.isdisjoint(row.values) and "inputs" in row.values
    if is_run and "id" in rows[-1].values:
        rows[-1].values["id"] = row.values["id"]
    chosen = rows[-1:] if is_run or turns == "last" else rows
    use.count_conversation(path.name, len(chosen))
    return chosen


def _find_messages(
    values: Mapping[str, object], columns: Columns, *, tabular: bool
) -> tuple[ColumnPath, list[object]] | None:
    """Return the place of a row's conversation, and its messages; None if the row is a single turn."""
    located = columns.locate(values)
    if "question" in columns.mapped and "question" in located:
        return None
    if "question" in located:
        path = located["question"]
        is_recorded_column = path.root in RECORDED_COLUMNS
        value = path.find(values)
        if isinstance(value, str) and not (tabular or is_recorded_column):
            return None
        value = open_cell(value) if is_recorded_column else value
        items = open_messages(value)
        if items is None or not _has_roles(items):
            return None
        if is_recorded_column and find_text(value, "question") is not None:
            return None
        try:
            turns = cut_turns(read_messages(items))
        except UnreadableConversation:
            turns = None
        if turns is not None and not any(turn.question.strip() for turn in turns):
            return None
        # A text with one question and no answer is the text of a prompt.
        if isinstance(value, str) and not (turns and (len(turns) > 1 or turns[0].answer)):
            return None
        return (path.step_into(["messages"]) if isinstance(value, Mapping) else path), items
    paths = [located["conversation"]] if "conversation" in located else []
    for path in (*paths, *map(ColumnPath, _WHOLE)):
        items = open_messages(path.find(values))
        if items is not None:
            return path, items
    return None


@dataclass(kw_only=True)
class _TurnRows:
    """Makes the rows of one conversation's turns."""

    row: RawRow
    path: ColumnPath
    columns: Columns
    messages: Sequence[Message]
    turns: list[CutTurn]
    use: ColumnUse
    _shared: dict[str, object] = field(default_factory=dict)

    def make(self) -> list[RawRow]:
        """Return a row for each turn; raises UnreadableConversation."""
        located = self.columns.locate(self.row.values)
        self._shared = dict(self.row.values)
        expected_calls = self._shared.pop("reference_tool_calls", None)
        self._add_answer(located)
        self._deal("ground_truth", located)
        self._deal("contexts", located)
        of_last = {name: self._take(name, located) for name in _OF_LAST}
        given = self._take("id", located)
        self.use.renamed.pop("id", None)
        if is_absent(given):
            given = next((self._shared[name] for name in _NAMES if not is_absent(self._shared.get(name))), None)
        has_id = not is_absent(given)
        if not has_id:
            given = hash_json([message.text for message in self.messages if message.role == "user"], 16)
        name = str(int(given) if isinstance(given, float) and given.is_integer() else given)
        self.path.drop_from(self._shared)
        shared = {"conversation_id": name, **self._shared}
        # Another column that is known by a field's name would be read for every turn.
        others = self.columns.locate(shared) if not self._shared.keys() <= {"id"} else {}
        closed = {self._spell(known): None for known in ("answer", "ground_truth", "contexts") if known in others}
        rows = []
        for turn in self.turns:
            fields: dict[Field, object] = {
                "question": turn.question,
                "conversation": turn.conversation or None,
                "answer": turn.answer,
                "contexts": turn.contexts,
                "context_ids": turn.context_ids,
                "ground_truth": turn.ground_truth,
            }
            values = {**turn.beside, **shared, **closed, "turn": turn.number}
            values |= {self._spell(known): value for known, value in fields.items() if value is not None}
            if has_id:
                values[self._spell("id")] = f"{name}/{turn.number}"
            if turn is self.turns[-1]:
                values |= {self._spell(known): value for known, value in of_last.items() if value is not MISSING}
                if not is_absent(expected_calls):  # which ragas expects of a whole conversation
                    made = [cast(list[object], other.beside.get("tool_calls", [])) for other in self.turns]
                    calls = [call for of_turn in made for call in of_turn]
                    values |= {"expected_tool_calls": expected_calls, "tool_calls": calls}
            rows.append(RawRow(row=self.row.row, values=values))
        return rows

    def _spell(self, name: Field) -> str:
        """Return the column that is read as this field."""
        return self.columns.names[name][0] if name in self.columns.mapped else name

    def _take(self, name: Field, located: Mapping[Field, ColumnPath]) -> object:
        """Take out the row's value of a field; MISSING if it has none."""
        path = located.get(name)
        if path is None or path.root == self.path.root:
            return MISSING
        path.drop_from(self._shared)
        self.use.renamed.setdefault(name, {})[path.name] = None
        value = path.find(self.row.values)
        opened = open_cell(value)
        if not (path.root in RECORDED_COLUMNS and is_recorded(opened)):
            return value
        steps = find_text(opened, name)
        if steps is None:
            named = name_setting("mapping")
            raise UnreadableConversation(f"{path.name} holds more than the text of its {name}; name it with {named}")
        return path.step_into(steps).find(self.row.values)

    def _add_answer(self, located: Mapping[Field, ColumnPath]) -> None:
        """Add the answer beside the messages, if they end with a question."""
        path = located.get("answer")
        if path is None or path.root == self.path.root or is_absent(path.find(self.row.values)):
            return
        last = self.turns[-1]
        recorded = open_messages(open_cell(path.find(self.row.values))) if path.root in RECORDED_COLUMNS else None
        if recorded is not None and _has_roles(recorded) and not last.answer:
            replies = read_messages(recorded)
            # A graph returns the messages that it was given followed by its replies.
            repeats_all = replies[: len(self.messages)] == list(self.messages)
            self.turns[:] = cut_turns(replies if repeats_all else [*self.messages, *replies])
            path.drop_from(self._shared)
            return
        value = self._take("answer", located)
        if last.answer is not None:
            text = f"it ends with an answer, and {path.name!r} holds another; leave one of the two out"
            raise UnreadableConversation(text)
        last.answer = value if isinstance(value, str) else str(value)

    def _deal(self, name: Literal["ground_truth", "contexts"], located: Mapping[Field, ColumnPath]) -> None:
        """Give the row's value to the last turn, or a list with one for each turn to each."""
        path = located.get(name)
        if path is None or path.root == "ground_truths":
            return
        value = self._take(name, located)
        if value is MISSING:
            return
        opened = open_cell(value)
        parts = opened if isinstance(opened, list) else []
        if name == "contexts" and not all(part is None or isinstance(part, list) for part in parts):
            parts = []
        if parts and len(parts) != len(self.turns):
            raise UnreadableConversation(
                f"{path.name!r} is a list of {len(parts)} for {len(self.turns)} turns; write one for each turn, null "
                "for a turn without one, or a single one for the last"
            )
        turns = self.turns if parts else self.turns[-1:]
        for turn, part in zip(turns, parts or [value], strict=True):
            if not is_absent(part):
                setattr(turn, name, part)
