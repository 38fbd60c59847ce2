"""Slots of an endpoint: in order, never too many, none lost, and as many as the endpoint bears."""

import asyncio
import itertools
import time

import pytest

from tasks.judge_errors import RunCancelled
from tasks.limits import EndpointLimit


class Provider:
    """Bears `most` requests at once, or `rpm` a minute, and refuses the others at once."""

    def __init__(self, *, most: int = 10_000, latency_s: float = 0.02, per_window: int | None = None) -> None:
        self.most = most
        self.latency_s = latency_s
        self.per_window = per_window
        self.in_flight = 0
        self.max_in_flight = 0
        self.admitted = 0
        self.refused = 0
        self.window_ends = 0.0
        self.left = 0

    async def answer(self) -> bool:
        """Whether the request was let in."""
        now = time.monotonic()
        if self.per_window is not None and now >= self.window_ends:
            self.window_ends, self.left = now + 0.5, self.per_window
        if self.in_flight >= self.most or (self.per_window is not None and self.left <= 0):
            self.refused += 1
            await asyncio.sleep(0.001)
            return False
        self.left -= 1
        self.admitted += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        await asyncio.sleep(self.latency_s)
        self.in_flight -= 1
        return True


async def send(limit: EndpointLimit, provider: Provider, retry_after_s: float | None = 0.05) -> None:
    while True:
        async with limit.slot() as slot:
            if await provider.answer():
                limit.note_success(slot)
                return
            limit.note_refused(slot, retry_after_s)
        await asyncio.sleep(retry_after_s or 0.05)


async def test_no_more_are_in_flight_than_allowed() -> None:
    limit, provider = EndpointLimit(concurrency=5), Provider(latency_s=0.001)
    await asyncio.gather(*(send(limit, provider) for _ in range(60)))
    assert provider.max_in_flight == 5
    assert limit.in_flight == 0


async def test_slots_are_given_in_the_order_they_were_asked_for() -> None:
    limit, order = EndpointLimit(concurrency=1), list[int]()

    async def take(number: int) -> None:
        async with limit.slot():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(take(number) for number in range(30)))
    assert order == list(range(30))


@pytest.mark.parametrize("when", ["before its turn", "in the moment of its turn"])
async def test_whoever_is_cancelled_while_waiting_takes_no_slot_along(when: str) -> None:
    limit = EndpointLimit(concurrency=1)

    async def hold() -> None:
        async with limit.slot():
            await asyncio.sleep(0.02)

    first, second = asyncio.create_task(hold()), asyncio.create_task(hold())
    await asyncio.sleep(0)
    if when == "before its turn":
        second.cancel()
        await first
    else:
        await first  # the slot is given to the second now, which has not run since
        second.cancel()
    assert isinstance((await asyncio.gather(second, return_exceptions=True))[0], asyncio.CancelledError)
    assert limit.in_flight == 0
    async with asyncio.timeout(1):
        await hold()


async def test_requests_a_minute_are_spread_over_the_minute() -> None:
    limit, starts = EndpointLimit(concurrency=50, rpm=1200), list[float]()

    async def take() -> None:
        async with limit.slot():
            starts.append(time.monotonic())

    await asyncio.gather(*(take() for _ in range(8)))
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert sum(gaps) == pytest.approx(7 * 0.05, abs=0.04)
    assert min(gaps) > 0.03


async def measure(allowed: int, requests: int, provider: Provider) -> float:
    """Seconds for all requests."""
    limit = EndpointLimit(concurrency=allowed)
    started = time.monotonic()
    await asyncio.gather(*(send(limit, provider) for _ in range(requests)))
    return time.monotonic() - started


async def test_an_endpoint_that_bears_less_than_allowed_is_kept_full_with_few_refusals() -> None:
    provider = Provider(most=16, latency_s=0.03)
    seconds = await measure(64, 1500, provider)
    ideal = 1500 * provider.latency_s / 16
    assert provider.refused / (1500 + provider.refused) < 0.05
    assert ideal / seconds > 0.6  # timers of a millisecond weigh at 30 ms; over HTTP at 300 ms it is above 0.9


async def test_an_endpoint_that_recovers_gets_its_slots_back() -> None:
    provider = Provider(most=4, latency_s=0.002)
    limit = EndpointLimit(concurrency=32)
    await asyncio.gather(*(send(limit, provider) for _ in range(200)))
    assert limit.allowed <= 5
    provider.most = 32
    await asyncio.gather(*(send(limit, provider) for _ in range(3000)))
    assert limit.allowed > 12


async def test_a_rate_that_is_used_up_pauses_everything_until_the_named_time() -> None:
    provider = Provider(per_window=20, latency_s=0.005)
    limit = EndpointLimit(concurrency=8)
    await asyncio.gather(*(send(limit, provider, retry_after_s=0.5) for _ in range(50)))
    assert provider.admitted == 50
    assert provider.refused < 30  # sending on without a pause would be refused hundreds of times in this second


async def test_a_single_refused_request_waits_for_the_named_time() -> None:
    limit = EndpointLimit(concurrency=8)
    async with limit.slot() as slot:
        limit.note_refused(slot, 1.2)
    started = time.monotonic()
    async with limit.slot():
        assert time.monotonic() - started == pytest.approx(1.2, abs=0.1)


async def test_a_first_burst_is_bounded_and_opens_up_with_success() -> None:
    provider = Provider(latency_s=0.3)
    limit = EndpointLimit(concurrency=256)
    waiting = asyncio.gather(*(send(limit, provider) for _ in range(600)))
    await asyncio.sleep(0.01)
    assert provider.max_in_flight == 64
    await waiting
    assert provider.max_in_flight > 128


@pytest.mark.parametrize("pausing", [False, True])
async def test_a_closed_limit_lets_everybody_go_at_once(pausing: bool) -> None:
    limit = EndpointLimit(concurrency=1)
    if pausing:
        async with limit.slot() as slot:
            limit.note_refused(slot, 60.0)

    async def hold() -> None:
        async with limit.slot():
            await asyncio.sleep(60)

    tasks = [asyncio.create_task(hold()) for _ in range(5)]
    await asyncio.sleep(0.01)
    limit.close(RunCancelled("stopped by SIGINT"))
    done, pending = await asyncio.wait(tasks, timeout=0.2)
    assert len(done) >= 4
    assert all(isinstance(task.exception(), RunCancelled) for task in done)
    with pytest.raises(RunCancelled, match="SIGINT"):
        await hold()
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    assert limit.in_flight == 0
