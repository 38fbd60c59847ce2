"""A budget is kept over a whole run: with requests in flight, when it is resumed, and also where the
endpoint does not say how many tokens a call took.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_house import place_at
from endpoint import Endpoint, running_endpoint
from live_runs import judge_samples, make_sample, make_settings, open_warehouse, point_to, read_outcomes
from realistic_judge import make_script

from evalhouse.flows.preparing.live_run import make_live_run, make_plan
from evalhouse.tasks.models.make import make_judges
from evalhouse.tasks.pipeline.live_run import SampleWork
from evalhouse.warehouse.rows.calls import sum_cost

N = 24
MODEL = "openai:gpt-4.1-mini"


@pytest.fixture
def endpoint(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with running_endpoint(latency=0.01, script=make_script(usage=getattr(request, "param", True))) as running:
        point_to(running.base_url)
        yield running


async def judge_within(folder: Path, budget_usd: float, *, run_id: str = "run-1", **settings: Any) -> list[SampleWork]:  # noqa: ANN401  # fields of RunSettings
    """Judge the same samples within a budget, as a new or a resumed run."""
    chosen = make_settings(
        judge=MODEL, budget_usd=budget_usd, metrics=("answer_correctness", "faithfulness"), **settings
    )
    plan = make_plan(chosen)
    live_run = make_live_run(run_id, chosen, plan, make_judges(chosen, plan), open_warehouse(folder))
    try:
        return await judge_samples(live_run, [make_sample(number) for number in range(1, N + 1)])
    finally:
        await live_run.close()
        await asyncio.to_thread(live_run.asker.record.close)


def read_costs(folder: Path, run_id: str = "run-1") -> list[float]:
    """Return the cost of each call that was sent."""
    rows = open_warehouse(folder).read_rows(
        "select cost_usd from llm_calls where run_id = $run_id and status <> 'cached'", {"run_id": run_id}
    )
    return [float(str(row["cost_usd"])) for row in rows]


def collect_reasons(works: list[SampleWork]) -> set[str | None]:
    return {reason for work in works for reason in read_outcomes(work).values()}


async def test_no_more_is_spent_than_the_budget_and_what_was_in_flight(endpoint: Endpoint, tmp_path: Path) -> None:
    budget_usd, concurrency = 0.012, 4
    works = await judge_within(tmp_path, budget_usd, concurrency=concurrency)
    costs = read_costs(tmp_path)
    assert len(costs) == endpoint.stats.requests.total() < 4 * N
    assert budget_usd <= sum(costs) <= budget_usd + concurrency * max(costs)
    assert collect_reasons(works) == {None, "budget_exhausted"}


@pytest.mark.parametrize("endpoint", [True, False], ids=["usage", "no usage"], indirect=True)
async def test_resumed_run_has_the_remaining_budget(endpoint: Endpoint, tmp_path: Path) -> None:
    await judge_within(tmp_path, 0.006, concurrency=2)
    n_first = endpoint.stats.requests.total()
    works = await judge_within(tmp_path, 0.012, concurrency=2)
    costs = read_costs(tmp_path)
    assert 0.012 <= sum(costs) <= 0.012 + 2 * max(costs)
    assert sum(costs) == pytest.approx(sum_cost(open_warehouse(tmp_path), "run-1"))
    assert n_first < endpoint.stats.requests.total() == len(costs)
    assert endpoint.stats.duplicates == 0
    assert "budget_exhausted" in collect_reasons(works)

    works = await judge_within(tmp_path, 1.0, concurrency=2)
    assert collect_reasons(works) == {None}
    assert endpoint.stats.requests.total() == len(read_costs(tmp_path)) == 4 * N


async def test_another_run_has_its_own_budget_and_replies_on_record_cost_it_nothing(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    await judge_within(tmp_path, 1.0)
    n_before = endpoint.stats.requests.total()
    works = await judge_within(tmp_path, 0.000001, run_id="run-2")
    assert collect_reasons(works) == {None}
    assert endpoint.stats.requests.total() == n_before == 4 * N
    assert sum_cost(open_warehouse(tmp_path), "run-2") == 0
    assert sum_cost(open_warehouse(tmp_path), "run-1") > 0.01


async def test_replies_that_cannot_be_used_are_paid_for_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalhouse.tasks.asking.asker._MAX_UNUSABLE", 1000)
    with running_endpoint(script=dict.fromkeys(("extract", "classify", "attribute"), lambda _: "no JSON")) as endpoint:
        point_to(endpoint.base_url)
        works = await judge_within(tmp_path, 0.006, concurrency=4, attempts=50)
    costs = read_costs(tmp_path)
    assert 0.006 <= sum(costs) <= 0.006 + 4 * max(costs)
    assert "budget_exhausted" in collect_reasons(works)


async def test_calls_that_were_not_counted_are_known_by_their_estimate(tmp_path: Path) -> None:
    for usage in (True, False):
        with running_endpoint(script=make_script(usage=usage)) as endpoint:
            point_to(endpoint.base_url)
            await judge_within(tmp_path / str(usage), 1.0)
    warehouse = open_warehouse(tmp_path / "False")
    rows = warehouse.read_rows("select prompt_tokens, n_requests, n_estimated, cost_usd from run_costs")
    assert all(row["prompt_tokens"] == 0 and row["n_estimated"] == row["n_requests"] for row in rows)
    counted = open_warehouse(tmp_path / "True").read_rows("select n_estimated, cost_usd from run_costs")
    assert all(row["n_estimated"] == 0 for row in counted)
    estimated_usd, counted_usd = (sum(float(str(row["cost_usd"])) for row in found) for found in (rows, counted))
    assert estimated_usd == pytest.approx(counted_usd, rel=0.1)


def test_the_command_stops_at_the_budget_and_resumes_with_a_higher_one(tmp_path: Path, prefect_home: Path) -> None:
    with running_endpoint(script=make_script()) as endpoint:
        place = place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=N)
        run = ("run", "berths.jsonl", "--judge", MODEL, "--concurrency", "4", "--json")
        stopped = place.call(*run, "--budget", "0.01")
        assert (stopped.status, stopped.document["status"]) == (3, "incomplete")
        assert 0.01 <= stopped.document["calls"]["cost_usd"] < 0.02
        unscored = {row["reason"] for row in place.call("show", "latest", "--json").document["unscored"]}
        assert unscored - {"no_statements", "no_reference_ids"} == {"budget_exhausted"}

        n_before = endpoint.stats.requests.total()
        refused = place.call("resume", "latest")
        spent = f"has spent {stopped.document['calls']['cost_usd']:.4g} dollars and its budget is 0.01"
        assert (refused.status != 0, spent in refused.stderr) == (True, True), refused.stderr
        assert "evalhouse resume" in refused.stderr
        assert "--budget USD" in refused.stderr
        assert endpoint.stats.requests.total() == n_before

        resumed = place.call("resume", "latest", "--budget", "1", "--json")
        assert (resumed.status, resumed.document["status"]) == (0, "completed"), resumed.stderr
        assert endpoint.stats.duplicates == 0
