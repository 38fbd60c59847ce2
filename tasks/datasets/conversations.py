"""Rows that hold a whole conversation, cut into a row for each of its turns, before anything else is read of them.

A row is a conversation where its question is a list of messages with more than one question in it, or where it has no
question but such a list under `messages`, `turns` or `conversation`. What else stands in the row belongs to every
turn, save the ground truth, contexts and answer: they are the last turn's, or there is one for each. Runs that
LangSmith exports are turns already; those of one thread are put in order here, and each gets the ones before it.

A row that is no conversation passes through as it is.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

import orjson

from evalhouse.tasks.datasets.errors import Complain, ReadingStopped
from evalhouse.tasks.datasets.rows import ColumnPath, Columns, ColumnUse, Field, RawRow, hash_json
from evalhouse.tasks.datasets.values import COLUMNS as TRACED
from evalhouse.tasks.datasets.values import MISSING, find_text, is_absent, is_recorded, open_cell
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
        returned = [document for reply in replies if reply.role == "tool" for document in _as_list(reply.contexts)]
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


def _as_list(value: object) -> list[object]:
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


Which = Literal["all", "last"]

_WHOLE: Final = ("messages", "turns")
_NAMES: Final = ("conversation_id", "thread_id", "session_id")
_THREADS: Final = ("thread_id", "session_id", "conversation_id")
"""The metadata by which LangSmith groups runs, in its order. The column `session_id` of a run is its project."""
_RUN_MARKS: Final = frozenset({"run_type", "trace_id", "dotted_order", "parent_run_id"})
_OF_LAST: Final[tuple[Field, ...]] = ("ground_truths", "context_ids", "reference_context_ids")
_MOST_RUNS = 200_000


@dataclass(kw_only=True)
class TurnCutter:
    """Cuts the rows of one dataset; `which` turns become samples is the person's to say."""

    columns: Columns
    which: Which
    tabular: bool
    complain: Complain
    use: ColumnUse
    _threads: dict[str, list[RawRow]] = field(default_factory=dict)
    _n_runs: int = 0

    def cut(self, rows: Iterable[RawRow]) -> Iterator[RawRow]:
        """The same rows, of conversations a row for each turn; threads come last, when all of their runs are known."""
        for row in rows:
            runs = _list_runs(row)
            if runs:
                self._keep_runs(runs)
            elif _is_run(row.values) and self._has_history(row):
                yield from self._cut_runs([row], None)
            elif _is_run(row.values):
                yield row
            else:
                yield from self._cut_row(row)
        for thread, kept in self._threads.items():
            yield from self._cut_runs(sorted(kept, key=_find_time), thread)

    def _cut_row(self, row: RawRow) -> Iterator[RawRow]:
        place = self._find_messages(row.values)
        if place is None:
            yield row
            return
        path, items = place
        try:
            turns = cut_turns(messages := read_messages(items))
            if not turns:
                raise UnreadableConversation("no message is the user's")
            cut = list(
                _Conversation(
                    row=row, path=path, columns=self.columns, messages=messages, turns=turns, use=self.use
                ).make()
            )
        except UnreadableConversation as error:
            self.complain(row.row, "conversation", f"the conversation in {path.name!r}: {error}")
            return
        chosen = cut[-1:] if self.which == "last" else cut
        self.use.note_conversation(path.name, len(chosen))
        yield from chosen

    def _find_messages(self, values: Mapping[str, object]) -> tuple[ColumnPath, list[object]] | None:
        """Where a row's conversation stands, and its messages; None where the row is a single turn."""
        located = self.columns.locate(values)
        question = located.get("question")
        if question is not None:
            return None if "question" in self.columns.mapped else self._find_in_question(question, values)
        paths = [located["conversation"]] if "conversation" in located else []
        for path in (*paths, *map(ColumnPath, _WHOLE)):
            items = open_messages(path.find(values))
            if items is not None:
                return path, items
        return None

    def _find_in_question(
        self, path: ColumnPath, values: Mapping[str, object]
    ) -> tuple[ColumnPath, list[object]] | None:
        value = path.find(values)
        if isinstance(value, str) and not (self.tabular or path.root in TRACED):
            return None
        value = open_cell(value) if path.root in TRACED else value
        items = open_messages(value)
        if items is None or not has_roles(items) or (path.root in TRACED and find_text(value, "question") is not None):
            return None
        turns = _try_to_cut(items)
        if turns is not None and not any(turn.question.strip() for turn in turns):
            return None
        if isinstance(value, str) and not (turns and (len(turns) > 1 or turns[0].answer)):  # the text of a prompt
            return None
        inside = isinstance(value, Mapping)
        return (path.step_into(["messages"]) if inside else path), items

    def _has_history(self, row: RawRow) -> bool:
        """Whether a run was given the turns before its own."""
        place = self._find_messages(row.values)
        return place is not None and len(_try_to_cut(place[1]) or ()) > 1

    def _keep_runs(self, runs: Sequence[RawRow]) -> None:
        for run in runs:
            if _is_child(run.values):
                self.use.n_child_runs += 1
                continue
            self._n_runs += 1
            if self._n_runs > _MOST_RUNS:
                text = f"more than {_MOST_RUNS:,} runs in threads, which are put in order in memory"
                raise ReadingStopped(run.row, "conversation", f"{text}; export a shorter time")
            self._threads.setdefault(str(_find_thread(run.values)), []).append(run)

    def _cut_runs(self, runs: Sequence[RawRow], thread: str | None) -> Iterator[RawRow]:
        """The runs of a thread with what was said before each; of a single run that was given it, its last turn."""
        history: list[dict[str, object]] = []
        cut = []
        for number, run in enumerate(runs, start=1):
            turn = self._read_run(run, number, history)
            if turn is None:
                cut.append(run)  # the reading of rows says what is wrong with it
                continue
            values = dict(run.values)
            for path in turn.paths:
                path.drop_from(values)
            name = str(run.values.get("id")) if thread is None else thread
            values |= {"conversation_id": name, "turn": turn.number, **turn.values}
            values |= {"conversation": turn.conversation} if turn.conversation else {}
            cut.append(RawRow(row=run.row, values=values))
            history = [*turn.conversation, *turn.said]
        chosen = cut[-1:] if self.which == "last" else cut
        self.use.note_conversation("inputs", len(chosen))
        yield from chosen

    def _read_run(self, run: RawRow, number: int, history: list[dict[str, object]]) -> "_Run | None":
        located = self.columns.locate(run.values)
        place = self._find_messages(run.values)
        given = (_try_to_cut(place[1]) if place else None) or []
        question = given[-1].question if given else self._read_text("question", located, run.values)
        if not question:
            return None
        conversation = given[-1].conversation if len(given) > 1 else history
        asked = given[-1].beside | {"question": question} if given else {"question": question}
        said: list[dict[str, object]] = [{"role": "user", "text": question}]
        paths = [place[0] if given and place else located["question"]]
        answer = self._read_text("answer", located, run.values)
        if answer:
            contexts = located["contexts"].find(run.values) if "contexts" in located else None
            said.append(
                {"role": "assistant", "text": answer, **({"contexts": contexts} if isinstance(contexts, list) else {})}
            )
        return _Run(
            number=max(number, len(given)), conversation=list(conversation), values=asked, said=said, paths=paths
        )

    def _read_text(self, name: Field, located: Mapping[Field, ColumnPath], values: Mapping[str, object]) -> str | None:
        path = located.get(name)
        return None if path is None else _find_inner(path, values, name)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """What a run of a thread was asked, after which turns, and what was said then."""

    number: int
    conversation: list[dict[str, object]]
    values: Mapping[str, object]
    said: Sequence[dict[str, object]]
    paths: Sequence[ColumnPath]


@dataclass(kw_only=True)
class _Conversation:
    """One row and its turns."""

    row: RawRow
    path: ColumnPath
    columns: Columns
    messages: Sequence[Message]
    turns: list[CutTurn]
    use: ColumnUse
    _shared: dict[str, object] = field(default_factory=dict)
    _expected_calls: object = None

    def make(self) -> Iterator[RawRow]:
        """A row for each turn; raises UnreadableConversation."""
        located = self.columns.locate(self.row.values)
        self._shared = dict(self.row.values)
        self._expected_calls = self._shared.pop("reference_tool_calls", None)
        self._add_answer(located)
        self._deal("ground_truth", located)
        self._deal("contexts", located)
        own = {name: self._take(name, located) for name in _OF_LAST}
        name = self._name(located)
        self.path.drop_from(self._shared)
        shared = {"conversation_id": name.removesuffix("/"), **self._shared}
        # Another column that is known under the name of a field would be read for every turn.
        others = self.columns.locate(shared) if not self._shared.keys() <= {"id"} else {}
        closed = {self._spell(known): None for known in ("answer", "ground_truth", "contexts") if known in others}
        for turn in self.turns:
            values = {**turn.beside, **shared, **closed, "turn": turn.number}
            values |= {self._spell(known): value for known, value in self._list_fields(turn) if value is not None}
            if name.endswith("/"):
                values[self._spell("id")] = f"{name}{turn.number}"
            if turn is self.turns[-1]:
                values |= {self._spell(known): value for known, value in own.items() if value is not MISSING}
                values |= self._list_calls()
            yield RawRow(row=self.row.row, values=values)

    def _list_fields(self, turn: CutTurn) -> list[tuple[Field, object]]:
        return [
            ("question", turn.question),
            ("conversation", turn.conversation or None),
            ("answer", turn.answer),
            ("contexts", turn.contexts),
            ("context_ids", turn.context_ids),
            ("ground_truth", turn.ground_truth),
        ]

    def _spell(self, name: Field) -> str:
        """The column that is read as this field."""
        return self.columns.names_of(name)[0] if name in self.columns.mapped else name

    def _take(self, name: Field, located: Mapping[Field, ColumnPath]) -> object:
        """The row's own value of a field, which is taken out; MISSING where it has none."""
        path = located.get(name)
        if path is None or path.root == self.path.root:
            return MISSING
        path.drop_from(self._shared)
        self.use.renamed.setdefault(name, {})[path.name] = None
        value = path.find(self.row.values)
        if not (path.root in TRACED and is_recorded(open_cell(value))):
            return value
        text = _find_inner(path, self.row.values, name)
        if text is None:
            raise UnreadableConversation(f"{path.name} holds more than the text of its {name}; name it with --map")
        return text

    def _name(self, located: Mapping[Field, ColumnPath]) -> str:
        """The conversation's id with a slash behind it, or without one the hash of what the user said."""
        given = self._take("id", located)
        self.use.renamed.pop("id", None)
        if is_absent(given):
            given = next((self._shared[name] for name in _NAMES if not is_absent(self._shared.get(name))), None)
        if is_absent(given):
            return hash_json([message.text for message in self.messages if message.role == "user"], 16)
        if isinstance(given, float) and given.is_integer():
            given = int(given)
        return f"{given}/"

    def _add_answer(self, located: Mapping[Field, ColumnPath]) -> None:
        """The answer that stands beside the messages, where they end with a question."""
        path = located.get("answer")
        if path is None or path.root == self.path.root or is_absent(path.find(self.row.values)):
            return
        last = self.turns[-1]
        replies = open_messages(open_cell(path.find(self.row.values))) if path.root in TRACED else None
        if replies is not None and has_roles(replies) and not last.answer:
            said = read_messages(replies)
            # A graph gives back the messages that it was given with its own behind them.
            whole = said if said[: len(self.messages)] == list(self.messages) else [*self.messages, *said]
            self.turns[:] = cut_turns(whole)
            path.drop_from(self._shared)
            return
        value = self._take("answer", located)
        if last.answer is not None:
            raise UnreadableConversation(
                f"it ends with an answer, and {path.name!r} holds another; leave one of the two out"
            )
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
        if name == "contexts" and not (parts and all(part is None or isinstance(part, list) for part in parts)):
            parts = []
        if not parts:
            last = self.turns[-1]
            setattr(last, name, getattr(last, name) if is_absent(value) else value)
            return
        if len(parts) != len(self.turns):
            raise UnreadableConversation(
                f"{path.name!r} is a list of {len(parts)} for {len(self.turns)} turns; write one for each turn, null "
                "where there is none, or a single one for the last"
            )
        for turn, part in zip(self.turns, parts, strict=True):
            setattr(turn, name, getattr(turn, name) if is_absent(part) else part)

    def _list_calls(self) -> Mapping[str, object]:
        """The calls that ragas expects of a whole conversation, with all that were made in it."""
        if is_absent(self._expected_calls):
            return {}
        made = [call for turn in self.turns for call in _list(turn.beside.get("tool_calls"))]
        return {"expected_tool_calls": self._expected_calls, "tool_calls": made}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _try_to_cut(items: Sequence[object]) -> list[CutTurn] | None:
    """The turns of messages, None where they cannot be read."""
    try:
        return cut_turns(read_messages(items))
    except UnreadableConversation:
        return None


def _find_inner(path: ColumnPath, values: Mapping[str, object], name: str) -> str | None:
    """The text of a column, that inside an object too."""
    value = path.find(values)
    opened = open_cell(value) if path.root in TRACED else value
    steps = find_text(opened, name)
    if steps is None:
        return None
    text = ColumnPath(path.name).step_into(steps).find(values) if steps else opened
    return text if isinstance(text, str) else None


def _is_run(values: Mapping[str, object]) -> bool:
    """Whether a row is a run as LangSmith exports them."""
    return "inputs" in values and not _RUN_MARKS.isdisjoint(values)


def _list_runs(row: RawRow) -> list[RawRow]:
    """The runs of threads that a row holds: itself, or all of a thread."""
    values = row.values
    if "thread_id" in values and isinstance(values.get("runs"), list):
        inner: list[Any] = values["runs"]  # type: ignore[assignment]  # it was looked at
        return [RawRow(row=row.row, values={"thread_id": values["thread_id"], **run}) for run in inner]
    return [row] if _is_run(values) and _find_thread(values) is not None else []


def _find_thread(values: Mapping[str, object]) -> object:
    """The thread of a run, None without one."""
    extra = open_cell(values.get("extra"))
    inner = extra.get("metadata") if isinstance(extra, Mapping) else None
    for place in (open_cell(inner), open_cell(values.get("metadata"))):
        if isinstance(place, Mapping):
            found = next((place[name] for name in _THREADS if not is_absent(place.get(name))), None)
            if found is not None:
                return found
    return None if is_absent(values.get("thread_id")) else values["thread_id"]


def _is_child(values: Mapping[str, object]) -> bool:
    """Whether a run is part of another, and so no turn of its own."""
    return bool(values.get("parent_run_id") or values.get("parent_run_ids") or values.get("is_root") is False)


def _find_time(run: RawRow) -> tuple[str, int]:
    return str(run.values.get("start_time") or run.values.get("dotted_order") or ""), run.row
