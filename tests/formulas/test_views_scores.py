"""run_scores, score_history and sample_history: means, intervals that hold what they promise, and changes."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

import duckdb
import pytest
from rows import Row, fill, open_rows, read

REPEATS = 400


def scores_of(values: Sequence[float | None], metric: str = "faithfulness", run_id: str = "r") -> list[Row]:
    """One score per value; None is a missing one."""
    return [
        {
            "run_id": run_id,
            "sample_id": f"s{n}",
            "metric": metric,
            "value": value,
            "unscored_reason": "judge_failed" if value is None else None,
        }
        for n, value in enumerate(values)
    ]


def summarise(values: Sequence[float | None]) -> Row:
    """The row of run_scores for one run and metric with these values."""
    with open_rows() as con:
        fill(con, "scores", *scores_of(values))
        (row,) = read(con, "from run_scores")
    return row


def test_mean_is_over_scored_samples() -> None:
    row = summarise([1.0, 0.5, None, 0.0, None])
    assert (row["mean"], row["n_scored"], row["n_unscored"]) == (0.5, 3, 2)


def test_interval_on_binary_values_is_that_of_agresti_and_coull() -> None:
    """8 of 10: four more trials with two more successes give 10 of 14."""
    row = summarise([1.0] * 8 + [0.0] * 2)
    centre = 10 / 14
    half = 1.96 * math.sqrt(centre * (1 - centre) / 14)
    assert row["ci_low"] == pytest.approx(centre - half)
    assert row["ci_high"] == pytest.approx(centre + half)


def test_interval_on_shares_takes_their_own_variance() -> None:
    values = [0.2, 0.4, 0.6, 0.9]
    padded = [*values, 0, 0, 1, 1]
    centre = sum(padded) / 8
    half = 1.96 * math.sqrt(sum((value - centre) ** 2 for value in padded) / 8 / 8)
    row = summarise(values)
    assert row["ci_low"] == pytest.approx(max(centre - half, 0))
    assert row["ci_high"] == pytest.approx(min(centre + half, 1))


@pytest.mark.parametrize("n", [1, 3, 20, 500])
def test_equal_values_keep_a_width(n: int) -> None:
    perfect, hopeless = summarise([1.0] * n), summarise([0.0] * n)
    assert perfect["mean"] == perfect["ci_high"] == 1
    assert hopeless["mean"] == hopeless["ci_low"] == 0
    assert isinstance(perfect["ci_low"], float)
    assert isinstance(hopeless["ci_high"], float)
    assert 0 < perfect["ci_low"] < 1
    assert perfect["ci_low"] == pytest.approx(1 - hopeless["ci_high"])


def test_nothing_scored_has_no_mean_and_no_interval() -> None:
    row = summarise([None, None])
    assert (row["mean"], row["ci_low"], row["ci_high"]) == (None, None, None)
    assert (row["n_scored"], row["n_unscored"]) == (0, 2)


def test_metric_on_another_scale_has_no_interval() -> None:
    row = summarise([3.0, 4.0])
    assert (row["mean"], row["ci_low"], row["ci_high"]) == (3.5, None, None)


def test_mean_lies_within_the_interval() -> None:
    rng = random.Random(7)
    runs = [[rng.random() ** rng.choice([0, 0.1, 1, 9]) for _ in range(rng.randint(1, 30))] for _ in range(200)]
    with open_rows() as con:
        fill(con, "scores", *(row for n, run in enumerate(runs) for row in scores_of(run, run_id=f"r{n}")))
        rows = read(con, "from run_scores")
    assert len(rows) == 200
    assert all(row["ci_low"] <= row["mean"] <= row["ci_high"] for row in rows)  # type: ignore[operator]


@pytest.mark.parametrize(("n", "at_least"), [(5, 0.90), (15, 0.93), (60, 0.94)])
def test_interval_on_binary_values_covers_the_true_mean(n: int, at_least: float) -> None:
    """Exactly, by the binomial distribution: for every true mean from 0.01 to 0.99, and 95 % on average over them.

    The plain normal interval falls to 0.05, 0.14 and 0.45 at these n.
    """
    with open_rows() as con:
        runs = (scores_of([1.0] * hits + [0.0] * (n - hits), run_id=f"{hits:02}") for hits in range(n + 1))
        fill(con, "scores", *(row for run in runs for row in run))
        bounds = con.sql("select ci_low, ci_high from run_scores order by run_id").fetchall()
    means = [percent / 100 for percent in range(1, 100)]
    coverages = [
        sum(
            math.comb(n, hits) * mean**hits * (1 - mean) ** (n - hits)
            for hits, (low, high) in enumerate(bounds)
            if low <= mean <= high
        )
        for mean in means
    ]
    assert min(coverages) >= at_least
    assert sum(coverages) / len(coverages) >= 0.95


@dataclass(frozen=True, kw_only=True)
class Draws:
    """A distribution of scores and its mean."""

    mean: float
    draw: Callable[[random.Random], float]


SHARES = {
    "of four": Draws(mean=0.7, draw=lambda rng: sum(rng.random() < 0.7 for _ in range(4)) / 4),
    "skewed": Draws(mean=5 / 6, draw=lambda rng: rng.random() ** 0.2),
    "all or half": Draws(mean=0.9, draw=lambda rng: 1.0 if rng.random() < 0.8 else 0.5),
}


@pytest.mark.parametrize("shares", SHARES)
@pytest.mark.parametrize("n", [5, 15, 60])
def test_interval_on_shares_covers_the_true_mean(shares: str, n: int) -> None:
    """95 % is promised: of 400 simulated runs at least 92 % must hold it."""
    rng = random.Random(1998)
    runs = [[SHARES[shares].draw(rng) for _ in range(n)] for _ in range(REPEATS)]
    with open_rows() as con:
        fill(con, "scores", *(row for number, run in enumerate(runs) for row in scores_of(run, run_id=f"r{number}")))
        covering = read(con, f"from run_scores where {SHARES[shares].mean} between ci_low and ci_high")
    assert len(covering) >= 0.92 * REPEATS


def add_run(
    con: duckdb.DuckDBPyConnection, run_id: str, day: int, values: Sequence[float | None], **run: object
) -> None:
    """One run on that day of January with scores for one metric."""
    fill(con, "runs", {"run_id": run_id, "started_at": datetime(2025, 1, day), **run})
    fill(con, "scores", *scores_of(values, run_id=run_id))
    for n in range(len(values)):
        sample = {"sample_id": f"s{n}", "input_hash": f"h{n}"}
        fill(con, "run_samples", {"run_id": run_id, **sample})


def test_history_runs_within_its_suite() -> None:
    with open_rows() as con:
        add_run(con, "third", 3, [1.0, 0.5], suite="nightly", dataset="d2")
        add_run(con, "first", 1, [0.5, 0.5], suite="nightly", dataset="d1")
        add_run(con, "second", 2, [None, None], suite="nightly", dataset="d1")
        add_run(con, "fourth", 4, [0.25, 0.25], suite="nightly", dataset="d1")
        add_run(con, "by hand", 2, [0.1, 0.1], dataset="d1")
        add_run(con, "by hand again", 4, [0.4, 0.4], dataset="d1")
        rows = read(con, "select run_id, previous_run_id, change from score_history")
    assert [(row["run_id"], row["previous_run_id"]) for row in rows] == [
        ("by hand", None),
        ("by hand again", "by hand"),
        ("first", None),
        ("second", "first"),
        ("third", "second"),
        ("fourth", "third"),
    ]
    assert [row["change"] for row in rows] == [None, pytest.approx(0.3), None, None, None, -0.5]


def test_history_says_when_the_yardstick_changed() -> None:
    with open_rows() as con:
        add_run(con, "a", 1, [0.5], suite="nightly", judge="small", embeddings=None)
        add_run(con, "b", 2, [0.6], suite="nightly", judge="small", embeddings=None)
        add_run(con, "c", 3, [0.7], suite="nightly", judge="large", embeddings=None)
        add_run(con, "d", 4, [0.8], suite="nightly", judge="large", embeddings=None)
        con.execute("update scores set metric_version = '2' where run_id = 'd'")
        rows = read(con, "select run_id, same_yardstick from score_history")
    assert [row["same_yardstick"] for row in rows] == [None, True, False, False]


def test_sample_history() -> None:
    with open_rows() as con:
        add_run(con, "a", 1, [0.5, 1.0], suite="nightly")
        add_run(con, "b", 2, [0.75, 1.0], suite="nightly")
        add_run(con, "c", 3, [None, 1.0], suite="nightly")
        add_run(con, "elsewhere", 2, [0.0, 0.0], dataset="d")
        con.execute("update run_samples set input_hash = 'new' where run_id = 'b' and sample_id = 's0'")
        fill(con, "samples", {"sample_id": "s0", "input_hash": "h0", "answer": "Then."},
             {"sample_id": "s0", "input_hash": "new", "answer": "Now."})  # fmt: skip
        rows = read(con, "from sample_history where sample_id = 's0' and series = 'suite nightly'")
    shown = ("run_id", "value", "previous_run_id", "change", "input_changed", "answer", "unscored_reason")
    assert [tuple(row[name] for name in shown) for row in rows] == [
        ("a", 0.5, None, None, None, "Then.", None),
        ("b", 0.75, "a", 0.25, True, "Now.", None),
        ("c", None, "b", None, True, "Then.", "judge_failed"),
    ]
