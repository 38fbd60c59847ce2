"""Means, differences and gates for each value of a metadata column, as a user asks for them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_process import Ask, call_here
from pydantic import ValidationError
from ui_house import make_client
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.flows.serving.suite_runs import decide_suite_gate
from evalhouse.tasks.comparing.intervals import find_mean_interval
from evalhouse.tasks.settings.suite import SuiteGate
from evalhouse.warehouse.rows.runs import RunRow, find_run, insert_run
from evalhouse.warehouse.store import Warehouse, derive

N = 120
METRICS = ("answer_correctness", "faithfulness")
GOOD = "0.6 + n % 5 * 0.08"
ZH_FELL = f"if(n % 4 = 0, n % 5 * 0.1, {GOOD})"
METADATA = "{'language': if(n % 4 = 0, 'zh', 'en'), 'tier': if(n < 6, null, 3), 'page': n}::json"


@pytest.fixture
def store(tmp_path: Path) -> Warehouse:
    return make_warehouse(tmp_path)


@pytest.fixture
def ask(store: Warehouse, capsys: pytest.CaptureFixture[str]) -> Ask:
    return lambda *arguments: call_here(capsys, *arguments, "--warehouse", store.location.name)


def add_night(store: Warehouse, run_id: str, minute: int, value: str, **config: object) -> RunRow:
    """A run of samples whose scores are `value`, in SQL over `n`; a quarter is of language zh, six have no tier."""
    given = {"suite": "s", "status": "completed", "metrics": METRICS, "n_samples": N, "label": run_id}
    insert_run(store, make_run(run_id, minute=minute, config=config, **given))
    with store.writing(patience_s=1.0) as connection:
        # Each sample has another text in each run, so that no drop is 0 because nothing changed.
        connection.execute(
            "insert into run_samples (run_id, sample_id, input_hash, ordinal, metadata) "
            f"select $run_id, 's' || n, $run_id, n + 1, {METADATA} from range({N}) as numbers (n)",
            {"run_id": run_id},
        )
        connection.execute(
            "insert into samples (sample_id, input_hash, question, answer, contexts) "
            f"select 's' || n, $run_id, 'Q?', $run_id, [$run_id] from range({N}) as numbers (n)",
            {"run_id": run_id},
        )
        connection.execute(
            "insert into scores (run_id, sample_id, metric, value, metric_version) "
            f"select $run_id, 's' || n, metric, {value}, '1' "
            f"from range({N}) as numbers (n), unnest($metrics) as of (metric)",
            {"run_id": run_id, "metrics": list(METRICS)},
        )
        derive(connection, [run_id])
    return find_run(store, run_id)


def test_show_has_the_mean_of_each_slice_with_its_interval(store: Warehouse, ask: Ask) -> None:
    add_night(store, "night", 0, f"if(n = 4, null, {GOOD})")
    rows = ask("show", "night", "--by", "language", "--json").document["by"]
    assert [(row["slice"], row["metric"], row["n_samples"], row["n_scored"]) for row in rows] == [
        ("en", "answer_correctness", 90, 90),
        ("en", "faithfulness", 90, 90),
        ("zh", "answer_correctness", 30, 29),
        ("zh", "faithfulness", 30, 29),
    ]
    values = np.array([0.6 + n % 5 * 0.08 for n in range(0, N, 4) if n != 4])
    assert rows[2]["mean"] == pytest.approx(values.mean())
    ends = find_mean_interval(values, np.arange(29), minimum=0.0)
    assert (rows[2]["ci_low"], rows[2]["ci_high"]) == pytest.approx(ends)
    lines = ask("show", "night", "--by", "language").lines
    table = lines[lines.index("By language") :]
    assert table[2].split() == ["answer_correctness", "en", "0.760", "0.735", "to", "0.783", "90", "90"]
    (tiers,) = {row["n_samples"] for row in ask("show", "night", "--by", "tier", "--json").document["by"]}
    assert tiers == N - 6, "samples without a value are in no slice"
    assert ask("show", "night", "--json").document["by"] == []


@pytest.mark.parametrize(("column", "message"), [
    ("lang", "has a metadata column 'lang'; its columns are language, page, tier"),
    ("page", "column page has 120 values in run night, and at most 50 can be shown; add a column"),
])  # fmt: skip
def test_a_column_that_gives_no_slices_is_refused_with_what_to_do(
    store: Warehouse, ask: Ask, column: str, message: str
) -> None:
    for minute, run_id in enumerate(("base", "night")):
        add_night(store, run_id, minute, GOOD)
    for command in (("show", "night"), ("compare", "base", "night"), ("gate", "night", "--min", "faithfulness=0.1")):
        refused = ask(*command, "--by", column)
        assert refused.status == 2
        assert message in refused.stderr.replace("run base", "run night"), command


def test_a_slice_that_fell_while_the_whole_did_not_is_named_on_top(store: Warehouse, ask: Ask) -> None:
    before = "0.4 + n % 5 * 0.05"
    add_night(store, "base", 0, before)
    add_night(store, "night", 1, f"{before} + if(n % 4 = 0, -0.12 - n * 0.0001, (n * 7 % 11 - 5) * 0.06)")
    document = ask("compare", "base", "night", "--by", "language", "--json").document
    assert {row["metric"]: row["verdict"] for row in document["metrics"]} == dict.fromkeys(METRICS, "undecided")
    verdicts = {(row["slice"], row["metric"]): row["verdict"] for row in document["by"]}
    assert verdicts["zh", "faithfulness"] == "worse"
    assert verdicts["en", "faithfulness"] != "worse"
    assert "language zh is worse, though the whole is not" in document["headline"]["sentence"]
    shown = ask("compare", "base", "night", "--by", "language")
    assert "language zh is worse, though the whole is not" in shown.lines[0]
    assert any(line.split()[:2] == ["zh", "faithfulness"] and line.endswith("worse") for line in shown.lines)
    path = store.location.path.with_name("by.html")
    assert ask("report", "night", "--against", "base", "--by", "language", "-o", str(path)).status == 0
    page = path.read_text(encoding="utf-8").partition('<p class="first">')[2].partition("</p>")[0]
    assert "language zh is worse, though the whole is not" in page
    alone = ask("compare", "base", "night")
    assert "language" not in alone.lines[0]


def test_page_and_report_have_a_table_of_slices(store: Warehouse, ask: Ask, tmp_path: Path) -> None:
    add_night(store, "night", 0, f"if(n = 4, null, {GOOD})")
    page = make_client(store.location.name)
    offered = page.get("/runs/night").text
    assert 'href="/runs/night?by=language#slices"' in offered
    assert "by=page" not in offered, "it has a value a sample"
    path = tmp_path / "report.html"
    assert ask("report", "night", "--by", "language", "-o", str(path)).status == 0
    for text in (page.get("/runs/night?by=language").text, path.read_text(encoding="utf-8")):
        table = text[text.index('aria-label="By language"') :].partition("</table>")[0]
        words = re.sub(r"<[^>]*>|\s+", " ", table).split()
        assert " ".join(words[words.index("zh") :]).startswith("zh 30 0.754")
        assert "29 scored" in table
    assert "its columns are language, page, tier" in page.get("/runs/night?by=lang").text
    assert ask("report", "night", "--by", "lang", "-o", str(path)).status == 2


def test_p_is_adjusted_over_all_slices(store: Warehouse, ask: Ask) -> None:
    """None of twenty slices of six samples is called worse for a p of 0.03, though a slice by itself would be."""
    add_night(store, "base", 0, GOOD)
    add_night(store, "night", 1, f"if(n % 20 = 3, {GOOD} - 0.1 - n * 0.001, {GOOD} + if(n % 3 = 0, -0.02, 0.02))")
    with store.writing(patience_s=1.0) as connection:
        connection.execute("""update run_samples set metadata = '{"topic": ' || (ordinal - 1) % 20 || '}'""")
    rows = ask("compare", "base", "night", "--by", "topic", "--json").document["by"]
    (fallen,) = [row for row in rows if row["slice"] == "3" and row["metric"] == "faithfulness"]
    assert fallen["p"] == pytest.approx(2 / 2**6)
    assert fallen["p_adjusted"] > 0.05
    assert {row["verdict"] for row in rows} == {"undecided"}


def test_a_gate_checks_each_slice_by_the_same_limits(store: Warehouse, ask: Ask) -> None:
    add_night(store, "base", 0, GOOD)
    add_night(store, "night", 1, ZH_FELL)
    limits = ("--min", "faithfulness=0.5", "--max-drop", "faithfulness=0.3")
    given = ("gate", "night", "--against", "base", *limits)
    assert ask(*given).status == 0
    gated = ask(*given, "--by", "language", "--json")
    found = {(check["kind"], check["by_value"]): check["outcome"] for check in gated.document["checks"]}
    assert found == {
        ("min", None): "passed", ("max_drop", None): "passed", ("min", "en"): "passed", ("max_drop", "en"): "passed",
        ("min", "zh"): "failed", ("max_drop", "zh"): "failed",
    }  # fmt: skip
    assert gated.status == 1
    assert any("faithfulness (language zh)" in line for line in ask(*given, "--by", "language").lines)
    stored = store.read_rows("select by_column, by_value from gate_checks where outcome = 'failed'")
    assert {tuple(row.values()) for row in stored} == {("language", "zh")}
    with store.writing(patience_s=1.0) as connection:
        connection.execute("update runs set metrics = ['faithfulness', 'mrr'] where run_id = 'night'")
    unscored = ask("gate", "night", "--min", "mrr=0.5", "--by", "language", "--json").document["checks"]
    assert [(check["by_value"], check["reason"]) for check in unscored] == [
        (None, "nothing_scored"), ("en", "nothing_scored"), ("zh", "nothing_scored"),
    ]  # fmt: skip
    refused = ask("gate", "night", "--max-cost", "1", "--by", "language")
    assert "--by checks --min, --max and --max-drop for each value" in refused.stderr


@pytest.mark.parametrize(("against", "by", "expected"), [
    ("passed", {"language": {}}, {("max_drop", None), ("max_drop", "en"), ("max_drop", "zh")}),
    ("mean_of_passed", {"language": {"min": {"faithfulness": 0.1}}},
     {("max_drop", None), ("min", "en"), ("min", "zh")}),
    ("passed", {"tongue": {}}, {("max_drop", None), ("max_drop", "missing")}),
])  # fmt: skip
def test_a_suite_has_limits_for_slices(
    store: Warehouse, against: str, by: dict[str, Any], expected: set[tuple[str, str | None]]
) -> None:
    gate = {"max_drop": {"faithfulness": 0.3}, "trend": False, "against": against, "by": by}
    for minute, run_id in enumerate(("one", "two")):
        decide_suite_gate(store, add_night(store, run_id, minute, GOOD, gate={"max_cost": 1.0}))
    document = decide_suite_gate(store, add_night(store, "night", 9, ZH_FELL, gate=gate))
    assert document is not None
    checks = document["checks"]
    found = {(check["kind"], check["by_value"] or ("missing" if check["by_column"] else None)) for check in checks}
    assert found == expected
    failed = [(check["by_column"], check["by_value"]) for check in checks if check["outcome"] == "failed"]
    if "tongue" in by:
        assert failed == [("tongue", None)]
        assert "its columns are language, page, tier" in checks[0]["detail"]
    else:
        assert failed == ([] if by["language"] else [("language", "zh")])


@pytest.mark.parametrize(("gate", "message"), [
    ({"max_cost": 1.0, "by": {"language": {}}}, "there is nothing to check by language"),
    ({"min": {"mrr": 0.1}, "by": {"language": {"trend": {"mrr": 0.1}}}}, "trend"),
    ({"by": {"language": {"min": {"hallucination": 0.1}}}}, "better when low"),
])  # fmt: skip
def test_limits_of_slices_that_make_no_sense_are_refused(gate: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SuiteGate.model_validate(gate)
