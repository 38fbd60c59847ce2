"""The page of a series' history in a real Chromium: finding runs, links, keyboard, colours, phone and paper."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page, find_clipped
from cli_process import Place
from history_nights import SUITE, Size, write_nights

from evalhouse.flows.results.run_facts import FIRST

SHOWN = "[...document.querySelectorAll('#rows tr')].filter((row) => row.getClientRects().length).map((row) => row.id)"
N_RUNS = 45


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history")
    write_nights(folder / "evalhouse.duckdb", Size(nights=N_RUNS, samples=8))
    finished = Place(folder=folder).call("report", "--history", SUITE, "-o", "history.html")
    assert finished.status == 0, finished.stderr
    return folder / "history.html"


@pytest.fixture
def page(browser: Browser, history: Path) -> Iterator[Page]:
    """The page, which at the end must have had no problem and asked for nothing but itself."""
    page = browser.open_page()
    page.show_as()
    page.open(history)
    yield page
    assert page.problems == []
    assert {re.sub(r"^file://.*/|#.*", "", url) for url in page.requests} <= {"history.html", "about:blank"}
    page.send("Page.close")


def find(page: Page, field: str, value: str) -> list[str]:
    page.evaluate(f"""
        (() => {{
          const field = document.getElementById('find-{field}');
          field.value = {json.dumps(value)};
          field.dispatchEvent(new Event('input', {{ bubbles: true }}));
        }})()
    """)
    shown: list[str] = page.evaluate(SHOWN)
    return shown


def test_runs_are_found_by_words_and_by_what_started_them(page: Page) -> None:
    everything = page.evaluate(SHOWN)
    assert len(everything) == N_RUNS
    assert len(find(page, "words", "JUDGE-LARGE v2")) == 5
    assert page.evaluate("document.getElementById('found').textContent") == f"5 of {N_RUNS} runs"
    assert find(page, "words", "no such run") == []
    page.evaluate("document.getElementById('show-all').click()")
    assert page.evaluate(SHOWN) == everything
    by_event = find(page, "trigger", "event")
    assert by_event == [
        one for one in everything if page.evaluate(f"document.getElementById('{one}').dataset.trigger") == "event"
    ]
    assert 0 < len(by_event) < N_RUNS
    both = find(page, "gate", "passed")
    assert set(both) <= set(by_event)


def test_a_link_brings_its_run_into_sight_though_it_was_filtered_away(page: Page) -> None:
    wanted = page.evaluate("document.querySelector('#changes ~ .scroll a').hash.slice(1)")
    assert wanted not in find(page, "words", "no such run")
    page.evaluate("document.querySelector('#changes ~ .scroll a').click()")
    page.wait_for(f"document.activeElement.id === '{wanted}'")
    box = page.evaluate("(({top, bottom}) => [top, bottom])(document.activeElement.getBoundingClientRect())")
    assert 0 <= box[0] < box[1] <= page.evaluate("innerHeight")


def test_the_keyboard_reaches_the_search_and_every_table(page: Page) -> None:
    page.press("/", text="/")
    assert page.evaluate("document.activeElement.id") == "find-words"
    assert page.evaluate("document.activeElement.value") == ""
    page.send("Input.insertText", text="manual v1")
    assert 0 < len(page.evaluate(SHOWN)) < N_RUNS
    regions = page.evaluate("[...document.querySelectorAll('.scroll, .runs-scroll')].map((one) => one.tabIndex)")
    assert regions
    assert set(regions) == {0}


@pytest.mark.parametrize(
    "width", [390, 1400, *(pytest.param(width, marks=pytest.mark.slow) for width in (320, 961, 1280))]
)
def test_nothing_is_clipped(page: Page, width: int) -> None:
    page.show_as(width=width)
    assert find_clipped(page) == []


def test_the_table_has_the_main_metrics_and_all_when_asked_for(page: Page) -> None:
    shown = "[...document.querySelectorAll('.runs thead .mean')].filter((one) => one.checkVisibility()).length"
    n_first = page.evaluate(shown)
    assert 1 < n_first <= len(FIRST)
    page.evaluate("document.getElementById('all-means').click()")
    assert page.evaluate(shown) == page.evaluate("document.querySelectorAll('.runs thead .mean').length") > n_first
    page.evaluate("document.getElementById('show-all').click()")
    assert page.evaluate(shown) == n_first


def test_the_newest_run_is_summed_up_and_the_contents_lead_to_every_section(page: Page) -> None:
    assert page.evaluate("document.querySelector('.result .first').textContent").startswith("Newest run: ")
    headings = page.evaluate("[...document.querySelectorAll('main h2')].map((one) => one.id)")
    assert page.evaluate("[...document.querySelectorAll('.contents a')].map((one) => one.hash.slice(1))") == headings


def test_on_paper_controls_are_hidden_and_the_runs_fit(page: Page) -> None:
    page.show_as(width=800, media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert page.evaluate("document.querySelector('.runs').getBoundingClientRect().right") <= 800
