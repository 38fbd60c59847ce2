"""The cookbook: every query runs unchanged on three nights, and gives the columns and the rows it promises."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from cli_house import place_at, write_dataset
from cli_process import call_here
from endpoint import running_endpoint
from endpoint_replies import Asked, compose_reply
from history_nights import Size, write_nights
from rows import fill, open_rows, read

from evalhouse.flows.ui.sql import read_recipes
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.sandbox.query import run_query
from evalhouse.warehouse.store import Warehouse

N_NIGHTS = 3
METRICS = (
    "factual_f1,context_recall,context_precision,faithfulness,hallucination,relevance_final,answer_relevancy,"
    "citation_recall"
)
CONTEXTS = [
    {"id": "tables", "text": "The tables say that high tide at Brankmouth is at 6 in the morning."},
    {"id": "gulls", "text": "Gulls nest on the pier. The harbour is closed on Mondays."},
]
GRADES: dict[str, dict[str, Any]] = {
    "relevance": {"unrelated": {"reason": "It is about the tide.", "verdict": False},
     "accuracy": {"reason": "The hour differs.", "rating": 2},
     "comprehensiveness": {"reason": "It is complete.", "rating": 9},
     "context_precision": {"reason": "C1 has it.", "rating": 3}, "final": 0.9},
    "questions": {"reason": "It names an hour.", "noncommittal": False,
     "questions": ["When is high tide?", "What is the hour of the tide?", "When does the water stand high?"]},
}  # fmt: skip
# As a bot would have left them that takes ten times as long on the last night.
_RESPONSES = """
insert into responses (run_id, sample_id, status, latency_ms)
select run_id, sample_id, 'ok', if(label = 'night 3', 1000, 100) from run_samples join runs using (run_id)
"""
# A question of a test set, and what a person decided on it.
_DECISIONS = """
insert into testset_changes (set_hash, run_id, question_id, change, before, after)
select 'set-1', min(run_id), 'q-1', 'new', null, null from runs
union all
select 'set-2', max(run_id), 'q-1', 'dropped', '{"kind": "fact", "language": "en"}',
       json_object('reviewer', 'Ann', 'reviewed_at', max(started_at)) from runs
"""
PRICES = "judge: [1.0, 4.0]\n"


def make_rows(night: int) -> list[dict[str, Any]]:
    """The dataset of a night, counted from 1."""
    tide = "High tide at Brankmouth is at 6 in the morning."
    of_tide = {"question": "When is high tide at Brankmouth?", "ground_truth": tide, "contexts": CONTEXTS}
    worse = "Nobody knows." if night == N_NIGHTS else tide
    return [
        {"id": "tide-1", "answer": f"{tide} The harbour is closed on Mondays.", "harbour": "north", **of_tide},
        {"id": "tide-2", "answer": worse, "harbour": "south", **of_tide},
        {"id": "tide-3", "answer": f"{tide} A brass band welcomes every ferry [2].", "harbour": "south", **of_tide},
        {"id": "tide-4", "answer": "The spoilt reply lies at berth 9.", "harbour": "north", **of_tide},
        {"id": "silent", "question": "Who keeps the light?", "ground_truth": "Maud keeps it.", "contexts": CONTEXTS},
    ]


def build_nights(folder: Path, prefect_home: Path) -> Path:
    """The path of a fresh warehouse with the three runs."""
    night = 1

    def classify(asked: Asked) -> dict[str, Any] | str:
        reply = compose_reply(asked)
        assert isinstance(reply, dict)
        text = " ".join(asked.texts[-1:])
        if "spoilt" in text:
            return "no verdict at all"
        for verdict in reply["verdicts"]:
            is_first = verdict["id"] == "A1"
            if is_first and (("brass band" in text and night == 2) or asked.body["seed"] == 3):
                verdict["label"] = "FP"
        return reply

    def answer_rubric(asked: Asked) -> dict[str, Any]:
        return GRADES[asked.body["response_format"]["json_schema"]["name"]]

    (folder / "prices.yaml").write_text(PRICES, encoding="utf-8")
    with running_endpoint(models=("judge",), script={"classify": classify, "other": answer_rubric}) as endpoint:
        place = place_at(folder, prefect_home, endpoint.base_url)
        asked = ("--judge", "openai:judge", "--metrics", METRICS, "--votes", "3", "--prices", "prices.yaml")
        for night in range(1, N_NIGHTS + 1):  # `classify` reads it
            write_dataset(folder, make_rows(night), "tides.jsonl")
            more = ("--fresh",) if night == 2 else ()
            finished = place.call("run", "tides.jsonl", *asked, "--attempts", "1", "--label", f"night {night}", *more)
            assert finished.status == 3, finished.stdout + finished.stderr
        nights = place.call("runs", "--json").document
        finished = place.call("prefer", nights[-1]["run_id"], nights[0]["run_id"], "--judge", "lexical")
        assert finished.status == 0, finished.stdout + finished.stderr
    path = folder / "evalhouse.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(_RESPONSES)
        connection.execute(_DECISIONS)
    return path


MIN_RECIPES = 15
Row = dict[str, Any]
RECIPES = read_recipes()


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Path:
    return build_nights(tmp_path_factory.mktemp("nights"), prefect_home)


@pytest.fixture(scope="module")
def frames(nights: Path) -> dict[str, pl.DataFrame]:
    """The rows of every query, by its title."""
    return {recipe.title: run_query(parse_location(str(nights)), recipe.sql) for recipe in RECIPES}


@pytest.fixture(scope="module")
def cook(frames: dict[str, pl.DataFrame]) -> Callable[[str], list[Row]]:
    """Return the rows of the one query whose title begins with a text."""

    def rows(begin: str) -> list[Row]:
        (frame,) = [frame for title, frame in frames.items() if title.startswith(begin)]
        return frame.to_dicts()

    return rows


def test_every_query_of_the_cookbook_is_read_and_there_are_enough() -> None:
    assert len(RECIPES) >= MIN_RECIPES
    assert len({recipe.title for recipe in RECIPES}) == len(RECIPES)
    for recipe in RECIPES:
        assert len(duckdb.extract_statements(recipe.sql)) == 1, recipe.title
        assert recipe.sql.endswith(";\n"), recipe.title


def test_every_query_gives_the_columns_it_promises_and_finds_rows(frames: dict[str, pl.DataFrame]) -> None:
    for recipe in RECIPES:
        title, frame = recipe.title, frames[recipe.title]
        assert frame.columns == list(recipe.columns), title
        assert frame.height > 0, title
        empty = {name for name in frame.columns if frame[name].null_count() == frame.height}
        # Three nights are too few for the trend, and the sample with a history has all its scores.
        assert empty <= {"earlier", "difference", "unscored_reason"}, title


def test_worse_samples_are_those_with_a_changed_answer(cook: Callable[[str], list[Row]]) -> None:
    rows = cook("Which samples got worse")
    assert {(row["sample_id"], row["metric"]) for row in rows} >= {("tide-2", "factual_f1"), ("tide-2", "faithfulness")}
    assert {row["sample_id"] for row in rows} == {"tide-2"}
    for row in rows:
        is_fault = row["metric"] == "hallucination"
        assert row["worse_by"] == (row["after"] - row["before"]) * (1 if is_fault else -1) > 0
        assert row["input_changed"]
        assert row["answer"] == "Nobody knows."
    assert "hallucination" in {row["metric"] for row in rows}


def test_the_flaky_sample_is_the_one_whose_judge_changed_its_mind(cook: Callable[[str], list[Row]]) -> None:
    assert {row["sample_id"] for row in cook("The flakiest samples")} == {"tide-3"}


@pytest.mark.parametrize(("moved", "flaky_by"), [({}, []), ({"night 3": 0.9}, ["judge 1"]), ({"night 2": 0.2}, [])])
def test_alternating_judges_make_no_sample_flaky_and_no_trend(moved: dict[str, float], flaky_by: list[str]) -> None:
    recipes = {recipe.title.split()[1]: recipe.sql for recipe in RECIPES}
    page = read_query("history/flaky")
    with open_rows() as con:
        for n in range(20):
            run_id, judge = f"night {n}", f"judge {n % 2}"
            key = {"run_id": run_id, "sample_id": "s"}
            fill(con, "runs", {"run_id": run_id, "judge": judge, "started_at": datetime(2026, 1, 1 + n)})
            fill(con, "run_samples", key | {"input_hash": "same"})
            fill(con, "scores", key | {"metric": "factual_f1", "value": moved.get(run_id, 0.2 + n % 2 * 0.5)})
        flaky = read(con, recipes["flakiest"])
        on_page = con.execute(page, {"series": "dataset ", "n_runs": 30, "most": 20}).fetchall()
        trend = read(con, recipes["trend:"])
    assert [row["judge"] for row in flaky] == flaky_by
    assert len(flaky) == len(on_page)
    assert {row["judge"]: row["earlier"] is not None for row in trend} == {"judge 0": True, "judge 1": True}
    if not moved:
        assert {row["difference"] for row in trend} == {0}


def test_the_shares_of_the_metrics_add_up_to_what_their_steps_cost(
    cook: Callable[[str], list[Row]], nights: Path
) -> None:
    rows = cook("What each metric costs")
    (run_id,) = {row["run_id"] for row in rows}
    steps = sorted({step for row in rows for step in row["steps"]})
    spent = f"select sum(cost_usd) as usd from run_costs where run_id = '{run_id}' and step in {tuple(steps)}"
    (total,) = run_query(parse_location(str(nights)), spent).to_dicts()
    assert sum(row["cost_usd"] for row in rows) == pytest.approx(total["usd"])
    assert total["usd"] > 0


def test_no_recipe_counts_an_unknown_price_as_zero() -> None:
    recipes = {recipe.title: recipe.sql for recipe in RECIPES if "cost_usd" in recipe.sql or "priced_usd" in recipe.sql}
    assert len(recipes) == 3
    run = {"run_id": "r", "metrics": ["factual_precision"], "started_at": datetime(2026, 1, 1)}
    call = {"run_id": "r", "model": "m", "started_at": datetime(2026, 1, 1), "status": "ok"}
    for cost in (0.5, None):
        with open_rows() as con:
            con.execute("set variable latest = 'r'")
            fill(con, "runs", run)
            fill(con, "llm_calls", call | {"call_id": "a", "step": "classify", "cost_usd": cost},
                 call | {"call_id": "b", "step": "classify", "cost_usd": 0.25},
                 call | {"call_id": "c", "step": "extract_answer", "cost_usd": 0.0})  # fmt: skip
            for sql in recipes.values():
                rows = read(con, sql)
                priced = [
                    row.get("cost_usd", row.get("priced_usd")) is not None and not row.get("n_unpriced") for row in rows
                ]
                assert rows
                assert all(priced) == (cost is not None), sql


def test_the_unscored_have_their_reasons(cook: Callable[[str], list[Row]]) -> None:
    rows = {row["reason"]: row for row in cook("What is not scored")}
    assert rows["no_answer"]["samples"] == ["silent"]
    assert rows["judge_failed"]["samples"] == ["tide-4"]
    assert "no complete JSON" in rows["judge_failed"]["detail"]


def test_misleading_documents_are_listed_by_id(cook: Callable[[str], list[Row]]) -> None:
    rows = cook("Which documents mislead")
    by_id = {row["context_id"]: row for row in rows}
    assert set(by_id) == {"gulls", "tables"}
    assert by_id["gulls"]["context"].startswith("Gulls nest")
    assert by_id["tables"]["context"].startswith("The tables say")
    assert sum(row["n_statements"] for row in rows) >= sum(row["n_samples"] for row in rows) > 0


def test_a_query_with_its_comments_is_taken_as_an_argument(nights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, place = f"-- {RECIPES[0].title}\n{RECIPES[0].sql}", ("--warehouse", str(nights))
    assert call_here(capsys, "query", text, "--format", "json", *place).status == 0
    refused = call_here(capsys, "query", "--fromat", "json", *place)
    assert (refused.status, "--fromat" in refused.stderr) == (2, True)


def test_queries_can_name_the_two_newest_runs(tmp_path: Path) -> None:
    path = tmp_path / "nights.duckdb"
    write_nights(path, Size(nights=3, samples=5))
    store = Warehouse(str(path))
    newest = {name: find_run(store, name).run_id for name in ("latest", "previous")}
    sql = (
        "select getvariable('latest') as latest, getvariable('previous') as previous, "
        "(select count(*) from statement_verdicts where run_id = getvariable('latest')) as n"
    )
    assert run_query(parse_location(str(path)), sql).to_dicts() == [newest | {"n": 5 * 7}]


@pytest.mark.parametrize("left", ["", "create table runs (run_id varchar)"])
def test_file_without_such_runs_can_be_queried(tmp_path: Path, left: str) -> None:
    path = tmp_path / "other.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(f"create table numbers as select 7 as n; {left}")
    sql = "select n, getvariable('latest') as latest from numbers"
    assert run_query(parse_location(str(path)), sql).to_dicts() == [{"n": 7, "latest": None}]
