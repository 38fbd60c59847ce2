"""Points of the distributions that intervals rest on: the normal, Student's and the beta distribution.

SciPy has them all, but its import takes about two tenths of a second of every command that compares. The tests hold
these to its values.
"""

from functools import cache
from math import exp, isnan, lgamma, log, log1p, nan, sqrt
from statistics import NormalDist
from typing import Final

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
