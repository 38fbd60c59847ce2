"""Commands called in the test's own process, as if each were a process: its own environment, folder, streams, Prefect
settings and modules of the user, all put back when it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evalhouse.flows.cli import main
from evalhouse.flows.server.environment import configure_prefect_environment

# The others import no Prefect, and so need none of its settings.
RUNNING = ("run", "resume", "collect", "doctor")


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


def run_here(folder: Path, environment: Mapping[str, str], *arguments: str, stdin: str | None = None) -> Finished:
    """Call a command in `folder` with nothing but `environment`. For the main thread, outside of any event loop."""
    stdout, stderr = _make_stream(), _make_stream()
    began = time.monotonic()
    with _standing_in(folder, environment), _prefect_settings(arguments), contextlib.ExitStack() as streams:
        streams.enter_context(contextlib.redirect_stdout(stdout))
        streams.enter_context(contextlib.redirect_stderr(stderr))
        before, sys.stdin = sys.stdin, _make_stream(stdin or "")
        try:
            main(list(arguments))
        except SystemExit as ended:
            status = ended.code
        finally:
            sys.stdin = before
    assert isinstance(status, int)
    # Every process that a later test starts would inherit it, and be deaf to Ctrl-C: `serve` needs one of its own.
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "the command has blocked SIGINT"
    seconds = time.monotonic() - began
    return Finished(status=status, stdout=_read(stdout), stderr=_read(stderr), seconds=seconds)


def is_running(arguments: tuple[str, ...]) -> bool:
    """Whether the command is one that imports Prefect."""
    return bool(arguments) and arguments[0] in RUNNING


def _make_stream(text: str = "") -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8", write_through=True)


def _read(stream: io.TextIOWrapper) -> str:
    stream.flush()
    written = stream.buffer
    assert isinstance(written, io.BytesIO)
    return written.getvalue().decode()


@contextlib.contextmanager
def _standing_in(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Environment, folder and import path of a new process. What it imports from `folder` is forgotten, because the
    next test may have another module of that name."""
    variables, path, loaded = dict(os.environ), list(sys.path), set(sys.modules)
    os.environ.clear()
    os.environ.update(environment)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        os.environ.clear()
        os.environ.update(variables)
        sys.path[:] = path
        for name in sys.modules.keys() - loaded:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


@contextlib.contextmanager
def _prefect_settings(arguments: tuple[str, ...]) -> Iterator[None]:
    """Prefect reads its settings from the environment when it is imported; here it has been imported before."""
    if not is_running(arguments):
        yield
        return
    from prefect.context import SettingsContext, get_settings_context  # noqa: PLC0415  # a second, for some tests only

    configure_prefect_environment(None)
    chosen = {name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}
    settings = _make_settings(json.dumps(chosen, sort_keys=True))
    with SettingsContext(profile=get_settings_context().profile, settings=settings):
        yield


@cache
def _make_settings(chosen: str) -> Any:  # noqa: ANN401  # of Prefect's own type, which is not imported above
    """From the environment as it is, of which `chosen` is what Prefect reads."""
    from prefect.settings import Settings  # noqa: PLC0415

    return Settings()
