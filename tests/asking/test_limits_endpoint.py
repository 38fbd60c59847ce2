"""Limits that only the refusals of real HTTP answers show."""

import asyncio
from pathlib import Path

import pytest
from endpoint import Endpoint, Window, running_endpoint
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
    [("fixed", None), ("bucket", 1.0), pytest.param("fixed", 1.0, marks=pytest.mark.slow)],
)
async def test_run_finds_limit_of_requests_with_few_refusals(
    tmp_path: Path, window: Window, retry_after: float | None
) -> None:
    limits = {"rpm": 50, "rpm_window_s": 1.0, "window": window}
    with running_endpoint(latency=0.02, retry_after=retry_after, **limits) as endpoint:
        point_to(endpoint.base_url)
        async with lay_out_run(tmp_path, make_settings(concurrency=16)) as live_run:
            await ask_many(live_run, 120)
        assert endpoint.stats.statuses[200] == 120
        assert count_refused(endpoint) <= 30
