"""A span as all formats are read: one step of a bot's work on one question, with what was asked and answered in it."""

import ast
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

import orjson

from evalhouse.tasks.datasets.values import open_cell

Kind = Literal["chain", "llm", "retriever", "reranker", "tool", "embedding", "other"]
Tree = Mapping[str, Any]
Blame = Callable[[str], None]
"""Takes what is wrong with a row that no span can be read from."""


_COUNT: Final = re.compile(r"\d{1,15}(\.0)?")
_LATEST: Final = 253_402_300_800  # seconds of the epoch at the end of the year 9999, beyond which there are no dates
# What Python reads takes some hundred bytes for each member.
_LONGEST_PYTHON: Final = 4_000_000
_MOST_IN_PYTHON: Final = 100_000


@dataclass(frozen=True, kw_only=True)
class Document:
    """What a retriever found: a text, or None where only its id was recorded."""

    text: str | None
    id: str | None = None
    score: float | None = None
    metadata: Any = None


@dataclass(frozen=True, kw_only=True)
class Span:
    """One step. Times are seconds of the epoch; `ended_at` is None while it runs. `error` is why it failed.

    `turns` is what was said before the question, where the span has it: objects with role and text. `documents` is None
    for what retrieves nothing, and empty for a retriever that found nothing. `passed_on` are those that a chain gave
    out with its answer.
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
    answer: str | None = None
    documents: tuple[Document, ...] | None = None
    passed_on: tuple[Document, ...] | None = None
    tool_calls: tuple[Tree, ...] = ()
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None
    session: str | None = None
    service: str | None = None
    metadata: Tree = field(default_factory=dict)


LANGFUSE_KINDS: Final[Mapping[str, Kind]] = {
    "generation": "llm", "retriever": "retriever", "tool": "tool", "embedding": "embedding", "chain": "chain",
    "agent": "chain", "span": "chain",
}  # fmt: skip
"""Langfuse's types of observations, in small letters."""


def tell_reranker(kind: Kind, name: str) -> Kind:
    """A retriever's kind by its name as well: Langfuse has no type for what puts documents in another order."""
    return "reranker" if kind == "retriever" and "rerank" in name.lower() else kind


def read_time(value: object) -> float | None:
    """Seconds of the epoch from a time as exports write it: ISO 8601, nanoseconds, milliseconds or seconds.

    None for what is no time, or lies after all dates.
    """
    value = _read_number(value) if isinstance(value, str) else value
    if isinstance(value, datetime):
        seconds = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        return seconds if seconds < _LATEST else None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _LATEST * 1e9:
        return None
    for factor, least in ((1e9, 1e17), (1e6, 1e14), (1e3, 1e11)):  # in seconds all of these lie after the year 5000
        if value >= least:
            return value / factor
    return float(value)


def _read_number(text: str) -> object:
    try:
        return int(text) if text.isdecimal() else datetime.fromisoformat(text.strip())
    except ValueError:
        return None


def read_count(value: object) -> int | None:
    """A number of tokens, None for anything else."""
    if isinstance(value, str) and _COUNT.fullmatch(value):  # as text in a table with empty cells
        return int(float(value))
    is_count = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
    return int(cast(float, value)) if is_count else None


def count_tokens(usage: Tree, side: Literal["input", "output"]) -> int | None:
    """Tokens that went into a model, or came out, of all kinds as Langfuse names them; cached ones stand beside `input`
    and reasoning beside `output`. None where nothing says how many."""
    counts = [read_count(value) for name, value in usage.items() if side in name.lower()]
    known = [count for count in counts if count is not None]
    if known:
        return sum(known)
    names = ("prompt_tokens", "promptTokens") if side == "input" else ("completion_tokens", "completionTokens")
    return next((count for name in names if (count := read_count(usage.get(name))) is not None), None)


def read_score(value: object) -> float | None:
    """A retriever's score of a document."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def read_name(value: object) -> str | None:
    """A name or an id as text."""
    if isinstance(value, str):
        return value.strip() or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def open_value(value: object) -> object:
    """The list or object that a text holds, in JSON or as Python prints it, which is how pandas writes one to CSV."""
    opened = open_cell(value)
    if isinstance(opened, str) and opened.lstrip()[:1] in ("[", "{"):
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return _read_python(opened.strip())
    return opened


def _read_python(text: str) -> object:
    """What Python prints; raises ValueError for more of it than is read, and for what JSON has nothing for."""
    if len(text) > _LONGEST_PYTHON or text.count(",") > _MOST_IN_PYTHON:
        raise ValueError("too long")
    value: object = ast.literal_eval(text)
    try:
        orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError as error:  # a number of hundreds of digits, half a character
        raise ValueError(str(error)) from None
    return value


def read_tree(value: object) -> Tree:
    """An object, or the one that a text holds; an empty one for anything else."""
    value = open_value(value)
    return value if isinstance(value, Mapping) else {}


def read_list(value: object) -> list[Any] | None:
    """A list, the one that a text holds, or the members 0, 1, … of an object; None for anything else."""
    value = open_value(value)
    if isinstance(value, Mapping) and value and all(str(key).isdecimal() for key in value):
        return [value[key] for key in sorted(value, key=int)]
    return list(value) if isinstance(value, list | tuple) else None


def nest(attributes: Tree) -> dict[str, Any]:
    """Attributes as a tree: `a.0.b` is member b of member 0 of a. What is in the way of a longer name gives way."""
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
