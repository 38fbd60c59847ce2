"""The child that `LocalServer` starts: Prefect's own API application, served for one run or, with all its services, for
as long as suites are. First of all it watches for the order to stop, from its parent or by its parent's death, so that
it never outlives it, not even while Prefect is still being imported: two seconds in which this file is all there is.

The database is the user's own Prefect database, so that a server started later shows the run; Prefect's own migrations
make one that does not exist yet, which takes two seconds once for each home. What is used of Prefect beyond the
documented: `create_app`, as Prefect's own command line does, `METRICS`, the counters of the in-memory broker,
`create_db`, by which it migrates, and the class of its routes.
"""

import asyncio
import contextlib
import gc
import importlib
import json
import os
import select
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from evalhouse.flows.server.environment import LOOPBACK, import_late

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp, Receive, Scope, Send

# How long an orphan may take to write what it has received, and may live at all. Seconds.
_ORPHAN_DRAIN_S = 0.5
_ORPHAN_LIFE_S = 1.5
_PARENT_CHECK_S = 1.0
_POLL_S = 0.02
_EVENTS_TOPIC = "events"
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
        from it still holds it: hence the look at who the parent is."""
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
                self._log_path.unlink(missing_ok=True)  # nobody is left to read it
            _exit_within(_ORPHAN_LIFE_S)
        with self._lock:
            if self._loop is None:
                os._exit(0)
            self._loop.call_soon_threadsafe(self._arrived.set)


def main() -> None:
    """Serve until ordered to stop. The one argument: JSON with `socket_fd`, a listening socket, `log_path`, and whether
    the server `is_lasting`: then it has all of Prefect's services and its log stays."""
    arguments = json.loads(sys.argv[1])
    # Whatever a library prints belongs in the log: the pipe is for one word.
    pipe_fd = os.dup(1)
    os.dup2(2, 1)
    is_lasting: bool = arguments["is_lasting"]
    order = StopOrder(log_path=None if is_lasting else Path(arguments["log_path"]))
    threading.Thread(target=order.watch, daemon=True).start()
    # What an import allocates stays: looking for garbage in it costs a tenth of its time.
    gc.disable()
    if not is_lasting:
        _build_when_used()
    importlib.import_module("prefect.server.api.server")
    gc.freeze()
    gc.enable()
    # The protocol has to be named for asyncio to switch Nagle's algorithm off: 40 ms a request.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=arguments["socket_fd"])
    asyncio.run(_serve(listener, order, pipe_fd, is_lasting=is_lasting))


def _build_when_used() -> None:
    """Have models and routes built when they are first used; to be called before Prefect's server is imported.

    Prefect builds 840 models and FastAPI, twice, all that 185 routes need: a third of the CPU of this process. The
    server of one run answers on some fifteen of them. Nothing is left out: what is asked for is there, some ms later.
    """
    import pydantic  # noqa: PLC0415  # as in `_serve`

    import_late("coolname")
    pydantic.BaseModel.model_config = pydantic.ConfigDict(defer_build=True)
    import prefect.server.utilities.server as routing  # noqa: PLC0415
    from prefect.settings import Settings  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    make_route = routing.PrefectAPIRoute

    class LateRoute(Route):
        def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:  # noqa: ANN401  # FastAPI's
            late = _LateEndpoint(partial(make_route, path, endpoint, **options))
            super().__init__(path, late, methods=options["methods"], name=endpoint.__name__)

    # By it Prefect would find an application it has made before: half a second of writing out all settings.
    Settings.hash_key = lambda _: ""  # type: ignore[method-assign, assignment]
    routing.PrefectAPIRoute = LateRoute  # type: ignore[assignment, misc]  # FastAPI includes plain routes too


class _LateEndpoint:
    """In the place of an endpoint: its route, made when it is first asked for, with what Prefect checks on each."""

    def __init__(self, make: "partial[Any]") -> None:
        self._make = make
        self._app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401  # ASGI's
        if self._app is None:
            from fastapi import Depends  # noqa: PLC0415
            from prefect.server.api.server import enforce_minimum_version  # noqa: PLC0415

            own = self._make.keywords["dependencies"]
            self._app = self._make(dependencies=[Depends(enforce_minimum_version), *own]).app
        await self._app(scope, receive, send)


async def _serve(listener: socket.socket, order: StopOrder, pipe_fd: int, *, is_lasting: bool) -> NoReturn:
    """From a listening socket to the last recorded event, with a word to the parent when the server answers.

    Ends the process, with uvicorn's status 3 when Prefect's application did not start; the log has the reason then.
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
    home = settings.home
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Two first runs at once would migrate the same database twice.
    with FileLock(home / "evalhouse-server-start.lock"):
        await _make_database()
        serving = asyncio.create_task(_serve_quietly(server, listener))
        while not server.started and not serving.done():
            await asyncio.sleep(_POLL_S)
    if not server.started:
        os._exit(STARTUP_FAILURE)
    order.defer_to(asyncio.get_running_loop())
    os.write(pipe_fd, b"ready\n")
    drain_s = await order.wait()
    await _wait_until_consumed(server, drain_s)
    if is_lasting:
        server.should_exit = True
        await serving
    else:
        # Nobody asks any more: what uvicorn does besides is to wait, 0.2 s, for clients to go.
        await server.lifespan.shutdown()
    os._exit(0)  # taking three thousand modules apart, and the loop with them, is a wait for nothing


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


class _NoThread:
    """In the place of the thread that aiosqlite has for each connection, and of the queue that leads to it."""

    def __init__(self, **_: object) -> None:
        self.daemon = True

    def start(self) -> None:
        """Nothing runs beside the loop."""

    def put_nowait(self, work: "tuple[asyncio.Future[Any] | None, Callable[[], Any]]") -> None:
        """Do at once what the thread would have done."""
        future, function = work
        try:
            result = function()
        except BaseException as error:  # whatever the function raises is its caller's, as from the thread
            if future is None:
                raise
            future.set_exception(error)
        else:
            if future is not None:
                future.set_result(result)


async def _make_database() -> None:
    """Make the database of a fresh home by Prefect's own migrations, and leave one alone that has them all.

    Their 34,000 calls of SQLite pass from one thread to another and back, which takes longer than the calls themselves;
    here, where nothing else waits for the loop, they are made in its own thread, in a third of the time. To find that
    there is nothing to do Prefect takes a tenth of a second; an older database it brings up to date when it starts.
    """
    from prefect.server.database import provide_database_interface  # noqa: PLC0415

    database = provide_database_interface()
    path = _find_own_file(database.database_config.connection_url)
    if path is None or (path.exists() and not _has_all_migrations(path)):
        return
    if not path.exists():
        with _without_threads():
            await database.create_db()
            await (await database.engine()).dispose()  # its connection has no thread
    database.create_db = _do_nothing  # type: ignore[method-assign]


@contextlib.contextmanager
def _without_threads() -> Iterator[None]:
    """What is asked of SQLite within this block is done at once, by this thread."""
    import aiosqlite.core  # noqa: PLC0415

    kept = {name: getattr(aiosqlite.core, name) for name in ("Thread", "SimpleQueue")}
    try:
        for name in kept:
            setattr(aiosqlite.core, name, _NoThread)
        yield
    finally:
        for name, value in kept.items():
            setattr(aiosqlite.core, name, value)


async def _do_nothing() -> None:
    """For migrations that have been applied."""


def _find_own_file(url: str) -> Path | None:
    """The SQLite file at this address, where there is one or Prefect may make it; None for any other database."""
    import sqlalchemy  # noqa: PLC0415
    from prefect.settings import get_current_settings  # noqa: PLC0415

    path = sqlalchemy.make_url(url).database or ""
    is_file = url.startswith("sqlite") and path.startswith(("/", "."))
    return Path(path) if is_file and get_current_settings().server.database.migrate_on_start else None


def _has_all_migrations(path: Path) -> bool:
    """Whether a database is of the last of the installed Prefect's migrations, whose files begin with their dates."""
    folder = files("prefect.server.database").joinpath("_migrations/versions/sqlite")
    last = max((entry for entry in folder.iterdir() if entry.name.endswith(".py")), key=attrgetter("name"))
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            applied = connection.execute("select version_num from alembic_version").fetchall()
    except sqlite3.Error:
        return False
    return len(applied) == 1 and f'\nrevision = "{applied[0][0]}"' in last.read_text(encoding="utf-8")


async def _serve_quietly(server: "uvicorn.Server", listener: socket.socket) -> None:
    with contextlib.suppress(SystemExit):  # uvicorn's way to say that an application did not start
        await server.serve(sockets=[listener])


async def _wait_until_consumed(server: "uvicorn.Server", timeout_s: float) -> None:
    """Wait until every event has gone from the client's connection through Prefect's broker to the recorder. The
    recorder writes what it holds when the application shuts down; what is still with the broker then is lost."""
    from prefect.server.utilities.messaging.memory import METRICS  # noqa: PLC0415

    events = METRICS[_EVENTS_TOPIC]
    deadline = asyncio.get_running_loop().time() + timeout_s
    while server.server_state.tasks or events["consumed"] < events["published"]:
        if asyncio.get_running_loop().time() > deadline:
            return
        await asyncio.sleep(_POLL_S)


def _exit_within(seconds: float) -> None:
    timer = threading.Timer(seconds, os._exit, args=[1])
    timer.daemon = True
    timer.start()
