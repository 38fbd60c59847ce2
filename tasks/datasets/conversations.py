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
from typing import Final, cast

from evalhouse.tasks.datasets.chat import (
    Message,
    UnreadableConversation,
    has_roles,
    open_messages,
    read_conversation,
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
from evalhouse.warehouse.rows.samples import CONVERSATION_NAMES, Turn

MAX_TURNS: Final = 100
"""The most earlier turns of a sample, the last ones before its question. Without a bound a session of all visitors, or
a long chat, would take time and memory in the square of its turns; a request has room for fewer."""
_WHOLE: Final = ("messages", "turns", "conversations")
_TYPED: Final = ("question", "query")
"""Columns whose texts are what people typed, which may itself be a list of messages."""
_EXPECTED_CALLS: Final = ("reference_tool_calls", "expected_tool_calls", "expected_tools")
_EXPECTED: Final = ("answerable", "expected_rows", "rows")
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
            conversation=history[-MAX_TURNS:],
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
        rows = _make_rows(row, path, read_messages(items), columns, use)
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
        if isinstance(value, str) and path.name.rpartition(".")[2].lower() in _TYPED:
            return None
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


def _make_rows(
    row: RawRow, path: ColumnPath, messages: list[Message], columns: Columns, use: ColumnUse
) -> list[RawRow]:
    """Return a row for each turn of the messages at `path`; raises UnreadableConversation."""
    turns = cut_turns(messages)
    if not turns:
        raise UnreadableConversation("no message is the user's")
    located = columns.locate(row.values)
    shared = dict(row.values)  # what every turn has
    # Of the whole conversation, by ragas' name or ours.
    expected_calls = next((shared.pop(name) for name in _EXPECTED_CALLS if not is_absent(shared.get(name))), None)
    # Whether there is an answer, and what it is to be, are of the last turn as the ground truth is.
    named = [*_EXPECTED, *(["kind"] if shared.get("kind") == "unanswerable" else [])]
    expected = {name: shared.pop(name) for name in named if name in shared}

    def take(name: Field) -> object:
        """Take out the row's value of a field; MISSING if it has none."""
        place = located.get(name)
        if place is None or place.root == path.root:
            return MISSING
        place.drop_from(shared)
        use.renamed.setdefault(name, {})[place.name] = None
        value = place.find(row.values)
        opened = open_cell(value)
        if not (place.root in RECORDED_COLUMNS and is_recorded(opened)):
            return value
        steps = find_text(opened, name)
        if steps is None:
            named = name_setting("mapping")
            raise UnreadableConversation(f"{place.name} holds more than the text of its {name}; name it with {named}")
        return place.step_into(steps).find(row.values)

    # The answer beside the messages, if they end with a question.
    answer = located.get("answer")
    if answer is not None and answer.root != path.root and not is_absent(given := answer.find(row.values)):
        recorded = open_messages(open_cell(given)) if answer.root in RECORDED_COLUMNS else None
        if recorded is not None and has_roles(recorded) and not turns[-1].answer:
            replies = read_messages(recorded)
            # A graph returns the messages that it was given followed by its replies.
            repeats_all = replies[: len(messages)] == messages
            turns = cut_turns(replies if repeats_all else [*messages, *replies])
            answer.drop_from(shared)
        else:
            value = take("answer")
            if turns[-1].answer is not None:
                text = f"it ends with an answer, and {answer.name!r} holds another; leave one of the two out"
                raise UnreadableConversation(text)
            turns[-1].answer = value if isinstance(value, str) else str(value)
    # Ground truth and contexts are the last turn's, or a list with one for each turn.
    for name in ("ground_truth", "contexts"):
        place = located.get(name)
        value = MISSING if place is None or place.root == "ground_truths" else take(name)
        if place is None or value is MISSING:
            continue
        opened = open_cell(value)
        parts = opened if isinstance(opened, list) else []
        if name == "contexts" and not all(part is None or isinstance(part, list) for part in parts):
            parts = []
        if parts and len(parts) != len(turns):
            raise UnreadableConversation(
                f"{place.name!r} is a list of {len(parts)} for {len(turns)} turns; write one for each turn, null "
                "for a turn without one, or a single one for the last"
            )
        for turn, part in zip(turns if parts else turns[-1:], parts or [value], strict=True):
            if not is_absent(part):
                setattr(turn, name, part)
    # So are ids and accepted answers; as many lists as there are turns are one for each.
    of_last, of_each = dict[Field, object](), dict[Field, list[object]]()
    for name in _OF_LAST:
        value = take(name)
        opened = open_cell(value)
        are_lists = isinstance(opened, list) and any(isinstance(part, list) for part in opened)
        if isinstance(opened, list) and are_lists and len(opened) == len(turns) > 1:
            of_each[name] = opened
        else:
            of_last[name] = value
    given = take("id")
    use.renamed.pop("id", None)
    if is_absent(given):
        given = next((shared[name] for name in CONVERSATION_NAMES if not is_absent(shared.get(name))), None)
    has_id = not is_absent(given)
    if not has_id:
        given = hash_json([message.text for message in messages if message.role == "user"], 16)
    conversation_id = str(int(given) if isinstance(given, float) and given.is_integer() else given)
    path.drop_from(shared)
    shared = {"conversation_id": conversation_id, **shared}

    def name_column(field: Field) -> str:
        """Return the column that is read as this field."""
        return columns.names[field][0] if field in columns.mapped else field

    # Another column that is known by a field's name would be read for every turn.
    others = columns.locate(shared) if not shared.keys() <= {"id", "conversation_id"} else {}
    closed = {name_column(name): None for name in ("answer", "ground_truth", "contexts") if name in others}
    rows = []
    read: dict[int, Turn | None] = {}  # each earlier turn once, by its identity; None where something is wrong with it

    def read_once(earlier: dict[str, object]) -> object:
        if id(earlier) not in read:
            problems: list[str] = []
            found, _ = read_conversation([earlier], lambda _, text: problems.append(text))
            read[id(earlier)] = found[0] if found and not problems else None
        return read[id(earlier)] or earlier

    for turn in turns:
        fields: dict[Field, object] = {
            "question": turn.question,
            "conversation": [read_once(earlier) for earlier in turn.conversation] or None,
            "answer": turn.answer,
            "contexts": turn.contexts,
            "context_ids": turn.context_ids,
            "ground_truth": turn.ground_truth,
        }
        values = {**turn.beside, **shared, **closed, "turn": turn.number}
        values |= {name_column(name): value for name, value in fields.items() if value is not None}
        values |= {name_column(name): parts[turn.number - 1] for name, parts in of_each.items()}
        if has_id:
            values[name_column("id")] = f"{conversation_id}/{turn.number}"
        if turn is turns[-1]:
            values |= {name_column(name): value for name, value in of_last.items() if value is not MISSING}
            values |= expected
            if not is_absent(expected_calls):
                made = [cast(list[object], other.beside.get("tool_calls", [])) for other in turns]
                calls = [call for of_turn in made for call in of_turn]
                values |= {"expected_tool_calls": expected_calls, "tool_calls": calls}
        rows.append(RawRow(row=row.row, values=values))
    return rows
