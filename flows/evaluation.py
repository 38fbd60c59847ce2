"""The evaluation flow: what happens to a run, in which order."""

import asyncio
import tempfile
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run

from flows.interrupts import take_signals_back
from tasks.attribute import attribute
from tasks.bench import Bench, find_bench
from tasks.classify import classify
from tasks.extract import extract
from tasks.grading import grade
from tasks.keep import keep
from tasks.load import load
from tasks.measures import measure
from tasks.rank import rank
from tasks.relevancy import relevancy
from tasks.score import publish, score
from tasks.shard import Shard
from tasks.similarity import compare
from warehouse.runs import update_run
from warehouse.samples import list_unfinished_shards

_FURTHER_STEPS = {"grade": grade, "relevancy": relevancy, "measure": measure}
# Nothing is ever stored there; without a path of its own Prefect asks the server for one, which takes 0.4 s.
_NO_RESULTS = Path(tempfile.gettempdir())


@flow(name="evaluate", flow_run_name="{run_id}", persist_result=False, result_storage=_NO_RESULTS)
async def evaluate_run(run_id: str) -> None:
    """Load the dataset, judge it shard by shard, score the verdicts, publish the scores."""
    take_signals_back()
    bench = find_bench(run_id)
    update_run(bench.warehouse, run_id, flow_run_id=str(flow_run.id))
    await load(run_id)
    await judge_shards(bench)
    await score(run_id)
    await publish(run_id)


async def judge_shards(bench: Bench) -> None:
    """Judge all shards, a few at a time: enough to keep the endpoint full while the last of one shard is answered."""
    size = bench.settings.shard_size
    turns = asyncio.Semaphore(1 + -(-2 * bench.settings.concurrency // size))
    if bench.resumed:
        numbers = await asyncio.to_thread(list_unfinished_shards, bench.warehouse, bench.run_id, size)
        n_samples = bench.progress.n_samples
        bench.progress.n_done = n_samples - sum(min(size, n_samples - number * size) for number in numbers)
    else:
        numbers = list(range(-(-bench.progress.n_samples // size)))

    async def judge_in_turn(number: int) -> None:
        async with turns:
            await judge_shard(bench, number)

    results = await asyncio.gather(*(judge_in_turn(number) for number in numbers), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def judge_shard(bench: Bench, number: int) -> None:
    """All steps of one shard side by side; what is finished is kept even when a step stops the run."""
    bench.asker.raise_if_stopped()
    size = bench.settings.shard_size
    shard = await bench.open_shard(number, number * size + 1, (number + 1) * size)
    steps = (classify, attribute, rank, compare, *(_FURTHER_STEPS[name] for name in bench.further_steps))
    ended = await asyncio.gather(
        extract_or_release(bench, shard),
        *(step(bench.run_id, shard.number) for step in steps),
        return_exceptions=True,
    )
    await keep(bench.run_id, shard.number)
    for error in ended:
        if isinstance(error, BaseException):
            raise error


async def extract_or_release(bench: Bench, shard: Shard) -> None:
    """Extract; whatever ends that, Prefect itself included, ends those who wait for the statements too."""
    try:
        await extract(bench.run_id, shard.number)
    except BaseException as error:
        shard.release_waiting(error)
        raise
