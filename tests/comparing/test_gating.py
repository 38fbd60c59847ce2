"""The checks of a gate: every way each can end, with numbers by hand."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from typing import Any, Literal

import numpy as np
import pytest
from gate_histories import compare_values, make_comparison
from scipy import stats
from warehouse_runs import make_run

from evalhouse.tasks.comparing.changes import Part
from evalhouse.tasks.comparing.gate_checks import (
    MIN_TREND_GROUPS,
    TREND_ALPHA,
    Check,
    Cost,
    Latency,
    Limits,
    Nights,
    Score,
    check_all,
    check_cost,
    check_coverage,
    check_drops,
    check_falls_since,
    check_latency,
    check_mean,
    check_trends,
    count_outcomes,
    is_passed,
)
from evalhouse.tasks.comparing.paired import Scored, Shares, decide
from evalhouse.tasks.comparing.runs import MetricComparison


def make_score(mean: float | None, low: float | None, high: float | None, *, n: int = 50, of: int = 60) -> Score:
    """A metric with `n` scored samples `of` all."""
    return Score(mean=mean, ci_low=low, ci_high=high, n_scored=n, n_samples=of, n_applicable=of)


def check_drop(comparison: MetricComparison, limit: float) -> Check:
    (check,) = check_drops({comparison.metric: limit}, {comparison.metric: comparison})
    return check


def lay_nights(metric: str, values: np.ndarray[Any, Any]) -> Nights:
    """Nights × samples, none of which differs in anything else."""
    runs = tuple(make_run(str(night), minute=night * 1440) for night in range(len(values)))
    clusters = np.arange(values.shape[1])
    return Nights(metric=metric, runs=runs, values=values, clusters=clusters, unlike=(None,) * len(runs))


@pytest.mark.parametrize(
    ("kind", "limit", "outcome", "beyond"),
    [
        ("min", 0.6, "passed", -0.1),
        ("min", 0.7, "undecided", 0.0),
        ("min", 0.8, "undecided", 0.1),  # the interval's end is still in the limit
        ("min", 0.81, "failed", 0.11),
        ("max", 0.8, "passed", -0.1),
        ("max", 0.6, "undecided", 0.1),
        ("max", 0.59, "failed", 0.11),
    ],
)
def test_a_mean_is_decided_by_where_its_interval_lies(
    kind: Literal["min", "max"], limit: float, outcome: str, beyond: float
) -> None:
    check = check_mean(kind, "factual_f1", limit, make_score(0.7, 0.6, 0.8))
    assert check.outcome == outcome
    assert check.beyond == pytest.approx(beyond)
    assert (check.reason is None) == (outcome == "passed")
    assert (check.value, check.ci_low, check.ci_high, check.n) == (0.7, 0.6, 0.8, 50)


@pytest.mark.parametrize("kind", ["min", "max"])
def test_a_mean_without_scores_fails_and_without_interval_is_undecided(kind: Literal["min", "max"]) -> None:
    check = check_mean(kind, "factual_f1", 0.5, make_score(None, None, None, n=0))
    assert (check.outcome, check.reason, check.value, check.beyond) == ("failed", "nothing_scored", None, None)
    for n_scored in (1, 9):
        check = check_mean(kind, "answer_length", 90, make_score(100.0, None, None, n=n_scored))
        assert (check.outcome, check.reason) == ("undecided", "too_few_samples")


@pytest.mark.parametrize(("n", "applies", "outcome", "reason"), [
    (5, 5, "undecided", "too_few_samples"),
    (6, 6, "failed", "beyond_limit"),
    (0, 0, "undecided", "too_few_samples"),
    (0, 3, "failed", "nothing_scored"),
])  # fmt: skip
def test_an_estimate_from_few_picks_decides_no_limit(n: int, applies: int, outcome: str, reason: str) -> None:
    """A night that by chance picked one unanswerable question, or none, failed for certain."""
    ends = (0.0, 0.0, 0.035) if n else (None, None, None)
    score = replace(make_score(*ends, n=n), n_applicable=applies)
    estimate = check_mean("min", "refusal_rate", 0.5, replace(score, is_estimate=True))
    assert (estimate.outcome, estimate.reason) == (outcome, reason)
    assert check_mean("min", "refusal_rate", 0.5, score).outcome == "failed"


WHOLE = Scored(n=80, share=1.0, size=70.0)
LESS = Scored(n=48, share=0.6, size=70.0, reason="no_answer")


@pytest.mark.parametrize(("base", "candidate", "outcome", "reason"), [
    (WHOLE, WHOLE, "failed", "beyond_limit"),
    (WHOLE, replace(WHOLE, n=5), "undecided", "too_few_samples"),
    (replace(WHOLE, n=5), WHOLE, "undecided", "too_few_samples"),
    (WHOLE, LESS, "undecided", "scores_lost"),
    (LESS, WHOLE, "undecided", "scores_gained"),
    (LESS, replace(LESS, share=0.57), "failed", "beyond_limit"),
    (WHOLE, replace(LESS, share=0.79), "failed", "beyond_limit"),
    (replace(LESS, share=0.79), WHOLE, "failed", "beyond_limit"),
])  # fmt: skip
def test_an_estimate_decides_where_both_nights_scored_as_much(
    base: Scored, candidate: Scored, outcome: str, reason: str
) -> None:
    """A bot that refused what it had answered wrongly was better, and one answer failed the trend of 1,000 samples; but
    a tenth of new refusals cannot make a fall of 0.4."""
    row = {"base": 0.9, "candidate": 0.5, "variance": 1e-4, "spread": 0.0, "is_paired": False, "unforeseen": 0.0}
    shares = Shares(base=base, candidate=candidate)
    great = make_comparison(-0.4, -0.42, -0.38, counts={"n_clusters": 3})
    paired = decide(great.paired, row, better="high", scale=1.0, shares=shares)
    assert (paired.verdict, paired.p is None) == (("worse", False) if outcome == "failed" else ("undecided", True))
    comparison = replace(great, paired=paired, is_estimate=True, shares=shares)
    (trend,) = check_falls_since({"factual_f1": 0.05}, {"factual_f1": comparison}, make_run("first"))
    drop = check_drop(comparison, 0.05)
    assert [(check.outcome, check.reason) for check in (drop, trend)] == [(outcome, reason)] * 2


def test_one_missing_score_among_few_common_samples_is_no_loss() -> None:
    """It kept the baseline where it was for as many nights as it went so."""
    shares = Shares(base=WHOLE, candidate=replace(LESS, n=79, share=0.988))
    comparison = replace(make_comparison(0.0, -0.01, 0.01), is_estimate=True, shares=shares, lost={"no_answer": 1})
    comparison = replace(comparison, paired=replace(comparison.paired, n=3), sizes=(100, 100, 100))
    assert (comparison.is_partly_lost, comparison.is_partly_missing, comparison.has_many_gained) == (False,) * 3
    assert check_drop(comparison, 0.05).outcome == "passed"
    assert check_drop(replace(comparison, sizes=(100, 100, 30)), 0.05).reason == "few_common"


def test_where_the_picks_have_none_of_a_metric_its_drop_is_undecided() -> None:
    none = make_comparison(None, None, None, p=None, counts={"n": 0, "n_clusters": 0, "n_candidate": 0})
    check = check_drop(replace(none, is_unpicked=True), 0.02)
    assert (check.outcome, check.detail) == ("undecided", "none of the picked samples has this metric")
    assert check_drop(none, 0.02).outcome == "failed"


@pytest.mark.parametrize(("n_refused", "outcome"), [(8, "passed"), (7, "failed")])
def test_a_slice_of_which_all_is_rightly_refused_has_no_drop(n_refused: int, outcome: str) -> None:
    """The gate failed by the slice of unanswerable questions when the bot learned to refuse them."""
    none = make_comparison(None, None, None, p=None, counts={"n": 0, "n_clusters": 0, "n_base": 8, "n_candidate": 0})
    assert check_drop(replace(none, n_refused=n_refused), 0.02).outcome == outcome


def test_an_undecided_mean_names_the_groups_that_count() -> None:
    score = replace(make_score(0.7, 0.5, 0.8), cluster="document_id", n_clusters=10)
    check = check_mean("min", "factual_f1", 0.6, score)
    assert (check.outcome, check.n) == ("undecided", 50)
    assert check.detail == "the limit is inside the interval of 50 samples in 10 groups by document_id"


@pytest.mark.parametrize(
    ("difference", "low", "high", "limit", "outcome", "reason"),
    [
        (-0.01, -0.02, 0.0, 0.02, "passed", None),  # a drop of 0 to 0.02
        (0.10, 0.05, 0.15, 0.0, "passed", None),
        (-0.01, -0.03, 0.01, 0.02, "undecided", "not_beyond_chance"),
        (-0.03, -0.05, -0.01, 0.02, "undecided", "interval_holds_limit"),
        (-0.05, -0.07, -0.03, 0.02, "failed", "beyond_limit"),
    ],
)
def test_a_drop_is_decided_by_the_paired_interval(
    *, difference: float, low: float, high: float, limit: float, outcome: str, reason: str | None
) -> None:
    check = check_drop(make_comparison(difference, low, high), limit)
    assert (check.outcome, check.reason) == (outcome, reason)
    assert (check.value, check.ci_low, check.ci_high) == pytest.approx((-difference, -high, -low))
    assert check.beyond == pytest.approx(-difference - limit)
    assert check.n == 50


@pytest.mark.parametrize(
    ("difference", "low", "high", "floor", "outcome", "message"),
    [
        (-0.05, -0.07, -0.03, 0.0499, "failed", "whole interval is beyond the limit, p 0.001"),
        (-0.05, -0.07, -0.03, 0.05, "failed", "p 0.001; the judge's noise alone may make changes of up to 0.050"),
        (-0.01, -0.03, 0.01, 0.02, "undecided", "the judge's noise alone may make changes of up to 0.020"),
        (-0.03, -0.05, -0.01, 0.02, "undecided", "the limit is inside the interval of 50 samples"),
        (-0.01, -0.02, 0.0, 0.05, "passed", "keeps the limit"),  # with the noise that is in it
    ],
)
def test_the_judges_noise_is_shown_but_does_not_affect_the_gate(
    *, difference: float, low: float, high: float, floor: float, outcome: str, message: str
) -> None:
    check = check_drop(make_comparison(difference, low, high, floor=floor), 0.02)
    assert (check.outcome, check.noise_floor) == (outcome, floor)
    assert check.detail.endswith(message)
    without = check_drop(make_comparison(difference, low, high), 0.02)
    assert (without.outcome, without.reason, without.noise_floor) == (outcome, check.reason, None)


def test_of_a_metric_of_faults_a_rise_is_the_drop() -> None:
    check = check_drop(make_comparison(0.05, 0.03, 0.07, metric="hallucination"), 0.02)
    assert (check.outcome, check.value, check.ci_low, check.ci_high) == ("failed", 0.05, 0.03, 0.07)
    assert check_drop(make_comparison(-0.05, -0.07, -0.03, metric="hallucination"), 0.02).outcome == "passed"


def test_no_drop_is_0_and_not_minus_0() -> None:
    check = check_drop(make_comparison(0.0, -0.01, 0.01, p=1.0, counts={"n_higher": 0, "n_lower": 0}), 0.02)
    assert (check.outcome, str(check.value)) == ("passed", "0.0")


@pytest.mark.parametrize(("n", "outcome"), [(20, "undecided"), (180, "undecided"), (200, "passed")])
def test_samples_that_did_not_move_pass_where_they_are_enough_to_exclude_a_drop(n: int, outcome: str) -> None:
    (comparison,) = compare_values({"factual_f1": np.zeros(n)}).values()
    check = check_drop(comparison, 0.02)
    assert (check.outcome, check.value) == (outcome, 0.0)
    if outcome == "undecided":
        assert check.reason == "too_few_samples"
        assert check.detail == f"no sample has another score, but {n} cannot exclude a drop of {check.ci_high:.3f}"
    assert check.ci_high == pytest.approx(stats.binomtest(0, n).proportion_ci(method="exact").high)


def test_a_drop_that_may_be_chance_or_has_no_interval_is_undecided() -> None:
    check = check_drop(make_comparison(-0.05, -0.07, -0.03, p=0.051), 0.02)
    assert (check.outcome, check.reason) == ("undecided", "not_beyond_chance")
    check = check_drop(make_comparison(-0.1, None, None, counts={"n_clusters": 1}), 0.02)
    assert (check.outcome, check.reason, check.ci_low) == ("undecided", "too_few_samples", None)


def test_a_count_that_is_one_number_in_both_runs_has_not_dropped() -> None:
    """Its drop could never pass: the interval was from NaN to NaN."""
    check = check_drop(make_comparison(0.0, None, None, p=1.0, counts={"n_higher": 0, "n_lower": 0}), 0.5)
    assert (check.outcome, check.value, check.ci_low) == ("passed", 0.0, None)
    assert check.detail == "all 50 samples have the same score in both runs, beyond 0 to 1"
    (trend,) = check_trends({"words": 0.5}, {"words": lay_nights("words", np.full((2, 12), 5.0))})
    assert (trend.outcome, trend.value, trend.ci_low) == ("passed", 0.0, None)
    assert trend.detail.startswith("no fall beyond chance: ")


@pytest.mark.parametrize(("further", "outcome", "reason"), [
    ({"n_candidate": 0}, "failed", "nothing_scored"),
    ({"n_base": 0}, "undecided", "nothing_common"),
    ({}, "undecided", "few_common"),
    ({"n_base": 0, "n_candidate": 0}, "undecided", "nothing_common"),
])  # fmt: skip
def test_a_drop_without_a_common_sample(further: dict[str, int], outcome: str, reason: str) -> None:
    none = {"n": 0, "n_clusters": 0, "n_higher": 0, "n_lower": 0}
    check = check_drop(make_comparison(None, None, None, p=None, counts=none | further), 0.02)
    assert (check.outcome, check.reason, check.value, check.beyond) == (outcome, reason, None, None)


def test_a_metric_that_neither_run_tried_is_undecided() -> None:
    (check,) = check_drops({"mrr": 0.02}, {})
    assert (check.metric, check.outcome, check.reason) == ("mrr", "undecided", "nothing_common")


@pytest.mark.parametrize("high", [-0.3, 0.3])
def test_fewer_than_six_independent_samples_tell_nothing(high: float) -> None:
    five = make_comparison(high, high - 0.1, high + 0.1, counts={"n_clusters": 5})
    assert (check_drop(five, 0.02).outcome, check_drop(five, 0.02).reason) == ("undecided", "too_few_samples")
    six = make_comparison(high, high - 0.1, high + 0.1, counts={"n_clusters": 6})
    assert check_drop(six, 0.02).outcome == ("failed" if high < 0 else "passed")


def test_too_few_groups_by_a_column_name_it_and_the_way_out() -> None:
    way = 'to be significant; `cluster = "none"` in [gate], or `--cluster none`, counts each sample for itself'
    drop = check_drop(replace(make_comparison(-0.8, -0.9, -0.7, counts={"n_clusters": 5}), cluster="document_id"), 0.02)
    assert (drop.outcome, drop.reason) == ("undecided", "too_few_samples")
    assert drop.detail == f"5 groups by document_id; a drop takes at least 6 {way}"
    for n_groups, outcome in ((9, "undecided"), (10, "failed")):
        nights = lay_nights("mrr", np.repeat([[1.0], [0.0]], 40, axis=1))
        nights = replace(nights, clusters=np.arange(40) % n_groups)
        (trend,) = check_trends({"mrr": 0.02}, {"mrr": nights}, cluster="document_id")
        assert trend.outcome == outcome
        if outcome == "undecided":
            assert trend.reason == "too_few_samples"
            assert trend.detail == f"9 groups by document_id; a trend takes at least 10 {way}"


def test_ten_groups_are_the_fewest_that_a_trend_can_find_a_fall_with() -> None:
    assert 2 / 2**MIN_TREND_GROUPS <= TREND_ALPHA < 2 / 2 ** (MIN_TREND_GROUPS - 1)


@pytest.mark.parametrize(("name", "reason", "message"), [
    ("judge", "other_judge", "in 7 of 50"),
    ("answer+judge", "other_judge", "in 7 of 50"),
    ("formula", "other_formula", "in 7 of 50"),
    ("answer+contexts", "beyond_limit", "beyond the limit"),
    ("noise", "beyond_limit", "beyond the limit"),
])  # fmt: skip
def test_another_yardstick_leaves_even_a_great_drop_undecided(name: str, reason: str, message: str) -> None:
    parts = (Part(name="answer", n=43, n_moved=43, value=-0.4), Part(name=name, n=7, n_moved=0, value=0.0))
    check = check_drop(make_comparison(-0.5, -0.6, -0.4, parts=parts), 0.02)
    assert (check.outcome, check.reason) == ("failed" if reason == "beyond_limit" else "undecided", reason)
    assert message in check.detail


@pytest.mark.parametrize(("n_scored", "n_samples", "outcome", "beyond"), [
    (9, 10, "passed", 0.0),
    (8, 10, "failed", 0.1),
    (0, 10, "failed", 0.9),
    (0, 0, "failed", 0.9),
])  # fmt: skip
def test_coverage_is_a_count_and_always_decided(n_scored: int, n_samples: int, outcome: str, beyond: float) -> None:
    check = check_coverage("mrr", 0.9, make_score(0.5, 0.4, 0.6, n=n_scored, of=n_samples))
    assert (check.outcome, check.n) == (outcome, n_samples)
    assert check.beyond == pytest.approx(beyond)


def test_coverage_counts_only_samples_that_the_metric_applies_to() -> None:
    score = replace(make_score(0.5, 0.4, 0.6, n=9, of=60), n_applicable=10)
    check = check_coverage("refusal_rate", 0.9, score)
    assert (check.outcome, check.value, check.n) == ("passed", 0.9, 10)
    assert check.detail == "9 of 10 samples are scored; the metric applies to no more of the 60"
    for limit in (0.0, 0.9):
        assert check_coverage("refusal_rate", limit, replace(score, n_scored=0, n_applicable=0)).outcome == "failed"


@pytest.mark.parametrize(("cost", "outcome", "reason"), [
    (Cost(usd=2.0), "passed", None),
    (Cost(usd=2.01), "failed", "beyond_limit"),
    (Cost(usd=2.01, n_unpriced=3), "failed", "beyond_limit"),
    (Cost(usd=1.0, n_unpriced=3), "undecided", "unknown_price"),
    (Cost(usd=1.0, n_estimated=3), "passed", None),
])  # fmt: skip
def test_cost_is_decided_where_prices_are_known(cost: Cost, outcome: str, reason: str | None) -> None:
    check = check_cost(2.0, cost)
    assert (check.outcome, check.reason, check.metric) == (outcome, reason, None)
    known = reason != "unknown_price"
    assert check.value == (cost.usd if known else None)
    assert check.beyond == (pytest.approx(cost.usd - 2.0) if known else None)
    if cost.n_unpriced or cost.n_estimated:
        assert "3 calls" in check.detail


@pytest.mark.parametrize(("latency", "outcome", "reason", "detail"), [
    (Latency(p95_ms=100.0, n=40), "passed", None, "at least 95 % of 40 responses took no longer"),
    (Latency(p95_ms=100.5, n=40), "failed", "beyond_limit", "more than 5 % of 40 responses took longer"),
    (Latency(n_failed=7), "undecided", "nothing_asked", "none of the 7 questions that were asked was answered"),
    (Latency(n_reused=7), "undecided", "nothing_asked", "all 7 responses are from an earlier run"),
    (Latency(), "undecided", "nothing_asked", "its dataset brings the answers"),
])  # fmt: skip
def test_latency_is_decided_where_something_was_asked(
    latency: Latency, outcome: str, reason: str | None, detail: str
) -> None:
    check = check_latency(100.0, latency)
    assert (check.outcome, check.reason, check.metric, check.n) == (outcome, reason, None, latency.n)
    assert (check.value, check.beyond) == (latency.p95_ms, latency.p95_ms and latency.p95_ms - 100.0)
    assert detail in check.detail


def test_all_checks_come_in_one_order_and_make_one_outcome() -> None:
    scores = {"factual_f1": make_score(0.7, 0.6, 0.8), "hallucination": make_score(0.2, 0.1, 0.3)}
    limits = Limits(
        minimums={"factual_f1": 0.5}, maximums={"hallucination": 0.2}, drops={"factual_f1": 0.02},
        coverages={"factual_f1": 0.9}, cost_usd=1.0, latency_p95_ms=100.0,
    )  # fmt: skip
    comparisons = {"factual_f1": make_comparison(0.0, -0.01, 0.01)}
    own = {"cost": Cost(usd=0.5), "latency": Latency(p95_ms=90.0, n=40)}
    checks = check_all(limits, scores=scores, comparisons=comparisons, **own)
    assert [(check.kind, check.outcome) for check in checks] == [
        ("min", "passed"),
        ("max", "undecided"),
        ("max_drop", "passed"),
        ("min_coverage", "failed"),
        ("max_cost", "passed"),
        ("max_latency_p95_ms", "passed"),
    ]
    assert count_outcomes(checks) == {"failed": 1, "undecided": 1, "passed": 4}
    assert not is_passed(checks, undecided="pass")
    open_ones = [check for check in checks if check.outcome != "failed"]
    assert is_passed(open_ones, undecided="pass")
    assert not is_passed(open_ones, undecided="fail")
    assert is_passed([check for check in checks if check.outcome == "passed"], undecided="fail")


N_RUNS = 200


def test_where_nothing_changed_few_gates_fail() -> None:
    """Ten drops of at most 0 over 60 samples whose verdicts flip either way at random: by chance alone some metric of
    ten goes beyond its interval in a quarter of the runs; of the gates at most 5 % may fail (and 3 standard errors)."""
    generator, n_runs = np.random.default_rng(20), 60
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


def test_few_samples_with_rare_flips_pass_no_drop_that_they_cannot_exclude() -> None:
    """8 % lost and 4 % gained are a drop of 0.04, beyond a limit of 0.02: by a bootstrap a fifth of runs of 20 pass,
    as most show no flip or one. 2 % lost are just the limit, and two thirds of those runs show nothing at all."""
    generator = np.random.default_rng(24)
    for odds in ([0.08, 0.88, 0.04], [0.02, 0.98, 0.0]):
        outcomes = [
            check_drops(
                {"factual_f1": 0.02},
                compare_values({"factual_f1": generator.choice([-1.0, 0.0, 1.0], size=20, p=odds)}),
            )[0].outcome
            for _ in range(N_RUNS)
        ]
        assert outcomes.count("passed") / N_RUNS <= 0.02
        assert outcomes.count("failed") / N_RUNS <= 0.1
