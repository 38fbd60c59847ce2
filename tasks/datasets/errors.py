"""The problems of a dataset, and the one message that refuses it.

    DatasetError        a dataset is refused; its message states what came, what is allowed, what to do
    ReadingStopped      inside the readers only: nothing after this place can be read; becomes a DatasetError

A person who prepares a dataset needs one round of fixing, not one for each mistake. So rows are not refused one by one:
`formats` and `rows` report each problem with its place, and `Problems` makes one message of all of them.
"""

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Template
from typing import Literal

from evalhouse.warehouse.messages import name_setting

ProblemKind = Literal[
    "broken_json",
    "not_utf8",
    "not_an_object",
    "broken_table",
    "no_question",
    "not_text",
    "contexts",
    "conversation",
    "ids",
    "metadata",
    "duplicate_id",
    "no_span",
    "no_traces",
    "columns",
    "two_meanings",
    "no_rows",
    "unreadable",
]
Place = Literal["line", "element", "row", "samples"]
Complain = Callable[[int, ProblemKind, str], None]

LISTED_PROBLEMS = 20

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
    "contexts": "contexts are a list of texts, or of objects with text, content or page_content; "
    'write ["…"] for a single one and [] for none (in a cell of a table: a list in JSON, or as Python prints one)',
    "conversation": "a conversation is a list of the turns before the question, the oldest first, each "
    '{"role": "user", "text": "…"} or {"role": "assistant", "text": "…", "contexts": ["…"]}, where `content` is read '
    "as `text`; a whole conversation is such a list without a question beside it; rename a column `conversation` that "
    "is something else",
    "ids": "ids are texts or whole numbers, and lists of ids are lists of those; write them as text",
    "metadata": "columns kept as metadata must fit into JSON; flatten or remove what does not",
    "duplicate_id": "an id names one row; make the ids differ, or take the column away and ids are made from the texts",
    "no_span": "with $format every row is a span, or a trace, as that tool exports it; name another format, or "
    "none for a dataset",
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
    """All problems of one dataset: `n` counts them, and the first `LISTED_PROBLEMS` are kept in file order."""

    def __init__(self, name: str, place: Place) -> None:
        self._name = name
        self._place = place
        self._listed: list[Problem] = []
        self._kinds: dict[ProblemKind, None] = {}
        self.n = 0

    def add(self, row: int | None, kind: ProblemKind, text: str) -> None:
        """Count a problem, and list it if it is among the first."""
        self.n += 1
        self._kinds[kind] = None
        insort(self._listed, Problem(row=row, kind=kind, text=text), key=lambda problem: problem.row or 0)
        del self._listed[LISTED_PROBLEMS:]

    def make_error(self) -> DatasetError:
        """Return the error for all of them: a single line where there is one problem with the whole file."""
        if self.n == 1 and self._listed[0].row is None:
            only = self._listed[0]
            return DatasetError(f"{self._name}: {only.text}; {advise(only.kind)}", problems=[only])
        lines = [f"{self._name}: {self.n:,} problem{'' if self.n == 1 else 's'}; nothing was loaded"]
        for problem in self._listed:
            place = "" if problem.row is None else f"{name_row(self._place, problem.row)}: "
            lines.append(f"  {place}{problem.text}")
        if self.n > len(self._listed):
            lines.append(f"  and {self.n - len(self._listed):,} more")
        lines += [f"to do: {advise(kind)}" for kind in self._kinds]
        return DatasetError("\n".join(lines), problems=self._listed, n_problems=self.n)
