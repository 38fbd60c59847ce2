"""A run that is opened by the flow that judges it, as in a deployment and a call of the flow from Python; its progress.

The flow run and its run belong together: a flow run that is tried again, by Prefect or by a person in its UI, resumes
the run that it had begun, and so does a copy of it while the run has not completed, because the flow run's parameters
name the run from the moment it is stored.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
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
from evalhouse.flows.preparing.plan import EvaluateParameters
from evalhouse.flows.preparing.request import RunRequest, Trigger, find_unfinished
from evalhouse.flows.results.progress import count_all_steps, count_steps, describe_progress
from evalhouse.flows.run.open_run import RunFlow, open_run
from evalhouse.flows.run.outcome import explain_incomplete
from evalhouse.flows.server.interrupts import wait_for_warehouse
from evalhouse.warehouse.rows.runs import find_run, list_runs
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

_EVERY_S: Final = 5.0
_BETWEEN_WAITS_S: Final = 60.0


async def run_within_flow(parameters: EvaluateParameters, run_flow: RunFlow) -> "State[Any]":
    """Evaluate by these parameters in the flow run that calls this, and return the state that it ends in.

    A flow run that has begun a run resumes it, and so does one that names a run; others begin a new run.
    """

    @contextmanager
    def name_after_run(live_run: "LiveRun") -> Iterator[None]:
        """Name the flow run after its run as soon as that is stored."""
        if live_run.flow_run_id == str(flow_run.id):  # noise and repeats have separate flow runs
            for notice in live_run.notices:
                get_run_logger().info(notice)
            _update_flow_run(
                name=live_run.run_id,
                tags=sorted({*flow_run.tags, *live_run.settings.prefect_tags}),
                parameters={"parameters": {**written, "run_id": live_run.run_id}},
            )
        yield

    written = parameters.model_dump(mode="json", exclude_unset=True, exclude={"run_id"})
    try:
        settings = parameters.resolve().settings
        warehouse, begun = Warehouse(settings.warehouse), None
        if parameters.run_id is not None:
            begun = find_run(warehouse, parameters.run_id)
        elif warehouse.location.lake is not None or warehouse.location.path.exists():
            runs = list_runs(warehouse, kinds=("evaluation", "collection"))
            begun = next((run for run in runs if run.flow_run_id == str(flow_run.id)), None)
        if begun is not None and begun.status == "completed":
            return Completed(
                name="NothingNew",
                message=f"Run {begun.run_id} has completed. For another run leave the parameter run_id empty.",
            )
        with wait_for_warehouse():
            if begun is not None:
                request = find_unfinished(begun.run_id, warehouse_url=settings.warehouse)
                get_run_logger().info("Resuming run %s, which was %s.", begun.run_id, begun.status)
            else:
                request = RunRequest(settings=settings, trigger=Trigger(flow_run_id=str(flow_run.id)))
            # The state that the flow returns has the reason why a run is not a success, so `finish` returns none.
            with open_run(
                request, lambda: run_flow, watch=name_after_run, finish=lambda _: None, in_flow=True
            ) as opened:
                outcome = await opened.run_to_end()
    except Exception as error:  # the flow run ends with the message of an error that has one for a person
        message = explain(error)
        if message is None:
            raise
        return Failed(message=message)
    run = outcome.run
    if outcome.status == "completed":
        _update_flow_run(parameters={"parameters": written})
        return Completed(message=f"Run {run.run_id} completed: {run.n_samples} samples, judged by {run.judge}.")
    if outcome.status == "cancelled":
        return Cancelled(message=f"Run {run.run_id} was stopped; a retry resumes it.")
    return Failed(message=outcome.problem or explain_incomplete(outcome) or f"Run {run.run_id} {outcome.status}.")


def _update_flow_run(**columns: Any) -> None:  # noqa: ANN401  # as Prefect's API has them
    """Change columns of the flow run; a server that does not take them is logged, and the run is the same without."""
    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run(UUID(str(flow_run.id)), **columns)
    except (httpx.HTTPError, PrefectException) as error:
        get_run_logger().warning("Prefect's page of this flow run lacks its run: %s", error)


@asynccontextmanager
async def progress_shown(live_run: "LiveRun") -> AsyncIterator[None]:
    """Within the block, show the progress on the flow run's page in Prefect: an artifact updated every few seconds, a
    line in its log about what requests wait for, and a link to what is evaluated.

    A server that does not take them is logged, and the run is the same without.
    """

    async def update(artifact_id: UUID, text: str) -> None:
        n_all = count_all_steps(live_run)
        progress = 100.0 * count_steps(live_run) / n_all if n_all else 0.0
        await aupdate_progress_artifact(artifact_id, progress=min(progress, 100.0), description=text)

    async def show() -> None:
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
