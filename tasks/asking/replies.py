"""Reading a judge's reply: JSON out of whatever text it came in, checked against what was asked.

Endpoints without structured output put JSON in a fence or after prose; that much is accepted. What is in it is
checked strictly: each id that was sent must come back exactly once with an allowed label. A verdict that breaks
this is as good as missing, and is asked for again.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import orjson

from evalhouse.tasks.judge.errors import UnusableReply

_MOST_FALSE_STARTS = 100
# Not strict: models write line breaks into texts as they are.
_DECODER = json.JSONDecoder(strict=False)
_THINK, _THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One verdict as the judge gave it: a label, or the ids of supporting contexts."""

    reason: str
    label: str | None = None
    contexts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Verdicts:
    """The usable verdicts of one reply by id, and what was wrong with the rest."""

    by_id: Mapping[str, Verdict]
    problems: tuple[str, ...] = ()


_Check = Callable[[Mapping[str, object], str], Verdict | str]


@dataclass(frozen=True, kw_only=True)
class _FoundObject:
    """A JSON object within a text, and where it stands there."""

    value: dict[str, object]
    start: int
    end: int


@dataclass(kw_only=True)
class _Sorting:
    """Verdicts on their way to being usable or not."""

    good: dict[str, Verdict] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)


def parse_object(text: str, key: str) -> dict[str, object]:
    """The JSON object with `key` in a reply; raises UnusableReply when there is none or it is cut off.

    The last one counts where there are several, since models think aloud before they answer. Thoughts that are marked
    as such hold no answer, and neither do drafts when the answer after them is cut off.
    """
    if not text.strip():
        raise UnusableReply("the reply was empty")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        fitting = [match for match in _find_objects(text) if key in match.value]
        if not fitting or _is_draft(text, fitting[-1], key):
            raise UnusableReply(f'the reply held no complete JSON object with "{key}"') from None
        return _as_storable(fitting[-1].value)
    if not isinstance(value, dict):
        raise UnusableReply(f"the reply was no JSON object but {type(value).__name__}")
    return value


def read_statements(text: str) -> list[str]:
    """The statements of an `extract` reply, without blank ones and exact repeats."""
    statements = parse_object(text, "statements").get("statements")
    if not isinstance(statements, list) or not all(isinstance(item, str) for item in statements):
        raise UnusableReply('the reply had no list of texts under "statements"')
    return list(dict.fromkeys(" ".join(item.split()) for item in statements if item.strip()))


def read_labels(text: str, allowed: Mapping[str, Collection[str]]) -> Verdicts:
    """Verdicts with labels, of a `classify` or `rank` reply. `allowed` gives each asked id its labels."""

    def check(entry: Mapping[str, object], item_id: str) -> Verdict | str:
        label = entry.get("label")
        if not isinstance(label, str) or label not in allowed[item_id]:
            return f"{item_id} has the label {label!r:.60}, allowed: {', '.join(sorted(allowed[item_id]))}"
        return Verdict(reason=_read_reason(entry), label=label)

    return _read_verdicts(text, allowed.keys(), check)


def read_supports(text: str, asked: Collection[str], context_ids: Collection[str]) -> Verdicts:
    """Verdicts with lists of contexts, of an `attribute` reply."""

    def check(entry: Mapping[str, object], item_id: str) -> Verdict | str:
        contexts = entry.get("contexts")
        if not isinstance(contexts, list):
            return f"{item_id} has no list of contexts"
        unknown = [item for item in contexts if not isinstance(item, str) or item not in context_ids]
        if unknown:
            return f"{item_id} names the context {unknown[0]!r:.60}, which was not given"
        return Verdict(reason=_read_reason(entry), contexts=tuple(dict.fromkeys(contexts)))

    return _read_verdicts(text, asked, check)


def _read_verdicts(text: str, asked: Collection[str], check: _Check) -> Verdicts:
    entries = parse_object(text, "verdicts").get("verdicts")
    if not isinstance(entries, list):
        raise UnusableReply('the reply had no list under "verdicts"')
    sorting = _Sorting()
    for entry in entries:
        _sort_entry(entry, asked, check, sorting)
    missing = [item for item in asked if item not in sorting.good]
    if missing:
        sorting.problems.append(f"no usable verdict for {', '.join(missing)}")
    if asked and not sorting.good:
        raise UnusableReply("; ".join(sorting.problems))
    return Verdicts(by_id=sorting.good, problems=tuple(sorting.problems))


def _sort_entry(entry: object, asked: Collection[str], check: _Check, sorting: _Sorting) -> None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        sorting.problems.append("a verdict has no id")
        return
    item_id = entry["id"].strip().strip("[]")
    if item_id not in asked:
        sorting.problems.append(f"{item_id!r:.60} was not asked for")
        return
    if item_id in sorting.seen:
        sorting.problems.append(f"{item_id} came more than once")
        sorting.good.pop(item_id, None)
        return
    sorting.seen.add(item_id)
    verdict = check(entry, item_id)
    if isinstance(verdict, str):
        sorting.problems.append(verdict)
    else:
        sorting.good[item_id] = verdict


def _read_reason(entry: Mapping[str, object]) -> str:
    reason = entry.get("reason")
    return reason.strip() if isinstance(reason, str) else ""


def _as_storable(value: dict[str, object]) -> dict[str, object]:
    """The object as the warehouse can keep it: half a surrogate pair and numbers beyond 64 bits are refused."""
    try:
        stored: dict[str, object] = orjson.loads(orjson.dumps(value))
    except orjson.JSONEncodeError as error:
        raise UnusableReply(f"the reply held what cannot be stored: {error}") from None
    return stored


def _is_draft(text: str, match: _FoundObject, key: str) -> bool:
    """Whether the answer proper was still to come: what was found stands in thoughts, or before another one's start."""
    before, after = text[: match.start], text[match.end :]
    thinks = _THOUGHT in after or before.rfind(_THINK) > before.rfind(_THOUGHT)
    return thinks or re.search(rf'\{{\s*"{re.escape(key)}"\s*:', after) is not None


def _find_objects(text: str) -> Iterator[_FoundObject]:
    """The complete JSON objects within a text, outermost first come.

    A bracket that opens none costs a scan, so only so many are tried: a text made of brackets must not keep us busy.
    """
    false_starts = 0
    place = text.find("{")
    while place != -1 and false_starts < _MOST_FALSE_STARTS:
        try:
            value, end = _DECODER.raw_decode(text, place)
            yield _FoundObject(value=value, start=place, end=end)
            place = end
        except (json.JSONDecodeError, RecursionError):
            false_starts += 1
            place += 1
        place = text.find("{", place)
