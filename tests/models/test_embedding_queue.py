"""Texts embedded in batches: the number of requests, their records, and what survives of a failed batch."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from endpoint import running_endpoint
from live_runs import lay_out_run, make_settings, open_warehouse, point_to, read_calls
from warehouse_runs import make_run

from evalhouse.tasks.asking import embeddings
from evalhouse.tasks.asking.embeddings import AskedEmbedder, pack_embedding
from evalhouse.tasks.judge.protocol import JudgeFailed, ModelReply, RefusedRequest, TransientJudgeError
from evalhouse.tasks.models.openai_api import EmbeddingModel
from evalhouse.warehouse.rows.runs import insert_run

EMBEDDINGS = "/v1/embeddings"
PAIRS = [(f"answer {number}", f"truth {number}") for number in range(300)]
POISON = "truth 77"
Embed = Callable[[Sequence[str]], list[str]]


class Model:
    """An embedding model that answers by `respond`; `asked` are the requests that it got."""

    def __init__(self, respond: Embed) -> None:
        self.respond, self.asked = respond, list[list[str]]()

    async def embed(self, texts: Sequence[str]) -> ModelReply:
        self.asked.append(list(texts))
        await asyncio.sleep(0)
        return ModelReply(text="", parts=self.respond(texts), prompt_tokens=len(texts), completion_tokens=0)

    def count_answered(self) -> Counter[str]:
        """Count how often each text was in an answered request."""
        return Counter(text for texts in self.asked if not self.refuses(texts) for text in texts)

    def refuses(self, texts: Sequence[str]) -> bool:
        try:
            self.respond(texts)
        except Exception:  # any error of the test
            return True
        return False


def embed_all(texts: Sequence[str]) -> list[str]:
    return [pack_embedding([1.0, float(len(text))]) for text in texts]


@asynccontextmanager
async def lay_out_embedder(folder: Path, model: Model | None) -> AsyncIterator[AskedEmbedder]:
    """An embedder that asks the model, or else the endpoint."""
    if model is not None:
        point_to("http://127.0.0.1:9/v1")
    async with lay_out_run(folder, make_settings(embeddings="openai:embedder", attempts=2)) as live_run:
        assert isinstance(live_run.embedder, AskedEmbedder)
        if model is not None:
            live_run.embedder.asker.judge = EmbeddingModel(name="m", model="m", endpoint="here", embed=model.embed)
        yield live_run.embedder


async def compare(folder: Path, model: Model | None = None, pairs: Sequence[tuple[str, str]] = PAIRS) -> list[Any]:
    """A value or an error for each pair."""
    async with lay_out_embedder(folder, model) as embedder:
        asked = (embedder.compare(f"s{number}", one, other) for number, (one, other) in enumerate(pairs))
        return await asyncio.gather(*asked, return_exceptions=True)


async def test_three_hundred_samples_take_three_requests_and_each_text_is_found_again(tmp_path: Path) -> None:
    with running_endpoint(keep_bodies=True) as endpoint:
        point_to(endpoint.base_url)
        values = await compare(tmp_path)
        assert endpoint.stats.requests[EMBEDDINGS] == 3
        calls, prompt_tokens = read_calls(tmp_path), endpoint.stats.prompt_tokens
        # In other company, and one of them for the first time.
        again = await compare(tmp_path, pairs=[*reversed(PAIRS[:40]), ("answer 7", "another truth")])
        assert again[:-1] == list(reversed(values[:40]))
        assert [body["input"] for body in endpoint.stats.bodies[3:]] == [["another truth"]]
    sent = [call for call in calls if call["request"] is not None]
    parts = [call for call in calls if call["request"] is None]
    assert (len(sent), len(parts)) == (3, 600)
    assert {call["reused_call_id"] for call in parts} == {call["call_id"] for call in sent}
    assert {call["sample_id"] for call in parts} == {f"s{number}" for number in range(300)}
    assert sum(call["prompt_tokens"] for call in sent) == prompt_tokens > 0
    insert_run(open_warehouse(tmp_path), make_run("run-1"))  # costs are of stored runs
    costs = open_warehouse(tmp_path).read_rows("select n_calls, n_requests, n_reused from run_costs")
    assert costs == [{"n_calls": 3 + 1 + 81, "n_requests": 4, "n_reused": 81}]


def refuse_poison(texts: Sequence[str]) -> list[str]:
    if POISON in texts:
        raise RefusedRequest("this text is not taken")
    return embed_all(texts)


def take_at_most(most: int) -> Embed:
    def respond(texts: Sequence[str]) -> list[str]:
        if len(texts) > most:
            raise RefusedRequest(f"at most {most} texts", unexplained=True)
        return embed_all(texts)

    return respond


def give_one_for_many(texts: Sequence[str]) -> list[str]:
    if len(texts) > 1:
        raise RefusedRequest(f"the endpoint gave 1 embeddings for {len(texts)} texts")
    return embed_all(texts)


def spoil_poison(texts: Sequence[str]) -> list[str]:
    odd = pack_embedding([float("nan")])
    return [odd if text == POISON else vector for text, vector in zip(texts, embed_all(texts), strict=True)]


@pytest.mark.parametrize(("respond", "n_failed", "most_requests"), [
    (embed_all, 0, 1),
    (refuse_poison, 1, 17),
    (take_at_most(32), 0, 20),
    (take_at_most(1), 0, 205),
    (give_one_for_many, 0, 205),
    (spoil_poison, 1, 3),
])  # fmt: skip
async def test_what_is_wrong_with_one_text_or_with_their_number_loses_no_other(
    tmp_path: Path, respond: Embed, n_failed: int, most_requests: int
) -> None:
    model = Model(respond)
    values = await compare(tmp_path, model, PAIRS[:100])
    failed = [number for number, value in enumerate(values) if isinstance(value, BaseException)]
    assert failed == [77][:n_failed]
    assert all(isinstance(values[number], JudgeFailed) for number in failed)
    assert len(model.asked) <= most_requests
    paid_twice = [text for text, times in model.count_answered().items() if times > 1]
    assert set(paid_twice) <= {POISON}


@pytest.mark.usefixtures("quick_backoff")
async def test_a_request_that_fails_on_its_way_is_sent_again_as_it_was_and_ends_alone(tmp_path: Path) -> None:
    def respond(texts: Sequence[str]) -> list[str]:
        if POISON in texts:
            raise TransientJudgeError("the line is down")
        return embed_all(texts)

    model = Model(respond)
    values = await compare(tmp_path, model)
    failed = [number for number, value in enumerate(values) if isinstance(value, JudgeFailed)]
    of_request = next(texts for texts in model.asked if POISON in texts)
    assert [texts for texts in model.asked if POISON in texts] == [of_request] * 2
    assert {number for number in range(300) if set(PAIRS[number]) & set(of_request)} == set(failed)
    # Asked again, only these are.
    model.respond, model.asked = embed_all, []
    assert all(isinstance(value, float) for value in await compare(tmp_path, model))
    assert sorted(text for texts in model.asked for text in texts) == sorted(of_request)


async def test_cancelled_comparison_is_not_asked_for(tmp_path: Path) -> None:
    model = Model(embed_all)
    async with lay_out_embedder(tmp_path, model) as embedder:
        gone = asyncio.create_task(embedder.compare("s1", "one", "two"))
        stays = asyncio.create_task(embedder.compare("s2", "two", "three"))
        await asyncio.sleep(0.01)
        gone.cancel()
        assert await stays > 0
    assert sorted(text for texts in model.asked for text in texts) == ["three", "two"]


async def test_texts_wait_for_company_as_long_as_others_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embeddings, "_MAX_WAIT_S", 0.4)
    model = Model(embed_all)
    async with lay_out_embedder(tmp_path, model) as embedder:
        with embedder.asker.activity.moving():
            tasks = []
            for number in range(12):
                tasks.append(asyncio.create_task(embedder.compare("s", f"a {number}", f"b {number}")))
                await asyncio.sleep(0.02)
            assert len(model.asked) <= 1
            await asyncio.gather(*tasks)
    assert len(model.asked) <= 2
