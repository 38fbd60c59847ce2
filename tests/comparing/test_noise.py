"""The noise floor: its formula by scipy's distributions, its ends, and how often simulated noise goes beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evalhouse.tasks.comparing.noise import MIN_SAMPLES, Noise, find_floor, pick_samples, pool_noise, sum_squares

Array = np.ndarray[Any, Any]


def measure(differences: Sequence[float] | Array) -> Noise:
    """What a noise run over these pairs says."""
    values = np.asarray(differences)
    return Noise(n_pairs=len(values), n_changed=int((values != 0).sum()), sum_squares=float((values**2).sum()))


def find(noise: Noise, *, n: int, m: int | None = None, scale: float = 1.0) -> float:
    """The floor over `n` samples without clusters, `m` of them judged anew."""
    return find_floor(noise, n=n, again=np.ones(n if m is None else m, dtype=np.int64), scale=scale)


PAIRS = [0.5, -0.5, 0.25, -0.25, 0.5, -0.25, 0.5, 0.25, *[0.0] * 40]


def test_the_floor_by_another_computation() -> None:
    t = stats.t.ppf(0.975, df=7)  # eight pairs differ
    deviation = np.sqrt(np.mean(np.square(PAIRS)))
    half_step = np.sqrt(np.mean(np.square(PAIRS[:8]))) / 2
    assert find(measure(PAIRS), n=200) == pytest.approx(t * deviation / np.sqrt(200) + half_step / 200)


def test_of_pairs_that_all_agree_the_floor_is_the_rule_of_three() -> None:
    for n_pairs in (10, 50, 300):
        share = 1 - 0.05 ** (1 / n_pairs)
        assert share == pytest.approx(3 / n_pairs, rel=0.15)
        expected = 1.96 * sqrt(share / 200) + 0.5 / 200
        assert find(measure([0.0] * n_pairs), n=200) == pytest.approx(expected, rel=1e-4)


def test_few_pairs_that_differ_are_bounded_by_how_many_can() -> None:
    one = measure([0.1, *[0.0] * 19])
    share = stats.binomtest(1, 20, alternative="less").proportion_ci(0.95).high
    assert find(one, n=100) == pytest.approx(1.96 * sqrt(share / 100) + 0.05 / 100, rel=1e-4)
    assert find(measure([0.5, 0.5]), n=100) == pytest.approx((1.96 * 10 + 0.25) / 100, rel=1e-4), "all of them can"


def test_only_samples_judged_anew_bring_noise() -> None:
    noise = measure(PAIRS)
    assert find(noise, n=200, m=0) == 0.0
    floors = [find(noise, n=200, m=m) for m in (1, 50, 200)]
    assert floors == sorted(floors)
    half_step = np.sqrt(np.mean(np.square(PAIRS[:8]))) / 2 / 200
    assert (floors[1] - half_step) * 2 == pytest.approx(floors[2] - half_step), "as the root of how many"


def test_samples_of_a_cluster_count_as_if_they_erred_together() -> None:
    noise = measure(PAIRS)
    apart = find(noise, n=200)
    together = find_floor(noise, n=200, again=np.full(25, 8, dtype=np.int64), scale=1.0)
    as_one_each = find(noise, n=25)
    half_step = np.sqrt(np.mean(np.square(PAIRS[:8]))) / 2
    assert together - half_step / 200 == pytest.approx(as_one_each - half_step / 25)
    assert together > apart


def test_the_floor_is_in_the_unit_of_the_scores() -> None:
    letters = measure(np.array(PAIRS) * 1000)
    assert find(letters, n=200, scale=1000) == pytest.approx(1000 * find(measure(PAIRS), n=200))
    none = measure([0.0] * 30)
    assert find(none, n=200, scale=1000) == pytest.approx(1000 * find(none, n=200))


def test_more_pairs_bring_the_floor_down_and_noise_brings_it_up() -> None:
    few, many = measure(PAIRS[:8] + [0.0] * 8), measure((PAIRS[:8] + [0.0] * 8) * 20)
    assert find(few, n=200) > find(many, n=200)
    assert find(measure([*PAIRS, 0.5, 0.5]), n=200) > find(measure([*PAIRS, 0.0, 0.0]), n=200)


def test_pools_add_up_and_nothing_is_nothing() -> None:
    first, second = measure(PAIRS[:20]), measure(PAIRS[20:])
    pooled = pool_noise([first, Noise(n_pairs=0, n_changed=0, sum_squares=0.0), second])
    assert pooled is not None
    assert (pooled.n_pairs, pooled.n_changed, pooled.n_runs) == (48, 8, 2)
    assert pooled.sum_squares == pytest.approx(measure(PAIRS).sum_squares)
    assert pooled.deviation == pytest.approx(np.sqrt(np.mean(np.square(PAIRS))))
    assert pool_noise([Noise(n_pairs=0, n_changed=0, sum_squares=0.0)]) is None


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30))
def test_sums_of_squares_come_back_from_mean_and_deviation(differences: list[float]) -> None:
    sd = float(np.std(differences, ddof=1)) if len(differences) > 1 else None
    found = sum_squares(n=len(differences), mean=float(np.mean(differences)), sd=sd)
    assert found == pytest.approx(float(np.square(differences).sum()), abs=1e-9)


def test_without_a_pair_there_are_no_squares() -> None:
    assert sum_squares(n=0, mean=None, sd=None) == 0.0


@given(st.integers(0, 200), st.floats(0, 1), st.text(max_size=5))
def test_a_share_is_picked_in_order_and_the_same_each_time(n: int, share: float, seed: str) -> None:
    ids = [f"s{number:03d}" for number in range(n)]
    picked = pick_samples(ids, share=share, seed=seed)
    assert picked == pick_samples(ids, share=share, seed=seed) == sorted(picked)
    assert set(picked) <= set(ids)
    assert len(set(picked)) == len(picked) == min(n, max(-int(-share * n // 1), MIN_SAMPLES))


def test_runs_pick_different_samples_and_every_sample_may_be_picked() -> None:
    ids = [f"s{number}" for number in range(40)]
    picks = [pick_samples(ids, share=0.25, seed=f"run-{number}") for number in range(100)]
    assert len({tuple(pick) for pick in picks}) > 90
    assert {sample_id for pick in picks for sample_id in pick} == set(ids)


# How a judge may waver: its verdicts seldom or often, by one step or by steps of many sizes.
STEPS = {"binary": (1.0,), "few large": (0.1, 0.3, 1.0), "small": (0.05, 0.1, 0.2, 0.4)}


def draw(generator: np.random.Generator, steps: str, rate: float, shape: tuple[int, ...]) -> Array:
    sizes = generator.choice(STEPS[steps], size=shape) * generator.choice([-1.0, 1.0], size=shape)
    return np.where(generator.random(shape) < rate, sizes, 0.0)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.4])
def test_noise_alone_seldom_goes_beyond_the_floor(steps: str, rate: float) -> None:
    """Nights that only noise sets apart, each with a floor from a noise run of its own."""
    generator = np.random.default_rng(len(steps))
    n_nights, shares = 1500, {}
    for n_pairs in (10, 30, 200):
        for n in (20, 200):
            floors = [find(measure(pairs), n=n) for pairs in draw(generator, steps, rate, (n_nights, n_pairs))]
            changes = np.abs(draw(generator, steps, rate, (n_nights, n)).mean(axis=1))
            shares[n_pairs, n] = float((changes > np.array(floors) + 1e-12).mean())
    print(f"share beyond the floor, {steps} at {rate}, by pairs and samples: {shares}")
    assert max(shares.values()) <= 0.05 + 3 * sqrt(0.05 * 0.95 / n_nights)


def test_with_many_pairs_the_floor_is_no_higher_than_it_must_be() -> None:
    generator = np.random.default_rng(3)
    true = 1.96 * sqrt(0.2 / 200)
    floors = [find(measure(draw(generator, "binary", 0.2, (400,))), n=200) for _ in range(200)]
    assert float(np.median(floors)) == pytest.approx(true, rel=0.1)
