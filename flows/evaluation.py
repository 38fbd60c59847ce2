"""The flows of a run: what happens in which order, to an evaluation and to a run that only collects responses.

A deployment calls `evaluate_run` with its parameters, and the flow opens the run. Commands, suites and `evaluate()`
have opened theirs before, because there is something to do while Prefect's server comes up.

A flow run that opens its run belongs together with it: when it is tried again, by Prefect or by a person in its UI, it
resumes the run that it had begun, and so does a copy of it while the run has not completed, because the flow run's
parameters name the run from the moment it is stored.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
    suppress,
)
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import httpx
from prefect import Flow, flow
from prefect import tags as prefect_tags
from prefect.artifacts import acreate_link_artifact, acreate_progress_artifact, aupdate_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.exceptions import PrefectException
from prefect.flow_engine import run_flow_async
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Crashed, Failed, Pending
from prefect.utilities.callables import get_call_parameters
from pydantic import Field

from evalhouse.flows.errors import explain
from evalhouse.flows.preparing.request import RunRequest, Trigger, find_unfinished, resolve_settings
from evalhouse.flows.run.open_run import open_run
from evalhouse.flows.run.outcome import STORED, RunResult, explain_incomplete, make_result
from evalhouse.flows.server.interrupts import wait_for_warehouse
from evalhouse.flows.shards import collect_shards, create_child_task, end_earlier_pauses, judge_shards
from evalhouse.tasks.load import load
from evalhouse.tasks.pipeline.live_run import FLOW_OPTIONS, LiveRun, find_live_run, is_open
from evalhouse.tasks.score import pick_score_task, publish
from evalhouse.tasks.settings.run import Effort, RunSettings
from evalhouse.warehouse.metric_files import load_metrics
from evalhouse.warehouse.rows.runs import RunKind, find_run, list_runs, update_run
from evalhouse.warehouse.store import Warehouse

# For a run that takes too long to give back its shares of limits and to store its results.
_TIDYING_S = 30.0
_EVERY_S: Final = 5.0
_BETWEEN_WAITS_S: Final = 60.0

Metric = Annotated[str, Field(json_schema_extra={"enum": sorted(load_metrics())})]
"""A built-in metric; a form offers these as choices."""


PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0)]


@flow(name="evaluate", **FLOW_OPTIONS)
async def evaluate_run(
    *,
    dataset: str = "sample",
    judge: str | None = None,
    metrics: tuple[Metric, ...] = (),
    own_metrics: tuple[str, ...] = (),
    embeddings: str | None = None,
    language: Annotated[str, Field(examples=["auto", "en", "zh"])] | None = None,
    limit: PositiveInt | None = None,
    label: str | None = None,
    href: str | None = None,
    tags: tuple[str, ...] = (),
    plan: Literal["separate", "fused"] | None = None,
    votes: Annotated[int, Field(ge=1, le=99)] | None = None,
    reasoning_effort: Effort | None = None,
    contexts_role: Literal["authoritative", "supplementary"] | None = None,
    noise_share: Annotated[float, Field(ge=0, le=1)] | None = None,
    budget_usd: PositiveFloat | None = None,
    concurrency: Annotated[int, Field(ge=1, le=4096)] | None = None,
    rpm: PositiveInt | None = None,
    tpm: PositiveInt | None = None,
    timeout_s: PositiveFloat | None = None,
    run_timeout_s: PositiveFloat | None = None,
    task_timeout_s: PositiveFloat | None = None,
    attempts: Annotated[int, Field(ge=1, le=50)] | None = None,
    fresh: bool | None = None,
    batch: bool | None = None,
    pool: str | None = None,
    mapping: dict[str, str] | None = None,
    prompts: str | None = None,
    metric_files: str | None = None,
    prices: str | None = None,
    warehouse: str | None = None,
    run_id: str | None = None,
) -> "State[RunResult] | None":
    """Collect responses where there is a target, load, judge shard by shard, score the verdicts, publish the scores.

    Returns a RunResult to a flow that calls it. The parameters are the settings of a run that make sense without a
    suite, by their names. Missing ones come from the `EVALHOUSE_*` variables of the process that runs the flow, then
    from the defaults, as for `evalhouse run`. Prefect stores parameters in plain text, so none of them takes a secret:
    keys are in the environment of that process. A flow run that is tried again resumes its run, and so does one with
    the id of a run.

    Args:
        dataset: a file or table that the worker can read, or `sample`, the dataset that ships with evalhouse
        judge: lexical, openai:MODEL, PROVIDER:MODEL, local:MODEL, or module:factory; `J,classify=K` asks K in one step
        metrics: what is scored; none given: the usual metrics
        own_metrics: metrics of your own to be scored, from metric_files
        embeddings: hashing, openai:MODEL, or module:factory
        language: language of the prompts; auto is zh for Chinese texts and en for all others
        limit: judge only the first N samples
        label: a name for the run
        href: a link to what was evaluated: a commit, a build
        tags: tags of the run and of its flow and task runs
        plan: whether classify, attribute and rank ask by themselves or in one request
        votes: votes on each verdict, an odd number
        reasoning_effort: how long a model thinks before it replies
        contexts_role: whether contexts hold the truth or add to it
        noise_share: share of unchanged samples that are judged again to measure noise
        budget_usd: dollars that the run may spend
        concurrency: requests in flight at once
        rpm: requests per minute
        tpm: tokens per minute
        timeout_s: seconds one request may take
        run_timeout_s: seconds the run may take; it can be resumed
        task_timeout_s: seconds one step may take for a shard
        attempts: times one question is asked at most
        fresh: ask again although a reply is stored
        batch: send requests through the provider's batch API
        pool: Prefect work pool whose workers judge the samples
        mapping: columns of the dataset, or names of a trace's spans, by the name of the field they are for
        prompts: folder whose prompt files override ours
        metric_files: folder with metric SQL files of your own
        prices: file with prices of your own
        warehouse: URL of the warehouse, in which a password has no place, or path of a DuckDB file
        run_id: a run to resume, which keeps its settings; none given: a new run
    """
    if run_id is not None and is_open(run_id):  # by a command, a suite or a call from Python
        await judge_run(find_live_run(run_id))
        return None
    given = {name: value for name, value in flow_run.parameters.items() if value not in (None, (), [], {})}
    return await run_within_flow(given)


@flow(name="collect", **FLOW_OPTIONS)
async def collect_run(run_id: str) -> None:
    """Collect responses and load them as samples; nothing is judged."""
    await collect_responses(find_live_run(run_id))


async def call_as_flow(live_run: LiveRun, kind: RunKind, *, parent_flow_run_id: str | None = None) -> None:
    """Take a live run to its end in a separate flow run, with the run's name, tags and time limit.

    `parent_flow_run_id` is a flow run of another process, which waits for this one: it shows this one as its child.
    """
    settings, run_id = live_run.settings, live_run.run_id
    called: Flow[..., Any] = collect_run if kind == "collection" else evaluate_run
    values: dict[str, Any] = {"run_id": run_id}
    if called is evaluate_run:
        # The parameters that Prefect shows: the settings without the defaults.
        built_in = load_metrics()
        for name in inspect.signature(evaluate_run.fn).parameters.keys() & RunSettings.model_fields.keys():
            value = getattr(settings, name)
            if name in ("dataset", "judge") or value != RunSettings.model_fields[name].get_default():
                values[name] = value
        values["metrics"] = tuple(name for name in settings.metrics if name in built_in)
        values["own_metrics"] = tuple(name for name in settings.metrics if name not in built_in)
    options: dict[str, Any] = {"flow_run_name": f"{settings.suite_name} {run_id}" if settings.suite else run_id}
    if settings.run_timeout_s is not None:
        options["timeout_seconds"] = settings.run_timeout_s + _TIDYING_S
    with prefect_tags(*settings.prefect_tags):
        if parent_flow_run_id is None:
            await called.with_options(**options)(**values)
            return
        parameters = get_call_parameters(called.fn, (), values)
        async with get_client() as client:
            task_run_id = await create_child_task(client, called, parent_flow_run_id, key=run_id, name=called.name)
            child = await client.create_flow_run(
                called,
                parameters=called.serialize_parameters(parameters),
                parent_task_run_id=task_run_id,
                tags=settings.prefect_tags,
                state=Pending(),
            )
        await run_flow_async(called.with_options(**options), child, parameters)


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
        responses = await collect_shards(live_run)
        samples = await load(live_run.run_id, wait_for=responses)
        verdicts = await judge_shards(live_run, samples)
        score = pick_score_task(live_run)
        scores = await score(live_run.run_id, wait_for=verdicts)
        await publish(live_run.run_id, wait_for=[scores])


async def collect_responses(live_run: LiveRun) -> None:
    """Ask the target, and load its responses as samples."""
    async with within_flow_run(live_run):
        responses = await collect_shards(live_run)
        await load(live_run.run_id, wait_for=responses)


@asynccontextmanager
async def within_flow_run(live_run: LiveRun) -> AsyncIterator[None]:
    """Surround the tasks of a run with its time limit, progress and tags, and store Prefect's id of the run.

    A run that takes too long ends with a TimeoutError, by which Prefect's state is `TimedOut`. Prefect's own limit, a
    little later, is for a run that does not end so: it cancels everything that is awaited, so that shares of limits are
    not given back.
    """
    live_run.flow_run_id = str(flow_run.id)
    update_run(live_run.warehouse, live_run.run_id, flow_run_id=live_run.flow_run_id)
    await end_earlier_pauses(live_run)
    progress: AbstractAsyncContextManager[None] = nullcontext()
    # Of each task run that has tags Prefect asks the server for limits by that name, which our own has none of.
    task_tags: AbstractContextManager[object] = TagsContext(current_tags=set())
    if live_run.across_machines:
        progress, task_tags = publish_progress(live_run), prefect_tags(*live_run.settings.prefect_tags)
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


async def run_within_flow(given: Mapping[str, Any]) -> "State[RunResult]":
    """Evaluate by the parameters that were given to the flow run that calls this; return the state that it ends in.

    A flow run that has begun a run resumes it, and so does one that names a run; others begin a new run.
    """

    @contextmanager
    def name_after_run(live_run: LiveRun) -> Iterator[None]:
        """Name the flow run after its run as soon as that is stored."""
        if live_run.flow_run_id == str(flow_run.id):  # noise and repeats have separate flow runs
            for notice in live_run.notices:
                get_run_logger().info(notice)
            _update_flow_run(
                name=live_run.run_id,
                tags=sorted({*flow_run.tags, *live_run.settings.prefect_tags}),
                parameters={**written, "run_id": live_run.run_id},
            )
        yield

    written = {name: value for name, value in given.items() if name != "run_id"}
    values, metrics = dict(written), (*given.get("metrics", ()), *given.get("own_metrics", ()))
    values.pop("own_metrics", None)
    try:
        settings = resolve_settings({**values, "metrics": metrics}).settings
        warehouse, begun = Warehouse(settings.warehouse), None
        if (run_id := given.get("run_id")) is not None:
            begun = find_run(warehouse, run_id)
        elif warehouse.location.lake is not None or warehouse.location.path.exists():
            runs = list_runs(warehouse, kinds=("evaluation", "collection"))
            begun = next((run for run in runs if run.flow_run_id == str(flow_run.id)), None)
        if begun is not None and begun.status == "completed":
            advice = "start the deployment again" if run_id is None else "leave the parameter run_id empty"
            notice = f"Run {begun.run_id} has completed. For another run {advice}."
            return Completed(name="NothingNew", message=notice, data=make_result(warehouse, begun))
        with wait_for_warehouse():
            if begun is not None:
                request = find_unfinished(begun.run_id, warehouse_url=settings.warehouse)
                get_run_logger().info("Resuming run %s, which was %s.", begun.run_id, begun.status)
            else:
                request = RunRequest(settings=settings, trigger=Trigger(flow_run_id=str(flow_run.id)))
            # The state that the flow returns has the reason why a run is not a success, so `finish` returns none.
            with open_run(
                request, lambda: take_to_end, watch=name_after_run, finish=lambda _: None, in_flow=True
            ) as opened:
                outcome = await opened.run_to_end()
    except Exception as error:  # the flow run ends with the message of an error that has one for a person
        message = explain(error)
        if message is None:
            raise
        return Failed(message=message)
    run = outcome.run
    if outcome.status == "completed":
        _update_flow_run(parameters=written)
        message = f"Run {run.run_id} completed: {run.n_samples} samples, judged by {run.judge}."
        return Completed(message=message, data=make_result(warehouse, run))
    if outcome.status == "cancelled":
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(str(flow_run.id))).state
        message = f"Run {run.run_id} was {run.problem}; a retry resumes it."
        # Only Prefect cancels a flow run: another signal comes from a worker or a machine that is stopped.
        is_cancelled = state is not None and (state.is_cancelling() or state.is_cancelled())
        return Cancelled(message=message) if is_cancelled else Crashed(message=message)
    message = outcome.problem or explain_incomplete(outcome) or f"Run {run.run_id} {outcome.status}."
    return Failed(name="TimedOut" if STORED in message else "Failed", message=message)


def _update_flow_run(**columns: Any) -> None:  # noqa: ANN401  # as Prefect's API has them
    """Change columns of the flow run; a server that does not take them is logged, and the run is the same without."""
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(str(flow_run.id)), **columns)
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("Prefect's page of this flow run lacks its run: %s", error)


@asynccontextmanager
async def publish_progress(live_run: LiveRun) -> AsyncIterator[None]:
    """Within the block, show the progress on the flow run's page in Prefect: an artifact updated every few seconds, a
    line in its log about what requests wait for, and a link to what is evaluated.

    A server that does not take them is logged, and the run is the same without.
    """
    from evalhouse.flows.results.progress import (  # noqa: PLC0415  # most runs have a server that is not looked at
        count_all_steps,
        count_steps,
        describe_progress,
    )

    async def update(artifact_id: UUID, text: str) -> None:
        n_all = count_all_steps(live_run)
        progress = 100.0 * count_steps(live_run) / n_all if n_all else 0.0
        await aupdate_progress_artifact(artifact_id, progress=min(progress, 100.0), description=text)

    async def show() -> None:
        name, last = live_run.settings.name_artifact, ""
        try:
            if href := live_run.settings.href:
                await acreate_link_artifact(link=href, link_text="what is evaluated", key=name("link"))
            artifact_id = await acreate_progress_artifact(progress=0.0, key=name("progress"), description="begun")
            try:
                logged_at = -_BETWEEN_WAITS_S
                while True:
                    await asyncio.sleep(_EVERY_S)
                    text = describe_progress(live_run).replace("\n", ", ")
                    if text != last:
                        await update(artifact_id, text)
                    last = text
                    waits = [queue.describe() for queue in live_run.batch_queues]
                    waits += [asker.limit.describe_wait(time.monotonic()) for asker in live_run.askers]
                    waiting = "; ".join(wait for wait in waits if wait)
                    if waiting and time.monotonic() - logged_at >= _BETWEEN_WAITS_S:
                        logged_at = time.monotonic()
                        get_run_logger().info("Waiting: %s.", waiting)
            finally:
                await update(artifact_id, describe_progress(live_run).replace("\n", ", "))
        except (httpx.HTTPError, PrefectException) as error:
            get_run_logger().warning("Prefect's page of this run lacks its progress: %s", error)

    showing = asyncio.create_task(show())
    try:
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing
