"""Write: a shard's verdicts as one batch."""

import asyncio

from prefect import task

from evalhouse.tasks.pipeline.live_run import Shard, find_live_run
from evalhouse.tasks.pipeline.run_step import UNCACHED


@task(name="write", task_run_name="write shard {shard}", **UNCACHED)
async def write(run_id: str, shard: int) -> None:
    """Write the verdicts of a shard's finished samples into the warehouse."""
    live_run = find_live_run(run_id)
    finished = live_run.shards[shard]
    finished = Shard(
        number=finished.number,
        first=finished.first,
        last=finished.last,
        works=[work for work in finished.works if len(work.done) == live_run.n_sample_steps],
    )
    key = f"{run_id}/shard-{shard:06d}/{live_run.session}"
    batch = finished.to_batch(run_id, key=key, replaces=live_run.resumed)
    await asyncio.to_thread(live_run.warehouse.append, batch)
    live_run.close_shard(shard)
