"""The judge's page in `evalhouse ui`: agreement, noise, drift and votes, and the text where one is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from corrected_runs import Design, draw, fill_drawn
from pair_house import BASE, CANDIDATE, N, make_pair
from rows import RowsToCome
from ui_house import make_client, read_main
from warehouse_runs import lay_warehouse, make_run

from evalhouse.tasks.comparing.agreement import describe_agreement
from evalhouse.warehouse.rows.reviews import fetch_reviewed
from evalhouse.warehouse.rows.runs import insert_run, update_run
from evalhouse.warehouse.store import Warehouse

pytestmark = pytest.mark.usefixtures("opened_once")

DESIGN = Design(n_runs=2, n_samples=80, n_picked=80, sensitivity=0.95, specificity=0.55, hard_share=0.4)
REVIEWED = ("r0000", "r0001")


def read_page(warehouse: Warehouse) -> str:
    return read_main(make_client(str(warehouse.location.path)), "/judge")


@pytest.fixture
def pair(tmp_path: Path) -> Warehouse:
    return make_pair(tmp_path)


def test_what_is_missing_is_reported_with_the_command_that_makes_it(pair: Warehouse) -> None:
    page = read_page(pair)
    for command in ("evalhouse review export latest", "evalhouse run DATASET --noise 0.05", "--votes 3"):
        assert command in page
    assert "No run yet" in read_page(lay_warehouse(pair.location.path.with_name("empty.duckdb")))


def test_a_judge_without_a_model_has_no_noise_to_be_measured(tmp_path: Path) -> None:
    warehouse = lay_warehouse(tmp_path / "lexical.duckdb")
    insert_run(warehouse, make_run("only", status="completed"))
    page = read_page(warehouse)
    assert "is deterministic: it has no noise to measure" in page
    assert "--noise" not in page


def test_verdicts_on_the_same_texts_are_laid_beside_those_of_the_run_before(pair: Warehouse) -> None:
    page = read_page(pair)
    n_same = N // 3
    assert "No verdict on the same texts moved: 1 run was compared with the run before." in page
    assert "The judge, its model and its prompts are the same in all 2 runs" in page
    with pair.writing() as connection:
        connection.execute(f"update classifications set label = 'FP' where run_id = '{CANDIDATE}'")
        connection.execute(f"update llm_calls set prompt_hash = 'p2' where run_id = '{CANDIDATE}'")
    update_run(pair, CANDIDATE, judge="openai:other")
    page = read_page(pair)
    assert f"{CANDIDATE} classify {n_same} {n_same} 67 % 0 % -66.67" in page
    assert "judge: openai:m → openai:other" in page
    assert "prompt of classify: p1 → p2" in page


def test_noise_runs_are_pooled_by_metric(pair: Warehouse) -> None:
    rows = RowsToCome()
    for night, run_id in enumerate((BASE, CANDIDATE)):
        insert_run(
            pair, make_run(f"{run_id}-n", minute=9 + night, kind="noise", parent_run_id=run_id, judge="openai:m")
        )
        rows.add(
            "noise",
            {"run_id": run_id, "noise_run_id": f"{run_id}-n", "metric": "faithfulness", "n_samples": 10,
             "n_changed": 2, "mean_difference": 0.0, "sd_difference": 0.3},
        )  # fmt: skip
    page = read_page(rows.write(pair))
    # Σd² = 2 · 9 · 0.3², over 20 pairs.
    assert "faithfulness 20 4 (20 %) 0.285 ±" in page
    assert "the newest 2 of 2" in page
    assert "Floors over time faithfulness" in page


def test_votes_that_differ_are_counted_by_step(pair: Warehouse) -> None:
    update_run(pair, CANDIDATE, config={"votes": 3})
    rows = RowsToCome()
    rows.add(
        "votes",
        *(
            {"run_id": CANDIDATE, "sample_id": f"ship-{number:02d}", "step": "classify", "item_id": "A1",
             "vote": vote, "verdict": "TP", "agrees": not (number == 1 and vote == 2)}
            for number in (1, 2, 3, 4)
            for vote in range(3)
        ),
    )  # fmt: skip
    page = read_page(rows.write(pair))
    assert "classify 4 1 (25 %) 12 1 (8 %)" in page
    assert "votes on a verdict: 1 → 3" in page


@pytest.fixture(scope="module")
def reviewed(tmp_path_factory: pytest.TempPathFactory) -> Warehouse:
    """Two reviewed runs."""
    found = lay_warehouse(tmp_path_factory.mktemp("reviewed") / "house.duckdb")
    for place, run_id in enumerate(REVIEWED):
        insert_run(found, make_run(run_id, minute=place, status="completed", judge="openai:m"))
    with found.writing() as connection:
        fill_drawn(connection, draw(DESIGN))
    return found


def test_agreement_is_that_of_the_command(reviewed: Warehouse) -> None:
    document = describe_agreement(fetch_reviewed(reviewed, REVIEWED), ["step"])
    page = read_page(reviewed)
    for row in document["judge"]:
        accuracy, kappa = row["accuracy"], row["kappa"]
        assert f"{row['step']} all {row['n_verdicts']} {row['n_samples']} {accuracy['value']:.2f}" in page
        assert f"{kappa['value']:.2f} {kappa['ci_low']:.2f} to {kappa['ci_high']:.2f}" in page
    assert f"{document['n_labels']:,} labels by 1 reviewer in 2 runs" in page
    assert "Agreement over time" in page


def test_a_series_is_chosen_by_the_address(pair: Warehouse) -> None:
    client = make_client(str(pair.location.path))
    assert "was judged by openai:m" in read_main(client, "/judge?series=suite%20harbour")
    answer = client.get("/judge?series=harbor")
    assert (answer.status_code, "series is &#39;harbor&#39;" in answer.text) == (400, True)
