"""Every page of `evalhouse ui` over a real warehouse: there, linked, and free of problems in a browser."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from urllib.parse import parse_qsl

import pytest
from browser import Page, find_barriers
from cli_house import House
from starlette.testclient import TestClient

SLOW = pytest.mark.slow

# Every kind of page there is; a new one is added here.
PAGES = (
    "/",
    "/runs",
    "/runs?words=tide&sort=samples&ascending=yes",
    "/costs?days=0",
    "/runs/{run}",
    "/runs/{run}/documents",
    "/series?name=harbour.jsonl",
    "/series?name=none-such",
    "/compare?base=previous&candidate=latest",
    "/compare?base=none&candidate=latest",
    "/compare?runs=previous,latest&column=harbour",
    "/judge",
    "/compare/verdicts?base=previous&candidate=latest",
    "/compare/samples?base=previous&candidate=latest",
    "/compare/sample?base=previous&candidate=latest&id=tide-1",
    "/sql",
    "/sql?q=select+metric,mean,null,repeat(metric,50)+as+long+from+run_scores",
    "/testsets",
    "/testsets/none-such",
    "/runs/none-such",
)


# Widths of the window, and whether it is dark.
LOOKS = ((1280, False), (390, True))

# Each runs a query in a separate process; they are tried with the page.
QUERIES = ("/sql?", "/sql.")


def find_links(text: str) -> list[str]:
    """The addresses in ui that a page leads to or loads."""
    found: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            address = dict(attrs).get({"a": "href", "link": "href", "script": "src"}.get(tag, ""))
            if address and address.startswith("/"):
                found.append(address.partition("#")[0])

    Links().feed(text)
    return found


def list_parameters(address: str) -> set[str]:
    """A page without its run, with each of its parameters."""
    path, _, query = address.partition("?")
    page = re.sub("/runs/[^/]+", "/runs/RUN", path)
    return {f"{page}?{key}" for key, _ in parse_qsl(query)} or {page}


def name_together(address: str) -> set[str]:
    """A page without its run, with all its parameters together."""
    return {" ".join(sorted(list_parameters(address)))}


@pytest.mark.parametrize(
    ("list_kinds", "most_alike"),
    [(list_parameters, 1), pytest.param(name_together, 2, marks=SLOW)],
)
def test_all_addresses_that_pages_link_to_are_there(
    client: TestClient, list_kinds: Callable[[str], set[str]], most_alike: int
) -> None:
    """`most_alike` is how many pages of a kind are opened."""
    waiting, seen, kinds = ["/"], set(), Counter[str]()
    while waiting:
        address = waiting.pop()
        its_kinds = list_kinds(address)
        if address in seen or address.startswith(QUERIES) or all(kinds[kind] >= most_alike for kind in its_kinds):
            continue
        seen.add(address)
        kinds.update(its_kinds)
        answer = client.get(address)
        if answer.is_redirect:
            waiting.append(answer.headers["location"])
            continue
        assert answer.status_code == 200, (address, answer.text)
        if answer.headers["content-type"].startswith("text/html"):
            waiting += find_links(answer.text)
    assert {"/", "/runs"} <= seen


def test_missing_pages_are_reported(client: TestClient) -> None:
    for address in ("/absent", "/runs/none-such", "/assets/../app.py", "/assets/base.html", "/assets/%2e%2e/app.py"):
        answer = client.get(address)
        assert (answer.status_code, "notice" in answer.text) == (404, True), address


def look_at(page: Page, address: str, look: tuple[int, bool]) -> None:
    """Open a page and find nothing that keeps anyone from using it."""
    width, is_dark = look
    page.show_as(width=width, dark=is_dark)
    page.visit(page.address + address)
    assert page.evaluate("document.querySelectorAll('h1').length") == 1
    assert find_barriers(page) == [], address
    assert_fits(page, address)


def assert_fits(page: Page, address: str) -> None:
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address


def test_pages_can_be_used_by_all(page: Page, house: House) -> None:
    """Every other page, in turns on a dark phone; that it fits into the other window is checked as well."""
    for place, form in enumerate(PAGES[::2]):
        address = form.format(run=house.run_id)
        look_at(page, address, LOOKS[place % 2])
        width, is_dark = LOOKS[1 - place % 2]
        page.show_as(width=width, dark=is_dark)
        assert_fits(page, address)
    assert [problem for problem in page.problems if "status of 404" not in problem] == []


@SLOW
@pytest.mark.parametrize("look", LOOKS)
def test_every_page_can_be_used_by_all_in_every_look(page: Page, house: House, look: tuple[int, bool]) -> None:
    for form in PAGES:
        look_at(page, form.format(run=house.run_id), look)
    assert [problem for problem in page.problems if "status of 404" not in problem] == []
