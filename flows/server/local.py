"""A Prefect server of our own, for one run or for as long as suites are served, so that neither needs anything started
beforehand; and the one of this process, the user's own or one of ours, which is held for a block of code
(`hold_server`): a command holds it from its first moment, so that it comes up while everything else is imported, the
process of `evaluate` for all of its runs. A run takes the one that is held, or one for itself.

It is a child process started before Prefect is imported here, so that its start and the import, the staging of the
dataset and the rest happen at the same time; it listens on a socket opened by this process, says over a pipe when it is
ready, and ends when this process ends, however that happens. `environment` says which settings it gets, `process` is
what runs in it. Nothing here imports Prefect.
"""

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from evalhouse.flows.server.environment import (
    API_URL,
    LocalServerError,
    configure_prefect_environment,
    find_api_url,
    lasting_server_environment,
    make_lasting_key,
    prefect_home,
    server_environment,
)
from evalhouse.flows.server.process import READY, STOPPED

_BOOTSTRAP = "from evalhouse.flows.server.process import main; main()"
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
