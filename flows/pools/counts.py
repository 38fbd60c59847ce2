"""How far a run is that others judge: counted in the warehouse, where all of them write."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from evalhouse.tasks.asking.asker import CallCounts
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.warehouse.errors import WarehouseBusy
from evalhouse.warehouse.rows.samples import FAILURE_REASONS
from evalhouse.warehouse.store import Warehouse

_EVERY_S = 2.0

_CALLS = """
select
    count(*) filter (where status <> 'cached') as requests,
    count(*) filter (where status = 'cached') as reused,
    count(*) filter (where status not in ('cached', 'ok')) as failed,
    coalesce(sum(prompt_tokens) filter (where status <> 'cached'), 0) as prompt_tokens,
    coalesce(sum(cached_tokens) filter (where status <> 'cached'), 0) as cached_tokens,
    coalesce(sum(completion_tokens) filter (where status <> 'cached'), 0) as completion_tokens,
    coalesce(sum(cost_usd) filter (where status <> 'cached'), 0) as cost_usd
from llm_calls
where run_id = $run_id
"""
# As `list_unfinished_shards` counts, by sample.
_DONE = """
select count(*) as n
from (
    select sample_id
    from outcomes
    where run_id = $run_id
    group by sample_id
    having not coalesce(bool_or(reason in (select unnest($failures))), false)
)
"""


class PoolCounts:
    """Keeps a live run's counts and progress up to date from the warehouse; what was there before is not counted."""

    def __init__(self, live_run: LiveRun) -> None:
        self._live_run = live_run
        self._before = _read_calls(live_run.warehouse, live_run.run_id)

    def refresh(self, *, mended: bool) -> None:
        """Count again; `mended` leaves failed samples out, as they are to be judged once more."""
        live_run = self._live_run
        parameters = {"run_id": live_run.run_id, "failures": list(FAILURE_REASONS) if mended else []}
        (row,) = live_run.warehouse.read_rows(_DONE, parameters)
        live_run.progress.n_done = int(str(row["n"]))
        counts, now = live_run.asker.counts, _read_calls(live_run.warehouse, live_run.run_id)
        counts.requests = now.requests - self._before.requests
        counts.reused = now.reused - self._before.reused
        counts.failed = now.failed - self._before.failed
        counts.prompt_tokens = now.prompt_tokens - self._before.prompt_tokens
        counts.cached_tokens = now.cached_tokens - self._before.cached_tokens
        counts.completion_tokens = now.completion_tokens - self._before.completion_tokens
        counts.cost_usd = now.cost_usd - self._before.cost_usd
        counts.priced = live_run.asker.price is not None or not counts.requests


@contextlib.asynccontextmanager
async def keep_counting(counts: PoolCounts, *, mended: bool) -> AsyncIterator[None]:
    """Count every few seconds within the block, and once more at its end."""

    async def count() -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            with contextlib.suppress(WarehouseBusy):
                await asyncio.to_thread(counts.refresh, mended=mended)

    counting = asyncio.create_task(count())
    try:
        yield
    finally:
        counting.cancel()
        await asyncio.wait([counting])
        await asyncio.to_thread(counts.refresh, mended=False)


def _read_calls(warehouse: Warehouse, run_id: str) -> CallCounts:
    (row,) = warehouse.read_rows(_CALLS, {"run_id": run_id})
    numbers = {name: int(str(value)) for name, value in row.items() if name != "cost_usd"}
    counts = CallCounts(cost_usd=float(str(row["cost_usd"])))
    for name, number in numbers.items():
        setattr(counts, name, number)
    return counts
