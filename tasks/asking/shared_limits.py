"""Limits that runs and machines share which use the same Prefect server.

Each model has one of Prefect's global concurrency limits, made on first use, which an operator may change. Each shard
holds a part of it while it is judged.
"""

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectException

from evalhouse.tasks.asking.limits import EndpointLimit
from evalhouse.tasks.judge.protocol import is_near

logger = logging.getLogger(__name__)

_MAX_SILENCE_S = 20.0
# The shortest lease that Prefect grants: the slots of a dead process are free again after it.
_LEASE_S = 60.0
_RENEW_S = 40.0
_ASK_AGAIN_S = 3.0
# A busy Prefect server is asked again for this long before a shard is judged without its part of the limit.
_SHARING_PATIENCE_S = 120.0


class SharedLimits:
    """The part of the Prefect limits for its models that a run holds; `limits` are by "ENDPOINT MODEL".

    Each shard holds `slots` of every limit, and the run sends as many requests at once as its shards hold together.
    """

    def __init__(self, limits: Mapping[str, EndpointLimit], *, concurrency: int, slots: int) -> None:
        # Another machine has another server at an address such as localhost.
        shared = {key: limit for key, limit in limits.items() if not is_near(key.split(" ", 1)[0], network=False)}
        self._limits = {name_limit(key): limit for key, limit in shared.items()}
        self._concurrency = concurrency
        self._slots = slots
        self._held = 0
        self._is_unshared = self._has_warned = False

    @asynccontextmanager
    async def hold(self, raise_if_stopped: Callable[[], None]) -> AsyncIterator[None]:
        """Hold a shard's slots while the block runs, once they are free; `raise_if_stopped` ends the wait.

        Where the server cannot be asked for two minutes the shard is judged without: a paid run must not end for that.
        """
        async with AsyncExitStack() as stack:
            slots = await self._acquire(stack, raise_if_stopped) if self._limits else self._slots
            self._change_share(slots)
            stack.callback(self._change_share, -slots)
            yield

    def _change_share(self, slots: int) -> None:
        self._held += slots
        for limit in self._limits.values():
            limit.set_share(self._held)

    async def _acquire(self, stack: AsyncExitStack, raise_if_stopped: Callable[[], None]) -> int:
        """Enter the lease of a shard's slots, fewer where the limits are smaller; returns their number."""
        patient_until = time.monotonic() + (0.0 if self._is_unshared else _SHARING_PATIENCE_S)
        while True:
            raise_if_stopped()
            try:
                async with asyncio.timeout(_MAX_SILENCE_S):
                    sizes = {name: await self._fetch_size(name) for name in self._limits}
                self._is_unshared = False
                active = {name: size for name, size in sizes.items() if size is not None}
                slots = min([self._slots, *active.values()])
                if active and slots:  # an operator may have set the limit to 0
                    await stack.enter_async_context(_hold_slots(list(active), slots))
                if slots or not active:
                    return slots
            except (httpx.HTTPError, PrefectException, TimeoutError) as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == HTTPStatus.LOCKED:
                    self._warn(
                        "waiting for slots of the Prefect limit %s, which others hold (if no other run asks this "
                        "model, free them: prefect global-concurrency-limit update NAME --active-slots 0)",
                        ", ".join(self._limits),
                    )
                elif time.monotonic() >= patient_until:  # before, a busy server, or one that is being started again
                    self._is_unshared = True
                    self._warn("limits are not shared with other runs that ask the same model: %s", error)
                    return self._slots
            await asyncio.sleep(_ASK_AGAIN_S)

    async def _fetch_size(self, name: str) -> int | None:
        """Return a limit's slots, and make a limit that is missing; None for one that is switched off."""
        async with get_client() as client:
            with suppress(ObjectNotFound):
                limit = await client.read_global_concurrency_limit_by_name(name)
                return limit.limit if limit.active else None
            with suppress(ObjectAlreadyExists):  # another process was faster
                await client.create_global_concurrency_limit(
                    GlobalConcurrencyLimitCreate(name=name, limit=self._concurrency)
                )
            return (await client.read_global_concurrency_limit_by_name(name)).limit

    def _warn(self, message: str, details: object) -> None:
        if not self._has_warned:
            logger.warning(message, details)
        self._has_warned = True


@asynccontextmanager
async def _hold_slots(names: list[str], slots: int) -> AsyncIterator[None]:
    """Hold a lease of slots for the block; raises httpx.HTTPStatusError with 423 where too few are free."""
    lease = _Lease(names, slots)
    await lease.take()
    keeping = asyncio.create_task(lease.keep())
    try:
        yield
    finally:
        lease.is_over.set()
        await asyncio.wait([keeping])
        patient_until, is_given_back = time.monotonic() + _LEASE_S, False
        while not is_given_back and time.monotonic() < patient_until:  # the server may just be started again
            with suppress(httpx.HTTPError, PrefectException):
                await lease.give_back()
                is_given_back = True
            if not is_given_back:
                await asyncio.sleep(_ASK_AGAIN_S)


class _Lease:
    """Slots of Prefect limits that are held for a while, and longer by each renewal.

    Prefect answers a renewal with 410 for two reasons. A lease that was renewed too late has expired, and the server
    has freed its slots. A server that keeps leases in memory and was started again has forgotten it, and counts its
    slots as taken for ever (Prefect 3.8); its own `concurrency` leaves them so. Then they are given back without it.
    """

    def __init__(self, names: list[str], slots: int) -> None:
        self._names, self._slots = names, slots
        self.is_over = asyncio.Event()
        self._began_at = time.monotonic()
        self._renewed_at = 0.0  # by the clock of the day, which runs while the machine sleeps
        self._was_down = self._is_forgotten = False

    async def take(self) -> None:
        # Sent without a time limit, because a request that is given up may be granted.
        async with get_client() as client:
            response = await client.increment_concurrency_slots_with_lease(
                self._names, self._slots, "concurrency", _LEASE_S
            )
        self._id, self._renewed_at, self._was_down = UUID(response.json()["lease_id"]), time.time(), False

    async def keep(self) -> None:
        """Renew the lease until the end, and take another one where it has expired."""
        while not self._is_forgotten:
            with suppress(TimeoutError):
                async with asyncio.timeout(_RENEW_S):
                    await self.is_over.wait()
                return  # between two requests: one that is cancelled may be granted, and its slots kept
            with suppress(httpx.HTTPError, PrefectException):  # the next one may come through
                if not await self._renew() and not self._is_forgotten:
                    await self.take()

    async def _renew(self) -> bool:
        """Renew the lease; return False where the server has it no more."""
        try:
            async with get_client() as client:
                await client.renew_concurrency_lease(self._id, _LEASE_S)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != HTTPStatus.GONE:
                self._was_down |= error.response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
                raise
            self._is_forgotten |= self._was_down or time.time() - self._renewed_at < _LEASE_S
            return False
        except httpx.ConnectError as error:
            self._was_down |= "refused" in str(error)
            raise
        self._renewed_at, self._was_down = time.time(), False
        return True

    async def give_back(self) -> None:
        is_held = not self._is_forgotten and await self._renew()
        async with get_client() as client:
            if is_held:
                await client.release_concurrency_slots_with_lease(self._id)
            elif self._is_forgotten:
                await client.release_concurrency_slots(self._names, self._slots, time.monotonic() - self._began_at)


def name_limit(key: str) -> str:
    """Return the name of the Prefect limit for an endpoint and a model; Prefect takes no slash in a name."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", key.split("://", 1)[-1]).strip("-")[:80]
    return f"evalhouse-{readable}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"
