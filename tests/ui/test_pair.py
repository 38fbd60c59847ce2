"""Two runs side by side in `evalhouse ui`: a bot whose retriever got worse, and what the page makes of it."""

from __future__ import annotations

import html
import re
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from cli_house import store_all
from pair_house import BASE, CANDIDATE, SCORED, make_pair
from starlette.testclient import TestClient
from ui_house import make_client, read_main
from warehouse_runs import make_run

from evalhouse.flows.ui.pair import list_differences, mark_changes
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.rows.samples import score_run

pytestmark = pytest.mark.usefixtures("opened_once")

PAIR = f"base={BASE}&candidate={CANDIDATE}"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    warehouse = make_pair(tmp_path_factory.mktemp("pair"))
    store_all(warehouse.location.path)
    return make_client(str(warehouse.location.path))


def test_a_retriever_that_got_worse_is_named_first(client: TestClient) -> None:
    page = client.get(f"/compare?base={BASE}&candidate={CANDIDATE}").text
    first = page.partition('<p class="first">')[2].partition("</p>")[0]
    assert first.startswith("Retrieval is worse than in the base (retrieval missed it: 0 → 16); 100 % of 24")
    assert "Of the 24 samples in both runs 16 have another answer and 16 other contexts." in page


def test_answers_of_many_runs_are_side_by_side_with_their_verdicts(client: TestClient) -> None:
    page = read_main(client, f"/compare?runs={BASE},{CANDIDATE}&differ=true")
    assert "16 samples, 1 to 10 shown" in page
    before = "before Ship 1 lies at berth 1. It came at dawn."
    after = "after Ship 1 lies at berth 2 . It came at dawn."
    assert page.index(before) < page.index("A1 TP in C1 Ship 1 lies at berth 1.") < page.index(after)
    assert page.index(after) < page.index("A1 FP in C2 Ship 1 lies at berth 2.")
    assert "G1 FN unsupported Ship 1 lies at berth 1." in page[page.index(after) :], "what the answer left out"


@pytest.mark.parametrize("given", ["", "?candidate=latest", f"?base={BASE[:10]}"])
def test_what_is_not_named_is_the_other_run_of_the_series(client: TestClient, given: str) -> None:
    answer = client.get(f"/compare{given}")
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/compare?base={BASE}&candidate={CANDIDATE}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("?base=none&candidate=latest", "no run fits &#39;none&#39;"),
        ("?base=latest&candidate=after", "both are run"),
        (f"?candidate={BASE}", "name two runs"),
    ],
)
def test_what_cannot_be_compared_is_reported_above_a_form_that_continues(
    client: TestClient, given: str, message: str
) -> None:
    answer = client.get(f"/compare{given}")
    assert answer.status_code in (200, 404)
    assert message in answer.text
    assert f'<option value="{CANDIDATE}">' in answer.text


def test_what_the_runs_were_made_with_is_distinguished(client: TestClient) -> None:
    page = read_main(client, f"/compare?{PAIR}")
    differing, same = page.partition("The same in both")[0::2]
    assert "setting max_contexts 1 2" in differing
    assert "version of the knowledge base v0 v1" in differing
    assert "24 have other contexts" not in differing
    assert "16 have other contexts" in differing
    assert "prompt, classify p1" in same
    assert "setting temperature 0.0" in same


@pytest.mark.parametrize(("before", "differs"), [([], None), (["m1"], False), (["m2"], True)])
def test_a_run_that_asked_no_model_is_not_reported_to_have_had_another(before: list[str], differs: bool | None) -> None:
    rows = [
        {"step": "rank", "of_candidate": of_candidate, "prompts": ["rank 1"], "models": models}
        for of_candidate, models in ((False, before), (True, ["m1"]))
    ]
    frame = pl.DataFrame(rows, schema_overrides={"models": pl.List(pl.String)})
    pair = SimpleNamespace(base=make_run("a"), candidate=make_run("b"), fetch=lambda query: frame)
    found = {one.name: one.differs for one in list_differences(pair)}  # type: ignore[arg-type]
    assert found.get("model that answered, rank") is differs
    assert found["prompt, rank"] is False


def test_why_the_means_moved_and_which_samples_did_is_there(client: TestClient) -> None:
    page = client.get(f"/compare?{PAIR}&by=context_recall").text
    assert "contexts changed" in page
    assert "10 of 24" not in page
    assert "All 24 samples with another score" not in page
    assert "All 16 samples with another score" in page
    # The causes of both runs, and by sample its cause and both answers with what differs marked.
    shown = read_main(client, f"/compare?{PAIR}")
    assert "retrieval missed it 0 16 worse" in shown
    assert "hallucinated against contexts → retrieval missed it" in shown
    assert "base: Ship 1 lies at berth 1 . It came at dawn. candidate: Ship 1 lies at berth 2 . It came" in shown
    assert "<ins>2</ins>" in page
    assert f'href="/compare/sample?{PAIR.replace("&", "&amp;")}&amp;id=ship-01"' in page


def test_flipped_verdicts_are_counted_by_step_and_way(client: TestClient) -> None:
    page = read_main(client, f"/compare/verdicts?{PAIR}")
    assert "32 of 32 verdicts that flipped, 1 to 25 shown" in page
    assert "attribute ground truth 16 0 classify 16 0" in page
    assert "page 1 of 2" in page
    assert "supported → unsupported attribute ground truth · ship-01 · contexts changed" in page
    assert "base G1: as context 1 has it candidate G1: no context says so" in page


@pytest.mark.parametrize(
    ("given", "n", "holds"),
    [
        ("&step=classify", 16, "TP → FN classify · ship-01 · answer changed"),
        ("&metric=context_recall", 16, "attribute ground truth"),
        ("&metric=factual_f1&way=worse&around=answer", 16, "classify"),
        ("&around=contexts&page=2", 16, "page 2"),
    ],
)
def test_flipped_verdicts_are_found_by_what_the_address_states(
    client: TestClient, given: str, n: int, holds: str
) -> None:
    page = read_main(client, f"/compare/verdicts?{PAIR}{given}")
    assert f"{n} of 32 verdicts that flipped" in page
    if "page=2" not in given:
        assert holds in page


def test_better_and_worse_change_places_with_the_runs(client: TestClient) -> None:
    page = read_main(client, f"/compare/verdicts?base={CANDIDATE}&candidate={BASE}&way=better")
    assert "32 of 32 verdicts" in page
    assert "FN → TP classify" in page


def test_one_sample_is_in_both_runs_with_what_differs_marked(client: TestClient) -> None:
    answer = client.get(f"/compare/sample?{PAIR}&id=ship-01")
    assert "Ship 1 lies at berth <ins>2</ins>. It came at dawn." in answer.text
    page = read_main(client, f"/compare/sample?{PAIR}&id=ship-01")
    assert "Between them changed: answer, contexts." in page
    assert "context_recall 1.000 0.000 -1.000" in page
    assert "flipped Ship 1 lies at berth 1. base G1 TP in C1" in page
    assert "moved Ropes are sold here. base C2 not useful" in page
    assert "Nothing changed between them" in read_main(client, f"/compare/sample?{PAIR}&id=ship-03")


def test_samples_that_moved_are_listed_by_how_far(client: TestClient) -> None:
    assert "16 samples, 1 to 16 shown" in read_main(client, f"/compare/samples?{PAIR}")
    assert "0 samples. Nothing to show." in read_main(client, f"/compare/samples?{PAIR}&which=base")


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        (f"/compare/sample?{PAIR}&id=none", 404, "sample 'none' is in neither run"),
        (f"/compare/verdicts?{PAIR}&page=0", 400, "page is '0'"),
        ("/compare/verdicts?base=x", 400, "candidate"),
        (f"/compare/samples?{PAIR}&which=both", 400, "which is 'both'"),
        (f"/compare/verdicts?{PAIR}&metric=mrr2", 400, "metric is 'mrr2'"),
        (f"/compare?{PAIR}&by=mrr2", 400, "by is 'mrr2'"),
    ],
)
def test_what_is_not_there_is_reported(client: TestClient, address: str, status: int, message: str) -> None:
    answer = client.get(address)
    assert (answer.status_code, message in html.unescape(answer.text)) == (status, True)


def test_what_is_kept_of_two_runs_goes_with_their_scores(tmp_path: Path) -> None:
    warehouse = make_pair(tmp_path)
    client = make_client(str(warehouse.location.path))
    assert "context_recall 1.000 0.333" in re.sub(r"How[^0-9]+", "", read_main(client, f"/compare?{PAIR}"))
    with warehouse.writing() as connection:
        connection.execute(f"update scores set value = 1 where run_id = '{CANDIDATE}'")
    page = read_main(client, f"/compare?{PAIR}")
    assert "worse in none" in page
    score_run(warehouse, find_run(warehouse, CANDIDATE).run_id, [load_metrics()[name] for name in SCORED], {})
    assert re.search(r"worse in (?!none)\w+", read_main(client, f"/compare?{PAIR}"))


@pytest.mark.parametrize(
    ("base", "candidate", "before", "after"),
    [
        ("The bell rings at noon.", "The bell rings at dawn.", ["noon"], ["dawn"]),
        ("灯塔高四十二米。", "灯塔高四十三米。", ["二"], ["三"]),
        ("one two three", "one four five three", ["two"], ["four five"]),
        ("", "new", [], ["new"]),
        (None, "new", [], []),
        ("x " * 5000, "y " * 5000, [], []),
    ],
)
def test_what_differs_between_two_texts_is_found_by_words(
    base: str | None, candidate: str | None, before: list[str], after: list[str]
) -> None:
    sides = mark_changes(base, candidate)
    for pieces, text, marked in ((sides.base, base, before), (sides.candidate, candidate, after)):
        assert [piece.text.strip() for piece in pieces or () if piece.is_other] == marked
        assert text is None or "".join(piece.text for piece in pieces or ()) == text
