"""By the fused plan the answer and the ground truth are split in one request, and each half of its reply goes on record
for the nights on which only the other text is new."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Asked, Endpoint, Inject, Raw, running_endpoint
from endpoint_replies import Choice, build_completion, compose_reply, parse_blocks
from live_runs import (
    ScriptedJudge,
    find_odd,
    judge_samples,
    lay_out_run,
    make_sample,
    make_settings,
    point_to,
    read_calls,
    read_detail,
    read_outcomes,
    say_good,
)

from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import SampleWork
from evalhouse.warehouse.rows.samples import StoredSample

STEPS = ("extract_answer", "extract_ground_truth")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint() as running:
        point_to(running.base_url)
        yield running


async def judge(folder: Path, sample: StoredSample, *, run_id: str = "run-1", **settings: Any) -> SampleWork:  # noqa: ANN401
    async with lay_out_run(folder, make_settings(plan="fused", **settings), run_id=run_id) as live_run:
        (work,) = await judge_samples(live_run, [sample])
    return work


def read_statements(work: SampleWork) -> dict[str, list[str]]:
    rows = work.rows["statements"]
    return {
        source: [str(row["text"]) for row in rows if row["source"] == source] for source in ("answer", "ground_truth")
    }


def list_sent(folder: Path, run_id: str = "run-1") -> list[dict[str, Any]]:
    """The requests that split texts, less the halves of a reply that have a row of their own."""
    return [
        call
        for call in read_calls(folder)
        if call["run_id"] == run_id and call["step"] in STEPS and call["reused_call_id"] is None
    ]


async def test_one_request_gives_the_statements_of_both_texts(endpoint: Endpoint, tmp_path: Path) -> None:
    sample = make_sample(answer="It is red. It is 40 m high.", ground_truth="It is red. It was built in 1911.")
    work = await judge(tmp_path, sample)
    assert read_statements(work) == {
        "answer": ["It is red.", "It is 40 m high."],
        "ground_truth": ["It is red.", "It was built in 1911."],
    }
    (sent,) = list_sent(tmp_path)
    assert {row["call_id"] for row in work.rows["statements"]} == {sent["call_id"]}
    assert (sent["prompt"], orjson.loads(sent["reply"]).keys()) == ("extract_both", {"answer", "ground_truth"})
    assert endpoint.stats.kinds == {"extract_both": 1, "fused": 1}


@pytest.mark.parametrize("changed", ["answer", "ground_truth"])
async def test_where_one_text_is_new_the_other_ones_statements_are_those_on_record(
    changed: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    kept = "ground_truth" if changed == "answer" else "answer"
    sample = make_sample()
    first = await judge(tmp_path, sample)
    (both,) = list_sent(tmp_path)

    def split_otherwise(asked: Asked) -> dict[str, Any]:
        return {name: [f"Another statement of the {name}."] for name in ("answer", "ground_truth")}

    endpoint.configure(script={"extract_both": split_otherwise})
    later = await judge(tmp_path, replace(sample, **{changed: "It is another one."}), run_id="run-2")
    assert read_statements(later) == {
        kept: read_statements(first)[kept],
        changed: [f"Another statement of the {changed}."],
    }
    (sent,) = list_sent(tmp_path, "run-2")
    assert f"<{kept} " in (told := orjson.loads(sent["request"])["messages"][-1]["content"])
    assert str(getattr(sample, kept)) not in told, "the text that is on record is not sent"
    (reused,) = [call for call in read_calls(tmp_path) if call["run_id"] == "run-2" and call["status"] == "cached"]
    assert reused["reused_call_id"] == both["call_id"], "lineage goes on to the request that asked for both"
    assert {row["call_id"] for row in later.rows["statements"]} == {sent["call_id"], reused["call_id"]}


async def test_a_run_that_was_killed_before_the_halves_were_on_record_finds_the_whole(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(Asker, "keep_part", lambda *_, **__: None)
        first = await judge(tmp_path, make_sample())
    n_asked = endpoint.stats.requests
    again = await judge(tmp_path, make_sample(), run_id="run-2")
    assert endpoint.stats.requests == n_asked
    assert read_statements(again) == read_statements(first)
    later = await judge(tmp_path, make_sample(answer="It is another one."), run_id="run-3")
    assert read_statements(later)["ground_truth"] == read_statements(first)["ground_truth"]
    assert len(list_sent(tmp_path, "run-3")) == 1


async def test_one_ground_truth_of_several_samples_is_split_once(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(latency=0.05)
    samples = [make_sample(1), replace(make_sample(1), sample_id="s2", ordinal=2, answer="It is another one.")]
    async with lay_out_run(tmp_path, make_settings(plan="fused")) as live_run:
        first, second = await judge_samples(live_run, samples)
    assert read_statements(first)["ground_truth"] == read_statements(second)["ground_truth"]
    assert read_statements(second)["answer"] == ["It is another one."]
    asked = [parse_blocks(orjson.loads(call["request"])["messages"][-1]["content"]) for call in list_sent(tmp_path)]
    assert sorted(bool(blocks["ground_truth"]) for blocks in asked) == [False, True]


async def test_equal_samples_are_split_by_one_request(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(latency=0.05)
    async with lay_out_run(tmp_path, make_settings(plan="fused")) as live_run:
        works = await judge_samples(live_run, [make_sample(1), replace(make_sample(1), sample_id="s2", ordinal=2)])
    assert read_statements(works[0]) == read_statements(works[1])
    assert len(list_sent(tmp_path)) == 1


def cut_off(asked: Asked) -> Raw | None:
    """Replies about both texts are cut off, those about one are not."""
    if not all(asked.blocks[name] for name in ("answer", "ground_truth")):
        return None
    said = orjson.dumps(compose_reply(asked)).decode()
    return Raw(body=build_completion(asked, Choice(content=said[:-20], finish_reason="length"), 1, 0))


def leave_one_out(asked: Asked) -> dict[str, Any] | None:
    return {"answer": ["It is red."]} if asked.blocks["answer"] and asked.blocks["ground_truth"] else None


def refuse_both(asked: Asked) -> Inject | None:
    return Inject(fault="refusal") if asked.blocks["answer"] and asked.blocks["ground_truth"] else None


@pytest.mark.parametrize("trouble", [cut_off, leave_one_out, refuse_both])
async def test_what_cannot_be_had_of_both_at_once_is_asked_text_by_text(
    trouble: Any,  # noqa: ANN401
    endpoint: Endpoint,
    tmp_path: Path,
) -> None:
    whole = await judge(tmp_path / "whole", make_sample())
    endpoint.configure(script={"extract_both": trouble})
    work = await judge(tmp_path / "odd", make_sample(), attempts=2)
    assert set(read_outcomes(work).values()) == {None}
    assert read_statements(work) == read_statements(whole)
    assert read_detail(work, "extract_answer").startswith("both texts in one request: ")
    usable = [call["step"] for call in list_sent(tmp_path / "odd") if call["status"] == "ok"]
    assert sorted(usable) == list(STEPS)


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_a_text_that_was_given_the_words_of_the_other_is_asked_for_again_alone(
    language: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    texts = {
        "en": ("It reaches about as far as one can see. Fishermen paid for it.", "Its light carries 30 km over water."),
        "zh": ("灯光照得到目力所及之处，由渔民出资。", "光程三十公里，一九六二年点亮。"),
    }[language]
    sample = make_sample(answer=texts[0], ground_truth=texts[1])

    def mix(asked: Asked) -> dict[str, Any] | None:
        is_both = asked.blocks["answer"] and asked.blocks["ground_truth"]
        return {"answer": [texts[1]], "ground_truth": [texts[1]]} if is_both else None

    endpoint.configure(script={"extract_both": mix})
    work = await judge(tmp_path, sample)
    assert texts[1] not in read_statements(work)["answer"]
    assert read_statements(work)["ground_truth"] == [text for text in texts[1:] if text]
    assert "a statement of the answer has words of the ground_truth" in read_detail(work, "extract_answer")
    assert len(list_sent(tmp_path)) == 3
    n_asked = endpoint.stats.requests
    await judge(tmp_path, sample, run_id="run-2")
    assert endpoint.stats.requests == n_asked, "what came of asking for both is not asked for again either"


async def test_statements_of_both_texts_are_not_mixing(endpoint: Endpoint, tmp_path: Path) -> None:
    both = "The light of the tower at Cape Tarn carries 30 km over water."
    work = await judge(tmp_path, make_sample(answer=both, ground_truth=both))
    assert read_statements(work) == {"answer": [both], "ground_truth": [both]}
    assert len(list_sent(tmp_path)) == 1


async def test_texts_that_are_too_long_for_one_request_are_asked_for_in_parts(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    long = " ".join(f"Lamp {number} burns oil and nothing else." for number in range(90))
    work = await judge(tmp_path, make_sample(answer=long), request_tokens=500)
    assert len(read_statements(work)["answer"]) == 90
    assert set(read_outcomes(work).values()) == {None}
    asked = [parse_blocks(orjson.loads(call["request"])["messages"][-1]["content"]) for call in list_sent(tmp_path)]
    assert len(asked) >= 3
    assert not any(blocks["answer"] and blocks["ground_truth"] for blocks in asked)


async def test_the_words_of_the_worked_example_are_no_statements(tmp_path: Path) -> None:
    def copy_once(question: Question) -> str:
        if question.note:
            return say_good(question)
        return orjson.dumps({"answer": ["The Ottervale lift is steep."], "ground_truth": ["It is red."]}).decode()

    judge = ScriptedJudge(lambda question: find_odd(question, {"extract": copy_once})(question))
    async with lay_out_run(tmp_path, make_settings(plan="fused"), judge=judge) as live_run:
        (work,) = await judge_samples(live_run, [make_sample()])
    assert "Ottervale" not in str(read_statements(work))
    assert [bool(question.note) for question in judge.asked if question.step in STEPS] == [False, True]
    assert read_detail(work, "extract_answer") == "None"
