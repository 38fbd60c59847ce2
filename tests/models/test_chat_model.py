"""Chat models over real HTTP: what is sent, what comes back, what becomes of everything that can go wrong; and that the
short way to an endpoint sends and reads what LangChain's longer way would have sent and read."""

import asyncio
import base64
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import judge_factories
import openai
import orjson
import pytest
from endpoint import Endpoint, Inject, Raw, running_endpoint
from langchain_openai import ChatOpenAI
from live_runs import PROMPTS, lay_out_run, make_settings, point_to, read_calls
from provider_calls import ask, make_question
from pydantic import SecretStr

from evalhouse.prompts import Item
from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import FatalJudgeError, JudgeFailed, Question
from evalhouse.tasks.models import chat as chat_model
from evalhouse.tasks.models.chat import ChatModelJudge, find_openai_window, make_openai_judge
from evalhouse.tasks.models.openai_api import open_endpoint
from evalhouse.tasks.models.provider_judges import make_factory_judge
from evalhouse.tasks.models.providers import Access, strip_credentials
from evalhouse.warehouse.messages import redact

KEY = "sk-test-0123456789"
CHAT = "/v1/chat/completions"


async def test_the_wire_shape(endpoint: Endpoint, tmp_path: Path) -> None:
    assert await ask(tmp_path, make_question()) == [["It is red.", "Its number is 1."]]
    (body,) = endpoint.stats.bodies
    roles = [message["role"] for message in body["messages"]]
    assert roles[0] == "system"
    assert roles[-1] == "user"
    assert set(roles[1:-1]) <= {"user", "assistant"}
    assert "It is red." in body["messages"][-1]["content"]
    assert all("It is red. Its number" not in message["content"] for message in body["messages"][:-1])
    schema = body["response_format"]["json_schema"]
    wanted = PROMPTS["extract"].build_schema(make_question().data)
    assert (schema["name"], schema["strict"], schema["schema"]) == ("extract", True, wanted)
    assert body["model"] == "judge"
    assert "temperature" not in body, "none was set"


async def test_request_and_reply_are_recorded_without_key_or_header(endpoint: Endpoint, tmp_path: Path) -> None:
    await ask(tmp_path, make_question())
    (call,) = read_calls(tmp_path)
    (body,) = endpoint.stats.bodies
    request = orjson.loads(call["request"])
    assert request["messages"] == body["messages"]
    assert request["response_format"] == body["response_format"]
    assert request["endpoint"] == endpoint.base_url
    assert orjson.loads(call["reply"]) == {"statements": ["It is red.", "Its number is 1."]}
    assert (call["judge"], call["model"], call["status"]) == ("openai:judge", "judge", "ok")
    assert (call["step"], call["sample_id"], call["run_id"]) == ("extract_answer", "s1", "run-1")
    assert (call["prompt"], call["prompt_hash"]) == ("extract", PROMPTS["extract"].prompt_hash)
    assert (call["attempts"], call["error"]) == (1, None)
    assert call["prompt_tokens"] == endpoint.stats.prompt_tokens
    assert call["completion_tokens"] == endpoint.stats.completion_tokens
    assert KEY not in str(call)
    assert "authorization" not in str(call).lower()


async def test_one_client_serves_all_calls_with_as_many_in_flight_as_allowed(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.configure(latency=0.15)
    async with lay_out_run(tmp_path, make_settings(concurrency=30)) as live_run:
        asked = (live_run.asker.ask(make_question(number), read_statements) for number in range(60))
        await asyncio.gather(*asked)
    assert endpoint.stats.max_in_flight == 30
    assert endpoint.stats.requests[CHAT] == 60


@pytest.mark.parametrize(("changes", "same"), [
    ({}, True),
    ({"note": "Your previous reply could not be used."}, True),
    ({"number": 2}, False),
    ({"only": ("A1",)}, False),
    ({"data": {"question": "Number 2?", "text": "It is red. Its number is 1."}}, False),
    ({"prompt": PROMPTS["rank"], "data": {"question": "?", "ground_truth": "It is red.", "contexts": []}}, False),
])  # fmt: skip
def test_what_makes_another_question(endpoint: Endpoint, changes: dict[str, Any], same: bool) -> None:
    judge = make_openai_judge("openai:judge", "judge", make_settings())
    one = judge.prepare(make_question()).request_hash
    assert (judge.prepare(make_question(**changes)).request_hash == one) is same


@pytest.mark.parametrize(("settings", "model", "base_url", "same"), [
    ({}, "judge", None, True),
    ({"timeout_s": 9.0, "attempts": 2, "concurrency": 3}, "judge", None, True),
    ({"temperature": 0.5}, "judge", None, False),
    ({"reasoning_effort": "low"}, "judge", None, False),
    ({"max_tokens": 100}, "judge", None, False),
    ({}, "judge-2", None, False),
    ({}, "judge", "http://other.example/v1", False),
])  # fmt: skip
def test_what_makes_another_request(
    endpoint: Endpoint, settings: dict[str, Any], model: str, base_url: str | None, same: bool
) -> None:
    one = make_openai_judge("openai:judge", "judge", make_settings()).prepare(make_question()).request_hash
    point_to(base_url or endpoint.base_url, "another-key")
    other = make_openai_judge(f"openai:{model}", model, make_settings(**settings)).prepare(make_question())
    assert (other.request_hash == one) is same


async def test_what_is_asked_for_again_is_named_behind_the_data(endpoint: Endpoint) -> None:
    judge = make_openai_judge("openai:judge", "judge", make_settings())
    request = judge.prepare(make_question(only=("A2", "G1"), number=2, note="Please."))
    messages: Any = request.payload["messages"]
    assert messages[-1]["content"].endswith(">\n\nGive verdicts for these ids only: A2, G1. Please.")
    await judge.close()


@pytest.mark.usefixtures("quick_backoff")
async def test_a_request_that_hangs_is_given_up_and_sent_again(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(script={"extract": [Inject(fault="hang")]})
    started = time.monotonic()
    assert await ask(tmp_path, make_question(), timeout_s=0.3) == [["It is red.", "Its number is 1."]]
    assert time.monotonic() - started < 3
    assert read_calls(tmp_path)[0]["error"] == "no reply within 0.3 s"


@pytest.mark.usefixtures("quick_backoff")
async def test_retry_after_is_honoured(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(script={"extract": [Inject(fault="rate_limit")]}, retry_after=0.3)
    started = time.monotonic()
    await ask(tmp_path, make_question())
    assert 0.3 <= time.monotonic() - started < 3.0


def make_classify(**changes: Any) -> Question:  # noqa: ANN401  # fields of Question
    data = {
        "question": "Which?",
        "answer_statements": [Item(id="A1", text="It is red.")],
        "ground_truth_statements": [Item(id="G1", text="It is red.")],
    }
    return make_question(step="classify", prompt=PROMPTS["classify"], data=data, **changes)


async def ask_with_schemas(
    endpoint: Endpoint, folder: Path, refuse: Callable[[str], Raw | None], *questions: Question
) -> list[str]:
    """Ask one after the other; the word of JSON Schema or none that each request's schema has in it."""
    endpoint.configure(script=dict.fromkeys(PROMPTS, lambda asked: refuse(str(asked.body.get("response_format")))))
    async with lay_out_run(folder, make_settings(concurrency=1)) as live_run:
        for question in questions:
            await live_run.asker.ask(question, str)
    words = (str(body.get("response_format")) for body in endpoint.stats.bodies)
    marks = {"prefixItems": "ids", "json_schema": "plain", "json_object": "object", "None": "none"}
    return [next(name for mark, name in marks.items() if mark in word) for word in words]


async def test_ids_are_named_in_the_schema_where_a_new_one_costs_nothing(endpoint: Endpoint, tmp_path: Path) -> None:
    both = (make_classify(), make_question(), make_classify(only=("G1",), number=2))
    assert await ask_with_schemas(endpoint, tmp_path, lambda _: None, *both) == ["ids", "plain", "ids"]


@pytest.mark.parametrize("host", ["api.openai.com", "eu.api.openai.com", "house.openai.azure.com"])
def test_openai_gets_one_schema_for_all_requests(host: str) -> None:
    """It compiles every schema that it has not seen, which takes seconds, and refuses one that names items in turn."""
    point_to(f"https://{host}/v1", KEY)
    judge = make_openai_judge("openai:judge", "judge", make_settings())
    sent: Any = judge.prepare(make_classify(only=("G1",), number=2)).payload["response_format"]
    assert sent["json_schema"]["schema"] == PROMPTS["classify"].reply_schema


REFUSALS = {
    "unknown keyword": Raw(status=400, body={"error": {"message": "json_schema: unknown keyword prefixItems"}}),
    "named": Raw(status=400, body={"error": {"message": "Invalid schema.", "param": "response_format"}}),
    "status 500": Raw(
        status=500,
        body={"error": {"message": 'response_format type must be "text" or "json_object", got: json_schema'}},
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
async def test_a_schema_that_is_refused_is_made_simpler_and_then_left_out(
    endpoint: Endpoint, tmp_path: Path, refusal: Raw
) -> None:
    asked = (make_classify(), make_classify(vote=1), make_question(), make_classify(vote=2))
    only_plain = await ask_with_schemas(
        endpoint, tmp_path, lambda schema: refusal if "prefixItems" in schema else None, *asked
    )
    assert only_plain == ["ids", "plain", "plain", "plain", "plain"]
    endpoint.reset()
    none = await ask_with_schemas(
        endpoint, tmp_path / "other", lambda schema: None if schema == "None" else refusal, *asked
    )
    assert none == ["ids", "plain", "object", "none", "none", "none", "none"]


async def test_what_is_asked_a_third_time_is_not_asked_in_the_same_words_and_at_the_same_temperature(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.configure(script={"extract": [Inject(fault="empty")] * 4})
    assert await ask(tmp_path, make_question(), temperature=0.0) == [["It is red.", "Its number is 1."]]
    sent = [(body["temperature"], body.get("seed")) for body in endpoint.stats.bodies]
    assert sent[:2] == [(0, None)] * 2, "the second one has a note that the first has not"
    assert {temperature for temperature, _ in sent[2:]} == {0.7}
    assert len(set(sent[2:])) == 3


async def test_a_text_reply_and_a_schema_reply_are_the_same_question(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(no_json_schema=True)
    await ask(tmp_path, make_question())
    endpoint.configure(no_json_schema=False)
    await ask(tmp_path, make_question())
    assert endpoint.stats.statuses[200] == 1


async def test_login_in_the_address_replaces_the_key_and_is_not_stored(tmp_path: Path) -> None:
    with running_endpoint(expected_key="x") as endpoint:
        address = endpoint.base_url.replace("http://", "http://user:secret%20word@")
        endpoint._check_key = lambda request: None  # type: ignore[method-assign]  # this one looks for a login
        seen: list[str] = []
        handle = endpoint._handle_model

        async def look(request: Any, path: str) -> Any:  # noqa: ANN401  # of aiohttp
            seen.append(request.headers["Authorization"])
            return await handle(request, path)

        endpoint._handle_model = look  # type: ignore[method-assign]
        point_to(address, KEY)
        await ask(tmp_path, make_question())
        assert seen == ["Basic " + base64.b64encode(b"user:secret word").decode()]
    assert orjson.loads(read_calls(tmp_path)[0]["request"])["endpoint"] == endpoint.base_url


@pytest.mark.parametrize(("address", "kept"), [
    ("https://api.openai.com/v1/", "https://api.openai.com/v1"),
    ("https://me:pw@host.example:8443/v1?key=abc#x", "https://host.example:8443/v1"),
])  # fmt: skip
def test_addresses_are_kept_without_credentials(address: str, kept: str) -> None:
    assert strip_credentials(address) == kept


def test_keys_are_taken_out_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "my-own-secret-77")
    expected = redact("my-own-secret-77, sk-proj-abcdef123456, Bearer eyJabc.def, http://me:pw@host/v1, sk-…")
    assert expected == "[key], [key], [key] http://[key]host/v1, sk-…"


def open_factory(name: str) -> ChatModelJudge:
    return make_factory_judge(f"judge_factories:{name}", make_settings(judge=f"judge_factories:{name}"))


async def test_any_langchain_chat_model_is_a_judge(tmp_path: Path) -> None:
    async with lay_out_run(tmp_path, judge=open_factory("make_fake")) as live_run:
        answer = await live_run.asker.ask(make_question(), read_statements)
    assert answer.value == ["It is red."]
    (call,) = read_calls(tmp_path)
    assert (call["judge"], call["model"], call["prompt_tokens"]) == (
        "judge_factories:make_fake", "FakeListChatModel", None
    )  # fmt: skip


async def test_a_factorys_openai_model_is_asked_by_schema(endpoint: Endpoint, tmp_path: Path) -> None:
    async with lay_out_run(tmp_path, judge=open_factory("make_openai")) as live_run:
        assert (await live_run.asker.ask(make_question(), read_statements)).value[0] == "It is red."
    assert endpoint.stats.bodies[0]["response_format"]["json_schema"]["name"] == "extract"


def test_what_a_factory_chose_makes_another_request(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    one = open_factory("make_openai").prepare(make_question()).request_hash
    assert open_factory("make_openai").prepare(make_question()).request_hash == one
    monkeypatch.setitem(judge_factories.settings, "temperature", 0.7)
    warmer = open_factory("make_openai").prepare(make_question()).request_hash
    assert warmer != one
    point_to("http://other.example/v1")
    assert open_factory("make_openai").prepare(make_question()).request_hash != warmer


def test_the_fields_of_a_class_that_names_no_parameters_make_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies of one model were reused for another that the same class asked."""

    def find_hash(**fields: Any) -> str:  # noqa: ANN401
        monkeypatch.setattr(judge_factories, "make_odd", lambda: judge_factories.PlainChatModel(**fields))
        return open_factory("make_odd").prepare(make_question()).request_hash

    one = find_hash(client=object())
    assert find_hash(client=object(), api_key="two", tags=["nightly"]) == one
    assert len({one, find_hash(client=object(), weights="second"), find_hash(client=object(), sizes=(1, 3))}) == 3


@pytest.mark.usefixtures("quick_backoff")
async def test_a_model_that_breaks_fails_the_question_and_shows_no_key(tmp_path: Path) -> None:
    async with lay_out_run(tmp_path, make_settings(attempts=2), judge=open_factory("make_odd")) as live_run:
        with pytest.raises(JudgeFailed, match="RuntimeError: the odd model is out of order"):
            await live_run.asker.ask(make_question(), read_statements)
    assert [call["attempts"] for call in read_calls(tmp_path)] == [1, 2]
    assert "sk-1234567890" not in str(read_calls(tmp_path))


@pytest.mark.parametrize(("name", "expected"), [
    ("no_such_module:f", "cannot import 'no_such_module'"),
    ("judge_factories:no_such", "has no 'no_such'"),
    ("judge_factories:NOT_CALLABLE", "is a number, not a function"),
    ("judge_factories:make_something_else", "returned a str; a judge's factory returns a LangChain chat model"),
    ("judge_factories:break_down", "failed with LookupError: no config file, key \\[key\\]"),
])  # fmt: skip
def test_invalid_factory_is_refused(name: str, expected: str) -> None:
    with pytest.raises(FatalJudgeError, match=expected):
        make_factory_judge(name, make_settings(judge=name))


def test_a_factory_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_judge_here.py").write_text("from judge_factories import make_fake as make\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert make_factory_judge("my_judge_here:make", make_settings()).model == "FakeListChatModel"


def make_judge(**settings: Any) -> ChatModelJudge:  # noqa: ANN401  # fields of RunSettings
    return make_openai_judge("openai:judge", "judge", make_settings(**settings))


async def reply_once(judge: ChatModelJudge, question: Question) -> Any:  # noqa: ANN401  # a reply or an error
    try:
        return await judge.reply(judge.prepare(question))
    finally:
        await judge.close()


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.4, "max_tokens": 300}, {"reasoning_effort": "low"}])
async def test_both_ways_send_and_read_the_same(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    short = await reply_once(make_judge(**settings), make_question())
    # As with LangSmith's traces enabled, but without a server for them.
    monkeypatch.setattr(chat_model, "is_traced", lambda: True)
    long = await reply_once(make_judge(**settings), make_question())
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
    reply = await reply_once(make_judge(), make_question())
    assert reply.text == '{"statements": ["It is red."]}'
    assert reply.prompt_tokens is None


def describe_heat(body: dict[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in ("temperature", "seed") if name in body}


@pytest.mark.parametrize(
    ("temperature", "heated"), [(0.0, {"temperature": 0.7}), (0.3, {"temperature": 0.3}), (None, {})]
)
async def test_votes_differ_by_seed_and_are_asked_with_some_heat(
    endpoint: Endpoint, temperature: float | None, heated: dict[str, Any]
) -> None:
    judge = make_judge(temperature=temperature)
    for vote in (0, 1, 2):
        await judge.reply(judge.prepare(make_question(vote=vote)))
    keys = {judge.prepare(make_question(vote=vote)).request_hash for vote in (0, 1, 2)}
    await judge.close()
    assert [describe_heat(body) for body in endpoint.stats.bodies] == [
        {} if temperature is None else {"temperature": temperature}, {**heated, "seed": 1}, {**heated, "seed": 2},
    ]  # fmt: skip
    assert len(keys) == 3


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
    await reply_once(judge, make_question(vote=2))
    assert describe_heat(endpoint.stats.bodies[0]) == {"temperature": 0.7, "seed": 2}


def test_a_factorys_model_that_can_only_repeat_itself_cannot_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_factories, "make_odd", judge_factories.ColdChatModel)
    with pytest.raises(FatalJudgeError, match=r"temperature 0, whose votes would all be equal"):
        make_factory_judge("judge_factories:make_odd", make_settings(votes=3))


@pytest.mark.parametrize(("variables", "own"), [
    ({}, {}),
    ({"OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj_2"}, {}),
    ({"OPENAI_CUSTOM_HEADERS": "X-Team: search\nX-Tier : two:three\nnothing"}, {}),
    ({}, {"Authorization": "Basic eDp5"}),
])  # fmt: skip
def test_headers_are_those_of_openais_client(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], own: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    access = Access(endpoint="http://x/v1", key=SecretStr("k"), headers=own, query={"api-version": "1"})
    endpoint = open_endpoint(access, "/embeddings")
    client = openai.AsyncOpenAI(api_key="k", base_url="http://x/v1", default_headers=own)
    theirs = {**client.auth_headers, **client.default_headers}
    about_it = [name for name in theirs if name.startswith(("X-Stainless", "User-Agent"))]
    assert {**endpoint.headers, "User-Agent": ""} == {
        name: value for name, value in theirs.items() if isinstance(value, str) and name not in about_it
    } | {"User-Agent": ""}
    assert str(endpoint.url) == "http://x/v1/embeddings?api-version=1"


@pytest.mark.parametrize("model", ["gpt-4.1-mini", "gpt-4", "o3", "a-model-of-tomorrow"])
def test_context_window_is_that_of_langchains_profile(model: str) -> None:
    profile = ChatOpenAI(model=model, api_key=SecretStr("k")).profile or {}
    assert find_openai_window(model) == profile.get("max_input_tokens")
    assert (find_openai_window(model) is None) == (model == "a-model-of-tomorrow")


def test_a_model_of_openai_is_made_without_langchain() -> None:
    """Its import takes each process almost a second of CPU, and the calls go past it."""
    script = (
        "import sys\n"
        "from evalhouse.tasks.models.make import make_judge\n"
        "from evalhouse.tasks.models.openai_api import make_embedding_model\n"
        "from evalhouse.tasks.settings.run import RunSettings\n"
        "make_judge(RunSettings(dataset='d', judge='openai:gpt-4.1')), make_embedding_model('openai:e')\n"
        "print({'openai', 'langsmith', 'langchain_core', 'langchain_openai'} & set(sys.modules))"
    )
    variables = {"OPENAI_API_KEY": "sk-1", "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=variables, check=False)
    assert (ended.stdout, ended.stderr) == ("set()\n", "")
