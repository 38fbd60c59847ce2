"""The similarity of two texts: hashed n-grams without a model, and vectors of a model through the call path."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from endpoint import Canned, Endpoint, Inject, Raw, running_endpoint
from live_runs import lay_out_run, make_settings, point_to, read_calls
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from evalhouse.tasks.asking.embeddings import AskedEmbedder, HashingEmbedder, pack_embedding, read_vector
from evalhouse.tasks.judge.protocol import FatalJudgeError, JudgeFailed, UnusableReply
from evalhouse.tasks.models.openai_api import make_embedding_model

EMBEDDINGS = "/v1/embeddings"


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
    assert "vectors of" in str(error)


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
