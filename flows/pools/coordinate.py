"""The samples of a run spread over workers: parts given out through a work pool, watched, and given out again when
their worker is lost. What a worker does with one is in `flows/part.py`.

This process asks the judge nothing. It stages, loads and scores; in between it looks once a second at the flow
runs of its parts and at the locks that their workers hold. Nothing of this is kept here: which samples are judged
is in the warehouse, so that a run whose coordinator dies is resumed like any other, and takes up the parts that
are still being worked on.
"""

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

import httpx
from prefect import Flow
from prefect.client.orchestration import PrefectClient, get_client
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
from evalhouse.flows.pools.parts import (
    MOST_ATTEMPTS,
    Part,
    PartState,
    PoolCounts,
    check_pool,
    cut_parts,
    describe_order,
    keep_counting,
    list_shards,
)
from evalhouse.flows.results.output import print_notice
from evalhouse.flows.server.api import TAG, tag_run
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.warehouse.engine.locks import list_held
from evalhouse.warehouse.errors import WarehouseBusy
from evalhouse.warehouse.rows.samples import FAILURE_REASONS, list_unfinished_shards

OUTAGES: Final = (httpx.HTTPError, PrefectException)
_UNDER_WAY = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_PAGE = 200
# Parts that wait in the pool beside those a worker has: enough for the next worker that is free, and for new ones.
_AHEAD = 2
_LOOK_S = 1.0
_ROOM_S = 5.0
# How long nobody may take a part before a person is informed.
_UNTAKEN_S = 30.0
# How long a server may be down before the run is given up; it can be resumed then.
_OUTAGE_S = 600.0
# How long parts that are stopped may take to put away what they have.
_WIND_DOWN_S = 30.0


class PoolServer:
    """One work pool at one server, for one run."""

    def __init__(self, client: PrefectClient, pool: str, run_id: str) -> None:
        self._client = client
        self.pool = pool
        self._run_tag = tag_run(run_id)
        self._deployment_id: UUID | None = None

    async def register(self, part_flow: Flow[..., Any]) -> None:
        """Register with the pool the flow that judges parts; raises SettingsError when there is no such pool."""
        try:
            await self._client.read_work_pool(self.pool)
        except ObjectNotFound:
            names = ", ".join(sorted(pool.name for pool in await self._client.read_work_pools())) or "none"
            raise SettingsError(
                f"the Prefect server has no work pool {self.pool!r} (it has: {names}); make it and start workers on "
                f"your machines: prefect worker start --pool {self.pool} --type process --limit 2"
            ) from None
        # Registering again replaces what an evalhouse of another version has left.
        self._deployment_id = await self._client.create_deployment(
            flow_id=await self._client.create_flow(part_flow),
            name=self.pool,
            description="Judges parts of evaluation runs. Registered by `evalhouse run --pool`.",
            entrypoint=f"{part_flow.fn.__module__}.{part_flow.fn.__name__}",
            work_pool_name=self.pool,
            tags=[TAG],
            parameter_openapi_schema=parameter_schema(part_flow).model_dump(),
        )

    async def give_out(self, part: Part, parameters: Mapping[str, Any], *, key: str) -> UUID:
        """A flow run for the part; the same key twice makes one."""
        assert self._deployment_id is not None
        flow_run = await self._client.create_flow_run_from_deployment(
            self._deployment_id,
            parameters={**parameters, "first": part.first, "last": part.last, "attempt": part.attempt},
            name=f"{part.run_id} samples {part.first} to {part.last}",
            tags=[TAG, self._run_tag],
            idempotency_key=key,
        )
        return flow_run.id

    async def list_under_way(self) -> dict[UUID, Part]:
        """Parts of the run that another process gave out before and that have not ended, by flow run."""
        flow_runs = await self._client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                tags=FlowRunFilterTags(all_=[self._run_tag]),
                state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNDER_WAY)),
            ),
            limit=_PAGE,
        )
        return {
            flow_run.id: Part(
                run_id=str(flow_run.parameters["run_id"]),
                first=int(flow_run.parameters["first"]),
                last=int(flow_run.parameters["last"]),
                attempt=int(flow_run.parameters["attempt"]),
                flow_run_id=flow_run.id,
            )
            for flow_run in flow_runs
            if flow_run.deployment_id == self._deployment_id
        }

    async def read(self, ids: Collection[UUID]) -> dict[UUID, FlowRun]:
        """The flow runs of these ids, as far as they are still there."""
        wanted = list(ids)
        flow_runs: list[FlowRun] = []
        for begin in range(0, len(wanted), _PAGE):
            chosen = FlowRunFilter(id=FlowRunFilterId(any_=wanted[begin : begin + _PAGE]))
            flow_runs += await self._client.read_flow_runs(flow_run_filter=chosen, limit=_PAGE)
        return {flow_run.id: flow_run for flow_run in flow_runs}

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
        message = "The part's lock is free: its process or machine is gone. The part was given to another worker."
        await self._client.set_flow_run_state(flow_run_id, Crashed(message=message), force=True)

    async def cancel(self, flow_run: FlowRun) -> None:
        """End a part: at once where no worker has begun it, else after it has put away what it has."""
        state = flow_run.state
        if state is None or state.is_final():
            return
        message = "The run was stopped."
        begun = state.is_running() or state.is_cancelling()
        state_set: State[Any] = Cancelling(message=message) if begun else Cancelled(message=message)
        await self._client.set_flow_run_state(flow_run.id, state_set, force=not begun)


async def judge_elsewhere(live_run: LiveRun, part_flow: Flow[..., Any], numbers: Sequence[int]) -> None:
    """Have the shards of these numbers judged by a work pool's workers, which run `part_flow` for each part."""
    check_pool(live_run.settings)
    assert live_run.settings.pool is not None
    async with get_client() as client:
        server = PoolServer(client, live_run.settings.pool, live_run.run_id)
        await server.register(part_flow)
        await _PoolRun(live_run, server, list(numbers)).finish()


class _PoolRun:
    """One run over one pool, from its first part to its last."""

    def __init__(self, live_run: LiveRun, server: PoolServer, numbers: list[int]) -> None:
        self._live_run, self._server, self._numbers = live_run, server, numbers
        self._waiting: list[Part] = []
        self._out: dict[UUID, PartState] = {}
        self._order: Mapping[str, Any] = {}
        self._room, self._workers, self._room_at = 0, frozenset[str](), float("-inf")
        self._has_warned = False

    async def finish(self) -> None:
        """Return when all samples have their verdicts; raises what stopped the run, with no part left at work."""
        live_run = self._live_run
        counts = await asyncio.to_thread(PoolCounts, live_run)
        self._order = await asyncio.to_thread(describe_order, live_run)
        async with keep_counting(counts, leave_out_failed=live_run.resumed):
            try:
                # Parts that an earlier process has given out are waited for like our own.
                under_way = await self._server.list_under_way()
                self._out = {flow_run_id: PartState(part=part) for flow_run_id, part in under_way.items()}
                numbers = self._numbers
                for attempt in range(1, MOST_ATTEMPTS + 1):
                    await self._judge(numbers, attempt)
                    numbers = await asyncio.to_thread(self._list_missing)
                    if not numbers:
                        return
                raise FatalJudgeError(
                    f"{len(numbers)} shards are without verdicts though their parts have ended well; has somebody "
                    f"deleted rows of run {live_run.run_id}? `evalhouse resume {live_run.run_id}` judges them"
                )
            except BaseException:  # whatever stops it, Ctrl-C too: no part is left at work
                await self._cancel_all()
                raise

    def _list_missing(self) -> list[int]:
        """Return which shards of the run have a sample without verdicts."""
        live_run = self._live_run
        missing = set(list_unfinished_shards(live_run.warehouse, live_run.run_id, live_run.settings.shard_size, ()))
        return [number for number in self._numbers if number in missing]

    async def _judge(self, numbers: Sequence[int], attempt: int) -> None:
        """Give out the shards that no part holds, as workers have room, until all parts have ended."""
        settings = self._live_run.settings
        given_out = {
            number
            for out in self._out.values()
            for number in list_shards(out.part.first, out.part.last, settings.shard_size)
        }
        parts = cut_parts(
            self._live_run.run_id,
            [number for number in numbers if number not in given_out],
            shard_size=settings.shard_size,
            part_size=settings.part_size,
            n_samples=self._live_run.progress.n_samples,
        )
        self._waiting = [replace(part, attempt=attempt) for part in parts]
        answered_at = time.monotonic()
        while self._waiting or self._out:
            try:
                await self._give_out()
                await self._look()
                answered_at = time.monotonic()
            except (*OUTAGES, WarehouseBusy) as error:
                if time.monotonic() - answered_at > _OUTAGE_S:
                    raise FatalJudgeError(
                        f"the Prefect server or the warehouse has not answered for {_OUTAGE_S / 60:.0f} minutes "
                        f"({error}); what the workers judged meanwhile is kept: "
                        f"evalhouse resume {self._live_run.run_id}"
                    ) from None
            if self._waiting or self._out:
                await self._live_run.asker.stop_sign.sleep(_LOOK_S)

    async def _give_out(self) -> None:
        """Give out parts as long as workers have room for them."""
        if self._waiting:
            await self._look_at_workers()
        while self._waiting and len(self._out) < self._room:
            part = self._waiting[0]
            key = f"{part.run_id}/{self._live_run.session}/{part.first}-{part.last}/{part.attempt}"
            flow_run_id = await self._server.give_out(part, self._order, key=key)
            self._waiting.pop(0)
            self._out[flow_run_id] = PartState(part=replace(part, flow_run_id=flow_run_id))

    async def _look_at_workers(self) -> None:
        if time.monotonic() - self._room_at > _ROOM_S:
            self._workers = await self._server.list_workers()
            self._room = await self._server.count_room(self._workers)
            self._room_at = time.monotonic()

    async def _look(self) -> None:
        """Read the state of all parts, and act on it."""
        seen = await self._server.read(self._out)
        held = await self._list_held()
        await self._look_at_workers()
        for flow_run_id, out in list(self._out.items()):
            flow_run = seen.get(flow_run_id)
            # A flow run that was deleted in Prefect counts as cancelled.
            state = flow_run.state if flow_run else None
            type_name, name = (state.type.value, state.name or "") if state else ("CANCELLED", "")
            message = (state.message if state else None) or "no reason given"
            worker = flow_run.labels.get("prefect.worker.name") if flow_run else None
            out.update(type_name, name, held=out.part.lock_name in held, worker_lives=worker in self._workers)
            match out.decide():
                case "done":
                    del self._out[flow_run_id]
                case "stop":
                    raise FatalJudgeError(message)
                case "lost":
                    await self._give_again(flow_run, out.part, message)
        is_untaken = self._out and all(
            out.state_type == "SCHEDULED" and out.unchanged_s >= _UNTAKEN_S for out in self._out.values()
        )
        if is_untaken and not self._workers and not self._has_warned:
            self._has_warned = True
            print_notice(
                f"No worker takes work from pool {self._server.pool!r}. On each machine that is to judge: "
                f"prefect worker start --pool {self._server.pool} --type process --limit 2"
            )

    async def _give_again(self, flow_run: FlowRun | None, part: Part, message: str) -> None:
        """Give the samples of a lost part to another worker, unless it was done and only its end is unreported."""
        assert part.flow_run_id is not None
        live_run, size = self._live_run, self._live_run.settings.shard_size
        failures = FAILURE_REASONS if live_run.resumed else ()
        unfinished = await asyncio.to_thread(
            list_unfinished_shards, live_run.warehouse, live_run.run_id, size, failures
        )
        if set(unfinished).isdisjoint(list_shards(part.first, part.last, size)):
            del self._out[part.flow_run_id]
            return
        if flow_run is not None and flow_run.state is not None and not flow_run.state.is_final():
            await self._server.mark_crashed(part.flow_run_id)
            message = "its process is gone"
        del self._out[part.flow_run_id]
        if part.attempt >= MOST_ATTEMPTS:
            raise FatalJudgeError(
                f"samples {part.first} to {part.last} were given to {part.attempt} workers and none has finished them; "
                f"the last one: {message}"
            )
        self._waiting.insert(0, part.again())

    async def _cancel_all(self) -> None:
        """Cancel all parts; wait a little for those at work to write their results."""
        with contextlib.suppress(*OUTAGES, WarehouseBusy):
            for flow_run in (await self._server.read(self._out)).values():
                await self._server.cancel(flow_run)
            deadline = time.monotonic() + _WIND_DOWN_S
            while await self._list_held() and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_S)

    async def _list_held(self) -> set[str]:
        names = [out.part.lock_name for out in self._out.values()]
        return await asyncio.to_thread(list_held, self._live_run.warehouse.location, names)
