"""A span as all formats are read: one step of a bot's work on one question, with its question and answer.

The second half finds the text of a question or an answer, earlier turns, tool calls and documents in the objects that
tracers record as a step's input and output: messages, which `chat` reads, the arguments of a function from decorators,
the whole request and response from clients. A question is the last that a person wrote: the messages before it are the
conversation. Only what cannot be anything else is read as a text.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from evalhouse.tasks.datasets.chat import Message, has_roles, read_known
from evalhouse.tasks.datasets.conversations import CutTurn, cut_turns
from evalhouse.tasks.datasets.values import open_cell, open_context, open_value

Kind = Literal["chain", "llm", "retriever", "reranker", "tool", "embedding", "other"]
Tree = Mapping[str, Any]
Blame = Callable[[str], None]
"""Takes the problem of a row that no span can be read from."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A document that a retriever found: a text, or None where only its id was recorded. `is_plain`: a mere text was
    recorded."""

    text: str | None
    id: str | None = None
    score: float | None = None
    metadata: Any = None
    is_plain: bool = False


@dataclass(frozen=True, kw_only=True)
class Span:
    """One step. Times are seconds of the epoch; `ended_at` is None while it runs. `error` is why it failed.

    `turns` are the messages before the question, where the span has them: objects with role and text. `beside` are
    the texts of the system and of tools that a model was sent with it. `documents` is None for what retrieves
    nothing, and empty for a retriever that found nothing. `given` are the ones that a reranker or a chain was given,
    where they were recorded, and `kept` the ones that a chain made of them. `passed_on` are the ones that a chain
    returned with its answer, `returned` the ones that a tool found; `arguments` is all that it was given, and
    `result` all that any step but a model returned. `is_printed`: an object is recorded as the
    answer, `is_flag`: a truth value. `is_root`: its tracer took it for the outermost one of a question. `is_cut`: some
    attributes may not have been kept. `project` is the id of LangSmith's.
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
    beside: str = ""
    answer: str | None = None
    documents: tuple[Document, ...] | None = None
    given: tuple[Document, ...] = ()
    is_printed: bool = False
    is_flag: bool = False
    is_cut: bool = False
    is_root: bool = False
    kept: tuple[Document, ...] | None = None
    passed_on: tuple[Document, ...] | None = None
    returned: tuple[Document, ...] | None = None
    arguments: object = None
    result: object = None
    tool_calls: tuple[Tree, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None
    session: str | None = None
    service: str | None = None
    project: str | None = None


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A span and the spans around it, the innermost first."""

    span: Span
    around: Sequence[Span]

    @property
    def depth(self) -> int:
        """The number of spans around it."""
        return len(self.around)

    @property
    def is_silent(self) -> bool:
        """True for a model's call of which no text was recorded: it failed, called tools, or was streamed."""
        return self.span.kind == "llm" and self.span.answer is None and not self.span.is_printed

    def is_first_with(self, name: str) -> bool:
        """Return True if it has this field, and no span of its kind around it does."""
        outer = (span for span in self.around if span.kind == self.span.kind)
        return getattr(self.span, name) is not None and all(getattr(span, name) is None for span in outer)


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
_MOST_TOKENS: Final = 10**15
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
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST_TOKENS
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
        return _list_members(value)
    return list(value) if isinstance(value, list | tuple) else None


def _list_members(tree: Tree) -> list[Any]:
    """Return the members 0, 1, … of an object in their order, also of a number that Python does not read."""
    return [tree[key] for key in sorted(tree, key=lambda key: (len(str(key)), str(key)))]


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


# --- what a step was given and what it made

Field = Literal["question", "answer"]
# Names around a value, the outermost first.
_WRAPPERS: Final[Mapping[Field, tuple[str, ...]]] = {
    "question": ("inputs", "input", "messages", "new_message", "contents", "args", "kwargs", "params", "task"),
    "answer": (
        "outputs", "output", "messages", "generations", "choices", "candidates", "message", "result", "returned",
    ),
}  # fmt: skip
_KEYS: Final[Mapping[Field, tuple[str, ...]]] = {
    "question": ("question", "user_input", "query", "q", "message", "prompt", "text", "content"),
    "answer": ("answer", "response", "output_text", "text", "content", "final_output", "generation"),
}
# The ends of other names: `user_query`, `finalAnswer`. A name counts if it begins as a first one, or has the only text
# of several words, unless it begins as that of another text.
_ENDS: Final[Mapping[Field, tuple[str, ...]]] = {
    "question": ("question", "query", "utterance", "message", "msg", "prompt", "input", "text"),
    "answer": ("answer", "response", "reply", "message", "completion", "text"),
}
_WEAK: Final = ("prompt", "text")
_TYPED: Final = frozenset(
    {
        start + end
        for start in ("", "user", "usr", "human", "customer", "client", "current", "latest", "incoming", "original",
                      "raw", "chat")
        for end in ("question", "query", "utterance", "message", "msg", "input")
    }
    | {"userprompt", "usertext", "inputtext", "querytext"}
)  # fmt: skip
_ASKED: Final = frozenset(
    {start + end for start in ("user", "original") for end in ("question", "query", "message", "msg")}
)
_ANSWER_ENDS: Final = ("answer", "response", "reply")
_FINAL_ENDS: Final = (*_ANSWER_ENDS, "output")
# What a guard, a translation or a rewriting made of an answer that is beside it.
_LATER: Final = frozenset(
    {
        made + end
        for made in (
            "safe", "guarded", "moderated", "filtered", "sanitized", "redacted", "cleaned", "checked", "verified",
            "validated", "approved", "revised", "reviewed", "corrected", "refined", "improved", "enhanced", "edited",
            "polished", "rewritten", "formatted", "translated", "localized",
        )
        for end in _ANSWER_ENDS
    }
)  # fmt: skip
_ALIKE: Final = ("answer", "response", "output")
_ENVELOPED: Final = ("data", "payload", "body", "result", "results")
_OTHERS: Final = (
    "previous", "last", "system", "error", "draft", "initial", "raw", "hypothetical", "reference", "expected", "sql",
)  # fmt: skip
# LangChain's callbacks record these with the value in one of them: an empty one is an empty value.
_RECORDED: Final[Mapping[Field, str]] = {"question": "inputs", "answer": "outputs"}
# Beside the value in what callbacks and decorators record: never the value.
_BESIDE: Final = frozenset(
    {
        "tags", "metadata", "config", "run_manager", "callbacks", "self", "session_id", "user_id", "name", "run_type",
        "model", "id",
    }
)  # fmt: skip
_HISTORIES: Final = ("chat_history", "history", "message_history", "conversation_history", "previous_messages")
_DEEPEST: Final = 12
_MAX_ALIKE: Final = 8  # members of which all are looked at
# An object as Python prints it: a stream, a document or message of LlamaIndex in place of its text.
_STREAM: Final = re.compile(r"<(?:[\w.]+ object|(?:[^\n<>]|<locals>|<lambda>){0,300} at 0x[0-9a-fA-F]+[^\n<>]{0,100})>")
_PRINTED: Final = re.compile(
    rf"{_STREAM.pattern}|<(?:Task|Future) [^\n]*>|<\w+\([^\n<>]{{0,1000}}\)>|[A-Z]\w*\((?:\)|\w+=[\s\S]*(?:\)|\.\.\.))"
)
# The event with which a workflow of LlamaIndex ends.
_RETURNED: Final = re.compile(r"[A-Z]\w{0,80}\((?:result|answer|response|output)=(?P<value>.+)\)", re.DOTALL)
_NOTHING: Final = frozenset({"null", "None"})
_FLAGS: Final = frozenset({"true", "True", "false", "False"})
"""Results of a function that sends its answer itself, or of a stream that was broken off, as tracers write them. A
truth value may be the answer where no model wrote another text."""


def read_exchange(
    kind: Kind,
    name: str,
    given: object,
    made: object,
    *,
    asked: Sequence[Message] = (),
    replied: Sequence[Message] = (),
) -> dict[str, Any]:
    """Return the fields of a span that its input and output state, with the messages of a model beside them.

    `name` is the tool's, "" for none. The messages of a model count before its input and output, and the ones of other
    steps after them: what a person wrote comes before the prompt that was made of it.
    """
    of_given = find_messages(given, is_given=True)
    asked = asked or (leave_typed(of_given, with_tools=kind == "llm") if isinstance(given, str) else of_given)
    replied = replied or find_messages(made)
    # A graph returns the messages that it was given, followed by its replies.
    repeats_all = any(message.role == "user" for message in replied)
    turn = read_last_turn(replied if repeats_all else [*asked, *replied])
    question, answer = find_message(given, "question"), find_message(made, "answer")
    if turn is not None:
        is_first = kind == "llm"
        question = (turn.question or question) if is_first else (question or turn.question or None)
        # Not from what was given: a person may have typed messages there.
        replying = turn if repeats_all else read_last_turn(replied)
        replied_text = None if replying is None else replying.answer
        answer = (replied_text or answer) if is_first else (answer or replied_text)
    if kind != "llm" and answer in _NOTHING:
        answer = None
    calls = [item for message in replied for item in message.tool_calls]
    returned: object = None if turn is None or turn.contexts is None else turn.contexts
    result = None if kind == "llm" else made
    if kind == "llm" and returned is None:  # what OpenAI's file search found, where a request includes its results
        output = read_list(read_tree(made).get("output")) or ()
        searches = [item for item in map(read_tree, output) if item.get("type") == "file_search_call"]
        found = [read_tree(one) for search in searches for one in search.get("results") or ()]
        returned = [{"id": one.get("file_id"), **one} for one in found] or None
    before, kept = _read_choice(given, made) if kind in ("chain", "other", "retriever") else ((), None)
    if kind == "tool":
        calls = [{"name": name, "arguments": given}] if name else []
        results = read_known([{"role": "tool", "content": open_cell(made)}])
        tools = [message for message in replied if message.role == "tool"] or results
        returned = next((message.contexts for message in tools if message.contexts is not None), None)
        if any(message.role == "tool" for message in replied):  # LangChain's message around it
            result = "\n".join(message.text for message in tools)
    return {
        "question": question,
        "turns": find_history(given) or (_list_turns(turn) if turn is not None else ()),
        "beside": "\n".join(message.text for message in asked if message.role in ("system", "tool")),
        "answer": answer,
        "is_printed": answer is None and isinstance(made, str) and bool(_STREAM.search(made) or _is_printed(made)),
        "is_flag": kind != "llm" and answer in _FLAGS,
        "tool_calls": tuple(call for item in calls if (call := name_call(item)) is not None),
        "given": before,
        "kept": kept,
        "passed_on": find_documents(made) if kind == "chain" else None,
        "returned": None if returned is None else read_documents(returned),
        "arguments": given,
        "result": result,
    }


def _read_choice(given: object, made: object) -> tuple[tuple[Document, ...], tuple[Document, ...] | None]:
    """Return the documents that a step was given, and the ones that it made of them: none where it emptied a list of
    documents of any name; None where it made no documents."""
    before, kept = read_retrieved(given) or (), read_retrieved(made)
    if kept is None:
        members = read_tree(given)
        for name, value in read_tree(made).items():
            if isinstance(value, list) and not value and (emptied := read_documents(members.get(name))):
                return emptied, ()
    return before, kept


def leave_typed(messages: Iterable[Message], *, with_tools: bool = False) -> list[Message]:
    """Return messages of a text, which a person may have typed: without contexts, and results of tools if not asked."""
    return [
        replace(message, contexts=None, context_ids=None)
        for message in messages
        if with_tools or message.role != "tool"
    ]


def _is_printed(text: str) -> bool:
    return _PRINTED.fullmatch(text.strip()) is not None


def read_last_turn(messages: Sequence[Message]) -> CutTurn | None:
    """Return the last turn of messages; replies alone are the turn of an empty question."""
    if any(message.role == "user" for message in messages):
        return cut_turns(messages)[-1]
    return cut_turns([Message(role="user"), *messages])[-1] if messages else None


def find_message(value: object, field: Field, depth: int = 0) -> str | None:
    """Return the question or the answer in a recorded value; None if there is not exactly one that it can be.

    Within what a step was given a text is what a person typed, also if it is JSON.
    """
    value = open_cell(value) if depth == 0 or field == "answer" else value
    if isinstance(value, str):
        printed = _RETURNED.fullmatch(value) if field == "answer" else None
        inner = printed["value"] if printed is not None else ""
        if field == "question" and value.startswith(("id='", "source='")):  # a message of AutoGen
            inner = value.partition(" content=")[2].rpartition(" type='")[0]
        if depth <= _DEEPEST and inner:
            opened = open_value(f"[{inner}]")
            return find_message(opened, field, depth + 1) if isinstance(opened, list) else None
        return value if value.strip() and not _is_printed(value) else None
    if depth > _DEEPEST:
        return None
    if has_roles(value if isinstance(value, list | tuple) else [value]):
        turn = read_last_turn(find_messages(value, is_given=field == "question"))
        if turn is None or field == "question":
            return None if turn is None else turn.question or None
        # A model that was asked for JSON has the answer in a member of it.
        opened = open_cell(turn.answer)
        is_answer = isinstance(opened, Mapping) and _names_answer(opened)
        return (find_message(opened, field, depth + 1) if is_answer else None) or turn.answer or None
    if isinstance(value, Mapping):
        members = {key: item for key, item in value.items() if key not in _BESIDE and item not in (None, "", [], {})}
        if field == "question" and {"resume", "goto"} <= value.keys():  # of LangGraph: mostly a person's approval
            resumed = value["resume"]
            return resumed if isinstance(resumed, str) and is_question(resumed) else None
        if _RECORDED[field] in value and "kwargs" in value:
            return find_message(value[_RECORDED[field]], field, depth + 1)
        if field == "question" and isinstance(args := members.get("args"), list) and {*value} <= {"args", "kwargs"}:
            return _find_argument(args, read_tree(members.get("kwargs")), depth)
        texts_by_name = {
            "".join(filter(str.isalnum, str(key).lower())): item
            for key, item in members.items()
            if isinstance(item, str)
        }
        named = [name for name in texts_by_name if name.endswith(_ENDS[field]) and not name.startswith(_OTHERS)]
        if field == "question":
            first = [name for name in named if name in _ASKED]
        else:
            first = [name for name in texts_by_name if name.startswith("final") and name.endswith(_FINAL_ENDS)]
            first = first or [name for name in named if name in _LATER]
        if len(first) == 1:
            return find_message(texts_by_name[first[0]], field, depth + 1)
        if field == "answer":
            if isinstance(members.get("structured_response"), Mapping):  # of an agent of LangChain
                return find_message(members["structured_response"], field, depth + 1)
            # An interface's "message": "success" is beside the data.
            data = [members[name] for name in _ENVELOPED if name in members] if not _names_answer(members) else []
            if len(data) == 1 and isinstance(data[0], Mapping) and _names_answer(data[0]):
                return find_message(data[0], field, depth + 1)
            if isinstance(members.get("message"), str) and any(
                isinstance(one, str) and _is_worded(one) for one in data
            ):
                return None
            # One of them may be a draft of the other.
            alike = {texts_by_name[name].strip() for name in _ALIKE if name in texts_by_name}
            if len([item for item in alike if " " in item]) > 1:
                return None
        weak = [name for name in _WEAK if name in texts_by_name] if field == "question" else []
        if weak and members.keys().isdisjoint(_KEYS["question"][:5]):
            # A prompt may be the system's, and a text a page, beside what a person wrote.
            typed = [item for name, item in texts_by_name.items() if name in _TYPED]
            prompts = [texts_by_name[name] for name in weak]
            is_like = any(map(_is_worded, typed)) or not any(map(_is_worded, prompts))
            if len(typed) == 1 and is_like and not any(map(is_question, prompts)):
                return find_message(typed[0], field, depth + 1)
        # Of agents it is the question; elsewhere it names the kind of work.
        task = members.pop("task", None) if field == "question" and isinstance(members.get("task"), str) else None
        for key in (*_KEYS[field], *_WRAPPERS[field]):
            if key in members and (text := find_message(members[key], field, depth + 1)) is not None:
                return text
        worded = [name for name, item in texts_by_name.items() if _is_worded(item)]
        if len(named) == 1 and {*worded} <= {*named}:
            return find_message(texts_by_name[named[0]], field, depth + 1)
        # Of several members one text is taken if all have it.
        alone = {find_message(member, field, depth + 1) for member in [*members.values()][:_MAX_ALIKE]}
        text = next(iter(alone)) if len(alone) == 1 and len(members) <= _MAX_ALIKE else None
        if task and _is_worded(text or "") and not is_question(task):
            # One of them is a label, such as a customer's name or the kind of work: mostly the one of few words.
            n_text, n_task = len((text or "").split()), len(task.split())
            if is_question(text or "") or n_text >= n_task:
                return text
            return find_message(task, field, depth + 1) if n_task >= 2 * n_text else None
        if task and _is_worded(task):
            return find_message(task, field, depth + 1)
        return text if text is not None or members else find_message(task, field, depth + 1)
    if not isinstance(value, list | tuple):
        return None
    if field == "answer" and len(value) > 1:  # a function may return its answer with documents, ids, a flag or a status
        texts = [item for item in value if isinstance(item, str) and item.strip()]
        objects = [item for item in value if isinstance(item, Mapping) and _names_answer(item)]
        histories = [item for item in value if _holds_messages(item)]
        held = [item for item in texts if _is_worded(item)] or objects or ([] if texts else histories)
        # A later text of several words may be the documents, beside the answer "22:40".
        is_alone = len(texts) < 2 or held[:1] == texts[:1] or held is objects
        if len(held) == 1 and is_alone and len(objects) < 2:
            return find_message(held[0], field, depth + 1)
    # Of several choices of a model the first is the one that is used.
    are_choices = field == "answer" and all(isinstance(item, Mapping) and "finish_reason" in item for item in value)
    return find_message(value[0], field, depth + 1) if len(value) == 1 or (value and are_choices) else None


def is_question(text: str) -> bool:
    """Return whether a text ends as a question."""
    return text.rstrip().endswith(("?", "？"))


def _is_worded(text: str) -> bool:
    """Return whether a text may have several words, unlike an id or a name. Some languages have no spaces."""
    return " " in text.strip() or not text.isascii()


def _find_argument(args: Sequence[object], named: Mapping[str, object], depth: int) -> str | None:
    """Return the question among the arguments of a function, as Langfuse records them: by position and by name."""
    objects = (named, *(item for item in args if isinstance(item, Mapping)))

    def find_by_name(names: Collection[str]) -> Iterator[object]:
        for members in objects:
            if known := {name: item for name, item in members.items() if name in names}:
                yield known

    # Beside a language or a user's id a question has several words; beside it a prompt, a page or settings are usual.
    texts = [item for item in args if isinstance(item, str) and item.strip()]
    asked = [item for item in texts if is_question(item)]
    worded = [item for item in texts if _is_worded(item)]
    candidates = (
        *find_by_name(_KEYS["question"][:2]),
        *(asked if len(asked) == 1 else ()),
        *find_by_name(_KEYS["question"][2:4]),
        *(worded if len(worded) == 1 else ()),
        *(item for item in args if _holds_messages(item)),
        *find_by_name(_KEYS["question"][4:]),
        *(args if len(args) == 1 else () if args else (named,)),
    )
    return next(filter(None, (find_message(item, "question", depth + 1) for item in candidates)), None)


def _holds_messages(item: object) -> bool:
    return isinstance(item, list) and has_roles(item)


def _names_answer(members: Mapping[str, object]) -> bool:
    """Return whether an object has a text by a name that only an answer has."""
    return any(isinstance(item, str) and str(key).lower().endswith(_ANSWER_ENDS) for key, item in members.items())


def find_messages(value: object, depth: int = 0, *, is_given: bool = False) -> list[Message]:
    """Return the messages in a recorded request, reply or state; [] for none. See `find_message` for what was given."""
    value = _unfold(value if is_given and depth else open_cell(value))
    if isinstance(value, Mapping) and not has_roles([value]):
        names = (*_WRAPPERS["question"], *_WRAPPERS["answer"], "content")
        members = (value[name] for name in names if depth <= _DEEPEST and value.get(name))
        return next(filter(None, (find_messages(member, depth + 1, is_given=is_given) for member in members)), [])
    if isinstance(value, list | tuple) and len(value) == 1 and not has_roles(value):
        return find_messages(value[0], depth + 1, is_given=is_given) if depth <= _DEEPEST else []
    items = list(value) if isinstance(value, list | tuple) else [value]
    if len(items) > 1 and all(isinstance(item, Mapping) and "finish_reason" in item for item in items):
        items = items[:1]
    return read_known(items)


def list_messages(value: object, speaker: Literal["user", "assistant"]) -> list[Message]:
    """Return the messages in an attribute that holds them. Messages without a role are the speaker's."""
    items = _unfold(open_value(value))
    messages = []
    for item in items if isinstance(items, list | tuple) else [items]:
        inner = item.get("message", item) if isinstance(item, Mapping) else {"content": item} if item else None
        if isinstance(inner, Mapping):
            messages.append({"role": speaker, **inner})
    return find_messages(messages) if messages else []


def find_history(value: object, depth: int = 0) -> tuple[Tree, ...]:
    """Return the earlier turns beside a question, oldest first: a list of messages, or pairs of question and answer."""
    value = value if depth else open_cell(value)
    if not isinstance(value, Mapping) or depth > _DEEPEST:
        return ()
    args = value.get("args")
    texts = [item for item in args if isinstance(item, str) and item.strip()] if isinstance(args, list) else []
    listed = [item for item in args if _holds_messages(item)] if isinstance(args, list) and texts else []
    for items in (*(open_cell(value.get(name)) for name in _HISTORIES), *listed):
        if isinstance(items, list | tuple) and items:
            messages = read_known(items) or read_known(
                message
                for pair in items
                if isinstance(pair, list | tuple) and len(pair) == 2
                for message in zip(("user", "assistant"), pair, strict=True)
            )
            return _list_turns(cut_turns([*messages, Message(role="user", text="?")])[-1])
    inner = (find_history(value.get(name), depth + 1) for name in ("inputs", "input", "kwargs"))
    return next(filter(None, inner), ())


def _list_turns(turn: CutTurn) -> tuple[Tree, ...]:
    """Return the turns before a turn, with their contexts where these are documents with texts: an application may keep
    anything beside a message."""
    turns: list[Tree] = []
    for earlier in turn.conversation:
        documents = read_documents(earlier.get("contexts")) if earlier["role"] == "assistant" else None
        texts = [document.text for document in documents or ()]
        contexts = {"contexts": texts} if texts and None not in texts else {}
        turns.append({"role": earlier["role"], "text": earlier["text"], **contexts})
    return tuple(turns)


_NESTED: Final = ("message.", "message_content.", "tool_call.")


def _unfold(value: object, depth: int = 0) -> object:
    """Return messages with OpenInference's dotted names as objects and its numbered members as lists."""
    if depth > _DEEPEST:
        return value
    if isinstance(value, Mapping):
        is_dotted = any(str(name).startswith(_NESTED) for name in value)
        tree = {name: _unfold(member, depth + 1) for name, member in (nest(value) if is_dotted else value).items()}
        is_list = bool(tree) and all(str(name).isdecimal() for name in tree)
        return _list_members(tree) if is_list else tree
    return [_unfold(item, depth + 1) for item in value] if isinstance(value, list | tuple) else value


def name_call(item: object) -> Tree | None:
    """Return a call of a tool as `{"name", "arguments"}`, its arguments as an object; None for what names no tool."""
    if not isinstance(item, Mapping):
        return None
    call = read_tree(item.get("tool_call", item))
    function = read_tree(call.get("function", call))
    names = ("arguments", "args", "input", "input_parameters", "parameters")
    arguments = next((function[key] for key in names if function.get(key)), None)
    name = read_name(function.get("name"))
    return None if name is None else {"name": name, "arguments": open_value(arguments) or {}}


# --- documents

# Where chains of LangChain, and graphs of users, put retrieved documents beside the answer.
_PASSED_ON: Final = (
    "documents", "context", "contexts", "source_documents", "retrieved_documents", "retrieved_contexts",
    "retrieved_chunks", "chunks", "nodes", "source_nodes", "context_documents", "filtered_documents",
    "relevant_documents", "relevant_docs",
)  # fmt: skip


_AROUND: Final = ("documents", "outputs", "output", "results", "inputs", "input")


def read_documents(value: object, depth: int = 0) -> tuple[Document, ...] | None:
    """Return the documents that a value holds, in their order; None if it is not a list of them."""
    value = open_value(value)
    if isinstance(value, Mapping) and depth <= _DEEPEST:
        inner = next((value[name] for name in _AROUND if name in value), None)
        return read_documents(read_list(value) if inner is None else inner, depth + 1)
    if not isinstance(value, list | tuple) or (value and all(has_roles([item]) for item in value)):
        return None
    if value and all(isinstance(item, list | tuple) and (not item or read_document(item) is None) for item in value):
        value = [item for listed in value for item in listed]  # of several retrievers, or rows of a table
        if not any(isinstance(item, Mapping | list) for item in value):
            worded = [item for item in value if isinstance(item, str) and _is_worded(item)]
            value = worded or value  # no ids and scores
    documents = [read_document(item) for item in value]
    return None if None in documents else tuple(item for item in documents if item is not None)


def find_documents(made: object) -> tuple[Document, ...] | None:
    """Return the documents in a chain's output, under the names by which frameworks and people pass them on."""
    tree = read_tree(made)
    tree = next((inner for name in ("outputs", "inputs") if (inner := read_tree(tree.get(name)))), tree)
    found = next((found for name in _PASSED_ON if (found := read_documents(tree.get(name))) is not None), None)
    return found or read_documents(tree.get("docs")) or found  # a graph's state may have an empty list of that name


def read_retrieved(made: object) -> tuple[Document, ...] | None:
    """Return the documents in a retriever's output: directly, or under a name by which chains pass them on."""
    found = read_documents(made)
    return find_documents(made) if found is None else found


_NODE: Final = re.compile(
    r"<NodeWithScore\(node=\w+\(id_=(?P<node>[^()<>]+)\), score=(?P<score>None|-?\d[\d.e+-]*)\)>"
    r"|Document\(id=(?P<document>[^,()]+), content: [\s\S]*"
)


def read_document(item: object) -> Document | None:
    """Return one document; None for what has neither a text nor an id. `(document, score)` is one with its score.

    Of an object the text and the id are among its members, or in its metadata. Of nodes of LlamaIndex and documents of
    Haystack that were printed the id is known.
    """
    if isinstance(item, str) and (node := _NODE.fullmatch(item)):
        known = None if node["score"] in (None, "None") else float(node["score"])
        return Document(text=None, id=node["node"] or node["document"], score=known)
    context = open_context(item)
    if context is None:
        return None
    text, an_id = context.text if isinstance(context.text, str) else None, read_name(context.id)
    if (text is None and an_id is None) or (text is not None and _is_printed(text)):
        return None
    metadata = read_tree(context.rest.get("metadata"))
    scores = (context.rest.get("score"), context.rest.get("relevance_score"), metadata.get("score"))
    score = next((value for value in scores if value is not None), None)
    is_plain = isinstance(item, str)
    return Document(text=text, id=an_id, score=read_score(score), metadata=dict(metadata) or None, is_plain=is_plain)
