"""A slow fall over many nights, of which no single one is worse enough to fail: is there one, and is it no chance?

The last nights are held against the first ones since a level was accepted, sample by sample: each sample's mean over
the last nights less its mean over the first. Means of several nights have less of the judge's noise than one night, and
pairing takes out how hard a sample is. So a fall that is spread over weeks is seen long before two nights in a row
differ by more than chance; and unlike a fitted line the difference never makes more of a fall than there was. A second
window over the newest nights alone finds a fall from a level that was better than the accepted one.

The question is asked every night anew, so that its p must be far smaller than that of one comparison: with TREND_ALPHA
a history of thirty nights on which nothing changed has a false alarm in fewer than 5 of 100 cases;
`tests/benchmarks/gate_nights.py` measures it. Only nights that passed their gate are laid under tonight; what was
refused is no level to fall to.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from evalhouse.tasks.comparing.bootstrap import Floats
from evalhouse.tasks.comparing.gate_checks import Check, write_p
from evalhouse.tasks.comparing.nights import Nights, average_runs
from evalhouse.tasks.comparing.noise import find_scale
from evalhouse.tasks.comparing.paired import RESAMPLES, ROUNDING, Drop, Paired, compare_paired, turn_to_drop
from evalhouse.warehouse.rows.runs import RunRow

TREND_ALPHA: Final = 0.003
"""Two-sided p, adjusted over metrics and windows, up to which a fall is one. Half of it is a night's chance of a false
alarm, so that of histories of thirty nights at most 30 · 0.0015 = 4.5 % have one, however the nights hang together."""
MOST_SIDE: Final = 10
"""Nights on either side of the longest window."""
NEWEST: Final = 20
"""Nights of the shorter window, for histories that are longer."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """Nights whose last `n_side` are held against their first; `start` is the place of the first."""

    start: int
    n_side: int


def pick_nights(earlier: Sequence[RunRow]) -> list[RunRow]:
    """Of all nights before tonight those that some window has."""
    if len(earlier) < MOST_SIDE + NEWEST:
        return list(earlier)
    return [*earlier[:MOST_SIDE], *earlier[1 - NEWEST :]]


def list_windows(n_nights: int) -> list[Window]:
    """The windows of so many nights, tonight among them: all of them, and the newest where there are more.

    Thirds on either side find a steady fall nearly as well as a line fitted to it (Bartlett 1949, Biometrics 5(3)).
    """
    if n_nights < 2:
        return []
    windows = [Window(start=0, n_side=min(MOST_SIDE, max(1, n_nights // 3)))]
    if n_nights > NEWEST:
        windows.append(Window(start=n_nights - NEWEST, n_side=NEWEST // 3))
    return windows


def check_trends(
    limits: Mapping[str, float], nights: Mapping[str, Nights], *, seed: int = 0, resamples: int = RESAMPLES
) -> list[Check]:
    """How far each metric has fallen (one that is better when low: risen) over the nights, against the most allowed.

    Failed when the fall is beyond chance, its whole 95 % interval is beyond the limit, and tonight is still down by
    half of it at least. All else passes: this is an alarm, and shows nothing when it is silent. `nights` has every
    metric that is limited, with its nights since the last acceptance and tonight's last.
    """
    alike = {metric: nights[metric].pick_alike() for metric in limits}
    windows = [(metric, window) for metric, of_metric in alike.items() for window in list_windows(len(of_metric.runs))]
    falls: dict[str, _Fall] = {}
    for (metric, window), paired in zip(windows, _compare(alike, windows, seed, resamples), strict=True):
        fall = _Fall(nights=alike[metric], window=window, paired=paired)
        if metric not in falls or fall.plainness > falls[metric].plainness:
            falls[metric] = fall
    return [_check(metric, limit, falls.get(metric)) for metric, limit in limits.items()]


def _compare(
    alike: Mapping[str, Nights], windows: Sequence[tuple[str, Window]], seed: int, resamples: int
) -> list[Paired]:
    if not windows:
        return []
    return compare_paired(
        np.column_stack([_find_differences(alike[metric], window) for metric, window in windows]),
        alike[windows[0][0]].clusters,
        low_is_good=[alike[metric].better == "low" for metric, _ in windows],
        scales=[find_scale(alike[metric].values) for metric, _ in windows],
        seed=seed,
        resamples=resamples,
    )


def _find_differences(nights: Nights, window: Window) -> Floats:
    """By sample its mean over the last nights less that over the first."""
    return average_runs(nights.values[-window.n_side :]) - _average_first(nights, window)


def _average_first(nights: Nights, window: Window) -> Floats:
    return average_runs(nights.values[window.start : window.start + window.n_side])


@dataclass(frozen=True, kw_only=True)
class _Fall:
    """What became of a metric over one window."""

    nights: Nights
    window: Window
    paired: Paired

    @property
    def drop(self) -> Drop:
        """How far it fell."""
        return self.paired.find_drop(self.nights.better)

    @property
    def tonight(self) -> float:
        """How far tonight alone is below the first nights, over the samples it has in common with them."""
        differences = self.nights.values[-1] - _average_first(self.nights, self.window)
        known = differences[~np.isnan(differences)]
        return (turn_to_drop(float(known.mean()), self.nights.better) or 0.0) if len(known) else 0.0

    @property
    def plainness(self) -> tuple[bool, float, float]:
        """The greater, the more certain the fall."""
        size, p = self.drop.size, self.paired.p
        return (size is not None and size > 0, -1.0 if p is None else -p, size or 0.0)


def _check(metric: str, limit: float, fall: _Fall | None) -> Check:
    drop = fall.drop if fall else Drop(size=None, low=None, high=None)
    is_found, detail = _judge(limit, fall, drop)
    return Check(
        kind="trend",
        metric=metric,
        limit=limit,
        value=drop.size,
        ci_low=drop.low,
        ci_high=drop.high,
        n=fall.paired.n if fall else 0,
        beyond=None if drop.size is None else drop.size - limit,
        outcome="failed" if is_found else "passed",
        reason="beyond_limit" if is_found else None,
        detail=detail,
    )


def _judge(limit: float, fall: _Fall | None, drop: Drop) -> tuple[bool, str]:
    """Whether it fails, and why (not)."""
    if fall is None:
        return False, "a trend takes an earlier night that passed and was judged as this one"
    size, low, p = drop.size, drop.low, fall.paired.p_adjusted
    if size is None or low is None or p is None:
        return False, "fewer than two independent samples are scored in the first and in the last nights"
    sides = _name_sides(fall)
    if size <= 0 or p > TREND_ALPHA:
        return False, f"no fall beyond chance: {sides}, {write_p(p)}"
    if low <= limit + ROUNDING:
        return False, f"a fall that may keep the limit: {sides}, {write_p(p)}"
    if fall.tonight < size / 2:
        return False, f"a fall that is over: {sides}, but tonight is {fall.tonight:.3f} below them"
    return True, f"a fall that is no chance: {sides}, {write_p(p)}"


def _name_sides(fall: _Fall) -> str:
    n, first = fall.window.n_side, fall.nights.runs[fall.window.start]
    nights = "night" if n == 1 else f"{n} nights"
    return f"the last {nights} against the {nights} from {first.started_at:%Y-%m-%d} on"
