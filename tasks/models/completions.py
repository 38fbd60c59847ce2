"""Where models are asked, and the short way to an OpenAI-compatible endpoint: one request posted, one completion read.

Address and key are the environment's, as OpenAI's own clients read it. An address may hold a user and a password; what
is kept of it, and said of it, has neither. LangChain turns every message into its own classes, hooks and dictionaries,
the OpenAI client brings those into shape once more, sends them through httpx and builds a pydantic model of the reply:
2.5 ms of CPU a call, of which aiohttp alone needs 0.3. Our requests are plain texts in shape already, retries are not
wanted here, nobody listens on the way. Headers are those of the client that `ChatOpenAI` makes.
"""

import base64
import codecs
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

import openai
import orjson
from pydantic import SecretStr
from yarl import URL

from evalhouse.tasks.asking.http_session import HttpSession, make_ssl_context, read_beginning
from evalhouse.tasks.judge.errors import FatalJudgeError, UnusableReply
from evalhouse.tasks.models.errors import (
    MOST_ERROR_BYTES,
    OPENAI_VARIABLES,
    ErrorBody,
    Variables,
    read_error_body,
    read_error_field,
)
from evalhouse.tasks.models.providers import check_address, read_key_variable
from evalhouse.warehouse.messages import note_secret
from evalhouse.warehouse.names import name_setting

_DEFAULT_ENDPOINT = "https://api.openai.com/v1"
# A long reply with its log-probabilities has some six megabytes.
_MOST_BYTES = 32 * 1024**2
_ITEMS = {"/chat/completions": "choices", "/embeddings": "data"}


def find_endpoint(variable: str = "OPENAI_BASE_URL") -> str:
    """The address of the environment, as OpenAI's own clients read it; raises FatalJudgeError when it is not one.

    Another `variable` goes before those that they know.
    """
    names = (variable, "OPENAI_BASE_URL", "OPENAI_API_BASE")
    source = next((name for name in names if os.environ.get(name)), "OPENAI_BASE_URL")
    named = os.environ.get(source) or _DEFAULT_ENDPOINT
    return check_address(source, named, example="http://localhost:8000/v1")


def read_openai_key(endpoint: str) -> SecretStr:
    """The key of the environment. A local endpoint usually wants none, so only OpenAI's own insists."""
    key = read_key_variable("OPENAI_API_KEY")
    if key:
        note_secret(key)
        return SecretStr(key)
    if endpoint == _DEFAULT_ENDPOINT:
        raise FatalJudgeError(
            "OPENAI_API_KEY is not set; set it, set OPENAI_BASE_URL to an endpoint that needs none, "
            f"or use {name_setting('judge', 'lexical')}"
        )
    return SecretStr("no-key")


def strip_credentials(endpoint: str) -> str:
    """An endpoint's address without user and password, fit to be kept; a query, which may hold a key, is left out."""
    parts = urlsplit(endpoint)
    host = parts.netloc.rsplit("@", 1)[-1]
    return f"{parts.scheme}://{host}{parts.path}".rstrip("/")


def make_login_header(endpoint: str) -> dict[str, str]:
    """The header for an address with a user and a password in it, as a gateway may want one instead of a key.

    HTTP clients make it themselves, but refuse to when a key claims the same header.
    """
    parts = urlsplit(endpoint)
    if parts.username is None:
        return {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    for secret in (login, unquote(parts.password or ""), parts.password or ""):
        note_secret(secret)
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


@dataclass(frozen=True, kw_only=True)
class Access:
    """What it takes to ask an OpenAI-compatible endpoint. `endpoint` is its address as it may be kept."""

    endpoint: str
    key: SecretStr
    headers: Mapping[str, str]
    query: Mapping[str, object] | None = None
    variables: Variables = OPENAI_VARIABLES


def find_access() -> Access:
    """What the environment says for `openai:`; raises FatalJudgeError when no key is set."""
    endpoint = find_endpoint()
    return Access(
        endpoint=strip_credentials(endpoint), key=read_openai_key(endpoint), headers=make_login_header(endpoint)
    )


class StatusError(Exception):
    """The endpoint answered with an error. The fields are named as in the errors of `openai`."""

    def __init__(self, status_code: int, headers: Mapping[str, str], body_error: ErrorBody) -> None:
        self.status_code = status_code
        self.headers = headers
        self.message = body_error.message
        self.code = body_error.code
        self.type = body_error.kind
        self.param = body_error.param
        super().__init__(self.message)


@dataclass(frozen=True, kw_only=True)
class Completion:
    """The body of a good answer with its headers, and the first of its items: a choice, or an embedding."""

    body: dict[str, Any]
    first: dict[str, Any]
    headers: Mapping[str, str]


class Completions:
    """Posts to a path of `client`'s endpoint. Use within one event loop, and `close` it there."""

    def __init__(self, client: openai.AsyncOpenAI, path: str = "/chat/completions") -> None:
        """What `client` adds to every address, as Azure's version, is added here too."""
        headers = {**client.auth_headers, **client.default_headers}
        self._headers = {name: value for name, value in headers.items() if isinstance(value, str)}
        query = urlencode(client.default_query)
        self._url = URL(f"{str(client.base_url).rstrip('/')}{path}{query and f'?{query}'}", encoded=True)
        self._items = _ITEMS[path]
        certificates = make_ssl_context() if self._url.scheme == "https" else True
        self._session = HttpSession(certificates=certificates)

    async def post(self, payload: Mapping[str, object]) -> Completion:
        """Send one request; raises StatusError, UnusableReply, ValueError for no completion, or what aiohttp raises."""
        # A redirect is not followed: as a request of another kind, or without its key, it would end in an error that
        # says nothing of the reason.
        sent = await self._session.send("POST", self._url, content=orjson.dumps(payload), headers=self._headers)
        async with sent as response:
            most = _MOST_BYTES if 200 <= response.status < 300 else MOST_ERROR_BYTES
            content = await read_beginning(response, most)
        return read_answer(response.status, content, response.headers, self._items)

    async def close(self) -> None:
        """Give the connections back."""
        await self._session.close()


def read_answer(status: int, content: bytes, headers: Mapping[str, str], items: str = "choices") -> Completion:
    """The completion in an answer; raises StatusError, UnusableReply, or ValueError for what is not a completion."""
    is_good = 200 <= status < 300
    most = _MOST_BYTES if is_good else MOST_ERROR_BYTES
    if not is_good:
        raise StatusError(status, headers, read_error_body(content[:most]))
    if len(content) > most:
        raise UnusableReply(f"the endpoint sent more than {most // 1024**2} MB for one reply")
    return _parse(content, headers, items)


def _parse(content: bytes, headers: Mapping[str, str], items: str) -> Completion:
    """The completion; an error in its place, as gateways send it with status 200, is raised as if it had its status."""
    shown = content[:80].decode(errors="replace")
    try:
        body = orjson.loads(content.removeprefix(codecs.BOM_UTF8))
    except orjson.JSONDecodeError:
        streamed = headers.get("content-type", "").startswith("text/event-stream")
        came = "a stream, which was not asked for" if streamed else "what is not valid JSON"
        raise ValueError(f"the endpoint sent {came}: {shown!r}") from None
    completion: dict[str, Any] = body if isinstance(body, dict) else {}
    listed = completion.get(items)
    first = listed[0] if isinstance(listed, list) and listed and isinstance(listed[0], dict) else None
    if body_error := completion.get("error") or (first or {}).get("error"):
        error = read_error_field(body_error)
        raise StatusError(error.status or 500, headers, error)
    if first is None:
        raise ValueError(f'the endpoint sent what is not a completion (it has no "{items}"): {shown!r}')
    return Completion(body=completion, first=first, headers=headers)
