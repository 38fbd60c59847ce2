"""What preferences between two answers come to, and how far the place in which an answer stood decided them.

Each sample was asked about twice, with either answer in front. An order gives its answers one point between them, half
of one for a tie, and a sample counts by the mean of both: 1 and 0 where both name the same answer; 0.75 and 0.25 where
one of them says tie, for half of what was said is for that answer and half for neither; 0.5 where both say tie, and
where they contradict each other, for then the place has decided and not the answer. So whatever a judge has for the
first place counts as much for either answer, and the win rate is free of it.

What it has for the first place is measured by the same verdicts: the points of the answer in front are 0.5 in the mean
for a judge that does not look at places, whichever answers are better.

Intervals are those of means of values from 0 to 1 (`intervals`). The sign test counts the groups of samples in which
one side is ahead: were both alike, either would be as often, and p is exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, fsum, lgamma, log
from typing import Any, Final, Literal

import numpy as np

from evalhouse.tasks.comparing.intervals import ALPHA, TIE, Floats, Integers, Measure, find_mean_interval, sum_groups

Rows = Sequence[Mapping[str, Any]]
Verdict = Literal["candidate", "base", "undecided"]
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
    def verdict(self) -> Verdict:
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
