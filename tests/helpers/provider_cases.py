"""Providers of judges by name, and what points each of them to the local endpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

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


def point_provider(judge: str, root_url: str) -> None:
    """Set the environment for a judge of any of these providers."""
    case = next(case for case in CASES if judge.startswith(f"{case}:"))
    os.environ.update({name: value.format(root=root_url) for name, value in case.variables.items()})
