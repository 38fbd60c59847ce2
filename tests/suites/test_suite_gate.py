"""The gate of a suite: which run it is measured against, what the first night leaves open, and what goes on record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.serving.gate import check_suite_gate, decide_suite_gate, find_previous
from evalhouse.tasks.settings.suite import SuiteGate
from evalhouse.warehouse.metric_files import load_metrics, plan_run
from evalhouse.warehouse.rows.runs import RunRow, find_run, insert_run
from evalhouse.warehouse.store import Warehouse

METRICS = ("factual_f1", "faithfulness")
N_SAMPLES = 40


@pytest.fixture
def store(tmp_path: Path) -> Warehouse:
    return make_warehouse(tmp_path)


def add_night(store: Warehouse, run_id: str, minute: int, value: str = "0.9", **columns: object) -> RunRow:
    """A run of 40 samples whose scores are `value`, in SQL over `n`, the number of the sample."""
    gate = columns.pop("gate_limits", None)
    given = {"suite": "s", "status": "completed", "metrics": METRICS, "n_samples": N_SAMPLES, **columns}
    insert_run(store, make_run(run_id, minute=minute, config={"gate": gate} if gate else {}, **given))
    numbers = f"range({N_SAMPLES}) as numbers (n)"
    with store.writing(patience_s=1.0) as connection:
        connection.execute(
            f"insert into run_samples (run_id, sample_id, input_hash, ordinal) "
            f"select '{run_id}', 's' || n, 'h', n + 1 from {numbers}"
        )
        connection.execute(
            f"insert into scores (run_id, sample_id, metric, value, metric_version) "
            f"select '{run_id}', 's' || n, metric, {value}, '1' from {numbers}, unnest($metrics) as of (metric)",
            {"metrics": list(METRICS)},
        )
    return find_run(store, run_id)


def decide(store: Warehouse, run: RunRow) -> dict[str, Any]:
    document = decide_suite_gate(store, run)
    assert document is not None
    return document


def summarise(document: dict[str, Any]) -> dict[tuple[str, str | None], str]:
    return {(check["kind"], check["metric"]): check["outcome"] for check in document["checks"]}


def test_every_kind_of_limit_is_checked(store: Warehouse) -> None:
    limits = {
        "min": {"factual_f1": 0.5},
        "max": {"faithfulness": 0.5},
        "max_drop": {"factual_f1": 0.02},
        "coverage": {"factual_f1": 1.0},
        "min_coverage": 0.5,
        "max_cost": 1.0,
    }
    add_night(store, "before", 0)
    document = decide(store, add_night(store, "night", 60, gate_limits=limits))
    assert summarise(document) == {
        ("min", "factual_f1"): "passed",
        ("max", "faithfulness"): "failed",
        ("max_drop", "factual_f1"): "undecided",
        ("min_coverage", "factual_f1"): "passed",
        ("min_coverage", "faithfulness"): "passed",
        ("max_cost", None): "passed",
    }
    assert {check["metric"]: check["limit"] for check in document["checks"] if check["kind"] == "min_coverage"} == {
        "factual_f1": 1.0,
        "faithfulness": 0.5,
    }
    assert document["outcome"] == "failed"
    assert find_run(store, "night").gate == "failed"


def test_a_drop_is_measured_against_the_last_completed_night_of_the_suite(store: Warehouse) -> None:
    add_night(store, "too-old", 0, "0.1")
    add_night(store, "right", 10, "0.9 + n % 3 * 0.01")
    add_night(store, "incomplete", 20, "0.1", status="incomplete")
    add_night(store, "of-another", 30, "0.1", suite="t")
    add_night(store, "noise", 40, "0.1", kind="noise")
    night = add_night(store, "night", 60, "0.5 + n % 3 * 0.01", gate_limits={"max_drop": {"factual_f1": 0.02}})
    add_night(store, "later", 70, "0.1")
    found = find_previous(store, night)
    assert found is not None
    assert found.run_id == "right"
    document = decide(store, night)
    assert document["against"]["run_id"] == "right"
    (check,) = document["checks"]
    assert check["value"] == pytest.approx(0.4)
    assert document["outcome"] == "failed"


@pytest.mark.parametrize(("undecided", "outcome"), [("pass", "passed"), ("fail", "failed")])
def test_the_first_night_leaves_drops_open(store: Warehouse, undecided: str, outcome: str) -> None:
    limits = {"max_drop": {"factual_f1": 0.02}, "min": {"factual_f1": 0.5}, "undecided": undecided}
    document = decide(store, add_night(store, "night", 0, gate_limits=limits))
    assert (document["against"], document["outcome"]) == (None, outcome)
    (drop,) = [check for check in document["checks"] if check["kind"] == "max_drop"]
    assert (drop["outcome"], drop["detail"]) == (
        "undecided",
        "there is no earlier completed run of suite s to compare with",
    )


def test_a_baseline_may_be_a_label_and_is_missed_without_an_error(store: Warehouse) -> None:
    limits = {"against": "release", "max_drop": {"factual_f1": 0.02}}
    missed = decide(store, add_night(store, "night-1", 10, gate_limits=limits))
    assert missed["checks"][0]["outcome"] == "undecided"
    assert missed["checks"][0]["detail"].startswith("the baseline is not to be found: no run fits 'release'")
    add_night(store, "base", 0, label="release")
    assert decide(store, add_night(store, "night-2", 20, gate_limits=limits))["against"]["run_id"] == "base"
    own = decide(store, add_night(store, "night-3", 30, gate_limits={**limits, "against": "night-3"}))
    assert own["checks"][0]["detail"] == "the baseline 'night-3' is this run itself"


def test_what_cannot_be_compared_is_undecided_and_the_rest_decided(store: Warehouse) -> None:
    limits = {"cluster": "no_such_column", "max_drop": {"factual_f1": 0.02}, "max": {"factual_f1": 0.5}}
    add_night(store, "before", 0)
    document = decide(store, add_night(store, "night", 60, gate_limits=limits))
    assert summarise(document) == {("max", "factual_f1"): "failed", ("max_drop", "factual_f1"): "undecided"}
    (drop,) = [check for check in document["checks"] if check["kind"] == "max_drop"]
    assert drop["detail"].startswith("it cannot be compared: ")
    assert "no_such_column" in drop["detail"]


@pytest.mark.parametrize(
    "columns", [{"status": "failed"}, {"status": "cancelled"}, {"kind": "collection"}, {"gate_limits": None}]
)
def test_there_are_runs_without_a_verdict(store: Warehouse, columns: dict[str, object]) -> None:
    run = add_night(store, "night", 0, **{"gate_limits": {"max_cost": 1.0}, **columns})
    assert decide_suite_gate(store, run) is None
    assert find_run(store, "night").gate is None


def test_limits_of_what_is_not_scored_are_refused_beforehand() -> None:
    plan = plan_run(["factual_f1"], load_metrics())
    check_suite_gate(SuiteGate(min={"factual_f1": 0.5}), plan)
    with pytest.raises(SettingsError) as refused:
        check_suite_gate(SuiteGate(min={"factual_f1": 0.5, "factual_f2": 0.5}, max_drop={"mrr": 0.1}), plan)
    assert str(refused.value) == (
        "[gate] has limits of factual_f2, mrr, which the run does not score; it scores: factual_f1"
    )
