"""From one raw row to one sample, with an id and a hash.

Everything that is none of our fields goes to the metadata, so that nothing is lost: the losing one of two
competing columns, what is left of a nested object, the grade beside a context's text. A row that cannot be
taken gives no sample, after everything that is wrong with it has been reported to `complain`. Which column is which
field is decided in `columns`, which text is meant in an object that a tracing tool wrote in `traces`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from hashlib import sha256
from itertools import islice
from typing import cast

import orjson

from evalhouse.tasks.datasets.columns import MISSING, SAID, ColumnPath, Columns, Field, open_cell, open_list
from evalhouse.tasks.datasets.errors import Complain, ProblemKind
from evalhouse.tasks.datasets.traces import COLUMNS as TRACED
from evalhouse.tasks.datasets.traces import find_text, is_recorded, list_texts
from evalhouse.warehouse.messages import list_names, name_kind, quote_value

TEXT_KEYS = ("text", "content", "page_content")

_EXACT_FLOAT = 2.0**53  # above it neighbouring whole numbers share one float

# A complaint about the row at hand.
Say = Callable[[ProblemKind, str], None]


@dataclass(frozen=True, kw_only=True)
class RawRow:
    """One row as the file has it. `row` is its place as a person counts it, from 1."""

    row: int
    values: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """One normalised row; None stands for what the row does not have.

    `row` is its place in the file as a person counts it, `ordinal` its place among the rows, both from 1.
    `sample_id` is the dataset's own id, else 16 hex digits of SHA-256 over [question, ground_truth]; equal ones
    are numbered later. Several accepted answers are `ground_truths` in the metadata, with the first as `ground_truth`.
    `input_hash` is 32 hex digits of SHA-256 over everything that is judged. `context_ids`
    has "" for a context without one.
    """

    ordinal: int
    row: int
    given_id: str | None
    sample_id: str
    input_hash: str
    question: str
    answer: str | None
    ground_truth: str | None
    contexts: list[str] | None
    context_ids: list[str] | None
    reference_context_ids: list[str] | None
    metadata: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class _Contexts:
    texts: list[str] | None
    ids: list[str] | None  # None when no context has one
    rest: list[dict[str, object]] | None  # what stood beside the texts, by rank; None when nothing did


_NO_CONTEXTS = _Contexts(texts=None, ids=None, rest=None)


class _OpenRow:
    """One raw row while its fields are taken out; `rest` is what is left."""

    def __init__(self, raw: RawRow, columns: Columns, complain: Complain) -> None:
        self.rest = dict(raw.values)
        self.sound = True
        self.located = columns.locate(raw.values)
        self._raw = raw
        self._mapped = columns.mapped
        self._complain = complain

    def say(self, kind: ProblemKind, text: str) -> None:
        self.sound = False
        self._complain(self._raw.row, kind, text)

    def take(self, field: Field) -> object:
        """The field's value, MISSING when the row has no column for it."""
        path = self.located.get(field)
        return MISSING if path is None else self._take_from(path)

    def _take_from(self, path: ColumnPath) -> object:
        path.drop_from(self.rest)
        return path.find(self._raw.values)

    def take_text(self, field: Field) -> str | None:
        """The field's text, that inside an object too where a tracing tool wrote one."""
        path = self.located.get(field)
        if path is None or path.root not in TRACED:
            return read_text(self.take(field), field, self.say)
        value = path.find(self._raw.values)
        # Somebody who names a column has the whole of its text.
        opened = value if field in self._mapped else open_cell(value)
        if not is_recorded(opened):
            return read_text(self.take(field), field, self.say)
        steps = find_text(opened, field)
        if steps is not None:
            return read_text(self._take_from(path.step_into(steps)), field, self.say)
        self.take(field)
        places = [f"--map {field}={place}" for place in islice(list_texts(opened, path.name), 3)]
        to_do = f"; which text is it? {', '.join(places)}, …" if places else ""
        self.say(
            "not_text", f"{field} is {name_kind(opened)} in {path.name!r}, not one text: {quote_value(opened)}{to_do}"
        )
        return None

    def take_question(self) -> str:
        """The question; "" after a complaint."""
        if "question" not in self.located:
            self.say("no_question", f"no question; columns of this row: {list_names(list(self._raw.values), 8)}")
            return ""
        text = self.take_text("question")
        if text is None and self.sound:
            self.say("no_question", "the question is empty")
        return text or ""


def normalise_row(
    raw: RawRow, *, ordinal: int, columns: Columns, complain: Complain, tabular: bool
) -> SampleRow | None:
    """One sample, or None after all that is wrong with the row was reported to `complain`.

    `tabular`: the row comes from a table, whose cells may hold lists and objects as JSON text.
    """
    row = _OpenRow(raw, columns, complain)
    question = row.take_question()
    answer, ground_truth = row.take_text("answer"), row.take_text("ground_truth")
    accepted = read_accepted(row.take("ground_truths"), ground_truth, row.say, tabular=tabular)
    ground_truth = accepted[0] if accepted else None
    given_id = read_id(row.take("id"), "id", row.say)
    contexts = read_contexts(row.take("contexts"), row.say, tabular=tabular)
    context_ids = read_ids(row.take("context_ids"), "context_ids", row.say, tabular=tabular)
    reference_ids = read_ids(row.take("reference_context_ids"), "reference_context_ids", row.say, tabular=tabular)
    if context_ids is None:
        context_ids = contexts.ids
    elif contexts.texts is not None and len(contexts.texts) != len(context_ids):
        row.say("ids", f"context_ids has {len(context_ids)} ids for {len(contexts.texts)} contexts")
    texts = (question or None, answer, ground_truth, contexts.texts)
    columns.use.add(row.located, row.rest, [SAID[place] for place, text in enumerate(texts) if text is not None])
    metadata = read_metadata(row.rest, contexts.rest, row.say, tabular=tabular)
    if len(accepted) > 1:
        metadata = {**metadata, "ground_truths": accepted}
    if not row.sound:
        return None
    return SampleRow(
        ordinal=ordinal,
        row=raw.row,
        given_id=given_id,
        sample_id=given_id or hash_json([question, ground_truth], 16),
        input_hash=hash_inputs(
            question=question,
            answer=answer,
            ground_truth=ground_truth,
            contexts=contexts.texts,
            context_ids=context_ids,
            reference_context_ids=reference_ids,
            ground_truths=accepted,
        ),
        question=question,
        answer=answer,
        ground_truth=ground_truth,
        contexts=contexts.texts,
        context_ids=context_ids,
        reference_context_ids=reference_ids,
        metadata=metadata,
    )


def read_given_id(raw: RawRow, columns: Columns) -> str | None:
    """The dataset's own id of a row, None where it has none or one that is not an id."""
    path = columns.locate(raw.values).get("id")
    return None if path is None else read_id(path.find(raw.values), "id", lambda _kind, _text: None)


def hash_inputs(
    *,
    question: str,
    answer: str | None,
    ground_truth: str | None,
    contexts: list[str] | None,
    context_ids: list[str] | None,
    reference_context_ids: list[str] | None,
    ground_truths: Sequence[str] = (),
) -> str:
    """The `input_hash` of a sample: it changes when anything that is judged changes.

    `ground_truths` are all accepted answers; a single one is the ground truth and says nothing more.
    """
    judged: dict[str, object] = {
        "answer": answer,
        "context_ids": context_ids,
        "contexts": contexts,
        "ground_truth": ground_truth,
        "question": question,
        "reference_context_ids": reference_context_ids,
    }
    return hash_json({**judged, "ground_truths": ground_truths} if len(ground_truths) > 1 else judged, 32)


def hash_json(value: object, digits: int) -> str:
    """The first hex digits of SHA-256 over canonical JSON: sorted keys, no spaces, non-ASCII as it is."""
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:digits]


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


def read_contexts(value: object, say: Say, *, tabular: bool) -> _Contexts:
    """The texts by rank, with the ids and whatever else stood beside them. An empty list stays an empty list."""
    items = _read_list(value, "contexts", "contexts", say, tabular=tabular)
    if items is None:
        return _NO_CONTEXTS
    if all(isinstance(item, str) for item in items):
        return _Contexts(texts=cast(list[str], items), ids=None, rest=None)
    texts, ids, rest = [], [], []
    for rank, item in enumerate(items, start=1):
        others = dict(item) if isinstance(item, dict) else {}
        texts.append(_take_context_text(item, others, rank, say))
        ids.append(_take_context_id(others, rank, say))
        rest.append({key: other for key, other in others.items() if other is not None})
    return _Contexts(texts=texts, ids=ids if any(ids) else None, rest=rest if any(rest) else None)


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
