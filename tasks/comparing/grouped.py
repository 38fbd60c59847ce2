"""Figures of agreement with 95 % intervals over rows that come in groups.

Rows of one group (a question, a document) are not independent, so whole groups are drawn (a bootstrap), and each draw
is a weight for every row. Whatever can be reckoned with weights gets its interval this way, and draws of several sets
can be joined to one for their mean. Tables of labels are measured by the formulas of `tasks/comparing/agreement.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evalhouse.tasks.comparing.agreement import (
    ALPHA,
    RESAMPLES,
    Floats,
    Integers,
    Measure,
    balance_accuracy,
    cohen_kappa,
    find_tails,
    share_agreeing,
)

# Weights of so many row draws are held at once.
_MOST_WEIGHTS: Final = 4_000_000
_SAME = 1e-12

Weighed = Callable[[Floats], Floats]
"""From weights (draws × rows) to a value for each draw, NaN where it is undefined."""


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure and what it is in each draw of the groups; NaN where it is undefined."""

    value: float
    draws: Floats
    n_groups: int
    is_share: bool = False

    @property
    def measure(self) -> Measure:
        """The figure with its interval; none where the draws leave it open, as where all of them agree.

        Where that is because a share is 1 the lower bound is the least one that would show no miss among so many
        groups in one case of forty (Clopper and Pearson 1934).
        """
        if np.isnan(self.value):
            return Measure(value=None, ci_low=None, ci_high=None)
        draws = self.draws[~np.isnan(self.draws)]
        if self.n_groups < 2 or len(draws) < max(1, len(self.draws) / 2):
            return Measure(value=self.value, ci_low=None, ci_high=None)
        if np.ptp(draws) < _SAME:
            perfect = self.is_share and self.value > 1 - _SAME
            low = (ALPHA / 2) ** (1 / self.n_groups) if perfect else None
            return Measure(value=self.value, ci_low=low, ci_high=1.0 if perfect else None)
        low, high = np.quantile(draws, find_tails(self.n_groups))
        return Measure(value=self.value, ci_low=float(low), ci_high=float(high))


@dataclass(frozen=True)
class Groups:
    """Which group each row is of, and how the groups are drawn: the same seed draws the same ones."""

    names: Sequence[str]
    seed: int = 0
    resamples: int = RESAMPLES

    @cached_property
    def _place(self) -> Integers:
        return np.unique(np.asarray(self.names, dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)

    @property
    def n(self) -> int:
        """How many groups there are."""
        return int(self._place.max()) + 1 if len(self.names) else 0

    def _draw(self) -> Iterator[Floats]:
        n = self.n
        if n < 2:
            return
        rng = np.random.default_rng(self.seed)
        left, most = self.resamples, max(1, _MOST_WEIGHTS // max(len(self.names), 1))
        while left:
            times = rng.multinomial(n, np.full(n, 1 / n), size=min(left, most)).astype(np.float64)
            yield times[:, self._place]
            left -= len(times)

    def measure(self, weighed: Weighed, *, is_share: bool = False) -> Drawn:
        """A figure over all rows and over the draws."""
        whole = float(weighed(np.ones((1, len(self.names))))[0]) if len(self.names) else float("nan")
        drawn = [weighed(weights) for weights in self._draw()]
        draws = np.concatenate(drawn) if drawn else np.zeros(0)
        return Drawn(value=whole, draws=draws, n_groups=self.n, is_share=is_share)

    def pick(self, kept: NDArray[np.bool_]) -> "Groups":
        """Those of some rows alone."""
        names = [name for name, is_kept in zip(self.names, kept, strict=True) if is_kept]
        return Groups(names, seed=self.seed, resamples=self.resamples)


def average(figures: Sequence[Drawn]) -> Drawn | None:
    """The mean of a figure over several sets, each of the same weight; None without any that is defined.

    The draws of each set must come from another seed.
    """
    known = [one for one in figures if not np.isnan(one.value)]
    if not known:
        return None
    lengths = {len(one.draws) for one in known}
    draws = np.mean([one.draws for one in known], axis=0) if len(lengths) == 1 else np.zeros(0)
    return Drawn(
        value=float(np.mean([one.value for one in known])),
        draws=draws,
        # The least certain of them says how far out an interval has to be.
        n_groups=min(one.n_groups for one in known),
        is_share=all(one.is_share for one in known),
    )


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What two said of each row, as places in `names`."""

    names: tuple[str, ...]
    first: Sequence[str]
    second: Sequence[str]

    @cached_property
    def _cells(self) -> Floats:
        """Rows × cells, a one in the cell of a row."""
        places = {name: place for place, name in enumerate(self.names)}
        n = len(self.names)
        cells = np.zeros((len(self.first), n * n))
        for row, (one, other) in enumerate(zip(self.first, self.second, strict=True)):
            cells[row, places[one] * n + places[other]] = 1.0
        return cells

    def _tables(self, weights: Floats) -> Floats:
        return (weights @ self._cells).reshape(-1, len(self.names), len(self.names))

    def agree(self, weights: Floats) -> Floats:
        """The share of rows with the same label."""
        return share_agreeing(self._tables(weights))

    def balance(self, weights: Floats) -> Floats:
        """Balanced accuracy of the first by the second."""
        return balance_accuracy(self._tables(weights))

    def kappa(self, weights: Floats) -> Floats:
        """Cohen's κ."""
        return cohen_kappa(self._tables(weights))

    def f1(self, weights: Floats) -> Floats:
        """F1 of the first of `names`: 2·TP / (2·TP + FP + FN)."""
        tables = self._tables(weights)
        hits = tables[:, 0, 0]
        wrong = tables[:, 0, 1:].sum(axis=-1) + tables[:, 1:, 0].sum(axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(2 * hits / (2 * hits + wrong), dtype=np.float64)


def weigh_mean(values: Sequence[float]) -> Weighed:
    """The mean of a value per row."""
    held = np.asarray(values, dtype=np.float64)
    return lambda weights: np.asarray(weights @ held / weights.sum(axis=1), dtype=np.float64)


def weigh_auc(scores: Sequence[float], positive: Sequence[bool]) -> Weighed:
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


def weigh_spearman(first: Sequence[float], second: Sequence[float]) -> Weighed:
    """Spearman's ρ, Pearson's of the mid-ranks; NaN where one side never changes."""
    orders = [_Order.of(side) for side in (first, second)]

    def weighed(weights: Floats) -> Floats:
        one, other = (_centre(order.rank(weights), weights) for order in orders)
        spread = (weights * one**2).sum(axis=1) * (weights * other**2).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = (weights * one * other).sum(axis=1) / np.sqrt(spread)
        return np.asarray(np.where(spread > _SAME, found, np.nan), dtype=np.float64)

    return weighed


@dataclass(frozen=True, kw_only=True)
class _Order:
    """Rows in the order of a score, and where in it each new score begins."""

    rows: Integers
    starts: Integers
    level: Integers

    @classmethod
    def of(cls, scores: Sequence[float]) -> "_Order":
        held = np.asarray(scores, dtype=np.float64)
        rows = np.argsort(held, kind="stable")
        level = np.unique(held, return_inverse=True)[1].astype(np.int64)
        starts = np.flatnonzero(np.diff(held[rows], prepend=np.nan) != 0)
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
    held = np.asarray(grades, dtype=np.float64)
    best = float((np.sort(held)[::-1] * discounts).sum())
    gained = float((held[np.argsort(-np.asarray(scores), kind="stable")] * discounts).sum())
    return gained / best if best > 0 else None
