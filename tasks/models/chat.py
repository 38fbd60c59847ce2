"""Chat models behind the judge protocol: any OpenAI-compatible endpoint, or any LangChain chat model.

This is the one place that knows LangChain and the errors of the `openai` client. A model is made once a run: a new
client for each call costs ten times what the call itself costs here.
"""

import importlib
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import openai
import orjson
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from langsmith.utils import tracing_is_enabled

from evalhouse.tasks.asking.limits import choose_timeout
from evalhouse.tasks.judge.errors import (
    FatalJudgeError,
    JudgeError,
    RefusedRequest,
    UnsupportedOption,
    UnusableReply,
)
from evalhouse.tasks.judge.logprobs import TOP_LOGPROBS, pack_logprobs
from evalhouse.tasks.judge.protocol import (
    BatchService,
    Dropped,
    ModelReply,
    ModelRequest,
    Question,
    hash_canonical,
    parse_count,
    require_prompt,
)
from evalhouse.tasks.models.completions import (
    Access,
    Completion,
    Completions,
    find_access,
    read_answer,
)
from evalhouse.tasks.models.dialect import FORMS, Dialect, part_thoughts, read_blocks, read_text, read_thoughts
from evalhouse.tasks.models.errors import OPENAI_VARIABLES, Variables, translate_error
from evalhouse.tasks.models.openai_batches import OpenAIBatches
from evalhouse.tasks.models.providers import compiles_schemas, is_openai
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.messages import redact, shorten
from evalhouse.warehouse.names import name_setting
from evalhouse.warehouse.steps import REPLY_VERSIONS

_OPTIONS = ("temperature", "max_completion_tokens", "seed", "logprobs", "top_logprobs", "reasoning_effort")
# As extra_body these reach the wire untouched, the last two for a model's chat template. LangChain would write the
# first under its newer name, and parse the reply because of the second, at twice the CPU and without the raw text of a
# reply that does not fit.
_UNTOUCHED = ("max_tokens", "response_format", "documents", "chat_template_kwargs")
_SEEDS_APART = 1000  # between those of votes that are asked for again
_WIRE_ROLES = {"system": "system", "human": "user", "ai": "assistant"}
# What votes, and what is asked a third time, are asked at where the run's own temperature is 0: all would be equal.
_VOTING_TEMPERATURE = 0.7
_LANGCHAIN_KINDS: dict[str, type[BaseMessage]] = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}


# LangChain's names for what the provider put into its cache: in all, or of Anthropic by how long it is kept.
_CACHE_WRITES = ("cache_creation", "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
# What a reply of no use ended with, and how it is said.
_REFUSALS = {
    "refusal": "the model refused to reply",
    "content_filter": "the endpoint's content filter stopped the reply",
}


class Channel(Protocol):
    """How a provider's own chat model is asked, where it is not asked as LangChain asks any other."""

    takes_seed: bool
    least_cached: int | None

    async def invoke(self, messages: list[BaseMessage], payload: Mapping[str, Any]) -> BaseMessage:
        """The reply to a request in our terms; its `finish_reason` is in OpenAI's words."""

    def explain(self, error: Exception) -> Exception:
        """The error with status, headers and message of the provider's answer, where there was one."""


class ChatModelJudge:
    """Asks a LangChain chat model, with a JSON schema for the reply where the endpoint takes one.

    `dialect` writes each request as the endpoint takes it. `parameters` are sent with every request, `voting` replaces
    some of them where a majority is to decide, or the same is asked once more; `keyed` is whatever else may change a
    reply. With `completions` requests go there and not through LangChain, with a `channel` through that. Limits are
    shared by all who ask the same model at `endpoint`. `window` is how many tokens it reads, None where nobody says.
    """

    tasks = None  # a prompt can ask it anything

    def __init__(
        self,
        *,
        name: str,
        chat: BaseChatModel,
        endpoint: str,
        model: str,
        parameters: Mapping[str, object],
        dialect: Dialect,
        voting: Mapping[str, object] | None = None,
        keyed: object = None,
        completions: Completions | None = None,
        channel: Channel | None = None,
        variables: Variables = OPENAI_VARIABLES,
        close: Callable[[], Awaitable[None]] | None = None,
        window: int | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self._chat = chat
        self.endpoint = endpoint
        self._parameters = dict(parameters)
        self._dialect = dialect
        self._voting = dict(voting or {})
        self._takes_seed = channel.takes_seed if channel else isinstance(chat, BaseChatOpenAI)
        self._takes_logprobs = isinstance(chat, BaseChatOpenAI) and not chat.use_responses_api
        self._keyed = keyed
        self._completions = completions
        self._channel = channel
        self._variables = variables
        self._close = close
        self.batches: BatchService | None = None
        self.window = window
        # What tells the model from the first that was known by this name, where it is another one.
        self.other_model: str | None = None
        self.is_known = False  # whether it was found out, or looked up, which model that is

    @property
    def forms(self) -> Sequence[str]:
        """The forms of a reply that can be asked for, from `dialect.FORMS`, less those that were refused."""
        return self._dialect.forms

    @property
    def least_cached(self) -> int:
        """From how many tokens on the provider keeps a beginning that requests share; 0 where that is not known."""
        return self._channel.least_cached or 0 if self._channel else 0

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """What the endpoint has refused so far and is not sent any more, in that order."""
        return tuple(self._dialect.dropped)

    def prepare(self, question: Question) -> ModelRequest:
        """Render the prompt; the key leaves out `note` and what the endpoint refused, for the same thing is asked."""
        prompt = require_prompt(question)
        messages = prompt.render(question.data)
        keyed = [
            self.endpoint, self.model, self._parameters, self._keyed,
            prompt.prompt_hash, REPLY_VERSIONS.get(prompt.name, 1), question.number, question.only,
            messages[-1].content,
        ]  # fmt: skip
        if self.other_model is not None:
            keyed += ["served", self.other_model]
        options = self._parameters
        if question.vote:
            keyed += [question.vote, self._voting]
            options = options | self._voting | ({"seed": question.vote} if self._takes_seed else {})
        if question.n_repeats:
            # At temperature 0 the same words get the same reply, however often it was of no use.
            options = options | self._voting
            options |= {"seed": question.vote + _SEEDS_APART * question.n_repeats} if self._takes_seed else {}
        if question.logprobs:
            keyed += ["logprobs"]
            options = options | ({"logprobs": True, "top_logprobs": TOP_LOGPROBS} if self._takes_logprobs else {})
        messages = prompt.render(question.data, note=question.instruction) if question.instruction else messages
        payload: dict[str, object] = {
            "endpoint": self.endpoint,
            "model": self.model,
            **options,
            "messages": [{"role": _WIRE_ROLES[item.role], "content": item.content} for item in messages],
        }
        names_ids = self._dialect.names_ids
        schema = prompt.build_schema(question.data, question.only) if names_ids else prompt.reply_schema
        payload |= self._dialect.write_form(prompt.name, schema)
        return ModelRequest(request_hash=hash_canonical(keyed), payload=self._dialect.write(payload))

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send the request and return the text of the reply; every failure becomes one of `judge_errors`."""
        try:
            if self._completions is not None:
                completion = await self._completions.post(_shape(request.payload))
                return _read_completion(completion, sent=request.payload)
            messages = [
                _LANGCHAIN_KINDS[message["role"]](content=message["content"])
                for message in cast(Sequence[Mapping[str, str]], request.payload["messages"])
            ]
            if self._channel is not None:
                message = await self._channel.invoke(messages, request.payload)
            else:
                options: dict[str, Any] = {name: request.payload[name] for name in _OPTIONS if name in request.payload}
                untouched = {name: request.payload[name] for name in _UNTOUCHED if name in request.payload}
                if untouched:
                    options["extra_body"] = untouched
                message = await self._chat.ainvoke(messages, **options)
            return _read_message(message, sent=request.payload)
        except JudgeError:
            raise
        except Exception as error:  # a chat model of any maker may raise anything; it becomes one of our errors
            raise self.translate(error, sent=request.payload) from None

    def read_batched(self, status: int, content: bytes, request: ModelRequest) -> ModelReply:
        """The reply in an answer that came by batch; raises as `reply` does."""
        try:
            return _read_completion(read_answer(status, content, {}), sent=request.payload)
        except JudgeError:
            raise
        except Exception as error:  # what is not a completion, as in `reply`
            raise self.translate(error, sent=request.payload) from None

    async def close(self) -> None:
        """Close the HTTP client; that of a factory's model is the factory's own affair."""
        if self._close is not None:
            await self._close()

    def translate(self, error: Exception, *, sent: Mapping[str, object]) -> JudgeError:
        """An error of the provider as one of ours; what it refuses of what was `sent` is left out from now on."""
        error = self._channel.explain(error) if self._channel else error
        translated = translate_error(error, name=self.name, endpoint=self.endpoint, variables=self._variables)
        return self._dialect.note_refusal(translated, sent) if isinstance(translated, UnsupportedOption) else translated


def make_openai_judge(name: str, model: str, settings: RunSettings) -> ChatModelJudge:
    """`openai:MODEL` at OPENAI_BASE_URL with OPENAI_API_KEY; raises FatalJudgeError when no key is set."""
    access = find_access()
    judge = make_compatible_judge(name, model, settings, access)
    if settings.batch:
        client = _make_client(access, settings)
        judge.batches = OpenAIBatches(client, name=name, endpoint=judge.endpoint, shape=_shape, read=judge.read_batched)
    return judge


def make_compatible_judge(name: str, model: str, settings: RunSettings, access: Access) -> ChatModelJudge:
    """A model of any endpoint that speaks OpenAI's protocol."""
    parameters, voting = read_parameters(settings)
    # LangSmith's traces are made by LangChain: who has switched them on gets its longer way, with a client of our own,
    # for the one that LangChain would make is shared by all of the process and never closed.
    traced = openai.DefaultAsyncHttpxClient() if tracing_is_enabled() else None
    chat = ChatOpenAI(
        model=model,
        api_key=access.key,
        base_url=access.endpoint,
        default_headers=access.headers,
        default_query=access.query,
        http_async_client=traced,
        http_socket_options=(),  # leaves a proxy of the environment in force, and does not warn about it
    )
    if "api-key" in access.headers:
        # The key has a header of its own there, and must not stand in the usual one as well.
        client = chat.root_async_client.with_options(default_headers=cast(Any, {"Authorization": openai.Omit()}))
        chat.root_async_client, chat.async_client = client, client.chat.completions
    completions = None if traced else Completions(chat.root_async_client)
    return ChatModelJudge(
        name=name,
        chat=chat,
        endpoint=access.endpoint,
        model=model,
        parameters=parameters,
        dialect=make_dialect(
            settings.votes, settings.temperature, FORMS[1:] if compiles_schemas(access.endpoint) else FORMS
        ),
        voting=voting,
        completions=completions,
        variables=access.variables,
        close=chat.root_async_client.close if completions is None else completions.close,
        # At another address another model may bear the name, as a deployment may at Azure.
        window=read_window(chat) if is_openai(access.endpoint) else None,
    )


def _make_client(access: Access, settings: RunSettings) -> openai.AsyncOpenAI:
    """A client for whatever is not a judge's request."""
    return openai.AsyncOpenAI(
        api_key=access.key.get_secret_value(),
        base_url=access.endpoint,
        default_headers=access.headers,
        max_retries=0,
        timeout=choose_timeout(settings.timeout_s, ""),
    )


def read_window(chat: BaseChatModel) -> int | None:
    """How many tokens a model reads at once, as LangChain's package for its provider has it; None where it does not."""
    return (chat.profile or {}).get("max_input_tokens") or None


async def list_models(settings: RunSettings) -> list[str]:
    """The models an OpenAI-compatible endpoint says it has; raises JudgeError."""
    access = find_access()
    client = _make_client(access, settings)
    try:
        return [model.id for model in (await client.models.list()).data]
    except openai.OpenAIError as error:
        raise translate_error(error, name=settings.judge, endpoint=access.endpoint) from None
    finally:
        await client.close()


def make_factory_judge(name: str, settings: RunSettings) -> ChatModelJudge:
    """`module:factory`: whatever LangChain chat model the factory returns."""
    chat = call_factory(name)
    if not isinstance(chat, BaseChatModel):
        raise FatalJudgeError(
            f"{name} returned a {type(chat).__name__}; a judge's factory returns a LangChain chat model"
        )
    temperature, is_openai = getattr(chat, "temperature", None), isinstance(chat, BaseChatOpenAI)
    heat = temperature if is_openai else None
    is_schema_taken = is_openai and not getattr(chat, "use_responses_api", None)
    if settings.votes > 1 and temperature == 0 and not is_openai:
        raise FatalJudgeError(f"{name} returned a model of temperature 0, whose votes would all be equal; raise it")
    if settings.reasoning_effort is not None and "reasoning_effort" not in type(chat).model_fields:
        raise FatalJudgeError(
            f"{name} returned a {type(chat).__name__}, which has no reasoning_effort; set what it has in the factory, "
            f"and leave {name_setting('reasoning_effort')} out"
        )
    model = str(getattr(chat, "model_name", None) or getattr(chat, "model", None) or type(chat).__name__)
    # What the factory chose (temperature, address, …) is part of the key, for it may change a reply. LangChain's
    # identifying parameters hold no secrets. What is not a plain value counts by its type: an object's text would have
    # its address in it, and nothing on record would ever be found again.
    address = getattr(getattr(chat, "root_async_client", None), "base_url", None)
    chosen = orjson.dumps(
        [type(chat).__qualname__, str(address), dict(chat._identifying_params)],
        default=lambda value: type(value).__qualname__,
        option=orjson.OPT_NON_STR_KEYS,
    )
    return ChatModelJudge(
        name=name,
        chat=chat,
        endpoint=name,
        model=model,
        parameters={} if settings.reasoning_effort is None else {"reasoning_effort": settings.reasoning_effort},
        dialect=make_dialect(settings.votes, heat, FORMS[1:] if is_schema_taken else FORMS[-1:]),
        voting=_heat(heat),
        keyed=hash_canonical(orjson.loads(chosen)),
    )


def read_parameters(settings: RunSettings) -> tuple[dict[str, object], dict[str, object]]:
    """What the settings send with every request, and what of it a vote replaces."""
    set_here = {
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "reasoning_effort": settings.reasoning_effort,
    }
    return {name: value for name, value in set_here.items() if value is not None}, _heat(settings.temperature)


def _heat(temperature: float | None) -> dict[str, object]:
    """What is sent for votes in place of the run's temperature: at 0 they would all be equal."""
    return {"temperature": _VOTING_TEMPERATURE} if temperature == 0 else {}


def make_dialect(
    votes: int, temperature: float | None, forms: Sequence[str], max_tokens: str = "max_completion_tokens"
) -> Dialect:
    """How an endpoint is first asked: by the forms that it may know, with its own name for the limit of a reply."""
    needs = (
        f"votes are asked at {_VOTING_TEMPERATURE:g} where the run's own temperature is 0, since all would be equal "
        "there; leave the temperature out, or take one vote"
    )
    heats = votes > 1 and bool(_heat(temperature))
    return Dialect(forms=tuple(forms), max_tokens=max_tokens, needs_temperature=needs if heats else None)


def call_factory(name: str) -> object:
    """Import `module`, call `factory` without arguments; raises FatalJudgeError that says what is missing.

    The working directory is searched last, so that a file there cannot take the place of an installed module.
    """
    module_name, _, factory_name = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise FatalJudgeError(f"cannot import {module_name!r} for {name!r}: {error}") from None
    factory = getattr(module, factory_name, None)
    if not callable(factory):
        raise FatalJudgeError(f"module {module_name!r} has no function {factory_name!r} (asked for by {name!r})")
    try:
        return cast(object, factory())
    except Exception as error:  # a factory of any maker may raise anything
        raise FatalJudgeError(f"{name} failed with {type(error).__name__}: {shorten(redact(str(error)))}") from error


def _shape(payload: Mapping[str, object]) -> dict[str, object]:
    """What goes over the wire: all that is on record but for the address."""
    return {name: value for name, value in payload.items() if name != "endpoint"}


def _read_completion(completion: Completion, *, sent: Mapping[str, object]) -> ModelReply:
    """The text and counts of a completion. What was cached of a prompt has two names among providers."""
    body, choice = completion.body, completion.first
    message, usage = _read_mapping(choice.get("message")), _read_mapping(body.get("usage"))
    details, model = _read_mapping(usage.get("prompt_tokens_details")), body.get("model")
    spoken = part_thoughts(read_text(message.get("content")), read_thoughts(message))
    reply = ModelReply(
        text=spoken.text,
        thoughts=spoken.thoughts,
        model=model if isinstance(model, str) else None,
        prompt_tokens=parse_count(usage.get("prompt_tokens")),
        completion_tokens=parse_count(usage.get("completion_tokens")),
        cached_tokens=parse_count(details.get("cached_tokens", usage.get("prompt_cache_hit_tokens"))),
        logprobs=pack_logprobs(choice.get("logprobs"), spoken.text) if "logprobs" in sent else None,
    )
    return _check_ending(reply, choice.get("finish_reason"), message)


def _read_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _read_message(message: BaseMessage, *, sent: Mapping[str, object]) -> ModelReply:
    """The text and counts of a reply that came through LangChain."""
    metadata = message.response_metadata
    usage = getattr(message, "usage_metadata", None) or {}
    details = usage.get("input_token_details") or {}
    apart = read_thoughts(message.additional_kwargs)
    if isinstance(message.content, list):
        apart = apart or read_blocks(message.content_blocks)  # in LangChain's own shape, whoever made it
    spoken = part_thoughts(str(message.text), apart)
    reply = ModelReply(
        text=spoken.text,
        thoughts=spoken.thoughts,
        model=metadata.get("model_name"),
        prompt_tokens=parse_count(usage.get("input_tokens")),
        completion_tokens=parse_count(usage.get("output_tokens")),
        cached_tokens=parse_count(details.get("cache_read")),
        written_tokens=sum(parse_count(details.get(name)) or 0 for name in _CACHE_WRITES),
        logprobs=pack_logprobs(metadata.get("logprobs"), spoken.text) if "logprobs" in sent else None,
    )
    ended_with = metadata.get("ended_with", "")
    return _check_ending(reply, metadata.get("finish_reason"), message.additional_kwargs, ended_with=ended_with)


def _check_ending(reply: ModelReply, finish: object, message: Mapping[str, Any], *, ended_with: str = "") -> ModelReply:
    """The reply, unless it was refused, filtered or broken off: then that is raised, with what was paid for."""
    if refusal := message.get("refusal"):
        raise RefusedRequest(f"the model refused: {shorten(str(refusal))}", reply=replace(reply, text=str(refusal)))
    if isinstance(finish, str) and finish in _REFUSALS:
        raise RefusedRequest(f"{_REFUSALS[finish]}{ended_with and f' ({ended_with})'}", reply=reply)
    if finish == "error":
        raise UnusableReply("the endpoint broke the reply off with an error", reply=reply)
    is_cut = finish == "length"
    if reply.thoughts and not reply.text.strip() and not is_cut:
        # They hold drafts of a reply at best, so nothing is read from them.
        raise UnusableReply("the reply was empty: the model said everything in its thoughts", reply=reply)
    return replace(reply, is_cut=is_cut)
