"""Requests begin alike, so that a provider's prompt cache can hold their beginnings: instructions and worked examples
first, in the same bytes for every sample, and the sample's own data last.
"""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import running_endpoint
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to
from warehouse_runs import make_run

from evalhouse.prompts import BlockValue, Item, Prompt, list_languages, load_prompts
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.models.chat import make_openai_judge
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.store import Warehouse

PROMPTS = [prompt for language in list_languages() for prompt in load_prompts(language).values()]
IDS = [f"{prompt.language} {prompt.name}" for prompt in PROMPTS]
_PREFIXES = {
    "conversation": "T",
    "contexts": "C",
    "old_contexts": "O",
    "answer_statements": "A",
    "ground_truth_statements": "G",
}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", "sk-test-0123456789")


def make_data(prompt: Prompt, word: str, n_items: int) -> dict[str, BlockValue]:
    """Data for any prompt: texts about a word, lists of so many items."""
    return {
        name: f"About the {word}: {name}."
        if kind == "text"
        else [Item(id=f"{_PREFIXES[name]}{place}", text=f"{word} {place}") for place in range(1, n_items + 1)]
        for name, kind in prompt.variables.items()
    }


def prepare(prompt: Prompt, word: str, n_items: int = 2, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # fields of Question
    """What is sent for a question about a sample."""
    judge = make_openai_judge("openai:judge", "judge", make_settings())
    data = make_data(prompt, word, n_items)
    return dict(judge.prepare(Question(step="any", sample_id=word, prompt=prompt, data=data, **changes)).payload)


def join(payload: dict[str, Any]) -> str:
    """The messages as one text, in their order, as a provider reads them."""
    return "".join(f"<{message['role']}>{message['content']}" for message in payload["messages"])


def count_shared(payloads: Sequence[dict[str, Any]]) -> int:
    """How many characters the messages of all requests begin with in common."""
    columns = zip(*(join(payload) for payload in payloads), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda characters: len(set(characters)) == 1, columns))


@pytest.mark.parametrize("prompt", PROMPTS, ids=IDS)
def test_requests_about_different_samples_differ_in_their_data_alone(prompt: Prompt) -> None:
    payloads = [prepare(prompt, word, n) for word, n in (("lamp", 1), ("灯塔", 3), ("harbour", 12))]
    beginnings = [payload["messages"][:-1] for payload in payloads]
    assert beginnings[0] == beginnings[1] == beginnings[2]
    # All that is there before the first block of data, and the block's name.
    opening = sum(len(message["content"]) for message in beginnings[0])
    assert count_shared(payloads) > opening + len(next(iter(prompt.variables)))
    rest = [{name: payload[name] for name in payload if name != "messages"} for payload in payloads]
    assert orjson.dumps(rest[0]) == orjson.dumps(rest[1]) == orjson.dumps(rest[2])


@pytest.mark.parametrize("prompt", PROMPTS, ids=IDS)
def test_the_data_comes_last_and_once(prompt: Prompt) -> None:
    messages = prepare(prompt, "quillonberry")["messages"]
    assert messages[0]["role"] == "system"
    assert messages[-1]["role"] == "user"
    assert "quillonberry" in messages[-1]["content"]
    assert not any("quillonberry" in message["content"] for message in messages[:-1])


@pytest.mark.parametrize("prompt", PROMPTS, ids=IDS)
def test_the_beginning_is_most_of_a_usual_request(prompt: Prompt) -> None:
    payloads = [prepare(prompt, "lamp"), prepare(prompt, "harbour")]
    assert count_shared(payloads) > 0.8 * max(len(join(payload)) for payload in payloads)


@pytest.mark.parametrize("prompt", PROMPTS, ids=IDS)
@pytest.mark.parametrize("changes", [{"note": "Reply anew."}, {"only": ("A1", "C1")}], ids=["note", "only"])
def test_a_request_that_is_repeated_shares_all_but_what_is_added(prompt: Prompt, changes: dict[str, Any]) -> None:
    plain, noted = prepare(prompt, "lamp"), prepare(prompt, "lamp", **changes)
    assert count_shared([plain, noted]) == len(join(plain))


@pytest.mark.parametrize("prompt", PROMPTS, ids=IDS)
def test_votes_on_a_sample_share_everything(prompt: Prompt) -> None:
    first, second = (prepare(prompt, "lamp", vote=vote) for vote in (1, 2))
    assert first["messages"] == second["messages"]


async def test_cached_tokens_are_counted_by_call_by_step_and_in_all(tmp_path: Path) -> None:
    with running_endpoint() as endpoint:
        point_to(endpoint.base_url)
        async with lay_out_run(tmp_path, make_settings(concurrency=1)) as live_run:
            await judge_samples(live_run, [make_sample(number) for number in range(1, 9)])
            counts = live_run.asker.counts
    warehouse = Warehouse(str(tmp_path / "w.duckdb"))
    insert_run(warehouse, make_run("run-1"))  # costs are those of runs on record
    (calls,) = warehouse.read_rows("select sum(cached_tokens)::bigint as cached, count(*) as n_calls from llm_calls")
    steps = warehouse.read_rows("select step, prompt_tokens, cached_tokens from run_costs")
    assert counts.cached_tokens == endpoint.stats.cached_tokens == calls["cached"]
    assert sum(int(str(step["cached_tokens"])) for step in steps) == counts.cached_tokens
    # Eight samples: each beginning is new once.
    assert counts.cached_tokens > 0.6 * counts.prompt_tokens
    assert all(0 < int(str(step["cached_tokens"])) < int(str(step["prompt_tokens"])) for step in steps)
