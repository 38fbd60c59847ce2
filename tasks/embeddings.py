"""Embeddings behind one question: how close in meaning are two texts?

`hashing` needs no model: character n-grams hashed into a sparse vector (scikit-learn), for English and Chinese
alike. It sees shared words and spellings, not meaning. `openai:MODEL` and `module:factory` ask a model, one text a
request, through the same call path and record as the judge, so that an unchanged text is never embedded twice.
"""

import asyncio
import base64
import math
from array import array
from functools import cached_property
from typing import Any, Protocol

import orjson

from tasks.asking import Asker
from tasks.judge import ModelReply, ModelRequest, Question, hash_canonical
from tasks.judge_errors import FatalJudgeError, TransientJudgeError, UnusableReply
from tasks.run_settings import RunSettings

_HASHED_DIMENSIONS = 2**18


class Embedder(Protocol):
    """Compares texts. `name` is what users write after `--embeddings`."""

    @property
    def name(self) -> str:
        """For example `hashing` or `openai:text-embedding-3-small`."""

    async def compare(self, sample_id: str, one: str, other: str) -> float:
        """Cosine of the two texts' vectors, clipped to [0, 1]; raises JudgeFailed."""

    async def close(self) -> None:
        """Give connections back."""


class HashingEmbedder:
    """Hashed character n-grams: offline, deterministic, no fitting, so that a value never depends on other samples."""

    name = "hashing"

    async def compare(self, sample_id: str, one: str, other: str) -> float:
        """Cosine of the two sparse vectors; 0 when one of the texts has no n-gram."""
        vectors = self._vectorizer.transform([one, other])
        return clip(float(vectors[0].multiply(vectors[1]).sum()))

    async def close(self) -> None:
        """Nothing is open."""

    @cached_property
    def _vectorizer(self) -> Any:
        # Imported late: it takes a second that commands without similarities need not wait for.
        from sklearn.feature_extraction.text import HashingVectorizer  # noqa: PLC0415

        return HashingVectorizer(
            analyzer="char_wb", ngram_range=(2, 4), n_features=_HASHED_DIMENSIONS, norm="l2", alternate_sign=True
        )


class AskedEmbedder:
    """Vectors from a model, asked for through an `Asker` of their own."""

    def __init__(self, asker: Asker) -> None:
        self.asker = asker
        self.name = asker.judge.name

    async def compare(self, sample_id: str, one: str, other: str) -> float:
        """Cosine of the two texts' vectors, clipped to [0, 1]."""
        first, second = await asyncio.gather(self._embed(sample_id, one), self._embed(sample_id, other))
        if len(first) != len(second):
            raise FatalJudgeError(f"{self.name} gave vectors of {len(first)} and {len(second)} numbers")
        product = sum(x * y for x, y in zip(first, second, strict=True))
        length = math.sqrt(sum(x * x for x in first)) * math.sqrt(sum(y * y for y in second))
        return clip(product / length) if length else 0.0

    async def close(self) -> None:
        """Close the model's client."""
        await self.asker.judge.close()

    async def _embed(self, sample_id: str, text: str) -> "array[float]":
        question = Question(step="similarity", sample_id=sample_id, prompt=None, data={"text": text})
        answer = await self.asker.ask(question, read_vector)
        return answer.value


class EmbeddingModel:
    """A LangChain embedding model behind the judge protocol: the reply's text is the vector, packed."""

    def __init__(self, *, name: str, model: str, endpoint: str, embeddings: Any, timeout_s: float) -> None:
        self.name = name
        self.model = model
        self._endpoint = endpoint
        self._embeddings = embeddings
        self._timeout_s = timeout_s

    def prepare(self, question: Question) -> ModelRequest:
        """The text under the model's name and address."""
        payload: dict[str, object] = {
            "endpoint": self._endpoint, "model": self.model, "input": question.data["text"],
        }  # fmt: skip
        return ModelRequest(request_hash=hash_canonical(payload), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Embed one text."""
        from tasks.chat_model import translate_error  # noqa: PLC0415  # LangChain is not imported for `hashing`

        try:
            async with asyncio.timeout(self._timeout_s):
                vectors = await self._embeddings.aembed_documents([request.payload["input"]])
        except TimeoutError:
            raise TransientJudgeError(f"no reply within {self._timeout_s:g} s") from None
        except Exception as error:  # a model of any maker may raise anything; it becomes one of our errors
            raise translate_error(error, name=self.name, endpoint=self._endpoint) from None
        return ModelReply(text=pack_vector(vectors[0]), model=self.model)

    async def close(self) -> None:
        """Close the HTTP client of an OpenAI model."""
        client = getattr(self._embeddings, "http_async_client", None)
        if client is not None:
            await client.aclose()


def make_embedding_model(name: str, settings: RunSettings) -> EmbeddingModel:
    """`openai:MODEL` at OPENAI_BASE_URL, or `module:factory`; raises FatalJudgeError."""
    import openai  # noqa: PLC0415  # neither is needed for `hashing`
    from langchain_openai import OpenAIEmbeddings  # noqa: PLC0415

    from tasks.chat_model import call_factory, find_endpoint, read_openai_key, strip_credentials  # noqa: PLC0415

    kind, _, model = name.partition(":")
    if kind != "openai":
        embeddings: Any = call_factory(name)
        if not hasattr(embeddings, "aembed_documents"):
            raise FatalJudgeError(
                f"{name} returned a {type(embeddings).__name__}; an embeddings factory returns LangChain Embeddings"
            )
        return EmbeddingModel(
            name=name, model=name, endpoint=name, embeddings=embeddings, timeout_s=settings.timeout_s
        )
    endpoint = find_endpoint()
    embeddings = OpenAIEmbeddings(
        model=model,
        api_key=read_openai_key(endpoint),
        base_url=endpoint,
        timeout=settings.timeout_s,
        max_retries=0,
        check_embedding_ctx_length=False,  # it would load a tokenizer from the network
        http_async_client=openai.DefaultAioHttpClient(timeout=settings.timeout_s),
    )
    return EmbeddingModel(
        name=name,
        model=model,
        endpoint=strip_credentials(endpoint),
        embeddings=embeddings,
        timeout_s=settings.timeout_s,
    )


def clip(value: float) -> float:
    """A cosine as a similarity in [0, 1]."""
    return min(1.0, max(0.0, value))


def pack_vector(vector: list[float]) -> str:
    """A vector as JSON with base64 of 32-bit floats, a quarter of the size of its digits."""
    packed = base64.b64encode(array("f", vector).tobytes()).decode()
    return orjson.dumps({"embedding_float32_base64": packed}).decode()


def read_vector(text: str) -> "array[float]":
    """A packed vector; raises UnusableReply for an empty one or another text."""
    try:
        vector = array("f")
        vector.frombytes(base64.b64decode(orjson.loads(text)["embedding_float32_base64"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        raise UnusableReply("the reply was no packed vector") from None
    if not vector or not all(map(math.isfinite, vector)):
        raise UnusableReply("the vector was empty or not finite")
    return vector
