"""The short way to an OpenAI-compatible endpoint: one request posted, one completion read.

LangChain turns every message into its own classes, hooks and dictionaries, the OpenAI client brings those into shape
once more, sends them through httpx and builds a pydantic model of the reply: 2.5 ms of CPU a call, of which aiohttp
alone needs 0.3. Our requests are plain texts in shape already, retries are not wanted here, nobody listens on the way.
Address, key and headers are those of the client that `ChatOpenAI` makes, environment and all.
"""

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import certifi
import openai
import orjson
from yarl import URL


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


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The body of a good answer, with at least one choice, and its headers."""

    body: dict[str, Any]
    headers: Mapping[str, str]


class Completions:
    """Posts to `client`'s endpoint. Use within one event loop, and `close` it there."""

    def __init__(self, client: openai.AsyncOpenAI) -> None:
        headers = {**client.auth_headers, **client.default_headers}
        self._headers = {name: value for name, value in headers.items() if isinstance(value, str)}
        self._url = URL(f"{str(client.base_url).rstrip('/')}/chat/completions", encoded=True)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, payload: Mapping[str, object]) -> Completion:
        """Send one request; raises StatusError, ValueError for no completion, or what aiohttp raises on the way."""
        session = self._session or self._open_session()
        async with session.post(self._url, data=orjson.dumps(payload)) as response:
            content = await response.read()
        if response.status != 200:
            raise StatusError(response.status, response.headers, content)
        return Completion(body=_parse(content), headers=response.headers)

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,  # how many are in flight is decided elsewhere
            ssl=_make_ssl_context() if self._url.scheme == "https" else True,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),  # whoever asks sets one
            trust_env=True,  # proxies
        )
        return self._session


def _make_ssl_context() -> ssl.SSLContext:
    """Certificates of the environment where it names some, else those that come with certifi, as the OpenAI client."""
    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    return ssl.create_default_context(cafile=None if named else certifi.where())


def _parse(content: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise ValueError(f"the endpoint sent no JSON but {content[:80].decode(errors='replace')!r}") from None
    choices = body.get("choices") if isinstance(body, dict) else None
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError(f"the endpoint sent no completion but {content[:80].decode(errors='replace')!r}")
    found: dict[str, Any] = body
    return found


def _read_error(content: bytes) -> Mapping[str, Any]:
    """Message, code and param of an error's body: OpenAI nests them, others put them at the top or send a text."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        return {}
    told = body.get("error", body) if isinstance(body, dict) else body
    return told if isinstance(told, dict) else {"message": told}
