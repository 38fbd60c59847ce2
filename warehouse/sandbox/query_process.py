"""The process that foreign SQL runs in: that of the SQL page, of `evalhouse query`, of bots, and of metric files.

DuckDB's own limits hold neither a function that never looks whether it is interrupted, nor memory that a function takes
for itself, nor a fault that ends the process. A separate process can be ended at any moment and takes nothing with it.
It answers one question after another until one of them has to be stopped; the next question starts another process.
"""

import atexit
import contextlib
import importlib
import io
import json
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl

from evalhouse.warehouse import errors
from evalhouse.warehouse.engine.connection import open_reader
from evalhouse.warehouse.engine.migrate import apply_migrations, load_migrations
from evalhouse.warehouse.errors import QueryError, QueryStopped, WarehouseBusy, WarehouseError, first_line
from evalhouse.warehouse.location import Location, parse_location
from evalhouse.warehouse.metric_files import MetricFile, SetMetric, load_function, set_metrics
from evalhouse.warehouse.queries import read_query
from evalhouse.warehouse.sandbox.query import answer_statement, limiting_time

TIMEOUT_S: Final = 30.0
MEMORY_MB: Final = 1000
MOST_BYTES: Final = 256 * 2**20
"""The largest result: more would not fit a page, and hardly a download."""
_MOST_AT_ONCE: Final = 2
_PATIENCE_S: Final = 10.0
_LOOK_S: Final = 0.02
_START_S: Final = 60.0
# How long the process has to report by itself that the time is over, before it is killed.
_GRACE_S: Final = 2.0
# Rows are fetched beside DuckDB's memory, and threads reserve addresses that they never use.
_ADDRESSES_PER_LIMIT: Final = 1.5
_SPARE_ADDRESSES: Final = (500 + 20 * (os.cpu_count() or 1)) * 2**20
_LARGEST_IDLE: Final = 600 * 2**20  # a process that holds on to more memory than this is not used again
# What a lake's files and its catalogue's server are reached with, and what Python itself needs: no key of a judge.
_PASSED_ON: Final = (
    "AWS_",
    "PG",
    "PYTHON",
    "XDG_",
    "EVALHOUSE_STATE_DIR",
    "HOME",
    "PATH",
    "LANG",
    "LC_",
    "LD_LIBRARY_PATH",
    "TZ",
    "TMPDIR",
)
_CHILD: Final = "from evalhouse.warehouse.sandbox.query_process import main; main()"


@dataclass(kw_only=True)
class _Process:
    """A process that answers questions; its folder holds the results, and what its queries spill."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    is_ready: bool = False

    def ask(self, question: dict[str, Any], stop: threading.Event) -> dict[str, Any]:
        """Send a question and wait for the reply; raises QueryStopped when the process is killed or ends."""
        timeout_s = question["timeout_s"]
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the process has ended, as its status shows
            self.process.stdin.write(json.dumps(question).encode() + b"\n")
            self.process.stdin.flush()
        if not self.is_ready:  # the time of a query begins when its process has loaded what it needs
            if self._read_line(_START_S, stop) is None:
                raise QueryStopped(f"the process for queries has not started within {_START_S:g} s; try again")
            self.is_ready = True
        line = self._read_line(timeout_s + _GRACE_S, stop)
        if line is None:
            raise QueryStopped(f"the query was stopped after {timeout_s:g} s; narrow it")
        if line.endswith(b"\n"):
            reply: dict[str, Any] = json.loads(line)
            return reply
        status = self.process.wait()
        name = signal.Signals(-status).name if -status in set(signal.Signals) else f"status {status}"
        raise QueryStopped(
            f"the query ended the process that it ran in ({name}): it took more than the {question['memory_mb']} MB of "
            "memory that it has here, or a function in it is faulty; narrow it"
        )

    def _read_line(self, seconds: float, stop: threading.Event) -> bytes | None:
        """Return the next line, None when it does not come in time; raises QueryStopped when `stop` is set."""
        stdout, lines = self.process.stdout, []
        assert stdout is not None
        # In another thread: Python handles a Ctrl-C in this one, and only between two of its waits.
        reader = threading.Thread(target=lambda: lines.append(stdout.readline()), daemon=True)
        reader.start()
        deadline = time.monotonic() + seconds
        while reader.is_alive():
            reader.join(_LOOK_S)
            if stop.is_set():
                raise QueryStopped("the query was stopped")
            if time.monotonic() >= deadline:
                return None
        return lines[0]

    def close(self) -> None:
        """End the process, even in the middle of a query."""
        self.process.kill()
        self.process.communicate()
        self.folder.cleanup()


_guard = threading.Lock()
_turns = threading.BoundedSemaphore(_MOST_AT_ONCE)
_idle: list[_Process] = []
_niceness = 0


@contextlib.contextmanager
def serving_queries() -> Iterator[None]:
    """Keep a process ready for the next query within this block: starting one takes half a second.

    Queries come after the pages that this process serves for the processor.
    """
    global _niceness  # noqa: PLW0603  # of this process, as its other processes are
    _niceness = 10
    _idle.append(_start())
    try:
        yield
    finally:
        _close_idle()


@atexit.register
def _close_idle() -> None:
    with _guard:
        while _idle:
            _idle.pop().close()


def answer_apart(
    location: Location,
    text: str,
    *,
    timeout_s: float = TIMEOUT_S,
    memory_mb: int = MEMORY_MB,
    most_rows: int | None = None,
    max_bytes: int | None = MOST_BYTES,
    stop: threading.Event | None = None,
) -> pl.DataFrame:
    """Return what `answer_statement` returns, from the query process; no more than `max_bytes` of rows.

    Raises QueryStopped as well, and WarehouseBusy where two other queries are running or a run keeps the file.
    """
    return run_apart(
        answer_statement,
        timeout_s=timeout_s,
        memory_mb=memory_mb,
        max_bytes=max_bytes,
        stop=stop,
        patience_s=_PATIENCE_S,
        location=location,
        text=text,
        most_rows=most_rows,
    )


def run_apart(
    function: Callable[..., pl.DataFrame],
    *,
    timeout_s: float,
    memory_mb: int,
    max_bytes: int | None = MOST_BYTES,
    stop: threading.Event | None = None,
    patience_s: float | None = None,
    **arguments: object,
) -> pl.DataFrame:
    """Call a function of a module in the query process; it also gets `timeout_s`, `memory_mb` and a folder `spill`.

    Arguments are JSON values, and the `location` of a warehouse. Raises the WarehouseError that the function raises,
    QueryError for any other, and QueryStopped where time or memory were over or the process ended. Raises WarehouseBusy
    when two other queries are running for longer than `patience_s`; without that it waits for them.
    """
    question = {
        "function": f"{function.__module__}:{function.__name__}",
        "arguments": {name: value.url if isinstance(value, Location) else value for name, value in arguments.items()},
        "folder": str(Path.cwd()),
        "timeout_s": timeout_s,
        "memory_mb": memory_mb,
        "max_bytes": max_bytes,
    }
    if not _turns.acquire(timeout=patience_s):
        raise WarehouseBusy(f"{_MOST_AT_ONCE} queries are running; try again when one has ended", who="own thread")
    try:
        process = _take()
        try:
            reply = process.ask(question, stop or threading.Event())
            frame = None
            if "file" in reply:
                path = Path(process.folder.name) / reply["file"]
                frame = pl.read_ipc(path)  # mapped, so that the file can be removed
                path.unlink()
        except BaseException:  # also when interrupted: the process must not continue a query that no one waits for
            process.close()
            raise
        if reply["is_last"]:
            process.close()
        else:
            with _guard:
                _idle.append(process)
    finally:
        _turns.release()
    if frame is None:
        error: WarehouseError = getattr(errors, reply["kind"])(reply["text"])
        vars(error).update(reply["more"])
        raise error
    return frame


def _take() -> _Process:
    """Return an idle process, or else a new one."""
    with _guard:
        while _idle:
            process = _idle.pop()
            if process.process.poll() is None:
                return process
            process.close()
    return _start()


def _start() -> _Process:
    folder = tempfile.TemporaryDirectory(prefix="evalhouse-query-")
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, folder.name, str(_niceness)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)},
        start_new_session=True,  # a Ctrl-C at the terminal is for this process, which then ends the other one
    )
    return _Process(process=process, folder=folder)


def main() -> None:
    """Answer questions, one JSON line each, with one JSON line each until standard input ends."""
    folder = Path(sys.argv[1])
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not look like a reply
    # Loads what queries need, and lets threads start that reserve addresses, before the limits are taken from here.
    importlib.import_module("pyarrow")
    duckdb.sql("select 1 as n").pl().write_ipc(io.BytesIO())
    os.nice(int(sys.argv[2]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # the first to be ended when the machine's memory runs out
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    replies.write(b"ready\n")
    replies.flush()
    try:
        for number, line in enumerate(sys.stdin.buffer):
            reply = _answer(json.loads(line), folder, f"{number}.arrow")
            reply["is_last"] = _measure("resident") > _LARGEST_IDLE
            replies.write(json.dumps(reply).encode() + b"\n")
            replies.flush()
    finally:
        # The process that asked has ended, perhaps without removing the folder.
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _answer(question: dict[str, Any], folder: Path, name: str) -> dict[str, Any]:
    module, _, function = question["function"].partition(":")
    arguments, memory_mb, max_bytes = question["arguments"], question["memory_mb"], question["max_bytes"]
    if "location" in arguments:
        arguments["location"] = parse_location(arguments["location"])
    os.chdir(question["folder"])
    try:
        with _limited(memory_mb, question["timeout_s"]):
            frame: pl.DataFrame = getattr(importlib.import_module(module), function)(
                **arguments, timeout_s=question["timeout_s"], memory_mb=memory_mb, spill=folder
            )
            if max_bytes is not None and frame.estimated_size() > max_bytes:
                raise QueryError(
                    f"the result has {frame.height:,} rows and {frame.estimated_size() / 2**20:,.0f} MB, more than the "
                    f"{max_bytes // 2**20} MB that are given here; narrow it, or ask at the command line"
                )
            frame.write_ipc(folder / name)
        return {"file": name}
    except WarehouseError as failure:
        error = failure
    except MemoryError:
        error = QueryStopped("Out of Memory Error: narrow the query")
    except BaseException as failure:  # any result that Polars or Arrow cannot represent, panics included
        error = QueryError(f"the result cannot be read: {first_line(str(failure))}")
    return {"kind": type(error).__name__, "text": str(error), "more": vars(error)}


@contextlib.contextmanager
def _limited(memory_mb: int, timeout_s: float) -> Iterator[None]:
    """Limit what this process may map beyond what it maps now, and let the system end it some time after its limit.

    The process that asked kills this one earlier, unless it was killed itself.
    """
    mapped = _measure("mapped")
    if not mapped:
        yield
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = mapped + int(_ADDRESSES_PER_LIMIT * memory_mb * 2**20) + _SPARE_ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    signal.setitimer(signal.ITIMER_REAL, timeout_s + 2 * _GRACE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _measure(what: str) -> int:
    """Bytes that this process has mapped or resident; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
        return int(fields[0 if what == "mapped" else 1]) * mmap.PAGESIZE
    return 0


_TIMEOUT_S: Final = 300.0
_TRIAL_TIMEOUT_S: Final = 20.0
_MEMORY_MB: Final = 1000
_READ_PATIENCE_S: Final = 60.0  # while another process writes


def try_metrics(metrics: Sequence[MetricFile], settings: Mapping[str, Mapping[str, float]]) -> None:
    """Let metrics score a run of an empty warehouse, and load the Python files of others.

    Raises WarehouseError for the first whose SQL cannot do it, or whose file cannot be loaded.

    What depends on the data, such as an infinite quotient, shows only when a run is scored.
    """
    for metric in set_metrics(metrics, settings):
        if metric.file.function is not None:
            load_function(metric.file)
            continue
        parameters = {"run_id": "scratch", **metric.parameters}
        try:
            found = run_apart(
                find_faults,
                timeout_s=_TRIAL_TIMEOUT_S,
                memory_mb=_MEMORY_MB,
                sql=metric.file.sql,
                parameters=parameters,
            )
            faults = found["fault"].to_list()
        except QueryError as error:
            faults = [str(error)]
        if faults:
            raise WarehouseError(
                f"{metric.file.place}: {faults[0]}; its SELECT was tried on an empty warehouse, before anything "
                "was asked, and has to give run_id, sample_id, value (a number) and unscored_reason (text)"
            )


def select_apart(location: Location, run_id: str, metric: SetMetric, n_samples: int) -> pl.DataFrame:
    """Return the rows of a metric for a run: sample_id, value, unscored_reason; raises WarehouseError that names it."""
    try:
        return run_apart(
            select_scores,
            timeout_s=_TIMEOUT_S,
            memory_mb=max(_MEMORY_MB, n_samples // 1000),
            max_bytes=None,
            location=location,
            sql=metric.file.sql,
            parameters={"run_id": run_id, **metric.parameters},
        )
    except QueryError as error:
        raise WarehouseError(f"metric {metric.file.name!r} ({metric.file.place}) failed: {error}") from None


def find_faults(
    sql: str, parameters: Mapping[str, object], *, timeout_s: float, memory_mb: int, spill: Path
) -> pl.DataFrame:
    """Return a row for each `fault` in the columns that a metric's SQL gives of an empty warehouse; raises QueryError.

    It is called in the query process.
    """
    with _open_empty().cursor() as connection:
        _set_limits(connection, memory_mb, spill)
        with limiting_time(connection, sql, timeout_s):
            connection.execute(f"create or replace temp table metric_scores as\n{sql}", dict(parameters))
            return connection.sql(read_query("runs/score_types")).pl()


def select_scores(
    location: Location,
    sql: str,
    parameters: Mapping[str, object],
    *,
    timeout_s: float,
    memory_mb: int,
    spill: Path,
) -> pl.DataFrame:
    """Return the rows of a metric's SQL; raises QueryError. It is called in the query process."""
    with open_reader(location, patience_s=_READ_PATIENCE_S, is_own=True) as connection:
        _set_limits(connection, memory_mb, spill, files=f"{location.lake.data.rstrip('/')}/" if location.lake else None)
        with limiting_time(connection, sql, timeout_s):
            connection.execute(f"create or replace temp table metric_scores as\n{sql}", dict(parameters))
            return connection.sql(
                "select sample_id::varchar as sample_id, value::double as value, "
                "unscored_reason::varchar as unscored_reason from metric_scores"
            ).pl()


def _set_limits(
    connection: duckdb.DuckDBPyConnection, memory_mb: int, spill: Path, *, files: str | None = None
) -> None:
    """Limit memory, and let SQL read only files of a lake, in the folder `files`, once for a database."""
    connection.execute(f"set memory_limit = '{memory_mb}MB'")
    connection.execute("set python_enable_replacements = false")
    if connection.execute("select current_setting('enable_external_access')").fetchall() == [(True,)]:
        connection.execute("set temp_directory = $folder", {"folder": str(spill)})
        if files is not None:
            connection.execute("set allowed_directories = ?", [[files]])
        connection.execute("set enable_external_access = false")


@cache
def _open_empty() -> duckdb.DuckDBPyConnection:
    """An empty warehouse in memory, made once: to make it takes longer than to try all metrics."""
    connection = duckdb.connect()
    apply_migrations(connection, parse_location("scratch.duckdb"), load_migrations())
    return connection
