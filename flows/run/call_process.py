"""The caller's side of `evaluate_process`: processes that run evaluations, kept for the next one.

The first evaluation of a process waits for imports and for a Prefect server; those after it find both. Two at once, in
threads, have a process each. A process that was forked from the caller starts its own, and all end with the caller.
"""

import atexit
import contextlib
import io
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import orjson

from evalhouse.flows.errors import explain
from evalhouse.flows.server.environment import read_user_settings
from evalhouse.flows.server.local import hold_server, is_server_alive

_IDLE_S = 600.0  # without a request this process and its server end, to be started again when there is one
_LOOK_S = 1.0
_BOOTSTRAP = "from evalhouse.flows.evaluate import answer_calls; answer_calls()"
_INSTALLED = ("site-packages", "dist-packages")

Message = dict[str, Any]
Send = Callable[[dict[str, object]], None]


def answer_requests(run: Callable[[Message, Send], Message]) -> None:
    """Call `run` with each request until none comes for ten minutes, or the caller has ended: the child's side."""
    send = partial(_send, os.fdopen(os.dup(1), "wb", buffering=0), threading.Lock())
    os.dup2(2, 1)  # the pipe is for our lines alone, whatever a library prints
    parent = os.getppid()
    sys.stdout = sys.stderr = _Relay(send)
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt), hold_server():
        while (request := _next_request(parent)) is not None and is_server_alive():
            send({"begun": True})
            send(_answer(run, request, send))


def _next_request(parent: int) -> Message | None:
    """The next request; None when the caller has gone or has not asked for a long time."""
    for _ in range(int(_IDLE_S / _LOOK_S)):
        if os.getppid() != parent:
            return None  # a process forked from it may still hold its end of the pipe
        if select.select([0], [], [], _LOOK_S)[0]:
            line = sys.stdin.buffer.readline()
            return orjson.loads(line) if line else None
    return None


def _answer(run: Callable[[Message, Send], Message], request: Message, send: Send) -> Message:
    try:
        with _standing_in(request):
            return run(request, send)
    except KeyboardInterrupt:
        return {"interrupted": None}
    except Exception as error:  # the caller is answered whatever a run raises, and this process goes on
        if (text := explain(error)) is not None:
            return {"error": text}
        sys.excepthook(type(error), error, error.__traceback__)
        return {"error": f"the run broke off with {type(error).__name__}: {error}"}


@contextlib.contextmanager
def _standing_in(request: Message) -> Iterator[None]:
    """The caller's variables, folder and import path; its own modules are forgotten afterwards."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:] = request["path"]
    known = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - known:
            if _is_callers(name):
                del sys.modules[name]


def _is_callers(name: str) -> bool:
    """Whether a module is the caller's own, which may be another one at the next run."""
    file = getattr(sys.modules[name], "__file__", None)
    is_installed = not file or file.startswith(sys.base_prefix) or any(part in file for part in _INSTALLED)
    return not is_installed and name.partition(".")[0] != "evalhouse"


class _Relay(io.TextIOBase):
    """Standard error, as the caller sees it: in a notebook below the cell, in a test with what the test printed."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._send({"said": text})
        return len(text)


def _send(output: io.FileIO, lock: threading.Lock, message: dict[str, object]) -> None:
    line = orjson.dumps(message) + b"\n"
    with lock:
        while line:
            line = line[output.write(line) :]


Message = dict[str, Any]
Listen = Callable[[Message], None]

_END_S = 10.0
_LISTEN_S = 0.5
_lock = threading.Lock()
_idle: "list[Runner]" = []
_of_parent: "list[Runner]" = []  # kept after a fork, for they are not this process's to end


class RunnerGone(Exception):
    """The process has ended before its run did; `has_begun` says whether it had taken the request."""

    def __init__(self, status: int, *, has_begun: bool) -> None:
        super().__init__(f"the run's process ended with status {status} and said nothing")
        self.has_begun = has_begun


class Runner:
    """A process that runs evaluations one after the other."""

    def __init__(self, key: Mapping[str, str]) -> None:
        self.key = key
        self.n_runs = 0
        self._rest = b""  # of a line that has not come whole
        # In a session of its own: Ctrl-C comes from here, where it is also known what it interrupts.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOTSTRAP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_make_environment(),
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, request: Message, listen: Listen) -> Message:
        """Have an evaluation run, and return how it ended; `listen` gets what comes before. Raises RunnerGone.

        On Ctrl-C the run is stopped in good order, and its end is awaited before KeyboardInterrupt is raised.
        """
        self.n_runs += 1
        try:
            return self._ask(request, listen)
        except KeyboardInterrupt:
            self._process.send_signal(signal.SIGINT)
            try:
                listen(self._hear(listen))
            except (RunnerGone, KeyboardInterrupt):
                self.end(at_once=True)
            raise

    def _ask(self, request: Message, listen: Listen) -> Message:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(orjson.dumps(request) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RunnerGone(self._process.wait(), has_begun=False) from None
        return self._hear(listen)

    def _hear(self, listen: Listen) -> Message:
        """The message that ends a run."""
        has_begun = False
        for line in self._read_lines():
            has_begun = True
            message: Message = orjson.loads(line)
            if not {"begun", "said", "progress"}.intersection(message):
                return message
            listen(message)
        raise RunnerGone(self._process.wait(), has_begun=has_begun)

    def _read_lines(self) -> Iterator[bytes]:
        """Lines as they come; in between this thread wakes up, because Ctrl-C may have come to another one."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while True:
            if not select.select([pipe], [], [], _LISTEN_S)[0]:
                continue
            chunk = os.read(pipe, 65536)
            if not chunk:
                return
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            yield from lines

    def end(self, *, at_once: bool = False) -> None:
        """Let the process and its server end, and wait for that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if at_once:
            self._process.kill()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def run_apart(request: Message, listen: Listen) -> Message:
    """Have an evaluation run by a process that waits for one, or by a new one; returns how it ended. Raises RunnerGone.

    The caller's variables, folder and import path are those of this moment.
    """
    request = {
        **request,
        "environment": _make_environment(),
        "folder": os.getcwd(),
        "path": sys.path,
    }
    while True:
        runner = _take_runner()
        try:
            message = runner.run(request, listen)
        except RunnerGone as gone:
            if runner.n_runs == 1 or gone.has_begun:
                raise
            continue  # it had ended since the run before, as it does when its server has, or after a long time
        finally:
            _put_back(runner)
        return message


def _take_runner() -> Runner:
    """One that waits, with Prefect's settings as they are now, which are read once a process; or a new one."""
    key = read_user_settings()
    with _lock:
        runner = next((runner for runner in _idle if runner.key == key), None)
        if runner is not None:
            _idle.remove(runner)
    if runner is not None and not runner.is_alive:
        runner.end()
        return _take_runner()
    return runner or Runner(key)


def _put_back(runner: Runner) -> None:
    if not runner.is_alive:
        runner.end()
        return
    with _lock:
        _idle.append(runner)


def _make_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@atexit.register
def end_runners() -> None:
    """End the processes that wait."""
    with _lock:
        runners = list(_idle)
        _idle.clear()
    for runner in runners:
        runner.end()


def _begin_after_fork() -> None:
    global _lock  # noqa: PLW0603  # another thread may have held it
    _lock = threading.Lock()
    _of_parent.extend(_idle)
    _idle.clear()


os.register_at_fork(after_in_child=_begin_after_fork)
