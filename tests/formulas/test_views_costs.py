"""run_costs, run_latencies and unscored: what a run spent and waited for, and what it could not score and why."""

from datetime import datetime

import pytest
from rows import Row, Sample, add_samples, fill, open_rows, read, read_metrics, score


def costs_of(*calls: Row) -> list[dict[str, object]]:
    """The rows of run_costs for these calls of one run."""
    with open_rows() as con:
        rows = [{"call_id": f"c{n}", "run_id": "r", "step": "classify", **call} for n, call in enumerate(calls)]
        fill(con, "llm_calls", *rows)
        return read(con, "from run_costs order by run_id, step")


def test_reused_replies_are_not_paid_again() -> None:
    spent = {"prompt_tokens": 100, "completion_tokens": 10, "cost_usd": 0.5}
    (row,) = costs_of(spent, spent, {"status": "cached", "reused_call_id": "c0", **spent})
    assert (row["n_calls"], row["n_requests"], row["n_reused"], row["n_failed"]) == (3, 2, 1, 0)
    assert (row["prompt_tokens"], row["completion_tokens"], row["cost_usd"]) == (200, 20, 1.0)


def test_failed_calls_are_counted_and_what_they_cost_too() -> None:
    (row,) = costs_of(
        {"status": "error", "prompt_tokens": 7, "cost_usd": 0.25}, {"status": "refused"}, {"cost_usd": 0.5}
    )
    assert (row["n_requests"], row["n_failed"], row["prompt_tokens"], row["cost_usd"]) == (3, 2, 7, 0.75)
    assert row["n_unpriced"] == 0


def test_unknown_prices_are_told() -> None:
    (row,) = costs_of({"cost_usd": None}, {"cost_usd": 0.5})
    assert (row["cost_usd"], row["priced_usd"], row["n_unpriced"]) == (None, 0.5, 1)
    (row,) = costs_of({"cost_usd": None}, {"cost_usd": None})
    assert (row["cost_usd"], row["priced_usd"], row["n_unpriced"]) == (None, 0, 2)


@pytest.mark.parametrize("other", [{"cost_usd": 0.5}, {"cost_usd": 0.0}, {"status": "cached"}, {"status": "error"}])
def test_no_sum_over_a_run_passes_over_a_price_that_is_not_known(other: Row) -> None:
    with open_rows() as con:
        calls = [{"cost_usd": None}, {"step": "rank", **other}, {"run_id": "priced", "cost_usd": 0.25}]
        rows = [{"call_id": f"c{n}", "run_id": "r", "step": "classify", **call} for n, call in enumerate(calls)]
        fill(con, "llm_calls", *rows)
        sums = read(
            con, "select run_id, sum(cost_usd) as usd, sum(n_unpriced) as n from run_costs group by all order by all"
        )
    assert sums == [{"run_id": "priced", "usd": 0.25, "n": 0}, {"run_id": "r", "usd": None, "n": 1}]


def test_run_answered_from_the_record_costs_nothing() -> None:
    (row,) = costs_of({"status": "cached"}, {"status": "cached"})
    assert (row["n_requests"], row["prompt_tokens"], row["cost_usd"]) == (0, 0, 0)


def test_cached_tokens_are_part_of_the_prompt_and_not_added_to_it() -> None:
    spent = {"prompt_tokens": 100, "cached_tokens": 64, "cost_usd": 0.5}
    (row,) = costs_of(spent, {"prompt_tokens": 50}, {"status": "cached", "reused_call_id": "c0", **spent})
    assert (row["prompt_tokens"], row["cached_tokens"]) == (150, 64)
    (row,) = costs_of({"prompt_tokens": 50}, {"status": "cached"})
    assert row["cached_tokens"] == 0


@pytest.mark.parametrize("prompt_tokens", [None, 0])
def test_a_cost_without_tokens_is_told_to_be_an_estimate(prompt_tokens: int | None) -> None:
    estimated = {"prompt_tokens": prompt_tokens, "cost_usd": 0.25}
    (row,) = costs_of(estimated, estimated, {"prompt_tokens": 9, "cost_usd": 0.5})
    assert (row["n_estimated"], row["cost_usd"], row["n_unpriced"]) == (2, 1.0, 0)


def test_what_is_free_or_has_no_price_is_no_estimate() -> None:
    (row,) = costs_of({"prompt_tokens": 0, "cost_usd": 0.0}, {"cost_usd": None}, {"status": "error"})
    assert (row["n_estimated"], row["n_unpriced"]) == (0, 1)


def test_one_row_per_step() -> None:
    rows = costs_of({"step": "rank"}, {"step": "classify"}, {"step": "rank"}, {"run_id": "other"})
    assert [(row["run_id"], row["step"], row["n_calls"]) for row in rows] == [
        ("other", "classify", 1),
        ("r", "classify", 1),
        ("r", "rank", 2),
    ]


def test_latencies_are_of_what_the_run_itself_asked() -> None:
    started = {"started_at": datetime(2026, 1, 1), "status": "completed", "kind": "evaluation"}
    answered = [{"status": "ok", "latency_ms": float(n)} for n in range(1, 102)]
    reused = {"status": "reused", "latency_ms": 9e9, "reused_run_id": "r"}
    with open_rows() as con:
        fill(con, "runs", {"run_id": "r", "suite": "s", "label": "new", **started})
        fill(con, "runs", {"run_id": "later", "suite": "s", **started})
        rows = [*answered, {"status": "failed", "error": "status 500"}, reused]
        fill(con, "responses", *({"run_id": "r", "sample_id": f"s{n}", **row} for n, row in enumerate(rows)))
        fill(con, "responses", {"run_id": "later", "sample_id": "s", **reused})
        later, row = read(con, "from run_latencies order by run_id")
    assert (row["series"], row["suite"], row["label"], row["started_at"]) == (
        "suite s",
        "s",
        "new",
        datetime(2026, 1, 1),
    )
    assert (row["n_answered"], row["n_failed"], row["n_reused"]) == (101, 1, 1)
    assert (row["latency_p50_ms"], row["latency_p95_ms"]) == (51.0, 96.0)
    assert (later["n_answered"], later["n_reused"], later["latency_p50_ms"], later["latency_p95_ms"]) == (
        0,
        1,
        None,
        None,
    )


FAILED = Sample(
    sample_id="failed",
    reasons={"attribute_answer": "judge_failed", "attribute_ground_truth": "judge_failed"},
)


def test_detail_of_the_steps_behind_a_missing_score() -> None:
    with open_rows() as con:
        add_samples(con, FAILED)
        con.execute("update outcomes set detail = 'id A2 never came back' where reason = 'judge_failed'")
        missing = {"run_id": "r", "sample_id": "failed", "unscored_reason": "judge_failed"}
        fill(con, "scores", {**missing, "metric": "noise_sensitivity_relevant"}, {**missing, "metric": "faithfulness"},
             {"run_id": "r", "sample_id": "failed", "metric": "mrr", "value": 1.0})  # fmt: skip
        both, one = read(con, "from unscored order by metric desc")
    assert (both["metric"], both["reason"]) == ("noise_sensitivity_relevant", "judge_failed")
    assert both["steps"] == ["attribute_answer", "attribute_ground_truth"]
    assert both["detail"] == "id A2 never came back"
    assert (one["metric"], one["steps"]) == ("faithfulness", ["attribute_answer"])


def test_step_with_another_reason_is_not_blamed() -> None:
    sample = Sample(reasons={"classify": "no_ground_truth", "attribute_answer": "judge_failed"})
    with open_rows() as con:
        add_samples(con, sample)
        con.execute("update outcomes set detail = reason || ' it was'")
        fill(con, "scores", {"run_id": "r", "sample_id": "s", "metric": "hallucination",
                             "unscored_reason": "no_ground_truth"})  # fmt: skip
        (row,) = read(con, "from unscored")
    assert (row["steps"], row["detail"]) == (["classify"], "no_ground_truth it was")


def test_ranking_without_ids_waits_for_no_step() -> None:
    with open_rows() as con:
        add_samples(con, Sample(reasons={"rank": "no_ground_truth"}))
        fill(con, "scores", {"run_id": "r", "sample_id": "s", "metric": "mrr", "unscored_reason": "no_reference_ids"})
        (row,) = read(con, "from unscored")
    assert (row["reason"], row["steps"], row["detail"]) == ("no_reference_ids", None, None)


@pytest.mark.parametrize("sample", [Sample(missing=["classify", "rank"]), Sample(), FAILED])
def test_every_missing_score_has_exactly_one_row(sample: Sample) -> None:
    with open_rows() as con:
        add_samples(con, sample)
        n_missing = 0
        for metric in read_metrics():
            (found,) = score(con, metric).values()
            n_missing += found.value is None
            fill(con, "scores", {"run_id": "r", "sample_id": sample.sample_id, "metric": metric,
                                 "value": found.value, "unscored_reason": found.unscored_reason})  # fmt: skip
        rows = read(con, "from unscored")
    assert len(rows) == len({row["metric"] for row in rows}) == n_missing
