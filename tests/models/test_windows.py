"""A model's context window: as its provider's package has it, and only at that provider."""

from __future__ import annotations

from pathlib import Path

import pytest
from live_runs import make_settings, open_warehouse, point_to

from evalhouse.flows.preparing.live_run import make_live_run, make_plan
from evalhouse.tasks.judge.protocol import find_window
from evalhouse.tasks.models.make import make_judge, make_judges


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
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
