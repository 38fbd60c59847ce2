"""precision_at_k, recall_at_k, hit_at_k, mrr and ndcg_at_k, by reference ids and by the judge's verdicts."""

from math import log2

import duckdb
import pytest
from rows import Sample, reason_of, score_sample, value_of

RANKING = ("precision_at_k", "recall_at_k", "hit_at_k", "mrr", "ndcg_at_k")
AT_K = tuple(metric for metric in RANKING if metric != "mrr")
BY_IDS = Sample(
    context_ids=["a", "x", "b", "y", "z", "c"],
    reference_ids=["c", "b", "a", "unfound"],
    useful=[False] * 6,  # ids stand above verdicts
    reasons={"rank": "no_ground_truth"},
)
BY_VERDICTS = Sample(useful=[False, True, False, True, False, True])


def test_by_reference_ids() -> None:
    assert value_of("precision_at_k", BY_IDS) == 2 / 5
    assert value_of("recall_at_k", BY_IDS) == 2 / 4
    assert value_of("hit_at_k", BY_IDS) == 1
    assert value_of("mrr", BY_IDS) == 1
    ideal = sum(1 / log2(rank + 1) for rank in (1, 2, 3, 4))
    assert value_of("ndcg_at_k", BY_IDS) == pytest.approx((1 + 1 / log2(4)) / ideal)


def test_by_verdicts() -> None:
    assert value_of("precision_at_k", BY_VERDICTS) == 2 / 5
    assert value_of("recall_at_k", BY_VERDICTS) == pytest.approx(2 / 3)
    assert value_of("hit_at_k", BY_VERDICTS) == 1
    assert value_of("mrr", BY_VERDICTS) == 1 / 2
    ideal = sum(1 / log2(rank + 1) for rank in (1, 2, 3))
    assert value_of("ndcg_at_k", BY_VERDICTS) == pytest.approx((1 / log2(3) + 1 / log2(5)) / ideal)


def test_k_is_a_setting() -> None:
    assert value_of("precision_at_k", BY_VERDICTS, k=2) == 1 / 2
    assert value_of("recall_at_k", BY_VERDICTS, k=6) == 1
    assert value_of("hit_at_k", BY_VERDICTS, k=1) == 0
    assert value_of("ndcg_at_k", BY_VERDICTS, k=2) == pytest.approx((1 / log2(3)) / (1 + 1 / log2(3)))


def test_fewer_contexts_than_k() -> None:
    short = Sample(context_ids=["a", "b"], reference_ids=["a", "b"])
    assert value_of("precision_at_k", short) == 2 / 5
    assert value_of("recall_at_k", short) == 1
    assert value_of("ndcg_at_k", short) == pytest.approx(1)


@pytest.mark.parametrize("metric", RANKING)
@pytest.mark.parametrize(
    "sample",
    [
        Sample(useful=[False, False]),
        Sample(context_ids=["x", "y"], reference_ids=["a"]),
    ],
    ids=["verdicts", "ids"],
)
def test_nothing_relevant_retrieved_is_zero(metric: str, sample: Sample) -> None:
    assert value_of(metric, sample) == 0


@pytest.mark.parametrize("metric", ["recall_at_k", "hit_at_k", "ndcg_at_k", "mrr"])
def test_best_ranking_is_one(metric: str) -> None:
    assert value_of(metric, Sample(useful=[True, True, False])) == pytest.approx(1)
    assert value_of(metric, Sample(context_ids=["a", "b", "x"], reference_ids=["b", "a"])) == pytest.approx(1)


def test_first_relevant_context_beyond_k_counts_for_mrr_alone() -> None:
    late = Sample(useful=[False] * 7 + [True])
    assert value_of("mrr", late) == 1 / 8
    assert [value_of(metric, late) for metric in AT_K] == [0, 0, 0, 0]


def test_repeated_ids_count_once_and_keep_their_rank() -> None:
    repeated = Sample(context_ids=["a", "a", "b", "a"], reference_ids=["a", "b", "b"])
    assert value_of("precision_at_k", repeated, k=4) == 2 / 4
    assert value_of("recall_at_k", repeated) == 1
    assert value_of("recall_at_k", repeated, k=2) == 1 / 2
    expected = (1 + 1 / log2(4)) / (1 + 1 / log2(3))
    assert value_of("ndcg_at_k", repeated) == pytest.approx(expected)


def test_repeated_ids_count_once_by_verdicts_too() -> None:
    repeated = Sample(context_ids=["a", "a", None, None], useful=[True, True, True, True])
    assert value_of("precision_at_k", repeated, k=4) == 3 / 4
    assert value_of("recall_at_k", repeated, k=3) == pytest.approx(2 / 3)


def test_contexts_without_an_id_match_nothing() -> None:
    sample = Sample(context_ids=[None, "a"], reference_ids=["a", None])
    assert value_of("mrr", sample) == 1 / 2
    assert value_of("recall_at_k", sample) == 1


@pytest.mark.parametrize("metric", RANKING)
def test_neither_ids_nor_ground_truth(metric: str) -> None:
    assert reason_of(metric, Sample(reasons={"rank": "no_ground_truth"})) == "no_reference_ids"
    assert reason_of(metric, Sample(reference_ids=[], reasons={"rank": "no_ground_truth"})) == "no_reference_ids"


@pytest.mark.parametrize("metric", RANKING)
@pytest.mark.parametrize("reason", ["no_contexts", "judge_failed", "budget_exhausted", "target_failed", "cancelled"])
def test_reason_of_the_rank_step(metric: str, reason: str) -> None:
    assert reason_of(metric, Sample(reasons={"rank": reason})) == reason
    assert reason_of(metric, Sample(reference_ids=["a"], reasons={"rank": reason})) == reason


@pytest.mark.parametrize("metric", RANKING)
def test_rank_step_that_left_nothing(metric: str) -> None:
    assert reason_of(metric, Sample(missing=["rank"])) == "cancelled"
    assert reason_of(metric, Sample()) == "no_contexts"


@pytest.mark.parametrize("metric", RANKING)
def test_reference_ids_with_nothing_to_compare(metric: str) -> None:
    assert reason_of(metric, Sample(reference_ids=["a"], missing=["rank"])) == "no_contexts"
    assert reason_of(metric, Sample(reference_ids=["a"], reasons={"rank": "no_ground_truth"})) == "no_contexts"


@pytest.mark.parametrize("metric", RANKING)
@pytest.mark.parametrize("sample", [
    Sample(contexts=[]),
    Sample(contexts=[], reference_ids=["a"], missing=["rank"]),
    Sample(contexts=[], context_ids=[], reference_ids=["a"], reasons={"rank": "no_ground_truth"}),
    Sample(context_ids=[], reference_ids=["a"], missing=["rank"]),
])  # fmt: skip
def test_a_retrieval_that_found_nothing_is_zero(metric: str, sample: Sample) -> None:
    assert value_of(metric, sample) == 0


def test_contexts_without_ids_fall_back_on_verdicts() -> None:
    assert value_of("mrr", Sample(reference_ids=["a"], useful=[False, True])) == 1 / 2


@pytest.mark.parametrize("metric", RANKING)
def test_ids_need_no_rank_step(metric: str) -> None:
    sample = Sample(context_ids=["a"], reference_ids=["a"], missing=["rank"])
    assert score_sample(metric, sample).unscored_reason is None


@pytest.mark.parametrize("metric", AT_K)
@pytest.mark.parametrize("k", [0, -1, 2.5])
def test_k_that_is_no_rank_is_refused(metric: str, k: float) -> None:
    with pytest.raises(duckdb.Error, match="k must be a whole number from 1"):
        value_of(metric, BY_IDS, k=k)
