"""How many questions it takes to see a drop: the plans, against simulated comparisons and by what must hold of them."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalhouse.tasks.comparing.noise import (
    POWER,
    Components,
    count_questions,
    describe_components,
    find_smallest_drop,
    plan_spending,
)

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


@given(answers=shares, part=st.floats(min_value=0, max_value=1), drop=drops)
def test_more_of_anything_never_takes_more_questions(answers: float, part: float, drop: float) -> None:
    plan = plan_spending(make_components(answers, judge=part * answers), drop)
    counts = [plan.n_needed, *plan.n_with_repeats.values()]
    assert counts == sorted(counts, reverse=True)
    assert plan.n_without_judge is not None
    assert plan.n_needed_low <= plan.n_needed <= plan.n_needed_high
    assert plan.n_without_judge <= plan.n_needed
    assert plan_spending(make_components(answers), drop, power=0.9).n_needed >= plan.n_needed
    smaller = plan_spending(make_components(answers), drop / 2)
    assert smaller.n_needed >= plan.n_needed


def test_what_is_said_of_more_questions_repeats_and_votes() -> None:
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
