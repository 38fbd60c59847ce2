"""`evalhouse run` from a newcomer's folder without a key: what is printed where, what is kept, what is reused."""

from __future__ import annotations

from cli_house import N_JUDGED, House

CALL_KEYS = [
    "requests", "reused", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_usd",
]  # fmt: skip
METRIC_KEYS = ["mean", "ci_low", "ci_high", "n_scored", "n_unscored"]
DEFAULT_METRICS = [
    "factual_precision", "factual_recall", "statement_recall", "factual_f1", "answer_correctness", "context_recall",
    "context_precision",
    "faithfulness",
]  # fmt: skip


def test_json_is_the_one_document_of_the_contract(house: House) -> None:
    assert house.first.status == 0, house.first.stderr
    document = house.first.document
    assert {"run_id", "status", "n_samples", "metrics", "calls", "warehouse"} <= document.keys()
    assert document["status"] == "completed"
    assert document["n_samples"] == N_JUDGED
    assert list(document["metrics"])[: len(DEFAULT_METRICS)] == DEFAULT_METRICS
    assert all(list(metric) == METRIC_KEYS for metric in document["metrics"].values())
    assert list(document["calls"]) == CALL_KEYS
    assert document["calls"]["requests"] > 0
    assert document["calls"]["failed"] == 0
    assert document["calls"]["cost_usd"] == 0
    assert document["warehouse"] == f"duckdb:///{house.path}"


def test_judge_and_columns_are_named_on_stderr_and_nothing_else_is_reported_there(house: House) -> None:
    for finished in (house.first, house.second):
        assert finished.stderr.count("\n") == 2, finished.stderr
        assert "columns: question, answer = bot_reply (in 3 of 4 rows), ground_truth, " in finished.stderr
        assert "lexical" in finished.stderr
        assert "OPENAI_API_KEY" in finished.stderr


def test_a_person_reads_run_id_means_cost_and_what_to_type_next(house: House) -> None:
    assert house.second.status == 0, house.second.stderr
    first_line = house.second.lines[0]
    run_id = first_line.split()[1]
    assert first_line.startswith(f"run {run_id} completed: {N_JUDGED} samples, judged by lexical")
    header = next(line for line in house.second.lines if line.startswith("metric"))
    assert header.split() == ["metric", "mean", "95", "%", "interval", "scored", "unscored"]
    row = next(line for line in house.second.lines if line.startswith("faithfulness"))
    assert len(row.split()) == 7, "metric, mean, low, to, high, scored, unscored"
    assert "cost $0.00" in house.second.stdout
    assert house.second.lines[-1].startswith(f"next: evalhouse show {run_id}")


def test_without_a_terminal_progress_and_colour_are_left_out(house: House) -> None:
    for finished in (house.first, house.second):
        assert "\x1b" not in finished.stdout + finished.stderr
        assert "\r" not in finished.stdout + finished.stderr
        assert "starting" not in finished.stderr


def test_a_second_equal_run_asks_nothing(house: House) -> None:
    n_asked = house.first.document["calls"]["requests"] + house.first.document["calls"]["reused"]
    assert f"0 requests, {n_asked} reused from the record, 0 failed" in house.second.stdout
