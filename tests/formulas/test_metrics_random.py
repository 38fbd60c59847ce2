"""The SQL against a second computation of every metric, in plain Python over sets, for random verdicts."""

import math
import random
from collections.abc import Callable, Sequence

import pytest
from rows import Sample, Score, Together, add_samples, open_rows, read_metrics, score

N_SAMPLES = 400
PRECEDENCE = ["no_ground_truth", "no_answer", "no_contexts", "no_reference_ids", "target_failed", "judge_failed",
              "embedding_failed", "budget_exhausted", "cancelled", "no_statements"]  # fmt: skip


def make_sample(number: int, rng: random.Random) -> Sample:
    """Any verdicts a run can leave, with a failed or missing step now and then."""
    n_answer, n_ground_truth, n_contexts = rng.randint(0, 6), rng.randint(0, 6), rng.randint(0, 8)

    def choose_ranks() -> Sequence[int]:
        ranks = [rank for rank in range(1, n_contexts + 1) if rng.random() < rng.choice([0, 0.2, 0.6])]
        return Together(ranks) if len(ranks) > 1 and rng.random() < 0.3 else ranks

    ids = [rng.choice(["a", "b", "c", "d", "e", "f", None]) for _ in range(n_contexts)]
    sample_reasons = {
        step: rng.choice(PRECEDENCE)
        for step in ("classify", "attribute_answer", "attribute_ground_truth", "rank", "similarity")
        if rng.random() < 0.06
    }
    if n_answer + n_ground_truth == 0:
        sample_reasons["classify"] = "no_statements"
    if n_answer == 0:
        sample_reasons["attribute_answer"] = "no_statements"
    if n_ground_truth == 0:
        sample_reasons["attribute_ground_truth"] = "no_statements"
    return Sample(
        sample_id=f"s{number}",
        answer=[rng.choice(["TP", "FP"]) if n_ground_truth else "FP" for _ in range(n_answer)],
        ground_truth=[rng.choice(["TP", "FN"]) if n_answer else "FN" for _ in range(n_ground_truth)],
        answer_support=[choose_ranks() for _ in range(n_answer)],
        ground_truth_support=[choose_ranks() for _ in range(n_ground_truth)],
        useful=[rng.random() < 0.4 for _ in range(n_contexts)],
        similarity=rng.random(),
        contexts=[rng.choice(["Passage.", f"Passage {rank}."]) for rank in range(1, n_contexts + 1)],
        context_ids=rng.choice([ids, ids, None]),
        reference_ids=rng.choice([None, None, [], ["a", "c", "c"], ["e"], ["z", "b", "d"]]),
        reasons=sample_reasons,
        missing=[step for step in ("classify", "rank", "similarity") if rng.random() < 0.03],
    )


class Missing(Exception):
    """The reference's way to say that a score is missing, with the reason."""


def demand(sample: Sample, *steps: str) -> None:
    """Raise the reason that comes first among these steps."""
    reasons = ["cancelled" if step in sample.missing else sample.reasons.get(step) for step in steps]
    given = [reason for reason in reasons if reason is not None]
    if given:
        raise Missing(min(given, key=PRECEDENCE.index))


def share(part: int, whole: int) -> float:
    """part / whole, where the whole is not empty."""
    if whole == 0:
        raise Missing("no_statements")
    return part / whole


def precision(s: Sample) -> float:
    demand(s, "classify")
    return share(sum(label == "TP" for label in s.answer), len(s.answer))


def recall(s: Sample) -> float:
    demand(s, "classify")
    if not s.ground_truth:
        raise Missing("no_statements")
    tp, fn = list(s.answer).count("TP"), list(s.ground_truth).count("FN")
    return tp / (tp + fn) if tp else 0


def f1(s: Sample) -> float:
    demand(s, "classify")
    tp, fp, fn = list(s.answer).count("TP"), list(s.answer).count("FP"), list(s.ground_truth).count("FN")
    return tp / (tp + 0.5 * (fp + fn)) if tp else 0


def similarity(s: Sample) -> float:
    demand(s, "similarity")
    assert s.similarity is not None
    return s.similarity


def correctness(s: Sample) -> float:
    demand(s, "classify", "similarity")
    return 0.75 * f1(s) + 0.25 * similarity(s)


def context_recall(s: Sample) -> float:
    demand(s, "attribute_ground_truth")
    return share(sum(map(bool, s.ground_truth_support)), len(s.ground_truth_support))


def faithfulness(s: Sample) -> float:
    demand(s, "attribute_answer")
    return share(sum(map(bool, s.answer_support)), len(s.answer_support))


def context_precision(s: Sample) -> float:
    gains = rank_useful(s)
    at = [sum(gains[:rank]) / rank for rank, gain in enumerate(gains, start=1) if gain]
    return sum(at) / len(at) if at else 0


def utilization(s: Sample) -> float:
    demand(s, "classify", "attribute_ground_truth")
    offered = [label for label, ranks in zip(s.ground_truth, s.ground_truth_support, strict=True) if ranks]
    return share(offered.count("TP"), len(offered))


def find_wrong(s: Sample) -> list[set[int]]:
    """The contexts behind each wrong statement of the answer."""
    return [set(ranks) for label, ranks in zip(s.answer, s.answer_support, strict=True) if label == "FP"]


def find_relevant(s: Sample) -> set[int]:
    return {rank for ranks in s.ground_truth_support for rank in ranks}


def noise_relevant(s: Sample) -> float:
    demand(s, "classify", "attribute_answer", "attribute_ground_truth")
    return share(sum(bool(ranks & find_relevant(s)) for ranks in find_wrong(s)), len(s.answer))


def noise_irrelevant(s: Sample) -> float:
    demand(s, "classify", "attribute_answer", "attribute_ground_truth")
    return share(sum(bool(ranks) and not ranks & find_relevant(s) for ranks in find_wrong(s)), len(s.answer))


def hallucination(s: Sample) -> float:
    demand(s, "classify", "attribute_answer")
    return share(sum(not ranks for ranks in find_wrong(s)), len(s.answer))


def self_knowledge(s: Sample) -> float:
    demand(s, "classify", "attribute_answer")
    alone = [label == "TP" and not ranks for label, ranks in zip(s.answer, s.answer_support, strict=True)]
    return share(sum(alone), len(s.answer))


def rank_ids(s: Sample) -> list[int]:
    """The retrieved contexts by reference ids."""
    if not s.reference_ids:
        raise Missing("no_reference_ids")
    if not s.context_ids and s.contexts:
        raise Missing("no_contexts")
    return leave_repeats([context_id in set(s.reference_ids) for context_id in s.context_ids or []], s.context_ids)


def rank_useful(s: Sample) -> list[int]:
    """The retrieved contexts by verdicts."""
    demand(s, "rank")
    return leave_repeats(list(s.useful), s.contexts)


def leave_repeats(relevant: list[bool], keys: Sequence[str | None] | None) -> list[int]:
    named = list(keys or [])
    return [
        int(is_relevant and named[place] is not None and named[place] not in named[:place])
        for place, is_relevant in enumerate(relevant)
    ]


def top_share(gains: list[int]) -> float:
    return sum(gains[:5]) / min(len(gains), 5) if gains else 0


def hit(gains: list[int]) -> float:
    return float(any(gains[:5]))


def reciprocal_rank(gains: list[int]) -> float:
    return 1 / (gains.index(1) + 1) if 1 in gains else 0


def ndcg(gains: list[int], n_relevant: int) -> float:
    def discount(values: list[int]) -> float:
        return sum(value / math.log2(place + 2) for place, value in enumerate(values))

    return discount(gains[:5]) / discount([1] * min(n_relevant, 5)) if n_relevant else 0


def answer_rate(s: Sample) -> float:
    is_split = "extract_ground_truth" not in s.missing and "extract_ground_truth" not in s.reasons
    if s.reasons.get("classify") != "no_ground_truth" and is_split and not s.ground_truth:
        raise Missing("no_statements")
    demand(s, "classify")
    if not s.ground_truth:
        raise Missing("no_statements")
    return float(bool(s.answer))


def refusal_rate(s: Sample) -> float:
    if s.ground_truth:
        raise Missing("no_statements")
    if "classify" not in s.missing and s.reasons.get("classify") == "no_statements" and not s.answer:
        return 1
    demand(s, "classify")
    return 0


def statement_recall(s: Sample) -> float:
    demand(s, "classify")
    return share(list(s.ground_truth).count("TP"), len(s.ground_truth))


REFERENCE: dict[str, Callable[[Sample], float]] = {
    "factual_precision": precision,
    "factual_recall": recall,
    "factual_f1": f1,
    "semantic_similarity": similarity,
    "answer_correctness": correctness,
    "context_recall": context_recall,
    "context_precision": context_precision,
    "faithfulness": faithfulness,
    "context_utilization": utilization,
    "noise_sensitivity_relevant": noise_relevant,
    "noise_sensitivity_irrelevant": noise_irrelevant,
    "hallucination": hallucination,
    "self_knowledge": self_knowledge,
    "statement_recall": statement_recall,
    "answer_rate": answer_rate,
    "refusal_rate": refusal_rate,
    "precision_at_k": lambda s: top_share(rank_ids(s)),
    "recall_at_k": lambda s: sum(rank_ids(s)[:5]) / len(set(s.reference_ids or [])),
    "hit_at_k": lambda s: hit(rank_ids(s)),
    "mrr": lambda s: reciprocal_rank(rank_ids(s)),
    "ndcg_at_k": lambda s: ndcg(rank_ids(s), len(set(s.reference_ids or []))),
    "precision_retrieved": lambda s: top_share(rank_useful(s)),
    "hit_retrieved": lambda s: hit(rank_useful(s)),
    "mrr_retrieved": lambda s: reciprocal_rank(rank_useful(s)),
    "ndcg_retrieved": lambda s: ndcg(rank_useful(s), sum(rank_useful(s))),
}


def compute(metric: str, sample: Sample) -> Score:
    """The reference's score."""
    try:
        return Score(value=REFERENCE[metric](sample), unscored_reason=None)
    except Missing as missing:
        return Score(value=None, unscored_reason=str(missing))


def test_every_metric_has_a_reference() -> None:
    """Only metrics that pass on the number of a judge or a library have none."""
    passed_on = {
        "answer_relevancy",
        "surface_similarity",
        "bleu",
        "rouge_l",
        "chrf",
        "exact_match",
        "token_f1",
        "tool_call_accuracy",
        "result_set_match",
        # Shares of labels, tested in tests/steps/test_turns.py.
        "turn_consistency",
        "context_retention",
        # Theirs is ALCE's definition, in tests/steps/test_citations.py.
        "citation_recall",
        "citation_precision",
        "citation_validity",
    }
    rated = {name for name, file in read_metrics().items() if any(need.startswith("grade_") for need in file.needs)}
    assert set(REFERENCE) == set(read_metrics()) - passed_on - rated


def test_sql_agrees_with_the_reference() -> None:
    """Score random samples, beside the samples of another run."""
    rng = random.Random(20250101)
    samples = [make_sample(number, rng) for number in range(N_SAMPLES)]
    with open_rows() as con:
        add_samples(con, *(make_sample(number, rng) for number in range(50)), run_id="another")
        add_samples(con, *samples)
        scores = {metric: score(con, metric) for metric in REFERENCE}
    for metric, found in scores.items():
        expected = {sample.sample_id: compute(metric, sample) for sample in samples}
        assert {key: row.unscored_reason for key, row in found.items()} == {
            key: row.unscored_reason for key, row in expected.items()
        }, metric
        assert {key: row.value for key, row in found.items() if row.value is not None} == pytest.approx(
            {key: row.value for key, row in expected.items() if row.value is not None}
        ), metric
        assert 50 < sum(row.value is not None for row in found.values()) < N_SAMPLES, metric
