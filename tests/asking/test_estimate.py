"""The dry run says what the run then does, and does none of it; and a budget is kept over a whole run: with requests in
flight, when it is resumed, and also where the endpoint does not say how many tokens a call took.
"""

import asyncio
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_house import place_at
from endpoint import Endpoint, running_endpoint
from live_runs import SAMPLE_STEPS, judge_samples, make_sample, open_warehouse, point_to, read_outcomes
from realistic_judge import make_script

from evalhouse.flows.preparing.live_run import make_live_run, make_plan
from evalhouse.flows.run.estimate import Estimate, estimate_run, print_estimate
from evalhouse.prompts import BlockValue, Item, load_prompts
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.datasets.read import stage_dataset
from evalhouse.tasks.grade import grade_sample
from evalhouse.tasks.judge.protocol import FatalJudgeError, Question
from evalhouse.tasks.models.make import make_judges
from evalhouse.tasks.models.stand_ins import make_stand_in
from evalhouse.tasks.pipeline.live_run import SampleWork, make_work
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.tasks.similarity import regenerate_questions
from evalhouse.warehouse.rows.calls import sum_cost
from evalhouse.warehouse.sample_data import SAMPLE_PATH
from evalhouse.warehouse.store import Warehouse

METRICS = ("factual_f1", "faithfulness", "context_precision")


def make_settings(warehouse: Path, judge: str, **changes: object) -> RunSettings:
    settings = {"dataset": str(SAMPLE_PATH), "judge": judge, "metrics": METRICS, "limit": 20, "shard_size": 20}
    return RunSettings.model_validate({**settings, "warehouse": str(warehouse), **changes})


async def judge_for_real(settings: RunSettings) -> Usage:
    """Take the dataset through all steps without Prefect and return what was asked."""
    warehouse = Warehouse(settings.warehouse)
    warehouse.migrate()
    staged = stage_dataset(settings.dataset, mapping={}, limit=settings.limit)
    plan = make_plan(settings)
    live_run = make_live_run("run-1", settings, plan, make_judges(settings, plan), warehouse)
    for samples in staged.staging.read_parts():
        works = [make_work(sample) for sample in samples]
        steps = (*SAMPLE_STEPS, grade_sample, regenerate_questions)
        await asyncio.gather(*(step(live_run, work) for work in works for step in steps))
    staged.staging.discard()
    await live_run.close()
    await asyncio.to_thread(live_run.asker.record.close)
    return live_run.asker.counts


@functools.cache
def estimate_plan(**changes: object) -> Estimate:
    """Estimate a run with nothing on record."""
    return estimate_run(make_settings(Path("/none/w.duckdb"), "openai:gpt-4.1-mini", **changes))


def test_nothing_is_asked_and_nothing_written(tmp_path: Path, endpoint: Endpoint) -> None:
    estimate = estimate_run(make_settings(tmp_path / "none.duckdb", "openai:gpt-4.1-mini"))
    assert endpoint.stats.requests.total() == 0
    assert list(tmp_path.iterdir()) == []
    assert estimate.n_samples == 20
    assert estimate.usage.requests > 60
    assert estimate.usage.reused <= 2  # equal questions within the dataset
    price = estimate.usage.prompt_tokens * 0.40e-6 + estimate.usage.completion_tokens * 1.60e-6
    assert estimate.usage.cost_usd == pytest.approx(price)
    assert estimate.usage.cached_usd == pytest.approx(price - estimate.usage.cached_tokens * 0.30e-6)
    assert 0.5 < estimate.usage.cached_tokens / estimate.usage.prompt_tokens < 1


def test_requests_are_those_of_the_run_and_none_once_it_is_on_record(tmp_path: Path, endpoint: Endpoint) -> None:
    settings = make_settings(tmp_path / "warehouse.duckdb", "openai:gpt-4.1-mini")
    before = estimate_run(settings)
    requests = asyncio.run(judge_for_real(settings)).requests
    after = estimate_run(settings)
    assert requests == endpoint.stats.requests.total()
    # The endpoint splits texts differently from the stand-in, which knows refusals; that decides over some requests.
    assert before.usage.requests == pytest.approx(requests, rel=0.06)
    assert (after.usage.requests, after.usage.prompt_tokens, after.usage.cost_usd) == (0, 0, 0)
    assert after.usage.reused >= requests


def test_what_measures_noise_comes_on_top(capsys: pytest.CaptureFixture[str]) -> None:
    estimate, plain = estimate_plan(noise_share=0.6), estimate_plan()
    assert plain.noise is None
    assert (estimate.usage.requests, estimate.usage.cost_usd) == (plain.usage.requests, plain.usage.cost_usd)
    assert estimate.noise is not None
    assert estimate.noise.n_samples == 12
    assert estimate.noise.requests == round(0.6 * (plain.usage.requests + plain.usage.reused))
    assert plain.usage.cost_usd is not None
    assert estimate.noise.cost_usd == pytest.approx(0.6 * plain.usage.cost_usd, rel=0.1)
    print_estimate(estimate, as_json=False)
    expected_text = f"noise: 12 samples judged again, about {estimate.noise.requests:,} requests, cost $0.0"
    assert expected_text in " ".join(capsys.readouterr().out.split())


def test_a_judge_that_says_the_same_each_time_is_not_measured(tmp_path: Path) -> None:
    assert estimate_run(make_settings(tmp_path / "none.duckdb", "lexical", noise_share=0.6)).noise is None


def test_fresh_counts_what_is_on_record_too(tmp_path: Path) -> None:
    settings = make_settings(tmp_path / "warehouse.duckdb", "lexical")
    before = estimate_run(settings)
    asyncio.run(judge_for_real(settings))

    assert estimate_run(settings).usage.requests == 0
    assert estimate_run(settings.model_copy(update={"fresh": True})) == before


def test_on_the_sample_dataset_it_is_within_a_tenth_of_the_run(tmp_path: Path, endpoint: Endpoint) -> None:
    endpoint.configure(script=make_script())
    settings = make_settings(tmp_path / "w.duckdb", "openai:gpt-4.1-mini", metrics=(), limit=None)
    estimate = estimate_run(settings)
    counts = asyncio.run(judge_for_real(settings))
    assert counts.requests > 80
    assert estimate.usage.requests == pytest.approx(counts.requests, rel=0.1)
    assert estimate.usage.prompt_tokens == pytest.approx(counts.prompt_tokens, rel=0.1)
    tokens = counts.prompt_tokens + counts.completion_tokens
    assert estimate.usage.prompt_tokens + estimate.usage.completion_tokens == pytest.approx(tokens, rel=0.1)
    assert estimate.usage.cost_usd == pytest.approx(counts.cost_usd, rel=0.1)


def test_what_the_endpoint_caches_is_within_a_tenth_too(tmp_path: Path, endpoint: Endpoint) -> None:
    """The endpoint's own usage: it counts characters by four, and caches the beginnings that requests share."""
    settings = make_settings(tmp_path / "w.duckdb", "openai:gpt-4.1-mini", limit=None, language="en")
    estimate = estimate_run(settings)
    counts = asyncio.run(judge_for_real(settings))
    assert counts.cached_tokens > 0
    assert estimate.usage.cached_tokens == pytest.approx(counts.cached_tokens, rel=0.1)


def test_each_step_has_its_share() -> None:
    estimate = estimate_plan()
    assert list(estimate.steps) == [
        "attribute_answer", "classify", "extract_answer", "extract_ground_truth", "rank",
    ]  # fmt: skip
    for name in ("requests", "reused", "prompt_tokens", "cached_tokens", "completion_tokens"):
        assert sum(getattr(step, name) for step in estimate.steps.values()) == getattr(estimate.usage, name)
    assert sum(step.cost_usd or 0 for step in estimate.steps.values()) == pytest.approx(estimate.usage.cost_usd)
    assert all(step.requests and step.prompt_tokens > step.cached_tokens > 0 for step in estimate.steps.values())


def test_votes_and_lone_contexts_are_counted_as_they_are_asked() -> None:
    steps = estimate_plan().steps
    assert estimate_plan(votes=3).steps["classify"].requests == 3 * steps["classify"].requests
    assert estimate_plan(contexts_alone=True).steps["rank"].requests > 2 * steps["rank"].requests


def test_rubrics_questions_and_embeddings_are_counted_as_the_run_asks_them(tmp_path: Path, endpoint: Endpoint) -> None:
    metrics = ("accuracy", "relevance_final", "answer_relevancy", "answer_correctness")
    settings = make_settings(
        tmp_path / "w.duckdb", "openai:gpt-4.1-mini", metrics=metrics,
        embeddings="openai:text-embedding-3-small",
    )  # fmt: skip
    estimate = estimate_run(settings)
    assert endpoint.stats.requests.total() == 0
    requests = {step: usage.requests for step, usage in estimate.steps.items()}
    assert requests["grade_accuracy"] == requests["grade_relevance"] > 15
    assert requests["relevancy"] > 15
    # Of each answer its questions; and the question, the answer and the ground truth of the sample: all in one request.
    assert requests["similarity"] == 1
    assert estimate.steps["similarity"].prompt_tokens > 5 * 3 * requests["relevancy"]
    embedded = estimate.steps["similarity"]
    assert embedded.completion_tokens == 0
    assert embedded.cost_usd == pytest.approx(embedded.prompt_tokens * 0.02e-6)


def test_both_texts_of_a_sample_are_counted_as_the_one_request_that_they_are() -> None:
    separate, fused = estimate_plan().steps, estimate_plan(plan="fused").steps
    n_both = fused["extract_answer"].requests
    assert 0 < n_both <= separate["extract_answer"].requests
    assert fused.get("extract_ground_truth", Usage()).requests < 0.1 * separate["extract_ground_truth"].requests
    # An answer in the very words of its ground truth is one request by the separate plan.
    assert sum(usage.reused for usage in fused.values()) <= sum(usage.reused for usage in separate.values())
    # Nearly all of what the two would send by themselves, but for the instructions and examples of one of them.
    by_themselves = sum(separate[step].prompt_tokens for step in ("extract_answer", "extract_ground_truth"))
    assert 0.4 * by_themselves < fused["extract_answer"].prompt_tokens < 0.75 * by_themselves


def ask_stand_in(language: str, name: str, **data: BlockValue) -> dict[str, Any]:
    question = Question(step=name, sample_id="s", prompt=load_prompts(language)[name], data=data)
    reply: dict[str, Any] = json.loads(make_stand_in(question))
    return reply


@pytest.mark.parametrize("language", ["en", "zh"])
def test_rows_of_a_stand_in_have_ids_in_favour_and_the_examples_words_against(language: str) -> None:
    (example,) = [json.loads(one.content) for one in load_prompts(language)["fused"].opening if one.role == "ai"]
    statement, other = Item(id="A1", text="It was built in 1911."), Item(id="G1", text="It is painted blue.")
    rows = ask_stand_in(
        language, "fused", question="When?", ground_truth="It was built in 1911.",
        contexts=[Item(id="C1", text=statement.text), Item(id="C2", text="Fish soup needs dill.")],
        answer_statements=[statement], ground_truth_statements=[other, Item(id="G2", text=statement.text)],
    )["verdicts"]  # fmt: skip
    output = {row[0]: row[1:] for row in rows}
    assert output["A1"] == ["G1", "TP", "C1"]
    assert output["C1"] == ["G1", "useful"]
    assert (output["G1"][1], output["G1"][2][:6], output["C2"][1]) == ("FN", "none: ", "not_useful")
    cells = [cell for row in example["verdicts"] for cell in row]
    for words in (output["G1"][0], output["G1"][2].removeprefix("none: "), output["C2"][0]):
        assert any(words[:-1] in cell for cell in cells)


def test_neither_a_limit_nor_a_budget_ends_the_counting(capsys: pytest.CaptureFixture[str]) -> None:
    free, tight = estimate_plan(), estimate_plan(budget_usd=0.001, rpm=1, tpm=1)
    assert (tight.usage.requests, tight.usage.cost_usd) == (free.usage.requests, free.usage.cost_usd)
    print_estimate(tight, as_json=False)
    assert "more than the budget of $0.001" in capsys.readouterr().out
    print_estimate(free, as_json=False)
    assert "budget" not in capsys.readouterr().out


def test_a_budget_without_a_price_is_refused_here_too(tmp_path: Path) -> None:
    with pytest.raises(FatalJudgeError, match="a price for 'unknown-model'"):
        estimate_run(make_settings(tmp_path / "none.duckdb", "openai:unknown-model", budget_usd=1.0))


def make_estimate(cost_usd: float | None, cached_usd: float | None) -> Estimate:
    usage = Usage(
        requests=7, reused=8, prompt_tokens=9000, cached_tokens=6000, completion_tokens=10, spent_usd=cost_usd or 0.0,
        saved_usd=(cost_usd or 0.0) - (cached_usd or 0.0), unpriced=int(cost_usd is None),
    )  # fmt: skip
    return Estimate(n_samples=3, judge="openai:mine", steps={"rank": usage}, by_judge={"openai:mine": usage})


@pytest.mark.parametrize(
    ("cost_usd", "cached_usd", "expected_text"),
    [
        (None, None, "cost unknown. Nothing was asked."),
        (2.5, 2.5, "cost $2.50. Nothing was asked."),
        (2.5, 0.5, "cost $2.50, or $0.5000 if the provider caches what requests have in common. Nothing was asked."),
    ],
)
def test_people_get_a_table_by_step_and_a_line(
    capsys: pytest.CaptureFixture[str], cost_usd: float | None, cached_usd: float | None, expected_text: str
) -> None:
    print_estimate(make_estimate(cost_usd, cached_usd), as_json=False)
    output = capsys.readouterr().out
    header, step, total = (line.split() for line in output.splitlines()[:3])
    assert header[0] == "step"
    assert step[:5] == ["rank", "7", "8", "9,000", "6,000"]
    assert total[1:] == step[1:]
    line = " ".join(output.split())
    assert "3 samples, judged by openai:mine: 7 requests to send and 8 replies on record; about 9,000 + 10" in line
    assert expected_text in line


def test_programs_get_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_estimate(make_estimate(2.5, 0.5), as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["requests"], document["cost_usd"], document["cached_usd"]) == (7, 2.5, 0.5)
    (step,) = document["steps"]
    assert step["step"] == "rank"
    assert {name: step[name] for name in step if name != "step"} == {
        name: document[name] for name in step if name != "step"
    }


N = 24
MODEL = "openai:gpt-4.1-mini"


@pytest.fixture
def realistic(request: pytest.FixtureRequest) -> Iterator[Endpoint]:
    with running_endpoint(latency=0.01, script=make_script(usage=getattr(request, "param", True))) as running:
        point_to(running.base_url)
        yield running


async def judge_within(folder: Path, budget_usd: float, *, run_id: str = "run-1", **settings: Any) -> list[SampleWork]:  # noqa: ANN401  # fields of RunSettings
    """Judge the same samples within a budget, as a new or a resumed run."""
    chosen = RunSettings(judge=MODEL, budget_usd=budget_usd, metrics=("answer_correctness", "faithfulness"), **settings)
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


async def test_a_budget_is_passed_by_no_more_than_one_request(realistic: Endpoint, tmp_path: Path) -> None:
    budget_usd = 0.012
    works = await judge_within(tmp_path, budget_usd, concurrency=16)
    costs = read_costs(tmp_path)
    assert len(costs) == realistic.stats.requests.total() < 4 * N
    assert budget_usd <= sum(costs) <= budget_usd + max(costs)
    assert collect_reasons(works) == {None, "budget_exhausted"}


@pytest.mark.parametrize("realistic", [True, False], ids=["usage", "no usage"], indirect=True)
async def test_resumed_run_has_the_remaining_budget(realistic: Endpoint, tmp_path: Path) -> None:
    await judge_within(tmp_path, 0.006, concurrency=2)
    n_first = realistic.stats.requests.total()
    works = await judge_within(tmp_path, 0.012, concurrency=2)
    costs = read_costs(tmp_path)
    assert 0.012 <= sum(costs) <= 0.012 + max(costs)
    assert sum(costs) == pytest.approx(sum_cost(open_warehouse(tmp_path), "run-1"))
    assert n_first < realistic.stats.requests.total() == len(costs)
    assert realistic.stats.duplicates == 0
    assert "budget_exhausted" in collect_reasons(works)

    works = await judge_within(tmp_path, 1.0, concurrency=2)
    assert collect_reasons(works) == {None}
    assert realistic.stats.requests.total() == len(read_costs(tmp_path)) == 4 * N


async def test_another_run_has_its_own_budget_and_replies_on_record_cost_it_nothing(
    realistic: Endpoint, tmp_path: Path
) -> None:
    await judge_within(tmp_path, 1.0)
    n_before = realistic.stats.requests.total()
    works = await judge_within(tmp_path, 0.000001, run_id="run-2")
    assert collect_reasons(works) == {None}
    assert realistic.stats.requests.total() == n_before == 4 * N
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
