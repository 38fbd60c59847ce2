"""The page of a run in `evalhouse ui`."""

from __future__ import annotations

import html
import re
from pathlib import Path

import duckdb
import pytest
from cli_house import House, copy_stored_house
from cli_process import call_here
from rows import derive_all
from starlette.testclient import TestClient
from ui_house import make_client

from evalhouse.flows.results.run_facts import FIRST, group_metrics
from evalhouse.warehouse.metric_files import load_metrics


def read_section(text: str, heading: str) -> str:
    """Return the text of the section whose heading has this id."""
    section = text[text.index(f'aria-labelledby="{heading}"') :].partition("</section>")[0]
    return html.unescape(re.sub(r"<[^>]*>", " ", section))


def test_the_worst_samples_stand_first_each_with_the_statement_that_is_wrong(client: TestClient, house: House) -> None:
    text = client.get(f"/runs/{house.run_id}").text
    worst = read_section(text, "worst")
    assert re.search(r"Brankmouth\?\s+wrong, and without support\s+The harbour is closed on Mondays", worst)
    assert "Maud" not in worst  # it has no score that could be bad
    assert text.index('id="worst"') < text.index('id="causes"') < text.index('id="scores"')


def test_a_request_for_two_texts_states_under_which_step_it_counts(
    client: TestClient, house: House, tmp_path: Path, prefect_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message, pages = "counts as extract_answer, with all its tokens", (f"/runs/{house.run_id}", "/costs?days=0")
    assert not any(message in client.get(page).text for page in pages)
    own = copy_stored_house(tmp_path / "house", prefect_home)
    with duckdb.connect(str(own.path)) as con:
        statement = "update llm_calls set step = 'fused' where step = 'classify'"
        con.execute(statement)
        derive_all(con)
    assert all(message in make_client(str(own.path)).get(page).text for page in pages)
    assert message in call_here(capsys, "show", own.run_id, "--warehouse", str(own.path)).stdout


def test_runs_are_found_by_their_address_and_two_can_be_compared(client: TestClient, house: House) -> None:
    found = client.get("/runs", params={"words": house.run_id.upper()}).text
    assert re.findall(r'name="candidate" value="([^"]+)"', found) == [house.run_id]
    assert f'href="/runs/{house.run_id}"' in found
    assert "No run fits" in client.get("/runs", params={"tag": "none-such"}).text
    rising, falling = (client.get("/runs", params={"sort": "run", "ascending": way}).text for way in ("yes", ""))
    ids = [re.findall(r'name="base" value="([^"]+)"', text) for text in (rising, falling)]
    assert ids[0] == sorted(ids[0]) == ids[1][::-1]
    assert len(ids[0]) > 1
    assert client.get("/runs", params={"page": 9}).status_code == 200


@pytest.mark.parametrize(("address", "message"), [
    ("/runs?colour=red", "runs cannot be found by 'colour'"),
    ("/runs?sort=size", "runs cannot be sorted by 'size'"),
    ("/runs?page=0", "page"),
    ("/costs?days=-1", "days"),
    ("/series?name=none-such", "no series with scores is called 'none-such'"),
])  # fmt: skip
def test_an_unknown_value_in_an_address_is_answered_with_the_known_ones(
    client: TestClient, address: str, message: str
) -> None:
    answer = client.get(address)
    assert answer.status_code in (400, 404)
    assert message in html.unescape(answer.text)


def test_the_first_page_shows_how_each_series_is(client: TestClient, house: House) -> None:
    text = client.get("/").text
    assert 'href="/series?name=dataset%20harbour.jsonl"' in text.replace("+", "%20")
    mean = house.first.document["metrics"]["faithfulness"]["mean"]
    assert f"<dt>faithfulness</dt><dd><b>{mean:.3f}</b>" in text


@pytest.mark.parametrize(
    ("metrics", "config", "groups"),
    [
        (
            ["mrr", "factual_f1", "refusal_rate", "own", "faithfulness", "self_knowledge"],
            {},
            {"": ["faithfulness", "refusal_rate"], "Answer": ["factual_f1"], "Retrieval": ["mrr"],
             "Other": ["own", "self_knowledge"]},
        ),
        (
            ["mrr", "own", "faithfulness"],
            {"gate": {"min": {"own": 0.5}, "max_drop": None, "against": "passed"}},
            {"": ["faithfulness", "own"], "Retrieval": ["mrr"]},
        ),
        (["own", "faithfulness", "mrr"], {"metrics": ["own", "mrr"]}, {"": ["faithfulness", "own", "mrr"]}),
        (["own", "mrr"], {}, {"": ["own", "mrr"]}),
        ([], {}, {}),
    ],
    ids=["no choice", "a gate", "metrics by name", "none of the first", "none"],
)  # fmt: skip
def test_metrics_that_a_run_is_about_come_first_and_others_are_grouped(
    metrics: list[str], config: dict[str, object], groups: dict[str, list[str]]
) -> None:
    assert group_metrics(metrics, config) == groups


def test_only_metrics_about_neither_answer_nor_retrieval_are_under_other() -> None:
    groups = group_metrics(sorted(load_metrics()), {})
    assert groups[""] == list(FIRST)
    subjects = {"citation", "context_retention", "noise", "result", "self", "sql", "tool", "turn"}
    assert all(name.split("_")[0] in subjects or name in subjects for name in groups["Other"]), groups["Other"]


@pytest.mark.parametrize(
    ("address", "section"),
    [("/runs/{run}", "scores"), ("/compare?base=previous&candidate=latest", "scores"),
     ("/series?name=dataset%20harbour.jsonl", "history")],
    ids=["run", "comparison", "series"],
)  # fmt: skip
def test_pages_fold_all_but_the_first_metrics(client: TestClient, house: House, address: str, section: str) -> None:
    text = client.get(address.format(run=house.run_id)).text
    first, *folded = text[text.index(f'aria-labelledby="{section}"') :].partition("</section>")[0].split("<summary>")
    assert "answer_rate" in first
    assert "precision_retrieved" not in first
    assert [title.partition(":")[0] for title in folded] == ["Answer", "Retrieval", "Other"]
