"""Which column of a dataset is read as which of our fields.

The common tools name the same few things differently: `ALIASES` holds the names that are understood, in the order in
which they win where a row has several; the same words in another case or joined otherwise (`expectedOutput`) count as
well, after all that are spelled exactly. `--map ours=theirs` goes before them and may name any place inside a nested
column. What is only likely is never read: `suggest` names it, with the --map to type.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import lru_cache
from typing import Final, Literal, get_args

import orjson

from evalhouse.tasks.datasets.errors import DatasetError, ReadingStopped, refuse_dataset
from evalhouse.warehouse.messages import list_names
from evalhouse.warehouse.names import suggest

Field = Literal[
    "question", "answer", "ground_truth", "ground_truths", "contexts", "id", "context_ids", "reference_context_ids"
]
FIELDS: tuple[Field, ...] = get_args(Field)

ALIASES: dict[Field, tuple[str, ...]] = {
    "question": ("question", "user_input", "input", "query", "inputs.question", "prompt", "inputs"),
    "answer": ("answer", "response", "actual_output", "output", "outputs.answer", "generated_answer", "outputs"),
    "ground_truth": (
        "ground_truth",
        "reference",
        "expected_output",
        "reference_answer",
        "ground_truths[0]",
        "reference_outputs.answer",
        "reference_outputs",
        "expected",
        "expected_answer",
        "ideal",
        "gold_answer",
        "correct_answer",
    ),
    "ground_truths": ("ground_truths",),
    "contexts": (
        "contexts",
        "retrieved_contexts",
        "retrieval_context",
        "context",
        "documents",
        "outputs.contexts",
        "outputs.documents",
    ),
    "id": ("id", "sample_id", "query_id", "qid"),
    "context_ids": ("context_ids", "retrieved_context_ids"),
    "reference_context_ids": ("reference_context_ids", "reference_contexts_ids", "gold_context_ids"),
}

# What may be meant, but may be something else as well: named with the --map to type, and never read by itself.
LIKELY: dict[Field, tuple[str, ...]] = {
    "question": ("text", "message", "instruction", "user_question", "q"),
    "answer": (
        "completion", "prediction", "predicted", "generation", "generated_text", "reply", "result", "model_answer",
        "model_output", "model_response", "bot_answer", "llm_output",
    ),
    "ground_truth": ("gold", "target", "label", "answers", "references", "truth", "solution", "best_answer"),
    "contexts": (
        "passages", "chunks", "docs", "sources", "retrieved", "retrieved_documents", "retrieved_docs", "evidence",
        "search_results",
    ),
}  # fmt: skip
SAID: Final[tuple[Field, ...]] = ("question", "answer", "ground_truth", "contexts")
_OF_THE_TARGET: tuple[Field, ...] = ("answer", "contexts")

# LangSmith writes `inputs` and `outputs` for its datasets, where `outputs` is the reference, and for the runs of a bot,
# where it is the answer. These columns have only the one or the other.
_EXAMPLE_MARKS = frozenset({"dataset_id", "source_run_id", "modified_at", "split", "dataset_split"})
_RUN_MARKS = frozenset({"run_type", "trace_id", "dotted_order", "start_time", "session_id", "parent_run_id"})

_REMEMBERED_NAMES = 1000  # of a JSON file whose every row has other keys
_REMEMBERED_SHAPES = 100  # sets of columns; rows of one file have few
MISSING: Final = object()  # no such column, which is not the same as a column that is empty here


_PLACE = re.compile(r"-?\d{1,9}")


class ColumnPath:
    """A column by its name, or a place inside one: `outputs.answer`, `ground_truths[0]`, `messages[-1].content`."""

    def __init__(self, name: str) -> None:
        self.name = name
        steps = name.replace("[", ".").replace("]", "").split(".")
        self._root = steps[0]
        self._inner: list[str | int] = [int(step) if _PLACE.fullmatch(step) else step for step in steps[1:]]

    def step_into(self, steps: Iterable[str | int]) -> "ColumnPath":
        """A place further inside."""
        return ColumnPath(".".join(map(str, (self.name, *steps))))

    @property
    def root(self) -> str:
        return self._root

    @property
    def is_nested(self) -> bool:
        return bool(self._inner)

    def find(self, row: Mapping[str, object]) -> object:
        """The value there, or MISSING. A column of exactly this name comes first: flattened tables have them."""
        if self.name in row:
            return row[self.name]
        if not self._inner or self._root not in row:
            return MISSING
        value = row[self._root]
        for step in self._inner:
            value = _step_into(open_cell(value), step)
        return value

    def drop_from(self, rest: dict[str, object]) -> None:
        """Take the value out of `rest`; what stood around it stays."""
        root = self.name if self.name in rest else self._root
        if root not in rest:
            return
        inner = [] if root == self.name else self._inner
        left = _leave_out(rest[root], inner)
        if left is MISSING:
            del rest[root]
        else:
            rest[root] = left

    def is_column_of(self, names: Mapping[str, object]) -> bool:
        """Whether a table with these columns can have this one."""
        return self.name in names or (self.is_nested and self._root in names)


class ColumnUse:
    """What was made of the columns of the rows read so far: which became which field, and which stayed metadata."""

    def __init__(self) -> None:
        self.columns: dict[Field, dict[str, None]] = {}
        self.unread: dict[str, None] = {}
        self.n_filled: Counter[Field] = Counter()
        self.n_rows = 0
        self.encoding: str | None = None
        self.was_named = False  # the encoding, by a person
        self._located: Mapping[Field, ColumnPath] | None = None
        self._rest: set[str] = set()

    def add(self, located: Mapping[Field, ColumnPath], rest: Mapping[str, object], filled: Iterable[Field]) -> None:
        """Take note of a row: its columns by field, what is left of it, and the fields that are not empty."""
        self.n_rows += 1
        for field in filled:
            self.n_filled[field] += 1
        if located is self._located and rest.keys() == self._rest:
            return  # as in the row before
        self._located, self._rest = located, set(rest)
        for field, path in located.items():
            self.columns.setdefault(field, {})[path.name] = None
        if len(self.unread) < _REMEMBERED_NAMES:
            read = {"metadata", *(path.root for path in located.values())}
            self.unread.update(dict.fromkeys(name for name in rest if name not in read))

    def describe(self, *, is_asked: bool) -> str:
        """All of it in a line. `is_asked`: a target gives answers and contexts, so that no column need have them."""
        found = [self._describe_field(field) for field in FIELDS if field in self.columns]
        missing = [name for name in self.list_missing(is_asked=is_asked) if name not in self.columns]
        how = "" if self.was_named else ", found by its bytes (--encoding names another)"
        parts = [f"read as {self.encoding}{how}"] if self.encoding else []
        parts += [f"columns: {', '.join(found)}"]
        parts += [f"not found: {', '.join(missing)}"] if missing else []
        parts += [f"kept as metadata: {list_names(list(self.unread), 8)}"] if self.unread else []
        return "; ".join(parts)

    def list_missing(self, *, is_asked: bool) -> list[Field]:
        """The fields of a sample of which no row has anything."""
        wanted = [field for field in SAID if not (is_asked and field in _OF_THE_TARGET)]
        return [field for field in wanted if not self.n_filled[field]]

    def suggest(self, *, is_asked: bool) -> list[str]:
        """For each missing field the columns that may be meant, with the --map to type."""
        return suggest_columns(self.list_missing(is_asked=is_asked), list(self.unread))

    def _describe_field(self, field: Field) -> str:
        names = [name for name in self.columns[field] if name != field]
        text = f"{field} = {' or '.join(names)}" if names else field
        n_filled = self.n_filled[field]
        if field not in SAID or n_filled == self.n_rows:
            return text
        return f"{text} ({f'in {n_filled:,} of {self.n_rows:,} rows' if n_filled else 'empty in every row'})"


def suggest_columns(missing: Iterable[Field], names: list[str]) -> list[str]:
    """A sentence for each of these fields for which one of these columns may be meant."""
    suggestions = []
    for field in missing:
        close = _find_likely(field, names)
        if close is not None:
            theirs = "ground_truths" if close in ("answers", "references") else field
            suggestions.append(f"is {close!r} the {field}? --map {theirs}={close} reads it")
    return suggestions


def _find_likely(field: Field, names: list[str]) -> str | None:
    """The column that may be meant for a field: by what tools call it, else by its spelling."""
    spelled = {_spell(name): name for name in names}
    certain = {_spell(name) for likely in LIKELY.values() for name in likely}
    for name in LIKELY.get(field, ()):
        if _spell(name) in spelled:
            return spelled[_spell(name)]
    known = [_spell(alias) for alias in ALIASES[field] if "." not in alias]
    for name in (name for name in spelled if name not in certain):
        if get_close_matches(name, known, n=1, cutoff=0.8):
            return spelled[name]
    return None


@lru_cache(maxsize=4096)
def _spell(name: str) -> str:
    """A name without case and without what joins its words: `expectedOutput` and `Expected Output` are the same."""
    return re.sub(r"[\s_-]", "", name).casefold()


class Columns:
    """The columns of each field: its aliases, or what `--map` says; `use` takes note of what becomes of them.

    A column named in the mapping is not an alias of another field any more, so that `ground_truth=answer` leaves
    the answer to the next name that is understood. Raises DatasetError for a field that is not ours.
    """

    def __init__(self, mapping: Mapping[str, str], use: ColumnUse | None = None) -> None:
        for ours, theirs in mapping.items():
            if ours not in FIELDS or not theirs.strip():
                raise _refuse_mapping(ours, theirs)
        self.use = use or ColumnUse()
        # Of a column of which a place is named the rest is read as nothing else.
        self._taken = {*mapping.values(), *(ColumnPath(theirs).root for theirs in mapping.values())}
        self._paths: dict[Field, list[ColumnPath]] = {}
        for field in FIELDS:
            aliases = [name for name in ALIASES[field] if name not in self._taken]
            names = [mapping[field]] if field in mapping else aliases
            self._paths[field] = [ColumnPath(name) for name in names]
        self._nested_roots = {path.root for paths in self._paths.values() for path in paths if path.is_nested}
        self._shapes: dict[tuple[str, ...], dict[Field, ColumnPath]] = {}  # of rows whose columns' names say it all
        self.mapped = frozenset(field for field in FIELDS if field in mapping)
        self._awaited = {field: self._paths[field][0] for field in FIELDS if field in mapping}

    def names_of(self, field: Field) -> list[str]:
        return [path.name for path in self._paths[field]]

    def locate(self, row: Mapping[str, object]) -> Mapping[Field, ColumnPath]:
        """The column of each field that this row has one for: the first of its names that is there.

        Raises ReadingStopped where a column may be the one field or the other.
        """
        shape = tuple(row)
        located = self._shapes.get(shape)
        if located is not None:
            return located
        located = {}
        for field, paths in self._paths.items():
            path = next((path for path in paths if path.find(row) is not MISSING), None)
            if path is not None:
                located[field] = path
                self._awaited.pop(field, None)
        self._add_variants(located, row)
        self._settle_outputs(located, row)
        if len(self._shapes) < _REMEMBERED_SHAPES and not any(root in row for root in self._nested_roots):
            self._shapes[shape] = located
        return located

    def _add_variants(self, located: dict[Field, ColumnPath], row: Mapping[str, object]) -> None:
        """Fields whose name this row has in another case, or with its words joined otherwise."""
        used = {path.root for path in located.values()} | self._taken
        spelled = {_spell(name): name for name in reversed(tuple(row)) if name not in used}
        for field, paths in self._paths.items():
            if field in located or field in self.mapped:
                continue
            name = next((spelled[_spell(path.name)] for path in paths if _spell(path.name) in spelled), None)
            if name is not None:
                located[field] = ColumnPath(name)

    def _settle_outputs(self, located: dict[Field, ColumnPath], row: Mapping[str, object]) -> None:
        """Take `outputs` beside `inputs` for what it is: the answer of a bot's run, or the reference of a dataset."""
        path = located.get("answer")
        if path is None or path.root != "outputs" or "inputs" not in row or "answer" in self.mapped:
            return
        if not _RUN_MARKS.isdisjoint(row) or not {"ground_truth", "ground_truths", "contexts"}.isdisjoint(located):
            return
        if _EXAMPLE_MARKS.isdisjoint(row):
            raise ReadingStopped(
                None,
                "columns",
                "'outputs' beside 'inputs' is the reference in a LangSmith dataset and the bot's answer in an export "
                f"of its runs, and no other column says which this is: write --map ground_truth={path.name} or "
                f"--map answer={path.name}",
            )
        located["ground_truth"] = located.pop("answer")

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


def _step_into(value: object, step: str | int) -> object:
    if isinstance(value, dict):
        return value.get(step if step in value else str(step), MISSING)
    if isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
        return value[step]
    return MISSING


def _leave_out(value: object, inner: list[str | int]) -> object:
    """`value` without the place that the steps lead to, MISSING when nothing is left.

    A list of several stays whole: with one taken out the others would change their places.
    """
    if not inner:
        return MISSING
    value = open_cell(value)
    if isinstance(value, list):
        return MISSING if len(value) == 1 and len(inner) == 1 else value
    if not isinstance(value, dict):
        return value
    key = inner[0] if inner[0] in value else str(inner[0])
    left = {name: member for name, member in value.items() if name != key}
    inside = _leave_out(value.get(key, MISSING), inner[1:])
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
    return refuse_dataset(
        f"--map {ours}={theirs}: {ours!r} is not one of our fields; {suggest(ours, FIELDS)}",
        allowed=list_names(FIELDS),
        to_do="write --map ours=theirs; a column that is none of these is kept as metadata without being mapped",
    )
