"""Steps beside each other: handing statements over, being spared, being tried again, and ending together.

Which verdicts a step brings is tested in `test_steps_verdicts`, and lists that are split in `test_steps_split`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from live_runs import (
    SAMPLE_STEPS,
    ScriptedJudge,
    judge_one,
    judge_with,
    lay_out_run,
    make_sample,
    make_settings,
    read_calls,
    read_labels,
    read_outcomes,
    read_useful,
    say_good,
)  # fmt: skip

from evalhouse.tasks.asking.asker import LAST_CHANCE
from evalhouse.tasks.attribute import attribute_statements
from evalhouse.tasks.classify import classify_statements
from evalhouse.tasks.extract import extract, extract_answer, extract_ground_truth
from evalhouse.tasks.judge.protocol import (
    EndpointDown,
    FatalJudgeError,
    Question,
    RefusedRequest,
    RunCancelled,
    TransientJudgeError,
)
from evalhouse.tasks.pipeline.live_run import LiveRun, Shard, make_work, registered, take_shard
from evalhouse.tasks.rank import rank_contexts
from evalhouse.tasks.similarity import compare_meaning
from evalhouse.warehouse.store import VERDICT_TABLES

DOWN = TransientJudgeError("status 503: down")
BY_IDS = ("precision_at_k", "mrr", "ndcg_at_k")


pytestmark = pytest.mark.usefixtures("quick_backoff")


@asynccontextmanager
async def lay_shard(
    folder: Path,
    judge: ScriptedJudge,
    *,
    n_samples: int = 3,
    **settings: Any,  # noqa: ANN401  # fields of RunSettings
) -> AsyncIterator[tuple[LiveRun, Shard]]:
    """A live run that steps find by its run's id, with one shard."""
    async with lay_out_run(folder, make_settings(**{"attempts": 2, **settings}), judge=judge) as live_run:
        works = [make_work(make_sample(number)) for number in range(1, n_samples + 1)]
        shard = live_run.shards[0] = Shard(number=0, first=1, last=n_samples, works=works)
        try:
            with registered(live_run):
                yield live_run, shard
        finally:
            LAST_CHANCE.set(True)


async def take_extraction(live_run: LiveRun, shard: Shard) -> None:
    """Take a step like its task."""
    await extract.fn(live_run.run_id, shard.number)


def break_when(fits: Callable[[Question], bool], error: Exception = DOWN) -> Callable[[Question], str | Exception]:
    return lambda question: error if fits(question) else say_good(question)


def count_rows(shard: Shard) -> dict[str, int]:
    return {table: sum(len(work.rows[table]) for work in shard.works) for table in VERDICT_TABLES}


# Being spared


@pytest.mark.parametrize("ids", [{"context_ids": ["a", "b", "c"], "reference_context_ids": ["b"]}, {}])
async def test_no_metric_by_ids_asks_the_judge(tmp_path: Path, ids: dict[str, Any]) -> None:
    judge = ScriptedJudge(say_good)
    work = await judge_one(tmp_path, make_sample(**ids), judge=judge, metrics=BY_IDS)
    assert judge.asked == []
    assert read_outcomes(work) == {}


async def test_a_step_that_no_metric_needs_neither_asks_nor_waits(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_good)
    async with lay_out_run(tmp_path, judge=judge, metrics=["semantic_similarity"]) as live_run:
        work = make_work(make_sample())
        async with asyncio.timeout(5):
            await classify_statements(live_run, work)
            await attribute_statements(live_run, work)
            await rank_contexts(live_run, work)
            await compare_meaning(live_run, work)
    assert judge.asked == []
    assert read_outcomes(work) == {"similarity": None}


# Handing over


async def test_a_sample_is_judged_as_soon_as_its_own_statements_are_there(tmp_path: Path) -> None:
    """The second sample's answer is slow; the first one does not wait for it."""
    judge = ScriptedJudge(say_good)
    async with lay_shard(tmp_path, judge, n_samples=2) as (live_run, shard):
        first, second = shard.works
        steps = [asyncio.create_task(classify_statements(live_run, work)) for work in (first, second)]
        for step in (extract_answer, extract_ground_truth):
            await step(live_run, first)
        await asyncio.wait_for(steps[0], 5)
        assert set(read_labels(first)) == {"A1", "A2", "G1", "G2"}
        await extract_ground_truth(live_run, second)
        await asyncio.sleep(0.05)
        assert not steps[1].done()
        await extract_answer(live_run, second)
        await asyncio.wait_for(steps[1], 5)


async def test_a_cancelled_step_keeps_the_statements_for_others(tmp_path: Path) -> None:
    async with lay_shard(tmp_path, ScriptedJudge(say_good), n_samples=1) as (live_run, shard):
        (work,) = shard.works
        classifying = asyncio.create_task(classify_statements(live_run, work))
        attributing = asyncio.create_task(attribute_statements(live_run, work))
        await asyncio.sleep(0.01)
        classifying.cancel()
        await take_extraction(live_run, shard)
        await asyncio.wait_for(attributing, 5)
    assert read_outcomes(work)["attribute_answer"] is None


@pytest.mark.parametrize(("error", "kind"), [
    (FatalJudgeError("refused the key"), FatalJudgeError),
    (RuntimeError("a bug"), RuntimeError),
    (asyncio.CancelledError(), RunCancelled),
])  # fmt: skip
async def test_any_error_of_splitting_ends_all_waits_for_statements(
    tmp_path: Path, error: BaseException, kind: type[Exception]
) -> None:
    def break_down(question: Question) -> str:
        raise error

    async with lay_shard(tmp_path, ScriptedJudge(break_down)) as (live_run, shard):
        waiting = [
            asyncio.create_task(step(live_run, work))
            for step in (classify_statements, attribute_statements)
            for work in shard.works
        ]
        async with asyncio.timeout(5):
            with pytest.raises(type(error)):
                await take_extraction(live_run, shard)
            results = await asyncio.gather(*waiting, return_exceptions=True)
    assert {type(result) for result in results} == {kind}
    assert count_rows(shard) == dict.fromkeys(VERDICT_TABLES, 0)


async def test_a_run_that_is_stopped_lets_no_step_wait(tmp_path: Path) -> None:
    judge = ScriptedJudge(say_good, latency_s=60)
    async with lay_shard(tmp_path, judge) as (live_run, shard):
        extraction = asyncio.create_task(take_extraction(live_run, shard))
        others = [
            asyncio.create_task(take_shard(live_run.run_id, shard.number, step))
            for step in (classify_statements, rank_contexts)
        ]
        async with asyncio.timeout(5):
            while not judge.asked:
                await asyncio.sleep(0.01)
        live_run.stop(RunCancelled("stopped by SIGINT"), drain_s=0.05)
        async with asyncio.timeout(5):
            results = await asyncio.gather(extraction, *others, return_exceptions=True)
    assert {(type(result), str(result)) for result in results} == {(RunCancelled, "stopped by SIGINT")}
    # What was in flight is noted as such, and no sample is called judged.
    assert {call["status"] for call in read_calls(tmp_path)} == {"error"}
    assert count_rows(shard)["outcomes"] == 0


# Being tried again


async def test_a_second_try_resumes_where_the_first_one_ended(tmp_path: Path) -> None:
    """The endpoint is down for the second sample alone; the steps that wait for it keep waiting."""
    is_down = True
    judge = ScriptedJudge(break_when(lambda question: is_down and question.sample_id == "s2"))
    async with lay_shard(tmp_path, judge) as (live_run, shard):
        waiting = asyncio.create_task(take_shard(live_run.run_id, shard.number, classify_statements))
        async with asyncio.timeout(10):
            with pytest.raises(EndpointDown, match="status 503: down"):
                await take_extraction(live_run, shard)
            assert not waiting.done()
            is_down = False
            judge.asked.clear()
            await take_extraction(live_run, shard)
            await waiting
    extracted = Counter(question.sample_id for question in judge.asked if question.step.startswith("extract"))
    assert extracted == {"s2": 2}
    rows = count_rows(shard)
    assert (rows["statements"], rows["classifications"]) == (12, 12)
    assert rows["outcomes"] == 3 * 3


@pytest.mark.parametrize("step", [classify_statements, attribute_statements, rank_contexts])
async def test_no_row_is_doubled_by_a_try_that_failed_halfway(tmp_path: Path, step: Callable[..., Any]) -> None:
    is_down = True
    kind = step.__name__.partition("_")[0]
    judge = ScriptedJudge(
        break_when(lambda question: is_down and question.step.startswith(kind) and question.sample_id != "s1")
    )
    async with lay_shard(tmp_path, judge) as (live_run, shard):
        await take_extraction(live_run, shard)
        with pytest.raises(EndpointDown):
            await take_shard(live_run.run_id, shard.number, step)
        is_down = False
        for again in SAMPLE_STEPS[1:]:
            await take_shard(live_run.run_id, shard.number, again)
        assert live_run.progress.n_done == 3
    for work in shard.works:
        assert Counter(str(row["step"]) for row in work.rows["outcomes"]).most_common(1)[0][1] == 1
        assert set(read_outcomes(work).values()) == {None}
        assert len(work.done) == len(live_run.tasks)
    assert {name: count_rows(shard)[name] for name in ("statements", "classifications", "attributions")} == {
        "statements": 12, "classifications": 12, "attributions": 12,
    }  # fmt: skip


@pytest.mark.parametrize("down", ["attribute_answer", "attribute_ground_truth"])
async def test_one_text_attributed_while_the_endpoint_was_down_for_the_other_is_left_as_it_is(
    tmp_path: Path, down: str
) -> None:
    is_down = True
    judge = ScriptedJudge(break_when(lambda question: is_down and question.step == down))
    async with lay_shard(tmp_path, judge, n_samples=1) as (live_run, shard):
        await take_extraction(live_run, shard)
        with pytest.raises(EndpointDown):
            await take_shard(live_run.run_id, shard.number, attribute_statements)
        is_down = False
        judge.asked.clear()
        await take_shard(live_run.run_id, shard.number, attribute_statements)
    assert {question.step for question in judge.asked} == {down}
    (work,) = shard.works
    assert sorted(str(row["statement_id"]) for row in work.rows["attributions"]) == ["A1", "A2", "G1", "G2"]
    steps = [row["step"] for row in work.rows["outcomes"] if str(row["step"]).startswith("attribute")]
    assert sorted(map(str, steps)) == ["attribute_answer", "attribute_ground_truth"]


async def test_after_the_last_try_the_samples_have_failed_and_the_run_continues(tmp_path: Path) -> None:
    judge = ScriptedJudge(break_when(lambda question: question.step == "rank" and question.sample_id == "s2"))
    async with lay_shard(tmp_path, judge) as (live_run, shard):
        await take_extraction(live_run, shard)
        for _ in range(2):
            with pytest.raises(EndpointDown):
                await take_shard(live_run.run_id, shard.number, rank_contexts)
        await take_shard(live_run.run_id, shard.number, rank_contexts)
    assert [read_outcomes(work)["rank"] for work in shard.works] == [None, "judge_failed", None]
    assert [len(read_useful(work)) for work in shard.works] == [3, 0, 3]
    assert shard.tries == {"extract_statements": 1, "rank_contexts": 3}


async def test_a_bug_in_one_sample_is_raised_when_the_others_have_ended(tmp_path: Path) -> None:
    """And not hidden behind an endpoint that is down, which would only be tried again."""

    def says(question: Question) -> str | Exception:
        if question.step == "rank" and question.sample_id == "s1":
            return DOWN
        if question.step != "rank":
            return say_good(question)
        return ValueError("a bug") if question.sample_id == "s2" else say_good(question)

    async with lay_shard(tmp_path, ScriptedJudge(says)) as (live_run, shard):
        await take_extraction(live_run, shard)
        with pytest.raises(ValueError, match="a bug"):
            await take_shard(live_run.run_id, shard.number, rank_contexts)
    assert ["rank" in read_outcomes(work) for work in shard.works] == [False, False, True]


async def test_a_step_without_requests_is_not_done_in_a_stopped_run(tmp_path: Path) -> None:
    async with lay_shard(tmp_path, ScriptedJudge(say_good)) as (live_run, shard):
        live_run.stop(RunCancelled("stopped by SIGTERM"), drain_s=0.0)
        with pytest.raises(RunCancelled, match="SIGTERM"):
            await take_shard(live_run.run_id, shard.number, compare_meaning)


# What the judge failed at, and what is kept


async def test_a_ground_truth_that_cannot_be_split_leaves_the_answer_its_verdicts(tmp_path: Path) -> None:
    _, work = await judge_with(tmp_path, {"extract_ground_truth": lambda _: RefusedRequest("content filter")})
    failed = {name for name, reason in read_outcomes(work).items() if reason == "judge_failed"}
    assert failed == {"extract_ground_truth", "attribute_ground_truth", "classify"}
    assert {row["statement_id"] for row in work.rows["attributions"]} == {"A1", "A2"}
    assert work.rows["classifications"] == []


async def test_a_batch_holds_all_rows_of_a_shard_under_its_run(tmp_path: Path) -> None:
    async with lay_shard(tmp_path, ScriptedJudge(say_good), n_samples=2) as (live_run, shard):
        await take_extraction(live_run, shard)
        await take_shard(live_run.run_id, shard.number, rank_contexts)
        batch = shard.to_batch("run-1", key="k", replaces=True)
    assert {name: len(frame) for name, frame in batch.tables.items()} == count_rows(shard)
    assert set(batch.tables["statements"]["run_id"]) == {"run-1"}
    assert set(batch.replaces) == {"s1", "s2"}
    assert shard.to_batch("run-1", key="k", replaces=False).replaces == ()
