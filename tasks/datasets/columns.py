"""Which column of a dataset is which field of a sample.

The common tools name the same few things differently. `ALIASES` holds the names that are understood without
being told, in the order in which they win where a row has several; `--map ours=theirs` goes before them and may
name any place inside a nested column. dataset_rows takes the fields of a row with `Columns`; dataset.py asks it
which mapped column never came.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Final, Literal, get_args

import orjson

from evalhouse.tasks.datasets.errors import DatasetError, refuse_dataset
from evalhouse.tasks.messages import list_names

Field = Literal["question", "answer", "ground_truth", "contexts", "id", "context_ids", "reference_context_ids"]
FIELDS: tuple[Field, ...] = get_args(Field)

ALIASES: dict[Field, tuple[str, ...]] = {
    "question": ("question", "user_input", "input", "query", "inputs.question", "prompt"),
    "answer": ("answer", "response", "actual_output", "output", "outputs.answer", "generated_answer"),
    "ground_truth": (
        "ground_truth",
        "reference",
        "expected_output",
        "reference_answer",
        "ground_truths[0]",
        "reference_outputs.answer",
    ),
    "contexts": ("contexts", "retrieved_contexts", "retrieval_context", "context", "documents"),
    "id": ("id", "sample_id", "query_id", "qid"),
    "context_ids": ("context_ids", "retrieved_context_ids"),
    "reference_context_ids": ("reference_context_ids", "reference_contexts_ids", "gold_context_ids"),
}

_REMEMBERED_SHAPES = 100  # sets of columns; rows of one file have few
MISSING: Final = object()  # no such column, which is not the same as a column that is empty here


class ColumnPath:
    """A column by its name, or a place inside one: `outputs.answer`, `ground_truths[0]`."""

    def __init__(self, name: str) -> None:
        self.name = name
        steps = name.replace("[", ".").replace("]", "").split(".")
        self._root = steps[0]
        self._inner: list[str | int] = [int(step) if step.isdecimal() else step for step in steps[1:]]

    @property
    def root(self) -> str:
        return self._root

    @property
    def is_nested(self) -> bool:
        return bool(self._inner)

    def find(self, row: Mapping[str, object], *, tabular: bool) -> object:
        """The value there, or MISSING. A column of exactly this name comes first: flattened tables have them."""
        if self.name in row:
            return row[self.name]
        if not self._inner or self._root not in row:
            return MISSING
        value = row[self._root]
        for step in self._inner:
            value = _step_into(open_cell(value) if tabular else value, step)
        return value

    def drop_from(self, rest: dict[str, object], *, tabular: bool) -> None:
        """Take the value out of `rest`; what stood around it stays."""
        root = self.name if self.name in rest else self._root
        if root not in rest:
            return
        inner = [] if root == self.name else self._inner
        left = _leave_out(rest[root], inner, tabular=tabular)
        if left is MISSING:
            del rest[root]
        else:
            rest[root] = left

    def is_column_of(self, names: Mapping[str, object]) -> bool:
        """Whether a table with these columns can have this one."""
        return self.name in names or (self.is_nested and self._root in names)


class Columns:
    """The columns of each field: its aliases, or what `--map` says.

    A column named in the mapping is no alias of another field any more, so that `ground_truth=answer` leaves
    the answer to the next name that is understood. Raises DatasetError for a field that is not ours.
    """

    def __init__(self, mapping: Mapping[str, str]) -> None:
        for ours, theirs in mapping.items():
            if ours not in FIELDS or not theirs.strip():
                raise _refuse_mapping(ours, theirs)
        taken = set(mapping.values())
        self._paths: dict[Field, list[ColumnPath]] = {}
        for field in FIELDS:
            names = [mapping[field]] if field in mapping else [name for name in ALIASES[field] if name not in taken]
            self._paths[field] = [ColumnPath(name) for name in names]
        self._nested_roots = {path.root for paths in self._paths.values() for path in paths if path.is_nested}
        self._shapes: dict[tuple[str, ...], dict[Field, ColumnPath]] = {}  # of rows whose columns' names say it all
        self._awaited = {field: self._paths[field][0] for field in FIELDS if field in mapping}

    def names_of(self, field: Field) -> list[str]:
        return [path.name for path in self._paths[field]]

    def locate(self, row: Mapping[str, object], *, tabular: bool) -> Mapping[Field, ColumnPath]:
        """The column of each field that this row has one for: the first of its names that is there."""
        shape = tuple(row)
        located = self._shapes.get(shape)
        if located is not None:
            return located
        located = {}
        for field, paths in self._paths.items():
            path = next((path for path in paths if path.find(row, tabular=tabular) is not MISSING), None)
            if path is not None:
                located[field] = path
                self._awaited.pop(field, None)
        if len(self._shapes) < _REMEMBERED_SHAPES and not any(root in row for root in self._nested_roots):
            self._shapes[shape] = located
        return located

    def list_unseen(self) -> list[str]:
        """The mappings whose column no row has shown yet, as `ours=theirs`."""
        return [f"{field}={path.name}" for field, path in self._awaited.items()]

    def list_impossible(self, row: Mapping[str, object]) -> list[str]:
        """The mappings whose column a table with rows like this one cannot have, as `ours=theirs`."""
        return [f"{field}={path.name}" for field, path in self._awaited.items() if not path.is_column_of(row)]


def open_cell(value: object) -> object:
    """The list or object that a table's cell holds as JSON text; anything else as it came."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
        return value
    try:
        opened: object = orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    return opened


def _step_into(value: object, step: str | int) -> object:
    if isinstance(value, dict):
        return value.get(step if step in value else str(step), MISSING)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return MISSING


def _leave_out(value: object, inner: list[str | int], *, tabular: bool) -> object:
    """`value` without the place that the steps lead to, MISSING when nothing is left.

    A list of several stays whole: with one taken out the others would change their places.
    """
    if not inner:
        return MISSING
    value = open_cell(value) if tabular else value
    if isinstance(value, list):
        return MISSING if len(value) == 1 and len(inner) == 1 else value
    if not isinstance(value, dict):
        return value
    key = inner[0] if inner[0] in value else str(inner[0])
    left = {name: member for name, member in value.items() if name != key}
    inside = _leave_out(value.get(key, MISSING), inner[1:], tabular=tabular)
    if inside is not MISSING:
        left[key] = inside
    return left or MISSING


def _refuse_mapping(ours: str, theirs: str) -> DatasetError:
    if ours in FIELDS:
        return refuse_dataset(
            f"--map {ours}= names no column",
            allowed=f"--map {ours}=COLUMN, where a place inside one is written outputs.answer or answers[0]",
            to_do="name the column",
        )
    close = get_close_matches(ours, FIELDS, n=1)
    return refuse_dataset(
        f"--map {ours}={theirs}: {ours!r} is no field of ours" + (f", did you mean {close[0]!r}?" if close else ""),
        allowed=list_names(FIELDS),
        to_do="write --map ours=theirs; a column that is none of these is kept as metadata without being mapped",
    )
