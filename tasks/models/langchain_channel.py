"""LangChain chat models, asked in our terms, and a model of OpenAI whose calls LangSmith traces."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import openai
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import BaseChatOpenAI

from evalhouse.tasks.datasets.thoughts import find_thoughts, split_reply
from evalhouse.tasks.judge.protocol import ModelReply, parse_count
from evalhouse.tasks.measures.expected_ratings import pack_logprobs
from evalhouse.tasks.models.openai_api import check_ending
from evalhouse.tasks.models.providers import Access

_OPTIONS = ("temperature", "max_completion_tokens", "seed", "logprobs", "top_logprobs", "reasoning_effort")
# As extra_body these reach the wire untouched, the last two for a model's chat template. LangChain would write the
# first under its newer name, and parse the reply because of the second, at twice the CPU and without the raw text of a
# reply that does not fit.
_UNTOUCHED = ("max_tokens", "response_format", "documents", "chat_template_kwargs")
_KINDS: dict[str, type[BaseMessage]] = {"system": SystemMessage, "user": HumanMessage, "assistant": AIMessage}
# LangChain's names for the tokens that the provider put into its cache: in all, or Anthropic's by how long it is kept.
_CACHE_WRITES = ("cache_creation", "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")


class LangChainChannel:
    """Asks any chat model of LangChain; the `Channel` of a ChatModelJudge."""

    min_cached: int | None = None

    def __init__(self, chat: BaseChatModel) -> None:
        self.takes_seed = isinstance(chat, BaseChatOpenAI)
        self.takes_logprobs = isinstance(chat, BaseChatOpenAI) and not chat.use_responses_api
        self._chat = chat

    async def reply(self, payload: Mapping[str, object]) -> ModelReply:
        """Send the request and return the reply; raises what the model raises."""
        sent = cast(Sequence[Mapping[str, str]], payload["messages"])
        message = await self.invoke([_KINDS[item["role"]](content=item["content"]) for item in sent], payload)
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
            logprobs=pack_logprobs(metadata.get("logprobs"), spoken.text) if "logprobs" in payload else None,
        )
        ended_with = metadata.get("ended_with", "")
        return check_ending(reply, metadata.get("finish_reason"), message.additional_kwargs, ended_with=ended_with)

    async def invoke(self, messages: list[BaseMessage], payload: Mapping[str, Any]) -> BaseMessage:
        """Send the messages with the options of a request in our terms."""
        options: dict[str, Any] = {name: payload[name] for name in _OPTIONS if name in payload}
        untouched = {name: payload[name] for name in _UNTOUCHED if name in payload}
        if untouched:
            options["extra_body"] = untouched
        return await self._chat.ainvoke(messages, **options)

    def explain(self, error: Exception) -> Exception:
        """Return the error unchanged."""
        return error


def open_traced_channel(access: Access, model: str) -> tuple[LangChainChannel, Callable[[], Awaitable[None]]]:
    """Return a channel to an OpenAI-compatible endpoint whose calls LangSmith sees, and what closes its connections."""
    chat = ChatOpenAI(
        model=model,
        api_key=access.key,
        base_url=access.endpoint,
        default_headers=access.headers,
        default_query=access.query,
        # LangChain's own client is shared by the whole process and never closed.
        http_async_client=openai.DefaultAsyncHttpxClient(),
        http_socket_options=(),  # leaves a proxy of the environment in force, and does not warn about it
    )
    if "api-key" in access.headers:
        # The key has a separate header there, and must not be in the usual one as well.
        client = chat.root_async_client.with_options(default_headers=cast(Any, {"Authorization": openai.Omit()}))
        chat.root_async_client, chat.async_client = client, client.chat.completions
    return LangChainChannel(chat), chat.root_async_client.close
