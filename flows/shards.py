"""The tasks of the judging steps, and how a run takes them: a few shards at a time, all steps of a shard side by side.

`evaluation.py` has collecting and judging in the order of a run; a worker of a pool judges the shards of one part.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from prefect import Task

from evalhouse.tasks.load import collect
from evalhouse.tasks.pipeline.live_run import LiveRun, SampleStep, SampleWork, limit_time, write
from evalhouse.warehouse.rows.samples import list_unfinished_shards
from evalhouse.warehouse.steps import find_step, list_tasks


@dataclass(frozen=True, kw_only=True)
class StepTask:
    """The Prefect task that takes a step for a shard, and the coroutine that the task runs for each sample."""

    task: Task[[str, int], Coroutine[Any, Any, None]]
    take: SampleStep


def load_step(name: str) -> StepTask:
    """Return the task of a step. Each is imported when a run first takes it, because most runs take half of them."""
    # ruff: noqa: PLC0415
    match name:
        case "extract":
            from evalhouse.tasks.extract import extract, extract_statements

            return StepTask(task=extract, take=extract_statements)
        case "fused":
            from evalhouse.tasks.fused import fused, judge_together

            return StepTask(task=fused, take=judge_together)
        case "classify":
            from evalhouse.tasks.classify import classify, classify_statements

            return StepTask(task=classify, take=classify_statements)
        case "attribute":
            from evalhouse.tasks.attribute import attribute, attribute_statements

            return StepTask(task=attribute, take=attribute_statements)
        case "rank":
            from evalhouse.tasks.rank import rank, rank_contexts

            return StepTask(task=rank, take=rank_contexts)
        case "turns":
            from evalhouse.tasks.turns import judge_turns, turns

            return StepTask(task=turns, take=judge_turns)
        case "grade":
            from evalhouse.tasks.grade import grade, grade_sample

            return StepTask(task=grade, take=grade_sample)
        case "similarity":
            from evalhouse.tasks.similarity import compare_meaning, similarity

            return StepTask(task=similarity, take=compare_meaning)
        case "relevancy":
            from evalhouse.tasks.similarity import regenerate_questions, relevancy

            return StepTask(task=relevancy, take=regenerate_questions)
        case "measure":
            from evalhouse.tasks.measure import measure, measure_sample

            return StepTask(task=measure, take=measure_sample)
    raise LookupError(f"no step is named {name!r}")


async def collect_shards(live_run: LiveRun) -> None:
    """Ask the target about all shards, a few at a time, so that one slow question delays no other shard."""
    collection = live_run.collection
    if collection is None:
        return
    collection.listen(live_run.asker.stop_sign)
    await take_turns(
        collection.numbers,
        lambda number: limit_time(collect, live_run)(live_run.run_id, number),
        at_once=count_turns(collection.concurrency, live_run),
    )
    await collection.finish()


async def judge_shards(live_run: LiveRun) -> None:
    """Judge all shards, a few at a time: enough to keep the endpoint full while the last of one shard is answered."""
    size = live_run.settings.shard_size
    if live_run.resumed:
        numbers = await asyncio.to_thread(list_unfinished_shards, live_run.warehouse, live_run.run_id, size)
        n_samples = live_run.progress.n_samples
        live_run.progress.n_done = n_samples - sum(min(size, n_samples - number * size) for number in numbers)
    else:
        numbers = list(range(-(-live_run.progress.n_samples // size)))
    if live_run.judge_elsewhere is not None:
        await live_run.judge_elsewhere(numbers)
        return
    at_once = min(count_turns(live_run.settings.concurrency, live_run), len(numbers)) or 1
    if live_run.batch_queues:
        at_once = len(numbers) or 1  # all requests of the run make one round of batches
    elif live_run.across_machines:
        live_run.share_limits(at_once)
    await take_turns(numbers, lambda number: judge_shard(live_run, number), at_once=at_once)


async def take_turns(numbers: Sequence[int], do: Callable[[int], Awaitable[None]], *, at_once: int) -> None:
    """Do something with every shard, a few at once; raises the first error when all have ended."""
    turns = asyncio.Semaphore(at_once)

    async def do_in_turn(number: int) -> None:
        async with turns:
            await do(number)

    results = await asyncio.gather(*(do_in_turn(number) for number in numbers), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def count_turns(concurrency: int, live_run: LiveRun) -> int:
    """Return how many shards are worked on at once, for so many requests in flight."""
    return 1 + -(-2 * concurrency // live_run.settings.shard_size)


async def judge_shard(live_run: LiveRun, number: int) -> None:
    """Run all steps of one shard side by side, and write the finished samples even when a step stops the run.

    These are the steps that the run's metrics need, by `warehouse/steps.toml`. A stop of the run cancels steps that
    Prefect is about to try again.
    """
    live_run.asker.raise_if_stopped()
    size, shared = live_run.settings.shard_size, live_run.shared_limits
    async with shared.hold(live_run.asker.raise_if_stopped) if shared is not None else nullcontext():
        with live_run.asker.activity.moving():
            await live_run.open_shard(number, number * size + 1, (number + 1) * size)

        def release_waiting(extraction: "asyncio.Future[None]") -> None:
            """Let no other step wait for statements after the last try of `extract`, however that has ended."""
            error = asyncio.CancelledError() if extraction.cancelled() else extraction.exception()
            if error is not None:
                for work in live_run.shards[number].works:
                    work.release_waiting(error)

        begun = {
            name: asyncio.ensure_future(limit_time(load_step(name).task, live_run)(live_run.run_id, number))
            for name in live_run.tasks
        }
        if "extract" in begun:
            begun["extract"].add_done_callback(release_waiting)
        ended = await asyncio.gather(*begun.values(), return_exceptions=True)
    await write(live_run.run_id, number)
    live_run.asker.raise_if_stopped()  # with the reason of the stop, where a step was cancelled by it
    for error in ended:
        if isinstance(error, BaseException):
            raise error


async def take_asking_steps(live_run: LiveRun, work: SampleWork) -> None:
    """Take the steps of one sample that send requests, side by side and without Prefect."""
    names = list_tasks([step for step in live_run.asking if find_step(step).calls])
    await asyncio.gather(*(load_step(name).take(live_run, work) for name in names))
