"""Embeddings behind one question: how close in meaning are two texts?

`hashing` needs no model: character n-grams counted in a hash table, for English and Chinese alike. It sees shared
words and spellings, not meaning. `openai:MODEL` and `module:factory` ask a model, one text a request, through the same
call path and record as the judge, so that an unchanged text is never embedded twice.
"""

import os
from collections.abc import Awaitable, Callable

import openai

from evalhouse.tasks.asking.embedders import pack_embedding, pack_vector
from evalhouse.tasks.judge.errors import (
    FatalJudgeError,
    RefusedRequest,
    UnsupportedOption,
    UnusableReply,
)
from evalhouse.tasks.judge.protocol import ModelReply, ModelRequest, Question, hash_canonical
from evalhouse.tasks.judge.rate_headers import read_rate_limits
from evalhouse.tasks.models.completions import (
    Completions,
    find_endpoint,
    make_login_header,
    read_openai_key,
    strip_credentials,
)
from evalhouse.tasks.models.errors import translate_error
from evalhouse.tasks.settings.run import RunSettings

# Servers of one model, such as llama.cpp's and vLLM, have the judge at one address and embeddings at another.
_OWN_ADDRESS, _OWN_KEY = "OPENAI_EMBEDDINGS_BASE_URL", "OPENAI_EMBEDDINGS_API_KEY"

Embed = Callable[[str], Awaitable[ModelReply]]
Close = Callable[[], Awaitable[None]]


class EmbeddingModel:
    """An embedding model behind the judge protocol: the reply's text is the vector, packed."""

    tasks: frozenset[str] = frozenset()

    def __init__(self, *, name: str, model: str, endpoint: str, embed: Embed, close: Close | None = None) -> None:
        self.name = name
        self.model = model
        self.endpoint = endpoint
        self._embed = embed
        self._close = close

    def prepare(self, question: Question) -> ModelRequest:
        """The text under the model's name and address."""
        payload: dict[str, object] = {
            "endpoint": self.endpoint, "model": self.model, "input": question.data["text"],
        }  # fmt: skip
        return ModelRequest(request_hash=hash_canonical(payload), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Embed one text."""
        try:
            return await self._embed(str(request.payload["input"]))
        except UnusableReply:
            raise
        except Exception as error:  # a model of any maker may raise anything; it becomes one of our errors
            translated = translate_error(error, name=self.name, endpoint=self.endpoint)
            if isinstance(translated, UnsupportedOption):
                translated = RefusedRequest(str(translated))  # none was sent
            raise translated from None

    async def close(self) -> None:
        """Close the HTTP client of an OpenAI model."""
        if self._close is not None:
            await self._close()


def make_embedding_model(name: str, settings: RunSettings) -> EmbeddingModel:
    """`openai:MODEL` at its own address or the judge's, or `module:factory`; raises FatalJudgeError."""
    kind, _, model = name.partition(":")
    return _make_openai_model(name, model, settings) if kind == "openai" else _make_factory_model(name, settings)


def _read_key(endpoint: str) -> str:
    """The key for embeddings: with an address of their own one of their own, so that the judge's goes nowhere else."""
    if os.environ.get(_OWN_ADDRESS):
        return os.environ.get(_OWN_KEY) or "no-key"
    return read_openai_key(endpoint).get_secret_value()


def _make_openai_model(name: str, model: str, settings: RunSettings) -> EmbeddingModel:
    endpoint = find_endpoint(_OWN_ADDRESS)
    client = openai.AsyncOpenAI(
        api_key=_read_key(endpoint),
        base_url=strip_credentials(endpoint),
        default_headers=make_login_header(endpoint),
    )
    posts = Completions(client, "/embeddings")

    async def embed(text: str) -> ModelReply:
        # The form that OpenAI's own client asks for: a quarter of the size.
        answer = await posts.post({"model": model, "input": [text], "encoding_format": "base64"})
        usage, answered_by = answer.body.get("usage"), answer.body.get("model")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        return ModelReply(
            text=pack_embedding(answer.first.get("embedding")),
            model=answered_by if isinstance(answered_by, str) else None,
            prompt_tokens=tokens if isinstance(tokens, int) and tokens >= 0 else None,
            completion_tokens=0,
            limits=read_rate_limits(answer.headers),
        )

    return EmbeddingModel(
        name=name,
        model=model,
        endpoint=strip_credentials(endpoint),
        embed=embed,
        close=posts.close,
    )


def _make_factory_model(name: str, settings: RunSettings) -> EmbeddingModel:
    from langchain_core.embeddings import Embeddings  # noqa: PLC0415  # not needed for `hashing`

    from evalhouse.tasks.models.chat import call_factory  # noqa: PLC0415

    embeddings = call_factory(name)
    if not isinstance(embeddings, Embeddings):
        raise FatalJudgeError(
            f"{name} returned a {type(embeddings).__name__}; an embeddings factory returns LangChain Embeddings"
        )

    async def embed(text: str) -> ModelReply:
        vectors = await embeddings.aembed_documents([text])
        return ModelReply(text=pack_vector(vectors[0]))

    return EmbeddingModel(name=name, model=name, endpoint=name, embed=embed)
