"""Collect: ask the application under test about a shard's samples; `targets/collection.py` is what that takes.

Responses are in a journal on disk as soon as they came, and on their way from there into the warehouse meanwhile.
"""

from prefect import task

from evalhouse.tasks.pipeline.live_run import find_live_run
from evalhouse.tasks.pipeline.run_step import UNCACHED


@task(name="collect", task_run_name="collect shard {shard}", **UNCACHED)
async def collect(run_id: str, shard: int) -> None:
    """Ask the target about the samples of a shard."""
    live_run = find_live_run(run_id)
    if live_run.collection is not None:
        await live_run.collection.collect(live_run.asker.stop_sign, shard, size=live_run.settings.shard_size)
