"""A retriever that finds nothing: `contexts: []`, scored as 0, compared with the night before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, Place

N = 24
METRICS = ("context_recall", "context_precision", "faithfulness", "recall_at_k", "hit_at_k", "mrr", "ndcg_at_k",
           "precision_at_k")  # fmt: skip


def make_row(number: int, *, found: bool = True) -> dict[str, Any]:
    fact = f"Buoy {number} was laid in the year {1800 + 3 * number}."
    return {
        "id": f"buoy-{number}",
        "question": f"When was buoy {number} laid?",
        "answer": fact,
        "ground_truth": fact,
        "contexts": [fact, "Nets dry on the quay."] if found else [],
        "context_ids": [f"b{number}", "n"] if found else [],
        "reference_context_ids": [f"b{number}"],
    }


def run(place: Place, name: str, rows: list[dict[str, Any]], *more: str) -> Finished:
    (place.folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return place.call("run", f"{name}.jsonl", "--judge", "lexical", "--json", *more)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> tuple[Place, str, str]:
    """A night that found everything, and one whose retriever found nothing for half of the questions."""
    place = Place(folder=tmp_path_factory.mktemp("buoys"), variables={"PREFECT_HOME": str(prefect_home)})
    base = run(place, "full", [make_row(number) for number in range(1, N + 1)])
    half = run(place, "half", [make_row(number, found=number % 2 == 0) for number in range(1, N + 1)])
    return place, base.document["run_id"], half.document["run_id"]


def test_a_gate_fails_a_night_that_found_nothing_for_half(nights: tuple[Place, str, str]) -> None:
    place, base, half = nights
    limits = [word for metric in METRICS for word in ("--max-drop", f"{metric}=0.02")]
    finished = place.call("gate", half, "--against", base, *limits, "--json")
    assert finished.status == 1
    checks = {check["metric"]: (check["outcome"], check["n"]) for check in finished.document["checks"]}
    assert checks == dict.fromkeys(METRICS, ("failed", N))


def test_compare_says_worse(nights: tuple[Place, str, str]) -> None:
    place, base, half = nights
    metrics = {row["metric"]: row for row in place.call("compare", base, half, "--json").document["metrics"]}
    assert {metrics[name]["verdict"] for name in METRICS} == {"worse"}
    assert {metrics[name]["verdict"] for name in ("factual_f1", "factual_recall")} == {"same"}


def test_rows_by_rule_lead_back_to_no_call(nights: tuple[Place, str, str]) -> None:
    place, _, half = nights
    shown = place.call("lineage", half, "buoy-1", "context_recall")
    assert shown.status == 0
    assert "no context was retrieved" in shown.stdout


def test_a_dry_run_counts_no_request_for_what_was_not_found(tmp_path: Path, prefect_home: Path) -> None:
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home), "OPENAI_API_KEY": "sk-none"})
    rows = [make_row(number, found=False) for number in range(1, 4)]
    (tmp_path / "none.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    metrics = ",".join((*METRICS, "contexts_usefulness"))
    dry = place.call("run", "none.jsonl", "--judge", "openai:gpt-4.1-mini", "--metrics", metrics, "--dry-run", "--json")
    assert dry.status == 0, dry.stderr
    assert {step["step"] for step in dry.document["steps"]} == {"extract_answer", "extract_ground_truth"}


BOT = """
def ask(question: str) -> dict:
    if "1 " in question:
        return {"answer": " ", "contexts": []}
    return {"answer": "It was laid in the year 1806.", "contexts": ["Buoy 2 was laid in the year 1806."]}
"""
SUITE = """
dataset = "buoys.jsonl"
judge = "lexical"

[target]
callable = "buoy_bot:ask"
"""


def test_a_live_bot_that_says_nothing_has_refused(tmp_path: Path, prefect_home: Path) -> None:
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    (tmp_path / "buoy_bot.py").write_text(BOT, encoding="utf-8")
    (tmp_path / "suite.toml").write_text(SUITE, encoding="utf-8")
    rows = [{key: make_row(number)[key] for key in ("id", "question", "ground_truth")} for number in (1, 2)]
    (tmp_path / "buoys.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    ran = place.call("run", "suite.toml", "--json")
    assert ran.status == 0, ran.stderr
    sql = "select metric, value, unscored_reason from scores where sample_id = 'buoy-1'"
    scores = {row["metric"]: row for row in place.call("query", sql, "--format", "json").document}
    names = ("factual_recall", "factual_f1", "answer_correctness", "context_recall", "context_precision")
    assert {name: scores[name]["value"] for name in names} == dict.fromkeys(names, 0)
    assert scores["faithfulness"]["unscored_reason"] == "no_statements"
    kept = place.call("query", "select answer, contexts, status from responses order by sample_id", "--format", "json")
    assert kept.document[0] == {"answer": "", "contexts": [], "status": "ok"}
