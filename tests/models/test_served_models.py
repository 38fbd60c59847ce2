"""The judge that a name makes, whether it can be reached, the proxies of its requests; and the model that a self-hosted
server has under a name: how it is read, and which recorded replies are its."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from endpoint import Endpoint, running_endpoint
from live_runs import lay_out_run, make_settings, open_warehouse, point_to
from provider_calls import GOOD, make_question

from evalhouse.flows.preparing.batches import ask_servers, recall_servers
from evalhouse.flows.preparing.live_run import make_live_run, make_plan
from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import FatalJudgeError, Judge, find_window
from evalhouse.tasks.lexical.judge import LexicalJudge
from evalhouse.tasks.models.chat import ChatModelJudge
from evalhouse.tasks.models.make import check_reachable, make_judge, make_judges
from evalhouse.tasks.models.serving import Serving, is_own, read_serving

LLAMA = {
    "owned_by": "llamacpp",
    "meta": {"vocab_type": 2, "n_vocab": 9, "n_ctx": 4096, "n_ctx_train": 32_768, "n_embd": 8, "n_params": 7,
     "size": 6},
}  # fmt: skip
OURS, OTHER = {"root": "/models/ours", "max_model_len": 8192}, {"root": "/models/other", "max_model_len": 8192}
LOADED = {"models": [{"name": "judge:latest", "digest": "abc", "context_length": 4096}]}
PULLED = {"models": [{"name": "other:7b", "digest": "no"}, {"name": "judge:latest", "digest": "abc"}]}
SERVERS: Mapping[str, tuple[str, dict[str, Any], Serving, list[str]]] = {
    "llama.cpp": (
        "openai", {"model_fields": LLAMA},
        Serving(window=4096, said_at="/models",
                identity="n_params 7, size 6, n_vocab 9, n_embd 8, n_ctx_train 32768, vocab_type 2"),
        ["/v1/models"],
    ),
    "vLLM": (
        "openai", {"model_fields": OURS}, Serving(window=8192, said_at="/models", identity="root /models/ours"),
        ["/v1/models"],
    ),
    "Ollama by OpenAI's protocol": (
        "openai", {"model_fields": {"owned_by": "library"}, "documents": {"/api/ps": LOADED, "/api/tags": PULLED}},
        Serving(window=4096, said_at="/api/ps", identity="digest abc"), ["/v1/models", "/api/ps"],
    ),
    "Ollama before the model is loaded": (
        "ollama", {"documents": {"/api/ps": {"models": []}, "/api/tags": PULLED}},
        Serving(said_at="/api/tags", identity="digest abc"), ["/api/ps", "/api/tags"],
    ),
    "one that lists names alone": ("openai", {}, Serving(said_at="/models"), ["/v1/models"]),
    "one that has another model": (
        "openai", {"models": ("judge-2",), "model_fields": OURS}, Serving(said_at="/models"), ["/v1/models"],
    ),
    "one that lies about it": (
        "openai", {"model_fields": {"root": 3, "meta": {"size": "big", "n_params": None}, "max_model_len": -1}},
        Serving(said_at="/models"), ["/v1/models"],
    ),
    "one with windows that no column holds": (
        "openai",
        {"model_fields": {"max_model_len": 1e300, "context_length": 2**63, "meta": {"n_ctx": 512}}},
        Serving(window=512, said_at="/models"), ["/v1/models"],
    ),
}  # fmt: skip


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    with running_endpoint() as running:
        point_to(running.base_url)
        monkeypatch.setenv("OLLAMA_HOST", running.root_url)
        yield running


@pytest.mark.parametrize("server", SERVERS)
async def test_server_is_read_with_the_fewest_requests(endpoint: Endpoint, server: str) -> None:
    kind, options, expected, looked_at = SERVERS[server]
    endpoint.configure(**options)
    judge = make_judge(make_settings(judge=f"{kind}:judge"))
    assert is_own(judge)
    assert await read_serving(judge, at_start=True) == expected
    assert list(endpoint.stats.looked_at) == looked_at
    await judge.close()


async def test_unreachable_server_reports_nothing() -> None:
    point_to("http://127.0.0.1:9/v1")
    judge = make_judge(make_settings(judge="openai:judge"))
    assert (await read_serving(judge, at_start=True)).identity is None
    await judge.close()


def begin(folder: Path, run_id: str, judge: str = "openai:judge") -> tuple[Judge, list[str]]:
    """Return a run's judge after its server was asked, and the notices about it."""
    made = make_judge(make_settings(judge=judge))
    return made, ask_servers([made], run_id, open_warehouse(folder))


def read_key(judge: Judge) -> str:
    return judge.prepare(make_question()).request_hash


def test_first_model_of_a_name_keeps_its_keys_and_others_have_separate_ones(endpoint: Endpoint, tmp_path: Path) -> None:
    unasked = read_key(make_judge(make_settings(judge="openai:judge")))
    keys, all_notices = [], []
    for number, fields in enumerate((OURS, {**OURS, "max_model_len": 4096}, OTHER, OTHER, OURS)):
        endpoint.configure(model_fields=fields)
        judge, notices = begin(tmp_path, f"run-{number}")
        keys.append(read_key(judge))
        all_notices.append([" ".join(notice.split()) for notice in notices])
        assert find_window(judge) == fields["max_model_len"]
        # A process elsewhere, or one that only computes, has the run's keys from the record.
        for run_id in (f"run-{number}", "dry-run"):
            again = make_judge(make_settings(judge="openai:judge"))
            recall_servers([again], run_id, open_warehouse(tmp_path))
            assert (read_key(again), find_window(again)) == (keys[-1], fields["max_model_len"])
    assert [key == unasked for key in keys] == [True, True, False, False, True]
    assert keys[2] == keys[3]
    assert [len(notices) for notices in all_notices] == [0, 0, 1, 0, 1]
    assert (
        "has another model as 'judge' than in the last run: root /models/other, before root /models/ours"
        in (all_notices[2][0])
    )
    assert endpoint.stats.looked_at == {"/v1/models": 5}


def test_same_name_at_another_address_is_a_different_model(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(model_fields=OURS)
    first, _ = begin(tmp_path, "run-1")
    with running_endpoint(model_fields=OTHER) as elsewhere:
        point_to(elsewhere.base_url)
        unasked = read_key(make_judge(make_settings(judge="openai:judge")))
        second, notices = begin(tmp_path, "run-2")
    assert (read_key(second), notices) == (unasked, [])
    assert read_key(first) != read_key(second)


def test_resuming_with_another_model_is_refused_unless_it_is_unknown(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(model_fields=OTHER)
    begin(tmp_path, "run-0")
    endpoint.configure(model_fields=OURS)
    began, _ = begin(tmp_path, "run-1")
    endpoint.configure(model_fields=OTHER)
    with pytest.raises(FatalJudgeError, match=r"has another model as 'judge' now \(root /models/other\) than when run"):
        begin(tmp_path, "run-1")
    endpoint.configure(model_fields={})
    resumed, notices = begin(tmp_path, "run-1")
    assert (read_key(resumed), notices) == (read_key(began), [])


def test_a_form_asks_its_model_s_server(endpoint: Endpoint, tmp_path: Path) -> None:
    form = "granite-guardian+openai:judge"
    question = make_question()
    data = {"document": "It is red.", "claim": "It is red."}
    keys = []
    for number, fields in enumerate((OURS, OTHER)):
        endpoint.configure(model_fields=fields)
        judge, _ = begin(tmp_path, f"run-{number}", form)
        keys.append(judge.prepare(type(question)(**{**vars(question), "data": data})).request_hash)
        assert find_window(judge) == 8192
    assert keys[0] != keys[1]


def test_only_self_hosted_servers_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "evalhouse.tasks.models.serving.read_serving", lambda judge, at_start: pytest.fail(str(judge.endpoint))
    )
    point_to("https://api.openai.com/v1")
    names = ("openai:gpt-4.1-mini", "anthropic:claude-test", "azure:judges", "lexical")
    judges = [make_judge(make_settings(judge=name)) for name in names]
    keys = [read_key(judge) for judge in judges]
    warehouse = open_warehouse(tmp_path)
    for _ in range(2):
        assert ask_servers(judges, "run-1", warehouse) == []
    recall_servers(judges, "run-1", warehouse)
    assert [read_key(judge) for judge in judges] == keys
    # Where each was asked is stored once, for comparisons.
    noted = warehouse.read("select judge, endpoint, identity from served_models").rows()
    assert noted[0] == ("openai:gpt-4.1-mini", "https://api.openai.com/v1", None)
    assert [judge for judge, _, _ in noted] == list(names[:3])


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "AZURE_OPENAI_API_KEY"):
        monkeypatch.setenv(name, "sk-test")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com")


@pytest.mark.parametrize(
    ("judge", "window"),
    [
        ("openai:gpt-4", 8192), ("openai:gpt-3.5-turbo", 16_385), ("openai:gpt-4.1-mini", 1_047_576),
        ("openai:gpt-of-tomorrow", None), ("anthropic:claude-haiku-4-5", 200_000), ("anthropic:claude-test", None),
        ("azure:gpt-4", None), ("lexical", None),
    ],
)  # fmt: skip
async def test_windows_are_those_of_the_provider_and_unknown_ones_stay_unknown(judge: str, window: int | None) -> None:
    made = make_judge(make_settings(judge=judge))
    assert find_window(made) == window
    await made.close()


async def test_another_address_may_have_another_model_of_that_name() -> None:
    point_to("http://127.0.0.1:9/v1")
    made = make_judge(make_settings(judge="openai:gpt-4"))
    assert find_window(made) is None
    await made.close()


@pytest.mark.parametrize(("given", "windows"), [(None, [8192, 200_000]), (5000, [5000, 5000])])
async def test_each_judge_of_a_run_has_its_own_window_and_a_set_one_goes_before(
    tmp_path: Path, given: int | None, windows: list[int]
) -> None:
    settings = make_settings(judge="openai:gpt-4,rank=anthropic:claude-haiku-4-5", context_window=given)
    plan = make_plan(settings)
    live_run = make_live_run("run-1", settings, plan, make_judges(settings, plan), open_warehouse(tmp_path))
    assert [asker.window for asker in live_run.asker.all] == windows
    await live_run.close()
    live_run.asker.record.close()


async def test_a_form_reads_what_its_model_reads() -> None:
    made = make_judge(make_settings(judge="minicheck+openai:gpt-4"))
    assert find_window(made) == 8192
    await made.close()


PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
KEY = "sk-test-0123456789"


@pytest.fixture
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(("name", "kind", "model"), [
    ("lexical", LexicalJudge, "lexical-5"),
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
    del os.environ["OPENAI_API_KEY"]
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
