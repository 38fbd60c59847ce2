"""The flow that a worker of a work pool runs, and the work on one part of a run.

Prefect imports the flow by its name, so nothing but evalhouse has to be on the worker's machine. Everything else is
found through the warehouse: the settings are in the run's row, the samples in their tables, and what was answered is on
record. A part's lock keeps a second worker away; where an earlier one has begun the part and died, its verdicts are
replaced and its replies are used again. `pools/coordinate.py` gives the parts out.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal
from uuid import UUID

import httpx
from prefect import Flow, flow
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
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed
from prefect.utilities.callables import parameter_schema

from evalhouse.flows.errors import SettingsError, explain
from evalhouse.flows.preparing.live_run import make_tools
from evalhouse.flows.preparing.request import find_code_version
from evalhouse.flows.results.output import print_notice
from evalhouse.flows.server.api import TAG, tag_run
from evalhouse.flows.server.environment import find_api_url
from evalhouse.flows.server.interrupts import Interrupts
from evalhouse.flows.shards import count_turns, judge_shard, take_turns
from evalhouse.tasks.asking.embeddings import repeat_embeddings
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.judge.errors import FatalJudgeError, RunCancelled
from evalhouse.tasks.judge.protocol import RepeatedJudge
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.pipeline.run_step import FLOW_OPTIONS, registered
from evalhouse.tasks.settings.run import read_settings
from evalhouse.warehouse.engine.locks import HeldLock, find_lock_file, hold, hold_file, list_held
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.rows.samples import FAILURE_REASONS, list_unfinished_shards
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Warehouse

MOST_ATTEMPTS: Final = 4
STOPPED: Final = "Stopped"
"""Name of the state of a part that has failed in a way that no other worker could avoid."""
Verdict = Literal["wait", "done", "lost", "stop"]
# A process that has let go of a part's lock is about to report how it ended.
_AFTER_HELD_S = 5.0
# Before the lock is taken a process starts, or a container, on a machine that may be busy: minutes, as long as the
# worker that has taken the part gives signs of life.
_STARTING_S = 30.0
_STARTING_MOST_S = 600.0
_LOST = ("FAILED", "CRASHED", "CANCELLED")
_COUNT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """Samples `first` to `last` of a run, by ordinal; `attempt` counts from 1 how often they were given out."""

    run_id: str
    first: int
    last: int
    attempt: int = 1
    flow_run_id: UUID | None = None

    @property
    def lock_name(self) -> str:
        """The lock that is held while somebody works on the part."""
        return name_lock(self.run_id, self.first)

    @property
    def n_samples(self) -> int:
        """How many samples it has."""
        return self.last - self.first + 1

    def again(self) -> "Part":
        """The same samples, to be given to another worker."""
        return replace(self, attempt=self.attempt + 1, flow_run_id=None)


@dataclass(kw_only=True)
class PartState:
    """A part that is out: Prefect's state, whether its lock is held or was, since when that is so (by the monotonic
    clock), and whether the worker that has taken it gives signs of life."""

    part: Part
    state_type: str = ""
    state_name: str = ""
    held: bool = False
    was_held: bool = False
    worker_lives: bool = False
    since: float = field(default_factory=time.monotonic)

    @property
    def unchanged_s(self) -> float:
        """Seconds since the state or the lock changed."""
        return time.monotonic() - self.since

    def update(self, state_type: str, state_name: str, *, held: bool, worker_lives: bool) -> None:
        """Note what is seen of the part now."""
        if (self.state_type, self.held) != (state_type, held):
            self.since = time.monotonic()
        self.state_type, self.state_name, self.held, self.worker_lives = state_type, state_name, held, worker_lives
        self.was_held = self.was_held or held

    def decide(self) -> Verdict:
        """What to do about the part.

        As long as its lock is held a process works on it, whatever Prefect says. That a part has completed is believed;
        whether all its verdicts are there is looked up when all parts have ended.
        """
        if self.state_type == "COMPLETED":
            return "done"
        if self.state_type == "FAILED" and self.state_name == STOPPED:
            return "stop"
        if self.held or self.state_type == "SCHEDULED":
            return "wait"
        if self.state_type in _LOST:
            return "lost"
        patience_s = _STARTING_MOST_S if self.worker_lives else _STARTING_S
        return "lost" if self.unchanged_s >= (_AFTER_HELD_S if self.was_held else patience_s) else "wait"


def name_lock(run_id: str, first: int) -> str:
    """The name of the lock of the part that begins with this sample."""
    return f"part-{run_id}-{first}"


def cut_parts(run_id: str, numbers: Sequence[int], *, shard_size: int, part_size: int, n_samples: int) -> list[Part]:
    """Neighbouring shards together, as many as make a part; shards are numbered from 0, in order."""
    most = max(1, part_size // shard_size)
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1 and len(groups[-1]) < most:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [
        Part(run_id=run_id, first=group[0] * shard_size + 1, last=min((group[-1] + 1) * shard_size, n_samples))
        for group in groups
    ]


def list_shards(first: int, last: int, shard_size: int) -> range:
    """The numbers of the shards between two ordinals."""
    return range((first - 1) // shard_size, (last - 1) // shard_size + 1)


def describe_order(live_run: LiveRun) -> dict[str, Any]:
    """Return what every part of the run gets besides which samples are its own."""
    config = find_run(live_run.warehouse, live_run.run_id).config
    settings = live_run.settings.model_dump(mode="json")
    changes = {name: value for name, value in settings.items() if name in config and value != config[name]}
    changes.pop("warehouse", None)
    return {
        "run_id": live_run.run_id,
        "warehouse": live_run.warehouse.location.url,
        "code_version": find_code_version(),
        "judge_failed": live_run.resumed,
        "changes": changes,
    }


class PoolCounts:
    """Keeps a live run's counts and progress up to date from the warehouse; what was there before is not counted."""

    def __init__(self, live_run: LiveRun) -> None:
        self._live_run = live_run
        self._before = _read_calls(live_run.warehouse, live_run.run_id)

    def refresh(self, *, leave_out_failed: bool) -> None:
        """Count again; `leave_out_failed` when failed samples are to be judged once more."""
        live_run = self._live_run
        parameters = {"run_id": live_run.run_id, "failures": list(FAILURE_REASONS) if leave_out_failed else []}
        (row,) = live_run.warehouse.fetch_rows("pools/done", **parameters)
        live_run.progress.n_done = int(str(row["n"]))
        usage = _read_calls(live_run.warehouse, live_run.run_id) - self._before
        usage.unpriced = usage.requests if any(asker.price is None for asker in live_run.asker.all) else 0
        live_run.asker.counts = usage


@contextlib.asynccontextmanager
async def keep_counting(counts: PoolCounts, *, leave_out_failed: bool) -> AsyncIterator[None]:
    """Count every few seconds within the block, and once more at its end."""

    async def count() -> None:
        while True:
            await asyncio.sleep(_COUNT_S)
            with contextlib.suppress(WarehouseBusy):
                await asyncio.to_thread(counts.refresh, leave_out_failed=leave_out_failed)

    counting = asyncio.create_task(count())
    try:
        yield
    finally:
        counting.cancel()
        await asyncio.wait([counting])
        await asyncio.to_thread(counts.refresh, leave_out_failed=False)


def _read_calls(warehouse: Warehouse, run_id: str) -> Usage:
    (row,) = warehouse.fetch_rows("pools/calls", run_id=run_id)
    spent_usd = float(str(row.pop("spent_usd")))
    return Usage(spent_usd=spent_usd, **{name: int(str(value)) for name, value in row.items()})


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


# The coordinator looks at a part's lock for a moment only, so it is tried for longer than that.
_LOCK_S = 5.0
_DRAIN_S = 3.0
_WATCH_S = 3.0
_UNWANTED = "stopped by the process that had given the part out"


@dataclass(frozen=True, kw_only=True)
class PartOrder:
    """Samples `first` to `last` of a run, by ordinal, to be judged by this process.

    `judge_failed` says that samples which failed before are judged again, `changes` which settings of the run differ
    from those on record, and `code_version` which evalhouse has given the part out.
    """

    run_id: str
    warehouse: str
    first: int
    last: int
    code_version: str
    judge_failed: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)


@flow(name="judge-part", **FLOW_OPTIONS, validate_parameters=True)
async def judge_part(
    *,
    run_id: str,
    warehouse: str,
    first: int,
    last: int,
    attempt: int,
    code_version: str,
    judge_failed: bool = False,
    changes: dict[str, Any] | None = None,
) -> "State[Any]":
    """Judge samples `first` to `last` of a run, by ordinal; see `PartOrder`.

    It ends as Failed "Stopped" when no other worker could do better.
    """
    order = PartOrder(
        run_id=run_id,
        warehouse=warehouse,
        first=first,
        last=last,
        code_version=code_version,
        judge_failed=judge_failed,
        changes=changes or {},
    )
    get_run_logger().info("Samples %d to %d of run %s, attempt %d.", first, last, run_id, attempt)
    try:
        n_shards = await work_on_part(order)
    except RunCancelled as error:
        return Cancelled(message=str(error))
    except WarehouseError as error:  # it may be this machine's problem; another one may try
        return Failed(message=str(error))
    except Exception as error:  # an error that has a message for a person ends the flow run with that message
        message = explain(error)
        if message is None:
            raise
        return Failed(name=STOPPED, message=message) if isinstance(error, FatalJudgeError) else Failed(message=message)
    return Completed(message=f"{n_shards} shards were judged.")


async def work_on_part(order: PartOrder) -> int:
    """Judge what is not judged of a part and return how many shards that were.

    Raises RunCancelled when the part is not wanted any more or the process is ordered to end, WarehouseBusy when
    another process works on the part, FatalJudgeError and WarehouseError.
    """
    warehouse = Warehouse(order.warehouse)
    if warehouse.location.lake is None:
        raise WarehouseError(f"{warehouse.location.name} is one file; parts of a run are judged in a lake")
    if not await _is_wanted():
        raise RunCancelled(_UNWANTED)
    busy = f"another process is on the part of run {order.run_id} that begins with sample {order.first}"
    name = name_lock(order.run_id, order.first)
    with (
        Interrupts() as interrupts,
        hold(warehouse.location, name, patience_s=_LOCK_S, busy=busy) as lock,
    ):
        # What dead processes of this machine have left are replies that need not be paid for again. Another process
        # that takes them in is waited for, because this one may be about to ask for the same.
        busy = "another process of this machine is taking in what dead ones have left, and does not come to an end"
        with hold_file(find_lock_file(warehouse.location, "orphans"), patience_s=FLUSH_PATIENCE_S, busy=busy):
            take_in_orphans(warehouse)
            warehouse.flush()
        with _open_live_run(order, warehouse) as live_run:
            loop = asyncio.get_running_loop()

            def stop(signal_name: str) -> None:
                cancelled = RunCancelled(f"stopped by {signal_name}")
                loop.call_soon_threadsafe(partial(live_run.stop, cancelled, drain_s=_DRAIN_S))

            with interrupts.answered_by(stop):
                async with _watch(live_run, lock):
                    n_shards = await _judge_shards(live_run, order)
            interrupts.note_only()
        warehouse.flush()
    return n_shards


@contextmanager
def _open_live_run(order: PartOrder, warehouse: Warehouse) -> Iterator[LiveRun]:
    """Make the live run of the part; its calls are in the warehouse when the block has ended."""
    if order.code_version != find_code_version():
        raise FatalJudgeError(
            f"this worker has evalhouse {find_code_version()}, and its work was given out by {order.code_version}; "
            "install the same version on all machines, and start the workers again"
        )
    run = find_run(warehouse, order.run_id)
    settings = read_settings({**run.config, **order.changes, "warehouse": order.warehouse})
    tools = make_tools(settings, run.kind)
    if run.kind == "noise":
        tools = replace(tools, judges=tools.judges.change(lambda judge: RepeatedJudge(judge, run.run_id)))
    live_run = tools.make_live_run(run.run_id, warehouse)
    live_run.resumed = True  # verdicts of an earlier worker are replaced
    live_run.progress.n_samples = run.n_samples or 0
    if run.kind == "noise":
        repeat_embeddings(live_run.embedder, run.run_id)
    try:
        with registered(live_run):
            yield live_run
    finally:
        live_run.asker.record.close()


@asynccontextmanager
async def _watch(live_run: LiveRun, lock: HeldLock) -> AsyncIterator[None]:
    """Within the block, stop the live run when its part was given to another process or is not wanted any more."""

    async def watch() -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            if not await asyncio.to_thread(lock.is_held):
                why = "stopped because the part's lock was lost"
            elif not await _is_wanted():
                why = _UNWANTED
            else:
                continue
            live_run.stop(RunCancelled(why), drain_s=_DRAIN_S)
            return

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _is_wanted() -> bool:
    """Return whether this flow run was never cancelled nor given up; a server that does not answer counts as yes.

    All its states are looked at, because a process that is just starting sets a flow run under way again that was
    cancelled a moment before.
    """
    try:
        async with get_client() as client:
            states = await client.read_flow_run_states(UUID(str(flow_run.id)))
    except ObjectNotFound:
        return False
    except (httpx.HTTPError, PrefectException):
        return True
    return bool(states) and not any(state.is_final() or state.is_cancelling() for state in states)


async def _judge_shards(live_run: LiveRun, order: PartOrder) -> int:
    size = live_run.settings.shard_size
    failures = FAILURE_REASONS if order.judge_failed else ()
    unfinished = await asyncio.to_thread(list_unfinished_shards, live_run.warehouse, live_run.run_id, size, failures)
    of_part = list_shards(order.first, order.last, size)
    numbers = [number for number in unfinished if number in of_part]
    at_once = min(count_turns(live_run.settings.concurrency, live_run), len(numbers)) or 1
    try:
        if find_api_url() is not None:
            live_run.share_limits(at_once)
        await take_turns(numbers, lambda number: judge_shard(live_run, number), at_once=at_once)
    finally:
        await live_run.close()
    return len(numbers)
