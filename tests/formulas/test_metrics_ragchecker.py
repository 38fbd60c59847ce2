"""The two published records of RAGChecker (examples/checking_outputs.json, Apache-2.0), as verdict matrices alone.

Their figures are ours where the definitions agree. Three differ on purpose:

- their recall is the share of ground-truth claims found in the answer, our statement_recall; our factual_recall is
  TP / (TP + FN) with TP counted among the answer's statements;
- their F1 is the harmonic mean of precision and that recall; ours is TP / (TP + 0.5 (FP + FN));
- their context_precision is the share of retrieved contexts that support any ground-truth claim: our
  precision_retrieved with k = all, when those contexts are called useful; our context_precision also weighs the ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from rows import Sample, add_samples, open_rows, read, value_of

Bits = Sequence[int]


@dataclass(frozen=True, kw_only=True)
class Record:
    """One record: which claims are entailed by the other text, and which context entails which claim."""

    answer_claims: Bits
    ground_truth_claims: Bits
    contexts_by_answer_claim: Sequence[Bits]
    contexts_by_ground_truth_claim: Sequence[Bits]
    published: dict[str, float]
    our_recall: float
    our_f1: float


FLAG = Record(
    answer_claims=[0, 1, 1, 1, 1],
    ground_truth_claims=[1, 1, 0, 1, 0, 1, 1, 1],
    contexts_by_answer_claim=[[0, 1, 0], [0, 1, 1], [0, 1, 1], [1, 0, 1], [0, 1, 1]],
    contexts_by_ground_truth_claim=[
        [0, 1, 0],
        [0, 1, 1],
        [0, 1, 0],
        [0, 1, 1],
        [0, 0, 1],
        [1, 0, 1],
        [1, 1, 1],
        [0, 1, 1],
    ],
    published={
        "precision": 0.8,
        "recall": 0.75,
        "f1": 0.7741935483870969,
        "claim_recall": 1.0,
        "context_precision": 1.0,
        "context_utilization": 0.75,
        "noise_sensitivity_in_relevant": 0.2,
        "noise_sensitivity_in_irrelevant": 0.0,
        "hallucination": 0.0,
        "self_knowledge": 0.0,
        "faithfulness": 1.0,
    },
    our_recall=4 / (4 + 2),
    our_f1=4 / (4 + 0.5 * (1 + 2)),
)
NOTHING = [0, 0, 0, 0]
RIVER = Record(
    answer_claims=[0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
    ground_truth_claims=[1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1],
    contexts_by_answer_claim=[
        [0, 1, 0, 0],
        *[NOTHING] * 5,
        [0, 1, 0, 0],
        NOTHING,
        [1, 0, 0, 1],
        [0, 0, 0, 1],
        NOTHING,
    ],
    contexts_by_ground_truth_claim=[
        [0, 1, 0, 0],
        *[NOTHING] * 2,
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [1, 0, 0, 1],
        *[NOTHING] * 15,
        [0, 1, 0, 0],
    ],
    published={
        "precision": 0.7272727272727273,
        "recall": 0.5,
        "f1": 0.5925925925925926,
        "claim_recall": 0.22727272727272727,
        "context_precision": 0.75,
        "context_utilization": 1.0,
        "noise_sensitivity_in_relevant": 0.18181818181818182,
        "noise_sensitivity_in_irrelevant": 0.0,
        "hallucination": 0.09090909090909091,
        "self_knowledge": 0.5454545454545454,
        "faithfulness": 0.36363636363636365,
    },
    our_recall=8 / (8 + 11),
    our_f1=8 / (8 + 0.5 * (3 + 11)),
)
RECORDS = pytest.mark.parametrize("record", [FLAG, RIVER], ids=["flag", "river"])
SAME_NAME_OR_NOT = {
    "precision": "factual_precision",
    "claim_recall": "context_recall",
    "context_utilization": "context_utilization",
    "noise_sensitivity_in_relevant": "noise_sensitivity_relevant",
    "noise_sensitivity_in_irrelevant": "noise_sensitivity_irrelevant",
    "hallucination": "hallucination",
    "self_knowledge": "self_knowledge",
    "faithfulness": "faithfulness",
}


def read_ranks(matrix: Sequence[Bits]) -> list[list[int]]:
    """Ranks of the contexts that support each claim."""
    return [[rank for rank, bit in enumerate(row, start=1) if bit] for row in matrix]


def to_sample(record: Record) -> Sample:
    """The record as our verdicts; a context is useful when it supports a ground-truth claim."""
    return Sample(
        answer=["TP" if bit else "FP" for bit in record.answer_claims],
        ground_truth=["TP" if bit else "FN" for bit in record.ground_truth_claims],
        answer_support=read_ranks(record.contexts_by_answer_claim),
        ground_truth_support=read_ranks(record.contexts_by_ground_truth_claim),
        useful=[any(column) for column in zip(*record.contexts_by_ground_truth_claim, strict=True)],
    )


@RECORDS
@pytest.mark.parametrize(("theirs", "ours"), SAME_NAME_OR_NOT.items())
def test_figures_that_agree(record: Record, theirs: str, ours: str) -> None:
    assert value_of(ours, to_sample(record)) == pytest.approx(record.published[theirs])


@RECORDS
def test_recall_and_f1_differ_on_purpose(record: Record) -> None:
    sample = to_sample(record)
    assert value_of("factual_recall", sample) == pytest.approx(record.our_recall)
    assert value_of("factual_f1", sample) == pytest.approx(record.our_f1)
    assert record.our_recall != pytest.approx(record.published["recall"])
    assert record.our_f1 != pytest.approx(record.published["f1"])


@RECORDS
def test_their_recall_and_f1_follow_from_our_verdicts(record: Record) -> None:
    with open_rows() as con:
        add_samples(con, to_sample(record))
        row = read(
            con, "select avg((label = 'TP')::int) as found from statement_verdicts where source = 'ground_truth'"
        )
    recall = row[0]["found"]
    precision = value_of("factual_precision", to_sample(record))
    assert isinstance(recall, float)
    assert recall == pytest.approx(record.published["recall"])
    assert 2 * precision * recall / (precision + recall) == pytest.approx(record.published["f1"])


@RECORDS
def test_their_recall_is_our_statement_recall(record: Record) -> None:
    assert value_of("statement_recall", to_sample(record)) == pytest.approx(record.published["recall"])


@RECORDS
def test_their_context_precision_is_our_precision_at_all_ranks(record: Record) -> None:
    n_contexts = len(record.contexts_by_ground_truth_claim[0])
    share = value_of("precision_retrieved", to_sample(record), k=n_contexts)
    assert share == pytest.approx(record.published["context_precision"])


def test_our_context_precision_weighs_ranks() -> None:
    assert value_of("context_precision", to_sample(FLAG)) == 1
    assert value_of("context_precision", to_sample(RIVER)) == pytest.approx((1 + 1 + 3 / 4) / 3)


def test_all_eleven_figures_are_spoken_for() -> None:
    assert set(FLAG.published) == set(RIVER.published) == {*SAME_NAME_OR_NOT, "recall", "f1", "context_precision"}
