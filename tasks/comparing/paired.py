"""Statistics of two runs over the same samples: is a difference of means more than chance?

Everything rests on the differences of the samples that both runs scored. Samples that share a document or a
conversation are not independent, so whole clusters are drawn and flipped; without clusters each sample is its own. The
interval is a bootstrap of the mean difference. The test flips signs: were both runs alike, each cluster's difference
could as well have had the other sign. It tests the mean that is shown (Wilcoxon's signed ranks test a median of ranks
and drop samples without a difference, which is most of them here), needs no distribution, and is exact where all sign
patterns can be gone through. `parts` says what made a difference; `runs` brings both to the runs on record.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from evalhouse.tasks.comparing.bootstrap import ALPHA, TIE, Floats, Integers, draw_weights, find_interval

Verdict = Literal["better", "worse", "same", "undecided", "within_noise"]

RESAMPLES: Final = 10_000
ROUNDING: Final = 1e-12
"""Scores that are nearer than this are the same score, summed in another order."""

# With fewer clusters a metric is resampled by itself: among those of all metrics it could be drawn far too seldom.
_FEW_CLUSTERS = 200
_MOST_SIGNS = 500_000  # of a block of signs: 4 MB, which stays in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Paired:
    """One metric over the samples that both runs scored; `difference` is candidate minus base.

    `ci_low` and `ci_high` are None with fewer than two clusters, or when all clusters differ by the same: then there is
    no spread to draw from. `p` is None without a common sample. `n_higher` and `n_lower` count samples; the others of
    `n` are equal. `verdict` is `within_noise` only where `compare_runs` held the difference against a noise floor.
    """

    n: int
    n_clusters: int
    n_higher: int
    n_lower: int
    difference: float | None
    ci_low: float | None
    ci_high: float | None
    p: float | None
    p_holm: float | None
    is_exact: bool
    verdict: Verdict


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Clusters × metrics: the sum of the differences in a cluster, and how many there are."""

    totals: Floats
    counts: Floats


def compare_paired(
    differences: Floats,
    clusters: Integers,
    *,
    low_is_good: Sequence[bool],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Paired]:
    """Compare two runs by all metrics at once.

    `differences` is samples × metrics, candidate minus base, NaN where a run has no score; `clusters` numbers the
    cluster of each sample; `low_is_good` says of which metrics a high value is bad. Equal arguments give equal results.
    """
    differences = np.where(np.abs(differences) < ROUNDING, 0.0, differences)
    sums = _sum_clusters(differences, clusters)
    intervals = _find_intervals(sums, seed=seed, resamples=resamples)
    tests = _flip_signs(sums, seed=seed, resamples=resamples)
    described = [
        _describe(differences[:, column], sums.counts[:, column], intervals[column], tests[column])
        for column in range(differences.shape[1])
    ]
    corrected = correct_by_holm([metric.p for metric in described])
    return [
        _decide(replace(metric, p_holm=p_holm), low_is_good=is_low)
        for metric, p_holm, is_low in zip(described, corrected, low_is_good, strict=True)
    ]


def correct_by_holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down correction (1979, Scandinavian Journal of Statistics 6(2)); None stays None and does not count.

    A corrected value of at most α may be called a finding, with a chance of α for one false finding among all.
    """
    places = [place for place, p in enumerate(p_values) if p is not None]
    places.sort(key=lambda place: p_values[place] or 0.0)
    corrected: list[float | None] = [None] * len(p_values)
    highest = 0.0
    for rank, place in enumerate(places):
        highest = max(highest, min(1.0, (len(places) - rank) * (p_values[place] or 0.0)))
        corrected[place] = highest
    return corrected


def _sum_clusters(differences: Floats, clusters: Integers) -> _Sums:
    """Clusters that no metric has a difference in are left out."""
    is_known = ~np.isnan(differences)
    numbers, places = np.unique(clusters, return_inverse=True)
    totals = np.zeros((len(numbers), differences.shape[1]))
    counts = np.zeros_like(totals)
    np.add.at(totals, places, np.where(is_known, differences, 0.0))
    np.add.at(counts, places, is_known)
    used = counts.any(axis=1)
    return _Sums(totals=totals[used], counts=counts[used])


@dataclass(frozen=True, kw_only=True)
class _Test:
    p: float | None
    is_exact: bool


def _find_intervals(sums: _Sums, *, seed: int, resamples: int) -> list[tuple[float, float] | None]:
    """By metric its bootstrap interval, None where there is none."""
    intervals: list[tuple[float, float] | None] = [None] * sums.totals.shape[1]
    n_clusters = (sums.counts > 0).sum(axis=0)
    for number, columns in enumerate(_group_columns(sums, n_clusters)):
        rows = sums.counts[:, columns].any(axis=1)
        part = _Sums(totals=sums.totals[rows][:, columns], counts=sums.counts[rows][:, columns])
        means = _draw_means(part, np.random.default_rng([seed, number]), resamples)
        for place, column in enumerate(columns):
            intervals[column] = find_interval(means[:, place], int(n_clusters[column]))
    return intervals


def _group_columns(sums: _Sums, n_clusters: Integers) -> list[list[int]]:
    """Columns that are resampled together: all with many clusters, and of the others those with the same clusters."""
    groups: dict[bytes, list[int]] = {}
    for column in np.flatnonzero(n_clusters >= 2).tolist():
        key = b"" if n_clusters[column] >= _FEW_CLUSTERS else (sums.counts[:, column] > 0).tobytes()
        groups.setdefault(key, []).append(column)
    return list(groups.values())


def _draw_means(sums: _Sums, generator: np.random.Generator, resamples: int) -> Floats:
    """Resamples × metrics: the mean difference in each draw of the clusters."""
    n, n_columns = sums.totals.shape
    # Metrics mostly have the same samples, so that few columns of counts are different.
    counts, places = np.unique(sums.counts, axis=1, return_inverse=True)
    both = np.hstack([sums.totals, counts])
    drawn_sums = np.concatenate([weights @ both for weights in draw_weights(n, generator, resamples)])
    return np.asarray(drawn_sums[:, :n_columns] / drawn_sums[:, n_columns:][:, places.ravel()], dtype=np.float64)


def _flip_signs(sums: _Sums, *, seed: int, resamples: int) -> list[_Test]:
    """Two-sided sign-flip test of each metric: the share of sign patterns that move the mean at least as far.

    Clusters without a difference play no part, whatever their sign. What is drawn at random counts the pattern found
    as one of those drawn, so that p is never 0 (Phipson and Smyth 2010, arXiv:1603.05766).
    """
    tests = [_go_through_signs(sums, column, resamples) for column in range(sums.totals.shape[1])]
    open_columns = [column for column, test in enumerate(tests) if test is None]
    if open_columns:
        totals = sums.totals[:, open_columns]
        distances = np.abs(totals.sum(axis=0)) * (1 - TIE)
        n_as_far = _count_as_far(
            totals[totals.any(axis=1)], distances, np.random.default_rng([seed, -1 % 2**32]), resamples
        )
        for column, n in zip(open_columns, n_as_far, strict=True):
            tests[column] = _Test(p=(1 + int(n)) / (1 + resamples), is_exact=False)
    return [test for test in tests if test is not None]


def _go_through_signs(sums: _Sums, column: int, most: int) -> _Test | None:
    """The exact test where there are at most so many sign patterns; without a sample there is nothing to test."""
    if not sums.counts[:, column].any():
        return _Test(p=None, is_exact=True)
    totals = sums.totals[sums.totals[:, column] != 0, column]
    if len(totals) > np.log2(most):
        return None
    patterns = np.arange(2 ** len(totals))[:, None] >> np.arange(len(totals)) & 1
    moved = np.abs((2.0 * patterns - 1.0) @ totals)
    return _Test(p=float(np.mean(moved >= abs(totals.sum()) * (1 - TIE))), is_exact=True)


def _count_as_far(totals: Floats, distances: Floats, generator: np.random.Generator, resamples: int) -> Integers:
    n = len(totals)
    n_as_far = np.zeros(totals.shape[1], dtype=np.int64)
    step = max(1, _MOST_SIGNS // n)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        # A random bit a sign, eight at a time.
        drawn = generator.integers(0, 256, size=(size, -(-n // 8)), dtype=np.uint8)
        stays = np.unpackbits(drawn, axis=1, count=n).astype(np.float64)
        n_as_far += (np.abs(2.0 * (stays @ totals) - totals.sum(axis=0)) >= distances).sum(axis=0)
    return n_as_far


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
        p_holm=None,
        is_exact=test.is_exact,
        verdict="undecided",
    )


def _decide(paired: Paired, *, low_is_good: bool) -> Paired:
    """A difference is called better or worse when the corrected test says so and the interval does not hold 0."""
    if paired.n and not paired.n_higher and not paired.n_lower:
        return replace(paired, verdict="same")
    difference = paired.difference
    if difference is None or paired.p_holm is None or paired.p_holm > ALPHA:
        return paired
    if paired.ci_low is not None and paired.ci_high is not None and paired.ci_low <= 0 <= paired.ci_high:
        return paired
    return replace(paired, verdict="better" if (difference > 0) != low_is_good else "worse")
