"""Factories as users write them for `--judge module:factory` and `--embeddings module:factory`."""

from typing import Any, ClassVar

import httpx
import openai
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI

NOT_CALLABLE = 3
settings: dict[str, Any] = {"replies": ['{"statements": ["It is red."]}'], "temperature": 0.0}


def make_fake() -> FakeListChatModel:
    return FakeListChatModel(responses=settings["replies"])


def make_openai() -> ChatOpenAI:
    """Return a judge whose client keeps no connection open. LangChain's serves a whole process: its connections would
    outlive the loop of their test, to be found unclosed in a later one."""
    client = openai.DefaultAsyncHttpxClient(limits=httpx.Limits(max_keepalive_connections=0))
    temperature = settings["temperature"]
    return ChatOpenAI(
        model="judge", temperature=temperature, max_retries=0, http_async_client=client, http_socket_options=()
    )


class OddChatModel(BaseChatModel):
    """A chat model with an object among its parameters, which breaks on every call."""

    helper: Any = None

    @property
    def _llm_type(self) -> str:
        return "odd"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"helper": self.helper}

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:  # noqa: ANN401
        raise RuntimeError("the odd model is out of order, key sk-1234567890abcdef")


def make_odd() -> OddChatModel:
    return OddChatModel(helper=object())


def make_embeddings() -> DeterministicFakeEmbedding:
    return DeterministicFakeEmbedding(size=16)


def make_something_else() -> str:
    return "a text"


def break_down() -> None:
    raise LookupError("no config file, key sk-1234567890abcdef")


class ColdChatModel(OddChatModel):
    """A chat model of temperature 0, which would say the same to every vote."""

    temperature: float = 0.0


class SayingChatModel(OddChatModel):
    """A chat model that answers with a given message, however its provider's package would have made it."""

    message: AIMessage

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:  # noqa: ANN401
        return ChatResult(generations=[ChatGeneration(message=self.message)])


class ThinkingChatModel(SayingChatModel):
    """One that has an effort to set; `efforts` are the values it was called with."""

    reasoning_effort: str | None = None
    efforts: ClassVar[list[object]] = []

    def _generate(self, messages: list[BaseMessage], *_: Any, **options: Any) -> ChatResult:  # noqa: ANN401
        self.efforts.append(options.get("reasoning_effort"))
        return super()._generate(messages)
