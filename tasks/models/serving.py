"""What the server of an OpenAI-compatible endpoint says of itself: the model's context window, and its slots.

There is no standard for it. Most put the window into the list of models, each under a name of its own. llama.cpp has
its slots at `/props`; Ollama lists models by name alone, and says at `/api/ps` with which window the loaded ones were
loaded, which may be far below what the model was made for. Those two are asked only at an address near by, where such
a server may be; none of it costs anything.
"""

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai
import orjson
from yarl import URL

from evalhouse.tasks.asking.http_session import HttpSession, make_ssl_context, read_beginning
from evalhouse.tasks.asking.patience import is_near
from evalhouse.tasks.models.completions import (
    find_endpoint,
    make_login_header,
    read_openai_key,
    strip_credentials,
)

# The names of a window in an entry of the list: vLLM and SGLang; OpenRouter and Together; Groq; Mistral; llama.cpp.
_WINDOWS = ("max_model_len", "context_length", "context_window", "max_context_length", "meta.n_ctx")
_MOST_BYTES = 8 * 1024**2
_PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Tokens of the window and requests answered at once, as the server says; None where it says nothing."""

    window: int | None = None
    slots: int | None = None
    said_at: str = ""


async def read_serving(model: str) -> Serving:
    """What is said of `model` at OPENAI_BASE_URL; nothing where no answer can be had or read."""
    endpoint = find_endpoint()
    client = openai.AsyncOpenAI(
        api_key=read_openai_key(endpoint).get_secret_value(),
        base_url=strip_credentials(endpoint),
        default_headers=make_login_header(endpoint),
    )
    headers = {**client.auth_headers, **client.default_headers}
    asker = _Asker({name: value for name, value in headers.items() if isinstance(value, str)}, endpoint)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            return await _read(asker, strip_credentials(endpoint), model)
    except TimeoutError:
        return Serving()
    finally:
        await asker.close()
        await client.close()


class _Asker:
    """Gets JSON documents from one server."""

    def __init__(self, headers: Mapping[str, str], endpoint: str) -> None:
        self._headers = headers
        self._session = HttpSession(certificates=make_ssl_context() if endpoint.startswith("https") else True)

    async def get(self, address: str) -> Mapping[str, Any]:
        """The document; empty where there is none."""
        try:
            async with await self._session.send("GET", URL(address), content=None, headers=self._headers) as response:
                content = await read_beginning(response, _MOST_BYTES)
                document = orjson.loads(content) if response.status == 200 else {}
        except (aiohttp.ClientError, OSError, orjson.JSONDecodeError):
            return {}
        return document if isinstance(document, dict) else {}

    async def close(self) -> None:
        await self._session.close()


async def _read(asker: _Asker, endpoint: str, model: str) -> Serving:
    entry = _find_entry((await asker.get(f"{endpoint}/models")).get("data"), "id", model)
    windows = (_read_size(entry, path) for path in _WINDOWS)
    serving = Serving(window=next((window for window in windows if window), None), said_at="/models")
    if not is_near(endpoint):
        return serving
    root = endpoint.removesuffix("/v1")
    props = await asker.get(f"{root}/props")
    if props:
        window = _read_size(props, "default_generation_settings.n_ctx")
        return Serving(window=window or serving.window, slots=_read_size(props, "total_slots"), said_at="/props")
    if serving.window is None:
        loaded = _find_entry((await asker.get(f"{root}/api/ps")).get("models"), "name", model)
        return Serving(window=_read_size(loaded, "context_length"), said_at="/api/ps")
    return serving


def _find_entry(entries: object, key: str, model: str) -> Mapping[str, Any]:
    """The entry of a model; Ollama lists one that was named without a tag as its latest."""
    listed = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return next((entry for entry in listed if entry.get(key) in (model, f"{model}:latest")), {})


def _read_size(document: Mapping[str, Any], path: str) -> int | None:
    """A whole number above zero under a dotted path."""
    value: object = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    is_size = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 1
    return int(value) if is_size else None  # type: ignore[call-overload]  # a number by now
