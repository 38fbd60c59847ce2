"""A gate where the judge's noise is known: what table, JUnit and Markdown say of it, and of a judge that shifted."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli_process import call_here
from noise_house import BASE, CANDIDATE, METRIC, NoiseHouse

BY_HALF = [0.5, -0.5, 0.5, -0.5, 0.5, 0.5, *[0.0] * 14]
DROP = ("gate", CANDIDATE, "--against", BASE, "--max-drop", f"{METRIC}=0.01")


@pytest.fixture
def house(tmp_path: Path) -> NoiseHouse:
    """Every answer is judged anew, and every score is 0.05 lower."""
    house = NoiseHouse(tmp_path)
    house.judge(BASE, [0.5] * 40)
    house.judge(CANDIDATE, [0.45] * 40)
    return house


def gate(house: NoiseHouse, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:  # noqa: ANN401  # Finished
    return call_here(capsys, *DROP, "--warehouse", str(house.warehouse.location.path), *arguments)


def test_a_drop_fails_as_long_as_no_floor_is_known_and_the_gate_warns(
    house: NoiseHouse, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = gate(house, capsys, "--json")
    (check,) = finished.document["checks"]
    assert (finished.status, check["outcome"], check["noise_floor"]) == (1, "failed", None)
    (warning,) = finished.document["warnings"]
    assert "no noise floor is known for factual_f1" in warning


def test_a_drop_within_the_floor_fails_by_its_interval_and_says_so_everywhere(
    house: NoiseHouse, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    house.measure("noise-1", BY_HALF)
    junit = tmp_path / "gate.xml"
    finished = gate(house, capsys, "--json", "--junit", str(junit))
    (check,) = finished.document["checks"]
    floor = f"{check['noise_floor']:.3f}"
    assert (finished.status, check["outcome"], check["reason"]) == (1, "failed", "beyond_limit")
    assert check["value"] == pytest.approx(0.05)
    assert check["noise_floor"] > 0.05
    assert finished.document["warnings"] == []
    (failure,) = ElementTree.fromstring(junit.read_bytes()).iter("failure")
    assert f", noise floor {floor}" in str(failure.text)
    markdown = gate(house, capsys, "--markdown", "-").stdout
    header, rule, row = [line for line in markdown.splitlines() if line.startswith("|")]
    assert header.split("|")[7].strip() == "noise floor"
    assert row.split("|")[7].strip() == floor
    assert len(header.split("|")) == len(rule.split("|")) == len(row.split("|"))
    assert f"the judge's noise alone may make changes of up to {floor}" in row
    assert floor in gate(house, capsys).stdout


def test_a_judge_that_shifted_is_told_by_gate_compare_and_show(
    house: NoiseHouse, capsys: pytest.CaptureFixture[str]
) -> None:
    """Asked again about the same texts it gives a quarter less to most of them: so the drop may be its own."""
    house.measure("noise-1", [-0.25] * 9 + [0.0] * 3)
    (warning,) = gate(house, capsys, "--json").document["warnings"]
    assert warning.startswith("the judge has shifted as a whole: asked again about the same texts it scores")
    assert "factual_f1 0.188 lower (-0." in warning
    assert "; 12 pairs)" in warning
    place = ("--warehouse", str(house.warehouse.location.path))
    for command in (("compare", BASE, CANDIDATE), ("show", CANDIDATE), DROP):
        assert f"warning: {warning}" in call_here(capsys, *command, *place).stdout.replace("\n", " "), command
    document = call_here(capsys, "compare", BASE, CANDIDATE, *place, "--json").document
    (shift,) = document["noise"]["shifts"]
    assert (shift["metric"], shift["n_pairs"], shift["n_runs"]) == (METRIC, 12, 1)
    assert shift["difference"] == pytest.approx(-0.1875)
    assert call_here(capsys, "show", CANDIDATE, *place, "--json").document["warnings"] == [warning]
