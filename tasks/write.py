"""Keep: write a shard's verdicts as one batch."""

import asyncio

from prefect import task

from evalhouse.tasks.pipeline.live_run import find_bench
from evalhouse.tasks.pipeline.run_step import UNCACHED
from evalhouse.tasks.pipeline.shard import Shard


@task(name="keep", task_run_name="keep shard {shard}", **UNCACHED)
async def keep(run_id: str, shard: int) -> None:
    """Write the verdicts of a shard's finished samples into the warehouse."""
    bench = find_bench(run_id)
    finished = bench.shards[shard]
    finished = Shard(
        number=finished.number,
        first=finished.first,
        last=finished.last,
        works=[work for work in finished.works if len(work.done) == bench.n_sample_steps],
    )
    key = f"{run_id}/shard-{shard:06d}/{bench.session}"
    batch = finished.to_batch(run_id, key=key, replaces=bench.resumed)
    await asyncio.to_thread(bench.warehouse.append, batch)
    bench.close_shard(shard)
