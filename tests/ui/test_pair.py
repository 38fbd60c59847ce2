"""Two runs side by side in `evalhouse ui`: a bot whose retriever got worse, and what the page makes of it."""

from __future__ import annotations

import pytest
from pair_house import BASE, CANDIDATE, make_pair
from starlette.testclient import TestClient
from ui_house import make_client


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    warehouse = make_pair(tmp_path_factory.mktemp("pair"))
    return make_client(str(warehouse.location.path))


def test_a_retriever_that_got_worse_is_named_first(client: TestClient) -> None:
    page = client.get(f"/compare?base={BASE}&candidate={CANDIDATE}").text
    first = page.partition('<p class="first">')[2].partition("</p>")[0]
    assert first.startswith("The retrieval is worse; ")
    assert "Retrieval is worse in context_recall (-0.667)" in page
    assert "16 of 24 samples have other contexts" in page
    assert "factual_f1 is worse, and it looks like retrieval" in page


def test_turned_round_it_is_better(client: TestClient) -> None:
    page = client.get(f"/compare?base={CANDIDATE}&candidate={BASE}").text
    assert "The retrieval is better; " in page


@pytest.mark.parametrize("given", ["", "?candidate=latest", f"?base={BASE[:10]}"])
def test_what_is_not_named_is_the_other_run_of_the_series(client: TestClient, given: str) -> None:
    answer = client.get(f"/compare{given}")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/compare?base={BASE}&candidate={CANDIDATE}"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("?base=none&candidate=latest", "no run fits &#39;none&#39;"),
        ("?base=latest&candidate=after", "both are run"),
        (f"?candidate={BASE}", "name two runs"),
    ],
)
def test_what_cannot_be_compared_is_said_above_a_form_that_goes_on(client: TestClient, given: str, said: str) -> None:
    answer = client.get(f"/compare{given}")
    assert answer.status_code in (200, 404)
    assert said in answer.text
    assert f'<option value="{CANDIDATE}">' in answer.text
