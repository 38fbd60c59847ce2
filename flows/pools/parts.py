"""Parts of a run: how its samples are cut into pieces of work, and what is to be done about a piece that is out.

A flow run that starts costs seconds, so a part has some hundreds of samples: whole shards, one after the other. What
Prefect says of a part's flow run is one sign of how it does; the other is the lock that the part holds while somebody
works on it. The lock is free within a second of the worker's death, where Prefect's heartbeats take over a minute.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal
from uuid import UUID

from evalhouse.flows.preparing.code_version import find_code_version
from evalhouse.tasks.pipeline.live_run import LiveRun
from evalhouse.warehouse.rows.runs import find_run
from evalhouse.warehouse.rows.samples import list_unfinished_shards

MOST_ATTEMPTS: Final = 4
STOPPED: Final = "Stopped"
"""Name of the state of a part that met what no other worker would get past either."""

Verdict = Literal["wait", "done", "lost", "stop"]

# Whoever has let go of a part's lock is about to tell how it ended.
_AFTER_HELD_S = 5.0
# Before the lock is taken a process starts, or a container, on a machine that may be busy: minutes, as long as the
# worker that has taken the part gives signs of life.
_STARTING_S = 30.0
_STARTING_MOST_S = 600.0
_LOST = ("FAILED", "CRASHED", "CANCELLED")


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
        """The same samples, to be given to somebody else."""
        return replace(self, attempt=self.attempt + 1, flow_run_id=None)


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What can be seen of a part that is out: Prefect's state, whether its lock is held or was, since when that is so,
    and whether the worker that has taken it gives signs of life."""

    state_type: str
    state_name: str
    held: bool
    was_held: bool
    since_s: float
    worker_lives: bool


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


def judge_sight(sight: Sight) -> Verdict:
    """What to do about a part.

    As long as its lock is held somebody works on it, whatever Prefect says; what ended well is believed, and whether
    its verdicts are all there is looked up when all parts have ended.
    """
    if sight.state_type == "COMPLETED":
        return "done"
    if sight.state_type == "FAILED" and sight.state_name == STOPPED:
        return "stop"
    if sight.held or sight.state_type == "SCHEDULED":
        return "wait"
    if sight.state_type in _LOST:
        return "lost"
    patience_s = _STARTING_MOST_S if sight.worker_lives else _STARTING_S
    return "lost" if sight.since_s >= (_AFTER_HELD_S if sight.was_held else patience_s) else "wait"


def describe_order(live_run: LiveRun) -> dict[str, Any]:
    """What every part of the run is told besides which samples are its own."""
    config = find_run(live_run.warehouse, live_run.run_id).config
    settings = live_run.settings.model_dump(mode="json")
    changes = {name: value for name, value in settings.items() if name in config and value != config[name]}
    changes.pop("warehouse", None)
    return {
        "run_id": live_run.run_id,
        "warehouse": live_run.warehouse.location.url,
        "code_version": find_code_version(),
        "mend": live_run.resumed,
        "changes": changes,
    }


def list_missing(live_run: LiveRun, numbers: Sequence[int]) -> list[int]:
    """Which of these shards have a sample without verdicts."""
    missing = set(list_unfinished_shards(live_run.warehouse, live_run.run_id, live_run.settings.shard_size, ()))
    return [number for number in numbers if number in missing]
