"""Slots of an endpoint: in order, never too many, none lost, and as many as it takes; a slow model of your own; and
waits that an endpoint asks for: reported while they last, ended where they are too long, shared by its models.

Nearly all in virtual time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from endpoint import Endpoint, Inject, Raw, Window
from hypothesis import given
from hypothesis import strategies as st
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, read_outcomes
from provider_calls import ask, make_question
from virtual_time import in_virtual_time, read_clock, run_virtually

from evalhouse.flows.results.progress import describe_progress
from evalhouse.tasks.asking.asker import Asker
from evalhouse.tasks.asking.limits import EndpointLimit
from evalhouse.tasks.asking.record import Call
from evalhouse.tasks.asking.usage import Price
from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import (
    JudgeFailed,
    ModelReply,
    ModelRequest,
    Question,
    RunCancelled,
    choose_timeout,
    draw_backoff,
    is_near,
)
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.messages import write_span


class Provider:
    """Takes `most` requests at once, and refuses the others at once."""

    def __init__(self, *, most: int = 10_000, latency_s: float = 0.02) -> None:
        self.most = most
        self.latency_s = latency_s
        self.in_flight = 0
        self.max_in_flight = 0
        self.refused = 0

    async def answer(self, latency_s: float | None = None) -> bool:
        """Return whether the request was let in."""
        if self.in_flight >= self.most:
            self.refused += 1
            await asyncio.sleep(0.001)
            return False
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        await asyncio.sleep(latency_s or self.latency_s)
        self.in_flight -= 1
        return True


async def send(limit: EndpointLimit, provider: Provider) -> None:
    while True:
        async with limit.slot() as slot:
            if await provider.answer():
                limit.note_success(slot)
                return
            limit.note_refused(slot, 0.05)
        await asyncio.sleep(0.05)


async def take(limit: EndpointLimit, starts: list[float], *, tokens: int = 0, hold_s: float = 0.0) -> None:
    async with limit.slot(tokens) as slot:
        starts.append(slot.started_at)
        await asyncio.sleep(hold_s)


def count_most(starts: list[float], window_s: float = 60.0) -> int:
    """The most starts within any window."""
    return max(bisect_left(starts, start + window_s) - number for number, start in enumerate(starts))


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
async def test_a_first_burst_is_bounded_and_opens_up_with_success() -> None:
    provider = Provider(latency_s=0.3)
    limit = EndpointLimit(concurrency=256)
    waiting = asyncio.gather(*(send(limit, provider) for _ in range(600)))
    await asyncio.sleep(0.01)
    assert provider.max_in_flight == 64
    await waiting
    assert provider.max_in_flight > 128


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
    batch=st.integers(1, 80),
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


DEFAULTS = RunSettings()


@dataclass
class NoRecord:
    """Keeps calls in memory and finds none."""

    calls: list[Call] = field(default_factory=list)

    async def find(self, request_hash: str) -> None:
        return None

    def claim(self, request_hash: str) -> bool:
        return True

    def keep(self, call: Call) -> str:
        self.calls.append(call)
        return str(len(self.calls))

    def close(self) -> None:
        pass


@dataclass
class LocalModel:
    """A server with one slot and a queue, which stops working on a request when its client goes away.

    What it has read of a prompt is kept until it reads another one. `takes` gives the seconds for a request.
    """

    takes: Callable[[str], float]
    name: str = "openai:own"
    model: str = "own"
    endpoint: str | None = "https://judge.example/v1"
    done: Counter[str] = field(default_factory=Counter)
    max_waiting: int = 0
    _waiting: int = 0
    _read: tuple[str, float] = ("", 0.0)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(1)

    def prepare(self, question: Question) -> ModelRequest:
        return ModelRequest(request_hash=question.sample_id, payload={"input": question.sample_id})

    async def reply(self, request: ModelRequest) -> ModelReply:
        self._waiting += 1
        self.max_waiting = max(self.max_waiting, self._waiting)
        try:
            async with self._slots:
                await self._work_on(request.request_hash)
        finally:
            self._waiting -= 1
        return ModelReply(text="{}")

    async def _work_on(self, name: str) -> None:
        known_s = self._read[1] if self._read[0] == name else 0.0
        began = read_clock()
        try:
            await asyncio.sleep(self.takes(name) - known_s)
        finally:
            self._read = (name, known_s + read_clock() - began)
        self.done[name] += 1

    async def close(self) -> None:
        pass


async def ask_all(model: LocalModel, n: int, concurrency: int = DEFAULTS.concurrency) -> tuple[Asker, list[object]]:
    """Ask so many questions at once with the settings that a run has by itself."""
    timeout_s = choose_timeout(DEFAULTS.timeout_s, model.endpoint)
    limit = EndpointLimit(concurrency=concurrency, timeout_s=timeout_s, max_wait_s=DEFAULTS.max_wait_s)
    price = Price(input_usd=0, output_usd=0)
    asker = Asker(judge=model, record=NoRecord(), limit=limit, attempts=DEFAULTS.attempts, price=price)
    question = Question(step="rank", sample_id="", prompt=None, data={})
    asked = [asker.ask(replace(question, sample_id=f"s{number}"), str) for number in range(n)]
    return asker, await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize(("takes_s", "n"), [(9.0, 40), (59.0, 20)])
@in_virtual_time
async def test_request_in_a_moving_queue_is_not_given_up(takes_s: float, n: int) -> None:
    model, began = LocalModel(takes=lambda _: takes_s), read_clock()
    asker, answers = await ask_all(model, n)
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    assert (asker.counts.requests, asker.counts.late, set(model.done.values())) == (n, 0, {1})
    assert read_clock() - began == pytest.approx(takes_s * n)


@in_virtual_time
async def test_first_request_of_minutes_is_waited_for_on_this_machine() -> None:
    """A cold model that reads a long prompt on a busy machine was seen to take 170 s."""
    model = LocalModel(takes=lambda name: 400.0 if name == "s0" else 30.0, endpoint="http://127.0.0.1:8080/v1")
    asker, _ = await ask_all(model, 8)
    assert (asker.counts.requests, asker.counts.late) == (8, 0)


@pytest.mark.parametrize("concurrency", [1, 16])
@in_virtual_time
async def test_a_question_that_takes_longer_than_the_timeout_is_asked_again_at_once_and_longer(
    concurrency: int,
) -> None:
    """Asked in turn with the others, it would never be read to the end."""
    model = LocalModel(takes=lambda _: 200.0)
    asker, answers = await ask_all(model, 8, concurrency)
    assert not [answer for answer in answers if isinstance(answer, BaseException)]
    assert set(model.done.values()) == {1}, "what was read to the end was not asked for again"
    assert asker.counts.late <= 2 + concurrency
    assert read_clock() - 1000.0 <= 8 * 200.0 + 300.0


@in_virtual_time
async def test_fewer_are_sent_at_once_after_a_time_out() -> None:
    model = LocalModel(takes=lambda _: 100.0)
    asker, _ = await ask_all(model, 40)
    assert model.max_waiting == DEFAULTS.concurrency
    assert asker.limit.capacity.allowed <= DEFAULTS.concurrency // 2 + 1
    assert asker.counts.late == DEFAULTS.concurrency, "only the requests of the first minute"


@in_virtual_time
async def test_endpoint_that_never_answers_is_given_up_for_all_questions_at_once() -> None:
    began = read_clock()
    asker, answers = await ask_all(LocalModel(takes=lambda _: 1e9), 16)
    assert all(isinstance(answer, JudgeFailed) for answer in answers)
    assert asker.counts.requests == 16 * DEFAULTS.attempts
    assert read_clock() - began <= 2 * (60.0 + 120.0 + 3 * 240.0)


@pytest.mark.parametrize(("endpoint", "most_s"), [("https://judge.example/v1", 4_000), ("http://127.0.0.1/v1", 13_000)])
@in_virtual_time
async def test_a_silent_model_is_given_up_for_however_many_questions(endpoint: str, most_s: float) -> None:
    began = read_clock()
    asker, answers = await ask_all(LocalModel(takes=lambda _: 1e9, endpoint=endpoint), 400)
    assert all(isinstance(answer, JudgeFailed) for answer in answers)
    assert asker.counts.requests < 400
    assert DEFAULTS.max_wait_s < read_clock() - began < most_s
    assert any("no reply came for" in str(answer) and "--max-wait is 1:00:00 h" in str(answer) for answer in answers)


@pytest.mark.parametrize(
    ("endpoint", "near"),
    [
        ("http://localhost:11434/v1", True),
        ("http://[::1]:8080/v1", True),
        ("http://192.168.1.20:8000/v1", True),
        ("http://ollama:11434/v1", True),
        ("http://host.docker.internal:11434/v1", True),
        ("https://api.openai.com/v1", False),
        ("https://8.8.8.8/v1", False),
        ("", False),
    ],
)
def test_addresses_of_this_machine_and_its_network_are_known(endpoint: str, near: bool) -> None:
    assert is_near(endpoint) is near
    assert choose_timeout(None, endpoint) == (600 if near else 60)
    assert choose_timeout(7.0, endpoint) == 7


FAR_S = 99_999 * 86_400.0


async def send_like_asker(limit: EndpointLimit, crowded: Provider, latency_s: float) -> None:
    """Send as the call path does."""
    refusals = 0
    while True:
        async with limit.slot() as slot:
            if await crowded.answer(latency_s):
                limit.note_success(slot)
                return
            limit.note_refused(slot, 1.0)
        refusals += 1
        await asyncio.sleep(max(random.uniform(1.0, 1.1), draw_backoff(refusals)))


@pytest.mark.parametrize("embedding_s", [0.1, 1.0])
@in_virtual_time
async def test_two_models_of_a_narrow_endpoint_keep_it_full_together(embedding_s: float) -> None:
    random.seed(1)
    crowded = Provider(most=16)
    judge = EndpointLimit(concurrency=64)
    embeddings = EndpointLimit(concurrency=64, beside=judge)
    started = read_clock()
    asked = [send_like_asker(judge, crowded, 1.0) for _ in range(500)] + [
        send_like_asker(embeddings, crowded, embedding_s) for _ in range(200)
    ]
    await asyncio.gather(*asked)
    ideal_s = (500 * 1.0 + 200 * embedding_s) / 16
    assert ideal_s / (read_clock() - started) > 0.9
    assert crowded.refused < 70
    assert (judge.in_flight, embeddings.in_flight) == (0, 0)


@in_virtual_time
async def test_longest_waiting_question_is_next_for_any_model() -> None:
    judge = EndpointLimit(concurrency=1)
    embeddings, order = EndpointLimit(concurrency=1, beside=judge), list[int]()

    async def queue(number: int) -> None:
        async with (judge, embeddings)[number % 3 == 0].slot():
            order.append(number)
            await asyncio.sleep(1)

    await asyncio.gather(*(queue(number) for number in range(20)))
    assert order == list(range(20))


async def stand_still(limit: EndpointLimit, retry_after_s: float) -> None:
    """Ask until the limit gives up, being refused each time."""
    while True:
        async with limit.slot() as slot:
            limit.note_refused(slot, retry_after_s)
        limit.note_wait(retry_after_s, "the endpoint asks to wait (status 429)")
        await asyncio.sleep(retry_after_s)


@pytest.mark.parametrize(("retry_after_s", "ends_after_s"), [(600.0, 3600.0), (10.0, 3600.0), (86_400.0, 0.0)])
@in_virtual_time
async def test_an_endpoint_that_lets_nothing_through_is_waited_for_so_long(
    retry_after_s: float, ends_after_s: float
) -> None:
    limit, started = EndpointLimit(concurrency=8, max_wait_s=3600.0), read_clock()
    with pytest.raises(JudgeFailed, match=r"--max-wait is 1:00:00 h; raise it, or continue later with"):
        await stand_still(limit, retry_after_s)
    assert read_clock() - started == pytest.approx(ends_after_s, abs=retry_after_s if ends_after_s else 1)
    with pytest.raises(JudgeFailed):
        async with limit.slot():
            pass


@pytest.mark.parametrize(
    ("seconds", "text"), [(3.2, "3 s"), (59.7, "1:00 min"), (598, "9:58 min"), (FAR_S, "2,399,976:00:00 h")]
)
def test_a_time_to_wait_is_written_for_people(seconds: float, text: str) -> None:
    assert write_span(seconds) == text


async def test_wait_is_reported_while_it_lasts(
    endpoint: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint.configure(script={"extract": lambda _: Inject(fault="rate_limit")}, retry_after=600)
    async with lay_out_run(tmp_path, make_settings()) as live_run:
        live_run.progress.n_samples = 1
        with caplog.at_level(logging.WARNING, logger="evalhouse.tasks.asking.limits"):
            asked = [
                asyncio.create_task(live_run.asker.ask(make_question(number), read_statements)) for number in range(4)
            ]
            deadline = time.monotonic() + 10
            while "waiting" not in describe_progress(live_run) and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
        shown = describe_progress(live_run)
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    assert "0/1 samples\nwaiting 1" in shown or "0/1 samples\nwaiting 9:5" in shown
    assert "openai:judge asks to wait (status 429: Rate limit reached" in shown
    assert 1 <= len(caplog.records) <= 2  # once to a log, not once a question
    assert "nothing is asked for 1" in caplog.text


REFUSALS: dict[str, dict[str, Any]] = {
    "Retry-After of ten minutes": {"status": 429, "headers": {"Retry-After": "600"}},
    "no word of how long": {"status": 429, "headers": {}},
}


@pytest.mark.usefixtures("quick_backoff")
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_samples_are_given_up_with_the_reason_when_the_wait_is_too_long(
    endpoint: Endpoint, tmp_path: Path, refusal: str
) -> None:
    def refuse(_: object) -> Raw:
        return Raw(body={"error": {"message": "slow down"}}, **REFUSALS[refusal])

    script = dict.fromkeys(("extract", "rank", "classify", "attribute"), refuse)
    endpoint.configure(script=script)
    started = time.monotonic()
    async with lay_out_run(tmp_path, make_settings(max_wait_s=1.0, concurrency=4)) as live_run:
        works = await judge_samples(live_run, [make_sample(number) for number in range(20)])
    assert time.monotonic() - started < 15
    n_requests = endpoint.stats.statuses[429]
    for work in works:
        assert read_outcomes(work)["extract_answer"] == "judge_failed"
        assert read_outcomes(work)["rank"] == "judge_failed"
    details = {str(row["detail"]) for work in works for row in work.rows["outcomes"] if row["step"] == "rank"}  # type: ignore[index]
    assert all("--max-wait is 1 s" in detail for detail in details)
    assert n_requests < 80


async def test_a_question_that_alone_is_refused_is_given_up_alone(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(script={"extract": [Inject(fault="rate_limit")]}, retry_after=3.0)
    (error,) = await ask(tmp_path, max_wait_s=2.0)
    assert isinstance(error, JudgeFailed)
    assert "asks to wait (status 429" in str(error)


@pytest.mark.parametrize(("window", "retry_after"), [("fixed", None), ("bucket", 1.0)])
async def test_run_finds_limit_of_requests_with_few_refusals(
    endpoint: Endpoint, tmp_path: Path, window: Window, retry_after: float | None
) -> None:
    limits = {"rpm": 40, "rpm_window_s": 0.6, "window": window}
    endpoint.configure(latency=0.02, retry_after=retry_after, **limits)
    async with lay_out_run(tmp_path, make_settings(concurrency=16)) as live_run:
        asked = (live_run.asker.ask(make_question(number), read_statements) for number in range(96))
        await asyncio.gather(*asked)
    assert endpoint.stats.statuses[200] == 96
    assert endpoint.stats.statuses[429] <= 24
