"""Limits that only the refusals of real HTTP answers show, and the test endpoint that keeps them."""

import asyncio
from pathlib import Path

import pytest
from endpoint import Endpoint, running_endpoint
from endpoint_limits import Counted, Window
from endpoint_options import Options
from live_runs import PROMPTS, lay_out_run, make_settings, point_to

from evalhouse.tasks.asking.verdicts import read_statements
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.pipeline.live_run import LiveRun


async def ask_many(live_run: LiveRun, count: int) -> None:
    """Ask so many different questions side by side; each must be answered."""
    questions = [
        Question(
            step="extract_answer",
            sample_id=f"s{number}",
            prompt=PROMPTS["extract"],
            data={"question": f"Question {number}?", "text": f"Text {number} is red. It is old."},
        )
        for number in range(count)
    ]
    answers = await asyncio.gather(*(live_run.asker.ask(question, read_statements) for question in questions))
    assert len(answers) == count


def count_refused(endpoint: Endpoint) -> int:
    return endpoint.stats.statuses[429]


@pytest.mark.parametrize(
    ("window", "retry_after"),
    [
        ("fixed", None),
        ("bucket", 1.0),
        *[
            pytest.param(window, retry_after, marks=pytest.mark.slow)
            for window, retry_after in (("fixed", 1.0), ("sliding", None), ("sliding", 1.0), ("bucket", None))
        ],
    ],
)
async def test_run_finds_limit_of_requests_with_few_refusals(
    tmp_path: Path, window: Window, retry_after: float | None
) -> None:
    limits = {"rpm": 50, "rpm_window_s": 1.0, "window": window}
    with running_endpoint(latency=0.02, retry_after=retry_after, **limits) as endpoint:
        point_to(endpoint.base_url)
        async with lay_out_run(tmp_path, make_settings(concurrency=16)) as live_run:
            await ask_many(live_run, 200)
        assert endpoint.stats.statuses[200] == 200
        assert count_refused(endpoint) <= 30


# The endpoint's own counting


@pytest.mark.parametrize(
    ("window", "let_in_at"),
    [
        ("sliding", [0, 1, 2, 10, 11, 12]),  # each place is free a window after it was taken
        ("fixed", [0, 1, 2, 10, 11, 12]),
        ("bucket", [0, 1, 2, 4, 7, 10]),  # a place is refilled every three and a third seconds
    ],
)
def test_three_ways_to_count_a_window(window: Window, let_in_at: list[int]) -> None:
    rules, counted = Options(rpm=3, rpm_window_s=10.0, window=window), Counted()
    assert [at for at in range(13) if counted.let_in(1, rules, 100.0 + at) is None] == let_in_at


def test_tokens_are_counted_beside_requests() -> None:
    rules, counted = Options(rpm=10, tpm=100, window="bucket"), Counted()
    assert counted.let_in(70, rules, 5.0) is None
    assert counted.let_in(50, rules, 5.0) == pytest.approx(12.0)
    assert counted.let_in(50, rules, 17.01) is None


def test_what_is_larger_than_the_limit_is_let_in_alone() -> None:
    rules, counted = Options(tpm=100, window="fixed"), Counted()
    assert counted.let_in(500, rules, 5.0) is None
    assert counted.let_in(1, rules, 6.0) == pytest.approx(59.0)
    assert counted.let_in(1, rules, 65.0) is None
