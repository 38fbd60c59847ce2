"""The body of every step's task, and the task that writes a shard's verdicts.

Prefect sees a task run per step and shard. Its retries are for an endpoint that is down for minutes: a retried step
takes the samples that it had not finished and finds all earlier replies in the record of calls. Parameters of tasks are
names and ids only, because Prefect stores and inspects them: a task finds its live run here by the run's id.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.runtime import flow_run, task_run
from prefect.settings import get_current_settings
from prefect.tasks import Task

from evalhouse.tasks.asking.asker import LAST_CHANCE
from evalhouse.tasks.asking.record import ORIGIN, Origin
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.protocol import EndpointDown
from evalhouse.tasks.pipeline.live_run import LiveRun, SampleWork, Shard

T = TypeVar("T")
SampleStep = Callable[[LiveRun, SampleWork], Awaitable[None]]

_live_runs: dict[str, LiveRun] = {}


@contextmanager
def registered(live_run: LiveRun) -> Iterator[None]:
    """Let a live run be found by its run's id, in this process and for this block."""
    _live_runs[live_run.run_id] = live_run
    try:
        yield
    finally:
        del _live_runs[live_run.run_id]


def find_live_run(run_id: str) -> LiveRun:
    """Return the live run of a run; raises LookupError when the run is not open in this process."""
    try:
        return _live_runs[run_id]
    except KeyError:
        raise LookupError(f"run {run_id} is not running in this process") from None


def is_open(run_id: str | None) -> bool:
    """Return True if a run has its live run in this process."""
    return run_id in _live_runs


async def _is_endpoint_down(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    # Prefect silently never retries when this is a plain function on an async task.
    return isinstance(await state.aresult(raise_on_failure=False), EndpointDown)


# Prefect stores no results: the rows of a task are in the warehouse, its replies in the record of calls.
UNCACHED: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
STEP_OPTIONS: dict[str, Any] = {**UNCACHED, "retry_condition_fn": _is_endpoint_down}
RETRIES = 2
"""The number of times that Prefect repeats a step whose endpoint is down, as in the decorators in `tasks/`."""


def limit_time(timed: Task[[str, int], T], live_run: LiveRun) -> Task[[str, int], T]:
    """Return the task with the time limit that the run's settings name, which Prefect enforces."""
    limit_s = live_run.settings.task_timeout_s
    return timed if limit_s is None else timed.with_options(timeout_seconds=limit_s)


async def take_shard(run_id: str, number: int, take: SampleStep, *, gives_statements: bool = False) -> None:
    """Take a step for a shard, as the body of the step's task; other steps wait for one that `gives_statements`."""
    live_run = find_live_run(run_id)
    shard = live_run.shards[number]
    live_run.retrying.discard(asyncio.current_task())
    try:
        await run_step(live_run, shard, take)
    except EndpointDown:  # Prefect waits and tries again, and other steps keep waiting
        live_run.retrying.add(asyncio.current_task())
        raise
    except BaseException as error:  # also a cancellation: a step that waits for statements would wait for ever
        if gives_statements:
            for work in shard.works:
                work.release_waiting(error)
        raise


async def run_step(live_run: LiveRun, shard: Shard, take: SampleStep) -> None:
    """Take a step for all samples of a shard at once; raises the first error when all have ended.

    EndpointDown is raised only where it is the only kind of error and another try is left.
    """
    name = take.__name__
    shard.tries[name] += 1
    # Outside of a flow run, as in a rehearsal, Prefect has no ids.
    ids = [None if runtime_id is None else str(runtime_id) for runtime_id in (flow_run.id, task_run.id)]
    ORIGIN.set(Origin(flow_run_id=ids[0], task_run_id=ids[1]))
    LAST_CHANCE.set(shard.tries[name] > RETRIES)
    began_at = time.monotonic()

    async def take_sample(work: SampleWork) -> None:
        await take(live_run, work)
        work.done.add(name)
        if len(work.done) == len(live_run.tasks):
            live_run.progress.n_done += 1

    try:
        await gather_all([take_sample(work) for work in shard.works if name not in work.done])
    finally:
        if live_run.across_machines:  # a server that ends with the run is not looked at
            n_done, usage = sum(name in work.done for work in shard.works), live_run.usage
            again = f", try {shard.tries[name]}" if shard.tries[name] > 1 else ""
            get_run_logger().info(
                f"{task_run.name}{again}: {n_done} of {len(shard.works)} samples in {time.monotonic() - began_at:.1f} "
                f"s; the run so far: {usage.requests:,} requests, {usage.reused:,} reused, {usage.failed:,} failed"
            )
        live_run.asker.raise_if_stopped()


@task(name="write", task_run_name="write shard {shard}", **UNCACHED)
async def write(run_id: str, shard: int) -> None:
    """Write the verdicts of a shard's finished samples into the warehouse."""
    live_run = find_live_run(run_id)
    works = [work for work in live_run.shards[shard].works if len(work.done) == len(live_run.tasks)]
    key = f"{run_id}/shard-{shard:06d}/{live_run.session}"
    batch = replace(live_run.shards[shard], works=works).to_batch(run_id, key=key, replaces=live_run.resumed)
    await asyncio.to_thread(live_run.warehouse.append, batch)
    live_run.shards.pop(shard, None)


# Prefect still writes the exception that ends a flow, so the folder is Prefect's default. Without one it would ask the
# server for a folder, which costs each run 0.4 s.
FLOW_OPTIONS: Final[dict[str, Any]] = {
    "persist_result": False,
    "result_storage": get_current_settings().results.local_storage_path,
}
