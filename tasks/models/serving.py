"""What a self-hosted model server reports: a model's context window, which model it is, and how many slots it has.

There is no standard for it. Most put the window into the list of models, each under a name of its own, and beside it
what tells models of one name apart: vLLM the folder or repository that was loaded, llama.cpp the model's sizes.
llama.cpp has its slots at `/props`. Ollama lists models by name alone; at `/api/ps` it says with which window the
loaded ones were loaded, which may be far below what they were made for, and their digests there and at `/api/tags`.
Those are asked only at an address near by, where such a server may be; none of it costs anything.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson
from yarl import URL

from evalhouse.tasks.asking.http_session import HttpSession, make_ssl_context, read_beginning
from evalhouse.tasks.asking.limits import is_near
from evalhouse.tasks.asking.pairs import JOIN, find_form
from evalhouse.tasks.judge.protocol import Judge, parse_count
from evalhouse.tasks.models.completions import (
    find_endpoint,
    make_login_header,
    read_openai_key,
    strip_credentials,
)
from evalhouse.tasks.models.providers import compiles_schemas

# The names of a window in an entry of the list: vLLM and SGLang; OpenRouter and Together; Groq; Mistral; llama.cpp.
_WINDOWS = ("max_model_len", "context_length", "context_window", "max_context_length", "meta.n_ctx")
# What vLLM loaded, with the model that an adapter was loaded onto; what llama.cpp reads in the file of a model.
_ORIGINS = ("root", "parent")
_SIZES = ("n_params", "size", "n_vocab", "n_embd", "n_ctx_train", "vocab_type")
_OLLAMA_OWNER = "library"
_MOST_BYTES = 8 * 1024**2
_PATIENCE_S = 10.0
_PATIENCE_AT_START_S = 5.0
_LONGEST_IDENTITY = 500


@dataclass(frozen=True, kw_only=True)
class Serving:
    """Tokens of the window, requests answered at once and what tells the model from others of its name, as the server
    says; None where it says nothing.
    """

    window: int | None = None
    slots: int | None = None
    said_at: str = ""
    identity: str | None = None

    @property
    def is_found_by_runs(self) -> bool:
        """Whether a run finds the window out by itself: it asks for the list of models alone."""
        return self.window is not None and self.said_at == "/models"


async def read_serving(model: str) -> Serving:
    """Return what is reported of `model` at OPENAI_BASE_URL; nothing where no answer comes or can be read."""
    endpoint = strip_credentials(find_endpoint())

    async def read(asker: _Asker) -> Serving:
        serving, _ = await _read_list(asker, endpoint, model)
        if not is_near(endpoint):
            return serving
        root = endpoint.removesuffix("/v1")
        props = await asker.get(f"{root}/props")
        if props:
            slots, window = _read_size(props, "total_slots"), _read_size(props, "default_generation_settings.n_ctx")
            if serving.window is None:
                return replace(serving, window=window, slots=slots, said_at="/props")
            return replace(serving, slots=slots)
        return serving if serving.window is not None else await _read_ollama(asker, root, model)

    return await _ask(_make_headers(), endpoint, _PATIENCE_S, read)


def is_own(judge: Judge) -> bool:
    """Whether a judge's model is had from a server of one's own, which may have another one under the name tomorrow."""
    if judge.endpoint is None or "://" not in judge.endpoint:
        return False
    return _find_kind(judge) == "ollama" or (_find_kind(judge) == "openai" and not compiles_schemas(judge.endpoint))


async def read_at_start(judge: Judge) -> Serving:
    """What is said of a judge's model, in one request but for Ollama; nothing where no answer can be had or read."""
    endpoint, model = judge.endpoint or "", judge.model

    async def read(asker: _Asker) -> Serving:
        if _find_kind(judge) == "ollama":
            return await _read_ollama(asker, endpoint, model)
        serving, owner = await _read_list(asker, endpoint, model)
        if owner == _OLLAMA_OWNER and is_near(endpoint):
            return await _read_ollama(asker, endpoint.removesuffix("/v1"), model)
        return serving

    headers = _make_headers() if _find_kind(judge) == "openai" else {}
    return await _ask(headers, endpoint, _PATIENCE_AT_START_S, read)


def _find_kind(judge: Judge) -> str:
    name = judge.name.partition(JOIN)[2] if find_form(judge.name) else judge.name
    return name.partition(":")[0]


def _make_headers() -> dict[str, str]:
    """Those of OpenAI's clients, with the key."""
    endpoint = find_endpoint()
    key = read_openai_key(endpoint).get_secret_value()
    return {"Accept": "application/json", "Authorization": f"Bearer {key}", **make_login_header(endpoint)}


async def _ask(
    headers: Mapping[str, str], endpoint: str, patience_s: float, read: "Callable[[_Asker], Awaitable[Serving]]"
) -> Serving:
    asker = _Asker(headers, endpoint)
    try:
        async with asyncio.timeout(patience_s):
            return await read(asker)
    except TimeoutError:
        return Serving()
    finally:
        await asker.close()


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


async def _read_list(asker: _Asker, endpoint: str, model: str) -> tuple[Serving, object]:
    """Return what the list of models says of one, and the owner that it names."""
    entry = _find_entry((await asker.get(f"{endpoint}/models")).get("data"), "id", model)
    window = next((window for path in _WINDOWS if (window := _read_size(entry, path))), None)
    # The window is what the model was served with, and no part of what tells it from others of its name.
    parts = {name: entry[name] for name in _ORIGINS if isinstance(entry.get(name), str)}
    meta = entry.get("meta")
    if not parts and isinstance(meta, Mapping):
        parts = {name: meta[name] for name in _SIZES if isinstance(meta.get(name), int)}
    identity = ", ".join(f"{name} {value}" for name, value in parts.items())[:_LONGEST_IDENTITY] or None
    return Serving(window=window, said_at="/models", identity=identity), entry.get("owned_by")


async def _read_ollama(asker: _Asker, root: str, model: str) -> Serving:
    """What Ollama says of a model that is loaded, else which one it would load."""
    at = "/api/ps"
    entry = _find_entry((await asker.get(f"{root}{at}")).get("models"), "name", model)
    if not entry.get("digest"):
        at = "/api/tags"
        entry = {**_find_entry((await asker.get(f"{root}{at}")).get("models"), "name", model), **entry}
    digest = entry.get("digest")
    identity = f"digest {digest}"[:_LONGEST_IDENTITY] if digest else None
    return Serving(window=_read_size(entry, "context_length"), said_at=at, identity=identity)


def _find_entry(entries: object, key: str, model: str) -> Mapping[str, Any]:
    """The entry of a model; Ollama lists one that was named without a tag as its latest."""
    listed = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return next((entry for entry in listed if entry.get(key) in (model, f"{model}:latest")), {})


def _read_size(document: Mapping[str, Any], path: str) -> int | None:
    """A whole number above zero under a dotted path."""
    value: object = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return parse_count(value) or None
