"""Test one limit for several runs over a real Prefect server: what it shows, and what happens when it fails."""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import PrefectClient
from prefect.exceptions import PrefectException
from prefect.settings import (
    PREFECT_API_AUTH_STRING,
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    temporary_settings,
)
from prefect_holder import find_server

from evalhouse.tasks.asking import shared_limits
from evalhouse.tasks.asking.limits import EndpointLimit
from evalhouse.tasks.asking.shared_limits import SharedLimits, name_limit
from evalhouse.tasks.judge.protocol import RunCancelled


def never_stop() -> None:
    """Not stopped."""


class Run:
    """A run of 16 requests at once with a limit for one model."""

    def __init__(self, key: str, slots: int = 8) -> None:
        self.limit = EndpointLimit(concurrency=16)
        self.shared = SharedLimits({key: self.limit}, concurrency=16, slots=slots)

    @property
    def share(self) -> int:
        return self.limit.share


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """Another limit for every test."""
    return f"http://models.example:8000/v1 {request.node.name} {time.time_ns()}"


class RetryingTransport(httpx.HTTPTransport):
    """Asks again where the server answers 503 because its database is locked, as Prefect's own client does."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(50):
            response = super().handle_request(request)
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(0.2)
        return response


@pytest.fixture
def prefect(monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """The server as an operator sees it."""
    found = find_server()
    monkeypatch.setattr(shared_limits, "_ASK_AGAIN_S", 0.2)
    url, auth = found["PREFECT_API_URL"], found["PREFECT_API_AUTH_STRING"]
    user, _, password = auth.partition(":")
    with (
        httpx.Client(
            base_url=url, auth=(user, password), transport=RetryingTransport(), trust_env=False, timeout=30
        ) as client,
        temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: auth}),
    ):
        yield client


def read_limit(prefect: httpx.Client, key: str) -> tuple[int, int]:
    """Return the slots of the limit in Prefect, and the taken ones."""
    found = prefect.get(f"/v2/concurrency_limits/{name_limit(key)}").raise_for_status().json()
    return found["limit"], found["active_slots"]


async def test_shards_of_one_run_hold_the_whole_limit_together_and_give_it_back(
    prefect: httpx.Client, key: str
) -> None:
    run = Run(key)
    async with AsyncExitStack() as stack:
        for held in (8, 16):
            await stack.enter_async_context(run.shared.hold(never_stop))
            assert (run.share, read_limit(prefect, key)) == (held, (16, held))
    assert (run.share, read_limit(prefect, key)) == (0, (16, 0))


async def test_shard_of_another_run_waits_for_free_slots(
    prefect: httpx.Client, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = Run(key, slots=16), Run(key, slots=8)

    async def judge_second() -> None:
        async with second.shared.hold(never_stop):
            assert read_limit(prefect, key) == (16, 8)

    async with first.shared.hold(never_stop):
        waiting = asyncio.create_task(judge_second())
        async with asyncio.timeout(30):
            while "waiting for slots of the Prefect limit evalhouse-models.example" not in caplog.text:
                await asyncio.sleep(0.02)
        assert (first.share, second.share, waiting.done()) == (16, 16, False)
    await waiting
    assert read_limit(prefect, key) == (16, 0)


async def test_limit_that_an_operator_lowers_holds_from_the_next_shard_on(prefect: httpx.Client, key: str) -> None:
    run = Run(key)
    async with run.shared.hold(never_stop):
        prefect.patch(f"/v2/concurrency_limits/{name_limit(key)}", json={"limit": 2}).raise_for_status()
    async with run.shared.hold(never_stop):
        assert run.share == 2
    prefect.patch(f"/v2/concurrency_limits/{name_limit(key)}", json={"limit": 0}).raise_for_status()

    async def judge() -> None:
        async with run.shared.hold(never_stop):
            assert run.share == 4

    waiting = asyncio.create_task(judge())
    await asyncio.sleep(0.5)
    assert not waiting.done()
    prefect.patch(f"/v2/concurrency_limits/{name_limit(key)}", json={"limit": 4}).raise_for_status()
    await waiting


async def test_limit_that_an_operator_switches_off_bounds_nothing(prefect: httpx.Client, key: str) -> None:
    run = Run(key)
    async with run.shared.hold(never_stop):
        prefect.patch(f"/v2/concurrency_limits/{name_limit(key)}", json={"active": False}).raise_for_status()
    async with run.shared.hold(never_stop), run.shared.hold(never_stop), run.shared.hold(never_stop):
        assert run.share == 16


async def test_stop_ends_the_wait(prefect: httpx.Client, key: str) -> None:
    other, run, stopped = Run(key, slots=16), Run(key), False

    def stop() -> None:
        if stopped:
            raise RunCancelled("stopped by SIGINT")

    async def judge() -> None:
        async with run.shared.hold(stop):
            pytest.fail("the other run holds all slots")

    async with other.shared.hold(never_stop):
        waiting = asyncio.create_task(judge())
        await asyncio.sleep(0.3)
        stopped = True
        with pytest.raises(RunCancelled, match="SIGINT"):
            await waiting


@pytest.mark.parametrize(
    ("host", "n_warnings"),
    [
        pytest.param("models.example", 1, marks=pytest.mark.slow),
        ("localhost:8000", 0),
        ("127.0.0.1:8000", 0),
        ("[::1]:8000", 0),
        ("gpu.localhost", 0),
    ],
)
async def test_shard_is_judged_with_a_warning_where_the_server_cannot_be_asked(
    host: str, n_warnings: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint of this machine alone is shared with no other, and nothing is asked of the server."""
    monkeypatch.setattr(shared_limits, "_SHARING_PATIENCE_S", 0.3)
    monkeypatch.setattr(shared_limits, "_ASK_AGAIN_S", 0.1)
    run = Run(f"http://{host}/v1 judge")
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}),
        caplog.at_level(logging.WARNING, logger="evalhouse"),
    ):
        for _ in range(2):
            async with run.shared.hold(never_stop):
                assert run.share == (8 if n_warnings else 16)
    warnings = [record.getMessage() for record in caplog.records if record.name.startswith("evalhouse.")]
    assert len(warnings) == n_warnings
    assert all("limits are not shared with other runs that ask the same model" in warning for warning in warnings)


async def test_server_that_is_busy_for_a_while_is_asked_again_before_a_shard_is_judged(
    prefect: httpx.Client, key: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A shard that is judged without its part sends more requests than the endpoint takes from all runs."""
    failures = [TimeoutError(), httpx.ReadTimeout("busy"), PrefectException("database is locked")]
    fetch_size = SharedLimits._fetch_size

    async def fetch_size_of_busy_server(self: SharedLimits, name: str) -> int | None:
        if failures:
            raise failures.pop()
        return await fetch_size(self, name)

    monkeypatch.setattr(SharedLimits, "_fetch_size", fetch_size_of_busy_server)
    run = Run(key)
    async with run.shared.hold(never_stop):
        assert (run.share, read_limit(prefect, key)) == (8, (16, 8))
    assert (failures, caplog.records) == ([], [])


async def test_slow_answer_of_the_server_leaves_no_slots_behind(
    prefect: httpx.Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request for slots that was given up would hold them for a minute, and the shard would wait for itself."""
    increment = PrefectClient.increment_concurrency_slots_with_lease

    async def increment_slowly(self: PrefectClient, *args: Any, **options: Any) -> httpx.Response:  # noqa: ANN401
        response = await increment(self, *args, **options)
        await asyncio.sleep(0.5)  # longer than between two looks at a limit that others hold
        return response

    monkeypatch.setattr(PrefectClient, "increment_concurrency_slots_with_lease", increment_slowly)
    run = Run(key, slots=16)
    async with asyncio.timeout(20), run.shared.hold(never_stop):
        assert (run.share, read_limit(prefect, key)) == (16, (16, 16))
    assert read_limit(prefect, key) == (16, 0)


@pytest.mark.parametrize("is_expired", [False, True])
async def test_slots_whose_lease_the_server_has_forgotten_are_given_back_and_expired_ones_are_not(
    prefect: httpx.Client, key: str, monkeypatch: pytest.MonkeyPatch, *, is_expired: bool
) -> None:
    """After a restart of the user's own server the slots stayed taken, and every later run waited for ever. The slots
    of a lease that expired, as while a machine sleeps, are free again and others hold them."""
    increment, lease_ids = PrefectClient.increment_concurrency_slots_with_lease, []

    async def increment_and_note(self: PrefectClient, *args: Any, **options: Any) -> httpx.Response:  # noqa: ANN401
        response = await increment(self, *args, **options)
        lease_ids.append(response.json()["lease_id"])
        return response

    monkeypatch.setattr(PrefectClient, "increment_concurrency_slots_with_lease", increment_and_note)
    async with Run(key, slots=16).shared.hold(never_stop):
        (lease_id,) = lease_ids
        # The server drops the lease with its slots; they are taken again: as after a restart, or by another run.
        prefect.post("/v2/concurrency_limits/decrement-with-lease", json={"lease_id": lease_id}).raise_for_status()
        prefect.patch(f"/v2/concurrency_limits/{name_limit(key)}", json={"active_slots": 16}).raise_for_status()
        if is_expired:
            at = time.time() + 100
            monkeypatch.setattr(shared_limits, "time", SimpleNamespace(time=lambda: at, monotonic=time.monotonic))
    assert read_limit(prefect, key) == (16, 16 if is_expired else 0)


async def test_a_lease_that_expired_is_taken_again(
    prefect: httpx.Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_limits, "_RENEW_S", 0.1)
    monkeypatch.setattr(shared_limits, "_LEASE_S", 60.0)
    renew, failures = PrefectClient.renew_concurrency_lease, [1]

    async def renew_too_late(self: PrefectClient, lease_id: Any, seconds: float) -> httpx.Response:  # noqa: ANN401
        if failures:
            failures.pop()
            prefect.post("/v2/concurrency_limits/decrement-with-lease", json={"lease_id": str(lease_id)})
            at = time.time() + 100
            monkeypatch.setattr(shared_limits, "time", SimpleNamespace(time=lambda: at, monotonic=time.monotonic))
        return await renew(self, lease_id, seconds)

    increment = PrefectClient.increment_concurrency_slots_with_lease

    async def increment_slowly(self: PrefectClient, *given: Any) -> httpx.Response:  # noqa: ANN401
        response = await increment(self, *given)
        await asyncio.sleep(0.3)  # the block ends before the server's answer is here
        return response

    monkeypatch.setattr(PrefectClient, "increment_concurrency_slots_with_lease", increment_slowly)
    monkeypatch.setattr(PrefectClient, "renew_concurrency_lease", renew_too_late)
    async with Run(key, slots=16).shared.hold(never_stop), asyncio.timeout(20):
        while failures or read_limit(prefect, key) != (16, 16):
            await asyncio.sleep(0.05)
    assert read_limit(prefect, key) == (16, 0)
