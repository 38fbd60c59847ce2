"""The flows of a run: what happens in which order, to an evaluation and to a run that only collects responses.

A deployment calls `evaluate_run` with its parameters, and the flow opens the run. Commands, suites and `evaluate()`
have opened theirs before, because there is something to do while Prefect's server comes up.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

from prefect import flow, tags
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.runtime import flow_run

from evalhouse.flows.preparing.plan import EvaluateParameters, describe_settings
from evalhouse.flows.server.interrupts import take_signals_back
from evalhouse.flows.shards import collect_shards, judge_shards
from evalhouse.tasks.load import load
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import FLOW_OPTIONS, find_live_run, is_open
from evalhouse.tasks.score import pick_score_task, publish
from evalhouse.warehouse.rows.runs import RunKind, update_run

_DEFAULTS = EvaluateParameters()
# For a run that takes too long to give back its shares of limits and to store its results.
_TIDYING_S = 30.0


@flow(name="evaluate", **FLOW_OPTIONS)
async def evaluate_run(parameters: EvaluateParameters = _DEFAULTS) -> "State[Any] | None":
    """Collect responses where there is a target, load, judge shard by shard, score the verdicts, publish the scores.

    A flow run that is tried again resumes its run, and so does one with the id of a run.
    """
    if is_open(parameters.run_id):  # by a command, a suite or a call from Python
        await judge_run(find_live_run(str(parameters.run_id)))
        return None
    from evalhouse.flows.run.within_flow import run_within_flow  # noqa: PLC0415  # a deployment opens its run here

    return await run_within_flow(parameters, take_to_end)


@flow(name="collect", **FLOW_OPTIONS)
async def collect_run(run_id: str) -> None:
    """Collect responses and load them as samples; nothing is judged."""
    await collect_responses(find_live_run(run_id))


async def call_as_flow(live_run: LiveRun, kind: RunKind) -> None:
    """Take a live run to its end in a separate flow run, with the run's name, tags and time limit."""
    settings, run_id = live_run.settings, live_run.run_id
    options: dict[str, Any] = {"flow_run_name": f"{settings.suite} {run_id}" if settings.suite else run_id}
    if settings.run_timeout_s is not None:
        options["timeout_seconds"] = settings.run_timeout_s + _TIDYING_S
    with tags(*settings.prefect_tags):
        if kind == "collection":
            await collect_run.with_options(**options)(run_id)
        else:
            await evaluate_run.with_options(**options)(describe_settings(settings, run_id=run_id))


async def take_to_end(live_run: LiveRun, kind: RunKind) -> None:
    """Take a live run to its end in the flow run of a deployment; noise and repeats have separate flow runs."""
    if kind in ("noise", "repeats"):
        await call_as_flow(live_run, kind)
    elif kind == "collection":
        await collect_responses(live_run)
    else:
        await judge_run(live_run)


async def judge_run(live_run: LiveRun) -> None:
    """Take an evaluation from its dataset to its scores."""
    async with within_flow_run(live_run):
        await collect_shards(live_run)
        await load(live_run.run_id)
        await judge_shards(live_run)
        score = await pick_score_task(live_run)
        await score(live_run.run_id)
        await publish(live_run.run_id)


async def collect_responses(live_run: LiveRun) -> None:
    """Ask the target, and load its responses as samples."""
    async with within_flow_run(live_run):
        await collect_shards(live_run)
        await load(live_run.run_id)


@asynccontextmanager
async def within_flow_run(live_run: LiveRun) -> AsyncIterator[None]:
    """Surround the tasks of a run with its signals, time limit, progress and tags, and store Prefect's id of the run.

    A run that takes too long ends with a TimeoutError, by which Prefect's state is `TimedOut`. Prefect's own limit, a
    little later, is for a run that does not end so: it cancels everything that is awaited, so that shares of limits are
    not given back.
    """
    take_signals_back()
    live_run.flow_run_id = str(flow_run.id)
    update_run(live_run.warehouse, live_run.run_id, flow_run_id=live_run.flow_run_id)
    progress: AbstractAsyncContextManager[None] = nullcontext()
    # Of each task run that has tags Prefect asks the server for limits by that name, which our own has none of.
    task_tags: AbstractContextManager[object] = TagsContext(current_tags=set())
    if live_run.across_machines:
        from evalhouse.flows.run.within_flow import progress_shown  # noqa: PLC0415  # imports what shows it

        progress, task_tags = progress_shown(live_run), tags(*live_run.settings.prefect_tags)
    limit_s = live_run.settings.run_timeout_s
    limit = asyncio.timeout(limit_s)
    try:
        async with limit, progress:
            with live_run.watch(live_run), task_tags:
                yield
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"the run took longer than {limit_s:g} seconds (run_timeout_s)") from None
        raise
