"""Agreement of the judge with people, and of people with each other, over verdicts that people have reviewed.

Verdicts of one sample are not independent, so intervals come from drawing whole samples (`intervals`). Verdicts that
were picked with unequal probabilities are weighted, so that an accuracy is that of the run and not of the picks. A
change of the judge is measured on the same verdicts before and after: their difference is far better known than either,
for both are in each draw. All functions take plain frames: `warehouse/rows/reviews.py` reads them,
`flows/commands/review.py` shows the agreement and `flows/trials/prompts.py` the changes.

The figures (labels, order, correlation, nDCG) are statistics of the bootstrap: from weights (draws × rows) to a value
for each draw. Krippendorff's α is implemented here because the usual library takes no weights and has another licence.

The judges of a jury are compared with each other in the same way, by step. Each verdict counts as a yes or a no: a
label that says yes, or support by any context.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from evalhouse.tasks.comparing.intervals import (
    RESAMPLES,
    TIE,
    Floats,
    Groups,
    Integers,
    Measure,
    Statistic,
    count_equal,
    find_tails,
    sum_groups,
)
from evalhouse.tasks.judge.protocol import VOTED_TASKS, find_judge, list_jurors
from evalhouse.warehouse.rows.runs import RunRow
from evalhouse.warehouse.steps import REVIEWED_PROMPTS, collect_labels
from evalhouse.warehouse.store import Warehouse


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels of each row by two raters, out of `names`; rows weigh the same unless `weight` is given."""

    names: tuple[str, ...]
    first: Sequence[str]
    second: Sequence[str]
    weight: Floats | None = None

    @cached_property
    def cells(self) -> Floats:
        """Rows × labels × labels: the weight of a row in its cell, by the first's label and then the second's."""
        places = {name: place for place, name in enumerate(self.names)}
        cells = np.zeros((len(self.first), len(self.names), len(self.names)))
        for row, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            cells[row, places[first], places[second]] = 1.0 if self.weight is None else self.weight[row]
        return cells

    def agree(self, weights: Floats) -> Floats:
        """Return the share of rows with the same label."""
        return share_agreeing(sum_cells(self.cells, weights))

    def balance(self, weights: Floats) -> Floats:
        """Return the balanced accuracy of the first by the second."""
        return balance_accuracy(sum_cells(self.cells, weights))

    def kappa(self, weights: Floats) -> Floats:
        """Return Cohen's κ."""
        return cohen_kappa(sum_cells(self.cells, weights))

    def alpha(self, weights: Floats) -> Floats:
        """Return Krippendorff's α, for which each pair of labels is counted from both sides."""
        tables = sum_cells(self.cells, weights)
        return krippendorff_alpha(tables + np.swapaxes(tables, -1, -2))

    def f1(self, weights: Floats) -> Floats:
        """Return F1 of the first of `names`: 2·TP / (2·TP + FP + FN)."""
        tables = sum_cells(self.cells, weights)
        hits = tables[:, 0, 0]
        wrong = tables[:, 0, 1:].sum(axis=-1) + tables[:, 1:, 0].sum(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(2 * hits / (2 * hits + wrong), dtype=np.float64)


def sum_cells(cells: Floats, weights: Floats) -> Floats:
    """Return draws × labels × labels: the rows' tables summed by the weights of each draw."""
    return np.asarray((weights @ cells.reshape(len(cells), -1)).reshape(-1, *cells.shape[1:]), dtype=np.float64)


def weigh_tables(cells: Floats, measure: Callable[[Floats], Floats]) -> Statistic:
    """Return the statistic that measures the weighted sum of the rows' tables."""
    return lambda weights: measure(sum_cells(cells, weights))


def count_coincidences(counts: Floats) -> Floats:
    """Count as units × labels × labels how often two labels of a unit meet, each of its m labels once, over m - 1.

    `counts` is units × labels. Krippendorff (2011), Computing Krippendorff's Alpha-Reliability.
    """
    together = counts[:, :, None] * counts[:, None, :]
    together[:, np.arange(counts.shape[1]), np.arange(counts.shape[1])] -= counts
    sizes = np.maximum(counts.sum(axis=1), 2.0)
    return np.asarray(together / (sizes - 1)[:, None, None], dtype=np.float64)


def krippendorff_alpha(tables: Floats) -> Floats:
    """Return nominal α of each coincidence table (… × labels × labels); NaN where all labels are the same."""
    sizes = tables.sum(axis=-1)
    total = sizes.sum(axis=-1)
    apart = total - np.trace(tables, axis1=-2, axis2=-1)
    expected = total**2 - (sizes**2).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(expected > 0, 1 - (total - 1) * apart / expected, np.nan), dtype=np.float64)


def share_agreeing(tables: Floats) -> Floats:
    """Return the diagonal's share of each table."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.trace(tables, axis1=-2, axis2=-1) / tables.sum(axis=(-2, -1)), dtype=np.float64)


def balance_accuracy(tables: Floats) -> Floats:
    """Return the mean, over labels that the second gave, of how often the first gave them too."""
    n_given = tables.sum(axis=-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        recalls = np.where(n_given > 0, np.diagonal(tables, axis1=-2, axis2=-1) / n_given, 0.0)
        return np.asarray(recalls.sum(axis=-1) / (n_given > 0).sum(axis=-1), dtype=np.float64)


def cohen_kappa(tables: Floats) -> Floats:
    """Return Cohen's κ of each table; NaN where chance alone would always agree."""
    total = tables.sum(axis=(-2, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = (tables.sum(axis=-1) * tables.sum(axis=-2)).sum(axis=-1) / total**2
        agreeing = np.trace(tables, axis1=-2, axis2=-1) / total
        return np.asarray(np.where(chance < 1, (agreeing - chance) / (1 - chance), np.nan), dtype=np.float64)


def weigh_mean(values: Sequence[float] | Floats, weight: Floats | None = None) -> Statistic:
    """Return the mean of a value per row as a statistic; `weight` is that of each row, where they are not equal."""
    value = np.asarray(values, dtype=np.float64)
    row_weight = np.ones(len(value)) if weight is None else weight
    return lambda weights: np.asarray(weights @ (value * row_weight) / (weights @ row_weight), dtype=np.float64)


def weigh_auc(scores: Sequence[float], positive: Sequence[bool]) -> Statistic:
    """Return the chance that a positive row scores above a negative one, ties half; NaN where one side is empty."""
    ordered = _Order.of(scores)
    is_positive = np.asarray(positive, dtype=np.float64)[ordered.rows]

    def weighed(weights: Floats) -> Floats:
        sorted_weights = weights[:, ordered.rows]
        yes, no = (ordered.sum(sorted_weights * part) for part in (is_positive, 1 - is_positive))
        below = np.cumsum(no, axis=1) - no / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((yes * below).sum(axis=1) / (yes.sum(axis=1) * no.sum(axis=1)), dtype=np.float64)

    return weighed


def weigh_spearman(first: Sequence[float], second: Sequence[float]) -> Statistic:
    """Return Spearman's ρ as a statistic, Pearson's of the mid-ranks; NaN where one side never changes."""
    orders = [_Order.of(side) for side in (first, second)]

    def weighed(weights: Floats) -> Floats:
        total = weights.sum(axis=1, keepdims=True)
        ranks = [order.rank(weights) for order in orders]
        centred, other = (rank - (rank * weights).sum(axis=1, keepdims=True) / total for rank in ranks)
        spread = (weights * centred**2).sum(axis=1) * (weights * other**2).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            correlation = (weights * centred * other).sum(axis=1) / np.sqrt(spread)
        return np.asarray(np.where(spread > TIE, correlation, np.nan), dtype=np.float64)

    return weighed


@dataclass(frozen=True, kw_only=True)
class _Order:
    """Rows in the order of a score, and the places in it where each new score begins."""

    rows: Integers
    starts: Integers
    level: Integers

    @classmethod
    def of(cls, scores: Sequence[float]) -> "_Order":
        values = np.asarray(scores, dtype=np.float64)
        rows = np.argsort(values, kind="stable")
        level = np.unique(values, return_inverse=True)[1].astype(np.int64)
        starts = np.flatnonzero(np.diff(values[rows], prepend=np.nan) != 0)
        return cls(rows=rows, starts=starts, level=level)

    def sum(self, sorted_weights: Floats) -> Floats:
        """Return draws × levels: the weights of equal scores together."""
        return np.asarray(np.add.reduceat(sorted_weights, self.starts, axis=1), dtype=np.float64)

    def rank(self, weights: Floats) -> Floats:
        """Return draws × rows: the mid-rank of each row's score."""
        by_level = self.sum(weights[:, self.rows])
        return np.asarray((np.cumsum(by_level, axis=1) - by_level / 2)[:, self.level], dtype=np.float64)


def compute_ndcg(grades: Sequence[float], scores: Sequence[float]) -> float | None:
    """Return DCG / best DCG over one question's contexts, DCG = Σ grade / log2(rank + 1) with rank from 1.

    Equal scores stay in the order given. None when no context has a grade above 0. (Järvelin and Kekäläinen 2002,
    ACM TOIS 20, 422-446.)
    """
    discounts = 1 / np.log2(np.arange(2, len(grades) + 2))
    ordered = np.asarray(grades, dtype=np.float64)
    best = float((np.sort(ordered)[::-1] * discounts).sum())
    gained = float((ordered[np.argsort(-np.asarray(scores), kind="stable")] * discounts).sum())
    return gained / best if best > 0 else None


Direction = Literal["better", "worse", "same", "undecided"]
ALL_STEPS: Final = "all steps"
MIN_EFFECTIVE: Final = 30
"""Fewer verdicts of equal weight are too few: an accuracy of 0.8 is then known to 0.15 at best."""
MIN_SAMPLES: Final = 10
"""Fewer samples to draw from make a bootstrap's interval too narrow."""
MIN_LABELS: Final = 5
"""A label that people gave less often leaves balanced accuracy, κ and α to a verdict or two."""
STEP_LABELS: Final = {
    step: tuple(dict.fromkeys(label for labels in collect_labels(step).values() for label in labels))
    for step in REVIEWED_PROMPTS
}

VERDICT: Final = ("run_id", "sample_id", "step", "statement_id", "context_rank")


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The agreement of two raters.

    `confusion` counts labels without weights, by that of the first (the judge) and then the second (people); everything
    else is weighted. `n_effective` is the number of verdicts of equal weight that would be worth as much. `notes` name
    what is too small to rely on; empty is good.
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

    `agreeing` is how often two who labelled the same verdict gave the same label.
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
class Change:
    """Agreement with people before and after; differences are after less before.

    κ is None over several steps, whose labels differ. `n_better` and `n_worse` count verdicts that now have the label
    of more people, or of fewer; the others of `n_changed` are as far from people as before.
    """

    step: str
    n_verdicts: int
    n_samples: int
    n_changed: int
    n_better: int
    n_worse: int
    accuracy_old: Measure
    accuracy_new: Measure
    accuracy_difference: Measure
    kappa_old: Measure | None
    kappa_new: Measure | None
    kappa_difference: Measure | None
    verdict: Direction
    notes: tuple[str, ...]


def measure_judge(frame: pl.DataFrame, step: str, *, seed: int = 0, resamples: int = RESAMPLES) -> Agreement:
    """Measure the judge against people, by the rows of one step.

    `frame` has a row per verdict and reviewer: run_id, sample_id, step, statement_id, context_rank, judge_label, label,
    reviewer and weight, which is NULL for a verdict that was not picked at random. A verdict's reviewers share its
    weight.
    """
    rows, notes = weigh(frame)
    sides = Labels(
        names=STEP_LABELS[step],
        first=rows["judge_label"].to_list(),
        second=rows["label"].to_list(),
        weight=_share_weight(rows),
    )
    return _measure_labels(rows, sides, notes=notes, seed=seed, resamples=resamples)


def measure_people(frame: pl.DataFrame, step: str, *, seed: int = 0, resamples: int = RESAMPLES) -> PeopleAgreement:
    """Measure people against each other, by the rows of one step; `frame` is that of `measure_judge`."""
    rows, notes = weigh(frame.filter(pl.len().over(VERDICT) > 1))
    labels = STEP_LABELS[step]
    units = rows.group_by(VERDICT, maintain_order=True).agg(
        pl.col("weight").first(), *((pl.col("label") == label).sum().alias(label) for label in labels)
    )
    counts = units.select(labels).to_numpy().astype(np.float64)
    weight = _scale(units["weight"].to_numpy())
    cells = count_coincidences(counts) * weight[:, None, None]
    groups = Groups(units["sample_id"].to_list(), seed=seed, resamples=resamples)
    agreeing = groups.measure(
        weigh_tables(cells, share_agreeing), is_share=True, weight=np.asarray(cells.sum(axis=(1, 2)))
    )
    reviewers = sorted(rows["reviewer"].unique())
    pairs = []
    for names in combinations(reviewers, 2):
        first, second = (rows.filter(pl.col("reviewer") == reviewer) for reviewer in names)
        both = first.join(second.select(*VERDICT, other_label="label"), on=list(VERDICT), nulls_equal=True)
        if len(both):
            sides = Labels(
                names=labels,
                first=both["label"].to_list(),
                second=both["other_label"].to_list(),
                weight=_scale(both["weight"].to_numpy()),
            )
            agreement = _measure_labels(both, sides, notes=(), seed=seed, resamples=resamples)
            pairs.append(PairOfReviewers(reviewers=names, agreement=agreement))
    return PeopleAgreement(
        n_verdicts=len(units),
        n_labels=len(rows),
        n_samples=groups.n,
        n_reviewers=len(reviewers),
        agreeing=agreeing.measure,
        alpha=groups.measure(weigh_tables(cells, krippendorff_alpha)).measure,
        pairs=tuple(pairs),
        notes=(*notes, *_list_notes(count_equal(weight), groups.n, counts.sum(axis=0), labels)),
    )


def compare_changes(frame: pl.DataFrame, *, seed: int = 0, resamples: int = RESAMPLES) -> list[Change]:
    """Compare each step's agreement before and after, and that of all steps where there are several.

    `frame` is that of `measure_judge` with old_label and new_label in place of judge_label.
    """
    steps = [step for step in STEP_LABELS if step in frame["step"]]
    changes = [_compare(frame.filter(pl.col("step") == step), step, seed, resamples) for step in steps]
    if len(steps) > 1:
        changes.append(_compare(frame, ALL_STEPS, seed, resamples))
    return changes


def list_moves(frame: pl.DataFrame) -> pl.DataFrame:
    """List the verdicts that changed: both labels, people's labels, and `moved`, the gain in the share of people."""
    return (
        frame.group_by(VERDICT, maintain_order=True)
        .agg(
            pl.col("old_label").first(),
            pl.col("new_label").first(),
            pl.col("label").alias("people"),
            ((pl.col("label") == pl.col("new_label")).mean() - (pl.col("label") == pl.col("old_label")).mean()).alias(
                "moved"
            ),
        )
        .filter(pl.col("old_label") != pl.col("new_label"))
    )


def weigh(frame: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the rows that count and notes on them.

    Where some verdicts were picked at random the others represent only themselves and are left out; where none was, all
    count the same.
    """
    unpicked = int(frame["weight"].null_count())
    if unpicked == 0:
        return frame, ()
    if unpicked == len(frame):
        return frame.with_columns(weight=pl.lit(1.0)), ("not picked by chance: true of these verdicts, not of the run",)
    note = f"{unpicked} labels of verdicts that were not picked by chance are left out"
    return frame.filter(pl.col("weight").is_not_null()), (note,)


def _compare(frame: pl.DataFrame, step: str, seed: int, resamples: int) -> Change:
    rows, notes = weigh(frame)
    weight = _share_weight(rows)
    groups = Groups(rows["sample_id"].to_list(), seed=seed, resamples=resamples)
    people = rows["label"].to_list()
    sides = [rows[column].to_list() for column in ("old_label", "new_label")]
    old, new = (
        groups.measure(weigh_mean([label == person for label, person in zip(side, people, strict=True)], weight))
        for side in sides
    )
    kappas = [
        groups.measure(Labels(names=STEP_LABELS[step], first=side, second=people, weight=weight).kappa)
        for side in (sides if step != ALL_STEPS else ())
    ]
    moves = list_moves(rows)
    difference = (new - old).measure
    low, high = difference.ci_low, difference.ci_high
    verdict: Direction = "undecided"
    if moves.is_empty():
        verdict = "same"
    elif low is not None and high is not None and not low <= 0 <= high:
        verdict = "better" if low > 0 else "worse"
    return Change(
        step=step,
        n_verdicts=rows.n_unique(VERDICT),
        n_samples=groups.n,
        n_changed=len(moves),
        n_better=len(moves.filter(pl.col("moved") > 0)),
        n_worse=len(moves.filter(pl.col("moved") < 0)),
        accuracy_old=old.measure,
        accuracy_new=new.measure,
        accuracy_difference=difference,
        kappa_old=kappas[0].measure if kappas else None,
        kappa_new=kappas[1].measure if kappas else None,
        kappa_difference=(kappas[1] - kappas[0]).measure if kappas else None,
        verdict=verdict,
        notes=(*notes, *_list_notes(_count_effective(rows, weight), groups.n)),
    )


def _measure_labels(rows: pl.DataFrame, sides: Labels, *, notes: Sequence[str], seed: int, resamples: int) -> Agreement:
    """Measure the first side against the second, by one row a label; the sides' weights are 1 on average."""
    groups = Groups(rows["sample_id"].to_list(), seed=seed, resamples=resamples)
    weight = sides.weight if sides.weight is not None else np.ones(len(rows))
    n_effective = _count_effective(rows, weight)
    n_given = [sides.second.count(label) for label in sides.names]
    counts = Counter(zip(sides.first, sides.second, strict=True))
    used = [label for label in sides.names if label in sides.first or label in sides.second]
    return Agreement(
        n_verdicts=rows.n_unique(VERDICT),
        n_labels=len(rows),
        n_samples=groups.n,
        n_effective=n_effective,
        confusion={first: {second: counts[first, second] for second in sides.names} for first in used},
        accuracy=groups.measure(sides.agree, is_share=True, weight=weight).measure,
        balanced_accuracy=groups.measure(sides.balance).measure,
        kappa=groups.measure(sides.kappa).measure,
        alpha=groups.measure(sides.alpha).measure,
        notes=(*notes, *_list_notes(n_effective, groups.n, n_given, sides.names)),
    )


def _share_weight(rows: pl.DataFrame) -> Floats:
    """Return by row its part of its verdict's weight."""
    return _scale(rows["weight"].to_numpy() / rows.select(pl.len().over(VERDICT)).to_series().to_numpy())


def _scale(weight: Floats) -> Floats:
    """Return the same weights, 1 on average."""
    return weight * (len(weight) / weight.sum()) if len(weight) else weight


def _count_effective(rows: pl.DataFrame, weight: Floats) -> float:
    """Count the verdicts of equal weight that would be worth as much; a verdict's labels add up their `weight`."""
    by_verdict = (
        rows.select(*VERDICT, w=pl.Series(weight)).group_by(VERDICT, maintain_order=True).agg(pl.col("w").sum())
    )
    return count_equal(by_verdict["w"].to_numpy())


def _list_notes(
    n_effective: float, n_samples: int, n_given: Iterable[float] = (), labels: Sequence[str] = ()
) -> Iterator[str]:
    """Yield notes on what is too small to rely on; `n_given` is how often people gave each of `labels`."""
    if n_effective < MIN_EFFECTIVE - 1e-9:
        yield f"too few verdicts: {n_effective:.0f} by weight of {MIN_EFFECTIVE}"
    if n_samples < MIN_SAMPLES:
        yield f"too few samples: {n_samples} of {MIN_SAMPLES}"
    used = {label: n for label, n in zip(labels, n_given, strict=True) if n}
    rare = [f"{label} {n:.0f}" for label, n in used.items() if n < MIN_LABELS]
    if rare:
        yield f"rarely given by people: {', '.join(rare)}"
    if len(used) == 1:
        yield "people gave one label only: κ and α are undefined"


GROUPINGS: Final = ("step", "label", "language", "prompt_version", "judge", "reviewer")
MEASURES: Final = ("accuracy", "balanced_accuracy", "kappa", "alpha")
Document = dict[str, Any]


def describe_agreement(reviewed: pl.DataFrame, groupings: Sequence[str], *, seed: int = 0) -> Document:
    """Return all figures of the agreement, as JSON has it; `reviewed` is that of `read_reviewed`."""
    # A verdict that later runs took from the record is the same verdict: it counts once.
    same = ["sample_id", "step", "item_hash", "judge_label", "judge", "prompt_version", "reviewer"]
    rows = reviewed.unique([*same, "statement_id", "context_rank"], keep="first", maintain_order=True)
    steps = [step for step in STEP_LABELS if step in rows["step"]]
    judged = []
    for by in groupings:
        # Steps never mix, for their labels differ. Of a prompt's version None is a verdict by rule.
        for step in steps:
            groups = rows.filter(pl.col("step") == step).group_by(["judge_label" if by == "label" else by])
            for (value,), group in sorted(groups, key=lambda item: str(item[0][0])):
                figures = asdict(measure_judge(group, step, seed=seed))
                if by == "label":
                    # Of verdicts with one label of the judge these are settled beforehand.
                    figures |= dict.fromkeys(MEASURES[1:], asdict(Measure(value=None, ci_low=None, ci_high=None)))
                judged.append({"by": by, "step": step, "value": None if value is None else str(value), **figures})
    people = [
        {"step": step, **asdict(measure_people(rows.filter(pl.col("step") == step), step, seed=seed))} for step in steps
    ]
    changed = rows.filter(pl.col("first_label").is_not_null() & (pl.col("first_label") != pl.col("label")))
    return {
        "n_labels": len(rows),
        "n_reviewers": rows["reviewer"].n_unique(),
        "n_changed_after_seeing_the_judge": len(changed),
        "seed": seed,
        "judge": judged,
        "people": [agreement for agreement in people if agreement["n_verdicts"]],
    }


MIN_ALONE: Final = 10
"""Fewer verdicts on which a single judge was against all others show nothing about any of them."""


@dataclass(frozen=True, kw_only=True)
class Juror:
    """One judge of a jury in a step: `n_alone` of its `n` verdicts are against all other judges.

    `share_alone` is its share of all verdicts on which one judge was alone. `is_outlier` if that is significantly
    more than an equal share: of juries of equal judges at most 5 % have such a one in a step.
    """

    judge: str
    n: int
    n_alone: int
    share_alone: Measure
    is_outlier: bool


@dataclass(frozen=True, kw_only=True)
class JuryStep:
    """The verdicts of a jury in one step: on `n_items` items, `n_split` of them not unanimous, `n_ties` decided by a
    tie. `agreeing` is how often two judges give the same verdict, `alpha` Krippendorff's α."""

    step: str
    n_items: int
    n_split: int
    n_ties: int
    agreeing: Measure
    alpha: Measure
    jurors: tuple[Juror, ...]


def measure_jury(warehouse: Warehouse, run: RunRow, *, seed: int = 0) -> list[JuryStep]:
    """Measure a run's jury in each step that it voted in; empty for a run without one."""
    juries = {step: list_jurors(find_judge(run.judge, step)) for step in VOTED_TASKS}
    if all(len(judges) == 1 for judges in juries.values()):
        return []
    no = [[*labels][-1] for step in VOTED_TASKS for labels in collect_labels(step).values()]
    frame = warehouse.fetch("judge/jury", {"no": ["none", *no]}, run_id=run.run_id)
    measured = []
    for (step,), rows in frame.partition_by("step", as_dict=True, maintain_order=True).items():
        judges = juries[str(step)]
        votes = rows.pivot("vote", index=["sample_id", "item_id"], values="says_yes", maintain_order=True)
        columns = [str(number) for number in range(1, len(judges) + 1)]
        cast = np.column_stack(
            [votes[name].cast(float).to_numpy() if name in votes.columns else np.full(len(votes), np.nan)
             for name in columns]
        )  # fmt: skip
        measured.append(measure_step(str(step), judges, votes["sample_id"].to_list(), cast, seed))
    return measured


def measure_step(step: str, judges: Sequence[str], samples: Sequence[str], cast: Floats, seed: int) -> JuryStep:
    """Measure one step; `cast` is items × judges, 1 for a yes, 0 for a no, NaN for a vote that failed."""
    yes, no = np.nansum(cast == 1, axis=1), np.nansum(cast == 0, axis=1)
    # A judge is alone where all others are there, at least two of them, and say the opposite.
    n = len(judges)
    alone_side = np.where((yes == 1) & (no == n - 1), 1.0, np.where((no == 1) & (yes == n - 1), 0.0, np.nan))
    alone = (cast == alone_side[:, None]) if n > 2 else np.zeros(cast.shape, dtype=bool)
    names, place = np.unique(np.asarray(samples, dtype=object).astype(str), return_inverse=True)
    groups, place = Groups(names.tolist(), seed=seed), place.astype(np.int64)
    pairs = count_coincidences(np.column_stack([yes, no]).astype(np.float64))
    cells = sum_groups(pairs.reshape(len(pairs), -1), place).totals.reshape(-1, *pairs.shape[1:])
    by_sample = sum_groups(alone.astype(np.float64), place).totals

    def share_alone(column: int, weights: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(weights @ by_sample[:, column] / (weights @ by_sample.sum(axis=1)), dtype=np.float64)

    jurors = []
    for column, judge in enumerate(judges):
        share = groups.measure(partial(share_alone, column))
        is_outlier = False
        if alone.sum() >= MIN_ALONE and groups.n > 1:
            # The lower end of an interval that is wider than 95 %, as there are n judges to be named (Bonferroni).
            is_outlier = bool(np.nanquantile(share.draws, find_tails(groups.n)[0] / n) > 1 / n)
        jurors.append(
            Juror(
                judge=judge,
                n=int((~np.isnan(cast[:, column])).sum()),
                n_alone=int(alone[:, column].sum()),
                share_alone=share.measure,
                is_outlier=is_outlier,
            )
        )
    return JuryStep(
        step=step,
        n_items=len(cast),
        n_split=int(((yes > 0) & (no > 0)).sum()),
        n_ties=int(((yes == no) & (yes > 0)).sum()),
        agreeing=groups.measure(weigh_tables(cells, share_agreeing), is_share=True).measure,
        alpha=groups.measure(weigh_tables(cells, krippendorff_alpha)).measure,
        jurors=tuple(jurors),
    )


def list_outsiders(steps: Sequence[JuryStep]) -> list[str]:
    """Name the judges that are alone too often, and those whose votes are missing, a sentence each without a full
    stop."""
    alone: dict[str, list[str]] = {}
    missing: dict[str, list[str]] = {}
    for step in steps:
        n = sum(juror.n_alone for juror in step.jurors)
        for juror in step.jurors:
            if juror.is_outlier:
                alone.setdefault(juror.judge, []).append(f"{juror.n_alone:,} of {n:,} in {step.step}")
            if juror.n < step.n_items:
                where = f"{step.n_items - juror.n:,} of {step.n_items:,} in {step.step}"
                missing.setdefault(juror.judge, []).append(where)
    return [
        *(
            f"{judge} is alone too often in the jury: of the verdicts that one judge gave against all others it gave "
            f"{', '.join(where)}; read some of them, and leave it out if it is wrong there"
            for judge, where in alone.items()
        ),
        *(
            f"{judge} has no vote on {', '.join(where)}, so the other judges decided there; the errors of its "
            "requests are in the table llm_calls"
            for judge, where in missing.items()
        ),
    ]
