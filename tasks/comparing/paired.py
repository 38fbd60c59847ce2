"""Statistics of two runs over the same samples: is a difference of means more than chance?

Everything rests on the differences of the samples that both runs scored. Samples that share a document or a
conversation are not independent, so whole clusters are summed and flipped; without clusters each sample is its own. The
interval is made of those of what was gained and of what was lost (`intervals`). The test flips signs: were both runs
alike, each cluster's difference could as well have had the other sign. It tests the mean that is shown (Wilcoxon's
signed ranks test a median of ranks and drop samples without a difference, which is most of them here), needs no
distribution, and is exact where all sign patterns can be gone through. `parts` says what made a difference; `runs`
brings both to the runs on record.

Where one run judged a part of its dataset, what judging all in both would have given is compared. Samples were then
picked with unequal probabilities, so that a plain mean over those that both runs scored would lean to the samples in
doubt. The difference is that of both runs' estimates (the view `sampled_means`). Where both picked the same samples by
the same probabilities it rests on what moved in these, and its variance is that of the moves; else the picks have
nothing to do with each other, and it is the sum of both (`queries/run_pairs/sampled.sql`). What is listed by sample
stays what it is; what would add samples up to a mean is left out.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, lgamma, log
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from evalhouse.tasks.comparing.intervals import (
    ALPHA,
    FEW_MOVED,
    TIE,
    Floats,
    GroupSums,
    Integers,
    Measure,
    find_difference,
    find_mean_interval,
    find_student_p,
    find_student_point,
    sum_groups,
)
from evalhouse.warehouse.metric_files import Better
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow

Verdict = Literal["better", "worse", "same", "undecided"]

RESAMPLES: Final = 10_000
ROUNDING: Final = 1e-12
"""Scores that are nearer than this are the same score, summed in another order."""

_MOST_SIGNS = 500_000  # of a block of signs: 4 MB, which stays in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Paired:
    """One metric over the samples that both runs scored; `difference` is candidate minus base.

    `ci_low` and `ci_high` are None with fewer than two clusters. `p` is None without a common sample, `p_adjusted` also
    for a metric that was not tested along with the others. `n_higher` and `n_lower` count samples; the others of `n`
    are equal.
    """

    n: int
    n_clusters: int
    n_higher: int
    n_lower: int
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_adjusted: float | None
    is_exact: bool
    verdict: Verdict

    def find_drop(self, better: Better) -> "Drop":
        """The difference as a drop: how far a metric that is better when high fell, or one better when low rose."""
        ends = [turn_to_drop(end, better) for end in (self.ci_low, self.ci_high)]
        low, high = ends if better == "low" else reversed(ends)
        return Drop(size=turn_to_drop(self.difference, better), low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Drop:
    """How much worse the candidate is, with the 95 % interval of that; negative where it is better, and None where
    there is no common sample, `low` and `high` also with fewer than two clusters."""

    size: float | None
    low: float | None
    high: float | None


def turn_to_drop(difference: float | None, better: Better) -> float | None:
    """A difference, candidate minus base, as a drop."""
    # 0.0 - difference, so that no change is 0 and not -0.
    return difference if difference is None or better == "low" else 0.0 - difference


def compare_paired(
    differences: Floats,
    clusters: Integers,
    *,
    low_is_good: Sequence[bool],
    scales: Sequence[float] = (),
    family: Sequence[bool] = (),
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Paired]:
    """Compare two runs by all metrics at once.

    `differences` is samples × metrics, candidate minus base, NaN where a run has no score; `clusters` numbers the
    cluster of each sample; `low_is_good` says of which metrics a high value is bad. `scales` are the widest differences
    that two scores can have (1 unless given), `family` says over which metrics p is adjusted (all unless given; the
    others have none). Equal arguments give equal results.
    """
    differences = np.where(np.abs(differences) < ROUNDING, 0.0, differences)
    n_columns = differences.shape[1]
    places = np.unique(clusters, return_inverse=True)[1].astype(np.int64)
    sums = sum_groups(differences, places)
    intervals = _find_intervals(differences, places, sums, np.asarray(scales or [1.0] * n_columns))
    tests = _flip_signs(sums, np.asarray(family or [True] * n_columns, dtype=bool), seed=seed, resamples=resamples)
    return [
        _decide(_describe(differences[:, column], sums.counts[:, column], intervals[column], test), low_is_good=is_low)
        for column, (test, is_low) in enumerate(zip(tests, low_is_good, strict=True))
    ]


@dataclass(frozen=True, kw_only=True)
class _Test:
    p: float | None
    p_adjusted: float | None
    is_exact: bool


def _find_intervals(
    differences: Floats, places: Integers, sums: GroupSums, scales: Floats
) -> list[tuple[float, float] | None]:
    """By metric its interval, None with fewer than two clusters.

    Moves are measured by the widest one; of fewer than FEW_MOVED clusters that moved, by the scale.
    """
    gains, losses = (np.maximum(sign * differences, 0.0) for sign in (1.0, -1.0))  # NaN stays NaN
    moves = np.nan_to_num(gains + losses)
    widest, n_moved = moves.max(axis=0, initial=0.0), (sum_groups(moves, places).totals > 0).sum(axis=0)
    units = np.where(n_moved < FEW_MOVED, np.maximum(scales, widest), widest)
    found = find_difference(gains / units, losses / units, places)
    ends = zip((found.low * units).tolist(), (found.high * units).tolist(), strict=True)
    return [pair if n > 1 else None for pair, n in zip(ends, (sums.counts > 0).sum(axis=0), strict=True)]


def _flip_signs(sums: GroupSums, family: NDArray[np.bool_], *, seed: int, resamples: int) -> list[_Test]:
    """Two-sided sign-flip test of each metric: the share of sign patterns that move the mean at least as far.

    Clusters without a difference play no part, whatever their sign. What is drawn at random counts the pattern found
    as one of those drawn, so that p is never 0 (Phipson and Smyth 2010, arXiv:1603.05766).

    All metrics are flipped by the same patterns, so that what goes together stays together, and p is adjusted by the
    step-down maxT of Westfall and Young (1993, Resampling-Based Multiple Testing, algorithm 4.1; Ge, Dudoit and Speed
    2003, TEST 12(1)): the largest |z| of all metrics that moved no further than this one must seldom be as large as
    its own. z is the sum of the differences over the root of their sum of squares, which no flip changes. A p of at
    most α may be called a finding, with a chance of α for one false finding among all. Twelve metrics that say the same
    cost no more than one; Holm's correction takes them for twelve.
    """
    lengths = np.sqrt((sums.totals**2).sum(axis=0))
    scaled = np.divide(sums.totals, lengths, out=np.zeros_like(sums.totals), where=lengths > 0)
    scaled = scaled[scaled.any(axis=1)]
    found = np.abs(scaled.sum(axis=0))
    order = np.flatnonzero(family & sums.counts.any(axis=0))
    order = order[np.argsort(-found[order], kind="stable")]
    is_whole = 2 ** len(scaled) <= resamples
    signs = _list_signs(len(scaled)) if is_whole else _draw_signs(len(scaled), seed, resamples)
    n_as_far, n_largest = np.zeros(len(found), dtype=np.int64), np.zeros(len(order), dtype=np.int64)
    for stays in signs:
        moved = np.abs(2.0 * (stays @ scaled) - scaled.sum(axis=0))
        n_as_far += (moved >= found * (1 - TIE)).sum(axis=0)
        largest = np.maximum.accumulate(moved[:, order[::-1]], axis=1)[:, ::-1]
        n_largest += (largest >= found[order] * (1 - TIE)).sum(axis=0)
    n_more, n_patterns = (0, 2 ** len(scaled)) if is_whole else (1, 1 + resamples)
    adjusted = dict(zip(order.tolist(), np.maximum.accumulate((n_more + n_largest) / n_patterns), strict=True))
    n_tested = sums.counts.sum(axis=0)
    return [
        _finish_test(sums.totals[:, column], (n_more + n) / n_patterns, adjusted.get(column), is_whole, resamples)
        if n_tested[column]
        else _Test(p=None, p_adjusted=None, is_exact=True)
        for column, n in enumerate(n_as_far.tolist())
    ]


def _finish_test(totals: Floats, p: float, adjusted: float | None, is_exact: bool, resamples: int) -> _Test:
    """The test of one metric, with its exact p where at least its own sign patterns can be gone through."""
    moved = totals[totals != 0]
    if not is_exact and 2 ** len(moved) <= resamples:
        (signs,) = _list_signs(len(moved))
        p, is_exact = float(np.mean(np.abs((2.0 * signs - 1.0) @ moved) >= abs(moved.sum()) * (1 - TIE))), True
    return _Test(p=p, p_adjusted=None if adjusted is None else max(p, float(adjusted)), is_exact=is_exact)


def _list_signs(n: int) -> Iterator[Floats]:
    """All patterns of n signs in one block: 1 where a sign stays as it is, 0 where it is turned."""
    yield (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(np.float64)


def _draw_signs(n: int, seed: int, resamples: int) -> Iterator[Floats]:
    """Random patterns in blocks, from a random bit a sign."""
    generator = np.random.default_rng([seed, -1 % 2**32])
    step = max(1, _MOST_SIGNS // n)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = generator.integers(0, 256, size=(size, -(-n // 8)), dtype=np.uint8)
        yield np.unpackbits(drawn, axis=1, count=n).astype(np.float64)


def _describe(differences: Floats, counts: Floats, interval: tuple[float, float] | None, test: _Test) -> Paired:
    scored = differences[~np.isnan(differences)]
    low, high = interval or (None, None)
    return Paired(
        n=len(scored),
        n_clusters=int((counts > 0).sum()),
        n_higher=int((scored > 0).sum()),
        n_lower=int((scored < 0).sum()),
        difference=float(scored.mean()) if len(scored) else None,
        ci_low=low,
        ci_high=high,
        p=test.p,
        p_adjusted=test.p_adjusted,
        is_exact=test.is_exact,
        verdict="undecided",
    )


def _decide(paired: Paired, *, low_is_good: bool) -> Paired:
    """A difference is called better or worse when the adjusted test says so and the interval does not hold 0."""
    if paired.n and not paired.n_higher and not paired.n_lower:
        return replace(paired, verdict="same")
    difference = paired.difference
    if difference is None or paired.p_adjusted is None or paired.p_adjusted > ALPHA:
        return paired
    if paired.ci_low is not None and paired.ci_high is not None and paired.ci_low <= 0 <= paired.ci_high:
        return paired
    return replace(paired, verdict="better" if (difference > 0) != low_is_good else "worse")


_MOST_DEGREES: Final = 1e6


def is_sampled(run: RunRow) -> bool:
    """Whether a run judged a part of its dataset."""
    return run.config.get("sample_budget") is not None


def warn_of_sampling(pair: RunPair) -> Iterator[str]:
    """What to know of a pair of which a run judged a part."""
    for run in (pair.base, pair.candidate):
        if is_sampled(run):
            yield (
                f"run {run.run_id} judged a part of its dataset ({run.n_samples:,} samples): means and differences are "
                "estimates for all of it, samples and flips are those that were judged"
            )


def read_estimates(pair: RunPair) -> Mapping[str, Mapping[str, Any]] | None:
    """By metric both runs' means, the variance of their difference and what it rests on; None where both judged all."""
    if not (is_sampled(pair.base) or is_sampled(pair.candidate)):
        return None
    return {str(row["metric"]): row for row in pair.read_estimates()}


def decide(paired: Paired, row: Mapping[str, Any], *, better: Better, scale: float) -> Paired:
    """The difference of two estimates with its interval and p by Student's t; without a variance nothing is decided.

    The degrees of freedom are those of the variance, as Satterthwaite has them (1946, Biometrics Bulletin 2(6)).
    Where the same samples were picked and hardly any moved, the moves say little of the others: as many may have moved
    by the whole `scale` as could without one being picked, and p is that of the moves' signs.
    """
    difference, variance = float(row["candidate"] - row["base"]), row["variance"]
    difference = 0.0 if abs(difference) < ROUNDING else difference
    if variance is None:
        return replace(
            paired, difference=difference, ci_low=None, ci_high=None, p=None, p_adjusted=None, verdict="undecided"
        )
    error = math.sqrt(variance) if variance > ROUNDING**2 else 0.0
    degrees = 2 * variance**2 / max(row["spread"], 2 * variance**2 / _MOST_DEGREES) if error else _MOST_DEGREES
    half = find_student_point(1 - ALPHA / 2, degrees) * error
    p = find_student_p(difference / error, degrees) if error else float(difference == 0)
    if row["is_paired"] and paired.n_higher + paired.n_lower < FEW_MOVED:
        half, p = half + row["unseen"] * scale, 1.0 if paired.p is None else max(p, paired.p)
    verdict: Verdict = "undecided"
    if abs(difference) > half:
        verdict = "better" if (difference > 0) == (better == "high") else "worse"
    return replace(
        paired,
        difference=difference,
        ci_low=difference - half,
        ci_high=difference + half,
        p=p,
        p_adjusted=p,
        is_exact=False,
        verdict=verdict,
    )


Rows = Sequence[Mapping[str, Any]]
Preference = Literal["candidate", "base", "undecided"]
_HALF: Final = (0.25, 0.75)


@dataclass(frozen=True, kw_only=True)
class SignTest:
    """How many groups of samples, each one sample where there are none, are for either side, and the two-sided p."""

    n_candidate: int
    n_base: int
    p: float


@dataclass(frozen=True, kw_only=True)
class Position:
    """What the places did in the `n` samples that were asked about in both orders.

    `agreement` is the share of samples in which both orders say the same, `order_decided` that in which they contradict
    each other. `first_place` are the mean points of the answer in front: 0.5 where places decide nothing.
    """

    n: int
    agreement: Measure
    order_decided: Measure
    first_place: Measure

    @property
    def leans_to(self) -> Literal["first", "second"] | None:
        """The place that the judge favours, where the interval says so."""
        low, high = self.first_place.ci_low, self.first_place.ci_high
        return "first" if low is not None and low > 0.5 else "second" if high is not None and high < 0.5 else None


@dataclass(frozen=True, kw_only=True)
class PreferenceSummary:
    """What a run of preferences comes to, seen from the candidate: `wins` and `losses` are its own.

    `half_wins` and `half_losses` are those of them in which one order says tie, `n_contradicted` the ties in which the
    orders contradict each other, `n_identical` those of answers that are the same.
    """

    n: int
    n_clusters: int
    n_identical: int
    wins: int
    half_wins: int
    ties: int
    n_contradicted: int
    losses: int
    half_losses: int
    win_rate: Measure
    sign_test: SignTest
    position: Position

    @property
    def verdict(self) -> Preference:
        """Whose answers are preferred by more than chance: the test and the interval have to say so."""
        low, high = self.win_rate.ci_low, self.win_rate.ci_high
        if low is None or high is None or self.sign_test.p > ALPHA or low <= 0.5 <= high:
            return "undecided"
        return "candidate" if low > 0.5 else "base"


def summarise_preferences(rows: Rows) -> PreferenceSummary:
    """What rows of `sample_preferences` come to; those without points are left out."""
    judged = [row for row in rows if row["points"] is not None]
    asked = [row for row in judged if row["first_place"] is not None]
    points, groups = _to_values([row["points"] for row in judged]), number_groups(judged)
    return PreferenceSummary(
        n=len(judged),
        n_clusters=int(groups.max()) + 1 if len(groups) else 0,
        n_identical=len(judged) - len(asked),
        wins=int((points > 0.5).sum()),
        half_wins=int((points == _HALF[1]).sum()),
        ties=int((points == 0.5).sum()),
        n_contradicted=sum(row["orders"] == "contradict" for row in judged),
        losses=int((points < 0.5).sum()),
        half_losses=int((points == _HALF[0]).sum()),
        win_rate=measure_mean(points, groups),
        sign_test=_test_signs(points, groups),
        position=_measure_position(asked),
    )


def _measure_position(asked: Rows) -> Position:
    groups = number_groups(asked)
    columns = (
        [row["orders"] == "agree" for row in asked],
        [row["orders"] == "contradict" for row in asked],
        [row["first_place"] for row in asked],
    )
    agreement, order_decided, first_place = (measure_mean(_to_values(column), groups) for column in columns)
    return Position(n=len(asked), agreement=agreement, order_decided=order_decided, first_place=first_place)


def measure_mean(values: Floats, groups: Integers) -> Measure:
    """The mean of values from 0 to 1 with its interval; nothing of none."""
    if not len(values):
        return Measure(value=None, ci_low=None, ci_high=None)
    low, high = find_mean_interval(values, groups, minimum=0.0) or (None, None)
    return Measure(value=float(values.mean()), ci_low=low, ci_high=high)


def number_groups(rows: Rows) -> Integers:
    """The group of each row, numbered from 0; a row without a cluster is a group of its own."""
    numbers: dict[tuple[str, bool], int] = {}
    names = ((row["cluster"] or row["sample_id"], row["cluster"] is None) for row in rows)
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def _to_values(values: Sequence[Any]) -> Floats:
    return np.array(values, dtype=np.float64)


def _test_signs(points: Floats, groups: Integers) -> SignTest:
    ahead = sum_groups((points - 0.5)[:, None], groups).totals[:, 0]
    n_candidate, n_base = int((ahead > TIE).sum()), int((ahead < -TIE).sum())
    return SignTest(n_candidate=n_candidate, n_base=n_base, p=find_sign_p(n_candidate, n_base))


def find_sign_p(n_one: int, n_other: int) -> float:
    """The chance that a fair coin falls at least as unevenly as that, either way."""
    n, fewer = n_one + n_other, min(n_one, n_other)
    logs = (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) - n * log(2) for k in range(fewer + 1))
    return min(1.0, 2 * fsum(map(exp, logs)))
