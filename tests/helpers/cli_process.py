"""`evalhouse` as a person or a nightly job starts it: a separate process, its two streams apart, or in a terminal.

The environment is bare of everything that would choose a judge, a warehouse or a server, unless a test gives it.
"""

from __future__ import annotations

import contextlib
import fcntl
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
from typing import Any

import duckdb
import pytest
from in_process import Finished, call_main, is_running, run_here
from prefect_holder import find_home, find_server

ROOT = Path(__file__).resolve().parents[2]
# DuckDB takes a main module without a file for a person at a prompt, to whom it shows the progress of a long query; and
# where a process of a pool begins, Python runs the file that the main module names.
COMMAND = [sys.executable, "-c", "from evalhouse.flows import cli; __file__ = cli.__file__; cli.main()"]
# Ctrl-C goes to the foreground group of the session's controlling terminal, which a new session has to take.
IN_TERMINAL = [
    sys.executable,
    "-c",
    "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from evalhouse.flows.cli import main; main()",
]
# A busy machine takes ten times as long as a quiet one.
PATIENCE_S = 180.0
UNWRAPPED = 10_000
"""Columns that no line fills."""
# What Prefect's client sends to a server besides flow runs and pages: three of the fourteen requests of a run.
_FEWER_REQUESTS = {"PREFECT_LOGGING_TO_API_ENABLED": "false", "PREFECT_CLIENT_CSRF_SUPPORT_ENABLED": "false"}
Ask = Callable[..., Finished]
"""Calls a command in the folder of the house."""
LEFT_OUT = ("EVALHOUSE_", "OPENAI_", "PREFECT_", "HTTP", "http", "NO_PROXY", "no_proxy", "ALL_PROXY", "COLUMNS")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder to call commands in, with the variables they are given.

    With the `PREFECT_HOME` of the session's server, commands use that. With `own_server` each run starts a separate
    Prefect server, as on a machine without a configured one. What is read of a run's tasks and logs on the session's
    server needs `reports_tasks`, or a separate process.
    """

    folder: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    own_server: bool = False
    reports_tasks: bool = False

    def with_variables(self, **variables: str) -> Place:
        return replace(self, variables={**self.variables, **variables})

    def read(self, sql: str, warehouse: str = "evalhouse.duckdb") -> list[dict[str, Any]]:
        """Rows of a warehouse in the folder."""
        with duckdb.connect(str(self.folder / warehouse), read_only=True) as connection:
            return connection.sql(sql).pl().to_dicts()

    def environment(self) -> dict[str, str]:
        plain = "EVALHOUSE_PLAIN_SERVER"  # in CI for all tests
        kept = {name: value for name, value in os.environ.items() if name == plain or not name.startswith(LEFT_OUT)}
        server = find_server() if self.uses_shared_server else {}
        return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **server, **self.variables}

    @property
    def uses_shared_server(self) -> bool:
        is_of_home = self.variables.get("PREFECT_HOME") == str(find_home())
        return is_of_home and not self.own_server and "PREFECT_API_URL" not in self.variables

    def _piped(self) -> dict[str, str]:
        return {"COLUMNS": str(UNWRAPPED), **self.environment()}

    def call(self, *arguments: str, stdin: str | None = None) -> Finished:
        """A command in this process, at a third of what a process costs, unless it starts a separate server."""
        environment = self._piped()
        if "PREFECT_API_URL" not in environment and is_running(arguments):
            return self.call_process(*arguments, stdin=stdin)
        if self.uses_shared_server and not self.reports_tasks:
            environment = _FEWER_REQUESTS | environment
        return run_here(self.folder, environment, *arguments, stdin=stdin, reports_tasks=self.reports_tasks)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self._piped(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call_process(self, *arguments: str, stdin: str | None = None, timeout_s: float = PATIENCE_S) -> Finished:
        """A command in a separate process, for its exit status, its streams, and a separate server."""
        began = time.monotonic()
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self._piped(),
            input=stdin or "",
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        seconds = time.monotonic() - began
        return Finished(status=done.returncode, stdout=done.stdout, stderr=done.stderr, seconds=seconds)


def call_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> Finished:
    """Call a command that starts no run, in this process and its unchanged environment."""
    status = call_main(arguments)
    written = capsys.readouterr()
    return Finished(status=status, stdout=written.out, stderr=written.err)


def finish(process: subprocess.Popen[str], *, timeout_s: float = PATIENCE_S) -> Finished:
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

    def read_until(self, is_reached: Callable[[], bool], *, timeout_s: float = PATIENCE_S) -> None:
        """Take in what is written until the condition holds; fails when the command ends before."""
        deadline = time.monotonic() + timeout_s
        while not is_reached():
            assert time.monotonic() < deadline, f"not reached in time; on the screen:\n{self.screen}"
            assert self._read(0.05), f"the command ended before; on the screen:\n{self.screen}"

    def finish(self, *, timeout_s: float = PATIENCE_S) -> Finished:
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
        except OSError:  # Linux raises it when the last holder of the other end is gone
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
    """A command in a terminal, from its beginning to its end."""
    with in_terminal(place, *arguments, columns=columns) as terminal:
        return terminal.finish()


def wait_for(is_reached: Callable[[], bool], process: subprocess.Popen[str], *, timeout_s: float = PATIENCE_S) -> None:
    """Wait for something a started command brings about."""
    deadline = time.monotonic() + timeout_s
    while not is_reached():
        assert process.poll() is None, f"the command ended before: {process.communicate()}"
        assert time.monotonic() < deadline, "not reached in time"
        time.sleep(0.02)
