"""Summaries of preferences: both orders together, intervals and the test, by judges whose bias and taste are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import open_rows, read
from scipy import stats

from evalhouse.tasks.comparing.paired import PreferenceSummary, find_sign_p, number_groups, summarise_preferences

VERDICTS = ("first", "second", "tie")
# With the base's answer in front, and with the candidate's: whose it is, its points, what both orders come to.
ORDERS = {
    ("first", "second"): ("base", 0.0, "agree"),
    ("second", "first"): ("candidate", 1.0, "agree"),
    ("tie", "tie"): ("tie", 0.5, "agree"),
    ("first", "first"): ("tie", 0.5, "contradict"),
    ("second", "second"): ("tie", 0.5, "contradict"),
    ("tie", "first"): ("candidate", 0.75, "half"),
    ("second", "tie"): ("candidate", 0.75, "half"),
    ("tie", "second"): ("base", 0.25, "half"),
    ("first", "tie"): ("base", 0.25, "half"),
}


def read_samples(frame: pl.DataFrame) -> list[dict[str, object]]:
    """The rows of `sample_preferences` that rows of `preferences` come to."""
    with open_rows() as con:
        con.register("laid", frame)
        con.execute("insert into preferences by name from laid")
        return read(con, "from sample_preferences order by run_id, sample_id")


def lay(verdicts: dict[str, tuple[str, ...]], *, called: bool = True) -> pl.DataFrame:
    return pl.DataFrame(
        [
            {"run_id": "r", "sample_id": name, "shown_first": side, "verdict": verdict, "reason": f"{side}: {verdict}",
             "cluster": None, "call_id": f"{name}/{side}" if called else None}
            for name, both in verdicts.items()
            for side, verdict in zip(("base", "candidate"), both, strict=False)
        ],
        schema_overrides={"cluster": pl.String, "call_id": pl.String},
    )  # fmt: skip


@pytest.mark.parametrize("both", ORDERS)
def test_what_both_orders_come_to(both: tuple[str, str]) -> None:
    (row,) = read_samples(lay({"s": both}))
    assert (row["winner"], row["points"], row["orders"]) == ORDERS[both]
    assert row["first_place"] == np.mean([{"first": 1, "second": 0, "tie": 0.5}[verdict] for verdict in both])
    assert (row["base_first"], row["candidate_first"]) == both
    assert (row["base_first_call_id"], row["candidate_first_call_id"]) == ("s/base", "s/candidate")
    assert row["base_first_reason"] == f"base: {both[0]}"


def test_a_sample_without_one_of_its_orders_has_no_points() -> None:
    (row,) = read_samples(lay({"s": ("first",)}))
    assert (row["points"], row["winner"], row["orders"], row["first_place"]) == (None, None, None, None)
    assert summarise_preferences([row]).n == 0


def test_answers_that_are_the_same_are_ties_that_say_nothing_of_places() -> None:
    (row,) = read_samples(lay({"s": ("tie", "tie")}, called=False))
    assert (row["points"], row["winner"], row["is_identical"], row["orders"]) == (0.5, "tie", True, None)
    summary = summarise_preferences([row])
    assert (summary.n, summary.n_identical, summary.ties, summary.position.n) == (1, 1, 1, 0)
    assert summary.position.first_place.value is None


def test_counts_of_a_handful() -> None:
    verdicts = {f"s{place}": both for place, both in enumerate(ORDERS)}
    summary = summarise_preferences(read_samples(lay(verdicts)))
    assert (summary.n, summary.wins, summary.ties, summary.losses) == (9, 3, 3, 3)
    assert (summary.half_wins, summary.half_losses, summary.n_contradicted) == (2, 2, 2)
    assert summary.win_rate.value == 0.5
    assert (summary.sign_test.n_candidate, summary.sign_test.n_base, summary.sign_test.p) == (3, 3, 1.0)
    assert summary.position.agreement.value == pytest.approx(3 / 9)
    assert summary.position.order_decided.value == pytest.approx(2 / 9)
    assert summary.verdict == "undecided"
    nothing = summarise_preferences([])
    assert (nothing.n, nothing.win_rate.value, nothing.sign_test.p, nothing.verdict) == (0, None, 1.0, "undecided")


def test_samples_of_a_group_count_as_one() -> None:
    rows = [
        {"sample_id": f"s{n}", "cluster": f"talk-{n // 10}" if n < 30 else None, "points": 1.0, "orders": "agree",
         "first_place": 0.5}
        for n in range(34)
    ]  # fmt: skip
    assert len(set(number_groups(rows))) == 7
    grouped, alone = summarise_preferences(rows), summarise_preferences([row | {"cluster": None} for row in rows])
    assert (grouped.n_clusters, grouped.sign_test.n_candidate) == (7, 7)
    assert grouped.sign_test.p == pytest.approx(2 * 0.5**7)
    assert alone.sign_test.p < grouped.sign_test.p
    low, alone_low = grouped.win_rate.ci_low, alone.win_rate.ci_low
    assert low is not None
    assert alone_low is not None
    assert low < alone_low


def test_a_cluster_may_be_called_as_a_sample_is() -> None:
    rows = [{"sample_id": "a", "cluster": None}, {"sample_id": "b", "cluster": "a"}]
    assert len(set(number_groups(rows))) == 2


@given(st.integers(0, 400), st.integers(0, 400))
def test_the_sign_test_is_exact(n_one: int, n_other: int) -> None:
    expected = stats.binomtest(n_one, n_one + n_other).pvalue if n_one + n_other else 1.0
    assert find_sign_p(n_one, n_other) == pytest.approx(expected, rel=1e-9)
    assert find_sign_p(n_one, n_other) == find_sign_p(n_other, n_one)


# A simulated judge


@dataclass(frozen=True, kw_only=True)
class Taste:
    """The rates of better answers by candidate, base or neither; how often the judge sees it; and how often it
    answers `first` without looking."""

    candidate: float
    base: float
    sees: float
    bias: float

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...], n_of_group: int) -> pl.DataFrame:
        """Runs × samples; samples of a group have one better answer between them."""
        runs, samples = shape
        better = rng.choice(["candidate", "base", "tie"], p=self._shares, size=(runs, samples // n_of_group))
        better = np.repeat(better, n_of_group, axis=1)
        frames = []
        for side in ("base", "candidate"):
            seen = np.where(better == "tie", "tie", np.where(better == side, "first", "second"))
            written = np.where(rng.random(shape) < self.sees, seen, rng.choice(VERDICTS, size=shape))
            written = np.where(rng.random(shape) < self.bias, "first", written)
            run, sample = np.indices(shape).reshape(2, -1)
            frames.append(
                pl.DataFrame(
                    {"run_id": [f"{n:04d}" for n in run], "sample_id": [f"{n:04d}" for n in sample],
                     "shown_first": side, "verdict": written.ravel(), "call_id": "c",
                     "cluster": [f"{n // n_of_group}" for n in sample] if n_of_group > 1 else None},
                    schema_overrides={"cluster": pl.String},
                )
            )  # fmt: skip
        return pl.concat(frames)

    @property
    def _shares(self) -> list[float]:
        return [self.candidate, self.base, max(0.0, 1 - self.candidate - self.base)]

    @property
    def win_rate(self) -> float:
        """The mean points of the candidate: bias and guesses favour neither side."""
        return 0.5 + (1 - self.bias) * self.sees * (self.candidate - self.base) / 2

    @property
    def first_place(self) -> float:
        return 0.5 + self.bias / 2


RUNS = 300
TASTES = {
    "clear": Taste(candidate=0.7, base=0.15, sees=0.9, bias=0.3),
    "sharp": Taste(candidate=0.9, base=0.1, sees=1.0, bias=0.0),
    "noisy": Taste(candidate=0.3, base=0.5, sees=0.3, bias=0.6),
}


def simulate(taste: Taste, *, samples: int, n_of_group: int = 1) -> list[PreferenceSummary]:
    rng = np.random.default_rng(20)
    rows = read_samples(taste.draw(rng, (RUNS, samples), n_of_group))
    of_runs: dict[object, list[dict[str, Any]]] = {}
    for row in rows:
        of_runs.setdefault(row["run_id"], []).append(row)
    return [summarise_preferences(of_run) for of_run in of_runs.values()]


@pytest.mark.parametrize(("name", "n_of_group"), [("clear", 1), ("sharp", 1), ("noisy", 3)])
def test_taste_and_bias_fall_inside_their_intervals(name: str, n_of_group: int) -> None:
    taste = TASTES[name]
    summaries = simulate(taste, samples=60, n_of_group=n_of_group)
    for truth, measures in (
        (taste.win_rate, [summary.win_rate for summary in summaries]),
        (taste.first_place, [summary.position.first_place for summary in summaries]),
    ):
        found = [
            measure.ci_low - 1e-9 <= truth <= measure.ci_high + 1e-9
            for measure in measures
            if measure.ci_low is not None and measure.ci_high is not None
        ]
        assert len(found) == RUNS
        # Of 300 draws with a chance of 0.95 each, 276 or fewer come once in a hundred.
        assert np.mean(found) > 276 / 300
        assert np.mean([measure.value for measure in measures if measure.value is not None]) == pytest.approx(
            truth, abs=0.02
        )


@pytest.mark.parametrize("n_of_group", [1, 3])
def test_a_judge_of_no_taste_is_called_decided_once_in_twenty(n_of_group: int) -> None:
    """However much it leans to the first place."""
    fair = Taste(candidate=0.3, base=0.3, sees=0.6, bias=0.4)
    summaries = simulate(fair, samples=60, n_of_group=n_of_group)
    assert np.mean([summary.verdict != "undecided" for summary in summaries]) <= 0.08
    assert all(summary.position.leans_to == "first" for summary in summaries)
