"""The SQL against a second computation of every metric, in plain Python over sets, for random verdicts."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from rows import Sample, Score, add_samples, open_rows, read_metrics, score

N_SAMPLES = 400
PRECEDENCE = ["no_answer", "no_ground_truth", "no_contexts", "no_reference_ids", "target_failed", "judge_failed",
              "embedding_failed", "budget_exhausted", "cancelled", "no_statements"]  # fmt: skip


def make_sample(number: int, rng: random.Random) -> Sample:
    """Any verdicts a run can leave, with a failed or missing step now and then."""
    n_answer, n_ground_truth, n_contexts = rng.randint(0, 6), rng.randint(0, 6), rng.randint(0, 8)

    def choose_ranks() -> list[int]:
        return [rank for rank in range(1, n_contexts + 1) if rng.random() < rng.choice([0, 0.2, 0.6])]

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
        contexts=[f"Passage {rank}." for rank in range(1, n_contexts + 1)],
        context_ids=rng.choice([ids, ids, None]),
        reference_ids=rng.choice([None, None, [], ["a", "c", "c"], ["e"], ["z", "b", "d"]]),
        reasons=sample_reasons,
        missing=[step for step in ("classify", "rank", "similarity") if rng.random() < 0.03],
    )


class Missing(Exception):
    """The reference's way to say that a score is missing, with the reason."""


def demand(sample: Sample, *steps: str) -> None:
    """Raise the most telling reason among these steps."""
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
    demand(s, "rank")
    at = [sum(s.useful[:rank]) / rank for rank, useful in enumerate(s.useful, start=1) if useful]
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


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Gains in rank order and the number of relevant contexts."""

    gains: list[int]
    n_relevant: int


def rank_contexts(s: Sample) -> Ranking:
    """The retrieved contexts by ids where they can be compared, else by verdicts."""
    ids = list(s.context_ids or [])
    by_ids = s.reference_ids and (ids or not s.contexts)
    if s.reference_ids and by_ids:
        wanted = set(s.reference_ids)
        relevant = [context_id is not None and context_id in wanted for context_id in ids]
    elif s.reference_ids and ("rank" in s.missing or s.reasons.get("rank") == "no_ground_truth"):
        raise Missing("no_contexts")
    elif "rank" not in s.missing and s.reasons.get("rank") == "no_ground_truth":
        raise Missing("no_reference_ids")
    else:
        demand(s, "rank")
        relevant = list(s.useful)
    seen: set[str] = set()
    gains = []
    for place, is_relevant in enumerate(relevant):
        context_id = ids[place] if ids else None
        gains.append(int(is_relevant and context_id not in seen))
        if context_id is not None:
            seen.add(context_id)
    n_relevant = len(set(s.reference_ids)) if s.reference_ids and by_ids else sum(gains)
    return Ranking(gains=gains, n_relevant=n_relevant)


def precision_at_5(s: Sample) -> float:
    return sum(rank_contexts(s).gains[:5]) / 5


def recall_at_5(s: Sample) -> float:
    ranking = rank_contexts(s)
    return sum(ranking.gains[:5]) / ranking.n_relevant if ranking.n_relevant else 0


def hit_at_5(s: Sample) -> float:
    return float(any(rank_contexts(s).gains[:5]))


def mrr(s: Sample) -> float:
    gains = rank_contexts(s).gains
    return 1 / (gains.index(1) + 1) if 1 in gains else 0


def ndcg_at_5(s: Sample) -> float:
    ranking = rank_contexts(s)
    ideal = [1] * min(ranking.n_relevant, 5)

    def discount(values: list[int]) -> float:
        return sum(value / math.log2(place + 2) for place, value in enumerate(values))

    return discount(ranking.gains[:5]) / discount(ideal) if ideal else 0


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
    "precision_at_k": precision_at_5,
    "recall_at_k": recall_at_5,
    "hit_at_k": hit_at_5,
    "mrr": mrr,
    "ndcg_at_k": ndcg_at_5,
}


def compute(metric: str, sample: Sample) -> Score:
    """The reference's score."""
    try:
        return Score(value=REFERENCE[metric](sample), unscored_reason=None)
    except Missing as missing:
        return Score(value=None, unscored_reason=str(missing))


def test_every_metric_has_a_reference() -> None:
    """But for those that only pass on what a judge or a library gave."""
    passed_on = {
        "answer_relevancy",
        "surface_similarity",
        "bleu",
        "rouge_l",
        "chrf",
        "exact_match",
        "tool_call_accuracy",
        "result_set_match",
    }
    rated = {name for name, file in read_metrics().items() if any(need.startswith("grade_") for need in file.needs)}
    assert set(REFERENCE) == set(read_metrics()) - passed_on - rated


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Samples and their scores by metric and sample."""

    samples: list[Sample]
    scores: dict[str, dict[str, Score]]


@pytest.fixture(scope="module")
def judged() -> Judged:
    """Random samples and what the SQL makes of them, among those of another run."""
    rng = random.Random(20250101)
    samples = [make_sample(number, rng) for number in range(N_SAMPLES)]
    with open_rows() as con:
        add_samples(con, *(make_sample(number, rng) for number in range(50)), run_id="another")
        add_samples(con, *samples)
        return Judged(samples=samples, scores={metric: score(con, metric) for metric in REFERENCE})


@pytest.mark.parametrize("metric", sorted(REFERENCE))
def test_sql_agrees(metric: str, judged: Judged) -> None:
    expected = {sample.sample_id: compute(metric, sample) for sample in judged.samples}
    found = judged.scores[metric]
    assert {key: row.unscored_reason for key, row in found.items()} == {
        key: row.unscored_reason for key, row in expected.items()
    }
    assert {key: row.value for key, row in found.items() if row.value is not None} == pytest.approx(
        {key: row.value for key, row in expected.items() if row.value is not None}
    )
    assert 50 < sum(row.value is not None for row in found.values()) < N_SAMPLES
