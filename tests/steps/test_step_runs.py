"""Steps over a shard: retries of steps, no endless waits, stopping, and bad providers at scale."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from endpoint import running_endpoint
from live_runs import (
    ScriptedJudge,
    lay_out_run,
    make_sample,
    make_settings,
    point_to,
    read_calls,
    read_outcomes,
    say_good,
)

from evalhouse.flows import shards
from evalhouse.flows.shards import judge_shard, load_step
from evalhouse.tasks.attribute import attribute, attribute_statements
from evalhouse.tasks.classify import classify
from evalhouse.tasks.extract import extract
from evalhouse.tasks.judge.protocol import (
    EndpointDown,
    FatalJudgeError,
    JudgeFailed,
    Question,
    RunCancelled,
    TransientJudgeError,
)
from evalhouse.tasks.pipeline.live_run import (
    RETRIES,
    STEP_OPTIONS,
    LiveRun,
    Shard,
    find_live_run,
    make_work,
    registered,
)
from evalhouse.tasks.rank import rank
from evalhouse.tasks.similarity import similarity
from evalhouse.warehouse import steps

# The functions under the tasks, as Prefect calls them.
TASKS = tuple(task.fn for task in (extract, classify, attribute, rank, similarity))


@asynccontextmanager
async def lay_shard(
    folder: Path,
    says: Callable[[Question], str | Exception] | None,
    samples: int = 3,
    **settings: Any,  # noqa: ANN401
) -> AsyncIterator[tuple[LiveRun, Shard]]:
    """A live run that tasks find by the run's id, with one shard on it; without `says` the endpoint is asked."""
    judge = ScriptedJudge(says) if says else None
    async with lay_out_run(folder, make_settings(**settings), judge=judge) as live_run:
        works = [make_work(make_sample(number)) for number in range(1, samples + 1)]
        shard = live_run.shards[0] = Shard(number=0, first=1, last=samples, works=works)
        with registered(live_run):
            yield live_run, shard


async def run_all(live_run: LiveRun) -> list[Any]:
    """All tasks of the shard side by side, as the flow runs them."""
    async with asyncio.timeout(20):
        return await asyncio.gather(*(task(live_run.run_id, 0) for task in TASKS), return_exceptions=True)


async def test_a_shard_goes_through_all_steps(tmp_path: Path) -> None:
    async with lay_shard(tmp_path, say_good) as (live_run, shard):
        assert await run_all(live_run) == [None] * 5
        assert live_run.progress.n_done == 3
        assert all(len(work.done) == len(live_run.tasks) for work in shard.works)
        batch = shard.to_batch("run-1", key="k", replaces=False)
        assert len(batch.tables["outcomes"]) == 3 * 7


async def test_a_run_is_found_while_it_lasts(tmp_path: Path) -> None:
    async with lay_shard(tmp_path, say_good) as (live_run, _):
        assert find_live_run("run-1") is live_run
    with pytest.raises(LookupError, match="run-1 is not running"):
        find_live_run("run-1")


@pytest.mark.parametrize("name", steps.TASKS)
def test_each_step_is_a_task_that_is_tried_again(name: str) -> None:
    task = load_step(name).task
    assert (task.name, task.task_run_name) == (name, f"{name} shard {{shard}}")
    assert (task.retries, task.retry_delay_seconds) == (RETRIES, [5, 30])
    assert task.retry_condition_fn is STEP_OPTIONS["retry_condition_fn"]
    assert task.persist_result is False


async def test_prefect_tries_again_for_an_endpoint_that_is_down_and_for_nothing_else() -> None:
    class State:
        def __init__(self, error: Exception) -> None:
            self.error = error

        async def aresult(self, *, raise_on_failure: bool) -> Exception:
            return self.error

    is_down = STEP_OPTIONS["retry_condition_fn"]
    assert await is_down(None, None, State(EndpointDown("gone")))
    for error in (JudgeFailed("no"), FatalJudgeError("key"), ValueError("bug")):
        assert not await is_down(None, None, State(error))


@pytest.mark.usefixtures("quick_backoff")
async def test_an_endpoint_that_comes_back_leaves_no_trace_in_the_verdicts(tmp_path: Path) -> None:
    """While it is down extraction ends without a row; waiting steps keep waiting, and nothing is done twice."""
    down = {"extract_answer"}

    def says(question: Question) -> str | Exception:
        lost = question.step in down and question.sample_id == "s2"
        return TransientJudgeError("status 503") if lost else say_good(question)

    async with lay_shard(tmp_path, says, attempts=2) as (live_run, shard):
        others = [asyncio.create_task(task(live_run.run_id, 0)) for task in TASKS[1:]]
        with pytest.raises(EndpointDown):
            await TASKS[0](live_run.run_id, 0)
        assert [set(read_outcomes(work)) & {"extract_answer"} for work in shard.works] == [
            {"extract_answer"}, set(), {"extract_answer"}
        ]  # fmt: skip
        assert not others[0].done()
        down.clear()
        await TASKS[0](live_run.run_id, 0)
        async with asyncio.timeout(10):
            await asyncio.gather(*others)
        for work in shard.works:
            assert Counter(str(row["step"]) for row in work.rows["outcomes"]).most_common(1)[0][1] == 1
            assert set(read_outcomes(work).values()) == {None}
    asked = Counter((call["sample_id"], call["step"]) for call in read_calls(tmp_path) if call["status"] == "ok")
    assert max(asked.values()) == 1


@pytest.mark.usefixtures("quick_backoff")
async def test_the_last_try_records_the_failure_as_an_outcome(tmp_path: Path) -> None:

    def says(question: Question) -> str | Exception:
        lost = question.sample_id == "s2" and question.step == "extract_answer"
        return TransientJudgeError("status 503") if lost else say_good(question)

    async with lay_shard(tmp_path, says, attempts=1) as (live_run, shard):
        others = [asyncio.create_task(task(live_run.run_id, 0)) for task in TASKS[1:]]
        for _ in range(2):
            with pytest.raises(EndpointDown):
                await TASKS[0](live_run.run_id, 0)
        await TASKS[0](live_run.run_id, 0)
        async with asyncio.timeout(10):
            await asyncio.gather(*others)
        outcomes = [read_outcomes(work) for work in shard.works]
    assert {step for step, reason in outcomes[1].items() if reason} == {
        "extract_answer", "classify", "attribute_answer",
    }  # fmt: skip
    assert set(outcomes[0].values()) == set(outcomes[2].values()) == {None}
    assert live_run.progress.n_done == 3


@pytest.mark.parametrize("error", [ValueError("a bug"), FatalJudgeError("refused the key"), MemoryError("full")])
async def test_a_step_that_breaks_lets_go_of_those_that_wait_for_it(tmp_path: Path, error: Exception) -> None:
    def says(question: Question) -> str | Exception:
        return error if question.step == "extract_answer" else say_good(question)

    async with lay_shard(tmp_path, says) as (live_run, shard):
        ended = await run_all(live_run)
        assert [type(result) for result in ended[:3]] == [type(error)] * 3
        assert live_run.progress.n_done == 0
        assert all(len(work.done) < len(live_run.tasks) for work in shard.works)


@pytest.mark.usefixtures("quick_backoff")
async def test_a_bug_beside_an_endpoint_that_is_down_lets_go_as_well(tmp_path: Path) -> None:
    """Prefect does not try again after a bug, so no step may keep waiting for the sample that only failed by chance."""

    def says(question: Question) -> str | Exception:
        if question.step != "extract_answer":
            return say_good(question)
        return ValueError("a bug") if question.sample_id == "s1" else TransientJudgeError("status 503")

    async with lay_shard(tmp_path, says, attempts=1) as (live_run, _):
        ended = await run_all(live_run)
        assert type(ended[0]) is ValueError
        assert all(isinstance(result, Exception) for result in ended[1:3])


async def test_a_task_that_is_cancelled_lets_go_of_those_that_wait_for_it(tmp_path: Path) -> None:
    async with lay_shard(tmp_path, say_good) as (live_run, _):
        assert isinstance(live_run.asker.judge, ScriptedJudge)
        live_run.asker.judge.latency_s = 60
        extracting = asyncio.create_task(TASKS[0](live_run.run_id, 0))
        waiting = asyncio.create_task(TASKS[1](live_run.run_id, 0))
        await asyncio.sleep(0.05)
        extracting.cancel()
        async with asyncio.timeout(5):
            ended = await asyncio.gather(extracting, waiting, return_exceptions=True)
    assert isinstance(ended[0], asyncio.CancelledError)
    assert isinstance(ended[1], RunCancelled)


async def test_cancelling_a_waiting_step_keeps_the_statements_for_others(tmp_path: Path) -> None:
    async with lay_shard(tmp_path, say_good) as (live_run, shard):
        waiting = asyncio.create_task(attribute_statements(live_run, shard.works[0]))
        await asyncio.sleep(0)
        waiting.cancel()
        assert await run_all(live_run) == [None] * 5


async def test_stopping_ends_all_tasks_quickly_and_keeps_all_replies(tmp_path: Path) -> None:
    with running_endpoint(latency=0.2) as endpoint:
        point_to(endpoint.base_url)
        async with lay_shard(tmp_path, None, samples=40, concurrency=8) as (live_run, _):
            running = asyncio.create_task(run_all(live_run))
            await asyncio.sleep(0.7)
            sent = live_run.usage.requests
            started = time.monotonic()
            live_run.stop(RunCancelled("stopped by SIGINT"), drain_s=1.0)
            ended = await running
            assert time.monotonic() - started < 1.0
            assert {type(result) for result in ended[:4]} == {RunCancelled}
        assert endpoint.stats.requests["/v1/chat/completions"] == sent
        calls = read_calls(tmp_path)
        assert [call["status"] for call in calls] == ["ok"] * sent
        # A resumed run pays for none of them again.
        async with lay_shard(tmp_path, None, samples=40, concurrency=64) as (live_run, _):
            assert await run_all(live_run) == [None] * 5
        assert endpoint.stats.requests["/v1/chat/completions"] == 240
        assert endpoint.stats.duplicates == 0


async def test_stopping_ends_prefects_wait_before_a_retry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task is here what Prefect makes of it: one that sleeps for the delay and is then called again."""
    waits: list[float] = []

    async def extract_with_retries(run_id: str, number: int) -> None:
        for delay_s in extract.retry_delay_seconds:
            try:
                return await extract.fn(run_id, number)
            except EndpointDown:
                waits.append(delay_s)
                await asyncio.sleep(delay_s)

    def says(question: Question) -> str | Exception:
        return TransientJudgeError("status 503") if question.step == "extract_answer" else say_good(question)

    async def leave_out(*_: object) -> None:
        """Neither load nor write: the shard is laid out by hand."""

    async def call_plainly(called: Any, _id: object, _run: object, parameters: dict[str, Any], *_: object) -> None:  # noqa: ANN401
        await called(*parameters.values())

    tasks: dict[str, Any] = {"extract": extract_with_retries, "classify": classify.fn}
    steps_here = {name: replace(load_step(name), task=task) for name, task in tasks.items()}
    monkeypatch.setattr(shards, "load_step", steps_here.__getitem__)
    monkeypatch.setattr(shards, "write", leave_out)
    monkeypatch.setattr(shards, "run_task_async", call_plainly)
    monkeypatch.setattr(LiveRun, "open_shard", leave_out)
    async with lay_shard(tmp_path, says, attempts=1) as (live_run, shard):
        vars(live_run)["tasks"] = tuple(steps_here)
        judging = asyncio.create_task(judge_shard(live_run, 0))
        await asyncio.sleep(0.2)
        assert waits == [5]
        live_run.stop(RunCancelled("stopped by SIGTERM"), drain_s=1.0)
        with pytest.raises(RunCancelled, match="SIGTERM"):
            async with asyncio.timeout(1):
                await judging
        assert all(work.extractions["answer"].done() for work in shard.works)


FAULTS = (
    "rate_limit", "server_error", "unavailable", "reset", "truncated", "fence", "prose", "missing_id", "doubled_id",
    "invented_id", "unknown_label", "empty", "length",
)  # fmt: skip


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize("share", [0.05, 0.3])
async def test_a_bad_provider_costs_no_sample_its_scores_and_nothing_twice(tmp_path: Path, share: float) -> None:
    faults = dict.fromkeys(FAULTS, share / len(FAULTS))
    with running_endpoint(latency=0.005, faults=faults, retry_after=0.02, seed=7) as endpoint:
        point_to(endpoint.base_url)
        async with lay_shard(tmp_path, None, samples=60, concurrency=16, attempts=8) as (live_run, shard):
            assert await run_all(live_run) == [None] * 5
            reasons = Counter(reason for work in shard.works for reason in read_outcomes(work).values())
            counts = live_run.asker.counts
        assert reasons == {None: 60 * 7}
        assert endpoint.stats.duplicates_answered == 0
        assert endpoint.stats.faults.total() > 300 * share * 0.6
        sent = endpoint.stats.requests["/v1/chat/completions"]
    calls = read_calls(tmp_path)
    assert len(calls) == counts.requests == sent
    assert all(call["error"] for call in calls if call["status"] != "ok")
