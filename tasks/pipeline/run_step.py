"""Running one step over a shard inside a Prefect task run, and writing what came of all of them.

Prefect sees a task run per step and shard. Its retries stand above those of single calls, for an endpoint that is
down for minutes: a retried step goes on with the samples it had not finished and finds all replies on record.

Parameters of tasks are names and ids only, because Prefect stores and inspects them: a task finds its live run here.
"""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import get_run_logger
from prefect.runtime import flow_run, task_run
from prefect.tasks import Task

from evalhouse.tasks.asking.asker import LAST_CHANCE
from evalhouse.tasks.asking.record import ORIGIN, Origin
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.judge.errors import EndpointDown
from evalhouse.tasks.pipeline.live_run import LiveRun, SampleWork, Shard
from evalhouse.warehouse.steps import find_step, list_tasks

T = TypeVar("T")
SampleStep = Callable[[LiveRun, SampleWork], Awaitable[None]]

_live_runs: dict[str, LiveRun] = {}


@contextmanager
def registered(live_run: LiveRun) -> Iterator[None]:
    """Let a live run be found by its run's id, in this process and for this block."""
    # A million objects of imported modules would otherwise be walked through now and then while requests wait.
    gc.freeze()
    gc.enable()
    _live_runs[live_run.run_id] = live_run
    try:
        yield
    finally:
        del _live_runs[live_run.run_id]


def find_live_run(run_id: str) -> LiveRun:
    """The live run of a run; raises LookupError when the run is not under way in this process."""
    try:
        return _live_runs[run_id]
    except KeyError:
        raise LookupError(f"run {run_id} is not under way in this process") from None


def is_under_way(run_id: str) -> bool:
    """Whether a run has its live run in this process."""
    return run_id in _live_runs


RETRY_DELAYS_S = (5.0, 30.0)


async def _is_endpoint_down(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    # Prefect silently never retries when this is a plain function on an async task.
    return isinstance(await state.aresult(raise_on_failure=False), EndpointDown)


# Nothing of a task is kept by Prefect: its rows are in the warehouse and its replies on record.
UNCACHED: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
STEP_OPTIONS: dict[str, Any] = {
    **UNCACHED,
    "retries": len(RETRY_DELAYS_S),
    "retry_delay_seconds": 0,  # the wait is ours (see `run_step`), so that it ends when the run is stopped
    "retry_condition_fn": _is_endpoint_down,
}


@dataclass(frozen=True, kw_only=True)
class StepTask:
    """A step: `take` takes it for one sample, `fn` for every sample of a shard; `task` is `fn` as a Prefect task."""

    take: SampleStep
    fn: Callable[[str, int], Awaitable[None]]
    task: Task[[str, int], Coroutine[Any, Any, None]]
    gives_statements: bool

    async def __call__(self, live_run: LiveRun, shard: int) -> None:
        """Take the step for a shard as a task run; whatever ends it, Prefect itself included, ends those who wait."""
        try:
            await limit_time(self.task, live_run)(live_run.run_id, shard)
        except BaseException as error:  # cancelled too: those who wait would wait for ever
            if self.gives_statements:
                live_run.shards[shard].release_waiting(error)
            raise


def limit_time(timed: Task[[str, int], T], live_run: LiveRun) -> Task[[str, int], T]:
    """A task over a shard that Prefect ends when it takes longer than the run's settings allow."""
    limit_s = live_run.settings.task_timeout_s
    return timed if limit_s is None else timed.with_options(timeout_seconds=limit_s)


def make_task(name: str, take: SampleStep, *, gives_statements: bool = False) -> StepTask:
    """The task of a step; others wait for one that `gives_statements`, so they end when it ends in an error."""

    async def over_shard(run_id: str, shard: int) -> None:
        live_run = find_live_run(run_id)
        try:
            await run_step(live_run, live_run.shards[shard], take)
        except EndpointDown:
            raise  # the step is tried again, and they go on waiting
        except BaseException as error:  # as above
            if gives_statements:
                live_run.shards[shard].release_waiting(error)
            raise

    options = {"name": name, "task_run_name": f"{name} shard {{shard}}", "description": take.__doc__, **STEP_OPTIONS}
    as_task = task(**options)(over_shard)
    return StepTask(take=take, fn=over_shard, task=as_task, gives_statements=gives_statements)


def find_tasks(names: Iterable[str]) -> list[StepTask]:
    """The steps in `tasks/<name>.py`, by the names that stand in `warehouse/steps.toml`."""
    return [getattr(import_module(f"evalhouse.tasks.{name}"), name) for name in names]


async def take_asking_steps(live_run: LiveRun, work: SampleWork) -> None:
    """Take the steps of one sample that ask for something, side by side and without Prefect."""
    names = list_tasks([step for step in live_run.asking if find_step(step).calls])
    await asyncio.gather(*(step.take(live_run, work) for step in find_tasks(names)))


async def run_step(live_run: LiveRun, shard: Shard, take: SampleStep) -> None:
    """Take a step for all samples of a shard at once; raises the first error when all have ended.

    EndpointDown is raised only where it is the only kind of error and another try is left.
    """
    name = take.__name__
    shard.tries[name] += 1
    tried_before = shard.tries[name] - 1
    ORIGIN.set(Origin(flow_run_id=_text(flow_run.id), task_run_id=_text(task_run.id)))
    LAST_CHANCE.set(tried_before >= len(RETRY_DELAYS_S))
    if tried_before:
        await live_run.asker.stop_sign.sleep(RETRY_DELAYS_S[tried_before - 1])
    began_at = time.monotonic()
    try:
        await gather_all([_take(live_run, work, take) for work in shard.works if name not in work.done])
    finally:
        if live_run.across_machines:
            _log_end(live_run, shard, name, time.monotonic() - began_at)
        live_run.asker.raise_if_stopped()


def _log_end(live_run: LiveRun, shard: Shard, name: str, seconds: float) -> None:
    """A line for the person who follows the run in Prefect; nobody does on a server that ends with the run."""
    n_done, usage = sum(name in work.done for work in shard.works), live_run.usage
    again = f", try {shard.tries[name]}" if shard.tries[name] > 1 else ""
    get_run_logger().info(
        f"{task_run.name}{again}: {n_done} of {len(shard.works)} samples in {seconds:.1f} s; "
        f"the run so far: {usage.requests:,} requests, {usage.reused:,} reused, {usage.failed:,} failed"
    )


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


async def _take(live_run: LiveRun, work: SampleWork, take: SampleStep) -> None:
    await take(live_run, work)
    work.done.add(take.__name__)
    if len(work.done) == live_run.n_sample_steps:
        live_run.progress.n_done += 1


def _text(value: object) -> str | None:
    return None if value is None else str(value)
