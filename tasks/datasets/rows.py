"""Samples from raw rows: the columns that are read as our fields, and a sample with an id and a hash of each row.

The common tools name the same few things differently: `ALIASES` holds the names that are understood, in the order in
which they win where a row has several; the same words in another case or joined otherwise (`expectedOutput`) count as
well, after all exact names. `--map ours=theirs` takes precedence and may name any place inside a nested column. What is
only likely is never read: `suggest_columns` names it, with the --map to type.

Everything else goes to the metadata, so that nothing is lost: the losing one of two competing columns, the remainder of
a nested object, the grade beside a context's text. A row that cannot be read gives no sample, after all that is wrong
with it was reported to `complain`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Literal, get_args

import orjson

from evalhouse.tasks.datasets.values import (
    EACH,
    MISSING,
    RECORDED_COLUMNS,
    Complain,
    ContextList,
    ProblemKind,
    ReadingStopped,
    find_text,
    is_absent,
    is_empty,
    is_recorded,
    list_texts,
    open_cell,
    open_text,
    open_value,
    read_contexts,
    read_id,
    read_ids,
    read_list,
    read_metadata,
    read_text,
    refuse_dataset,
)
from evalhouse.warehouse.messages import list_names, name_kind, name_setting, quote_value, suggest
from evalhouse.warehouse.rows.samples import Turn, plain_turns

if TYPE_CHECKING:
    from evalhouse.tasks.datasets.json_path import JsonPath

Field = Literal[
    "question", "answer", "ground_truth", "ground_truths", "contexts", "id", "context_ids", "reference_context_ids",
    "conversation",
]  # fmt: skip
FIELDS: tuple[Field, ...] = get_args(Field)
Turns = Literal["all", "last"]
"""The turns of a conversation that become samples."""
Thoughts = Literal["apart", "within", "beside"]
"""The handling of thoughts of a bot: they go to the metadata, or the ones within an answer are judged, or also the ones
in a column beside it."""

ALIASES: dict[Field, tuple[str, ...]] = {
    "question": (
        "question", "user_input", "input", "query", "inputs.question", "vars.question", "vars.query", "prompt",
        "inputs", "questions",
    ),
    "answer": (
        "answer", "response.output", "response", "actual_output", "output", "outputs.answer", "generated_answer",
        "outputs", "predicted_answers",
    ),
    "ground_truth": (
        "ground_truth", "reference", "expected_output", "reference_answer", "ground_truths[0]",
        "reference_outputs.answer", "reference_outputs", "expected", "expected_answer", "ideal", "gold_answer",
        "correct_answer", "gt_answer", "truth", "generation_gt", "ground_truth_answers",
    ),
    "ground_truths": ("ground_truths",),
    "contexts": (
        "contexts", "retrieved_contexts", "retrieval_context", "context", "documents", "outputs.contexts",
        "outputs.documents", "vars.context", "retrieved_context", "retrieved_contents",
    ),
    "id": ("id", "sample_id", "query_id", "qid"),
    "context_ids": ("context_ids", "retrieved_context_ids", "retrieved_ids"),
    "reference_context_ids": ("reference_context_ids", "reference_contexts_ids", "gold_context_ids", "retrieval_gt"),
    "conversation": ("conversation",),
}  # fmt: skip

# Ids by their name, without what joins its words, and the contexts that they belong to where a file has both.
_BESIDE: Final = {"contextids": "contexts", "retrievedcontextids": "retrievedcontexts"}

# Names that may be meant, but may be something else as well: proposed with the --map to type, and never read.
LIKELY: dict[Field, tuple[str, ...]] = {
    "question": ("text", "message", "instruction", "user_question", "q"),
    "answer": (
        "completion", "prediction", "predicted", "generation", "generated_text", "reply", "result", "model_answer",
        "model_output", "model_response", "bot_answer", "llm_output",
    ),
    "ground_truth": ("gold", "target", "label", "answers", "references", "solution", "best_answer"),
    "contexts": (
        "passages", "chunks", "docs", "sources", "retrieved", "retrieved_documents", "retrieved_docs", "evidence",
        "search_results", "hits",
    ),
    "conversation": ("chat_history", "history", "conversation_history", "message_history", "previous_messages"),
}  # fmt: skip
COUNTED: Final[tuple[Field, ...]] = ("question", "answer", "ground_truth", "contexts")

# LangSmith writes `inputs` and `outputs` for its datasets, where `outputs` is the reference, and for the runs of a bot,
# where it is the answer. Only the one or the other has these columns.
_EXAMPLE_MARKS = frozenset({"dataset_id", "source_run_id", "modified_at", "split", "dataset_split"})
RUN_MARKS = frozenset({"run_type", "trace_id", "dotted_order", "start_time", "session_id", "parent_run_id"})

# The first characters of the marks of thoughts.
_MAY_HOLD_THOUGHTS: Final = re.compile(r"[<\[◁]|\Aanalysis")
ANSWER_THOUGHTS: Final = "answer_thoughts"
"""The metadata that holds the thoughts that were left out of an answer."""
THOUGHT_COLUMNS: Final = ("reasoning_content", "thinking")  # beside an answer; `reasoning` may be that of the truth

_MAX_NAMES = 1000  # columns that are listed of a JSON file whose every row has other keys
_MAX_SHAPES = 100  # sets of columns that are cached; rows of one file have few
_PLACE = re.compile(r"-?\d{1,9}")
# What only JSONPath can say: `$.`, `[*]`, `["a.b"]`, `[1:3]`, `[?…]`, `..` and `.*`.
_QUERY = re.compile(r"\$[.\[]|.*?(?:\[(?:[*'\"?]|-?\d*:)|\.\.|\.\*)", re.DOTALL)
_LISTS: Final[tuple[Field, ...]] = ("ground_truth", "ground_truths", "contexts", "context_ids", "reference_context_ids")


class ColumnPath:
    """A column by its name, or a place inside one: `outputs.answer`, `messages[-1].content`, `$.hits[*].text`.

    The value of a path with several matches is the list of them, for a field that is not a list their joined texts.
    `is_query`: the path is a JSONPath, so that a text there is one item.
    """

    def __init__(self, name: str, field: Field | None = None) -> None:
        self.name = name
        self.is_query = bool(_QUERY.match(name))
        self._query: JsonPath | None = None
        self._is_list = field in _LISTS
        steps: Sequence[str | int]
        if self.is_query:
            # Loading the library takes longer than reading a small dataset.
            from evalhouse.tasks.datasets.json_path import compile_path  # noqa: PLC0415

            path = compile_path(field or "path", name)
            steps = path.steps or ("",)
            self._query = path if path.stem is not None else None
        else:
            written = name.replace("[", ".").replace("]", "").split(".")
            steps = [written[0], *(int(step) if _PLACE.fullmatch(step) else step for step in written[1:])]
        self.root = str(steps[0])  # "" for a path that begins anywhere
        self._inner: list[str | int] = list(steps[1:])
        self.is_nested = bool(self._inner) or self.is_query

    def step_into(self, steps: Iterable[str | int]) -> "ColumnPath":
        """Return a place further inside."""
        if self.is_query:
            return ColumnPath(self.name + "".join(f"[{orjson.dumps(step).decode()}]" for step in steps))
        return ColumnPath(".".join(map(str, (self.name, *steps))))

    def find(self, row: Mapping[str, object]) -> object:
        """Return the value there, or MISSING. A column of exactly this name comes first: flattened tables have them.

        Raises PathError, a ValueError, where a path with several matches cannot be meant for the row.
        """
        if self.name in row:
            return row[self.name]
        if self._query is not None:
            if self._is_list:
                items = self._query.find_items(row)
                return MISSING if items is None else items
            matches = self._query.find(row)
            are_texts = len(matches) > 1 and all(isinstance(match, str) for match in matches)
            return "".join(map(str, matches)) if are_texts else next(iter(matches), MISSING)
        if not self._inner or self.root not in row:
            return row.get(self.root, MISSING)
        value = row[self.root]
        for step in self._inner:
            value = open_value(value)
            if isinstance(value, dict):
                value = value.get(step if step in value else str(step), MISSING)
            elif isinstance(value, list) and isinstance(step, int) and -len(value) <= step < len(value):
                value = value[step]
            else:
                return MISSING
        return value

    def list_members_beside(self, row: Mapping[str, object]) -> list[dict[str, object]]:
        """Return the other members of the objects that each match is in, up to the next list or the row."""
        if self.name in row:
            return []
        if self._query is not None:
            return self._query.list_members_beside(row)
        members: dict[str, object] = {}
        value = row.get(self.root)
        for step in self._inner:
            value = open_value(value)
            if isinstance(value, dict):
                key = step if step in value else str(step)
                members |= {name: member for name, member in value.items() if name != key}
                value = value.get(key)
            else:
                members = {}
                value = value[step] if isinstance(value, list) and isinstance(step, int) else None
        return [{}] if isinstance(value, list) else [members]

    def is_in(self, row: Mapping[str, object]) -> bool:
        """Return True if the row has a place of this name, even an empty one."""
        try:
            return self.find(row) is not MISSING
        except ValueError:
            return True

    def drop_from(self, rest: dict[str, object]) -> None:
        """Take the value out of `rest`; the values around it stay."""
        root = self.name if self.name in rest else self.root
        if root not in rest:
            return
        remainder = _leave_out(rest[root], [] if root == self.name else self._inner)
        if remainder is MISSING:
            del rest[root]
        else:
            rest[root] = remainder


def _leave_out(value: object, inner: list[str | int]) -> object:
    """Return `value` without the place that the steps lead to, MISSING when nothing remains.

    A list of several stays whole: with one taken out the others would change their places.
    """
    if not inner:
        return MISSING
    value = open_value(value)
    if isinstance(value, list):
        if inner[0] == EACH:
            left = [_leave_out(item, inner[1:]) for item in value]
            return MISSING if all(item is MISSING for item in left) else [{} if x is MISSING else x for x in left]
        return MISSING if len(value) == 1 and len(inner) == 1 else value
    if not isinstance(value, dict):
        return value
    key = inner[0] if inner[0] in value else str(inner[0])
    remainder = {name: member for name, member in value.items() if name != key}
    inside = _leave_out(value.get(key, MISSING), inner[1:])
    if inside is not MISSING:
        remainder[key] = inside
    return remainder or MISSING


def _may_open(value: object) -> bool:
    """Return True if there may be places inside a value."""
    return isinstance(value, dict | list) or (isinstance(value, str) and value.lstrip()[:1] in ("[", "{"))


class ColumnUse:
    """The use of the columns of the rows read so far: which became which field, and which stayed metadata."""

    def __init__(self) -> None:
        self.columns: dict[Field, dict[str, None]] = {}
        self.unread: dict[str, object] = {}  # columns that remain, each with the first value that is not empty
        self.n_filled: Counter[Field] = Counter()
        self.n_rows = 0
        self.n_one_text = 0  # rows whose contexts are one text
        self.n_system = 0  # instructions of a system between the turns of conversations
        self.renamed: dict[Field, dict[str, None]] = {}  # the columns of a conversation's row that its turns' come from
        self.encoding: str | None = None
        self.was_named = False  # the user named the encoding
        self.left_ids: tuple[str, str] | None = None  # ids that were not read, and the contexts they belong to
        self._conversations: dict[str, tuple[int, int]] = {}  # by column: how many, and samples of them
        self._located: Mapping[Field, ColumnPath] | None = None
        self._rest: set[str] = set()

    def add(self, located: Mapping[Field, ColumnPath], rest: Mapping[str, object], filled: Iterable[Field]) -> None:
        """Count a row: its columns by field, the columns that remain, and the fields that are not empty."""
        self.n_rows += 1
        for field in filled:
            self.n_filled[field] += 1
        if located is self._located and rest.keys() == self._rest:
            return  # as in the row before
        self._located, self._rest = located, set(rest)
        for field, path in located.items():
            self.columns.setdefault(field, {})[path.name] = None
        if len(self.unread) < _MAX_NAMES:
            read = {"metadata", *(path.root for path in located.values())}
            for name, value in rest.items():
                if name not in read and is_absent(self.unread.get(name)):
                    self.unread[name] = value

    def count_conversation(self, column: str, n_samples: int) -> None:
        """Count a conversation: its column, and how many samples it became."""
        n, n_before = self._conversations.get(column, (0, 0))
        self._conversations[column] = n + 1, n_before + n_samples

    def describe(self, *, is_asked: bool) -> str:
        """Return all of it in a line. `is_asked`: a target gives answers and contexts, so no column needs to."""
        parts = []
        if self.encoding:
            how = "" if self.was_named else f", found by its bytes ({name_setting('encoding')} names another)"
            parts.append(f"read as {self.encoding}{how}")
        for column, (n, n_samples) in self._conversations.items():
            samples, conversations = "sample" + "s" * (n_samples != 1), "conversation" + "s" * (n != 1)
            parts.append(f"{n_samples:,} {samples} from the turns of {n:,} {conversations} in {column!r}")
        fields = []
        for field in FIELDS:
            if field not in self.columns:
                continue
            names = [name for name in self.renamed.get(field, self.columns[field]) if name != field]
            text = f"{field} = {' or '.join(names)}" if names else field
            n_filled = self.n_filled[field]
            if field in COUNTED and n_filled < self.n_rows:
                text += f" ({f'in {n_filled:,} of {self.n_rows:,} rows' if n_filled else 'empty in every row'})"
            if field == "contexts" and self.n_one_text:
                text += f" (one text is one context, in {self.n_one_text:,} of {self.n_rows:,} rows)"
            fields.append(text)
        parts.append(f"columns: {', '.join(fields)}")
        missing = [name for name in self.list_missing(is_asked=is_asked) if name not in self.columns]
        parts += [f"not found: {', '.join(missing)}"] if missing else []
        parts += [f"left out of conversations: {self.n_system:,} system turns"] if self.n_system else []
        parts += [f"kept as metadata: {list_names(list(self.unread), 8)}"] if self.unread else []
        if self.left_ids is not None:
            ids, contexts = self.left_ids
            reads = name_setting("mapping", f"context_ids={ids}")
            parts.append(
                f"not read: {ids}, which belong to {contexts} ({reads} reads them for the contexts named here)"
            )
        return "; ".join(parts)

    def list_missing(self, *, is_asked: bool) -> list[Field]:
        """Return the fields of a sample that are empty in every row."""
        needed = [field for field in COUNTED if not (is_asked and field in ("answer", "contexts"))]
        return [field for field in needed if not self.n_filled[field]]

    def suggest(self, *, is_asked: bool) -> list[str]:
        """Return for each missing field the columns that may be meant, with the --map to type."""
        missing = self.list_missing(is_asked=is_asked)
        has_turns = "conversation" in self.columns or self._conversations
        return suggest_columns(missing if has_turns else [*missing, "conversation"], self.unread)


def suggest_columns(missing: Iterable[Field], columns: Mapping[str, object]) -> list[str]:
    """Return a sentence for each of these fields that one of these columns, with a value of each, may be meant for.

    A column may be meant by a name that tools use, or by a spelling near one that is understood, if its value may be.
    """
    likely_names = {_spell(name) for likely in LIKELY.values() for name in likely}
    suggestions = []
    for field in missing:
        kinds = (str,) if field in ("question", "answer") else (str, list, dict)
        spelled = {_spell(name): name for name, value in columns.items() if isinstance(value, kinds)}
        if field == "conversation":
            spelled = {_spell(name): name for name, value in columns.items() if isinstance(open_value(value), list)}
        known = [_spell(alias) for alias in ALIASES[field] if "." not in alias]
        likely = (spelled[_spell(name)] for name in LIKELY.get(field, ()) if _spell(name) in spelled)
        close = (
            name
            for spelling, name in spelled.items()
            if spelling not in likely_names and get_close_matches(spelling, known, n=1, cutoff=0.8)
        )
        column = next(chain(likely, close), None)
        if column is not None:
            theirs = "ground_truths" if column in ("answers", "references") else field
            suggestions.append(f"is {column!r} the {field}? {name_setting('mapping', f'{theirs}={column}')} reads it")
    return suggestions


@lru_cache(maxsize=4096)
def _spell(name: str) -> str:
    """Return a name without case and without what joins its words: `expectedOutput` and `Expected Output` are equal."""
    return re.sub(r"[\s_-]", "", name).casefold()


class Columns:
    """The columns of each field: its aliases, or the one that `--map` names; `use` counts how they are used.

    A column named in the mapping is no longer an alias of another field, so that `ground_truth=answer` leaves the
    answer to the next name that is understood. `context_ids=` names none: ids are then those within the contexts, as
    they are where contexts are mapped and the ids are named like other contexts of the file.

    Raises DatasetError for an unknown field.
    """

    plain: Set[str] = frozenset()
    """The columns that hold plain questions in some of the first rows."""

    def __init__(self, mapping: Mapping[str, str], use: ColumnUse | None = None) -> None:
        for ours, theirs in mapping.items():
            if ours not in FIELDS:
                close = suggest(ours, FIELDS)  # else all of them, which are listed anyway
                raise refuse_dataset(
                    f"{name_setting('mapping', f'{ours}={theirs}')}: {ours!r} is not one of our fields"
                    + (f"; {close}" if close.endswith("?") else ""),
                    allowed=list_names(FIELDS),
                    to_do=f"write {name_setting('mapping', 'ours=theirs')}; any other column is kept as metadata "
                    "without being mapped",
                )
            if not theirs.strip() and ours != "context_ids":
                raise refuse_dataset(
                    f"{name_setting('mapping', f'{ours}=')} names no column",
                    allowed=f"{name_setting('mapping', f'{ours}=COLUMN')}, where a place inside one is written "
                    "outputs.answer or answers[0]",
                    to_do="name the column",
                )
        self.use = use or ColumnUse()
        self.mapped = frozenset(mapping)
        has_no_ids = not mapping.get("context_ids", "a name").strip()
        if has_no_ids:
            mapping = {field: name for field, name in mapping.items() if field != "context_ids"}
        try:
            mapped = {field: ColumnPath(mapping[field], field) for field in FIELDS if field in mapping}
        except ValueError as error:
            allowed = "a column, or a place inside one such as outputs.answer, answers[0] or $.hits[*].text"
            raise refuse_dataset(f"{name_setting('mapping')}: {error}", allowed=allowed, to_do="write it so") from None
        # If a place inside a column is mapped, the rest of the column is read as no other field.
        self._taken = {*mapping.values(), *(path.root for path in mapped.values())}
        self.names: dict[Field, list[str]] = {}
        self._paths: dict[Field, list[ColumnPath]] = {}
        for field in FIELDS:
            aliases = [name for name in ALIASES[field] if name not in self._taken]
            if has_no_ids and field == "context_ids":
                aliases = []
            self.names[field] = [mapping[field]] if field in mapping else aliases
            self._paths[field] = [mapped[field]] if field in mapped else [ColumnPath(name) for name in aliases]
        self._nested_roots = {path.root for paths in self._paths.values() for path in paths if path.is_nested}
        self._shapes: dict[tuple[str, ...], dict[Field, ColumnPath]] = {}  # of rows where names alone decide
        self._awaited = dict(mapped)

    def reads(self, name: str) -> bool:
        """Return True if a column of this name may be read as a field."""
        return any(_spell(name) in (_spell(path.name), _spell(path.root)) for path in chain(*self._paths.values()))

    def locate(self, row: Mapping[str, object]) -> Mapping[Field, ColumnPath]:
        """Return the column of each field that this row has one for: the first of its names that is there.

        Raises ReadingStopped where a column may be the one field or the other.
        """
        shape = tuple(row)
        opens = any(not root or _may_open(row.get(root)) for root in self._nested_roots)
        if not opens and shape in self._shapes:
            return self._shapes[shape]
        located: dict[Field, ColumnPath] = {}
        for field, paths in self._paths.items():
            path = next((path for path in paths if path.is_in(row)), None)
            if path is not None:
                located[field] = path
                self._awaited.pop(field, None)
        used = {path.root for path in located.values()} | self._taken
        spelled = {_spell(name): name for name in reversed(shape) if name not in used}
        for field, paths in self._paths.items():
            if field not in located and field not in self.mapped:
                names = [spelled[_spell(path.name)] for path in paths if _spell(path.name) in spelled]
                located |= {field: ColumnPath(names[0])} if names else {}
        ids, contexts = located.get("context_ids"), located.get("contexts")
        if ids is not None and contexts is not None and contexts.root and "context_ids" not in self.mapped:
            of_contexts, of_ids = _spell(contexts.root), _BESIDE.get(_spell(ids.name))
            other = next((name for name in shape if _spell(name) == of_ids), None)
            if of_ids != of_contexts and other is not None:
                opens = True  # the values of this row decide: the contexts may be the same, or none
                given = row.get(contexts.root)
                own = next((name for name in shape if _BESIDE.get(_spell(name)) == of_contexts), None)
                are_others = not (is_empty(given) or given == row[other])
                if are_others and own is not None:
                    located["context_ids"] = ColumnPath(own)
                elif are_others:
                    del located["context_ids"]
                    self.use.left_ids = (ids.name, other)
        answer = located.get("answer")
        if answer is not None and answer.root == "outputs" and "inputs" in row and "answer" not in self.mapped:
            # `outputs` is the answer of a bot's run, or the reference of a dataset.
            is_run = not RUN_MARKS.isdisjoint(row)
            if not is_run and {"ground_truth", "ground_truths", "contexts"}.isdisjoint(located):
                if _EXAMPLE_MARKS.isdisjoint(row):
                    raise ReadingStopped(
                        None,
                        "two_meanings",
                        "'outputs' beside 'inputs' is the reference in a LangSmith dataset and the bot's answer in an "
                        "export of its runs, and no other column says which this is ("
                        f"{name_setting('mapping', f'ground_truth={answer.name}')}, or "
                        f"{name_setting('mapping', f'answer={answer.name}')})",
                    )
                located["ground_truth"] = located.pop("answer")
        truth = located.get("ground_truth")
        is_of_phoenix = truth is not None and truth.name == "reference" and "context.span_id" in row
        if is_of_phoenix and {"ground_truth", "contexts"}.isdisjoint(self.mapped) and "contexts" not in located:
            # The frame of questions for Phoenix's evaluators, which call the retrieved text the reference.
            located["contexts"] = located.pop("ground_truth")
        if len(self._shapes) < _MAX_SHAPES and not opens:
            self._shapes[shape] = located
        return located

    def list_awaited(self, row: Mapping[str, object] | None = None) -> list[str]:
        """Return the mappings whose column no row had so far, as `ours=theirs`; with a row of a table only those whose
        column no row of it can have."""
        return [
            f"{field}={path.name}"
            for field, path in self._awaited.items()
            if row is None or not (path.name in row or (path.is_nested and (not path.root or path.root in row)))
        ]


# --- rows


@dataclass(frozen=True, kw_only=True)
class RawRow:
    """One row as the file has it. `row` is its place as a person counts it, from 1."""

    row: int
    values: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class SampleRow:
    """One normalised row; None is for what the row does not have.

    `row` is its place in the file as a person counts it, `ordinal` its place among the rows, both from 1.
    `sample_id` is the dataset's id, else 16 hex digits of SHA-256 over [question, ground_truth]; equal ones are
    numbered later. For a sample with a conversation the user's earlier questions are part of the hash: follow-up
    questions are often the same. Several accepted answers are `ground_truths` in the metadata, with the first as
    `ground_truth`. `input_hash` is 32 hex digits of SHA-256 over everything that is judged. `context_ids` has "" for a
    context without one.
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
    conversation: list[Turn] | None = None


class _OpenRow:
    """One raw row while its fields are taken out; `rest` are the members that remain."""

    def __init__(self, raw: RawRow, columns: Columns, complain: Complain) -> None:
        self.rest = dict(raw.values)
        self.is_sound = True
        self.located = columns.locate(raw.values)
        self._raw = raw
        self._mapped = columns.mapped
        self._plain = columns.plain
        self._complain = complain

    def say(self, kind: ProblemKind, text: str) -> None:
        self.is_sound = False
        self._complain(self._raw.row, kind, text)

    def take(self, field: Field, path: ColumnPath | None = None) -> object:
        """Take out the field's value, at a place in its column where one is given; MISSING without a column."""
        path = path or self.located.get(field)
        if path is None:
            return MISSING
        path.drop_from(self.rest)
        try:
            return path.find(self._raw.values)
        except ValueError as error:
            self.say("columns", str(error))
            return MISSING

    def names_exactly(self, field: Field) -> bool:
        """Return True if a JSONPath names the field's place, so that a text there is one item."""
        return field in self.located and self.located[field].is_query

    def take_ids(self, field: Field) -> list[str] | None:
        """Take out the field's list of ids."""
        return read_ids(self.take(field), field, self.say, is_exact=self.names_exactly(field))

    def take_truths(self) -> list[object]:
        """Take out the ground truth, or all of its list: some datasets have a text here and a list there."""
        path = self.located.get("ground_truth")
        if path is not None and path.is_query:
            value = self.take("ground_truth")  # reports a path that cannot be meant
            return value if isinstance(value, list) else [None if value is MISSING else value]
        value = None if path is None else path.find(self._raw.values)
        if isinstance(value, list) and not is_recorded(value):
            self.take("ground_truth")
            return value
        return [self.take_text("ground_truth")]

    def take_beside(self, contexts: ContextList) -> list[dict[str, object]] | None:
        """Return what is beside the text of each context; what else is in the column of this name is not of these.

        No answer cites the addresses of contexts that its bot did not get.
        """
        path, beside = self.located.get("contexts"), contexts.rest
        if path is not None and contexts.texts and beside is None:
            members = path.list_members_beside(self._raw.values)
            beside = members if any(members) and len(members) == len(contexts.texts) else None
        others = self.rest.pop("contexts", MISSING) if path is not None else MISSING
        if others is not MISSING and others != beside:
            self.rest["unread_contexts"] = others
        return beside

    def take_text(self, field: Field) -> str | None:
        """Take out the field's text, also from inside an object that a tracing tool wrote."""
        path = self.located.get(field)
        if path is None or path.root not in RECORDED_COLUMNS:
            return read_text(self.take(field), field, self.say)
        value = path.find(self._raw.values)
        # If the user maps a column, the whole of its text is meant.
        opened = value if field in self._mapped else open_cell(open_text(value))
        if not is_recorded(opened):
            text = self.take(field)
            return read_text(text if field in self._mapped else open_text(text), field, self.say)
        steps = find_text(opened, field)
        if steps is not None:
            return read_text(self.take(field, path.step_into(steps)), field, self.say)
        given = self.take(field)
        if field == "question" and isinstance(given, str) and (path.is_nested or path.name in self._plain):
            return read_text(given, field, self.say)  # a person may have typed anything
        places = [name_setting("mapping", f"{field}={place}") for place in islice(list_texts(opened, path.name), 3)]
        to_do = f"; which text is it? {', '.join(places)}, …" if places else ""
        came = f"{field} is {name_kind(opened)} in {path.name!r}, not one text: {quote_value(opened)}"
        self.say("not_text", f"{came}{to_do}")
        return None


def normalise_row(
    raw: RawRow, *, ordinal: int, columns: Columns, complain: Complain, thoughts: Thoughts = "apart"
) -> SampleRow | None:
    """Return one sample, or None after all that is wrong with the row was reported to `complain`."""
    row = _OpenRow(raw, columns, complain)
    question = row.take_text("question")
    if "question" not in row.located:
        row.say("no_question", f"no question; columns of this row: {list_names(list(raw.values), 8)}")
    elif question is None and row.is_sound:
        row.say("no_question", "the question is empty")
    answer, spoken = row.take_text("answer"), None
    if answer is not None and thoughts == "beside":
        # A column of thoughts belongs to the answers that would be read without a mapping, if there are some.
        read = row.located["answer"].name
        written = ((name, raw.values.get(name)) for name in ALIASES["answer"] if "answer" in columns.mapped)
        usual = next((name for name, text in written if isinstance(text, str) and text.strip()), read)
        if usual == read:
            from evalhouse.tasks.datasets.thoughts import find_thoughts, join_thoughts  # noqa: PLC0415  # few runs do

            answer = join_thoughts(find_thoughts({name: row.rest.get(name) for name in THOUGHT_COLUMNS}), answer)
    elif thoughts == "apart" and answer is not None and _MAY_HOLD_THOUGHTS.search(answer):
        from evalhouse.tasks.datasets.thoughts import split_thoughts  # noqa: PLC0415  # few answers have such marks

        spoken = split_thoughts(answer)
        answer = spoken.text or None
    # All accepted answers, each once, with the ground truth of a separate column as the first.
    truths = row.take_truths() + (read_list(row.take("ground_truths"), "ground_truths", "not_text", row.say) or [])
    texts = [read_text(item, f"accepted answer {place}", row.say) for place, item in enumerate(truths, start=1)]
    accepted = list(dict.fromkeys(text for text in texts if text is not None))
    ground_truth = accepted[0] if accepted else None
    given_id = read_id(row.take("id"), "id", row.say)
    contexts = read_contexts(row.take("contexts"), row.say, is_exact=row.names_exactly("contexts"))
    columns.use.n_one_text += contexts.is_one_text
    context_ids, reference_ids = row.take_ids("context_ids"), row.take_ids("reference_context_ids")
    turns = None
    if not is_empty(given := row.take("conversation")):
        from evalhouse.tasks.datasets.chat import read_conversation  # noqa: PLC0415  # few datasets have any

        turns, n_system = read_conversation(given, row.say)
        columns.use.n_system += n_system
    path = row.located.get("contexts")
    looks_everywhere = path is not None and not path.root and "context_ids" not in columns.mapped
    if context_ids is not None and looks_everywhere and "contexts" in raw.values:
        # A path from anywhere may have found other contexts than the ones that a column of ids is of.
        of_ids = read_contexts(raw.values["contexts"], lambda *_: None).texts
        context_ids = context_ids if of_ids == contexts.texts else contexts.ids
    if context_ids is None:
        context_ids = contexts.ids
    elif contexts.texts is not None and len(contexts.texts) != len(context_ids):
        row.say("ids", f"context_ids has {len(context_ids)} ids for {len(contexts.texts)} contexts")
    values = (question, answer, ground_truth, contexts.texts)
    columns.use.add(row.located, row.rest, [COUNTED[place] for place, value in enumerate(values) if value is not None])
    metadata = read_metadata(row.rest, row.take_beside(contexts), row.say)
    if spoken is not None and spoken.thoughts is not None:
        metadata = {**metadata, ANSWER_THOUGHTS: spoken.thoughts}
    if len(accepted) > 1:
        metadata = {**metadata, "ground_truths": accepted}
    if not row.is_sound or question is None:
        return None
    sample_id = given_id
    if sample_id is None:
        # The earlier replies of an assistant are not part of the id: they differ each night.
        asked = [turn.text for turn in turns or () if turn.role == "user"]
        sample_id = hash_json([question, ground_truth, *([asked] if turns else [])], 16)
    return SampleRow(
        ordinal=ordinal,
        row=raw.row,
        given_id=given_id,
        sample_id=sample_id,
        input_hash=hash_inputs(
            question=question,
            answer=answer,
            ground_truth=ground_truth,
            contexts=contexts.texts,
            context_ids=context_ids,
            reference_context_ids=reference_ids,
            ground_truths=accepted,
            conversation=turns,
        ),
        question=question,
        answer=answer,
        ground_truth=ground_truth,
        contexts=contexts.texts,
        context_ids=context_ids,
        reference_context_ids=reference_ids,
        metadata=metadata,
        conversation=turns,
    )


def read_given_id(raw: RawRow, columns: Columns) -> str | None:
    """Return the dataset's id of a row, None where it has none or an invalid one."""
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
    conversation: Sequence[Turn] | None = None,
) -> str:
    """Return the `input_hash` of a sample: it changes when anything that is judged changes.

    `ground_truths` are all accepted answers; a single one is the ground truth and adds nothing. A question that begins
    its conversation is hashed like one without.
    """
    judged: dict[str, object] = {
        "answer": answer,
        "context_ids": context_ids,
        "contexts": contexts,
        "ground_truth": ground_truth,
        "question": question,
        "reference_context_ids": reference_context_ids,
    }
    if len(ground_truths) > 1:
        judged["ground_truths"] = ground_truths
    if conversation:
        judged["conversation"] = plain_turns(conversation)
    return hash_json(judged, 32)


def hash_json(value: object, digits: int) -> str:
    """Return the first hex digits of SHA-256 over canonical JSON: sorted keys, no spaces, non-ASCII not escaped."""
    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()[:digits]
