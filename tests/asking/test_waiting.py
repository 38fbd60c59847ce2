"""Waits that an endpoint asks for: reported while they last, ended where they are too long, shared by its models."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from pathlib import Path
from typing import Any

import pytest
from endpoint import Inject, Raw, Window, running_endpoint
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to, read_outcomes
from provider_calls import KEY, ask, make_question
from virtual_time import in_virtual_time, read_clock

from evalhouse.flows.results.progress import describe_progress
from evalhouse.tasks.asking.limits import EndpointLimit, draw_backoff
from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import JudgeFailed
from evalhouse.warehouse.messages import write_span

FAR_S = 99_999 * 86_400.0


class Crowded:
    """Takes so many requests at once, of any model."""

    def __init__(self, most: int) -> None:
        self.most, self.in_flight, self.refused = most, 0, 0

    async def answer(self, latency_s: float) -> bool:
        if self.in_flight >= self.most:
            self.refused += 1
            return False
        self.in_flight += 1
        await asyncio.sleep(latency_s)
        self.in_flight -= 1
        return True


async def send(limit: EndpointLimit, crowded: Crowded, latency_s: float) -> None:
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
    crowded = Crowded(16)
    judge = EndpointLimit(concurrency=64)
    embeddings = EndpointLimit(concurrency=64, beside=judge)
    started = read_clock()
    asked = [send(judge, crowded, 1.0) for _ in range(500)] + [
        send(embeddings, crowded, embedding_s) for _ in range(200)
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


async def test_wait_is_reported_while_it_lasts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with running_endpoint(script={"extract": lambda _: Inject(fault="rate_limit")}, retry_after=600) as endpoint:
        point_to(endpoint.base_url, KEY)
        async with lay_out_run(tmp_path, make_settings()) as live_run:
            live_run.progress.n_samples = 1
            with caplog.at_level(logging.WARNING, logger="evalhouse.tasks.asking.limits"):
                asked = [
                    asyncio.create_task(live_run.asker.ask(make_question(number), read_statements))
                    for number in range(4)
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
async def test_samples_are_given_up_with_the_reason_when_the_wait_is_too_long(tmp_path: Path, refusal: str) -> None:
    def refuse(_: object) -> Raw:
        return Raw(body={"error": {"message": "slow down"}}, **REFUSALS[refusal])

    script = dict.fromkeys(("extract", "rank", "classify", "attribute"), refuse)
    with running_endpoint(script=script) as endpoint:
        point_to(endpoint.base_url, KEY)
        started = time.monotonic()
        async with lay_out_run(tmp_path, make_settings(max_wait_s=2.0, concurrency=4)) as live_run:
            works = await judge_samples(live_run, [make_sample(number) for number in range(20)])
        assert time.monotonic() - started < 15
        n_requests = endpoint.stats.statuses[429]
    for work in works:
        assert read_outcomes(work)["extract_answer"] == "judge_failed"
        assert read_outcomes(work)["rank"] == "judge_failed"
    details = {str(row["detail"]) for work in works for row in work.rows["outcomes"] if row["step"] == "rank"}  # type: ignore[index]
    assert all("--max-wait is 2 s" in detail for detail in details)
    assert n_requests < 80


async def test_a_question_that_alone_is_refused_is_given_up_alone(tmp_path: Path) -> None:
    with running_endpoint(script={"extract": [Inject(fault="rate_limit")]}, retry_after=3.0) as endpoint:
        point_to(endpoint.base_url, KEY)
        (error,) = await ask(tmp_path, max_wait_s=2.0)
        assert isinstance(error, JudgeFailed)
        assert "asks to wait (status 429" in str(error)


@pytest.mark.parametrize(("window", "retry_after"), [("fixed", None), ("bucket", 1.0)])
async def test_run_finds_limit_of_requests_with_few_refusals(
    tmp_path: Path, window: Window, retry_after: float | None
) -> None:
    limits = {"rpm": 50, "rpm_window_s": 1.0, "window": window}
    with running_endpoint(latency=0.02, retry_after=retry_after, **limits) as endpoint:
        point_to(endpoint.base_url)
        async with lay_out_run(tmp_path, make_settings(concurrency=16)) as live_run:
            asked = (live_run.asker.ask(make_question(number), read_statements) for number in range(120))
            await asyncio.gather(*asked)
        assert endpoint.stats.statuses[200] == 120
        assert endpoint.stats.statuses[429] <= 30
