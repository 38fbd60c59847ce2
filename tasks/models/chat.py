"""Chat models behind the judge protocol: any OpenAI-compatible endpoint, or any LangChain chat model.

A model is made once a run: a new client for each call costs ten times what the call itself costs here. LangChain is
imported only where it is asked.
"""

import os
import runpy
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol

from pydantic import SecretStr

from evalhouse.tasks.asking.batches import BatchService
from evalhouse.tasks.judge.protocol import (
    JudgeError,
    JudgeFailed,
    ModelReply,
    ModelRequest,
    Question,
    UnsupportedOption,
    UnsupportedParameter,
    hash_canonical,
    require_prompt,
)
from evalhouse.tasks.measures.expected_ratings import TOP_LOGPROBS
from evalhouse.tasks.models.dialect import FORMS, Dialect, translate_error
from evalhouse.tasks.models.openai_api import CompletionsChannel, open_endpoint
from evalhouse.tasks.models.providers import (
    OPENAI_VARIABLES,
    Access,
    Variables,
    compiles_schemas,
    find_access,
    is_openai,
)
from evalhouse.tasks.settings.run import RunSettings
from evalhouse.warehouse.messages import describe_error
from evalhouse.warehouse.steps import REPLY_VERSIONS

_SEEDS_APART = 1000  # between the seeds of votes that are asked for again
_WIRE_ROLES = {"system": "system", "human": "user", "ai": "assistant"}
# The temperature of votes and third attempts where the run's own is 0: all replies would be equal.
VOTING: Final[Mapping[str, object]] = {"temperature": 0.7}


class Channel(Protocol):
    """The requests to one chat model.

    It takes a seed and log-probabilities or not, and caches marked beginnings from `min_cached` tokens on, None for no
    marks.
    """

    takes_seed: bool
    takes_logprobs: bool
    min_cached: int | None

    async def reply(self, payload: Mapping[str, object]) -> ModelReply:
        """Send the request and return the reply; raises any error."""

    def explain(self, error: Exception) -> Exception:
        """Return the error with status, headers and message of the provider's answer, if there was one."""


class ChatModelJudge:
    """Asks a chat model by its `channel`, with a JSON schema for the reply where the endpoint supports one.

    `dialect` writes each request as the endpoint takes it. `parameters` are sent with every request, `voting` replaces
    some of them for votes and repeated questions; `keyed` is anything else that may change a reply. Limits are shared
    by all judges of the same model at `endpoint`. `window` is the model's context window in tokens, None if it is
    unknown.
    """

    tasks = None  # a prompt can ask it anything

    def __init__(
        self,
        *,
        name: str,
        channel: Channel,
        endpoint: str,
        model: str,
        parameters: Mapping[str, object],
        dialect: Dialect,
        voting: Mapping[str, object] | None = None,
        keyed: object = None,
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
        self._parameters = dict(parameters)
        self._dialect = dialect
        self._voting = dict(voting or {})
        self._keyed = keyed
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
        return self._channel.min_cached or 0

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
            options = options | self._voting | ({"seed": question.vote} if self._channel.takes_seed else {})
        if question.n_repeats:
            # At temperature 0 the same words get the same reply, however often it could not be used.
            options = options | self._voting
            options |= {"seed": question.vote + _SEEDS_APART * question.n_repeats} if self._channel.takes_seed else {}
        if question.logprobs:
            keyed += ["logprobs"]
            options = options | (
                {"logprobs": True, "top_logprobs": TOP_LOGPROBS} if self._channel.takes_logprobs else {}
            )
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
            return await self._channel.reply(request.payload)
        except JudgeError:
            raise
        except SystemExit as error:
            raise JudgeFailed(f"the model ended the program: {describe_error(error)}") from None
        except Exception as error:  # a chat model of any maker may raise anything; it becomes one of our errors
            raise self.translate(error, sent=request.payload) from None

    async def close(self) -> None:
        """Close the HTTP client; a factory's model keeps its own."""
        if self._close is not None:
            await self._close()

    def translate(self, error: Exception, *, sent: Mapping[str, object]) -> JudgeError:
        """Return an error of the provider as a JudgeError; a refused option of the `sent` ones is left out from now."""
        translated = translate_error(
            self._channel.explain(error), name=self.name, endpoint=self.endpoint, variables=self._variables
        )
        return self._dialect.note_refusal(translated, sent) if isinstance(translated, UnsupportedOption) else translated


# --- making a judge


def make_openai_judge(name: str, model: str, settings: RunSettings) -> ChatModelJudge:
    """Return `openai:MODEL` at OPENAI_BASE_URL with OPENAI_API_KEY; raises FatalJudgeError when no key is set."""
    access = find_access()
    judge = make_compatible_judge(name, model, settings, access)
    if settings.batch:
        from evalhouse.tasks.models.openai_batches import OpenAIBatches  # noqa: PLC0415  # imports OpenAI's client

        judge.batches = OpenAIBatches(name, access, settings, judge.translate)
    return judge


def make_compatible_judge(name: str, model: str, settings: RunSettings, access: Access) -> ChatModelJudge:
    """Return a model of any endpoint with OpenAI's protocol."""
    parameters, voting = choose_parameters(settings)
    channel: Channel
    if is_traced():  # a user who has enabled LangSmith's traces gets LangChain's slower way, which makes them
        from evalhouse.tasks.models.langchain_channel import open_traced_channel  # noqa: PLC0415  # takes a second

        channel, close = open_traced_channel(access, model)
    else:
        endpoint = open_endpoint(access, "/chat/completions")
        channel, close = CompletionsChannel(endpoint), endpoint.session.close
    forms = FORMS[1:] if compiles_schemas(access.endpoint) else FORMS
    return ChatModelJudge(
        name=name,
        channel=channel,
        endpoint=access.endpoint,
        model=model,
        parameters=parameters,
        dialect=make_dialect(settings.votes, voting, forms),
        voting=voting,
        variables=access.variables,
        close=close,
        # At another address another model may have the name, as a deployment may at Azure.
        window=find_openai_window(model) if is_openai(access.endpoint) else None,
    )


def is_traced() -> bool:
    """Return whether LangSmith's traces are enabled, by a variable or by the program that has imported its package."""
    variables = ("LANGSMITH_TRACING", "LANGCHAIN_TRACING")
    if "langsmith" not in sys.modules and not any(name.startswith(variables) for name in os.environ):
        return False
    from langsmith.utils import tracing_is_enabled  # noqa: PLC0415  # takes 0.2 s

    return bool(tracing_is_enabled())


def find_openai_window(model: str) -> int | None:
    """Return the context window of a model of OpenAI in tokens, as LangChain's package has it; None if unknown."""
    package = find_spec("langchain_openai")
    assert package is not None, "langchain-openai is a dependency"
    assert package.origin is not None
    # To import the package takes a second; its table of models is one file that imports nothing.
    try:
        profile = runpy.run_path(str(Path(package.origin).with_name("data") / "_profiles.py"))["_PROFILES"].get(model)
    except (OSError, LookupError):  # another release may keep it elsewhere
        from langchain_openai import ChatOpenAI  # noqa: PLC0415

        profile = ChatOpenAI(model=model, api_key=SecretStr("none")).profile
    return (profile or {}).get("max_input_tokens") or None


def choose_parameters(settings: RunSettings) -> tuple[dict[str, object], Mapping[str, object]]:
    """Return the parameters of every request, and the replacements for a vote."""
    chosen = {
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "reasoning_effort": settings.reasoning_effort,
    }
    return {name: value for name, value in chosen.items() if value is not None}, (
        VOTING if settings.temperature == 0 else {}
    )


def make_dialect(
    votes: int, voting: Mapping[str, object], forms: Sequence[str], max_tokens: str = "max_completion_tokens"
) -> Dialect:
    """Return the dialect of the first requests: the forms that may be supported, the name for the reply's limit."""
    needs = (
        f"votes are asked at {VOTING['temperature']:g} where the run's own temperature is 0, since all would be equal "
        "there; leave the temperature out, or take one vote"
    )
    return Dialect(forms=tuple(forms), max_tokens=max_tokens, needs_temperature=needs if votes > 1 and voting else None)
