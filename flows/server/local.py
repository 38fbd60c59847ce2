"""A Prefect server of our own, for one run or for as long as suites are served, so that neither needs anything started
beforehand; and the one of this process, the user's own or one of ours, which is held for a block of code
(`hold_server`): a command holds it from its first moment, so that it comes up while everything else is imported, the
process of `evaluate` for all of its runs. A run takes the one that is held, or one for itself.

It is a child process started before Prefect is imported here, so that its start and the import, the staging of the
dataset and the rest happen at the same time; it listens on a socket opened by this process, says over a pipe when it is
ready, and ends when this process ends, however that happens. `environment` says which settings it gets, `process` is
what runs in it. Nothing here imports Prefect.
"""

import asyncio
import contextlib
import errno
import importlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final
from urllib.parse import urlsplit

from evalhouse.flows.server.environment import (
    API_URL,
    LOOPBACK,
    LocalServerError,
    configure_prefect_environment,
    find_api_url,
    lasting_server_environment,
    make_lasting_key,
    prefect_home,
    server_environment,
)

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp, Receive, Scope, Send
import ipaddress
import secrets
from contextlib import suppress

from evalhouse.flows.errors import SettingsError

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


_BOOTSTRAP = "from evalhouse.flows.server.local import main; main()"
_LOG_TAIL_LINES = 15
# How long the child may take to end when it has written what was queued.
_EXIT_GRACE_S = 10.0
_USUAL_PORT = 4200
# How long a port may still be held by the server of a process that was killed: it notices within a second and has
# another and a half to write what it has received (`process`), more on a busy machine.
_PORT_WAIT_S = 6.0
_PORT_POLL_S = 0.1
SERVE_LOG: Final = "evalhouse-serve.log"
"""In Prefect's folder: what `evalhouse serve` has said and its server has logged, over all starts."""
# Prefect imports these when the first flow runs: 0.4 s of CPU, which this process can spare while it waits.
_USED_BY_FIRST_FLOW = (
    "prefect.flow_engine",
    "prefect.task_engine",
    "prefect.utilities.visualization",
)


class LocalServer:
    """One child process; make it by `start`, end it by `stop`. Not for use by several threads at once."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        api_url: str,
        auth_string: str,
        log_path: Path,
        listener: socket.socket | None = None,
        key_note: str = "",
    ) -> None:
        self.api_url = api_url
        self.auth_string = auth_string
        self.log_path = log_path
        self.key_note = key_note
        self._process = process
        # Of a server that stays: requests wait here while there is no child.
        self._listener = listener
        self._is_ready = False
        self._is_stopped = False

    @classmethod
    def start(cls) -> "LocalServer":
        """Start the child and return at once (some 5 ms): the URL answers from now on, after a wait.

        The socket is opened here so that its port is known and nobody else can take it, and handed over. The child is
        in a session of its own: Ctrl-C in the terminal reaches this process alone, which still has to report to the
        server how its flow ended.
        """
        auth_string = f"evalhouse:{os.urandom(24).hex()}"
        log_fd, log_name = tempfile.mkstemp(prefix="evalhouse-prefect-server-", suffix=".log")
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener, open(log_fd, "wb") as log:
            port = listener.getsockname()[1]
            api_url = f"http://127.0.0.1:{port}/api"
            process = _start_child(listener, log, Path(log_name), server_environment(port, auth_string))
        return cls(process, api_url=api_url, auth_string=auth_string, log_path=Path(log_name))

    @classmethod
    def start_lasting(cls, port: int | None = None) -> "LocalServer":
        """The same with everything that schedules, triggers and a person at the browser need, for `evalhouse serve`.

        `port` None takes Prefect's usual one, or a free one where that is taken. What it logs goes to the end of
        `SERVE_LOG` in Prefect's folder. Raises LocalServerError when the port that was asked for is taken.
        """
        home = prefect_home()
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        listener, log_path = _listen(port), home / SERVE_LOG
        port = listener.getsockname()[1]
        key, key_note = make_lasting_key(port)
        return cls(
            _start_lasting_child(listener, log_path, key),
            api_url=f"http://127.0.0.1:{port}/api",
            auth_string=key,
            log_path=log_path,
            listener=listener,
            key_note=key_note,
        )

    @property
    def is_alive(self) -> bool:
        """Whether the child is still there."""
        return self._process.poll() is None

    def start_again(self) -> None:
        """Replace the child of a server that stays, when it has ended; raises LocalServerError.

        The socket has stayed open here, so that what is asked meanwhile waits instead of being refused.
        """
        assert self._listener is not None
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        self._process = _start_lasting_child(self._listener, self.log_path, self.auth_string)
        self._is_ready = False
        self.wait_until_ready()

    def describe_end(self) -> str:
        """How the child has ended."""
        status = self._process.poll()
        return f"signal {-status}" if status is not None and status < 0 else f"status {status}"

    def wait_until_ready(self, timeout_s: float = 120) -> None:
        """Return when the server answers; raises LocalServerError when it has ended instead, or not answered in time.

        In a process that has imported Prefect the time is spent on the imports that a first flow run would wait for.
        """
        if self._is_ready:
            return
        if "prefect" in sys.modules:
            for name in _USED_BY_FIRST_FLOW:
                importlib.import_module(name)
        word = self._read_word(timeout_s)
        self._is_ready = word == READY
        if self._is_ready:
            return
        if word == b"":
            self._process.wait()  # it has closed its side without a word
        raise LocalServerError(self._explain_start(timeout_s))

    def _read_word(self, timeout_s: float) -> bytes | None:
        """Return what the child says next, nothing when it has ended, and None when it is silent for so long."""
        stdout = self._process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], timeout_s)
        return os.read(stdout.fileno(), 64) if readable else None

    def stop(self, *, drain_timeout_s: float = 15) -> None:
        """End the server after the last event of this process is in its database; call it after the flow has ended.

        Waits up to `drain_timeout_s` for this process to send what it has queued and for the server to write it. The
        log stays where the server has not ended well. A second call does nothing.
        """
        if self._is_stopped:
            return
        self._is_stopped = True
        deadline = time.monotonic() + drain_timeout_s
        if self._is_ready:
            _send_queued_events(deadline)
        drain_s = max(0.0, deadline - time.monotonic())
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with stdin, contextlib.suppress(BrokenPipeError):  # it may have ended by itself
            stdin.write(json.dumps({"drain_s": drain_s}).encode() + b"\n")
        # Words of a start that nobody has waited for come first.
        while (word := self._read_word(drain_s + _EXIT_GRACE_S)) == READY:
            pass
        has_ended = word == b"" and self._process.wait() == 0  # it was stopped before it had anything to write
        self._process.kill()
        self._process.wait()
        stdout.close()
        if self._listener is not None:
            self._listener.close()
        elif has_ended or (word is not None and word.endswith(STOPPED)):
            self.log_path.unlink(missing_ok=True)

    def _explain_start(self, timeout_s: float) -> str:
        try:
            log = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            log = ""
        tail = f"; the end of {self.log_path}:\n" + "\n".join(log.splitlines()[-_LOG_TAIL_LINES:])
        if self._process.poll() is None:
            self._process.kill()
            return f"the local Prefect server was not ready after {timeout_s:g} s{tail}"
        advice = ""
        if "Can't locate revision" in log:
            advice = (
                ": its database was last used by a newer version of Prefect; set PREFECT_HOME to a folder of its own,"
                " or PREFECT_API_URL to a server"
            )
        return f"the local Prefect server ended with status {self._process.returncode} while starting{advice}{tail}"


def _listen(port: int | None) -> socket.socket:
    try:
        return _listen_when_free(_USUAL_PORT if port is None else port)
    except OSError as error:
        if port is None:
            return socket.create_server(("127.0.0.1", 0), backlog=256)
        raise LocalServerError(f"port {port} of this machine cannot be had: {error.strerror or error}") from None


def _listen_when_free(port: int) -> socket.socket:
    """Wait a little for a port that is taken: whoever restarts what was killed does so at once, and the runs that have
    outlived it go on asking at the address they know."""
    deadline = time.monotonic() + _PORT_WAIT_S
    while True:
        try:
            return socket.create_server(("127.0.0.1", port), backlog=256)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        time.sleep(_PORT_POLL_S)


def _start_lasting_child(listener: socket.socket, log_path: Path, key: str) -> subprocess.Popen[bytes]:
    with log_path.open("ab") as log:
        environ = lasting_server_environment(listener.getsockname()[1], key)
        return _start_child(listener, log, log_path, environ, is_lasting=True)


def _start_child(
    listener: socket.socket, log: IO[bytes], log_path: Path, environ: dict[str, str], *, is_lasting: bool = False
) -> subprocess.Popen[bytes]:
    arguments = {"socket_fd": listener.fileno(), "log_path": str(log_path), "is_lasting": is_lasting}
    return subprocess.Popen(
        # Safe path (-P): a `tasks.py` in the working directory must not hide ours.
        [sys.executable, "-P", "-c", _BOOTSTRAP, json.dumps(arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        bufsize=0,
        pass_fds=[listener.fileno()],
        env=environ,
        start_new_session=True,
    )


def _send_queued_events(deadline: float) -> None:
    """Have Prefect's client, if this process uses it, send the events it holds. From a thread of its own, because the
    call returns a coroutine when there is a running loop."""
    worker_module = sys.modules.get("prefect.events.worker")
    if worker_module is None:
        return
    timeout = max(0.0, deadline - time.monotonic())
    thread = threading.Thread(target=worker_module.EventsWorker.drain_all, kwargs={"timeout": timeout}, daemon=True)
    thread.start()
    thread.join(timeout)


_held: list[LocalServer] = []


@contextmanager
def hold_server() -> Iterator[None]:
    """Have a server of ours for the time of the block, where the user has none and none is held yet."""
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


@contextmanager
def prefect_server() -> Iterator[Callable[[], None] | None]:
    """Prefect's settings for a run, to be made before Prefect is imported: None where the server is the user's own,
    else what waits until ours is ready. Raises SettingsError when the user's own does not answer.
    """
    with hold_server():
        if not _held:
            from evalhouse.flows.server.api import check_prefect_server  # noqa: PLC0415  # a run without it does without

            check_prefect_server()
            configure_prefect_environment(None)
            yield None
            return
        (server,) = _held
        os.environ.setdefault("PREFECT_API_SSL_CERT_FILE", str(_write_authority()))
        configure_prefect_environment(server.api_url, auth_string=server.auth_string)
        try:
            yield server.wait_until_ready
        finally:
            os.environ.pop(API_URL, None)  # which would name a server of the user's to the next run


def _write_authority() -> Path:
    """A file with one authority of the world, the first: each of Prefect's clients reads all of them before it speaks
    plain HTTP to our server, 50 ms three times a run."""
    path = prefect_home() / "evalhouse-one-authority.pem"
    if not path.exists():
        import certifi  # noqa: PLC0415  # once a home

        end = "-----END CERTIFICATE-----\n"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end, encoding="utf-8")
    return path


def is_server_alive() -> bool:
    """Whether the server that is held still runs; true as well where none is."""
    return all(server.is_alive for server in _held)


_LEAST_TOKEN: Final = 16


def listen(host: str, port: int | None, default: int) -> socket.socket:
    """A socket at the port, or, where none was named, at the default or a free one; raises SettingsError."""
    try:
        return _bind(host, default if port is None else port)
    except OSError as error:
        if port is None:
            with suppress(OSError):
                return _bind(host, 0)
        raise SettingsError(
            f"cannot listen at {host}, port {port or default}: {error.strerror or error}; name another --host or --port"
        ) from None


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def write_address(host: str, listening: socket.socket) -> str:
    """The address that others use: with this machine's name, where it listens at all of them."""
    named = host
    with suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            named = socket.gethostname()
    shown = f"[{named}]" if ":" in named else named
    return f"http://{shown}:{listening.getsockname()[1]}/"


def find_token(variable: str) -> str:
    """The token a person has set, or a new one; raises SettingsError for one that is easily guessed."""
    given = os.environ.get(variable)
    if given is not None and (len(given) < _LEAST_TOKEN or not given.isascii() or not given.isalnum()):
        raise SettingsError(
            f"{variable} has {len(given)} characters; a token has at least {_LEAST_TOKEN} letters and digits: "
            "set another, or none, and one is made"
        )
    return given or secrets.token_hex(16)
