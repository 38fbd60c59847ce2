"""SQL answers in a run: which rows are compared, whose fault a failure is, and what running proves of two queries."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from cli_house import write_dataset
from cli_process import Place
from grades import score_work
from live_runs import PROMPTS, ScriptedJudge, lay_out_run, make_sample, read_outcomes

from evalhouse.tasks.grade import grade_sample
from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.measure import describe_deaths, find_mark, measure_sample
from evalhouse.tasks.measures.structured_answers import compare_results, prove_by_running, run_on_tables
from evalhouse.tasks.pipeline.live_run import SampleWork, make_work
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse

SHIPS = {
    "ship": [{"id": 1, "name": "Tern", "yard": "Orm"}, {"id": 2, "name": "Gull", "yard": "Orm"},
     {"id": 3, "name": "Auk", "yard": None}],
}  # fmt: skip
ALL = "select id, name from ship order by id"
TURNED = "select name as ship, id from ship order by id desc"
SOME = "select id, name from ship where yard = 'Orm'"
BROKEN = "select nmae from ship"
CRASHES = "select * from pandas_scan(NULL)"
ENDLESS = "with recursive r (n) as (select 1 union all select n + 1 from r) select n from r"


def make_pair(expected: str | None = ALL, made: str | None = ALL, **metadata: object) -> StoredSample:
    given = metadata or {"tables": SHIPS}
    return make_sample(ground_truth=expected, answer=made, metadata_json=json.dumps(given))


def rate(sample: StoredSample) -> dict[str, float]:
    grades = compare_results(sample)
    assert not isinstance(grades, str), grades
    return {grade.criterion: grade.rating for grade in grades}


def explain(sample: StoredSample) -> str:
    grades = compare_results(sample)
    assert not isinstance(grades, str)
    (reason,) = {grade.reason for grade in grades}
    return reason


def test_queries_that_return_the_same_rows_in_any_order_agree() -> None:
    assert set(rate(make_pair()).values()) == {1.0}
    found = rate(make_pair(ALL, TURNED))
    assert found["any_order"] == 1
    assert found["in_order"] == pytest.approx(1 / 3)


def test_rows_that_are_missing_cost_recall() -> None:
    found = rate(make_pair(ALL, SOME))
    assert found["row_precision"] == 1
    assert found["row_recall"] == pytest.approx(2 / 3)
    assert found["any_order"] == pytest.approx(0.8)
    assert explain(make_pair(ALL, SOME)) == "2 of 3 expected and 2 returned rows agree"


def test_a_script_may_take_the_place_of_tables() -> None:
    setup = "create table ship (id int, name text); insert into ship values (1, 'Tern')"
    assert rate(make_pair(ALL, TURNED, setup=setup))["any_order"] == 1


def test_rows_may_be_given_for_either_side() -> None:
    rows = [{"id": 1, "name": "Tern"}, {"id": 2, "name": "Gull"}, {"id": 3, "name": "Auk"}]
    assert rate(make_pair(None, ALL, tables=SHIPS, expected_rows=rows))["in_order"] == 1
    assert rate(make_pair(ALL, None, tables=SHIPS, rows=rows))["in_order"] == 1
    assert rate(make_pair(None, None, expected_rows=rows, rows=rows[:2]))["row_recall"] == pytest.approx(2 / 3)
    assert rate(make_pair(None, None, expected_rows=[], rows=[]))["any_order"] == 1


@pytest.mark.parametrize(("sample", "reason"), [
    (make_pair(None, ALL), "no_ground_truth"),
    (make_pair(ALL, None), "no_answer"),
    (make_pair(ALL, ALL, note="no data"), "no_ground_truth"),
    (make_pair(None, ALL, expected_rows=[]), "no_answer"),
])  # fmt: skip
def test_what_is_not_there_is_the_reason(sample: StoredSample, reason: str) -> None:
    assert compare_results(sample) == reason


@pytest.mark.parametrize("made", [BROKEN, "", "I cannot tell.", "drop table ship"])
def test_a_bots_query_that_fails_scores_zero_and_states_why(made: str) -> None:
    assert set(rate(make_pair(ALL, made)).values()) == {0.0}
    assert explain(make_pair(ALL, made)).startswith("the bot's query fails: ")


@pytest.mark.parametrize(("made", "message"), [
    (ENDLESS, "the bot's query: the query was stopped after 0.3 s"),
    (CRASHES, "the bot's query: the query ended the process that it ran in"),
])  # fmt: skip
async def test_a_bots_query_that_is_stopped_leaves_the_sample_unscored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str, message: str
) -> None:
    monkeypatch.setattr(
        "evalhouse.tasks.measures.structured_answers.run_on_tables", partial(run_on_tables, timeout_s=0.3)
    )
    work = await measure(tmp_path, make_pair(ALL, made))
    (outcome,) = work.rows["outcomes"]
    assert (outcome["step"], outcome["reason"]) == ("result_sets", "measure_failed")
    assert str(outcome["detail"]).startswith(message)
    assert score_work(work, "result_set_match") == (None, "measure_failed")
    if made == ENDLESS:  # to start the process again takes a second
        assert await prove_by_running(make_pair(ALL, made)) is None


def test_a_bots_rows_that_cannot_be_read_score_zero() -> None:
    assert "the bot's rows cannot be read: column rows is" in explain(make_pair(ALL, None, tables=SHIPS, rows="none"))


@pytest.mark.parametrize(("sample", "message"), [
    (make_pair(BROKEN, ALL), "sample s1: the expected query fails: .*nmae"),
    (make_pair(ALL, ALL, tables=[SHIPS]), "sample s1: column tables is .* it must be an object"),
    (make_pair(ALL, ALL, tables={"ship": 7}), "sample s1: table 'ship' is '7'"),
    (make_pair(ALL, ALL, setup="create tabel"), "sample s1: the set-up script failed"),
    (make_pair(None, ALL, tables=SHIPS, expected_rows=7), "sample s1: column expected_rows is '7'"),
    (make_pair(None, ALL, tables={"ship": 7}, expected_rows=[]), "sample s1: table 'ship' is '7'"),
])  # fmt: skip
def test_an_error_of_the_dataset_stops_the_run_and_is_not_the_bots(sample: StoredSample, message: str) -> None:
    with pytest.raises(FatalJudgeError, match=message):
        compare_results(sample)


async def measure(folder: Path, sample: StoredSample) -> SampleWork:
    def refuse(_: object) -> str:
        raise AssertionError("nothing is asked")

    async with lay_out_run(folder, judge=ScriptedJudge(refuse), metrics=["result_set_match"]) as live_run:
        work = make_work(sample)
        await measure_sample(live_run, work)
    return work


async def test_a_score_is_the_f1_of_cells_in_any_order_unless_order_is_asked_for(tmp_path: Path) -> None:
    work = await measure(tmp_path, make_pair(ALL, TURNED))
    assert read_outcomes(work) == {"result_sets": None}
    assert score_work(work, "result_set_match") == (1, None)
    assert score_work(work, "result_set_match", ordered=1)[0] == pytest.approx(1 / 3)
    assert len({row["criterion"] for row in work.rows["grades"]}) == len(work.rows["grades"]) == 6


async def test_a_sample_that_ended_the_process_twice_is_not_measured_again(tmp_path: Path) -> None:
    sample = make_pair(ALL, TURNED)
    path = find_mark(Warehouse(str(tmp_path / "w.duckdb")), "run-1", sample.sample_id)
    path.parent.mkdir(parents=True)
    judge = ScriptedJudge(lambda _: "nothing is asked")
    async with lay_out_run(tmp_path, judge=judge, metrics=["result_set_match"]) as live_run:
        live_run.resumed = True
        for n_deaths, reason in ((0, None), (1, None), (2, "measure_failed"), (0, None)):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b'"s1"\n' * n_deaths)  # what processes that ended while they measured have left
            notices = describe_deaths(live_run.warehouse, live_run.run_id)
            assert [notice for notice in notices if "sample s1, which is not measured again" in notice] == notices
            assert len(notices) == (reason is not None)
            await measure_sample(live_run, work := make_work(sample))
            assert read_outcomes(work) == {"result_sets": reason}
            assert not path.parent.parent.exists()


async def test_a_sample_is_marked_while_it_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def look(sample: StoredSample) -> str:
        seen.append(find_mark(Warehouse(str(tmp_path / "w.duckdb")), "run-1", sample.sample_id).read_bytes())
        return "no_answer"

    monkeypatch.setattr("evalhouse.tasks.measures.structured_answers.compare_results", look)
    await measure(tmp_path, make_pair())
    assert seen == [b'"s1"\n']


# sql_equivalence: settled by running, or asked


@pytest.mark.parametrize("made", [SOME, "select id from ship"])
async def test_a_difference_in_what_they_return_is_a_proof(made: str) -> None:
    proof = await prove_by_running(make_pair(ALL, made))
    assert proof is not None
    assert (proof.rating, proof.said, proof.rule) == (0, None, "settled by running both")
    assert proof.reason.startswith("run on the sample's data they differ: ")


@pytest.mark.parametrize(
    "sample",
    [
        make_pair(ALL, TURNED),  # the same rows, this time
        make_pair(ALL, "select name as id, id as name from ship"),  # names that mislead
        make_pair(ALL, BROKEN),  # perhaps it is for another database
        make_pair(BROKEN, ALL),
        make_pair(ALL, SOME, note="no data"),
        make_pair(ALL, None),
    ],
)
async def test_anything_else_proves_nothing(sample: StoredSample) -> None:
    assert await prove_by_running(sample) is None


async def grade(folder: Path, sample: StoredSample) -> tuple[ScriptedJudge, SampleWork]:
    reply = {"sql_equivalence": {"reason": "Both list all ships.", "verdict": True}}
    judge = ScriptedJudge(lambda _: orjson.dumps(reply).decode())
    async with lay_out_run(folder, judge=judge, metrics=["faithfulness"]) as live_run:
        live_run.rubrics = (PROMPTS["sql_equivalence"],)
        work = make_work(sample)
        await grade_sample(live_run, work)
    return judge, work


async def test_what_is_settled_by_running_costs_no_request(tmp_path: Path) -> None:
    judge, work = await grade(tmp_path, make_pair(ALL, SOME))
    assert judge.asked == []
    (row,) = work.rows["grades"]
    assert (row["rating"], row["said"], row["call_id"], row["rule"]) == (0, None, None, "settled by running both")
    assert score_work(work, "sql_equivalence") == (0, None)


async def test_what_is_not_settled_is_asked_with_schema_and_both_queries(tmp_path: Path) -> None:
    sample = make_pair(ALL, TURNED, tables=SHIPS, schema="ship (id int, name text)")
    judge, work = await grade(tmp_path, sample)
    (question,) = judge.asked
    assert question.data == {
        "question": sample.question, "schema": "ship (id int, name text)", "expected_sql": ALL, "sql": TURNED,
    }  # fmt: skip
    assert score_work(work, "sql_equivalence") == (1, None)


def test_the_measures_run_from_a_dataset_without_a_model(tmp_path: Path, prefect_home: Path) -> None:
    call = {"name": "ask_tide", "args": {"day": 1}}
    rows: list[dict[str, Any]] = [
        {
            "id": "same", "question": "Which ships?", "answer": TURNED, "ground_truth": ALL, "tables": SHIPS,
            "expected_tool_calls": [call], "tool_calls": [{"function": {"name": "ask_tide", "arguments": '{"day":1}'}}],
        },
        {"id": "bare", "question": "Which ships?", "answer": SOME, "ground_truth": ALL},
    ]  # fmt: skip
    write_dataset(tmp_path, rows, "ships.jsonl")
    place = Place(folder=tmp_path, variables={"PREFECT_HOME": str(prefect_home)})
    metrics = "result_set_match,tool_call_accuracy,bleu,exact_match"
    done = place.call("run", "ships.jsonl", "--judge", "lexical", "--metrics", metrics, "--json")
    assert done.status == 0, done.stderr
    assert done.document["calls"]["requests"] == 0
    found = done.document["metrics"]
    assert (found["result_set_match"]["mean"], found["result_set_match"]["n_unscored"]) == (1, 1)
    assert (found["tool_call_accuracy"]["mean"], found["tool_call_accuracy"]["n_unscored"]) == (1, 1)
    assert found["exact_match"]["n_scored"] == found["bleu"]["n_scored"] == 2
