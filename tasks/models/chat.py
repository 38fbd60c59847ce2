"""Chat models behind the judge protocol: any OpenAI-compatible endpoint, or any LangChain chat model.

A model is made once a run: a new client for each call costs ten times what the call itself costs here.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol, cast

import openai
import orjson
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI
from langsmith.utils import tracing_is_enabled
from openai.types import Batch

from evalhouse.tasks.asking.batches import BatchLimits, BatchLine, BatchService, BatchState, describe_lost
from evalhouse.tasks.datasets.thoughts import find_thoughts, join_parts, split_reply
from evalhouse.tasks.judge.protocol import (
    FatalJudgeError,
    JudgeError,
    ModelReply,
    ModelRequest,
    Question,
    RefusedRequest,
    UnsupportedOption,
    UnsupportedParameter,
    UnusableReply,
    choose_timeout,
    hash_canonical,
    parse_count,
    require_prompt,
)
from evalhouse.tasks.measures.expected_ratings import TOP_LOGPROBS, pack_logprobs
from evalhouse.tasks.models.dialect import FORMS, Dialect, translate_error
from evalhouse.tasks.models.openai_api import Completion, Endpoint, open_endpoint, parse_answer, read_answer
from evalhouse.tasks.models.providers import (
    OPENAI_VARIABLES,
    Access,
    Variables,
    call_factory,
    compiles_schemas,
    find_access,
    is_openai,
)
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.messages import name_setting, shorten
from evalhouse.warehouse.steps import REPLY_VERSIONS

_OPTIONS = ("temperature", "max_completion_tokens", "seed", "logprobs", "top_logprobs", "reasoning_effort")
# As extra_body these reach the wire untouched, the last two for a model's chat template. LangChain would write the
# first under its newer name, and parse the reply because of the second, at twice the CPU and without the raw text of a
# reply that does not fit.
_UNTOUCHED = ("max_tokens", "response_format", "documents", "chat_template_kwargs")
_SEEDS_APART = 1000  # between the seeds of votes that are asked for again
_WIRE_ROLES = {"system": "system", "human": "user", "ai": "assistant"}
_LANGCHAIN_KINDS: dict[str, type[BaseMessage]] = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}
# The temperature of votes and third attempts where the run's own is 0: all replies would be equal.
_VOTING: Final[Mapping[str, object]] = {"temperature": 0.7}
# LangChain's names for the tokens that the provider put into its cache: in all, or Anthropic's by how long it is kept.
_CACHE_WRITES = ("cache_creation", "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
# The endings of a reply without a verdict, and the messages for them.
_REFUSALS = {
    "refusal": "the model refused to reply",
    "content_filter": "the endpoint's content filter stopped the reply",
}


class Channel(Protocol):
    """The requests to a provider's own chat model, where they differ from those to any other LangChain model."""

    takes_seed: bool
    min_cached: int | None

    async def invoke(self, messages: list[BaseMessage], payload: Mapping[str, Any]) -> BaseMessage:
        """Return the reply to a request in our terms; its `finish_reason` is in OpenAI's words."""

    def explain(self, error: Exception) -> Exception:
        """Return the error with status, headers and message of the provider's answer, if there was one."""


class ChatModelJudge:
    """Asks a LangChain chat model, with a JSON schema for the reply where the endpoint supports one.

    `dialect` writes each request as the endpoint takes it. `parameters` are sent with every request, `voting` replaces
    some of them for votes and repeated questions; `keyed` is anything else that may change a reply. With `completions`
    requests go there and not through LangChain, with a `channel` through that. Limits are shared by all judges of the
    same model at `endpoint`. `window` is the model's context window in tokens, None if it is unknown.
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
        completions: Endpoint | None = None,
        channel: Channel | None = None,
        variables: Variables = OPENAI_VARIABLES,
        close: Callable[[], Awaitable[None]] | None = None,
        window: int | None = None,
    ) -> None:
        self.name = name
        self.model = model
        self.endpoint = endpoint
        self.window = window
        self.batches: BatchService | None = None
        self.other_model: str | None = None  # the identity of the model, if it is not the first one of this name
        self.is_known = False  # whether that identity was looked up
        self._chat = chat
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

    @property
    def forms(self) -> Sequence[str]:
        """The forms of a reply that can be asked for, from `dialect.FORMS`, without the refused ones."""
        return self._dialect.forms

    @property
    def min_cached(self) -> int:
        """The tokens from which the provider caches a beginning that requests share; 0 if that is not known."""
        return self._channel.min_cached or 0 if self._channel else 0

    @property
    def dropped(self) -> tuple[UnsupportedParameter, ...]:
        """The options that the endpoint refused and is not sent any more, in that order."""
        return tuple(self._dialect.dropped)

    def prepare(self, question: Question) -> ModelRequest:
        """Return the request; its key leaves out the note and refused options, for the question stays the same."""
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
            # At temperature 0 the same words get the same reply, however often it could not be used.
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
        form = self._dialect.forms[0]
        if form in ("ids", "schema"):
            schema = prompt.build_schema(question.data, question.only) if form == "ids" else prompt.reply_schema
            described = {"name": prompt.name, "strict": True, "schema": dict(schema)}
            payload["response_format"] = {"type": "json_schema", "json_schema": described}
        elif form == "json_object":
            payload["response_format"] = {"type": "json_object"}
        return ModelRequest(request_hash=hash_canonical(keyed), payload=self._dialect.write(payload))

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send the request and return the text of the reply; every failure becomes a JudgeError."""
        try:
            if (endpoint := self._completions) is not None:
                body = orjson.dumps(_shape(request.payload))
                answer = await endpoint.session.send("POST", endpoint.url, content=body, headers=endpoint.headers)
                return _parse_completion(await read_answer(answer), sent=request.payload)
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
            metadata = message.response_metadata
            usage = getattr(message, "usage_metadata", None) or {}
            details = usage.get("input_token_details") or {}
            apart = find_thoughts(message.additional_kwargs)
            if isinstance(message.content, list):
                apart = apart or find_thoughts({"content": message.content_blocks})  # in LangChain's own shape
            spoken = split_reply(str(message.text), apart)
            reply = ModelReply(
                text=spoken.text,
                thoughts=spoken.thoughts,
                model=metadata.get("model_name"),
                prompt_tokens=parse_count(usage.get("input_tokens")),
                completion_tokens=parse_count(usage.get("output_tokens")),
                cached_tokens=parse_count(details.get("cache_read")),
                written_tokens=sum(parse_count(details.get(name)) or 0 for name in _CACHE_WRITES),
                logprobs=pack_logprobs(metadata.get("logprobs"), spoken.text)
                if "logprobs" in request.payload
                else None,
            )
            ended_with = metadata.get("ended_with", "")
            return _check_ending(reply, metadata.get("finish_reason"), message.additional_kwargs, ended_with=ended_with)
        except JudgeError:
            raise
        except Exception as error:  # a chat model of any maker may raise anything; it becomes one of our errors
            raise self.translate(error, sent=request.payload) from None

    async def close(self) -> None:
        """Close the HTTP client; a factory's model keeps its own."""
        if self._close is not None:
            await self._close()

    def translate(self, error: Exception, *, sent: Mapping[str, object]) -> JudgeError:
        """Return an error of the provider as a JudgeError; a refused option of the `sent` ones is left out from now."""
        error = self._channel.explain(error) if self._channel else error
        translated = translate_error(error, name=self.name, endpoint=self.endpoint, variables=self._variables)
        return self._dialect.note_refusal(translated, sent) if isinstance(translated, UnsupportedOption) else translated


def _shape(payload: Mapping[str, object]) -> dict[str, object]:
    """Return the body of a request: all that is recorded of it but the address."""
    return {name: value for name, value in payload.items() if name != "endpoint"}


def _parse_completion(completion: Completion, *, sent: Mapping[str, object]) -> ModelReply:
    """Return the text and counts of a completion. Cached tokens of a prompt have two names among providers."""

    def open_member(members: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        value = members.get(name)
        return value if isinstance(value, dict) else {}

    body, choice = completion.body, completion.first
    message, usage = open_member(choice, "message"), open_member(body, "usage")
    details, model = open_member(usage, "prompt_tokens_details"), body.get("model")
    spoken = split_reply(join_parts(message.get("content")), find_thoughts(message))
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


def _check_ending(reply: ModelReply, finish: object, message: Mapping[str, Any], *, ended_with: str = "") -> ModelReply:
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


# --- making a judge


def make_openai_judge(name: str, model: str, settings: RunSettings) -> ChatModelJudge:
    """Return `openai:MODEL` at OPENAI_BASE_URL with OPENAI_API_KEY; raises FatalJudgeError when no key is set."""
    access = find_access()
    judge = make_compatible_judge(name, model, settings, access)
    if settings.batch:
        judge.batches = OpenAIBatches(_make_client(access, settings), judge)
    return judge


def make_compatible_judge(name: str, model: str, settings: RunSettings, access: Access) -> ChatModelJudge:
    """Return a model of any endpoint with OpenAI's protocol."""
    parameters, voting = choose_parameters(settings)
    # LangChain makes LangSmith's traces: a user who has enabled them gets its slower way, with a separate client, for
    # LangChain's own is shared by the whole process and never closed.
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
        # The key has a separate header there, and must not be in the usual one as well.
        client = chat.root_async_client.with_options(default_headers=cast(Any, {"Authorization": openai.Omit()}))
        chat.root_async_client, chat.async_client = client, client.chat.completions
    completions = None if traced else open_endpoint(chat.root_async_client, "/chat/completions")
    forms = FORMS[1:] if compiles_schemas(access.endpoint) else FORMS
    return ChatModelJudge(
        name=name,
        chat=chat,
        endpoint=access.endpoint,
        model=model,
        parameters=parameters,
        dialect=make_dialect(settings.votes, voting, forms),
        voting=voting,
        completions=completions,
        variables=access.variables,
        close=chat.root_async_client.close if completions is None else completions.session.close,
        # At another address another model may have the name, as a deployment may at Azure.
        window=find_model_window(chat) if is_openai(access.endpoint) else None,
    )


def _make_client(access: Access, settings: RunSettings) -> openai.AsyncOpenAI:
    """Return a client for requests that no judge sends."""
    return openai.AsyncOpenAI(
        api_key=access.key.get_secret_value(),
        base_url=access.endpoint,
        default_headers=access.headers,
        max_retries=0,
        timeout=choose_timeout(settings.timeout_s, ""),
    )


async def list_models(settings: RunSettings) -> list[str]:
    """Return the models that an OpenAI-compatible endpoint lists; raises JudgeError."""
    access = find_access()
    client = _make_client(access, settings)
    try:
        return [model.id for model in (await client.models.list()).data]
    except openai.OpenAIError as error:
        raise translate_error(error, name=settings.judge, endpoint=access.endpoint) from None
    finally:
        await client.close()


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
    voting = _VOTING if temperature == 0 and is_chat_openai else {}
    takes_schemas = is_chat_openai and not getattr(chat, "use_responses_api", None)
    model = str(getattr(chat, "model_name", None) or getattr(chat, "model", None) or type(chat).__name__)
    # The factory's choices (temperature, address, …) are part of the key, for they may change a reply. LangChain's
    # identifying parameters hold no secrets. A value that is not plain counts by its type: an object's text would have
    # its address in it, and no recorded reply would ever be found again.
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
        dialect=make_dialect(settings.votes, voting, FORMS[1:] if takes_schemas else FORMS[-1:]),
        voting=voting,
        keyed=hash_canonical(orjson.loads(chosen)),
    )


def choose_parameters(settings: RunSettings) -> tuple[dict[str, object], Mapping[str, object]]:
    """Return the parameters of every request, and the replacements for a vote."""
    chosen = {
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "reasoning_effort": settings.reasoning_effort,
    }
    return {name: value for name, value in chosen.items() if value is not None}, (
        _VOTING if settings.temperature == 0 else {}
    )


def make_dialect(
    votes: int, voting: Mapping[str, object], forms: Sequence[str], max_tokens: str = "max_completion_tokens"
) -> Dialect:
    """Return the dialect of the first requests: the forms that may be supported, the name for the reply's limit."""
    needs = (
        f"votes are asked at {_VOTING['temperature']:g} where the run's own temperature is 0, since all would be equal "
        "there; leave the temperature out, or take one vote"
    )
    return Dialect(forms=tuple(forms), max_tokens=max_tokens, needs_temperature=needs if votes > 1 and voting else None)


def find_model_window(chat: BaseChatModel) -> int | None:
    """Return a model's context window in tokens, as LangChain's package for its provider has it; None if unknown."""
    return (chat.profile or {}).get("max_input_tokens") or None


# --- OpenAI's batches

_BATCH_PATH: Final = "/v1/chat/completions"
_BATCH_OVER = ("completed", "failed", "expired", "cancelled")
_BATCH_TAG = "evalhouse_batch"
_TRANSFER_S = 600.0
# The codes of lines for requests that were in the file and never asked.
_NOT_ASKED = ("batch_expired", "batch_cancelled")
# OpenAI limits the tokens of a model that wait in all batches together.
_TOO_MUCH = ("token_limit_exceeded", "request_limit_exceeded")
_CREATED_BEFORE_S = 3600


class OpenAIBatches:
    """Batches of chat completions: a file of requests is uploaded, and the answers come as two further files.

    The first of these has the answers, the second the requests that were refused or not asked in time. Requests and
    answers have the shapes that the judge sends and reads by itself.
    """

    limits = BatchLimits(requests=50_000, size=200_000_000)

    def __init__(self, client: openai.AsyncOpenAI, judge: ChatModelJudge) -> None:
        self._client, self._judge = client, judge

    def write_line(self, custom_id: str, request: ModelRequest) -> bytes:
        """Return a request as a line of a batch's file."""
        body = _shape(request.payload)
        return orjson.dumps({"custom_id": custom_id, "method": "POST", "url": _BATCH_PATH, "body": body}) + b"\n"

    def read_line(self, line: BatchLine, request: ModelRequest) -> ModelReply:
        """Return the reply in a line of the results; raises as the judge's `reply` does."""
        try:
            return _parse_completion(parse_answer(line.status or 500, line.body, {}), sent=request.payload)
        except JudgeError:
            raise
        except Exception as error:  # no completion, as in `reply`
            raise self._judge.translate(error, sent=request.payload) from None

    async def create(self, file: Path, tag: str) -> BatchState:
        """Upload the file and make a batch of it."""
        with self._translated(), file.open("rb") as opened:
            upload = (f"{tag}.jsonl", opened, "application/jsonl")
            uploaded = await self._client.files.create(file=upload, purpose="batch", timeout=_TRANSFER_S)
            created = await self._client.batches.create(
                completion_window="24h", endpoint=_BATCH_PATH, input_file_id=uploaded.id, metadata={_BATCH_TAG: tag}
            )
        return self._describe(created)

    async def find(self, tag: str, *, since: float, custom_ids: Collection[str]) -> BatchState | None:
        """Return the batch with this tag, searching the newest ones back to `since`."""
        with self._translated():
            async for batch in self._client.batches.list(limit=100):
                if (batch.metadata or {}).get(_BATCH_TAG) == tag:
                    return self._describe(batch)
                if batch.created_at < since - _CREATED_BEFORE_S:
                    break
        return None

    async def look(self, provider_id: str) -> BatchState:
        """Return the state of a batch; one that the endpoint no longer has is over."""
        with self._translated(), suppress(openai.NotFoundError):
            return self._describe(await self._client.batches.retrieve(provider_id))
        return describe_lost(provider_id)

    async def fetch(self, provider_id: str) -> AsyncIterator[BatchLine]:
        """Yield the lines of both files; a file that is gone has none, and an invalid line counts as not asked."""
        with self._translated(), suppress(openai.NotFoundError):
            batch = await self._client.batches.retrieve(provider_id)
            for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
                content = self._client.files.with_streaming_response.content(file_id, timeout=_TRANSFER_S)
                async with content as response:
                    async for text in response.iter_lines():
                        try:
                            row: Any = orjson.loads(text)
                            custom_id, answer, error = str(row["custom_id"]), row.get("response"), row.get("error")
                        except (orjson.JSONDecodeError, LookupError, AttributeError, TypeError):
                            continue
                        code = error.get("code") if isinstance(error, dict) else None
                        if isinstance(answer, dict):
                            status, body = answer.get("status_code"), orjson.dumps(answer.get("body"))
                            status = status if isinstance(status, int) else 500
                            yield BatchLine(custom_id=custom_id, status=status, body=body)
                        elif code in _NOT_ASKED:
                            yield BatchLine(custom_id=custom_id, status=None)
                        else:
                            yield BatchLine(custom_id=custom_id, status=500, body=orjson.dumps({"error": error}))

    async def cancel(self, provider_id: str) -> None:
        """End a batch soon; one that is over stays unchanged."""
        with self._translated(), suppress(openai.BadRequestError, openai.ConflictError, openai.NotFoundError):
            await self._client.batches.cancel(provider_id)

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise the client's errors as ours."""
        endpoint, name = self._judge.endpoint, self._judge.name
        try:
            yield
        except openai.NotFoundError as error:
            raise FatalJudgeError(
                f"{endpoint} has no batches for {name} (status 404): {shorten(error.message)}; "
                f"leave {name_setting('batch')} out, or check OPENAI_BASE_URL"
            ) from None
        except openai.OpenAIError as error:
            raise translate_error(error, name=name, endpoint=endpoint) from None

    def _describe(self, batch: Batch) -> BatchState:
        counts = batch.request_counts
        problem, is_too_much = None, False
        if batch.status == "failed":
            errors = (batch.errors.data if batch.errors else None) or []
            reasons = "; ".join(dict.fromkeys(error.message or error.code or "" for error in errors))
            is_too_much = any(error.code in _TOO_MUCH for error in errors)
            problem = FatalJudgeError(
                f"{self._judge.endpoint} did not take the batch {batch.id}: {shorten(reasons or 'no reason given')}"
            )
        return BatchState(
            provider_id=batch.id,
            status=batch.status,
            is_over=batch.status in _BATCH_OVER,
            n_done=counts.completed + counts.failed if counts else 0,
            problem=problem,
            is_too_much=is_too_much,
        )
