"""Corrected means: what people's labels of a reviewed few make of a run's means, for the commands that show them.

The estimate itself is SQL over the labels (`warehouse/views/corrected_scores.sql`), so that every import changes it
with no command. It exists where a sample's score is a sum of single verdicts, each with a share known beforehand: then
the judge's error in the mean is the mean of its errors in the verdicts, which a random part of them tells. The other
metrics divide counts of verdicts by counts of verdicts, or put two verdicts on one statement together: their error is
no sum over verdicts, and would take samples that people labelled whole, picked as such.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.reviews import read_corrected
from evalhouse.warehouse.store import Warehouse

LEAST_EFFECTIVE: Final = 20
LEAST_SAMPLES: Final = 10
LEAST_COVERAGE: Final = 0.5
"""As in the view, which gives no corrected mean below."""

_OBSTACLES: Final[Mapping[str, str]] = {
    "no, ratio": "which divide counts of verdicts by each other",
    "no, joined": "which join two verdicts on a statement, and these are not picked together",
    "no, ranks": "which depend on all verdicts of a ranking at once",
}
"""What metric files say of metrics that cannot be corrected, in words."""


@dataclass(frozen=True, kw_only=True)
class CorrectedMean:
    """A metric's mean as the judge has it, and as people's labels correct it, with a 95 % interval.

    `corrected_mean` and the interval are None when too little is reviewed; `note` says what is missing, or what to
    mind.
    """

    metric: str
    mean: float
    corrected_mean: float | None
    ci_low: float | None
    ci_high: float | None
    judge_bias: float
    judge_weight: float
    n_reviewed: int
    n_carried: int
    n_samples_reviewed: int
    coverage: float
    n_scored: int
    note: str | None


@dataclass(frozen=True, kw_only=True)
class CorrectedPair:
    """One metric of two runs that both have reviewed verdicts of it."""

    metric: str
    base: CorrectedMean
    candidate: CorrectedMean


def list_corrected(warehouse: Warehouse, run_id: str) -> list[CorrectedMean]:
    """The corrected means of a run, by metric; none when nobody has reviewed any of its verdicts."""
    names = [name for name in CorrectedMean.__dataclass_fields__ if name != "note"]
    return [
        CorrectedMean(**{name: row[name] for name in names}, note=_note(row))
        for row in read_corrected(warehouse, run_id)
    ]


def pair_corrected(warehouse: Warehouse, base: str, candidate: str) -> list[CorrectedPair]:
    """The corrected means of two runs side by side, for metrics that both have; neither need be enough for a mean."""
    of_base = {row.metric: row for row in list_corrected(warehouse, base)}
    return [
        CorrectedPair(metric=row.metric, base=of_base[row.metric], candidate=row)
        for row in list_corrected(warehouse, candidate)
        if row.metric in of_base
    ]


def explain_uncorrected(metrics: Sequence[str]) -> list[str]:
    """Why metrics that rest on reviewable verdicts have no corrected mean, a sentence for each reason."""
    files = load_metrics()
    by_obstacle: dict[str, list[str]] = {}
    for metric in metrics:
        obstacle = files[metric].correctable if metric in files else None
        if obstacle is not None and obstacle in _OBSTACLES:
            by_obstacle.setdefault(obstacle, []).append(metric)
    return [f"no corrected mean: {', '.join(names)}, {_OBSTACLES[why]}" for why, names in by_obstacle.items()]


def _note(row: Mapping[str, Any]) -> str | None:
    if row["coverage"] < LEAST_COVERAGE:
        return f"the reviewed stand for {row['coverage']:.0%} of the run's verdicts; {LEAST_COVERAGE:.0%} are needed"
    if row["n_effective"] < LEAST_EFFECTIVE:
        return f"{row['n_effective']:.0f} reviewed verdicts by weight; {LEAST_EFFECTIVE} are needed"
    if row["n_samples_effective"] < LEAST_SAMPLES:
        return f"reviewed in {row['n_samples_effective']:.0f} samples by weight; {LEAST_SAMPLES} are needed"
    if row["n_carried"]:
        return f"{row['n_carried']} of the labels are from reviews of other runs"
    return None
