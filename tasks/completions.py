"""A shorter way from LangChain to the wire: the part of the OpenAI client that `ChatOpenAI` calls, and no more.

The client's own `chat.completions.create` brings every message into shape, goes through layers of options and builds a
pydantic model of the reply, at 2 ms of CPU a call. Our messages are in shape, LangChain reads a plain dictionary as
well, and retries are not wanted here. The connection pool, proxies and certificates are those of the client.
"""

from collections.abc import Mapping
from typing import Any

import openai
import orjson

# The finish reason of a completion in which the model refuses.
REFUSED = "refusal"


class StatusError(Exception):
    """The endpoint answered with an error. The fields are named as in the errors of `openai`."""

    def __init__(self, status_code: int, headers: Mapping[str, str], content: bytes) -> None:
        told = _read_error(content)
        self.status_code = status_code
        self.headers = headers
        self.message = str(told.get("message") or content.decode(errors="replace"))
        self.code = told.get("code")
        self.param = told.get("param")
        super().__init__(self.message)


class RawCompletion:
    """A reply as LangChain wants it: the body by `parse`, and the headers."""

    def __init__(self, headers: Mapping[str, str], content: bytes) -> None:
        self.headers = headers
        self._content = content

    def parse(self) -> dict[str, Any]:
        """The body; raises ValueError for one that is no JSON object."""
        try:
            body = orjson.loads(self._content)
        except orjson.JSONDecodeError:
            raise ValueError(f"the endpoint sent no JSON but {self._content[:80].decode(errors='replace')!r}") from None
        if not isinstance(body, dict) or not body.get("choices"):
            raise ValueError(f"the endpoint sent no completion but {self._content[:80].decode(errors='replace')!r}")
        for choice in body["choices"]:
            _tell_refusal(choice)
        return body


class PlainCompletions:
    """Takes the place of `client.chat.completions` for a client that talks through `http`."""

    def __init__(self, client: openai.AsyncOpenAI, http: openai.DefaultAioHttpClient) -> None:
        headers = {**client.auth_headers, **client.default_headers}
        self._http = http
        self._url = f"{str(client.base_url).rstrip('/')}/chat/completions"
        self._headers = {name: value for name, value in headers.items() if isinstance(value, str)}

    @property
    def with_raw_response(self) -> "PlainCompletions":
        """The client's way to ask for a reply with its headers; here every reply is one."""
        return self

    async def create(self, *, extra_body: Mapping[str, object] | None = None, **payload: object) -> RawCompletion:
        """Post one request; raises StatusError, or what the HTTP client raises when no answer came."""
        content = orjson.dumps({**payload, **(extra_body or {})})
        response = await self._http.post(self._url, content=content, headers=self._headers)
        if response.status_code != 200:
            raise StatusError(response.status_code, response.headers, response.content)
        return RawCompletion(response.headers, response.content)


def _tell_refusal(choice: dict[str, Any]) -> None:
    """Put a refusal where LangChain finds it, which reads that field from the client's own reply models alone."""
    message = choice.get("message") or {}
    if message.get("refusal"):
        choice["finish_reason"] = REFUSED
        message["content"] = message["refusal"]


def _read_error(content: bytes) -> Mapping[str, Any]:
    """Message, code and param of an error's body: OpenAI nests them, others put them at the top or send a text."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    told = body.get("error", body) if isinstance(body, dict) else body
    return told if isinstance(told, dict) else {"message": told}
