"""Folders of texts that people have labelled, read as a benchmark takes them; LLM-AggreFact's in its own columns.

A set is a folder with JSON Lines files, each row an object. What kind of set it is shows in its columns:

- support: `statement`, `contexts`, `label` supported | partial | unsupported. Does any context support the statement?
- correctness: `question`, `ground_truth`, `answer`, `label` correct | partial | incorrect; `score` 0 to 1 may say more.
- relevance: `question`, `contexts` with a `grade` each (above 0 is useful), `grade_scale` in words; `ground_truth` may
  be there.
- decomposition: `text`, `statements` as people split it, `source` (who did); `llm_statements`, a model's own split.
- rubric: `question`, `answer`, `scores` {dimension: [a number from each person]}, and what these were judged by:
  `ground_truth`, `contexts`.
- pairwise: `question`, `ground_truth`, `answer_a`, `answer_b`, `preference` a | b | tie.

`contexts` are [{id, text}] or texts. Any row may have `id`, `lang` (en or zh), `group` (rows with the same one share a
question or document, and are drawn together), `annotators` (what single people said: labels, or for pairwise
{dimension: [numbers]}, above 0 for b) and what judges said before: `llm_judges` or `judges` {name: label, text or
number}, `judge_NAME` {a, b} for pairwise. A label that is none of these, such as `generic`, leaves its row out.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from evalhouse.tasks.datasets.errors import DatasetError
from evalhouse.tasks.reviews.labels import read_objects

Kind = Literal["support", "correctness", "relevance", "decomposition", "rubric", "pairwise"]
Half = Literal["choose", "report", "all"]
LANGUAGES: Final = ("en", "zh")
AGGREFACT: Final = "LLM-AggreFact"
_AGGREFACT_COLUMNS: Final = frozenset(("dataset", "doc", "claim", "label"))
_LISTED = 10
_Check = Callable[[Any], str | None]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One labelled row; `data` has the columns of its kind, checked."""

    id: str
    group: str
    data: Mapping[str, Any]

    @property
    def question(self) -> str:
        """Empty where there is none."""
        return str(self.data.get("question") or "")

    @property
    def ground_truth(self) -> str:
        """Empty where there is none."""
        return str(self.data.get("ground_truth") or "")

    @property
    def contexts(self) -> list[str]:
        """The texts of the contexts, in the order given."""
        return [context if isinstance(context, str) else context["text"] for context in self.data.get("contexts") or ()]

    @property
    def grades(self) -> list[float | None]:
        """A grade for each context; None where people gave none."""
        return [None if context["grade"] is None else float(context["grade"]) for context in self.data["contexts"]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """The rows of one set in one language. `n_left_out` have a label that nothing is compared with.

    `benchmark` is the public one whose own columns the rows have, where they have those of one.
    """

    name: str
    kind: Kind
    language: str
    rows: tuple[Row, ...]
    n_left_out: int = 0
    benchmark: str | None = None


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """What the folders hold; `passed_over` says of each set that is of no known kind what it has instead."""

    parts: tuple[Part, ...]
    passed_over: tuple[str, ...]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_list_of(fits: Callable[[Any], bool], value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(fits, value))


def _has_text(context: object) -> bool:
    return isinstance(context.get("text") if isinstance(context, Mapping) else context, str)


def _is_rated(value: object) -> bool:
    return isinstance(value, Mapping) and _is_list_of(partial(_is_list_of, _is_number), list(value.values()))


def _allow(fits: Callable[[Any], bool], allowed: str) -> _Check:
    """A check that says what came in place of what is allowed."""
    return lambda value: None if fits(value) else f"is {value!r:.40}, allowed: {allowed}"


_check_text = _allow(_is_text, "a text")
_check_texts = _allow(partial(_is_list_of, _is_text), "a list of texts")
_check_label = _allow(lambda value: isinstance(value, str), "a text")
_check_answer = _allow(lambda value: isinstance(value, str), "a text, empty for no answer")
_check_contexts = _allow(partial(_is_list_of, _has_text), "a list of texts, or of objects with a text")
_check_scores = _allow(_is_rated, "an object that gives each dimension a list of numbers, one a person")


def _check_graded(value: object) -> str | None:
    wrong = _check_contexts(value)
    if wrong is None and isinstance(value, list):
        grades = [context.get("grade", "nothing") if isinstance(context, Mapping) else "nothing" for context in value]
        bad = next((grade for grade in grades if grade is not None and not _is_number(grade)), None)
        wrong = None if bad is None else f"has the grade {bad!r:.40}, allowed: a number, null for none"
    return wrong


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The columns that make a kind, and the labels of its column for them."""

    needs: Mapping[str, _Check]
    labels: tuple[str, ...] = ()
    label_column: str = "label"


# The first whose columns are all there is the kind of a set.
SHAPES: Final[Mapping[Kind, Shape]] = {
    "support": Shape(
        needs={"statement": _check_text, "contexts": _check_contexts, "label": _check_label},
        labels=("supported", "partial", "unsupported"),
    ),
    "pairwise": Shape(
        needs={
            "question": _check_text,
            "ground_truth": _check_text,
            "answer_a": _check_answer,
            "answer_b": _check_answer,
            "preference": _check_label,
        },
        labels=("a", "b", "tie"),
        label_column="preference",
    ),
    "relevance": Shape(needs={"question": _check_text, "contexts": _check_graded, "grade_scale": _check_text}),
    "decomposition": Shape(needs={"text": _check_text, "statements": _check_texts, "source": _check_label}),
    "rubric": Shape(needs={"question": _check_text, "answer": _check_answer, "scores": _check_scores}),
    "correctness": Shape(
        needs={
            "question": _check_text,
            "ground_truth": _check_text,
            "answer": _check_answer,
            "label": _check_label,
        },
        labels=("correct", "partial", "incorrect"),
    ),
}


def read_labelled(folders: Sequence[Path], *, language: str | None = None) -> Labelled:
    """The sets in these folders, by language; raises DatasetError for what cannot be read or is of no known kind.

    A folder is a set when JSON Lines files lie in it, and else one that holds sets. In a folder of sets those of other
    kinds are passed over; a set that is named itself has to fit. With `language` only its rows are taken; a row without
    `lang` is in it, or in English.
    """
    parts: list[Part] = []
    passed_over: list[str] = []
    for folder in folders:
        for labelled_set in _find_sets(folder):
            outcome = _read_set(labelled_set, language)
            if isinstance(outcome, str) and labelled_set.is_named:
                raise DatasetError(f"{labelled_set.path}: {outcome}; {_describe_shapes()}")
            if isinstance(outcome, str):
                passed_over.append(f"{labelled_set.name} ({outcome})")
            else:
                parts += outcome
    if not parts:
        of_language = f" in {language}" if language and not passed_over else ""
        others = f"; passed over: {'; '.join(passed_over)}" if passed_over else ""
        names = ", ".join(map(str, folders))
        raise DatasetError(f"{names} holds no labelled set{of_language}{others}; {_describe_shapes()}")
    counted = Counter((part.name, part.language) for part in parts)
    twice = next((name for (name, _), n in counted.items() if n > 1), None)
    if twice is not None:
        raise DatasetError(f"two sets are called {twice}; rename the folder of one, to tell their figures apart")
    return Labelled(parts=tuple(parts), passed_over=tuple(passed_over))


def pick_half(group: str) -> Half:
    """`choose` or `report`, by hash: rows of one group are in the same half, in all sets."""
    return "report" if hashlib.sha256(group.encode()).digest()[-1] % 2 else "choose"


def pick_rows(part: Part, *, half: Half, limit: int | None, seed: int) -> Part:
    """A half of the rows, and of these `limit` that are drawn by hash, so that the same seed gives the same rows."""
    rows = [row for row in part.rows if half in ("all", pick_half(row.group))]
    if limit is not None:
        drawn = sorted(rows, key=lambda row: hashlib.sha256(f"{seed}/{row.id}".encode()).digest())[:limit]
        kept = {row.id for row in drawn}
        rows = [row for row in rows if row.id in kept]
    return replace(part, rows=tuple(rows))


@dataclass(frozen=True, kw_only=True)
class _SetFiles:
    """A set's files; `is_named` when the person named this very set, and not a folder of sets."""

    name: str
    path: Path
    files: tuple[Path, ...]
    is_named: bool


def _find_sets(folder: Path) -> Iterator[_SetFiles]:
    if folder.is_file():
        name = folder.parent.name if folder.stem == "dev" else folder.stem
        yield _SetFiles(name=name or folder.stem, path=folder, files=(folder,), is_named=True)
        return
    if not folder.is_dir():
        raise DatasetError(f"{folder}: there is no such folder; give one that holds sets, or a set itself")
    own = _list_files(folder)
    if own:
        yield _SetFiles(name=folder.resolve().name, path=folder, files=own, is_named=True)
        return
    for below in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = _list_files(below)
        if files:
            yield _SetFiles(name=below.name, path=below, files=files, is_named=False)


def _list_files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(path for path in folder.iterdir() if path.suffix == ".jsonl" and path.is_file()))


@dataclass(kw_only=True)
class _Reading:
    """A set on its way in: rows by language, how many were left out there, and what is wrong."""

    rows: dict[str, list[Row]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)


def _read_set(labelled_set: _SetFiles, language: str | None) -> list[Part] | str:
    """The parts of a set, or in words which columns it has where these make no kind."""
    lines = [line for path in labelled_set.files for line in _read_lines(path)]
    if not lines:
        return "no rows"
    columns = lines[0].value.keys()
    if columns >= _AGGREFACT_COLUMNS:
        return _read_aggrefact(lines) if language in (None, "en") else []
    kind = next((kind for kind, shape in SHAPES.items() if shape.needs.keys() <= columns), None)
    if kind is None:
        return f"columns {', '.join(sorted(columns))}"
    reading = _Reading()
    for line in lines:
        _take_line(line, SHAPES[kind], language or "en", reading)
    if reading.problems:
        more = f"; and {len(reading.problems) - _LISTED} more" if len(reading.problems) > _LISTED else ""
        raise DatasetError(f"{labelled_set.path}, taken for {kind}: {'; '.join(reading.problems[:_LISTED])}{more}")
    return [
        Part(name=labelled_set.name, kind=kind, language=spoken, rows=tuple(rows), n_left_out=reading.left_out[spoken])
        for spoken, rows in sorted(reading.rows.items())
        if language in (None, spoken)
    ]


def _read_aggrefact(lines: "Sequence[_Line]") -> list[Part]:
    """Rows in LLM-AggreFact's own columns, a part for each of its subsets; claims about one document are a group."""
    rows: dict[str, list[Row]] = {}
    for line in lines:
        subset, doc, claim, label = (line.value.get(name) for name in ("dataset", "doc", "claim", "label"))
        if not (_is_text(subset) and _is_text(doc) and _is_text(claim)) or label not in (0, 1):
            raise DatasetError(f"{line.place}: {AGGREFACT} has texts in dataset, doc and claim, and the label 0 or 1")
        data = {"statement": claim, "contexts": [doc], "label": "supported" if label else "unsupported"}
        group = hashlib.sha256(str(doc).encode()).hexdigest()[:12]
        rows.setdefault(str(subset), []).append(Row(id=line.place, group=group, data=data))
    return [
        Part(name=subset, kind="support", language="en", rows=tuple(own), benchmark=AGGREFACT)
        for subset, own in rows.items()
    ]


@dataclass(frozen=True, kw_only=True)
class _Line:
    place: str
    value: Mapping[str, Any]


def _read_lines(path: Path) -> Iterator[_Line]:
    """The objects of a file; raises DatasetError for a line that is not one."""
    with path.open("rb") as lines:
        for number, row in read_objects(lines):
            if isinstance(row, str):
                raise DatasetError(f"{path}, line {number}: {row}; one object a line")
            yield _Line(place=f"{path.name} line {number}", value=row)


def _take_line(line: _Line, shape: Shape, language: str, reading: _Reading) -> None:
    value = line.value
    wrong = [f"{name} {problem}" for name, check in shape.needs.items() if (problem := check(value.get(name)))]
    spoken = value.get("lang") or language
    if spoken not in LANGUAGES:
        wrong.append(f"lang is {spoken!r:.40}, allowed: {', '.join(LANGUAGES)}")
    row_id = str(value.get("id") or line.place)
    if row_id in reading.ids:
        wrong.append(f"id {row_id!r:.60} came before; ids differ within a set")
    if wrong:
        reading.problems.append(f"{line.place}: {', '.join(wrong)}")
        return
    reading.ids.add(row_id)
    rows = reading.rows.setdefault(spoken, [])
    if shape.labels and value[shape.label_column] not in shape.labels:
        reading.left_out[spoken] += 1
        return
    rows.append(Row(id=row_id, group=str(value.get("group") or row_id), data=value))


def _describe_shapes() -> str:
    kinds = [f"{kind} has {', '.join(shape.needs)}" for kind, shape in SHAPES.items()]
    return f"known kinds by their columns: {'; '.join(kinds)}"
