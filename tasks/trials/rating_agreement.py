"""Agreement on what has no labels: ratings, by how alike they order answers (Spearman's ρ), and splits of a text into
statements, by how alike they are. A judge is measured by the metrics that its verdicts make.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import numpy as np

from evalhouse.tasks.comparing.bootstrap import Groups, average
from evalhouse.tasks.comparing.figures import weigh_mean, weigh_spearman
from evalhouse.tasks.trials.label_agreement import (
    JUDGE,
    NAIVE,
    PEOPLE,
    Figures,
    Line,
    SetAgreement,
    match_statements,
    name_judges,
    read_judges,
    score_naively,
)
from evalhouse.tasks.trials.labelled_sets import Part, Row
from evalhouse.tasks.trials.labelled_verdicts import Judged

# What a person rates, by what we measure.
DIMENSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "faithfulness": ("faithfulness",),
    "groundedness": ("faithfulness",),
    "completeness": ("factual_recall",),
    "comprehensiveness": ("factual_recall",),
    "correctness": ("factual_f1", "accuracy"),
    "accuracy": ("factual_f1", "accuracy"),
    "overall": ("factual_f1", "accuracy"),
    "win-rate": ("factual_f1", "accuracy"),
}


def list_unrated(part: Part) -> tuple[str, ...]:
    """The dimensions that people rated and nothing of ours measures."""
    if part.kind != "rubric":
        return ()
    rated = dict.fromkeys(name for row in part.rows for name in row.data["scores"])
    return tuple(name for name in rated if name.lower() not in DIMENSIONS)


@dataclass(kw_only=True)
class _Rated:
    """What people and others gave each row, in the same order; NaN where somebody gave nothing."""

    groups: list[str] = field(default_factory=list)
    human: list[float] = field(default_factory=list)
    by_person: list[list[float]] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    naive: list[float] = field(default_factory=list)
    recorded: dict[str, list[float]] = field(default_factory=dict)

    def correlate(self, who: str, first: Sequence[float], second: Sequence[float], seed: int) -> Line:
        """Spearman's ρ over the rows where both gave a number."""
        both = ~(np.isnan(first) | np.isnan(second))
        groups = Groups(self.groups, seed=seed).pick(both)
        figures: Figures = {}
        if both.any():
            weighed = weigh_spearman(np.asarray(first)[both].tolist(), np.asarray(second)[both].tolist())
            figures = {"correlation": groups.measure(weighed)}
        return Line(who=who, n=int(both.sum()), n_missing=int((~both).sum()), figures=figures)


def measure_ratings(part: Part, judged: Sequence[Judged], *, seed: int) -> Iterator[SetAgreement]:
    """The agreement on each dimension that people rated and a metric stands for."""
    dimensions = dict.fromkeys(name for row in part.rows for name in row.data["scores"])
    given = {name for result in judged for name in result.values}
    for dimension in dimensions:
        for metric in DIMENSIONS.get(dimension.lower(), ()):
            if metric in given:
                yield _measure_dimension(part, judged, dimension, metric, seed)


def _measure_dimension(part: Part, judged: Sequence[Judged], dimension: str, metric: str, seed: int) -> SetAgreement:
    rated = _Rated()
    names = name_judges(part.rows)
    for result in judged:
        people = [float(value) for value in result.row.data["scores"].get(dimension, ())]
        if not people:
            continue
        rated.groups.append(result.row.group)
        rated.human.append(float(np.mean(people)))
        rated.by_person.append(people)
        rated.ours.append(result.values.get(metric, float("nan")))
        rated.naive.append(score_naively(part, result.row)[0])
        for name in names:
            value = read_judges(result.row).get(name)
            number = float(value) if isinstance(value, int | float) else float("nan")
            rated.recorded.setdefault(name, []).append(number)
    others = [
        *_correlate_people(rated, seed),
        *(rated.correlate(name, values, rated.human, seed) for name, values in rated.recorded.items()),
        rated.correlate(NAIVE, rated.naive, rated.human, seed),
    ]
    return SetAgreement(
        part=part,
        about=f"{dimension} by {metric}",
        n_rows=len(rated.groups),
        n_groups=len(set(rated.groups)),
        judge=rated.correlate(JUDGE, rated.ours, rated.human, seed),
        others=others,
    )


def _correlate_people(rated: _Rated, seed: int) -> Iterator[Line]:
    """Each person with each other, on average."""
    most = max((len(people) for people in rated.by_person), default=0)
    columns = [
        [people[place] if place < len(people) else np.nan for people in rated.by_person] for place in range(most)
    ]
    lines = [rated.correlate(PEOPLE, first, second, seed) for first, second in combinations(columns, 2)]
    mean = average([line.figures["correlation"] for line in lines if "correlation" in line.figures])
    if mean is not None:
        yield Line(who=PEOPLE, n=lines[0].n, n_missing=lines[0].n_missing, figures={"correlation": mean})


def measure_splits(part: Part, judged: Sequence[Judged], *, seed: int) -> SetAgreement:
    """How alike the judge's statements are to people's, and what one sentence for the whole text would come to."""
    split = [result for result in judged if result.failure is None]

    def compare(who: str, rows: Sequence[Row], splits: Sequence[Sequence[str]]) -> Line:
        alike = [match_statements(ours, row.data["statements"]) for row, ours in zip(rows, splits, strict=True)]
        groups = Groups([row.group for row in rows], seed=seed)
        figures: Figures = {"match": groups.measure(weigh_mean(alike))} if rows else {}
        return Line(who=who, n=len(rows), n_missing=len(part.rows) - len(rows), figures=figures)

    recorded = [row for row in part.rows if row.data.get("llm_statements")]
    others = [compare("llm_statements", recorded, [row.data["llm_statements"] for row in recorded])] if recorded else []
    others.append(compare("the text unsplit", part.rows, [[str(row.data["text"])] for row in part.rows]))
    counts = {
        "statements by people": sum(len(result.row.data["statements"]) for result in split),
        "statements by the judge": sum(len(result.statements) for result in split),
    }
    return SetAgreement(
        part=part,
        n_rows=len(part.rows),
        n_groups=len({result.row.group for result in split}),
        judge=compare(JUDGE, [result.row for result in split], [result.statements for result in split]),
        others=others,
        labels=counts,
    )
