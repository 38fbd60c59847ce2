"""Collect: ask the application under test about a shard's samples; `collection` is what that takes.

Responses are in a journal on disk as soon as they came, and on their way from there into the warehouse meanwhile.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from prefect import task

from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.pipeline.live_run import LiveRun, find_live_run
from evalhouse.tasks.pipeline.run_step import UNCACHED
from evalhouse.tasks.targets.collection import MOVE_PATIENCE_S, Collection
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.rows.responses import ResponseRecord

# A move costs 70 ms of CPU however few rows it has; until then the journal has them on disk.
_MOVE_EVERY_S = 5.0


@task(name="collect", task_run_name="collect shard {shard}", **UNCACHED)
async def collect(run_id: str, shard: int) -> None:
    """Ask the target about the samples of a shard."""
    live_run = find_live_run(run_id)
    if live_run.collection is not None:
        await live_run.collection.collect(live_run.asker.stop_sign, shard, size=live_run.settings.shard_size)


@contextlib.asynccontextmanager
async def moving_responses(live_run: LiveRun, collection: Collection) -> AsyncIterator[None]:
    """Bring responses into the warehouse now and then while the block runs, and all of them at its end."""
    mover = asyncio.create_task(_keep_moving(live_run, collection.record))
    try:
        yield
    finally:
        mover.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await mover
    await asyncio.to_thread(collection.record.flush)
    collection.is_over = True


async def _keep_moving(live_run: LiveRun, record: ResponseRecord) -> None:
    while True:
        await asyncio.sleep(_MOVE_EVERY_S)
        try:
            await asyncio.to_thread(record.move, patience_s=MOVE_PATIENCE_S)
        except WarehouseError as error:
            live_run.asker.stop(FatalJudgeError(f"responses cannot be taken into the warehouse: {error}"))
            return
