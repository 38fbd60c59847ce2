"""The history of a series in `evalhouse ui`."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from pair_house import BASE, CANDIDATE, make_pair
from ui_house import make_client

from evalhouse.warehouse.rows.gates import Decision, record_decision


def decide(run_id: str, outcome: str, *checks: dict[str, Any]) -> Decision:
    blank = {
        "ci_low": None,
        "ci_high": None,
        "n": 3,
        "beyond": None,
        "noise_floor": None,
        "reason": None,
        "detail": "so",
    }
    return Decision(
        run_id=run_id, origin="suite", outcome=outcome, is_baseline=outcome == "passed", undecided="pass",
        against="passed", base_run_ids=[], checks=[blank | check for check in checks],
    )  # fmt: skip


@pytest.mark.usefixtures("opened_once")
def test_gates_stand_by_night_with_the_checks_that_did_not_pass(tmp_path: Path) -> None:
    warehouse = make_pair(tmp_path)
    check = {"kind": "min", "metric": "factual_f1", "limit": 0.8, "value": 0.5}
    record_decision(warehouse, decide(BASE, "passed", check | {"outcome": "passed"}))
    record_decision(warehouse, decide(CANDIDATE, "failed", check | {"outcome": "failed"}))
    text = make_client(str(warehouse.location.path)).get("/series?name=harbour").text
    gates = text[text.index('aria-labelledby="gates"') :].partition("</section>")[0]
    looks = re.findall(r'class="night (\w+)" href="/runs/([^"]+)"', gates)
    assert looks == [("failed", CANDIDATE), ("passed", BASE)]
    message = html.unescape(re.sub(r"<[^>]*>", " ", gates))
    assert message.count("factual_f1: mean at least 0.800, found 0.500") == 1


@pytest.mark.usefixtures("opened_once")
@pytest.mark.parametrize(
    ("given", "shown"), [("", "all 2 runs"), ("&causes=1", "the newest 1 of 2 runs"), ("&causes=0", "all 2")]
)
def test_causes_are_shown_over_the_runs_that_are_asked_for(tmp_path: Path, given: str, shown: str) -> None:
    client = make_client(str(make_pair(tmp_path).location.path))
    page = client.get(f"/series?name=harbour{given}").text
    assert f"Which share of the samples has which cause, in {shown}" in page
    assert "/series?name=suite%20harbour&amp;causes=0#causes" in page.replace("+", "%20")
    assert client.get("/series?name=harbour&causes=-1").status_code == 400
