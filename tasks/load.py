"""Load: take the staged dataset into the warehouse, with the target's responses where one was asked.

`staging` is where the dataset was read and refused if need be, `collection` how the target was asked.
"""

import asyncio

from prefect import task

from evalhouse.tasks.pipeline.live_run import Bench, find_bench
from evalhouse.tasks.pipeline.run_step import UNCACHED
from evalhouse.tasks.targets.collection import Collection, stage_responses
from evalhouse.warehouse.rows.samples import renew_samples, take_in_samples


@task(name="load", task_run_name="load {run_id}", **UNCACHED)
async def load(run_id: str) -> int:
    """Take the samples of a run into the warehouse and return how many there are."""
    bench = find_bench(run_id)
    if bench.collection is not None:
        await asyncio.to_thread(load_responses, bench, bench.collection)
    elif bench.staged is not None:
        await asyncio.to_thread(take_in_samples, bench.warehouse, run_id, bench.staged.staging)
    return bench.progress.n_samples


def load_responses(bench: Bench, collection: Collection) -> None:
    """Take in the samples with the responses to them; of a run that was loaded before, those that were asked again."""
    if not collection.numbers:
        return
    staging = stage_responses(collection, bench.settings.shard_size)
    try:
        if bench.staged is not None:
            take_in_samples(bench.warehouse, bench.run_id, staging)
        else:
            renew_samples(bench.warehouse, bench.run_id, staging)
    finally:
        staging.discard()
