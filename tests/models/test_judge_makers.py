"""The judge that a name makes, whether it can be reached, and the proxies of its requests."""

import os
from pathlib import Path

import pytest
from endpoint import Endpoint, running_endpoint
from live_runs import lay_out_run, make_settings, point_to
from provider_calls import GOOD, make_question

from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import FatalJudgeError
from evalhouse.tasks.lexical.judge import LexicalJudge
from evalhouse.tasks.models.chat import ChatModelJudge
from evalhouse.tasks.models.make import check_reachable, make_judge

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
KEY = "sk-test-0123456789"


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(("name", "kind", "model"), [
    ("lexical", LexicalJudge, "lexical-4"),
    ("openai:gpt-4.1-mini", ChatModelJudge, "gpt-4.1-mini"),
    ("openai:qwen3:8b", ChatModelJudge, "qwen3:8b"),
    ("judge_factories:make_fake", ChatModelJudge, "FakeListChatModel"),
    ("judge_factories:make_openai", ChatModelJudge, "judge"),
])  # fmt: skip
async def test_name_makes_its_judge(endpoint: Endpoint, name: str, kind: type[object], model: str) -> None:
    judge = make_judge(make_settings(judge=name))
    assert isinstance(judge, kind)
    assert (judge.name, judge.model) == (name, model)
    await judge.close()
    assert not endpoint.stats.requests


def test_lexical_judge_needs_no_key_and_openai_does() -> None:
    make_judge(make_settings(judge="lexical"))
    with pytest.raises(FatalJudgeError, match="set OPENAI_BASE_URL to an endpoint that needs none, or use --judge lex"):
        make_judge(make_settings(judge="openai:gpt-4.1-mini"))


async def test_self_hosted_endpoint_needs_no_key(endpoint: Endpoint, tmp_path: Path) -> None:
    del os.environ["OPENAI_API_KEY"]
    async with lay_out_run(tmp_path, judge=make_judge(make_settings(judge="openai:judge"))) as live_run:
        assert (await live_run.asker.ask(make_question(), read_statements)).value == GOOD


@pytest.mark.parametrize(("name", "expected"), [
    ("lexical", "no model, no network, no key"),
    ("openai:judge", "the endpoint lists it"),
    ("judge_factories:make_fake", "its factory returns a chat model"),
])  # fmt: skip
async def test_reachable_judge_is_reported_at_no_cost(endpoint: Endpoint, name: str, expected: str) -> None:
    assert expected in await check_reachable(make_settings(judge=name))
    assert not endpoint.stats.kinds


async def test_wrong_key_is_reported_without_the_key() -> None:
    with running_endpoint(expected_key="sk-right-key-000000") as endpoint:
        point_to(endpoint.base_url, KEY)
        with pytest.raises(FatalJudgeError, match="refused the key for openai:judge") as caught:
            await check_reachable(make_settings())
        assert KEY not in str(caught.value)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.filterwarnings("error")
async def test_a_proxy_of_the_environment_is_the_way_to_judge_and_embeddings(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address exists for the proxy alone, whose part the local endpoint takes."""
    monkeypatch.setenv("HTTP_PROXY", endpoint.root_url)
    monkeypatch.setenv("http_proxy", endpoint.root_url)
    point_to("http://judge.invalid/v1", KEY)
    async with lay_out_run(tmp_path, make_settings(embeddings="openai:embedder", attempts=1)) as live_run:
        assert (await live_run.asker.ask(make_question(), read_statements)).value == GOOD
        assert live_run.embedder is not None
        assert await live_run.embedder.compare("s1", "red", "red") == pytest.approx(1.0, abs=1e-6)
    assert endpoint.stats.kinds == {"extract": 1, "embeddings": 1}


@pytest.mark.usefixtures("no_proxies")
async def test_a_host_named_in_no_proxy_is_asked_directly(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    async with lay_out_run(tmp_path, make_settings(attempts=1)) as live_run:
        assert (await live_run.asker.ask(make_question(), read_statements)).value == GOOD
