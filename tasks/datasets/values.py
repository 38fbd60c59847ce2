"""The values of a raw row: texts, numbers, ids, lists and contexts, as files of every kind spell them.

What a value cannot be is reported to `say`, and reading goes on, so that a person sees all that is wrong with a row.
"""

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from typing import Final, cast

import orjson

from evalhouse.tasks.datasets.errors import ProblemKind
from evalhouse.warehouse.messages import list_names, name_kind, quote_value
from evalhouse.warehouse.rows.samples import Role, Turn

MISSING: Final = object()  # no such column, which is not the same as a column that is empty here
TEXT_KEYS = ("text", "content", "page_content")

_EXACT_FLOAT = 2.0**53  # above it neighbouring whole numbers share one float

# A complaint about the row at hand.
Say = Callable[[ProblemKind, str], None]


@dataclass(frozen=True, kw_only=True)
class ContextList:
    """Contexts in rank order."""

    texts: list[str] | None
    ids: list[str] | None  # None when no context has one
    rest: list[dict[str, object]] | None  # what stood beside the texts, by rank; None when nothing did


_NO_CONTEXTS = ContextList(texts=None, ids=None, rest=None)


def open_cell(value: object) -> object:
    """The list or object that a table's cell holds as JSON text; anything else as it came."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        opened: object = orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    return opened


_ESCAPE = r"""\\(?:[\\'"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"""
_TEXT_IN_PYTHON = rf"""'(?:[^'\\\n]|{_ESCAPE})*'|"(?:[^"\\\n]|{_ESCAPE})*\""""
_LIST_IN_PYTHON = re.compile(rf"\[(?:(?:{_TEXT_IN_PYTHON}|-?\d{{1,18}}|None)(?:, (?=[^\]])|(?=\])))*\]")


def open_list(value: object) -> object:
    """As `open_cell`, also for a list as Python prints it, which is how pandas and ragas write one to a CSV file.

    Only texts, whole numbers and None with a comma between each two: what NumPy prints has none, and Python would read
    its texts as one.
    """
    opened = open_cell(value)
    if isinstance(opened, str) and _LIST_IN_PYTHON.fullmatch(opened):
        with suppress(SyntaxError, ValueError):
            return ast.literal_eval(opened)
    return opened


def read_text(value: object, name: str, say: Say) -> str | None:
    """A text as it is, or a number as text; None for nothing, NaN and white space."""
    if isinstance(value, str):
        return value if value and not value.isspace() else None
    if is_absent(value):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, date | time):
        return value.isoformat()
    say("not_text", f"{name} is {name_kind(value)}, not text: {quote_value(value)}")
    return None


def read_accepted(value: object, first: str | None, say: Say, *, tabular: bool) -> list[str]:
    """All accepted answers, each once, with the ground truth of a column of its own as the first."""
    items = _read_list(value, "ground_truths", "not_text", say, tabular=tabular) or []
    texts = [read_text(item, f"accepted answer {place}", say) for place, item in enumerate(items, start=1)]
    return list(dict.fromkeys(text for text in (first, *texts) if text is not None))


def read_id(value: object, name: str, say: Say) -> str | None:
    """An id as text. A whole number that a table keeps as a float (7.0, beside empty cells) is that number."""
    if isinstance(value, bool) or not (is_absent(value) or isinstance(value, str | int | float | Decimal)):
        say("ids", f"{name} is {name_kind(value)}, not a text or a number: {quote_value(value)}")
        return None
    if isinstance(value, float) and value.is_integer():
        if abs(value) < _EXACT_FLOAT:
            return str(int(value))
        say("ids", f"{name} is a number too large to be exact: {value!r}")
        return None
    return read_text(value, name, say)


def read_ids(value: object, name: str, say: Say, *, tabular: bool) -> list[str] | None:
    """A list of ids, None for nothing."""
    items = _read_list(value, name, "ids", say, tabular=tabular)
    if items is None:
        return None
    ids = [read_id(item, f"id {rank} of {name}", say) for rank, item in enumerate(items, start=1)]
    empty = [str(rank) for rank, item in enumerate(items, start=1) if is_empty(item)]
    if empty:
        say("ids", f"{name} has an empty id at place {list_names(empty, 5)}")
    return [an_id or "" for an_id in ids]


def read_contexts(value: object, say: Say, *, tabular: bool) -> ContextList:
    """The texts by rank, with the ids and whatever else stood beside them. An empty list stays an empty list."""
    items = _read_list(value, "contexts", "contexts", say, tabular=tabular)
    if items is None:
        return _NO_CONTEXTS
    if all(isinstance(item, str) for item in items):
        return ContextList(texts=cast(list[str], items), ids=None, rest=None)
    texts, ids, rest = [], [], []
    for rank, item in enumerate(items, start=1):
        others = dict(item) if isinstance(item, dict) else {}
        texts.append(_take_context_text(item, others, rank, say))
        ids.append(_take_context_id(others, rank, say))
        rest.append({key: other for key, other in others.items() if other is not None})
    return ContextList(texts=texts, ids=ids if any(ids) else None, rest=rest if any(rest) else None)


def _take_context_text(item: object, others: dict[str, object], rank: int, say: Say) -> str:
    text = item
    if isinstance(item, dict):
        key = next((key for key in TEXT_KEYS if item.get(key) is not None), None)
        if key is None:
            say("contexts", f"context {rank} has no text; it has: {list_names(list(item), 10)}")
            return ""
        text = others.pop(key)
    if isinstance(text, str):
        return text
    if is_absent(text):
        say("contexts", f"context {rank} is null")
    elif isinstance(text, int | float) and not isinstance(text, bool):
        return str(text)
    else:
        say("contexts", f"context {rank} is {name_kind(text)}, not text: {quote_value(text)}")
    return ""


def _take_context_id(others: dict[str, object], rank: int, say: Say) -> str:
    """Its id, or the one in its metadata, where LangChain's documents have it; "" for none."""
    own_id = others.pop("id", None)
    inner = others.get("metadata")
    if is_empty(own_id) and isinstance(inner, dict) and "id" in inner:
        own_id = inner["id"]
        others["metadata"] = {key: value for key, value in inner.items() if key != "id"} or None
    return read_id(own_id, f"the id of context {rank}", say) or ""


def _read_list(value: object, name: str, kind: ProblemKind, say: Say, *, tabular: bool) -> list[object] | None:
    value = open_list(value) if tabular else value
    if isinstance(value, list):
        return value
    if is_absent(value) or (tabular and is_empty(value)):
        return None
    is_torn = tabular and isinstance(value, str) and value.lstrip().startswith("[")
    kind_of_value = "text that is a list neither in JSON nor in Python" if is_torn else name_kind(value)
    say(kind, f"{name} are not a list but {kind_of_value}: {quote_value(value)}")
    return None


def read_metadata(
    rest: dict[str, object], context_rest: list[dict[str, object]] | None, say: Say, *, tabular: bool
) -> dict[str, object]:
    """What is left of a row, as JSON has it: times and decimals as text, NaN as null.

    A column `metadata` that is an object is taken apart, save for members whose name another column has. What
    stood beside the contexts' texts is `contexts`, by rank.
    """
    if context_rest is not None:
        rest.setdefault("contexts", context_rest)
    inner = open_cell(rest.get("metadata")) if tabular else rest.get("metadata")
    if isinstance(inner, dict):
        del rest["metadata"]
        clashing = {key: value for key, value in inner.items() if key in rest}
        rest = rest | inner | {key: rest[key] for key in clashing} | ({"metadata": clashing} if clashing else {})
    if not rest:
        return rest
    try:
        return to_json(rest)
    except (orjson.JSONEncodeError, RecursionError) as error:
        say("metadata", f"a column does not fit into JSON: {error}")
        return {}


def to_json(rest: dict[str, object]) -> dict[str, object]:
    """The same members as JSON can hold them. Raises JSONEncodeError for what is nested too deep."""
    options = orjson.OPT_NON_STR_KEYS
    try:
        text = orjson.dumps(rest, default=_to_text, option=options)
    except orjson.JSONEncodeError:  # about a whole number of more than 64 bits `default` is not asked
        text = orjson.dumps(_spell_numbers(rest), default=_to_text, option=options)
    members: dict[str, object] = orjson.loads(text)
    return members


def _spell_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {key: _spell_numbers(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_spell_numbers(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return value


def _to_text(value: object) -> str | None:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return None if is_absent(value) else str(value)


def is_absent(value: object) -> bool:
    """Whether there is no value: no column, null or NaN."""
    return value is None or value is MISSING or (isinstance(value, float | Decimal) and math.isnan(value))


def is_empty(value: object) -> bool:
    """Whether there is no value or nothing but white space."""
    return is_absent(value) or (isinstance(value, str) and not value.strip())


_ROLES: Final[dict[str, Role]] = {"user": "user", "human": "user", "assistant": "assistant", "ai": "assistant"}
_SYSTEM: Final = frozenset({"system", "developer"})
_TEXTS: Final = ("text", "content")
_ALLOWED: Final = "user (or human), assistant (or ai), and system, which is left out"


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """The turns of a row, None where there are none, and how many instructions of a system stood between them."""

    turns: list[Turn] | None = None
    n_system: int = 0


def read_conversation(value: object, say: Say, *, tabular: bool) -> Conversation:
    """The earlier turns, the oldest first. What is no turn is reported to `say`."""
    items = open_list(value) if tabular else value
    if is_absent(items) or (tabular and is_empty(items)):
        return Conversation()
    if not isinstance(items, list):
        say("conversation", f"conversation is not a list of turns but {name_kind(items)}: {quote_value(items)}")
        return Conversation()
    spoken = [(place, item) for place, item in enumerate(items, start=1) if not _is_system(item)]
    turns = [turn for place, item in spoken if (turn := _read_turn(item, place, say, tabular=tabular)) is not None]
    return Conversation(turns=turns or None, n_system=len(items) - len(spoken))


def _is_system(item: object) -> bool:
    return isinstance(item, dict) and item.get("role") in _SYSTEM


def _read_turn(item: object, place: int, say: Say, *, tabular: bool) -> Turn | None:
    def complain(_: object, text: str) -> None:
        say("conversation", f"turn {place} of the conversation: {text}")

    if not isinstance(item, dict):
        complain(None, f"it is {name_kind(item)}, not an object: {quote_value(item)}")
        return None
    role = _ROLES.get(str(item.get("role")))
    if role is None:
        came = f"has the role {quote_value(item['role'])}" if "role" in item else "has no role"
        complain(None, f"it {came}; allowed: {_ALLOWED}")
        return None
    text = _read_words(item, complain)
    contexts = read_contexts(item.get("contexts"), complain, tabular=tabular)
    given_ids = read_ids(item.get("context_ids"), "context_ids", complain, tabular=tabular)
    ids = contexts.ids if given_ids is None else given_ids
    if role == "user" and not (contexts.texts is None and ids is None):
        complain(None, "it is the user's and has contexts; only an assistant's turn rests on some")
    if ids is not None and len(ids) != len(contexts.texts or ()):
        complain(None, f"it has {len(ids)} context_ids for {len(contexts.texts or ())} contexts")
    return Turn(role=role, text=text, contexts=contexts.texts, context_ids=ids)


def _read_words(item: dict[str, object], complain: Say) -> str:
    """What was said; "" after a complaint. The parts of a message that has several are one text."""
    value = next((item[key] for key in _TEXTS if not is_absent(item.get(key))), None)
    if isinstance(value, list) and all(_is_text_part(part) for part in value):
        value = "\n".join(cast(str, part["text"]) for part in value)
    text = read_text(value, "its text", complain)
    if text is None and (is_empty(value) or value is None):
        complain("conversation", f"it has no text; it has: {list_names(list(item), 8)}")
    return text or ""


def _is_text_part(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


Steps = tuple[str | int, ...]

COLUMNS: Final = frozenset(
    {"input", "inputs", "output", "outputs", "expected_output", "expectedOutput", "expected", "reference_outputs"}
)
"""The columns that such tools write objects to, some of them as JSON text."""
_ASKING_ROLES: Final[Mapping[str, tuple[str, ...]]] = {"question": ("user", "human")}
_ANSWERING = ("assistant", "ai")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {"question": ("question", "user_input", "input", "query", "prompt")}
_DEEPEST = 8
_ANSWER_KEYS = ("answer", "response", "output", "expected_output", "ground_truth", "reference")


def is_recorded(value: object) -> bool:
    """Whether a value is an object, or a list of them, and not a text or a list of texts."""
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def find_text(value: object, field: str, depth: int = 0) -> Steps | None:
    """The steps to the one text of an object or list that is this field's; None where there is not exactly one."""
    if isinstance(value, str):
        return ()
    if isinstance(value, list):
        return _find_message(value, field, depth)
    if not isinstance(value, dict) or depth > _DEEPEST:
        return None
    if "messages" in value:
        return _go_into(value, "messages", field, depth)
    keys = [key for key in _KEYS.get(field, _ANSWER_KEYS) if key in value] or (list(value) if len(value) == 1 else [])
    if "role" in value or "type" in value:
        keys = ["content"] if "content" in value else []
    return _go_into(value, keys[0], field, depth) if len(keys) == 1 else None


def _go_into(value: Mapping[str, object], key: str, field: str, depth: int) -> Steps | None:
    inner = find_text(value[key], field, depth + 1)
    return None if inner is None else (key, *inner)


def _find_message(messages: list[object], field: str, depth: int) -> Steps | None:
    """The only message of the user, or the assistant's where it is the last; the text where it is the only part."""
    if len(messages) == 1 and isinstance(messages[0], dict) and messages[0].get("type") == "text":
        return (0, "text")
    roles = [item.get("role") or item.get("type") if isinstance(item, dict) else None for item in messages]
    if field in _ASKING_ROLES:
        places = [place for place, role in enumerate(roles) if role in _ASKING_ROLES[field]]
    else:
        places = [len(roles) - 1] if roles and roles[-1] in _ANSWERING else []
    if len(places) != 1:
        return None
    inner = find_text(messages[places[0]], field, depth + 1)
    return None if inner is None else (places[0], *inner)


def list_texts(value: object, name: str, depth: int = 0) -> Iterator[str]:
    """The places of all texts inside a value, as --map names them; `name` is that of the value."""
    if isinstance(value, str):
        yield name
    elif isinstance(value, dict) and depth <= _DEEPEST:
        for key, member in value.items():
            if key not in ("role", "type"):
                yield from list_texts(member, f"{name}.{key}", depth + 1)
    elif isinstance(value, list) and depth <= _DEEPEST:
        for place, item in enumerate(value):
            yield from list_texts(item, f"{name}[{place}]", depth + 1)
