"""The steps of a run over its shards: all that is asked of the target, all that is judged, a few shards at a time.

`evaluation.py` has them in the order of a run; a worker of a pool takes those of one part.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from evalhouse.tasks.load import collect
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import find_tasks, limit_time, write
from evalhouse.warehouse.rows.samples import list_unfinished_shards


async def collect_shards(live_run: LiveRun) -> None:
    """Ask the target about all shards, a few at a time, so that one slow question keeps nobody else waiting."""
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
    at_once = count_turns(live_run.settings.concurrency, live_run)
    if live_run.parkings:
        at_once = len(numbers) or 1  # what waits for a batch lies still, and all of it makes one round
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
    """How many shards are worked on at once, for so many requests in flight."""
    return 1 + -(-2 * concurrency // live_run.settings.shard_size)


async def judge_shard(live_run: LiveRun, number: int) -> None:
    """All steps of one shard side by side; what is finished is kept even when a step stops the run.

    The steps are those that the run's metrics need of extract, classify, attribute, rank (or fused in place of these
    three), similarity, relevancy, measure and grade, each a file in `tasks/` and a record in `warehouse/steps.toml`.
    """
    live_run.asker.raise_if_stopped()
    size = live_run.settings.shard_size
    with live_run.asker.activity.moving():
        await live_run.open_shard(number, number * size + 1, (number + 1) * size)
    steps = find_tasks(live_run.tasks)
    ended = await asyncio.gather(*(step(live_run, number) for step in steps), return_exceptions=True)
    await write(live_run.run_id, number)
    for error in ended:
        if isinstance(error, BaseException):
            raise error
