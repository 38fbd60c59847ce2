"""How many questions it takes to see a drop, by what the scores vary by, and what is best spent on next.

The view `noise_components` tells apart how much of the variance of a run's scores is its questions, its bot and its
judge (the formulas stand in `warehouse/queries/repeats/components.sql`). Two runs are compared question by question, so
that the questions' own part cancels out. What is left in the difference d of one question's scores on two nights is

    var(d) = 2 W / a + t

- W is the variance between answers to one question, the judge's reading of another answer in it; what the two nights
  judged by the very same replies differs by nothing, in W as in d. Where a answers to each question are averaged on
  both nights it is a-th of that.
- t is the variance of the drop itself over the questions. Of a drop of the mean by δ the most that it can be, with
  scores on a scale of width c of which none rises, is δ (c - δ): few questions lose all they can. It is taken to be
  that.

With n questions a drop δ of the mean is found by a two-sided test at 5 % with a given power, by the normal
approximation, where n = (z₀.₉₇₅ + z_power)² var(d) / δ² (Cohen 1988, Statistical Power Analysis for the Behavioral
Sciences, chapter 2). More votes make the judge's part of W smaller; how much depends on how its errors hang together,
so that what is said is the most they can do: W without it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil, sqrt
from statistics import NormalDist
from typing import Any, Final, Literal

POWER: Final = 0.8
"""The chance to see a drop, where nothing else is asked."""
ROUNDS: Final = (1, 2, 4)
"""Repeats of each question of which it is said how many questions they would take."""
_MOST_ROUNDS = 20
_SIGNIFICANCE: Final = NormalDist().inv_cdf(0.975)
# What more votes can save at best, of the questions: from where they are worth their price, and up to where nothing.
_WORTH_VOTES = 0.1
_OF_NO_USE = 0.05

Spending = Literal["nothing", "questions", "votes"]
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Components:
    """What a metric's scores vary by in one run: a row of the view `noise_components`, as far as plans rest on it.

    `answers` is the variance between answers to one question with the ends of its 95 % interval; `judge` the judge's
    part of that, None where it was not measured.
    """

    metric: str
    n_questions: int
    scale: float
    answers: tuple[float, float, float]
    judge: float | None
    judge_share: float | None

    @classmethod
    def from_row(cls, row: Row) -> "Components":
        """The same from the row."""
        judge, variance = row["judge_variance"], row["variance"]
        return cls(
            metric=row["metric"],
            n_questions=row["n_questions"],
            scale=row["scale"],
            answers=(row["answer_variance"], row["answer_low"], row["answer_high"]),
            judge=None if judge is None else min(row["judged_apart"] * judge, row["answer_variance"]),
            judge_share=None if judge is None else min(judge / variance, 1.0) if variance else 0.0,
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What it takes to see a drop of a metric's mean between two runs with a power.

    `n_needed` questions, with the ends that come of the interval of the variance; `n_with_repeats` if each is asked so
    many further times on both nights and all its answers count; `n_without_judge` if the judge never wavered, the most
    that votes can do, None where its noise is not known. `rounds` are the fewest repeats of each of the present
    `n_questions` that would do, None where no number does. `next` is what is best spent on.
    """

    metric: str
    drop: float
    power: float
    n_questions: int
    n_needed: int
    n_needed_low: int
    n_needed_high: int
    n_with_repeats: Mapping[int, int]
    n_without_judge: int | None
    rounds: int | None
    judge_share: float | None
    next: Spending

    def describe(self) -> str:
        """The plan in a sentence."""
        start = f"to see a drop of {self.drop:g} in {self.metric} with {self.power:.0%} power: "
        needed = f"{self.n_needed:,} questions ({self.n_needed_low:,} to {self.n_needed_high:,}"
        if self.next == "nothing":
            return f"{start}{needed}); there are {self.n_questions:,}"
        repeats = f"{self.n_with_repeats[2]:,} with 2 repeats of each"
        if self.rounds is not None and self.rounds != 2:  # what was just said
            repeats += f", or the present ones with {self.rounds}"
        return f"{start}{needed}; there are {self.n_questions:,}); or {repeats}; {self._describe_votes()}"

    def _describe_votes(self) -> str:
        if self.n_without_judge is None:
            return "what more votes would do is not known until the judge's noise is measured"
        share = f"the judge is {self.judge_share or 0:.0%} of the variance"
        if self.next == "votes":
            return f"with more votes {self.n_without_judge:,} at best: {share}"
        if self.n_without_judge > (1 - _OF_NO_USE) * self.n_needed:
            return f"more votes would not help: {share}"
        return f"more votes would hardly help, {self.n_without_judge:,} at best: {share}"


def find_smallest_drop(components: Components, *, power: float = POWER) -> float:
    """The drop of the mean that the present questions show with this power; never more than the scale."""
    z, n, scale = _SIGNIFICANCE + NormalDist().inv_cdf(power), components.n_questions, components.scale
    # n δ² = z² (2 W + δ (c - δ)), solved for δ.
    linear = z**2 * scale
    root = sqrt(linear**2 + 8 * (n + z**2) * z**2 * components.answers[0])
    return min((linear + root) / (2 * (n + z**2)), scale)


def count_questions(
    components: Components, drop: float, *, answers: float, n_answers: int = 1, power: float = POWER
) -> int:
    """How many questions show a drop with this power, with such a variance between answers, of which so many count."""
    z = _SIGNIFICANCE + NormalDist().inv_cdf(power)
    drop = min(drop, components.scale)
    return max(ceil(z**2 * (2 * answers / n_answers + drop * (components.scale - drop)) / drop**2 - 1e-9), 2)


def plan_spending(components: Components, drop: float, *, power: float = POWER) -> Plan:
    """What it takes to see a drop, which is more than 0, with this power."""

    def count(answers: float, n_answers: int = 1) -> int:
        return count_questions(components, drop, answers=answers, n_answers=n_answers, power=power)

    value, low, high = components.answers
    n_needed = count(value)
    without_judge = None if components.judge is None else count(value - components.judge)
    rounds = (rounds for rounds in range(1, _MOST_ROUNDS + 1) if count(value, 1 + rounds) <= components.n_questions)
    spending: Spending = "questions"
    if n_needed <= components.n_questions:
        spending = "nothing"
    elif without_judge is not None and without_judge <= (1 - _WORTH_VOTES) * n_needed:
        spending = "votes"
    return Plan(
        metric=components.metric,
        drop=drop,
        power=power,
        n_questions=components.n_questions,
        n_needed=n_needed,
        n_needed_low=count(low),
        n_needed_high=count(high),
        n_with_repeats={rounds: count(value, 1 + rounds) for rounds in ROUNDS},
        n_without_judge=without_judge,
        rounds=0 if spending == "nothing" else next(rounds, None),
        judge_share=components.judge_share,
        next=spending,
    )


def describe_components(
    rows: Sequence[Row], drops: Mapping[str, float], *, power: float = POWER
) -> list[dict[str, Any]]:
    """The rows of the view with what follows from each: the smallest drop that shows, and the plan of a drop asked for.

    A plan is None for a metric of which no drop is given.
    """
    found = []
    for row in rows:
        components = Components.from_row(row)
        drop = drops.get(components.metric)
        plan = plan_spending(components, drop, power=power) if drop else None
        found.append(
            {
                **row,
                "power": power,
                "smallest_drop": find_smallest_drop(components, power=power),
                "plan": {**asdict(plan), "text": plan.describe()} if plan else None,
            }
        )
    return found
