"""The samples of a run in `evalhouse ui`: found, sorted and paged as an address says, and messages for bad ones."""

from __future__ import annotations

import csv
import io
import re
from urllib.parse import quote, urlencode

import pytest
from cli_house import HOSTILE_ID, House
from starlette.testclient import TestClient

from evalhouse.warehouse.store import Warehouse


def list_found(client: TestClient, house: House, **asked: object) -> list[str]:
    """The ids that an address finds, in their order, by the CSV of what is found."""
    answer = client.get(f"/runs/{house.run_id}/samples.csv?{urlencode(asked, doseq=True)}")
    assert answer.status_code == 200, answer.text
    return [row["sample_id"] for row in csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig")))]


def read_ids(house: House, condition: str) -> set[str]:
    sql = f"select distinct sample_id from run_samples left join scores using (run_id, sample_id) where {condition}"
    return {
        str(row["sample_id"]) for row in Warehouse(str(house.path)).read_rows(f"{sql} and run_id = '{house.run_id}'")
    }


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, "true"),
        ({"where": "factual_f1<1"}, "metric = 'factual_f1' and value < 1"),
        ({"where": "factual_f1 unscored"}, "metric = 'factual_f1' and value is null"),
        ({"where_metric": "mrr", "where_test": "<=", "where_number": "0.5"}, "metric = 'mrr' and value <= 0.5"),
        ({"words": "BRANKMOUTH tide"}, "sample_id = 'tide-1'"),
        ({"language": "zh"}, "sample_id = 'zh-1'"),
        ({"metadata.harbour": "Brankmouth"}, "sample_id = 'tide-1'"),
        (
            {"verdict": ["fp", "unsupported"]},
            "sample_id in (select sample_id from classifications where label = 'FP') and sample_id in "
            "(select sample_id from attributions join statements using (run_id, sample_id, statement_id) "
            "where not supported and source = 'answer')",
        ),
    ],
)  # fmt: skip
def test_what_fits_is_found(client: TestClient, house: House, asked: dict[str, object], expected: str) -> None:
    assert set(list_found(client, house, **asked)) == read_ids(house, expected)


def test_all_filters_must_hold(client: TestClient, house: House) -> None:
    below = set(list_found(client, house, where="faithfulness<1"))
    assert set(list_found(client, house, where=["faithfulness<1", "factual_f1<1"], language="en")) == (
        below & set(list_found(client, house, where="factual_f1<1")) & set(list_found(client, house, language="en"))
    )


def test_the_worst_come_first_and_the_unscored_last(client: TestClient, house: House) -> None:
    for metric, is_low in (("factual_f1", False), ("hallucination", True)):
        sql = f"select sample_id, value from scores where run_id = '{house.run_id}' and metric = '{metric}'"
        values = {row["sample_id"]: row["value"] for row in Warehouse(str(house.path)).read_rows(sql)}
        ordered = [values[sample_id] for sample_id in list_found(client, house, metric=metric)]
        scored = [value for value in ordered if value is not None]
        assert scored == sorted(scored, reverse=is_low)
        assert ordered[len(scored) :] == [None] * (len(ordered) - len(scored))
    ids = list_found(client, house, sort="id")
    assert ids == sorted(ids) == list_found(client, house, sort="id", descending="yes")[::-1]
    assert list_found(client, house, sort="order")[0] == "tide-1"


BAD_FILTERS: tuple[tuple[dict[str, object], str], ...] = (
    ({"colour": "red"}, "the filter is 'colour'"),
    ({"where": "faithfullness<0.5"}, "did you mean faithfulness?"),
    ({"where": "faithfulness<low"}, "write a metric and a test"),
    ({"where": "faithfulness<1e999"}, "is not a number"),
    ({"where_metric": "faithfulness", "where_test": "<"}, "a number is missing"),
    ({"cause": "nope"}, "cause is 'nope'; known: not_judged"),
    ({"language": "fr"}, "language is 'fr'; known: en, zh"),
    ({"sort": "name'; drop table runs"}, "sort is"),
    ({"cause": ["hallucinated", "not_judged"]}, "cause is 2 times"),
    ({"page": "0"}, "page is '0'"),
    ({"page": "7"}, "page is 7; what is found has 1"),
    ({"sort": "change"}, "name a run to count changes from"),
)


def test_a_bad_filter_is_reported(client: TestClient, house: House) -> None:
    for asked, message in BAD_FILTERS:
        answer = client.get(f"/runs/{house.run_id}/samples?{urlencode(asked, doseq=True)}")
        assert answer.status_code == 400, asked
        assert message in re.sub("&#39;", "'", answer.text), asked


def test_a_form_becomes_an_address_that_states_the_same(client: TestClient, house: House) -> None:
    given = {"words": "tide", "cause": "", "where_metric": "factual_f1", "where_test": "<", "where_number": "0.50"}
    moved = client.get(f"/runs/{house.run_id}/samples?{urlencode(given)}")
    assert moved.status_code == 303
    assert moved.headers["location"] == f"/runs/{house.run_id}/samples?where=factual_f1%3C0.5&words=tide"
    page = client.get(moved.headers["location"])
    assert page.status_code == 200
    assert 'aria-label="Take away: factual_f1&lt;0.5"' in page.text


def test_a_samples_row_leads_to_its_page_with_any_id(client: TestClient, house: House) -> None:
    page = client.get(f"/runs/{house.run_id}/samples")
    assert f"/runs/{house.run_id}/sample?id={quote(HOSTILE_ID, safe='').replace('%20', '+')}" in page.text
    assert "\u202e" not in page.text
    assert "\x1b" not in page.text


def test_the_csv_has_a_name_and_its_columns_where_nothing_is_found(client: TestClient, house: House) -> None:
    answer = client.get(f"/runs/{house.run_id}/samples.csv")
    assert answer.headers["content-disposition"] == f'attachment; filename="samples-{house.run_id}.csv"'
    assert client.get(f"/runs/{house.run_id}/samples.csv?words=nothing-has-this").text.startswith("\ufeffsample_id,")
