"""The pages of test sets over a set that was made, decided on and made again: versions, questions and filters."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import Browser, find_barriers
from cli_process import call_here
from port_base import write_base
from ui_house import make_client, serve_ui

from evalhouse.tasks.testsets.questions import load_set


@pytest.mark.slow
def test_versions_questions_and_what_was_turned_down(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    browser: Browser,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALHOUSE_WAREHOUSE", "own.duckdb")
    write_base(tmp_path / "docs", version=1)
    assert call_here(capsys, "testset", "make", "docs", "-n", "10").status == 0
    call_here(capsys, "review", "questions", "questions.jsonl", "-o", "asked.csv", "-n", "2")
    content = Path("asked.csv").read_text(encoding="utf-8-sig").replace("\n,", "\ndrop,")
    Path("asked.csv").write_text(content, encoding="utf-8")
    assert call_here(capsys, "review", "import", "asked.csv", "--reviewer", "Ann").status == 0
    newest = load_set(Path("questions.jsonl")).manifest.versions[-1]

    client = make_client(str(tmp_path / "own.duckdb"))
    listed = client.get("/testsets").text
    assert "questions.jsonl" in listed
    assert f"/testsets/{newest.hash}" in listed
    assert f"/testsets/{newest.parent}" in listed
    shown = client.get(f"/testsets/{newest.hash}").text
    assert "8 questions" in shown
    assert "dropped by Ann" in shown
    assert "1 question." in client.get(f"/testsets/{newest.hash}?kind=unanswerable").text
    assert client.get(f"/testsets/{newest.hash}?kin=fact").status_code == 404

    with serve_ui(tmp_path / "own.duckdb") as address:
        page = browser.open_page()
        paths = ("/testsets", f"/testsets/{newest.parent}", f"/testsets/{newest.hash}?language=zh")
        for place, path in enumerate(paths):
            page.show_as(dark=place == 1, width=390 if place == 1 else 1280)
            page.visit(address + path)
            assert find_barriers(page) == [], path
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
        assert page.problems == []
        page.send("Page.close")
