"""The dry run says what the run then does, and does none of it."""

import asyncio
from pathlib import Path

import pytest
from benches import SAMPLE_STEPS
from endpoint import running_endpoint

from flows.bench_maker import make_bench, make_plan
from flows.estimate import Estimate, estimate_run, print_estimate
from tasks.judge_makers import make_judge
from tasks.run_settings import RunSettings
from tasks.shard import make_work
from tasks.staging import stage_dataset
from warehouse.sample_data import SAMPLE_PATH
from warehouse.store import Warehouse

METRICS = ("factual_f1", "faithfulness", "context_precision")


def make_settings(warehouse: Path, judge: str) -> RunSettings:
    return RunSettings(
        dataset=str(SAMPLE_PATH), judge=judge, metrics=METRICS, limit=20, warehouse=str(warehouse), shard_size=20
    )


async def judge_for_real(settings: RunSettings) -> int:
    """Take the dataset through all steps without Prefect and return how many requests that took."""
    warehouse = Warehouse(settings.warehouse)
    warehouse.migrate()
    staged = stage_dataset(settings.dataset, mapping={}, limit=settings.limit)
    bench = make_bench("run-1", settings, make_plan(settings), make_judge(settings), warehouse)
    for samples in staged.staging.read_parts():
        works = [make_work(sample) for sample in samples]
        await asyncio.gather(*(step(bench, work) for work in works for step in SAMPLE_STEPS))
    staged.staging.discard()
    await bench.close()
    await asyncio.to_thread(bench.asker.record.close)
    return bench.asker.counts.requests


def test_nothing_is_asked_and_nothing_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_endpoint() as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
        estimate = estimate_run(make_settings(tmp_path / "none.duckdb", "openai:gpt-4.1-mini"))
        assert endpoint.stats.requests.total() == 0
    assert list(tmp_path.iterdir()) == []
    assert estimate.n_samples == 20
    assert estimate.requests > 60
    assert estimate.reused <= 2  # equal questions within the dataset
    price = estimate.prompt_tokens * 0.40e-6 + estimate.completion_tokens * 1.60e-6
    assert estimate.cost_usd == pytest.approx(price)


def test_requests_are_those_of_the_run_and_none_once_it_is_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_endpoint() as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
        settings = make_settings(tmp_path / "warehouse.duckdb", "openai:gpt-4.1-mini")
        before = estimate_run(settings)
        requests = asyncio.run(judge_for_real(settings))
        after = estimate_run(settings)
        assert requests == endpoint.stats.requests.total()
    # The endpoint splits texts otherwise than the stand-in, which decides over a request or two.
    assert before.requests == pytest.approx(requests, rel=0.05)
    assert (after.requests, after.prompt_tokens, after.cost_usd) == (0, 0, 0)
    assert after.reused >= requests


def test_fresh_counts_what_is_on_record_too(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "warehouse.duckdb", "lexical")
    before = estimate_run(settings)
    asyncio.run(judge_for_real(settings))

    assert estimate_run(settings).requests == 0
    assert estimate_run(settings.model_copy(update={"fresh": True})) == before


def test_the_line_for_people_names_an_unknown_price(capsys: pytest.CaptureFixture[str]) -> None:
    print_estimate(
        Estimate(
            n_samples=3,
            judge="openai:mine",
            requests=7,
            reused=8,
            prompt_tokens=9000,
            completion_tokens=10,
            cost_usd=None,
        ),
        as_json=False,
    )
    said = capsys.readouterr().out
    assert "3 samples" in said
    assert "7 requests to send and 8 replies on record" in " ".join(said.split())
    assert "cost unknown" in " ".join(said.split())
