"""What figures of agreement with people are made of: a judge's line, those of others over the same rows beside it, and
notes on what is too small to go by. `benchmark_labels` and `benchmark_ratings` fill them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from evalhouse.tasks.comparing.agreement import LEAST_EFFECTIVE, LEAST_LABELS, LEAST_SAMPLES
from evalhouse.tasks.comparing.bootstrap import Estimate
from evalhouse.tasks.trials.labelled_sets import Kind, Row

Figure = Literal["accuracy", "balanced_accuracy", "kappa", "f1", "auc", "ndcg", "correlation", "match"]
Figures = Mapping[Figure, Estimate]

JUDGE: Final = "judge"
PEOPLE: Final = "people"
NAIVE: Final = "word count"
MAJORITY: Final = "most frequent label"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One judge's figures over a set: `who`, of how many decisions, and how many it gave no verdict on."""

    who: str
    n: int
    n_missing: int
    figures: Figures


@dataclass(frozen=True, kw_only=True)
class SetAgreement:
    """What came of one set in one language; `about` is what was measured where a set has several such things.

    `labels` counts what people said; `notes` say what is too small to go by.
    """

    name: str
    kind: Kind
    language: str
    about: str
    n_rows: int
    n_groups: int
    labels: Mapping[str, int]
    judge: Line
    others: tuple[Line, ...]
    notes: tuple[str, ...]


def read_judges(row: Row) -> Mapping[str, Any]:
    """What judges said of a row before, by name."""
    found = row.data.get("llm_judges") or row.data.get("judges")
    return found if isinstance(found, Mapping) else {}


def name_judges(rows: Iterable[Row]) -> list[str]:
    """The judges whose verdicts some row holds."""
    return list(dict.fromkeys(name for row in rows for name in read_judges(row)))


def note_sizes(n: int, n_groups: int, given: Sequence[str] = ()) -> Iterator[str]:
    """What is too small to go by, of `n` decisions in so many groups, on which people gave these labels."""
    if n < LEAST_EFFECTIVE:
        yield f"too few to tell: {n} of {LEAST_EFFECTIVE}"
    if n_groups < LEAST_SAMPLES:
        yield f"too few groups: {n_groups} of {LEAST_SAMPLES}"
    rare = [f"{label} {count}" for label, count in Counter(given).items() if count < LEAST_LABELS]
    if rare:
        yield f"seldom said by people: {', '.join(rare)}"
    if given and len(set(given)) == 1:
        yield "people gave one label only: κ and AUC say nothing"
