"""Embeddings behind one question: how close in meaning are two texts?

`hashing` needs no model: character n-grams counted in a hash table, for English and Chinese alike. It sees shared
words and spellings, not meaning. `openai:MODEL` and `module:factory` ask a model, many texts a request, through the
same call path and record as the judge, so that an unchanged text is never embedded twice.
"""

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import cast

import openai

from evalhouse.tasks.asking.embeddings import pack_embedding, pack_vector
from evalhouse.tasks.judge.errors import (
    FatalJudgeError,
    RefusedRequest,
    UnsupportedOption,
    UnusableReply,
)
from evalhouse.tasks.judge.protocol import ModelReply, ModelRequest, Question, hash_canonical, parse_count
from evalhouse.tasks.models.completions import (
    Completion,
    Completions,
    find_endpoint,
    make_login_header,
    read_openai_key,
    strip_credentials,
)
from evalhouse.tasks.models.errors import translate_error
from evalhouse.tasks.models.providers import read_key_variable
from evalhouse.tasks.settings.run import RunSettings

# Servers of one model, such as llama.cpp's and vLLM, have the judge at one address and embeddings at another.
_OWN_ADDRESS, _OWN_KEY = "OPENAI_EMBEDDINGS_BASE_URL", "OPENAI_EMBEDDINGS_API_KEY"

Embed = Callable[[Sequence[str]], Awaitable[ModelReply]]
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
        """The text, or those of all parts, under the model's name and address."""
        texts = [part.data["text"] for part in question.parts] or question.data["text"]
        payload: dict[str, object] = {"endpoint": self.endpoint, "model": self.model, "input": texts}
        return ModelRequest(request_hash=hash_canonical(payload), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Embed one text, or several, whose vectors are then the parts of the reply."""
        texts = request.payload["input"]
        try:
            if isinstance(texts, str):
                reply = await self._embed([texts])
                return replace(reply, text=reply.parts[0], parts=())
            return await self._embed(cast(Sequence[str], texts))
        except (RefusedRequest, UnusableReply):
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
    """Return `openai:MODEL` at its address or the judge's, or `module:factory`; raises FatalJudgeError."""
    kind, _, model = name.partition(":")
    if kind != "openai":
        return _make_factory_model(name)
    endpoint = find_endpoint(_OWN_ADDRESS)
    # An address of embeddings alone has a key of its own, so that the judge's key goes nowhere else.
    has_own_address = bool(os.environ.get(_OWN_ADDRESS))
    key = read_key_variable(_OWN_KEY) or "no-key" if has_own_address else read_openai_key(endpoint).get_secret_value()
    client = openai.AsyncOpenAI(
        api_key=key, base_url=strip_credentials(endpoint), default_headers=make_login_header(endpoint)
    )
    posts = Completions(client, "/embeddings")

    async def embed(texts: Sequence[str]) -> ModelReply:
        # The form that OpenAI's own client asks for: a quarter of the size.
        answer = await posts.post({"model": model, "input": texts, "encoding_format": "base64"})
        usage, answered_by = answer.body.get("usage"), answer.body.get("model")
        return ModelReply(
            text="",
            parts=_pack_all(answer, len(texts)),
            model=answered_by if isinstance(answered_by, str) else None,
            prompt_tokens=parse_count(usage.get("prompt_tokens")) if isinstance(usage, dict) else None,
            completion_tokens=0,
        )

    return EmbeddingModel(name=name, model=model, endpoint=strip_credentials(endpoint), embed=embed, close=posts.close)


def _pack_all(answer: Completion, n_texts: int) -> list[str]:
    """Return the embeddings in the order of the texts; of one text the first that came.

    An embedding that cannot be read is "": the others of the request are of use without it.
    """
    if n_texts == 1:
        return [pack_embedding(answer.first.get("embedding"))]
    items = [item if isinstance(item, dict) else {} for item in answer.body["data"]]
    _check_number(len(items), n_texts)
    places = [item.get("index") for item in items]
    if sorted(place for place in places if isinstance(place, int)) == list(range(n_texts)):
        items.sort(key=lambda item: int(item["index"]))
    packed = []
    for item in items:
        try:
            packed.append(pack_embedding(item.get("embedding")))
        except UnusableReply:
            packed.append("")
    return packed


def _check_number(n_vectors: int, n_texts: int) -> None:
    """Raise RefusedRequest where there is not one vector a text: fewer texts may get theirs."""
    if n_vectors != n_texts:
        raise RefusedRequest(f"the endpoint gave {n_vectors} embeddings for {n_texts} texts")


def _make_factory_model(name: str) -> EmbeddingModel:
    from langchain_core.embeddings import Embeddings  # noqa: PLC0415  # not needed for `hashing`

    from evalhouse.tasks.models.chat import call_factory  # noqa: PLC0415

    embeddings = call_factory(name)
    if not isinstance(embeddings, Embeddings):
        raise FatalJudgeError(
            f"{name} returned a {type(embeddings).__name__}; an embeddings factory returns LangChain Embeddings"
        )

    async def embed(texts: Sequence[str]) -> ModelReply:
        vectors = await embeddings.aembed_documents(list(texts))
        _check_number(len(vectors), len(texts))
        return ModelReply(text="", parts=[pack_vector(vector) for vector in vectors])

    return EmbeddingModel(name=name, model=name, endpoint=name, embed=embed)
