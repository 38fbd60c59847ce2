"""The child that `LocalServer` starts: Prefect's own API application, served for one run or, with all its services, for
as long as suites are.

It watches for the order to stop from its first moment, from its parent or by its parent's death, so that it never
outlives it, not even while Prefect is still being imported. The database is the user's own Prefect database, so that a
server started later shows the run.
"""

import asyncio
import contextlib
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from evalhouse.flows.server.environment import LOOPBACK

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp, Receive, Scope, Send

# How long a child whose parent has died may take to write what it has received, and may live at all. Seconds.
_ORPHAN_DRAIN_S = 0.5
_ORPHAN_LIFE_S = 1.5
_PARENT_CHECK_S = 1.0
_POLL_S = 0.02
READY: Final = b"ready\n"
STOPPED: Final = b"stopped\n"
"""What the parent reads: the server answers; all that it received is written."""
_ORIGINS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"


class StopOrder:
    """The end of this process, as ordered by one line on standard input or by the parent's death."""

    def __init__(self, *, log_path: Path | None) -> None:
        self._log_path = log_path
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived = asyncio.Event()
        self._drain_s = 0.0

    async def wait(self) -> float:
        """Return, when the order has come, the seconds there are for writing what is queued."""
        await self._arrived.wait()
        return self._drain_s

    def defer_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on the caller of `wait` ends the process. Before, an order ends it at once, as nothing is queued."""
        with self._lock:
            self._loop = loop

    def watch(self) -> None:
        """Block until the order. The parent's end of the pipe closes when the parent ends, unless a process forked
        from it still holds it, so who the parent is is looked at as well."""
        parent = os.getppid()
        line = b""
        while os.getppid() == parent:
            if select.select([0], [], [], _PARENT_CHECK_S)[0]:
                line = os.read(0, 4096)
                break
        if line:
            self._drain_s = float(json.loads(line)["drain_s"])
        else:
            self._drain_s = _ORPHAN_DRAIN_S
            if self._log_path is not None:
                self._log_path.unlink(missing_ok=True)  # its reader has gone
            timer = threading.Timer(_ORPHAN_LIFE_S, os._exit, args=[1])
            timer.daemon = True
            timer.start()
        with self._lock:
            if self._loop is None:
                os._exit(0)  # the main thread is in an import, which nothing else can end
            self._loop.call_soon_threadsafe(self._arrived.set)


class Guard:
    """Answers for Prefect's application what no page of another site may ask, and nothing under a foreign name.

    `origins` are those whose pages may use the API, or `*`. Pages of other sites may not even send what needs no
    permission of a browser (a WebSocket, a form), and one that has pointed its own name at this machine has an origin
    like the server's own: by the name in Host it is known.
    """

    def __init__(self, app: "ASGIApp", origins: Sequence[str]) -> None:
        self._app = app
        self._origins = origins
        self._hosts = {*LOOPBACK, "::1", *(urlsplit(origin).hostname for origin in origins)}

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one request."""
        refusal = self._refuse(dict(scope["headers"])) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": refusal.encode()})

    def _refuse(self, headers: dict[bytes, bytes]) -> str | None:
        if "*" in self._origins:
            return None
        host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
        try:
            is_known = urlsplit(f"//{host}").hostname in self._hosts
            is_own_page = not origin or origin in self._origins or urlsplit(origin).netloc == host
        except ValueError:
            return "its Host or its Origin is not an address"
        if not is_known:
            return f"this Prefect server is not known as {host!r}; the addresses in {_ORIGINS} are answered as well"
        return None if is_own_page else f"pages of {origin!r} may not use this Prefect server; those in {_ORIGINS} may"


def main() -> None:
    """Serve until ordered to stop.

    The one argument is JSON with `socket_fd`, a listening socket, `log_path`, and whether the server `is_lasting`: then
    it has all of Prefect's services and its log stays.
    """
    arguments = json.loads(sys.argv[1])
    # Whatever a library prints belongs in the log: the pipe is for the words to the parent.
    pipe_fd = os.dup(1)
    os.dup2(2, 1)
    is_lasting: bool = arguments["is_lasting"]
    order = StopOrder(log_path=None if is_lasting else Path(arguments["log_path"]))
    threading.Thread(target=order.watch, daemon=True).start()
    # The protocol has to be named for asyncio to switch Nagle's algorithm off: 40 ms a request.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=arguments["socket_fd"])
    status = asyncio.run(_serve(listener, order, pipe_fd, is_lasting=is_lasting))
    if status == 0:
        # Taking three thousand modules apart would take a second more: the parent does not wait for that.
        os.write(pipe_fd, STOPPED)
    sys.exit(status)


async def _serve(listener: socket.socket, order: StopOrder, pipe_fd: int, *, is_lasting: bool) -> int:
    """Serve from a listening socket to the last recorded event; the parent reads a word when the server answers.

    Returns the status to end with: uvicorn's 3 when Prefect's application did not start; the log has the reason then.
    """
    import uvicorn  # noqa: PLC0415  # these take two seconds, in which the order is watched for
    from filelock import FileLock  # noqa: PLC0415
    from prefect.server.api.server import create_app  # noqa: PLC0415
    from prefect.settings import get_current_settings  # noqa: PLC0415
    from uvicorn.config import STARTUP_FAILURE  # noqa: PLC0415

    settings = get_current_settings()
    config = uvicorn.Config(
        Guard(create_app(ephemeral=not is_lasting), settings.server.api.cors_allowed_origins.split(",")),
        lifespan="on",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Two first runs at once would migrate the same database twice.
    with FileLock(settings.home / "evalhouse-server-start.lock"):
        serving = asyncio.create_task(_serve_until_stopped(server, listener))
        while not server.started and not serving.done():
            await asyncio.sleep(_POLL_S)
    if not server.started:
        return STARTUP_FAILURE
    order.defer_to(asyncio.get_running_loop())
    os.write(pipe_fd, READY)
    drain_s = await order.wait()
    await _wait_until_consumed(server, drain_s)
    server.should_exit = True
    await serving
    return 0


async def _serve_until_stopped(server: "uvicorn.Server", listener: socket.socket) -> None:
    with contextlib.suppress(SystemExit):  # uvicorn's way to say that an application did not start
        await server.serve(sockets=[listener])


async def _wait_until_consumed(server: "uvicorn.Server", timeout_s: float) -> None:
    """Wait until every event has gone from the client's connection through Prefect's broker to the recorder. The
    recorder writes what it holds when the application shuts down; what is still with the broker then is lost."""
    from prefect.server.utilities.messaging.memory import METRICS  # noqa: PLC0415  # the broker's public counters

    events = METRICS["events"]
    deadline = asyncio.get_running_loop().time() + timeout_s
    while server.server_state.tasks or events["consumed"] < events["published"]:
        if asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(_POLL_S)
