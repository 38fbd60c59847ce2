"""The wire formats of other providers, on top of the local endpoint's answers in OpenAI's.

A request of another provider is read into an OpenAI one, and the answer to that, good or bad, is written in the
provider's form: Anthropic's Messages, Gemini's generateContent, Ollama's chat (in pieces, one JSON a line), Bedrock's
Converse. Azure and Mistral speak OpenAI's own at other paths. So faults, limits and counters are the same for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import orjson

Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Raw:
    """One HTTP answer; a dict is sent as JSON."""

    status: int = 200
    body: dict[str, Any] | str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Wire:
    """The wire format of one provider's requests and answers; by default both are OpenAI's.

    `errors` are its names for statuses, `endings` those for OpenAI's reasons to stop.
    """

    path: str
    read: Callable[[Body, str], Body] = lambda body, _: body
    write: Callable[[Body, str], Body] = lambda completion, _: completion
    fail: Callable[[int, str, str], Body] | None = None
    endings: Mapping[str, str] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)

    def dress(self, raw: Raw) -> Raw:
        """An answer in OpenAI's form as this provider's."""
        assert isinstance(raw.body, dict)
        headers = dict(raw.headers)
        if self is ANTHROPIC:
            pattern = re.compile(r"^x-ratelimit-(\w+)-(\w+)$")
            headers = {pattern.sub(r"anthropic-ratelimit-\2-\1", name): value for name, value in headers.items()}
        if raw.status == 200:
            choice = raw.body["choices"][0]
            finish = "refusal" if choice["message"].get("refusal") is not None else choice["finish_reason"]
            return Raw(body=self.write(raw.body, self.endings.get(finish, finish)), headers=headers)
        if self.fail is None:
            return raw
        name = self.errors.get(raw.status, "")
        if self is BEDROCK:
            headers["x-amzn-ErrorType"] = name
        return Raw(status=raw.status, body=self.fail(raw.status, raw.body["error"]["message"], name), headers=headers)


def find_wire(path: str) -> tuple[Wire, str] | None:
    """The provider that is asked at a path, and the model that the path names, if it does."""
    for wire in WIRES:
        if match := re.fullmatch(wire.path, path):
            return wire, unquote(match.groupdict().get("model") or "")
    return None


def pack_lines(body: Body) -> str | None:
    """Ollama's answer in pieces: the text in two, then the counts at the end; None for any other."""
    if "done_reason" not in body:
        return None
    text = body["message"]["content"]
    half = len(text) // 2
    pieces = [{"model": body["model"], "message": {"role": "assistant", "content": part}, "done": False}
              for part in (text[:half], text[half:])]  # fmt: skip
    return "".join(
        f"{orjson.dumps(piece).decode()}\n"
        for piece in [*pieces, {**body, "message": {"role": "assistant", "content": ""}}]
    )


def _text(completion: Body) -> str:
    message = completion["choices"][0]["message"]
    return message.get("content") or message.get("refusal") or ""


def _join(content: Any) -> str:  # noqa: ANN401  # a text, or blocks of it
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def _ask(body: Body, model: str, system: Any, messages: list[Body], schema: Body | None) -> Body:  # noqa: ANN401
    """An OpenAI request; `theirs` keeps what came."""
    chat = [{"role": "system", "content": _join(system)}] if system else []
    chat += [{"role": {"model": "assistant"}.get(item["role"], item["role"]),
              "content": _join(item.get("content", item.get("parts")))} for item in messages]  # fmt: skip
    asked = {"model": model, "messages": chat, "theirs": body}
    if schema:
        named = {"name": schema.get("title", "reply"), "schema": schema}
        asked["response_format"] = {"type": "json_schema", "json_schema": named}
    return asked


def _read_anthropic(body: Body, _: str) -> Body:
    schema = ((body.get("output_config") or {}).get("format") or {}).get("schema")
    assert body["max_tokens"] > 0, "Anthropic requires the length of a reply"
    system = body.get("system")
    contents = [*([system] if system else []), *(message["content"] for message in body["messages"])]
    mark = {"cache_control": {"type": "ephemeral"}}.items()
    marks = [place for place, content in enumerate(contents, 1)
             if isinstance(content, list) and any(mark <= block.items() for block in content)]  # fmt: skip
    return _ask(body, body["model"], system, body["messages"], schema) | {"marked": marks[-1] if marks else 0}


def _write_anthropic(completion: Body, ending: str) -> Body:
    usage = completion["usage"]
    cached, written = (usage["prompt_tokens_details"][name] for name in ("cached_tokens", "written_tokens"))
    return {
        "id": "msg_1", "type": "message", "role": "assistant", "model": completion["model"],
        "content": [{"type": "text", "text": _text(completion)}], "stop_reason": ending, "stop_sequence": None,
        # What came from the cache, or went there, is not part of the input tokens here.
        "usage": {"input_tokens": usage["prompt_tokens"] - cached - written, "cache_read_input_tokens": cached,
                  "cache_creation_input_tokens": written, "output_tokens": usage["completion_tokens"],
                  "cache_creation": {"ephemeral_5m_input_tokens": written, "ephemeral_1h_input_tokens": 0}},
    }  # fmt: skip


def _read_gemini(body: Body, model: str) -> Body:
    config = body.get("generationConfig") or {}
    system = (body.get("systemInstruction") or {}).get("parts")
    return _ask(body, model, system, body["contents"], config.get("responseJsonSchema"))


def _write_gemini(completion: Body, ending: str) -> Body:
    usage = completion["usage"]
    counts = {
        "promptTokenCount": usage["prompt_tokens"], "candidatesTokenCount": usage["completion_tokens"],
        "cachedContentTokenCount": usage["prompt_tokens_details"]["cached_tokens"],
        "totalTokenCount": usage["total_tokens"],
    }  # fmt: skip
    if ending == "PROHIBITED_CONTENT":
        return {"promptFeedback": {"blockReason": ending}, "usageMetadata": counts, "modelVersion": completion["model"]}
    content = {"role": "model", "parts": [{"text": _text(completion)}]}
    candidate = {"content": content, "finishReason": ending, "index": 0}
    return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": completion["model"]}


def _read_ollama(body: Body, _: str) -> Body:
    return _ask(body, body["model"], None, body["messages"], body.get("format"))


def _write_ollama(completion: Body, ending: str) -> Body:
    usage = completion["usage"]
    return {
        "model": completion["model"], "created_at": "2026-01-01T00:00:00Z",
        "message": {"role": "assistant", "content": _text(completion)}, "done": True, "done_reason": ending,
        "prompt_eval_count": usage["prompt_tokens"], "eval_count": usage["completion_tokens"],
    }  # fmt: skip


def _read_bedrock(body: Body, model: str) -> Body:
    structure = ((body.get("outputConfig") or {}).get("textFormat") or {}).get("structure") or {}
    schema = orjson.loads((structure.get("jsonSchema") or {}).get("schema") or "null")
    return _ask(body, model, body.get("system"), body["messages"], schema)


def _write_bedrock(completion: Body, ending: str) -> Body:
    usage = completion["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "output": {"message": {"role": "assistant", "content": [{"text": _text(completion)}]}}, "stopReason": ending,
        "usage": {"inputTokens": usage["prompt_tokens"] - cached, "outputTokens": usage["completion_tokens"],
                  "totalTokens": usage["total_tokens"], "cacheReadInputTokens": cached},
        "metrics": {"latencyMs": 1},
    }  # fmt: skip


ANTHROPIC = Wire(
    path="/v1/messages",
    read=_read_anthropic,
    write=_write_anthropic,
    fail=lambda _, message, name: {"type": "error", "error": {"type": name, "message": message}, "request_id": "r1"},
    endings={"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"},
    errors={
        400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
        429: "rate_limit_error", 500: "api_error", 503: "overloaded_error",
    },
)  # fmt: skip
GEMINI = Wire(
    path="/v1beta/models/(?P<model>[^:]+):generateContent",
    read=_read_gemini,
    write=_write_gemini,
    fail=lambda status, message, name: {"error": {"code": status, "message": message, "status": name}},
    endings={"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY", "refusal": "PROHIBITED_CONTENT"},
    errors={
        400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
        429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE",
    },
)  # fmt: skip
OLLAMA = Wire(path="/api/chat", read=_read_ollama, write=_write_ollama, fail=lambda _, message, __: {"error": message})
BEDROCK = Wire(
    path="/model/(?P<model>[^/]+)/converse",
    read=_read_bedrock,
    write=_write_bedrock,
    fail=lambda _, message, __: {"message": message},
    endings={
        "stop": "end_turn", "length": "max_tokens", "content_filter": "content_filtered",
        "refusal": "guardrail_intervened",
    },
    errors={
        400: "ValidationException", 401: "UnrecognizedClientException", 403: "AccessDeniedException",
        404: "ResourceNotFoundException", 429: "ThrottlingException", 500: "InternalServerException",
        503: "ServiceUnavailableException",
    },
)  # fmt: skip
AZURE = Wire(
    path="/openai/(?:v1|deployments/(?P<model>[^/]+))/chat/completions",
    read=lambda body, model: {**body, "model": model or body["model"]},
)
MISTRAL = Wire(
    path="/mistral/v1/chat/completions",
    fail=lambda status, message, _: {
        "object": "error", "message": message, "type": "invalid_request", "code": str(status),
    },
)  # fmt: skip
OPENAI = Wire(path="/v1/chat/completions")
WIRES = (OPENAI, ANTHROPIC, GEMINI, OLLAMA, BEDROCK, AZURE, MISTRAL)


# A server that sends exactly the bytes it is given, which no HTTP library would send.

Handle = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(handle: Handle, *, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Yields the port. `handle` gets the ordinal of the connection, from 1; it is closed when that returns."""
    accepted: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await handle(len(accepted), reader, writer)  # the client may go away meanwhile

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        # A closed writer still waits for a client to take what was written, and this client may have left.
        for writer in accepted:
            writer.transport.abort()
        await asyncio.sleep(0)  # the loop lets go of the sockets


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """The body of the next request on a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(int(length.partition(b":")[2]))


def write_answer(content: bytes, *headers: str) -> bytes:
    """A good answer with its head; it leaves the connection open."""
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def write_completion(*statements: str) -> bytes:
    """The body of a completion with these statements."""
    text = orjson.dumps({"statements": statements}).decode()
    return orjson.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})
