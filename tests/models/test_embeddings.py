"""The similarity of two texts: hashed n-grams without a model, and vectors of a model through the call path, asked for
in batches: the number of requests, their records, and what survives of a failed batch."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import judge_factories
import numpy as np
import orjson
import pytest
from endpoint import Canned, Endpoint, Inject, Raw, running_endpoint
from judge_factories import ShiftedEmbeddings
from live_runs import lay_out_run, make_settings, open_warehouse, point_to, read_calls
from pydantic import BaseModel, ConfigDict
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics.pairwise import cosine_similarity
from warehouse_runs import make_run

from evalhouse.tasks.asking import embeddings
from evalhouse.tasks.asking.embeddings import AskedEmbedder, HashingEmbedder, pack_embedding, read_vector
from evalhouse.tasks.judge.protocol import (
    FatalJudgeError,
    JudgeFailed,
    ModelReply,
    RefusedRequest,
    TransientJudgeError,
    UnusableReply,
)
from evalhouse.tasks.models.factories import find_model_name, hash_fields
from evalhouse.tasks.models.openai_api import EmbeddingModel, make_embedding_model
from evalhouse.warehouse.rows.runs import insert_run

EMBEDDINGS = "/v1/embeddings"


@dataclass
class Weights:
    """A field of a user's own class, which says where the model is."""

    path: Path


class Pooling(Enum):
    """A choice whose values are objects."""

    MEAN = ("mean", object())
    LAST = ("last", object())


HOLDS_ITSELF: list[object] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


async def compare(folder: Path, *pairs: tuple[str, str], **settings: Any) -> list[Any]:  # noqa: ANN401
    """A value or an error for each pair, by the embeddings of the settings."""
    settings.setdefault("embeddings", "openai:embedder")
    async with lay_out_run(folder, make_settings(**settings)) as live_run:
        assert isinstance(live_run.embedder, AskedEmbedder)
        asked = (live_run.embedder.compare("s1", one, other) for one, other in pairs)
        return await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize(("one", "other", "least", "most"), [
    ("The tower is red.", "The tower is red.", 1.0, 1.0),
    ("The tower is red.", "The towers are red.", 0.4, 0.95),
    ("The tower is red.", "Fish soup on Friday", 0.0, 0.2),
    ("灯塔建于一九一一年。", "灯塔是一九一一年建成的。", 0.3, 0.95),
    ("灯塔建于一九一一年。", "周五供应鱼汤。", 0.0, 0.2),
    ("", "The tower is red.", 0.0, 0.0),
    ("", "", 0.0, 0.0),
])  # fmt: skip
async def test_hashed_texts_are_close_when_they_share_spellings(
    one: str, other: str, least: float, most: float
) -> None:
    value = await HashingEmbedder().compare("s1", one, other)
    assert least - 1e-9 <= value <= most + 1e-9


@pytest.mark.parametrize(("one", "other"), [
    ("The Tower, the tower.", "A tower of the towers"), ("a bb ccc", "bb ccc dddd"),
    ("灯塔建于一九一一年。 灯塔", "灯塔 是一九一一年建成的。"), ("x " * 50 + "\n yz", "x\u3000yz x"),
])  # fmt: skip
async def test_values_are_those_of_counts_that_scikit_learn_makes(one: str, other: str) -> None:
    counted = CountVectorizer(analyzer="char_wb", ngram_range=(2, 4)).fit_transform([one, other])
    expected = float(cosine_similarity(counted[0], counted[1])[0, 0])
    assert await HashingEmbedder().compare("s1", one, other) == pytest.approx(expected, abs=1e-12)


async def test_failing_comparisons_fail_without_hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(_: object) -> None:
        raise MemoryError("no n-grams today")

    monkeypatch.setattr("evalhouse.tasks.asking.embeddings._count_ngrams", break_down)
    embedder = HashingEmbedder()
    async with asyncio.timeout(5):
        results = await asyncio.gather(*(embedder.compare("s", "a", "b") for _ in range(20)), return_exceptions=True)
    assert {type(result) for result in results} == {JudgeFailed}


async def test_models_vectors_are_asked_for_once_a_text_and_recorded(endpoint: Endpoint, tmp_path: Path) -> None:
    pairs = [("the tower is red", "the tower is red"), ("the tower is red", "fish soup on friday")]
    same, other = await compare(tmp_path, *pairs)
    assert same == pytest.approx(1.0, abs=1e-6)
    assert 0.0 <= other < 0.5
    assert endpoint.stats.requests[EMBEDDINGS] == 1
    assert await compare(tmp_path, *pairs) == [same, other]
    assert endpoint.stats.requests[EMBEDDINGS] == 1
    calls = read_calls(tmp_path)
    paid = [call for call in calls if call["status"] == "ok"]
    assert {(call["step"], call["judge"], call["prompt"]) for call in calls} == {
        ("similarity", "openai:embedder", None)
    }
    assert sum(call["prompt_tokens"] or 0 for call in paid) == endpoint.stats.prompt_tokens > 0
    assert "sk-test" not in str(calls)


async def test_another_model_is_asked_again(endpoint: Endpoint, tmp_path: Path) -> None:
    await compare(tmp_path, ("one", "two"))
    await compare(tmp_path, ("one", "two"), embeddings="openai:embedder-2")
    assert endpoint.stats.requests[EMBEDDINGS] == 2


@pytest.mark.usefixtures("quick_backoff")
async def test_what_may_pass_is_tried_again(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.configure(script={"embeddings": [Inject(fault="server_error"), Inject(fault="reset"), Raw(body="<html>")]})
    assert (await compare(tmp_path, ("red", "red")))[0] == pytest.approx(1.0, abs=1e-6)
    assert [call["status"] for call in read_calls(tmp_path)].count("error") == 3


@pytest.mark.parametrize(("answer", "expected_text"), [
    (Inject(fault="context_length_exceeded"), "too long for the model"),
    (Raw(status=400, body={"error": {"message": "the temperature must be set", "param": "temperature"}}),
     "temperature"),
])  # fmt: skip
async def test_a_refused_text_fails_its_sample_alone(
    endpoint: Endpoint, tmp_path: Path, answer: Canned, expected_text: str
) -> None:
    endpoint.configure(script={"embeddings": [answer]})
    (error,) = await compare(tmp_path, ("red", "red"))
    assert isinstance(error, JudgeFailed)
    assert expected_text in str(error)
    assert endpoint.stats.requests[EMBEDDINGS] == 1


async def test_vectors_of_two_lengths_fail_the_sample(endpoint: Endpoint, tmp_path: Path) -> None:
    def vector(*numbers: float) -> dict[str, Any]:
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        data = [{"object": "embedding", "index": 0, "embedding": list(numbers)}]
        return {"object": "list", "model": "embedder", "data": data, "usage": usage}

    endpoint.configure(script={"embeddings": [vector(1.0, 0.0), vector(1.0, 0.0, 0.0)]})
    (error,) = await compare(tmp_path, ("red", "blue"))
    assert isinstance(error, JudgeFailed)
    assert "numbers; where the model behind this name has changed, --fresh asks again" in str(error)


@pytest.mark.parametrize("places", [[-1, -2], [0, 0], [0, None], ["0", "1"], [True, False]])
@pytest.mark.parametrize("one", [False, True], ids=["together", "alone"])
@pytest.mark.usefixtures("quick_backoff")
async def test_indices_out_of_order_or_range_fail_the_sample(
    endpoint: Endpoint, tmp_path: Path, places: list[object], one: bool
) -> None:
    def answer(asked: Any) -> Raw:  # noqa: ANN401
        data = [{"index": place, "embedding": [1.0, 0.0]} for place in (places[:1] if one else places)]
        return Raw(body=orjson.dumps({"data": data}).decode())

    endpoint.configure(script={"embeddings": answer})
    (found,) = await compare(tmp_path, ("red", "red") if one else ("red", "blue"))
    is_right = one and places[0] == 0 and places[0] is not False and isinstance(places[0], int)
    assert found == pytest.approx(1.0) if is_right else isinstance(found, JudgeFailed)


@pytest.mark.parametrize(("sent", "count"), [("5", 5), ("9223372036854775808", None), ("-1", None), ("[1]", None)])
async def test_count_of_tokens_that_no_column_holds_is_missing(
    endpoint: Endpoint, tmp_path: Path, sent: str, count: int | None
) -> None:
    body = f'{{"data": [{{"index": 0, "embedding": [1.0, 0.0]}}], "usage": {{"prompt_tokens": {sent}}}}}'
    endpoint.configure(script={"embeddings": lambda _: Raw(body=body)})
    assert await compare(tmp_path, ("red", "red")) == [pytest.approx(1.0)]
    assert read_calls(tmp_path)[0]["prompt_tokens"] == count


async def test_a_wrong_key_for_embeddings_stops_the_judge_as_well(tmp_path: Path) -> None:
    with running_endpoint(expected_key="sk-right-key-000000") as endpoint:
        point_to(endpoint.base_url, "sk-wrong-key-000000")
        async with lay_out_run(tmp_path, make_settings(embeddings="openai:embedder")) as live_run:
            assert live_run.embedder is not None
            with pytest.raises(FatalJudgeError, match="refused the key for openai:embedder"):
                await live_run.embedder.compare("s1", "one", "two")
            with pytest.raises(FatalJudgeError, match="refused the key for openai:embedder"):
                live_run.asker.raise_if_stopped()


async def test_any_langchain_embeddings_are_accepted(tmp_path: Path) -> None:
    point_to("http://missing.example/v1")
    same, other = await compare(tmp_path, ("a", "a"), ("a", "b"), embeddings="judge_factories:make_embeddings")
    assert same == pytest.approx(1.0)
    assert 0.0 <= other < 1.0
    assert {call["judge"] for call in read_calls(tmp_path)} == {"judge_factories:make_embeddings"}


@pytest.mark.parametrize(("one", "other"), [
    ({"model": "small"}, {"model": "large"}),
    ({"options": {"size": 2, "layers": [1, 2]}}, {"options": {"size": 2, "layers": [1, 3]}}),
    ({"inner": ShiftedEmbeddings(0, model="small")}, {"inner": ShiftedEmbeddings(0, model="large")}),
    ({"options": Weights(Path("one"))}, {"options": Weights(Path("two"))}),
    ({"options": np.int64(1)}, {"options": np.int64(2)}),
    ({"options": np.zeros(3)}, {"options": np.ones(3)}),
    ({"options": {"a", "b"}}, {"options": {"a", "c"}}),
    ({"options": Pooling.MEAN, "headers": {}}, {"options": Pooling.LAST}),
    ({"options": HOLDS_ITSELF, "size": 1}, {"options": HOLDS_ITSELF, "size": 2}),
])  # fmt: skip
async def test_vectors_of_a_factory_are_found_again_while_the_fields_of_its_model_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: dict[str, object], other: dict[str, object]
) -> None:
    """A model exchanged within the factory was compared by the old model's vectors, in silence."""

    point_to("http://missing.example/v1")

    async def count_sent(**fields: object) -> int:
        if "headers" in fields:
            fields["headers"] = {"X-Auth-Token": str(time.time()), "accessToken": str(time.time())}
        monkeypatch.setattr(judge_factories, "make_embeddings", lambda: ShiftedEmbeddings(1, **fields))
        await compare(tmp_path, ("red", "a blue one"), embeddings="judge_factories:make_embeddings")
        return len([call for call in read_calls(tmp_path) if call["status"] == "ok"])

    n_sent = await count_sent(**one)
    assert await count_sent(**one) == n_sent, "an object and a key say nothing of the model"
    assert await count_sent(**other) == 2 * n_sent
    assert await count_sent(**one) == 2 * n_sent
    name = "judge_factories:make_embeddings"
    assert {call["model"] for call in read_calls(tmp_path)} - {name} == (
        set() if "options" in one else {"small", "large"}
    )


@dataclass(slots=True)
class Slots:
    size: int


class Extras(BaseModel):
    model_config = ConfigDict(extra="allow")


@pytest.mark.parametrize(("make", "named"), [
    (lambda name: type("House", (ShiftedEmbeddings,), {"model_name": name})(1), True),
    (lambda name: type("House", (ShiftedEmbeddings,), {"model": property(lambda _: name)})(1), True),
    (lambda name: Extras(model=name), True),
    (lambda name: ShiftedEmbeddings(1, options=Slots(len(name))), False),
])  # fmt: skip
def test_the_model_of_a_class_a_property_and_slots_counts(make: Callable[[str], object], *, named: bool) -> None:
    assert hash_fields(make("small")) == hash_fields(make("small"))
    assert hash_fields(make("small")) != hash_fields(make("larger"))
    assert find_model_name(make("small")) == ("small" if named else None)


def test_a_factory_of_something_else_is_refused() -> None:
    with pytest.raises(FatalJudgeError, match="returned a str; an embeddings factory returns LangChain Embeddings"):
        make_embedding_model("judge_factories:make_something_else")


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[1]", "null", '{"embedding_float32_base64": 3}', '{"embedding_float32_base64": "abc"}',
     pack_embedding([]), pack_embedding([0.0, 0.0]), pack_embedding([1e-320]), pack_embedding([float("nan")]),
     pack_embedding([float("inf"), 1.0])],
)  # fmt: skip
def test_a_broken_vector_is_unusable(text: str) -> None:
    with pytest.raises(UnusableReply):
        read_vector(text)


@pytest.mark.parametrize(
    "embedding",
    [None, True, 3, {}, {"a": 1.0}, [True, False], [1.0, True], ["a"], ["1.0"], [[1.0]], [None], [1e400, "1"]],
)
def test_only_a_list_of_numbers_is_a_vector(embedding: object) -> None:
    with pytest.raises(UnusableReply):
        read_vector(pack_embedding(embedding))


async def test_embeddings_may_have_a_separate_address_and_key(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Embeddings by default are asked at the judge's address; its key is sent to no other."""
    with running_endpoint(expected_key="own-key") as other:
        monkeypatch.setenv("OPENAI_EMBEDDINGS_BASE_URL", other.base_url)
        (refused,) = await compare(tmp_path / "without", ("red", "blue"))
        assert isinstance(refused, FatalJudgeError), "without a key, and not with the judge's"
        monkeypatch.setenv("OPENAI_EMBEDDINGS_API_KEY", "own-key")
        (value,) = await compare(tmp_path / "with", ("red", "blue"))
        assert isinstance(value, float)
        assert other.stats.requests[EMBEDDINGS] >= 2
    assert endpoint.stats.requests[EMBEDDINGS] == 0
    monkeypatch.setenv("OPENAI_EMBEDDINGS_BASE_URL", "missing")
    with pytest.raises(FatalJudgeError, match="OPENAI_EMBEDDINGS_BASE_URL is 'missing', which is not an address"):
        make_embedding_model("openai:embedder")


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


async def compare_pairs(
    folder: Path, model: Model | None = None, pairs: Sequence[tuple[str, str]] = PAIRS
) -> list[Any]:
    """A value or an error for each pair."""
    async with lay_out_embedder(folder, model) as embedder:
        asked = (embedder.compare(f"s{number}", one, other) for number, (one, other) in enumerate(pairs))
        return await asyncio.gather(*asked, return_exceptions=True)


async def test_three_hundred_samples_take_three_requests_and_each_text_is_found_again(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    values = await compare_pairs(tmp_path)
    assert endpoint.stats.requests[EMBEDDINGS] == 3
    calls, prompt_tokens = read_calls(tmp_path), endpoint.stats.prompt_tokens
    # In other company, and one of them for the first time.
    again = await compare_pairs(tmp_path, pairs=[*reversed(PAIRS[:40]), ("answer 7", "another truth")])
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
    values = await compare_pairs(tmp_path, model, PAIRS[:100])
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
    values = await compare_pairs(tmp_path, model)
    failed = [number for number, value in enumerate(values) if isinstance(value, JudgeFailed)]
    of_request = next(texts for texts in model.asked if POISON in texts)
    assert [texts for texts in model.asked if POISON in texts] == [of_request] * 2
    assert {number for number in range(300) if set(PAIRS[number]) & set(of_request)} == set(failed)
    # Asked again, only these are.
    model.respond, model.asked = embed_all, []
    assert all(isinstance(value, float) for value in await compare_pairs(tmp_path, model))
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
