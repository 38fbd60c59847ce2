"""Running one step over a shard inside a Prefect task run.

Prefect sees a task run per step and shard. Its retries stand above those of single calls, for an endpoint that is
down for minutes: a retried step goes on with the samples it had not finished and finds all replies on record.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.runtime import flow_run, task_run
from prefect.tasks import Task

from evalhouse.tasks.asking.asker import LAST_CHANCE
from evalhouse.tasks.asking.record import ORIGIN, Origin
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.errors import EndpointDown
from evalhouse.tasks.pipeline.live_run import LiveRun, find_live_run
from evalhouse.tasks.pipeline.shard import SampleWork

SampleStep = Callable[[LiveRun, SampleWork], Awaitable[None]]

RETRY_DELAYS_S = (5.0, 30.0)


async def _is_endpoint_down(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    # Prefect silently never retries when this is a plain function on an async task.
    return isinstance(await state.aresult(raise_on_failure=False), EndpointDown)


# Nothing of a task is kept by Prefect: its rows are in the warehouse and its replies on record.
UNCACHED: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
TASK_OPTIONS: dict[str, Any] = {
    **UNCACHED,
    "retries": len(RETRY_DELAYS_S),
    "retry_delay_seconds": 0,  # the wait is ours (see `run_step`), so that it ends when the run is stopped
    "retry_condition_fn": _is_endpoint_down,
}


async def run_step(run_id: str, shard_number: int, *steps: SampleStep) -> None:
    """Take some sample steps for all samples of a shard at once; raises the first error when all have ended.

    EndpointDown is raised only where it is the only kind of error and another try is left.
    """
    live_run = find_live_run(run_id)
    shard = live_run.shards[shard_number]
    name = steps[0].__name__
    shard.tries[name] += 1
    tried_before = shard.tries[name] - 1
    ORIGIN.set(Origin(flow_run_id=_text(flow_run.id), task_run_id=_text(task_run.id)))
    LAST_CHANCE.set(tried_before >= len(RETRY_DELAYS_S))
    if tried_before:
        await live_run.asker.stop_sign.sleep(RETRY_DELAYS_S[tried_before - 1])
    try:
        await gather_all([_take(live_run, work, step) for step in steps for work in shard.works])
    finally:
        live_run.asker.raise_if_stopped()


async def _take(live_run: LiveRun, work: SampleWork, step: SampleStep) -> None:
    name = step.__name__
    if name in work.done:
        return
    await step(live_run, work)
    work.done.add(name)
    if len(work.done) == live_run.n_sample_steps:
        live_run.progress.n_done += 1


def _text(value: object) -> str | None:
    return None if value is None else str(value)
