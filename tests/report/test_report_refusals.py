"""`evalhouse report` that cannot be made: its messages and exit status."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest
from cli_house import House
from cli_process import Ask


@pytest.mark.parametrize("arguments", [("nonsense",), ("latest", "--against", "nonsense")])
def test_an_unknown_run_is_refused_with_those_there_are(house: House, ask: Ask, arguments: tuple[str, ...]) -> None:
    finished = ask("report", *arguments)
    assert finished.status == 2
    assert "no run fits 'nonsense'" in finished.stderr
    assert house.run_id in finished.stderr
    assert not list(house.place.folder.glob("*.html"))


def test_a_place_that_cannot_be_written_is_named(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "missing" / "report.html"
    finished = ask("report", "latest", "-o", str(path))
    assert finished.status == 2
    assert finished.stderr == f"Error: {path}: No such file or directory\n"


@pytest.mark.parametrize("older", [
    "drop view verdicts",
    "create or replace view verdicts as select run_id, sample_id, step from outcomes",
    "alter table llm_calls drop column logprobs",
])  # fmt: skip
def test_a_warehouse_of_another_version_is_read_or_refused_in_words(
    house: House, ask: Ask, tmp_path: Path, older: str
) -> None:
    url = str(shutil.copy(house.path, tmp_path / "copy.duckdb"))
    with duckdb.connect(url) as connection:
        connection.execute(older)
    finished = ask("report", "latest", "--warehouse", url, "-o", str(tmp_path / "report.html"))
    if older.startswith("alter"):
        assert finished.status == 0, "a column that no report needs"
    else:
        assert finished.status == 2
        assert finished.stderr.startswith(f"Error: {url}")
        assert "verdicts" in finished.stderr
        assert finished.stderr.count("\n") == 1


@pytest.mark.parametrize(("arguments", "message"), [
    (("first night", "--against", "first night"), "are both run "),
    (("latest", "--history", "x"), "name one RUN"),
    (("--history", "x", "--no-calls"), "are for a RUN"),
    (("--history", "weekly"), "nor of a dataset of that name outside suites; known: dataset harbour.jsonl"),
])  # fmt: skip
def test_what_cannot_be_reported_is_reported(ask: Ask, arguments: tuple[str, ...], message: str) -> None:
    finished = ask("report", *arguments)
    assert finished.status == 2
    assert message in finished.stderr
