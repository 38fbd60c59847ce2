"""What every metric owes: one row per sample of the run, a value or a reason and never both, and the right reason."""

import math
from collections.abc import Iterator
from functools import cache
from itertools import product

import pytest
from rows import (
    Sample,
    Score,
    add_runs,
    add_samples,
    fill,
    list_steps,
    open_rows,
    rate_everything,
    read_metrics,
    reason_of,
    score,
)

METRICS = sorted(read_metrics())
REASONS = (
    "no_answer",
    "no_ground_truth",
    "no_contexts",
    "target_failed",
    "judge_failed",
    "embedding_failed",
    "budget_exhausted",
    "cancelled",
    "no_statements",
)
NEEDING = [(metric, step) for metric in METRICS for step in read_metrics()[metric].needs]
NEEDED = sorted({step for _, step in NEEDING})


def fully_judged(sample_id: str = "s", **changes: object) -> Sample:
    """A sample that every metric can score."""
    given: dict[str, object] = {
        "sample_id": sample_id,
        "answer": ["TP", "FP"],
        "ground_truth": ["TP", "FN"],
        "answer_support": [[1], [2]],
        "ground_truth_support": [[1], [1]],
        "useful": [True, False],
        "context_ids": ["a", "b"],
        "reference_ids": ["b"],
        "similarity": 0.5,
        "citations": [("A1", 1), (None, None)],
        "turns": {"A1": "consistent", "U1": "heeded"},
        **rate_everything(5),
        **changes,
    }
    return Sample(**given)  # type: ignore[arg-type]


def test_needs_cover_all_metrics_but_those_by_ids() -> None:
    by_ids = {"precision_at_k", "recall_at_k", "hit_at_k", "mrr", "ndcg_at_k"}
    assert {metric for metric, _ in NEEDING} == set(METRICS) - by_ids


def list_by_reason(step: str) -> Iterator[Sample]:
    """A sample for each reason of the step, and one without an outcome of it."""
    yield from (fully_judged(reason, reasons={step: reason}) for reason in REASONS)
    yield fully_judged("cut short", missing=[step])


@cache
def score_by_reason() -> dict[str, dict[str, dict[str, Score]]]:
    """By step and by metric that needs it; rows of all steps are written at once, as in the functions below."""
    with open_rows() as con:
        add_runs(con, {step: list_by_reason(step) for step in NEEDED})
        return {step: {metric: score(con, metric, step) for metric, needed in NEEDING if needed == step}
                for step in NEEDED}  # fmt: skip


@pytest.mark.parametrize("step", NEEDED)
def test_each_reason_of_a_step_is_given_by_every_metric_that_needs_it(step: str) -> None:
    found = score_by_reason()[step]
    assert found
    for metric, scores in found.items():
        reasons = {sample: score.unscored_reason for sample, score in scores.items()}
        assert reasons == {**{reason: reason for reason in REASONS}, "cut short": "cancelled"}, metric
        assert all(score.value is None for score in scores.values()), metric


def list_beside_failures(metric: str) -> Iterator[Sample]:
    """A sample whole, and without a verdict of any step that the metric does not need."""
    file = read_metrics()[metric]
    others = [step for step in list_steps() if step not in file.needs + file.optional_needs]
    # refusal_rate counts the samples whose ground truth states nothing.
    texts = {"ground_truth": [], "ground_truth_support": []} if metric == "refusal_rate" else {}
    yield fully_judged("failed", reasons=dict.fromkeys(others, "judge_failed"), **texts)
    yield fully_judged("missing", missing=others, **texts)
    yield fully_judged("whole", **texts)


@cache
def score_beside_failures() -> dict[str, dict[str, Score]]:
    with open_rows() as con:
        add_runs(con, {metric: list_beside_failures(metric) for metric in METRICS})
        return {metric: score(con, metric, metric) for metric in METRICS}


@pytest.mark.parametrize("metric", METRICS)
def test_steps_that_are_not_needed_do_not_matter(metric: str) -> None:
    found = score_beside_failures()[metric]
    assert found["whole"].value is not None
    assert found["failed"] == found["missing"] == found["whole"]


@pytest.mark.parametrize("metric", [metric for metric in METRICS if len(read_metrics()[metric].needs) > 1])
def test_precedence_of_reasons(metric: str) -> None:
    """Missing inputs come first, then failures, then the lack of statements; whichever step has which."""
    first, second = read_metrics()[metric].needs[:2]
    pairs = [(a, b) for a, b in product(REASONS, REASONS)]
    with open_rows() as con:
        add_samples(con, *(fully_judged(f"{a} {b}", reasons={first: a, second: b}) for a, b in pairs))
        found = score(con, metric)
    for a, b in pairs:
        assert found[f"{a} {b}"].unscored_reason == min(a, b, key=REASONS.index)


def test_reason_that_is_not_on_the_list_still_leaves_the_score_missing() -> None:
    unheard = fully_judged(reasons={"classify": "moon_phase"})
    assert reason_of("factual_f1", unheard) == "moon_phase"
    both = fully_judged(reasons={"classify": "moon_phase", "attribute_answer": "no_statements"})
    assert reason_of("hallucination", both) == "no_statements"


@cache
def score_nothing() -> dict[str, dict[str, Score]]:
    """The scores of a run that has no samples, beside one that has."""
    with open_rows() as con:
        add_samples(con, fully_judged(), run_id="other")
        return {metric: score(con, metric) for metric in METRICS}


@pytest.mark.parametrize("metric", METRICS)
def test_run_without_samples_has_no_rows(metric: str) -> None:
    assert score_nothing()[metric] == {}


@cache
def score_claims() -> dict[str, dict[str, Score]]:
    """The scores of samples whose steps claim verdicts that are not there."""
    with open_rows() as con:
        add_samples(
            con,
            Sample(sample_id="bare"),
            Sample(sample_id="unlabelled", answer_support=[[1]], ground_truth_support=[[]], similarity=math.nan),
            Sample(sample_id="by ids", reference_ids=["a"], context_ids=[None]),
        )
        fill(
            con,
            "statements",
            *(
                {
                    "run_id": "r",
                    "sample_id": "unlabelled",
                    "statement_id": f"{letter}1",
                    "source": source,
                    "ordinal": 1,
                    "text": "It is so.",
                }
                for letter, source in (("A", "answer"), ("G", "ground_truth"))
            ),
        )
        return {metric: score(con, metric) for metric in METRICS}


@pytest.mark.parametrize("metric", METRICS)
def test_verdicts_without_their_rows_never_make_a_nan(metric: str) -> None:
    """Steps that claim verdicts that are not there: no metric may answer with NaN, nor with nothing at all."""
    found = score_claims()[metric]
    assert set(found) == {"bare", "unlabelled", "by ids"}
    for sample_score in found.values():
        assert (sample_score.value is None) == (sample_score.unscored_reason is not None)
        assert sample_score.value is None or 0 <= sample_score.value <= 1


@pytest.mark.parametrize("metric", METRICS)
def test_columns_are_those_of_scores(metric: str) -> None:
    file = read_metrics()[metric]
    with open_rows() as con:
        described = con.execute(f"describe {file.sql}", {"run_id": "r", **file.parameters}).fetchall()
    assert [(row[0], row[1]) for row in described] == [
        ("run_id", "VARCHAR"),
        ("sample_id", "VARCHAR"),
        ("value", "DOUBLE"),
        ("unscored_reason", "VARCHAR"),
    ]
