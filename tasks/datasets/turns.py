"""Rows that hold a whole conversation, cut into a row for each of its turns, before anything else is read of them.

A row is a conversation where its question is a list of messages with more than one question in it, or where it has no
question but such a list under `messages`, `turns` or `conversation`. What else stands in the row belongs to every
turn, save the ground truth, contexts and answer: they are the last turn's, or there is one for each. Runs that
LangSmith exports are turns already; those of one thread are put in order here, and each gets the ones before it.

A row that is no conversation passes through as it is.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from evalhouse.tasks.datasets.errors import Complain, ReadingStopped
from evalhouse.tasks.datasets.messages import (
    CutTurn,
    Message,
    UnreadableConversation,
    cut_turns,
    has_roles,
    open_messages,
    read_messages,
)
from evalhouse.tasks.datasets.rows import ColumnPath, Columns, ColumnUse, Field, RawRow, hash_json
from evalhouse.tasks.datasets.traces import COLUMNS as TRACED
from evalhouse.tasks.datasets.traces import find_text, is_recorded
from evalhouse.tasks.datasets.values import MISSING, is_absent, open_cell

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
