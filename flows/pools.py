"""The samples of a run spread over the workers of a work pool.

The run's own process, the coordinator, asks the judge nothing. It stages, loads and scores; in between it gives out
parts as child flow runs of the run, looks once a second at their states and at the locks that their workers hold, and
gives a part out again when its worker is lost. Each change of a part is a line in the run's log, an event in Prefect
and a row of `part_changes`. The warehouse has which samples are judged, so that a run whose coordinator dies is resumed
like any other, and includes the parts that are still being worked on.

A worker runs the flow `judge_part`, which Prefect imports by its name, so that only evalhouse has to be on the worker's
machine: settings, samples and stored replies are in the warehouse. A flow run that starts costs seconds, so a part has
some hundreds of samples: whole shards, one after the other. Prefect's state is one sign of how a part is doing; the
other is the lock that its process holds. It is free within a second of the worker's death, where Prefect's heartbeats
take over a minute. The next worker replaces verdicts of the dead one and uses its replies again.
"""

import asyncio
import contextlib
import logging
import shlex
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal
from urllib.parse import urlsplit
from uuid import UUID

import httpx
from prefect import flow
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, RunInput, State, StateDetails, StateType, WorkerStatus
from prefect.events import emit_event
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Cancelling, Completed, Crashed, Failed
from prefect.utilities.callables import parameter_schema
from prefect.utilities.engine import collect_task_run_inputs

from evalhouse.flows.errors import SettingsError, explain
from evalhouse.flows.preparing.live_run import make_tools
from evalhouse.flows.preparing.request import find_code_version
from evalhouse.flows.results.output import print_notice
from evalhouse.flows.server.api import TAG, tag_run
from evalhouse.flows.server.environment import LOOPBACK, find_api_url
from evalhouse.flows.server.interrupts import Interrupts
from evalhouse.flows.shards import count_turns, create_child_task, judge_shard, take_turns, wait_while_paused
from evalhouse.tasks.asking.embeddings import repeat_embeddings
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.judge.protocol import FatalJudgeError, RepeatedJudge, RunCancelled
from evalhouse.tasks.pipeline.live_run import FLOW_OPTIONS, LiveRun, Stored, registered
from evalhouse.tasks.settings.run import read_settings
from evalhouse.warehouse.engine.locks import HeldLock, find_lock_file, hold, hold_file, list_held
from evalhouse.warehouse.errors import WarehouseBusy, WarehouseError
from evalhouse.warehouse.mover import take_in_orphans
from evalhouse.warehouse.rows.runs import find_run, now_utc
from evalhouse.warehouse.rows.samples import FAILURE_REASONS, list_unfinished_shards
from evalhouse.warehouse.store import FLUSH_PATIENCE_S, Batch, Warehouse, build_frame

MAX_ATTEMPTS: Final = 4
STOPPED: Final = "Stopped"
"""The name of the state of a part that has failed in a way that no other worker could avoid."""
Verdict = Literal["wait", "done", "lost", "stop"]
Change = Literal["given out", "done", "lost", "stopped"]
"""A change of a part, as in the table `part_changes`."""
OUTAGES: Final = (httpx.HTTPError, PrefectException)
# A process that has released a part's lock is about to report how it ended.
_AFTER_HELD_S = 5.0
# Before the lock is taken a process starts, or a container, on a machine that may be busy: minutes, as long as the
# worker that has taken the part gives signs of life.
_STARTING_S = 30.0
_MAX_STARTING_S = 600.0
_LOST = ("FAILED", "CRASHED", "CANCELLED")
_IN_PROGRESS = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
_PAGE = 200
# Parts that wait in the pool for a worker: enough for the next free one, and for new ones.
_AHEAD = 2
_COUNT_S = 2.0
_LOOK_S = 1.0
_WORKERS_S = 5.0
# How long a part may wait without a worker before a person is informed.
_UNTAKEN_S = 30.0
# How long a server may be down before the run is given up; it can be resumed then.
_OUTAGE_S = 600.0
# How long stopped parts may take to write their results.
_WIND_DOWN_S = 30.0
# The coordinator holds a part's lock for a moment only when it looks at it, so a worker tries for longer than that.
_LOCK_S = 5.0
_DRAIN_S = 3.0
_WATCH_S = 3.0
_UNWANTED = "stopped by the process that had given the part out"


@dataclass(frozen=True, kw_only=True)
class Part:
    """Samples `first` to `last` of a run, by ordinal; `attempt` counts from 1 how often they were given out."""

    run_id: str
    first: int
    last: int
    attempt: int = 1

    @property
    def lock_name(self) -> str:
        """The lock that a worker holds while it works on the part."""
        return f"part-{self.run_id}-{self.first}"


@dataclass(kw_only=True)
class PartState:
    """A part that is given out: Prefect's state, whether its lock is held or was, the time of the last change of these
    (by the monotonic clock), and whether the worker that has taken it gives signs of life."""

    part: Part
    worker: str | None = None
    state_type: str = ""
    state_name: str = ""
    held: bool = False
    was_held: bool = False
    worker_lives: bool = False
    since: float = field(default_factory=time.monotonic)

    def decide(self) -> Verdict:
        """Return what to do about the part.

        As long as its lock is held a process works on it, in any state of Prefect. A completed part counts
        as done; whether all its verdicts are stored is checked when all parts have ended.
        """
        if self.state_type == "COMPLETED":
            return "done"
        if self.state_type == "FAILED" and self.state_name == STOPPED:
            return "stop"
        if self.held or self.state_type == "SCHEDULED":
            return "wait"
        if self.state_type in _LOST:
            return "lost"
        patience_s = _MAX_STARTING_S if self.worker_lives else _STARTING_S
        if self.was_held:
            patience_s = _AFTER_HELD_S
        return "lost" if time.monotonic() - self.since >= patience_s else "wait"


def cut_parts(
    run_id: str, numbers: Sequence[int], *, shard_size: int, part_size: int, n_samples: int, n_workers: int = 0
) -> list[Part]:
    """Return parts of neighbouring shards, as many as fit a part; shards are numbered from 0, in order.

    Parts of `part_size` samples are cut smaller where there are more workers than such parts.
    """
    max_shards = max(1, min(part_size // shard_size, -(-len(numbers) // max(1, n_workers))))
    groups: list[list[int]] = []
    for number in numbers:
        if groups and number == groups[-1][-1] + 1 and len(groups[-1]) < max_shards:
            groups[-1].append(number)
        else:
            groups.append([number])
    return [
        Part(run_id=run_id, first=group[0] * shard_size + 1, last=min((group[-1] + 1) * shard_size, n_samples))
        for group in groups
    ]


def list_shards(part: Part, shard_size: int) -> range:
    """Return the numbers of a part's shards."""
    return range((part.first - 1) // shard_size, (part.last - 1) // shard_size + 1)


async def judge_elsewhere(live_run: LiveRun, numbers: Sequence[int], samples: Stored) -> list[State]:
    """Let the workers of the run's work pool judge the shards of these numbers; return the states of their parts."""
    async with get_client() as client:
        return await _PoolRun(live_run, client, await collect_task_run_inputs(samples)).judge(numbers)


class _PoolRun:
    """One run over one pool, from its first part to its last."""

    def __init__(self, live_run: LiveRun, client: PrefectClient, earlier: Iterable[RunInput]) -> None:
        assert live_run.settings.pool is not None
        self._earlier: list[Any] = [*earlier]
        self._live_run, self._client, self._pool = live_run, client, live_run.settings.pool
        self._run_tag = tag_run(live_run.run_id)
        self._deployment_id: UUID | None = None
        self._waiting: list[Part] = []
        self._out: dict[UUID, PartState] = {}
        self._limit: int | None = None
        self._workers, self._workers_at = frozenset[str](), float("-inf")
        self._has_warned = False
        self._changes: list[dict[str, object]] = []
        self._n_batches = 0
        self._ended: list[State] = []

    async def judge(self, numbers: Sequence[int]) -> list[State]:
        """Return the states of the parts when all samples have their verdicts.

        Raises what stopped the run, with no part left running.
        """
        live_run, size, missing = self._live_run, self._live_run.settings.shard_size, list(numbers)
        await self.register()
        async with _counting(live_run):
            try:
                # Parts that an earlier process has given out are waited for as well.
                flow_runs = await self._client.read_flow_runs(
                    flow_run_filter=FlowRunFilter(
                        tags=FlowRunFilterTags(all_=[self._run_tag]),
                        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_IN_PROGRESS)),
                    ),
                    limit=_PAGE,
                )
                for flow_run in flow_runs:
                    if flow_run.deployment_id == self._deployment_id:
                        given = flow_run.parameters
                        first, last, attempt = (int(given[name]) for name in ("first", "last", "attempt"))
                        part = Part(run_id=str(given["run_id"]), first=first, last=last, attempt=attempt)
                        self._out[flow_run.id] = PartState(part=part)
                for attempt in range(1, MAX_ATTEMPTS + 1):
                    await self.judge_shards(missing, attempt)
                    unfinished = await asyncio.to_thread(
                        list_unfinished_shards, live_run.warehouse, live_run.run_id, size, ()
                    )
                    missing = [number for number in numbers if number in unfinished]
                    if not missing:
                        return self._ended
                raise FatalJudgeError(
                    f"{len(missing)} shards are without verdicts though their parts have ended well; were rows of run "
                    f"{live_run.run_id} deleted? `evalhouse resume {live_run.run_id}` judges them"
                )
            except BaseException:  # on any stop, Ctrl-C too, no part is left running
                await self.cancel_all()
                raise
            finally:
                with contextlib.suppress(WarehouseError):
                    await self.write_changes()

    async def register(self) -> None:
        """Register the flow that judges parts with the pool; raises SettingsError if the server has no such pool."""
        try:
            pool = await self._client.read_work_pool(self._pool)
        except ObjectNotFound:
            names = ", ".join(sorted(pool.name for pool in await self._client.read_work_pools())) or "none"
            raise SettingsError(
                f"the Prefect server has no work pool {self._pool!r} (it has: {names}); make it and start workers on "
                f"your machines: prefect worker start --pool {self._pool} --type process --limit 2"
            ) from None
        # Without a command Prefect's process worker first starts two processes that look for code to fetch.
        command = pool.base_job_template.get("variables", {}).get("properties", {}).get("command", {})
        is_here = urlsplit(str(self._client.api_url)).hostname in LOOPBACK
        job_variables = None
        if pool.type == "process" and is_here and command.get("default") is None:
            job_variables = {"command": f"{shlex.quote(sys.executable)} -m prefect.engine"}
        # Registering again replaces the deployment of another version of evalhouse.
        self._deployment_id = await self._client.create_deployment(
            flow_id=await self._client.create_flow(judge_part),
            name=self._pool,
            description="Judges parts of evaluation runs. Registered by `evalhouse run --pool`.",
            entrypoint=f"{judge_part.fn.__module__}.{judge_part.fn.__name__}",
            work_pool_name=self._pool,
            job_variables=job_variables,
            tags=[TAG],
            parameter_openapi_schema=parameter_schema(judge_part).model_dump(),
        )
        await self.look_at_workers()

    async def judge_shards(self, numbers: Sequence[int], attempt: int) -> None:
        """Give out the shards that no part has, as workers have room, until all parts have ended."""
        live_run, settings = self._live_run, self._live_run.settings
        config = (await asyncio.to_thread(find_run, live_run.warehouse, live_run.run_id)).config
        values = settings.model_dump(mode="json")
        changes = {name: value for name, value in values.items() if name in config and value != config[name]}
        changes.pop("warehouse", None)
        order = {
            "run_id": live_run.run_id,
            "warehouse": live_run.warehouse.location.url,
            "code_version": find_code_version(),
            "judge_failed": live_run.resumed,
            "changes": changes,
        }
        given_out = {number for out in self._out.values() for number in list_shards(out.part, settings.shard_size)}
        parts = cut_parts(
            live_run.run_id,
            [number for number in numbers if number not in given_out],
            shard_size=settings.shard_size,
            part_size=settings.part_size,
            n_samples=live_run.progress.n_samples,
            n_workers=len(self._workers) if self._limit is None else self._limit,
        )
        self._waiting = [replace(part, attempt=attempt) for part in parts]
        answered_at = time.monotonic()
        while self._waiting or self._out:
            try:
                if time.monotonic() - self._workers_at > _WORKERS_S:
                    await wait_while_paused(live_run)
                    await self.look_at_workers()
                # Parts at once: the pool's own limit and a few more if it has one, else a few for each worker.
                room = _AHEAD + (self._limit if self._limit is not None else _AHEAD * len(self._workers))
                while self._waiting and len(self._out) < room:
                    await self.give_out(self._waiting[0], order)
                    self._waiting.pop(0)
                await self.look()
                await self.write_changes()
                answered_at = time.monotonic()
            except (*OUTAGES, WarehouseBusy) as error:
                if time.monotonic() - answered_at > _OUTAGE_S:
                    raise FatalJudgeError(
                        f"the Prefect server or the warehouse has not answered for {_OUTAGE_S / 60:.0f} minutes "
                        f"({error}); what the workers judged meanwhile is kept: evalhouse resume {live_run.run_id}"
                    ) from None
            if self._waiting or self._out:
                await live_run.asker.stop_sign.sleep(_LOOK_S)

    async def look_at_workers(self) -> None:
        """Read which workers the pool has, and its limit of flow runs at once."""
        workers = await self._client.read_workers_for_work_pool(self._pool)
        self._workers = frozenset(worker.name for worker in workers if worker.status == WorkerStatus.ONLINE)
        self._limit = (await self._client.read_work_pool(self._pool)).concurrency_limit
        self._workers_at = time.monotonic()

    async def give_out(self, part: Part, order: Mapping[str, Any]) -> None:
        """Queue a part for a worker, as a child of the run's flow run; twice the same part makes one flow run."""
        assert self._deployment_id is not None
        key = f"{part.run_id}/{self._live_run.session}/{part.first}-{part.last}/{part.attempt}"
        name = f"samples {part.first} to {part.last}"
        task_run_id = await create_child_task(
            self._client,
            judge_part,
            str(self._live_run.flow_run_id),
            key=key,
            name=name,
            task_inputs={"wait_for": self._earlier},
        )
        flow_run = await self._client.create_flow_run_from_deployment(
            self._deployment_id,
            parameters={**order, "first": part.first, "last": part.last, "attempt": part.attempt},
            name=f"{part.run_id} {name}",
            tags=[TAG, self._run_tag],
            idempotency_key=key,
            parent_task_run_id=task_run_id,
        )
        self._out[flow_run.id] = PartState(part=part)
        self.note(flow_run.id, "given out")

    def note(self, flow_run_id: UUID, change: Change, reason: str | None = None) -> None:
        """Log a change of a part, emit it as an event of its flow run, and keep it to be written."""
        part, worker = self._out[flow_run_id].part, self._out[flow_run_id].worker
        values = {"attempt": part.attempt, "change": change, "worker": worker, "reason": reason}
        get_run_logger().log(
            logging.WARNING if change in ("lost", "stopped") else logging.INFO,
            "Samples %d to %d %s%s%s%s.",
            part.first,
            part.last,
            change,
            f" again, attempt {part.attempt}" if change == "given out" and part.attempt > 1 else "",
            f" by worker {worker}" if worker else "",
            f": {reason}" if reason else "",
        )
        emit_event(
            f"evalhouse.part.{change.replace(' ', '-')}",
            resource={"prefect.resource.id": f"prefect.flow-run.{flow_run_id}"},
            payload={"run_id": part.run_id, "first": part.first, "last": part.last, **values},
        )
        row: dict[str, object] = {"run_id": part.run_id, "first_ordinal": part.first, "last_ordinal": part.last}
        self._changes.append({**row, **values, "flow_run_id": str(flow_run_id), "changed_at": now_utc()})

    async def write_changes(self) -> None:
        """Write the changes of parts that have been noted since the last time."""
        if self._changes:
            run_id, rows = self._live_run.run_id, build_frame("part_changes", self._changes)
            key = f"{run_id}/parts/{self._live_run.session}/{self._n_batches}"
            batch = Batch(key=key, run_id=run_id, tables={"part_changes": rows})
            await asyncio.to_thread(self._live_run.warehouse.append, batch)
            self._changes.clear()
            self._n_batches += 1

    async def look(self) -> None:
        """Read the state of all parts, and act on it."""
        flow_runs, held = await self.read_flow_runs(), await self.list_held()
        for flow_run_id, out in list(self._out.items()):
            flow_run = flow_runs.get(flow_run_id)
            # A flow run that was deleted in Prefect counts as cancelled.
            state = flow_run.state if flow_run else None
            state_type, is_held = state.type.value if state else "CANCELLED", out.part.lock_name in held
            if (out.state_type, out.held) != (state_type, is_held):
                out.since = time.monotonic()
            out.state_type, out.state_name, out.held = state_type, (state.name if state else None) or "", is_held
            out.was_held = out.was_held or is_held
            if flow_run is not None and "prefect.worker.name" in flow_run.labels:
                out.worker = str(flow_run.labels["prefect.worker.name"])
            out.worker_lives = out.worker in self._workers
            message = (state.message if state else None) or "no reason given"
            match out.decide():
                case "done":
                    self.end(flow_run_id)
                case "stop":
                    self.note(flow_run_id, "stopped", message)
                    raise FatalJudgeError(message)
                case "lost":
                    await self.give_again(flow_run_id, flow_run, out.part, message)
        is_untaken = self._out and all(
            out.state_type == "SCHEDULED" and time.monotonic() - out.since >= _UNTAKEN_S for out in self._out.values()
        )
        if is_untaken and not self._workers and not self._has_warned:
            self._has_warned = True
            print_notice(
                f"No worker takes work from pool {self._pool!r}. On each machine that is to judge: "
                f"prefect worker start --pool {self._pool} --type process --limit 2"
            )

    def end(self, flow_run_id: UUID) -> None:
        """Note that a part is done; a task that reads its verdicts waits for its state."""
        self.note(flow_run_id, "done")
        del self._out[flow_run_id]
        # In Prefect's graph a child flow run has its own id, in the place of that of its task run.
        self._ended.append(Completed(data=Stored(), state_details=StateDetails(task_run_id=flow_run_id)))

    async def give_again(self, flow_run_id: UUID, flow_run: FlowRun | None, part: Part, message: str) -> None:
        """Give the samples of a lost part to another worker, unless it was done and only its end is unreported."""
        live_run, size = self._live_run, self._live_run.settings.shard_size
        failures = FAILURE_REASONS if live_run.resumed else ()
        unfinished = await asyncio.to_thread(
            list_unfinished_shards, live_run.warehouse, live_run.run_id, size, failures
        )
        if set(unfinished).isdisjoint(list_shards(part, size)):
            self.end(flow_run_id)
            return
        if flow_run is not None and flow_run.state is not None and not flow_run.state.is_final():
            crashed = "The part's lock is free: its process or machine is gone. The part was given to another worker."
            await self._client.set_flow_run_state(flow_run_id, Crashed(message=crashed), force=True)
            message = "its process is gone"
        self.note(flow_run_id, "lost", message)
        del self._out[flow_run_id]
        if part.attempt >= MAX_ATTEMPTS:
            raise FatalJudgeError(
                f"samples {part.first} to {part.last} were given to {part.attempt} workers and none has finished them; "
                f"the last one: {message}"
            )
        self._waiting.insert(0, replace(part, attempt=part.attempt + 1))

    async def cancel_all(self) -> None:
        """Cancel all parts: at once if no worker has begun them, else after they have written their results."""
        with contextlib.suppress(*OUTAGES, WarehouseBusy):
            for flow_run in (await self.read_flow_runs()).values():
                state, message = flow_run.state, "The run was stopped."
                if state is None or state.is_final():
                    continue
                if state.is_running() or state.is_cancelling():
                    await self._client.set_flow_run_state(flow_run.id, Cancelling(message=message), force=False)
                else:
                    await self._client.set_flow_run_state(flow_run.id, Cancelled(message=message), force=True)
            deadline = time.monotonic() + _WIND_DOWN_S
            while await self.list_held() and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK_S)

    async def read_flow_runs(self) -> dict[UUID, FlowRun]:
        """Return the flow runs of all parts that are given out, as far as Prefect still has them."""
        ids = list(self._out)
        flow_runs: list[FlowRun] = []
        for begin in range(0, len(ids), _PAGE):
            chosen = FlowRunFilter(id=FlowRunFilterId(any_=ids[begin : begin + _PAGE]))
            flow_runs += await self._client.read_flow_runs(flow_run_filter=chosen, limit=_PAGE)
        return {flow_run.id: flow_run for flow_run in flow_runs}

    async def list_held(self) -> set[str]:
        names = [out.part.lock_name for out in self._out.values()]
        return await asyncio.to_thread(list_held, self._live_run.warehouse.location, names)


@asynccontextmanager
async def _counting(live_run: LiveRun) -> AsyncIterator[None]:
    """Within the block, count the run's calls and progress from the warehouse every few seconds, and at its end.

    Calls from before the block are not counted. When a run is resumed, its failed samples count only at the end.
    """
    warehouse, run_id = live_run.warehouse, live_run.run_id
    before = await asyncio.to_thread(_fetch_usage, warehouse, run_id)

    def count(failures: Sequence[str]) -> None:
        (row,) = warehouse.fetch_rows("pools/done", run_id=run_id, failures=list(failures))
        live_run.progress.n_done = int(str(row["n"]))
        usage = _fetch_usage(warehouse, run_id) - before
        usage.unpriced = usage.requests if any(asker.price is None for asker in live_run.asker.all) else 0
        live_run.asker.counts = usage

    async def count_often() -> None:
        while True:
            await asyncio.sleep(_COUNT_S)
            with contextlib.suppress(WarehouseBusy):
                await asyncio.to_thread(count, FAILURE_REASONS if live_run.resumed else ())

    counting = asyncio.create_task(count_often())
    try:
        yield
    finally:
        counting.cancel()
        await asyncio.wait([counting])
        await asyncio.to_thread(count, ())


def _fetch_usage(warehouse: Warehouse, run_id: str) -> Usage:
    (row,) = warehouse.fetch_rows("pools/calls", run_id=run_id)
    spent_usd = float(str(row.pop("spent_usd")))
    return Usage(spent_usd=spent_usd, **{name: int(str(value)) for name, value in row.items()})


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
    """Judge samples `first` to `last` of a run, by ordinal.

    `judge_failed` says that samples which failed before are judged again, `changes` has the settings of the run that
    differ from its stored ones, and `code_version` is that of the evalhouse which has given the part out. The flow run
    ends as Failed "Stopped" when no other worker could do better.
    """
    get_run_logger().info("Samples %d to %d of run %s, attempt %d.", first, last, run_id, attempt)
    try:
        part = Part(run_id=run_id, first=first, last=last, attempt=attempt)
        n_shards = await _work_on_part(
            part, warehouse, code_version=code_version, judge_failed=judge_failed, changes=changes or {}
        )
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


async def _work_on_part(
    part: Part, warehouse_url: str, *, code_version: str, judge_failed: bool, changes: Mapping[str, Any]
) -> int:
    """Judge the unjudged shards of a part and return their number.

    Raises RunCancelled when the part is not wanted any more or the process is ordered to end, WarehouseBusy when
    another process works on the part, FatalJudgeError and WarehouseError.
    """
    warehouse = Warehouse(warehouse_url)
    if warehouse.location.lake is None:
        raise WarehouseError(f"{warehouse.location.name} is one file; parts of a run are judged in a lake")
    if not await _is_wanted():
        raise RunCancelled(_UNWANTED)
    busy = f"another process is on the part of run {part.run_id} that begins with sample {part.first}"
    with (
        Interrupts() as interrupts,
        hold(warehouse.location, part.lock_name, patience_s=_LOCK_S, busy=busy) as lock,
    ):
        # Replies that dead processes of this machine have left need not be paid for again. Another process that takes
        # them in is waited for, because this one may be about to ask for the same.
        busy = "another process of this machine takes in what dead ones have left, and does not finish"
        with hold_file(find_lock_file(warehouse.location, "orphans"), patience_s=FLUSH_PATIENCE_S, busy=busy):
            take_in_orphans(warehouse)
            warehouse.flush()
        own = {**changes, "warehouse": warehouse_url}
        with _open_live_run(part, warehouse, code_version=code_version, changes=own) as live_run:
            loop = asyncio.get_running_loop()

            def stop(signal_name: str) -> None:
                cancelled = RunCancelled(f"stopped by {signal_name}")
                loop.call_soon_threadsafe(partial(live_run.stop, cancelled, drain_s=_DRAIN_S))

            with interrupts.answered_by(stop):
                async with _watch(live_run, lock):
                    size = live_run.settings.shard_size
                    failures = FAILURE_REASONS if judge_failed else ()
                    unfinished = await asyncio.to_thread(list_unfinished_shards, warehouse, part.run_id, size, failures)
                    numbers = [number for number in unfinished if number in list_shards(part, size)]
                    at_once = min(count_turns(live_run.settings.concurrency, live_run), len(numbers)) or 1
                    try:
                        if find_api_url() is not None:
                            live_run.share_limits(at_once)
                        await take_turns(numbers, lambda number: judge_shard(live_run, number), at_once=at_once)
                    finally:
                        await live_run.close()
            interrupts.note_only()
        warehouse.flush()
    return len(numbers)


@contextmanager
def _open_live_run(
    part: Part, warehouse: Warehouse, *, code_version: str, changes: Mapping[str, Any]
) -> Iterator[LiveRun]:
    """Make the live run of the part; its calls are in the warehouse when the block has ended."""
    if code_version != find_code_version():
        raise FatalJudgeError(
            f"this worker has evalhouse {find_code_version()}, and its work was given out by {code_version}; "
            "install the same version on all machines, and start the workers again"
        )
    run = find_run(warehouse, part.run_id)
    settings = read_settings({**run.config, **changes})
    tools = make_tools(settings, run.kind)
    if run.kind == "noise":
        tools = replace(tools, judges=tools.judges.change(lambda judge: RepeatedJudge(judge, run.run_id)))
    live_run = tools.make_live_run(run.run_id, warehouse)
    live_run.resumed = True  # verdicts of an earlier worker are replaced
    live_run.across_machines = True
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
            reason = None
            if not await asyncio.to_thread(lock.is_held):
                reason = "stopped because the part's lock was lost"
            elif not await _is_wanted():
                reason = _UNWANTED
            if reason is not None:
                live_run.stop(RunCancelled(reason), drain_s=_DRAIN_S)
                return

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def _is_wanted() -> bool:
    """Return whether this flow run was neither cancelled nor given up; True as well if the server does not answer.

    All its states are read, because a process that is just starting sets a flow run that was cancelled a moment before
    to running again.
    """
    try:
        async with get_client() as client:
            states = await client.read_flow_run_states(UUID(str(flow_run.id)))
    except ObjectNotFound:
        return False
    except OUTAGES:
        return True
    return bool(states) and not any(state.is_final() or state.is_cancelling() for state in states)
