"""The report of a self-hosted server about a model.

Each server has its own form of a report. Most put the context window into the list of models, and beside it what
distinguishes models of one name: vLLM the folder that was loaded, llama.cpp the model's sizes; its slots are at
`/props`. Ollama has the windows of loaded models at `/api/ps`, which may be far smaller than the models allow, and
their digests there and at `/api/tags`. These paths are read only at an address nearby; none of it costs anything.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson
from yarl import URL

from evalhouse.tasks.asking.http_session import HttpSession, make_ssl_context, read_beginning
from evalhouse.tasks.asking.pairs import find_form
from evalhouse.tasks.judge.protocol import (
    FORM_JOIN,
    Judge,
    is_near,
    parse_count,
)
from evalhouse.tasks.models.providers import compiles_schemas, find_access

# The names of a window in an entry of the list: vLLM and SGLang; OpenRouter and Together; Groq; Mistral; llama.cpp.
_WINDOWS = ("max_model_len", "context_length", "context_window", "max_context_length", "meta.n_ctx")
# The names of what vLLM loaded, with the model that an adapter was loaded onto; of llama.cpp's figures of a model file.
_ORIGINS = ("root", "parent")
_SIZES = ("n_params", "size", "n_vocab", "n_embd", "n_ctx_train", "vocab_type")
_OLLAMA_OWNER = "library"
_MAX_BYTES = 8 * 1024**2
_WAIT_S, _WAIT_AT_START_S = 10.0, 5.0
_MAX_IDENTITY = 500


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A server's report on a model: its window in tokens, the requests answered at once, and its identity among models
    of the same name; None for what is not reported. `said_at` is the path that had the window.
    """

    window: int | None = None
    slots: int | None = None
    said_at: str = ""
    identity: str | None = None

    @property
    def is_found_by_runs(self) -> bool:
        """True if a run finds the window too: it reads the list of models alone."""
        return self.window is not None and self.said_at == "/models"


def is_own(judge: Judge) -> bool:
    """Return whether a judge's model is self-hosted: its server may have another one under the name tomorrow."""
    if judge.endpoint is None or "://" not in judge.endpoint:
        return False
    kind = _find_kind(judge)
    return kind == "ollama" or (kind == "openai" and not compiles_schemas(judge.endpoint))


def _find_kind(judge: Judge) -> str:
    name = judge.name.partition(FORM_JOIN)[2] if find_form(judge.name) else judge.name
    return name.partition(":")[0]


async def read_serving(judge: Judge, *, at_start: bool) -> Serving:
    """Return the report on a judge's model; an empty one if no answer comes or it cannot be read.

    At the start of a run it takes one request, or two to Ollama; otherwise slots and the window at other paths are
    looked for as well.
    """
    endpoint, model, headers = judge.endpoint or "", judge.model, {}
    if _find_kind(judge) == "openai":
        access = find_access()
        bearer = f"Bearer {access.key.get_secret_value()}"
        headers = {"Accept": "application/json", "Authorization": bearer, **access.headers}
    server = _Server(endpoint, headers)
    try:
        async with asyncio.timeout(_WAIT_AT_START_S if at_start else _WAIT_S):
            if _find_kind(judge) == "ollama":
                return await server.read_ollama(endpoint, model)
            entry = await server.find_entry(f"{endpoint}/models", "data", "id", model)
            window = next((window for path in _WINDOWS if (window := _parse_size(entry, path))), None)
            # The window is a setting of the server, and no part of what distinguishes models of one name.
            parts = {name: entry[name] for name in _ORIGINS if isinstance(entry.get(name), str)}
            meta = entry.get("meta")
            if not parts and isinstance(meta, Mapping):
                parts = {name: meta[name] for name in _SIZES if isinstance(meta.get(name), int)}
            identity = ", ".join(f"{name} {value}" for name, value in parts.items())[:_MAX_IDENTITY] or None
            serving = Serving(window=window, said_at="/models", identity=identity)
            if not is_near(endpoint) or (at_start and entry.get("owned_by") != _OLLAMA_OWNER):
                return serving
            root = endpoint.removesuffix("/v1")
            if not at_start and (props := await server.get(f"{root}/props")):
                serving = replace(serving, slots=_parse_size(props, "total_slots"))
                own_window = _parse_size(props, "default_generation_settings.n_ctx")
                return serving if window is not None else replace(serving, window=own_window, said_at="/props")
            if not at_start and window is not None:
                return serving
            return await server.read_ollama(root, model)
    except TimeoutError:
        return Serving()
    finally:
        await server.session.close()


class _Server:
    """Gets JSON documents from one server."""

    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        self._headers = headers
        self.session = HttpSession(certificates=make_ssl_context() if endpoint.startswith("https") else True)

    async def get(self, address: str) -> Mapping[str, Any]:
        """Return the document; empty if the server has no such document."""
        try:
            async with await self.session.send("GET", URL(address), content=None, headers=self._headers) as response:
                content = await read_beginning(response, _MAX_BYTES)
                document = orjson.loads(content) if response.status == 200 else {}
        except (aiohttp.ClientError, OSError, orjson.JSONDecodeError):
            return {}
        return document if isinstance(document, dict) else {}

    async def find_entry(self, address: str, member: str, key: str, model: str) -> Mapping[str, Any]:
        """Return the entry of a model in a list; Ollama lists one that was named without a tag as its latest."""
        entries = (await self.get(address)).get(member)
        listed = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        return next((entry for entry in listed if entry.get(key) in (model, f"{model}:latest")), {})

    async def read_ollama(self, root: str, model: str) -> Serving:
        """Return Ollama's report on a model that is loaded, else on the one that it would load."""
        path = "/api/ps"
        entry = await self.find_entry(f"{root}{path}", "models", "name", model)
        if not entry.get("digest"):
            path = "/api/tags"
            entry = {**await self.find_entry(f"{root}{path}", "models", "name", model), **entry}
        digest = entry.get("digest")
        identity = f"digest {digest}"[:_MAX_IDENTITY] if digest else None
        return Serving(window=_parse_size(entry, "context_length"), said_at=path, identity=identity)


def _parse_size(document: Mapping[str, Any], path: str) -> int | None:
    """Return a whole number above zero under a dotted path."""
    value: object = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return parse_count(value) or None
