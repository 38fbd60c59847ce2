"""Connections to `evalhouse ui` and `evalhouse receive`: no client without a token keeps the others out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from cli_process import Place
from receiving import TOKEN
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from warehouse_runs import lay_warehouse

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.server import connections
from evalhouse.flows.server.local import Guard

MAX = 12
POST = b"POST /%s HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
# What a client sends, and what it sends again and again afterwards.
SLOW_CLIENTS = {
    "nothing": (b"", b""),
    "half a header": (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ", b""),
    "a header in drops": (b"GET / HTTP/1.1\r\nHost: x\r\nX-A: ", b"y"),
    "a second header in drops": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nX: ", b"y"),
    "half a body": (POST % b"read", b""),
    "a body in drops": (POST % b"read", b"y"),
    "a refused body in drops": (POST % b"refuse", b"y"),
    "chunks in drops": (b"POST /read HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\ny\r\n"),
    "no reading": (b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", b""),
    "no reading of a last response": (b"GET /large HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b""),
    "no reading of a short response": (b"GET /whole HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b""),
}


async def _answer(request: Request) -> Response:
    match request.url.path:
        case "/read":
            return PlainTextResponse(str(len(await request.body())))
        case "/large":
            return StreamingResponse((b"x" * 1_000_000 for _ in range(20)), media_type="text/plain")
        case "/whole":
            return PlainTextResponse(b"x" * 20_000_000)
        case "/slow":
            await asyncio.sleep(1.0)
    return PlainTextResponse("refused", 401)


@contextlib.contextmanager
def _serving(errors: list[dict[str, object]] | None = None) -> Iterator[tuple[int, uvicorn.Server]]:
    """Serve an app, and yield its port and its server; what goes wrong in its event loop is added to `errors`."""

    @contextlib.asynccontextmanager
    async def note_errors(_: Starlette) -> AsyncIterator[None]:
        if errors is not None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        yield

    with connections.listen("127.0.0.1", None, 0) as listening:
        server = connections.make_server(
            Starlette(routes=[Route("/{rest:path}", _answer, methods=["GET", "POST"])], lifespan=note_errors), leave_s=1
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield int(listening.getsockname()[1]), server
        finally:
            server.should_exit = True
            thread.join()


def _shorten(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for name in ("HEADERS_S", "BODY_S", "UNREAD_S"):
        monkeypatch.setattr(connections, name, seconds)


def _open(port: int, text: bytes) -> socket.socket:
    client = socket.socket()
    client.connect(("127.0.0.1", port))
    client.sendall(text)
    return client


def _ask(port: int, path: str = "/", *, timeout_s: float = 5.0) -> int:
    return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=timeout_s).status_code


@pytest.mark.parametrize("kind", SLOW_CLIENTS)
def test_slow_client_is_closed_however_it_is_slow(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _shorten(monkeypatch, 0.2)
    text, drop = SLOW_CLIENTS[kind]
    errors = list[dict[str, object]]()
    with _serving(errors) as (port, server), _open(port, text) as client:
        deadline = time.monotonic() + 10
        while not server.server_state.connections:
            time.sleep(0.01)
        while server.server_state.connections and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                client.sendall(drop)
            time.sleep(0.05)
        assert not server.server_state.connections
    assert errors == []


def test_client_that_is_slow_for_a_reason_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that takes the server long, and a response that is read slowly."""
    _shorten(monkeypatch, 0.5)
    errors = list[dict[str, object]]()
    with _serving(errors) as (port, _):
        assert _ask(port, "/slow") == 401
        with _open(port, b"GET /whole HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as client:
            began_at, n_read = time.monotonic(), 0
            while part := client.recv(150_000):
                n_read += len(part)
                time.sleep(0.01)
        assert n_read > 20_000_000
        assert time.monotonic() - began_at > 1.0
    assert errors == []


@pytest.mark.parametrize("kind", ["half a header", "half a body", "no reading of a last response"])
def test_other_clients_are_served_while_slow_ones_take_every_place(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "find_max_connections", lambda: MAX)
    with _serving() as (port, server), contextlib.ExitStack() as opened:
        for _ in range(3 * MAX):
            opened.enter_context(_open(port, SLOW_CLIENTS[kind][0]))
            time.sleep(0.005)  # the queue of connections that are not accepted yet is short
        assert [_ask(port) for _ in range(3)] == [401] * 3
        assert len(server.server_state.connections) <= MAX


def test_request_that_is_being_answered_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "find_max_connections", lambda: MAX)
    with _serving() as (port, _), contextlib.ExitStack() as opened:
        statuses = list[int]()
        asking = threading.Thread(target=lambda: statuses.append(_ask(port, "/slow")))
        asking.start()
        uploading = opened.enter_context(_open(port, POST % b"read"))
        time.sleep(0.2)
        for _ in range(3 * MAX):
            opened.enter_context(_open(port, b"GET"))
            time.sleep(0.005)
        uploading.sendall(b"x" * 1_000_000)
        assert b"200 OK" in uploading.recv(1000)
        asking.join()
    assert statuses == [401]


def test_equal_error_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [OSError(24, "Too many open files"), ClientDisconnect(), asyncio.CancelledError(), KeyError("x")]
    logged = list[tuple[str, str, bool]]()

    def log(name: str, error: BaseException) -> None:
        logger = logging.getLogger(name)
        exc_info = (type(error), error, None)
        record = logger.makeRecord(name, logging.ERROR, __file__, 1, "accept() failed\n%s", ("socket",), exc_info)
        if logger.filter(record):
            logged.append((name, record.getMessage(), record.exc_info is not None))

    now = [time.monotonic()]
    monkeypatch.setattr(connections._ONCE_PER_MINUTE, "_logged_at", {})
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with _serving():
        for name in ("asyncio", "uvicorn.error") * 50:
            for error in errors:
                log(name, error)
        files, bug = ("a connection failed: Too many open files", False), ("accept() failed\nsocket", True)
        assert logged == [(name, *written) for name in ("asyncio", "uvicorn.error") for written in (files, bug)]
        now[0] += 61
        log("asyncio", errors[0])
        assert logged[-1] == ("asyncio", *files)
        assert len(logged) == 5


@pytest.mark.slow
def test_clients_are_served_beside_more_half_open_connections_than_files(tmp_path: Path) -> None:
    """1,100 of them, at each of two processes that may open 1,024 files."""
    lay_warehouse(tmp_path / "w.duckdb")
    place, processes = Place(folder=tmp_path, variables={"EVALHOUSE_RECEIVE_TOKEN": TOKEN}), []
    with contextlib.ExitStack() as opened:
        for command in ("ui", "receive"):
            with connections.listen("127.0.0.1", None, 0) as taken:
                port = int(taken.getsockname()[1])
            process = opened.enter_context(place.start(command, "--port", str(port), "--warehouse", "w.duckdb"))
            processes.append(process)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(1100):
                opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)).sendall(
                    b"POST / HTTP/1.1\r\nX: "
                )
            assert _ask(port, timeout_s=10) in (200, 303, 404)
        time.sleep(12)
        for process in processes:
            assert len(os.listdir(f"/proc/{process.pid}/fd")) < 60
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert process.stderr.read() == ""


async def test_websockets_without_a_key_leave_room_for_others() -> None:
    """Without a first message the oldest one ends when there are too many, and each after some time."""
    ended: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  # as in ASGI
        assert (await receive())["type"] == "websocket.connect"
        while (await receive())["type"] == "websocket.receive":
            pass
        ended.append(scope["number"])

    guard = Guard(app, ["http://localhost"], key_s=0.3, max_keyless=3)

    def connect(number: int) -> tuple[asyncio.Queue[dict[str, str]], asyncio.Task[None]]:
        messages: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        messages.put_nowait({"type": "websocket.connect"})
        scope = {"type": "websocket", "headers": [(b"host", b"localhost")], "number": number}
        return messages, asyncio.create_task(guard(scope, messages.get, messages.put))

    keyed, of_keyed = connect(0)
    keyed.put_nowait({"type": "websocket.receive"})
    silent = []
    for number in range(1, 7):
        silent.append(connect(number)[1])
        await asyncio.sleep(0.01)
    assert ended == [1, 2, 3]
    await asyncio.gather(*silent)
    assert ended == [1, 2, 3, 4, 5, 6]
    await asyncio.sleep(0.4)
    assert not of_keyed.done()
    keyed.put_nowait({"type": "websocket.disconnect"})
    await of_keyed


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("9f1c7b52-5f0a-4d4e-8b8c-6a3f0a6d1c11", None),
        ("abcdefgh_ABCDEFGH", None),
        ("short-one", "has 9 characters; a token has at least 16 letters, digits, hyphens and underscores"),
        ("a token with blanks", "has other characters"),
        ("ab" * 10 + "é", "has other characters"),
    ],
)
def test_a_token_may_be_a_uuid(monkeypatch: pytest.MonkeyPatch, token: str, problem: str | None) -> None:
    monkeypatch.setenv("EVALHOUSE_UI_TOKEN", token)
    if problem is None:
        assert connections.find_token("EVALHOUSE_UI_TOKEN") == token
    else:
        with pytest.raises(SettingsError, match=problem):
            connections.find_token("EVALHOUSE_UI_TOKEN")
