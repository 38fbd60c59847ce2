"""One limit for all runs and machines that use the same Prefect server and ask the same model.

Each shard holds a part of it while it is judged. The limit is one of Prefect's global concurrency limits, made on
first use; an operator may change it there.
"""

import asyncio
import hashlib
import ipaddress
import logging
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import httpx

from evalhouse.tasks.asking.limits import EndpointLimit

logger = logging.getLogger(__name__)

# The shortest lease that Prefect grants: the slots of a dead process are free again after it.
_LEASE_S = 60.0
# Prefect itself would ask again half a minute after others have held the slots.
_ASK_AGAIN_S = 3.0
_MAX_SILENCE_S = 20.0


class SharedLimits:
    """What a run holds of the Prefect limits for its models; `limits` are by "ENDPOINT MODEL".

    Each shard holds `slots` of every limit, and the run sends as many requests at once as its shards hold together.
    """

    def __init__(self, limits: Mapping[str, EndpointLimit], *, concurrency: int, slots: int) -> None:
        # Another machine has another server at an address such as localhost.
        self._limits = {name_limit(key): limit for key, limit in limits.items() if not _is_local(key)}
        self._concurrency = concurrency
        self._slots = slots
        self._held = 0
        self._has_warned = False

    @asynccontextmanager
    async def hold(self, raise_if_stopped: Callable[[], None]) -> AsyncIterator[None]:
        """Hold a shard's slots while the block runs, once they are free; `raise_if_stopped` ends the wait.

        Where the server cannot be asked the shard is judged all the same: a paid run must not end for that.
        """
        async with AsyncExitStack() as stack:
            slots = self._slots
            if self._limits:
                try:
                    slots = await self._acquire(stack, raise_if_stopped)
                except _get_prefect_errors() as error:
                    self._warn("limits are not shared with other runs that ask the same model: %s", error)
            self._change_share(slots)
            stack.callback(self._change_share, -slots)
            yield

    async def _acquire(self, stack: AsyncExitStack, raise_if_stopped: Callable[[], None]) -> int:
        """Enter the lease of a shard's slots, fewer where the limits are smaller; returns their number."""
        from prefect.concurrency.asyncio import AcquireConcurrencySlotTimeoutError, concurrency  # noqa: PLC0415

        while True:
            raise_if_stopped()
            async with asyncio.timeout(_MAX_SILENCE_S):
                sizes = {name: await self._read_size(name) for name in self._limits}
            active = {name: size for name, size in sizes.items() if size is not None}
            slots = min([self._slots, *active.values()])
            if not active:
                return slots
            with suppress(AcquireConcurrencySlotTimeoutError):
                if slots:
                    lease = concurrency(
                        list(active),
                        occupy=slots,
                        timeout_seconds=_ASK_AGAIN_S,
                        lease_duration=_LEASE_S,
                        strict=True,
                        raise_on_lease_renewal_failure=False,
                    )
                    await stack.enter_async_context(lease)
                    return slots
                await asyncio.sleep(_ASK_AGAIN_S)  # an operator has set the limit to 0
            self._warn("waiting for slots of the Prefect limit %s, which others hold", ", ".join(active))

    async def _read_size(self, name: str) -> int | None:
        """Return a limit's slots, and make the limit where there is none; None for one that is switched off."""
        from prefect.client.orchestration import get_client  # noqa: PLC0415
        from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate  # noqa: PLC0415
        from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound  # noqa: PLC0415

        async with get_client() as client:
            with suppress(ObjectNotFound):
                limit = await client.read_global_concurrency_limit_by_name(name)
                return limit.limit if limit.active else None
            with suppress(ObjectAlreadyExists):  # another process was faster
                await client.create_global_concurrency_limit(
                    GlobalConcurrencyLimitCreate(name=name, limit=self._concurrency)
                )
            return (await client.read_global_concurrency_limit_by_name(name)).limit

    def _change_share(self, slots: int) -> None:
        self._held += slots
        for limit in self._limits.values():
            limit.set_share(self._held)

    def _warn(self, message: str, *details: object) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(message, *details)


def name_limit(key: str) -> str:
    """Return the name of the Prefect limit for an endpoint and a model; Prefect takes no slash in a name."""
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", key.split("://", 1)[-1]).strip("-")[:80]
    return f"evalhouse-{readable}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def _is_local(key: str) -> bool:
    host = urlsplit(key.split(" ", 1)[0]).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _get_prefect_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a Prefect server that cannot be asked or keeps no such limits."""
    from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError  # noqa: PLC0415
    from prefect.exceptions import PrefectException  # noqa: PLC0415

    return (httpx.HTTPError, PrefectException, ConcurrencySlotAcquisitionError, TimeoutError)
