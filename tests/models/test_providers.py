"""Judges of other providers by name, through the providers' own packages and over their own wire formats; and the
shared beginning of a prompt's requests, which is marked for a provider's cache, and paid at its prices.

The local endpoint speaks each of them; what a provider says, and how its client puts it, comes out the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Endpoint, Inject, Raw, make_error, running_endpoint
from endpoint_wires import find_wire
from langchain.chat_models.base import _BUILTIN_PROVIDERS
from live_runs import PROMPTS, judge_samples, lay_out_run, make_sample, make_settings, read_calls, read_outcomes
from provider_calls import make_question
from provider_cases import CASES, KEY, Case

from evalhouse.tasks.asking.usage import Price, find_price, load_prices
from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import FatalJudgeError, JudgeError, JudgeFailed, TransientJudgeError
from evalhouse.tasks.models.make import check_judge_name, make_judge
from evalhouse.tasks.models.providers import load_providers
from evalhouse.tasks.models.stand_ins import StandInJudge

UNKEYED = ("ollama", "bedrock")
UNCACHED = ("ollama",)
everywhere = pytest.mark.parametrize("case", CASES, ids=str)
pytestmark = pytest.mark.usefixtures("quick_backoff")


@pytest.fixture
def endpoint(case: Case) -> Iterator[Endpoint]:
    with running_endpoint(expected_key=None if str(case) in UNKEYED else KEY, keep_bodies=True) as running:
        yield running


@pytest.fixture
def surroundings(case: Case, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in case.variables.items():
        monkeypatch.setenv(name, value.format(root=endpoint.root_url))


async def ask(folder: Path, case: Case, n: int = 1, **settings: Any) -> list[Any]:  # noqa: ANN401
    """Ask so many questions one after the other; a value or an error for each."""
    chosen = make_settings(judge=case.judge, **settings)
    results: list[Any] = []
    async with lay_out_run(folder, chosen, judge=make_judge(chosen)) as live_run:
        for number in range(1, n + 1):
            try:
                results.append((await live_run.asker.ask(make_question(number), read_statements)).value)
            except Exception as error:
                results.append(error)
    return results


@everywhere
@pytest.mark.usefixtures("surroundings")
async def test_a_sample_goes_through_all_steps_and_each_request_is_a_row(
    case: Case, endpoint: Endpoint, tmp_path: Path
) -> None:
    settings = make_settings(judge=case.judge, max_tokens=500, temperature=None)
    judge = make_judge(settings)
    async with lay_out_run(tmp_path, settings, judge=judge) as live_run:
        (work,) = await judge_samples(live_run, [make_sample()])
        reply = await judge.reply(judge.prepare(make_question()))
    assert set(read_outcomes(work).values()) == {None}
    calls = read_calls(tmp_path)
    assert len(calls) == 6 == sum(endpoint.stats.requests.values()) - 1
    assert {(call["status"], call["model"], call["judge"]) for call in calls} == {("ok", case.model, case.judge)}
    assert all(orjson.loads(call["reply"]) for call in calls)
    assert KEY not in str(calls)
    counted = sum(call["prompt_tokens"] for call in calls) + (reply.prompt_tokens or 0)
    assert counted == endpoint.stats.prompt_tokens
    cached = sum(call["cached_tokens"] or 0 for call in calls) + (reply.cached_tokens or 0)
    assert cached == (0 if str(case) in UNCACHED else endpoint.stats.cached_tokens)
    assert endpoint.stats.cached_tokens > 0
    check_wire(endpoint)


def check_wire(endpoint: Endpoint) -> None:
    """Check that the last request has the schema in the provider's words, and no parameter that was not set."""
    found = find_wire(next(iter(endpoint.stats.requests)))
    assert found is not None
    wire, model = found
    body = endpoint.stats.bodies[-1]
    if model != "" or "deepseek" not in body["model"]:  # whose package would make a tool of the schema
        schema = wire.read(body, model)["response_format"]["json_schema"]
        assert (schema["name"], list(schema["schema"]["properties"])) == ("extract", ["statements"])
    assert "tools" not in body or not body["tools"]
    sent = orjson.dumps(body).decode()
    assert "500" in sent
    assert not [name for name in ("temperature", "top_p", "topP", "seed") if f'"{name}"' in sent]


@everywhere
@pytest.mark.usefixtures("surroundings")
async def test_what_may_pass_is_asked_again_and_each_attempt_is_a_row(
    case: Case, endpoint: Endpoint, tmp_path: Path
) -> None:
    """A provider's own client sends nothing twice."""
    faults = {
        "length": "cut off", "truncated": "no complete JSON object", "server_error": "status 500",
        "rate_limit": "status 429", "unavailable": "status 503", "reset": "",
    }  # fmt: skip
    script: list[Any] = [text for fault in faults for text in (Inject(fault=fault), None)]  # type: ignore[arg-type]
    endpoint.configure(script={"extract": [*script, Raw(body='{"half": ')]}, retry_after=0)
    results = await ask(tmp_path, case, len(faults) + 1, timeout_s=60.0)
    assert results == [["It is red.", f"Its number is {n}."] for n in range(1, len(faults) + 2)]
    calls = read_calls(tmp_path)
    assert [call["status"] for call in calls] == ["error", "ok"] * (len(faults) + 1)
    assert [text for text, call in zip(faults.values(), calls[::2], strict=False) if text not in call["error"]] == []
    assert sum(endpoint.stats.requests.values()) == len(calls)


@everywhere
@pytest.mark.usefixtures("surroundings")
async def test_it_waits_as_long_as_it_is_let(case: Case, endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(script={"extract": [Inject(fault="hang")]})
    assert await ask(tmp_path, case, 1, timeout_s=0.3) == [["It is red.", "Its number is 1."]]
    *errors, answered = [call["error"] for call in read_calls(tmp_path)]
    # On a busy machine a reply may be late that was meant to come.
    assert (set(errors), answered) == ({"no reply within 0.3 s"}, None)
    assert sum(endpoint.stats.requests.values()) == len(errors) + 1


@everywhere
@pytest.mark.usefixtures("surroundings")
async def test_a_refusal_is_not_asked_again_and_its_tokens_are_on_record(
    case: Case, endpoint: Endpoint, tmp_path: Path
) -> None:
    faults = {"ollama": [], "mistralai": ["content_filter"]}.get(str(case), ["content_filter", "refusal"])
    endpoint.configure(script={"extract": [Inject(fault=fault) for fault in faults]})  # type: ignore[arg-type]
    results = await ask(tmp_path, case, len(faults))
    assert [isinstance(result, JudgeFailed) for result in results] == [True] * len(faults)
    calls = read_calls(tmp_path)
    assert [call["status"] for call in calls] == ["refused"] * len(faults)
    assert all("refused" in call["error"] or "content filter" in call["error"] for call in calls)
    # LangChain's package drops Gemini's count where the prompt itself was refused.
    dropped = [str(case) == "google_genai" and fault == "refusal" for fault in faults]
    assert [call["prompt_tokens"] is None for call in calls] == dropped


@everywhere
@pytest.mark.usefixtures("surroundings")
async def test_a_wrong_key_or_model_stops_the_run_and_says_what_to_do(case: Case, endpoint: Endpoint) -> None:
    refused = make_error(401, f"The key {KEY} is not known.", code="invalid_api_key")
    endpoint.configure(script={"extract": [refused]})
    judge = make_judge(make_settings(judge=case.judge))
    with pytest.raises(FatalJudgeError, match="refused the key") as wrong_key:
        await judge.reply(judge.prepare(make_question()))
    assert KEY not in str(wrong_key.value)
    assert any(name in str(wrong_key.value) for name in (*case.variables, "OLLAMA_API_KEY", "the key of deepseek"))
    endpoint.configure(models=("another",))
    with pytest.raises(FatalJudgeError, match="does not know"):
        await judge.reply(judge.prepare(make_question()))
    await judge.close()


@pytest.mark.parametrize("case", CASES[:1], ids=str)
@pytest.mark.usefixtures("surroundings")
async def test_an_option_that_the_package_does_not_send_is_as_one_that_the_provider_refuses(
    case: Case, endpoint: Endpoint
) -> None:
    judge = make_judge(make_settings(judge="anthropic:claude-sonnet-5-5", temperature=0.5))
    with pytest.raises(JudgeError, match="`temperature` is not supported for claude-sonnet-5-5") as refused:
        await judge.reply(judge.prepare(make_question()))
    assert not isinstance(refused.value, TransientJudgeError)
    await judge.close()
    assert not endpoint.stats.requests


@pytest.mark.parametrize("case", [case for case in CASES if str(case) != "ollama"], ids=str)
def test_a_missing_key_is_one_message(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ("AZURE_OPENAI_ENDPOINT", "OPENAI_API_VERSION", "AWS_REGION")
    for name in case.variables:
        monkeypatch.delenv(name, raising=False)
        if name in kept:
            monkeypatch.setenv(name, case.variables[name].format(root="https://host"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(FatalJudgeError) as refused:
        make_judge(make_settings(judge=case.judge))
    assert any(name in str(refused.value) for name in case.variables if "KEY" in name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("judge", "line"), [
    ("anthropic:claude-test", 'pip install "evalhouse[anthropic]"'),
    ("mistralai:mistral-test", 'pip install "evalhouse[mistralai]"'),
    ("groq:llama-test", "pip install langchain langchain-groq"),
])  # fmt: skip
def test_a_missing_package_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, judge: str, line: str
) -> None:
    monkeypatch.setattr("evalhouse.tasks.models.providers.find_spec", lambda name: None)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("MISTRAL_API_KEY", KEY)
    with pytest.raises(FatalJudgeError) as refused:
        make_judge(make_settings(judge=judge))
    assert line in str(refused.value)


def test_invalid_address_is_reported_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "claude.example")
    with pytest.raises(FatalJudgeError, match=r"ANTHROPIC_BASE_URL is 'claude.example', which is not an address"):
        make_judge(make_settings(judge="anthropic:claude-test"))


@pytest.mark.parametrize(
    ("name", "meant"),
    [("antropic:claude", "anthropic:claude"), ("mistral:m-1", "mistralai:m-1"), ("lexcal", "lexical")],
)
def test_a_name_that_is_nearly_a_provider_is_asked_about(name: str, meant: str) -> None:
    with pytest.raises(FatalJudgeError, match=f"did you mean {meant}\\?"):
        check_judge_name(name)


def test_every_provider_of_langchain_is_known_by_its_module() -> None:
    ours = {row.langchain: row.package for row in load_providers().values()}
    # Bedrock's older API and Bedrock, OpenAI and LangSmith by other ways are left out.
    left_out = {
        "openai", "langsmith", "bedrock", "anthropic_bedrock", "bedrock_mantle_anthropic", "bedrock_mantle_openai",
    }  # fmt: skip
    theirs = {name: module.partition(".")[0] for name, (module, *_) in _BUILTIN_PROVIDERS.items()}
    assert ours == {name: module for name, module in theirs.items() if name not in left_out}


EFFORTS = {"anthropic": ("output_config", "effort")} | dict.fromkeys(("azure", "azure_openai"), ("reasoning_effort",))


@pytest.mark.parametrize("case", [case for case in CASES if str(case) in (*EFFORTS, "mistralai")], ids=str)
@pytest.mark.usefixtures("surroundings")
async def test_an_effort_is_sent_as_the_provider_has_it_or_refused(
    case: Case, endpoint: Endpoint, tmp_path: Path
) -> None:
    path = EFFORTS.get(str(case))
    if path is None:
        with pytest.raises(FatalJudgeError, match=r"has no effort that could be set; leave --reasoning-effort out"):
            make_judge(make_settings(judge=case.judge, reasoning_effort="low"))
        return
    assert isinstance((await ask(tmp_path, case, reasoning_effort="low"))[0], list)
    (sent,) = endpoint.stats.bodies
    for name in path:
        sent = sent[name]
    assert sent == "low"


MARK = {"cache_control": {"type": "ephemeral"}}
NEWEST = "claude-sonnet-5-5"


@pytest.fixture
def caching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    with running_endpoint(expected_key=KEY, keep_bodies=True, cached_from=512) as running:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", running.root_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        yield running


async def judge_with(folder: Path, model: str, *, n_samples: int, price: Price | None = None) -> list[dict[str, Any]]:
    settings = make_settings(judge=f"anthropic:{model}")
    async with lay_out_run(folder, settings, judge=make_judge(settings), price=price) as live_run:
        for number in range(1, n_samples + 1):
            await judge_samples(live_run, [make_sample(number)])
    return read_calls(folder)


def list_marks(body: dict[str, Any]) -> list[int]:
    """The places of marked contents, from 0 for the instructions on."""
    contents = [body["system"], *(message["content"] for message in body["messages"])]
    return [place for place, content in enumerate(contents) if orjson.dumps(MARK)[1:-1] in orjson.dumps(content)]


async def test_all_but_the_data_is_written_once_and_then_read_at_their_prices(
    caching: Endpoint, tmp_path: Path
) -> None:
    price = find_price(load_prices(None), NEWEST)
    assert price is not None
    assert (price.written_usd, price.cached_usd) == (1.25 * price.input_usd, 0.05 * price.input_usd)
    calls = await judge_with(tmp_path, NEWEST, n_samples=3, price=price)
    stats = caching.stats
    places = {(*list_marks(body), len(body["messages"])) for body in stats.bodies}
    assert {place for place in places if len(place) > 1} == {(n - 1, n) for n in {place[-1] for place in places}}
    # Of each of four prompts the first request has no mark, and the second has its beginning written.
    assert sum(not list_marks(body) for body in stats.bodies) == 4
    beginnings = {name: sum(map(len, read_shared(name))) for name in ("extract", "classify", "attribute", "rank")}
    assert stats.written_tokens == pytest.approx(sum(beginnings.values()) / 4, abs=4)
    read = {"extract": 4, "classify": 1, "attribute": 4, "rank": 1}
    assert stats.cached_tokens == pytest.approx(sum(n * beginnings[name] for name, n in read.items()) / 4, abs=12)
    plain = stats.prompt_tokens - stats.written_tokens - stats.cached_tokens
    cost = plain * 2.0 + stats.written_tokens * 2.5 + stats.cached_tokens * 0.1 + stats.completion_tokens * 10.0
    assert sum(call["cost_usd"] for call in calls) == pytest.approx(cost / 1e6)
    assert sum(call["cached_tokens"] for call in calls) == stats.cached_tokens
    assert sum(call["prompt_tokens"] for call in calls) == stats.prompt_tokens


def read_shared(name: str) -> list[str]:
    """Instructions and worked examples of a prompt."""
    return [message.content for message in PROMPTS[name].opening]


async def test_a_beginning_below_the_least_size_is_not_marked_nor_counted_as_cached(
    caching: Endpoint, tmp_path: Path
) -> None:
    calls = await judge_with(tmp_path, "claude-haiku-4-5", n_samples=2)
    assert not any(map(list_marks, caching.stats.bodies))
    assert {call["cached_tokens"] for call in calls} == {0}
    for model, is_cached in (("claude-haiku-4-5", False), (NEWEST, True)):
        judge = make_judge(make_settings(judge=f"anthropic:{model}"))
        stand_in = StandInJudge(judge)
        replies = [await stand_in.reply(stand_in.prepare(make_question(number))) for number in (1, 2)]
        assert [bool(reply.cached_tokens) for reply in replies] == [False, is_cached]
        await judge.close()


async def test_cache_mark_is_not_part_of_key_or_record(caching: Endpoint, tmp_path: Path) -> None:
    judge = make_judge(make_settings(judge=f"anthropic:{NEWEST}"))
    before = judge.prepare(make_question())
    for _ in range(2):
        await judge.reply(before)
    assert judge.prepare(make_question()) == before
    assert b"cache_control" not in orjson.dumps(before.payload)
    assert [bool(list_marks(body)) for body in caching.stats.bodies] == [False, True]
    # What the model reads is the same, marked or not.
    unmarked, marked = (orjson.dumps(body) for body in caching.stats.bodies)
    assert all(orjson.dumps(text) in unmarked and orjson.dumps(text) in marked for text in read_shared("extract"))
    await judge.close()


@pytest.mark.parametrize(
    ("model", "least"),
    [
        ("claude-opus-4-20250514", 1024), ("claude-opus-4-5-20251101", 4096), ("claude-opus-4-8", 1024),
        ("claude-sonnet-5", 1024), ("claude-sonnet-5-5", 512), ("claude-haiku-5-5", 512), ("claude-of-later", 512),
    ],
)  # fmt: skip
def test_the_longest_name_that_fits_says_the_least_size(model: str, least: int) -> None:
    assert load_providers()["anthropic"].find_min_cached(model) == least
    assert load_providers()["mistralai"].find_min_cached(model) is None
