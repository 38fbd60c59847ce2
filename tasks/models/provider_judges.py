"""Judges of providers by name: LangChain's chat model of the provider, asked in our terms.

LangChain's packages write the request in the provider's words, its schema among them; what goes in and what comes out
is brought to the shape of the other judges here, so that the call path knows no provider. A model is made once a run,
with an HTTP client of its own that is closed at the end: those that the packages keep for all of a process belong to
the event loop of whoever came first. Their retries are off and they wait as long as they are let, for both are the
run's affair.

Each client has errors of its own, and the packages wrap them in more; yet all of them keep the answer that was sent:
its status, headers and body. So an error and its causes are looked through for these by name, and no class of any
package is imported.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast
from urllib.parse import quote

import httpx
import openai
import orjson
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableBinding, RunnableSequence
from pydantic import SecretStr

from evalhouse.tasks.asking.usage import count_tokens
from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.models.chat import (
    ChatModelJudge,
    make_compatible_judge,
    make_dialect,
    read_parameters,
    read_window,
)
from evalhouse.tasks.models.completions import Access, StatusError, strip_credentials
from evalhouse.tasks.models.errors import ErrorBody, Variables, read_error_body, read_error_field
from evalhouse.tasks.models.providers import Provider, read_ending
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.messages import note_secret, redact, shorten
from evalhouse.warehouse.names import name_setting


def find_answer(error: BaseException) -> StatusError | None:
    """Return the provider's answer behind an error; None where there was none, as when no connection was made."""
    cause: BaseException | None = error
    while cause is not None:
        response = getattr(cause, "response", None)
        if isinstance(response, dict):  # of botocore
            metadata, fault = response.get("ResponseMetadata") or {}, response.get("Error") or {}
            status = metadata.get("HTTPStatusCode")
            if isinstance(status, int):
                code = str(fault.get("Code") or "")
                message = f"{code}: {fault.get('Message') or response.get('message') or ''}"
                headers = metadata.get("HTTPHeaders") or {}
                return StatusError(status, headers, ErrorBody(message=message, code=code))
        # Errors of the connection have a `code` too (aiohttp's), but no `details` of an answer.
        own_code = getattr(cause, "code", None) if hasattr(cause, "details") else None
        named = (getattr(cause, "status_code", None), own_code, getattr(response, "status_code", None))
        status = next((value for value in named if isinstance(value, int) and 300 <= value < 600), None)
        if status is not None:
            headers = getattr(response, "headers", None)
            return StatusError(status, headers if isinstance(headers, Mapping) else {}, _read_body(cause, response))
        cause = cause.__cause__
    return None


def _read_body(error: BaseException, response: object) -> ErrorBody:
    """Return what was sent, as the client has parsed it, else as it came."""
    for parsed in (getattr(error, "body", None), getattr(error, "details", None)):
        if isinstance(parsed, dict) and parsed:
            return read_error_field(parsed.get("error", parsed))
    content: Any = getattr(response, "content", None)
    if isinstance(content, bytes) and content:
        return read_error_body(content)
    return ErrorBody(message=str(getattr(error, "error", None) or getattr(error, "message", None) or error))


Invoke = Callable[[list[BaseMessage], Mapping[str, Any]], Awaitable[BaseMessage]]

# LangChain's names, which most of its packages take.
_USUAL_OPTIONS = {"temperature": "temperature", "max_tokens": "max_tokens"}
_CONNECTIONS = 256
# Schemas of prompts and rubrics in a provider's words; more only come where each request names its ids.
_SCHEMAS_KEPT = 64
# Claude's tokenizers make more of a text than the one that `count_tokens` is after, by half at most.
_MORE_TOKENS = 1.5


class ProviderChannel:
    """Asks one chat model of a provider; the `Channel` of a ChatModelJudge."""

    def __init__(
        self, provider: Provider, chat: BaseChatModel, invoke: Invoke | None = None, *, least_cached: int | None = None
    ) -> None:
        """From `least_cached` tokens on the provider keeps a beginning that is marked; None where none is."""
        self.least_cached = least_cached
        self.takes_seed = "seed" in provider.options
        self._provider = provider
        self._chat = chat
        self._invoke = invoke
        self._schemas: dict[bytes, Mapping[str, Any]] = {}
        self._beginnings: set[int] = set()

    async def invoke(self, messages: list[BaseMessage], payload: Mapping[str, Any]) -> BaseMessage:
        """Send the request; the message then says in OpenAI's words how it ended."""
        names = self._provider.options or _USUAL_OPTIONS
        options: dict[str, Any] = {theirs: payload[ours] for ours, theirs in names.items() if ours in payload}
        if self._provider.options_in and options:
            options = {self._provider.options_in: options}
        if form := payload.get("response_format"):
            if "json_schema" not in form:
                # As an endpoint that takes none would answer: then it is asked in words alone.
                raise StatusError(400, {}, ErrorBody(message="response_format is not supported without a schema"))
            key = orjson.dumps(form["json_schema"])
            if key not in self._schemas:
                if len(self._schemas) >= _SCHEMAS_KEPT:
                    self._schemas.clear()
                self._schemas[key] = _bind_schema(self._chat, form["json_schema"])
            options |= self._schemas[key]
        invoke = self._invoke or (lambda messages, options: self._chat.ainvoke(messages, **options))
        message = await invoke(self._mark_beginning(messages), options)
        metadata = message.response_metadata
        finish, word = read_ending(metadata)
        changes: dict[str, Any] = {"response_metadata": {**metadata, "finish_reason": finish, "ended_with": word}}
        usage, counted = getattr(message, "usage_metadata", None), metadata.get("token_usage") or {}
        if usage and "input_token_details" not in usage and (details := counted.get("prompt_tokens_details")):
            # Mistral's package leaves out what its provider reports in OpenAI's words.
            changes["usage_metadata"] = {**usage, "input_token_details": {"cache_read": details.get("cached_tokens")}}
        return message.model_copy(update=changes)

    def explain(self, error: Exception) -> Exception:
        """The provider's answer behind an error; what its package itself refuses to send counts as refused there."""
        if type(error) is ValueError and "is not supported" in str(error):
            return StatusError(400, {}, ErrorBody(message=str(error)))
        return find_answer(error) or error

    def _mark_beginning(self, messages: list[BaseMessage]) -> list[BaseMessage]:
        """Messages that say how far the provider should keep them: up to the data, which come last.

        To have them kept costs more than to send them, so that what was sent only once, as in a run of one sample, is
        not marked; nor is what is too short to be kept.
        """
        *shared, data = messages
        if self.least_cached is None or not shared:
            return messages
        texts = tuple(str(message.content) for message in shared)
        if hash(texts) not in self._beginnings:
            self._beginnings.add(hash(texts))
            return messages
        if _MORE_TOKENS * sum(map(count_tokens, texts)) < self.least_cached:
            return messages
        block = {"type": "text", "text": texts[-1], "cache_control": {"type": "ephemeral"}}
        return [*shared[:-1], shared[-1].model_copy(update={"content": [block]}), data]


def _bind_schema(chat: BaseChatModel, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = {"title": asked["name"], **asked["schema"]}
    sequence = chat.with_structured_output(schema, method="json_schema")
    first = sequence.first if isinstance(sequence, RunnableSequence) else sequence
    # Some packages make a tool of the schema, whose calls have no text that could stand on record.
    if not isinstance(first, RunnableBinding) or "tools" in first.kwargs:
        raise FatalJudgeError(f"{type(chat).__name__} sends no schema for its replies; another release may")
    return {name: value for name, value in first.kwargs.items() if name != "ls_structured_output_format"}


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A chat model with its address, and how its connections are closed."""

    chat: BaseChatModel
    address: str
    close: Callable[[], Awaitable[None]]
    structured: bool = True
    invoke: Invoke | None = None


class _Make(Protocol):
    def __call__(self, provider: Provider, model: str, key: str, address: str) -> _Made: ...


def make_provider_judge(name: str, provider: Provider, model: str, settings: RunSettings) -> ChatModelJudge:
    """`anthropic:MODEL` and its like; raises FatalJudgeError for a missing package, key or address."""
    address = provider.find_address()
    key = provider.read_key(name, address)
    if provider.name == "azure":
        return make_compatible_judge(name, model, settings, _find_azure(provider, model, key, address))
    provider.require_package(name)
    try:
        made = _MAKERS.get(provider.name, _make_other)(provider, model, key, address)
    except FatalJudgeError:
        raise
    except Exception as error:  # a package of any maker may raise anything
        raise FatalJudgeError(f"{name} cannot be asked: {shorten(redact(str(error)))}") from error
    if settings.reasoning_effort is not None and "reasoning_effort" not in provider.options:
        raise FatalJudgeError(f"{name} has no effort that could be set; leave {name_setting('reasoning_effort')} out")
    for field in provider.unset:
        setattr(made.chat, field, None)
    by_batch = settings.batch and provider.name == "anthropic"
    if by_batch:
        from evalhouse.tasks.models.anthropic_batches import make_invoke  # noqa: PLC0415  # imports the package

        made = replace(made, invoke=make_invoke(made.chat, key=key, address=address))
    # Schemas are what a package binds; JSON of any shape is not among them.
    forms = (
        ["words"] if not made.structured else ["ids", "schema", "words"] if provider.names_ids else ["schema", "words"]
    )
    parameters, voting = read_parameters(settings)
    judge = ChatModelJudge(
        name=name,
        chat=made.chat,
        endpoint=strip_credentials(made.address) if "://" in made.address else made.address,
        model=model,
        parameters=parameters,
        dialect=make_dialect(settings.votes, settings.temperature, forms, max_tokens="max_tokens"),
        voting=voting,
        channel=ProviderChannel(provider, made.chat, made.invoke, least_cached=provider.find_least_cached(model)),
        variables=_name_variables(provider),
        close=made.close,
        window=read_window(made.chat),
    )
    if by_batch:
        import anthropic  # noqa: PLC0415

        from evalhouse.tasks.models.anthropic_batches import AnthropicBatches  # noqa: PLC0415

        client = anthropic.AsyncAnthropic(api_key=key, base_url=address, max_retries=0)
        judge.batches = AnthropicBatches(
            client, reply=judge.reply, translate=lambda error: judge.translate(error, sent={})
        )
    return judge


def _name_variables(provider: Provider) -> Variables:
    keys, addresses = " or ".join(provider.keys or provider.secrets), " or ".join(provider.addresses)
    return Variables(key=keys or f"the key of {provider.name}", address=addresses or f"the address of {provider.name}")


def _init(provider: Provider, model: str, **fields: Any) -> BaseChatModel:  # noqa: ANN401  # each its own
    from langchain.chat_models import init_chat_model  # noqa: PLC0415  # comes with the extra

    chat = init_chat_model(model, model_provider=provider.langchain, **provider.fields, **fields)
    assert isinstance(chat, BaseChatModel)
    return chat


def _make_anthropic(provider: Provider, model: str, key: str, address: str) -> _Made:
    import anthropic  # noqa: PLC0415

    chat = _init(provider, model, api_key=key, base_url=address)
    http_client = anthropic.DefaultAioHttpClient(timeout=None, follow_redirects=False)
    client = anthropic.AsyncAnthropic(
        api_key=key, base_url=address, max_retries=0, timeout=None, http_client=http_client
    )
    # In the place where the model would keep the client that it shares with all others of the process.
    chat.__dict__["_async_client"] = client
    return _Made(chat=chat, address=address, close=client.close)


class _Transport(httpx.AsyncHTTPTransport):
    """One that a blocking client, which is made of the same and never used, can close too."""

    def close(self) -> None:
        """Nothing is open there."""


def _make_google(provider: Provider, model: str, key: str, address: str) -> _Made:
    # Without a transport its client takes aiohttp's answers, of which LangChain leaves one unread at every error, and
    # Python says so on the terminal.
    transport = _Transport(limits=httpx.Limits(max_connections=None))
    chat = _init(provider, model, api_key=key, base_url=address, client_args={"transport": transport})
    return _Made(chat=chat, address=address, close=cast(Any, chat).aclose)


def _make_mistral(provider: Provider, model: str, key: str, address: str) -> _Made:
    client = httpx.AsyncClient(
        base_url=address,
        headers={"Accept": "application/json", "Authorization": f"Bearer {key}"},
        timeout=None,
        limits=httpx.Limits(max_connections=None),
    )
    chat = _init(provider, model, api_key=key, base_url=address, async_client=client)
    return _Made(chat=chat, address=address, close=client.aclose)


def _make_ollama(provider: Provider, model: str, key: str, address: str) -> _Made:
    chat = _init(provider, model, base_url=address or None)
    client = cast(Any, chat)._async_client
    return _Made(chat=chat, address=str(client._client.base_url), close=client.close)


def _make_bedrock(provider: Provider, model: str, key: str, address: str) -> _Made:
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
    patient = Config(
        retries={"total_max_attempts": 1}, connect_timeout=60, read_timeout=3600, max_pool_connections=_CONNECTIONS
    )
    client = session.client("bedrock-runtime", config=patient)
    # Only profiles are looked up by the other client, whose making takes as long as that of the first.
    looked_up = {} if "inference-profile/" in model or "application-" in model else {"bedrock_client": client}
    chat = _init(provider, model, client=client, **looked_up)

    async def close() -> None:
        client.close()

    async def invoke(messages: list[BaseMessage], options: Mapping[str, Any]) -> BaseMessage:
        return await _run_aside(lambda: chat.invoke(messages, **options))

    return _Made(chat=chat, address=client.meta.endpoint_url, close=close, invoke=invoke)


def _make_other(provider: Provider, model: str, key: str, address: str) -> _Made:
    """A provider of which its package alone knows where it is and what its key is called."""
    known = type(_init(provider, model)).model_fields
    fields: dict[str, Any] = {"max_retries": 0} if "max_retries" in known else {}
    client = openai.DefaultAsyncHttpxClient(timeout=None) if "http_async_client" in known else None
    chat = _init(provider, model, **fields, **({"http_async_client": client} if client else {}))

    async def close() -> None:
        if client is not None:
            await client.aclose()

    try:
        _bind_schema(chat, {"name": "reply", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}})
        structured = True
    except (FatalJudgeError, NotImplementedError, ValueError, TypeError):
        structured = False
    own = getattr(getattr(chat, "root_async_client", None), "base_url", None)
    return _Made(chat=chat, address=str(own or f"{provider.name}:"), close=close, structured=structured)


_MAKERS: Mapping[str, _Make] = {
    "anthropic": _make_anthropic,
    "bedrock": _make_bedrock,
    "google_genai": _make_google,
    "mistralai": _make_mistral,
    "ollama": _make_ollama,
}


def _find_azure(provider: Provider, deployment: str, key: str, address: str) -> Access:
    """Azure's two kinds of addresses: of a version that is named, or of none; a token goes where a key would go."""
    if not address:
        raise FatalJudgeError("AZURE_OPENAI_ENDPOINT is not set; set it like https://RESOURCE.openai.azure.com")
    base = strip_credentials(address).removesuffix("/v1").removesuffix("/openai")
    variables = _name_variables(provider)
    version = os.environ.get("OPENAI_API_VERSION")
    if not version:
        return Access(endpoint=f"{base}/openai/v1", key=SecretStr(key), headers={}, variables=variables)
    is_token = not os.environ.get("AZURE_OPENAI_API_KEY")
    return Access(
        endpoint=f"{base}/openai/deployments/{quote(deployment, safe='')}",
        key=SecretStr(key),
        headers={} if is_token else {"api-key": key},
        query={"api-version": version},
        variables=variables,
    )


async def _run_aside(call: Callable[[], BaseMessage]) -> BaseMessage:
    """The result of a call that blocks, in a thread that nobody waits for when the run ends before it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[BaseMessage] = loop.create_future()

    def settle(take: Callable[[Any], None], value: object) -> None:
        if not future.done():
            take(value)

    def work() -> None:
        try:
            outcome: tuple[Callable[[Any], None], object] = (future.set_result, call())
        except Exception as error:  # whatever it is belongs to the caller
            outcome = (future.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, daemon=True, name="bedrock").start()
    return await future
