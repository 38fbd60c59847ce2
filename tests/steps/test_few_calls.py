"""What an evaluation costs in requests, counted at the endpoint: six a sample, five with the ground truth on record,
three where the contexts stay as well, none for a dataset that has not changed; and never one twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_house import write_dataset
from cli_process import Place
from endpoint import Endpoint, running_endpoint
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to

from evalhouse.warehouse.rows.samples import StoredSample

CHAT = "/v1/chat/completions"
METRICS = ("answer_correctness", "context_recall", "context_precision", "faithfulness")
N = 4
SIX = {"extract": 2, "classify": 1, "attribute": 2, "rank": 1}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint() as running:
        point_to(running.base_url)
        yield running


def make_samples(**changes: Any) -> list[StoredSample]:  # noqa: ANN401  # fields of StoredSample
    return [make_sample(number, **changes) for number in range(1, N + 1)]


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


async def test_four_metrics_take_six_requests_a_sample(endpoint: Endpoint, tmp_path: Path) -> None:
    assert await count_requests(endpoint, tmp_path, make_samples()) == SIX
    assert endpoint.stats.requests == {CHAT: 6 * N}


async def test_all_metrics_take_no_more(endpoint: Endpoint, tmp_path: Path) -> None:
    assert await count_requests(endpoint, tmp_path, make_samples(), metrics=()) == SIX


@pytest.mark.parametrize("n_contexts", [1, 5, 40])
async def test_contexts_cost_no_request_of_their_own(endpoint: Endpoint, tmp_path: Path, n_contexts: int) -> None:
    contexts = [f"Lighthouse {place} was built on a cape." for place in range(n_contexts)]
    assert await count_requests(endpoint, tmp_path, make_samples(contexts=contexts)) == SIX


@pytest.mark.parametrize("n_contexts", [1, 3, 5])
async def test_contexts_alone_cost_three_each(endpoint: Endpoint, tmp_path: Path, n_contexts: int) -> None:
    samples = make_samples(contexts=[f"Lighthouse {place} was built on a cape." for place in range(n_contexts)])
    asked = await count_requests(endpoint, tmp_path, samples, contexts_alone=True)
    assert asked == {"extract": 2, "classify": 1, "attribute": 2 * n_contexts, "rank": n_contexts}


async def test_with_the_ground_truth_on_record_it_takes_five(endpoint: Endpoint, tmp_path: Path) -> None:
    """Another retriever and another answer to the same questions."""
    await count_requests(endpoint, tmp_path, make_samples())
    changed = [
        replace(
            sample, answer=f"Lighthouse {n} has stood since 1911.", contexts=[f"Tower {n} dates from 1911.", "Soup."]
        )
        for n, sample in enumerate(make_samples(), start=1)
    ]
    asked = await count_requests(endpoint, tmp_path, changed, run_id="run-2")
    assert asked == SIX | {"extract": 1}
    assert sum(asked.values()) == 5


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"answer": "It was built in 1911 by Ode Varn."}, {"extract": 1, "classify": 1, "attribute": 1}),
        ({"contexts": ["Fish soup is served on Mondays."]}, {"attribute": 2, "rank": 1}),
        ({"ground_truth": "It was built in 1912."}, {"extract": 1, "classify": 1, "attribute": 1, "rank": 1}),
        ({"question": "Who built it?"}, SIX),
    ],
    ids=["answer", "contexts", "ground truth", "question"],
)
async def test_a_change_costs_what_rests_on_it(
    endpoint: Endpoint, tmp_path: Path, changes: dict[str, Any], expected: dict[str, int]
) -> None:
    await count_requests(endpoint, tmp_path, [make_sample()])
    assert await count_requests(endpoint, tmp_path, [make_sample(**changes)], run_id="run-2") == expected


@pytest.mark.parametrize("alone", [False, True])
async def test_an_unchanged_dataset_takes_none(endpoint: Endpoint, tmp_path: Path, alone: bool) -> None:
    await count_requests(endpoint, tmp_path, make_samples(), contexts_alone=alone)
    again = await count_requests(endpoint, tmp_path, make_samples(), run_id="run-2", contexts_alone=alone)
    assert again == {}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("answer_correctness", {"extract": 2, "classify": 1}),
        ("context_recall", {"extract": 1, "attribute": 1}),
        ("faithfulness", {"extract": 1, "attribute": 1}),
        ("context_precision", {"extract": 1, "rank": 1}),
    ],
)
async def test_a_metric_alone_takes_only_what_it_rests_on(
    endpoint: Endpoint, tmp_path: Path, metric: str, expected: dict[str, int]
) -> None:
    assert await count_requests(endpoint, tmp_path, make_samples(), metrics=[metric]) == expected


async def test_samples_that_say_the_same_are_paid_for_once(endpoint: Endpoint, tmp_path: Path) -> None:
    twins = [replace(make_sample(), sample_id=f"s{number}", ordinal=number) for number in range(1, N + 1)]
    asked = await count_requests(endpoint, tmp_path, twins)
    assert {kind: count * N for kind, count in asked.items()} == SIX


def test_the_command_takes_six_then_none_then_five(endpoint: Endpoint, tmp_path: Path, prefect_home: Path) -> None:
    def write(name: str, answer: str, context: str) -> None:
        rows = [
            {
                "id": f"berth-{place}",
                "question": f"Which ship lies at berth {place}?",
                "answer": f"Ship number {place * 7} lies at berth {place}. {answer}",
                "ground_truth": f"Ship number {place * 7} lies at berth {place}.",
                "contexts": [f"Ship {place * 7} lies at berth {place}.", f"{context} {place}.", "Ropes are sold here."],
            }
            for place in range(1, N + 1)
        ]
        write_dataset(tmp_path, rows, name)

    variables = {"PREFECT_HOME": str(prefect_home), "OPENAI_BASE_URL": endpoint.base_url, "OPENAI_API_KEY": "sk-test"}
    place = Place(folder=tmp_path, variables=variables)
    write("first.jsonl", "It came by night.", "Gulls nest on pier")
    write("second.jsonl", "It came by day.", "Nets dry on pier")
    for dataset, expected in (("first", 6 * N), ("first", 0), ("second", 5 * N)):
        before = endpoint.stats.requests.total()
        finished = place.call(
            "run", f"{dataset}.jsonl", "--judge", "openai:judge", "--metrics", ",".join(METRICS), "--json"
        )
        assert finished.document["status"] == "completed", finished.stderr
        assert endpoint.stats.requests.total() - before == expected == finished.document["calls"]["requests"]
    assert endpoint.stats.duplicates == 0
