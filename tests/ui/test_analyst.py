"""Work of an analyst in `evalhouse ui` from start to end, in a browser, by the pages alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import Browser, Page
from cli_house import House
from ui_house import serve_ui

MOST_TABS = 150


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.open_page()
    page.show_as()
    yield page
    assert page.problems == []
    page.send("Page.close")


def go_by_keyboard(page: Page, text: str) -> None:
    """Tab from where the focus is to the link or button whose text begins so, see that it can be seen, and press it."""
    for _ in range(MOST_TABS):
        page.press("Tab")
        if page.evaluate("document.activeElement.textContent.trim()").startswith(text):
            break
    else:
        raise AssertionError(f"Tab reached nothing that begins with {text!r}")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.evaluate("window.isOld = true")
    page.press("Enter")


def wait_for_page(page: Page) -> None:
    page.wait_for("!window.isOld && document.readyState === 'complete'")


def click(page: Page, text: str, *, within: str) -> None:
    """Press the first link or button of that text, and wait for the page it leads to."""
    page.evaluate(f"""(() => {{
        const found = [...document.querySelectorAll({within!r} + ' a, ' + {within!r} + ' button')];
        window.isOld = true;
        found.find((node) => node.textContent.trim().startsWith({text!r}) && node.checkVisibility()).click();
    }})()""")
    wait_for_page(page)


def test_by_keyboard_alone_from_all_series_to_the_reply_behind_the_worst_statement(page: Page, house: House) -> None:
    with serve_ui(house.path) as address:
        page.visit(f"{address}/runs")
        go_by_keyboard(page, house.run_id)
        wait_for_page(page)
        worst = str(page.evaluate("document.querySelector('.worst a').textContent"))
        go_by_keyboard(page, worst)
        wait_for_page(page)
        page.wait_for("document.querySelector('.statement')")
        assert worst[:20] in page.evaluate("document.querySelector('main').innerText.replace(/\\s+/g, ' ')")
        go_by_keyboard(page, "classify")
        page.wait_for("[...document.querySelectorAll('pre')].some((node) => node.checkVisibility())")
        shown = page.evaluate("[...document.querySelectorAll('pre')].find((node) => node.checkVisibility()).innerText")
        assert "A1" in shown


def test_a_person_finds_narrows_and_takes_along_what_fits(page: Page, house: House) -> None:
    with serve_ui(house.path) as address:
        page.visit(f"{address}/runs/{house.run_id}/samples")
        page.evaluate("document.querySelector('summary').click()")
        page.evaluate("document.querySelector('[name=verdict]').value = 'fp'")
        click(page, "Show", within="form")
        n_false = page.evaluate("document.querySelectorAll('table.found tbody tr').length")
        assert 0 < n_false < 4
        rows = page.evaluate("fetch(document.querySelector('a[download]').href).then((answer) => answer.text())")
        assert len(rows.strip().splitlines()) == 1 + n_false
        click(page, "✕", within=".chips")
        assert page.evaluate("document.querySelectorAll('table.found tbody tr').length") == 4
