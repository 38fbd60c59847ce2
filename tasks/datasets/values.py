"""The values of a raw row, and the problems of a dataset with the one message that refuses it.

Texts, numbers, ids and lists are read in every spelling. A value of another kind is reported to `say`, and reading
continues: a person who prepares a dataset needs one round of fixing, not one for each mistake.
`Problems` makes one message of all of them, a DatasetError; inside the readers ReadingStopped ends the reading.

Tools such as Langfuse and LangSmith store input and output as the bot had them, as an object or a list of messages;
`find_text` finds the one text in these that cannot be anything else. The retrieved contexts of datasets, bots and
tracers are all read by `read_contexts`: a list in rank order, or one text or one object by itself.
"""

import ast
import json
import math
import re
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from pathlib import PurePath
from string import Template
from typing import Any, Final, Literal, cast

import orjson

from evalhouse.warehouse.messages import list_names, name_kind, name_setting, quote_value

ProblemKind = Literal[
    "broken_json", "not_utf8", "not_an_object", "broken_table", "no_question", "not_text", "contexts",
    "conversation", "ids", "metadata", "duplicate_id", "no_span", "no_traces", "columns", "two_meanings", "no_rows",
    "span_names", "unreadable",
]  # fmt: skip
Place = Literal["line", "element", "row", "samples"]
Complain = Callable[[int, ProblemKind, str], None]

LISTED_PROBLEMS = 20
MAX_ROW: Final = 2**26
"""The longest row, line or cell of any format: bytes, or characters where these are known. A file without line ends, or
one that unpacks to gigabytes, must not fill the memory."""

# What is allowed and what to do, stated once for each kind of problem at the end of the message.
_ADVICE: dict[ProblemKind, str] = {
    "broken_json": "JSON has double quotes and no comma after the last member; fix or remove what is broken",
    "not_utf8": "text files are read as UTF-8, or as UTF-16 by their first bytes; "
    "name another encoding with $encoding, or save the file as UTF-8",
    "not_an_object": 'every row is a JSON object such as {"question": "…", "answer": "…"}; wrap or remove the others',
    "broken_table": "each column has a different name, each record a cell for each column, "
    "and a quote inside a quoted cell is doubled",
    "no_question": "every row needs a question that is not empty; fill it in or remove the row",
    "not_text": "question, answer and ground_truth are texts or numbers; "
    "name the text inside with $mapping, as in $answer; a list of accepted answers is "
    "$ground_truths",
    "contexts": "contexts are a list of texts, or of objects with text, content or page_content, and [] for none; a "
    'text by itself is one of them, and may hold a list in JSON or as Python prints one; write ["…"] for the others, '
    "or name a text that is one context with $contexts",
    "conversation": "a conversation is a list of the turns before the question, the oldest first, each "
    '{"role": "user", "text": "…"} or {"role": "assistant", "text": "…", "contexts": ["…"]}, where `content` is read '
    "as `text`; a whole conversation is such a list without a question beside it; rename a column `conversation` that "
    "is something else",
    "ids": "ids are texts or whole numbers, and lists of ids are lists of those; write them as text, several as a list "
    '(["a", "b"])',
    "metadata": "columns kept as metadata must fit into JSON; flatten or remove what does not",
    "duplicate_id": "an id names one row; make the ids differ, or take the column away and ids are made from the texts",
    "no_span": "with $format every row is a span, or a trace, as that tool exports it; name another format, or "
    "none for a dataset",
    "span_names": "$mapping names the spans with a question, an answer or contexts as the traces do, as in $spans; "
    "several have commas between them",
    "no_traces": "send some to `evalhouse receive`, or look further back",
    "columns": "name the column with $mapping, as in $question",
    "two_meanings": "say which it is with $mapping",
    "no_rows": "a dataset has at least one row; was it written to the end?",
    "unreadable": "the file must be readable to its end; write or download it again",
}


def advise(kind: ProblemKind) -> str:
    """Return what is allowed and what to do about a problem, with settings as the caller writes them."""
    return Template(_ADVICE[kind]).substitute(
        mapping=name_setting("mapping"),
        encoding=name_setting("encoding"),
        format=name_setting("format"),
        question=name_setting("mapping", "question=COLUMN"),
        answer=name_setting("mapping", "answer=output.text"),
        spans=name_setting("mapping", "contexts=SPAN,SPAN"),
        contexts=name_setting("mapping", "contexts=$.COLUMN"),
        ground_truths=name_setting("mapping", "ground_truths=references"),
    )


def name_row(place: Place, row: int) -> str:
    """Return how a person calls a row: `line 3`, `row 3`, or `samples[2]` of the samples of a call from Python."""
    return f"samples[{row - 1}]" if place == "samples" else f"{place} {row:,}"


class DatasetError(Exception):
    """A dataset that is refused. `problems` are the listed ones in file order, `n_problems` counts all of them."""

    def __init__(self, message: str, *, problems: Sequence["Problem"] = (), n_problems: int = 1) -> None:
        super().__init__(message)
        self.problems = tuple(problems)
        self.n_problems = n_problems


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One mistake; `row` is its place as a person counts it, None where it concerns the whole file."""

    row: int | None
    kind: ProblemKind
    text: str


class ReadingStopped(Exception):
    """Nothing after this problem can be read."""

    def __init__(self, row: int | None, kind: ProblemKind, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(row=row, kind=kind, text=text)


def refuse_dataset(came: str, *, allowed: str, to_do: str) -> DatasetError:
    """Return a one-line refusal of a whole dataset: what came, what is allowed, what to do."""
    return DatasetError(f"{came}; allowed: {allowed}; {to_do}")


class Problems:
    """All problems of one dataset: `n` counts them, and the first `LISTED_PROBLEMS` are kept in file order.

    `kinds` are the keys of a dictionary, in the order in which they came.
    """

    def __init__(self, name: str, place: Place) -> None:
        self._name = name
        self._place = place
        self._listed: list[Problem] = []
        self.kinds: dict[ProblemKind, None] = {}
        self.n = 0

    def add(self, row: int | None, kind: ProblemKind, text: str) -> None:
        """Count a problem, and list it if it is among the first."""
        self.n += 1
        self.kinds[kind] = None
        insort(self._listed, Problem(row=row, kind=kind, text=text), key=lambda problem: problem.row or 0)
        del self._listed[LISTED_PROBLEMS:]

    def list_lines(self) -> list[str]:
        """Return the listed problems, each with its place."""
        return [
            problem.text if problem.row is None else f"{name_row(self._place, problem.row)}: {problem.text}"
            for problem in self._listed
        ]

    def make_error(self) -> DatasetError:
        """Return the error for all of them: a single line where there is one problem with the whole file."""
        if self.n == 1 and self._listed[0].row is None:
            only = self._listed[0]
            return DatasetError(f"{self._name}: {only.text}; {advise(only.kind)}", problems=[only])
        lines = [f"{self._name}: {self.n:,} problem{'' if self.n == 1 else 's'}; nothing was loaded"]
        lines += [f"  {line}" for line in self.list_lines()]
        if self.n > len(self._listed):
            lines.append(f"  and {self.n - len(self._listed):,} more")
        lines += [f"to do: {advise(kind)}" for kind in self.kinds]
        return DatasetError("\n".join(lines), problems=self._listed, n_problems=self.n)


MISSING: Final = object()  # no such column, which is not the same as a column that is empty here
EACH: Final = "[*]"
"""The step of a path that is every item of a list."""
CALL_COLUMNS: Final = ("tool_calls", "tools_called")
EXPECTED_CALL_COLUMNS: Final = ("expected_tool_calls", "reference_tool_calls", "expected_tools")
"""The columns of tool calls by the names of evalhouse, ragas and deepeval, in the order in which they win."""
NULLS_FILLED_IN: Final = "nulls_filled_in"
"""The metadata that names the columns of rows and calls in which a null may be none: nested columns of Parquet, frames
and the like have the members of all rows."""
Steps = tuple[str | int, ...]

_EXACT_FLOAT = 2.0**53  # above it neighbouring whole numbers share one float

_SEPARATOR = re.compile(r"[,;|\n\t]")  # between ids, where one text may hold several

# Takes a complaint about the row at hand.
Say = Callable[[ProblemKind, str], None]


def is_absent(value: object) -> bool:
    """Return True for a missing value: no column, null or NaN."""
    return value is None or value is MISSING or (isinstance(value, float | Decimal) and math.isnan(value))


def is_empty(value: object) -> bool:
    """Return True for a missing value or white space."""
    return is_absent(value) or (isinstance(value, str) and not value.strip())


def parse_json(text: str | bytes, *, keeps_halves: bool = False) -> object:
    """Return a value of JSON, also with NaN and infinities as Python writes them; raises ValueError.

    Texts that were cut within a surrogate pair are refused, unless the caller joins or replaces the halves.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            value: object = json.loads(text.decode() if isinstance(text, bytes) else text)
            if not keeps_halves:
                json.dumps(value, ensure_ascii=False).encode()
        except RecursionError:
            raise ValueError("nested too deep to be read") from None
        return value


def open_cell(value: object) -> object:
    """Return the list or object that a table's cell holds as JSON text; anything else unchanged."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        opened: object = orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    return opened


def open_text(value: object) -> object:
    """Return the text that a text holds as a JSON string, as exports write what was JSON before; others unchanged."""
    while isinstance(value, str) and value[:1] == '"' == value[-1:]:
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            break
    return value


_ESCAPE = r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"""
_TEXT_IN_PYTHON = rf"""'(?:[^'\\\n]|{_ESCAPE})*'|"(?:[^"\\\n]|{_ESCAPE})*\""""
_LIST_IN_PYTHON = re.compile(rf"\[(?:(?:{_TEXT_IN_PYTHON}|-?\d{{1,18}}|None)(?:, (?=[^\]])|(?=\])))*\]")


def open_list(value: object) -> object:
    """Do as `open_cell`, also for a list as Python prints it, which is how pandas and ragas write one to a CSV file.

    Only texts, whole numbers and None with a comma between each two: NumPy prints none, and Python would read its
    texts as one.
    """
    opened = open_cell(value)
    if isinstance(opened, str) and _LIST_IN_PYTHON.fullmatch(opened):
        with suppress(SyntaxError, ValueError):
            return ast.literal_eval(opened)
    return opened


# A value that Python reads takes some hundred bytes for each member.
_MAX_PYTHON: Final = 4_000_000
_MAX_PYTHON_MEMBERS: Final = 100_000


def open_value(value: object) -> object:
    """Return the list or object that a text holds, in JSON or as Python prints it, which is how pandas writes one to
    CSV. A text that Python would read into too much, or into what JSON cannot hold, stays a text."""
    opened = open_cell(value)
    if not isinstance(opened, str) or opened.lstrip()[:1] not in ("[", "{"):
        return opened
    if len(opened) > _MAX_PYTHON or opened.count(",") > _MAX_PYTHON_MEMBERS:
        return opened
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError, orjson.JSONEncodeError):
        read: object = ast.literal_eval(opened.strip())
        orjson.dumps(read, option=orjson.OPT_NON_STR_KEYS)  # refuses a number of hundreds of digits, half a character
        return read
    return opened


def read_text(value: object, name: str, say: Say) -> str | None:
    """Return a text unchanged, or a number as text; None for nothing, NaN and white space.

    A whole number that a table stores as a float (7.0, beside empty cells) is that number.
    """
    if isinstance(value, str):
        return value if value and not value.isspace() else None
    if is_absent(value):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOAT:
        return str(int(value))
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, date | time):
        return value.isoformat()
    say("not_text", f"{name} is {name_kind(value)}, not text: {quote_value(value)}")
    return None


def read_id(value: object, name: str, say: Say) -> str | None:
    """Return an id as text, a number as `read_text` does."""
    if isinstance(value, bool) or not (is_absent(value) or isinstance(value, str | int | float | Decimal)):
        say("ids", f"{name} is {name_kind(value)}, not a text or a number: {quote_value(value)}")
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) >= _EXACT_FLOAT:
        say("ids", f"{name} is a number too large to be exact: {value!r}")
        return None
    return read_text(value, name, say)


def read_ids(value: object, name: str, say: Say, *, is_exact: bool = False) -> list[str] | None:
    """Return a list of ids, None for nothing. One id by itself is a list of one, and lists within the list are joined.

    A text that may be several ids is refused; `is_exact` takes it as one, where a JSONPath names it.
    """
    items: list[object] | None
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and not is_absent(value):
        items = [value]
    else:
        items = read_list(value, name, "ids", say)
    if items is None:
        return None
    if items == [value] and isinstance(value, str) and _SEPARATOR.search(value) and not is_exact:
        say("ids", f"{name} are not a list but text that may be one id or several: {quote_value(value)}")
    nested = any(isinstance(item, list) for item in items)
    items = [one for item in items for one in (item if isinstance(item, list) else [item])]
    ids = [read_id(item, f"id {rank} of {name}", say) for rank, item in enumerate(items, start=1)]
    empty = [str(rank) for rank, item in enumerate(items, start=1) if is_empty(item)]
    if empty:
        say("ids", f"{name} has an empty id at place {list_names(empty, 5)}")
    known = [an_id or "" for an_id in ids]
    return list(dict.fromkeys(known)) if nested else known


def read_list(value: object, name: str, kind: ProblemKind, say: Say) -> list[object] | None:
    """Return a list, also one that a text holds; a text by itself is the only item of one. None for nothing."""
    value = open_list(value)
    if isinstance(value, list | tuple):
        return list(value)
    if is_empty(value):
        return None
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return [value]
    is_torn = isinstance(value, str)
    kind_of_value = "text that is a list neither in JSON nor in Python" if is_torn else name_kind(value)
    say(kind, f"{name} are not a list but {kind_of_value}: {quote_value(value)}")
    return None


# --- metadata


def read_metadata(rest: dict[str, object], context_rest: list[dict[str, object]] | None, say: Say) -> dict[str, object]:
    """Return the other members of a row, as JSON has them: times and decimals as text, NaN as null.

    A column `metadata` that is an object is taken apart, except for members whose name another column has. The other
    members of contexts become `contexts`, by rank.
    """
    if context_rest is not None:
        rest["contexts"] = context_rest
    inner = open_cell(rest.get("metadata"))
    if isinstance(inner, dict):
        del rest["metadata"]
        clashing = {key: value for key, value in inner.items() if key in rest}
        rest = rest | inner | {key: rest[key] for key in clashing} | ({"metadata": clashing} if clashing else {})
    if not rest:
        return rest

    def to_text(value: object) -> str | None:
        if isinstance(value, bytes):
            try:
                return value.decode()
            except UnicodeDecodeError:
                return value.hex()
        return None if is_absent(value) else str(value)

    def spell_out(value: object) -> object:
        if isinstance(value, dict):
            return {key: spell_out(member) for key, member in value.items()}
        if isinstance(value, list):
            return [spell_out(item) for item in value]
        is_long = isinstance(value, int) and not -(2**63) <= value < 2**64
        return str(value) if is_long or isinstance(value, time) else value

    try:
        try:
            text = orjson.dumps(rest, default=to_text, option=orjson.OPT_NON_STR_KEYS)
        # orjson does not ask `default` about whole numbers of more than 64 bits, nor about a time with an offset.
        except orjson.JSONEncodeError:
            text = orjson.dumps(spell_out(rest), default=to_text, option=orjson.OPT_NON_STR_KEYS)
    except (orjson.JSONEncodeError, RecursionError) as error:
        problem = "it is nested too deep" if "recursion" in str(error).lower() else error  # Python's error or orjson's
        say("metadata", f"a column does not fit into JSON: {problem}")
        return {}
    members: dict[str, object] = orjson.loads(text)
    return members


# --- texts in objects that tracing tools record

RECORDED_COLUMNS: Final = frozenset(
    {"input", "inputs", "output", "outputs", "expected_output", "expectedOutput", "expected", "reference_outputs"}
)
"""The columns that such tools write objects to, some of them as JSON text."""
_QUESTION_KEYS: Final = ("question", "user_input", "input", "query", "prompt")
_ANSWER_KEYS: Final = ("answer", "response", "output", "expected_output", "ground_truth", "reference")
_DEEPEST: Final = 8


def is_recorded(value: object) -> bool:
    """Return True for an object or a list of them, as against a text or a list of texts."""
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def find_text(value: object, field: str, depth: int = 0) -> Steps | None:
    """Return the steps to the one text of an object or list for this field; None where there is not exactly one.

    Of messages that is the only one of the user, or the assistant's if it is the last; of parts the text of a single
    one.
    """
    if isinstance(value, str):
        return ()
    step: str | int | None = None
    if isinstance(value, list):
        from evalhouse.tasks.datasets.thoughts import is_thought  # noqa: PLC0415  # most columns have no messages

        spoken = [(place, part) for place, part in enumerate(value) if not is_thought(part)]
        if len(spoken) == 1 and isinstance(spoken[0][1], dict) and spoken[0][1].get("type") == "text":
            return (spoken[0][0], "text")
        roles = [item.get("role") or item.get("type") if isinstance(item, dict) else None for item in value]
        if field == "question":
            places = [place for place, role in enumerate(roles) if role in ("user", "human")]
            step = places[0] if len(places) == 1 else None
        elif roles and roles[-1] in ("assistant", "ai"):
            step = len(roles) - 1
    elif isinstance(value, dict) and depth <= _DEEPEST:
        if "messages" in value:
            step = "messages"
        elif "role" in value or "type" in value:
            step = "content" if "content" in value else None
        else:
            keys = [key for key in (_QUESTION_KEYS if field == "question" else _ANSWER_KEYS) if key in value]
            keys = keys or (list(value) if len(value) == 1 else [])
            step = keys[0] if len(keys) == 1 else None
    if step is None:
        return None
    inner = find_text(cast(Mapping[str | int, object], value)[step], field, depth + 1)
    return None if inner is None else (step, *inner)


def list_texts(value: object, name: str, depth: int = 0) -> Iterator[str]:
    """Yield the places of all texts inside a value, as --map names them; `name` is that of the value."""
    if isinstance(value, str):
        yield name
    elif isinstance(value, dict) and depth <= _DEEPEST:
        for key, member in value.items():
            if key not in ("role", "type"):
                yield from list_texts(member, f"{name}.{key}", depth + 1)
    elif isinstance(value, list) and depth <= _DEEPEST:
        for place, item in enumerate(value):
            yield from list_texts(item, f"{name}[{place}]", depth + 1)


_TEXTS: Final = ("text", "content", "page_content", "pageContent", "text_resource", "snippet", "body", "chunk_text")
# Names that may have a number, or an object, as well.
_SPOKEN: Final = ("chunk", "passage", "excerpt", "passage_text", "chunk_content", "document_text")
_IDS: Final = ("id", "id_", "document_id", "doc_id", "chunk_id", "node_id")
_INSIDE: Final = ("document", "node", "kwargs")  # members that hold the context, beside its score
_PREFIX: Final = "document."  # of the names that OpenInference gives a context's members
# Where vector stores have the text of a hit: Qdrant, Elasticsearch, Milvus, Pinecone, Weaviate.
_STORED: Final = ("payload", "_source", "entity", "fields", "properties", "metadata")
_PAGE: Final = "page_content"  # the attribute of LangChain's documents
# How a list begins that is cut off, or that NumPy or a library printed.
_TORN: Final = re.compile(r"\s*(?:\[\s*['\"{\[]|\[.*\]\s*\Z|array\()", re.DOTALL)
_JOINED: Final = re.compile(r"(?<!\|)\|(?!\|)")


@dataclass(frozen=True, kw_only=True)
class Context:
    """One context: its text and id, MISSING or None where it has none, and its other members."""

    text: object
    id: object
    rest: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class ContextList:
    """Contexts in rank order. `is_one_text`: a text by itself was read as the only one."""

    texts: list[str] | None
    ids: list[str] | None  # None when no context has one
    rest: list[dict[str, object]] | None  # other members of the contexts by rank; None when no context has any
    is_one_text: bool = False


def open_context(item: object) -> Context | None:
    """Return the parts of one context: a text, an object, a document of LangChain, or one of these with its score.

    The text of an object is among its members, or one level further inside, as are Bedrock's and LlamaIndex's; its id
    is among its members or in its metadata. None for a value of another kind.
    """
    if isinstance(item, str):
        return Context(text=item, id=None, rest={})
    if isinstance(item, list | tuple):
        if len(item) != 2 or not isinstance(item[1], int | float) or isinstance(item[1], bool):
            return None
        inner = open_context(item[0])
        return inner and Context(text=inner.text, id=inner.id, rest={"score": item[1], **inner.rest})
    if hasattr(item, _PAGE):
        item = {name: getattr(item, name, None) for name in (_PAGE, "id", "metadata")}
    if not isinstance(item, Mapping):
        return None
    members: dict[str, Any] = {str(key).removeprefix(_PREFIX): value for key, value in item.items()}
    if {"lc", "kwargs"} <= members.keys():  # as LangChain writes a document, with its class as the id
        members.pop("id", None)
    for name in _INSIDE:
        if isinstance(members.get(name), Mapping) and not any(members.get(key) for key in _TEXTS):
            members |= members.pop(name)
    for name in _STORED:
        stored = open_value(members.get(name))
        if isinstance(stored, Mapping) and not any(members.get(key) for key in _TEXTS) and {*_TEXTS} & {*stored}:
            members = {**stored, **{key: value for key, value in members.items() if key != name}}
    key = next((key for key in _TEXTS if members.get(key) is not None), None)
    if key is None:
        texts = {name: value for name, value in members.items() if isinstance(value, str) and " " in value.strip()}
        longest = max(texts, key=lambda name: len(texts[name]), default=None)
        key = longest if longest in _SPOKEN else None
    text = MISSING if key is None else members.pop(key)
    if isinstance(text, Mapping) and "text" in text:
        text = text["text"]
    id_key = next((key for key in _IDS if not is_empty(members.get(key))), None)
    an_id = None if id_key is None else members.pop(id_key)
    inside = open_value(members.get("metadata"))
    if id_key is None and isinstance(inside, Mapping):
        id_key = next((key for key in _IDS if not is_empty(inside.get(key))), None)
        an_id = None if id_key is None else inside[id_key]
        members["metadata"] = {key: value for key, value in inside.items() if key != id_key} or None
    return Context(text=text, id=an_id, rest={key: value for key, value in members.items() if value is not None})


def list_contexts(value: object, say: Say, *, is_exact: bool = False) -> Sequence[object] | None:
    """Return the items of contexts, None for nothing; reports what is not a list, and not one context, to `say`.

    A text that holds a list or an object is that. Another text is one context, unless it may be meant for several;
    `is_exact` takes that as one too, where a JSONPath names the text.
    """
    if isinstance(value, list | tuple):
        return value
    if is_empty(value):
        return None
    opened = open_list(value)
    if isinstance(opened, list):
        return opened
    if isinstance(opened, Mapping) or hasattr(opened, _PAGE):
        return [opened]
    if not isinstance(opened, str):
        say("contexts", f"contexts are not a list but {name_kind(opened)}: {quote_value(opened)}")
        return None
    problem = ""
    if _TORN.match(opened):
        problem = "text that is a list neither in JSON nor in Python"
    elif _JOINED.search(opened) and not any(line.lstrip().startswith("|") for line in opened.splitlines()):
        problem = "text with | in it, which may be one context or several"
    if problem and not is_exact:
        say("contexts", f"contexts are not a list but {problem}: {quote_value(opened)}")
        return None
    return [opened]


_MAX_NESTED: Final = 4  # metadata within metadata; a callable's may hold itself


def list_source_names(rest: object) -> list[list[str]]:
    """Return for each context the addresses and sources that an answer may cite, from the members beside its text.

    LangChain's documents have them in their metadata. None is listed where `rest` is not `ContextList.rest`.
    """
    sources: list[list[str]] = []
    for members in rest if isinstance(rest, list) else ():
        nodes = [members]
        while isinstance(nodes[-1], dict) and len(nodes) <= _MAX_NESTED:
            nodes.append(nodes[-1].get("metadata"))
        given = [node.get(key) for node in nodes if isinstance(node, dict) for key in ("url", "source")]
        sources.append([str(name) for name in given if isinstance(name, str | PurePath) and str(name).strip()])
    return sources


def read_contexts(value: object, say: Say, *, is_exact: bool = False) -> ContextList:
    """Return the texts by rank, with the ids and the other members of each. An empty list stays an empty list."""
    items = list_contexts(value, say, is_exact=is_exact)
    if items is None:
        return ContextList(texts=None, ids=None, rest=None)
    if len(items) == 1 and isinstance(items[0], list) and open_context(items[0]) is None:
        items = items[0]  # as vector stores answer a batch of one query
    texts, ids, rest = [], [], []
    for rank, item in enumerate(items, start=1):
        context = open_context(item) or Context(text=item, id=None, rest={})
        text = context.text
        if isinstance(text, int | float) and not (isinstance(text, bool) or is_absent(text)):
            text = str(text)
        if text is MISSING:
            has = list(item) if isinstance(item, Mapping) else list(context.rest)
            say("contexts", f"context {rank} has no text; it has: {list_names(has, 10)}")
        elif is_absent(text):
            say("contexts", f"context {rank} is null")
        elif not isinstance(text, str):
            say("contexts", f"context {rank} is {name_kind(text)}, not text: {quote_value(text)}")
        texts.append(text if isinstance(text, str) else "")
        ids.append(read_id(context.id, f"the id of context {rank}", say) or "")
        rest.append(context.rest)
    return ContextList(
        texts=texts,
        ids=ids if any(ids) else None,
        rest=rest if any(rest) else None,
        is_one_text=isinstance(value, str) and items == [value],
    )
