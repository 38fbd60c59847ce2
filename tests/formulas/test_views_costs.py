"""The views run_costs, run_latencies and unscored: money, waiting, and missing scores with their reasons."""

from datetime import datetime

import pytest
from rows import Row, Sample, add_samples, fill, open_rows, read, read_metrics, score

SPENT = {"prompt_tokens": 100, "completion_tokens": 10, "cost_usd": 0.5}
CACHED = {"status": "cached", "reused_call_id": "c0"}
COSTS: dict[str, tuple[list[Row], Row]] = {
    "reused replies are not paid again": (
        [SPENT, SPENT, CACHED | SPENT],
        {"n_calls": 3, "n_requests": 2, "n_reused": 1, "n_failed": 0, "prompt_tokens": 200, "completion_tokens": 20,
         "cost_usd": 1.0},
    ),
    "failed calls count, and so does their cost": (
        [{"status": "error", "prompt_tokens": 7, "cost_usd": 0.25}, {"status": "refused"}, {"cost_usd": 0.5}],
        {"n_requests": 3, "n_failed": 2, "prompt_tokens": 7, "cost_usd": 0.75, "n_unpriced": 0},
    ),
    "one unknown price": (
        [{"cost_usd": None}, {"cost_usd": 0.5}], {"cost_usd": None, "priced_usd": 0.5, "n_unpriced": 1},
    ),
    "two unknown prices": (
        [{"cost_usd": None}, {"cost_usd": None}], {"cost_usd": None, "priced_usd": 0, "n_unpriced": 2},
    ),
    "stored replies cost nothing": (
        [{"status": "cached"}, {"status": "cached"}], {"n_requests": 0, "prompt_tokens": 0, "cost_usd": 0},
    ),
    "cached tokens are part of the prompt": (
        [SPENT | {"cached_tokens": 64}, {"prompt_tokens": 50}, CACHED | SPENT | {"cached_tokens": 64}],
        {"prompt_tokens": 150, "cached_tokens": 64},
    ),
    "no cached tokens": ([{"prompt_tokens": 50}, {"status": "cached"}], {"cached_tokens": 0}),
    **{
        f"a cost with {tokens} tokens is an estimate": (
            [{"prompt_tokens": tokens, "cost_usd": 0.25}] * 2 + [{"prompt_tokens": 9, "cost_usd": 0.5}],
            {"n_estimated": 2, "cost_usd": 1.0, "n_unpriced": 0},
        )
        for tokens in (None, 0)
    },
    "a free call or one without a price is not an estimate": (
        [{"prompt_tokens": 0, "cost_usd": 0.0}, {"cost_usd": None}, {"status": "error"}],
        {"n_estimated": 0, "n_unpriced": 1},
    ),
}  # fmt: skip


def test_costs_of_a_step() -> None:
    with open_rows() as con:
        for run_id, (calls, _) in COSTS.items():
            common = {"run_id": run_id, "step": "classify"}
            fill(con, "llm_calls", *({"call_id": f"c{n}", **common, **call} for n, call in enumerate(calls)))
        rows = {row["run_id"]: row for row in read(con, "from run_costs")}
    found = {name: {key: rows[name][key] for key in expected} for name, (_, expected) in COSTS.items()}
    assert found == {name: expected for name, (_, expected) in COSTS.items()}


@pytest.mark.parametrize("other", [{"cost_usd": 0.5}, {"cost_usd": 0.0}, {"status": "cached"}, {"status": "error"}])
def test_sum_over_a_run_never_passes_over_an_unknown_price(other: Row) -> None:
    with open_rows() as con:
        calls = [{"cost_usd": None}, {"step": "rank", **other}, {"run_id": "priced", "cost_usd": 0.25}]
        rows = [{"call_id": f"c{n}", "run_id": "r", "step": "classify", **call} for n, call in enumerate(calls)]
        fill(con, "llm_calls", *rows)
        sums = read(
            con, "select run_id, sum(cost_usd) as usd, sum(n_unpriced) as n from run_costs group by all order by all"
        )
    assert sums == [{"run_id": "priced", "usd": 0.25, "n": 0}, {"run_id": "r", "usd": None, "n": 1}]


def test_latencies_count_only_answers_that_the_run_asked_for() -> None:
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
        "suite s", "s", "new", datetime(2026, 1, 1),
    )  # fmt: skip
    assert (row["n_answered"], row["n_failed"], row["n_reused"]) == (101, 1, 1)
    assert (row["latency_p50_ms"], row["latency_p95_ms"]) == (51.0, 96.0)
    assert (later["n_answered"], later["n_reused"], later["latency_p50_ms"], later["latency_p95_ms"]) == (
        0, 1, None, None,
    )  # fmt: skip


FAILED = Sample(
    sample_id="failed", reasons={"attribute_answer": "judge_failed", "attribute_ground_truth": "judge_failed"}
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


def test_every_missing_score_has_exactly_one_row() -> None:
    samples = [Sample(sample_id="missing", missing=["classify", "rank"]), Sample(), FAILED]
    with open_rows() as con:
        add_samples(con, *samples)
        scores = [
            {"run_id": "r", "sample_id": sample_id, "metric": metric, "value": found.value,
             "unscored_reason": found.unscored_reason}
            for metric in read_metrics()
            for sample_id, found in score(con, metric).items()
        ]  # fmt: skip
        fill(con, "scores", *scores)
        rows = read(con, "from unscored")
    missing = sorted((row["sample_id"], row["metric"]) for row in scores if row["value"] is None)
    assert sorted((row["sample_id"], row["metric"]) for row in rows) == missing
