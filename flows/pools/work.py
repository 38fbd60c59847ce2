"""The work on one part of a run, in whichever process of whichever machine it is given to.

Everything is found again through the warehouse: the settings stand in the run's row, the samples in their tables, and
what was answered on record. What the process needs besides are evalhouse itself, the key to the judge, and the way to
the warehouse. A part's lock keeps a second worker away; should one have begun the part before and died, its verdicts
are replaced and its replies used again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from evalhouse.flows.pools.parts import list_shards, name_lock
from evalhouse.flows.preparing.live_run import Tools, make_tools
from evalhouse.flows.preparing.request import find_code_version
from evalhouse.flows.server.environment import find_api_url
from evalhouse.flows.server.interrupts import Interrupts
from evalhouse.flows.shards import count_turns, judge_shard, take_turns
from evalhouse.tasks.asking.embedders import RepeatedJudge, repeat_embeddings
from evalhouse.tasks.asking.shared_limit import share_limits
from evalhouse.tasks.judge.errors import FatalJudgeError, RunCancelled
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import registered
from evalhouse.tasks.settings.run import read_settings
from evalhouse.warehouse.engine.locks import HeldLock, find_lock_file, hold, hold_file
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.runs import RunRow, find_run
from evalhouse.warehouse.rows.samples import FAILURE_REASONS, list_unfinished_shards
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse

# Somebody else has the part: its lock is looked at by the coordinator for a moment only.
_LOCK_S = 5.0
_DRAIN_S = 3.0
_WATCH_S = 3.0

_UNWANTED = "stopped by the process that had given the part out"

IsWanted = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, kw_only=True)
class PartOrder:
    """Samples `first` to `last` of a run, to be judged by this process.

    `mend` says that samples which failed before are judged again, `changes` which settings of the run are others than
    those on record, and `code_version` which evalhouse has given the part out.
    """

    run_id: str
    warehouse: str
    first: int
    last: int
    code_version: str
    mend: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


async def work_on_part(order: PartOrder, is_wanted: IsWanted) -> int:
    """Judge what is not judged of a part and return how many shards that were.

    `is_wanted` is asked every few seconds whether anybody still wants the part. Raises RunCancelled when nobody does or
    the process is ordered to end, WarehouseBusy when another process works on the part, FatalJudgeError and
    WarehouseError.
    """
    warehouse = Warehouse(order.warehouse)
    if warehouse.location.lake is None:
        raise WarehouseError(f"{warehouse.location.name} is one file; parts of a run are judged in a lake")
    if not await is_wanted():
        raise RunCancelled(_UNWANTED)
    busy = f"another process is on the part of run {order.run_id} that begins with sample {order.first}"
    name = name_lock(order.run_id, order.first)
    with (
        Interrupts() as interrupts,
        hold(warehouse.location, name, patience_s=_LOCK_S, busy=busy) as lock,
    ):
        _tidy_machine(warehouse)
        run = find_run(warehouse, order.run_id)
        with _made_run(order, run, warehouse) as live_run:
            loop = asyncio.get_running_loop()

            def stop(why: str) -> None:
                loop.call_soon_threadsafe(partial(live_run.stop, RunCancelled(f"stopped by {why}"), drain_s=_DRAIN_S))

            with interrupts.answered_by(stop):
                async with _watched(live_run, lock, is_wanted):
                    n_shards = await _judge(live_run, order)
            interrupts.note_only()
        warehouse.flush()
    return n_shards


def _tidy_machine(warehouse: Warehouse) -> None:
    """Take in what dead processes of this machine have left: replies that need not be paid for again.

    One process at a time, and the others wait for it: what it is taking in they may be about to ask.
    """
    busy = "another process of this machine is taking in what dead ones have left, and does not come to an end"
    with hold_file(find_lock_file(warehouse.location, "orphans"), patience_s=FLUSH_PATIENCE_S, busy=busy):
        take_in_orphans(warehouse)
        warehouse.flush()


@contextmanager
def _made_run(order: PartOrder, run: RunRow, warehouse: Warehouse) -> Iterator[LiveRun]:
    """The live run of the part; its calls are in the warehouse when the block has ended."""
    live_run = _make_tools(order, run).make_live_run(run.run_id, warehouse)
    live_run.resumed = True  # verdicts of an earlier worker are replaced
    live_run.progress.n_samples = run.n_samples or 0
    if run.kind == "noise":
        repeat_embeddings(live_run.embedder, run.run_id)
    try:
        with registered(live_run):
            yield live_run
    finally:
        live_run.asker.record.close()


def _make_tools(order: PartOrder, run: RunRow) -> Tools:
    if order.code_version != find_code_version():
        raise FatalJudgeError(
            f"this worker has evalhouse {find_code_version()}, and its work was given out by {order.code_version}; "
            "install the same version on all machines, and start the workers again"
        )
    settings = read_settings({**run.config, **order.changes, "warehouse": order.warehouse})
    tools = make_tools(settings, run.kind)
    if run.kind != "noise":
        return tools
    return replace(tools, judges=tools.judges.change(lambda judge: RepeatedJudge(judge, run.run_id)))


@asynccontextmanager
async def _watched(live_run: LiveRun, lock: HeldLock, is_wanted: IsWanted) -> AsyncIterator[None]:
    """Within the block, stop the live run when its part was given to another process or is not wanted any more."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            if not await asyncio.to_thread(lock.is_held):
                why = "stopped because the part's lock was lost"
            elif not await is_wanted():
                why = _UNWANTED
            else:
                continue
            live_run.stop(RunCancelled(why), drain_s=_DRAIN_S)
            return

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _judge(live_run: LiveRun, order: PartOrder) -> int:
    size = live_run.settings.shard_size
    failures = FAILURE_REASONS if order.mend else ()
    unfinished = await asyncio.to_thread(list_unfinished_shards, live_run.warehouse, live_run.run_id, size, failures)
    of_part = list_shards(order.first, order.last, size)
    numbers = [number for number in unfinished if number in of_part]
    shared = share_limits(
        live_run.shared_limits, concurrency=live_run.settings.concurrency, across_machines=find_api_url() is not None
    )
    try:
        async with shared:
            at_once = count_turns(live_run.settings.concurrency, live_run)
            await take_turns(numbers, lambda number: judge_shard(live_run, number), at_once=at_once)
    finally:
        await live_run.close()
    return len(numbers)
