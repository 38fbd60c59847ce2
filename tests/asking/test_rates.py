"""Limits that the endpoint tells: kept, made full use of, and no hindrance where they are large."""

import asyncio
import random
from dataclasses import dataclass, field
from functools import cache

import pytest
from endpoint_limits import Counted, Window
from hypothesis import given
from hypothesis import strategies as st
from virtual_time import in_virtual_time, read_clock, run_virtually

from evalhouse.tasks.asking.limits import EndpointLimit, LimitReport, Rate, Slot
from evalhouse.tasks.judge.rate_headers import RateLimits, read_rate_limits

# A draw of another thread from the generator of all would make another story of the same requests.
_DICE = random.Random()


@dataclass(kw_only=True)
class Provider:
    """Counts as the test endpoint does and tells so; answers after half to one and a half of `latency_s`."""

    rpm: int | None = None
    tpm: int | None = None
    rpm_window_s: float = 60.0
    window: Window = "fixed"
    latency_s: float = 0.3
    counted: Counted = field(default_factory=Counted)
    refused: int = 0

    async def answer(self, tokens: int) -> tuple[bool, RateLimits | None]:
        """Whether the request was let in, and what was told."""
        let_in = self.counted.let_in(tokens, self, read_clock()) is None
        told = read_rate_limits(self.counted.tell(self, read_clock()))
        self.refused += not let_in
        await asyncio.sleep(self.latency_s * _DICE.uniform(0.5, 1.5) if let_in else 0.01)
        return let_in, told


async def send(limit: EndpointLimit, provider: Provider, tokens: int = 0, guess: float = 1.0) -> None:
    """As the call path does it."""
    while True:
        async with limit.slot(int(tokens * guess)) as slot:
            let_in, told = await provider.answer(tokens)
            if let_in:
                limit.note_success(slot)
                limit.note_tokens(slot, tokens)
            if told is not None:
                limit.note_report(told, slot)
            if let_in:
                return
            limit.note_refused(slot, None)
        await asyncio.sleep(_DICE.uniform(0.25, 0.5))


def measure(provider: Provider, requests: int, *, tokens: int = 0, guess: float = 1.0) -> float:
    """Seconds for all requests with 64 in flight and nothing set."""
    _DICE.seed(1)

    async def run() -> float:
        limit, started = EndpointLimit(concurrency=64), read_clock()
        await asyncio.gather(*(send(limit, provider, tokens, guess) for _ in range(requests)))
        return read_clock() - started

    return run_virtually(run())


@cache
def measure_untold(requests: int, *, tokens: int) -> float:
    return measure(Provider(), requests, tokens=tokens)


@pytest.mark.parametrize("window", ["fixed", "sliding", "bucket"])
@pytest.mark.parametrize("tpm", [None, 10_000_000])
def test_generous_limits_cost_nothing(window: Window, tpm: int | None) -> None:
    untold = measure_untold(1500, tokens=1000)
    assert measure(Provider(rpm=10_000, tpm=tpm, window=window), 1500, tokens=1000) == pytest.approx(untold, rel=0.005)


@pytest.mark.parametrize("window", ["fixed", "sliding", "bucket"])
def test_a_told_limit_of_requests_is_used_up_and_hardly_ever_exceeded(window: Window) -> None:
    provider = Provider(rpm=600, window=window)
    seconds = measure(provider, 3000)
    assert provider.refused < 0.05 * 3000
    # Half a minute's worth went ahead, the rest is spread at the limit's pace.
    assert seconds == pytest.approx((3000 - 300) / 10, rel=0.2)


@pytest.mark.parametrize("window", ["fixed", "sliding", "bucket"])
@pytest.mark.parametrize("guess", [0.7, 1.0, 1.4])
def test_a_told_limit_of_tokens_likewise_whatever_is_guessed(window: Window, guess: float) -> None:
    provider = Provider(tpm=200_000, window=window)
    seconds = measure(provider, 1000, tokens=1000, guess=guess)
    assert provider.refused < 0.05 * 1000
    assert seconds == pytest.approx((1000 - 100) / 200 * 60, rel=0.2)


@pytest.mark.parametrize("window", ["fixed", "bucket"])
def test_a_limit_by_the_second_is_not_taken_for_one_by_the_minute(window: Window) -> None:
    provider = Provider(rpm=20, rpm_window_s=1.0, window=window)
    assert measure(provider, 400) < 30
    assert provider.refused <= 64  # those of the first burst


@pytest.mark.parametrize("window", ["fixed", "bucket"])
@pytest.mark.parametrize("fractions", [(1.0,), (0.5, 0.5), (0.7, 0.2, 0.1)])
def test_processes_that_share_a_told_limit_keep_it_together(window: Window, fractions: tuple[float, ...]) -> None:
    _DICE.seed(1)
    provider = Provider(rpm=600, window=window)

    async def run() -> float:
        started = read_clock()
        limits = [EndpointLimit(concurrency=64) for _ in fractions]
        for limit, fraction in zip(limits, fractions, strict=True):
            limit.set_share(int(64 * fraction), fraction=fraction)
        await asyncio.gather(
            *(
                send(limit, provider)
                for limit, part in zip(limits, fractions, strict=True)
                for _ in range(int(1800 * part))
            )
        )
        return read_clock() - started

    assert run_virtually(run()) < 1.35 * 150
    assert provider.refused < 0.05 * 1800


async def ask_once(limit: EndpointLimit, told: RateLimits, tokens: int = 0) -> Slot:
    async with limit.slot(tokens) as slot:
        limit.note_report(told, slot)
    return slot


@in_virtual_time
async def test_nothing_starts_until_the_reset_when_nothing_is_left() -> None:
    limit = EndpointLimit(concurrency=8)
    first = await ask_once(limit, RateLimits(requests_limit=100, requests_remaining=0, requests_reset_s=21.5))
    async with limit.slot() as second:
        assert second.started_at - first.started_at == pytest.approx(21.5)


@in_virtual_time
async def test_an_answer_that_knows_of_more_ends_the_wait() -> None:
    limit = EndpointLimit(concurrency=8)
    async with limit.slot() as slow:
        first = await ask_once(limit, RateLimits(tokens_remaining=0, tokens_reset_s=50.0), tokens=10)
        waiting = asyncio.create_task(ask_once(limit, RateLimits(), tokens=10))
        await asyncio.sleep(5.0)
        assert not waiting.done()
        limit.note_report(RateLimits(tokens_remaining=0, tokens_reset_s=300.0), slow)  # made before the first's: stale
        limit.note_report(RateLimits(tokens_remaining=5000, tokens_reset_s=1.0))
        assert (await waiting).started_at - first.started_at == pytest.approx(5.0)


@in_virtual_time
async def test_requests_in_flight_are_taken_off_what_is_left() -> None:
    limit, started = EndpointLimit(concurrency=64), 0

    async def hold() -> None:
        nonlocal started
        async with limit.slot():
            started += 1
            await asyncio.sleep(1000)

    async with limit.slot() as slot:
        tasks = [asyncio.create_task(hold()) for _ in range(30)]
        await asyncio.sleep(0.1)
        tasks += [asyncio.create_task(hold()) for _ in range(50)]
        # 33 were left when this request was counted: 30 have gone since, so 3 more may.
        limit.note_report(RateLimits(requests_limit=1000, requests_remaining=33, requests_reset_s=30.0), slot)
        await asyncio.sleep(29.0)
        assert started == 33
        await asyncio.sleep(20.0)
        assert started == 63
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@in_virtual_time
async def test_a_refusal_for_a_rate_is_no_sign_of_too_many_in_flight() -> None:
    limit = EndpointLimit(concurrency=16)
    async with limit.slot(), limit.slot() as refused:
        limit.note_report(RateLimits(requests_limit=60, requests_remaining=0, requests_reset_s=9.0), refused)
        limit.note_refused(refused, 60.0)
        assert limit.allowed == 16
    async with limit.slot() as later:
        assert later.started_at - refused.started_at == pytest.approx(9.0)


@in_virtual_time
async def test_a_limit_of_the_day_is_used_and_not_spread_and_then_tried_once_a_minute() -> None:
    limit, starts = EndpointLimit(concurrency=8), list[float]()
    for left in range(4, -1, -1):
        told = RateLimits(requests_limit=200, requests_remaining=left, requests_reset_s=40_000.0)
        starts.append((await ask_once(limit, told)).started_at)
    assert starts[-1] == starts[0]
    for _ in range(3):
        async with limit.slot() as slot:
            starts.append(slot.started_at)
    assert [later - starts[0] for later in starts[-3:]] == pytest.approx([60.0, 120.0, 180.0])


@in_virtual_time
async def test_the_smaller_of_the_told_and_the_set_rate_rules() -> None:
    for rpm, told, gap in ((60, 6000, 1.0), (6000, 60, 1.0), (None, 120, 0.5)):
        limit = EndpointLimit(concurrency=8, rpm=rpm)
        slots = [await ask_once(limit, RateLimits(requests_limit=told)) for _ in range(5)]
        assert slots[4].started_at - slots[2].started_at == pytest.approx(2 * gap, rel=0.02)


def test_a_limit_that_refills_is_not_waited_for_until_it_is_full() -> None:
    rate = Rate(None)
    for used in (60, 200, 360, 590):
        rate.take_report(LimitReport(limit=600, remaining=600 - used, reset_s=used / 10), 0, 100.0)
    assert rate.find_start(5, 100.0) < 100.1
    rate.take(10, 100.0)
    assert rate.find_start(5, 100.0) == pytest.approx(102.0, abs=0.1)  # little is left: at half of the limit's pace
    begins_anew = Rate(None)
    for used in (60, 200, 360, 590):
        begins_anew.take_report(LimitReport(limit=600, remaining=600 - used, reset_s=40.0), 0, 100.0)
    begins_anew.take(10, 100.0)
    assert begins_anew.find_start(5, 100.0) == 140.0


_COUNTS = st.none() | st.integers(0, 10_000)
_RESETS = st.none() | st.floats(0.0, 1e6)


@given(
    told=st.lists(st.builds(LimitReport, limit=st.none() | st.integers(1, 10_000), remaining=_COUNTS, reset_s=_RESETS)),
    fraction=st.floats(0.01, 1.0),
    units=st.integers(0, 20_000),
)
def test_whatever_is_told_nobody_waits_for_ever(told: list[LimitReport], fraction: float, units: int) -> None:
    rate, now = Rate(None), 1000.0
    rate.share(fraction, now)
    for item in told:
        rate.take_report(item, 3, now)
        while (at := rate.find_start(units, now)) > now:
            # One request's tokens at the pace of the smallest limit, or a minute.
            assert at - now <= 60.1 + units * 605 / fraction
            now = at
        rate.take(units, now)
