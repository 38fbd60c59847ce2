"""Parts of a run spread over workers: whether it can be spread, how its samples are cut into pieces of work, what
is to be done about a piece that is out, and how far all of them are.

A flow run that starts costs seconds, so a part has some hundreds of samples: whole shards, one after the other. What
Prefect says of a part's flow run is one sign of its state; the other is the lock that its process holds while it
works on it. The lock is free within a second of the worker's death, where Prefect's heartbeats take over a minute.
Nothing here imports Prefect.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from uuid import UUID

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.preparing.request import find_code_version
from evalhouse.flows.server.environment import API_URL, find_api_url
from evalhouse.tasks.asking.usage import Usage
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.errors import WarehouseBusy
from evalhouse.warehouse.location import parse_location
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.rows.samples import FAILURE_REASONS
from evalhouse.warehouse.store import Warehouse

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


def check_pool(settings: RunSettings) -> None:
    """Refuse what cannot be spread over workers; raises SettingsError with every problem."""
    if settings.pool is None:
        return
    problems = []
    if find_api_url() is None:
        problems.append(
            f"--pool needs a Prefect server that all workers reach: set {API_URL}, such as http://host:4200/api"
        )
    if parse_location(settings.warehouse).lake is None:
        problems.append(
            f"--pool needs a warehouse that many can write to, and {settings.warehouse} is one file: give --warehouse "
            "ducklake:postgresql://user@host/db?data=s3://bucket/prefix (or a shared folder), or for workers on this "
            "machine alone ducklake:sqlite:/folder/catalog.sqlite?data=/folder/files"
        )
    if settings.budget_usd is not None:
        problems.append(
            "--budget counts what one process spends, so it does not go with --pool; see what a run will cost with "
            "--dry-run, and judge a part of it with --limit"
        )
    if problems:
        raise SettingsError("; ".join(problems))


class PoolCounts:
    """Keeps a live run's counts and progress up to date from the warehouse; what was there before is not counted."""

    def __init__(self, live_run: LiveRun) -> None:
        self._live_run = live_run
        self._before = _read_calls(live_run.warehouse, live_run.run_id)

    def refresh(self, *, leave_out_failed: bool) -> None:
        """Count again; `leave_out_failed` when failed samples are to be judged once more."""
        live_run = self._live_run
        parameters = {"run_id": live_run.run_id, "failures": list(FAILURE_REASONS) if leave_out_failed else []}
        (row,) = live_run.warehouse.read_rows(read_query("pools/done"), parameters)
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
    (row,) = warehouse.read_rows(read_query("pools/calls"), {"run_id": run_id})
    spent_usd = float(str(row.pop("spent_usd")))
    return Usage(spent_usd=spent_usd, **{name: int(str(value)) for name, value in row.items()})
