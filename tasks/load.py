"""Load: take the staged dataset into the warehouse, with the target's responses where one was asked.

`staging` is where the dataset was read and refused if need be, `collection` how the target was asked.
"""

import asyncio

from prefect import task

from evalhouse.tasks.pipeline.live_run import LiveRun, find_live_run
from evalhouse.tasks.pipeline.run_step import UNCACHED
from evalhouse.tasks.targets.collection import Collection, stage_responses
from evalhouse.warehouse.rows.samples import renew_samples, take_in_samples


@task(name="load", task_run_name="load {run_id}", **UNCACHED)
async def load(run_id: str) -> int:
    """Take the samples of a run into the warehouse and return how many there are."""
    live_run = find_live_run(run_id)
    if live_run.collection is not None:
        await asyncio.to_thread(load_responses, live_run, live_run.collection)
    elif live_run.staged is not None:
        await asyncio.to_thread(take_in_samples, live_run.warehouse, run_id, live_run.staged.staging)
    return live_run.progress.n_samples


def load_responses(live_run: LiveRun, collection: Collection) -> None:
    """Take in the samples with the responses to them; of a run that was loaded before, those that were asked again."""
    if not collection.numbers:
        return
    staging = stage_responses(collection, live_run.settings.shard_size)
    try:
        if live_run.staged is not None:
            take_in_samples(live_run.warehouse, live_run.run_id, staging)
        else:
            renew_samples(live_run.warehouse, live_run.run_id, staging)
    finally:
        staging.discard()
