"""The page for labelling in a real Chromium: labels by keyboard, undone, closed, reopened, downloaded, imported."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page, PageError, find_barriers
from cli_process import call_here
from review_rows import ATTACK, REASON, build_warehouse

from evalhouse.warehouse.store import Warehouse

Export = Callable[..., Path]

VERDICT = "document.getElementById('verdict')"
HASH = "answers.item.item_hash"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page, which at the end must have had no problem and asked for nothing but the file."""
    page = browser.open_page()
    page.show_as()
    yield page
    page.evaluate("new Promise((done) => setTimeout(done, 50))")  # errors are reported a moment later
    assert page.problems == []
    asked = {re.sub(r"^file://.*/", "", url) for url in page.requests if not url.startswith("blob:")}
    assert asked <= {"review.html", "about:blank"}
    page.send("Page.close")


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    warehouse = build_warehouse(tmp_path, n_samples=4)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALHOUSE_WAREHOUSE", str(warehouse.location.path))
    return warehouse


@pytest.fixture
def export(warehouse: Warehouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    def write_page(*arguments: str) -> Path:
        finished = call_here(capsys, "review", "export", "r1", "-o", "review.html", "--seed", "1", *arguments)
        assert finished.status == 0, finished.stderr
        return tmp_path / "review.html"

    return write_page


def begin(page: Page, path: Path, name: str) -> None:
    page.open(path)
    page.evaluate("document.getElementById('reviewer').value = ''; document.getElementById('reviewer').focus()")
    page.send("Input.insertText", text=name)
    page.press("Enter")
    page.wait_for("!document.getElementById('work').hidden || !document.getElementById('end').hidden")


def press(page: Page, *keys: str) -> None:
    for key in keys:
        page.press(key, text=key if len(key) == 1 else "")


def read_progress(page: Page) -> str:
    return str(page.evaluate("document.getElementById('progress-text').textContent"))


def is_shown(page: Page, place: str) -> bool:
    return bool(page.evaluate(f"!document.getElementById('{place}').hidden"))


def download(page: Page, folder: Path) -> Path:
    """Press the button and wait for the file."""
    page.send("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    before = set(folder.glob("*.jsonl"))
    press(page, "d")
    while not (found := set(folder.glob("*.jsonl")) - before):
        page.evaluate("new Promise((done) => setTimeout(done, 20))")
    return found.pop()


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def test_twenty_labels_from_the_page_to_the_warehouse(
    page: Page, export: Export, warehouse: Warehouse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = export("-n", "24")
    begin(page, path, "Ann 灯")
    assert read_progress(page) == "0 labelled, 0 skipped, 24 to go"
    hashes = []
    for number in range(12):
        hashes.append(page.evaluate(HASH))
        press(page, "1" if number % 2 else "f", "Enter")
    press(page, "2")
    undone = page.evaluate(HASH)
    press(page, "z")
    assert page.evaluate(HASH) == undone
    assert read_progress(page) == "12 labelled, 0 skipped, 12 to go"
    press(page, "z")
    assert page.evaluate(HASH) == hashes[-1], "undoing goes back to what was labelled before"
    press(page, "1", "Enter")

    page.send("Page.navigate", url="about:blank")
    begin(page, path, "Ann 灯")
    assert read_progress(page) == "12 labelled, 0 skipped, 12 to go"
    assert page.evaluate(HASH) == undone
    press(page, "t", "n")
    page.send("Input.insertText", text="1 z d: a note, not keys")
    press(page, "Escape", "Enter", "0", "0")
    for _ in range(7):
        press(page, "2", "Enter")
    assert read_progress(page) == "20 labelled, 2 skipped, 2 to go"

    file = download(page, tmp_path)
    assert re.fullmatch(r"review-\d{8}-\d{6}-[0-9a-f]{4}-Ann-灯\.jsonl", file.name)
    lines = read_lines(file)
    assert len(lines) == 22
    finished = call_here(capsys, "review", "import", str(file), "--json")
    assert finished.status == 0, finished.stderr
    assert (finished.document["new"], finished.document["unlabelled"]) == (20, 2)
    reviews = {row["item_hash"]: row for row in warehouse.read_rows("from reviews")}
    assert {row["reviewer"] for row in reviews.values()} == {"Ann 灯"}
    assert reviews[undone]["note"] == "1 z d: a note, not keys"
    assert {row["item_hash"]: row["label"] for row in lines if row["label"]} == {
        item_hash: row["label"] for item_hash, row in reviews.items()
    }
    yes = {"TP", "supported", "useful"}
    assert [reviews[item_hash]["label"] in yes for item_hash in hashes] == [bool(n % 2) for n in range(12)]
    assert all(row["probability"] and row["stratum"] for row in reviews.values())


def test_the_judges_verdict_is_hidden_until_one_has_decided(page: Page, export: Export) -> None:
    begin(page, export("-n", "6"), "Ann")
    assert not is_shown(page, "verdict")
    assert REASON not in page.evaluate("document.documentElement.outerHTML")
    press(page, "Enter")
    assert page.evaluate("document.getElementById('place').textContent") == "1 of 6", "nothing was decided yet"
    press(page, "1")
    judge = page.evaluate("answers.item.judge_label")
    shown_verdict = page.evaluate(f"{VERDICT}.textContent")
    agrees = page.evaluate("answers.given(answers.item).label") == judge
    assert shown_verdict == (f"The judge agrees: {REASON}" if agrees else f"The judge decided {judge}: {REASON}")
    press(page, "Enter")
    assert not is_shown(page, "verdict")


@pytest.mark.slow
def test_the_first_label_is_kept_beside_the_final_one(page: Page, export: Export, tmp_path: Path) -> None:
    begin(page, export("-n", "6", "--steps", "rank"), "Ann")
    press(page, "1", "2", "Enter")
    # Undone and labelled again: the judge's verdict has been seen in between.
    press(page, "2", "z", "1", "Enter")
    press(page, "0", "ArrowLeft", "1")
    lines = read_lines(download(page, tmp_path))
    assert [(line["first_label"], line["label"]) for line in lines] == [
        ("useful", "not_useful"),
        ("not_useful", "useful"),
        ("useful", "useful"),
    ]


def test_a_name_that_was_given_is_not_asked_for_again(page: Page, export: Export, tmp_path: Path) -> None:
    page.open(export("-n", "3", "--reviewer", "Cy"))
    assert page.evaluate("document.querySelectorAll('input:not([type=hidden])').length") == 0
    assert "under the name Cy" in page.evaluate("document.getElementById('start').textContent")
    press(page, "Enter")
    page.wait_for("!document.getElementById('work').hidden")
    press(page, "1")
    assert [line["reviewer"] for line in read_lines(download(page, tmp_path))] == ["Cy"]


@pytest.mark.slow
def test_the_mouse_is_enough_for_two_people_at_one_browser(page: Page, export: Export) -> None:
    path = export("-n", "3")
    begin(page, path, "Ann")
    page.evaluate("document.querySelector('.choice-2').click()")
    assert page.evaluate("document.querySelector('.choice-2').getAttribute('aria-pressed')") == "true"
    press(page, "Enter")  # which does not press the button again
    assert read_progress(page) == "1 labelled, 0 skipped, 2 to go"
    for _ in range(2):
        page.evaluate("document.querySelector('.choice-2').click()")
        page.evaluate("document.getElementById('next').click()")
    assert is_shown(page, "end")
    assert not is_shown(page, "bar")
    assert page.evaluate("document.getElementById('end-text').textContent") == "3 of 3 verdicts have your label."
    page.evaluate("document.getElementById('end-back').click()")
    assert is_shown(page, "work")
    begin(page, path, "Bo")
    assert read_progress(page) == "0 labelled, 0 skipped, 3 to go"


def test_a_review_requires_a_name_and_a_browser_that_keeps_nothing_says_so(page: Page, export: Export) -> None:
    page.open(export("-n", "3"))
    page.evaluate("Storage.prototype.setItem = () => { throw new Error('full'); }")
    for name in ("  ", "Ann"):
        assert is_shown(page, "start")
        page.evaluate(
            f"document.getElementById('reviewer').value = '{name}'; document.querySelector('#who button').click()"
        )
    press(page, "1")
    assert is_shown(page, "problem")
    assert "does not keep" in page.evaluate("document.getElementById('problem').textContent")
    assert read_progress(page) == "1 labelled, 0 skipped, 2 to go"


def show_item(page: Page, step: str, statement_id: str | None, sample_id: str = "s01") -> dict[str, list[str]]:
    """Go to an item; gives the open texts on either side."""
    page.evaluate(f"""
        answers.goTo(data.items.findIndex((item) => item.step === {json.dumps(step)}
          && item.sample_id === {json.dumps(sample_id)}
          && (item.statement_id === {json.dumps(statement_id)})));
        drawItem({{ isNew: true }});
    """)
    side = "[...document.querySelectorAll('#{} > section')].map((box) => box.innerText.replace(/\\n+/, '\\n'))"
    return {name: page.evaluate(side.format(name)) for name in ("judged", "against")}


def test_judged_text_is_shown_beside_its_reference(page: Page, export: Export) -> None:
    begin(page, export("-n", "1000"), "Ann")
    question = "Question\nHow high is lighthouse 1, and who keeps it?"
    answer = "Lighthouse 1 is 31 metres high. Keeper 1 lives on the island."
    truth = "Lighthouse 1 is 31 metres high. Nobody keeps lighthouse 1."
    contexts = ["Context 1\nLighthouse 1 was built 31 metres high.", "Context 2\nGull 1 nests on the pier."]
    shown = show_item(page, "classify", "A2")
    assert shown == {
        "judged": [question, "Statement\nKeeper 1 lives on the island."],
        "against": [f"Ground truth\n{truth}"],
    }
    assert page.evaluate("document.getElementById('ask').textContent") == "Does the ground truth say this?"
    assert page.evaluate("document.querySelector('#judged details').open") is False
    assert show_item(page, "classify", "G2")["against"] == [f"Answer\n{answer}"]
    assert show_item(page, "attribute", "A2")["against"] == contexts
    rank = show_item(page, "rank", None)
    assert rank["judged"][0] == question
    assert rank["judged"][1] in contexts
    assert rank["against"] == [f"Ground truth\n{truth}"]


def test_attacks_in_texts_stay_texts(page: Page, export: Export) -> None:
    begin(page, export("-n", "1000"), "<img src=x onerror=\"document.title='owned'\">")
    title = page.evaluate("document.title")
    shown = show_item(page, "attribute", "A1", "s03")
    assert ATTACK in shown["judged"][0]
    assert ATTACK in shown["against"][0]
    press(page, "1")
    assert page.evaluate("document.querySelectorAll('main img, main svg, main script, #bar img').length") == 0
    assert page.evaluate("document.title") == title


def test_what_is_put_into_the_page_by_force_neither_runs_nor_loads(browser: Browser, export: Export) -> None:
    page = browser.open_page()
    page.open(export("-n", "3", "--reviewer", ATTACK))
    assert page.evaluate("document.getElementById('reviewer').value") == ATTACK
    for attempt in ("document.body.innerHTML = '<b>x</b>'", "document.createElement('script').text = '1'"):
        with pytest.raises(PageError, match=r"Trusted|Content Security Policy"):
            page.evaluate(attempt)
    with pytest.raises(PageError, match="Failed to fetch"):
        page.evaluate("fetch('http://127.0.0.1:9/x')")
    assert any("violates" in problem for problem in page.problems)
    page.send("Page.close")


def test_nothing_is_wider_than_a_phone_and_labels_stay_in_sight(page: Page, export: Export) -> None:
    page.show_as(width=360, height=700)
    begin(page, export("-n", "1000"), "Ann")
    show_item(page, "attribute", "A1", "s03")
    press(page, "2")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = page.evaluate(
        "(({ top, bottom }) => [top, bottom])(document.querySelector('.choice').getBoundingClientRect())"
    )
    assert 0 <= box[0] < box[1] <= 700


def test_labels_and_verdicts_can_be_read(page: Page, export: Export) -> None:
    begin(page, export("-n", "6", "--steps", "rank"), "Ann")
    for dark in (False, True):
        page.show_as(dark=dark)
        for key in ("1", "2"):
            press(page, key)
            assert find_barriers(page) == [], (dark, key)
