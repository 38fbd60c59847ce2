"""Load: take the staged dataset into the warehouse. `staging` is where it was read and refused if need be."""

import asyncio

from prefect import task

from tasks.bench import find_bench
from tasks.step_runs import UNCACHED
from warehouse.samples import take_in_samples


@task(name="load", task_run_name="load {run_id}", **UNCACHED)
async def load(run_id: str) -> int:
    """Take the staged samples of a run into the warehouse and return how many there are."""
    bench = find_bench(run_id)
    if bench.staged is not None:
        await asyncio.to_thread(take_in_samples, bench.warehouse, run_id, bench.staged.staging)
    return bench.progress.n_samples
