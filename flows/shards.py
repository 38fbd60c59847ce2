"""The table of the judging steps, and how a run takes them: a few shards at a time, all steps of a shard side by side.

`evaluation.py` has collecting and judging in the order of a run; a worker of a pool judges the shards of one part.
"""

import asyncio
import atexit
import importlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast
from uuid import UUID, uuid4

import httpx
from prefect import Flow, Task
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import RunInput, State, TaskRunResult
from prefect.exceptions import Pause, PrefectException
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Pending
from prefect.task_engine import run_task_async

from evalhouse.flows.errors import SettingsError
from evalhouse.tasks.load import collect
from evalhouse.tasks.pipeline.live_run import LiveRun, SampleStep, SampleWork, Stored, limit_time, write
from evalhouse.warehouse.rows.samples import list_unfinished_shards
from evalhouse.warehouse.steps import find_step, list_earlier_tasks, list_tasks

SUSPENDED: Final = "suspended in Prefect; resumed there, or by `evalhouse resume`, it continues"
_RESUMED: Final = "another flow run has resumed the run"
_PAUSED_LOOK_S: Final = 2.0


@dataclass(frozen=True, kw_only=True)
class StepTask:
    """The Prefect task that takes a step for a shard, and the coroutine that the task runs for each sample."""

    task: Task[[str, int], Coroutine[Any, Any, None]]
    take: SampleStep


STEP_TASKS: Final[Mapping[str, tuple[str, str]]] = {
    "extract": ("extract", "extract_statements"),
    "fused": ("fused", "judge_together"),
    "classify": ("classify", "classify_statements"),
    "attribute": ("attribute", "attribute_statements"),
    "rank": ("rank", "rank_contexts"),
    "turns": ("turns", "judge_turns"),
    "grade": ("grade", "grade_sample"),
    "similarity": ("similarity", "compare_meaning"),
    "relevancy": ("similarity", "regenerate_questions"),
    "measure": ("measure", "measure_sample"),
}
"""Tasks by name: the module in `tasks` that has the Prefect task, and its coroutine for a sample."""


def load_step(name: str) -> StepTask:
    """Return the task of a step. Its module is imported when a run first takes it, as most runs take half of them."""
    module_name, coroutine = STEP_TASKS[name]
    module = importlib.import_module(f"evalhouse.tasks.{module_name}")
    return StepTask(task=getattr(module, name), take=getattr(module, coroutine))


async def collect_shards(live_run: LiveRun) -> list[Stored]:
    """Ask the target about all shards, a few at a time, so that one slow question delays no other shard."""
    collection = live_run.collection
    if collection is None:
        return []

    async def collect_shard(number: int) -> Stored:
        await wait_while_paused(live_run)
        return await limit_time(collect, live_run)(live_run.run_id, number)

    turns = count_turns(collection.concurrency, live_run)
    responses = await take_turns(collection.numbers, collect_shard, at_once=turns)
    await collection.finish()
    return responses


async def create_child_task(
    client: PrefectClient,
    called: Flow[..., Any],
    parent_flow_run_id: str,
    *,
    key: str,
    **columns: Any,  # noqa: ANN401
) -> UUID:
    """Return the id of a task run in whose place Prefect shows a child flow run of a flow run.

    It names the child's parent, where the child is not called within its parent's process.
    """
    task_run = await client.create_task_run(
        Task(called.fn, name=called.name),
        flow_run_id=UUID(parent_flow_run_id),
        dynamic_key=key,
        state=Pending(),
        **columns,
    )
    return task_run.id


async def wait_while_paused(live_run: LiveRun) -> None:
    """Wait while a flow run of the run, which has its name, is Paused; Pause ends the process of one that is Suspended,
    if Prefect has not raised it by itself.

    A server of our own for one run has no person who could pause anything, and one that is away pauses nothing.
    """
    if not live_run.across_machines:
        return
    paused, is_reported = _filter_paused(live_run), False
    with suppress(httpx.HTTPError, PrefectException):
        async with get_client() as client:
            while rows := await client.read_flow_runs(flow_run_filter=paused, limit=1):
                # A part of a run has no flow run here: it waits until the run's process has cancelled it.
                if rows[0].state_name == "Suspended" and live_run.flow_run_id is not None:
                    raise Pause(state=rows[0].state)
                if not is_reported:
                    get_run_logger().info("Paused: no further shard begins before the flow run is resumed.")
                is_reported = True
                live_run.asker.raise_if_stopped()
                await asyncio.sleep(_PAUSED_LOOK_S)


def _filter_paused(live_run: LiveRun) -> FlowRunFilter:
    names = [live_run.run_id, f"{live_run.settings.suite_name} {live_run.run_id}"]
    return FlowRunFilter.model_validate({"name": {"any_": names}, "state": {"name": {"any_": ["Paused", "Suspended"]}}})


async def end_earlier_pauses(live_run: LiveRun) -> None:
    """Cancel paused flow runs of earlier processes of a run that this one resumes: they would pause it again."""
    if not (live_run.across_machines and live_run.resumed):
        return
    with suppress(httpx.HTTPError, PrefectException):
        async with get_client() as client:
            for row in await client.read_flow_runs(flow_run_filter=_filter_paused(live_run)):
                if str(row.id) != live_run.flow_run_id:
                    await client.set_flow_run_state(row.id, Cancelled(message=_RESUMED), force=True)


async def leave_suspended(live_run: LiveRun) -> None:
    """End in Prefect what the process of a suspended flow run leaves: a suite's child flow run, whose place another one
    takes, and the wait for the next heartbeat."""
    with suppress(httpx.HTTPError, PrefectException):
        async with get_client() as client:
            for row in await client.read_flow_runs(flow_run_filter=_filter_paused(live_run)):
                if row.deployment_id is not None:
                    atexit.register(report_suspended, row.id, row.deployment_id)
                if live_run.flow_run_id not in (None, str(row.id)):
                    own = UUID(live_run.flow_run_id)
                    await client.set_flow_run_state(own, Cancelled(message=SUSPENDED), force=True)


def report_suspended(flow_run_id: UUID, deployment_id: UUID) -> None:
    """Emit an event of a suspended flow run when its process ends, which no heartbeat follows.

    Otherwise the automation that waits for a sign of life after each heartbeat would mark the flow run as crashed, and
    Prefect could not resume it.
    """
    from evalhouse.flows.server.api import find_api  # noqa: PLC0415  # few runs are suspended

    event = {
        "id": str(uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": "prefect.flow-run.suspended",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{flow_run_id}"},
        "related": [
            {"prefect.resource.id": f"prefect.deployment.{deployment_id}", "prefect.resource.role": "deployment"}
        ],
    }
    with suppress(SettingsError):  # a server that is away has no automation that waits
        find_api("an event of a suspended flow run").post("/events", [event])


async def judge_shards(live_run: LiveRun, samples: Stored) -> Sequence[Stored | State]:
    """Judge all shards, a few at a time: enough to keep the endpoint full while the last of one shard is answered.

    Returns what a task that reads the verdicts waits for.
    """
    size = live_run.settings.shard_size
    if live_run.resumed:
        numbers = await asyncio.to_thread(list_unfinished_shards, live_run.warehouse, live_run.run_id, size)
        n_samples = live_run.progress.n_samples
        live_run.progress.n_done = n_samples - sum(min(size, n_samples - number * size) for number in numbers)
    else:
        numbers = list(range(-(-live_run.progress.n_samples // size)))
    if live_run.judge_elsewhere is not None:
        return await live_run.judge_elsewhere(numbers, samples)
    at_once = min(count_turns(live_run.settings.concurrency, live_run), len(numbers)) or 1
    if all(asker.judge.endpoint is None for asker in live_run.asker.all):
        at_once = 1  # a judge in this process never waits, so that a second shard would only take memory
    elif live_run.batch_queues:
        at_once = len(numbers) or 1  # all requests of the run make one round of batches
    elif live_run.across_machines:
        live_run.share_limits(at_once)
    return await take_turns(numbers, lambda number: judge_shard(live_run, number, after=[samples]), at_once=at_once)


async def take_turns(numbers: Sequence[int], do: Callable[[int], Awaitable[Stored]], *, at_once: int) -> list[Stored]:
    """Do something with every shard, a few at once; raises the first error when all have ended."""
    turns = asyncio.Semaphore(at_once)

    async def do_in_turn(number: int) -> Stored:
        async with turns:
            return await do(number)

    results = await asyncio.gather(*(do_in_turn(number) for number in numbers), return_exceptions=True)
    stored = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        stored.append(result)
    return stored


def count_turns(concurrency: int, live_run: LiveRun) -> int:
    """Return how many shards are worked on at once, for so many requests in flight."""
    return 1 + -(-2 * concurrency // live_run.settings.shard_size)


async def judge_shard(live_run: LiveRun, number: int, *, after: Sequence[Stored] = ()) -> Stored:
    """Run all steps of one shard side by side, and write the finished samples even when a step stops the run.

    These are the steps that the run's metrics need, by `warehouse/steps.toml`. A step that needs another one's verdicts
    gets them sample by sample: Prefect's graph has an edge between the two, and the second does not wait for the end of
    the first. Other steps come `after` the task that stored the samples. A stop of the run cancels steps that Prefect
    is about to try again.
    """
    live_run.asker.raise_if_stopped()
    await wait_while_paused(live_run)
    ids, begun = {name: uuid4() for name in live_run.tasks}, dict[str, asyncio.Future[Any]]()
    parameters = {"run_id": live_run.run_id, "shard": number}
    size, shared = live_run.settings.shard_size, live_run.shared_limits
    async with shared.hold(live_run.asker.raise_if_stopped) if shared is not None else nullcontext():
        with live_run.asker.activity.moving():
            await live_run.open_shard(number, number * size + 1, (number + 1) * size)

        def release_waiting(extraction: "asyncio.Future[None]") -> None:
            """Let no other step wait for statements after the last try of `extract`, however that has ended."""
            error = asyncio.CancelledError() if extraction.cancelled() else extraction.exception()
            if error is not None:
                for work in live_run.shards[number].works:
                    work.release_waiting(error)

        for name in live_run.tasks:
            earlier = list_earlier_tasks(name, live_run.asking).intersection(live_run.tasks)
            # Prefect's graph has an edge from the task runs of the earlier steps.
            dependencies: dict[str, set[RunInput]] = {"shard": {TaskRunResult(id=ids[other]) for other in earlier}}
            step_task, wait_for = limit_time(load_step(name).task, live_run), None if earlier else after
            begun[name] = asyncio.ensure_future(
                run_task_async(step_task, ids[name], None, parameters, wait_for, "result", dependencies)
            )
        if "extract" in begun:
            begun["extract"].add_done_callback(release_waiting)
        ended = await asyncio.gather(*begun.values(), return_exceptions=True)
    dependencies = {"shard": {TaskRunResult(id=task_run_id) for task_run_id in ids.values()}}
    writing: Task[[str, int], Any] = write
    stored = cast(Stored, await run_task_async(writing, None, None, parameters, None, "result", dependencies))
    live_run.asker.raise_if_stopped()  # with the reason of the stop, where a step was cancelled by it
    for error in ended:
        if isinstance(error, BaseException):
            raise error
    return stored


async def take_asking_steps(live_run: LiveRun, work: SampleWork) -> None:
    """Take the steps of one sample that send requests, side by side and without Prefect."""
    names = list_tasks([step for step in live_run.asking if find_step(step).calls])
    await asyncio.gather(*(load_step(name).take(live_run, work) for name in names))
