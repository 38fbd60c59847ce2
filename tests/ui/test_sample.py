"""One sample in `evalhouse ui`: what its page holds, and that a browser draws and opens it at what is wrong."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from browser import Page, find_barriers
from cli_house import HOSTILE_ID, House
from starlette.testclient import TestClient

from evalhouse.flows.ui.pages import find_flow_run_page
from evalhouse.flows.ui.samples import quote_argument
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.store import Warehouse


def read_record(text: str) -> dict[str, Any]:
    (packed,) = re.findall(r'<script type="application/json" id="record">(.*?)</script>', text, re.DOTALL)
    record: dict[str, Any] = json.loads(packed)
    return record


@pytest.mark.parametrize("sample_id", [HOSTILE_ID, "silent-1"])
def test_a_sample_has_its_record_with_any_id(client: TestClient, house: House, sample_id: str) -> None:
    answer = client.get(f"/runs/{house.run_id}/sample?{urlencode({'id': sample_id})}")
    assert answer.status_code == 200, answer.text
    record = read_record(answer.text)
    assert record["sample"]["sample_id"] == sample_id
    assert record["sample"]["calls"]
    assert len(record["index"]["scores"]) == len(record["index"]["metrics"])
    for scores, reasons in zip(record["index"]["scores"], record["index"]["reasons"], strict=True):
        assert (scores[0] is None) == (reasons[0] is not None)
    markup = re.sub(r"<script type=\"application/json\".*?</script>", "", answer.text, flags=re.DOTALL)
    assert not re.search("[\x1b\x07\u202e]", markup)


def test_a_sample_that_is_not_there_is_reported_with_those_like_it(client: TestClient, house: House) -> None:
    answer = client.get(f"/runs/{house.run_id}/sample?id=tide-2")
    assert answer.status_code == 404
    assert "did you mean tide-1?" in answer.text


def test_the_list_one_came_from_leads_on(client: TestClient, house: House) -> None:
    address = f"/runs/{house.run_id}/sample"
    first = client.get(f"{address}?id=tide-1&{urlencode({'list': 'sort=order'})}").text
    assert "1 of 4" in first
    (following,) = re.findall(r'<a rel="next" href="([^"]+)"', first)
    second = client.get(following.replace("&amp;", "&")).text
    assert read_record(second)["sample"]["sample_id"] == HOSTILE_ID
    assert re.findall(r'<a rel="prev" href="([^"]+)"', second) == [f"{address}?id=tide-1&amp;list=sort%3Dorder"]
    assert client.get(f"{address}?id=tide-1&list=colour%3Dred").status_code == 400
    outside = client.get(f"{address}?id=tide-1&list=language%3Dzh").text
    assert "not in the list of 1" in outside
    assert f'<a rel="next" href="{address}?id=zh-1' in outside


def test_the_address_of_a_chart_leads_to_the_run(client: TestClient, house: House) -> None:
    answer = client.get(f"/sample?{urlencode({'id': HOSTILE_ID})}&run={house.run_id}")
    assert answer.headers["location"] == f"/runs/{house.run_id}/sample?{urlencode({'id': HOSTILE_ID})}"
    assert client.get("/sample?id=x&run=//evil.example").headers["location"].startswith("/runs/")


def test_prefects_page_is_linked_where_its_address_is_known(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(find_run(Warehouse(str(house.path)), house.run_id), flow_run_id="f-1")
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.example:4200/api/")
    assert find_flow_run_page(run) == "http://prefect.example:4200/runs/flow-run/f-1"
    monkeypatch.setenv("PREFECT_UI_URL", "https://ui.example/")
    assert find_flow_run_page(run) == "https://ui.example/runs/flow-run/f-1"
    monkeypatch.setenv("PREFECT_UI_URL", "javascript:alert(1)")
    assert find_flow_run_page(run) is None
    assert find_flow_run_page(replace(run, flow_run_id=None)) is None


@pytest.mark.parametrize(
    ("text", "argument"), [("tide-1", "tide-1"), ("a b'c $(x)", "'a b'\"'\"'c $(x)'"), ("a\nb'", "$'a\\nb\\''")]
)
def test_a_sample_is_one_argument_of_the_command(text: str, argument: str) -> None:
    assert quote_argument(text) == argument


def test_a_browser_opens_a_sample_at_its_wrong_statement(page: Page, house: House) -> None:
    page.visit(f"{page.address}/runs/{house.run_id}/sample?id=tide-1&list=sort%3Dorder")
    page.wait_for("document.documentElement.dataset.ready")
    assert "harbour is closed" in page.evaluate("document.activeElement.textContent")
    assert page.evaluate("document.activeElement.classList.contains('lit')")
    assert page.evaluate(
        "(box => box.top >= 0 && box.bottom <= innerHeight)(document.activeElement.getBoundingClientRect())"
    )
    assert page.evaluate("document.querySelector('mark.is-fp').textContent").startswith("The harbour is closed")
    assert "\n".join(find_barriers(page)) == ""
    page.evaluate("document.querySelector('.statement.lit a[href*=call]').click()")
    page.wait_for("document.querySelector('details.call[open]')")
    page.press("j", text="j")
    page.wait_for("location.search.includes('odd')")
    assert page.problems == []


def test_two_clicks_lead_a_newcomer_to_the_wrong_statement(page: Page) -> None:
    """Click from the first page to the newest run, then to its worst sample."""
    page.visit(f"{page.address}/")
    for where in ('a[href^="/runs/"]', ".worst a"):
        page.visit(page.evaluate(f"document.querySelector({json.dumps(f'main {where}')}).href"))
    page.wait_for("document.querySelector('.lit')")
    assert page.evaluate("/FP|FN|unsupported/.test(document.querySelector('.lit').textContent)")
    box = page.evaluate("(box => [box.top, innerHeight - box.bottom])(document.activeElement.getBoundingClientRect())")
    assert min(box) >= 0
    assert page.problems == []
