"""Factories as users write them for `--judge module:factory` and `--embeddings module:factory`."""

from typing import Any, ClassVar

import httpx
import openai
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
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


class PlainChatModel(BaseChatModel):
    """A user's own chat model, which names no parameters for LangChain; `client` says nothing of it."""

    weights: str = "first"
    sizes: tuple[int, ...] = (1, 2)
    client: Any = None
    api_key: str = "one"

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:  # noqa: ANN401
        return ChatResult(generations=[ChatGeneration(message=AIMessage(self.weights))])


class ShiftedEmbeddings(Embeddings):
    """A user's own class: vectors of two numbers, turned by `shift`, with a client, which says nothing of them."""

    def __init__(self, shift: int, **fields: object) -> None:
        self.shift, self.client, self.api_key = shift, object(), str(id(self))
        vars(self).update(fields)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[float(len(text) + self.shift), 1.0] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]


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
