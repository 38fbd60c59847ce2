"""The page of a run in `evalhouse ui`."""

from __future__ import annotations

import html
import re

import pytest
from cli_house import House
from starlette.testclient import TestClient
from ui_house import make_client


@pytest.fixture(scope="module")
def client(house: House) -> TestClient:
    return make_client(str(house.path))


def read_section(text: str, heading: str) -> str:
    """What stands in the section whose heading has this id, as text."""
    section = text[text.index(f'aria-labelledby="{heading}"') :].partition("</section>")[0]
    return html.unescape(re.sub(r"<[^>]*>", " ", section))


def test_the_worst_samples_stand_first_each_with_the_statement_that_is_wrong(client: TestClient, house: House) -> None:
    text = client.get(f"/runs/{house.run_id}").text
    worst = read_section(text, "worst")
    assert re.search(r"Brankmouth\?\s+wrong, and without support\s+The harbour is closed on Mondays", worst)
    assert "Maud" not in worst  # it has no score that could be bad
    assert text.index('id="worst"') < text.index('id="causes"') < text.index('id="scores"')
