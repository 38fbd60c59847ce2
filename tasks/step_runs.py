"""Running one step over a shard inside a Prefect task run.

Prefect sees a task run per step and shard. Its retries stand above those of single calls, for an endpoint that is
down for minutes: a retried step goes on with the samples it had not finished and finds all replies on record.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import flow_run, task_run
from prefect.tasks import Task

from tasks.asking import LAST_CHANCE
from tasks.bench import Bench, find_bench
from tasks.call_record import ORIGIN, Origin
from tasks.judge_errors import EndpointDown
from tasks.shard import SampleWork

SampleStep = Callable[[Bench, SampleWork], Awaitable[None]]

RETRY_DELAYS_S = (5.0, 30.0)
N_SAMPLE_STEPS = 6  # extract (twice), classify, attribute, rank, compare


async def _is_endpoint_down(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    # Prefect silently never retries when this is a plain function on an async task.
    return isinstance(await state.aresult(raise_on_failure=False), EndpointDown)


# Nothing of a task is kept by Prefect: its rows are in the warehouse and its replies on record.
UNCACHED: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
TASK_OPTIONS: dict[str, Any] = {
    **UNCACHED,
    "retries": len(RETRY_DELAYS_S),
    "retry_delay_seconds": list(RETRY_DELAYS_S),
    "retry_condition_fn": _is_endpoint_down,
}


async def run_step(run_id: str, shard_number: int, *steps: SampleStep) -> None:
    """Take some sample steps for all samples of a shard at once; raises the first error when all have ended."""
    bench = find_bench(run_id)
    shard = bench.shards[shard_number]
    ORIGIN.set(Origin(flow_run_id=_text(flow_run.id), task_run_id=_text(task_run.id)))
    LAST_CHANCE.set((task_run.run_count or 1) > len(RETRY_DELAYS_S))
    active = [asyncio.create_task(_take(bench, work, step)) for step in steps for work in shard.works]
    bench.active.update(active)
    results = await asyncio.gather(*active, return_exceptions=True)
    bench.active.difference_update(active)
    bench.asker.raise_if_stopped()
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _take(bench: Bench, work: SampleWork, step: SampleStep) -> None:
    name = step.__name__
    if name in work.done:
        return
    try:
        await step(bench, work)
    except EndpointDown:
        raise  # Prefect retries the step, and those who wait for it go on waiting
    except BaseException as error:
        _release_waiting(work, error)
        raise
    work.done.add(name)
    if len(work.done) == N_SAMPLE_STEPS:
        bench.progress.n_done += 1


def _release_waiting(work: SampleWork, error: BaseException) -> None:
    """Let steps that wait for this sample's statements end with the same error."""
    for future in work.extractions.values():
        if not future.done():
            future.cancel() if isinstance(error, asyncio.CancelledError) else future.set_exception(error)
            if not future.cancelled():
                future.exception()  # looked at, so that asyncio does not report it as forgotten


def _text(value: object) -> str | None:
    return None if value is None else str(value)
