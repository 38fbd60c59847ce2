"""The short way to an endpoint: what it sends and reads is what LangChain's longer way would have sent and read."""

from pathlib import Path
from typing import Any

import judge_factories
import orjson
import pytest
from endpoint import Endpoint, Raw
from live_runs import lay_out_run, make_settings, read_calls
from provider_calls import make_question

from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import FatalJudgeError, Question
from evalhouse.tasks.models import chat as chat_model
from evalhouse.tasks.models.chat import ChatModelJudge, make_factory_judge, make_openai_judge


def make_judge(**settings: Any) -> ChatModelJudge:  # noqa: ANN401  # fields of RunSettings
    return make_openai_judge("openai:judge", "judge", make_settings(**settings))


async def ask(judge: ChatModelJudge, question: Question) -> Any:  # noqa: ANN401  # a reply or an error
    try:
        return await judge.reply(judge.prepare(question))
    finally:
        await judge.close()


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.4, "max_tokens": 300}, {"reasoning_effort": "low"}])
async def test_both_ways_send_and_read_the_same(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    short = await ask(make_judge(**settings), make_question())
    # As with LangSmith's traces enabled, but without a server for them.
    monkeypatch.setattr(chat_model, "tracing_is_enabled", lambda: True)
    long = await ask(make_judge(**settings), make_question())
    one, other = endpoint.stats.bodies
    assert one == {name: value for name, value in other.items() if name != "stream"}
    assert short.cached_tokens == 0
    assert long.cached_tokens > 0  # the instructions came a second time
    assert (short.text, short.model, short.prompt_tokens) == (long.text, long.model, long.prompt_tokens)


@pytest.mark.parametrize(("usage", "cached"), [
    ({"prompt_tokens": 9, "completion_tokens": 2}, None),
    ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}}, 6),
    ({"prompt_tokens": 9, "completion_tokens": 2, "prompt_cache_hit_tokens": 5}, 5),
    (None, None),
])  # fmt: skip
async def test_cached_tokens_are_read_under_either_name_and_kept(
    endpoint: Endpoint, tmp_path: Path, usage: dict[str, Any] | None, cached: int | None
) -> None:
    content = orjson.dumps({"statements": ["It is red."]}).decode()
    body = {"choices": [{"message": {"content": content}, "finish_reason": "stop"}], "model": "judge", "usage": usage}
    endpoint.configure(script={"extract": [Raw(body=body)]})
    async with lay_out_run(tmp_path) as live_run:
        await live_run.asker.ask(make_question(), read_statements)
    (call,) = read_calls(tmp_path)
    assert call["cached_tokens"] == cached
    assert call["prompt_tokens"] == (9 if usage else None)


@pytest.mark.parametrize(
    ("sent", "count"),
    [
        ("7.0", 7), ("2147483647", 2**31 - 1), ("2147483648", None), (str(10**30), None), ("1e300", None),
        ("-5", None), ("1.5", None), ('"12"', None), ("true", None),
    ],
)  # fmt: skip
async def test_count_that_no_column_holds_is_missing_and_warehouse_stays_usable(
    endpoint: Endpoint, tmp_path: Path, sent: str, count: int | None
) -> None:
    usage = '{"prompt_tokens": %s, "completion_tokens": %s, "prompt_tokens_details": {"cached_tokens": %s}}'
    content = orjson.dumps(orjson.dumps({"statements": ["It is red."]}).decode()).decode()
    body = f'{{"choices": [{{"message": {{"content": {content}}}}}], "usage": {usage % (sent, sent, sent)}}}'
    headers = {"Content-Type": "application/json"}
    endpoint.configure(script={"extract": [Raw(body=body, headers=headers)]})
    async with lay_out_run(tmp_path) as live_run:
        await live_run.asker.ask(make_question(), read_statements)
    (call,) = read_calls(tmp_path)
    assert (call["prompt_tokens"], call["completion_tokens"], call["cached_tokens"]) == (count, count, count)


async def test_a_content_in_parts_is_one_text(endpoint: Endpoint) -> None:
    parts = [{"type": "text", "text": '{"statements": '}, {"type": "text", "text": '["It is red."]}'}, "odd"]
    body = {"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]}
    endpoint.configure(script={"extract": [Raw(body=body)]})
    reply = await ask(make_judge(), make_question())
    assert reply.text == '{"statements": ["It is red."]}'
    assert reply.prompt_tokens is None


def describe_heat(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("temperature", "seed") if name in body}


async def test_votes_differ_by_seed_and_are_asked_with_some_heat(endpoint: Endpoint) -> None:
    judge = make_judge(temperature=0.0)
    for vote in (0, 1, 2):
        await judge.reply(judge.prepare(make_question(vote=vote)))
    await judge.close()
    assert [describe_heat(body) for body in endpoint.stats.bodies] == [
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 1},
        {"temperature": 0.7, "seed": 2},
    ]
    keys = {judge.prepare(make_question(vote=vote)).request_hash for vote in (0, 1, 2)}
    assert len(keys) == 3


@pytest.mark.parametrize(("temperature", "sent"), [(0.3, {"temperature": 0.3, "seed": 1}), (None, {"seed": 1})])
async def test_votes_keep_a_temperature_above_zero(
    endpoint: Endpoint, temperature: float | None, sent: dict[str, Any]
) -> None:
    await ask(make_judge(temperature=temperature), make_question(vote=1))
    assert describe_heat(endpoint.stats.bodies[0]) == sent


async def test_a_seed_that_is_not_taken_is_left_out_from_then_on(endpoint: Endpoint, tmp_path: Path) -> None:
    error = {"error": {"message": "Unrecognized request argument supplied: seed", "param": None, "code": None}}

    def refuse_seeds(asked: Any) -> Raw | None:  # noqa: ANN401  # endpoint_replies.Asked
        return Raw(status=400, body=error) if "seed" in asked.body else None

    endpoint.configure(script={"extract": refuse_seeds})
    async with lay_out_run(tmp_path, make_settings(votes=3)) as live_run:
        for vote in (1, 2):
            await live_run.asker.ask(make_question(vote=vote), read_statements)
    calls = read_calls(tmp_path)
    assert [call["status"] for call in calls] == ["error", "ok", "ok"]
    assert len({call["request_hash"] for call in calls}) == 2  # without its seed it is the same vote


async def test_a_factorys_openai_model_votes_too(endpoint: Endpoint) -> None:
    name = "judge_factories:make_openai"
    judge = make_factory_judge(name, make_settings(judge=name))
    await ask(judge, make_question(vote=2))
    assert describe_heat(endpoint.stats.bodies[0]) == {"temperature": 0.7, "seed": 2}


def test_a_factorys_model_that_can_only_repeat_itself_cannot_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_factories, "make_odd", judge_factories.ColdChatModel)
    with pytest.raises(FatalJudgeError, match=r"temperature 0, whose votes would all be equal"):
        make_factory_judge("judge_factories:make_odd", make_settings(votes=3))
