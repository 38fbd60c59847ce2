"""`evalhouse ui` over the session's warehouse, for tests that change nothing in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, Page
from cli_house import House, copy_stored_house
from kept_open import kept_open
from starlette.testclient import TestClient
from ui_house import make_client, serve_ui


@pytest.fixture(scope="session")
def house(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> House:
    """A warehouse with two runs of which everything is stored. Read it."""
    return copy_stored_house(tmp_path_factory.mktemp("stored") / "house", prefect_home)


@pytest.fixture
def opened_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep warehouses open, for files whose warehouses no other process serves or reads."""
    with kept_open(tmp_path_factory.getbasetemp()):
        yield


@pytest.fixture(scope="module")
def client(house: House) -> TestClient:
    """A client of `evalhouse ui` over that warehouse."""
    return make_client(str(house.path))


@pytest.fixture(scope="module")
def page(house: House, browser: Browser) -> Iterator[Page]:
    """A browser's page; `page.address` is where ui is served."""
    with serve_ui(house.path) as address:
        page = browser.open_page()
        page.address = address
        page.show_as()
        yield page
        page.send("Page.close")
