"""Confidence intervals: by the bootstrap, and Wilson's for means of values from 0 to 1.

Rows of one group (a question, a document, a conversation) are not independent, so the bootstrap draws whole groups, as
many as there are, with replacement. A draw is a weight for each of them, and any figure that can be computed with
weights gets its interval from them: agreement of judge and people (`agreement`) and the figures of a benchmark.

A mean of zeros and ones has Wilson's interval (1927, Journal of the American Statistical Association 22, 209-212): all
true means from which chance can bring about the one found. It keeps to 0 and 1. Other values vary less than zeros and
ones of the same mean do, so that they count for more of them: with v the variance of their mean m, for
n = m·(1 - m) / v (the effective number of Korn and Graubard 1998, Survey Methodology 24, 193-201). As v is estimated,
Student's quantile replaces the normal one, for zeros and ones as well: with few the normal one makes Wilson's interval
miss a true mean near an end too often (of 20 values and a mean of 0.95 it holds 0.925, this one 0.984).
Samples of a group (a document, a conversation) are not independent: v is then the jackknife's, by what the mean would
be without each group (Efron and Stein 1981, Annals of Statistics 9(3)), so that a group which makes up most of the mean
does not hide how far others are from it. Student's degrees of freedom are the groups of equal size that would be worth
as much (Kish 1965, Survey Sampling), less one: one large document and twenty questions beside it are worth fewer than
two. For groups of one size both are the plain ones. The view `run_scores` has the same interval in SQL.

A difference is the gains less the losses. Both are means of values from 0 to 1 with an interval each, and the interval
of the difference follows from these (MOVER: Zou and Donner 2008, Statistics in Medicine 27, 1693-1702; with their
correlation as in Newcombe 1998, Statistics in Medicine 17, 2635-2650). So few moves, or none, have an interval too:
twenty samples without a loss do not exclude that one in ten has one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

NORMAL: Final = NormalDist()


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Statistic = Callable[[Floats], Floats]
"""A function of weights (draws × rows) with a value for each draw, NaN where it is undefined."""

ALPHA: Final = 0.05
"""The share that an interval leaves out, and the chance of a false alarm in a test."""
RESAMPLES: Final = 2000
TIE: Final = 1e-12
"""Sums of floats that are equal on paper differ by less than this share."""

_MAX_CELLS: Final = 500_000  # of a block of weights: 4 MB, which stays in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A value with its 95 % interval; `value` is None where it is undefined, the interval where none can be drawn."""

    value: float | None
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure and its value in each draw of the groups; NaN where it is undefined.

    `n_equal` is how many groups of equal weight would be worth as much, None where all weigh the same.
    """

    value: float
    draws: Floats
    n_groups: int
    is_share: bool = False
    n_equal: float | None = None

    @property
    def measure(self) -> Measure:
        """Return the figure with its interval; none for a single group, and where draws are equal or most undefined.

        Where that is because a share is 1 the lower bound is the least one that would show no miss among so many
        groups in one case of forty (Clopper and Pearson 1934).
        """
        if np.isnan(self.value):
            return Measure(value=None, ci_low=None, ci_high=None)
        defined = self.draws[~np.isnan(self.draws)]
        if (
            self.n_groups > 1
            and len(defined) >= max(1, len(self.draws) / 2)
            and np.ptp(defined) > TIE * max(1.0, float(np.abs(defined).max()))
        ):
            low, high = map(float, np.quantile(defined, find_tails(self.n_groups)))
            return Measure(value=self.value, ci_low=low, ci_high=high)
        if self.is_share and self.n_groups > 1 and self.value > 1 - TIE:
            least = (ALPHA / 2) ** (1 / (self.n_equal or self.n_groups))
            return Measure(value=self.value, ci_low=least, ci_high=1.0)
        return Measure(value=self.value, ci_low=None, ci_high=None)

    def __sub__(self, other: "Estimate") -> "Estimate":
        """Return the difference of two figures of the same draws."""
        return Estimate(value=self.value - other.value, draws=self.draws - other.draws, n_groups=self.n_groups)


@dataclass(frozen=True)
class Groups:
    """The group of each row, and how the groups are drawn: the same seed draws the same ones."""

    names: Sequence[str]
    seed: int = 0
    resamples: int = RESAMPLES

    @cached_property
    def _place(self) -> Integers:
        return np.unique(np.asarray(self.names, dtype=object).astype(str), return_inverse=True)[1].astype(np.int64)

    @property
    def n(self) -> int:
        """The number of groups."""
        return int(self._place.max()) + 1 if len(self.names) else 0

    def measure(self, statistic: Statistic, *, is_share: bool = False, weight: Floats | None = None) -> Estimate:
        """Return a figure over all rows and over the draws; `weight` is that of each row, where they are not equal."""
        if not len(self.names):
            return Estimate(value=float("nan"), draws=np.zeros(0), n_groups=0, is_share=is_share)
        whole = float(statistic(np.ones((1, len(self.names))))[0])
        # How often each of n groups is in a draw of n with replacement, as draws × groups in blocks.
        generator, n = np.random.default_rng(self.seed), self.n
        step = max(1, _MAX_CELLS // len(self.names))
        draws = []
        for start in range(0, self.resamples if n > 1 else 0, step):
            size = min(step, self.resamples - start)
            picks = generator.integers(0, n, size=(size, n), dtype=np.int32)
            picks += np.arange(size, dtype=np.int32)[:, None] * np.int32(n)
            weights = np.bincount(picks.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
            draws.append(statistic(weights[:, self._place]))
        return Estimate(
            value=whole,
            draws=np.concatenate(draws) if draws else np.zeros(0),
            n_groups=n,
            is_share=is_share,
            n_equal=None if weight is None else count_equal(np.bincount(self._place, weight).astype(np.float64)),
        )

    def pick(self, kept: NDArray[np.bool_]) -> "Groups":
        """Return the groups of these rows alone."""
        names = [name for name, is_kept in zip(self.names, kept, strict=True) if is_kept]
        return Groups(names, seed=self.seed, resamples=self.resamples)


def average(estimates: Sequence[Estimate]) -> Estimate | None:
    """Return the mean of a figure over several sets, each of the same weight; None if none is defined.

    The draws of each set must come from another seed.
    """
    defined = [estimate for estimate in estimates if not np.isnan(estimate.value)]
    if not defined:
        return None
    lengths = {len(estimate.draws) for estimate in defined}
    draws = np.mean([estimate.draws for estimate in defined], axis=0) if len(lengths) == 1 else np.zeros(0)
    return Estimate(
        value=float(np.mean([estimate.value for estimate in defined])),
        draws=draws,
        # The least certain of them decides how far out an interval has to be.
        n_groups=min(estimate.n_groups for estimate in defined),
        is_share=all(estimate.is_share for estimate in defined),
    )


def find_tails(n_groups: int) -> tuple[float, float]:
    """Return the percentiles of a 95 % interval over so many groups.

    They are further out than 2.5 and 97.5, by Student's t and n/(n-1), because plain percentiles are too narrow for a
    few groups (Hesterberg 2015, The American Statistician 69(4), section 5).
    """
    tail = NORMAL.cdf(sqrt(n_groups / (n_groups - 1)) * float(stdtrit(n_groups - 1, ALPHA / 2)))
    return tail, 1 - tail


def count_equal(weight: Floats) -> float:
    """Return (Σ w)² / Σ w², the number of equal weights that would be worth as much (Kish 1965, Survey Sampling)."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares else 0.0


FEW_MOVED: Final = 6
"""Fewer moves do not show how far others may go: then a move can be as wide as the scale."""
_Z: Final = 1.96
_NO_VARIANCE: Final = 1e-20
"""Sums of floats that are equal on paper have a variance of less."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """Means, one a column, with their 95 % interval; NaN without a value."""

    mean: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True)
class GroupSums:
    """Groups × columns: the sum of the values of a group, and how many they are."""

    totals: Floats
    counts: Floats

    @property
    def n_equal(self) -> Floats:
        """The number of groups of equal size that would be worth as much, at least 2 where there are two or more."""
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = self.counts.sum(axis=0) ** 2 / (self.counts**2).sum(axis=0)
        least = np.minimum((self.counts > 0).sum(axis=0), 2.0)
        return np.asarray(np.nan_to_num(np.maximum(worth, least)), dtype=np.float64)

    @property
    def mean(self) -> Floats:
        """The mean over all values."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.totals.sum(axis=0) / self.counts.sum(axis=0), dtype=np.float64)

    def covary(self, other: "GroupSums") -> Floats:
        """Return the jackknife covariance of the two means, over the same groups; NaN for a single group.

        Without a group a mean moves by what the group's values are off it, by the number of values that are left.
        """
        n = (self.counts > 0).sum(axis=0)
        with np.errstate(divide="ignore", invalid="ignore"):
            moves = [
                (sums.totals - sums.counts * sums.mean) / (sums.counts.sum(axis=0) - sums.counts)
                for sums in (self, other)
            ]
            return np.asarray((moves[0] * moves[1]).sum(axis=0) * (n - 1) / n, dtype=np.float64)


def find_interval(values: Floats, places: NDArray[np.int64], *, alpha: float = ALPHA) -> Interval:
    """Return the interval of means of values from 0 to 1, which leaves out a share `alpha`.

    `values` is samples × columns, NaN where a value is missing; `places` numbers the groups. Zeros and ones of which
    each is a separate group are counted singly. Where all groups are equal the variance is missing: at
    most a share u of further ones differ, where n show none (Clopper and Pearson 1934, Biometrika 26(4)), and by no
    more than to 0 or to 1. As much is left open where most values are at an end of the scale, and fewer than FEW_MOVED
    are off it, though not at the other end: a single loss of 0.05 does not show that others are as small.
    """
    sums = sum_groups(values, places)
    mean, variance, n = sums.mean, sums.covary(sums), sums.n_equal
    n_at_ends = np.maximum((values == 0).sum(axis=0), (values == 1).sum(axis=0))
    is_binary = (np.isnan(values) | (values == 0) | (values == 1)).all(axis=0) & (sums.counts <= 1).all(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = stdtrit(n - 1, alpha / 2)
        pull = t**2 / np.where(is_binary, n, mean * (1 - mean) / variance)
        centre = (mean + pull / 2) / (1 + pull)
        half = np.sqrt(np.maximum(pull * (mean * (1 - mean) + pull / 4), 0.0)) / (1 + pull)
        unseen = 1 - (alpha / 2) ** (1 / n)
    is_level = (n < 2) | (variance < _NO_VARIANCE)
    n_off = sums.counts.sum(axis=0) - n_at_ends
    is_open = is_level | (~is_binary & (n_off < np.minimum(FEW_MOVED, n_at_ends)))
    half, centre = np.where(is_level, 0.0, half), np.where(is_level, mean, centre)
    low = np.where(is_open, np.minimum(mean * (1 - unseen), centre - half), centre - half)
    high = np.where(is_open, np.maximum(mean + (1 - mean) * unseen, centre + half), centre + half)
    return Interval(mean=mean, low=np.clip(low, 0.0, mean), high=np.clip(high, mean, 1.0))


def find_mean_interval(values: Floats, places: NDArray[np.int64], *, minimum: float) -> tuple[float, float] | None:
    """Return the interval of one mean, as `run_scores` has it, of values from `minimum` to 1.

    On another scale it is mean ± t · √v of Student (1908, Biometrika 6(1)), and None without two groups that differ.
    """
    column = values[:, None]
    if values.min(initial=1.0) >= minimum and values.max(initial=0.0) <= 1:
        found = find_interval((column - minimum) / (1 - minimum), places)
        low, high = (minimum + (1 - minimum) * float(end[0]) for end in (found.low, found.high))
        return low, high
    sums = sum_groups(column, places)
    mean, variance, n = (float(figure[0]) for figure in (sums.mean, sums.covary(sums), sums.n_equal))
    if n < 2 or variance < _NO_VARIANCE:
        return None
    half = -float(stdtrit(n - 1, ALPHA / 2)) * float(np.sqrt(variance))
    return mean - half, mean + half


def find_difference(gains: Floats, losses: Floats, places: NDArray[np.int64], *, alpha: float = ALPHA) -> Interval:
    """Return the interval of gains less losses, each from 0 to 1; see `find_interval`."""
    gain, loss = (find_interval(values, places, alpha=alpha) for values in (gains, losses))
    gained, lost = sum_groups(gains, places), sum_groups(losses, places)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = gained.covary(lost) / np.sqrt(gained.covary(gained) * lost.covary(lost))
    correlation = np.where(np.isfinite(correlation), correlation, 0.0)
    mean = gain.mean - loss.mean
    distances = []
    for of_gain, of_loss in (
        (gain.mean - gain.low, loss.high - loss.mean),
        (gain.high - gain.mean, loss.mean - loss.low),
    ):
        squares = of_gain**2 + of_loss**2 - 2 * correlation * of_gain * of_loss
        distances.append(np.asarray(np.sqrt(np.maximum(squares, 0.0)), dtype=np.float64))
    return Interval(mean=mean, low=mean - distances[0], high=mean + distances[1])


def sum_groups(values: Floats, places: NDArray[np.int64]) -> GroupSums:
    """Sum samples × columns by the group at each place; NaN counts as missing."""
    is_known = ~np.isnan(values)
    totals = np.zeros((int(places.max()) + 1 if len(places) else 0, values.shape[1]))
    counts = np.zeros_like(totals)
    np.add.at(totals, places, np.where(is_known, values, 0.0))
    np.add.at(counts, places, is_known)
    return GroupSums(totals=totals, counts=counts)


def find_share_interval(
    hits: NDArray[np.generic], counted: NDArray[np.generic], samples: NDArray[np.generic]
) -> tuple[Floats, Floats]:
    """Return the ends of Wilson's plain interval of hits / counted, each sample counted once; NaN without samples."""
    n = samples.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = hits.astype(np.float64) / counted.astype(np.float64)
        pull = _Z**2 / n
        spread = _Z * np.sqrt(share * (1 - share) / n + pull / (4 * n))
        low, high = ((share + pull / 2 + sign * spread) / (1 + pull) for sign in (-1.0, 1.0))
    # Rounding must not push an end past 0 or 1.
    return np.where(share == 0, 0.0, low), np.where(share == 1, 1.0, high)
