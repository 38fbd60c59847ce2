"""How often gates err: false alarms and power over simulated runs of known truth, with and without a noisy judge."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from gate_comparisons import compare_values

from evalhouse.tasks.comparing.gate_checks import Score, check_drops, check_mean, is_passed
from evalhouse.tasks.comparing.intervals import find_mean_interval
from evalhouse.tasks.comparing.noise import Noise, find_floor
from evalhouse.tasks.comparing.runs import MetricComparison

N_RUNS = 200


@pytest.mark.parametrize("n_runs", [60, pytest.param(N_RUNS, marks=pytest.mark.slow)])
def test_where_nothing_changed_few_gates_fail(n_runs: int) -> None:
    """Ten drops of at most 0 over 60 samples whose verdicts flip either way at random: by chance alone some metric of
    ten goes beyond its interval in a quarter of the runs; of the gates at most 5 % may fail (and 3 standard errors)."""
    generator = np.random.default_rng(20)
    limits = {f"metric_{place}": 0.0 for place in range(10)}
    n_failed = 0
    for _ in range(n_runs):
        differences = {name: generator.choice([-1.0, 0.0, 1.0], size=60, p=[0.15, 0.7, 0.15]) for name in limits}
        n_failed += not is_passed(check_drops(limits, compare_values(differences)), undecided="pass")
    allowed = 0.05 + 3 * sqrt(0.05 * 0.95 / n_runs)
    print(f"share of gates that failed where nothing changed: {n_failed / n_runs}")
    assert n_failed / n_runs <= allowed


@pytest.mark.slow
def test_a_drop_of_just_the_limit_seldom_fails_and_a_great_one_mostly_does() -> None:
    """Over 200 samples, at a limit of 0.05: false alarms at a true drop of 0.05, and power at one of 0.2."""
    generator = np.random.default_rng(21)
    shares = {}
    for drop in (0.05, 0.2):
        odds = [0.1 + drop, 0.8 - drop, 0.1]
        n_failed = 0
        for _ in range(N_RUNS):
            found = compare_values({"factual_f1": generator.choice([-1.0, 0.0, 1.0], size=200, p=odds)})
            n_failed += check_drops({"factual_f1": 0.05}, found)[0].outcome == "failed"
        shares[drop] = n_failed / N_RUNS
    print(f"share of gates that failed, by true drop: {shares}")
    assert shares[0.05] <= 0.05 + 3 * sqrt(0.05 * 0.95 / N_RUNS)
    assert shares[0.2] >= 0.8


@pytest.mark.parametrize("n", [20, pytest.param(50, marks=pytest.mark.slow)])
def test_few_samples_with_rare_flips_pass_no_drop_that_they_cannot_exclude(n: int) -> None:
    """8 % lost and 4 % gained are a drop of 0.04, beyond a limit of 0.02: by a bootstrap a fifth of runs of 20 pass,
    as most show no flip or one. 2 % lost are just the limit, and two thirds of those runs show nothing at all."""
    generator = np.random.default_rng(24)
    for odds in ([0.08, 0.88, 0.04], [0.02, 0.98, 0.0]):
        outcomes = [
            check_drops(
                {"factual_f1": 0.02},
                compare_values({"factual_f1": generator.choice([-1.0, 0.0, 1.0], size=n, p=odds)}),
            )[0].outcome
            for _ in range(N_RUNS)
        ]
        assert outcomes.count("passed") / N_RUNS <= 0.02
        assert outcomes.count("failed") / N_RUNS <= 0.1


JUDGE_FLIPS = 0.1


def flip(generator: np.random.Generator, truths: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A judge's verdicts of true or false, one in ten of which is the other one."""
    flips = generator.random(truths.shape) < JUDGE_FLIPS
    return np.where(flips, 1.0 - truths, truths)


def judge_nights(generator: np.random.Generator, *, drop: float, n: int, n_again: int) -> dict[str, MetricComparison]:
    """Two nights over n samples, in the second of which a share of the good ones is bad, by a judge whose noise was
    measured over as many pairs."""
    truths = (generator.random(n) < 0.8).astype(np.float64)
    later = np.where(generator.random(n) < drop / 0.8, 0.0, truths)
    base, candidate = flip(generator, truths), flip(generator, later)
    pairs = base[:n_again] - flip(generator, truths[:n_again])
    noise = Noise(n_pairs=n_again, n_changed=int((pairs != 0).sum()), sum_squares=float((pairs**2).sum()))
    floor = find_floor(noise, n=n, again=np.ones(n, dtype=np.int64), scale=1.0)
    return compare_values({"factual_f1": candidate - base}, floor)


@pytest.mark.parametrize("n_again", [pytest.param(10, marks=pytest.mark.slow), 100])
def test_with_a_noisy_judge_few_gates_fail_where_nothing_changed_and_most_do_at_a_great_drop(n_again: int) -> None:
    """200 samples at a limit of 0 and of 0.02, with no drop and a true one of 0.25; the judge sees 0.8 of it."""
    generator = np.random.default_rng(23)
    shares: dict[float, dict[float, float]] = {}
    for drop in (0.0, 0.25):
        nights = [judge_nights(generator, drop=drop, n=200, n_again=n_again) for _ in range(N_RUNS)]
        shares[drop] = {
            limit: sum(check_drops({"factual_f1": limit}, found)[0].outcome == "failed" for found in nights) / N_RUNS
            for limit in (0.0, 0.02)
        }
    print(f"share of gates that failed, by true drop and limit, {n_again} judged again: {shares}")
    allowed = 0.05 + 3 * sqrt(0.05 * 0.95 / N_RUNS)
    assert shares[0.0][0.0] <= allowed
    assert shares[0.0][0.02] <= allowed
    assert shares[0.25][0.02] >= 0.8


def test_a_mean_of_just_the_minimum_seldom_fails_and_one_far_below_mostly_does() -> None:
    """60 verdicts of true or false, at a minimum of 0.8, with the interval that `run_scores` makes of them."""
    generator = np.random.default_rng(22)
    shares = {}
    for mean in (0.8, 0.6):
        n_true = generator.binomial(60, mean, size=1000)
        n_failed = 0
        for total in n_true:
            low, high = find_mean_interval(np.arange(60) < total, np.arange(60), minimum=0.0) or (None, None)
            score = Score(mean=total / 60, ci_low=low, ci_high=high, n_scored=60, n_samples=60, n_applicable=60)
            n_failed += check_mean("min", "own", 0.8, score).outcome == "failed"
        shares[mean] = n_failed / 1000
    print(f"share of minimums that failed, by true mean: {shares}")
    assert shares[0.8] <= 0.05
    assert shares[0.6] >= 0.8
