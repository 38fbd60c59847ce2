"""A judge that scores otherwise on the whole: found where it is so, and seldom where it only wavers."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from evalhouse.tasks.comparing.noise import Shift, describe_shifts, find_shifts

METRICS = ("factual_f1", "faithfulness", "context_recall", "answer_correctness")


def draw(generator: np.random.Generator, shifts: list[float], *, n: int = 10) -> pl.DataFrame:
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


def find(generator: np.random.Generator, shifts: list[float], *, n: int = 10) -> list[Shift]:
    return find_shifts(draw(generator, shifts, n=n), [f"noise-{number}" for number in range(len(shifts))])


def count_found(shifts: list[float], n_histories: int, *, n: int = 10) -> float:
    generator = np.random.default_rng(len(shifts))
    return float(np.mean([bool(find(generator, shifts, n=n)) for _ in range(n_histories)]))


@pytest.mark.parametrize("n_histories", [60, pytest.param(400, marks=pytest.mark.slow)])
def test_a_judge_that_only_wavers_is_seldom_said_to_have_shifted(n_histories: int) -> None:
    found = count_found([0.0] * 10, n_histories)
    print(f"false alarms in {n_histories} quiet histories: {found}")
    assert found <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / n_histories)


def test_an_exchanged_judge_is_found_whether_that_was_lately_or_long_ago() -> None:
    """By half a point in half of the samples; of ten noise runs of ten samples all were measured since, or only three,
    which all ten together would not show."""
    assert count_found([-0.5] * 10, 20) == 1.0
    assert count_found([-0.5] * 3 + [0.0] * 7, 20) >= 0.8
    assert count_found([-0.5] + [0.0] * 9, 20, n=40) >= 0.8


def test_it_says_which_metric_by_how_much_and_by_how_many_pairs() -> None:
    frame = draw(np.random.default_rng(1), [0.0, 0.0], n=30)
    moved = pl.col("difference") + pl.when(pl.col("metric") == "faithfulness").then(0.3).otherwise(0.0)
    (shift,) = find_shifts(frame.with_columns(difference=moved), ["noise-0", "noise-1"])
    assert (shift.metric, shift.n_pairs, shift.n_runs) == ("faithfulness", 60, 2)
    assert 0 < shift.ci_low < shift.difference < shift.ci_high
    (warning,) = describe_shifts([shift])
    assert (
        f"faithfulness {shift.difference:.3f} higher (+{shift.ci_low:.3f} to +{shift.ci_high:.3f}; 60 pairs)" in warning
    )


def test_without_pairs_there_is_nothing_to_say() -> None:
    nothing = draw(np.random.default_rng(2), [])
    assert find_shifts(nothing, []) == find_shifts(nothing, ["noise-0"]) == []
    assert describe_shifts([]) == []
