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
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError, concurrency
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectException

from evalhouse.tasks.asking.limits import EndpointLimit
from evalhouse.tasks.judge.protocol import is_near

logger = logging.getLogger(__name__)

_MAX_SILENCE_S = 20.0
# The shortest lease that Prefect grants: the slots of a dead process are free again after it. Each request for slots is
# sent once, because one that is given up may be granted, and Prefect itself repeats it after half a minute.
_LEASE: Mapping[str, Any] = {
    "lease_duration": 60.0,
    "strict": True,
    "raise_on_lease_renewal_failure": False,
    "max_retries": 0,
    "timeout_seconds": _MAX_SILENCE_S,
}
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
                    await stack.enter_async_context(concurrency(list(active), occupy=slots, **_LEASE))
                if slots or not active:
                    return slots
            except (httpx.HTTPError, PrefectException, ConcurrencySlotAcquisitionError, TimeoutError) as error:
                refusal = error.__cause__
                if isinstance(refusal, httpx.HTTPStatusError) and refusal.response.status_code == HTTPStatus.LOCKED:
                    self._warn("waiting for slots of the Prefect limit %s, which others hold", ", ".join(self._limits))
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


def name_limit(key: str) -> str:
    """Return the name of the Prefect limit for an endpoint and a model; Prefect takes no slash in a name."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", key.split("://", 1)[-1]).strip("-")[:80]
    return f"evalhouse-{readable}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"
