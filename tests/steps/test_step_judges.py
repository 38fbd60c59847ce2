"""A judge per step: who is asked what, under which key, within which limits, and which names are refused."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from endpoint import running_endpoint
from live_runs import judge_samples, make_sample, make_settings, open_warehouse, point_to
from realistic_judge import make_script

from evalhouse.flows.preparing.live_run import make_live_run
from evalhouse.flows.preparing.plan import make_plan
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.judge.names import find_judge, list_judges, parse_judges
from evalhouse.tasks.models.make import make_judges

METRICS = ("answer_correctness", "faithfulness", "context_precision")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("lexical", "lexical"),
        (" openai:a , attribute = lexical", "openai:a,attribute=lexical"),
        ("rank=m:f,openai:a,classify=openai:b", "openai:a,classify=openai:b,rank=m:f"),
        ("openai:a,classify=openai:a", "openai:a"),
        ("attribute=lexical", "attribute=lexical"),
        ("openai:ft=1", "openai:ft=1"),
        ({"default": "openai:a", "grade": "openai:b"}, "openai:a,grade=openai:b"),
        ({"classify": "openai:b"}, "classify=openai:b"),
    ],
)
def test_judges_are_named_in_one_way(given: str | Mapping[str, object], text: str) -> None:
    assert str(parse_judges(given)) == text
    assert str(parse_judges(text)) == text


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("openai:a,clasify=lexical", "there is no step 'clasify'; did you mean classify?"),
        ("colour=lexical", "there is no step 'colour'; known: extract, classify, attribute, rank"),
        ("openai:a,similarity=openai:b", "the step 'similarity' asks no judge; steps that do: extract"),
        ("extract_answer=lexical", "'extract_answer' is part of the step 'extract'; name its judge as extract=JUDGE"),
        ("grade_accuracy=lexical", "name its judge as grade=JUDGE"),
        ("rank=openai:a,rank=openai:b", "the step 'rank' has two judges, 'openai:a' and 'openai:b'; name one"),
        ("openai:a,openai:b", "two default judges, 'openai:a' and 'openai:b'; name a step's judge as STEP=JUDGE"),
        ("openai:a,,rank=lexical", "no judge given for default; write JUDGE, or STEP=JUDGE"),
        ("openai:a,rank=", "no judge given for rank"),
        ("", "no judge given"),
        ("none", "no judge given"),
        ({"rank": 3}, "no judge given for rank"),
        ({"clasify": "lexical"}, "did you mean classify?"),
    ],
)
def test_other_names_are_refused(given: str | Mapping[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        parse_judges(given)


def test_what_is_on_record_is_read_whatever_it_is() -> None:
    text = "openai:a,attribute=lexical"
    assert [find_judge(text, call) for call in ("attribute_answer", "attribute", "classify", "grade_x", "gone")] == [
        "lexical", "lexical", "openai:a", "openai:a", "openai:a"
    ]  # fmt: skip
    assert list_judges(text) == ["openai:a", "lexical"]
    assert [find_judge(old, "rank") for old in ("none", "", "odd=name")] == ["none", "", "odd=name"]


async def judge(folder: Path, run_id: str, **settings: Any) -> list[dict[str, Any]]:  # noqa: ANN401
    """Two samples judged as a run; its calls."""
    chosen = make_settings(metrics=METRICS, **settings)
    plan = make_plan(chosen)
    live_run = make_live_run(run_id, chosen, plan, make_judges(chosen, plan), open_warehouse(folder))
    try:
        await judge_samples(live_run, [make_sample(1), make_sample(2)])
    finally:
        await live_run.close()
        await asyncio.to_thread(live_run.asker.record.close)
    return open_warehouse(folder).read_rows(
        "select step, judge, model, status, request_hash, cost_usd from llm_calls where run_id = $run_id",
        {"run_id": run_id},
    )


def list_asked(calls: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(call["step"], call["judge"]) for call in calls if call["status"] == "ok"}


async def test_each_step_is_asked_of_its_judge_and_nothing_is_paid_again(tmp_path: Path) -> None:
    with running_endpoint(script=make_script()) as endpoint:
        point_to(endpoint.base_url)
        alone = await judge(tmp_path, "alone", judge="openai:gpt-4.1-mini")
        mixed = await judge(
            tmp_path, "mixed", judge="openai:gpt-4.1-mini,attribute=lexical,classify=openai:gpt-4.1-nano"
        )
    assert list_asked(mixed) == {("attribute_answer", "lexical"), ("classify", "openai:gpt-4.1-nano")}
    reused = {(call["step"], call["judge"]) for call in mixed if call["status"] == "cached"}
    assert {step for step, _ in reused} >= {"extract_answer", "rank"}
    assert {judge for _, judge in reused} == {"openai:gpt-4.1-mini"}
    keys = {call["request_hash"] for call in alone}
    assert all(call["request_hash"] in keys for call in mixed if call["judge"] == "openai:gpt-4.1-mini")


async def test_no_key_is_needed_where_no_step_asks_a_model(tmp_path: Path) -> None:
    calls = await judge(tmp_path, "free", judge="openai:gpt-4.1-mini,extract=lexical,classify=lexical,"
                        "attribute=lexical,rank=lexical")  # fmt: skip
    assert {call["judge"] for call in calls} == {"lexical"}


def test_a_judge_that_cannot_take_a_step_is_refused_with_the_flag_to_give() -> None:
    settings = make_settings(judge="lexical", metrics=("accuracy", "faithfulness"))
    with pytest.raises(FatalJudgeError, match=r"cannot take the step grade \(accuracy\), only .*--judge grade=openai"):
        make_judges(settings, make_plan(settings))
