"""The interval of a mean of values from 0 to 1, and of the mean of paired differences.

A mean of zeros and ones has Wilson's interval (1927, Journal of the American Statistical Association 22, 209-212): all
true means from which the one found is no further than chance takes it. It keeps to 0 and 1. Other values vary less than
zeros and ones of the same mean do, so that they say as much as more of those would: with v the variance of their mean
m, as much as n = m·(1 - m) / v (the effective number of Korn and Graubard 1998, Survey Methodology 24, 193-201). As v
is estimated, Student's quantile takes the place of the normal one, for zeros and ones as well: of few the normal one
has Wilson's interval miss a true mean near an end too often (of 20 values and a mean of 0.95 it holds 0.925, this one
0.984).
Samples of a group (a document, a conversation) are not independent: v is then that of the groups' sums about the mean,
Student's degrees of freedom are the groups less one. The view `run_scores` has the same interval in SQL.

A difference is what was gained less what was lost. Both are means of values from 0 to 1 with an interval of their own,
and from these comes that of the difference (MOVER: Zou and Donner 2008, Statistics in Medicine 27, 1693-1702; with
their correlation as in Newcombe 1998, Statistics in Medicine 17, 2635-2650). So few moves, or none, have an interval
too: twenty samples without a loss do not exclude that one in ten has one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evalhouse.tasks.comparing.bootstrap import ALPHA, Floats, find_student_point

FEW_MOVED: Final = 6
"""Of fewer that moved nobody knows how far others may: then a move can be as wide as the scale."""
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
    def n(self) -> Floats:
        """How many groups have a value."""
        return np.asarray((self.counts > 0).sum(axis=0), dtype=np.float64)

    @property
    def mean(self) -> Floats:
        """Over all values."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.totals.sum(axis=0) / self.counts.sum(axis=0), dtype=np.float64)

    def covary(self, other: "GroupSums") -> Floats:
        """The covariance of the two means, by what each group adds to them; NaN for a single group."""
        products = (self.totals - self.counts * self.mean) * (other.totals - other.counts * other.mean)
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = products.sum(axis=0) / self.counts.sum(axis=0) ** 2
            return np.asarray(spread * self.n / (self.n - 1), dtype=np.float64)


def find_interval(values: Floats, places: NDArray[np.int64]) -> Interval:
    """The interval of means of values from 0 to 1: samples × columns, NaN is no value; `places` numbers the groups.

    Zeros and ones of which each is its own group count as many as they are. Where all groups are equal there is no
    variance to go by: at most a share u of further ones differ, as none of n does (Clopper and Pearson 1934, Biometrika
    26(4)), and by no more than to 0 or to 1. As much is left open where most values are at an end of the scale, and
    fewer than FEW_MOVED are off it, though not at the other end: a single loss of 0.05 does not say that others are as
    small.
    """
    sums = sum_groups(values, places)
    mean, variance, n = sums.mean, sums.covary(sums), sums.n
    n_at_ends = np.maximum((values == 0).sum(axis=0), (values == 1).sum(axis=0))
    is_binary = (np.isnan(values) | (values == 0) | (values == 1)).all(axis=0) & (sums.counts <= 1).all(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.array([find_student_point(ALPHA / 2, degrees) for degrees in n - 1])
        pull = t**2 / np.where(is_binary, n, mean * (1 - mean) / variance)
        centre = (mean + pull / 2) / (1 + pull)
        half = np.sqrt(np.maximum(pull * (mean * (1 - mean) + pull / 4), 0.0)) / (1 + pull)
        unseen = 1 - (ALPHA / 2) ** (1 / n)
    is_level = (n < 2) | (variance < _NO_VARIANCE)
    n_off = sums.counts.sum(axis=0) - n_at_ends
    is_open = is_level | (~is_binary & (n_off < np.minimum(FEW_MOVED, n_at_ends)))
    half, centre = np.where(is_level, 0.0, half), np.where(is_level, mean, centre)
    low = np.where(is_open, np.minimum(mean * (1 - unseen), centre - half), centre - half)
    high = np.where(is_open, np.maximum(mean + (1 - mean) * unseen, centre + half), centre + half)
    return Interval(mean=mean, low=np.clip(low, 0.0, mean), high=np.clip(high, mean, 1.0))


def find_mean_interval(values: Floats, places: NDArray[np.int64], *, minimum: float) -> tuple[float, float] | None:
    """The interval of one mean, as `run_scores` has it, of values from `minimum` to 1.

    On another scale it is mean ± t · √v of Student (1908, Biometrika 6(1)), and None without two groups that differ.
    """
    column = values[:, None]
    if values.min(initial=1.0) >= minimum and values.max(initial=0.0) <= 1:
        found = find_interval((column - minimum) / (1 - minimum), places)
        low, high = (minimum + (1 - minimum) * float(end[0]) for end in (found.low, found.high))
        return low, high
    sums = sum_groups(column, places)
    mean, variance, n = (float(figure[0]) for figure in (sums.mean, sums.covary(sums), sums.n))
    if n < 2 or variance < _NO_VARIANCE:
        return None
    half = -find_student_point(ALPHA / 2, n - 1) * float(np.sqrt(variance))
    return mean - half, mean + half


def find_difference(gains: Floats, losses: Floats, places: NDArray[np.int64]) -> Interval:
    """The interval of what was gained less what was lost, each from 0 to 1."""
    gain, loss = find_interval(gains, places), find_interval(losses, places)
    gained, lost = sum_groups(gains, places), sum_groups(losses, places)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = gained.covary(lost) / np.sqrt(gained.covary(gained) * lost.covary(lost))
    correlation = np.where(np.isfinite(correlation), correlation, 0.0)
    mean = gain.mean - loss.mean
    low = _join(gain.mean - gain.low, loss.high - loss.mean, correlation)
    high = _join(gain.high - gain.mean, loss.mean - loss.low, correlation)
    return Interval(mean=mean, low=mean - low, high=mean + high)


def _join(of_gain: Floats, of_loss: Floats, correlation: Floats) -> Floats:
    squares = of_gain**2 + of_loss**2 - 2 * correlation * of_gain * of_loss
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)), dtype=np.float64)


def sum_groups(values: Floats, places: NDArray[np.int64]) -> GroupSums:
    """Sum samples × columns by the group at each place; NaN is no value."""
    is_known = ~np.isnan(values)
    totals = np.zeros((int(places.max()) + 1 if len(places) else 0, values.shape[1]))
    counts = np.zeros_like(totals)
    np.add.at(totals, places, np.where(is_known, values, 0.0))
    np.add.at(counts, places, is_known)
    return GroupSums(totals=totals, counts=counts)


def find_share_interval(
    hits: NDArray[np.generic], counted: NDArray[np.generic], samples: NDArray[np.generic]
) -> tuple[Floats, Floats]:
    """The ends of Wilson's own interval of hits / counted, as if each sample had been counted once; NaN of none."""
    n = samples.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = hits.astype(np.float64) / counted.astype(np.float64)
        pull = _Z**2 / n
        spread = _Z * np.sqrt(share * (1 - share) / n + pull / (4 * n))
        low, high = ((share + pull / 2 + sign * spread) / (1 + pull) for sign in (-1.0, 1.0))
    # Rounding must not push an end past 0 or 1.
    return np.where(share == 0, 0.0, low), np.where(share == 1, 1.0, high)
