"""What a run that is spread over a work pool asks of the Prefect server: its pool, a deployment of `judge_part` there,
and a flow run for each part."""

from collections.abc import Collection, Mapping
from typing import Any, Final
from uuid import UUID

import httpx
from prefect import Flow
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, State, StateType, WorkerStatus
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Cancelled, Cancelling, Crashed
from prefect.utilities.callables import parameter_schema

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.pools.parts import Part

OUTAGES: Final = (httpx.HTTPError, PrefectException)
"""What a server that is down, or starting anew, answers with."""

_TAG = "evalhouse"
_UNDER_WAY = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_PAGE = 200
# Parts that wait in the pool beside those a worker has: enough for the next worker that is free, and for new ones.
_AHEAD = 2


def find_worker(flow_run: FlowRun | None) -> str | None:
    """The name of the worker that has taken a flow run; None while none has."""
    name = flow_run.labels.get("prefect.worker.name") if flow_run else None
    return str(name) if name is not None else None


class PoolServer:
    """One work pool at one server, for one run."""

    def __init__(self, client: PrefectClient, pool: str, run_id: str) -> None:
        self._client = client
        self.pool = pool
        self._run_tag = f"run {run_id}"
        self._deployment_id: UUID | None = None

    async def register(self, part_flow: Flow[..., Any]) -> None:
        """Have the pool know the flow by which parts are judged; raises SettingsError when there is no such pool."""
        try:
            await self._client.read_work_pool(self.pool)
        except ObjectNotFound:
            known = ", ".join(sorted(pool.name for pool in await self._client.read_work_pools())) or "none"
            raise SettingsError(
                f"the Prefect server has no work pool {self.pool!r} (it has: {known}); make it and start workers on "
                f"your machines: prefect worker start --pool {self.pool} --type process --limit 2"
            ) from None
        # Registering again replaces what an evalhouse of another version has left.
        self._deployment_id = await self._client.create_deployment(
            flow_id=await self._client.create_flow(part_flow),
            name=self.pool,
            description="Judges parts of evaluation runs. Registered by `evalhouse run --pool`.",
            entrypoint=f"{part_flow.fn.__module__}.{part_flow.fn.__name__}",
            work_pool_name=self.pool,
            tags=[_TAG],
            parameter_openapi_schema=parameter_schema(part_flow).model_dump(),
        )

    async def give_out(self, part: Part, parameters: Mapping[str, Any], *, key: str) -> UUID:
        """A flow run for the part; the same key twice makes one."""
        assert self._deployment_id is not None
        flow_run = await self._client.create_flow_run_from_deployment(
            self._deployment_id,
            parameters={**parameters, "first": part.first, "last": part.last, "attempt": part.attempt},
            name=f"{part.run_id} samples {part.first} to {part.last}",
            tags=[_TAG, self._run_tag],
            idempotency_key=key,
        )
        return flow_run.id

    async def list_under_way(self) -> list[Part]:
        """Parts of the run that somebody gave out before and that have not ended."""
        found = await self._client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                tags=FlowRunFilterTags(all_=[self._run_tag]),
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNDER_WAY)),
            ),
            limit=_PAGE,
        )
        return [
            Part(
                run_id=str(flow_run.parameters["run_id"]),
                first=int(flow_run.parameters["first"]),
                last=int(flow_run.parameters["last"]),
                attempt=int(flow_run.parameters["attempt"]),
                flow_run_id=flow_run.id,
            )
            for flow_run in found
            if flow_run.deployment_id == self._deployment_id
        ]

    async def read(self, ids: Collection[UUID]) -> dict[UUID, FlowRun]:
        """The flow runs of these ids, as far as they are still there."""
        wanted = list(ids)
        found: dict[UUID, FlowRun] = {}
        for begin in range(0, len(wanted), _PAGE):
            page = wanted[begin : begin + _PAGE]
            chosen = FlowRunFilter(id=FlowRunFilterId(any_=page))
            found |= {one.id: one for one in await self._client.read_flow_runs(flow_run_filter=chosen, limit=_PAGE)}
        return found

    async def count_room(self, workers: Collection[str]) -> int:
        """How many parts may be out at once: the pool's own limit where it has one, else a few for each worker."""
        limit = (await self._client.read_work_pool(self.pool)).concurrency_limit
        if limit is not None:
            return limit + _AHEAD
        return _AHEAD + _AHEAD * len(workers)

    async def list_workers(self) -> frozenset[str]:
        """The names of the workers that have given signs of life lately."""
        workers = await self._client.read_workers_for_work_pool(self.pool)
        return frozenset(worker.name for worker in workers if worker.status == WorkerStatus.ONLINE)

    async def mark_crashed(self, flow_run_id: UUID) -> None:
        """Say in Prefect that the process of a flow run is gone."""
        told = "The part's lock is free: its process or machine is gone. The part was given to another worker."
        await self._client.set_flow_run_state(flow_run_id, Crashed(message=told), force=True)

    async def cancel(self, flow_run: FlowRun) -> None:
        """Have a part end: at once where nobody has begun it, in good order where somebody has."""
        state = flow_run.state
        if state is None or state.is_final():
            return
        told = "The run was stopped."
        begun = state.is_running() or state.is_cancelling()
        wanted: State[Any] = Cancelling(message=told) if begun else Cancelled(message=told)
        await self._client.set_flow_run_state(flow_run.id, wanted, force=not begun)
