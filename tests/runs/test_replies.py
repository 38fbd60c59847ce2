"""The report of a run and `show` on the judge's replies: steps it is not up to, late replies, cut ones."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from endpoint import Asked, Inject, Raw, running_endpoint
from endpoint_replies import Choice, build_completion, compose_reply
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to
from rows import fill
from warehouse_processes import make_warehouse
from warehouse_runs import make_run

from evalhouse.flows.results.run_facts import (
    describe_local,
    describe_replies,
    describe_unnamed,
    list_notes,
    list_troubled,
    read_replies,
)
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.measures.structured_answers import compare_results
from evalhouse.warehouse.engine.connection import open_writer
from evalhouse.warehouse.rows.runs import insert_run


async def judge(folder: Path, n: int = 4, script: Any = None, **settings: Any) -> tuple[list[dict[str, Any]], Usage]:  # noqa: ANN401
    with running_endpoint(script=script or {}) as endpoint:
        point_to(endpoint.base_url)
        async with lay_out_run(folder, make_settings(**settings)) as live_run:
            await judge_samples(live_run, [make_sample(number) for number in range(n)])
            counts = live_run.asker.counts
            warehouse = live_run.warehouse
    return read_replies(warehouse, "run-1"), counts


async def test_a_judge_that_is_up_to_everything_is_not_spoken_of(tmp_path: Path) -> None:
    rows, counts = await judge(tmp_path)
    assert {row["step"]: row["n_complete"] for row in rows} == {
        "extract_answer": 4, "extract_ground_truth": 4, "classify": 4, "attribute_answer": 4,
        "attribute_ground_truth": 4, "rank": 4,
    }  # fmt: skip
    assert (list(list_troubled(rows)), list(describe_replies(rows)), list(describe_local(counts, "openai:j"))) == (
        [], [], [],
    )  # fmt: skip


async def test_a_step_that_the_judge_cannot_do_is_named_with_its_reply(tmp_path: Path) -> None:
    def leave_out(asked: Asked) -> dict[str, Any]:
        reply: Any = compose_reply(asked)
        return {"verdicts": reply["verdicts"][:1]}

    rows, _ = await judge(tmp_path, script={"classify": leave_out, "rank": [Inject(fault="empty")]}, attempts=2)
    (classify, rank) = list_troubled(rows)
    assert (classify["step"], classify["n_replies"], classify["n_complete"]) == ("classify", 8, 0)
    assert (rank["step"], rank["n_replies"], rank["n_unusable"], rank["n_complete"]) == ("rank", 5, 1, 4)
    (line,) = describe_replies(rows)
    assert line.startswith("the judge is not up to classify: 8 of 8 replies were unreadable or left something out")


@pytest.mark.usefixtures("quick_backoff")
async def test_replies_that_came_too_late_name_the_settings(tmp_path: Path) -> None:
    rows, counts = await judge(tmp_path, script={"rank": [Inject(fault="hang")]}, timeout_s=0.5)
    assert counts.late == 1
    assert list(describe_replies(rows)) == [
        "1 of 25 requests got no reply in time: raise --timeout or lower --concurrency"
    ]


async def test_a_server_that_cuts_requests_without_a_word_is_seen_by_its_count(tmp_path: Path) -> None:
    def cut(asked: Asked) -> Raw:
        body = build_completion(asked, Choice(content='{"statements": ["It is red."]}'), 1, 0)
        body["usage"]["prompt_tokens"] = 400
        return Raw(body=body)

    _, counts = await judge(tmp_path, script={"extract": cut})
    (line,) = describe_local(counts, "openai:judge")
    assert line.startswith("the endpoint counted less than half of the tokens of 8 requests")


def test_replies_of_a_local_model_are_known_by_its_name_alone_which_is_reported() -> None:
    point_to("http://127.0.0.1:8080/v1")
    (line,) = describe_local(Usage(reused=40), "openai:judge", 24)
    assert "24 stored replies of 'judge'" in line
    assert "--fresh" in line
    assert list(describe_local(Usage(reused=40), "openai:judge")) == [], "they repeat requests of this run"
    named = describe_local(Usage(reused=24), "openai:judge", 24, ["judge"])
    assert list(named) == [], "the server says which one it is"
    assert list(describe_local(Usage(reused=24), "lexical", 24)) == []
    point_to("https://api.openai.com/v1")
    assert list(describe_local(Usage(reused=24), "openai:judge", 24)) == []


def test_stored_vectors_of_a_model_without_a_name_are_reported() -> None:
    assert list(describe_unnamed("models:make", 0)) == []
    (line,) = describe_unnamed("models:make", 1200)
    assert line.startswith("1,200 stored vectors of models:make were reused")
    assert line.endswith("ask again with --fresh")


def test_contexts_that_were_not_logged_are_named_where_relevance_takes_them_for_none(tmp_path: Path) -> None:
    warehouse = make_warehouse(tmp_path)
    run = make_run("r", metrics=("relevance_final",), embeddings="openai:e")
    insert_run(warehouse, run)
    with open_writer(warehouse.location, patience_s=5.0) as con:
        for name, contexts in (("a", None), ("b", None), ("c", []), ("d", ["x"])):
            keys = {"run_id": "r", "sample_id": name}
            fill(con, "run_samples", {**keys, "input_hash": name, "ordinal": 1})
            fill(con, "samples", {"sample_id": name, "input_hash": name, "contexts": contexts})
            graded = {"rubric": "relevance", "criterion": "final", "rating": 0.5, "scale_max": 1.0}
            fill(con, "grades", {**keys, **graded})
    (note,) = list_notes(warehouse, run)
    assert note.startswith("note: 2 samples have no contexts on record, so their relevance_context_precision is 0")
    assert list_notes(warehouse, replace(run, metrics=("accuracy",))) == []


def test_citations_that_name_nothing_and_queries_that_fail_are_named(tmp_path: Path) -> None:
    """Their scores are 0 though the form of the marks, or of the query, may be all that is wrong."""
    warehouse = make_warehouse(tmp_path)
    run = make_run("r", metrics=("citation_recall", "result_set_match"))
    insert_run(warehouse, run)

    def add(table: str, **row: object) -> None:
        with open_writer(warehouse.location, patience_s=5.0) as con:
            fill(con, table, {"run_id": "r", **row})

    assert list_notes(warehouse, run) == []
    add("scores", sample_id="a", metric="citation_recall", value=0.0)
    (note,) = list_notes(warehouse, run)
    assert note.startswith("note: no answer has a citation in a known form, such as [1] or [doc 1], or a link")
    for ordinal, (marker, rank) in enumerate([("[1]", 1), ("[(x)-1]", None)], start=1):
        where = {"text_start": ordinal, "text_end": ordinal + 1}
        add("citations", sample_id="a", ordinal=ordinal, marker=marker, context_rank=rank, **where)
    assert list_notes(warehouse, run) == []
    add("citations", sample_id="b", ordinal=1, marker="[(x)-1]", text_start=0, text_end=1)
    (note,) = list_notes(warehouse, run)
    assert note.startswith("note: 2 of 3 citations, such as '[(x)-1]', name no context of their sample by its rank or")
    add("citations", sample_id="c", ordinal=1, marker="[0]", text_start=0, text_end=1)
    (note,) = list_notes(warehouse, run)
    assert note.startswith("note: 1 of 4 citations have the number 0, where the first context is 1; --citations-from 0")
    of_query = {"rubric": "result_sets", "criterion": "any_order", "scale_max": 1.0}
    add("grades", sample_id="a", rating=1.0, reason="", **of_query)
    assert len(list_notes(warehouse, run)) == 1
    tables = {"tables": {"t": [{"x": 1}]}}
    sample = make_sample(ground_truth="select x from t", answer="It is 1.", metadata_json=json.dumps(tables))
    grade = compare_results(sample, "d.jsonl")[0]
    add("grades", sample_id="b", rating=0.0, reason=grade.reason, **of_query)
    note = list_notes(warehouse, run)[1]
    assert note.startswith("note: 1 of 2 results of result_set_match are 0 because the bot's query fails: ")
