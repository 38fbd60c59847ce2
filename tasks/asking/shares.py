"""Who may use how many slots of a limit that several processes share: a rule without I/O, the same on every board.

Each process says what it needs and computes its own part from what all say; nobody computes for another. So that
the parts never add up to more than the limit, a process takes only what the others do not hold at that moment, and
gives up only what it does not use: parts that do not fit together for a while (each saw another moment) delay a
slot's change of hands and never double it. `shared_limit` keeps a process's part up to date, and a board (files of
one machine in `shared_limit_files`, a Prefect server in `shared_limit_prefect`) is where they see each other.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

# With fewer slots than processes, those who got none are served before the others after so many seconds.
_TURN_S = 5.0


class BoardLost(Exception):
    """The others cannot be seen, so nothing can be shared. The message says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What one process needs of a limit.

    `setting` is the most it may ever use, `wish` what it could use at once, and `held` what it may use before it
    hears more: it can hand over the rest.
    """

    setting: int
    wish: int
    held: int


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What a process has told the others: its need, and the slots that nobody else may have (`grant`)."""

    setting: int
    wish: int
    grant: int


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a process is to hold (`target`), what it can hold at the moment (`grant`), and the limit of all."""

    target: int
    grant: int
    limit: int


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a process may use until it asks again, which it should after `again_s` seconds; `limit` is that of all."""

    slots: int
    limit: int
    again_s: float

    @property
    def fraction(self) -> float:
        """The part of a rate that goes with the slots; never 0, since without a slot nothing starts anyway."""
        return min(1.0, max(1, self.slots) / max(1, self.limit))


class Board(Protocol):
    """Where the processes that share one limit see each other."""

    async def exchange(self, need: Need) -> Share:
        """Tell the others what this process needs and hear what it may use; raises BoardLost."""

    async def leave(self) -> None:
        """Give everything back."""


def claim_slots(need: Need, name: str, others: Mapping[str, Holding], *, most: int | None = None) -> Claim:
    """What the process `name` is to hold beside the others; the limit is the smallest setting, and at most `most`."""
    settings = [need.setting, *(other.setting for other in others.values())]
    limit = min(settings) if most is None else min(most, *settings)
    wishes = {name: need.wish} | {other: holding.wish for other, holding in others.items()}
    target = divide_slots(wishes, limit, turn=int(time.time() / _TURN_S))[name]
    room = limit - sum(other.grant for other in others.values())
    return Claim(target=target, grant=max(need.held, min(target, room), 0), limit=limit)


def divide_slots(wishes: Mapping[str, int], limit: int, *, turn: int = 0) -> dict[str, int]:
    """All slots of the limit, by name: small wishes in full, the others evenly, and what nobody wishes evenly to all.

    Everybody gets at least one. Where there are fewer slots than names, those who wish for any get one each, and
    which of them come first changes with `turn`.
    """
    names = sorted(wishes)
    scarce = limit < len(names)
    wanted = {name: min(wishes[name], 1) if scarce else min(max(wishes[name], 1), limit) for name in names}
    places = {name: (position + turn) % len(names) if scarce else position for position, name in enumerate(names)}
    order = sorted(names, key=lambda name: (wanted[name], places[name]))
    left, parts = limit, dict.fromkeys(names, 0)
    for behind, name in zip(range(len(order), 0, -1), order, strict=True):
        parts[name] = min(wanted[name], left // behind)
        left -= parts[name]
    for behind, name in zip(range(len(order), 0, -1), order, strict=True):
        extra = left // behind
        parts[name] += extra
        left -= extra
    return parts
