"""Questions whose ground truth states nothing: a refusal is right, an answer is wrong, and no ranking can be either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_process import Finished, Place

SILENCE = "I don't know."
RANKING = ("context_precision", "precision_retrieved", "hit_retrieved", "mrr_retrieved", "ndcg_retrieved")


def run(place: Place, name: str, answers: list[str], *more: str) -> Finished:
    rows = [
        {"id": f"q{number}", "question": f"Who keeps light {number}?", "answer": answer, "ground_truth": SILENCE,
         "contexts": [f"Light {number} was built in 1890.", "Nets dry on the quay."]}
        for number, answer in enumerate(answers, start=1)
    ]  # fmt: skip
    (place.folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return place.call("run", f"{name}.jsonl", "--judge", "lexical", *more)


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> tuple[Place, str, str]:
    """A bot that invents every other answer, and one that refuses, as it should."""
    place = Place(folder=tmp_path_factory.mktemp("lights"), variables={"PREFECT_HOME": str(prefect_home)})
    invented = [f"Maud Tregarthen keeps light {number}." if number % 2 else SILENCE for number in range(1, 13)]
    base = run(place, "inventing", invented, "--json").document["run_id"]
    return place, base, run(place, "refusing", [SILENCE] * 12, "--json").document["run_id"]


def read_scores(place: Place, run_id: str) -> dict[str, list[Any]]:
    sql = (
        "select metric, list(coalesce(value::varchar, unscored_reason) order by sample_id) as found "
        f"from scores where run_id = '{run_id}' group by metric"
    )
    return {row["metric"]: row["found"] for row in place.call("query", sql, "--format", "json").document}


def test_refusals_score_refusal_rate_and_nothing_of_ranking(nights: tuple[Place, str, str]) -> None:
    place, base, refusing = nights
    scores = read_scores(place, base)
    assert sorted(scores["refusal_rate"]) == ["0.0"] * 6 + ["1.0"] * 6
    for metric in ("answer_rate", *RANKING):
        assert set(scores[metric]) == {"no_statements"}, metric
    assert set(read_scores(place, refusing)["refusal_rate"]) == {"1.0"}


def test_bot_that_learns_to_refuse_is_better_in_the_comparison(nights: tuple[Place, str, str]) -> None:
    place, base, refusing = nights
    metrics = {row["metric"]: row for row in place.call("compare", base, refusing, "--json").document["metrics"]}
    assert (metrics["refusal_rate"]["mean_base"], metrics["refusal_rate"]["mean_candidate"]) == (0.5, 1.0)
    assert metrics["refusal_rate"]["verdict"] == "better"
    table, _, note = place.call("compare", base, refusing, "--all").stdout.partition("note: scored in neither run: ")
    assert "recall_at_k" not in table
    assert "recall_at_k" in note.splitlines()[0]


def test_diagnose_distinguishes_the_two(nights: tuple[Place, str, str]) -> None:
    place, base, _ = nights
    causes = {row["cause"]: row["n_samples"] for row in place.call("diagnose", base, "--json").document["causes"]}
    assert {cause: n for cause, n in causes.items() if n} == {"refused_rightly": 6, "answered_unanswerable": 6}


def test_metrics_that_scored_no_sample_are_named_below_the_table(
    nights: tuple[Place, str, str],
) -> None:
    place, base, _ = nights
    shown = place.call("show", base).stdout
    table = shown.partition("note: nothing was scored by ")[0]
    assert "refusal_rate" in table
    assert "recall_at_k" not in table
    assert "hit_at_k" in shown.partition("note: nothing was scored by ")[2].splitlines()[0]


@pytest.mark.slow
def test_the_refusals_of_the_shipped_sample_are_distinguished(nights: tuple[Place, str, str]) -> None:
    """One right refusal states a fact beside it, which the contexts support."""
    place = nights[0]
    run_id = place.call("run", "sample", "--limit", "62", "--json").document["run_id"]
    sql = (
        "select samples.metadata->>'kind' as kind, cause, count(*) as n from sample_causes "
        "join run_samples using (run_id, sample_id) join samples using (sample_id, input_hash) "
        f"where run_id = '{run_id}' and (samples.metadata->>'kind') like 'refuses_%' group by all"
    )
    rows = place.call("query", sql, "--format", "json").document
    assert {(row["kind"], row["cause"]): row["n"] for row in rows} == {
        ("refuses_rightly", "refused_rightly"): 4,
        ("refuses_rightly", "ground_truth_doubtful"): 1,
        ("refuses_wrongly", "refused_wrongly"): 4,
    }
