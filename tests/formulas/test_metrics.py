"""The metrics by rows: a table of samples with the value, or the reason for none, that each metric gives.

`test_metrics_random.py` compares all of them with a second computation; here are published examples, and what it leaves
out: settings, similarities, ids of documents and of passages, and reasons of more than one step.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log2, nan

import duckdb
import pytest
from rows import Sample, Score, Together, add_runs, add_samples, fill, open_rows, read, score, score_together, value_of

Expected = Mapping[str, float | str]
"""The value of a sample by metric, or the reason why it has none."""
Cases = Mapping[str, tuple[Sample, Expected]]

FACTUAL = ("factual_precision", "factual_recall", "factual_f1")
NOISE = ("noise_sensitivity_relevant", "noise_sensitivity_irrelevant")
BY_ID = ("precision_at_k", "recall_at_k", "hit_at_k", "mrr", "ndcg_at_k")
BY_JUDGE = ("precision_retrieved", "hit_retrieved", "mrr_retrieved", "ndcg_retrieved", "context_precision")
AT_K = ("precision_at_k", "recall_at_k", "hit_at_k", "ndcg_at_k", "precision_retrieved", "hit_retrieved",
        "ndcg_retrieved")  # fmt: skip


def check(cases: Cases, **settings: float) -> None:
    """Score all samples in one run, each metric once, and compare with what the cases expect."""
    by_metric: dict[str, list[str]] = defaultdict(list)
    for name, (_, expected) in cases.items():
        for metric in expected:
            by_metric[metric].append(name)
    wrong = []
    for metric, names in by_metric.items():
        scores = score_together(metric, *(cases[name][0] for name in names), **settings)
        for name, found in zip(names, scores, strict=True):
            expected = cases[name][1][metric]
            if isinstance(expected, str):
                is_right = (found.value, found.unscored_reason) == (None, expected)
            else:
                is_right = found.unscored_reason is None and found.value == pytest.approx(expected)
            wrong += [] if is_right else [f"{metric} of {name}: {found}, expected {expected}"]
    assert wrong == []


# --- factual_precision, factual_recall, factual_f1, statement_recall, similarity, correctness and rates

# The worked example published with the metrics' usual definition: two true positives, one false positive, one missed.
PUBLISHED = Sample(answer=["TP", "TP", "FP"], ground_truth=["TP", "TP", "FN"], similarity=0.8)
ALL_RIGHT = Sample(answer=["TP"], ground_truth=["TP", "TP"], similarity=1.0)
UNEMBEDDED = Sample(answer=["TP", "FP"], ground_truth=["TP"], missing=["similarity"])


FACTS: Cases = {
    "the published example": (PUBLISHED, {**dict.fromkeys(FACTUAL, 2 / 3), "answer_correctness": 0.5 + 0.25 * 0.8}),
    "one statement with three of four truths": (
        Sample(answer=["TP"], ground_truth=["TP", "TP", "TP", "FN"]),
        {"factual_recall": 1 / 2, "factual_f1": 1 / 1.5, "statement_recall": 3 / 4},
    ),
    "ten statements that restate one of two truths": (
        Sample(answer=["TP"] * 10, ground_truth=["TP", "FN"]), {"factual_recall": 10 / 11, "statement_recall": 1 / 2},
    ),
    "no outcome of similarity": (UNEMBEDDED, {"answer_correctness": "cancelled"}),
    **{
        f"a similarity of {stored}": (Sample(similarity=stored), {"semantic_similarity": expected})
        for stored, expected in [(0.42, 0.42), (-0.0001, 0), (1.0000001, 1), (0, 0), (1, 1), (nan, "embedding_failed")]
    },
    "no similarity": (Sample(), {"semantic_similarity": "embedding_failed"}),
}  # fmt: skip


def test_facts() -> None:
    check(FACTS)


def test_weights_of_correctness() -> None:
    check({"halves": (PUBLISHED, {"answer_correctness": (2 / 3 + 0.8) / 2})}, factual_weight=2, similarity_weight=2)
    alone = {"facts alone": (UNEMBEDDED, {"answer_correctness": value_of("factual_f1", UNEMBEDDED)})}
    check(alone, similarity_weight=0)
    unclassified = Sample(similarity=0.3, reasons={"classify": "judge_failed"})
    check({"similarity alone": (unclassified, {"answer_correctness": 0.3})}, factual_weight=0)
    for factual, similarity in [(0, 0), (-1, 2), (1, -0.5)]:
        with pytest.raises(duckdb.Error, match="weights must be 0 or more and not both 0"):
            value_of("answer_correctness", PUBLISHED, factual_weight=factual, similarity_weight=similarity)


def test_other_runs_and_samples_do_not_count() -> None:
    with open_rows() as con:
        add_samples(con, PUBLISHED, Sample(sample_id="other", answer=["FP"]), run_id="r")
        add_samples(con, ALL_RIGHT, run_id="r2")
        values = {run: {key: found.value for key, found in score(con, "factual_precision", run).items()}
                  for run in ("r", "r2")}  # fmt: skip
    assert values == {"r": {"s": pytest.approx(2 / 3), "other": 0}, "r2": {"s": 1}}


@pytest.mark.parametrize(("embeddings", "named", "other"), [
    ("hashing", "surface_similarity", "semantic_similarity"),
    ("openai:embedder", "semantic_similarity", "surface_similarity"),
])  # fmt: skip
def test_spelling_is_never_called_meaning(embeddings: str, named: str, other: str) -> None:
    with open_rows() as con:
        add_samples(con, Sample(similarity=0.8))
        con.execute("insert into similarities values ('r', 's', 'question_answer', 0.9, null, null)")  # of another kind
        fill(con, "runs", {"run_id": "r", "embeddings": embeddings})
        assert score(con, named)["s"].value == pytest.approx(0.8)
        assert (score(con, other)["s"].value, score(con, other)["s"].unscored_reason) == (None, "embedding_failed")


# --- statements joined with the contexts that support them

# Context 1 supports the ground truth, so it is relevant; context 2 supports nothing of it, so it is noise.
MIXED = Sample(
    answer=["TP", "TP", "FP", "FP", "FP", "FP"],
    ground_truth=["TP", "FN", "TP", "FN"],
    answer_support=[[1], [], [1, 2], [2], [], [2]],
    ground_truth_support=[[1], [1], [], []],
)
# Contexts 1 and 2 support G1 only together, contexts 3 and 4 the wrong A2, and contexts 2 and 5 the wrong A3.
JOINED = Sample(
    answer=["TP", "FP", "FP", "FP"],
    ground_truth=["TP", "FN"],
    answer_support=[Together((1, 2)), Together((3, 4)), Together((2, 5)), []],
    ground_truth_support=[Together((1, 2)), []],
)
SUPPORT: Cases = {
    "relevant and irrelevant contexts": (
        MIXED,
        {"faithfulness": 4 / 6, "context_recall": 2 / 4, "context_utilization": 1 / 2, NOISE[0]: 1 / 6,
         NOISE[1]: 2 / 6, "hallucination": 1 / 6, "self_knowledge": 1 / 6},
    ),
    "support only together": (
        JOINED,
        {"faithfulness": 3 / 4, "context_recall": 1 / 2, "context_utilization": 1, NOISE[0]: 1 / 4, NOISE[1]: 1 / 4,
         "hallucination": 1 / 4, "self_knowledge": 0},
    ),
    **{
        f"useful: {useful}": (Sample(useful=useful), {"context_precision": expected})
        for useful, expected in [
            ([False, True], 0.5),  # published: useful only at rank 2 of 2
            ([False, True, True, False, True], (1 / 2 + 2 / 3 + 3 / 5) / 3),
        ]
    },
    "a retrieval that found nothing": (Sample(contexts=[]), {"context_precision": 0}),
    "an unknown retrieval": (Sample(), {"context_precision": "no_contexts"}),
    "a retrieval that failed": (Sample(reasons={"rank": "no_contexts"}), {"context_precision": "no_contexts"}),
}  # fmt: skip


def test_support() -> None:
    check(SUPPORT)
    # Every answer statement is right, wrong by noise, or made up.
    wrong = sum(value_of(metric, MIXED) for metric in (*NOISE, "hallucination"))
    assert wrong == pytest.approx(1 - value_of("factual_precision", MIXED))


def test_view_shows_the_contexts_of_a_statement() -> None:
    with open_rows() as con:
        add_samples(con, replace(JOINED, ground_truth_support=[[1], [2, 3]]))
        rows = read(con, "from statement_verdicts order by statement_id")
    assert [(row["context_ranks"], row["joint_ranks"], row["support_ranks"]) for row in rows] == [
        ([], [1, 2], [1, 2]), ([], [3, 4], [3, 4]), ([], [2, 5], [2, 5]), ([], [], []),
        ([1], [], [1]), ([2, 3], [], [2, 3]),
    ]  # fmt: skip


def test_verdicts_without_joint_ranks_count_as_before() -> None:
    with open_rows() as con:
        add_samples(con, MIXED)
        con.execute("update attributions set joint_ranks = null")
        (counts,) = read(con, "from sample_statement_counts")
    assert (counts["n_fp_relevant"], counts["n_fp_irrelevant"], counts["n_fp_unsupported"]) == (1, 2, 1)


# --- ranking by reference ids, and by the judge's verdicts

IDS = Sample(
    context_ids=["a", "x", "b", "y", "z", "c"],
    reference_ids=["c", "b", "a", "unfound"],
    useful=[False] * 6,
    reasons={"rank": "judge_failed"},
)
JUDGED = Sample(useful=[False, True, False, True, False, True])
SHORT = Sample(context_ids=["a", "b"], reference_ids=["a", "b"], useful=[True, False])
REPEATED = Sample(context_ids=["a", "a", "b", "a"], reference_ids=["a", "b", "b"])
PIECES = Sample(context_ids=["d"] * 3, contexts=["One.", "Two.", "Three."], useful=[True] * 3)
RANK_REASONS = ("no_contexts", "no_ground_truth", "no_statements", "judge_failed", "budget_exhausted", "target_failed")


def sum_gains(*ranks: int) -> float:
    return sum(1 / log2(rank + 1) for rank in ranks)


RANKING: Cases = {
    "by reference ids": (
        IDS,
        {"precision_at_k": 2 / 5, "recall_at_k": 2 / 4, "hit_at_k": 1, "mrr": 1,
         "ndcg_at_k": sum_gains(1, 3) / sum_gains(1, 2, 3, 4), **dict.fromkeys(BY_JUDGE, "judge_failed")},
    ),
    "by verdicts": (
        JUDGED,
        {"precision_retrieved": 2 / 5, "hit_retrieved": 1, "mrr_retrieved": 1 / 2,
         "ndcg_retrieved": sum_gains(2, 4) / sum_gains(1, 2, 3), **dict.fromkeys(BY_ID, "no_reference_ids")},
    ),
    "the two are never mixed": (
        replace(IDS, useful=[True] * 6, reasons={}), {"precision_at_k": 2 / 5, "precision_retrieved": 1},
    ),
    "fewer contexts than k": (
        SHORT, {"precision_at_k": 1, "precision_retrieved": 1 / 2, "recall_at_k": 1, "ndcg_at_k": 1},
    ),
    "ids alone show that nothing was retrieved": (
        Sample(context_ids=[], reference_ids=["a"], missing=["rank"]), dict.fromkeys(BY_ID, 0),
    ),
    "ids need no judge": (
        Sample(context_ids=["a"], reference_ids=["a"], missing=["rank"]), dict.fromkeys(BY_ID, 1),
    ),
    "repeated ids keep their first rank": (
        REPEATED, {"recall_at_k": 1, "ndcg_at_k": sum_gains(1, 3) / sum_gains(1, 2)},
    ),
    "pieces of one document do not repeat each other": (PIECES, dict.fromkeys(BY_JUDGE, 1)),
    "equal texts are repeats": (
        replace(PIECES, contexts=["One.", "One.", "Three."]),
        {"precision_retrieved": 2 / 3, "context_precision": (1 + 2 / 3) / 2,
         "ndcg_retrieved": sum_gains(1, 3) / sum_gains(1, 2)},
    ),
    "contexts without an id match nothing": (
        Sample(context_ids=[None, "a"], reference_ids=["a", None]), {"mrr": 1 / 2, "recall_at_k": 1},
    ),
    **{
        f"rank gave {reason} for contexts {contexts}": (
            Sample(contexts=contexts, reasons={"rank": reason}), dict.fromkeys(BY_JUDGE, reason),
        )
        for contexts in (None, [])
        for reason in RANK_REASONS
    },
    "rank has no outcome": (Sample(missing=["rank"]), dict.fromkeys(BY_JUDGE, "cancelled")),
    "rank left nothing": (Sample(), dict.fromkeys(BY_JUDGE, "no_contexts")),
}  # fmt: skip


def test_ranking() -> None:
    check(RANKING)


def test_settings_of_ranking() -> None:
    check({"judged": (JUDGED, {"precision_retrieved": 1 / 2, "ndcg_retrieved": sum_gains(2) / sum_gains(1, 2)}),
           "repeated": (REPEATED, {"recall_at_k": 1 / 2})}, k=2)  # fmt: skip
    check({"ids": (IDS, {"precision_at_k": 1}), "judged": (JUDGED, {"hit_retrieved": 0})}, k=1)
    check({"ids": (IDS, {"recall_at_k": 3 / 4})}, k=6)
    check({"repeated": (REPEATED, {"precision_at_k": 2 / 4})}, k=4)
    check({"as trec_eval has it": (SHORT, {"precision_at_k": 2 / 5})}, padded=1)
    with pytest.raises(duckdb.Error, match="padded must be 0 or 1"):
        value_of("precision_at_k", IDS, padded=2)
    for metric in AT_K:
        for k in (0, -1, 2.5):
            with pytest.raises(duckdb.Error, match="k must be a whole number from 1"):
                value_of(metric, replace(IDS, reasons={}), k=k)


FAQ = "shop/faq.md"
# Retrieved ids, reference ids, and precision_at_k, recall_at_k, hit_at_k, mrr, ndcg_at_k; None where nothing matches.
MATCHING: dict[str, tuple[Sequence[str], Sequence[str], Sequence[float] | None]] = {
    "a passage of a wanted document": ([f"{FAQ}#3"], [FAQ], [1, 1, 1, 1, 1]),
    **{f"separator {mark}": ([f"doc{mark}3"], ["doc"], [1, 1, 1, 1, 1]) for mark in "#:/|@"},
    "passages of a document are one of two": (
        ["x", f"{FAQ}#1", f"{FAQ}#2", f"{FAQ}#2"], [FAQ, "other"],
        [2 / 4, 1 / 2, 1, 1 / 2, sum_gains(2) / sum_gains(1, 2)],
    ),
    "a document holds the wanted passages": ([FAQ, "x"], [f"{FAQ}#1", f"{FAQ}#2"], [1 / 2, 1, 1, 1, 1]),
    "a document holds one of two": (
        ["x", "a"], ["a#1", "b#1"], [1 / 2, 1 / 2, 1, 1 / 2, sum_gains(2) / sum_gains(1, 2)],
    ),
    "a document and a passage of it are wanted": (["a#2"], ["a", "a#1"], [1, 1, 1, 1, 1]),
    "other passages of the document": ([f"{FAQ}#2"], [f"{FAQ}#1"], None),
    "a longer name of a different document": (["doc3", "doc-3"], ["doc"], None),
    "a Windows path": ([r"shop\faq.md#3"], [FAQ], [1, 1, 1, 1, 1]),
    "a path from here": (["./shop/faq.md"], [r".\shop\faq.md"], [1, 1, 1, 1, 1]),
    "capital letters of a path": (["Shop/FAQ.md#Prices"], [FAQ], [1, 1, 1, 1, 1]),
    "capital letters of a file": (["Faq.MD"], ["faq.md"], [1, 1, 1, 1, 1]),
    "capital letters of another id": (["aB3x"], ["Ab3X"], None),
    "decomposed letters": (["u\u0308ber.md#1"], ["\u00fcber.md"], [1, 1, 1, 1, 1]),
    "a folder with a slash": (["shop/faq.md"], ["shop/"], [1, 1, 1, 1, 1]),
}  # fmt: skip


def test_ids_of_documents_and_of_passages_match() -> None:
    """Give what matches nothing a separate run: ids that match in none of a run's samples are not scored."""
    runs: dict[str, list[Sample]] = {}
    for name, (ids, wanted, values) in MATCHING.items():
        runs.setdefault(name if values is None else "r", []).append(
            Sample(sample_id=name, context_ids=ids, reference_ids=wanted)
        )
    with open_rows() as con:
        add_runs(con, runs)
        for place, metric in enumerate(("precision_at_k", "recall_at_k", "hit_at_k", "mrr", "ndcg_at_k")):
            for name, found in [pair for run_id in runs for pair in score(con, metric, run_id).items()]:
                values = MATCHING[name][2]
                if values is None:
                    assert found == Score(value=None, unscored_reason="ids_do_not_match"), (name, metric)
                else:
                    assert found.value == pytest.approx(values[place]), (name, metric)


@pytest.mark.parametrize(
    ("elsewhere", "reason"),
    [
        (Sample(context_ids=["c"], reference_ids=["d"]), "ids_do_not_match"),
        (Sample(context_ids=["a#1"], reference_ids=["d"]), None),  # retrieved, though for another question
        (Sample(context_ids=["c"], reference_ids=["b"]), None),
        (Sample(context_ids=["a#1"]), "ids_do_not_match"),  # not compared with any reference
    ],
)
def test_ids_of_a_whole_run_that_never_match_are_not_scored(elsewhere: Sample, reason: str | None) -> None:
    missed = Sample(context_ids=["b"], reference_ids=["a"])
    with open_rows() as con:
        add_samples(con, missed, replace(elsewhere, sample_id="t"))
        add_samples(con, replace(missed, context_ids=["a"]), run_id="another")
        assert score(con, "hit_at_k")["s"] == Score(value=None if reason else 0.0, unscored_reason=reason)


def test_failed_application_is_the_reason_of_ranking_by_ids() -> None:
    with open_rows() as con:
        add_samples(con, Sample(reference_ids=["a"]), Sample(sample_id="bare"))
        for sample_id in ("s", "bare"):
            fill(con, "responses", {"run_id": "r", "sample_id": sample_id, "status": "failed", "error": "status 500"})
        for metric in BY_ID:
            reasons = {key: found.unscored_reason for key, found in score(con, metric).items()}
            assert reasons == {"s": "target_failed", "bare": "no_reference_ids"}, metric


# --- published figures

Bits = Sequence[int]
NOTHING = [0, 0, 0, 0]


def list_ranks(matrix: Sequence[Bits]) -> list[list[int]]:
    """Return the ranks of the contexts that support each claim."""
    return [[rank for rank, bit in enumerate(row, start=1) if bit] for row in matrix]


def make_record(answer: Bits, truth: Bits, by_answer: Sequence[Bits], by_truth: Sequence[Bits]) -> Sample:
    """Return a record of entailed claims as our verdicts; a context is useful if it supports a ground-truth claim."""
    return Sample(
        answer=["TP" if bit else "FP" for bit in answer],
        ground_truth=["TP" if bit else "FN" for bit in truth],
        answer_support=list_ranks(by_answer),
        ground_truth_support=list_ranks(by_truth),
        useful=[any(column) for column in zip(*by_truth, strict=True)],
    )


FLAG = make_record(
    [0, 1, 1, 1, 1],
    [1, 1, 0, 1, 0, 1, 1, 1],
    [[0, 1, 0], [0, 1, 1], [0, 1, 1], [1, 0, 1], [0, 1, 1]],
    [[0, 1, 0], [0, 1, 1], [0, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1]],
)
RIVER = make_record(
    [0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
    [1, 1, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1],
    [[0, 1, 0, 0], *[NOTHING] * 5, [0, 1, 0, 0], NOTHING, [1, 0, 0, 1], [0, 0, 0, 1], NOTHING],
    [[0, 1, 0, 0], *[NOTHING] * 2, [1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 0, 1], *[NOTHING] * 15, [0, 1, 0, 0]],
)


def test_published_records_of_ragchecker() -> None:
    """Check the two published records (examples/checking_outputs.json, Apache-2.0), as verdict matrices alone.

    Their figures are ours where the definitions agree. Three differ on purpose: their recall (0.75, 0.5) is our
    statement_recall; their F1 (0.774, 0.593) is the harmonic mean of precision and that recall, ours is
    TP / (TP + 0.5 (FP + FN)); their context_precision is our precision_retrieved with k = all contexts, while our
    context_precision also weighs the ranks.
    """
    flag = {"factual_precision": 0.8, "context_recall": 1.0, "context_utilization": 0.75, NOISE[0]: 0.2, NOISE[1]: 0.0,
            "hallucination": 0.0, "self_knowledge": 0.0, "faithfulness": 1.0, "statement_recall": 0.75,
            "factual_recall": 4 / 6, "factual_f1": 4 / 5.5, "context_precision": 1}  # fmt: skip
    river = {"factual_precision": 0.7272727272727273, "context_recall": 0.22727272727272727,
             "context_utilization": 1.0, NOISE[0]: 0.18181818181818182, NOISE[1]: 0.0,
             "hallucination": 0.09090909090909091, "self_knowledge": 0.5454545454545454,
             "faithfulness": 0.36363636363636365, "statement_recall": 0.5, "factual_recall": 8 / 19,
             "factual_f1": 8 / 15, "context_precision": (1 + 1 + 3 / 4) / 3}  # fmt: skip
    check({"flag": (FLAG, flag), "river": (RIVER, river)})
    check({"flag": (FLAG, {"precision_retrieved": 1.0})}, k=3)
    check({"river": (RIVER, {"precision_retrieved": 0.75})}, k=4)
    for precision, recall, f1 in [(0.8, 0.75, 0.7741935483870969), (8 / 11, 0.5, 0.5925925925925926)]:
        assert 2 * precision * recall / (precision + recall) == pytest.approx(f1), "their F1 follows from our verdicts"
