"""Slots of an endpoint: in order, never too many, none lost, and as many as the endpoint capacity."""

import asyncio
import itertools
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_time import in_virtual_time, read_clock, run_virtually

from evalhouse.tasks.asking.limits import EndpointLimit
from evalhouse.tasks.judge.protocol import RunCancelled


class Provider:
    """Takes `most` requests at once, or `per_window` in half a second, and refuses the others at once."""

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
        """Return whether the request was let in."""
        now = read_clock()
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


async def take(limit: EndpointLimit, starts: list[float], *, tokens: int = 0, hold_s: float = 0.0) -> None:
    async with limit.slot(tokens) as slot:
        starts.append(slot.started_at)
        await asyncio.sleep(hold_s)


def count_most(starts: list[float], window_s: float = 60.0) -> int:
    """The most starts within any window."""
    return max(bisect_left(starts, start + window_s) - number for number, start in enumerate(starts))


# In flight


@in_virtual_time
async def test_no_more_are_in_flight_than_allowed() -> None:
    limit, provider = EndpointLimit(concurrency=5), Provider(latency_s=0.001)
    await asyncio.gather(*(send(limit, provider) for _ in range(60)))
    assert provider.max_in_flight == 5
    assert limit.in_flight == 0


@in_virtual_time
async def test_slots_are_given_in_the_order_they_were_asked_for() -> None:
    limit, order = EndpointLimit(concurrency=1), list[int]()

    async def queue(number: int) -> None:
        async with limit.slot():
            order.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(queue(number) for number in range(30)))
    assert order == list(range(30))


@pytest.mark.parametrize("when", ["before its turn", "in the moment of its turn"])
@in_virtual_time
async def test_cancelled_waiter_takes_no_slot(when: str) -> None:
    limit, starts = EndpointLimit(concurrency=1), list[float]()
    async with limit.slot():
        second = asyncio.create_task(take(limit, starts))
        await asyncio.sleep(1.0)
        if when == "before its turn":
            second.cancel()
    second.cancel()  # at the end of the block the slot was given to the second, which has not run since
    assert isinstance((await asyncio.gather(second, return_exceptions=True))[0], asyncio.CancelledError)
    assert limit.in_flight == 0
    await take(limit, starts)
    assert len(starts) == 1


@in_virtual_time
async def test_endpoint_that_takes_less_than_allowed_is_kept_full_with_few_refusals() -> None:
    provider, limit = Provider(most=16, latency_s=0.3), EndpointLimit(concurrency=64)
    started = read_clock()
    await asyncio.gather(*(send(limit, provider) for _ in range(1500)))
    assert provider.refused / (1500 + provider.refused) < 0.05
    assert 1500 * 0.3 / 16 / (read_clock() - started) > 0.95


@in_virtual_time
async def test_an_endpoint_that_recovers_gets_its_slots_back() -> None:
    provider = Provider(most=4, latency_s=0.002)
    limit = EndpointLimit(concurrency=32)
    await asyncio.gather(*(send(limit, provider) for _ in range(200)))
    assert limit.capacity.allowed <= 5
    provider.most = 32
    await asyncio.gather(*(send(limit, provider) for _ in range(3000)))
    assert limit.capacity.allowed > 12


@in_virtual_time
async def test_success_with_few_in_flight_says_nothing_of_many() -> None:
    provider = Provider(most=8, latency_s=0.1)
    limit = EndpointLimit(concurrency=64)
    await asyncio.gather(*(send(limit, provider) for _ in range(64)))
    learned = limit.capacity.allowed
    for _ in range(500):
        await send(limit, provider)
    assert limit.capacity.allowed == learned <= 9


@in_virtual_time
async def test_a_first_burst_is_bounded_and_opens_up_with_success() -> None:
    provider = Provider(latency_s=0.3)
    limit = EndpointLimit(concurrency=256)
    waiting = asyncio.gather(*(send(limit, provider) for _ in range(600)))
    await asyncio.sleep(0.01)
    assert provider.max_in_flight == 64
    await waiting
    assert provider.max_in_flight > 128


# Refusals without a named limit


@in_virtual_time
async def test_a_rate_that_is_used_up_pauses_everything_until_the_named_time() -> None:
    provider = Provider(per_window=20, latency_s=0.005)
    limit = EndpointLimit(concurrency=8)
    await asyncio.gather(*(send(limit, provider, retry_after_s=0.5) for _ in range(50)))
    assert provider.admitted == 50
    assert provider.refused < 30  # sending on without a pause would be refused hundreds of times in this second


@in_virtual_time
async def test_a_single_refused_request_waits_for_the_named_time() -> None:
    limit, starts = EndpointLimit(concurrency=8), list[float]()
    async with limit.slot() as slot:
        limit.note_refused(slot, 1.2)
    await take(limit, starts)
    assert starts[0] - slot.started_at == pytest.approx(1.2)


# Rates of the settings


@in_virtual_time
async def test_requests_a_minute_are_spread_over_the_minute() -> None:
    limit, starts = EndpointLimit(concurrency=50, rpm=120), list[float]()
    await asyncio.gather(*(take(limit, starts) for _ in range(600)))
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert min(gaps) == pytest.approx(max(gaps))
    assert gaps[0] == pytest.approx(0.5, rel=0.01)
    assert count_most(starts) == 120


@given(
    rpm=st.integers(2, 3000),
    pauses=st.lists(st.floats(0.0, 90.0), min_size=1, max_size=30),
    batch=st.integers(1, 200),
)
def test_no_minute_has_more_than_its_requests_in_any_rhythm(rpm: int, pauses: list[float], batch: int) -> None:
    async def ask() -> list[float]:
        limit, starts = EndpointLimit(concurrency=1000, rpm=rpm), list[float]()
        asked = []
        for pause in pauses:
            asked += [asyncio.create_task(take(limit, starts)) for _ in range(batch)]
            await asyncio.sleep(pause)
        await asyncio.gather(*asked)
        return starts

    assert count_most(run_virtually(ask())) <= rpm


@in_virtual_time
async def test_tokens_a_minute_are_counted_by_the_guess_at_once() -> None:
    limit, starts = EndpointLimit(concurrency=50, tpm=6000), list[float]()
    await asyncio.gather(*(take(limit, starts, tokens=1000) for _ in range(60)))
    assert count_most(starts) <= 7  # the rate and one request
    assert starts[-1] - starts[0] == pytest.approx(59 * 10.0, rel=0.01)


@pytest.mark.parametrize(("guess", "used"), [(1000, 500), (500, 1000)])
@in_virtual_time
async def test_a_wrong_guess_at_tokens_is_set_right(guess: int, used: int) -> None:
    limit = EndpointLimit(concurrency=8, tpm=60_000)

    async def ask() -> None:
        async with limit.slot(guess) as slot:
            await asyncio.sleep(0.3)
            limit.note_success(slot, tokens=used)

    started = read_clock()
    await asyncio.gather(*(ask() for _ in range(600)))
    assert read_clock() - started == pytest.approx(600 * used / 1000, rel=0.03)


@in_virtual_time
async def test_a_request_larger_than_a_minute_goes_alone() -> None:
    limit, starts = EndpointLimit(concurrency=8, tpm=1000), list[float]()
    await asyncio.gather(*(take(limit, starts, tokens=tokens) for tokens in (100, 3000, 100)))
    assert starts[1] - starts[0] == pytest.approx(6.0, rel=0.01)
    assert starts[2] - starts[1] == pytest.approx(180.0, rel=0.01)


# A share


@in_virtual_time
async def test_share_bounds_slots_and_rates_and_takes_no_slot_away() -> None:
    limit, starts = EndpointLimit(concurrency=8, rpm=600), list[float]()
    tasks = [asyncio.create_task(take(limit, starts, hold_s=2.0)) for _ in range(20)]
    await asyncio.sleep(1.0)
    limit.set_share(2)
    assert limit.in_flight == 8
    await asyncio.sleep(1.6)
    assert limit.in_flight == 2
    limit.set_share(0)
    await asyncio.sleep(10.0)
    assert limit.in_flight == 0
    limit.set_share(2)
    await asyncio.gather(*tasks)
    assert starts[-1] - starts[-3] > 2 * 0.4 - 0.25  # a quarter of a second's delay is made up for
    assert limit.capacity.allowed == 8


# What holds always


@given(
    concurrency=st.integers(1, 12),
    capacity=st.integers(1, 12),
    shares=st.lists(st.integers(0, 15), max_size=6),
    holds=st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60),
    cancelled=st.sets(st.integers(0, 59), max_size=20),
)
def test_never_too_many_and_no_slot_is_lost(
    concurrency: int, capacity: int, shares: list[int], holds: list[float], cancelled: set[int]
) -> None:
    async def ask(limit: EndpointLimit, bound: list[int], hold_s: float) -> None:
        async with limit.slot() as slot:
            assert limit.in_flight <= max(bound[0], limit.in_flight - 1)
            await asyncio.sleep(hold_s)
            if limit.in_flight > capacity:
                limit.note_refused(slot, None)
            else:
                limit.note_success(slot)

    async def run() -> None:
        limit, bound = EndpointLimit(concurrency=concurrency), [concurrency]
        tasks = [asyncio.create_task(ask(limit, bound, hold_s)) for hold_s in holds]
        for number, share in enumerate(shares):
            await asyncio.sleep(0.5)
            bound[0] = max(limit.in_flight, min(share, concurrency))
            limit.set_share(share)
            for task in tasks[number::3]:
                if tasks.index(task) in cancelled:
                    task.cancel()
        limit.set_share(concurrency)
        bound[0] = concurrency
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
        assert limit.in_flight == 0

    run_virtually(run())


@given(concurrency=st.integers(1, 5), asked=st.integers(1, 30), cause=st.sampled_from(["full", "pause", "rate"]))
def test_closing_wakes_all_waiters_and_lets_none_in(concurrency: int, asked: int, cause: str) -> None:
    async def run() -> None:
        limit, starts = EndpointLimit(concurrency=concurrency, rpm=1 if cause == "rate" else None), list[float]()
        if cause == "pause":
            async with limit.slot() as slot:
                limit.note_refused(slot, 60.0)
        tasks = [asyncio.create_task(take(limit, starts, hold_s=30.0)) for _ in range(asked)]
        await asyncio.sleep(0.01)
        inside = limit.in_flight
        limit.close(RunCancelled("stopped by SIGINT"))
        done, pending = await asyncio.wait(tasks, timeout=0.01)
        assert (len(done), len(pending), limit.in_flight) == (asked - inside, inside, inside)
        assert all(isinstance(task.exception(), RunCancelled) for task in done)
        with pytest.raises(RunCancelled, match="SIGINT"):
            await take(limit, starts)
        await asyncio.gather(*pending)
        assert limit.in_flight == 0

    run_virtually(run())
