"""A local endpoint that speaks the OpenAI protocol, so that tests and benchmarks meet real HTTP without a network.

It answers chat completions and embeddings, keeps exact counters of what it was asked, and can be slow, limited or
broken in every way a provider can. In a test: `with running_endpoint(latency=0.3, faults={"rate_limit": 0.1}) as
endpoint`. For a benchmark in another process: `python tests/helpers/endpoint.py --port 0 --latency 0.3`, which prints
its addresses as one line of JSON and then serves, with `GET /stats` and `POST /reset` beside the protocol. Contents are
made in `endpoint_replies.py`, options and errors in `endpoint_options.py`, limits by the minute in
`endpoint_limits.py`; here are the server and its faults.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import hashlib
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, get_args

import orjson
from aiohttp import web
from endpoint_limits import Counted, Window
from endpoint_options import (
    Canned,
    Chances,
    Inject,
    Options,
    Raw,
    Stats,
    draw_fault,
    draw_latency,
    make_error,
    make_http_fault,
    refuse_request,
)
from endpoint_replies import (
    Asked,
    ContentFault,
    Fault,
    build_completion,
    build_embeddings,
    can_show,
    count_tokens,
    read_chat,
    read_embeddings,
    spoil_reply,
)
from endpoint_wires import OPENAI, Wire, find_wire, pack_lines

__all__ = ["Asked", "Canned", "Endpoint", "Inject", "Options", "Raw", "Stats", "running_command", "running_endpoint"]

CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
MODELS = "/v1/models"
CLIENT_CLOSED = 499  # counted for a request whose client went away before an answer
_CONTENT_FAULTS = get_args(ContentFault)
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of no time: closing sends RST


@dataclass(kw_only=True)
class _Memory:
    """What the server must remember between requests besides the counters."""

    ordinal: int = 0  # of the last request, from 1
    n_sent: int = 0
    seen: set[bytes] = field(default_factory=set)  # digests of bodies
    answered: set[bytes] = field(default_factory=set)
    prefixes: set[int] = field(default_factory=set)  # hashes of model and all messages but the last
    scripted: Counter[str] = field(default_factory=Counter)
    counted: Counted = field(default_factory=Counted)
    cpu_s: float = 0.0  # of the server's thread when counting began


class Endpoint:
    """The server in a thread of its own. `base_url` ends in /v1; `stats` may be read at any time."""

    def __init__(self, options: Options, port: int = 0) -> None:
        self.options = options
        self.stats = Stats()
        self._memory = _Memory()
        self._port = port
        self._started: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="endpoint", daemon=True)

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    def start(self) -> None:
        """Return when the port is open; an error of the server (port in use) is raised here."""
        self._thread.start()
        self._port = self._started.result(timeout=30)

    def stop(self) -> None:
        """Close every connection, those of hanging requests too, and wait for the thread."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout=30)

    def configure(self, **changes: Any) -> None:  # noqa: ANN401  # Options checks them
        """Behave otherwise from the next request on; counters go on."""
        self.options = dataclasses.replace(self.options, **changes)

    def reset(self) -> None:
        """Forget all that was asked, as after a fresh start; requests still in flight stay counted as such."""

        async def reset_in_loop() -> None:
            self._reset()

        asyncio.run_coroutine_threadsafe(reset_in_loop(), self._loop).result(timeout=30)

    def _reset(self) -> None:
        self.stats = Stats(in_flight=self.stats.in_flight, max_in_flight=self.stats.in_flight)
        self._memory = _Memory(cpu_s=time.thread_time())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._slots = asyncio.Semaphore(self.options.slots or sys.maxsize)
        # A handler ends with its client, so that a hung request is over when the client gives up.
        server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, shutdown_timeout=0.05)
        try:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port, backlog=1024).start()
        except OSError as error:
            self._started.set_exception(error)
            return
        self._started.set_result(runner.addresses[0][1])
        await self._stopping.wait()
        await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        route = f"{request.method} {request.path}"
        self.stats.looked_at.update([request.path] if request.method == "GET" else [])
        match route:
            case "POST /v1/embeddings":
                return await self._handle_model(request, EMBEDDINGS)
            case "GET /v1/models":
                return self._list_models(request)
            case "GET /stats":
                return web.Response(body=self._report(), content_type="application/json")
            case "POST /reset":
                self._reset()
                return web.Response(body=b"{}", content_type="application/json")
        if request.method == "POST" and find_wire(request.path):
            return await self._handle_model(request, request.path)
        known = f"POST {CHAT}, POST {EMBEDDINGS}, GET {MODELS}, GET /stats, POST /reset"
        document = self.options.documents.get(request.path) if request.method == "GET" else None
        return self._send(Raw(body=document) if document else make_error(404, f"{route} is not served; known: {known}"))

    def _report(self) -> bytes:
        report = {item.name: getattr(self.stats, item.name) for item in dataclasses.fields(Stats)}
        report["cpu_s"] = time.thread_time() - self._memory.cpu_s
        return orjson.dumps(report, option=orjson.OPT_NON_STR_KEYS)

    def _list_models(self, request: web.BaseRequest) -> web.Response:
        if refused := self._check_key(request):
            return self._send(refused)
        names = self.options.models or ("judge", "embedder")
        usual = {"object": "model", "created": 0, "owned_by": "evalhouse"}
        data = [{"id": name, **usual, **self.options.model_fields} for name in names]
        return web.Response(body=orjson.dumps({"object": "list", "data": data}), content_type="application/json")

    async def _handle_model(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        arrived_at = time.monotonic()
        wire, model = find_wire(path) or (OPENAI, "")
        content = await request.content.read()
        digest = hashlib.sha256(content).digest()
        chances = self._count_arrival(path, digest)
        try:
            body = orjson.loads(content)
            asked = read_embeddings(body) if path == EMBEDDINGS else read_chat(wire.read(body, model))
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError, AssertionError) as error:
            return self._send(make_error(400, f"cannot read the request: {error!r}"), wire)
        self.stats.kinds[asked.kind] += 1
        if self.options.keep_bodies:
            self.stats.bodies.append(body)
        if refused := self._check_key(request) or refuse_request(self.options, asked) or self._check_limits(asked):
            return self._send(refused, wire)
        self.stats.in_flight += 1
        self.stats.max_in_flight = max(self.stats.max_in_flight, self.stats.in_flight)
        try:
            return await self._answer(request, asked, chances, digest, arrived_at, wire=wire)
        except asyncio.CancelledError:
            self.stats.statuses[CLIENT_CLOSED] += 1
            raise
        finally:
            self.stats.in_flight -= 1

    def _count_arrival(self, path: str, digest: bytes) -> Chances:
        stats, memory = self.stats, self._memory
        stats.requests[path] += 1
        stats.last_request_at = time.time()
        stats.first_request_at = stats.first_request_at or stats.last_request_at
        stats.duplicates += digest in memory.seen
        memory.seen.add(digest)
        memory.ordinal += 1
        return Chances.draw(self.options.seed, memory.ordinal)

    def _check_key(self, request: web.BaseRequest) -> Raw | None:
        expected = self.options.expected_key
        sent = {request.headers.get(name, "") for name in ("Authorization", "api-key", "x-api-key", "x-goog-api-key")}
        if expected is None or sent & {f"Bearer {expected}", expected}:
            return None
        return make_error(401, "Incorrect API key provided.", code="invalid_api_key")

    def _check_limits(self, asked: Asked) -> Raw | None:
        options = self.options
        if options.max_in_flight is not None and self.stats.in_flight >= options.max_in_flight:
            return make_http_fault("rate_limit", options.retry_after)
        wait_s = self._memory.counted.let_in(count_tokens(*asked.texts), options, time.monotonic())
        if wait_s is None:
            return None
        # Whole seconds, as the header is defined.
        return make_http_fault("rate_limit", None if options.retry_after is None else math.ceil(wait_s))

    async def _answer(
        self,
        request: web.BaseRequest,
        asked: Asked,
        chances: Chances,
        digest: bytes,
        arrived_at: float,
        *,
        wire: Wire,
    ) -> web.StreamResponse:
        canned = self._take_canned(asked)  # before any wait, so that a script is used in the order of arrival
        fault = self._choose_fault(asked, canned, chances.fault)
        if isinstance(canned, Raw):
            raw = canned
        elif fault is not None and fault not in ("reset", "hang") and fault not in _CONTENT_FAULTS:
            raw = make_http_fault(fault, self.options.retry_after)
        else:
            raw = self._make_answer(asked, None if isinstance(canned, Inject) else canned, fault, chances.ordinal)
        if wait_s := draw_latency(self.options.latency, chances.latency):
            async with self._slots:
                # A provider's latency has the making of its answer in it.
                began = arrived_at if self.options.slots is None else time.monotonic()
                await asyncio.sleep(wait_s - (time.monotonic() - began))
        if fault is not None:
            self.stats.faults[fault] += 1
        if fault == "hang":
            await asyncio.Event().wait()
        if fault == "reset":
            return await self._break_off(request, raw)
        if fault is None and raw.status == 200:
            self.stats.duplicates_answered += digest in self._memory.answered
            self._memory.answered.add(digest)
        return self._send(raw, wire)

    def _take_canned(self, asked: Asked) -> Canned:
        script = self.options.script.get(asked.kind, ())
        if callable(script):
            return script(asked)
        position = self._memory.scripted[asked.kind]
        self._memory.scripted[asked.kind] += 1
        return script[position] if position < len(script) else None

    def _choose_fault(self, asked: Asked, canned: Canned, chance: float) -> Fault | None:
        """The fault to inject: the script's, else by chance; one that could not show is left out and not counted."""
        if canned is not None and not isinstance(canned, Inject):
            return None
        fault = canned.fault if canned else draw_fault(self.options.faults, chance)
        return fault if fault is None or can_show(fault, asked) else None

    def _make_answer(self, asked: Asked, canned: str | dict[str, Any] | None, fault: Fault | None, ordinal: int) -> Raw:
        """A status 200 with the canned content or the endpoint's own, and with the fault of content if there is one."""
        if asked.kind == "embeddings":
            return Raw(body=build_embeddings(asked, self.options.dimensions) if canned is None else canned)
        choice = spoil_reply(self.options.compose(asked) if canned is None else canned, fault)
        return Raw(body=build_completion(asked, choice, ordinal, *self._count_cached(asked)))

    def _count_cached(self, asked: Asked) -> tuple[int, int]:
        """Tokens of all messages but the last, when the same model was sent the same ones before; else those written.

        Where requests are marked that is up to the mark, and nothing else is kept.
        """
        shared = asked.texts[: asked.body.get("marked", -1)]
        n_tokens = count_tokens(*shared)
        if not shared or n_tokens < self.options.cached_from:
            return 0, 0
        prefix = hash((asked.model, shared))
        if prefix in self._memory.prefixes:
            return n_tokens, 0
        self._memory.prefixes.add(prefix)
        return 0, n_tokens if "marked" in asked.body else 0

    def _send(self, raw: Raw, wire: Wire = OPENAI) -> web.Response:
        self.stats.statuses[raw.status] += 1
        if isinstance(raw.body, str):
            return web.Response(status=raw.status, text=raw.body, headers=self._make_headers(raw))
        if usage := raw.body.get("usage"):
            self.stats.prompt_tokens += usage["prompt_tokens"]
            self.stats.completion_tokens += usage.get("completion_tokens", 0)
            details = usage.get("prompt_tokens_details") or {}
            self.stats.cached_tokens += details.get("cached_tokens", 0)
            self.stats.written_tokens += details.get("written_tokens", 0)
        headers = {"Content-Type": "application/json", **self._make_headers(raw)}
        sent = raw if wire is OPENAI else wire.dress(Raw(status=raw.status, body=raw.body, headers=headers))
        assert isinstance(sent.body, dict)
        lines = pack_lines(sent.body)
        content = orjson.dumps(sent.body) if lines is None else lines.encode()
        return web.Response(status=raw.status, body=content, headers=headers if wire is OPENAI else sent.headers)

    def _make_headers(self, raw: Raw) -> dict[str, str]:
        self._memory.n_sent += 1
        return {"x-request-id": f"req_{self._memory.n_sent}", **raw.headers}

    async def _break_off(self, request: web.BaseRequest, raw: Raw) -> web.StreamResponse:
        """Send the head and half of the body, then reset the connection."""
        content = orjson.dumps(raw.body)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(content)
        await response.prepare(request)
        await response.write(content[: len(content) // 2])
        self.stats.statuses[200] += 1
        if request.transport is not None:
            request.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            request.transport.abort()
        return response


@contextlib.contextmanager
def running_endpoint(**options: Any) -> Iterator[Endpoint]:  # noqa: ANN401  # Options checks them
    """An endpoint in a thread of this process, for a fixture; `options` are the fields of Options."""
    endpoint = Endpoint(Options(**options))
    endpoint.start()
    try:
        yield endpoint
    finally:
        endpoint.stop()


@contextlib.contextmanager
def running_command(*arguments: str) -> Iterator[dict[str, Any]]:
    """The endpoint in a process of its own; yields what it prints: base_url, stats_url, reset_url, pid."""
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield orjson.loads(process.stdout.readline())
        finally:
            process.terminate()


def _read_faults(text: str) -> dict[str, float]:
    """`name=probability,...` as a mapping; Options refuses unknown names."""
    pairs = (pair.partition("=") for pair in text.split(","))
    return {name.strip(): float(probability) for name, _, probability in pairs}


def _read_arguments() -> dict[str, Any]:
    """The port and those options that were given; their defaults are those of Options."""
    parser = argparse.ArgumentParser(
        description="Serve the OpenAI protocol locally, for benchmarks.", argument_default=argparse.SUPPRESS
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--latency", help="seconds, least-most, or tail:least")
    parser.add_argument("--faults", type=_read_faults, help="name=probability,...")
    parser.add_argument("--max-in-flight", type=int)
    parser.add_argument("--rpm", type=int)
    parser.add_argument("--tpm", type=int)
    parser.add_argument("--rpm-window-s", type=float)
    parser.add_argument("--window", choices=get_args(Window))
    parser.add_argument("--retry-after", type=lambda text: None if text == "none" else float(text))
    parser.add_argument("--expected-key")
    parser.add_argument("--models", type=lambda text: tuple(text.split(",")), help="name,...")
    parser.add_argument("--context-limit", type=int, help="tokens")
    parser.add_argument("--dimensions", type=int)
    for switch in ("no-json-schema", "no-temperature", "keep-bodies"):
        parser.add_argument(f"--{switch}", action="store_true")
    return vars(parser.parse_args())


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    arguments = _read_arguments()
    endings = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, endings)
    endpoint = Endpoint(
        Options(**{name: value for name, value in arguments.items() if name != "port"}), arguments["port"]
    )
    endpoint.start()
    addresses = {"base_url": endpoint.base_url, "stats_url": f"{endpoint.root_url}/stats"}
    print(
        orjson.dumps({**addresses, "reset_url": f"{endpoint.root_url}/reset", "pid": os.getpid()}).decode(), flush=True
    )
    signal.sigwait(endings)
    endpoint.stop()


if __name__ == "__main__":
    main()
