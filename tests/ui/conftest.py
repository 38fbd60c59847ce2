"""`evalhouse ui` over the session's warehouse, for tests that change nothing in it."""

from collections.abc import Iterator

import pytest
from browser import Browser, Page
from cli_house import House
from starlette.testclient import TestClient
from ui_house import make_client, serve_ui

from evalhouse.flows.ui import kept_pages
from evalhouse.warehouse.engine.connection import serving_reads
from evalhouse.warehouse.store import Warehouse


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is: nobody is shown a page as it was before what a test has just written."""
    monkeypatch.setattr(kept_pages, "_PATIENCE_S", 60.0)


@pytest.fixture(scope="module")
def client(house: House) -> Iterator[TestClient]:
    """As `evalhouse ui` does, it reads through one open file: to open it takes more than half of most pages' time."""
    with serving_reads(Warehouse(str(house.path)).location):
        yield make_client(str(house.path))


@pytest.fixture(scope="module")
def page(house: House, browser: Browser) -> Iterator[Page]:
    """A browser's page; `page.address` is where ui is served."""
    with serve_ui(house.path) as address:
        page = browser.open_page()
        page.address = address
        page.show_as()
        yield page
