"""A gate where the judge's noise is known: what table, JUnit and Markdown tell of a drop that is no more than it."""

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


def test_a_drop_within_the_floor_is_undecided_everywhere(
    house: NoiseHouse, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    house.measure("noise-1", BY_HALF)
    junit = tmp_path / "gate.xml"
    finished = gate(house, capsys, "--json", "--junit", str(junit))
    (check,) = finished.document["checks"]
    floor = f"{check['noise_floor']:.3f}"
    assert (finished.status, check["outcome"], check["reason"]) == (0, "undecided", "within_noise")
    assert check["value"] == pytest.approx(0.05)
    assert check["noise_floor"] > 0.05
    assert finished.document["warnings"] == []
    (skipped,) = ElementTree.fromstring(junit.read_bytes()).iter("skipped")
    assert f", noise floor {floor}" in str(skipped.text)
    markdown = gate(house, capsys, "--markdown", "-").stdout
    header, rule, row = [line for line in markdown.splitlines() if line.startswith("|")]
    assert header.split("|")[7].strip() == "noise floor"
    assert row.split("|")[7].strip() == floor
    assert len(header.split("|")) == len(rule.split("|")) == len(row.split("|"))
    assert "within the judge's noise" in row
    assert floor in gate(house, capsys).stdout
    failing = gate(house, capsys, "--undecided", "fail", "--junit", str(junit))
    assert failing.status == 1
    (failure,) = ElementTree.fromstring(junit.read_bytes()).iter("failure")
    assert failure.attrib["type"] == "within_noise"


def test_a_drop_beyond_limit_and_floor_still_fails(house: NoiseHouse, capsys: pytest.CaptureFixture[str]) -> None:
    house.measure("noise-1", [0.05, -0.05, 0.05, -0.05, 0.05, -0.05, *[0.0] * 14])
    finished = gate(house, capsys, "--json")
    (check,) = finished.document["checks"]
    assert 0 < check["noise_floor"] < 0.04
    assert (finished.status, check["outcome"], check["reason"]) == (1, "failed", "beyond_limit")
