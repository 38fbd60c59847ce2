"""Agreement of the judge with people, and of people with each other, over verdicts that people have reviewed.

Verdicts of one sample are not independent, so intervals come from drawing whole samples (a bootstrap). Verdicts that
were picked with unequal probabilities count for as many as they stand for, so that an accuracy is that of the run and
not of the picks. Values are scikit-learn's where it has them. Krippendorff's α is reckoned here, for the library known
for it takes no weights and has another licence than ours, and so are the many tables of a bootstrap. Everything works
on plain frames: `warehouse/rows/corrected_means.py` reads them, `flows/commands/review_agreement.py` shows what comes
of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import ndtr, stdtrit
from sklearn.metrics import cohen_kappa_score, recall_score

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

ALPHA: Final = 0.05
"""What an interval leaves out."""
RESAMPLES: Final = 2000
LEAST_EFFECTIVE: Final = 30
"""With fewer verdicts, counted by what they tell, an accuracy of 0.8 is known to 0.15 at best: too few to tell."""
LEAST_SAMPLES: Final = 10
"""With fewer samples to draw from a bootstrap's interval is too narrow."""
LEAST_LABELS: Final = 5
"""A label that people gave less often leaves balanced accuracy, κ and α to a verdict or two."""
STEP_LABELS: Final[Mapping[str, tuple[str, ...]]] = {
    "classify": ("TP", "FP", "FN"),
    "attribute": ("supported", "unsupported"),
    "rank": ("useful", "not_useful"),
}

VERDICT: Final = ("run_id", "sample_id", "step", "statement_id", "context_rank")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A value with its 95 % interval; `value` is None where it is undefined, the interval where none can be drawn."""

    value: float | None
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far two who gave labels agree.

    `confusion` counts labels as they are, by what the first said (the judge) and then the second (people); everything
    else is weighted. `n_effective` is the number of verdicts of equal weight that would tell as much. `notes` say what
    is too small to go by; none is good news.
    """

    n_verdicts: int
    n_labels: int
    n_samples: int
    n_effective: float
    confusion: Mapping[str, Mapping[str, int]]
    accuracy: Measure
    balanced_accuracy: Measure
    kappa: Measure
    alpha: Measure
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PairOfReviewers:
    """Two people over the verdicts that both labelled."""

    reviewers: tuple[str, str]
    agreement: Agreement


@dataclass(frozen=True, kw_only=True)
class PeopleAgreement:
    """People with each other, over the verdicts with two labels or more.

    `agreeing` is how often two who labelled the same verdict say the same.
    """

    n_verdicts: int
    n_labels: int
    n_samples: int
    n_reviewers: int
    agreeing: Measure
    alpha: Measure
    pairs: tuple[PairOfReviewers, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Reviewed verdicts of one step that share a value; for a prompt's version None is a verdict by rule."""

    step: str
    value: str | None
    rows: pl.DataFrame


def group_reviewed(frame: pl.DataFrame, by: str) -> Iterator[Group]:
    """The rows by step and by the column `by`; steps never mix, for their labels differ."""
    column = "judge_label" if by == "label" else by
    for step in STEP_LABELS:
        rows = frame.filter(pl.col("step") == step)
        for (value,), part in sorted(rows.group_by([column]), key=lambda group: str(group[0][0])):
            yield Group(step=step, value=None if value is None else str(value), rows=part)


def measure_judge(frame: pl.DataFrame, step: str, *, seed: int = 0, resamples: int = RESAMPLES) -> Agreement:
    """The judge against people, of the rows of one step.

    `frame` has a row per verdict and reviewer: run_id, sample_id, step, statement_id, context_rank, judge_label, label,
    reviewer and weight, which is NULL for a verdict that chance did not pick. A verdict's reviewers share its weight.
    """
    rows, notes = weigh(frame)
    weight = rows["weight"].to_numpy() / rows.select(pl.len().over(VERDICT)).to_series().to_numpy()
    pairs = _Pairs.build(rows, "judge_label", "label", weight, STEP_LABELS[step])
    return _measure_pairs(pairs, notes=notes, seed=seed, resamples=resamples)


def measure_people(frame: pl.DataFrame, step: str, *, seed: int = 0, resamples: int = RESAMPLES) -> PeopleAgreement:
    """People against each other, of the rows of one step; `frame` is that of `measure_judge`."""
    rows, notes = weigh(frame.filter(pl.len().over(VERDICT) > 1))
    labels = STEP_LABELS[step]
    units = rows.group_by(VERDICT, maintain_order=True).agg(
        pl.col("weight").first(), *((pl.col("label") == label).sum().alias(label) for label in labels)
    )
    counts = units.select(labels).to_numpy().astype(np.float64)
    weight = units["weight"].to_numpy()
    tables, clusters = sum_by_cluster(count_coincidences(counts) * weight[:, None, None], units["sample_id"])
    tables *= len(units) / weight.sum() if len(units) else 1.0
    draws = draw_tables(tables, seed, resamples)
    agreeing, alpha = _bound(share_agreeing, tables, draws), _bound(krippendorff_alpha, tables, draws)
    reviewers = sorted(rows["reviewer"].unique())
    return PeopleAgreement(
        n_verdicts=len(units),
        n_labels=len(rows),
        n_samples=clusters,
        n_reviewers=len(reviewers),
        agreeing=agreeing,
        alpha=alpha,
        pairs=tuple(_compare_reviewers(rows, step, reviewers, seed=seed, resamples=resamples)),
        notes=(*notes, *_note_sizes(_effective_number(weight), clusters, counts.sum(axis=0), labels)),
    )


def weigh(frame: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The rows that count and what is to be said of them.

    Where some verdicts were picked by chance those that were not stand for nothing but themselves and are left out;
    where none was, all count the same.
    """
    unpicked = int(frame["weight"].null_count())
    if unpicked == 0:
        return frame, ()
    if unpicked == len(frame):
        return frame.with_columns(weight=pl.lit(1.0)), ("not picked by chance: true of these verdicts, not of the run",)
    note = f"{unpicked} labels of verdicts that chance did not pick are left out"
    return frame.filter(pl.col("weight").is_not_null()), (note,)


def count_coincidences(counts: Floats) -> Floats:
    """Units × labels × labels: how often two labels of a unit meet, each of its m labels counting once, by m - 1.

    `counts` is units × labels. Krippendorff (2011), Computing Krippendorff's Alpha-Reliability.
    """
    together = counts[:, :, None] * counts[:, None, :]
    together[:, np.arange(counts.shape[1]), np.arange(counts.shape[1])] -= counts
    sizes = np.maximum(counts.sum(axis=1), 2.0)
    return np.asarray(together / (sizes - 1)[:, None, None], dtype=np.float64)


def krippendorff_alpha(tables: Floats) -> Floats:
    """Nominal α of each coincidence table (… × labels × labels); NaN where all labels are the same."""
    sizes = tables.sum(axis=-1)
    total = sizes.sum(axis=-1)
    apart = total - np.trace(tables, axis1=-2, axis2=-1)
    expected = total**2 - (sizes**2).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(expected > 0, 1 - (total - 1) * apart / expected, np.nan), dtype=np.float64)


def share_agreeing(tables: Floats) -> Floats:
    """The diagonal's share of each table."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.trace(tables, axis1=-2, axis2=-1) / tables.sum(axis=(-2, -1)), dtype=np.float64)


def balance_accuracy(tables: Floats) -> Floats:
    """The mean, over labels that the second gave, of how often the first gave them too."""
    given = tables.sum(axis=-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        recalls = np.where(given > 0, np.diagonal(tables, axis1=-2, axis2=-1) / given, 0.0)
        return np.asarray(recalls.sum(axis=-1) / (given > 0).sum(axis=-1), dtype=np.float64)


def cohen_kappa(tables: Floats) -> Floats:
    """Cohen's κ of each table; NaN where chance alone would always agree."""
    total = tables.sum(axis=(-2, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = (tables.sum(axis=-1) * tables.sum(axis=-2)).sum(axis=-1) / total**2
        found = np.trace(tables, axis1=-2, axis2=-1) / total
        return np.asarray(np.where(chance < 1, (found - chance) / (1 - chance), np.nan), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Two labels a row, as numbers of `labels`, with the row's weight and cluster; weights are 1 on average."""

    first: Integers
    second: Integers
    weight: Floats
    cluster: pl.Series
    labels: tuple[str, ...]
    n_verdicts: int
    n_effective: float

    @classmethod
    def build(cls, rows: pl.DataFrame, first: str, second: str, weight: Floats, labels: tuple[str, ...]) -> "_Pairs":
        places = {label: place for place, label in enumerate(labels)}

        def number(column: str) -> Integers:
            return rows[column].replace_strict(places, return_dtype=pl.Int64).to_numpy()

        scale = len(weight) / weight.sum() if len(weight) else 1.0
        return cls(
            first=number(first),
            second=number(second),
            weight=weight * scale,
            cluster=rows["sample_id"],
            labels=labels,
            n_verdicts=rows.n_unique(VERDICT),
            n_effective=count_effective(rows, weight),
        )

    @property
    def cells(self) -> Floats:
        """Rows × labels × labels, with a row's weight in its cell."""
        cells = np.zeros((len(self.first), len(self.labels), len(self.labels)))
        cells[np.arange(len(self.first)), self.first, self.second] = self.weight
        return cells


def _measure_pairs(pairs: _Pairs, *, notes: Sequence[str], seed: int, resamples: int) -> Agreement:
    tables, n_samples = sum_by_cluster(pairs.cells, pairs.cluster)
    draws = draw_tables(tables, seed, resamples)
    given = np.bincount(pairs.second, minlength=len(pairs.labels)).astype(np.float64)
    return Agreement(
        n_verdicts=pairs.n_verdicts,
        n_labels=len(pairs.first),
        n_samples=n_samples,
        n_effective=pairs.n_effective,
        confusion=_count_confusion(pairs),
        accuracy=_bound(share_agreeing, tables, draws),
        balanced_accuracy=_bound(balance_accuracy, tables, draws, _score_recalls(pairs)),
        kappa=_bound(cohen_kappa, tables, draws, _score_kappa(pairs)),
        # Two labels a unit: each pair is counted from both sides.
        alpha=_bound(lambda found: krippendorff_alpha(found + np.swapaxes(found, -1, -2)), tables, draws),
        notes=(*notes, *_note_sizes(pairs.n_effective, n_samples, given, pairs.labels)),
    )


def _compare_reviewers(
    rows: pl.DataFrame, step: str, reviewers: Sequence[str], *, seed: int, resamples: int
) -> Iterator[PairOfReviewers]:
    for one, other in combinations(reviewers, 2):
        both = rows.filter(pl.col("reviewer") == one).join(
            rows.filter(pl.col("reviewer") == other).select(*VERDICT, other_label="label"),
            on=list(VERDICT),
            nulls_equal=True,
        )
        if len(both):
            pairs = _Pairs.build(both, "label", "other_label", both["weight"].to_numpy(), STEP_LABELS[step])
            agreement = _measure_pairs(pairs, notes=(), seed=seed, resamples=resamples)
            yield PairOfReviewers(reviewers=(one, other), agreement=agreement)


def _score_kappa(pairs: _Pairs) -> float | None:
    """None with fewer than two labels, for which the library has a warning and no number."""
    if len(np.union1d(pairs.first, pairs.second)) < 2:
        return None
    return float(cohen_kappa_score(pairs.first, pairs.second, sample_weight=pairs.weight))


def _score_recalls(pairs: _Pairs) -> float | None:
    """Balanced accuracy is the mean recall of the labels that the second gave."""
    given = np.unique(pairs.second)
    if not len(given):
        return None
    return float(recall_score(pairs.second, pairs.first, labels=given, average="macro", sample_weight=pairs.weight))


def _count_confusion(pairs: _Pairs) -> dict[str, dict[str, int]]:
    counts = np.zeros((len(pairs.labels), len(pairs.labels)), dtype=np.int64)
    np.add.at(counts, (pairs.first, pairs.second), 1)
    return {
        first: {second: int(counts[row, column]) for column, second in enumerate(pairs.labels)}
        for row, first in enumerate(pairs.labels)
        if counts[row].any() or counts[:, row].any()
    }


def sum_by_cluster(cells: Floats, cluster: pl.Series) -> tuple[Floats, int]:
    """Clusters × labels × labels, and how many clusters there are."""
    numbers = cluster.rank("dense").to_numpy().astype(np.int64) - 1
    n = int(numbers.max()) + 1 if len(numbers) else 0
    tables = np.zeros((n, *cells.shape[1:]))
    np.add.at(tables, numbers, cells)
    return tables, n


def draw_tables(tables: Floats, seed: int, resamples: int) -> Floats:
    """Resamples × labels × labels: the sum over as many clusters, drawn with replacement."""
    n = len(tables)
    if n < 2:
        return np.zeros((0, *tables.shape[1:]))
    times = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
    return np.asarray((times @ tables.reshape(n, -1)).reshape(-1, *tables.shape[1:]), dtype=np.float64)


def _bound(measure: Callable[[Floats], Floats], tables: Floats, draws: Floats, value: float | None = None) -> Measure:
    """The measure over all clusters, with a percentile interval that is set further out for few (see `comparing`).

    Where all draws agree there is no spread to go by. When that is because all labels agree, the lower bound is the
    least share that would show no disagreement among so many samples in one case of forty (Clopper and Pearson 1934).
    """
    total = tables.sum(axis=0)
    found = float(measure(total)) if total.size and total.any() else np.nan
    if np.isnan(found):
        return Measure(value=None, ci_low=None, ci_high=None)
    found = found if value is None else value
    drawn = measure(draws)
    drawn = drawn[~np.isnan(drawn)]
    if len(drawn) < max(1, len(draws) / 2):
        return Measure(value=found, ci_low=None, ci_high=None)
    if np.ptp(drawn) < 1e-12:
        is_perfect_share = measure is share_agreeing and found > 1 - 1e-12
        low = (ALPHA / 2) ** (1 / _effective_number(tables.sum(axis=(1, 2)))) if is_perfect_share else None
        return Measure(value=found, ci_low=low, ci_high=1.0 if is_perfect_share else None)
    low, high = np.quantile(drawn, find_tails(len(tables)))
    return Measure(value=found, ci_low=float(low), ci_high=float(high))


def find_tails(n_clusters: int) -> tuple[float, float]:
    """The percentiles of a 95 % bootstrap interval over so many clusters (Hesterberg 2015, section 5)."""
    tail = float(ndtr(np.sqrt(n_clusters / (n_clusters - 1)) * stdtrit(n_clusters - 1, ALPHA / 2)))
    return tail, 1 - tail


def count_effective(rows: pl.DataFrame, weight: Floats) -> float:
    """Verdicts of equal weight that would tell as much; `weight` is that of each row, a verdict's labels add up."""
    by_verdict = rows.select(*VERDICT, w=pl.Series(weight)).group_by(VERDICT).agg(pl.col("w").sum())
    return _effective_number(by_verdict["w"].to_numpy())


def _effective_number(weight: Floats) -> float:
    """(Σ w)² / Σ w², the number of equal weights that would tell as much (Kish 1965, Survey Sampling)."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares else 0.0


def _note_sizes(n_effective: float, n_samples: int, given: Floats, labels: Sequence[str]) -> Iterator[str]:
    if n_effective < LEAST_EFFECTIVE - 1e-9:
        yield f"too few to tell: {n_effective:.0f} by weight of {LEAST_EFFECTIVE}"
    if n_samples < LEAST_SAMPLES:
        yield f"too few samples: {n_samples} of {LEAST_SAMPLES}"
    rare = [f"{label} {n:.0f}" for label, n in zip(labels, given, strict=True) if 0 < n < LEAST_LABELS]
    if rare:
        yield f"seldom said by people: {', '.join(rare)}"
    if (given > 0).sum() < 2 and given.any():
        yield "people gave one label only: κ and α say nothing"


def to_plain(agreement: Agreement | PeopleAgreement | Measure | PairOfReviewers) -> dict[str, Any]:
    """As JSON has it."""
    return {
        name: to_plain(value)
        if isinstance(value, Measure | Agreement)
        else [to_plain(one) for one in value]
        if name == "pairs"
        else value
        for name, value in vars(agreement).items()
    }
