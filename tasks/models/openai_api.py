"""The requests to OpenAI-compatible endpoints: one request posted, one completion or list of embeddings parsed.

LangChain turns every message into its own classes, hooks and dictionaries, the OpenAI client converts those once more,
sends them through httpx and builds a pydantic model of the reply: 2.5 ms of CPU a call, of which aiohttp alone needs
0.3. Our requests are plain texts already and retries belong to the run, so that these are posted unchanged. The
headers come from the OpenAI client.
"""

import codecs
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
import openai
import orjson
from yarl import URL

from evalhouse.tasks.asking.embeddings import pack_embedding
from evalhouse.tasks.asking.http_session import HttpSession, make_ssl_context, read_beginning
from evalhouse.tasks.judge.protocol import (
    FatalJudgeError,
    ModelReply,
    ModelRequest,
    Question,
    RefusedRequest,
    UnsupportedOption,
    UnusableReply,
    hash_canonical,
    parse_count,
)
from evalhouse.tasks.models.dialect import MAX_ERROR_BYTES, StatusError, parse_error, parse_error_body, translate_error
from evalhouse.tasks.models.providers import call_factory, find_access

# A long reply with its log-probabilities has about six megabytes.
_MAX_BYTES = 32 * 1024**2


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The body of a good answer with its headers, and the first of its items: a choice, or an embedding."""

    body: dict[str, Any]
    first: dict[str, Any]
    headers: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """The address of one kind of request with its headers and connections. Use within one event loop, and close there.

    Redirects are not followed: as a request of another kind, or without its key, one would end in an error that does
    not state the reason.
    """

    url: URL
    headers: Mapping[str, str]
    session: HttpSession


def open_endpoint(client: openai.AsyncOpenAI, path: str) -> Endpoint:
    """Return the endpoint under a path of `client`'s address."""
    headers = {**client.auth_headers, **client.default_headers}
    query = urlencode(client.default_query)  # such as Azure's version
    url = URL(f"{str(client.base_url).rstrip('/')}{path}{query and f'?{query}'}", encoded=True)
    return Endpoint(
        url=url,
        headers={name: value for name, value in headers.items() if isinstance(value, str)},
        session=HttpSession(certificates=make_ssl_context() if url.scheme == "https" else True),
    )


async def read_answer(answer: aiohttp.ClientResponse, items: str = "choices") -> Completion:
    """Read an answer to its end; raises what `parse_answer` raises, or an aiohttp error."""
    async with answer as response:
        content = await read_beginning(response, _MAX_BYTES if 200 <= response.status < 300 else MAX_ERROR_BYTES)
    return parse_answer(response.status, content, response.headers, items)


def parse_answer(status: int, content: bytes, headers: Mapping[str, str], items: str = "choices") -> Completion:
    """Return the completion in an answer; raises StatusError, UnusableReply, or ValueError for anything else.

    An error in its place, as gateways send it with status 200, is raised as if it had its status.
    """
    if not 200 <= status < 300:
        raise StatusError(status, headers, parse_error_body(content[:MAX_ERROR_BYTES]))
    if len(content) > _MAX_BYTES:
        raise UnusableReply(f"the endpoint sent more than {_MAX_BYTES // 1024**2} MB for one reply")
    shown = content[:80].decode(errors="replace")
    try:
        body = orjson.loads(content.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError:
        is_stream = headers.get("content-type", "").startswith("text/event-stream")
        problem = "a stream, which was not asked for" if is_stream else "what is not valid JSON"
        raise ValueError(f"the endpoint sent {problem}: {shown!r}") from None
    completion: dict[str, Any] = body if isinstance(body, dict) else {}
    listed = completion.get(items)
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else None
    if body_error := completion.get("error") or (first or {}).get("error"):
        error = parse_error(body_error)
        raise StatusError(error.status or 500, headers, error)
    if first is None:
        raise ValueError(f'the endpoint sent what is not a completion (it has no "{items}"): {shown!r}')
    return Completion(body=completion, first=first, headers=headers)


# --- embeddings


class EmbeddingModel:
    """An embedding model behind the judge protocol: the reply's text is the vector, packed."""

    tasks: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        name: str,
        model: str,
        endpoint: str,
        embed: Callable[[Sequence[str]], Awaitable[ModelReply]],
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.endpoint = endpoint
        self._embed = embed
        self._close = close

    def prepare(self, question: Question) -> ModelRequest:
        """Return the request for a text, or for the texts of all parts, under the model's name and address."""
        texts = [part.data["text"] for part in question.parts] or question.data["text"]
        payload: dict[str, object] = {"endpoint": self.endpoint, "model": self.model, "input": texts}
        return ModelRequest(request_hash=hash_canonical(payload), payload=payload)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Embed one text, or several; several vectors are the parts of the reply."""
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
                translated = RefusedRequest(str(translated))  # no option was sent
            raise translated from None

    async def close(self) -> None:
        """Close the HTTP client of an OpenAI model."""
        if self._close is not None:
            await self._close()


def make_embedding_model(name: str) -> EmbeddingModel:
    """Return `openai:MODEL` at its own address or the judge's, or `module:factory`; raises FatalJudgeError."""
    kind, _, model = name.partition(":")
    if kind != "openai":
        from langchain_core.embeddings import Embeddings  # noqa: PLC0415  # not needed for `hashing`

        embeddings = call_factory(name)
        if not isinstance(embeddings, Embeddings):
            raise FatalJudgeError(
                f"{name} returned a {type(embeddings).__name__}; an embeddings factory returns LangChain Embeddings"
            )

        async def embed_documents(texts: Sequence[str]) -> ModelReply:
            vectors = await embeddings.aembed_documents(list(texts))
            _check_number(len(vectors), len(texts))
            return ModelReply(text="", parts=[pack_embedding(vector) for vector in vectors])

        return EmbeddingModel(name=name, model=name, endpoint=name, embed=embed_documents)
    access = find_access(embeds=True)
    client = openai.AsyncOpenAI(
        api_key=access.key.get_secret_value(), base_url=access.endpoint, default_headers=access.headers
    )
    endpoint = open_endpoint(client, "/embeddings")

    async def embed(texts: Sequence[str]) -> ModelReply:
        # The encoding that OpenAI's own client asks for: a quarter of the size.
        body = orjson.dumps({"model": model, "input": texts, "encoding_format": "base64"})
        sent = await endpoint.session.send("POST", endpoint.url, content=body, headers=endpoint.headers)
        answer = await read_answer(sent, "data")
        # Among several an embedding that cannot be read is "": the others of the request are of use without it.
        packed: list[str] = []
        items = [item if isinstance(item, dict) else {} for item in answer.body["data"]]
        if len(texts) > 1:
            _check_number(len(items), len(texts))
        # Without any index they come in order; with ones that do not fit nothing shows which text has which.
        places = [item["index"] for item in items if item.get("index") is not None]
        if places and sorted(map(repr, places)) != sorted(map(repr, range(len(texts)))):
            raise UnusableReply(f"the embeddings had the indices {places!r:.100}, not 0 to {len(texts) - 1}")
        if len(texts) == 1:
            packed.append(pack_embedding(answer.first.get("embedding")))
        else:
            if places:
                items.sort(key=lambda item: int(item["index"]))
            for item in items:
                try:
                    packed.append(pack_embedding(item.get("embedding")))
                except UnusableReply:
                    packed.append("")
        usage, answered_by = answer.body.get("usage"), answer.body.get("model")
        return ModelReply(
            text="",
            parts=packed,
            model=answered_by if isinstance(answered_by, str) else None,
            prompt_tokens=parse_count(usage.get("prompt_tokens")) if isinstance(usage, dict) else None,
            completion_tokens=0,
        )

    return EmbeddingModel(name=name, model=model, endpoint=access.endpoint, embed=embed, close=endpoint.session.close)


def _check_number(n_vectors: int, n_texts: int) -> None:
    """Raise RefusedRequest unless there is one vector for each text; a request of fewer texts may get all."""
    if n_vectors != n_texts:
        raise RefusedRequest(f"the endpoint gave {n_vectors} embeddings for {n_texts} texts")
