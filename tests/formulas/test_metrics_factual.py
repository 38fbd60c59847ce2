"""factual_precision, factual_recall, factual_f1, semantic_similarity and answer_correctness, by rows."""

import duckdb
import pytest
from rows import Sample, add_samples, fill, open_rows, reason_of, score, value_of

# The worked example published with the metrics' usual definition: two true positives, one false positive, one missed.
PUBLISHED = Sample(answer=["TP", "TP", "FP"], ground_truth=["TP", "TP", "FN"], similarity=0.8)
ALL_WRONG = Sample(answer=["FP", "FP"], ground_truth=["FN"], similarity=0.70)
ALL_RIGHT = Sample(answer=["TP"], ground_truth=["TP", "TP"], similarity=1.0)
# No request is made for these two: the rule writes FN (or FP) for all that is there.
EMPTY_ANSWER = Sample(ground_truth=["FN", "FN"])
EMPTY_GROUND_TRUTH = Sample(answer=["FP"])
NEITHER = Sample(reasons={"classify": "no_statements"})


def test_published_example() -> None:
    assert value_of("factual_precision", PUBLISHED) == pytest.approx(2 / 3)
    assert value_of("factual_recall", PUBLISHED) == pytest.approx(2 / 3)
    assert value_of("factual_f1", PUBLISHED) == pytest.approx(0.667, abs=5e-4)


@pytest.mark.parametrize("metric", ["factual_precision", "factual_recall", "factual_f1"])
def test_ends_of_the_scale(metric: str) -> None:
    assert value_of(metric, ALL_WRONG) == 0
    assert value_of(metric, ALL_RIGHT) == 1


def test_a_found_ground_truth_statement_is_no_second_true_positive() -> None:
    one_against_three = Sample(answer=["TP"], ground_truth=["TP", "TP", "TP", "FN"])
    assert value_of("factual_recall", one_against_three) == 1 / 2
    assert value_of("factual_f1", one_against_three) == 1 / 1.5


def test_answer_without_statements() -> None:
    assert reason_of("factual_precision", EMPTY_ANSWER) == "no_statements"
    assert value_of("factual_recall", EMPTY_ANSWER) == 0
    assert value_of("factual_f1", EMPTY_ANSWER) == 0


def test_ground_truth_without_statements() -> None:
    assert value_of("factual_precision", EMPTY_GROUND_TRUTH) == 0
    assert reason_of("factual_recall", EMPTY_GROUND_TRUTH) == "no_statements"
    assert value_of("factual_f1", EMPTY_GROUND_TRUTH) == 0


@pytest.mark.parametrize("metric", ["factual_precision", "factual_recall", "factual_f1", "answer_correctness"])
def test_neither_text_has_statements(metric: str) -> None:
    assert reason_of(metric, NEITHER) == "no_statements"


def test_everything_found_in_an_answer_that_is_all_wrong() -> None:
    contradictory = Sample(answer=["FP"], ground_truth=["TP"])
    assert value_of("factual_recall", contradictory) == 0
    assert value_of("factual_f1", contradictory) == 0


def test_verdicts_of_a_failed_step_do_not_count() -> None:
    half_judged = Sample(answer=["TP", "TP"], ground_truth=["TP"], reasons={"classify": "judge_failed"})
    assert reason_of("factual_precision", half_judged) == "judge_failed"
    assert reason_of("factual_f1", half_judged) == "judge_failed"


def test_other_runs_and_samples_do_not_count() -> None:
    with open_rows() as con:
        add_samples(con, PUBLISHED, Sample(sample_id="other", answer=["FP"]), run_id="r")
        add_samples(con, ALL_RIGHT, run_id="r2")
        assert {key: found.value for key, found in score(con, "factual_precision").items()} == {
            "s": pytest.approx(2 / 3),
            "other": 0,
        }
        assert {key: found.value for key, found in score(con, "factual_precision", "r2").items()} == {"s": 1}


@pytest.mark.parametrize(("stored", "expected"), [(0.42, 0.42), (-0.0001, 0), (1.0000001, 1), (0, 0), (1, 1)])
def test_similarity_is_clipped(stored: float, expected: float) -> None:
    assert value_of("semantic_similarity", Sample(similarity=stored)) == expected


def test_similarity_without_a_number() -> None:
    assert reason_of("semantic_similarity", Sample(similarity=float("nan"))) == "embedding_failed"
    assert reason_of("semantic_similarity", Sample()) == "embedding_failed"


@pytest.mark.parametrize(
    ("embeddings", "named", "other"),
    [
        ("hashing", "surface_similarity", "semantic_similarity"),
        ("openai:embedder", "semantic_similarity", "surface_similarity"),
    ],
)
def test_spelling_is_never_called_meaning(embeddings: str, named: str, other: str) -> None:
    with open_rows() as con:
        add_samples(con, Sample(similarity=0.8))
        fill(con, "runs", {"run_id": "r", "embeddings": embeddings})
        assert score(con, named)["s"].value == pytest.approx(0.8)
        assert (score(con, other)["s"].value, score(con, other)["s"].unscored_reason) == (None, "embedding_failed")


def test_similarity_of_another_kind_does_not_count() -> None:
    with open_rows() as con:
        add_samples(con, Sample(similarity=0.5))
        con.execute("insert into similarities values ('r', 's', 'question_answer', 0.9, null, null)")
        assert score(con, "semantic_similarity")["s"].value == 0.5


def test_correctness_of_a_wrong_answer_that_sounds_right() -> None:
    assert value_of("answer_correctness", ALL_WRONG) == pytest.approx(0.175)


def test_correctness_weights_are_taken_over_their_sum() -> None:
    f1 = 2 / 3
    assert value_of("answer_correctness", PUBLISHED) == pytest.approx(0.75 * f1 + 0.25 * 0.8)
    halves = value_of("answer_correctness", PUBLISHED, factual_weight=2, similarity_weight=2)
    assert halves == pytest.approx((f1 + 0.8) / 2)


def test_a_part_without_weight_is_not_asked_for() -> None:
    unembedded = Sample(answer=["TP", "FP"], ground_truth=["TP"], missing=["similarity"])
    assert reason_of("answer_correctness", unembedded) == "cancelled"
    facts_alone = value_of("answer_correctness", unembedded, similarity_weight=0)
    assert facts_alone == value_of("factual_f1", unembedded)
    unclassified = Sample(similarity=0.3, reasons={"classify": "judge_failed"})
    assert value_of("answer_correctness", unclassified, factual_weight=0) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ({"similarity": "embedding_failed"}, "embedding_failed"),
        ({"classify": "no_statements"}, "no_statements"),
        ({"classify": "no_statements", "similarity": "embedding_failed"}, "embedding_failed"),
        ({"classify": "judge_failed", "similarity": "no_ground_truth"}, "no_ground_truth"),
        ({"classify": "judge_failed", "similarity": "budget_exhausted"}, "judge_failed"),
    ],
)
def test_correctness_is_missing_with_the_reason_of_the_part(reasons: dict[str, str], expected: str) -> None:
    sample = Sample(answer=["TP"], ground_truth=["TP"], similarity=0.9, reasons=reasons)
    assert reason_of("answer_correctness", sample) == expected


@pytest.mark.parametrize(("factual", "similarity"), [(0, 0), (-1, 2), (1, -0.5)])
def test_weights_that_make_no_mean_are_refused(factual: float, similarity: float) -> None:
    with pytest.raises(duckdb.Error, match="weights must be 0 or more and not both 0"):
        value_of("answer_correctness", PUBLISHED, factual_weight=factual, similarity_weight=similarity)


@pytest.mark.parametrize(
    ("sample", "recall", "statement_recall"),
    [
        # Ten statements that restate one of two truths; one statement that holds three of four; and all of the truth
        # not found although the answer's statements were let pass.
        (Sample(answer=["TP"] * 10, ground_truth=["TP", "FN"]), 10 / 11, 1 / 2),
        (Sample(answer=["TP"], ground_truth=["TP", "TP", "TP", "FN"]), 1 / 2, 3 / 4),
        (Sample(answer=["TP", "TP"], ground_truth=["FN", "FN"]), 1 / 2, 0),
        (Sample(ground_truth=["FN", "FN"]), 0, 0),
        (Sample(answer=["TP"], ground_truth=["TP"]), 1, 1),
    ],
)
def test_statement_recall_counts_the_ground_truth_alone(sample: Sample, recall: float, statement_recall: float) -> None:
    assert value_of("factual_recall", sample) == pytest.approx(recall)
    assert value_of("statement_recall", sample) == pytest.approx(statement_recall)


def test_statement_recall_of_a_ground_truth_that_states_nothing() -> None:
    assert reason_of("statement_recall", Sample(answer=["FP"])) == "no_statements"
    assert reason_of("statement_recall", Sample(reasons={"classify": "judge_failed"})) == "judge_failed"


def test_answer_rate_counts_answerable_questions_only() -> None:
    assert value_of("answer_rate", Sample(answer=["TP"], ground_truth=["TP"])) == 1
    assert value_of("answer_rate", Sample(answer=["FP"], ground_truth=["FN"])) == 1, "answered, though wrongly"
    assert value_of("answer_rate", Sample(ground_truth=["FN"])) == 0, "it refused what could be answered"
    assert reason_of("answer_rate", Sample(answer=["FP"])) == "no_statements"
    assert reason_of("answer_rate", Sample(reasons={"classify": "no_statements"})) == "no_statements"


def test_refusal_rate_counts_unanswerable_questions_only() -> None:
    assert value_of("refusal_rate", Sample(reasons={"classify": "no_statements"})) == 1
    assert value_of("refusal_rate", Sample(answer=["FP"])) == 0, "it answered the unanswerable"
    assert reason_of("refusal_rate", Sample(ground_truth=["FN"])) == "no_statements"
    assert reason_of("refusal_rate", Sample(answer=["TP"], ground_truth=["TP"])) == "no_statements"


@pytest.mark.parametrize("metric", ["answer_rate", "refusal_rate"])
def test_rates_of_answers_and_refusals_give_the_reason_of_classify(metric: str) -> None:
    assert reason_of(metric, Sample(reasons={"classify": "no_answer"})) == "no_answer"
    assert reason_of(metric, Sample(missing=["classify"])) == "cancelled"
