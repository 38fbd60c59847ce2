"""Judges of providers by name: LangChain's chat model of the provider, asked in our terms.

LangChain's packages write the request in the provider's words, its schema included; ours go in and come out in the
shape of the other judges, so that the call path knows no provider. A model is made once a run, with a separate HTTP
client that is closed at the end: the packages' own clients last as long as the process and belong to the event loop
that used them first. Their retries and timeouts are off, for both are the run's.
"""

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

import httpx
import openai
import orjson
from langchain_core.language_models import BaseChatModel, BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableBinding, RunnableSequence
from langchain_openai.chat_models.base import BaseChatOpenAI
from pydantic import SecretStr

from evalhouse.tasks.asking.batches import BatchLimits, BatchLine, BatchState, describe_lost
from evalhouse.tasks.asking.usage import count_tokens
from evalhouse.tasks.judge.protocol import (
    FatalJudgeError,
    JudgeError,
    ModelReply,
    ModelRequest,
    hash_canonical,
)
from evalhouse.tasks.models.chat import (
    VOTING,
    ChatModelJudge,
    choose_parameters,
    make_compatible_judge,
    make_dialect,
)
from evalhouse.tasks.models.dialect import FORMS, ErrorBody, StatusError, parse_error, parse_error_body
from evalhouse.tasks.models.factories import hash_fields
from evalhouse.tasks.models.langchain_channel import LangChainChannel
from evalhouse.tasks.models.providers import (
    Access,
    Provider,
    call_factory,
    check_address,
    load_table,
    strip_credentials,
)
from evalhouse.tasks.settings.environment import find_proxy
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.messages import name_setting, note_secret, redact, shorten

if TYPE_CHECKING:
    from anthropic.types.messages import MessageBatch

Invoke = Callable[[list[BaseMessage], Mapping[str, Any]], Awaitable[BaseMessage]]

_GOOGLE: Final = "https://generativelanguage.googleapis.com"
# LangChain's names, which most of its packages take.
_USUAL_OPTIONS = {"temperature": "temperature", "max_tokens": "max_tokens"}
_FINISH_FIELDS = ("finish_reason", "stop_reason", "stopReason", "done_reason")
# The path that a page of Azure shows after a resource's address.
_AZURE_PATH: Final = re.compile(r"/openai(?:/v1|/deployments/[^/]+)?$")
# Prompts and rubrics have few schemas; there are more only if each request names its ids.
_MAX_SCHEMAS = 64
# Claude's tokenizers make up to half as many tokens again of a text as the one that `count_tokens` follows.
_MORE_TOKENS = 1.5


class ProviderChannel(LangChainChannel):
    """Asks one chat model of a provider."""

    def __init__(
        self, provider: Provider, chat: BaseChatModel, invoke: Invoke | None = None, *, min_cached: int | None = None
    ) -> None:
        """Make a channel; the provider caches marked beginnings from `min_cached` tokens on, None for no marks."""
        super().__init__(chat)
        self.min_cached = min_cached
        self.takes_seed = "seed" in provider.options
        self._provider = provider
        self._invoke: Invoke = invoke or (lambda messages, options: chat.ainvoke(messages, **options))
        self._schemas: dict[bytes, Mapping[str, Any]] = {}
        self._beginnings: set[int] = set()

    async def invoke(self, messages: list[BaseMessage], payload: Mapping[str, Any]) -> BaseMessage:
        """Send the request; the message then states in OpenAI's words how it ended."""
        names = self._provider.options or _USUAL_OPTIONS
        options: dict[str, Any] = {theirs: payload[ours] for ours, theirs in names.items() if ours in payload}
        if self._provider.options_in and options:
            options = {self._provider.options_in: options}
        if form := payload.get("response_format"):
            if "json_schema" not in form:
                # The answer of an endpoint without JSON mode: the model is then asked in words alone.
                raise StatusError(400, {}, ErrorBody(message="response_format is not supported without a schema"))
            key = orjson.dumps(form["json_schema"])
            if key not in self._schemas:
                if len(self._schemas) >= _MAX_SCHEMAS:
                    self._schemas.clear()
                self._schemas[key] = _bind_schema(self._chat, form["json_schema"])
            options |= self._schemas[key]
        # The provider should cache the messages up to a mark: all but the data, which are last. Caching costs more than
        # sending, so that texts that were sent only once, as in a run of one sample, are not marked; nor are texts that
        # are too short to be cached.
        *shared, data = messages
        if self.min_cached is not None and shared:
            texts = tuple(str(message.content) for message in shared)
            if hash(texts) not in self._beginnings:
                self._beginnings.add(hash(texts))
            elif _MORE_TOKENS * sum(map(count_tokens, texts)) >= self.min_cached:
                block = {"type": "text", "text": texts[-1], "cache_control": {"type": "ephemeral"}}
                messages = [*shared[:-1], shared[-1].model_copy(update={"content": [block]}), data]
        message = await self._invoke(messages, options)

        # The end of the reply in OpenAI's words, None for the usual end, beside the provider's.
        metadata = message.response_metadata
        feedback = metadata.get("prompt_feedback")
        blocked = feedback.get("block_reason") if isinstance(feedback, dict) else None
        ending = blocked or next((metadata[name] for name in _FINISH_FIELDS if metadata.get(name)), "")
        word = str(getattr(ending, "name", ending))
        endings = load_table()["endings"]
        finish = next((ours for ours, words in endings.items() if word.lower() in words), None)
        finish = "content_filter" if blocked else finish
        changes: dict[str, Any] = {"response_metadata": {**metadata, "finish_reason": finish, "ended_with": word}}
        usage, counted = getattr(message, "usage_metadata", None), metadata.get("token_usage") or {}
        if usage and "input_token_details" not in usage and (details := counted.get("prompt_tokens_details")):
            # Mistral's package leaves out the counts that its provider reports in OpenAI's words.
            changes["usage_metadata"] = {**usage, "input_token_details": {"cache_read": details.get("cached_tokens")}}
        return message.model_copy(update=changes)

    def explain(self, error: Exception) -> Exception:
        """Return the provider's answer behind an error; a request that its package refuses counts as refused there."""
        if type(error) is ValueError and "is not supported" in str(error):
            return StatusError(400, {}, ErrorBody(message=str(error)))
        return find_answer(error) or error


def _bind_schema(chat: BaseChatModel, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options that make a package ask for a reply of this schema; raises FatalJudgeError if it cannot."""
    schema = {"title": asked["name"], **asked["schema"]}
    sequence = chat.with_structured_output(schema, method="json_schema")
    first = sequence.first if isinstance(sequence, RunnableSequence) else sequence
    # Some packages make a tool of the schema; a tool call has no text that could be recorded.
    if not isinstance(first, RunnableBinding) or "tools" in first.kwargs:
        raise FatalJudgeError(f"{type(chat).__name__} sends no schema for its replies; another release may")
    return {name: value for name, value in first.kwargs.items() if name != "ls_structured_output_format"}


def find_answer(error: BaseException) -> StatusError | None:
    """Return the provider's answer behind an error; None if no answer came, as when no connection was made.

    Each client has its own errors, and the packages wrap them in more; yet all of them keep the answer: its status,
    headers and body. So an error and its causes are searched for these by name.
    """
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, dict):  # of botocore
            metadata, fault = response.get("ResponseMetadata") or {}, response.get("Error") or {}
            status = metadata.get("HTTPStatusCode")
            if isinstance(status, int):
                code = str(fault.get("Code") or "")
                message = f"{code}: {fault.get('Message') or response.get('message') or ''}"
                return StatusError(status, metadata.get("HTTPHeaders") or {}, ErrorBody(message=message, code=code))
        # Errors of the connection have a `code` too (aiohttp's), but no `details` of an answer.
        own_code = getattr(cause, "code", None) if hasattr(cause, "details") else None
        named = (getattr(cause, "status_code", None), own_code, getattr(response, "status_code", None))
        status = next((value for value in named if isinstance(value, int) and 300 <= value < 600), None)
        if status is not None:
            headers = getattr(response, "headers", None)
            parsed = (getattr(cause, "body", None), getattr(cause, "details", None))
            body = next((value for value in parsed if isinstance(value, dict) and value), None)
            content = getattr(response, "content", None)
            if body is not None:
                error_body = parse_error(body.get("error", body))
            elif isinstance(content, bytes) and content:
                error_body = parse_error_body(content)
            else:
                text = getattr(cause, "error", None) or getattr(cause, "message", None) or cause
                error_body = ErrorBody(message=str(text))
            return StatusError(status, headers if isinstance(headers, Mapping) else {}, error_body)
        cause = cause.__cause__
    return None


# --- making a judge


def make_factory_judge(name: str, settings: RunSettings) -> ChatModelJudge:
    """Return `module:factory`, the LangChain chat model that the factory returns; raises FatalJudgeError."""
    chat = call_factory(name)
    if not isinstance(chat, BaseChatModel):
        raise FatalJudgeError(
            f"{name} returned a {type(chat).__name__}; a judge's factory returns a LangChain chat model"
        )
    temperature, is_chat_openai = getattr(chat, "temperature", None), isinstance(chat, BaseChatOpenAI)
    if settings.votes > 1 and temperature == 0 and not is_chat_openai:
        raise FatalJudgeError(f"{name} returned a model of temperature 0, whose votes would all be equal; raise it")
    if settings.reasoning_effort is not None and "reasoning_effort" not in type(chat).model_fields:
        raise FatalJudgeError(
            f"{name} returned a {type(chat).__name__}, which has no reasoning_effort; set what it has in the factory, "
            f"and leave {name_setting('reasoning_effort')} out"
        )
    voting = VOTING if temperature == 0 and is_chat_openai else {}
    takes_schemas = is_chat_openai and not getattr(chat, "use_responses_api", None)
    model = str(getattr(chat, "model_name", None) or getattr(chat, "model", None) or type(chat).__name__)
    # The factory's choices (temperature, address, …) are part of the key, for they may change a reply. LangChain's
    # identifying parameters hold no secrets; a class that has none counts by its fields. A value that is not plain
    # counts by its type: an object's text would have its address in it, and no recorded reply would be found again.
    address = getattr(getattr(chat, "root_async_client", None), "base_url", None)
    names_parameters = type(chat)._identifying_params is not BaseLanguageModel._identifying_params
    parameters = dict(chat._identifying_params) if names_parameters else hash_fields(chat)
    chosen = orjson.dumps(
        [type(chat).__qualname__, str(address), parameters],
        default=lambda value: type(value).__qualname__,
        option=orjson.OPT_NON_STR_KEYS,
    )
    return ChatModelJudge(
        name=name,
        channel=LangChainChannel(chat),
        endpoint=name,
        model=model,
        parameters={} if settings.reasoning_effort is None else {"reasoning_effort": settings.reasoning_effort},
        dialect=make_dialect(settings.votes, voting, FORMS[1:] if takes_schemas else FORMS[-1:]),
        voting=voting,
        keyed=hash_canonical(orjson.loads(chosen)),
    )


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A chat model with its address, and the call that closes its connections."""

    chat: BaseChatModel
    address: str
    close: Callable[[], Awaitable[None]] | None
    structured: bool = True
    invoke: Invoke | None = None


def make_provider_judge(name: str, provider: Provider, model: str, settings: RunSettings) -> ChatModelJudge:
    """Return `anthropic:MODEL` and the like; raises FatalJudgeError for a missing package, key or address."""
    # The address of the environment, else the provider's own.
    address = provider.address
    if source := next((source for source in provider.addresses if os.environ.get(source, "").strip()), None):
        scheme = "http://" if provider.name == "ollama" else ""
        address = check_address(source, os.environ[source], scheme=scheme)
    key = provider.read_key(name, address)
    if provider.name == "azure":
        if not address:
            raise FatalJudgeError("AZURE_OPENAI_ENDPOINT is not set; set it like https://RESOURCE.openai.azure.com")
        base = _AZURE_PATH.sub("", strip_credentials(address))
        access = Access(endpoint=f"{base}/openai/v1", key=SecretStr(key), headers={}, variables=provider.variables)
        if version := os.environ.get("OPENAI_API_VERSION"):
            is_token = not os.environ.get("AZURE_OPENAI_API_KEY")  # which takes the place of a key
            access = replace(
                access,
                endpoint=f"{base}/openai/deployments/{quote(model, safe='')}",
                headers={} if is_token else {"api-key": key},
                query={"api-version": version},
            )
        return make_compatible_judge(name, model, settings, access)
    provider.require_package(name)
    try:
        made = _make_chat(provider, model, key, address)
    except FatalJudgeError:
        raise
    except Exception as error:  # a package of any maker may raise anything
        raise FatalJudgeError(f"{name} cannot be asked: {shorten(redact(str(error)))}") from error
    if settings.reasoning_effort is not None and "reasoning_effort" not in provider.options:
        raise FatalJudgeError(f"{name} has no effort that could be set; leave {name_setting('reasoning_effort')} out")
    for field in provider.unset:
        setattr(made.chat, field, None)
    batches = None
    if settings.batch and provider.name == "anthropic":
        batches = AnthropicBatches(made.chat, key=key, address=address)
    # Packages bind schemas only, no JSON of any shape.
    forms = ["ids", "schema", "words"] if provider.names_ids else ["schema", "words"]
    parameters, voting = choose_parameters(settings)
    judge = ChatModelJudge(
        name=name,
        channel=ProviderChannel(
            provider, made.chat, batches.invoke if batches else made.invoke, min_cached=provider.find_min_cached(model)
        ),
        endpoint=strip_credentials(made.address) if "://" in made.address else made.address,
        model=model,
        parameters=parameters,
        dialect=make_dialect(settings.votes, voting, forms if made.structured else ["words"], max_tokens="max_tokens"),
        voting=voting,
        variables=provider.variables,
        close=made.close,
        window=(made.chat.profile or {}).get("max_input_tokens") or None,
    )
    if batches is not None:
        batches.judge, judge.batches = judge, batches
    return judge


def _init(provider: Provider, model: str, **fields: Any) -> BaseChatModel:  # noqa: ANN401  # each package has its own
    from langchain.chat_models import init_chat_model  # noqa: PLC0415  # comes with the extra

    chat = init_chat_model(model, model_provider=provider.langchain, **provider.fields, **fields)
    assert isinstance(chat, BaseChatModel)
    return chat


class _Transport(httpx.AsyncHTTPTransport):
    """A transport that a blocking client, which is made of the same and never used, can close too."""

    def close(self) -> None:
        """Do nothing: no blocking connection was opened."""


def _make_chat(provider: Provider, model: str, key: str, address: str) -> _Made:
    """Return the model of a provider; each package has its own way to pass a client."""
    limits = httpx.Limits(max_connections=None)
    match provider.name:
        case "anthropic":
            import anthropic  # noqa: PLC0415

            chat = _init(provider, model, api_key=key, base_url=address)
            http_client = anthropic.DefaultAioHttpClient(timeout=None, follow_redirects=False)
            client = anthropic.AsyncAnthropic(
                api_key=key, base_url=address, max_retries=0, timeout=None, http_client=http_client
            )
            # In the place where the model would keep the client that it shares with all others of the process.
            chat.__dict__["_async_client"] = client
            return _Made(chat=chat, address=address, close=client.close)
        case "google_genai":
            # Without a transport its client uses aiohttp, and LangChain leaves the answer of every error unread, which
            # Python reports on the terminal.
            transport = _Transport(limits=limits, proxy=find_proxy(address or _GOOGLE))
            chat = _init(provider, model, api_key=key, base_url=address, client_args={"transport": transport})
            return _Made(chat=chat, address=address, close=cast(Any, chat).aclose)
        case "mistralai":
            headers = {"Accept": "application/json", "Authorization": f"Bearer {key}"}
            http = httpx.AsyncClient(base_url=address, headers=headers, timeout=None, limits=limits)
            chat = _init(provider, model, api_key=key, base_url=address, async_client=http)
            return _Made(chat=chat, address=address, close=http.aclose)
        case "ollama":
            chat = _init(provider, model, base_url=address or None)
            ollama = cast(Any, chat)._async_client
            return _Made(chat=chat, address=str(ollama._client.base_url), close=ollama.close)
        case "bedrock":
            return _make_bedrock(provider, model)
        case _:
            # Only the provider's package knows its address and the name of its key.
            known = type(_init(provider, model)).model_fields
            fields: dict[str, Any] = {"max_retries": 0} if "max_retries" in known else {}
            own = openai.DefaultAsyncHttpxClient(timeout=None) if "http_async_client" in known else None
            chat = _init(provider, model, **fields, **({"http_async_client": own} if own else {}))
            tried = {"type": "object", "properties": {"a": {"type": "string"}}}
            try:
                _bind_schema(chat, {"name": "reply", "schema": tried})
                structured = True
            except (FatalJudgeError, NotImplementedError, ValueError, TypeError):
                structured = False
            base_url = getattr(getattr(chat, "root_async_client", None), "base_url", None)
            named = str(base_url or f"{provider.name}:")
            return _Made(chat=chat, address=named, close=own.aclose if own else None, structured=structured)


def _make_bedrock(provider: Provider, model: str) -> _Made:
    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415

    session = boto3.Session(region_name=os.environ.get("AWS_REGION"))
    if session.region_name is None:
        raise FatalJudgeError("AWS_REGION is not set; set it to the region whose Bedrock is to be asked")
    credentials = session.get_credentials()
    if credentials is None and not os.environ.get("AWS_BEARER_TOKEN_BEDROCK"):
        raise FatalJudgeError(
            "no AWS credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or "
            "AWS_BEARER_TOKEN_BEDROCK"
        )
    if credentials is not None:
        frozen = credentials.get_frozen_credentials()
        for secret in filter(None, (frozen.secret_key, frozen.token)):
            note_secret(secret)
    patient = Config(retries={"total_max_attempts": 1}, connect_timeout=60, read_timeout=3600, max_pool_connections=256)
    client = session.client("bedrock-runtime", config=patient)
    # Only profiles are looked up by the other client, which takes as long to make as the first.
    other = {} if "inference-profile/" in model or "application-" in model else {"bedrock_client": client}
    chat = _init(provider, model, client=client, **other)

    async def invoke(messages: list[BaseMessage], options: Mapping[str, Any]) -> BaseMessage:
        # The call blocks. A daemon thread does not keep Python from ending when the run ends before it.
        future: Future[BaseMessage] = Future()
        future.set_running_or_notify_cancel()

        def work() -> None:
            try:
                future.set_result(chat.invoke(messages, **options))
            except Exception as error:  # passed on to the caller
                future.set_exception(error)

        threading.Thread(target=work, daemon=True, name="bedrock").start()
        return await asyncio.wrap_future(future)

    close = partial(asyncio.to_thread, client.close)
    return _Made(chat=chat, address=client.meta.endpoint_url, close=close, invoke=invoke)


# --- Anthropic's batches

_TRANSFER_S = 600.0
_CREATED_BEFORE_S = 60.0  # the clocks differ
_STATUSES: Final = {
    "invalid_request_error": 400, "authentication_error": 401, "billing_error": 402, "permission_error": 403,
    "not_found_error": 404, "request_too_large": 413, "rate_limit_error": 429, "api_error": 500, "timeout_error": 504,
    "overloaded_error": 529,
}  # fmt: skip


@dataclass(kw_only=True)
class _Exchange:
    """One exchange without a network: the answer to give, or else the request that was `written`."""

    answer: tuple[int, bytes] | None = None
    written: bytes = b""


_EXCHANGE: ContextVar[_Exchange | None] = ContextVar("_EXCHANGE", default=None)


class AnthropicBatches:
    """Anthropic's message batches: requests are sent in one piece, results come as lines once all of them are over.

    LangChain's package writes requests and reads answers, as for requests that are sent one by one: the judge's model
    then uses a client that reaches no network, which notes the request, or answers with the result of the batch.
    """

    # Anthropic accepts 256 MB, which are made and held in one piece here.
    limits = BatchLimits(requests=100_000, size=100_000_000)
    judge: ChatModelJudge

    def __init__(self, chat: BaseChatModel, *, key: str, address: str) -> None:
        import anthropic  # noqa: PLC0415  # comes with the extra
        import httpx2  # noqa: PLC0415  # comes with it

        def exchange(request: httpx2.Request) -> httpx2.Response:
            current = _EXCHANGE.get()
            assert current is not None
            if current.answer is None:
                current.written = request.content
                raise httpx2.ConnectError("written, and not sent")
            status, body = current.answer
            return httpx2.Response(status, content=body, headers={"content-type": "application/json"})

        self._client = anthropic.AsyncAnthropic(api_key=key, base_url=address, max_retries=0)
        self._chat = chat
        # In the place where the model would keep the client for blocking calls, which no other code makes.
        http_client = httpx2.Client(transport=httpx2.MockTransport(exchange))
        chat.__dict__["_client"] = anthropic.Anthropic(
            # With a time limit it refuses requests for long replies, which are only written here.
            api_key=key,
            base_url=address,
            max_retries=0,
            http_client=http_client,
            timeout=None,
        )

    async def invoke(self, messages: list[BaseMessage], options: Mapping[str, Any]) -> BaseMessage:
        """Ask the model over the network, or without one during an exchange."""
        if _EXCHANGE.get() is None:
            return await self._chat.ainvoke(messages, **options)
        return self._chat.invoke(messages, **options)

    def write_line(self, custom_id: str, request: ModelRequest) -> bytes:
        """Return a request as a line of a batch."""
        exchange = _Exchange()
        try:
            self._exchange(exchange, request)
        except JudgeError:
            if not exchange.written:
                raise
        return orjson.dumps({"custom_id": custom_id, "params": orjson.Fragment(exchange.written)}) + b"\n"

    def read_line(self, line: BatchLine, request: ModelRequest) -> ModelReply:
        """Return the reply in a line of the results."""
        return self._exchange(_Exchange(answer=(line.status or 500, line.body)), request)

    def _exchange(self, exchange: _Exchange, request: ModelRequest) -> ModelReply:
        token = _EXCHANGE.set(exchange)
        replying = self.judge.reply(request)
        try:
            replying.send(None)  # it waits for nothing
        except StopIteration as ended:
            return cast(ModelReply, ended.value)
        finally:
            replying.close()
            _EXCHANGE.reset(token)
        raise RuntimeError("a model that is asked without a network waited for something")

    async def create(self, file: Path, tag: str) -> BatchState:
        """Send all requests in one piece."""
        from anthropic.types.messages import MessageBatch  # noqa: PLC0415

        requests = [orjson.Fragment(line) for line in file.read_bytes().splitlines()]
        with self._translated():
            created = await self._client.post(
                "/v1/messages/batches",
                cast_to=MessageBatch,
                content=orjson.dumps({"requests": requests}),
                options={"timeout": _TRANSFER_S, "headers": {"Content-Type": "application/json"}},
            )
        return self._describe(created)

    async def find(self, tag: str, *, since: float, custom_ids: Collection[str]) -> BatchState | None:
        """Return a batch of as many requests that was made since then, as Anthropic's batches have no tags.

        The ids in the results of one that is over must be ours as well.
        """
        with self._translated():
            async for batch in self._client.messages.batches.list(limit=100):
                if batch.created_at.timestamp() < since - _CREATED_BEFORE_S:
                    break
                state = self._describe(batch)
                if state.n_done + batch.request_counts.processing != len(custom_ids):
                    continue
                if batch.results_url is None:
                    return state
                async for line in self.fetch(batch.id):
                    if line.custom_id in custom_ids:
                        return state
                    break
        return None

    async def look(self, provider_id: str) -> BatchState:
        """Return the state of a batch; one that no longer exists is over."""
        with self._translated(ignored=(404,)):
            return self._describe(await self._client.messages.batches.retrieve(provider_id))
        return describe_lost(provider_id)

    async def fetch(self, provider_id: str) -> AsyncIterator[BatchLine]:
        """Yield the results; none for a batch whose results were deleted, and an invalid line counts as not asked."""
        with self._translated(ignored=(404,)):
            batch = await self._client.messages.batches.retrieve(provider_id)
            if batch.results_url is None:
                return
            results = await self._client.messages.batches.results(provider_id, timeout=_TRANSFER_S)
            # The client's own reader ends at the first invalid line.
            if "html" in results.http_response.headers.get("content-type", ""):
                raise ValueError("the results of the batch are an HTML page")
            async for text in results.http_response.aiter_lines():
                try:
                    row: Any = orjson.loads(text)
                    custom_id, result = str(row["custom_id"]), row["result"]
                    status, body = None, b""
                    if result["type"] == "succeeded":
                        status, body = 200, orjson.dumps({**result["message"]})
                    elif result["type"] == "errored":
                        status, body = (
                            _STATUSES.get(result["error"]["error"]["type"], 500),
                            orjson.dumps(result["error"]),
                        )
                except (orjson.JSONDecodeError, LookupError, TypeError):
                    continue
                yield BatchLine(custom_id=custom_id, status=status, body=body)

    async def cancel(self, provider_id: str) -> None:
        """End a batch soon; one that is over stays unchanged."""
        with self._translated(ignored=(400, 404, 409)):
            await self._client.messages.batches.cancel(provider_id)

    @contextmanager
    def _translated(self, *, ignored: Collection[int] = ()) -> Iterator[None]:
        """Raise the client's errors as ours, except errors of `ignored` statuses, which end the block."""
        try:
            yield
        except Exception as error:  # the package's classes are imported only with the extra
            status = getattr(error, "status_code", None)
            if status in ignored:
                return
            if status == 404:
                raise FatalJudgeError(
                    f"{self._client.base_url} has no message batches (status 404); leave {name_setting('batch')} out, "
                    "or check ANTHROPIC_BASE_URL"
                ) from None
            raise self.judge.translate(error, sent={}) from None

    @staticmethod
    def _describe(batch: "MessageBatch") -> BatchState:
        counts = batch.request_counts
        return BatchState(
            provider_id=batch.id,
            status=batch.processing_status,
            is_over=batch.processing_status == "ended",
            n_done=counts.succeeded + counts.errored + counts.canceled + counts.expired,
        )

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()
