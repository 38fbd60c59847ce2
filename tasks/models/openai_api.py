"""The requests to OpenAI-compatible endpoints: one request posted, one completion or list of embeddings parsed.

LangChain turns every message into its own classes, hooks and dictionaries, the OpenAI client converts those once more,
sends them through httpx and builds a pydantic model of the reply: 2.5 ms of CPU a call, of which aiohttp alone needs
0.3. Our requests are plain texts already and retries belong to the run, so that these are posted unchanged. Neither
package is imported here, which takes almost a second of CPU in each process that asks a judge.
"""

import codecs
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import urlencode

import aiohttp
import orjson
from yarl import URL

from evalhouse.tasks.asking.embeddings import pack_embedding
from evalhouse.tasks.asking.http_session import HttpSession, make_ssl_context, read_beginning
from evalhouse.tasks.datasets.thoughts import find_thoughts, join_parts, split_reply
from evalhouse.tasks.judge.protocol import (
    FatalJudgeError,
    JudgeFailed,
    ModelReply,
    ModelRequest,
    Question,
    RefusedRequest,
    UnsupportedOption,
    UnusableReply,
    hash_canonical,
    parse_count,
)
from evalhouse.tasks.measures.expected_ratings import pack_logprobs
from evalhouse.tasks.models.dialect import MAX_ERROR_BYTES, StatusError, parse_error, parse_error_body, translate_error
from evalhouse.tasks.models.providers import Access, call_factory, find_access
from evalhouse.warehouse.messages import describe_error, shorten

# A long reply with its log-probabilities has about six megabytes.
_MAX_BYTES = 32 * 1024**2
# The endings of a reply without a verdict, and the messages for them.
_REFUSALS = {
    "refusal": "the model refused to reply",
    "content_filter": "the endpoint's content filter stopped the reply",
}


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


def open_endpoint(access: Access, path: str) -> Endpoint:
    """Return the endpoint under a path of an address, with the headers that OpenAI's own client would send."""
    headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "evalhouse"}
    if "api-key" not in access.headers:
        headers["Authorization"] = f"Bearer {access.key.get_secret_value()}"
    organization = os.environ.get("OPENAI_ORG_ID") or os.environ.get("OPENAI_ORGANIZATION")
    named = {"OpenAI-Organization": organization, "OpenAI-Project": os.environ.get("OPENAI_PROJECT_ID")}
    headers |= {name: value for name, value in named.items() if value}
    for line in os.environ.get("OPENAI_CUSTOM_HEADERS", "").splitlines():
        name, separator, value = line.partition(":")
        if separator:
            headers[name.strip()] = value.strip()
    query = urlencode(access.query or {})  # such as Azure's version
    url = URL(f"{access.endpoint.rstrip('/')}{path}{query and f'?{query}'}", encoded=True)
    session = HttpSession(certificates=make_ssl_context() if url.scheme == "https" else True)
    return Endpoint(url=url, headers={**headers, **access.headers}, session=session)


async def read_answer(answer: aiohttp.ClientResponse, items: str = "choices") -> Completion:
    """Read an answer to its end; raises what `parse_answer` raises, or an aiohttp error."""
    async with answer as response:
        content = await read_beginning(response, _MAX_BYTES if 200 <= response.status < 300 else MAX_ERROR_BYTES)
    return parse_answer(response.status, content, response.headers, items)


def parse_answer(status: int, content: bytes, headers: Mapping[str, str], items: str = "choices") -> Completion:
    """Return the completion in an answer. Raises StatusError, UnusableReply for what a model may have been paid for,
    and ValueError for anything else, such as the page of a proxy.

    An error in its place, as gateways send it with status 200, is raised as if it had its status.
    """
    if not 200 <= status < 300:
        raise StatusError(status, headers, parse_error_body(content[:MAX_ERROR_BYTES]))
    if len(content) > _MAX_BYTES:
        raise UnusableReply(f"the endpoint sent more than {_MAX_BYTES // 1024**2} MB for one reply")
    text = content.removeprefix(codecs.BOM_UTF8).decode(errors="replace")
    try:
        body = json.loads(text) if "NaN" in text else orjson.loads(text)  # which Python's servers write
    except (ValueError, RecursionError):
        if not headers.get("content-type", "").startswith("text/event-stream"):
            raise ValueError(f"the endpoint sent what is not valid JSON: {text[:80]!r}") from None
        problem = f"the endpoint sent a stream, which was not asked for: {text[:80]!r}"
        raise UnusableReply(problem, reply=ModelReply(text=text)) from None
    completion: dict[str, Any] = body if isinstance(body, dict) else {}
    listed = completion.get(items)
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else None
    if body_error := completion.get("error") or (first or {}).get("error"):
        error = parse_error(body_error)
        raise StatusError(error.status or 500, headers, error)
    if first is None:
        problem = f'what is not a completion (it has no "{items}")'
        reply = count_reply(completion, text)
        raise UnusableReply(f"the endpoint sent {problem}: {text[:80]!r}", reply=reply)
    return Completion(body=completion, first=first, headers=headers)


class CompletionsChannel:
    """Asks an endpoint for chat completions; the `Channel` of a ChatModelJudge."""

    takes_seed = takes_logprobs = True
    min_cached: int | None = None

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def reply(self, payload: Mapping[str, object]) -> ModelReply:
        """Post the request and return the reply; raises what `read_answer` and `parse_completion` raise."""
        url, headers = self._endpoint.url, self._endpoint.headers
        answer = await self._endpoint.session.send("POST", url, content=write_body(payload), headers=headers)
        return parse_completion(await read_answer(answer), sent=payload)

    def explain(self, error: Exception) -> Exception:
        """Return the error, which has the endpoint's answer."""
        return error


def write_body(payload: Mapping[str, object]) -> bytes:
    """Return the body of a request: all that is recorded of it but the address."""
    return orjson.dumps({name: value for name, value in payload.items() if name != "endpoint"})


def parse_completion(completion: Completion, *, sent: Mapping[str, object]) -> ModelReply:
    """Return the text and counts of a completion."""
    choice = completion.first
    message = _open_member(choice, "message")
    spoken = split_reply(join_parts(message.get("content")), find_thoughts(message))
    logprobs = pack_logprobs(choice.get("logprobs"), spoken.text) if "logprobs" in sent else None
    reply = replace(count_reply(completion.body, spoken.text), thoughts=spoken.thoughts, logprobs=logprobs)
    return check_ending(reply, choice.get("finish_reason"), message)


def count_reply(body: Mapping[str, Any], text: str) -> ModelReply:
    """Return a text with the model and the counts of its completion. Cached tokens have two names among providers."""
    usage, model = _open_member(body, "usage"), body.get("model")
    details = _open_member(usage, "prompt_tokens_details")
    return ModelReply(
        text=text,
        model=model if isinstance(model, str) else None,
        prompt_tokens=parse_count(usage.get("prompt_tokens")),
        completion_tokens=parse_count(usage.get("completion_tokens")),
        cached_tokens=parse_count(details.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))),
    )


def _open_member(members: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = members.get(name)
    return value if isinstance(value, dict) else {}


def check_ending(reply: ModelReply, finish: object, message: Mapping[str, Any], *, ended_with: str = "") -> ModelReply:
    """Return the reply, or raise that it was refused, filtered or broken off, with the tokens that it cost."""
    if refusal := message.get("refusal"):
        raise RefusedRequest(f"the model refused: {shorten(str(refusal))}", reply=replace(reply, text=str(refusal)))
    if isinstance(finish, str) and finish in _REFUSALS:
        raise RefusedRequest(f"{_REFUSALS[finish]}{ended_with and f' ({ended_with})'}", reply=reply)
    if finish == "error":
        raise UnusableReply("the endpoint broke the reply off with an error", reply=reply)
    is_cut = finish == "length"
    if reply.thoughts and not reply.text.strip() and not is_cut:
        # Thoughts hold drafts of a reply at best, so nothing is read from them.
        raise UnusableReply("the reply was empty: the model wrote everything in its thoughts", reply=reply)
    return replace(reply, is_cut=is_cut)


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
        keyed: object = None,
        close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.endpoint = endpoint
        self._embed = embed
        self._keyed = keyed
        self._close = close

    def prepare(self, question: Question) -> ModelRequest:
        """Return the request for a text, or for the texts of all parts, under the model's name, address and fields."""
        texts = [part.data["text"] for part in question.parts] or question.data["text"]
        payload: dict[str, object] = {"endpoint": self.endpoint, "model": self.model, "input": texts}
        keyed = payload if self._keyed is None else [payload, self._keyed]
        return ModelRequest(request_hash=hash_canonical(keyed), payload=payload)

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
        except SystemExit as error:
            raise JudgeFailed(f"the model ended the program: {describe_error(error)}") from None
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

        from evalhouse.tasks.models.factories import find_model_name, hash_fields  # noqa: PLC0415

        embeddings = call_factory(name)
        if not isinstance(embeddings, Embeddings):
            raise FatalJudgeError(
                f"{name} returned a {type(embeddings).__name__}; an embeddings factory returns LangChain Embeddings"
            )

        model_name, fields = find_model_name(embeddings), hash_fields(embeddings)

        async def embed_documents(texts: Sequence[str]) -> ModelReply:
            vectors = await embeddings.aembed_documents(list(texts))
            _check_number(len(vectors), len(texts))
            return ModelReply(text="", model=model_name, parts=[pack_embedding(vector) for vector in vectors])

        return EmbeddingModel(name=name, model=name, endpoint=name, embed=embed_documents, keyed=fields)
    access = find_access(embeds=True)
    endpoint = open_endpoint(access, "/embeddings")

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
