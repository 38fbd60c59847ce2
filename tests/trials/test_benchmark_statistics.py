"""Figures of agreement and their intervals, against scikit-learn and SciPy and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import balanced_accuracy_score, cohen_kappa_score, f1_score, ndcg_score, roc_auc_score

from evalhouse.tasks.comparing.agreement import Labels, compute_ndcg, weigh_auc, weigh_mean, weigh_spearman
from evalhouse.tasks.comparing.intervals import Estimate, Groups, average


def draw_rows(seed: int, n: int = 200) -> tuple[list[bool], list[float]]:
    """People's labels, and scores with ties that agree with them."""
    rng = np.random.default_rng(seed)
    yes = rng.random(n) < 0.4
    scores = np.round(rng.normal(size=n) + yes, 1)
    return yes.tolist(), scores.tolist()


@pytest.mark.parametrize("seed", range(2))
def test_figures_are_those_of_the_libraries(seed: int) -> None:
    yes, scores = draw_rows(seed)
    labelled = [score > 0.5 for score in scores]
    names = ("yes", "no")
    labels = Labels(names=names, first=[names[not one] for one in labelled], second=[names[not one] for one in yes])
    groups = Groups([str(place) for place in range(len(yes))], resamples=10)
    assert groups.measure(labels.agree).value == pytest.approx(np.mean(np.array(labelled) == np.array(yes)))
    assert groups.measure(labels.balance).value == pytest.approx(balanced_accuracy_score(yes, labelled))
    assert groups.measure(labels.kappa).value == pytest.approx(cohen_kappa_score(yes, labelled))
    assert groups.measure(labels.f1).value == pytest.approx(f1_score(yes, labelled))
    assert groups.measure(weigh_auc(scores, yes)).value == pytest.approx(roc_auc_score(yes, scores))
    other = np.random.default_rng(seed + 100).integers(0, 5, len(yes)).tolist()
    assert groups.measure(weigh_spearman(scores, other)).value == pytest.approx(spearmanr(scores, other).statistic)


def test_ndcg_is_that_of_the_library_without_ties() -> None:
    rng = np.random.default_rng(3)
    grades = rng.integers(0, 4, 12).tolist()
    scores = rng.permutation(12).astype(float).tolist()
    assert compute_ndcg(grades, scores) == pytest.approx(ndcg_score([grades], [scores]))


def test_ndcg_keeps_the_order_of_equal_scores_and_needs_something_useful() -> None:
    assert compute_ndcg([1, 0], [0.5, 0.5]) == 1
    assert compute_ndcg([0, 1], [0.5, 0.5]) == pytest.approx(1 / math.log2(3))
    assert compute_ndcg([0, 0], [0.5, 0.1]) is None


def test_a_draw_weighs_rows_as_often_as_it_has_their_group() -> None:
    """A row that is drawn twice counts as two rows do."""
    yes, scores = draw_rows(1, 40)
    weights = np.random.default_rng(0).integers(0, 4, 40)
    many_yes, many_scores = np.repeat(yes, weights), np.repeat(scores, weights)
    weighed = weigh_auc(scores, yes)(weights[None, :].astype(float))[0]
    assert weighed == pytest.approx(roc_auc_score(many_yes, many_scores))
    second = list(range(40))
    rho = weigh_spearman(scores, second)(weights[None, :].astype(float))[0]
    assert rho == pytest.approx(spearmanr(many_scores, np.repeat(second, weights)).statistic)
    assert weigh_mean(scores)(weights[None, :].astype(float))[0] == pytest.approx(np.mean(many_scores))


def test_many_rows_are_drawn_in_blocks_and_one_seed_draws_the_same() -> None:
    yes, scores = draw_rows(2, 5000)
    names = [str(row) for row in range(5000)]
    one, again = (Groups(names, seed=4).measure(weigh_auc(scores, yes)) for _ in range(2))
    assert len(one.draws) == 2000
    assert np.array_equal(one.draws, again.draws)
    assert not np.array_equal(one.draws, Groups(names, seed=5).measure(weigh_auc(scores, yes)).draws)


def test_what_the_rows_leave_open_has_no_interval_or_no_value() -> None:
    groups = Groups(["a", "b", "c"], resamples=50)
    one_sided = groups.measure(weigh_auc([0.1, 0.2, 0.3], [True, True, True])).measure
    assert (one_sided.value, one_sided.ci_low) == (None, None)
    alone = Groups(["a", "a", "a"]).measure(weigh_mean([0.0, 1.0, 1.0])).measure
    assert alone.value == pytest.approx(2 / 3)
    assert (alone.ci_low, alone.ci_high) == (None, None)
    nothing = Groups([]).measure(weigh_mean([])).measure
    assert nothing.value is None


def test_a_perfect_share_is_bounded_below() -> None:
    groups = Groups([str(row) for row in range(20)], resamples=50)
    perfect = groups.measure(weigh_mean([1.0] * 20), is_share=True).measure
    assert (perfect.value, perfect.ci_high) == (1, 1)
    assert perfect.ci_low == pytest.approx(0.025 ** (1 / 20))


def test_a_mean_over_sets_counts_each_the_same_and_is_surer_than_one() -> None:
    rng = np.random.default_rng(0)
    names = [str(row) for row in range(100)]
    sets = [
        Groups(names, seed=seed).measure(weigh_mean((rng.random(100) < rate).astype(float).tolist()), is_share=True)
        for seed, rate in enumerate((0.5, 0.6, 0.7, 0.8))
    ]
    mean = average(sets)
    assert mean is not None
    assert mean.value == pytest.approx(np.mean([one.value for one in sets]))
    widths = [_width(one) for one in sets]
    assert _width(mean) < 0.7 * min(widths)
    assert average([]) is None


def _width(drawn: Estimate) -> float:
    measure = drawn.measure
    assert measure.ci_low is not None
    assert measure.ci_high is not None
    return measure.ci_high - measure.ci_low
