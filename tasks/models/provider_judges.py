"""Judges of providers by name: LangChain's chat model of the provider, asked in our terms.

LangChain's packages write the request in the provider's words, its schema among them; what goes in and what comes out
is brought to the shape of the other judges here, so that the call path knows no provider. A model is made once a run,
with an HTTP client of its own that is closed at the end: those that the packages keep for all of a process belong to
the event loop of whoever came first. Their retries are off and they wait as long as they are let, for both are the
run's affair.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import orjson
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableBinding, RunnableSequence

from evalhouse.tasks.judge.errors import FatalJudgeError
from evalhouse.tasks.messages import redact, shorten
from evalhouse.tasks.models.chat import ChatModelJudge, read_parameters
from evalhouse.tasks.models.completions import strip_credentials
from evalhouse.tasks.models.errors import Variables
from evalhouse.tasks.models.provider_errors import find_answer
from evalhouse.tasks.models.providers import Provider, read_ending
from evalhouse.tasks.settings.run import RunSettings

# Schemas of prompts and rubrics in a provider's words; more only come where each request names its ids.
_SCHEMAS_KEPT = 64
# The headers of the answer to the request that is under way in this task, where the client shows them.
_HEADERS: ContextVar[dict[str, str] | None] = ContextVar("_HEADERS", default=None)


class ProviderChannel:
    """Asks one chat model of a provider; the `Channel` of a ChatModelJudge."""

    def __init__(self, provider: Provider, chat: BaseChatModel) -> None:
        self.provider = provider
        self.takes_seed = "seed" in provider.options
        self.variables = Variables(
            key=" or ".join(provider.keys) or "its key", address=" or ".join(provider.addresses) or "its address"
        )
        self._chat = chat
        self._schemas: dict[bytes, Mapping[str, Any]] = {}

    async def invoke(self, messages: list[BaseMessage], payload: Mapping[str, Any]) -> BaseMessage:
        """Send the request; what came back says how it ended in OpenAI's words, and has the answer's headers."""
        options = self._write_options(payload)
        if "response_format" in payload:
            options |= self._write_schema(payload["response_format"]["json_schema"])
        headers: dict[str, str] = {}
        token = _HEADERS.set(headers)
        try:
            message = await self._chat.ainvoke(messages, **options)
        finally:
            _HEADERS.reset(token)
        return _settle(message, headers)

    def explain(self, error: Exception) -> Exception:
        """The provider's answer behind an error, where there was one."""
        return find_answer(error) or error

    def _write_options(self, payload: Mapping[str, Any]) -> dict[str, Any]:
        names = self.provider.options
        options = {theirs: payload[ours] for ours, theirs in names.items() if ours in payload}
        return {self.provider.options_in: options} if self.provider.options_in and options else options

    def _write_schema(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """The options that carry a schema, as the package itself would bind them to have one replied to."""
        key = orjson.dumps(asked)
        if key not in self._schemas:
            if len(self._schemas) >= _SCHEMAS_KEPT:
                self._schemas.clear()
            self._schemas[key] = _bind_schema(self._chat, asked)
        return self._schemas[key]


def _bind_schema(chat: BaseChatModel, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = {"title": asked["name"], **asked["schema"]}
    sequence = chat.with_structured_output(schema, method="json_schema")
    first = sequence.first if isinstance(sequence, RunnableSequence) else sequence
    if not isinstance(first, RunnableBinding):
        raise FatalJudgeError(f"{type(chat).__name__} binds no schema; install the versions of requirements.lock")
    return {name: value for name, value in first.kwargs.items() if name != "ls_structured_output_format"}


def _settle(message: BaseMessage, headers: Mapping[str, str]) -> BaseMessage:
    metadata = message.response_metadata
    finish, word = read_ending(metadata)
    sent = headers or (metadata.get("ResponseMetadata") or {}).get("HTTPHeaders") or metadata.get("headers") or {}
    settled = {"finish_reason": finish, "ended_with": word, "headers": sent}
    return message.model_copy(update={"response_metadata": {**metadata, **settled}})


async def _keep_headers(response: Any) -> None:  # noqa: ANN401  # of httpx or of its fork
    headers = _HEADERS.get()
    if headers is not None:
        headers.update(response.headers)


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A chat model with its address, and how its connections are closed."""

    chat: BaseChatModel
    address: str
    close: Callable[[], Awaitable[None]]


class _Make(Protocol):
    def __call__(self, provider: Provider, model: str, key: str, address: str) -> _Made: ...


def make_provider_judge(name: str, provider: Provider, model: str, settings: RunSettings) -> ChatModelJudge:
    """`anthropic:MODEL` and its like; raises FatalJudgeError for a missing package, key or address."""
    provider.require_package(name)
    address = provider.find_address()
    key = provider.read_key(name, address)
    try:
        made = _MAKERS[provider.name](provider, model, key, address)
    except FatalJudgeError:
        raise
    except Exception as error:  # a package of any maker may raise anything
        raise FatalJudgeError(f"{name} cannot be made: {shorten(redact(str(error)))}") from error
    for field in provider.unset:
        setattr(made.chat, field, None)
    parameters, voting = read_parameters(settings)
    return ChatModelJudge(
        name=name,
        chat=made.chat,
        endpoint=strip_credentials(made.address),
        model=model,
        parameters=parameters,
        structured=True,
        names_ids=provider.names_ids,
        voting=voting,
        channel=ProviderChannel(provider, made.chat),
        close=made.close,
    )


def _init(provider: Provider, model: str, **fields: Any) -> BaseChatModel:  # noqa: ANN401  # each its own
    from langchain.chat_models import init_chat_model  # noqa: PLC0415  # comes with the extra

    chat = init_chat_model(model, model_provider=provider.langchain, **provider.fields, **fields)
    assert isinstance(chat, BaseChatModel)
    return chat


def _make_anthropic(provider: Provider, model: str, key: str, address: str) -> _Made:
    import anthropic  # noqa: PLC0415

    chat = _init(provider, model, api_key=key, base_url=address)
    client = anthropic.AsyncAnthropic(
        api_key=key,
        base_url=address,
        max_retries=0,
        timeout=None,
        http_client=anthropic.DefaultAioHttpClient(
            timeout=None, follow_redirects=False, event_hooks={"response": [_keep_headers]}
        ),
    )
    # In the place where the model would keep the client that it shares with all others of the process.
    chat.__dict__["_async_client"] = client
    return _Made(chat=chat, address=address, close=client.close)


_MAKERS: Mapping[str, _Make] = {"anthropic": _make_anthropic}
