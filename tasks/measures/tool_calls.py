"""Tool calls: the calls a bot made against those it was expected to make, by name, arguments and order.

A made call agrees with an expected one of the same name by the share of what is right in it: the name, and each of the
arguments that either of them has. Expected and made calls are paired so that the agreements add up to the most,
in order or in any order, and the score is 2 x agreements / (expected + made): a missing call costs as much as an extra
one, and no call where none was expected is right. No judge is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from evalhouse.prompts import Grade

RUBRIC = "tool_calls"
_SHAPES = '{"name": …, "args": {…}}, {"function": {"name": …, "arguments": …}} or {"name": …, "input": {…}}'
_UNREADABLE = "(unreadable)"


class ToolCallError(ValueError):
    """Expected tool calls have an unknown shape; the text says what came and what is read."""


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """One call. `accepted` gives arguments several values that are right, None among them when it may be left out."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    accepted: Mapping[str, Sequence[Any]] = field(default_factory=dict)


def read_tool_calls(value: object, *, strict: bool) -> list[ToolCall]:
    """Return calls from a list of objects as OpenAI, Anthropic and LangChain have them, or the JSON of one.

    `strict`: whatever cannot be read raises ToolCallError. Otherwise it is a call that agrees with none, for it is the
    bot that made it.
    """
    try:
        entries = _open_json(value)
        if not isinstance(entries, list):
            raise ToolCallError(f"tool calls are {str(value)[:80]!r}; they must be a list of {_SHAPES}")
    except ToolCallError:
        if strict:
            raise
        return [ToolCall(name=_UNREADABLE)]
    return [_read_call(entry, strict=strict) for entry in entries]


def grade_tool_calls(expected: Sequence[ToolCall], made: Sequence[ToolCall]) -> list[Grade]:
    """Return grades from 0 to 1: `names`, `arguments`, `order`, and the scores `in_order` and `any_order`.

    `names` is the F1 of the names alone, `arguments` the mean agreement of paired calls, `order` what pairing in order
    keeps of what pairing in any order gives; each is 1 where there is nothing to go wrong.

    >>> ask, book = ToolCall(name="ask", arguments={"day": 1}), ToolCall(name="book")
    >>> {grade.criterion: grade.rating for grade in grade_tool_calls([ask, book], [book, ask])}
    {'names': 1.0, 'arguments': 1.0, 'order': 0.5, 'in_order': 0.5, 'any_order': 1.0}
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415  # half a second, which few runs need

    def agree(want: ToolCall, call: ToolCall) -> float:
        if want.name != call.name:
            return 0.0
        n_parts = 1 + len(want.arguments.keys() | want.accepted.keys() | call.arguments.keys())
        return (n_parts - len(_list_wrong(want, call))) / n_parts

    def share(part: float, whole: float) -> float:
        return float(part / whole) if whole else 1.0

    agreements = np.array([[agree(want, call) for call in made] for want in expected])
    agreements = agreements.reshape(len(expected), len(made))
    rows, columns = linear_sum_assignment(agreements, maximize=True)
    pairs = [(int(row), int(column)) for row, column in zip(rows, columns, strict=True)]
    # The most that pairs add up to whose calls come in the same order on both sides, as in sequence alignment.
    best = np.zeros((len(expected) + 1, len(made) + 1))
    for row, column in np.ndindex(agreements.shape):
        paired = best[row, column] + agreements[row, column]
        best[row + 1, column + 1] = max(paired, best[row, column + 1], best[row + 1, column])
    ordered, free = float(best[-1, -1]), float(sum(agreements[pair] for pair in pairs))
    named = [pair for pair in pairs if expected[pair[0]].name == made[pair[1]].name]
    faults = {
        "missing": [call.name for place, call in enumerate(expected) if place not in {row for row, _ in named}],
        "extra": [call.name for place, call in enumerate(made) if place not in {column for _, column in named}],
        "wrong arguments": [
            f"{expected[row].name}: {', '.join(_list_wrong(expected[row], made[column]))}"
            for row, column in named
            if agreements[row, column] < 1
        ],
    }
    note = "; ".join(f"{name} {', '.join(items)}" for name, items in faults.items() if items)
    total = len(expected) + len(made)
    ratings = {
        "names": share(2 * len(named), total),
        "arguments": share(sum(agreements[pair] for pair in named), len(named)),
        "order": share(ordered, free),
        "in_order": share(2 * ordered, total),
        "any_order": share(2 * free, total),
    }
    return [
        Grade(criterion=name, rating=float(rating), reason=note or "all calls as expected")
        for name, rating in ratings.items()
    ]


def _list_wrong(want: ToolCall, call: ToolCall) -> list[str]:
    """Return the names of the arguments that differ, are missing or were not expected."""

    def is_right(name: str) -> bool:
        given = call.arguments.get(name)
        if name in want.accepted:
            return any(_equal(value, given) for value in want.accepted[name])
        return name in want.arguments and name in call.arguments and _equal(want.arguments[name], given)

    names = want.arguments.keys() | want.accepted.keys() | call.arguments.keys()
    return sorted(name for name in names if not is_right(name))


def _equal(one: Any, other: Any) -> bool:  # noqa: ANN401  # JSON values
    """Equal as JSON: 1 is 1.0 and not true; texts are equal but for space around them."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, str) and isinstance(other, str):
        return one.strip() == other.strip()
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool(one == other)


def _read_call(entry: object, *, strict: bool) -> ToolCall:
    call = entry.get("function", entry) if isinstance(entry, dict) else None
    if isinstance(call, dict) and isinstance(call.get("name"), str):
        given: object = next((call[key] for key in ("args", "arguments", "input") if call.get(key) is not None), {})
        try:
            arguments, accepted = _open_json(given), call.get("accepted") or {}
            is_accepted = isinstance(accepted, dict) and all(isinstance(values, list) for values in accepted.values())
            if isinstance(arguments, dict) and is_accepted:
                return ToolCall(name=call["name"], arguments=arguments, accepted=accepted)
        except ToolCallError:
            pass
    if strict:
        raise ToolCallError(f"an expected tool call is {str(entry)[:120]!r}; it must be {_SHAPES}")
    name = call.get("name") if isinstance(call, dict) else None
    return ToolCall(name=f"{name} {_UNREADABLE}" if isinstance(name, str) else _UNREADABLE)


def _open_json(value: object) -> object:
    """Return the JSON value of a text, an empty one as no arguments; what is not a text stays as it is."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return {}
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        raise ToolCallError(f"tool calls hold {value[:80]!r}, which is not valid JSON") from None
