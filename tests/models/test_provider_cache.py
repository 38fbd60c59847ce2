"""The shared beginning of a prompt's requests is marked for a provider's cache, and paid at its prices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Endpoint, running_endpoint
from live_runs import PROMPTS, judge_samples, lay_out_run, make_sample, make_settings, read_calls
from provider_calls import KEY, make_question

from evalhouse.tasks.asking.usage import Price, find_price, load_prices
from evalhouse.tasks.models.make import make_judge
from evalhouse.tasks.models.providers import load_providers
from evalhouse.tasks.models.stand_ins import StandInJudge

MARK = {"cache_control": {"type": "ephemeral"}}
NEWEST = "claude-sonnet-5-5"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    with running_endpoint(expected_key=KEY, keep_bodies=True, cached_from=512) as running:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", running.root_url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        yield running


async def judge_with(folder: Path, model: str, *, n_samples: int, price: Price | None = None) -> list[dict[str, Any]]:
    settings = make_settings(judge=f"anthropic:{model}")
    async with lay_out_run(folder, settings, judge=make_judge(settings), price=price) as live_run:
        for number in range(1, n_samples + 1):
            await judge_samples(live_run, [make_sample(number)])
    return read_calls(folder)


def list_marks(body: dict[str, Any]) -> list[int]:
    """The places of marked contents, from 0 for the instructions on."""
    contents = [body["system"], *(message["content"] for message in body["messages"])]
    return [place for place, content in enumerate(contents) if orjson.dumps(MARK)[1:-1] in orjson.dumps(content)]


async def test_all_but_the_data_is_written_once_and_then_read_at_their_prices(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    price = find_price(load_prices(None), NEWEST)
    assert price is not None
    assert (price.written_usd, price.cached_usd) == (1.25 * price.input_usd, 0.05 * price.input_usd)
    calls = await judge_with(tmp_path, NEWEST, n_samples=3, price=price)
    stats = endpoint.stats
    places = {(*list_marks(body), len(body["messages"])) for body in stats.bodies}
    assert {place for place in places if len(place) > 1} == {(n - 1, n) for n in {place[-1] for place in places}}
    # Of each of four prompts the first request has no mark, and the second has its beginning written.
    assert sum(not list_marks(body) for body in stats.bodies) == 4
    beginnings = {name: sum(map(len, read_shared(name))) for name in ("extract", "classify", "attribute", "rank")}
    assert stats.written_tokens == pytest.approx(sum(beginnings.values()) / 4, abs=4)
    read = {"extract": 4, "classify": 1, "attribute": 4, "rank": 1}
    assert stats.cached_tokens == pytest.approx(sum(n * beginnings[name] for name, n in read.items()) / 4, abs=12)
    plain = stats.prompt_tokens - stats.written_tokens - stats.cached_tokens
    cost = plain * 2.0 + stats.written_tokens * 2.5 + stats.cached_tokens * 0.1 + stats.completion_tokens * 10.0
    assert sum(call["cost_usd"] for call in calls) == pytest.approx(cost / 1e6)
    assert sum(call["cached_tokens"] for call in calls) == stats.cached_tokens
    assert sum(call["prompt_tokens"] for call in calls) == stats.prompt_tokens


def read_shared(name: str) -> list[str]:
    """Instructions and worked examples of a prompt."""
    return [message.content for message in PROMPTS[name].opening]


async def test_a_beginning_below_the_least_size_is_not_marked_nor_counted_as_cached(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    calls = await judge_with(tmp_path, "claude-haiku-4-5", n_samples=2)
    assert not any(map(list_marks, endpoint.stats.bodies))
    assert {call["cached_tokens"] for call in calls} == {0}
    for model, is_cached in (("claude-haiku-4-5", False), (NEWEST, True)):
        judge = make_judge(make_settings(judge=f"anthropic:{model}"))
        stand_in = StandInJudge(judge)
        replies = [await stand_in.reply(stand_in.prepare(make_question(number))) for number in (1, 2)]
        assert [bool(reply.cached_tokens) for reply in replies] == [False, is_cached]
        await judge.close()


async def test_cache_mark_is_not_part_of_key_or_record(endpoint: Endpoint, tmp_path: Path) -> None:
    judge = make_judge(make_settings(judge=f"anthropic:{NEWEST}"))
    before = judge.prepare(make_question())
    for _ in range(2):
        await judge.reply(before)
    assert judge.prepare(make_question()) == before
    assert b"cache_control" not in orjson.dumps(before.payload)
    assert [bool(list_marks(body)) for body in endpoint.stats.bodies] == [False, True]
    # What the model reads is the same, marked or not.
    unmarked, marked = (orjson.dumps(body) for body in endpoint.stats.bodies)
    assert all(orjson.dumps(text) in unmarked and orjson.dumps(text) in marked for text in read_shared("extract"))
    await judge.close()


@pytest.mark.parametrize(
    ("model", "least"),
    [
        ("claude-opus-4-20250514", 1024), ("claude-opus-4-5-20251101", 4096), ("claude-opus-4-8", 1024),
        ("claude-sonnet-5", 1024), ("claude-sonnet-5-5", 512), ("claude-haiku-5-5", 512), ("claude-of-later", 512),
    ],
)  # fmt: skip
def test_the_longest_name_that_fits_says_the_least_size(model: str, least: int) -> None:
    assert load_providers()["anthropic"].find_min_cached(model) == least
    assert load_providers()["mistralai"].find_min_cached(model) is None
