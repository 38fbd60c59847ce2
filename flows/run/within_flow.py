"""A run that is opened by the flow that judges it, as a deployment and a call of the flow from Python have it.

The flow run and its run belong together: a flow run that is tried again, by Prefect or by a person in its UI, goes on
with the run that it had begun, and so does a copy of it while the run has not completed, because the flow run's
parameters name the run from the moment that this is on record.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import httpx
from prefect.artifacts import acreate_link_artifact, acreate_progress_artifact, aupdate_progress_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from evalhouse.flows.errors import explain
from evalhouse.flows.preparing.request import RunRequest, Trigger, find_unfinished
from evalhouse.flows.results.progress import count_all_steps, count_steps, describe_progress
from evalhouse.flows.run.open_run import RunFlow, open_run
from evalhouse.flows.run.outcome import RunOutcome, explain_incomplete
from evalhouse.flows.server.interrupts import wait_for_warehouse
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_runs
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from evalhouse.flows.preparing.settings import Resolved, resolve_settings
from evalhouse.tasks.settings.run import Effort, RunSettings
from evalhouse.warehouse.metric_files import load_metrics

Metric = Annotated[str, Field(json_schema_extra={"enum": sorted(load_metrics())})]
"""A metric that evalhouse brings; a form offers them as choices."""


class EvaluateParameters(BaseModel):
    """What is evaluated, and how. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dataset: str = Field(
        default="sample",
        description="a file or table that the worker can read, or `sample`, the dataset that ships with evalhouse",
    )
    judge: str | None = Field(
        default=None,
        description="lexical, openai:MODEL, PROVIDER:MODEL, local:MODEL, or module:factory; `J,classify=K` asks K in "
        "one step",
        examples=["lexical", "openai:gpt-4.1-mini"],
    )
    metrics: tuple[Metric, ...] = Field(default=(), description="what is scored; none given: the usual metrics")
    own_metrics: tuple[str, ...] = Field(default=(), description="metrics of your own to be scored, from metric_files")
    embeddings: str | None = Field(default=None, description="hashing, openai:MODEL, or module:factory")
    language: Literal["en", "zh"] | None = Field(default=None, description="language of the prompts")
    limit: int | None = Field(default=None, ge=1, description="judge only the first N samples")
    label: str | None = Field(default=None, description="a name for the run")
    href: str | None = Field(default=None, description="a link to what was evaluated: a commit, a build")
    tags: tuple[str, ...] = Field(default=(), description="tags of the run and of its flow and task runs")
    plan: Literal["separate", "fused"] | None = Field(
        default=None, description="whether classify, attribute and rank ask by themselves or in one request"
    )
    votes: int | None = Field(default=None, ge=1, le=99, description="votes on each verdict, an odd number")
    reasoning_effort: Effort | None = Field(default=None, description="how long a model thinks before it replies")
    contexts_role: Literal["authoritative", "supplementary"] | None = Field(
        default=None, description="whether contexts hold the truth or add to it"
    )
    noise_share: float | None = Field(
        default=None, ge=0, le=1, description="share of unchanged samples that are judged again to measure noise"
    )
    budget_usd: float | None = Field(default=None, gt=0, description="dollars that the run may spend")
    concurrency: int | None = Field(default=None, ge=1, le=4096, description="requests in flight at once")
    rpm: int | None = Field(default=None, ge=1, description="requests per minute")
    tpm: int | None = Field(default=None, ge=1, description="tokens per minute")
    timeout_s: float | None = Field(default=None, gt=0, description="seconds one request may take")
    run_timeout_s: float | None = Field(default=None, gt=0, description="seconds the run may take; it can be resumed")
    task_timeout_s: float | None = Field(default=None, gt=0, description="seconds one step may take for a shard")
    attempts: int | None = Field(default=None, ge=1, le=50, description="times one question is asked at most")
    fresh: bool | None = Field(default=None, description="ask again although a reply is on record")
    batch: bool | None = Field(default=None, description="send requests through the provider's batch API")
    pool: str | None = Field(default=None, description="Prefect work pool whose workers judge the samples")
    mapping: dict[str, str] = Field(default={}, description="our columns by name, and those they are read from")
    prompts: str | None = Field(default=None, description="folder whose prompt files override ours")
    metric_files: str | None = Field(default=None, description="folder with metric SQL files of your own")
    prices: str | None = Field(default=None, description="file with prices of your own")
    warehouse: str | None = Field(
        default=None, description="URL of the warehouse, in which a password has no place, or path of a DuckDB file"
    )
    run_id: str | None = Field(
        default=None, description="a run to go on with, which keeps its settings; none given: a new run"
    )

    def resolve(self) -> Resolved:
        """The settings that these make with the environment and the defaults; raises SettingsError."""
        given: dict[str, Any] = self.model_dump(exclude_none=True, exclude={"run_id", "own_metrics"})
        return resolve_settings({**given, "metrics": (*self.metrics, *self.own_metrics)})


def describe_settings(settings: RunSettings, *, run_id: str) -> EvaluateParameters:
    """Return the parameters of a run that has its settings already, but for defaults, as Prefect shows them."""
    built_in, values = load_metrics(), {}
    for name in EvaluateParameters.model_fields.keys() & RunSettings.model_fields.keys():
        value = getattr(settings, name)
        if name in ("dataset", "judge") or value != RunSettings.model_fields[name].get_default():
            values[name] = value
    values["metrics"] = tuple(name for name in settings.metrics if name in built_in)
    own_metrics = tuple(name for name in settings.metrics if name not in built_in)
    return EvaluateParameters(**values, own_metrics=own_metrics, run_id=run_id)


async def run_within_flow(parameters: EvaluateParameters, run_flow: RunFlow) -> "State[Any]":
    """Evaluate by these parameters in the flow run that calls this, and return the state that it ends in."""
    try:
        settings = parameters.resolve().settings
        begun = find_begun(settings.warehouse, parameters.run_id)
        if begun is not None and begun.status == "completed":
            return Completed(
                name="NothingNew",
                message=f"Run {begun.run_id} has completed. For another run leave the parameter run_id empty.",
            )
        with wait_for_warehouse():
            if begun is not None:
                request = find_unfinished(begun.run_id, warehouse_url=settings.warehouse)
                get_run_logger().info("Going on with run %s, which was %s.", begun.run_id, begun.status)
            else:
                request = RunRequest(settings=settings, trigger=Trigger(flow_run_id=str(flow_run.id)))
            watch = partial(_shown, parameters)
            # The state that the flow returns says what keeps the run from being a success, so `finish` has nothing to.
            with open_run(request, lambda: run_flow, watch=watch, finish=lambda _: None, in_flow=True) as opened:
                outcome = await opened.run_to_end()
    except Exception as error:  # of any error that has words for a person these are what the flow run ends with
        message = explain(error)
        if message is None:
            raise
        return Failed(message=message)
    if outcome.status == "completed":
        _update_flow_run(parameters={"parameters": _write(parameters, run_id=None)})
    return _to_state(outcome)


def find_begun(warehouse_url: str, wanted: str | None) -> RunRow | None:
    """The run to go on with: the one that is `wanted`, or that of this flow run; None where it has none yet."""
    warehouse = Warehouse(warehouse_url)
    if wanted is not None:
        return find_run(warehouse, wanted)
    if warehouse.location.lake is None and not warehouse.location.path.exists():
        return None
    own = str(flow_run.id)
    runs = list_runs(warehouse, kinds=("evaluation", "collection"))
    return next((run for run in runs if run.flow_run_id == own), None)


@contextmanager
def _shown(parameters: EvaluateParameters, live_run: "LiveRun") -> Iterator[None]:
    """Name the flow run after its run as soon as that is on record."""
    if live_run.flow_run_id == str(flow_run.id):  # not of noise and repeats, which have flow runs of their own
        for notice in live_run.notices:
            get_run_logger().info(notice)
        _update_flow_run(
            name=live_run.run_id,
            tags=sorted({*flow_run.tags, *live_run.settings.prefect_tags}),
            parameters={"parameters": _write(parameters, run_id=live_run.run_id)},
        )
    yield


def _write(parameters: EvaluateParameters, *, run_id: str | None) -> dict[str, Any]:
    written = parameters.model_dump(mode="json", exclude_unset=True, exclude={"run_id"})
    return written | ({"run_id": run_id} if run_id else {})


def _update_flow_run(**columns: Any) -> None:  # noqa: ANN401  # as Prefect's API has them
    """The run is the same without: a server that does not take it is logged and no more."""
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(str(flow_run.id)), **columns)
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("Prefect's page of this flow run lacks its run: %s", error)


def _to_state(outcome: RunOutcome) -> "State[Any]":
    """Failed for all that a person should look at."""
    run = outcome.run
    if outcome.status == "completed":
        return Completed(message=f"Run {run.run_id} completed: {run.n_samples} samples, judged by {run.judge}.")
    if outcome.status == "cancelled":
        return Cancelled(message=f"Run {run.run_id} was stopped; a retry goes on with it.")
    return Failed(message=outcome.problem or explain_incomplete(outcome) or f"Run {run.run_id} {outcome.status}.")


_EVERY_S: Final = 5.0
_BETWEEN_WAITS_S: Final = 60.0


@asynccontextmanager
async def progress_shown(live_run: "LiveRun") -> AsyncIterator[None]:
    """Show the progress within the block; the run is the same where the server does not take it."""
    showing = asyncio.create_task(_show(live_run))
    try:
        yield
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def _show(live_run: "LiveRun") -> None:
    key, last = f"evalhouse-{live_run.run_id.lower()}", ""
    try:
        if href := live_run.settings.href:
            await acreate_link_artifact(link=href, link_text="what is evaluated", key=f"{key}-link")
        artifact_id = await acreate_progress_artifact(progress=0.0, key=f"{key}-progress", description="begun")
        try:
            logged_at = -_BETWEEN_WAITS_S
            while True:
                await asyncio.sleep(_EVERY_S)
                text = describe_progress(live_run).replace("\n", ", ")
                if text != last:
                    await _update(live_run, artifact_id, text)
                if time.monotonic() - logged_at >= _BETWEEN_WAITS_S and (waiting := describe_waiting(live_run)):
                    logged_at = time.monotonic()
                    get_run_logger().info("Waiting: %s.", waiting)
                last = text
        finally:
            await _update(live_run, artifact_id, describe_progress(live_run).replace("\n", ", "))
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("Prefect's page of this run lacks its progress: %s", error)


async def _update(live_run: "LiveRun", artifact_id: UUID, text: str) -> None:
    n_all = count_all_steps(live_run)
    progress = 100.0 * count_steps(live_run) / n_all if n_all else 0.0
    await aupdate_progress_artifact(artifact_id, progress=min(progress, 100.0), description=text)


def describe_waiting(live_run: "LiveRun") -> str | None:
    """What the run's requests wait for, where they wait for their endpoint or a batch."""
    batches = [said for queue in live_run.batch_queues if (said := queue.describe())]
    waits = [said for asker in live_run.askers if (said := asker.limit.describe_wait(time.monotonic()))]
    return "; ".join([*batches, *waits]) or None
