"""Ranking by reference ids (precision_at_k, recall_at_k, hit_at_k, mrr, ndcg_at_k), and its cousins by the judge."""

from dataclasses import replace
from math import log2

import duckdb
import pytest
from rows import Sample, add_samples, fill, open_rows, reason_of, score, score_sample, score_together, value_of

BY_ID = ("precision_at_k", "recall_at_k", "hit_at_k", "mrr", "ndcg_at_k")
BY_JUDGE = ("precision_retrieved", "hit_retrieved", "mrr_retrieved", "ndcg_retrieved", "context_precision")
AT_K = ("precision_at_k", "recall_at_k", "hit_at_k", "ndcg_at_k", "precision_retrieved", "hit_retrieved",
        "ndcg_retrieved")  # fmt: skip
IDS = Sample(
    context_ids=["a", "x", "b", "y", "z", "c"],
    reference_ids=["c", "b", "a", "unfound"],
    useful=[False] * 6,
    reasons={"rank": "judge_failed"},
)
JUDGED = Sample(useful=[False, True, False, True, False, True])


def test_by_reference_ids() -> None:
    assert value_of("precision_at_k", IDS) == 2 / 5
    assert value_of("recall_at_k", IDS) == 2 / 4
    assert value_of("hit_at_k", IDS) == 1
    assert value_of("mrr", IDS) == 1
    ideal = sum(1 / log2(rank + 1) for rank in (1, 2, 3, 4))
    assert value_of("ndcg_at_k", IDS) == pytest.approx((1 + 1 / log2(4)) / ideal)


def test_by_verdicts() -> None:
    assert value_of("precision_retrieved", JUDGED) == 2 / 5
    assert value_of("hit_retrieved", JUDGED) == 1
    assert value_of("mrr_retrieved", JUDGED) == 1 / 2
    ideal = sum(1 / log2(rank + 1) for rank in (1, 2, 3))
    assert value_of("ndcg_retrieved", JUDGED) == pytest.approx((1 / log2(3) + 1 / log2(5)) / ideal)


def test_the_two_are_never_mixed() -> None:
    """A run in which some samples have reference ids has no mean over both."""
    both = replace(IDS, useful=[True] * 6, reasons={})
    assert (value_of("precision_at_k", both), value_of("precision_retrieved", both)) == (2 / 5, 1)
    of_judge = (JUDGED, replace(JUDGED, reference_ids=[]), replace(JUDGED, reference_ids=["a"]))
    for metric in BY_ID:
        reasons = [score.unscored_reason for score in score_together(metric, *of_judge)]
        assert reasons == ["no_reference_ids", "no_reference_ids", "no_contexts"], "none carries an id"
    for metric in BY_JUDGE:
        assert reason_of(metric, IDS) == "judge_failed"


def test_k_is_a_setting() -> None:
    assert value_of("precision_retrieved", JUDGED, k=2) == 1 / 2
    assert value_of("precision_at_k", IDS, k=1) == 1
    assert value_of("recall_at_k", IDS, k=6) == 3 / 4
    assert value_of("hit_retrieved", JUDGED, k=1) == 0
    assert value_of("ndcg_retrieved", JUDGED, k=2) == pytest.approx((1 / log2(3)) / (1 + 1 / log2(3)))


def test_fewer_contexts_than_k() -> None:
    short = Sample(context_ids=["a", "b"], reference_ids=["a", "b"], useful=[True, False])
    assert value_of("precision_at_k", short) == 1
    assert value_of("precision_at_k", short, padded=1) == 2 / 5, "as trec_eval has it"
    assert value_of("precision_retrieved", short) == 1 / 2
    assert value_of("recall_at_k", short) == 1
    assert value_of("ndcg_at_k", short) == pytest.approx(1)


def test_padding_is_on_or_off() -> None:
    with pytest.raises(duckdb.Error, match="padded must be 0 or 1"):
        value_of("precision_at_k", IDS, padded=2)


@pytest.mark.parametrize("metric", [*BY_ID, *BY_JUDGE])
def test_nothing_relevant_is_zero(metric: str) -> None:
    irrelevant = Sample(useful=[False, False], context_ids=["x", "y"], reference_ids=["a"])
    without_ids = Sample(contexts=[], reference_ids=["a"])
    with_ids = Sample(contexts=[], context_ids=[], reference_ids=["a"])
    found = score_together(metric, irrelevant, without_ids, with_ids)
    assert [(score.value, score.unscored_reason) for score in found] == [(0, None)] * 3


def test_ids_alone_say_that_nothing_was_retrieved() -> None:
    sample = Sample(context_ids=[], reference_ids=["a"], missing=["rank"])
    assert [value_of(metric, sample) for metric in BY_ID] == [0] * 5


@pytest.mark.parametrize("metric", ["precision_retrieved", "hit_retrieved", "ndcg_retrieved", "mrr_retrieved"])
def test_best_ranking_is_one(metric: str) -> None:
    assert value_of(metric, Sample(useful=[True])) == 1
    by_id = metric.replace("_retrieved", "" if metric.startswith("mrr") else "_at_k")
    assert value_of(by_id, Sample(context_ids=["a", "b"], reference_ids=["b", "a"])) == pytest.approx(1)


def test_first_relevant_context_beyond_k_counts_for_mrr_alone() -> None:
    late = Sample(useful=[False] * 7 + [True])
    assert value_of("mrr_retrieved", late) == 1 / 8
    assert [value_of(metric, late) for metric in AT_K[4:]] == [0, 0, 0]
    late = Sample(context_ids=[*"tuvwxyz", "a"], reference_ids=["a"])
    assert value_of("mrr", late) == 1 / 8
    assert [value_of(metric, late) for metric in AT_K[:4]] == [0, 0, 0, 0]


def test_repeated_ids_count_once_and_keep_their_rank() -> None:
    repeated = Sample(context_ids=["a", "a", "b", "a"], reference_ids=["a", "b", "b"])
    assert value_of("precision_at_k", repeated, k=4) == 2 / 4
    assert value_of("recall_at_k", repeated) == 1
    assert value_of("recall_at_k", repeated, k=2) == 1 / 2
    expected = (1 + 1 / log2(4)) / (1 + 1 / log2(3))
    assert value_of("ndcg_at_k", repeated) == pytest.approx(expected)


def test_judged_contexts_are_repeats_by_their_text_and_not_by_the_id_of_their_document() -> None:
    pieces = Sample(context_ids=["d"] * 3, contexts=["One.", "Two.", "Three."], useful=[True] * 3)
    assert [value_of(metric, pieces) for metric in BY_JUDGE] == [1] * 5
    repeats = replace(pieces, contexts=["One.", "One.", "Three."])
    assert value_of("precision_retrieved", repeats) == pytest.approx(2 / 3)
    assert value_of("context_precision", repeats) == pytest.approx((1 + 2 / 3) / 2)
    assert value_of("ndcg_retrieved", repeats) == pytest.approx((1 + 1 / log2(4)) / (1 + 1 / log2(3)))


def test_contexts_without_an_id_match_nothing() -> None:
    sample = Sample(context_ids=[None, "a"], reference_ids=["a", None])
    assert value_of("mrr", sample) == 1 / 2
    assert value_of("recall_at_k", sample) == 1


@pytest.mark.parametrize("metric", BY_JUDGE)
def test_reason_of_the_rank_step(metric: str) -> None:
    reasons = ("no_contexts", "no_ground_truth", "no_statements", "judge_failed", "budget_exhausted", "target_failed")
    given = [Sample(contexts=contexts, reasons={"rank": reason}) for contexts in (None, []) for reason in reasons]
    found = score_together(metric, *given)
    assert [(score.value, score.unscored_reason) for score in found] == [(None, reason) for reason in reasons] * 2


@pytest.mark.parametrize("metric", BY_JUDGE)
def test_rank_step_that_left_nothing(metric: str) -> None:
    found = score_together(metric, Sample(missing=["rank"]), Sample())
    assert [(score.value, score.unscored_reason) for score in found] == [(None, "cancelled"), (None, "no_contexts")]


@pytest.mark.parametrize("metric", BY_ID)
def test_ids_wait_for_no_judge_but_for_the_application(metric: str) -> None:
    sample = Sample(context_ids=["a"], reference_ids=["a"], missing=["rank"])
    assert score_sample(metric, sample).unscored_reason is None
    with open_rows() as con:
        add_samples(con, Sample(reference_ids=["a"]), Sample(sample_id="bare"))
        for sample_id in ("s", "bare"):
            fill(con, "responses", {"run_id": "r", "sample_id": sample_id, "status": "failed", "error": "status 500"})
        found = score(con, metric)
    assert (found["s"].unscored_reason, found["bare"].unscored_reason) == ("target_failed", "no_reference_ids")


@pytest.mark.parametrize("metric", AT_K)
@pytest.mark.parametrize("k", [0, -1, 2.5])
def test_k_that_is_no_rank_is_refused(metric: str, k: float) -> None:
    with pytest.raises(duckdb.Error, match="k must be a whole number from 1"):
        value_of(metric, replace(IDS, reasons={}), k=k)
