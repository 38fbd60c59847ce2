"""The second way to spread a run: parts as Prefect tasks, for teams whose workers are Dask's or Ray's.

`--task-runner module:factory` names what makes the task runner, such as `prefect_dask:DaskTaskRunner` or your own
function that connects to a cluster. Each part is one task; how it is done is the same as in a work pool (`work.py`).
The parts live with the run: a lock that this process holds says that they are wanted, and they end when it is gone.
"""

import asyncio
import importlib
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from prefect import flow, task
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture, wait
from prefect.task_runners import TaskRunner

from evalhouse.flows.errors import SettingsError, explain
from evalhouse.flows.pools.parts import (
    MOST_ATTEMPTS,
    Part,
    PoolCounts,
    cut_parts,
    describe_order,
    keep_counting,
    list_missing,
)
from evalhouse.flows.pools.work import PartOrder, work_on_part
from evalhouse.flows.server.flow_options import FLOW_OPTIONS
from evalhouse.tasks.judge.errors import FatalJudgeError, RunCancelled
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import UNCACHED
from evalhouse.warehouse.engine.locks import hold, list_held
from evalhouse.warehouse.store import Warehouse

_LOOK_S = 0.5
_LOCK_S = 5.0
# A worker that was lost is missed by its scheduler at once; a warehouse that is out of reach needs a moment.
_RETRY_S = [2.0, 10.0]
# A live run is found by its run within a process, so a worker with several threads does one part at a time.
_one_part = threading.Lock()
# By run, for the thread that waits for its parts.
_stop_signs: dict[str, threading.Event] = {}


class PartFailed(Exception):
    """A part failed in a way that no other worker could avoid; the text is for the person at the terminal."""


async def _may_pass(_: object, __: object, state: State[Any]) -> bool:
    return not isinstance(await state.aresult(raise_on_failure=False), PartFailed)


@task(
    name="judge part",
    task_run_name="judge samples {first} to {last}",
    retries=MOST_ATTEMPTS - 1,
    retry_delay_seconds=_RETRY_S,
    retry_condition_fn=_may_pass,
    **UNCACHED,
)
async def judge_part_in_task(order: Mapping[str, Any], first: int, last: int) -> int:
    """Judge samples `first` to `last` of a run in the process of a worker."""
    # The task is sent to its worker with all that it names, and a lock cannot be sent.
    return await judge_in_worker(order, first, last)


async def judge_in_worker(order: Mapping[str, Any], first: int, last: int) -> int:
    """Judge samples `first` to `last` of a run in this process; returns how many shards that were.

    Raises PartFailed when no other worker could do better. It ends when nobody waits for the part any more.
    """
    part_order = PartOrder(first=first, last=last, **order)
    with _one_part:
        try:
            return await work_on_part(part_order, partial(_is_wanted, part_order))
        except RunCancelled:
            return 0
        except FatalJudgeError as error:
            raise PartFailed(explain(error) or str(error)) from None


async def _is_wanted(order: PartOrder) -> bool:
    """Whether the process that has given the part out still waits for it."""
    location = Warehouse(order.warehouse).location
    name = _name_demand(order.run_id)
    return name in await asyncio.to_thread(list_held, location, [name])


async def judge_in_tasks(live_run: LiveRun, numbers: Sequence[int]) -> None:
    """Have the shards of these numbers judged as tasks of the settings' task runner."""
    runner = make_task_runner(live_run.settings.task_runner or "")
    counts = await asyncio.to_thread(PoolCounts, live_run)
    order = await asyncio.to_thread(describe_order, live_run)
    location = live_run.warehouse.location
    parts = cut_parts(
        live_run.run_id,
        numbers,
        shard_size=live_run.settings.shard_size,
        part_size=live_run.settings.part_size,
        n_samples=live_run.progress.n_samples,
    )
    message = f"another process gives out the parts of run {live_run.run_id}"
    async with keep_counting(counts, leave_out_failed=live_run.resumed):
        with hold(location, _name_demand(live_run.run_id), patience_s=_LOCK_S, busy=message) as demand:
            stopped = _stop_signs[live_run.run_id] = threading.Event()
            spread = spread_parts.with_options(task_runner=runner)
            working = asyncio.create_task(asyncio.to_thread(spread, order, parts))
            try:
                while not working.done():
                    await live_run.asker.stop_sign.sleep(_LOOK_S)
                    if stopped.is_set():
                        demand.close()  # one part has failed for good, and the others are not wanted any more
            except BaseException:  # whatever stops it, Ctrl-C too: no part goes on for nobody
                demand.close()
                stopped.set()
                await asyncio.wait([working])
                raise
            finally:
                del _stop_signs[live_run.run_id]
            problem = working.result()
        if problem is not None:
            raise FatalJudgeError(problem)
        if missing := await asyncio.to_thread(list_missing, live_run, numbers):
            raise FatalJudgeError(
                f"{len(missing)} shards are without verdicts though their parts have ended; "
                f"evalhouse resume {live_run.run_id}"
            )


@flow(name="judge-parts", **FLOW_OPTIONS, validate_parameters=False)
def spread_parts(order: Mapping[str, Any], parts: Sequence[Part]) -> str | None:
    """Submit all parts and wait; returns what the run has to end with, if anything."""
    # Sent to the workers with each task, like the task itself.
    return submit_parts(order, parts)


def submit_parts(order: Mapping[str, Any], parts: Sequence[Part]) -> str | None:
    """As `spread_parts`, within its flow run."""
    stopped = _stop_signs[order["run_id"]]
    waiting: set[PrefectFuture[Any]] = {judge_part_in_task.submit(order, part.first, part.last) for part in parts}
    while waiting and not stopped.is_set():
        ended = wait(list(waiting), timeout=_LOOK_S).done
        for future in ended:
            result = future.result(raise_on_failure=False)
            if isinstance(result, BaseException):
                stopped.set()
                return str(result) if isinstance(result, PartFailed) else _explain(result)
        waiting -= ended
    return None


def _explain(error: BaseException) -> str:
    message = explain(error) if isinstance(error, Exception) else None
    what = message or f"{type(error).__name__}: {error}"
    return f"a part of the run was tried {MOST_ATTEMPTS} times and failed: {what}"


def _name_demand(run_id: str) -> str:
    return f"parts-wanted-{run_id}"


def make_task_runner(name: str) -> TaskRunner[Any]:
    """What `module:factory` makes; raises SettingsError when that is not a task runner."""
    module, _, factory = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), factory)()
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"--task-runner {name!r} cannot be made: {error}; allowed is module:factory of something that is called "
            "without arguments and gives a Prefect task runner, such as prefect_dask:DaskTaskRunner"
        ) from None
    if not isinstance(made, TaskRunner):
        raise SettingsError(f"--task-runner {name!r} gives a {type(made).__name__}, which is not a Prefect task runner")
    return made
