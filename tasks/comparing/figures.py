"""Figures of how well two sides go together, of weighted rows: agreement of labels, order, correlation, nDCG.

Each is a statistic of the bootstrap: from weights (draws × rows) to a value for each draw. Tables of labels are
measured by formulas of their own, which take a single table as well; Krippendorff's α is here because the library known
for it takes no weights and has another licence than ours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evalhouse.tasks.comparing.bootstrap import TIE, Floats, Integers, Statistic


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What two said of each row, in `names`; rows weigh the same unless `weight` is given."""

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
        """The share of rows with the same label."""
        return share_agreeing(sum_cells(self.cells, weights))

    def balance(self, weights: Floats) -> Floats:
        """Balanced accuracy of the first by the second."""
        return balance_accuracy(sum_cells(self.cells, weights))

    def kappa(self, weights: Floats) -> Floats:
        """Cohen's κ."""
        return cohen_kappa(sum_cells(self.cells, weights))

    def alpha(self, weights: Floats) -> Floats:
        """Krippendorff's α, for which each pair of labels is counted from both sides."""
        tables = sum_cells(self.cells, weights)
        return krippendorff_alpha(tables + np.swapaxes(tables, -1, -2))

    def f1(self, weights: Floats) -> Floats:
        """F1 of the first of `names`: 2·TP / (2·TP + FP + FN)."""
        tables = sum_cells(self.cells, weights)
        hits = tables[:, 0, 0]
        wrong = tables[:, 0, 1:].sum(axis=-1) + tables[:, 1:, 0].sum(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(2 * hits / (2 * hits + wrong), dtype=np.float64)


def sum_cells(cells: Floats, weights: Floats) -> Floats:
    """Draws × labels × labels: the tables of each draw, from those of the rows."""
    return np.asarray((weights @ cells.reshape(len(cells), -1)).reshape(-1, *cells.shape[1:]), dtype=np.float64)


def weigh_tables(cells: Floats, measure: Callable[[Floats], Floats]) -> Statistic:
    """What a measure of tables gives for those of the rows, summed."""
    return lambda weights: measure(sum_cells(cells, weights))


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
    n_given = tables.sum(axis=-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        recalls = np.where(n_given > 0, np.diagonal(tables, axis1=-2, axis2=-1) / n_given, 0.0)
        return np.asarray(recalls.sum(axis=-1) / (n_given > 0).sum(axis=-1), dtype=np.float64)


def cohen_kappa(tables: Floats) -> Floats:
    """Cohen's κ of each table; NaN where chance alone would always agree."""
    total = tables.sum(axis=(-2, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = (tables.sum(axis=-1) * tables.sum(axis=-2)).sum(axis=-1) / total**2
        agreeing = np.trace(tables, axis1=-2, axis2=-1) / total
        return np.asarray(np.where(chance < 1, (agreeing - chance) / (1 - chance), np.nan), dtype=np.float64)


def weigh_mean(values: Sequence[float] | Floats, weight: Floats | None = None) -> Statistic:
    """The mean of a value per row; `weight` is that of each row, where they are not equal."""
    value = np.asarray(values, dtype=np.float64)
    own = np.ones(len(value)) if weight is None else weight
    return lambda weights: np.asarray(weights @ (value * own) / (weights @ own), dtype=np.float64)


def weigh_auc(scores: Sequence[float], positive: Sequence[bool]) -> Statistic:
    """The chance that a positive row scores above a negative one, ties half; NaN where one side is empty."""
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
    """Spearman's ρ, Pearson's of the mid-ranks; NaN where one side never changes."""
    orders = [_Order.of(side) for side in (first, second)]

    def weighed(weights: Floats) -> Floats:
        centred, other = (_centre(order.rank(weights), weights) for order in orders)
        spread = (weights * centred**2).sum(axis=1) * (weights * other**2).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            correlation = (weights * centred * other).sum(axis=1) / np.sqrt(spread)
        return np.asarray(np.where(spread > TIE, correlation, np.nan), dtype=np.float64)

    return weighed


@dataclass(frozen=True, kw_only=True)
class _Order:
    """Rows in the order of a score, and where in it each new score begins."""

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
        """Draws × levels: the weights of equal scores together."""
        return np.asarray(np.add.reduceat(sorted_weights, self.starts, axis=1), dtype=np.float64)

    def rank(self, weights: Floats) -> Floats:
        """Draws × rows: the mid-rank of each row's score."""
        by_level = self.sum(weights[:, self.rows])
        return np.asarray((np.cumsum(by_level, axis=1) - by_level / 2)[:, self.level], dtype=np.float64)


def _centre(values: Floats, weights: Floats) -> Floats:
    mean = (values * weights).sum(axis=1, keepdims=True) / weights.sum(axis=1, keepdims=True)
    return np.asarray(values - mean, dtype=np.float64)


def compute_ndcg(grades: Sequence[float], scores: Sequence[float]) -> float | None:
    """DCG / best DCG over one question's contexts, DCG = Σ grade / log2(rank + 1) with rank from 1.

    Equal scores stay in the order given. None when no context has a grade above 0. (Järvelin and Kekäläinen 2002,
    ACM TOIS 20, 422-446.)
    """
    discounts = 1 / np.log2(np.arange(2, len(grades) + 2))
    ordered = np.asarray(grades, dtype=np.float64)
    best = float((np.sort(ordered)[::-1] * discounts).sum())
    gained = float((ordered[np.argsort(-np.asarray(scores), kind="stable")] * discounts).sum())
    return gained / best if best > 0 else None
