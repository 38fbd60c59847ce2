"""Statistics of two runs over the same samples: differences of means, and preferences between two answers.

Everything rests on the differences of the samples that both runs scored. Samples that share a document or a
conversation are not independent, so whole clusters are summed and flipped; without clusters each sample is one. The
interval combines the intervals of gains and of losses (`intervals`). The test flips signs: were both runs alike, each
cluster's difference could as well have had the other sign. It tests the mean that is shown (Wilcoxon's signed ranks
test a median of ranks and drop samples without a difference, which is most of them here), needs no distribution, and is
exact where all sign patterns can be enumerated. `changes` finds what made a difference; `runs` applies both to stored
runs.

Where one run judged a part of its dataset, the estimates for all of both datasets are compared. Samples were then
picked with unequal probabilities, so that a plain mean over the samples that both runs scored would lean to the samples
in doubt. The difference is that of both runs' estimates (the view `sampled_means`). Where both picked the same samples
by the same probabilities it rests on what moved in these, and its variance is that of the moves; else the picks are
independent, and it is the sum of both (`queries/run_pairs/sampled.sql`). Lists by sample stay the same; the parts that
would add samples up to a mean are left out.

A preference was asked for twice for each sample, with either answer in front. An order gives its answers one point
between them, half of one for a tie, and a sample counts by the mean of both: 1 and 0 where both name the same answer;
0.75 and 0.25 where one of them is a tie; 0.5 where both are ties, and where they contradict each other, for then the
place has decided and not the answer. So a judge's liking for the first place counts as much for either answer, and the
win rate is free of it. That liking is measured by the same verdicts: the points of the answer in front are 0.5 in the
mean for a judge that does not look at places, however good the answers are. The sign test counts the groups of samples
in which one side is ahead: were both alike, either would be as often, and p is exact.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, fsum, lgamma, log
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from evalhouse.tasks.comparing.intervals import (
    ALPHA,
    FEW_MOVED,
    NORMAL,
    TIE,
    Floats,
    GroupSums,
    Integers,
    Measure,
    find_difference,
    find_mean_interval,
    sum_groups,
)
from evalhouse.warehouse.metric_files import Better
from evalhouse.warehouse.rows.runs import RunRow

Verdict = Literal["better", "worse", "changed", "same", "undecided"]
"""`changed` is a significant difference of a metric of which neither more nor less is better."""

RESAMPLES: Final = 10_000
ROUNDING: Final = 1e-12
"""Scores that are nearer than this are the same score, summed in another order."""

MIN_CLUSTERS: Final = 6
"""Independent samples below which no drop is decided: of n the smallest p a sign-flip test can have is 2 / 2ⁿ, which is
at most 0.05 from six on."""
MAX_LOST: Final = 0.05
"""The share of samples without a score from which a difference of the others may not be that of the bot."""

FEW_GROUPS: Final = 10
"""Groups below which a drop is seen only if it is in nearly all of them."""

_MAX_SIGNS = 500_000  # of a block of signs: 4 MB, which stays in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Paired:
    """One metric over the samples that both runs scored; `difference` is candidate minus base.

    `ci_low` and `ci_high` are None with fewer than two clusters, and where all scores of both runs are one number
    beyond 0 to 1. `p` is None without a common sample, `p_adjusted` also for a metric that was not tested along with
    the others. `n_higher` and `n_lower` count samples; the others of `n` are equal. `alone` is the same difference with
    each sample for itself, where there are fewer than FEW_GROUPS clusters by a column that was not named.
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
    alone: "Paired | None" = None

    def find_drop(self, better: Better) -> "Drop":
        """Return how far a metric that is better when high fell, or one that is better when low rose."""
        ends = [turn_to_drop(end, better) for end in (self.ci_low, self.ci_high)]
        low, high = ends if better == "low" else reversed(ends)
        return Drop(size=turn_to_drop(self.difference, better), low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Drop:
    """The size of a worsening with its 95 % interval; negative where the candidate is better.

    All are None without a common sample, `low` and `high` also where a difference has no interval.
    """

    size: float | None
    low: float | None
    high: float | None


def turn_to_drop(difference: float | None, better: Better) -> float | None:
    """Return a difference, candidate minus base, as a drop."""
    # 0.0 - difference, so that no change is 0 and not -0.
    return difference if difference is None or better == "low" else 0.0 - difference


def compare_paired(
    differences: Floats,
    clusters: Integers,
    *,
    low_is_good: Sequence[bool],
    scales: Sequence[float] = (),
    family: Sequence[bool] = (),
    is_simultaneous: bool = False,
    is_found: bool = False,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> list[Paired]:
    """Compare two runs by all metrics at once.

    `differences` is samples × metrics, candidate minus base, NaN where a run has no score; `clusters` numbers the
    cluster of each sample; `low_is_good` marks the metrics of which a high value is bad. `scales` are the widest
    differences that two scores can have (1 unless given; 0 where that is not known and all scores are equal, which
    have no interval). `family` marks the metrics over which p is adjusted (all unless given; the others have none).
    Each interval holds in 95 of 100 comparisons, or with `is_simultaneous` all of the family at once. `is_found` says
    that the column of the clusters was not named. Equal arguments give equal results.

    A difference is better or worse when the adjusted test shows it and the interval does not hold 0.
    """
    differences = np.where(np.abs(differences) < ROUNDING, 0.0, differences)
    n_metrics = differences.shape[1]
    places = np.unique(clusters, return_inverse=True)[1].astype(np.int64)
    sums = sum_groups(differences, places)
    n_clusters = (sums.counts > 0).sum(axis=0)
    # Moves are measured by the widest one; of fewer than FEW_MOVED clusters that moved, by the scale.
    gains, losses = (np.maximum(sign * differences, 0.0) for sign in (1.0, -1.0))  # NaN stays NaN
    moves = np.nan_to_num(gains + losses)
    widest, n_moved = moves.max(axis=0, initial=0.0), (sum_groups(moves, places).totals > 0).sum(axis=0)
    units = np.where(n_moved < FEW_MOVED, np.maximum(np.asarray(scales or [1.0] * n_metrics), widest), widest)
    in_family = np.asarray(family or [True] * n_metrics, dtype=bool)
    tests, alpha = _flip_signs(sums, in_family, seed=seed, resamples=resamples)
    has_unit = units > 0
    gains, losses = (np.divide(moved, units, out=moved, where=has_unit) for moved in (gains, losses))
    interval = find_difference(gains, losses, places, alpha=alpha if is_simultaneous else ALPHA)
    results = []
    for column, (p, p_adjusted, is_exact) in enumerate(tests):
        scored = differences[:, column][~np.isnan(differences[:, column])]
        low: float | None = float(interval.low[column] * units[column])
        high: float | None = float(interval.high[column] * units[column])
        if n_clusters[column] < 2 or not has_unit[column]:
            low = high = None
        difference = float(scored.mean()) if len(scored) else None
        n_higher, n_lower = int((scored > 0).sum()), int((scored < 0).sum())
        verdict: Verdict = "undecided"
        if len(scored) and not n_higher and not n_lower:
            verdict = "same"
        elif difference is None or p_adjusted is None or p_adjusted > ALPHA:
            verdict = "undecided"
        elif low is None or high is None or not low <= 0 <= high:
            verdict = "better" if (difference > 0) != low_is_good[column] else "worse"
        results.append(
            Paired(
                n=len(scored),
                n_clusters=int(n_clusters[column]),
                n_higher=n_higher,
                n_lower=n_lower,
                difference=difference,
                ci_low=low,
                ci_high=high,
                p=p,
                p_adjusted=p_adjusted,
                is_exact=is_exact,
                verdict=verdict,
            )
        )
    if is_found and any(result.n_clusters < min(FEW_GROUPS, result.n) for result in results):
        numbers = np.arange(len(differences))
        each = compare_paired(
            differences, numbers, low_is_good=low_is_good, scales=scales, family=family, seed=seed, resamples=resamples
        )
        results = [
            replace(result, alone=alone) if result.n_clusters < min(FEW_GROUPS, result.n) else result
            for result, alone in zip(results, each, strict=True)
        ]
    return results


def _flip_signs(
    sums: GroupSums, family: NDArray[np.bool_], *, seed: int, resamples: int
) -> tuple[list[tuple[float | None, float | None, bool]], float]:
    """Return of each metric the p of a two-sided sign-flip test, p adjusted over the family, and whether p is exact.
    Also return the share that each interval may leave out so that all intervals of the family hold at once.

    p is the share of sign patterns that move the mean at least as far. Clusters without a difference play no part,
    with either sign. Of random patterns the one found counts as one of those drawn, so that p is never 0 (Phipson and
    Smyth 2010, arXiv:1603.05766).

    All metrics are flipped by the same patterns, so that what moves together stays together, and p is adjusted by the
    step-down maxT of Westfall and Young (1993, Resampling-Based Multiple Testing, algorithm 4.1; Ge, Dudoit and Speed
    2003, TEST 12(1)): the largest |z| of all metrics that moved no further than this one must seldom be as large as
    its z, the sum of the differences over the root of their sum of squares, which no flip changes. A p of at most α
    may be called a finding, with a chance of α for one false finding among all. Twelve metrics that agree cost no more
    than one; Holm's correction takes them for twelve.

    By the same patterns the largest |z| of all exceeds some c in 5 % of cases. Intervals hold at once where each leaves
    out what lies beyond c of a normal distribution: between α, and α divided by the number of metrics (Bonferroni).
    """
    lengths = np.sqrt((sums.totals**2).sum(axis=0))
    scaled = np.divide(sums.totals, lengths, out=np.zeros_like(sums.totals), where=lengths > 0)
    scaled = scaled[scaled.any(axis=1)]
    found = np.abs(scaled.sum(axis=0))
    order = np.flatnonzero(family & sums.counts.any(axis=0))
    order = order[np.argsort(-found[order], kind="stable")]
    n_as_far, n_largest = np.zeros(len(found), dtype=np.int64), np.zeros(len(order), dtype=np.int64)
    maxima: list[Floats] = []
    for stays in _make_signs(len(scaled), seed, resamples):
        moved = np.abs(2.0 * (stays @ scaled) - scaled.sum(axis=0))
        n_as_far += (moved >= found * (1 - TIE)).sum(axis=0)
        largest = np.maximum.accumulate(moved[:, order[::-1]], axis=1)[:, ::-1]
        n_largest += (largest >= found[order] * (1 - TIE)).sum(axis=0)
        maxima.append(largest.max(axis=1, initial=0.0))
    limit = float(np.quantile(np.concatenate(maxima), 1 - ALPHA))
    alpha = min(ALPHA, max(ALPHA / max(1, len(order)), 2 * NORMAL.cdf(-limit)))
    is_whole = 2 ** len(scaled) <= resamples
    n_more, n_patterns = (0, 2 ** len(scaled)) if is_whole else (1, 1 + resamples)
    adjusted = dict(zip(order.tolist(), np.maximum.accumulate((n_more + n_largest) / n_patterns), strict=True))
    tests: list[tuple[float | None, float | None, bool]] = []
    for column, n in enumerate(n_as_far.tolist()):
        if not sums.counts[:, column].any():
            tests.append((None, None, True))
            continue
        p, is_exact = (n_more + n) / n_patterns, is_whole
        moved = sums.totals[:, column][sums.totals[:, column] != 0]
        if not is_whole and 2 ** len(moved) <= resamples:  # the metric's sign patterns alone can be enumerated
            (signs,) = _make_signs(len(moved), seed, resamples)
            p, is_exact = float(np.mean(np.abs((2.0 * signs - 1.0) @ moved) >= abs(moved.sum()) * (1 - TIE))), True
        tests.append((p, max(p, float(adjusted[column])) if column in adjusted else None, is_exact))
    return tests, alpha


def _make_signs(n: int, seed: int, resamples: int) -> Iterator[Floats]:
    """Yield patterns of n signs: 1 where a sign stays, 0 where it is turned.

    All patterns in one block if there are at most `resamples`, else random ones in blocks, from a random bit a sign.
    """
    if 2**n <= resamples:
        yield (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(np.float64)
        return
    generator = np.random.default_rng([seed, -1 % 2**32])
    step = max(1, _MAX_SIGNS // n)
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = generator.integers(0, 256, size=(size, -(-n // 8)), dtype=np.uint8)
        yield np.unpackbits(drawn, axis=1, count=n).astype(np.float64)


_MAX_DEGREES: Final = 1e6


def is_sampled(run: RunRow) -> bool:
    """Return True if a run judged a part of its dataset; a budget beyond the dataset's size left nothing out."""
    budget = run.config.get("sample_budget")
    return budget is not None and (run.n_samples is None or run.n_samples >= budget)


@dataclass(frozen=True, kw_only=True)
class Scored:
    """The judged samples of a run in one metric: `n` have a score, which is an estimated `share` of all samples.

    `size` samples of equal weight say as much of that share; `reason` is the most frequent one of the missing scores.
    """

    n: int
    share: float
    size: float
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Shares:
    """The part of either run that an estimated difference rests on; `scale` is how far two scores may differ."""

    base: Scored
    candidate: Scored
    scale: float = 1.0

    @property
    def n_least(self) -> int:
        """The scored samples of the run that has fewer."""
        return min(self.base.n, self.candidate.n)

    @property
    def shift(self) -> float:
        """The rise of the share in the candidate; 0 where that can be chance, or is at most MAX_LOST of either."""
        before, now = self.base, self.candidate
        shift = now.share - before.share
        if abs(shift) <= MAX_LOST * max(now.share, before.share):
            return 0.0
        mean = (before.share * before.size + now.share * now.size) / (before.size + now.size)
        error = math.sqrt(mean * (1 - mean) * (1 / before.size + 1 / now.size))
        return shift if 2 * NORMAL.cdf(-abs(shift) / error) <= ALPHA else 0.0

    @property
    def effect(self) -> float:
        """The most that the shift can add to a difference: all scores that one run alone has are lowest, or highest."""
        less, more = sorted((self.base.share, self.candidate.share))
        if self.shift == 0:
            return 0.0
        return (more - less) / less * self.scale if less else math.inf

    def describe(self, base: str) -> str:
        """Return the shares in words; `base` names the base."""
        less = min(self.base, self.candidate, key=lambda side: side.share)
        why = f" ({less.reason.replace('_', ' ')})" if less.reason else ""
        shares = f"{100 * self.candidate.share:.0f} % of all samples have a score, {100 * self.base.share:.0f} %"
        return f"an estimated {shares} in {base}{why}"


def decide(
    paired: Paired, row: Mapping[str, Any], *, better: Better, scale: float, shares: Shares | None = None
) -> Paired:
    """Return the difference of two estimates with its interval and p by Student's t; undecided without a variance.

    Undecided and without a p also where one of the runs scored fewer than MIN_CLUSTERS samples, which agree by chance,
    or another share than the other one, which can make the difference: the means are of other samples.

    The degrees of freedom belong to the variance, by Satterthwaite (1946, Biometrics Bulletin 2(6)). Where the same
    samples were picked and hardly any moved, the moves show little of the others: as many may have moved by the whole
    `scale` as could without one being picked, and p is that of the moves' signs. The same where other samples were
    picked, and hardly any score differs from its signal: `unforeseen` is the share that may without one being picked,
    of both runs. There p stays where the difference is larger.
    """
    difference, variance = float(row["candidate"] - row["base"]), row["variance"]
    difference = 0.0 if abs(difference) < ROUNDING else difference
    if variance is None:
        return replace(
            paired, difference=difference, ci_low=None, ci_high=None, p=None, p_adjusted=None, verdict="undecided"
        )
    error = math.sqrt(variance) if variance > ROUNDING**2 else 0.0
    degrees = 2 * variance**2 / max(row["spread"], 2 * variance**2 / _MAX_DEGREES) if error else _MAX_DEGREES
    half = float(stdtrit(degrees, 1 - ALPHA / 2)) * error
    p = float(2 * stdtr(degrees, -abs(difference / error))) if error else float(difference == 0)
    if row["is_paired"] and paired.n_higher + paired.n_lower < FEW_MOVED:
        half, p = half + row["unseen"] * scale, 1.0 if paired.p is None else max(p, paired.p)
    elif not row["is_paired"] and row["unforeseen"]:
        half += row["unforeseen"] * scale
        p = p if abs(difference) > half else 1.0
    verdict: Verdict = "undecided"
    if abs(difference) > half:
        verdict = "better" if (difference > 0) == (better == "high") else "worse"
    is_open = shares is not None and (
        shares.n_least < MIN_CLUSTERS or (shares.shift != 0 and abs(difference) - half <= shares.effect)
    )
    return replace(
        paired,
        difference=difference,
        ci_low=difference - half,
        ci_high=difference + half,
        p=None if is_open else p,
        p_adjusted=None if is_open else p,
        is_exact=False,
        verdict="undecided" if is_open else verdict,
    )


def group_terms(terms: pl.DataFrame, clusters: Mapping[str, int]) -> pl.DataFrame:
    """Return the parts of estimated differences (`run_pairs/sampled_terms.sql`) with the moves of a cluster as one.

    The square of a cluster's weighted sum also has what not judging all leaves open, Σ(w² - w)d², which other parts
    have already: it is left out. Samples that waver against each other count at least as if they were alone.
    """
    parts = []
    for (metric, side), part in terms.group_by("metric", "side", maintain_order=True):
        if part["weight"].null_count():  # what not judging all leaves open: each sample was picked by itself
            parts.append(part.drop("weight"))
            continue
        numbers, places = np.unique([clusters[name] for name in part["sample_id"]], return_inverse=True)
        squares, weights = part["term"].to_numpy() ** 2, part["weight"].to_numpy()
        totals = np.bincount(places, weights=part["term"].to_numpy() * np.sqrt(weights))
        of_clusters, n = float((totals**2).sum()), len(numbers)
        variance = max(float(squares.sum()), of_clusters - float((squares * (weights - 1)).sum())) * n / max(n - 1, 1)
        if of_clusters <= ROUNDING * float(squares.sum()):  # the moves of each cluster cancel each other
            parts.append(part.drop("weight"))
            continue
        joined = totals * math.sqrt(variance / of_clusters)
        names = [f"cluster {number}" for number in numbers.tolist()]
        parts.append(pl.DataFrame({"metric": metric, "side": side, "sample_id": names, "term": joined}))
    return pl.concat(parts) if parts else terms


def measure_terms(terms: pl.DataFrame, metric: str) -> dict[str, float | None]:
    """Return the variance of a metric's estimated difference, and the variance of that (`spread`), from its parts; None
    where a run judged too few.

    The degrees of freedom follow from the spread: few samples that moved far make the variance a guess.
    """
    variance, spread = 0.0, 0.0
    for _, side in terms.filter(metric=metric).group_by("side", maintain_order=True):
        if side["term"].null_count():
            return {"variance": None, "spread": None}
        squares = side["term"].to_numpy() ** 2
        variance += float(squares.sum())
        spread += float((squares**2).sum() - squares.sum() ** 2 / len(squares))
    return {"variance": variance, "spread": spread}


def adjust_estimates(
    results: Sequence[Paired], terms: Floats, *, family: Sequence[bool], seed: int = 0, resamples: int = RESAMPLES
) -> list[Paired]:
    """Return the estimated differences of all metrics with p adjusted over the family, and their verdicts.

    `terms` is independent parts × metrics: what each adds to the difference about its true value, so that the squares
    of a metric's terms sum to its variance. Were both runs alike, each part could as well have had the other sign, in
    all metrics at once: flipped so, the terms show how large the largest |z| of metrics that depend on each other is by
    chance. p is adjusted by step-down maxT as in `compare_paired`; z is the normal quantile of a metric's own p. The
    metrics outside of the family are not adjusted, and undecided.
    """
    lengths = np.sqrt((terms**2).sum(axis=0))
    scaled = np.divide(terms, lengths, out=np.zeros(terms.shape), where=lengths > 0)
    scaled = scaled[scaled.any(axis=1)]
    p_values = np.array([1.0 if result.p is None else result.p for result in results])
    found = np.array([-NORMAL.inv_cdf(max(p, 1e-300) / 2) for p in p_values])
    is_tested = np.array([result.p is not None for result in results], dtype=bool) & np.asarray(family, dtype=bool)
    order = np.flatnonzero(is_tested)
    order = order[np.argsort(-found[order], kind="stable")]
    n_largest, n_patterns = np.zeros(len(order), dtype=np.int64), 0
    # Estimates without variance have no part that chance could flip.
    for stays in _make_signs(len(scaled), seed, resamples) if len(scaled) else ():
        moved = np.abs((2.0 * stays - 1.0) @ scaled)
        largest = np.maximum.accumulate(moved[:, order[::-1]], axis=1)[:, ::-1]
        n_largest += (largest >= found[order] * (1 - TIE)).sum(axis=0)
        n_patterns += len(stays)
    shares = np.maximum.accumulate((1 + n_largest) / (1 + n_patterns)) if n_patterns else np.zeros(len(order))
    adjusted = dict(zip(order.tolist(), shares.tolist(), strict=True))
    decided = []
    for place, result in enumerate(results):
        p = max(adjusted[place], p_values[place]) if place in adjusted else None
        is_found = p is not None and p <= ALPHA
        decided.append(replace(result, p_adjusted=p, verdict=result.verdict if is_found else "undecided"))
    return decided


Rows = Sequence[Mapping[str, Any]]
Preference = Literal["candidate", "base", "undecided"]


@dataclass(frozen=True, kw_only=True)
class SignTest:
    """The number of groups of samples (single samples without clusters) ahead for either side, and the two-sided p."""

    n_candidate: int
    n_base: int
    p: float


@dataclass(frozen=True, kw_only=True)
class Position:
    """The effect of the places in the `n` samples that were asked about in both orders.

    `agreement` is the share of samples in which both orders agree, `order_decided` the share in which they contradict
    each other. `first_place` are the mean points of the answer in front: 0.5 where places decide nothing.
    """

    n: int
    agreement: Measure
    order_decided: Measure
    first_place: Measure

    @property
    def leans_to(self) -> Literal["first", "second"] | None:
        """The place that the judge favours, where the interval shows it."""
        low, high = self.first_place.ci_low, self.first_place.ci_high
        return "first" if low is not None and low > 0.5 else "second" if high is not None and high < 0.5 else None


@dataclass(frozen=True, kw_only=True)
class PreferenceSummary:
    """The result of a run of preferences, seen from the candidate.

    `half_wins` and `half_losses` are wins and losses in which one order is a tie, `n_contradicted` the ties in which
    the orders contradict each other, `n_identical` counts pairs of equal answers.
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
        """The side with the significantly preferred answers: both the test and the interval have to show it."""
        low, high = self.win_rate.ci_low, self.win_rate.ci_high
        if low is None or high is None or self.sign_test.p > ALPHA or low <= 0.5 <= high:
            return "undecided"
        return "candidate" if low > 0.5 else "base"


def summarise_preferences(rows: Rows) -> PreferenceSummary:
    """Summarise rows of `sample_preferences`; rows without points are left out."""
    judged = [row for row in rows if row["points"] is not None]
    asked = [row for row in judged if row["first_place"] is not None]
    points, groups = np.array([row["points"] for row in judged], dtype=np.float64), number_groups(judged)
    ahead = sum_groups((points - 0.5)[:, None], groups).totals[:, 0]
    n_candidate, n_base = int((ahead > TIE).sum()), int((ahead < -TIE).sum())
    agreement, order_decided, first_place = (
        measure_mean(np.array(column, dtype=np.float64), number_groups(asked))
        for column in (
            [row["orders"] == "agree" for row in asked],
            [row["orders"] == "contradict" for row in asked],
            [row["first_place"] for row in asked],
        )
    )
    return PreferenceSummary(
        n=len(judged),
        n_clusters=int(groups.max()) + 1 if len(groups) else 0,
        n_identical=len(judged) - len(asked),
        wins=int((points > 0.5).sum()),
        half_wins=int((points == 0.75).sum()),
        ties=int((points == 0.5).sum()),
        n_contradicted=sum(row["orders"] == "contradict" for row in judged),
        losses=int((points < 0.5).sum()),
        half_losses=int((points == 0.25).sum()),
        win_rate=measure_mean(points, groups),
        sign_test=SignTest(n_candidate=n_candidate, n_base=n_base, p=find_sign_p(n_candidate, n_base)),
        position=Position(n=len(asked), agreement=agreement, order_decided=order_decided, first_place=first_place),
    )


def measure_mean(values: Floats, groups: Integers) -> Measure:
    """Return the mean of values from 0 to 1 with its interval; all None without values."""
    if not len(values):
        return Measure(value=None, ci_low=None, ci_high=None)
    low, high = find_mean_interval(values, groups, minimum=0.0) or (None, None)
    return Measure(value=float(values.mean()), ci_low=low, ci_high=high)


def number_groups(rows: Rows) -> Integers:
    """Number the group of each row from 0; a row without a cluster is a separate group."""
    numbers: dict[tuple[str, bool], int] = {}
    names = ((row["cluster"] or row["sample_id"], row["cluster"] is None) for row in rows)
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def find_sign_p(n_one: int, n_other: int) -> float:
    """Return the chance that a fair coin falls at least as unevenly, either way."""
    n, fewer = n_one + n_other, min(n_one, n_other)
    logs = (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) - n * log(2) for k in range(fewer + 1))
    return min(1.0, 2 * fsum(map(exp, logs)))
