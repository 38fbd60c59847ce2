"""The child processes of `evaluate`: the caller's side, which keeps and asks them, and theirs, which answers.

Two evaluations at once, in threads, have a process each. A process that was forked from the caller starts its own, and
all end with the caller. A request is a line of JSON on standard input of the child; its answers are lines of JSON on
standard output: `stderr`, a text for the caller's standard error, and `progress`, as often as they come, and at last
the end of the run. Between runs nothing stays of the caller's own modules: each run imports them as it finds them.
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
from typing import Any

import orjson

from evalhouse.flows.errors import explain, log_unexpected
from evalhouse.flows.server.environment import load_user_settings
from evalhouse.flows.server.local import hold_server, is_server_alive

Message = dict[str, Any]
Send = Callable[[Message], None]

_BOOTSTRAP = "from evalhouse.flows.start import answer_calls; answer_calls()"
_IDLE_S = 600.0  # without a request the child and its server end, to be started again when there is one
_LOOK_S = 1.0
_LISTEN_S = 0.5
_END_S = 10.0
_INSTALLED = ("site-packages", "dist-packages")
_lock = threading.Lock()
_idle: "list[Runner]" = []
_of_parent: "list[Runner]" = []  # kept after a fork: they are not this process's to end


class RunnerGone(Exception):
    """The child has ended before its run did; `has_begun` says whether it had taken the request."""

    def __init__(self, status: int, *, has_begun: bool) -> None:
        super().__init__(f"the run's process ended with status {status} without a message")
        self.has_begun = has_begun


class Runner:
    """A child that runs evaluations one after the other, with Prefect's settings as they were when it was started."""

    def __init__(self, key: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self.key = key
        self.n_runs = 0
        self._rest = b""  # of a line that has not come whole
        # In a separate session: Ctrl-C comes from this process, which also knows what it interrupts.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOTSTRAP],  # the path is the caller's, without the working folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)},
            start_new_session=True,
        )

    @property
    def is_alive(self) -> bool:
        """Return whether the child still runs."""
        return self._process.poll() is None

    def run(self, request: Message, listen: Send) -> Message:
        """Have an evaluation run, and return how it ended; `listen` gets what comes before. Raises RunnerGone.

        On Ctrl-C the run is stopped in good order, and its end is awaited before KeyboardInterrupt is raised.
        """
        assert self._process.stdin is not None
        self.n_runs += 1
        try:
            try:
                self._process.stdin.write(orjson.dumps(request) + b"\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                raise RunnerGone(self._process.wait(), has_begun=False) from None
            return self._wait_for_end(listen)
        except KeyboardInterrupt:
            self._process.send_signal(signal.SIGINT)
            try:
                listen(self._wait_for_end(listen))
            except (RunnerGone, KeyboardInterrupt):
                self.end(at_once=True)
            raise

    def _wait_for_end(self, listen: Send) -> Message:
        assert self._process.stdout is not None
        pipe, has_begun = self._process.stdout.fileno(), False
        while True:
            # Now and then this thread wakes up, because Ctrl-C may have come to another one.
            if not select.select([pipe], [], [], _LISTEN_S)[0]:
                continue
            chunk = os.read(pipe, 65536)
            if not chunk:
                raise RunnerGone(self._process.wait(), has_begun=has_begun)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                has_begun = True
                message: Message = orjson.loads(line)
                if not {"begun", "stderr", "progress"}.intersection(message):
                    return message
                listen(message)

    def end(self, *, at_once: bool = False) -> None:
        """Let the child and its server end, and wait for that."""
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


def run_apart(request: Message, listen: Send, variables: Mapping[str, str]) -> Message:
    """Have an evaluation run by a child that waits for one, or by a new one; return how it ended. Raises RunnerGone.

    The child takes the caller's folder, import path and environment of this moment, changed by `variables`.
    """
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(sys.path)}
    request = {**request, "environment": environment, "folder": os.getcwd(), "path": sys.path}
    while True:
        key = {**load_user_settings(), **variables}
        with _lock:
            runner = next((waiting for waiting in _idle if waiting.key == key), None)
            if runner is not None:
                _idle.remove(runner)
        if runner is not None and not runner.is_alive:
            runner.end()
            continue
        runner = runner or Runner(key, variables)
        try:
            return runner.run(request, listen)
        except RunnerGone as gone:
            if runner.n_runs == 1 or gone.has_begun:
                raise
            # It had ended since the run before, as it does when its server has, or after a long time: another one then.
        finally:
            if runner.is_alive:
                with _lock:
                    _idle.append(runner)
            else:
                runner.end()


@atexit.register
def end_runners() -> None:
    """End the children that wait."""
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


def answer_requests(run: Callable[[Message, Send], Message]) -> None:
    """Call `run` with each request until none comes for ten minutes, or the caller has ended: the child's side."""
    output, writing = os.fdopen(os.dup(1), "wb", buffering=0), threading.Lock()
    os.dup2(2, 1)  # the pipe is only for the lines of this protocol, so libraries print elsewhere

    def send(message: Message) -> None:
        line = orjson.dumps(message) + b"\n"
        with writing:
            while line:
                line = line[output.write(line) :]

    sys.stdout = sys.stderr = _Relay(send)
    parent, last_at_s = os.getppid(), 0.0
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt), hold_server():
        # A process forked from the caller may still hold its end of the pipe, hence the look at who the parent is.
        while last_at_s < _IDLE_S and os.getppid() == parent:
            if not select.select([0], [], [], _LOOK_S)[0]:
                last_at_s += _LOOK_S
                continue
            line = sys.stdin.buffer.readline()
            if not line or not is_server_alive():
                return
            last_at_s = 0.0
            send({"begun": True})
            request = orjson.loads(line)
            try:
                with taking_place_of_caller(request):
                    answer = run(request, send)
            except KeyboardInterrupt:
                answer = {"interrupted": None}
            except Exception as error:  # the caller gets any error of the run, and the child waits for the next
                answer = {"error": explain(error) or log_unexpected(error)}
            send(answer)


@contextlib.contextmanager
def taking_place_of_caller(request: Message) -> Iterator[None]:
    """Take the caller's variables, folder and import path; forget its own modules afterwards."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:] = request["path"]
    known = set(sys.modules)
    try:
        yield
    finally:
        for name in sys.modules.keys() - known:
            file = getattr(sys.modules[name], "__file__", None)
            is_installed = not file or file.startswith(sys.base_prefix) or any(part in file for part in _INSTALLED)
            if not is_installed and name.partition(".")[0] != "evalhouse":  # it may be another one at the next run
                del sys.modules[name]


class _Relay(io.TextIOBase):
    """Standard error, as the caller sees it: in a notebook below the cell, in a test with what the test printed."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self._send({"stderr": text})
        return len(text)
