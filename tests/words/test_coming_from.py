"""The guide for users of another evaluator: every `=` in its table is the same number from the same verdicts.

The formulas of the others are written here as their code has them, over verdicts given as rows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from rows import Sample, Together, add_samples, fill, open_rows, score

import evalhouse.flows

GUIDE = Path(evalhouse.flows.__file__).parent / "guides" / "coming_from.md"
N_SAMPLES = 40
# Similarity counts as one of meaning where a model embedded the texts.
RUN = {"run_id": "r", "embeddings": "openai:text-embedding-3-small"}

Formula = Callable[[Sample], float]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the table: who it comes from, the names on both sides, and how alike they are."""

    tool: str
    there: str
    here: str
    mark: str


def read_table() -> Iterator[Row]:
    tool = ""
    for line in GUIDE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) < 4 or cells[0] in ("there", "---"):
            continue
        tool = re.sub(r"\*", "", cells[0]).split()[0]
        there = re.findall(r"`(\w+)`", cells[0]) or [cells[0].removeprefix(tool).strip()]
        here = re.findall(r"`(\w+)`", cells[1])
        pairs = zip(there, here, strict=True) if len(there) == len(here) else [(there[0], name) for name in here]
        for theirs, ours in pairs:
            yield Row(tool=tool, there=theirs, here=ours, mark=cells[2])


# Their formulas


def count(sample: Sample) -> tuple[int, int, int]:
    """TP and FP of the answer's statements, FN of the ground truth's."""
    return list(sample.answer).count("TP"), list(sample.answer).count("FP"), list(sample.ground_truth).count("FN")


def compute_precision(sample: Sample) -> float:
    tp, fp, _ = count(sample)
    return tp / (tp + fp + 1e-10)


def compute_recall(sample: Sample) -> float:
    tp, _, fn = count(sample)
    return tp / (tp + fn + 1e-10)


def compute_f_beta(sample: Sample) -> float:
    """ragas: from precision and recall, each with a little something against division by nothing."""
    precision, recall = compute_precision(sample), compute_recall(sample)
    return 2 * precision * recall / (precision + recall + 1e-10)


def compute_f1(sample: Sample) -> float:
    """Lynxius: from the counts."""
    tp, fp, fn = count(sample)
    return tp / (tp + 0.5 * (fp + fn)) if tp else 0.0


def mix_correctness(sample: Sample) -> float:
    assert sample.similarity is not None
    return (0.75 * compute_f_beta(sample) + 0.25 * sample.similarity) / (0.75 + 0.25)


def clip_similarity(sample: Sample) -> float:
    assert sample.similarity is not None
    return max(0.0, min(1.0, sample.similarity))


def average_precision(sample: Sample) -> float:
    """ragas and Lynxius: precision at each useful rank, over the useful ones."""
    verdicts = [int(useful) for useful in sample.useful]
    numerator = sum(sum(verdicts[: k + 1]) / (k + 1) * verdicts[k] for k in range(len(verdicts)))
    return numerator / (sum(verdicts) + 1e-10)


def weigh_cumulatively(sample: Sample) -> float:
    """deepeval: the same in one walk, and 0 for no verdicts."""
    total, n_relevant = 0.0, 0
    for k, useful in enumerate(sample.useful, start=1):
        if useful:
            n_relevant += 1
            total += n_relevant / k
    return total / n_relevant if n_relevant else 0.0


def find_claims(sample: Sample) -> float:
    """RAGChecker's recall: the share of ground-truth claims that the answer entails."""
    return sum(label == "TP" for label in sample.ground_truth) / len(sample.ground_truth)


def share_of(supports: Sequence[Sequence[int]]) -> float:
    return sum(1 if ranks else 0 for ranks in supports) / len(supports)


def entail(supports: Sequence[Sequence[int]], n_contexts: int) -> list[list[bool]]:
    """Return for each statement and context, separately, if the context entails the statement."""
    return [[rank in ranks for rank in range(1, n_contexts + 1)] for ranks in supports]


def be_sensitive(sample: Sample, *, relevant: bool) -> float:
    """ragas' noise_sensitivity: wrong statements that relevant contexts entail, or irrelevant ones and no relevant."""
    n_contexts = len(sample.useful)
    by_truth = entail(sample.ground_truth_support, n_contexts)
    is_relevant = [any(row[place] for row in by_truth) for place in range(n_contexts)]
    wrong = 0
    for label, row in zip(sample.answer, entail(sample.answer_support, n_contexts), strict=True):
        of_relevant = any(hit and good for hit, good in zip(row, is_relevant, strict=True))
        of_others = any(hit and not good for hit, good in zip(row, is_relevant, strict=True)) and not of_relevant
        wrong += label != "TP" and (of_relevant if relevant else of_others)
    return wrong / len(sample.answer)


def use_contexts(sample: Sample) -> float:
    """RAGChecker: of the ground-truth claims that were retrieved the share in the answer."""
    pairs = list(zip(sample.ground_truth, sample.ground_truth_support, strict=True))
    retrieved = [label for label, ranks in pairs if ranks]
    return retrieved.count("TP") / len(retrieved)


def unsupported(sample: Sample, label: str) -> float:
    pairs = list(zip(sample.answer, sample.answer_support, strict=True))
    return sum(one == label and not ranks for one, ranks in pairs) / len(sample.answer)


# What the table calls equal: by tool, name there and name here.
EQUAL: Mapping[tuple[str, str, str], Formula] = {
    ("ragas", "factual_correctness", "factual_precision"): compute_precision,
    ("ragas", "factual_correctness", "factual_recall"): compute_recall,
    ("ragas", "factual_correctness", "factual_f1"): compute_f_beta,
    ("ragas", "faithfulness", "faithfulness"): lambda sample: share_of(sample.answer_support),
    ("ragas", "context_recall", "context_recall"): lambda sample: share_of(sample.ground_truth_support),
    ("RAGChecker", "precision", "factual_precision"): compute_precision,
    ("RAGChecker", "recall", "statement_recall"): find_claims,
    ("Lynxius", "AnswerCorrectness", "factual_f1"): compute_f1,
    ("Lynxius", "SemanticSimilarity", "semantic_similarity"): clip_similarity,
}
# What it calls alike, with the same number where each context is judged by itself and none came twice, both texts make
# statements, and the cosine is not below 0.
EQUAL_MOSTLY: Mapping[tuple[str, str, str], Formula] = {
    ("ragas", "answer_correctness", "answer_correctness"): mix_correctness,
    ("ragas", "context_precision", "context_precision"): average_precision,
    ("deepeval", "ContextualPrecisionMetric", "context_precision"): weigh_cumulatively,
    ("Lynxius", "ContextPrecision", "context_precision"): average_precision,
    ("ragas", "noise_sensitivity", "noise_sensitivity_relevant"): lambda sample: be_sensitive(sample, relevant=True),
    ("ragas", "noise_sensitivity", "noise_sensitivity_irrelevant"): lambda sample: be_sensitive(sample, relevant=False),
    ("RAGChecker", "claim_recall", "context_recall"): lambda sample: share_of(sample.ground_truth_support),
    ("RAGChecker", "faithfulness", "faithfulness"): lambda sample: share_of(sample.answer_support),
    ("RAGChecker", "context_utilization", "context_utilization"): use_contexts,
    ("RAGChecker", "hallucination", "hallucination"): lambda sample: unsupported(sample, "FP"),
    ("RAGChecker", "self_knowledge", "self_knowledge"): lambda sample: unsupported(sample, "TP"),
    ("RAGChecker", "noise_sensitivity_in_relevant", "noise_sensitivity_relevant"): (
        lambda sample: be_sensitive(sample, relevant=True)
    ),
    ("RAGChecker", "noise_sensitivity_in_irrelevant", "noise_sensitivity_irrelevant"): (
        lambda sample: be_sensitive(sample, relevant=False)
    ),
}


def draw_samples(*, together: bool) -> list[Sample]:
    """Verdicts on texts that make statements, with contexts; the first statement of the ground truth is supported."""
    rng = random.Random(7)

    def draw_support(n_contexts: int) -> Sequence[int]:
        ranks = [rank for rank in range(1, n_contexts + 1) if rng.random() < 0.4]
        return Together(ranks) if together and len(ranks) > 1 and rng.random() < 0.4 else ranks

    samples = []
    for number in range(N_SAMPLES):
        n_answer, n_truth, n_contexts = rng.randint(1, 6), rng.randint(1, 6), rng.randint(2, 6)
        samples.append(
            Sample(
                sample_id=f"s{number}",
                answer=[rng.choice(["TP", "FP"]) for _ in range(n_answer)],
                ground_truth=[rng.choice(["TP", "FN"]) for _ in range(n_truth)],
                answer_support=[draw_support(n_contexts) for _ in range(n_answer)],
                ground_truth_support=[[1], *(draw_support(n_contexts) for _ in range(n_truth - 1))],
                useful=[rng.random() < 0.4 for _ in range(n_contexts)],
                contexts=[f"Passage {rank}." for rank in range(1, n_contexts + 1)],
                similarity=rng.uniform(-0.3 if together else 0.0, 1.0),
            )
        )
    return samples


def check_equal(formulas: Mapping[tuple[str, str, str], Formula], samples: Sequence[Sample]) -> None:
    with open_rows() as con:
        fill(con, "runs", RUN)
        add_samples(con, *samples)
        found = {metric: score(con, metric) for metric in {metric for _, _, metric in formulas}}
    for pair, formula in formulas.items():
        assert {sample.sample_id: found[pair[2]][sample.sample_id].value for sample in samples} == {
            sample.sample_id: pytest.approx(formula(sample), abs=1e-9) for sample in samples
        }, pair


def test_every_equals_sign_of_the_table_is_held_here() -> None:
    rows = list(read_table())
    assert len(rows) > 40
    assert {row.mark for row in rows} <= {"=", "≈", ""}
    assert {(row.tool, row.there, row.here) for row in rows if row.mark == "="} == EQUAL.keys()
    assert {(row.tool, row.there, row.here) for row in rows if row.mark == "≈"} >= EQUAL_MOSTLY.keys()


def test_metrics_called_equal_give_the_same_number() -> None:
    check_equal(EQUAL, draw_samples(together=True))


def test_metrics_differ_only_as_the_last_column_states() -> None:
    check_equal(EQUAL_MOSTLY, draw_samples(together=False))


def test_metrics_not_called_equal_differ_as_the_table_states() -> None:
    """RAGChecker does not know contexts that support a statement together, ragas' cosine may be below 0, and elsewhere
    a text that came twice is useful twice.
    """
    joint = Sample(
        answer=["FP"], ground_truth=["TP"], answer_support=[Together((1, 2))], ground_truth_support=[[2]],
        useful=[True, False, True], contexts=["one", "two", "one"], similarity=-0.5,
    )  # fmt: skip
    with open_rows() as con:
        fill(con, "runs", RUN)
        add_samples(con, joint)
        names = ("hallucination", "faithfulness", "semantic_similarity", "context_precision")
        values = {name: score(con, name)["s"].value for name in names}
    assert values == {"hallucination": 0, "faithfulness": 1, "semantic_similarity": 0, "context_precision": 1}
    assert average_precision(joint) == pytest.approx((1 + 2 / 3) / 2)


@pytest.mark.parametrize("useful", [[], [False, False]], ids=["nothing retrieved", "nothing useful"])
def test_nothing_useful_is_0_in_both(useful: list[bool]) -> None:
    sample = Sample(ground_truth=["FN"], useful=useful, contexts=[f"Passage {n}." for n, _ in enumerate(useful)])
    assert average_precision(sample) == weigh_cumulatively(sample) == 0
    check_equal({("deepeval", "ContextualPrecisionMetric", "context_precision"): weigh_cumulatively}, [sample])
