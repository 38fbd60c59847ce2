"""Embeddings behind one question: how close in meaning are two texts?

`hashing` needs no model: character n-grams counted in a hash table, for English and Chinese alike. It sees shared
words and spellings, not meaning. `openai:MODEL` and `module:factory` ask a model, one text a request, through the same
call path and record as the judge, so that an unchanged text is never embedded twice.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from evalhouse.tasks.asking.embedders import pack_vector
from evalhouse.tasks.judge.errors import (
    FatalJudgeError,
    RefusedRequest,
    TransientJudgeError,
    UnsupportedOption,
)
from evalhouse.tasks.judge.protocol import ModelReply, ModelRequest, Question, hash_canonical
from evalhouse.tasks.models.completions import find_endpoint, make_login_header, read_openai_key, strip_credentials
from evalhouse.tasks.models.errors import translate_error
from evalhouse.tasks.settings.run import RunSettings

Embed = Callable[[str], Awaitable[ModelReply]]


class EmbeddingModel:
    """An embedding model behind the judge protocol: the reply's text is the vector, packed."""

    def __init__(self, *, name: str, model: str, endpoint: str, embed: Embed, client: Any, timeout_s: float) -> None:  # noqa: ANN401  # any HTTP client that can be closed
        self.name = name
        self.model = model
        self.endpoint = endpoint
        self._embed = embed
        self._client = client
        self._timeout_s = timeout_s

    def prepare(self, question: Question) -> ModelRequest:
        """The text under the model's name and address."""
        payload: dict[str, object] = {
            "endpoint": self.endpoint, "model": self.model, "input": question.data["text"],
        }  # fmt: skip
        return ModelRequest(request_hash=hash_canonical(payload), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Embed one text."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._embed(str(request.payload["input"]))
        except TimeoutError:
            raise TransientJudgeError(f"no reply within {self._timeout_s:g} s") from None
        except Exception as error:  # a model of any maker may raise anything; it becomes one of our errors
            translated = translate_error(error, name=self.name, endpoint=self.endpoint)
            if isinstance(translated, UnsupportedOption):
                translated = RefusedRequest(str(translated))  # none was sent
            raise translated from None

    async def close(self) -> None:
        """Close the HTTP client of an OpenAI model."""
        if self._client is not None:
            await self._client.aclose()


def make_embedding_model(name: str, settings: RunSettings) -> EmbeddingModel:
    """`openai:MODEL` at OPENAI_BASE_URL, or `module:factory`; raises FatalJudgeError."""
    kind, _, model = name.partition(":")
    return _make_openai_model(name, model, settings) if kind == "openai" else _make_factory_model(name, settings)


def _make_openai_model(name: str, model: str, settings: RunSettings) -> EmbeddingModel:
    import openai  # noqa: PLC0415  # not needed for `hashing`
    from langchain_openai import OpenAIEmbeddings  # noqa: PLC0415

    endpoint = find_endpoint()
    client = openai.DefaultAioHttpClient(timeout=settings.timeout_s)
    embeddings = OpenAIEmbeddings(
        model=model,
        api_key=read_openai_key(endpoint),
        base_url=strip_credentials(endpoint),
        default_headers=make_login_header(endpoint),
        timeout=settings.timeout_s,
        max_retries=0,  # retries are ours, so that each attempt is on record
        check_embedding_ctx_length=False,  # it would load a tokenizer from the network
        http_async_client=client,
    )

    async def embed(text: str) -> ModelReply:
        # LangChain's own method drops the usage, and with it what the call has cost.
        response = await embeddings.async_client.create(model=model, input=[text])
        tokens = response.usage.prompt_tokens if response.usage else None
        vector = response.data[0].embedding
        return ModelReply(text=pack_vector(vector), model=response.model, prompt_tokens=tokens, completion_tokens=0)

    return EmbeddingModel(
        name=name,
        model=model,
        endpoint=strip_credentials(endpoint),
        embed=embed,
        client=client,
        timeout_s=settings.timeout_s,
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

    return EmbeddingModel(name=name, model=name, endpoint=name, embed=embed, client=None, timeout_s=settings.timeout_s)
