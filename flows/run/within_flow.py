"""A run that is opened by the flow that judges it, as a deployment and a call of the flow from Python have it.

The flow run and its run belong together: a flow run that is tried again, by Prefect or by a person in its UI, goes on
with the run that it had begun, and so does a copy of it while the run has not completed, because the flow run's
parameters name the run from the moment that this is on record.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from evalhouse.flows.errors import explain
from evalhouse.flows.preparing.parameters import EvaluateParameters
from evalhouse.flows.preparing.request import RunRequest, Trigger, find_unfinished
from evalhouse.flows.run.open_run import RunFlow, open_run
from evalhouse.flows.run.outcome import RunOutcome, explain_incomplete
from evalhouse.flows.server.interrupts import wait_for_warehouse
from evalhouse.warehouse.rows.runs import RunRow, find_run, list_runs
from evalhouse.warehouse.store import Warehouse

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun


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
