"""Documents in `evalhouse ui`: which were retrieved, which mislead, which are never useful, and what each one did."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest
from cli_house import store_all
from pair_house import BASE, CANDIDATE, N, make_pair
from starlette.testclient import TestClient
from ui_house import make_client, read_main

from evalhouse.tasks.comparing.intervals import find_share_interval
from evalhouse.warehouse.engine.connection import open_writer
from evalhouse.warehouse.store import Warehouse

DOCUMENTS = f"/runs/{CANDIDATE}/documents"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    made = make_pair(tmp_path_factory.mktemp("documents"))
    store_all(made.location.path)
    return made


@pytest.fixture(scope="module")
def client(warehouse: Warehouse) -> TestClient:
    return make_client(str(warehouse.location.path))


def list_documents(client: TestClient, given: str) -> list[str]:
    """The documents of the table, in its order."""
    return re.findall(r'<th scope="row"><a class="text"[^>]*>([^<]*)</a>', client.get(DOCUMENTS + given).text)


def test_what_each_document_did_is_counted_by_sample(warehouse: Warehouse) -> None:
    uses = {row["document"]: row for row in warehouse.fetch("documents/uses", run_ids=[CANDIDATE], words="").to_dicts()}
    ropes = uses["ropes"]
    assert (ropes["n_retrieved"], ropes["first_rank"], ropes["last_rank"]) == (N, 1, 2)
    assert (ropes["n_useful"], ropes["n_judged"], ropes["n_misleads"], ropes["n_supports_truth"]) == (0, N, 0, 0)
    # Ship 2 has the page of ship 3, which ship 3 has as well; only there it is right.
    page = uses["page-3"]
    assert (page["n_retrieved"], page["n_useful"], page["n_misleads"], page["n_supports_truth"]) == (2, 1, 1, 1)
    assert (page["n_referred_to"], page["n_found"]) == (1, 1)
    # Its ship has page 2 in its place, and page 1 is unused.
    assert (uses["page-1"]["n_retrieved"], uses["page-1"]["n_referred_to"], uses["page-1"]["n_found"]) == (0, 1, 0)


def test_over_several_runs_a_sample_counts_once_in_an_interval(warehouse: Warehouse) -> None:
    assert list(warehouse.fetch("documents/series", run_id=CANDIDATE, most=5)["run_id"]) == [CANDIDATE, BASE]
    assert list(warehouse.fetch("documents/series", run_id=BASE, most=5)["run_id"]) == [BASE]
    uses = {
        row["document"]: row
        for row in warehouse.fetch("documents/uses", run_ids=[CANDIDATE, BASE], words="").to_dicts()
    }
    assert (uses["ropes"]["n_retrieved"], uses["ropes"]["n_samples"], uses["ropes"]["n_samples_judged"]) == (
        2 * N,
        N,
        N,
    )


def test_a_document_is_found_by_its_passages(tmp_path: Path) -> None:
    warehouse = make_pair(tmp_path)
    with open_writer(warehouse.location, patience_s=5.0) as connection:
        connection.execute("update samples set context_ids = list_transform(context_ids, lambda id: id || '#1')")
    uses = {row["document"]: row for row in warehouse.fetch("documents/uses", run_ids=[CANDIDATE], words="").to_dicts()}
    assert [uses[name]["n_found"] for name in ("page-1", "page-3")] == [0, 1]
    assert (uses["page-3"]["n_retrieved"], uses["page-3#1"]["n_referred_to"]) == (0, 0)
    missed, found, passage = (
        warehouse.fetch("documents/samples", run_id=CANDIDATE, document=name)["is_referred_to"].to_list()
        for name in ("page-1", "page-3", "page-3#1")
    )
    assert (missed, found, sorted(passage)) == ([True], [], [False, True])


def test_contexts_without_ids_are_distinguished_by_their_texts(tmp_path_factory: pytest.TempPathFactory) -> None:
    warehouse = make_pair(tmp_path_factory.mktemp("ids"))
    with warehouse.writing() as connection:
        connection.execute("update samples set context_ids = null")
    uses = warehouse.fetch("documents/uses", run_ids=[CANDIDATE], words="ropes are".lower())
    (name,) = uses["document"]
    assert name.startswith("text ")
    assert uses["n_retrieved"].to_list() == [N]
    assert len(warehouse.fetch_rows("documents/samples", run_id=CANDIDATE, document=name)) == N
    page = read_main(make_client(str(warehouse.location.path)), f"/runs/{CANDIDATE}/document?id={name}")
    assert "Ropes are sold here." in page


@pytest.mark.parametrize(
    ("given", "first", "n"),
    [
        ("", "ropes", 25),
        ("?show=useless", "ropes", 1),
        ("?show=misleading", None, 16),
        ("?show=missed", None, 16),
        ("?words=PAGE-1", None, 11),
        ("?words=ropes%20are", "ropes", 1),
        ("?sort=id", "page-1", 25),
        ("?runs=9&sort=useful", "ropes", 25),
    ],
)
def test_documents_are_found_and_sorted_by_the_address(
    client: TestClient, given: str, first: str | None, n: int
) -> None:
    found = list_documents(client, given)
    assert len(found) == n
    assert first is None or found[0] == first


def test_what_few_samples_speak_of_is_not_shouted_about(client: TestClient) -> None:
    page = client.get(f"{DOCUMENTS}?show=misleading").text
    assert "1 of 1" in page
    assert 'class="worse"' not in page
    assert "page-2" not in " ".join(list_documents(client, "?show=useless"))


def test_a_document_has_its_text_its_samples_and_its_nights(client: TestClient) -> None:
    page = read_main(client, f"/runs/{CANDIDATE}/document?id=page-3")
    assert "retrieved for 2 samples" in page
    assert "misleads in 1 of 2" in page
    assert "1 samples refer to it, 0 of them without it" in page
    assert "misleads Ship 2 lies at berth 3." in page
    assert page.index("ship-02") < page.index("ship-03")
    assert "2 texts over the nights" in page
    assert f"{CANDIDATE} v1 2 1 1 {BASE} v0 1 1 0" in page
    assert "the sample refers to it, and it was not retrieved" in read_main(
        client, f"/runs/{CANDIDATE}/document?id=page-1"
    )


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        (f"/runs/{CANDIDATE}/document?id=none", 404, "no sample of run"),
        (f"{DOCUMENTS}?show=bad", 400, "show is 'bad'"),
        (f"{DOCUMENTS}?runs=0", 400, "runs is '0'"),
        ("/runs/none/documents", 404, "no run fits"),
    ],
)
def test_what_is_not_there_is_reported(client: TestClient, address: str, status: int, message: str) -> None:
    answer = client.get(address)
    assert (answer.status_code, message in html.unescape(answer.text)) == (status, True)


def test_the_interval_of_a_share_is_wilsons() -> None:
    low, high = find_share_interval(*map(np.array, ([0, 3, 10, 0], [10, 10, 10, 0], [10, 10, 10, 0])))
    # Newcombe 1998, Statistics in Medicine 17, 857-872, method 3.
    assert np.allclose(low[:3], [0, 0.1078, 0.7225], atol=0.0005)
    assert np.allclose(high[:3], [0.2775, 0.6032, 1], atol=0.0005)
    assert np.isnan(low[3])
