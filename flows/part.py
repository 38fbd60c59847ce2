"""The flow that a worker of a work pool runs, and the work on one part of a run.

Prefect imports the flow by its name, so nothing but evalhouse has to be on the worker's machine. Everything else is
found through the warehouse: the settings are in the run's row, the samples in their tables, and what was answered is on
record. A part's lock keeps a second worker away; where an earlier one has begun the part and died, its verdicts are
replaced and its replies are used again. `pools/coordinate.py` gives the parts out.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from uuid import UUID

import httpx
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from evalhouse.flows.errors import explain
from evalhouse.flows.pools.parts import STOPPED, list_shards, name_lock
from evalhouse.flows.preparing.live_run import make_tools
from evalhouse.flows.preparing.request import find_code_version
from evalhouse.flows.server.environment import find_api_url
from evalhouse.flows.server.flow_options import FLOW_OPTIONS
from evalhouse.flows.server.interrupts import Interrupts
from evalhouse.flows.shards import count_turns, judge_shard, take_turns
from evalhouse.tasks.asking.embeddings import repeat_embeddings
from evalhouse.tasks.judge.errors import FatalJudgeError, RunCancelled
from evalhouse.tasks.judge.protocol import RepeatedJudge
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import registered
from evalhouse.tasks.settings.run import read_settings
from evalhouse.warehouse.engine.locks import HeldLock, find_lock_file, hold, hold_file
from evalhouse.warehouse.errors import WarehouseError
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.rows.samples import FAILURE_REASONS, list_unfinished_shards
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse

# The coordinator looks at a part's lock for a moment only, so it is tried for longer than that.
_LOCK_S = 5.0
_DRAIN_S = 3.0
_WATCH_S = 3.0
_UNWANTED = "stopped by the process that had given the part out"


@dataclass(frozen=True, kw_only=True)
class PartOrder:
    """Samples `first` to `last` of a run, by ordinal, to be judged by this process.

    `judge_failed` says that samples which failed before are judged again, `changes` which settings of the run differ
    from those on record, and `code_version` which evalhouse has given the part out.
    """

    run_id: str
    warehouse: str
    first: int
    last: int
    code_version: str
    judge_failed: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


@flow(name="judge-part", **FLOW_OPTIONS, validate_parameters=True)
async def judge_part(
    *,
    run_id: str,
    warehouse: str,
    first: int,
    last: int,
    attempt: int,
    code_version: str,
    judge_failed: bool = False,
    changes: dict[str, Any] | None = None,
) -> "State[Any]":
    """Judge samples `first` to `last` of a run, by ordinal; see `PartOrder`.

    It ends as Failed "Stopped" when no other worker could do better.
    """
    order = PartOrder(
        run_id=run_id,
        warehouse=warehouse,
        first=first,
        last=last,
        code_version=code_version,
        judge_failed=judge_failed,
        changes=changes or {},
    )
    get_run_logger().info("Samples %d to %d of run %s, attempt %d.", first, last, run_id, attempt)
    try:
        n_shards = await work_on_part(order)
    except RunCancelled as error:
        return Cancelled(message=str(error))
    except WarehouseError as error:  # it may be this machine's problem; another one may try
        return Failed(message=str(error))
    except Exception as error:  # an error that has a message for a person ends the flow run with that message
        message = explain(error)
        if message is None:
            raise
        return Failed(name=STOPPED, message=message) if isinstance(error, FatalJudgeError) else Failed(message=message)
    return Completed(message=f"{n_shards} shards were judged.")


async def work_on_part(order: PartOrder) -> int:
    """Judge what is not judged of a part and return how many shards that were.

    Raises RunCancelled when the part is not wanted any more or the process is ordered to end, WarehouseBusy when
    another process works on the part, FatalJudgeError and WarehouseError.
    """
    warehouse = Warehouse(order.warehouse)
    if warehouse.location.lake is None:
        raise WarehouseError(f"{warehouse.location.name} is one file; parts of a run are judged in a lake")
    if not await _is_wanted():
        raise RunCancelled(_UNWANTED)
    busy = f"another process is on the part of run {order.run_id} that begins with sample {order.first}"
    name = name_lock(order.run_id, order.first)
    with (
        Interrupts() as interrupts,
        hold(warehouse.location, name, patience_s=_LOCK_S, busy=busy) as lock,
    ):
        # What dead processes of this machine have left are replies that need not be paid for again. Another process
        # that takes them in is waited for, because this one may be about to ask for the same.
        busy = "another process of this machine is taking in what dead ones have left, and does not come to an end"
        with hold_file(find_lock_file(warehouse.location, "orphans"), patience_s=FLUSH_PATIENCE_S, busy=busy):
            take_in_orphans(warehouse)
            warehouse.flush()
        with _open_live_run(order, warehouse) as live_run:
            loop = asyncio.get_running_loop()

            def stop(signal_name: str) -> None:
                cancelled = RunCancelled(f"stopped by {signal_name}")
                loop.call_soon_threadsafe(partial(live_run.stop, cancelled, drain_s=_DRAIN_S))

            with interrupts.answered_by(stop):
                async with _watch(live_run, lock):
                    n_shards = await _judge_shards(live_run, order)
            interrupts.note_only()
        warehouse.flush()
    return n_shards


@contextmanager
def _open_live_run(order: PartOrder, warehouse: Warehouse) -> Iterator[LiveRun]:
    """Make the live run of the part; its calls are in the warehouse when the block has ended."""
    if order.code_version != find_code_version():
        raise FatalJudgeError(
            f"this worker has evalhouse {find_code_version()}, and its work was given out by {order.code_version}; "
            "install the same version on all machines, and start the workers again"
        )
    run = find_run(warehouse, order.run_id)
    settings = read_settings({**run.config, **order.changes, "warehouse": order.warehouse})
    tools = make_tools(settings, run.kind)
    if run.kind == "noise":
        tools = replace(tools, judges=tools.judges.change(lambda judge: RepeatedJudge(judge, run.run_id)))
    live_run = tools.make_live_run(run.run_id, warehouse)
    live_run.resumed = True  # verdicts of an earlier worker are replaced
    live_run.progress.n_samples = run.n_samples or 0
    if run.kind == "noise":
        repeat_embeddings(live_run.embedder, run.run_id)
    try:
        with registered(live_run):
            yield live_run
    finally:
        live_run.asker.record.close()


@asynccontextmanager
async def _watch(live_run: LiveRun, lock: HeldLock) -> AsyncIterator[None]:
    """Within the block, stop the live run when its part was given to another process or is not wanted any more."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            if not await asyncio.to_thread(lock.is_held):
                why = "stopped because the part's lock was lost"
            elif not await _is_wanted():
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


async def _is_wanted() -> bool:
    """Return whether this flow run was never cancelled nor given up; a server that does not answer counts as yes.

    All its states are looked at, because a process that is just starting sets a flow run under way again that was
    cancelled a moment before.
    """
    try:
        async with get_client() as client:
            states = await client.read_flow_run_states(UUID(str(flow_run.id)))
    except ObjectNotFound:
        return False
    except (httpx.HTTPError, PrefectException):
        return True
    return bool(states) and not any(state.is_final() or state.is_cancelling() for state in states)


async def _judge_shards(live_run: LiveRun, order: PartOrder) -> int:
    size = live_run.settings.shard_size
    failures = FAILURE_REASONS if order.judge_failed else ()
    unfinished = await asyncio.to_thread(list_unfinished_shards, live_run.warehouse, live_run.run_id, size, failures)
    of_part = list_shards(order.first, order.last, size)
    numbers = [number for number in unfinished if number in of_part]
    at_once = min(count_turns(live_run.settings.concurrency, live_run), len(numbers)) or 1
    try:
        if find_api_url() is not None:
            live_run.share_limits(at_once)
        await take_turns(numbers, lambda number: judge_shard(live_run, number), at_once=at_once)
    finally:
        await live_run.close()
    return len(numbers)
