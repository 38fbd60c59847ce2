"""A changed prompt asks again what it asked, and nothing else: counted at the endpoint, by the prompt of each request.

What follows from a reply is asked again only where the reply came out otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from endpoint import Asked, Endpoint, running_endpoint
from endpoint_replies import fill_reply, split_sentences
from live_runs import judge_samples, lay_out_run, make_sample, make_settings, point_to
from prompt_files import read_content, write_prompt

from evalhouse.prompts import load_prompts
from evalhouse.tasks.asking.verdicts import gather_all
from evalhouse.tasks.grade import grade_sample
from evalhouse.tasks.pipeline.live_run import make_work
from evalhouse.tasks.similarity import regenerate_questions

N = 2
METRICS = (
    "answer_correctness", "context_recall", "context_precision", "faithfulness", "answer_relevancy", "accuracy",
    "relevance_final",
)  # fmt: skip
RUBRICS = ("accuracy", "relevance")
EVERYTHING = {
    "extract": 2 * N, "classify": N, "attribute": 2 * N, "rank": N, "questions": N, "accuracy": N, "relevance": N
}  # fmt: skip
FINER = "Split as finely as you can."


def split_finer(asked: Asked) -> dict[str, Any]:
    """The usual statements; when asked to split finely, the architect of the second lighthouse's answer makes two."""
    statements = split_sentences(asked.blocks["text"])
    if FINER in asked.texts[0]:
        statements = [part for one in statements for part in one.replace("Varn2", "\nVarn2").split("\n")]
    return {"statements": statements}


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with running_endpoint(keep_bodies=True, script={"other": fill_reply, "extract": split_finer}) as running:
        point_to(running.base_url)
        yield running


async def count_requests(endpoint: Endpoint, folder: Path, run_id: str, own: Path | None = None) -> Mapping[str, int]:
    """Requests by prompt of a run over three samples, with prompts of the folder `own` if given."""
    first = len(endpoint.stats.bodies)
    async with lay_out_run(folder, make_settings(), run_id=run_id, metrics=METRICS) as live_run:
        live_run.prompts = load_prompts("en", own)
        live_run.rubrics = tuple(live_run.prompts[name] for name in RUBRICS)
        samples = [make_sample(number) for number in range(1, N + 1)]
        works = await judge_samples(live_run, samples)
        further = [make_work(sample) for sample in samples]
        await gather_all([step(live_run, work) for step in (regenerate_questions, grade_sample) for work in further])
    assert all(row["reason"] is None for work in (*works, *further) for row in work.rows["outcomes"])
    bodies = endpoint.stats.bodies[first:]
    return Counter(body["response_format"]["json_schema"]["name"] for body in bodies)


async def test_a_changed_prompt_asks_again_what_it_asked_and_nothing_else(endpoint: Endpoint, tmp_path: Path) -> None:
    assert await count_requests(endpoint, tmp_path, "before") == EVERYTHING
    for name, n_requests in EVERYTHING.items():
        content = read_content(name)
        write_prompt(tmp_path / name, content | {"system": f"{content['system']}\nTake your time."})
        assert await count_requests(endpoint, tmp_path, name, tmp_path / name) == {name: n_requests}, name
    assert await count_requests(endpoint, tmp_path, "back") == {}, "what was asked before is still on record"


async def test_other_statements_are_judged_again_and_equal_ones_are_not(endpoint: Endpoint, tmp_path: Path) -> None:
    await count_requests(endpoint, tmp_path, "before")
    content = read_content("extract")
    write_prompt(tmp_path / "own", content | {"system": f"{content['system']}\n{FINER}"})
    asked = await count_requests(endpoint, tmp_path, "after", tmp_path / "own")
    assert asked == {"extract": 2 * N, "classify": 1, "attribute": 1}, "one answer of two was split otherwise"
