"""Rows that hold a whole conversation, cut into a row for each of its turns before anything else is read of them.

A row is a conversation if its question is a list of messages with more than one question in it, or if it has no
question but such a list under `messages`, `turns`, `conversation` or `conversations`. The other columns of the row
belong to every turn, except ground truth, contexts and answer: they are the last turn's, or there is one for each.

A turn is a message of the user with all that the assistant did until the next one: its answer is the assistant's text
after the last of its tools. The result of a tool counts as contexts only where it cannot be anything but documents, and
is in the turn's `beside` otherwise.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, cast

from evalhouse.tasks.datasets.chat import (
    Message,
    UnreadableConversation,
    has_roles,
    open_messages,
    read_messages,
)
from evalhouse.tasks.datasets.rows import RUN_MARKS, ColumnPath, Columns, ColumnUse, Field, RawRow, Turns, hash_json
from evalhouse.tasks.datasets.values import (
    MISSING,
    RECORDED_COLUMNS,
    Complain,
    find_text,
    is_absent,
    is_recorded,
    open_cell,
)
from evalhouse.warehouse.messages import name_setting

_WHOLE: Final = ("messages", "turns", "conversations")
_NAMES: Final = ("conversation_id", "thread_id", "session_id")
_OF_LAST: Final[tuple[Field, ...]] = ("ground_truths", "context_ids", "reference_context_ids")


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


def cut_row(row: RawRow, columns: Columns, turns: Turns, *, complain: Complain, use: ColumnUse) -> list[RawRow]:
    """Return the rows of a conversation's turns, or of its last one; a row that is a single turn unchanged.

    A run of LangSmith is one turn: if it was given the turns before its question, these are its conversation.
    """
    place = _find_messages(row.values, columns)
    if place is None:
        return [row]
    path, items = place
    try:
        messages = read_messages(items)
        cut = cut_turns(messages)
        if not cut:
            raise UnreadableConversation("no message is the user's")
        rows = _TurnRows(row=row, path=path, columns=columns, messages=messages, turns=cut, use=use).make()
    except ValueError as error:  # of a path too
        complain(row.row, "conversation", f"the conversation in {path.name!r}: {error}")
        return []
    is_run = not RUN_MARKS.isdisjoint(row.values) and "inputs" in row.values
    if is_run and "id" in rows[-1].values:
        rows[-1].values["id"] = row.values["id"]
    chosen = rows[-1:] if is_run or turns == "last" else rows
    use.count_conversation(path.name, len(chosen))
    return chosen


def _find_messages(values: Mapping[str, object], columns: Columns) -> tuple[ColumnPath, list[object]] | None:
    """Return the place of a row's conversation, and its messages; None if the row is a single turn."""
    located = columns.locate(values)
    if "question" in columns.mapped and "question" in located:
        return None
    if "question" in located:
        path = located["question"]
        is_recorded_column = path.root in RECORDED_COLUMNS
        value = path.find(values)
        value = open_cell(value) if is_recorded_column else value
        items = open_messages(value)
        if items is None or not has_roles(items):
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
        if recorded is not None and has_roles(recorded) and not last.answer:
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
