"""Requests beyond the model's context window are asked in parts, by its known size or after its refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from endpoint import Asked, Endpoint, Raw, running_endpoint
from endpoint_options import make_http_fault
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to, read_calls, read_outcomes

from evalhouse.tasks.pipeline.live_run import SampleWork

KINDS = ("extract", "classify", "attribute", "rank", "fused")
N = 8
LAMPS = [f"Lamp {number} of the north harbour burns nothing but oil from whales." for number in range(N)]
LONG_TEXT = make_sample(
    answer=" ".join(LAMPS),
    ground_truth=" ".join(LAMPS),
    contexts=[f"{lamp} {'It is cleaned by hand. ' * 60}" for lamp in LAMPS],
)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint() as running:
        point_to(running.base_url)
        yield running


def hold(endpoint: Endpoint, most: int) -> None:
    """Make the endpoint refuse a request with more than so many characters of data as too long."""

    def refuse(asked: Asked) -> Raw | None:
        return make_http_fault("context_length_exceeded", None) if len(asked.texts[-1]) > most else None

    endpoint.configure(script=dict.fromkeys(KINDS, refuse))


async def judge(folder: Path, **settings: object) -> SampleWork:
    async with lay_out_run(folder, make_settings(**settings)) as live_run:
        (work,) = await judge_samples(live_run, [LONG_TEXT])
    return work


def read_verdicts(work: SampleWork) -> list[list[object]]:
    return [
        sorted((row["statement_id"], row["label"]) for row in work.rows["classifications"]),
        sorted((row["statement_id"], row["context_ranks"]) for row in work.rows["attributions"]),
        sorted((row["context_rank"], row["useful"]) for row in work.rows["context_verdicts"]),
    ]


def measure_longest(folder: Path) -> int:
    return max(call["prompt_tokens"] or 0 for call in read_calls(folder))


@pytest.mark.parametrize("votes", [1, 3])
async def test_what_is_refused_as_too_long_is_asked_in_parts_in_every_step(
    endpoint: Endpoint, tmp_path: Path, votes: int
) -> None:
    whole = read_verdicts(await judge(tmp_path / "whole", votes=votes))
    hold(endpoint, 3_600)
    work = await judge(tmp_path / "parts", votes=votes)
    assert {reason for reason in read_outcomes(work).values() if reason} == set()
    assert read_verdicts(work) == whole
    refused = [call for call in read_calls(tmp_path / "parts") if call["status"] == "refused"]
    assert refused
    assert len({call["request"] for call in refused}) == len(refused), "none is refused a second time"


async def test_a_known_window_is_kept_to_without_a_refusal(endpoint: Endpoint, tmp_path: Path) -> None:
    whole = read_verdicts(await judge(tmp_path / "whole"))
    longest = measure_longest(tmp_path / "whole")
    assert longest > 3_500
    endpoint.configure(keep_bodies=True)
    work = await judge(tmp_path / "parts", context_window=3_500)
    assert read_verdicts(work) == whole
    calls = read_calls(tmp_path / "parts")
    assert {call["status"] for call in calls} <= {"ok", "cached"}
    assert measure_longest(tmp_path / "parts") < longest


@pytest.mark.parametrize("is_known", [True, False])
async def test_what_is_too_long_for_one_request_of_all_is_asked_by_steps_and_says_so(
    endpoint: Endpoint, tmp_path: Path, is_known: bool
) -> None:
    whole = read_verdicts(await judge(tmp_path / "whole"))
    if not is_known:
        hold(endpoint, 3_600)
    work = await judge(tmp_path / "parts", plan="fused", context_window=3_500 if is_known else None)
    assert read_verdicts(work) == whole
    assert set(read_outcomes(work).values()) == {None}
    (detail,) = [row["detail"] for row in work.rows["outcomes"] if row["step"] == "fused"]
    assert ("too long" in detail, detail.endswith(": asked by the separate steps")) == (True, True)
    asked = {call["step"] for call in read_calls(tmp_path / "parts") if call["status"] == "ok"}
    assert {"classify", "attribute_answer", "attribute_ground_truth", "rank"} <= asked
    assert "fused" not in asked


async def test_where_there_is_nothing_to_split_the_reason_says_how_long_and_how_much_is_allowed(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    async with lay_out_run(tmp_path, make_settings(context_window=500)) as live_run:
        (work,) = await judge_samples(live_run, [LONG_TEXT])
    outcomes = read_outcomes(work)
    assert (outcomes["extract_answer"], outcomes["rank"]) == ("judge_failed", "judge_failed")
    details = {row["detail"] for row in work.rows["outcomes"] if row["detail"]}
    assert all("too long for the model: about " in detail and "holds 500" in detail for detail in details)
    assert endpoint.stats.requests.total() == 0
