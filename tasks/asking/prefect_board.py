"""The board of several machines: the user's own Prefect server.

What counts is a global concurrency limit of Prefect's, made on first use with the first process's setting.
An operator sees it in the interface and may change it there, or pause everybody with a limit of 0. A process holds
its share of it as leases of some slots each, so that a share can grow and shrink by parts, and because the server
alone grants leases the machines never hold more together than it allows. Leases of a dead process end by themselves,
after a minute or a little more. Since Prefect does not say what the others wish, each process also keeps a row of
its own in a Prefect variable: advice alone, from which every process computes its part by the rule of
`shared_limit_rule`; a row that has not been touched for a while is overlooked. In steady state this is two requests
a second and process.
"""

import asyncio
import contextlib
import hashlib
import logging
import re
import time
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import (
    GlobalConcurrencyLimitCreate,
    GlobalConcurrencyLimitUpdate,
    VariableCreate,
    VariableUpdate,
)
from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectException

from evalhouse.tasks.asking.boards import BoardLost, Holding, Need, Share, claim_slots

logger = logging.getLogger(__name__)

# Raise it when a row comes to mean something else: processes of both versions then do not see each other's wishes.
_ROWS = "v1"
# The shortest that the API takes; renewed often enough that two renewals may fail.
_LEASE_S = 60.0
_RENEW_S = 20.0
# Touched at least so often; overlooked when older than the youngest row by so much, and removed after an hour.
_ROW_S = 15.0
_ROW_STALE = timedelta(seconds=60)
_ROW_DEAD = timedelta(hours=1)
# A share changes hands in parts; with more of them a process would only renew leases.
_PARTS = 32
_CALM_S = 1.0
_BUSY_S = 0.25
_LEAVE_S = 5.0
# Prefect's client itself tries again for a minute and more; a run does not wait so long for its first share.
_FIRST_S = 20.0
# Between tries while the server does not answer.
_RETRY_S = 3.0
# A dead process's slots are free half a minute after its row is overlooked. What is taken for longer, and held by
# nobody who is seen, was lost with a server that forgot its leases when it was started again.
_FORGOTTEN_S = 60.0


@dataclass(kw_only=True)
class _Lease:
    """Slots that the server keeps for this process; `renewed_at` is on the monotonic clock."""

    lease_id: uuid.UUID
    slots: int
    renewed_at: float


class PrefectBoard:
    """One process's place at the Prefect server that this process is set up for; `key` names endpoint and model."""

    def __init__(self, key: str) -> None:
        digest = hashlib.sha256(f"{_ROWS} {key}".encode()).hexdigest()[:16]
        # Prefect takes no slash in a name.
        readable = re.sub(r"[^A-Za-z0-9.]+", "-", key.split("://", 1)[-1]).strip("-")[:80]
        self.limit_name = f"evalhouse-{readable}-{digest[:6]}"
        self._prefix = f"evalhouse_share_{digest}_"
        # Names sort by age, and no two are the same.
        self._name = f"{self._prefix}{time.time_ns():020d}_{uuid.uuid4().hex[:8]}"
        self._stack = AsyncExitStack()
        self._client: PrefectClient | None = None
        self._leases: list[_Lease] = []
        self._reported: Holding | None = None
        self._reported_at = 0.0
        self._last: Share | None = None
        self._taken_since: float | None = None

    @property
    def _held(self) -> int:
        return sum(lease.slots for lease in self._leases)

    async def exchange(self, need: Need) -> Share:
        """A look at the server; raises BoardLost when the first one fails. Later the last share is kept meanwhile."""
        try:
            async with asyncio.timeout(_FIRST_S if self._last is None else None):
                if self._client is None:
                    self._client = await self._stack.enter_async_context(get_client())
                self._last = await self._exchange(self._client, need)
        except (httpx.HTTPError, PrefectException, TimeoutError) as error:
            if self._last is None:
                raise BoardLost(
                    f"the Prefect server keeps no limit for this run ({_describe(error)}); it must know leases of "
                    "global concurrency limits, as those of version 3.8 do, and let this run use limits and variables"
                ) from None
            # No other process gets more either, until the server is back or these leases have ended.
            return replace(self._last, slots=min(self._last.slots, self._held), again_s=_RETRY_S)
        return self._last

    async def leave(self) -> None:
        """Give leases and row back, if the server answers; otherwise they end by themselves."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(httpx.HTTPError, PrefectException, TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._release(client, keep=0)
                    if self._reported is not None:
                        await client.delete_variable_by_name(self._name)
        await self._stack.aclose()

    async def _exchange(self, client: PrefectClient, need: Need) -> Share:
        limit = await self._read_limit(client, need.setting)
        if not limit.active:  # an operator has switched it off
            return Share(slots=need.setting, limit=need.setting, again_s=_CALM_S)
        others = await self._read_others(client)
        claim = claim_slots(need, self._name, others, most=limit.limit)
        part = -(-claim.limit // _PARTS)
        await self._renew(client)
        await self._release(client, keep=max(claim.target, need.held))
        await self._acquire(client, min(claim.grant - self._held, limit.limit - limit.active_slots), part)
        holding = Holding(setting=need.setting, wish=min(need.wish, claim.limit), grant=self._held)
        await self._report(client, holding)
        starved = self._held < claim.target
        await self._free_forgotten(client, limit, taken=sum(row.grant for row in others.values()), starved=starved)
        settled = not starved and self._held - claim.target < part
        return Share(slots=min(claim.target, self._held), limit=claim.limit, again_s=_CALM_S if settled else _BUSY_S)

    async def _read_limit(self, client: PrefectClient, setting: int) -> GlobalConcurrencyLimitResponse:
        """The limit as it is in Prefect; made when there is none."""
        try:
            return await client.read_global_concurrency_limit_by_name(self.limit_name)
        except ObjectNotFound:
            self._leases.clear()  # gone with the limit
        with contextlib.suppress(ObjectAlreadyExists):  # another process was faster
            await client.create_global_concurrency_limit(
                GlobalConcurrencyLimitCreate(name=self.limit_name, limit=setting)
            )
        return await client.read_global_concurrency_limit_by_name(self.limit_name)

    async def _read_others(self, client: PrefectClient) -> dict[str, Holding]:
        """The rows of the others that are still being touched."""
        # The only way to ask for variables by the beginning of their name.
        response = await client.request(
            "POST", "/variables/filter", json={"variables": {"name": {"like_": self._prefix}}, "limit": 200}
        )
        rows = {row["name"]: row for row in response.json() if row["name"].startswith(self._prefix)}
        touched = {name: datetime.fromisoformat(row["updated"]) for name, row in rows.items()}
        # Ages are measured by the server's clock alone: this row is never older than a look and `_ROW_S`.
        newest = max(touched.values(), default=None)
        others = {}
        for name, row in rows.items():
            if newest is None or name == self._name:
                continue
            if newest - touched[name] > _ROW_DEAD:
                with contextlib.suppress(ObjectNotFound):  # another process was faster
                    await client.delete_variable_by_name(name)
            elif newest - touched[name] <= _ROW_STALE and _is_row(row["value"]):
                others[name] = Holding(**row["value"])
        return others

    async def _renew(self, client: PrefectClient) -> None:
        now = time.monotonic()
        for lease in [lease for lease in self._leases if now - lease.renewed_at >= _RENEW_S]:
            try:
                await client.renew_concurrency_lease(lease.lease_id, _LEASE_S)
                lease.renewed_at = now
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 410:
                    raise
                self._leases.remove(lease)  # it has ended, and its slots may be another's

    async def _release(self, client: PrefectClient, *, keep: int) -> None:
        """Give back as many whole leases as can be spared."""
        for lease in sorted(self._leases, key=lambda lease: lease.slots, reverse=True):
            if self._held - lease.slots >= keep:
                self._leases.remove(lease)  # whether or not the server hears of it, nothing is sent on it any more
                await client.release_concurrency_slots_with_lease(lease.lease_id)

    async def _acquire(self, client: PrefectClient, slots: int, part: int) -> None:
        """Take so many more slots, as far as they are free, in leases of `part`."""
        while slots > 0 and await self._acquire_lease(client, min(part, slots)):
            slots -= part

    async def _acquire_lease(self, client: PrefectClient, slots: int) -> bool:
        try:
            response = await client.increment_concurrency_slots_with_lease(
                [self.limit_name], slots, "concurrency", _LEASE_S
            )
        except httpx.HTTPStatusError as error:
            if error.response.status_code not in (422, 423):  # lowered, or taken, since it was read
                raise
            return False
        granted = response.json()
        if granted["limits"]:  # empty when somebody has deleted the limit
            lease_id = uuid.UUID(granted["lease_id"])
            self._leases.append(_Lease(lease_id=lease_id, slots=slots, renewed_at=time.monotonic()))
        return bool(granted["limits"])

    async def _report(self, client: PrefectClient, row: Holding) -> None:
        """Write this process's row when it has changed or must be touched."""
        now = time.monotonic()
        if row == self._reported and now - self._reported_at < _ROW_S:
            return
        value = {"setting": row.setting, "wish": row.wish, "grant": row.grant}
        is_new = self._reported is None
        if not is_new:
            try:
                await client.update_variable(VariableUpdate(name=self._name, value=value))
            except httpx.HTTPStatusError as error:
                if error.response.status_code != 404:
                    raise
                is_new = True  # somebody has deleted it
        if is_new:
            await client.create_variable(VariableCreate(name=self._name, value=value))
        self._reported, self._reported_at = row, now

    async def _free_forgotten(
        self, client: PrefectClient, limit: GlobalConcurrencyLimitResponse, *, taken: int, starved: bool
    ) -> None:
        """Free slots that are taken and held by nobody, when this process has wanted them for long enough."""
        if not starved or limit.active_slots <= taken + self._held:
            self._taken_since = None
            return
        self._taken_since = self._taken_since or time.monotonic()
        if time.monotonic() - self._taken_since < _FORGOTTEN_S:
            return
        self._taken_since = None
        logger.warning(
            "the Prefect limit %s had %d slots taken by nobody, perhaps since its server was started again; freed them",
            self.limit_name,
            limit.active_slots - taken - self._held,
        )
        await client.update_global_concurrency_limit(
            self.limit_name, GlobalConcurrencyLimitUpdate(active_slots=taken + self._held)
        )


def _is_row(value: object) -> bool:
    """Whether a variable holds what a process has written; anybody may change it in Prefect's interface."""
    names = {"setting", "wish", "grant"}
    return isinstance(value, dict) and value.keys() == names and all(type(value[name]) is int for name in names)


def _describe(error: Exception) -> str:
    """The first line of an error; Prefect's own have several, or none but that of their cause."""
    cause = error.__cause__ if not str(error) and error.__cause__ else error
    return (str(cause) or type(cause).__name__).splitlines()[0]
