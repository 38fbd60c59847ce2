"""The noise floor: its formula by scipy's distributions, its ends, and how often simulated noise goes beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from evalhouse.tasks.comparing.noise import (
    MIN_SAMPLES,
    POWER,
    Components,
    Noise,
    Shift,
    count_questions,
    describe_components,
    describe_shifts,
    find_floor,
    find_shifts,
    find_smallest_drop,
    pick_samples,
    plan_spending,
    pool_noise,
    sum_squares,
)

Array = np.ndarray[Any, Any]


def measure(differences: Sequence[float] | Array) -> Noise:
    """The result of a noise run over these pairs."""
    values = np.asarray(differences)
    return Noise(n_pairs=len(values), n_changed=int((values != 0).sum()), sum_squares=float((values**2).sum()))


def find(noise: Noise, *, n: int, m: int | None = None, scale: float = 1.0) -> float:
    """The floor over `n` samples without clusters, `m` of them judged again."""
    return find_floor(noise, n=n, again=np.ones(n if m is None else m, dtype=np.int64), scale=scale)


PAIRS = [0.5, -0.5, 0.25, -0.25, 0.5, -0.25, 0.5, 0.25, *[0.0] * 40]


def test_the_floor_by_another_computation() -> None:
    t = stats.t.ppf(0.975, df=7)  # eight pairs differ
    deviation = np.sqrt(np.mean(np.square(PAIRS)))
    half_step = np.sqrt(np.mean(np.square(PAIRS[:8]))) / 2
    assert find(measure(PAIRS), n=200) == pytest.approx(t * deviation / np.sqrt(200) + half_step / 200)


def test_only_samples_judged_again_bring_noise() -> None:
    noise = measure(PAIRS)
    assert find(noise, n=200, m=0) == 0.0
    floors = [find(noise, n=200, m=m) for m in (1, 50, 200)]
    assert floors == sorted(floors)
    half_step = np.sqrt(np.mean(np.square(PAIRS[:8]))) / 2 / 200
    assert (floors[1] - half_step) * 2 == pytest.approx(floors[2] - half_step), "as the root of how many"


def test_pools_add_up_and_nothing_is_nothing() -> None:
    first, second = measure(PAIRS[:20]), measure(PAIRS[20:])
    pooled = pool_noise([first, Noise(n_pairs=0, n_changed=0, sum_squares=0.0), second])
    assert pooled is not None
    assert (pooled.n_pairs, pooled.n_changed, pooled.n_runs) == (48, 8, 2)
    assert pooled.sum_squares == pytest.approx(measure(PAIRS).sum_squares)
    assert pooled.deviation == pytest.approx(np.sqrt(np.mean(np.square(PAIRS))))
    assert pool_noise([Noise(n_pairs=0, n_changed=0, sum_squares=0.0)]) is None
    assert sum_squares(n=0, mean=None, sd=None) == 0.0


@given(st.integers(0, 200), st.floats(0, 1), st.integers(0, 9))
def test_a_share_is_picked_in_order_and_the_same_each_time(n: int, share: float, seed: int) -> None:
    ids = [f"s{number:03d}" for number in range(n)]
    picked = pick_samples(ids, share=share, seed=f"run-{seed}")
    assert picked == pick_samples(ids, share=share, seed=f"run-{seed}") == sorted(picked)
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
@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_noise_alone_seldom_goes_beyond_the_floor(steps: str, rate: float) -> None:
    """Nights that differ by noise alone, each with a floor from a separate noise run."""
    generator = np.random.default_rng(len(steps))
    n_nights, shares = 800, {}
    for n_pairs in (10, 30, 200):
        for n in (20, 200):
            floors = [find(measure(pairs), n=n) for pairs in draw(generator, steps, rate, (n_nights, n_pairs))]
            changes = np.abs(draw(generator, steps, rate, (n_nights, n)).mean(axis=1))
            shares[n_pairs, n] = float((changes > np.array(floors) + 1e-12).mean())
    print(f"share beyond the floor, {steps} at {rate}, by pairs and samples: {shares}")
    assert max(shares.values()) <= 0.05 + 3 * sqrt(0.05 * 0.95 / n_nights)


shares = st.floats(min_value=0, max_value=0.25)
drops = st.floats(min_value=0.001, max_value=0.5)


def make_components(answers: float = 0.05, judge: float | None = 0.002, n_questions: int = 200) -> Components:
    return Components(
        metric="factual_f1", n_questions=n_questions, scale=1.0, answers=(answers, answers / 2, answers * 2),
        judge=judge, judge_share=None if judge is None else judge / (answers + 0.1),
    )  # fmt: skip


@pytest.mark.parametrize(("answers", "n_answers"), [(0.05, 1), (0.05, 3), (0.2, 1)])
def test_the_power_is_what_simulated_comparisons_have(answers: float, n_answers: int) -> None:
    """Zeros and ones where a question's chances are, on the first night, p, and a few questions lose all of it."""
    drop = 0.05
    n = count_questions(make_components(answers), drop, answers=answers, n_answers=n_answers)
    generator = np.random.default_rng(1)
    chance = 0.5 + 0.5 * sqrt(1 - 4 * answers)  # p (1 - p) is the variance between answers
    lost = generator.random((2000, n)) < drop / chance
    before = generator.binomial(n_answers, chance, (2000, n)) / n_answers
    after = np.where(lost, 0.0, generator.binomial(n_answers, chance, (2000, n)) / n_answers)
    differences = after - before
    deviations = np.maximum(differences.std(axis=1, ddof=1), 1e-9)
    is_found = differences.mean(axis=1) / (deviations / sqrt(n)) < -1.96
    assert is_found.mean() == pytest.approx(POWER, abs=0.06)


@given(answers=shares, drop=drops, n=st.integers(min_value=2, max_value=100_000))
def test_the_smallest_drop_is_the_one_that_takes_the_present_questions(answers: float, drop: float, n: int) -> None:
    components = make_components(answers, n_questions=n)
    smallest = find_smallest_drop(components)
    assert 0 < smallest <= 1
    if smallest < 1:
        assert abs(count_questions(components, smallest, answers=answers) - n) <= 1
    assert (count_questions(components, drop, answers=answers) <= n) == (drop >= smallest) or drop == pytest.approx(
        smallest, rel=1 / n
    )


def test_a_plan_describes_questions_repeats_and_votes() -> None:
    plan = plan_spending(make_components(answers=0.05, judge=0.002), 0.02)
    assert plan.next == "questions"
    assert plan.describe() == (
        "to see a drop of 0.02 in factual_f1 with 80% power: 2,347 questions (1,366 to 4,310; there are 200); or 1,039 "
        "with 2 repeats of each; more votes would not help: the judge is 1% of the variance"
    )
    hardly = plan_spending(make_components(answers=0.05, judge=0.005), 0.02)
    assert (hardly.next, hardly.n_without_judge) == ("questions", 2151)
    assert hardly.describe().endswith("more votes would hardly help, 2,151 at best: the judge is 3% of the variance")
    wavering = plan_spending(make_components(answers=0.05, judge=0.04), 0.02)
    assert (wavering.next, wavering.n_without_judge) == ("votes", 778)
    assert wavering.describe().endswith("with more votes 778 at best: the judge is 27% of the variance")
    unknown = plan_spending(make_components(judge=None), 0.02)
    assert unknown.describe().endswith("the effect of more votes is not known until the judge's noise is measured")
    enough = plan_spending(make_components(n_questions=3000), 0.02)
    assert enough.next == "nothing"
    assert enough.describe().endswith("2,347 questions (1,366 to 4,310); there are 3,000")
    nearly = plan_spending(make_components(n_questions=1400), 0.02)
    assert nearly.rounds == 2 - 1 + (count_questions(make_components(), 0.02, answers=0.05, n_answers=2) > 1400)
    assert plan.rounds is None, "the drop itself varies too much over 200 questions"


def test_a_row_of_the_view_becomes_a_plan_where_a_drop_is_given() -> None:
    row = {
        "metric": "factual_f1", "n_questions": 200, "scale": 1.0, "variance": 0.15, "answer_variance": 0.05,
        "answer_low": 0.03, "answer_high": 0.09, "judge_variance": 0.01, "judged_apart": 0.5,
    }  # fmt: skip
    (with_plan,) = describe_components([row], {"factual_f1": 0.02})
    assert with_plan["plan"]["n_needed"] == 2347
    assert with_plan["plan"]["judge_share"] == pytest.approx(1 / 15)
    assert with_plan["plan"]["n_without_judge"] == count_questions(make_components(), 0.02, answers=0.045)
    (without,) = describe_components([row], {"bleu": 0.02})
    assert without["plan"] is None
    assert without["smallest_drop"] == pytest.approx(find_smallest_drop(make_components()))


METRICS = ("factual_f1", "faithfulness", "context_recall", "answer_correctness")


def draw_runs(generator: np.random.Generator, shifts: list[float], *, n: int = 10) -> pl.DataFrame:
    """Noise runs, the nearest first, of n samples each: a fifth of the scores waver by up to a whole point, half of
    the others are off by the run's shift."""
    rows = []
    for number, shift in enumerate(shifts):
        for sample in generator.choice(80, size=n, replace=False):
            own = generator.choice([-1.0, -0.5, 0.5, 1.0]) * (generator.random() < 0.2)
            for metric in METRICS:
                wavers = own if metric != "context_recall" else 0.0
                rows.append((f"noise-{number}", metric, f"s{sample}", wavers + shift * generator.integers(0, 2)))
    return pl.DataFrame(rows, schema=["noise_run_id", "metric", "sample_id", "difference"], orient="row")


def find_drawn_shifts(generator: np.random.Generator, shifts: list[float], *, n: int = 10) -> list[Shift]:
    return find_shifts(draw_runs(generator, shifts, n=n), [f"noise-{number}" for number in range(len(shifts))])


def count_found(shifts: list[float], n_histories: int, *, n: int = 10) -> float:
    generator = np.random.default_rng(len(shifts))
    return float(np.mean([bool(find_drawn_shifts(generator, shifts, n=n)) for _ in range(n_histories)]))


def test_random_noise_is_seldom_reported_as_a_shift() -> None:
    n_histories = 40
    found = count_found([0.0] * 10, n_histories)
    print(f"false alarms in {n_histories} quiet histories: {found}")
    assert found <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_histories)


def test_an_exchanged_judge_is_found_whether_that_was_lately_or_long_ago() -> None:
    """Half of the samples differ by half a point, in all of ten noise runs, or only in the last three, which all ten
    together would not show."""
    assert count_found([-0.5] * 10, 8) == 1.0
    assert count_found([-0.5] * 3 + [0.0] * 7, 10) >= 0.7
    assert count_found([-0.5] + [0.0] * 9, 10, n=40) >= 0.7


def test_it_says_which_metric_by_how_much_and_by_how_many_pairs() -> None:
    frame = draw_runs(np.random.default_rng(1), [0.0, 0.0], n=30)
    moved = pl.col("difference") + pl.when(pl.col("metric") == "faithfulness").then(0.3).otherwise(0.0)
    (shift,) = find_shifts(frame.with_columns(difference=moved), ["noise-0", "noise-1"])
    assert (shift.metric, shift.n_pairs, shift.n_runs) == ("faithfulness", 60, 2)
    assert find_shifts(frame.clear(), ["noise-0"]) == describe_shifts([]) == []
    assert 0 < shift.ci_low < shift.difference < shift.ci_high
    (warning,) = describe_shifts([shift])
    assert (
        f"faithfulness {shift.difference:.3f} higher (+{shift.ci_low:.3f} to +{shift.ci_high:.3f}; 60 pairs)" in warning
    )
