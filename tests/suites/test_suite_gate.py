"""The gate of a suite: its baseline, undecided checks of the first night, and stored decisions.

A run that a gate has refused is never a baseline, until the drop is fixed or a person accepts it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from kept_open import kept_open
from rows import fill
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.live_run import find_responses
from evalhouse.flows.results.baseline import read_moves
from evalhouse.flows.results.gate import list_baseline, read_scores
from evalhouse.flows.results.headline import lay_against, write_headline
from evalhouse.flows.serving.suite_checks import check_suite_gate, list_shortages
from evalhouse.flows.serving.suite_runs import decide_suite_gate
from evalhouse.tasks.comparing.gate_checks import check_drops, find_first_alike
from evalhouse.tasks.comparing.paired import Paired, Scored, Shares
from evalhouse.tasks.comparing.runs import ComparisonSettings, compare_runs, describe_metric
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.settings.suite import SuiteGate
from evalhouse.warehouse.rows import samples
from evalhouse.warehouse.rows.gates import accept_run, find_user
from evalhouse.warehouse.rows.run_pairs import RunPair
from evalhouse.warehouse.rows.runs import RunRow, find_run, insert_run
from evalhouse.warehouse.rows.samples import NO_CLUSTER
from evalhouse.warehouse.store import Warehouse, derive

# Acceptances are made now and the nights of a test long before: what comes after an acceptance is far in the future.
TOMORROW = 60 * 24 * 365 * 50
METRICS = ("factual_f1", "faithfulness")
N_SAMPLES = 40


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Warehouse]:
    with kept_open(tmp_path):
        yield make_warehouse(tmp_path)


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
        derive(connection, [run_id], ["scores"])
    return find_run(store, run_id)


def pass_night(store: Warehouse, run_id: str, minute: int, value: str = "0.9", **columns: object) -> RunRow:
    """A night whose gate let it through."""
    run = add_night(store, run_id, minute, value, gate_limits={"max_cost": 1.0}, **columns)
    assert decide(store, run)["outcome"] == "passed"
    return run


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
        "max_latency_p95_ms": 100.0,
    }
    pass_night(store, "before", 0)
    document = decide(store, add_night(store, "night", 60, gate_limits=limits))
    assert summarise(document) == {
        ("min", "factual_f1"): "passed",
        ("max", "faithfulness"): "failed",
        ("max_drop", "factual_f1"): "passed",
        ("trend", "factual_f1"): "passed",
        ("min_coverage", "factual_f1"): "passed",
        ("min_coverage", "faithfulness"): "passed",
        ("max_cost", None): "passed",
        ("max_latency_p95_ms", None): "undecided",
    }
    assert {check["metric"]: check["limit"] for check in document["checks"] if check["kind"] == "min_coverage"} == {
        "factual_f1": 1.0,
        "faithfulness": 0.5,
    }
    assert document["outcome"] == "failed"
    assert find_run(store, "night").gate == "failed"


@pytest.mark.parametrize(
    ("reasons", "checks"),
    [
        ("if(n = 0, 'target_failed', 'no_citations')", {("min_coverage", "factual_f1"): "passed"}),
        ("if(n < 3, 'target_failed', 'no_citations')", {
            ("min_coverage", "factual_f1"): "passed", ("min_coverage", "faithfulness"): "failed",
        }),
        ("if(n = 0, 'target_failed', 'no_ground_truth')", {
            ("min_coverage", "factual_f1"): "passed", ("min_coverage", "faithfulness"): "failed",
        }),
    ],
    ids=["not known to apply", "several failed", "known to apply"],
)  # fmt: skip
def test_one_failure_does_not_make_a_metric_apply_that_had_nothing_to_judge(
    store: Warehouse, reasons: str, checks: dict[tuple[str, str | None], str]
) -> None:
    """One bad answer of 300 failed the night by the coverage of a metric that applied to no sample."""
    run = add_night(store, "night", 60, gate_limits={"min_coverage": 0.9})
    with store.writing(patience_s=1.0) as connection:
        connection.execute(
            f"update scores set value = null, unscored_reason = {reasons} "
            "from (select sample_id, ordinal - 1 as n from run_samples) as numbers "
            "where metric = 'faithfulness' and numbers.sample_id = scores.sample_id"
        )
        derive(connection, ["night"], ["scores"])
    assert summarise(decide(store, run)) == checks


WORSE = "0.5 + n % 3 * 0.01"
GOOD = "0.9 + n % 3 * 0.01"
DROP = {"max_drop": {"factual_f1": 0.02}}


def test_the_baseline_is_the_last_night_that_passed(store: Warehouse) -> None:
    pass_night(store, "too-old", 0, "0.1")
    pass_night(store, "right", 10, GOOD)
    pass_night(store, "incomplete", 20, "0.1", status="incomplete")
    pass_night(store, "of-another", 30, "0.1", suite="t")
    add_night(store, "noise", 40, "0.1", kind="noise")
    add_night(store, "without-a-gate", 50, "0.1")
    night = add_night(store, "night", 60, WORSE, gate_limits=DROP)
    pass_night(store, "later", 70, "0.1")
    document = decide(store, night)
    assert document["against"]["run_id"] == "right"
    assert document["baseline"] == {"against": "passed", "run_ids": ["right"], "accepted": None}
    assert document["checks"][0]["value"] == pytest.approx(0.4)
    assert document["outcome"] == "failed"


def test_refused_drop_is_refused_every_night_until_it_is_fixed(store: Warehouse) -> None:
    pass_night(store, "good", 0, GOOD)
    for minute in (10, 20, 30):
        document = decide(store, add_night(store, f"broken-{minute}", minute, WORSE, gate_limits=DROP))
        assert (document["outcome"], document["against"]["run_id"]) == ("failed", "good")
    fixed = decide(store, add_night(store, "fixed", 40, GOOD, gate_limits=DROP))
    assert (fixed["outcome"], fixed["against"]["run_id"]) == ("passed", "good")
    assert decide(store, add_night(store, "next", 50, GOOD, gate_limits=DROP))["against"]["run_id"] == "fixed"


def test_accepted_run_is_the_baseline_until_a_later_run_passes(store: Warehouse) -> None:
    pass_night(store, "good", 0, GOOD)
    assert decide(store, add_night(store, "broken", 10, WORSE, gate_limits=DROP))["outcome"] == "failed"
    accept_run(store, "broken", accepted_by="ann", why="the new corpus is harder")
    after = decide(store, add_night(store, "after", TOMORROW, WORSE, gate_limits=DROP))
    assert after["outcome"] == "passed"
    accepted = after["baseline"]["accepted"]
    assert (accepted["run_id"], accepted["accepted_by"]) == ("broken", "ann")
    assert accepted["why"] == "the new corpus is harder"
    assert find_run(store, "broken").gate == "failed"
    later = decide(store, add_night(store, "later", TOMORROW + 10, WORSE, gate_limits=DROP))
    assert later["baseline"] == {"against": "passed", "run_ids": ["after"], "accepted": None}


def test_an_old_run_can_be_accepted_over_newer_ones_that_passed(store: Warehouse) -> None:
    for minute in (0, 10, 20):
        pass_night(store, f"night-{minute}", minute, GOOD)
    accept_run(store, "night-0", accepted_by="ann", why="the others had the wrong corpus")
    document = decide(store, add_night(store, "night", TOMORROW, GOOD, gate_limits=DROP))
    assert document["against"]["run_id"] == "night-0"


@pytest.mark.parametrize(
    ("value", "base"),
    [
        # 6 of 40 much worse and 3 much better: can be chance.
        (f"case when n % 7 = 0 then 0 when n % 15 = 1 then 1.9 else {GOOD} end", "night-1"),
        # 7 of 40 worse: more than chance, but it may be less than the limit of 0.05.
        (f"if(n % 6 = 0, 0.4, {GOOD})", "good"),
    ],
)
def test_significantly_worse_run_may_pass_but_is_not_a_baseline(store: Warehouse, value: str, base: str) -> None:
    """Were it the baseline, a second one like it would be forgotten."""
    limits = {"max_drop": {"factual_f1": 0.05}}
    pass_night(store, "good", 0, GOOD)
    document = decide(store, add_night(store, "night-1", 10, value, gate_limits=limits))
    (drop,) = [check for check in document["checks"] if check["kind"] == "max_drop"]
    assert (document["outcome"], drop["outcome"]) == ("passed", "undecided")
    assert drop["beyond"] > 0
    assert decide(store, add_night(store, "night-2", 20, GOOD, gate_limits=limits))["against"]["run_id"] == base


def test_the_mean_of_the_last_runs_that_passed_is_taken_sample_by_sample(store: Warehouse) -> None:
    limits = {**DROP, "against": "mean_of_passed", "k": 2}
    pass_night(store, "old", 0, "0.1")
    first = add_night(store, "first", 10, "0.4", gate_limits=limits)
    assert decide(store, first)["baseline"]["run_ids"] == ["old"]
    pass_night(store, "second", 20, "if(n < 10, null, 0.8)")
    document = decide(store, add_night(store, "night", 30, "if(n < 10, 0.4, 0.5)", gate_limits=limits))
    assert document["baseline"]["run_ids"] == ["first", "second"]
    (drop,) = [check for check in document["checks"] if check["kind"] == "max_drop"]
    # Ten samples have the first run's 0.4 alone, thirty the mean of 0.4 and 0.8.
    assert (drop["value"], drop["n"]) == (pytest.approx(0.1 * 30 / 40), 40)


def test_a_limit_that_few_samples_cannot_pass_is_named_with_the_number_that_can() -> None:
    drops = {"factual_f1": 0.02, "faithfulness": 0.02, "mrr": 0.5, "bleu": 0.0, "own": 0.01}
    limits = SuiteGate(max_drop=drops, min={"accuracy": 0.99, "mrr": 0.6}, max={"hallucination": 0.03})
    lowest = dict.fromkeys(("factual_f1", "faithfulness", "mrr", "bleu", "hallucination"), 0.0) | {"accuracy": 0.1}
    found = list_shortages(limits, lowest, 120)
    assert [(text.split(":")[0].split(" for ")[1], text.split("; ")[-1]) for text in found] == [
        ("max_drop 0.02 of factual_f1, faithfulness", "it takes 183"),
        ("max_drop 0 of bleu", "no number is enough"),
        ("min 0.99 of accuracy", "it takes 331"),
        ("max 0.03 of hallucination", "it takes 122"),
    ]
    assert len(list_shortages(limits, lowest, 5)) == 6
    assert [text for text in list_shortages(limits, lowest, 331) if "bleu" not in text] == []


@pytest.mark.parametrize(
    ("against", "changed", "value", "outcomes"),
    [
        ("passed", "", GOOD, ("passed", "passed")),
        ("passed", "answer", GOOD, ("undecided", "undecided")),
        ("passed", "contexts", GOOD, ("passed", "undecided")),
        ("mean_of_passed", "ground_truth", GOOD, ("undecided", "passed")),
        # The same inputs, and the judge's replies are not the same: its noise is not ignored.
        ("passed", "", "if(n = 3, 0, 0.9 + n % 3 * 0.01)", ("undecided", "undecided")),
    ],
)
def test_a_drop_is_decided_however_few_the_samples_where_nothing_changed_that_the_metric_reads(
    *, store: Warehouse, against: str, changed: str, value: str, outcomes: tuple[str, str]
) -> None:
    limits = {"max_drop": dict.fromkeys(METRICS, 0.02), "against": against, "trend": False}
    for night, text in (("one", "a"), ("two", "a"), ("night", "b")):
        run = add_night(store, night, len(night), GOOD if night != "night" else value, gate_limits=limits)
        texts = dict.fromkeys(("question", "answer", "ground_truth", "contexts"), "a")
        texts |= {changed: text} if changed else {}
        with store.writing(patience_s=1.0) as connection:
            # One sample of forty, in which one text may be another one.
            connection.execute(
                "insert into samples (sample_id, input_hash, question, answer, ground_truth, contexts) "
                "select 's5', $hash, $question, $answer, $ground_truth, [$contexts] "
                "where $hash not in (select input_hash from samples)",
                {"hash": "".join(texts.values()), **texts},
            )
            connection.execute(
                "update run_samples set input_hash = $hash where run_id = $run_id and sample_id = 's5'",
                {"hash": "".join(texts.values()), "run_id": night},
            )
        document = decide(store, run)
    found = summarise(document)
    assert tuple(found["max_drop", metric] for metric in METRICS) == outcomes


@pytest.mark.parametrize(
    ("against", "base"), [("previous_any", "refused"), ("previous", "good"), ("night-0", "night-0")]
)
def test_other_baselines_are_a_choice(store: Warehouse, against: str, base: str) -> None:
    pass_night(store, "night-0", 0, GOOD)
    pass_night(store, "good", 10, GOOD)
    assert decide(store, add_night(store, "refused", 20, WORSE, gate_limits=DROP))["outcome"] == "failed"
    limits = {**DROP, "against": against, "trend": False}
    document = decide(store, add_night(store, "night", 30, WORSE, gate_limits=limits))
    assert document["against"]["run_id"] == base
    assert document["outcome"] == ("passed" if base == "refused" else "failed")


@pytest.mark.parametrize(("against", "outcome"), [("relase-1", "failed"), ("previous", "passed")])
def test_a_mistyped_baseline_fails_and_the_first_night_passes(store: Warehouse, against: str, outcome: str) -> None:
    document = decide(store, add_night(store, "night", 0, GOOD, gate_limits={**DROP, "against": against}))
    (drop,) = [check for check in document["checks"] if check["kind"] == "max_drop"]
    assert (document["outcome"], drop["reason"]) == (outcome, "nothing_common")


@pytest.mark.parametrize("against", ["mean_of_passed", "previous_any"])
def test_a_baseline_without_a_common_sample_fails_the_gate_and_says_what_to_do(store: Warehouse, against: str) -> None:
    for minute in (0, 10):
        pass_night(store, f"night-{minute}", minute, GOOD)
    night = add_night(store, "night", 20, GOOD, gate_limits={**DROP, "against": against, "trend": False})
    with store.writing(patience_s=1.0) as connection:
        for table in ("run_samples", "scores"):
            connection.execute(f"update {table} set sample_id = 'new-' || sample_id where run_id = 'night'")
    document = decide(store, night)
    assert document["outcome"] == "failed"
    (drop,) = [check for check in document["checks"] if check["kind"] == "max_drop"]
    assert (drop["outcome"], drop["reason"]) == ("failed", "nothing_common")
    assert "have no sample in common" in drop["detail"]
    assert "evalhouse gate --accept RUN" in drop["detail"]
    # No run of traces can be accepted for the next night, which has others.
    with store.writing(patience_s=1.0) as connection:
        connection.execute('update runs set config = json_merge_patch(config, \'{"format": "otel"}\')')
    (drop,) = [check for check in decide(store, find_run(store, "night"))["checks"] if check["kind"] == "max_drop"]
    assert "each night has other traces" in drop["detail"]
    assert "--accept" not in drop["detail"]


@pytest.mark.parametrize(
    ("against", "judge", "version"), [("passed", "openai:other", "1"), ("mean_of_passed", "lexical", "2")]
)
def test_another_judge_or_formula_leaves_drops_open_for_one_night(
    store: Warehouse, against: str, judge: str, version: str
) -> None:
    limits = {**DROP, "against": against}
    for minute in (0, 10):
        pass_night(store, f"night-{minute}", minute, GOOD)
    changed = add_night(store, "changed", 20, WORSE, gate_limits=limits, judge=judge)
    with store.writing(patience_s=1.0) as connection:
        connection.execute("update scores set metric_version = ? where run_id = 'changed'", [version])
    document = decide(store, changed)
    reasons = {check["kind"]: (check["outcome"], check["reason"]) for check in document["checks"]}
    assert reasons["max_drop"] == ("undecided", "other_judge" if version == "1" else "other_formula")
    assert reasons["trend"] == ("passed", None)
    assert decide(store, add_night(store, "next", 30, gate_limits=limits))["baseline"]["run_ids"][-1] == "changed"


@pytest.mark.parametrize("trend", [False, {"faithfulness": 0.03}])
def test_the_trend_is_a_setting(store: Warehouse, trend: object) -> None:
    pass_night(store, "before", 0)
    document = decide(store, add_night(store, "night", 10, gate_limits={**DROP, "trend": trend}))
    limits = {check["metric"]: check["limit"] for check in document["checks"] if check["kind"] == "trend"}
    assert limits == ({"factual_f1": 0.01, "faithfulness": 0.03} if trend else {})


def test_a_decision_is_on_record_with_its_checks(store: Warehouse) -> None:
    pass_night(store, "good", 0, GOOD)
    document = decide(store, add_night(store, "night", 10, WORSE, gate_limits=DROP))
    (row,) = store.read_rows("select * from gate_decisions where run_id = 'night'")
    assert (row["origin"], row["outcome"], row["is_baseline"], row["against"]) == ("suite", "failed", False, "passed")
    assert (row["base_run_ids"], row["decided_by"]) == (["good"], find_user())
    checks = store.read_rows(
        "select kind, metric, limit_value, value, n, outcome, reason from gate_checks where run_id = 'night'"
    )
    names = ("kind", "metric", "limit", "value", "n", "outcome", "reason")
    assert [tuple(check.values()) for check in checks] == [
        tuple(check[name] for name in names) for check in document["checks"]
    ]
    assert find_run(store, "night").gate == "failed"


def test_the_first_night_leaves_drops_open(store: Warehouse) -> None:
    limits = {"max_drop": {"factual_f1": 0.02}, "min": {"factual_f1": 0.5}, "undecided": "fail"}
    document = decide(store, add_night(store, "night", 0, gate_limits=limits))
    assert (document["against"], document["outcome"]) == (None, "failed")
    (drop,) = [check for check in document["checks"] if check["kind"] == "max_drop"]
    assert (drop["outcome"], drop["detail"]) == (
        "undecided",
        "no earlier run of suite s has passed its gate, so there is nothing to compare with; the first that passes is "
        "the baseline, or one that `evalhouse gate --accept RUN` accepts",
    )


def test_a_baseline_may_be_a_label_and_fails_the_gate_where_it_is_missing(store: Warehouse) -> None:
    limits = {"against": "release", "max_drop": {"factual_f1": 0.02}}
    missed = decide(store, add_night(store, "night-1", 10, gate_limits=limits))
    assert missed["checks"][0]["outcome"] == "failed"
    assert missed["checks"][0]["detail"].startswith("the baseline cannot be found: no run fits 'release'")
    add_night(store, "base", 0, label="release")
    assert decide(store, add_night(store, "night-2", 20, gate_limits=limits))["against"]["run_id"] == "base"
    own = decide(store, add_night(store, "night-3", 30, gate_limits={**limits, "against": "night-3"}))
    assert own["checks"][0]["detail"] == "the baseline 'night-3' is this run itself"


def test_limits_that_cannot_be_compared_fail_and_the_rest_is_decided(store: Warehouse) -> None:
    """A mistyped column let every night through, and made it the next baseline."""
    limits = {"cluster": "no_such_column", "max_drop": {"factual_f1": 0.02}, "max": {"factual_f1": 0.95}}
    pass_night(store, "before", 0)
    document = decide(store, add_night(store, "night", 60, gate_limits=limits))
    assert summarise(document) == {
        ("max", "factual_f1"): "passed", ("max_drop", "factual_f1"): "failed", ("trend", "factual_f1"): "failed",
    }  # fmt: skip
    (drop,) = [check for check in document["checks"] if check["kind"] == "max_drop"]
    assert drop["detail"].startswith("it cannot be compared: ")
    assert "no_such_column" in drop["detail"]


def replace_samples(store: Warehouse, run_id: str, sql: str) -> None:
    """Give samples of a run other ids, as after an edit of the dataset."""
    with store.writing(patience_s=1.0) as connection:
        for table in ("run_samples", "scores"):
            connection.execute(f"update {table} set sample_id = {sql} where run_id = '{run_id}'")


@pytest.mark.parametrize("against", ["passed", "mean_of_passed"])
def test_a_night_with_few_samples_of_the_baseline_is_undecided_and_no_baseline(store: Warehouse, against: str) -> None:
    """Six samples that an edit of the dataset had left alone decided for sixty, and the bad night was the baseline."""
    pass_night(store, "good", 0, GOOD)
    for night, bad in (("edited", "if(n < 4, 0.9 + n % 3 * 0.01, 0.1)"), ("next", "0.1")):
        limits = {**DROP, "against": against, "trend": False}
        run = add_night(store, night, 10 if night == "edited" else 20, bad, gate_limits=limits)
        replace_samples(store, night, "if(substr(sample_id, 2)::int < 4, sample_id, 'new-' || sample_id)")
        document = decide(store, run)
        (drop,) = [check for check in document["checks"] if check["kind"] == "max_drop"]
        assert (drop["outcome"], drop["reason"], drop["n"]) == ("undecided", "few_common", 4)
        assert document["baseline"]["run_ids"] == ["good"]
    assert drop["detail"].startswith("only 4 samples are scored in both (40 here, 40 in the baseline)")


def test_a_night_that_lacks_scores_is_no_baseline_even_if_more_is_undecided(store: Warehouse) -> None:
    """Half of the contexts were lost and the other answers had other words: too few samples, and a baseline."""
    pass_night(store, "good", 0, "0.9")
    limits = {**DROP, "trend": False}
    lossy = add_night(store, "lossy", 10, "if(n % 2 = 0, null, 0.9 + n % 3 * 0.001)", gate_limits=limits)
    with store.writing(patience_s=1.0) as connection:
        connection.execute("update scores set unscored_reason = 'no_contexts' where value is null")
        connection.execute("update run_samples set input_hash = 'other' where run_id = 'lossy'")
    (drop,) = [check for check in decide(store, lossy)["checks"] if check["kind"] == "max_drop"]
    assert (drop["outcome"], drop["reason"]) == ("undecided", "scores_lost")
    document = decide(store, add_night(store, "wrong", 20, "if(n % 2 = 0, 0.1, 0.9)", gate_limits=limits))
    assert (document["baseline"]["run_ids"], document["outcome"]) == (["good"], "failed")


def split_texts(store: Warehouse, *run_ids: str, refused: str = "", truths: str = "n >= 8") -> None:
    """Record the splits of these runs: ground truths state something where `truths` holds, answers but in `refused`."""
    numbers = f"unnest($run_ids::varchar[]) as runs (run_id), range({N_SAMPLES}) as numbers (n)"
    with store.writing(patience_s=1.0) as connection:
        connection.execute(
            "insert into outcomes (run_id, sample_id, step) select run_id, 's' || n, 'extract_' || source "
            f"from {numbers}, (values ('answer'), ('ground_truth')) as texts (source)",
            {"run_ids": list(run_ids)},
        )
        connection.execute(
            "insert into statements (run_id, sample_id, statement_id, source, ordinal, text) "
            f"select run_id, 's' || n, 'A1', 'answer', 1, 'Open.' from {numbers} where n >= 8 or run_id <> $refused "
            f"union all select run_id, 's' || n, 'G1', 'ground_truth', 1, 'It opens.' from {numbers} where {truths}",
            {"run_ids": list(run_ids), "refused": refused},
        )


@pytest.mark.parametrize("against", ["passed", "mean_of_passed"])
@pytest.mark.parametrize(("truths", "reason", "is_baseline"), [
    ("n >= 8", "no_statements", True), ("true", "no_statements", False), ("n >= 8", "no_answer", False),
])  # fmt: skip
def test_a_night_that_learns_to_refuse_what_has_no_answer_is_the_next_baseline(
    store: Warehouse, against: str, truths: str, reason: str, *, is_baseline: bool
) -> None:
    """Its scores counted as lost, so the baseline stayed a night of inventions, and the fall back to them passed."""
    limits = {**DROP, "against": against, "trend": False}
    pass_night(store, "invents", 0, GOOD)
    refuses = add_night(store, "refuses", 10, f"if(n < 8, null, {GOOD})", gate_limits=limits)
    split_texts(store, "invents", "refuses", refused="refuses", truths=truths)
    with store.writing(patience_s=1.0) as connection:
        connection.execute("update scores set unscored_reason = ? where value is null", [reason])
    document = decide(store, refuses)
    (drop,) = document["checks"]
    assert drop["reason"] in ({None, "too_few_samples"} if is_baseline else {"scores_lost"})
    (decided,) = store.read_rows("select is_baseline from gate_decisions where run_id = 'refuses'")
    assert decided["is_baseline"] is is_baseline
    stays = ["this run is not the baseline of the next ones, because the drop of factual_f1 is undecided"]
    assert [line.partition(":")[0] for line in list_baseline(document)] == ([] if is_baseline else stays)


def keep_relevancy(connection: duckdb.DuckDBPyConnection) -> None:
    """Make the scores of one metric ones of answer_relevancy, and leave no others."""
    connection.execute("delete from scores where metric <> 'factual_f1'")
    connection.execute("update scores set metric = 'answer_relevancy'")


@pytest.mark.parametrize("against", ["passed", "mean_of_passed"])
@pytest.mark.parametrize(("truths", "outcome"), [("n >= 8", "passed"), ("true", "failed")])
def test_a_right_refusal_is_no_fall_of_the_answers_relevancy(
    store: Warehouse, against: str, truths: str, outcome: str
) -> None:
    """The metric is 0 for each refusal, so that a bot which learned to refuse what has no answer was worse."""
    limits = {"max_drop": {"answer_relevancy": 0.02}, "against": against, "trend": False}
    pass_night(store, "invents", 0, GOOD)
    refuses = add_night(store, "refuses", 10, f"if(n < 8, 0, {GOOD})", gate_limits=limits)
    split_texts(store, "invents", "refuses", refused="refuses", truths=truths)
    with store.writing(patience_s=1.0) as connection:
        keep_relevancy(connection)
        derive(connection, ["invents", "refuses"], ["scores"])
    (drop,) = decide(store, refuses)["checks"]
    assert (drop["metric"], drop["outcome"]) == ("answer_relevancy", outcome)
    if truths == "n >= 8":  # the interval of another column held 0.9 only, beside a mean of 0.72
        score = read_scores(store, refuses, cluster=NO_CLUSTER)["answer_relevancy"]
        assert score.ci_low is not None
        assert score.ci_high is not None
        assert score.mean is not None
        assert score.ci_low < score.mean < score.ci_high


@pytest.mark.parametrize(("kind", "outcome"), [("unanswerable", "passed"), ("fact", "failed")])
def test_a_right_refusal_is_found_where_no_metric_needs_statements(store: Warehouse, kind: str, outcome: str) -> None:
    """The same nights passed with answer_rate beside it: which metrics are listed decided about another one."""
    limits = {"max_drop": {"answer_relevancy": 0.02}, "trend": False}
    pass_night(store, "invents", 0, GOOD)
    refuses = add_night(store, "refuses", 10, f"if(n < 8, 0, {GOOD})", gate_limits=limits)
    with store.writing(patience_s=1.0) as connection:
        keep_relevancy(connection)
        connection.execute("update run_samples set metadata = json_object('kind', ?) where ordinal <= 8", [kind])
        connection.execute(
            "insert into grades (run_id, sample_id, rubric, criterion, scale_min, scale_max, rating) "
            "select run_id, sample_id, 'relevancy', "
            "'noncommittal', 0, 1, if(run_id = 'refuses' and ordinal <= 8, 1, 0) from run_samples"
        )
        derive(connection, ["invents", "refuses"], ["scores"])
    (drop,) = decide(store, refuses)["checks"]
    assert (drop["metric"], drop["outcome"]) == ("answer_relevancy", outcome)


def test_a_right_refusal_is_no_fall_in_sampled_nights_either(store: Warehouse) -> None:
    """The same nights passed without a budget of samples."""
    outcomes = {}
    for truths in ("n >= 8", "true"):
        names = [f"{night}-{len(truths)}" for night in ("invents", "refuses")]
        for minute, (name, value) in enumerate(zip(names, (GOOD, f"if(n < 8, 0, {GOOD})"), strict=True)):
            judge_part(store, name, minute, value, "false")
        split_texts(store, *names, refused=names[1], truths=truths)
        with store.writing(patience_s=1.0) as connection:
            keep_relevancy(connection)
            derive(connection, names, ["scores"])
        (compared,) = compare_runs(
            RunPair(store, *(find_run(store, name) for name in names)), ComparisonSettings()
        ).metrics
        outcomes[truths] = (compared.paired.difference, compared.is_partly_lost)
        with store.writing(patience_s=1.0) as connection:
            connection.execute("delete from scores")
    assert outcomes["n >= 8"] == (pytest.approx(0, abs=0.05), False)
    difference, _ = outcomes["true"]
    assert difference is not None
    assert difference < -0.1


@pytest.mark.parametrize(("n_null", "is_noted"), [(36, True), (6, False)])
def test_a_gate_names_a_metric_that_few_samples_have(store: Warehouse, n_null: int, *, is_noted: bool) -> None:
    """A bot that refused nine of ten users passed a smallest mean, with the answers that went well."""
    limits = {"min": {"factual_f1": 0.6}, "trend": False}
    pass_night(store, "answers", 0, GOOD)
    refuses = add_night(store, "refuses", 10, f"if(n < {n_null}, null, {GOOD})", gate_limits=limits)
    with store.writing(patience_s=1.0) as connection:
        connection.execute("update scores set unscored_reason = 'no_statements' where value is null")
        connection.execute("update runs set config = json_merge_patch(config, '{\"failed_traces\": 60}')")
    document = decide(store, find_run(store, refuses.run_id))
    failed = "60 of 100 traces ended with an error and were left out"
    noted = (
        "factual_f1 is of 4 of 40 samples: others have no score because of what the bot returned (no statements 36); "
        "in the run before 0% had none"
    )
    assert document["few_scored"] == [*([noted] if is_noted else []), failed]
    assert document["warnings"][: len(document["few_scored"])] == document["few_scored"]


def test_a_limit_of_the_suite_file_is_not_that_of_a_trial(store: Warehouse) -> None:
    """After the limit was raised, an old night of all samples was the baseline and the run before."""
    for minute, (night, value, limit) in enumerate(
        (("old", "0.2", None), ("limited-1", "0.9", 30), ("limited-2", "0.9", 30))
    ):
        config = {"gate": {"max_cost": 1.0}, "limit": limit, "file_limits": [limit, None]}
        run = add_night(store, night, minute, value)
        with store.writing(patience_s=1.0) as connection:
            connection.execute("update runs set config = ? where run_id = ?", [json.dumps(config), night])
        assert decide(store, find_run(store, run.run_id))["outcome"] == "passed"
    night = add_night(store, "night", 10, "0.3", gate_limits={**DROP, "trend": False})
    document = decide(store, night)
    assert (document["baseline"]["run_ids"], document["outcome"]) == (["limited-2"], "failed")
    assert find_run(store, "previous", beside=night).run_id == "limited-2"
    assert store.fetch_rows("history/previous", run_id="night")[0]["run_id"] == "limited-2"
    # By an option they are trials.
    with store.writing(patience_s=1.0) as connection:
        connection.execute("update runs set config = json_merge_patch(config, '{\"file_limits\": null}')")
    assert decide(store, find_run(store, "night"))["baseline"]["run_ids"] == ["old"]
    assert find_run(store, "previous", beside=find_run(store, "night")).run_id == "old"
    assert store.fetch_rows("history/previous", run_id="night")[0]["run_id"] == "old"


@pytest.mark.parametrize("columns", [{"status": "failed"}, {"kind": "collection"}, {"gate_limits": None}])
def test_failed_runs_and_runs_without_a_gate_get_no_verdict(store: Warehouse, columns: dict[str, object]) -> None:
    run = add_night(store, "night", 0, **{"gate_limits": {"max_cost": 1.0}, **columns})
    assert decide_suite_gate(store, run) is None
    assert find_run(store, "night").gate is None


def add_call(store: Warehouse, run_id: str, judge: str) -> None:
    """One call of the run, which shows who judged it."""
    with store.writing(patience_s=1.0) as connection:
        call = {"call_id": run_id, "sample_id": "s1", "step": "classify", "judge": judge, "prompt_hash": "p"}
        fill(connection, "llm_calls", {"run_id": run_id, "status": "ok", **call})


@pytest.mark.parametrize("trial", [{"judge": "openai:b"}, {"metrics": METRICS[:1]}, {}])
def test_a_trial_that_was_judged_otherwise_is_not_the_baseline_of_the_next_night(
    store: Warehouse, trial: dict[str, Any]
) -> None:
    """A user tries another judge; no later run could be compared with that."""
    for minute, (run_id, columns) in enumerate((("good", {}), ("trial", trial))):
        run = add_night(store, run_id, minute, GOOD, gate_limits={"max_cost": 1.0}, **{"judge": "openai:a", **columns})
        add_call(store, run_id, run.judge)
        assert decide(store, run)["outcome"] == "passed"
    night = add_night(store, "night", 5, WORSE, judge="openai:a", gate_limits={**DROP, "trend": False})
    add_call(store, "night", "openai:a")
    document = decide(store, night)
    assert (document["against"]["run_id"], document["outcome"]) == ("good" if trial else "trial", "failed")


@pytest.mark.parametrize(
    ("columns", "marked"),
    [
        ({"suite": "prod"}, None),
        ({"suite": "prod", "variant": "large"}, "prod/large"),
        ({"suite": "other"}, "other"),
        ({"suite": "prod", "config": {"answers_of": "other"}}, "other"),
        ({"dataset": "tried.jsonl"}, "dataset tried.jsonl"),
    ],
)
def test_a_run_on_answers_of_another_suite_or_dataset_is_marked(
    store: Warehouse, columns: dict[str, Any], marked: str | None
) -> None:
    """It became the baseline of the suite's own bot."""
    insert_run(store, make_run("parent", **{"suite": None, **columns}))
    settings, _, parent = find_responses(RunSettings(suite="prod", dataset="qa.jsonl", responses="parent"), store)
    assert parent is not None
    assert (settings.answers_of, parent.run_id) == (marked, "parent")


@pytest.mark.parametrize("option", ['{"limit": 5}', '{"answers_of": "harbour/large"}'])
def test_a_trial_of_a_few_samples_or_of_other_answers_is_not_the_run_before(store: Warehouse, option: str) -> None:
    """The sentence on top of the next night was about these few, or about the other bot."""
    for minute, (run_id, config) in enumerate((("first", "{}"), ("trial", option), ("night", "{}"))):
        add_night(store, run_id, minute, GOOD if run_id != "night" else WORSE)
        with store.writing(patience_s=1.0) as connection:
            connection.execute(
                "update runs set config = $config where run_id = $run_id", {"config": config, "run_id": run_id}
            )
            if "limit" in config:
                for table in ("run_samples", "scores"):
                    connection.execute(f"delete from {table} where run_id = 'trial' and sample_id not in ('s1', 's2')")
                derive(connection, ["trial"], ["scores"])
    night, trial = find_run(store, "night"), find_run(store, "trial")
    assert find_run(store, "previous").run_id == find_run(store, "previous", beside=trial).run_id == "first"
    moves = read_moves(store, night)
    assert moves is not None
    assert moves.previous.run_id == samples.find_previous(store, "night") == "first"
    assert moves.changes["factual_f1"]["n_shared"] == N_SAMPLES
    before = store.read_rows("select distinct run_id, previous_run_id from sample_changes order by run_id")
    assert [tuple(row.values()) for row in before] == [("first", None), ("night", "first"), ("trial", "first")]
    chain = store.read_rows("select distinct run_id, previous_run_id from score_history order by run_id")
    assert [tuple(row.values()) for row in chain] == [("first", None), ("night", "first"), ("trial", None)]


def test_a_trial_is_the_run_before_if_it_is_the_only_one(store: Warehouse) -> None:
    for minute, limit in enumerate((5, 20)):
        add_night(store, f"of-{limit}", minute)
        with store.writing(patience_s=1.0) as connection:
            connection.execute(f"update runs set config = '{{\"limit\": {limit}}}' where run_id = 'of-{limit}'")
    assert find_run(store, "previous").run_id == samples.find_previous(store, "of-20") == "of-5"
    before = store.read_rows("select distinct previous_run_id from sample_changes where run_id = 'of-20'")
    assert before == [{"previous_run_id": "of-5"}]


@pytest.mark.parametrize(("judge", "outcome", "reason", "trend"), [
    ("openai:other", "undecided", "other_judge", ("passed", None)),
    ("lexical", "failed", "beyond_limit", ("failed", pytest.approx(0.4))),
])  # fmt: skip
def test_a_budget_of_samples_has_estimates_of_two_runs_and_still_sees_another_judge(
    store: Warehouse, judge: str, outcome: str, reason: str, trend: tuple[str, Any]
) -> None:
    """Plain means of several nights, whose samples were picked with unequal probabilities, would mislead."""
    for minute, (run_id, value, own) in enumerate(
        (("one", GOOD, "lexical"), ("two", GOOD, "lexical"), ("night", WORSE, judge))
    ):
        add_night(store, run_id, minute, value, gate_limits={**DROP, "against": "mean_of_passed"}, judge=own)
        with store.writing(patience_s=1.0) as connection:
            connection.execute(
                "update runs set config = json_merge_patch(config, '{\"sample_budget\": 20}') where run_id = ?",
                [run_id],
            )
        document = decide(store, find_run(store, run_id))
    assert document["baseline"]["run_ids"] == ["two"]
    checks = {check["kind"]: check for check in document["checks"]}
    assert (checks["max_drop"]["outcome"], checks["max_drop"]["reason"]) == (outcome, reason)
    assert (checks["trend"]["outcome"], checks["trend"]["value"]) == trend


def test_the_trend_of_sampled_nights_begins_with_the_first_night_that_scored_alike(store: Warehouse) -> None:
    """One night with another judge, or one before a metric was added, left the trend silent for good."""
    for minute, (run_id, value, own) in enumerate(
        (
            ("other", GOOD, "openai:other"),
            ("two", GOOD, "lexical"),
            ("three", GOOD, "lexical"),
            ("night", WORSE, "lexical"),
        )
    ):
        add_night(store, run_id, minute, value, gate_limits=DROP, judge=own)
        with store.writing(patience_s=1.0) as connection:
            connection.execute(
                "update runs set config = json_merge_patch(config, '{\"sample_budget\": 20}') where run_id = ?",
                [run_id],
            )
            if run_id == "two":
                connection.execute("update scores set metric = 'other_' || metric where run_id = 'two'")
                derive(connection, ["two"], ["scores"])
        document = decide(store, find_run(store, run_id))
    (trend,) = [check for check in document["checks"] if check["kind"] == "trend"]
    assert (trend["outcome"], trend["value"]) == ("failed", pytest.approx(0.4))
    run = find_run(store, "night")
    earlier = [find_run(store, name) for name in ("other", "two", "three")]
    found = find_first_alike(store, run, earlier, ["factual_f1"])
    assert found["factual_f1"] is not None
    assert found["factual_f1"].run_id == "three"


SAMPLED = {"factual_f1": 0.02, "faithfulness": 0.02}


def judge_part(store: Warehouse, run_id: str, minute: int, value: str, unscored: str) -> dict[str, Any]:
    """A night that judged 30 of 40 samples, without a score and with a reason where `unscored` holds."""
    limits = {"max_drop": SAMPLED, "min": {"faithfulness": 0.1}}
    run = add_night(store, run_id, minute, value, gate_limits=limits)
    numbers = f"range({N_SAMPLES}) as numbers (n)"
    with store.writing(patience_s=1.0) as connection:
        connection.execute(
            "update runs set n_samples = 30, config = json_merge_patch(config, '{\"sample_budget\": 30}') "
            f"where run_id = '{run_id}'"
        )
        connection.execute(
            "insert into sample_picks by name select $run_id as run_id, 's' || n as sample_id, n + 1 as ordinal, "
            f"0.75 as probability, (n + $minute) % 4 > 0 as picked from {numbers}",
            {"run_id": run_id, "minute": minute},
        )
        for table in ("run_samples", "scores"):
            connection.execute(
                f"delete from {table} where run_id = '{run_id}' and sample_id in "
                f"(select sample_id from sample_picks where run_id = '{run_id}' and not picked)"
            )
        connection.execute(
            "update scores set value = null, unscored_reason = 'no_statements' "
            f"where run_id = '{run_id}' and {unscored}"
        )
        derive(connection, [run_id], ["scores"])
    return decide(store, find_run(store, run.run_id))


def test_turns_of_a_conversation_waver_together_in_sampled_nights_too(store: Warehouse) -> None:
    """Their intervals were half as wide as of whole runs, which group the turns."""
    for minute, name in enumerate(("first", "night")):
        judge_part(store, name, minute, f"if((n // 5 + {minute}) % 2 = 0, 0.9, 0.5)", "false")
    with store.writing(patience_s=1.0) as connection:
        connection.execute(
            "update run_samples set metadata = json_object('conversation_id', 'c' || ((ordinal - 1) // 5))"
        )
    pair = RunPair(store, find_run(store, "first"), find_run(store, "night"))
    widths = {}
    for cluster in ("conversation_id", NO_CLUSTER):
        (compared,) = [
            metric
            for metric in compare_runs(pair, ComparisonSettings(cluster=cluster)).metrics
            if metric.metric == "factual_f1"
        ]
        assert compared.is_estimate
        assert compared.paired.ci_low is not None
        assert compared.paired.ci_high is not None
        widths[cluster] = compared.paired.ci_high - compared.paired.ci_low
    assert widths["conversation_id"] > 1.4 * widths[NO_CLUSTER]


RARE = "metric = 'faithfulness' and sample_id <> 's1'"
FEW = {"too_few_samples", "beyond_limit"}
LOST = "right(sample_id, 1) in ('1', '2', '3', '4')"


@pytest.mark.parametrize(("before", "unscored", "outcomes", "sentence"), [
    ("false", LOST, {"scores_lost"}, "In factual_f1 an estimated 60 % of all samples have a score, 100 % in the base"),
    (LOST, "false", {"scores_gained"}, "In factual_f1 an estimated 100 % of all samples have a score, 60 % in the"),
    (RARE, RARE, FEW, "Some scores are worse"),
    (RARE.replace("s1", "s3"), "metric = 'faithfulness'", {"few_common", *FEW}, "Some scores are worse"),
    ("false", "metric = 'faithfulness'", {"nothing_scored", *FEW}, "Some scores are worse"),
])  # fmt: skip
def test_sampled_nights_decide_by_as_many_scores_of_as_large_a_share(
    store: Warehouse, before: str, unscored: str, outcomes: set[str], sentence: str
) -> None:
    """A night without a quarter of its scores became the baseline: none was missing of the few in both nights."""
    judge_part(store, "first", 0, GOOD, before)
    document = judge_part(store, "night", 1, WORSE, unscored)
    assert {check["reason"] for check in document["checks"] if check["reason"]} == outcomes
    failed = {check["metric"] for check in document["checks"] if check["outcome"] == "failed"}
    assert ("factual_f1" in failed) is ("beyond_limit" in outcomes)
    assert ("faithfulness" in failed) is ("nothing_scored" in outcomes)
    decided = store.read_rows("select is_baseline from gate_decisions where run_id = 'night'")
    assert decided == [{"is_baseline": False}]
    pair = RunPair(store, find_run(store, "first"), find_run(store, "night"))
    assert write_headline(lay_against(pair, "the base")).sentence.startswith(sentence)


def test_a_sampled_night_with_more_scores_and_no_fall_is_the_next_baseline(store: Warehouse) -> None:
    """A first night without a quarter of its scores would leave every later drop undecided."""
    judge_part(store, "first", 0, GOOD, LOST)
    document = judge_part(store, "night", 1, GOOD, "false")
    assert {check["reason"] for check in document["checks"] if check["reason"]} == {"scores_gained"}
    decided = store.read_rows("select is_baseline from gate_decisions where run_id = 'night'")
    assert decided == [{"is_baseline": True}]


def test_a_sampled_night_that_refuses_what_has_no_answer_lost_no_scores(store: Warehouse) -> None:
    split_texts(store, "first", "night", refused="night")
    judge_part(store, "first", 0, GOOD, "false")
    document = judge_part(store, "night", 1, GOOD, "substr(sample_id, 2)::int < 8")
    assert "scores_lost" not in {check["reason"] for check in document["checks"]}


def test_an_estimate_is_decided_by_the_interval_of_the_estimate() -> None:
    """Few samples are judged in both nights, and the samples of either make the estimate."""
    paired = Paired(
        n=0, n_clusters=0, n_higher=0, n_lower=0, difference=-0.3, ci_low=-0.35, ci_high=-0.25, p=0.0001,
        p_adjusted=0.0001, is_exact=False, verdict="worse",
    )  # fmt: skip
    values = np.full(60, 0.5)
    described = describe_metric("m", values, values, n_samples=(60, 60), paired=paired, parts=(), better="high")
    whole = Scored(n=60, share=1.0, size=60.0)
    for shares, outcome in ((Shares(base=whole, candidate=whole), "failed"), (None, "undecided")):
        (check,) = check_drops({"m": 0.05}, {"m": replace(described, is_estimate=shares is not None, shares=shares)})
        assert check.outcome == outcome


def test_slices_of_a_budget_of_samples_are_refused_before_anything_is_asked() -> None:
    settings = RunSettings(dataset="sample", judge="lexical", metrics=("factual_f1",), sample_budget=20)
    with pytest.raises(SettingsError, match="sample_budget: a budget of samples"):
        check_suite_gate(SuiteGate(min={"factual_f1": 0.1}, by={"lang": {}}), settings)
