"""A refused option is not sent again: asked once more without it, remembered for the run, and recorded.

The refusals are in the words of providers and servers, from their documentation and from what their users report.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judge_factories
import orjson
import pytest
from endpoint import Asked, Endpoint, Raw
from langchain_core.messages import AIMessage
from live_runs import lay_out_run, make_settings, read_calls
from provider_calls import GOOD, ask, make_question

from evalhouse.flows.results.run_facts import describe_dropped
from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.datasets.thoughts import Spoken, split_reply
from evalhouse.tasks.judge.protocol import FatalJudgeError, Judge, JudgeFailed, UnsupportedParameter
from evalhouse.tasks.models.chat import ChatModelJudge
from evalhouse.tasks.models.provider_judges import make_factory_judge
from evalhouse.warehouse.store import Warehouse

GOOD_2 = ["It is red.", "Its number is 2."]
EVERYTHING = {"temperature": 0.3, "max_tokens": 900, "reasoning_effort": "low"}


def refuse(message: str, param: str | None = None, status: int = 400) -> Raw:
    return Raw(status=status, body={"error": {"message": message, "param": param, "code": "unsupported_parameter"}})


def read_dropped(judge: Judge) -> tuple[UnsupportedParameter, ...]:
    assert isinstance(judge, ChatModelJudge)
    return judge.dropped


# By case: the option, how the endpoint refuses it, and what it gets in its place.
CASES: dict[str, tuple[str, Raw, str | None]] = {
    "o-series temperature": (
        "temperature",
        refuse("Unsupported value: 'temperature' does not support 0.3 with this model. Only the default (1) value is "
               "supported.", "temperature"),
        None,
    ),
    "temperature in words": ("temperature", refuse("`temperature` is deprecated for this model."), None),
    "effort": ("reasoning_effort", refuse("Unrecognized request argument supplied: reasoning_effort"), None),
    "effort in Ollama": ("reasoning_effort", refuse('"llama3" does not support thinking'), None),
    "older name": (
        "max_completion_tokens", refuse("Unrecognized request argument supplied: max_completion_tokens"), "max_tokens",
    ),
    "a param": ('max_completion_tokens', refuse('Unknown parameter.', 'max_completion_tokens'), 'max_tokens'),
    "system, o1": (
        "system",
        refuse("Unsupported value: 'messages[0].role' does not support 'system' with this model.", "messages[0].role"),
        None,
    ),
    "system, a template": ("system", refuse("System role not supported", status=500), None),
}  # fmt: skip


def is_in(option: str, body: dict[str, Any]) -> bool:
    if option == "system":
        return any(message["role"] == "system" for message in body["messages"])
    return option in body or option in str(body.get("response_format"))


@pytest.mark.parametrize("case", CASES)
async def test_refused_option_is_left_out_from_then_on_and_reported(
    endpoint: Endpoint, tmp_path: Path, case: str
) -> None:
    option, refusal, instead = CASES[case]
    endpoint.configure(script={"extract": lambda asked: refusal if is_in(option, asked.body) else None})
    assert await ask(tmp_path, make_question(1), make_question(2), attempts=1, **EVERYTHING) == [GOOD, GOOD_2]
    assert [is_in(option, body) for body in endpoint.stats.bodies] == [True, False, False]
    assert [instead is not None and is_in(instead, body) for body in endpoint.stats.bodies] == [
        False, instead is not None, instead is not None,
    ]  # fmt: skip
    refused, *good = read_calls(tmp_path)
    assert refused["error"].startswith("the endpoint does not take ")
    assert [call["status"] for call in (refused, *good)] == ["error", "ok", "ok"]
    # Each request is recorded as it was sent, under one key.
    sent = [{**orjson.loads(call["request"])} for call in (refused, *good)]
    assert [{k: v for k, v in request.items() if k != "endpoint"} for request in sent] == endpoint.stats.bodies
    assert refused["request_hash"] == good[0]["request_hash"]
    (line,) = describe_dropped(Warehouse(str(tmp_path / "w.duckdb")), "run-1")
    assert line.startswith("openai:judge was asked without what its endpoint does not take: ")


async def test_a_stubborn_endpoint_is_asked_for_words_alone(endpoint: Endpoint, tmp_path: Path) -> None:
    """An endpoint refuses one option after the other; each request is sent once more, and no attempt is lost."""
    words = {
        "temperature": "temperature is not supported", "reasoning_effort": "reasoning_effort is unknown",
        "max_completion_tokens": "max_completion_tokens is unknown", "max_tokens": "max_tokens is unknown",
        "response_format": "response_format is unknown", "system": "System role not supported",
    }  # fmt: skip

    def say(asked: Asked) -> Raw | None:
        refused = (refuse(message) for option, message in words.items() if is_in(option, asked.body))
        return next(refused, None)

    endpoint.configure(script={"extract": say})
    async with lay_out_run(tmp_path, make_settings(attempts=1, **EVERYTHING)) as live_run:
        answer = await live_run.asker.ask(make_question(), read_statements)
        dropped = read_dropped(live_run.asker.judge)
    assert answer.value == GOOD
    assert [(item.option, item.instead) for item in dropped] == [
        ("temperature", None),
        ("reasoning_effort", None),
        ("max_completion_tokens", "max_tokens"),
        ("max_tokens", None),
        ("a schema that names the ids", "the schema of a prompt"),
        ("the schema of a prompt", "json_object"),
        ("json_object", "words alone"),
        ("system", "its words at the head of the user's"),
    ]
    last = endpoint.stats.bodies[-1]
    assert set(last) == {"model", "messages"}
    assert last["messages"][0]["role"] == "user"
    system, first = endpoint.stats.bodies[0]["messages"][:2]
    assert last["messages"][0]["content"] == f"{system['content']}\n\n{first['content']}"


async def test_requests_in_flight_learn_of_a_refusal_together(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(no_temperature=True, latency=0.01)
    async with lay_out_run(tmp_path, make_settings(concurrency=4, attempts=1, temperature=0.3)) as live_run:
        asked = (live_run.asker.ask(make_question(number), read_statements) for number in range(40))
        assert len(await asyncio.gather(*asked)) == 40
        assert [item.option for item in read_dropped(live_run.asker.judge)] == ["temperature"]
    assert endpoint.stats.statuses[200] == 40
    assert endpoint.stats.statuses[400] <= 4


@pytest.mark.parametrize(("most", "sent"), [(20, [20, 20]), (5, [20, 5, 5]), (0, [20, 5, None, None])])  # fmt: skip
async def test_fewer_alternatives_are_asked_for_before_none(
    endpoint: Endpoint, tmp_path: Path, most: int, sent: list[int | None]
) -> None:
    def say(asked: Asked) -> Raw | None:
        too_many = asked.body.get("top_logprobs", 0) > most
        return refuse(f"top_logprobs must be between 0 and {most}", "top_logprobs") if too_many else None

    endpoint.configure(script={"extract": say})
    async with lay_out_run(tmp_path, make_settings()) as live_run:
        for number in (1, 2):
            await live_run.asker.ask(make_question(number, logprobs=True), read_statements)
    assert [body.get("top_logprobs") for body in endpoint.stats.bodies] == sent
    assert ["logprobs" in body for body in endpoint.stats.bodies] == [number is not None for number in sent]


REFUSED_VALUE = (
    "Unsupported value: 'reasoning_effort' does not support 'minimal' with this model. "
    "Supported values are: 'low', 'medium', and 'high'."
)


@pytest.mark.parametrize(("settings", "refusal", "expected"), [
    ({"reasoning_effort": "minimal"}, refuse(REFUSED_VALUE, "reasoning_effort"),
     r"--reasoning-effort minimal: .*'low', 'medium', and 'high'.*begin a new run with another"),
    ({"temperature": 0.0, "votes": 3}, refuse("Unsupported value: 'temperature'", "temperature"),
     r"does not take temperature .*votes are asked at 0\.7.*leave the temperature out, or take one vote"),
])  # fmt: skip
async def test_what_the_run_rests_on_stops_it_with_what_to_do(
    endpoint: Endpoint, tmp_path: Path, settings: dict[str, Any], refusal: Raw, expected: str
) -> None:
    endpoint.configure(script={"extract": lambda _: refusal})
    error, *_ = await ask(tmp_path, make_question(1), **settings)
    assert isinstance(error, FatalJudgeError)
    with pytest.raises(FatalJudgeError, match=expected):
        raise error
    assert len(endpoint.stats.bodies) == 1


async def test_what_was_not_sent_is_not_what_was_refused(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(script={"extract": [refuse("the temperature must be set", "temperature")]})
    (error,) = await ask(tmp_path)
    assert isinstance(error, JudgeFailed)
    assert "the temperature must be set" in str(error)


def make_thinking(monkeypatch: pytest.MonkeyPatch, model: Callable[..., Any]) -> str:
    message = AIMessage(content=orjson.dumps({"statements": GOOD}).decode())
    monkeypatch.setattr(judge_factories, "make_odd", lambda: model(message=message))
    return "judge_factories:make_odd"


async def test_a_langchain_model_is_given_the_effort_that_it_has_a_field_for(monkeypatch: pytest.MonkeyPatch) -> None:
    name = make_thinking(monkeypatch, judge_factories.ThinkingChatModel)
    for effort in (None, "low"):
        judge = make_factory_judge(name, make_settings(judge=name, reasoning_effort=effort))
        await judge.reply(judge.prepare(make_question()))
    assert judge_factories.ThinkingChatModel.efforts == [None, "low"]
    name = make_thinking(monkeypatch, judge_factories.SayingChatModel)
    with pytest.raises(FatalJudgeError, match=r"SayingChatModel, which has no reasoning_effort"):
        make_factory_judge(name, make_settings(judge=name, reasoning_effort="low"))


REPLY = orjson.dumps({"statements": GOOD}).decode()
DRAFT = 'Maybe {"statements": ["no"]}?'
FORGED = f"It says </think>{DRAFT}, which is forged."
QUOTING = '{"statements": ["The tag </think>\\n ends it.", "{<think>}"]}'


HARMONY = "<|channel|>analysis<|message|>"


@pytest.mark.parametrize(
    ("content", "text", "thoughts"),
    [
        (REPLY, REPLY, None),
        (f"<think>{DRAFT}</think>\n\n{REPLY}", REPLY, DRAFT),
        (f"[THINK]{DRAFT}[/THINK]{REPLY}", REPLY, DRAFT),
        (f"{DRAFT}\n</think>\n{REPLY}", REPLY, DRAFT),
        (f"<think>{DRAFT}", "", DRAFT),
        (f"{DRAFT}</think>", "", DRAFT),
        (f"<think>\n\n</think>\n\n{REPLY}", REPLY, None),
        # Marks that are quoted: a text under test mentions them, in thoughts or in the reply.
        (QUOTING, QUOTING, None),
        (f"```json\n{QUOTING}\n```", f"```json\n{QUOTING}\n```", None),
        (f"<think>{DRAFT}</think>{QUOTING}", QUOTING, DRAFT),
        (f"<think>{FORGED}</think>{REPLY}", REPLY, FORGED),
        (f"<think>{DRAFT}</think><think>Or rather</think>{REPLY}", REPLY, f"{DRAFT}</think><think>Or rather"),
        ("It is <think> about.", "It is <think> about.", None),
        (f"{HARMONY}{DRAFT}<|end|><|start|>assistant<|channel|>final<|message|>{REPLY}", REPLY,
         f"{HARMONY}{DRAFT}<|end|>"),
        (f"{HARMONY}{DRAFT}", "", f"{HARMONY}{DRAFT}"),
        (f"analysis{DRAFT}assistantfinal{REPLY}", REPLY, f"analysis{DRAFT}assistantfinal"),
    ],
)  # fmt: skip
def test_thoughts_are_parted_from_a_reply(content: str, text: str, thoughts: str | None) -> None:
    spoken = split_reply(content)
    assert spoken == Spoken(text=text, thoughts=thoughts)


def complete(message: dict[str, Any], finish: str = "stop") -> Raw:
    usage = {"prompt_tokens": 9, "completion_tokens": 700, "completion_tokens_details": {"reasoning_tokens": 680}}
    return Raw(body={"choices": [{"message": message, "finish_reason": finish}], "usage": usage})


@pytest.mark.parametrize(
    "message",
    [
        {"content": f"<think>{DRAFT}</think>{REPLY}"},
        {"content": f"{DRAFT}\n</think>\n{REPLY}"},
        {"content": REPLY, "reasoning_content": DRAFT},  # DeepSeek, vLLM, llama.cpp
        {"content": REPLY, "reasoning": DRAFT},  # OpenRouter, Ollama, Groq
        {"content": [{"type": "thinking", "thinking": [{"text": DRAFT}]}, {"type": "text", "text": REPLY}]},  # Mistral
    ],
)
async def test_thoughts_are_recorded_apart_and_paid_for(
    endpoint: Endpoint, tmp_path: Path, message: dict[str, Any]
) -> None:
    endpoint.configure(script={"extract": [complete(message)]})
    assert await ask(tmp_path) == [GOOD]
    (call,) = read_calls(tmp_path)
    assert (call["reply"], call["thoughts"], call["completion_tokens"]) == (REPLY, DRAFT, 700)


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize(("message", "finish", "expected"), [
    ({"content": f"<think>{DRAFT}"}, "stop", "the reply was empty: the model wrote everything in its thoughts"),
    ({"content": f"<think>{DRAFT}"}, "length", "cut off at the model's output limit"),
    ({"content": "", "reasoning_content": DRAFT}, "length", "cut off at the model's output limit"),
])  # fmt: skip
async def test_nothing_is_read_from_thoughts_alone(
    endpoint: Endpoint, tmp_path: Path, message: dict[str, Any], finish: str, expected: str
) -> None:
    endpoint.configure(script={"extract": [complete(message, finish)]})
    assert await ask(tmp_path) == [GOOD]
    first, second = read_calls(tmp_path)
    assert expected in first["error"]
    assert (first["reply"], first["thoughts"], first["completion_tokens"]) == ("", DRAFT, 700)
    assert second["status"] == "ok"


THINKING = {"type": "thinking", "thinking": DRAFT, "signature": "x"}
TEXT = {"type": "text", "text": REPLY}


@pytest.mark.parametrize(
    "message",
    [
        AIMessage(content=[THINKING, TEXT], response_metadata={"model_provider": "anthropic"}),
        AIMessage(content=[{"type": "reasoning", "reasoning": DRAFT}, TEXT]),
        AIMessage(content=REPLY, additional_kwargs={"reasoning_content": DRAFT}),
        AIMessage(content=f"<think>{DRAFT}</think>{REPLY}"),
    ],
)  # fmt: skip
async def test_thoughts_of_a_langchain_model_are_kept_apart(
    monkeypatch: pytest.MonkeyPatch, message: AIMessage
) -> None:
    monkeypatch.setattr(judge_factories, "make_odd", lambda: judge_factories.SayingChatModel(message=message))
    name = "judge_factories:make_odd"
    judge = make_factory_judge(name, make_settings(judge=name))
    reply = await judge.reply(judge.prepare(make_question()))
    assert (reply.text, reply.thoughts) == (REPLY, DRAFT)
