"""Every page of `evalhouse ui` over a real warehouse: there, linked, and free of problems in a browser."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from urllib.parse import parse_qsl

import httpx
import pytest
from browser import Page, find_barriers
from cli_house import House
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send
from ui_house import PORT

from evalhouse.flows.ui.app import Access, Guard

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


def test_missing_pages_are_reported(client: TestClient) -> None:
    for address in ("/absent", "/runs/none-such", "/assets/../app.py", "/assets/base.html", "/assets/%2e%2e/app.py"):
        answer = client.get(address)
        assert (answer.status_code, "notice" in answer.text) == (404, True), address


@pytest.mark.slow
def test_all_addresses_that_pages_link_to_are_there(client: TestClient) -> None:
    """One page is opened of each kind."""
    waiting, seen, kinds = ["/"], set(), set[str]()
    while waiting:
        address = waiting.pop()
        its_kinds = list_parameters(address)
        if address in seen or address.startswith(QUERIES) or its_kinds <= kinds:
            continue
        seen.add(address)
        kinds |= its_kinds
        answer = client.get(address)
        if answer.is_redirect:
            waiting.append(answer.headers["location"])
            continue
        assert answer.status_code == 200, (address, answer.text)
        if answer.headers["content-type"].startswith("text/html"):
            waiting += find_links(answer.text)
    assert {"/", "/runs"} <= seen


async def test_two_pages_are_made_at_a_time_and_the_others_wait() -> None:
    """A morning's page that the whole team opens took a gigabyte for every four of them."""
    made, most, released = 0, 0, asyncio.Event()

    async def show(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal made, most
        made, most = made + 1, max(most, made + 1)
        await released.wait()
        made -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    transport = httpx.ASGITransport(app=Guard(show, Access(port=PORT)))
    async with httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{PORT}") as client:
        asked = [asyncio.create_task(client.get(address)) for address in ("/runs", "/", "/runs/a", "/costs", "/sql")]
        await asyncio.sleep(0.05)
        assert most == 3, "two pages, and SQL, which has its own processes"
        released.set()
        assert [(await answer).status_code for answer in asked] == [200] * 5
    assert most == 3


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1, 2])
def test_pages_can_be_used_by_all(page: Page, house: House, first: int) -> None:
    """Every third page, in turns on a dark phone; that it fits into the other window is checked as well."""
    for place, form in enumerate(PAGES[first::3]):
        address, looks = form.format(run=house.run_id), ((1280, False), (390, True))
        page.visit(page.address + address)
        for width, is_dark in looks if place % 2 else looks[::-1]:
            page.show_as(width=width, dark=is_dark)
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, address
        assert page.evaluate("document.querySelectorAll('h1').length") == 1
        assert find_barriers(page) == [], address
    assert [problem for problem in page.problems if "status of 404" not in problem] == []
