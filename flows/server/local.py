"""The Prefect server that evalhouse starts, for one run or for as long as suites are served.

The server is a child process started before Prefect is imported here, so that its start, the import and the staging of
the dataset happen at the same time. It listens on a socket of this process, reports over a pipe when it is ready,
and ends when this process ends, however that happens. A command holds its server from its first moment (`hold_server`),
the process of `evaluate` for all of its runs. `environment` has the server's settings. Nothing here imports Prefect but
the child, whose code is the second half of this module.
"""

import asyncio
import contextlib
import errno
import importlib
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from evalhouse.flows.server.environment import (
    API_URL,
    LOOPBACK,
    LocalServerError,
    configure_prefect_environment,
    find_api_url,
    make_lasting_key,
    make_server_environment,
    prefect_home,
    prepare_environment,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

SERVE_LOG: Final = "evalhouse-serve.log"
"""The file in Prefect's folder with the lines of `evalhouse serve` and its server's log, over all starts."""
_BOOTSTRAP = "from evalhouse.flows.server.local import main; main()"
# What the child reports: the server answers; everything it received is written.
_READY: Final = b"ready\n"
_STOPPED: Final = b"stopped\n"
_LOG_TAIL_LINES = 15
# SQLite's words for them.
_DISK_PROBLEMS = ("disk is full", "disk I/O error", "attempt to write a readonly database", "unable to open database")
# How long the child may take to end after it has written its queue.
_EXIT_GRACE_S = 10.0
_USUAL_PORT = 4200
# How long the server of a killed process may still hold its port: the server notices within a second and has another
# and a half to write what it has received, more on a busy machine.
_PORT_WAIT_S = 6.0
_PORT_POLL_S = 0.1
# Prefect imports these when the first flow runs: 0.4 s of CPU, which this process can spare while it waits.
_USED_BY_FIRST_FLOW = ("prefect.flow_engine", "prefect.task_engine", "prefect.utilities.visualization")
# How long a child whose parent has died may take to write what it has received, and may live at all. Seconds.
_ORPHAN_DRAIN_S = 0.5
_ORPHAN_LIFE_S = 1.5
_PARENT_CHECK_S = 1.0
_POLL_S = 0.02
_ORIGINS = "PREFECT_SERVER_CORS_ALLOWED_ORIGINS"


class LocalServer:
    """One child process; make it by `start` or `start_lasting`, end it by `stop`. Not for use by several threads."""

    def __init__(
        self, listener: socket.socket, *, log_path: Path, auth_string: str, is_lasting: bool, key_note: str = ""
    ) -> None:
        self.api_url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
        self.auth_string = auth_string
        self.log_path = log_path
        self.key_note = key_note
        # That of a lasting server stays open here: requests wait in it while no child runs.
        self._listener = listener
        self._is_lasting = is_lasting
        self._is_ready = False
        self._is_stopped = False
        self._process = self._start_child()

    @classmethod
    def start(cls) -> "LocalServer":
        """Start the server of a run and return at once (some 5 ms): its address answers from now on, after a wait.

        The socket is opened here so that its port is known and no other process can take it, and handed over.
        """
        auth_string = f"evalhouse:{os.urandom(24).hex()}"
        log_fd, log_name = tempfile.mkstemp(prefix="evalhouse-prefect-server-", suffix=".log")
        os.close(log_fd)
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            return cls(listener, log_path=Path(log_name), auth_string=auth_string, is_lasting=False)

    @classmethod
    def start_lasting(cls, port: int | None = None) -> "LocalServer":
        """Start the server of `evalhouse serve`, with everything that schedules, triggers and a browser need.

        `port` None takes Prefect's usual one, or a free one if that is taken. The log is appended to `SERVE_LOG` in
        Prefect's folder. Raises LocalServerError when the port that was asked for is taken.
        """
        home = prefect_home()
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        listener = _open_port(port)
        key, key_note = make_lasting_key(listener.getsockname()[1])
        return cls(listener, log_path=home / SERVE_LOG, auth_string=key, is_lasting=True, key_note=key_note)

    def _start_child(self) -> subprocess.Popen[bytes]:
        arguments = {
            "socket_fd": self._listener.fileno(),
            "log_path": str(self.log_path),
            "is_lasting": self._is_lasting,
        }
        port = self._listener.getsockname()[1]
        with self.log_path.open("ab") as log:
            return subprocess.Popen(
                # Safe path (-P): a `tasks.py` in the working directory must not hide ours. Without the columns of each
                # instruction, which only mark places in tracebacks, Prefect's code takes a megabyte less.
                [sys.executable, "-P", "-X", "no_debug_ranges", "-c", _BOOTSTRAP, json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Prefect reads settings in its working folder, which may have come with a dataset.
                cwd=Path(__file__).parent,
                bufsize=0,
                pass_fds=[self._listener.fileno()],
                env=make_server_environment(port, self.auth_string, is_lasting=self._is_lasting),
                # In a separate session: Ctrl-C in the terminal reaches this process alone, which still has to report to
                # the server how its flow ended.
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        """Return whether the child still runs."""
        return self._process.poll() is None

    def start_again(self) -> None:
        """Replace the child of a lasting server after it has ended; raises LocalServerError.

        The socket has stayed open here, so that requests wait meanwhile instead of being refused.
        """
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._process = self._start_child()
        self._is_ready = False
        self.wait_until_ready()

    def describe_end(self) -> str:
        """Return the signal or status by which the child has ended."""
        status = self._process.poll()
        return f"signal {-status}" if status is not None and status < 0 else f"status {status}"

    def wait_until_ready(self, timeout_s: float = 120) -> None:
        """Return when the server answers; raises LocalServerError when it has ended instead, or not answered in time.

        A process that has imported Prefect uses the time for the imports that a first flow run would wait for.
        """
        if self._is_ready:
            return
        if "prefect" in sys.modules:
            for name in _USED_BY_FIRST_FLOW:
                importlib.import_module(name)
        word = self._read_word(timeout_s)
        self._is_ready = word == _READY
        if self._is_ready:
            return
        if word == b"":
            self._process.wait()  # it has closed its side without a word
        log = ""
        with contextlib.suppress(FileNotFoundError):
            log = self.log_path.read_text(encoding="utf-8", errors="replace")
        tail = f"; the end of {self.log_path}:\n" + "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])
        if self.is_alive:
            self._process.kill()
            raise LocalServerError(f"the local Prefect server was not ready after {timeout_s:g} s{tail}")
        status = f"the local Prefect server ended with status {self._process.returncode} while starting"
        if any(words in log for words in _DISK_PROBLEMS):
            home = prefect_home()
            raise LocalServerError(
                f"{status}: its database in {home} cannot be written, as on a full or read-only disk; make room there, "
                f"or set PREFECT_HOME to another folder (log: {self.log_path})"
            )
        advice = ""
        if "Can't locate revision" in log:
            advice = (
                ": its database was last used by a newer version of Prefect; set PREFECT_HOME to another folder,"
                " or PREFECT_API_URL to a server"
            )
        raise LocalServerError(f"{status}{advice}{tail}")

    def _read_word(self, timeout_s: float) -> bytes | None:
        """Return the child's next report, an empty one when it has ended, and None when it is silent for so long."""
        stdout = self._process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], timeout_s)
        return os.read(stdout.fileno(), 64) if readable else None

    def stop(self, *, drain_timeout_s: float = 15) -> None:
        """End the server after the last event of this process is in its database; call it after the flow has ended.

        Waits up to `drain_timeout_s` for this process to send its queue and for the server to write it. The log stays
        if the server did not end well. A second call does nothing.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        deadline = time.monotonic() + drain_timeout_s
        if self._is_ready and (worker := sys.modules.get("prefect.events.worker")) is not None:
            # Have Prefect's client send the events it holds: in a thread, because in a thread that runs an event loop
            # the call returns a coroutine.
            sending = threading.Thread(
                target=worker.EventsWorker.drain_all, kwargs={"timeout": drain_timeout_s}, daemon=True
            )
            sending.start()
            sending.join(drain_timeout_s)
        drain_s = max(0.0, deadline - time.monotonic())
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with stdin, contextlib.suppress(BrokenPipeError):  # it may have ended by itself
            stdin.write(json.dumps({"drain_s": drain_s}).encode() + b"\n")
        # The report of a start that was not waited for comes first.
        while (word := self._read_word(drain_s + _EXIT_GRACE_S)) == _READY:
            pass
        has_ended = word == b"" and self._process.wait() == 0  # it was stopped before it had anything to write
        self._process.kill()
        self._process.wait()
        stdout.close()
        if self._is_lasting:
            self._listener.close()
        elif has_ended or (word is not None and word.endswith(_STOPPED)):
            self.log_path.unlink(missing_ok=True)


def _open_port(port: int | None) -> socket.socket:
    """Return a socket at the port; at None one at Prefect's usual port, or a free one if that stays taken.

    A port that is taken is waited for a little: after a kill the server is restarted at once, and the runs that have
    outlived it still call the address they know.
    """
    deadline = time.monotonic() + _PORT_WAIT_S
    while True:
        try:
            return socket.create_server(("127.0.0.1", _USUAL_PORT if port is None else port), backlog=256)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and time.monotonic() <= deadline:
                time.sleep(_PORT_POLL_S)
            elif port is None:
                return socket.create_server(("127.0.0.1", 0), backlog=256)
            else:
                problem = f"port {port} of this machine is not available: {error.strerror or error}"
                raise LocalServerError(problem) from None


_held: list[LocalServer] = []


@contextmanager
def hold_server() -> Iterator[None]:
    """Start a server for the time of the block if the user has configured none and none is held yet.

    Raises SettingsError for an environment that no client can use.
    """
    prepare_environment()
    if _held or find_api_url() is not None:
        yield
        return
    server = LocalServer.start()
    _held.append(server)
    try:
        yield
    finally:
        _held.remove(server)
        server.stop()


def is_server_alive() -> bool:
    """Return whether the server that is held still runs; true as well if none is held."""
    return all(server.is_alive for server in _held)


@contextmanager
def prefect_server() -> Iterator[Callable[[], None] | None]:
    """Make Prefect's settings for a run; enter this before Prefect is imported.

    Yields a function that waits until our server is ready, None if the server is the user's. Raises SettingsError when
    the user's server does not answer.
    """
    with hold_server():
        if not _held:
            from evalhouse.flows.server.api import check_prefect_server  # noqa: PLC0415  # a run without it does without

            check_prefect_server()
            configure_prefect_environment(None)
            yield None
            return
        (server,) = _held
        # Each of Prefect's clients loads all certificate authorities before it speaks plain HTTP to our server, 50 ms
        # three times a run, so it gets a file with only the first of them.
        authority = prefect_home() / "evalhouse-one-authority.pem"
        if not authority.exists():
            import certifi  # noqa: PLC0415  # once a home

            end = "-----END CERTIFICATE-----\n"
            first = Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end
            try:
                authority.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                authority.write_text(first, encoding="utf-8")
            except OSError as error:
                with contextlib.suppress(OSError):  # half a file would be taken for a whole one
                    authority.unlink()
                raise LocalServerError(
                    f"cannot write {authority}: {error.strerror or error}; make room, or name another PREFECT_HOME"
                ) from None
        os.environ.setdefault("PREFECT_API_SSL_CERT_FILE", str(authority))
        configure_prefect_environment(server.api_url, auth_string=server.auth_string)
        try:
            yield server.wait_until_ready
        finally:
            os.environ.pop(API_URL, None)  # which would name a server of the user's to the next run


class StopOrder:
    """The order to the child to end: a line on standard input, or the parent's death; `drain_s` are for its queue.

    The child watches for it from its first moment, so that it never outlives its parent, not even while Prefect is
    still being imported.
    """

    def __init__(self, *, log_path: Path | None) -> None:
        self.arrived = asyncio.Event()
        self.drain_s = 0.0
        self._log_path = log_path
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def defer_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the process end by itself from now on; before, an order ends it at once, as nothing is queued."""
        with self._lock:
            self._loop = loop

    def watch(self) -> None:
        """Block until the order comes.

        The pipe from the parent closes when the parent ends, unless a process forked from it still holds it, so the
        parent's id is watched as well.
        """
        parent = os.getppid()
        line = b""
        while os.getppid() == parent:
            if select.select([0], [], [], _PARENT_CHECK_S)[0]:
                line = os.read(0, 4096)
                break
        if line:
            self.drain_s = float(json.loads(line)["drain_s"])
        else:
            self.drain_s = _ORPHAN_DRAIN_S
            if self._log_path is not None:
                self._log_path.unlink(missing_ok=True)  # its reader has gone
            timer = threading.Timer(_ORPHAN_LIFE_S, os._exit, args=[1])
            timer.daemon = True
            timer.start()
        with self._lock:
            if self._loop is None:
                os._exit(0)  # the main thread is in an import, which nothing else can end
            self._loop.call_soon_threadsafe(self.arrived.set)


class Guard:
    """Refuses for Prefect's application requests of pages of other sites and requests under a foreign host name.

    `origins` are those whose pages may use the API, or `*`. Pages of other sites may not even send requests for which a
    browser needs no permission (a WebSocket, a form). A page that has pointed its own host name at this machine has an
    origin like the server's, and is recognized by the name in Host.

    A WebSocket shows its key in its first message. One that sends none in `key_s` seconds is closed, and of more than
    `max_keyless` the oldest, so that they do not take the connections of others.
    """

    def __init__(self, app: "ASGIApp", origins: Sequence[str], *, key_s: float, max_keyless: int) -> None:
        self._app = app
        self._origins = origins
        self._key_s, self._max_keyless = key_s, max_keyless
        self._keyless: dict[object, asyncio.Timeout] = {}  # the oldest first
        self._hosts = {*LOOPBACK, "::1", *(urlsplit(origin).hostname for origin in origins)}

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answer one request."""
        refusal = None
        if scope["type"] in ("http", "websocket") and "*" not in self._origins:
            headers = dict(scope["headers"])
            host, origin = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"origin"))
            try:
                if urlsplit(f"//{host}").hostname not in self._hosts:
                    refusal = (
                        f"this Prefect server is not known as {host!r}; the addresses in {_ORIGINS} are answered too"
                    )
                elif origin and origin not in self._origins and urlsplit(origin).netloc != host:
                    refusal = f"pages of {origin!r} may not use this Prefect server; {_ORIGINS} lists the allowed ones"
            except ValueError:
                refusal = "its Host or its Origin is not an address"
        if refusal is None:
            await self._app(scope, self._await_key(receive) if scope["type"] == "websocket" else receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            content_type = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": content_type})
            await send({"type": "http.response.body", "body": refusal.encode()})

    def _await_key(self, receive: "Receive") -> "Receive":
        """Return the `receive` of a WebSocket that disconnects it where its first message does not come in time."""
        loop, mark, is_keyless = asyncio.get_running_loop(), object(), True

        async def receive_in_time() -> "Message":
            nonlocal is_keyless
            if not is_keyless:
                return await receive()
            try:
                async with asyncio.timeout(self._key_s) as self._keyless[mark]:
                    if len(self._keyless) > self._max_keyless:
                        self._keyless.pop(next(iter(self._keyless))).reschedule(loop.time())
                    message = await receive()
            except TimeoutError:
                message = {"type": "websocket.disconnect", "code": 1008}
            finally:
                self._keyless.pop(mark, None)
            is_keyless = message["type"] == "websocket.connect"
            return message

        return receive_in_time


def main() -> None:
    """Serve in the child until ordered to stop.

    The one argument is JSON with `socket_fd`, a listening socket, `log_path`, and whether the server `is_lasting`: then
    it has all of Prefect's services and its log stays.
    """
    arguments = json.loads(sys.argv[1])
    # Everything a library prints belongs in the log: the pipe is for the reports to the parent.
    pipe_fd = os.dup(1)
    os.dup2(2, 1)
    is_lasting: bool = arguments["is_lasting"]
    order = StopOrder(log_path=None if is_lasting else Path(arguments["log_path"]))
    threading.Thread(target=order.watch, daemon=True).start()
    # With the protocol named asyncio switches Nagle's algorithm off: 40 ms a request.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=arguments["socket_fd"])
    status = asyncio.run(_serve(listener, order, pipe_fd, is_lasting=is_lasting))
    if status == 0:
        # The parent does not wait for the end of the process, which takes a second more.
        os.write(pipe_fd, _STOPPED)
    sys.exit(status)


def prepare_database(url: str, version: str) -> bool:
    """Give a new database the schema of this version of Prefect in one piece, where its 113 migrations take 5 s.

    Returns whether nothing is left to migrate. `prefect_schema.sql` is for one version and for SQLite; all other
    databases are left to Prefect.
    """
    import sqlite3  # noqa: PLC0415  # the child alone needs these

    from sqlalchemy import make_url  # noqa: PLC0415

    schema = files(__package__).joinpath("prefect_schema.sql").read_text(encoding="utf-8")
    location = make_url(url)
    is_file = location.get_backend_name() == "sqlite" and location.database and not location.query
    if not is_file or not schema.startswith(f"-- Prefect {version}\n"):
        return False
    path = Path(str(location.database))
    made = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        if not path.exists():
            with contextlib.closing(sqlite3.connect(made)) as database:
                database.executescript(f"pragma journal_mode = wal; begin; {schema} commit;")
            with contextlib.suppress(FileExistsError):
                os.link(made, path)  # never over a database that another process has made meanwhile
        with contextlib.closing(sqlite3.connect(path)) as database:
            (revision,) = database.execute("select version_num from alembic_version").fetchone()
        return f"('{revision}')" in schema
    except (OSError, sqlite3.Error, TypeError) as error:
        print(f"the database is left to Prefect's migrations: {error}", file=sys.stderr, flush=True)
        return False
    finally:
        made.unlink(missing_ok=True)


async def _serve(listener: socket.socket, order: StopOrder, pipe_fd: int, *, is_lasting: bool) -> int:
    """Serve until the last event is recorded, and report to the parent when the server answers.

    The database is the user's Prefect database, so that a server started later shows the run. Returns the status to end
    with: uvicorn's 3 when Prefect's application did not start; the log has the reason then.
    """
    import prefect  # noqa: PLC0415
    import uvicorn  # noqa: PLC0415  # these take two seconds, in which the order is watched for
    from filelock import FileLock  # noqa: PLC0415

    from evalhouse.flows.server.connections import (  # noqa: PLC0415
        HEADERS_S,
        bound_connections,
        find_max_connections,
    )
    from evalhouse.flows.server.faster_start import create_app_faster, is_plain  # noqa: PLC0415

    if is_lasting or is_plain():
        from prefect.server.api.server import create_app  # noqa: PLC0415

        app = create_app(ephemeral=not is_lasting)
    else:
        app = create_app_faster(pipe_fd)
    from prefect.server.utilities.messaging.memory import METRICS  # noqa: PLC0415  # the broker's public counters
    from prefect.settings import (  # noqa: PLC0415
        PREFECT_SERVER_DATABASE_CONNECTION_URL,
        PREFECT_SERVER_DATABASE_MIGRATE_ON_START,
        get_current_settings,
        temporary_settings,
    )
    from uvicorn.config import STARTUP_FAILURE  # noqa: PLC0415

    settings = get_current_settings()
    config = uvicorn.Config(
        Guard(
            app,
            settings.server.api.cors_allowed_origins.split(","),
            key_s=HEADERS_S,
            max_keyless=find_max_connections() // 4,
        ),
        log_config=None,
        timeout_graceful_shutdown=3,
        **bound_connections(),
    )
    server = uvicorn.Server(config)

    async def serve_until_stopped() -> None:
        with contextlib.suppress(SystemExit):  # which uvicorn raises when an application did not start
            await server.serve(sockets=[listener])

    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    # Two first runs at once would migrate the same database twice.
    with contextlib.ExitStack() as starting:
        starting.enter_context(FileLock(settings.home / "evalhouse-server-start.lock"))
        if not is_plain() and prepare_database(PREFECT_SERVER_DATABASE_CONNECTION_URL.value(), prefect.__version__):
            starting.enter_context(temporary_settings({PREFECT_SERVER_DATABASE_MIGRATE_ON_START: False}))
        serving = asyncio.create_task(serve_until_stopped())
        while not server.started and not serving.done():
            await asyncio.sleep(_POLL_S)
    if not server.started:
        return STARTUP_FAILURE
    loop = asyncio.get_running_loop()
    order.defer_to(loop)
    os.write(pipe_fd, _READY)
    await order.arrived.wait()
    # Wait until every event has gone from the client's connection through Prefect's broker to the recorder. The
    # recorder writes its queue when the application shuts down; what the broker still has then is lost.
    deadline, events = loop.time() + order.drain_s, METRICS["events"]
    while server.server_state.tasks or events["consumed"] < events["published"]:
        if loop.time() > deadline:
            break
        await asyncio.sleep(_POLL_S)
    server.should_exit = True
    await serving
    return 0
