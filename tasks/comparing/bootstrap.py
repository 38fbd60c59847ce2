"""The bootstrap: how far a figure would be off with other samples, found by drawing from those at hand again and again.

Rows of one group (a question, a document, a conversation) are not independent, so whole groups are drawn, as many as
there are, with replacement. A draw is a weight for each of them, and whatever can be computed with weights gets its
interval here: the difference of two means (`paired`), agreement of judge and people (`agreement`), and the figures of a
benchmark (`figures`).

SciPy has the points of the normal, Student's and the beta distribution, but its import takes about two tenths of a
second of every command that compares. The tests hold those here to its values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import exp, isnan, lgamma, log, log1p, nan, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

NORMAL: Final = NormalDist()
_TINY: Final = 1e-300
_PRECISION: Final = 1e-15
_MOST_TERMS: Final = 100_000
_MOST_STEPS: Final = 200


@cache
def find_student_point(share: float, degrees: float) -> float:
    """The point below which this share of Student's distribution lies, NaN where there are no degrees of freedom.

    t² / (degrees + t²) has the beta distribution with ½ and degrees / 2.
    """
    if isnan(degrees) or degrees <= 0:
        return nan
    point = find_beta_point(abs(1 - 2 * share), 0.5, degrees / 2)
    t = sqrt(degrees * point / (1 - point))
    return t if share > 0.5 else -t


def find_student_p(t: float, degrees: float) -> float:
    """The chance of a value of Student's distribution that is at least as far from 0, on either side."""
    x = t * t / (degrees + t * t)
    if x in (0, 1):
        return 1 - x
    log_beta = lgamma(0.5) + lgamma(degrees / 2) - lgamma((degrees + 1) / 2)
    return 1 - _find_share(x, 0.5, degrees / 2, log_beta)


@cache
def find_beta_point(share: float, a: float, b: float) -> float:
    """The point below which this share of the beta distribution with `a` and `b` lies; both are above 0.

    Newton's method, and half of what is left where that would leave it.
    """
    low, high, point = 0.0, 1.0, a / (a + b)
    log_beta = lgamma(a) + lgamma(b) - lgamma(a + b)
    for _ in range(_MOST_STEPS):
        beyond = _find_share(point, a, b, log_beta) - share
        low, high = (low, point) if beyond > 0 else (point, high)
        density = exp((a - 1) * log(point) + (b - 1) * log1p(-point) - log_beta)
        following = point - beyond / density if density else nan
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - point) <= _PRECISION * point:
            return following
        point = following
    return point


def _find_share(x: float, a: float, b: float, log_beta: float) -> float:
    """The share of the beta distribution below x: the regularised incomplete beta function (DLMF 8.17(v)).

    Its continued fraction converges fast below the mean; above, it is 1 less that of the other end.
    """
    front = exp(a * log(x) + b * log1p(-x) - log_beta)
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _continue_fraction(1 - x, b, a) / b
    return front * _continue_fraction(x, a, b) / a


def _continue_fraction(x: float, a: float, b: float) -> float:
    """1 / (1 + d₁ / (1 + d₂ / …)) with the d of DLMF 8.17.23, from the front (Lentz 1976, Applied Optics 15(3))."""
    upper, lower = 1.0, 1 / _avoid_zero(1 - (a + b) * x / (a + 1))
    value = lower
    for m in range(1, _MOST_TERMS):
        of_even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        of_odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for d in (of_even, of_odd):
            lower, upper = 1 / _avoid_zero(1 + d * lower), _avoid_zero(1 + d / upper)
            change = lower * upper
            value *= change
        if abs(change - 1) < _PRECISION:
            break
    return value


def _avoid_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Statistic = Callable[[Floats], Floats]
"""From weights (draws × rows) to a value for each draw, NaN where it is undefined."""

ALPHA: Final = 0.05
"""What an interval leaves out, and the chance of a false alarm in a test."""
RESAMPLES: Final = 2000
TIE: Final = 1e-12
"""Sums of floats that are equal on paper differ by less than this share."""

_MOST_CELLS: Final = 500_000  # of a block of weights: 4 MB, which stays in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A value with its 95 % interval; `value` is None where it is undefined, the interval where none can be drawn."""

    value: float | None
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure and what it is in each draw of the groups; NaN where it is undefined.

    `n_equal` is how many groups of equal weight would tell as much, None where all weigh the same.
    """

    value: float
    draws: Floats
    n_groups: int
    is_share: bool = False
    n_equal: float | None = None

    @property
    def measure(self) -> Measure:
        """The figure with its interval; none where the draws leave it open, as where all of them agree.

        Where that is because a share is 1 the lower bound is the least one that would show no miss among so many
        groups in one case of forty (Clopper and Pearson 1934).
        """
        if np.isnan(self.value):
            return Measure(value=None, ci_low=None, ci_high=None)
        interval = find_interval(self.draws, self.n_groups)
        if interval is None and self.is_share and self.n_groups > 1 and self.value > 1 - TIE:
            interval = ((ALPHA / 2) ** (1 / (self.n_equal or self.n_groups)), 1.0)
        low, high = interval or (None, None)
        return Measure(value=self.value, ci_low=low, ci_high=high)

    def __sub__(self, other: "Estimate") -> "Estimate":
        """The difference of two figures of the same draws."""
        return Estimate(value=self.value - other.value, draws=self.draws - other.draws, n_groups=self.n_groups)


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

    def measure(self, statistic: Statistic, *, is_share: bool = False, weight: Floats | None = None) -> Estimate:
        """A figure over all rows and over the draws; `weight` is that of each row in it, where they are not equal."""
        if not len(self.names):
            return Estimate(value=float("nan"), draws=np.zeros(0), n_groups=0, is_share=is_share)
        whole = float(statistic(np.ones((1, len(self.names))))[0])
        generator = np.random.default_rng(self.seed)
        blocks = draw_weights(self.n, generator, self.resamples, n_rows=len(self.names)) if self.n > 1 else ()
        draws = [statistic(weights[:, self._place]) for weights in blocks]
        return Estimate(
            value=whole,
            draws=np.concatenate(draws) if draws else np.zeros(0),
            n_groups=self.n,
            is_share=is_share,
            n_equal=None if weight is None else count_equal(np.bincount(self._place, weight).astype(np.float64)),
        )

    def pick(self, kept: NDArray[np.bool_]) -> "Groups":
        """Those of some rows alone."""
        names = [name for name, is_kept in zip(self.names, kept, strict=True) if is_kept]
        return Groups(names, seed=self.seed, resamples=self.resamples)


def average(estimates: Sequence[Estimate]) -> Estimate | None:
    """The mean of a figure over several sets, each of the same weight; None without any that is defined.

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
        # The least certain of them says how far out an interval has to be.
        n_groups=min(estimate.n_groups for estimate in defined),
        is_share=all(estimate.is_share for estimate in defined),
    )


def draw_weights(n: int, generator: np.random.Generator, resamples: int, *, n_rows: int = 0) -> Iterator[Floats]:
    """Draws × groups, in blocks: how often each of `n` groups is in a draw of n with replacement.

    `n_rows` is how wide the caller makes a block, where that is more than the groups.
    """
    step = max(1, _MOST_CELLS // max(n, n_rows))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        picks = generator.integers(0, n, size=(size, n), dtype=np.int32)
        picks += np.arange(size, dtype=np.int32)[:, None] * np.int32(n)
        yield np.bincount(picks.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)


def find_interval(draws: Floats, n_groups: int) -> tuple[float, float] | None:
    """The 95 % interval of a figure; None for a single group, and where the draws are equal or most are undefined."""
    defined = draws[~np.isnan(draws)]
    if n_groups < 2 or len(defined) < max(1, len(draws) / 2):
        return None
    if np.ptp(defined) <= TIE * max(1.0, float(np.abs(defined).max())):
        return None
    low, high = np.quantile(defined, find_tails(n_groups))
    return float(low), float(high)


def find_tails(n_groups: int) -> tuple[float, float]:
    """The percentiles of a 95 % interval over so many groups.

    They are set further out than 2.5 and 97.5 by what Student's t and n/(n-1) ask for, because plain percentiles are
    too narrow for a few groups (Hesterberg 2015, The American Statistician 69(4), section 5).
    """
    tail = NORMAL.cdf(sqrt(n_groups / (n_groups - 1)) * find_student_point(ALPHA / 2, n_groups - 1))
    return tail, 1 - tail


def count_equal(weight: Floats) -> float:
    """(Σ w)² / Σ w², the number of equal weights that would tell as much (Kish 1965, Survey Sampling)."""
    squares = float((weight**2).sum())
    return float(weight.sum()) ** 2 / squares if squares else 0.0
