"""One limit for all who ask the same model: several processes on one machine and, with a Prefect server, several
machines send no more requests at once than the smallest `concurrency` among them.

A slot that had to be fetched from outside for every request would cost more than the request itself (from a Prefect
server of the default kind 14 ms each, and no more than 70 a second for all), so a process holds a share of the limit
and only the shares change hands, a few times a second, following what each process wishes: a lone process has
everything from the start, one that has nothing to ask lends its slots, and those who want more than there is have
equal parts. Where they see each other is a board: a folder on this machine, or the user's own Prefect server, whose
global concurrency limit then holds for all machines and for the processes of one machine as well, so that the folder
is not needed beside it. Rates (requests and tokens a minute) are divided like the slots: each process keeps to that
part of its own setting. When the others cannot be seen the run goes on alone, with one warning: sharing saves refused
requests, and a paid run must not end for it.
"""

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

from evalhouse.tasks.asking.boards import Board, BoardLost, FileBoard, Need, find_limits_folder

logger = logging.getLogger(__name__)

# What leaving may take; what is not given back by then comes back when this process has ended.
_LEAVE_S = 10.0


class ShareableLimit(Protocol):
    """What a limit must be able to do to be shared; `evalhouse.tasks.asking.limits.EndpointLimit` is one."""

    @property
    def in_flight(self) -> int:
        """Slots that are taken now."""

    def wish(self) -> int:
        """Slots that could be used now."""

    def set_share(self, slots: int, *, fraction: float = 1.0) -> None:
        """Use at most so many slots from now on, and that part of the rates; slots in use are not taken away."""


@asynccontextmanager
async def share_limits(
    limits: Mapping[str, ShareableLimit], *, concurrency: Mapping[str, int] | int, across_machines: bool = False
) -> AsyncIterator[None]:
    """Share each limit, for the length of the block, with all other processes that share one of the same key.

    A key is an endpoint and a model with a space between and must hold no secret; `concurrency` is this process's own
    setting. With `across_machines` the Prefect server that this process is set up for is the board. Nothing may be in
    flight when the block is entered, and no slot is given out before this process knows its share.
    """
    sharers = [
        _Sharer(key, limit, concurrency if isinstance(concurrency, int) else concurrency[key])
        for key, limit in limits.items()
    ]
    stopped = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []
    try:
        await asyncio.gather(*(sharer.join(across_machines=across_machines) for sharer in sharers))
        tasks = [asyncio.create_task(sharer.keep_up(stopped)) for sharer in sharers]
        yield
    finally:
        stopped.set()
        if tasks:
            # Not cancelled at once: slots that were being fetched at that moment would stay leased to nobody until
            # they expire (60 s).
            _, late = await asyncio.wait(tasks, timeout=_LEAVE_S)
            for task in late:
                task.cancel()
        await asyncio.gather(*(sharer.leave() for sharer in sharers))


class _Sharer:
    """Keeps one limit's share up to date."""

    def __init__(self, key: str, limit: ShareableLimit, setting: int) -> None:
        self._key = key
        self._limit = limit
        self._setting = setting
        self._board: Board | None = None
        self._slots = 0
        self._again_s = 0.0

    async def join(self, *, across_machines: bool) -> None:
        """Take a first share."""
        if across_machines and not _is_local(self._key) and await self._try_prefect():
            return
        try:
            self._board = FileBoard(find_limits_folder(), self._key)
            await self._exchange()
        except BoardLost as error:
            await self._go_alone(error)

    async def _try_prefect(self) -> bool:
        # Prefect takes a second to import, which a run on one machine does not need here.
        from evalhouse.tasks.asking.prefect_board import PrefectBoard  # noqa: PLC0415

        self._board = PrefectBoard(self._key)
        try:
            await self._exchange()
        except BoardLost as error:
            logger.warning("limits are shared with the processes of this machine alone: %s", error)
            await self.leave()
            return False
        return True

    async def keep_up(self, stopped: asyncio.Event) -> None:
        """Exchange needs until the event is set."""
        while self._board is not None and not stopped.is_set():
            try:
                async with asyncio.timeout(self._again_s):
                    await stopped.wait()
            except TimeoutError:
                try:
                    await self._exchange()
                except BoardLost as error:
                    await self._go_alone(error)

    async def leave(self) -> None:
        """Give the share back."""
        board, self._board = self._board, None
        if board is not None:
            await board.leave()

    async def _exchange(self) -> None:
        if self._board is None:
            return
        # More than the share may be in flight when the share has shrunk; less, but no more than the share can start
        # before the next exchange.
        held = max(self._slots, self._limit.in_flight)
        share = await self._board.exchange(Need(setting=self._setting, wish=self._limit.wish(), held=held))
        self._slots, self._again_s = share.slots, share.again_s
        self._limit.set_share(share.slots, fraction=share.fraction)

    async def _go_alone(self, error: BoardLost) -> None:
        logger.warning(
            "limits are not shared, this run may use all of its %d slots although others ask the same model: %s",
            self._setting,
            error,
        )
        await self.leave()
        self._slots = self._setting
        self._limit.set_share(self._setting, fraction=1.0)


def _is_local(key: str) -> bool:
    """Whether the endpoint is of this machine alone: under the same address another machine has another one."""
    host = urlsplit(key.split(" ", 1)[0]).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
