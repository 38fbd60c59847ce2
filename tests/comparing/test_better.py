"""The better direction, from a user's metric file or a user's rubric to compare, gate and report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_process import call_here
from pydantic import ValidationError
from report_pages import ReportPage
from rows import fill
from warehouse_runs import make_run

from evalhouse.flows.preparing.live_run import make_rubric_metrics
from evalhouse.prompts.rubric import Criterion, Rubric
from evalhouse.tasks.settings.suite import SuiteGate
from evalhouse.warehouse.engine.connection import open_writer
from evalhouse.warehouse.metric_files import MetricFile, load_metrics
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.rows.samples import score_run
from evalhouse.warehouse.store import Warehouse

N = 12
RISE = {"base": 1.0, "candidate": 4.0}
OWN_METRIC = """\
-- metric: blunders
-- version: 1
-- needs: -
-- better: low
-- One row per sample of the run: how many blunders were recorded, of five.
select run_id, sample_id, rating / scale_max as value, null as unscored_reason
from grades
where run_id = $run_id and rubric = 'blunder'
"""


def make_own_metric(folder: Path, better: str = "low") -> MetricFile:
    text = OWN_METRIC.replace("better: low", f"better: {better}")
    (folder / "blunders.sql").write_text(text, encoding="utf-8")
    return load_metrics(folder)["blunders"]


def make_own_rubric(_: Path, better: str = "low") -> MetricFile:
    criterion = Criterion.model_validate({"min": 0, "max": 5, "metric": "blunders", "better": better})
    rubric = Rubric(name="blunder", needs=["answer"], criteria={"blunder": criterion})
    return make_rubric_metrics([rubric], load_metrics())["blunders"]


def build_nights(folder: Path, metric: MetricFile) -> Warehouse:
    """Two runs in which every sample's rating rises from 1 to 4 of 5, scored by the metric."""
    warehouse = Warehouse(str(folder / "nights.duckdb"))
    warehouse.migrate()
    for minute, (run_id, rating) in enumerate(RISE.items()):
        columns = {"label": run_id, "status": "completed", "metrics": ("blunders",), "n_samples": N}
        insert_run(warehouse, make_run(run_id, minute=minute, **columns))
        keys = [{"run_id": run_id, "sample_id": f"s{number}"} for number in range(N)]
        with open_writer(warehouse.location, patience_s=5.0) as con:
            fill(con, "run_samples", *({**key, "input_hash": "h", "ordinal": n} for n, key in enumerate(keys)))
            fill(con, "outcomes", *({**key, "step": "grade_blunder"} for key in keys))
            graded = {"rubric": "blunder", "criterion": "blunder", "scale_max": 5.0}
            # Equal differences would have no spread to draw from.
            fill(
                con, "grades", *({**key, **graded, "rating": rating + 0.05 * n * minute} for n, key in enumerate(keys))
            )
            if not minute:
                fill(con, "samples", *({"sample_id": key["sample_id"], "input_hash": "h"} for key in keys))
        score_run(warehouse, run_id, [metric], {})
    return warehouse


def compare_and_report(folder: Path, metric: MetricFile, capsys: pytest.CaptureFixture[str]) -> tuple[str, ReportPage]:
    """The verdict of `compare` on the rise, and the report's page."""
    at = ("--warehouse", build_nights(folder, metric).location.name)
    (compared,) = call_here(capsys, "compare", "base", "candidate", "--json", *at).document["metrics"]
    assert compared["difference"] > 0.5
    path = folder / "report.html"
    call_here(capsys, "report", "candidate", "--against", "base", "-o", str(path), *at)
    return compared["verdict"], ReportPage(path)


def list_ways(page: ReportPage) -> set[str]:
    """The directions of the bars in which the change of the means is drawn."""
    drawn = [json.loads(script.text) for script in page.find("script", type="application/json")]
    return {way for chart in drawn if chart["kind"] == "parts" for way in chart["ways"]}


@pytest.mark.slow
def test_a_rise_of_what_is_better_low_is_called_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metric, at = make_own_metric(tmp_path), ("--warehouse", str(tmp_path / "nights.duckdb"))
    assert metric.better == make_own_rubric(tmp_path).better == "low"
    verdict, page = compare_and_report(tmp_path, metric, capsys)
    assert verdict == "worse"
    assert page.unpack("index")["signs"] == [-1]
    assert any(cell.startswith("worse") for cell in page.rows("scores")[0])
    assert "down" in list_ways(page), "a bar that shows bad news"
    gated = call_here(
        capsys, "gate", "candidate", "--against", "base", "--max-drop", "blunders=0.1", "--max", "blunders=1",
        "--json", *at,
    )  # fmt: skip
    outcomes = {check["kind"]: (check["outcome"], check["value"] > 0) for check in gated.document["checks"]}
    assert (gated.status, outcomes) == (1, {"max_drop": ("failed", True), "max": ("passed", True)})
    refused = call_here(capsys, "gate", "candidate", "--min", "blunders=0.1", *at)
    assert (refused.status, "this metric is better when low" in refused.stderr) == (2, True)
    worst = call_here(capsys, "show", "candidate", "--json", *at).document["worst"]
    assert worst[0]["value"] == max(row["value"] for row in worst)


def test_a_rise_of_what_is_neutral_is_neither_better_nor_worse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metric, at = make_own_metric(tmp_path, "neutral"), ("--warehouse", str(tmp_path / "nights.duckdb"))
    assert make_own_rubric(tmp_path, "neutral").better == load_metrics()["self_knowledge"].better == "neutral"
    verdict, page = compare_and_report(tmp_path, metric, capsys)
    assert verdict == "changed"
    assert page.unpack("index")["signs"] == [0]
    assert not any(cell.startswith(("worse", "better")) for cell in page.rows("scores")[0])
    assert not list_ways(page) & {"up", "down"}
    for option, base in (("--max-drop", ("--against", "base")), ("--trend", ())):
        refused = call_here(capsys, "gate", "candidate", *base, option, "blunders=0.1", *at)
        assert refused.status == 2
        assert f"{option} blunders: neither a drop nor a rise of it is worse; use --min or --max" in refused.stderr
    limits = ("--min", "blunders=0.1", "--max", "blunders=1")
    assert call_here(capsys, "gate", "candidate", *limits, "--json", *at).document["counts"]["passed"] == 2
    shown = call_here(capsys, "show", "candidate", *at)
    assert "note: neither high nor low is better: blunders" in shown.lines


@pytest.mark.parametrize("kind", ["max_drop", "trend"])
def test_a_gate_of_a_suite_refuses_a_drop_of_what_is_neutral(kind: str) -> None:
    with pytest.raises(ValidationError, match="self_knowledge: neither a drop nor a rise is worse"):
        SuiteGate.model_validate({kind: {"self_knowledge": 0.02}})
