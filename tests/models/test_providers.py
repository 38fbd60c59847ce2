"""Judges of other providers by name, through the providers' own packages and over their own wire formats.

The local endpoint speaks each of them; what a provider says, and how its client puts it, comes out the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from endpoint import Endpoint, running_endpoint
from live_runs import lay_out_run, make_settings, read_calls
from provider_calls import GOOD, make_question

from evalhouse.tasks.asking.verdicts import read_statements
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
]
everywhere = pytest.mark.parametrize("case", CASES, ids=str)
pytestmark = pytest.mark.usefixtures("quick_backoff")


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(expected_key=KEY, keep_bodies=True) as running:
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
    assert (first["prompt_tokens"], first["cached_tokens"]) == (second["prompt_tokens"], 0)
    assert second["prompt_tokens"] > second["cached_tokens"] > 0
    assert endpoint.stats.prompt_tokens == first["prompt_tokens"] + second["prompt_tokens"]
    assert KEY not in str(first)
