"""Grades by log-probabilities over the wire and back from the record, and the note where they are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import judge_factories
import orjson
import pytest
from endpoint import Endpoint, Raw, make_error
from endpoint_replies import Asked
from grades import rate, read_row
from live_runs import PROMPTS, lay_out_run, make_sample, make_settings, read_calls
from token_replies import RATED, SEVEN, SEVEN_MEAN, build_body

from evalhouse.tasks.grade import grade_sample
from evalhouse.tasks.judge.protocol import Judge, ModelReply, Question, hash_canonical
from evalhouse.tasks.models import chat as chat_model
from evalhouse.tasks.models.chat import make_factory_judge, make_openai_judge
from evalhouse.tasks.pipeline.live_run import SampleWork, make_work


def script(endpoint: Endpoint, says: Any) -> None:  # noqa: ANN401  # a reply, or a function that gives one
    # By its blocks a rubric looks like one of our steps or like none.
    reply = says if callable(says) else lambda _: says
    endpoint.configure(script={"other": reply, "rank": reply})


async def grade_all(
    folder: Path,
    rubric: str = "accuracy",
    *,
    n: int = 1,
    judge: Judge | None = None,
    run_id: str = "run-1",
    **settings: Any,  # noqa: ANN401
) -> list[SampleWork]:
    """Grade so many samples one after the other."""
    works = [make_work(make_sample(number)) for number in range(1, n + 1)]
    chosen = make_settings(**settings)
    async with lay_out_run(folder, chosen, judge=judge, run_id=run_id, metrics=["faithfulness"]) as live_run:
        live_run.rubrics = (PROMPTS[rubric],)
        for work in works:
            await grade_sample(live_run, work)
    return works


async def grade(folder: Path, rubric: str = "accuracy", **options: Any) -> SampleWork:  # noqa: ANN401
    return (await grade_all(folder, rubric, **options))[0]


async def test_the_grade_comes_from_the_tokens_and_again_from_the_record(endpoint: Endpoint, tmp_path: Path) -> None:
    script(endpoint, Raw(body=build_body(*SEVEN)))
    first = read_row(await grade(tmp_path, logprobs=True), "accuracy")
    assert (first["said"], first["rating"]) == (7, pytest.approx(SEVEN_MEAN, abs=1e-5))
    assert first["rule"] == "expected from log-probabilities; 90.0% of the probability lay on the scale"
    (body,) = endpoint.stats.bodies
    assert (body["logprobs"], body["top_logprobs"]) == (True, 20)
    again = read_row(await grade(tmp_path, logprobs=True, run_id="run-2"), "accuracy")
    assert len(endpoint.stats.bodies) == 1, "the reply is stored"
    assert {**again, "call_id": ""} == {**first, "call_id": "", **({"run_id": "run-2"} if "run_id" in first else {})}
    asked, reused = read_calls(tmp_path)
    assert (asked["status"], reused["status"]) == ("ok", "cached")
    assert orjson.loads(asked["logprobs"])[0]["tokens"] == ["7"]
    assert (reused["logprobs"], reused["reused_call_id"]) == (None, asked["call_id"])


async def test_off_by_default_and_then_nothing_changes(endpoint: Endpoint, tmp_path: Path) -> None:
    script(endpoint, Raw(body=build_body(*SEVEN)))
    row = read_row(await grade(tmp_path), "accuracy")
    assert (row["said"], row["rating"], row["rule"]) == (7, 7, None)
    (body,) = endpoint.stats.bodies
    assert body.keys().isdisjoint(("logprobs", "top_logprobs"))
    (call,) = read_calls(tmp_path)
    assert call["logprobs"] is None, "not even where the endpoint gives them unasked"


async def test_the_option_belongs_to_the_question_and_to_no_other(endpoint: Endpoint, tmp_path: Path) -> None:
    script(endpoint, Raw(body=build_body(*SEVEN)))
    for logprobs in (False, True, False):
        await grade(tmp_path, logprobs=logprobs)
    plain, weighed, reused = read_calls(tmp_path)
    assert plain["request_hash"] != weighed["request_hash"]
    assert reused["reused_call_id"] == plain["call_id"]
    script(endpoint, '{"answer_validity": {"reason": "It names the year.", "verdict": true}}')
    await grade(tmp_path, "answer_validity", logprobs=False)
    await grade(tmp_path, "answer_validity", logprobs=True)
    assert len(endpoint.stats.bodies) == 3, "a flag is the same question with the option"


@pytest.mark.parametrize(
    "parameters", [{}, {"temperature": 0.0}, {"temperature": 0.5, "max_tokens": 9}, {"reasoning_effort": "low"}]
)
def test_requests_keep_their_keys(endpoint: Endpoint, parameters: dict[str, object]) -> None:
    """A key made in another way would ask about everything stored again."""
    judge = make_openai_judge("openai:judge", "judge", make_settings(**parameters))
    data = {"question": "Q?", "text": "T."}
    question = Question(step="grade_x", sample_id="s1", prompt=PROMPTS["extract"], data=data)
    keyed: list[object] = [
        endpoint.base_url, "judge", parameters, None, PROMPTS["extract"].prompt_hash, 1, 1, [],
        PROMPTS["extract"].render(data)[-1].content,
    ]  # fmt: skip
    assert judge.prepare(question).request_hash == hash_canonical(keyed)
    assert judge.prepare(replace(question, logprobs=True)).request_hash == hash_canonical([*keyed, "logprobs"])


@pytest.mark.parametrize("refusal", [
    make_error(400, "Unrecognized request argument supplied: logprobs"),
    make_error(400, "Unsupported parameter.", param="top_logprobs", code="unsupported_parameter"),
    make_error(403, "You are not allowed to request logprobs from this model"),
    make_error(422, "body.logprobs: Extra inputs are not permitted"),
])  # fmt: skip
async def test_an_endpoint_that_refuses_the_option_is_asked_without_it(
    endpoint: Endpoint, tmp_path: Path, refusal: Raw
) -> None:
    def answer(asked: Asked) -> Raw:
        return refusal if "logprobs" in asked.body else Raw(body=build_body(*SEVEN, logprobs=None))

    script(endpoint, answer)
    for work in await grade_all(tmp_path, n=2, logprobs=True):
        row = read_row(work, "accuracy")
        assert (row["said"], row["rating"]) == (7, 7)
        assert row["rule"] == "as written: the endpoint gave no log-probabilities"
    assert [call["status"] for call in read_calls(tmp_path)] == ["error", "ok", "ok"]
    assert ["logprobs" in body for body in endpoint.stats.bodies] == [True, False, False]


async def test_a_reply_off_the_scale_is_asked_again_with_any_tokens(endpoint: Endpoint, tmp_path: Path) -> None:
    eleven = build_body(*RATED, {"11": 0.5, "7": 0.5}, "}}")
    endpoint.configure(script={"other": [Raw(body=eleven), Raw(body=build_body(*SEVEN))]})
    row = read_row(await grade(tmp_path, logprobs=True), "accuracy")
    assert (row["said"], row["rating"]) == (7, pytest.approx(SEVEN_MEAN, abs=1e-5))
    assert [call["status"] for call in read_calls(tmp_path)] == ["error", "ok"]


async def ask(endpoint: Endpoint, judge: Any) -> ModelReply:  # noqa: ANN401  # any chat model's judge
    script(endpoint, Raw(body=build_body(*SEVEN)))
    data = {"question": "Q?", "ground_truth": "G.", "answer": "A."}
    question = Question(step="grade_accuracy", sample_id="s1", prompt=PROMPTS["accuracy"], data=data, logprobs=True)
    try:
        reply: ModelReply = await judge.reply(judge.prepare(question))
    finally:
        await judge.close()
    return reply


async def test_both_ways_send_the_option_and_read_the_same(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    short = await ask(endpoint, make_openai_judge("openai:judge", "judge", make_settings()))
    monkeypatch.setattr(chat_model, "tracing_is_enabled", lambda: True)
    long = await ask(endpoint, make_openai_judge("openai:judge", "judge", make_settings()))
    one, other = endpoint.stats.bodies
    assert one == {name: value for name, value in other.items() if name != "stream"}
    assert one["top_logprobs"] == 20
    assert short.logprobs is not None
    assert short.logprobs == long.logprobs


async def test_a_factorys_other_model_is_not_asked_for_them(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(judge_factories.settings, "replies", [orjson.dumps(rate(7)).decode()])
    judge = make_factory_judge("judge_factories:make_fake", make_settings())
    row = read_row(await grade(tmp_path, judge=judge, logprobs=True), "accuracy")
    assert (row["rating"], row["rule"]) == (7, "as written: the endpoint gave no log-probabilities")
    (call,) = read_calls(tmp_path)
    assert "logprobs" not in orjson.loads(call["request"])
    assert not endpoint.stats.bodies
