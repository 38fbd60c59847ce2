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

from kept_open import kept_open, let_go

from evalhouse.flows.cli import main
from evalhouse.flows.server.environment import configure_prefect_environment
from evalhouse.warehouse.errors import WarehouseUrlError
from evalhouse.warehouse.location import parse_location

# The others import no Prefect, and so need none of its settings.
RUNNING = ("init", "run", "resume", "collect", "replay", "doctor")
# These open the warehouse a dozen times, each time for 20 ms, and change none of DuckDB's settings.
_OPENING_OFTEN = frozenset({
    "collect", "compare", "diagnose", "gate", "lineage", "noise", "replay", "report", "rescore", "resume", "review",
    "run", "runs", "show",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Result of a command; in a terminal both streams are in `stdout`."""

    status: int
    stdout: str
    stderr: str = ""
    seconds: float = 0.0

    @property
    def document(self) -> Any:  # noqa: ANN401  # any JSON of the command
        """Standard output, all of it, as one JSON document."""
        return json.loads(self.stdout)

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()


def run_here(
    folder: Path, environment: Mapping[str, str], *arguments: str, stdin: str | None = None, reports_tasks: bool = False
) -> Finished:
    """Call a command in `folder` with nothing but `environment`. For the main thread, outside of any event loop.

    What became of single tasks reaches Prefect's server only if `reports_tasks`; of flow runs it always hears."""
    stdout, stderr = _make_stream(), _make_stream()
    began = time.monotonic()
    with _standing_in(folder, environment), _prefect_settings(arguments), contextlib.ExitStack() as streams:
        if is_running(arguments) and not reports_tasks:
            streams.enter_context(_events_dropped())
        streams.enter_context(contextlib.redirect_stdout(stdout))
        streams.enter_context(contextlib.redirect_stderr(stderr))
        before, sys.stdin = sys.stdin, _make_stream(stdin or "")
        try:
            status = call_main(arguments)
        finally:
            sys.stdin = before
    # Every process that a later test starts would inherit it, and be deaf to Ctrl-C: `serve` needs a separate one.
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "the command has blocked SIGINT"
    seconds = time.monotonic() - began
    return Finished(status=status, stdout=_read(stdout), stderr=_read(stderr), seconds=seconds)


@contextlib.contextmanager
def prefect_here(folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Use Prefect within as a command does: on the server of this environment."""
    with _standing_in(folder, environment), _prefect_settings(RUNNING):
        yield


def call_main(arguments: tuple[str, ...]) -> int:
    """Call a command in the present folder, environment and streams, and return its exit status."""
    with _kept_open(arguments):
        try:
            main(list(arguments))
        except SystemExit as ended:
            status = ended.code
    assert isinstance(status, int)
    return status


def is_running(arguments: tuple[str, ...]) -> bool:
    """Return whether the command imports Prefect."""
    return bool(arguments) and arguments[0] in RUNNING


@contextlib.contextmanager
def _kept_open(arguments: tuple[str, ...]) -> Iterator[None]:
    """DuckDB has the warehouse of a command in its memory from its first query to its end.

    A separate process does without, and so does a command whose warehouse is not a file, or is open already.
    """
    chosen = arguments[arguments.index("--warehouse") + 1 :] if "--warehouse" in arguments else ()
    url = next(iter(chosen), os.environ.get("EVALHOUSE_WAREHOUSE", "evalhouse.duckdb"))
    with contextlib.ExitStack() as held:
        # A query locks the settings of the file that it has opened, and a copy needs more than a reader may have.
        if arguments[:1] == ("query",) or arguments[:2] == ("warehouse", "backup"):
            let_go()
        elif arguments and arguments[0] in _OPENING_OFTEN:
            with contextlib.suppress(WarehouseUrlError):
                location = parse_location(url)
                if location.lake is None:
                    held.enter_context(kept_open(location.path))
        yield


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

    _keep_parameter_schemas()
    configure_prefect_environment(None)
    chosen = {name: value for name, value in os.environ.items() if name.startswith("PREFECT_")}
    settings = _make_settings(json.dumps(chosen, sort_keys=True))
    with SettingsContext(profile=get_settings_context().profile, settings=settings):
        yield


@cache
def _keep_parameter_schemas() -> None:
    """Make the schema of a flow's parameters once: Prefect makes it at each run, for a tenth of what a run costs."""
    from prefect import flows  # noqa: PLC0415  # as above

    flows.parameter_schema = cache(flows.parameter_schema)


@contextlib.contextmanager
def _events_dropped() -> Iterator[None]:
    """Drop Prefect's events of the states of tasks; to send and to record the events of a run takes its server and this
    process 70 ms of CPU."""
    from prefect.events.clients import NullEventsClient  # noqa: PLC0415  # as above
    from prefect.events.worker import EventsWorker  # noqa: PLC0415

    EventsWorker.set_client_override(NullEventsClient)
    try:
        yield
    finally:
        EventsWorker.set_client_override(None)


@cache
def _make_settings(chosen: str) -> Any:  # noqa: ANN401  # of Prefect's own type, which is not imported above
    """Make settings from the present environment; `chosen` is the part that Prefect reads, as the key of the cache."""
    from prefect.settings import Settings  # noqa: PLC0415

    return Settings()
