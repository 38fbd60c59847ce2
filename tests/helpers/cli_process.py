"""`evalhouse` as a person or a nightly job starts it: a process of its own, its two streams apart, or in a terminal.

The environment is bare of everything that would choose a judge, a warehouse or a server, unless a test gives it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evalhouse.flows.cli import main
from evalhouse.flows.server.local import LocalServer

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-c", "from evalhouse.flows.cli import main; main()"]
# Ctrl-C goes to the foreground group of the session's controlling terminal, which a new session has to take.
IN_TERMINAL = [
    sys.executable,
    "-c",
    "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from evalhouse.flows.cli import main; main()",
]
LEFT_OUT = ("EVALHOUSE_", "OPENAI_", "PREFECT_", "HTTP", "http", "NO_PROXY", "no_proxy", "ALL_PROXY", "COLUMNS")


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a command ended; in a terminal both streams are in `stdout`."""

    status: int
    stdout: str
    stderr: str = ""
    seconds: float = 0.0

    @property
    def document(self) -> Any:  # noqa: ANN401  # whatever the command's JSON is
        """Standard output, all of it, as one JSON document."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


class SharedServer:
    """One Prefect server for the commands of a test process whose `PREFECT_HOME` is `home`: a server of its own costs
    each run 4 s of CPU. It starts when the first of them is called."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._server: LocalServer | None = None

    def find_variables(self) -> dict[str, str]:
        """What leads a command to the server."""
        if self._server is None:
            kept = os.environ.get("PREFECT_HOME")
            os.environ["PREFECT_HOME"] = str(self.home)
            try:
                self._server = LocalServer.start()
            finally:
                os.environ.pop("PREFECT_HOME") if kept is None else os.environ.update(PREFECT_HOME=kept)
            self._server.wait_until_ready()
        return {"PREFECT_API_URL": self._server.api_url, "PREFECT_API_AUTH_STRING": str(self._server.auth_string)}

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(drain_timeout_s=0)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder to call commands in, with the variables they are given.

    With `own_server` each run starts a Prefect server of its own, as on a machine where none is configured.
    """

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    own_server: bool = False

    shared: ClassVar[SharedServer | None] = None

    def with_variables(self, **variables: str) -> Place:
        return replace(self, variables={**self.variables, **variables})

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(LEFT_OUT)}
        limits = {"EVALHOUSE_LIMITS_DIR": os.environ.get("EVALHOUSE_LIMITS_DIR", str(self.folder / "limits"))}
        server = self._find_server()
        return {**kept, **limits, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **server, **self.variables}

    def _find_server(self) -> dict[str, str]:
        shared = Place.shared
        is_of_home = shared is not None and self.variables.get("PREFECT_HOME") == str(shared.home)
        if shared is None or not is_of_home or self.own_server or "PREFECT_API_URL" in self.variables:
            return {}
        return shared.find_variables()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str, stdin: str | None = None, timeout_s: float = 90.0) -> Finished:
        began = time.monotonic()
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment(),
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        seconds = time.monotonic() - began
        return Finished(status=done.returncode, stdout=done.stdout, stderr=done.stderr, seconds=seconds)


def call_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> Finished:
    """A command in this process, for those that start no run."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    written = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return Finished(status=ended.value.code, stdout=written.out, stderr=written.err)


def finish(process: subprocess.Popen[str], *, timeout_s: float = 90.0) -> Finished:
    """Wait for a command that was started; it is killed when it takes too long."""
    began = time.monotonic()
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return Finished(status=process.returncode, stdout=stdout, stderr=stderr, seconds=time.monotonic() - began)


class Terminal:
    """A command in a pseudo-terminal of some width. Use as a context manager; `screen` is all that was written."""

    def __init__(self, place: Place, arguments: Sequence[str], *, columns: int) -> None:
        self._written = b""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self._process = subprocess.Popen(
            [*IN_TERMINAL, *arguments],
            cwd=place.folder,
            env=place.environment(),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)

    @property
    def screen(self) -> str:
        return self._written.decode(errors="replace")

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def read_until(self, is_reached: Callable[[], bool], *, timeout_s: float = 90.0) -> None:
        """Take in what is written until the condition holds; fails when the command ends before."""
        deadline = time.monotonic() + timeout_s
        while not is_reached():
            assert time.monotonic() < deadline, f"not reached in time; on the screen:\n{self.screen}"
            assert self._read(0.05), f"the command ended before; on the screen:\n{self.screen}"

    def finish(self, *, timeout_s: float = 90.0) -> Finished:
        began = time.monotonic()
        while self._read(0.2):
            assert time.monotonic() < began + timeout_s, f"the command does not end; on the screen:\n{self.screen}"
        status = self._process.wait(timeout=timeout_s)
        return Finished(status=status, stdout=self.screen.replace("\r\n", "\n"), seconds=time.monotonic() - began)

    def _read(self, seconds: float) -> bool:
        """False when nothing more will come."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            chunk = os.read(self._master, 65536)
        except OSError:  # Linux says so when the last holder of the other end is gone
            return False
        self._written += chunk
        return bool(chunk)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._master)


@contextlib.contextmanager
def in_terminal(place: Place, *arguments: str, columns: int = 80) -> Iterator[Terminal]:
    terminal = Terminal(place, arguments, columns=columns)
    try:
        yield terminal
    finally:
        terminal.close()


def show_in_terminal(place: Place, *arguments: str, columns: int = 80) -> Finished:
    with in_terminal(place, *arguments, columns=columns) as terminal:
        return terminal.finish()


def wait_for(is_reached: Callable[[], bool], process: subprocess.Popen[str], *, timeout_s: float = 60.0) -> None:
    """Wait for something a started command brings about."""
    deadline = time.monotonic() + timeout_s
    while not is_reached():
        assert process.poll() is None, f"the command ended before: {process.communicate()}"
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.02)
