"""The statistics of a comparison: numbers by hand, against scipy's, and over simulated runs whose truth is known."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from evalhouse.tasks.comparing.intervals import ALPHA
from evalhouse.tasks.comparing.noise import find_scale
from evalhouse.tasks.comparing.paired import Paired, compare_paired

Floats = NDArray[np.float64]


def compare(
    differences: Sequence[float] | Floats, clusters: Sequence[int] | None = None, *, low: bool = False, **further: int
) -> Paired:
    """One metric alone; each sample is its own cluster unless clusters are given."""
    column = np.array(differences, dtype=float)[:, None]
    numbers = np.arange(len(column)) if clusters is None else np.array(clusters)
    return compare_paired(column, numbers, low_is_good=[low], **further)[0]


def compare_many(differences: Floats, clusters: NDArray[np.int64] | None = None, **further: int) -> list[Paired]:
    """One metric a column."""
    numbers = np.arange(len(differences)) if clusters is None else clusters
    return compare_paired(differences, numbers, low_is_good=[False] * differences.shape[1], **further)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0, 2.0, 3.0], 2 / 8),  # only all of one sign are as far from 0
        ([1.0, 1.0, -1.0], 1.0),  # no pattern is nearer to 0
        ([3.0, 1.0, -1.0], 1.0 * 6 / 8),  # |±3 ±1 ±1| is 5, 3, 3 or 1
        ([0.5] * 5, 2 / 32),
        ([0.5] * 5 + [0.0] * 40, 2 / 32),  # ties take no part, however many
        ([0.7], 1.0),
        ([0.0, 0.0], 1.0),
    ],
)
def test_the_exact_test_by_hand(differences: list[float], p: float) -> None:
    found = compare(differences)
    assert found.p == pytest.approx(p)
    assert found.is_exact
    assert found.difference == pytest.approx(np.mean(differences))


def test_counts_and_the_difference() -> None:
    found = compare([0.5, 0.0, -0.25, np.nan, 0.5])
    assert (found.n, found.n_higher, found.n_lower) == (4, 2, 1)
    assert found.difference == pytest.approx(0.75 / 4)


def test_runs_without_common_samples_have_no_difference() -> None:
    found = compare([np.nan, np.nan])
    assert (found.n, found.n_clusters) == (0, 0)
    assert found.difference is found.ci_low is found.ci_high is found.p is found.p_adjusted is None
    assert found.verdict == "undecided"
    assert compare(np.empty(0)).verdict == "undecided"
    assert compare_many(np.empty((3, 0))) == []


@pytest.mark.parametrize("n", [2, 500])
def test_equal_scores_are_the_same_and_their_interval_is_what_so_few_cannot_exclude(n: int) -> None:
    found = compare([0.0] * n)
    assert found.verdict == compare([1e-16, -1e-16, 0.0]).verdict == "same"  # sums in another order
    assert found.p == 1.0
    # The upper limits of no gain and of no loss among n.
    most = float(stats.binomtest(0, n).proportion_ci(method="exact").high)
    assert (found.ci_low, found.ci_high) == pytest.approx((-most, most))


def test_equal_scores_of_an_unknown_scale_have_no_interval() -> None:
    """They had one from NaN to NaN, and a warning of numpy."""
    scale = find_scale(np.full(60, 5.0))
    (found,) = compare_paired(np.zeros((30, 1)), np.arange(30), low_is_good=[False], scales=[scale])
    assert (found.verdict, found.difference, found.p) == ("same", 0.0, 1.0)
    assert found.ci_low is found.ci_high is None


def test_of_flips_the_interval_is_that_of_wilsons_limits() -> None:
    """3 gains and 7 losses of 40, from the limits of each and their correlation."""
    found = compare([1.0] * 3 + [-1.0] * 7 + [0.0] * 30)
    gain, loss = 3 / 40, 7 / 40
    level = 2 * stats.norm.cdf(stats.t.ppf(0.975, 39)) - 1
    of_gain, of_loss = (stats.binomtest(k, 40).proportion_ci(level, method="wilson") for k in (3, 7))
    correlation = -np.sqrt(gain * loss / ((1 - gain) * (1 - loss)))  # no sample is both
    down, up = gain - of_gain.low, of_loss.high - loss
    low = gain - loss - np.sqrt(down**2 + up**2 - 2 * correlation * down * up)
    up, down = of_gain.high - gain, loss - of_loss.low
    high = gain - loss + np.sqrt(down**2 + up**2 - 2 * correlation * down * up)
    assert (found.ci_low, found.ci_high) == pytest.approx((low, high))


@pytest.mark.parametrize(("n", "verdict"), [(1, "undecided"), (3, "undecided"), (5, "undecided"), (6, "better")])
def test_few_samples_that_all_gain_stay_undecided(n: int, verdict: str) -> None:
    found = compare([0.3] * n)
    assert found.verdict == verdict
    if found.ci_low is not None and found.ci_high is not None:
        assert found.ci_low < 0.3 <= found.ci_high, "so few say that others gain, not that all gain the same"
    assert (found.ci_low is None) == (n == 1)


def test_better_is_lower_for_metrics_of_faults() -> None:
    gain = np.linspace(0.1, 0.4, 30)
    assert compare(gain).verdict == compare(-gain, low=True).verdict == "better"
    assert compare(-gain).verdict == compare(gain, low=True).verdict == "worse"


@pytest.mark.parametrize("seed", range(2))
def test_the_exact_test_is_scipys(seed: int) -> None:
    differences = np.random.default_rng(seed).choice([-0.5, 0.0, 0.25, 0.5, 1.0], size=12)
    theirs = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert compare(differences).p == pytest.approx(theirs.pvalue)


def test_drawn_signs_come_near_the_exact_p() -> None:
    differences = np.random.default_rng(5).normal(0.35, 1.0, size=16)
    exact = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf, vectorized=True
    ).pvalue
    found = compare(differences)
    assert not found.is_exact
    assert found.p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 10_000))
    # Where the differences are spread evenly Wilcoxon's test says much the same.
    assert found.p == pytest.approx(stats.wilcoxon(differences).pvalue, abs=0.1)


def test_a_drawn_p_is_never_zero() -> None:
    found = compare(np.linspace(1.0, 1.5, 40))
    assert found.p == pytest.approx(1 / 10_001)


def test_equal_seeds_give_equal_results_and_others_nearly() -> None:
    differences = np.random.default_rng(7).normal(0.1, 1.0, size=60)
    assert compare(differences, seed=3) == compare(differences, seed=3)
    one, other = compare(differences, seed=3), compare(differences, seed=4)
    assert one.p != other.p
    assert one.p == pytest.approx(other.p, abs=0.03)
    assert (one.ci_low, one.ci_high) == (other.ci_low, other.ci_high), "nothing in it is drawn"


def test_samples_of_one_cluster_are_flipped_together() -> None:
    found = compare([1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5], [1, 1, 1, 2, 2, 3, 3])
    assert found.n_clusters == 3
    assert found.p == pytest.approx(2 / 8)
    alone = compare([1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5])
    assert alone.p == pytest.approx(2 / 128)


SCORES = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.0, 0.25, 1.0]), min_size=2, max_size=14)


@given(SCORES)
@settings(max_examples=40, deadline=None)
def test_what_is_found_keeps_to_what_can_be(differences: list[float]) -> None:
    found = compare(differences, resamples=400)
    assert found.p is not None
    assert 0 < found.p <= 1
    assert (found.verdict == "same") == (not any(differences))
    assert found.ci_low is not None
    assert found.ci_high is not None
    assert found.difference is not None
    assert -1 <= found.ci_low <= found.difference + 1e-12
    assert found.difference - 1e-12 <= found.ci_high <= 1
    assert found.ci_low < found.ci_high, "no number of samples is certain"


def adjust_by_hand(differences: Floats) -> list[float]:
    """Westfall and Young's step-down maxT as their definition has it, over all sign patterns."""
    patterns = np.array(list(itertools.product([-1.0, 1.0], repeat=len(differences))))
    z = np.abs(patterns @ differences) / np.sqrt((differences**2).sum(axis=0))
    found = z[-1]  # no sign is turned
    adjusted, highest = [0.0] * len(found), 0.0
    for place in np.argsort(-found):
        no_further = [other for other in range(len(found)) if found[other] <= found[place]]
        share = float(np.mean(z[:, no_further].max(axis=1) >= found[place] - 1e-12))
        adjusted[place] = highest = max(highest, share)
    return adjusted


@pytest.mark.parametrize("seed", range(2))
def test_p_is_adjusted_as_westfall_and_young_define_it(seed: int) -> None:
    generator = np.random.default_rng(seed)
    differences = generator.normal(0.4, 1.0, size=(10, 1)) + generator.normal(0.0, 0.7, size=(10, 5))
    found = compare_many(differences)
    assert [one.p_adjusted for one in found] == pytest.approx(adjust_by_hand(differences))
    assert all(one.is_exact and one.p is not None and one.p <= (one.p_adjusted or 0.0) for one in found)


def test_only_the_metrics_that_are_asked_about_count_for_the_adjustment() -> None:
    differences = np.random.default_rng(3).normal(0.3, 1.0, size=(12, 6))
    asked = [True, False, True, False, False, False]
    found = compare_paired(differences, np.arange(12), low_is_good=[False] * 6, family=asked)
    alone = compare_many(differences[:, [0, 2]])
    assert [found[0].p_adjusted, found[2].p_adjusted] == [one.p_adjusted for one in alone]
    assert [one.p_adjusted is None for one in found] == [not one for one in asked]
    assert {one.verdict for one, is_asked in zip(found, asked, strict=True) if not is_asked} == {"undecided"}


# Each column is a separate run with a known truth; 2,000 of them estimate a share to ± 1 %.
N_RUNS = 2000


def share_covered(found: Sequence[Paired], truth: float) -> float:
    """Return how many intervals hold the truth."""
    return float(np.mean([one.ci_low is not None and one.ci_low <= truth <= (one.ci_high or 0.0) for one in found]))


def test_the_interval_covers_the_truth() -> None:
    generator = np.random.default_rng(20)
    evenly = generator.normal(0.2, 1.0, size=(20, N_RUNS))
    assert 0.93 <= share_covered(compare_many(evenly, resamples=2000), 0.2) <= 0.985
    # Most samples do not change, a few gain or lose: the usual night.
    steps = np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    shares = np.array([0.05, 0.1, 0.6, 0.15, 0.1])
    seldom = generator.choice(steps, p=shares, size=(20, N_RUNS))
    assert 0.90 <= share_covered(compare_many(seldom, resamples=2000), float(steps @ shares)) <= 0.999


def test_only_the_clustered_interval_covers_when_samples_share_a_document() -> None:
    generator = np.random.default_rng(11)
    clusters = np.repeat(np.arange(25), 8)
    differences = np.repeat(generator.normal(0.1, 1.0, size=(25, N_RUNS)), 8, axis=0)
    differences += generator.normal(0.0, 0.5, size=differences.shape)
    assert 0.93 <= share_covered(compare_many(differences, clusters, resamples=1000), 0.1) <= 0.97
    assert share_covered(compare_many(differences[:, :200], resamples=1000), 0.1) < 0.7


@pytest.mark.parametrize("n", [6, 40])
def test_false_alarms_are_as_rare_as_promised(n: int) -> None:
    differences = np.random.default_rng(n).choice([-0.5, 0.0, 0.0, 0.5], size=(n, N_RUNS))
    p_values = [one.p for one in compare_many(differences, resamples=2000)]
    assert np.mean([p is not None and p <= ALPHA for p in p_values]) <= ALPHA + 0.01


def test_over_many_metrics_there_is_seldom_one_false_alarm() -> None:
    generator = np.random.default_rng(12)
    n_alarms, n_nights = 0, 80
    for night in range(n_nights):
        shared = generator.normal(size=(40, 1))
        differences = shared + generator.normal(size=(40, 12))  # metrics of one verdict go together
        found = compare_many(differences, seed=night, resamples=1000)
        n_alarms += any(one.verdict != "undecided" for one in found)
    assert n_alarms / n_nights <= ALPHA + 0.035


def test_a_true_effect_is_found_among_metrics_without_one() -> None:
    generator = np.random.default_rng(13)
    differences = generator.normal(0.0, 0.3, size=(300, 12))
    differences[:, 4] += 0.1
    found = compare_many(differences)
    assert found[4].verdict == "better"
    assert [one.verdict for place, one in enumerate(found) if place != 4] == ["undecided"] * 11
