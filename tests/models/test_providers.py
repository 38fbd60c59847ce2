"""Judges of other providers by name, through the providers' own packages and over their own wire formats.

The local endpoint speaks each of them; what a provider says, and how its client puts it, comes out the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from endpoint import Endpoint, Inject, Raw, running_endpoint
from endpoint_options import make_error
from live_runs import lay_out_run, make_settings, read_calls
from provider_calls import GOOD, make_question

from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.errors import FatalJudgeError, JudgeFailed
from evalhouse.tasks.models.make import make_judge

KEY = "sk-test-0123456789"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A provider: what to write after --judge, and its variables, `{root}` standing for the endpoint's address."""

    judge: str
    variables: Mapping[str, str]

    def __str__(self) -> str:
        return self.judge.partition(":")[0]

    @property
    def model(self) -> str:
        return self.judge.partition(":")[2]


CASES = [
    Case(judge="anthropic:claude-test", variables={"ANTHROPIC_BASE_URL": "{root}", "ANTHROPIC_API_KEY": KEY}),
    Case(judge="google_genai:gemini-test", variables={"GOOGLE_GEMINI_BASE_URL": "{root}", "GOOGLE_API_KEY": KEY}),
    Case(
        judge="bedrock:eu.anthropic.claude-test-v1:0",
        variables={
            "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "{root}", "AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "AKIATEST",
            "AWS_SECRET_ACCESS_KEY": KEY,
        },
    ),
    Case(judge="azure:judges", variables={"AZURE_OPENAI_ENDPOINT": "{root}/", "AZURE_OPENAI_API_KEY": KEY}),
    Case(
        judge="azure_openai:judges",
        variables={
            "AZURE_OPENAI_ENDPOINT": "{root}", "AZURE_OPENAI_API_KEY": KEY, "OPENAI_API_VERSION": "2026-01-01",
        },
    ),
    Case(judge="ollama:qwen3:8b", variables={"OLLAMA_HOST": "{root}"}),
    Case(judge="mistralai:mistral-test", variables={"MISTRAL_BASE_URL": "{root}/mistral/v1", "MISTRAL_API_KEY": KEY}),
    # Known to LangChain's registry and by nothing else.
    Case(judge="deepseek:deepseek-test", variables={"DEEPSEEK_API_BASE": "{root}/v1", "DEEPSEEK_API_KEY": KEY}),
]  # fmt: skip
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
async def test_a_good_reply_is_one_row_with_its_text_and_counts(case: Case, endpoint: Endpoint, tmp_path: Path) -> None:
    assert await ask(tmp_path, case, 2, temperature=0.5, max_tokens=500) == [GOOD, ["It is red.", "Its number is 2."]]
    first, second = read_calls(tmp_path)
    assert first["reply"] == '{"statements":["It is red.","Its number is 1."]}'
    assert (first["status"], first["model"], first["judge"]) == ("ok", case.model, case.judge)
    assert first["prompt_tokens"] == second["prompt_tokens"] > 100
    cached = (first["cached_tokens"] or 0, second["cached_tokens"] or 0)
    assert cached == (0, 0 if str(case) in UNCACHED else endpoint.stats.cached_tokens)
    assert endpoint.stats.prompt_tokens == first["prompt_tokens"] + second["prompt_tokens"]
    assert KEY not in str(first)


# What came instead of a good reply: (what the endpoint does, how the question ended, what its first row says)


@everywhere
@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("length", "cut off"),
        ("truncated", "no complete JSON object"),
        ("server_error", "status 500"),
        ("rate_limit", "status 429"),
        ("unavailable", "status 503"),
        ("reset", ""),
    ],
)
async def test_what_may_pass_is_asked_again_and_each_attempt_is_a_row(
    case: Case, endpoint: Endpoint, tmp_path: Path, fault: str, said: str
) -> None:
    endpoint.configure(script={"extract": [Inject(fault=fault)]}, retry_after=0)  # type: ignore[arg-type]
    assert await ask(tmp_path, case) == [GOOD]
    first, second = read_calls(tmp_path)
    assert (first["status"], second["status"]) == ("error", "ok")
    assert said in first["error"]
    assert sum(endpoint.stats.requests.values()) == 2


@everywhere
@pytest.mark.usefixtures("surroundings")
@pytest.mark.parametrize("fault", ["refusal", "content_filter"])
async def test_a_refusal_is_not_asked_again_and_its_tokens_are_on_record(
    case: Case, endpoint: Endpoint, tmp_path: Path, fault: str
) -> None:
    if str(case) == "ollama" or (str(case), fault) == ("mistralai", "refusal"):
        pytest.skip("it has no such ending")
    endpoint.configure(script={"extract": [Inject(fault=fault)]})  # type: ignore[arg-type]
    (error,) = await ask(tmp_path, case)
    assert isinstance(error, JudgeFailed)
    (call,) = read_calls(tmp_path)
    # LangChain's package drops Gemini's count where the prompt itself was refused.
    counted = call["prompt_tokens"] is None if (str(case), fault) == ("google_genai", "refusal") else None
    assert (call["status"], counted or call["prompt_tokens"] > 100) == ("refused", True)
    assert "refused" in call["error"] or "content filter" in call["error"]


@everywhere
@pytest.mark.usefixtures("surroundings")
async def test_a_wrong_key_stops_the_run_and_names_its_variable(case: Case, endpoint: Endpoint, tmp_path: Path) -> None:
    refused = make_error(401, f"The key {KEY} is not known.", code="invalid_api_key")
    endpoint.configure(script={"extract": [refused]})
    (error,) = await ask(tmp_path, case)
    assert isinstance(error, FatalJudgeError)
    assert "refused the key" in str(error)
    assert KEY not in str(error)
    assert any(name in str(error) for name in (*case.variables, "OLLAMA_API_KEY", "the key of deepseek"))
    assert len(read_calls(tmp_path)) == 1


@everywhere
@pytest.mark.usefixtures("surroundings")
async def test_an_unknown_model_stops_the_run(case: Case, endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(models=("another",))
    (error,) = await ask(tmp_path, case)
    assert isinstance(error, FatalJudgeError)
    assert "does not know" in str(error)
    assert len(read_calls(tmp_path)) == 1


@everywhere
@pytest.mark.usefixtures("surroundings")
async def test_a_reply_that_is_late_is_given_up_by_the_run_and_by_nobody_else(
    case: Case, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.configure(script={"extract": [Inject(fault="hang")]})
    assert await ask(tmp_path, case, timeout_s=0.5) == [GOOD]
    late, _ = read_calls(tmp_path)
    assert late["error"] == "no reply within 0.5 s"


@everywhere
@pytest.mark.usefixtures("surroundings")
async def test_a_body_that_is_no_reply_is_an_error_and_asked_again(
    case: Case, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.configure(script={"extract": [Raw(body='{"half": ')]})
    assert await ask(tmp_path, case) == [GOOD]
    assert [call["status"] for call in read_calls(tmp_path)] == ["error", "ok"]
