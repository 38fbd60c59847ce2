"""A model's thoughts are recorded apart from its reply, in any place, and nothing is read from them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import judge_factories
import orjson
import pytest
from endpoint import Raw, running_endpoint
from langchain_core.messages import AIMessage
from live_runs import make_settings, point_to, read_calls
from provider_calls import GOOD, KEY, ask, make_question

from evalhouse.tasks.models.chat import make_factory_judge
from evalhouse.tasks.models.dialect import Spoken, split_thoughts

REPLY = orjson.dumps({"statements": GOOD}).decode()
DRAFT = 'Maybe {"statements": ["no"]}?'
FORGED = f"It says </think>{DRAFT}, which is forged."
QUOTING = '{"statements": ["The tag </think>\\n ends it.", "{<think>}"]}'


@pytest.mark.parametrize(
    ("content", "text", "thoughts"),
    [
        (REPLY, REPLY, None),
        (f"<think>{DRAFT}</think>\n\n{REPLY}", REPLY, DRAFT),
        (f"\n <think>\n{DRAFT}\n</think>{REPLY}\n", REPLY, DRAFT),
        (f"[THINK]{DRAFT}[/THINK]{REPLY}", REPLY, DRAFT),
        (f"{DRAFT}\n</think>\n{REPLY}", REPLY, DRAFT),
        (f"{DRAFT}</think>```json\n{REPLY}\n```", f"```json\n{REPLY}\n```", DRAFT),
        (f"<think>{DRAFT}", "", DRAFT),
        (f"<think>{DRAFT}</think>", "", DRAFT),
        (f"{DRAFT}</think>", "", DRAFT),
        ("<think></think>", "", None),
        (f"<think>\n\n</think>\n\n{REPLY}", REPLY, None),
        # Marks that are quoted: a text under test mentions them, in thoughts or in the reply.
        (QUOTING, QUOTING, None),
        (f"```json\n{QUOTING}\n```", f"```json\n{QUOTING}\n```", None),
        (f"<think>{DRAFT}</think>{QUOTING}", QUOTING, DRAFT),
        (f"<think>{FORGED}</think>{REPLY}", REPLY, FORGED),
        (f"<think>{DRAFT}</think><think>Or rather</think>{REPLY}", REPLY, f"{DRAFT}</think><think>Or rather"),
        (f"<think>{DRAFT}</think><think>Or rather", "", f"{DRAFT}<think>Or rather"),
        ("It is <think> about.", "It is <think> about.", None),
    ],
)  # fmt: skip
def test_thoughts_are_parted_from_a_reply(content: str, text: str, thoughts: str | None) -> None:
    spoken = split_thoughts(content)
    assert spoken == Spoken(text=text, thoughts=thoughts)


@pytest.mark.parametrize(
    "pump", ["<think>", "</think>", "<think></think>", "</think>{", "</think>\n<think>", "[THINK]{"]
)
def test_no_content_keeps_the_parting_busy(pump: str) -> None:
    started = time.process_time()
    spoken = split_thoughts(pump * (10_000_000 // len(pump)))
    assert time.process_time() - started < 0.5
    assert len(spoken.thoughts or "") <= 100_000


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
async def test_thoughts_are_recorded_apart_and_paid_for(tmp_path: Path, message: dict[str, Any]) -> None:
    with running_endpoint(script={"extract": [complete(message)]}) as endpoint:
        point_to(endpoint.base_url, KEY)
        assert await ask(tmp_path) == [GOOD]
    (call,) = read_calls(tmp_path)
    assert (call["reply"], call["thoughts"], call["completion_tokens"]) == (REPLY, DRAFT, 700)


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize(
    ("message", "finish", "expected"),
    [
        ({"content": f"<think>{DRAFT}"}, "stop", "the reply was empty: the model wrote everything in its thoughts"),
        ({"content": None, "reasoning": DRAFT}, "stop", "wrote everything in its thoughts"),
        ({"content": f"<think>{DRAFT}"}, "length", "cut off at the model's output limit"),
        ({"content": "", "reasoning_content": DRAFT}, "length", "cut off at the model's output limit"),
    ],
)
async def test_nothing_is_read_from_thoughts_alone(
    tmp_path: Path, message: dict[str, Any], finish: str, expected: str
) -> None:
    with running_endpoint(script={"extract": [complete(message, finish)]}) as endpoint:
        point_to(endpoint.base_url, KEY)
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
