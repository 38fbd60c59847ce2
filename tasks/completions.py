"""A shorter way from LangChain to the wire: the part of the OpenAI client that `ChatOpenAI` calls, and no more.

The client's own `chat.completions.create` walks through every message to bring it into shape and builds a pydantic
model of the reply, at 1.5 ms of CPU a call. Our messages are in shape, and LangChain reads a plain dictionary as well.
"""

from collections.abc import Mapping
from typing import Any

import httpx
import openai
import orjson


class RawCompletion:
    """A reply as LangChain wants it: the body by `parse`, and the headers."""

    def __init__(self, response: httpx.Response) -> None:
        self.headers = response.headers
        self._content = response.content

    def parse(self) -> dict[str, Any]:
        """The body; raises ValueError for one that is no JSON object."""
        body = orjson.loads(self._content)
        if not isinstance(body, dict):
            raise ValueError(f"the endpoint sent no JSON object but {type(body).__name__}")
        return body


class PlainCompletions:
    """Takes the place of `client.chat.completions`; errors and options are those of the client it posts with."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        self._client = client

    @property
    def with_raw_response(self) -> "PlainCompletions":
        """The client's way to ask for a reply with its headers; here every reply is one."""
        return self

    async def create(self, *, extra_body: Mapping[str, object] | None = None, **payload: object) -> RawCompletion:
        """Post one request; raises the errors of `openai`."""
        body = {**payload, **(extra_body or {})}
        return RawCompletion(await self._client.post("/chat/completions", cast_to=httpx.Response, body=body))
