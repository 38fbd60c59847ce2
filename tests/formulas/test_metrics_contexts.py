"""Metrics that join statements with the contexts that support them, and context_precision, by rows."""

from dataclasses import replace

import pytest
from rows import Sample, Together, add_samples, open_rows, read, reason_of, value_of

# Context 1 supports the ground truth, so it is relevant; context 2 supports nothing of it, so it is noise.
MIXED = Sample(
    answer=["TP", "TP", "FP", "FP", "FP", "FP"],
    ground_truth=["TP", "FN", "TP", "FN"],
    answer_support=[[1], [], [1, 2], [2], [], [2]],
    ground_truth_support=[[1], [1], [], []],
)


def test_support_joined_with_labels() -> None:
    assert value_of("faithfulness", MIXED) == pytest.approx(4 / 6)
    assert value_of("context_recall", MIXED) == 2 / 4
    assert value_of("context_utilization", MIXED) == 1 / 2
    assert value_of("noise_sensitivity_relevant", MIXED) == pytest.approx(1 / 6)
    assert value_of("noise_sensitivity_irrelevant", MIXED) == pytest.approx(2 / 6)
    assert value_of("hallucination", MIXED) == pytest.approx(1 / 6)
    assert value_of("self_knowledge", MIXED) == pytest.approx(1 / 6)


# Contexts 1 and 2 support G1 only together, contexts 3 and 4 the wrong A2, and contexts 2 and 5 the wrong A3.
JOINED = Sample(
    answer=["TP", "FP", "FP", "FP"],
    ground_truth=["TP", "FN"],
    answer_support=[Together((1, 2)), Together((3, 4)), Together((2, 5)), []],
    ground_truth_support=[Together((1, 2)), []],
)


def test_what_contexts_support_only_together_is_supported() -> None:
    assert value_of("faithfulness", JOINED) == 3 / 4
    assert value_of("context_recall", JOINED) == 1 / 2
    assert value_of("context_utilization", JOINED) == 1
    assert value_of("noise_sensitivity_relevant", JOINED) == 1 / 4
    assert value_of("noise_sensitivity_irrelevant", JOINED) == 1 / 4
    assert value_of("hallucination", JOINED) == 1 / 4
    assert value_of("self_knowledge", JOINED) == 0


def test_which_contexts_support_a_statement_and_how_is_in_the_view() -> None:
    with open_rows() as con:
        add_samples(con, replace(JOINED, ground_truth_support=[[1], [2, 3]]))
        rows = read(con, "from statement_verdicts order by statement_id")
    assert [(row["context_ranks"], row["joint_ranks"], row["support_ranks"]) for row in rows] == [
        ([], [1, 2], [1, 2]), ([], [3, 4], [3, 4]), ([], [2, 5], [2, 5]), ([], [], []),
        ([1], [], [1]), ([2, 3], [], [2, 3]),
    ]  # fmt: skip


def test_verdicts_from_before_support_together_was_asked_for_count_as_they_did() -> None:
    with open_rows() as con:
        add_samples(con, MIXED)
        con.execute("update attributions set joint_ranks = null")
        (counts,) = read(con, "from sample_statement_counts")
    assert (counts["n_fp_relevant"], counts["n_fp_irrelevant"], counts["n_fp_unsupported"]) == (1, 2, 1)


def test_shares_of_the_answer_add_up() -> None:
    """Every answer statement is right and supported, right by itself, wrong by noise, or made up."""
    wrong = sum(
        value_of(metric, MIXED)
        for metric in ("noise_sensitivity_relevant", "noise_sensitivity_irrelevant", "hallucination")
    )
    assert wrong == pytest.approx(1 - value_of("factual_precision", MIXED))


def test_a_wrong_statement_with_both_kinds_of_context_counts_once() -> None:
    both = Sample(answer=["FP"], ground_truth=["FN"], answer_support=[[1, 2]], ground_truth_support=[[2]])
    assert value_of("noise_sensitivity_relevant", both) == 1
    assert value_of("noise_sensitivity_irrelevant", both) == 0


def test_no_relevant_context_at_all() -> None:
    lost = Sample(answer=["FP", "TP"], ground_truth=["FN"], answer_support=[[1], []], ground_truth_support=[[]])
    assert value_of("context_recall", lost) == 0
    assert value_of("noise_sensitivity_relevant", lost) == 0
    assert value_of("noise_sensitivity_irrelevant", lost) == 1 / 2
    assert reason_of("context_utilization", lost) == "no_statements"


@pytest.mark.parametrize(
    ("metric", "value"),
    [("faithfulness", 1), ("hallucination", 0), ("self_knowledge", 0), ("noise_sensitivity_relevant", 0)],
)
def test_perfect_answer(metric: str, value: float) -> None:
    perfect = Sample(answer=["TP", "TP"], ground_truth=["TP"], answer_support=[[1], [2]], ground_truth_support=[[1, 2]])
    assert value_of(metric, perfect) == value


def test_answer_without_statements() -> None:
    silent = Sample(
        ground_truth=["FN", "FN"],
        ground_truth_support=[[1], []],
        reasons={"attribute_answer": "no_statements"},
    )
    assert value_of("context_recall", silent) == 1 / 2
    assert value_of("context_utilization", silent) == 0
    for metric in ("faithfulness", "hallucination", "self_knowledge", "noise_sensitivity_relevant"):
        assert reason_of(metric, silent) == "no_statements"


def test_ground_truth_without_statements() -> None:
    untold = Sample(answer=["FP", "FP"], answer_support=[[1], []], reasons={"attribute_ground_truth": "no_statements"})
    assert value_of("faithfulness", untold) == 1 / 2
    assert value_of("hallucination", untold) == 1 / 2
    for metric in (
        "context_recall",
        "context_utilization",
        "noise_sensitivity_relevant",
        "noise_sensitivity_irrelevant",
    ):
        assert reason_of(metric, untold) == "no_statements"


def test_faithfulness_needs_no_ground_truth() -> None:
    unlabelled = {"classify": "no_ground_truth", "attribute_ground_truth": "no_ground_truth", "rank": "no_ground_truth"}
    sample = Sample(answer=["FP", "FP"], answer_support=[[1], []], reasons=unlabelled)
    assert value_of("faithfulness", sample) == 1 / 2
    assert reason_of("hallucination", sample) == "no_ground_truth"
    assert reason_of("context_recall", sample) == "no_ground_truth"


@pytest.mark.parametrize(
    ("useful", "expected"),
    [
        ([False, True], 0.5),  # published: useful only at rank 2 of 2
        ([True, False], 1),
        ([True, True, True], 1),
        ([False, False, False], 0),
        ([True, False, True], (1 + 2 / 3) / 2),
        ([False, False, False, True], 1 / 4),
        ([False, True, True, False, True], (1 / 2 + 2 / 3 + 3 / 5) / 3),
    ],
)
def test_context_precision(useful: list[bool], expected: float) -> None:
    assert value_of("context_precision", Sample(useful=useful)) == pytest.approx(expected)


def test_a_retrieval_that_found_nothing_is_zero_and_an_unknown_one_is_missing() -> None:
    assert value_of("context_precision", Sample(contexts=[])) == 0
    assert reason_of("context_precision", Sample()) == "no_contexts"
    assert reason_of("context_precision", Sample(reasons={"rank": "no_contexts"})) == "no_contexts"


def test_context_precision_asks_for_verdicts_even_with_reference_ids() -> None:
    sample = Sample(context_ids=["a"], reference_ids=["a"], reasons={"rank": "no_ground_truth"})
    assert reason_of("context_precision", sample) == "no_ground_truth"
