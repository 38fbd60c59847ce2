"""The duties of every metric: one row per sample of the run, a value or a reason, never both, and the right reason."""

import math
from itertools import product

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
    score,
    score_sample,
)

METRICS = sorted(read_metrics())
REASONS = (
    "no_ground_truth", "no_answer", "no_contexts", "target_failed", "judge_failed", "embedding_failed",
    "budget_exhausted", "cancelled", "no_statements",
)  # fmt: skip
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


def test_needs_cover_all_metrics_except_ranking_by_ids() -> None:
    by_ids = {"precision_at_k", "recall_at_k", "hit_at_k", "mrr", "ndcg_at_k"}
    assert {metric for metric, _ in NEEDING} == set(METRICS) - by_ids


def test_each_reason_of_a_step_is_given_by_every_metric_that_needs_it() -> None:
    samples = {
        step: [fully_judged(reason, reasons={step: reason}) for reason in REASONS]
        + [fully_judged("cut short", missing=[step])]
        for step in NEEDED
    }
    expected = {**{reason: (None, reason) for reason in REASONS}, "cut short": (None, "cancelled")}
    with open_rows() as con:
        add_runs(con, samples)
        for metric, step in NEEDING:
            found = {name: (row.value, row.unscored_reason) for name, row in score(con, metric, step).items()}
            if metric == "refusal_rate":  # it does not apply: the ground truth states something
                assert set(found.values()) == {(None, "no_statements")}
                continue
            assert found == expected, (metric, step)


def test_refusal_rate_gives_the_reason_of_a_step_where_the_ground_truth_states_nothing() -> None:
    failing = [reason for reason in REASONS if reason != "no_statements"]
    silent = {"ground_truth": [], "ground_truth_support": []}
    with open_rows() as con:
        add_runs(con, {"r": [fully_judged(reason, reasons={"classify": reason}, **silent) for reason in failing]})
        found = {name: row.unscored_reason for name, row in score(con, "refusal_rate", "r").items()}
        assert found == {reason: reason for reason in failing}


def test_steps_that_are_not_needed_do_not_matter() -> None:
    runs = {}
    for metric in METRICS:
        file = read_metrics()[metric]
        others = [step for step in list_steps() if step not in file.needs + file.optional_needs]
        # refusal_rate counts the samples whose ground truth states nothing.
        texts: dict[str, object] = {"ground_truth": [], "ground_truth_support": []} if metric == "refusal_rate" else {}
        runs[metric] = [
            fully_judged("failed", reasons=dict.fromkeys(others, "judge_failed"), **texts),
            fully_judged("missing", missing=others, **texts),
            fully_judged("whole", **texts),
        ]
    with open_rows() as con:
        add_runs(con, runs)
        for metric in METRICS:
            found = score(con, metric, metric)
            assert found["whole"].value is not None, metric
            assert found["failed"] == found["missing"] == found["whole"], metric


def test_precedence_of_reasons() -> None:
    """Missing inputs come first, then failures, then the lack of statements; in any order of steps."""
    kinds = ("no_answer", "target_failed", "judge_failed", "cancelled", "no_statements")
    pairs = list(product(kinds, kinds))
    runs: dict[str, list[Sample]] = {}
    for needs in {read_metrics()[metric].needs[:2] for metric in METRICS}:
        if len(needs) == 2:
            reasons = {f"{a} {b}": dict(zip(needs, (a, b), strict=True)) for a, b in pairs}
            runs[",".join(needs)] = [fully_judged(name, reasons=given) for name, given in reasons.items()]
    with open_rows() as con:
        add_runs(con, runs)
        for metric in METRICS:
            if (run_id := ",".join(read_metrics()[metric].needs[:2])) in runs:
                found = score(con, metric, run_id)
                assert {name: row.unscored_reason for name, row in found.items()} == {
                    f"{a} {b}": min(a, b, key=REASONS.index) for a, b in pairs
                }, metric


def test_reason_that_is_not_on_the_list_still_leaves_the_score_missing() -> None:
    unknown = fully_judged(reasons={"classify": "moon_phase"})
    assert score_sample("factual_f1", unknown) == Score(value=None, unscored_reason="moon_phase")
    both = fully_judged(reasons={"classify": "moon_phase", "attribute_answer": "no_statements"})
    assert score_sample("hallucination", both) == Score(value=None, unscored_reason="no_statements")


def test_run_without_samples_has_no_rows_and_columns_are_those_of_scores() -> None:
    columns = [("run_id", "VARCHAR"), ("sample_id", "VARCHAR"), ("value", "DOUBLE"), ("unscored_reason", "VARCHAR")]
    with open_rows() as con:
        add_samples(con, fully_judged(), run_id="other")
        for metric in METRICS:
            file = read_metrics()[metric]
            described = con.execute(f"describe {file.sql}", {"run_id": "r", **file.parameters}).fetchall()
            assert [(row[0], row[1]) for row in described] == columns, metric
            assert score(con, metric) == {}, metric


def test_verdicts_without_their_rows_never_make_a_nan() -> None:
    """Steps that claim verdicts that are missing: no metric may answer with NaN, nor with nothing at all."""
    common = {"run_id": "r", "sample_id": "unlabelled", "ordinal": 1, "text": "It is so."}
    statements = [
        {**common, "statement_id": statement_id, "source": source}
        for statement_id, source in (("A1", "answer"), ("G1", "ground_truth"))
    ]
    with open_rows() as con:
        add_samples(
            con,
            Sample(sample_id="bare"),
            Sample(sample_id="unlabelled", answer_support=[[1]], ground_truth_support=[[]], similarity=math.nan),
            Sample(sample_id="by ids", reference_ids=["a"], context_ids=[None]),
        )
        fill(con, "statements", *statements)
        for metric in METRICS:
            found = score(con, metric)
            assert set(found) == {"bare", "unlabelled", "by ids"}, metric
            for row in found.values():
                assert (row.value is None) == (row.unscored_reason is not None), metric
                assert row.value is None or 0 <= row.value <= 1, metric
