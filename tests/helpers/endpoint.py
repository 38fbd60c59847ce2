"""A local endpoint that speaks the OpenAI protocol, so that tests and benchmarks meet real HTTP without a network.

It answers chat completions, embeddings and batches, keeps exact counters, and can be slow, limited or broken as a
provider can: `with running_endpoint(latency=0.3, faults={"rate_limit": 0.1}) as endpoint`. Contents are made in
`endpoint_replies.py`; `endpoint_wires.py` has the formats of other providers.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import math
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import orjson
from aiohttp import web
from endpoint_replies import (
    Asked,
    Fault,
    build_completion,
    build_embeddings,
    can_show,
    compose_reply,
    count_tokens,
    read_chat,
    read_embeddings,
    spoil_reply,
)
from endpoint_wires import ANTHROPIC, OPENAI, Raw, Wire, find_wire, pack_lines
from http_thread import HttpThread

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
CLIENT_CLOSED = 499  # counted for a request whose client went away before an answer
CLIENT_ERROR = "invalid_request_error"
MAX_INPUTS = 2048  # of one embeddings request, as at OpenAI
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of no time: closing sends RST
# By fault that is an HTTP status: the status, the message, and the type and code of the error.
_HTTP_FAULTS: Mapping[str, tuple[int, str, str, str | None]] = {
    "rate_limit": (429, "Rate limit reached. Please try again later.", "requests", "rate_limit_exceeded"),
    "insufficient_quota": (429, "You exceeded your current quota.", "insufficient_quota", "insufficient_quota"),
    "server_error": (500, "The server had an error while processing your request.", "server_error", None),
    "unavailable": (503, "The engine is overloaded.", "server_error", None),
    "context_length_exceeded": (400,
     "This model's maximum context length is exceeded; reduce the length of the messages.", CLIENT_ERROR,
     "context_length_exceeded"),
}  # fmt: skip

Window = Literal["fixed", "bucket"]
Texts = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Inject:
    """A scripted fault: the endpoint's reply with this fault in it."""

    fault: Fault


# A string or a dict is the content of a completion (for embeddings: the whole body); None is the endpoint's own reply.
Canned = str | dict[str, Any] | Raw | Inject | None
Script = Mapping[str, Sequence[Canned] | Callable[[Asked], Canned]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The behaviour of the endpoint. Latency in seconds. Faults are probabilities a request."""

    seed: int = 0
    latency: float = 0.0
    faults: Mapping[Fault, float] = field(default_factory=dict)
    max_in_flight: int | None = None  # more at once are answered 429
    rpm: int | None = None  # requests let in within a window; more are answered 429
    rpm_window_s: float = 60.0
    window: Window = "fixed"  # a minute that begins again, or a bucket that refills all the time (OpenAI, Groq)
    retry_after: float | None = 1.0  # seconds in the Retry-After of a 429 or 503, written as given; None sends none
    expected_key: str | None = None
    models: tuple[str, ...] = ()  # the only models known; empty knows every name
    model_fields: Mapping[str, Any] = field(default_factory=dict)  # beside the usual ones of each model listed
    documents: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # what else is served, by path
    cached_from: int = 0  # tokens of a beginning that the cache takes at least
    no_json_schema: bool = False
    no_temperature: bool = False
    compose: Callable[[Asked], dict[str, Any] | str] = compose_reply  # the endpoint's replies; faults show in them
    script: Script = field(default_factory=dict)  # by kind: replies in turn, then the endpoint's; or a function
    keep_bodies: bool = False


@dataclass(kw_only=True)
class Stats:
    """The requests and answers so far, exact as soon as the client has the answer."""

    requests: Counter[str] = field(default_factory=Counter)  # of a model, by path
    looked_at: Counter[str] = field(default_factory=Counter)  # documents, by path, missing ones too
    kinds: Counter[str] = field(default_factory=Counter)  # extract, classify, attribute, rank, embeddings, other
    statuses: Counter[int] = field(default_factory=Counter)  # 499: the client went away first
    faults: Counter[str] = field(default_factory=Counter)  # only injected ones, without limits and refusals
    duplicates: int = 0  # bodies received before
    duplicates_answered: int = 0  # good answers sent to bodies that had been sent one before: requests paid twice
    in_flight: int = 0
    max_in_flight: int = 0
    prompt_tokens: int = 0  # reported to clients, like the three below
    cached_tokens: int = 0
    written_tokens: int = 0  # put into the cache because of a mark
    completion_tokens: int = 0
    first_request_at: float | None = None  # seconds since the epoch
    last_request_at: float | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)  # only with keep_bodies


def make_error(
    status: int, message: str, *, kind: str = CLIENT_ERROR, code: str | None = None, param: str | None = None
) -> Raw:
    """Return an error in OpenAI's shape; `kind` is its `type`."""
    return Raw(status=status, body={"error": {"message": message, "type": kind, "param": param, "code": code}})


def make_http_fault(fault: str, retry_after: float | None) -> Raw:
    """Return the error that a provider answers for a fault that is an HTTP status."""
    status, message, kind, code = _HTTP_FAULTS[fault]
    error = make_error(status, message, kind=kind, code=code, param="messages" if status == 400 else None)
    is_wait = retry_after is not None and fault in ("rate_limit", "unavailable")
    return dataclasses.replace(error, headers={"Retry-After": f"{retry_after:g}"} if is_wait else {})


def refuse_request(options: Options, asked: Asked) -> Raw | None:
    """Return the error for a request that a model with these options cannot answer, or None."""
    body = asked.body
    if options.models and asked.model not in options.models:
        return make_error(404, f"The model `{asked.model}` does not exist.", code="model_not_found", param="model")
    if asked.kind == "embeddings" and not (all(asked.texts) and 0 < len(asked.texts) <= MAX_INPUTS):
        return make_error(400, f"'input' must be 1 to {MAX_INPUTS} texts, none of them empty.", param="input")
    if body.get("stream"):
        return make_error(400, "This endpoint does not stream.", param="stream", code="unsupported_value")
    if options.no_json_schema and (body.get("response_format") or {}).get("type") == "json_schema":
        message = "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model."
        return make_error(400, message, param="response_format")
    if options.no_temperature and body.get("temperature", 1) != 1:
        message = "Unsupported value: 'temperature' must be left at its default (1) with this model."
        return make_error(400, message, param="temperature", code="unsupported_value")
    return None


@dataclass(kw_only=True)
class Trouble:
    """The faults of batches, once each in this order: `fail` gives the errors of one that is not taken, `expire` the
    share of lines that is not asked, `answer_line` the errors of lines. Results come in any order, some twice, with an
    id that was never sent."""

    fail: list[dict[str, Any]] = field(default_factory=list)
    expire: list[float] = field(default_factory=list)
    answer_line: Callable[[Asked], Raw | None] = lambda _: None
    lose_created: int = 0  # so many batches are made, and the answer is lost
    unreachable: int = 0  # so many looks are answered 503
    garbled: int = 0  # so many looks are answered by a proxy's page
    cut_results: int = 0  # so many downloads break off in the middle
    damaged: int = 0  # so many downloads begin with an invalid line


@dataclass(kw_only=True)
class Batch:
    """A batch; `lines` are the requests of its file, `answered` and `failed` its results."""

    batch_id: str
    tag: str
    wire: Wire
    lines: list[dict[str, Any]]
    created_at: float
    status: str = "validating"
    expire: float = 0.0
    errors: list[dict[str, Any]] = field(default_factory=list)
    answered: list[bytes] = field(default_factory=list)
    failed: list[bytes] = field(default_factory=list)

    def show(self, root_url: str) -> dict[str, Any]:
        """Return the batch as OpenAI or Anthropic shows it."""
        done = self.status in ("completed", "expired", "cancelled")
        if self.wire is ANTHROPIC:
            at = datetime.fromtimestamp(self.created_at, UTC).isoformat()
            counts = {"processing": 0 if done else len(self.lines), "succeeded": len(self.lines) if done else 0}
            return {
                "id": self.batch_id, "type": "message_batch", "created_at": at, "expires_at": at, "archived_at": None,
                "ended_at": at if done else None, "cancel_initiated_at": None,
                "processing_status": "ended" if done else "in_progress",
                "request_counts": {**counts, "errored": 0, "canceled": 0, "expired": 0},
                "results_url": f"{root_url}/v1/messages/batches/{self.batch_id}/results" if done else None,
            }  # fmt: skip
        output, errors = (
            f"file-{self.batch_id}-{kind}" if done and getattr(self, kind) else None for kind in ("answered", "failed")
        )
        return {
            "id": self.batch_id, "object": "batch", "endpoint": CHAT, "completion_window": "24h",
            "input_file_id": "file-1", "created_at": int(self.created_at), "status": self.status,
            "output_file_id": output, "error_file_id": errors,
            "metadata": {"evalhouse_batch": self.tag}, "errors": {"object": "list", "data": self.errors},
            "request_counts": {
                "total": len(self.lines), "completed": len(self.answered), "failed": len(self.failed)
            },
        }  # fmt: skip

    def write_result(self, answer: Raw | None, status: str) -> dict[str, Any]:
        """Return the result of a line; without an answer that it was left when the batch ended with this status."""
        if self.wire is ANTHROPIC:
            if answer is None:
                return {"result": {"type": {"cancelled": "canceled"}.get(status, status)}}
            good = {"type": "succeeded", "message": answer.body}
            return {"result": good if answer.status == 200 else {"type": "errored", "error": answer.body}}
        if answer is None:
            return {"response": None, "error": {"code": f"batch_{status}", "message": "It could not be executed."}}
        return {"response": {"status_code": answer.status, "request_id": "req_1", "body": answer.body}, "error": None}


class Endpoint(HttpThread):
    """The server in a separate thread. `base_url` ends in /v1; `stats` may be read at any time.

    Batches take `takes_s` seconds, or until they are cancelled when None; each line is answered as the same request
    would be that came by itself. `paid` counts every answered request by its texts.
    """

    def __init__(
        self, options: Options, port: int = 0, *, takes_s: float | None = 0.2, trouble: Trouble | None = None
    ) -> None:
        super().__init__(port)
        self.options = options
        self.takes_s = takes_s
        self.trouble = trouble or Trouble()
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, Batch] = {}
        self.paid: Counter[Texts] = Counter()
        self._dice = random.Random(options.seed)
        self._reset()

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    @property
    def paid_twice(self) -> list[Texts]:
        """The requests that were answered more than once."""
        return [texts for texts, number in self.paid.items() if number > 1]

    def configure(self, **changes: Any) -> None:  # noqa: ANN401  # Options checks them
        """Change options from the next request on; counters continue."""
        self.options = dataclasses.replace(self.options, **changes)

    def reset(self) -> None:
        """Forget all requests, as after a fresh start; requests still in flight stay counted as such."""
        self.call(self._reset)

    def _reset(self) -> None:
        in_flight = self.stats.in_flight if hasattr(self, "stats") else 0
        self.stats = Stats(in_flight=in_flight, max_in_flight=in_flight)
        self._chances = random.Random(self.options.seed)
        self._n_sent = 0
        self._seen: set[bytes] = set()  # digests of bodies
        self._answered: set[bytes] = set()
        self._prefixes: set[int] = set()  # hashes of model and all messages but the last
        self._scripted: Counter[str] = Counter()
        self._let_in, self._let_in_at = 0.0, -math.inf  # of `rpm`, and when they were counted, or the window began

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "GET":
            self.stats.looked_at[request.path] += 1
        match (request.method, *request.path.strip("/").split("/")):
            case ("POST", "v1", "embeddings"):
                return await self._handle_model(request, EMBEDDINGS)
            case ("GET", "v1", "models"):
                if refused := self._check_key(request):
                    return self._send(refused)
                usual = {"object": "model", "created": 0, "owned_by": "evalhouse"}
                names = self.options.models or ("judge", "embedder")
                listed = [{"id": name, **usual, **self.options.model_fields} for name in names]
                return web.json_response({"object": "list", "data": listed})
            case (_, "v1", "files" | "batches", *_) | (_, "v1", "messages", "batches", *_):
                return await self._handle_batches(request)
        if request.method == "POST" and find_wire(request.path):
            return await self._handle_model(request, request.path)
        document = self.options.documents.get(request.path) if request.method == "GET" else None
        return self._send(
            Raw(body=document) if document else make_error(404, f"{request.method} {request.path} is not served")
        )

    # Requests of a model

    async def _handle_model(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        arrived_at = time.monotonic()
        wire, model = find_wire(path) or (OPENAI, "")
        content = await request.content.read()
        digest = hashlib.sha256(content).digest()
        chance = self._count_arrival(path, digest)
        try:
            body = orjson.loads(content)
            asked = read_embeddings(body) if path == EMBEDDINGS else read_chat(wire.read(body, model))
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError, AssertionError) as error:
            return self._send(make_error(400, f"cannot read the request: {error!r}"), wire)
        self.stats.kinds[asked.kind] += 1
        if self.options.keep_bodies:
            self.stats.bodies.append(body)
        if refused := self._check_key(request) or refuse_request(self.options, asked) or self._check_limits():
            return self._send(refused, wire)
        self.stats.in_flight += 1
        self.stats.max_in_flight = max(self.stats.max_in_flight, self.stats.in_flight)
        try:
            response = await self._answer(request, asked, chance, digest, arrived_at, wire=wire)
            self.paid[tuple(asked.texts)] += response.status == 200
            return response
        except asyncio.CancelledError:
            self.stats.statuses[CLIENT_CLOSED] += 1
            raise
        finally:
            self.stats.in_flight -= 1

    def _count_arrival(self, path: str, digest: bytes) -> float:
        """Count a request, and draw the number in [0, 1) that decides its fault."""
        stats = self.stats
        stats.requests[path] += 1
        stats.last_request_at = time.time()
        stats.first_request_at = stats.first_request_at or stats.last_request_at
        stats.duplicates += digest in self._seen
        self._seen.add(digest)
        return self._chances.random()

    def _check_key(self, request: web.BaseRequest) -> Raw | None:
        expected = self.options.expected_key
        sent = {request.headers.get(name, "") for name in ("Authorization", "api-key", "x-api-key", "x-goog-api-key")}
        if expected is None or sent & {f"Bearer {expected}", expected}:
            return None
        return make_error(401, "Incorrect API key provided.", code="invalid_api_key")

    def _check_limits(self) -> Raw | None:
        options, now = self.options, time.monotonic()
        if options.max_in_flight is not None and self.stats.in_flight >= options.max_in_flight:
            return make_http_fault("rate_limit", options.retry_after)
        if options.rpm is None:
            return None
        window_s, is_bucket = options.rpm_window_s, options.window == "bucket"
        if is_bucket:
            refilled = (now - self._let_in_at) * options.rpm / window_s
            self._let_in, self._let_in_at = max(0.0, self._let_in - refilled), now
        elif now >= self._let_in_at + window_s:
            self._let_in, self._let_in_at = 0.0, now
        if (missing := self._let_in + 1 - options.rpm) > 1e-6:
            wait_s = missing * window_s / options.rpm if is_bucket else self._let_in_at + window_s - now
            # Whole seconds, as the header is defined.
            return make_http_fault("rate_limit", None if options.retry_after is None else math.ceil(wait_s))
        self._let_in += 1
        return None

    async def _answer(
        self, request: web.BaseRequest, asked: Asked, chance: float, digest: bytes, arrived_at: float, *, wire: Wire
    ) -> web.StreamResponse:
        canned = self._take_canned(asked)  # before any wait, so that a script is used in the order of arrival
        fault = self._choose_fault(asked, canned, chance)
        if isinstance(canned, Raw):
            raw = canned
        elif fault in _HTTP_FAULTS:
            raw = make_http_fault(str(fault), self.options.retry_after)
        else:
            raw = self._make_answer(asked, None if isinstance(canned, Inject) else canned, fault)
        if self.options.latency:  # the making of the answer is part of it
            await asyncio.sleep(self.options.latency - (time.monotonic() - arrived_at))
        if fault is not None:
            self.stats.faults[fault] += 1
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "reset":
            return await self._break_off(request, orjson.dumps(raw.body))
        if fault is None and raw.status == 200:
            self.stats.duplicates_answered += digest in self._answered
            self._answered.add(digest)
        return self._send(raw, wire)

    def _take_canned(self, asked: Asked) -> Canned:
        script = self.options.script.get(asked.kind, ())
        if callable(script):
            return script(asked)
        position = self._scripted[asked.kind]
        self._scripted[asked.kind] += 1
        return script[position] if position < len(script) else None

    def _choose_fault(self, asked: Asked, canned: Canned, chance: float) -> Fault | None:
        """Return the script's fault, else one by chance; one that could not show is left out and not counted."""
        fault = canned.fault if isinstance(canned, Inject) else None
        bound = 0.0
        for name, probability in self.options.faults.items() if canned is None else ():
            bound += probability
            if fault is None and chance < bound:
                fault = name
        return fault if fault is None or can_show(fault, asked) else None

    def _make_answer(self, asked: Asked, canned: str | dict[str, Any] | None, fault: Fault | None) -> Raw:
        """Return a status 200 with the canned content or the endpoint's, and with the fault of content if there is one.

        Tokens of all messages but the last are cached when the same model was sent the same ones before; else they are
        written. Where requests are marked that is up to the mark, and nothing else is kept.
        """
        if asked.kind == "embeddings":
            return Raw(body=build_embeddings(asked) if canned is None else canned)
        choice = spoil_reply(self.options.compose(asked) if canned is None else canned, fault)
        shared = asked.texts[: asked.body.get("marked", -1)]
        n_tokens, prefix = count_tokens(*shared), hash((asked.model, shared))
        cached, written = 0, 0
        if shared and n_tokens >= self.options.cached_from:
            if prefix in self._prefixes:
                cached = n_tokens
            elif "marked" in asked.body:
                written = n_tokens
            self._prefixes.add(prefix)
        return Raw(body=build_completion(asked, choice, sum(self.stats.requests.values()), cached, written))

    def _send(self, raw: Raw, wire: Wire = OPENAI) -> web.Response:
        self.stats.statuses[raw.status] += 1
        self._n_sent += 1
        headers = {"x-request-id": f"req_{self._n_sent}", **raw.headers}
        if isinstance(raw.body, str):
            return web.Response(status=raw.status, text=raw.body, headers=headers)
        if usage := raw.body.get("usage"):
            details = usage.get("prompt_tokens_details") or {}
            self.stats.prompt_tokens += usage["prompt_tokens"]
            self.stats.completion_tokens += usage.get("completion_tokens", 0)
            self.stats.cached_tokens += details.get("cached_tokens", 0)
            self.stats.written_tokens += details.get("written_tokens", 0)
        headers = {"Content-Type": "application/json", **headers}
        sent = raw if wire is OPENAI else wire.dress(Raw(status=raw.status, body=raw.body, headers=headers))
        assert isinstance(sent.body, dict)
        lines = pack_lines(sent.body)
        content = orjson.dumps(sent.body) if lines is None else lines.encode()
        return web.Response(status=raw.status, body=content, headers=headers if wire is OPENAI else sent.headers)

    async def _give(self, request: web.BaseRequest, results: bytes) -> web.StreamResponse:
        if not self.trouble.cut_results:
            return web.Response(body=results)
        self.trouble.cut_results -= 1
        return await self._break_off(request, results)

    async def _break_off(self, request: web.BaseRequest, content: bytes) -> web.StreamResponse:
        """Send the head and half of the body, then reset the connection."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content[: len(content) // 2])
        self.stats.statuses[200] += 1
        if request.transport is not None:
            request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            request.transport.abort()
        return response

    # Batches

    async def _handle_batches(self, request: web.BaseRequest) -> web.StreamResponse:
        content = await request.content.read()
        batches = [batch.show(self.root_url) for batch in reversed(self.batches.values())]
        match (request.method, *request.path.strip("/").split("/")[1:]):
            case ("POST", "files"):
                boundary = b"--" + request.headers["Content-Type"].partition("boundary=")[2].strip('"').encode()
                parts = [part.partition(b"\r\n\r\n") for part in content.split(boundary)[1:-1]]
                (file,) = [body.removesuffix(b"\r\n") for head, _, body in parts if b'name="file"' in head]
                assert any(body.strip() == b"batch" for head, _, body in parts if b'name="purpose"' in head)
                file_id = f"file-{len(self.files) + 1}"
                self.files[file_id] = file
                shown = {"id": file_id, "object": "file", "bytes": len(file), "created_at": 0, "filename": "f"}
                return self._send(Raw(body={**shown, "purpose": "batch", "status": "processed"}))
            case ("GET", "files", file_id, "content"):
                found = self.files.get(file_id)
                return (
                    self._send(make_error(404, "No such File")) if found is None else await self._give(request, found)
                )
            case ("POST", "batches"):
                body = orjson.loads(content)
                assert body["endpoint"] == CHAT
                lines = [orjson.loads(line) for line in self.files[body["input_file_id"]].splitlines()]
                return self._make_batch(lines, body["metadata"]["evalhouse_batch"], OPENAI)
            case ("POST", "messages", "batches"):
                lines = [{**line, "body": line["params"]} for line in orjson.loads(content)["requests"]]
                return self._make_batch(lines, "", ANTHROPIC)
            case ("GET", "batches"):
                return self._send(Raw(body={"object": "list", "data": batches, "has_more": False}))
            case ("GET", "messages", "batches"):
                return self._send(Raw(body={"data": batches, "first_id": None, "last_id": None, "has_more": False}))
            case ("GET", "batches", batch_id) | ("GET", "messages", "batches", batch_id):
                return self._look_at_batch(batch_id)
            case ("GET", "messages", "batches", batch_id, "results"):
                made = self.batches[batch_id]
                lines = [*made.answered, *made.failed]
                if self.trouble.damaged:
                    self.trouble.damaged -= 1
                    lines[0] = b"{oops"
                return await self._give(request, b"\n".join(lines) + b"\n")
            case ("POST", "batches", batch_id, "cancel") | ("POST", "messages", "batches", batch_id, "cancel"):
                made = self.batches[batch_id]
                if made.status in ("validating", "in_progress"):
                    self._work_off(made, self._dice.randrange(len(made.lines)), "cancelled")
                return self._send(Raw(body=made.show(self.root_url)))
        return self._send(make_error(404, f"{request.method} {request.path} is not served"))

    def _make_batch(self, lines: list[dict[str, Any]], tag: str, wire: Wire) -> web.Response:
        assert len({line["custom_id"] for line in lines}) == len(lines)
        batch_id = f"batch_{len(self.batches) + 1}"
        made = Batch(batch_id=batch_id, tag=tag, lines=lines, created_at=time.time(), wire=wire)
        self.batches[batch_id] = made
        if self.trouble.fail:
            made.errors, made.status = [self.trouble.fail.pop(0)], "failed"
        elif self.trouble.expire:
            made.expire = self.trouble.expire.pop(0)
        if self.trouble.lose_created:
            self.trouble.lose_created -= 1
            return self._send(make_error(502, "Bad gateway"))
        return self._send(Raw(body=made.show(self.root_url)))

    def _look_at_batch(self, batch_id: str) -> web.Response:
        """Show a batch; it is worked off at the first look after `takes_s`."""
        if self.trouble.unreachable:
            self.trouble.unreachable -= 1
            return self._send(make_error(503, "The server is overloaded"))
        if self.trouble.garbled:
            self.trouble.garbled -= 1
            return web.Response(text="<html>Please wait</html>", content_type="text/html")
        if (made := self.batches.get(batch_id)) is None:
            return self._send(make_error(404, f"No batch found with id '{batch_id}'."))
        if made.status in ("validating", "in_progress"):
            made.status = "in_progress"
            if self.takes_s is not None and time.time() - made.created_at >= self.takes_s:
                n_asked = round(len(made.lines) * (1 - made.expire))
                self._work_off(made, n_asked, "expired" if n_asked < len(made.lines) else "completed")
        return self._send(Raw(body=made.show(self.root_url)))

    def _work_off(self, made: Batch, n_asked: int, status: str) -> None:
        for place, line in enumerate(made.lines):
            answer = self._answer_line(made.wire, line) if place < n_asked else None
            listed = made.answered if answer is not None and answer.status == 200 else made.failed
            listed.append(orjson.dumps({"custom_id": line["custom_id"], **made.write_result(answer, status)}))
        if made.answered:
            stranger = orjson.loads(made.answered[0]) | {"custom_id": "stranger"}
            made.answered += [*made.answered[: len(made.answered) // 3], orjson.dumps(stranger)]
            self._dice.shuffle(made.answered)
        for kind in ("answered", "failed"):
            self.files[f"file-{made.batch_id}-{kind}"] = b"\n".join(getattr(made, kind)) + b"\n"
        made.status = status

    def _answer_line(self, wire: Wire, line: dict[str, Any]) -> Raw:
        chance = self._count_arrival(CHAT, hashlib.sha256(orjson.dumps(line["body"])).digest())
        asked = read_chat(wire.read(line["body"], ""))
        self.stats.kinds[asked.kind] += 1
        if refused := self.trouble.answer_line(asked) or refuse_request(self.options, asked):
            return wire.dress(refused)
        canned = self._take_canned(asked)
        fault = self._choose_fault(asked, canned, chance)
        assert not canned or isinstance(canned, str | dict)
        self.paid[tuple(asked.texts)] += 1
        return wire.dress(self._make_answer(asked, canned, fault))  # type: ignore[arg-type]  # asserted


@contextlib.contextmanager
def running_endpoint(
    *,
    takes_s: float | None = 0.2,
    trouble: Trouble | None = None,
    **options: Any,  # noqa: ANN401  # Options checks them
) -> Iterator[Endpoint]:
    """Run an endpoint in a thread of this process, for a fixture; `options` are the fields of Options."""
    with Endpoint(Options(**options), takes_s=takes_s, trouble=trouble) as endpoint:
        yield endpoint
