"""Labels given in `evalhouse ui`: taken in under the rules of `review import`, and what they count for."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page, find_barriers
from review_rows import build_warehouse, change
from starlette.testclient import TestClient
from ui_house import PORT, make_client, serve_ui

from evalhouse.tasks.reviews.export import Export, ExportRequest, plan_export, record_export
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse

OWN = f"http://127.0.0.1:{PORT}"
Row = dict[str, Any]
SCORES = (
    "insert into scores by name select run_id, sample_id, 'faithfulness' as metric, 0.5 as value, "
    "'1' as metric_version from run_samples"
)


@pytest.fixture
def warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Warehouse:
    if "page" not in request.fixturenames:  # what is served to a browser is opened otherwise
        request.getfixturevalue("opened_once")
    return build_warehouse(tmp_path, n_samples=4)


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """A warehouse for tests that write nothing."""
    return build_warehouse(tmp_path_factory.mktemp("untouched"), n_samples=4)


@pytest.fixture
def client(warehouse: Warehouse) -> TestClient:
    return make_client(str(warehouse.location.path), headers={"origin": OWN})


def find_item(warehouse: Warehouse, step: str, place: str, sample_id: str = "s01") -> dict[str, str]:
    """The fields that name a verdict."""
    for item in warehouse.fetch_rows("reviews/sample_items", run_id="r1", sample_id=sample_id):
        if (item["step"], item["statement_id"] or str(item["context_rank"])) == (step, place):
            names = ("sample_id", "step", "statement_id", "context_rank", "item_hash")
            return {name: str(item[name]) for name in names if item[name] is not None}
    raise LookupError(step, place)


def label(client: TestClient, item: dict[str, str], word: str, reviewer: str = "Ann", **more: str) -> Row:
    answer = client.post(
        "/runs/r1/labels",
        data={**item, "label": word, "reviewer": reviewer, **more},
        headers={"accept": "application/json"},
    )
    found: Row = answer.json()
    return {"status": answer.status_code, **found}


def read_reviews(warehouse: Warehouse) -> list[Row]:
    return warehouse.read_rows("from reviews order by reviewed_at, label")


def export(warehouse: Warehouse) -> Export:
    """A draw of eight verdicts of one step."""
    request = ExportRequest(n=8, steps=("attribute",), share_random=1, seed=1, again=False)
    drawn = plan_export(warehouse, find_run(warehouse, "r1"), request)
    record_export(warehouse, drawn)
    return drawn


def test_a_label_is_stored_as_one_that_the_person_chose(client: TestClient, warehouse: Warehouse) -> None:
    words = label(client, find_item(warehouse, "attribute", "A2"), "supported", note="so I think")
    assert (words["status"], words["label"], words["agrees"]) == (200, "supported", False)
    (row,) = read_reviews(warehouse)
    assert (row["reviewer"], row["label"], row["judge_label"], row["note"]) == (
        "Ann", "supported", "unsupported", "so I think",
    )  # fmt: skip
    assert [row[name] for name in ("probability", "stratum", "export_id", "first_label")] == [None] * 4
    assert '<td><a class="text" href="/runs/r1/sample?id=s01' in client.get("/runs/r1/samples?label=labelled").text
    assert "1 sample found" in client.get("/runs/r1/samples?label=differs").text


def test_nothing_is_overwritten(client: TestClient, warehouse: Warehouse) -> None:
    item = find_item(warehouse, "classify", "A1")
    for word, reviewer in (("TP", "Ann"), ("TP", "Ann"), ("FP", "Ann"), ("TP", "Bo"), ("FP", "Ann")):
        assert label(client, item, word, reviewer)["status"] == 200
    assert [(row["reviewer"], row["label"]) for row in read_reviews(warehouse)] == [
        ("Ann", "TP"), ("Ann", "FP"), ("Bo", "TP"),
    ]  # fmt: skip
    page = client.get("/runs/r1/sample?id=s01&reviewer=Ann").text
    assert "you differ from the judge" in page
    assert "Bo: TP" in page


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"label": "FN"}, "it must be TP or FP"),
        ({"reviewer": " "}, "has no reviewer"),
        ({"reviewer": "a\u202eb"}, "at most 100 printable letters"),
        ({"note": "x" * 2001}, "the note has 2001 letters"),
        ({"item_hash": "0"}, "the labelled text is not the run's"),
        ({"statement_id": "A9"}, "has no verdict of classify on A9"),
        ({"sample_id": "none"}, "is not in this warehouse"),
        ({"export_id": "none"}, "export none is not in this warehouse"),
    ],
)
@pytest.mark.usefixtures("opened_once")
def test_a_bad_label_is_reported_and_nothing_written(untouched: Warehouse, wrong: dict[str, str], words: str) -> None:
    client = make_client(str(untouched.location.path), headers={"origin": OWN})
    answer = label(client, find_item(untouched, "classify", "A1"), **({"word": "TP", "reviewer": "Ann"} | wrong))
    assert (answer["status"], words in answer["problem"]) == (400, True), answer
    assert read_reviews(untouched) == []


def test_only_our_own_pages_may_label(client: TestClient, warehouse: Warehouse) -> None:
    item = {**find_item(warehouse, "classify", "A1"), "label": "TP", "reviewer": "Ann"}
    assert client.post("/runs/r1/labels", data=item, headers={"origin": "http://evil.example"}).status_code == 403
    assert client.post("/runs/r1/labels", content=b"x" * 100_000).status_code == 413
    assert client.post("/runs/r1/labels", content=b"\xff\xfe").status_code == 400
    assert read_reviews(warehouse) == []


def test_without_a_script_a_form_leads_back_to_the_verdict(client: TestClient, warehouse: Warehouse) -> None:
    item = {**find_item(warehouse, "rank", "2"), "label": "useful", "reviewer": "Ann Lee", "list": "sort=order"}
    answer = client.post("/runs/r1/labels", data=item)
    assert answer.status_code == 303
    assert answer.headers["location"] == "/runs/r1/sample?id=s01&list=sort%3Dorder&reviewer=Ann+Lee#rank-2"


def name_pick(drawn: Export, place: int) -> dict[str, str]:
    item = drawn.picks[place].item
    return {"sample_id": item.sample_id, "step": item.step, "statement_id": str(item.statement_id),
            "item_hash": item.item_hash}  # fmt: skip


def test_a_label_of_a_chosen_sample_is_not_a_draw(client: TestClient, warehouse: Warehouse) -> None:
    """An export draws the same verdict: only the answer to the export counts as drawn, and counts for others."""
    drawn = export(warehouse)
    change(warehouse, SCORES)
    places = [place for place, pick in enumerate(drawn.picks) if pick.item.source == "answer"]
    first, second = (name_pick(drawn, place) for place in places[:2])
    assert label(client, first, "supported")["status"] == 200
    assert label(client, second, "supported", export_id=drawn.export_id, first_label="unsupported")["status"] == 200
    sql = "select item_hash, probability, stratum, first_label from reviewed_verdicts where run_id = 'r1'"
    found = {row["item_hash"]: row for row in warehouse.read_rows(sql)}
    assert found[first["item_hash"]]["probability"] is None
    assert found[first["item_hash"]]["stratum"] is None
    assert found[second["item_hash"]]["probability"] == drawn.picks[0].probability < 1
    assert found[second["item_hash"]]["first_label"] == "unsupported"
    counts = "select n_picked, n_labelled from corrected_strata where run_id = 'r1'"
    assert warehouse.read_rows(counts) == [{"n_picked": 8, "n_labelled": 1}]
    corrected = warehouse.read_rows("select sample_id, statement_id from corrected_verdicts where run_id = 'r1'")
    message = [{name: named[name] for name in ("sample_id", "statement_id")} for named in (first, second)]
    assert [named in corrected for named in message] == [False, True]
    # The same person answers the draw later, and changes her mind after that.
    assert label(client, first, "supported", export_id=drawn.export_id)["status"] == 200
    assert label(client, first, "unsupported")["status"] == 200
    assert warehouse.read_rows(counts) == [{"n_picked": 8, "n_labelled": 2}]
    latest = warehouse.read_rows(f"{sql} and item_hash = '{first['item_hash']}'")
    assert {row["probability"] for row in latest} == {drawn.picks[0].probability}


def test_what_was_labelled_before_a_draw_is_for_itself_in_it(client: TestClient, warehouse: Warehouse) -> None:
    item = find_item(warehouse, "attribute", "A1")
    label(client, item, "supported")
    drawn = export(warehouse)
    answered = name_pick(drawn, 0)
    label(client, answered, "supported", export_id=drawn.export_id)
    sql = "select distinct probability, stratum from reviewed_verdicts where run_id = 'r1' and item_hash = $item_hash"
    assert warehouse.read_rows(sql, {"item_hash": item["item_hash"]}) == [{"probability": 1.0, "stratum": "reviewed"}]


@pytest.fixture
def page(warehouse: Warehouse, browser: Browser) -> Iterator[Page]:
    with serve_ui(warehouse.location.path) as address:
        page = browser.open_page()
        page.address = address
        page.show_as()
        yield page
        page.send("Page.close")


def test_the_keyboard_alone_labels_a_statement(page: Page, warehouse: Warehouse) -> None:
    page.visit(f"{page.address}/runs/r1/sample?id=s01")
    page.wait_for("document.documentElement.dataset.ready")
    page.evaluate("document.querySelector('#who [name=reviewer]').focus()")
    for letter in "Ann":
        page.press(letter, text=letter)
    page.press("Enter")
    page.wait_for("document.querySelectorAll('form.labelling').length === 10")
    page.wait_for("document.documentElement.dataset.ready && document.activeElement.id.endsWith('-A2')")
    page.press("ArrowDown")
    page.press("1", text="1")
    page.wait_for("document.activeElement.form?.querySelector('.status').textContent.includes('differ')")
    page.press("ArrowDown")
    page.press("u", text="u")
    page.press("n", text="n")
    page.press("x", text="x")
    page.press("Escape")
    page.press("2", text="2")
    page.wait_for("document.getElementById('labelled').textContent.startsWith('2 of 10')")
    assert [(row["step"], row["statement_id"], row["label"], row["note"]) for row in read_reviews(warehouse)] == [
        ("classify", "A2", "TP", None), ("classify", "G1", "FN", "x"),
    ]  # fmt: skip
    assert page.problems == []


def test_a_draw_is_worked_through_with_the_judge_hidden(page: Page, warehouse: Warehouse, client: TestClient) -> None:
    assert "evalhouse review export r1" in client.get("/runs/r1/review").text
    drawn = export(warehouse)
    assert f'name="export" value="{drawn.export_id}"' in client.get("/runs/r1/review").text
    page.visit(f"{page.address}/runs/r1/review?export={drawn.export_id}&reviewer=Ann")
    page.wait_for("document.documentElement.dataset.ready")
    assert page.evaluate("document.querySelectorAll('#who input:not([type=hidden])').length") == 0
    page.press("Enter")
    page.wait_for("!document.getElementById('work').hidden")
    assert page.evaluate("document.getElementById('verdict').hidden")
    page.press("1", text="1")
    page.wait_for("!document.getElementById('verdict').hidden")
    assert "judge decided" in page.evaluate("document.getElementById('verdict').textContent")
    assert find_barriers(page) == []
    assert read_reviews(warehouse) == []
    page.press("Enter")
    page.wait_for("document.getElementById('sent').textContent.startsWith('1 ')")
    (row,) = read_reviews(warehouse)
    assert (row["item_hash"], row["label"], row["first_label"]) == (
        drawn.picks[0].item.item_hash, "supported", "supported",
    )  # fmt: skip
    assert (row["export_id"], row["probability"]) == (drawn.export_id, drawn.picks[0].probability)
    # One that is taken back is no longer on record.
    page.press("z", text="z")
    page.wait_for("document.getElementById('place').textContent.startsWith('1 of')")
    page.press("0", text="0")
    page.wait_for("document.getElementById('place').textContent.startsWith('2 of')")
    page.wait_for("document.getElementById('sent').textContent.startsWith('0 ')")
    assert read_reviews(warehouse) == []
    page.press("z", text="z")
    page.wait_for("document.getElementById('place').textContent.startsWith('1 of')")
    page.press("1", text="1")
    page.press("Enter")
    page.wait_for("document.getElementById('sent').textContent.startsWith('1 ')")
    # A label that the person gave elsewhere later counts, and not the one that this browser has.
    item = drawn.picks[0].item
    label(
        client,
        {"item_hash": item.item_hash, "sample_id": item.sample_id, "step": item.step},
        "unsupported",
        export_id=drawn.export_id,
    )
    page.visit(f"{page.address}/runs/r1/review?export={drawn.export_id}&reviewer=Ann&later=yes")
    page.wait_for("document.documentElement.dataset.ready && !document.getElementById('start').hidden")
    page.press("Enter")
    page.wait_for("document.getElementById('place').textContent.startsWith('2 of')")
    page.press("1", text="1")
    page.press("Enter")
    page.wait_for("document.getElementById('sent').textContent.startsWith('2 ')")
    of_item = [row["label"] for row in read_reviews(warehouse) if row["item_hash"] == item.item_hash]
    assert of_item == ["supported", "unsupported"]
    # One that was taken back elsewhere is not given again by this browser, and is asked about once more.
    named = {"export_id": drawn.export_id, "item_hash": item.item_hash, "reviewer": "Ann"}
    assert client.post("/runs/r1/labels", data={**named, "withdrawn": "yes"}).json() == {"n_removed": 2}
    page.visit(f"{page.address}/runs/r1/review?export={drawn.export_id}&reviewer=Ann&back=yes")
    page.wait_for("document.documentElement.dataset.ready && !document.getElementById('start').hidden")
    page.press("Enter")
    page.wait_for("!document.getElementById('work').hidden")
    assert [row["item_hash"] for row in read_reviews(warehouse)] == [drawn.picks[1].item.item_hash]
    label(
        client,
        {"item_hash": item.item_hash, "sample_id": item.sample_id, "step": item.step},
        "supported",
        export_id=drawn.export_id,
    )
    # Elsewhere, without what this browser has kept, the next one is asked about.
    page.evaluate("localStorage.clear()")
    page.visit(f"{page.address}/runs/r1/review?export={drawn.export_id}&reviewer=Ann&again=yes")
    page.wait_for("document.documentElement.dataset.ready && !document.getElementById('start').hidden")
    page.press("Enter")
    page.wait_for("document.getElementById('place').textContent.startsWith('3 of')")
    assert page.problems == []


def test_a_draw_that_is_not_there_is_reported(client: TestClient) -> None:
    answer = client.get("/runs/r1/review?export=none")
    assert (answer.status_code, "asks nothing of run r1" in answer.text) == (404, True)


def test_a_formula_in_the_csv_of_samples_is_a_text(client: TestClient) -> None:
    text = client.get("/runs/r1/samples.csv").content.decode("utf-8-sig")
    rows = {row["sample_id"]: row for row in csv.DictReader(io.StringIO(text))}
    assert rows["s03"]["question"].startswith("'=1+1")
    assert rows["s01"]["question"].startswith("How high")
