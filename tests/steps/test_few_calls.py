"""The number of requests of an evaluation, counted at the endpoint: six a sample, five with a stored ground truth,
three where the contexts stay as well, none for a dataset that has not changed; and never one twice.
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from cli_house import make_rows, place_at, write_dataset
from endpoint import Endpoint, running_endpoint
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to
from warehouse_runs import make_run

from evalhouse.prompts import BlockValue, Item, Prompt, list_languages, load_prompts
from evalhouse.tasks.judge.protocol import Question
from evalhouse.tasks.models.chat import make_openai_judge
from evalhouse.warehouse.rows.runs import insert_run
from evalhouse.warehouse.rows.samples import StoredSample
from evalhouse.warehouse.store import Warehouse

CHAT = "/v1/chat/completions"
METRICS = ("answer_correctness", "context_recall", "context_precision", "faithfulness")
N = 4
SIX = {"extract": 2, "classify": 1, "attribute": 2, "rank": 1}


async def count_requests(
    endpoint: Endpoint,
    folder: Path,
    samples: Sequence[StoredSample],
    *,
    run_id: str = "run-1",
    metrics: Sequence[str] = METRICS,
    **settings: Any,  # noqa: ANN401  # fields of RunSettings
) -> Mapping[str, float]:
    """Requests a sample by kind, of one run over samples in the warehouse of `folder`."""
    before = endpoint.stats.kinds.copy()
    async with lay_out_run(folder, make_settings(**settings), run_id=run_id, metrics=metrics) as live_run:
        works = await judge_samples(live_run, samples)
        asked = endpoint.stats.kinds - before
        assert live_run.asker.counts.requests == asked.total()
    assert all(row["reason"] is None for work in works for row in work.rows["outcomes"])
    assert endpoint.stats.duplicates == 0
    return {kind: count / len(samples) for kind, count in asked.items()}


@pytest.mark.parametrize(("metrics", "n_contexts"), [(METRICS, 3), ((), 40)])
async def test_any_metrics_and_contexts_take_six_requests_a_sample(
    endpoint: Endpoint, tmp_path: Path, metrics: tuple[str, ...], n_contexts: int
) -> None:
    contexts = [f"Lighthouse {place} was built on a cape." for place in range(n_contexts)]
    samples = [make_sample(number, contexts=contexts) for number in range(1, N + 1)]
    assert await count_requests(endpoint, tmp_path, samples, metrics=metrics) == SIX
    assert endpoint.stats.requests == {CHAT: 6 * N}


@pytest.mark.parametrize(("changes", "expected"), [
    ({"answer": "It was built in 1911 by Ode Varn."}, {"extract": 1, "classify": 1, "attribute": 1}),
    ({"contexts": ["Fish soup is served on Mondays."]}, {"attribute": 2, "rank": 1}),
    ({"ground_truth": "It was built in 1912."}, {"extract": 1, "classify": 1, "attribute": 1, "rank": 1}),
    ({"question": "Who built it?"}, SIX),
], ids=["answer", "contexts", "ground truth", "question"])  # fmt: skip
async def test_a_change_costs_what_rests_on_it(
    endpoint: Endpoint, tmp_path: Path, changes: dict[str, Any], expected: dict[str, int]
) -> None:
    await count_requests(endpoint, tmp_path, [make_sample()])
    assert await count_requests(endpoint, tmp_path, [make_sample(**changes)], run_id="run-2") == expected


def test_the_command_takes_six_then_none_then_five(endpoint: Endpoint, tmp_path: Path, prefect_home: Path) -> None:
    place = place_at(tmp_path, prefect_home, endpoint.base_url, n_rows=N)
    changed = [
        {**row, "answer": f"{row['answer']} It came by night.", "contexts": [*row["contexts"], "Nets dry here."]}
        for row in make_rows(N)
    ]
    write_dataset(tmp_path, changed, "changed.jsonl")
    for dataset, expected in (("berths", 6 * N), ("berths", 0), ("changed", 5 * N)):
        before = endpoint.stats.requests.total()
        finished = place.call(
            "run", f"{dataset}.jsonl", "--judge", "openai:judge", "--metrics", ",".join(METRICS), "--json"
        )
        assert finished.document["status"] == "completed", finished.stderr
        assert endpoint.stats.requests.total() - before == expected == finished.document["calls"]["requests"]
    assert endpoint.stats.duplicates == 0


PROMPTS = [prompt for language in list_languages() for prompt in load_prompts(language).values()]
IDS = [f"{prompt.language} {prompt.name}" for prompt in PROMPTS]
_PREFIXES = {
    "conversation": "T", "contexts": "C", "old_contexts": "O", "answer_statements": "A", "ground_truth_statements": "G",
    "questions": "Q",
}  # fmt: skip


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", "sk-test-0123456789")


def prepare(prompt: Prompt, word: str, n_items: int = 2, **changes: Any) -> dict[str, Any]:  # noqa: ANN401  # fields of Question
    """Return the messages of a question about a sample: texts about a word, lists of so many items."""
    judge = make_openai_judge("openai:judge", "judge", make_settings())
    data: dict[str, BlockValue] = {
        name: f"About the {word}: {name}."
        if kind == "text"
        else [Item(id=f"{_PREFIXES[name]}{place}", text=f"{word} {place}") for place in range(1, n_items + 1)]
        for name, kind in prompt.variables.items()
    }
    return dict(judge.prepare(Question(step="any", sample_id=word, prompt=prompt, data=data, **changes)).payload)


def join(payload: dict[str, Any]) -> str:
    """The messages as one text, in their order, as a provider reads them."""
    return "".join(f"<{message['role']}>{message['content']}" for message in payload["messages"])


def count_shared(payloads: Sequence[dict[str, Any]]) -> int:
    """Return how many characters the messages of all requests begin with in common."""
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
    usual = [prepare(prompt, "lamp"), prepare(prompt, "harbour")]
    assert count_shared(usual) > 0.8 * max(len(join(payload)) for payload in usual)


@pytest.mark.parametrize("prompt", PROMPTS, ids=IDS)
def test_a_request_that_is_repeated_shares_all_but_what_is_added(prompt: Prompt) -> None:
    plain = prepare(prompt, "lamp")
    for changes in ({"note": "Reply again."}, {"only": ("A1", "C1")}):
        assert count_shared([plain, prepare(prompt, "lamp", **changes)]) == len(join(plain))
    assert prepare(prompt, "lamp", vote=1)["messages"] == prepare(prompt, "lamp", vote=2)["messages"]


async def test_cached_tokens_are_counted_by_call_by_step_and_in_all(tmp_path: Path) -> None:
    with running_endpoint() as endpoint:
        point_to(endpoint.base_url)
        async with lay_out_run(tmp_path, make_settings(concurrency=1)) as live_run:
            await judge_samples(live_run, [make_sample(number) for number in range(1, 9)])
            counts = live_run.asker.counts
    warehouse = Warehouse(str(tmp_path / "w.duckdb"))
    insert_run(warehouse, make_run("run-1"))  # only stored runs have costs
    (calls,) = warehouse.read_rows("select sum(cached_tokens)::bigint as cached, count(*) as n_calls from llm_calls")
    steps = warehouse.read_rows("select step, prompt_tokens, cached_tokens from run_costs")
    assert counts.cached_tokens == endpoint.stats.cached_tokens == calls["cached"]
    assert sum(int(str(step["cached_tokens"])) for step in steps) == counts.cached_tokens
    # Eight samples: each beginning is new once.
    assert counts.cached_tokens > 0.6 * counts.prompt_tokens
    assert all(0 < int(str(step["cached_tokens"])) < int(str(step["prompt_tokens"])) for step in steps)
