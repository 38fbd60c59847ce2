"""A person's SQL in a process of its own, for a process that serves pages.

There a query must not share an instance with the pages: its settings, its memory and its end are those of the
instance. Another process can be ended at any moment, whatever the query does, and takes nothing with it. One that
waits for its query is kept ready, because starting takes a third of a second; each answers one query and ends.
"""

import contextlib
import importlib
import json
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from evalhouse.warehouse import errors
from evalhouse.warehouse.engine.connection import reading_apart
from evalhouse.warehouse.errors import QueryError, WarehouseBusy, WarehouseError
from evalhouse.warehouse.location import Location, parse_location
from evalhouse.warehouse.sandbox.query import answer_statement

if sys.platform != "win32":
    import resource

TIMEOUT_S: Final = 30.0
MEMORY_MB: Final = 1000
MOST_BYTES: Final = 256 * 2**20
"""The largest result: beyond that it is no page and hardly a download."""
_MOST_AT_ONCE: Final = 2
_PATIENCE_S: Final = 10.0
_LOOK_S: Final = 0.02
_PAGE_MB: Final = mmap.PAGESIZE / 2**20
# What the process has to come to its own end, with an error that says why.
_GRACE_S: Final = 2.0
# Some functions and the rows that are fetched take memory beside DuckDB's own, which its limit does not hold: a text
# of 3 GB took 5.8 with a limit of one. So the process is ended at so many times its limit, and the system gives it no
# more than that and what libraries set aside without using it.
_MOST_TIMES: Final = 1.5
_SET_ASIDE_MB: Final = 2000
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
    "TZ",
    "TMPDIR",
)
_CHILD: Final = "from evalhouse.warehouse.sandbox.apart import main; main()"
_REFUSED: Final = 3
_ANSWER: Final = "answer"


@dataclass(kw_only=True)
class _Process:
    """A process that reads one question and leaves the answer in its folder, where it also puts what it spills."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]

    @property
    def answer(self) -> Path:
        return Path(self.folder.name) / _ANSWER

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.folder.cleanup()


_guard = threading.Lock()
_turns = threading.BoundedSemaphore(_MOST_AT_ONCE)
_ready: list[_Process] = []
_keeps_ready = False


@contextlib.contextmanager
def serving_queries() -> Iterator[None]:
    """Keep a process ready for the next query within this block."""
    global _keeps_ready  # noqa: PLW0603  # of this process, as its other processes are
    _keeps_ready = True
    _make_ready()
    try:
        yield
    finally:
        _keeps_ready = False
        with _guard:
            while _ready:
                _ready.pop().close()


def answer_apart(
    location: Location,
    text: str,
    *,
    timeout_s: float = TIMEOUT_S,
    memory_mb: int = MEMORY_MB,
    most_rows: int | None = None,
    stop: threading.Event | None = None,
) -> pl.DataFrame:
    """As `answer_statement`, by another process; no more than `MOST_BYTES` of rows.

    Raises QueryError as well where that process had to be ended, and WarehouseBusy where two others are at work or a
    run leaves no moment to begin.
    """
    question = {
        "url": location.url,
        "text": text,
        "timeout_s": timeout_s,
        "memory_mb": memory_mb,
        "most_rows": most_rows,
    }
    if not _turns.acquire(timeout=_PATIENCE_S):
        raise WarehouseBusy(f"{_MOST_AT_ONCE} queries are under way; try again when one has ended", who="own thread")
    try:
        with reading_apart(location), contextlib.closing(_take()) as process:
            _make_ready()
            return _ask(process, question, stop or threading.Event())
    finally:
        _turns.release()


def _take() -> _Process:
    with _guard:
        while _ready:
            process = _ready.pop()
            if process.process.poll() is None:
                return process
            process.close()
    return _start()


def _make_ready() -> None:
    with _guard:
        if _keeps_ready and not _ready:
            _ready.append(_start())


def _start() -> _Process:
    folder = tempfile.TemporaryDirectory(prefix="evalhouse-query-")
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, folder.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)},
        start_new_session=True,  # a Ctrl-C at the terminal is for the server, which ends this itself
    )
    return _Process(process=process, folder=folder)


def _ask(process: _Process, question: dict[str, Any], stop: threading.Event) -> pl.DataFrame:
    assert process.process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # its status says more
        process.process.stdin.write(json.dumps(question).encode())
        process.process.stdin.close()
    deadline, memory_mb = time.monotonic() + question["timeout_s"] + _GRACE_S, question["memory_mb"]
    while process.process.poll() is None:
        if stop.wait(_LOOK_S):
            raise QueryError("the query was stopped")
        if time.monotonic() >= deadline:
            raise QueryError(f"the query was stopped after {question['timeout_s']:g} s; narrow it")
        if _measure_mb(process.process.pid) > _MOST_TIMES * memory_mb:
            raise _too_large(memory_mb)
    return _read_answer(process, memory_mb)


def _measure_mb(pid: int) -> float:
    """The memory a process has in use, where the system says."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE_MB
    return 0.0


def _too_large(memory_mb: int) -> QueryError:
    return QueryError(f"the query was stopped: it took more memory than the {memory_mb} MB it has here; narrow it")


def _read_answer(process: _Process, memory_mb: int) -> pl.DataFrame:
    code = process.process.returncode
    if code == 0:
        return pl.read_ipc(process.answer)  # mapped: its pages are not this process's own, and the file may go
    if code == _REFUSED:
        raise _read_error(json.loads(process.answer.read_bytes()))
    raise _too_large(memory_mb)


def _read_error(said: dict[str, Any]) -> WarehouseError:
    error: WarehouseError = getattr(errors, said["kind"])(said["text"])
    vars(error).update(said["more"])
    return error


def main() -> None:
    """Answer the one question on standard input; status 0 with a frame, or 3 with an error as JSON."""
    importlib.import_module("pyarrow")  # while nobody waits
    asked = sys.stdin.buffer.read()
    if not asked:  # the process that started this one was killed
        shutil.rmtree(sys.argv[1], ignore_errors=True)
        return
    question = json.loads(asked)
    memory_mb = question.pop("memory_mb")
    _limit_self(memory_mb)
    folder = Path(sys.argv[1])
    try:
        _answer(question | {"memory_limit": f"{memory_mb}MB"}, folder)
        status = 0
    except (WarehouseError, MemoryError) as error:
        known = error if isinstance(error, WarehouseError) else QueryError("Out of Memory Error: narrow the query")
        said = {"kind": type(known).__name__, "text": str(known), "more": vars(known)}
        (folder / _ANSWER).write_text(json.dumps(said), encoding="utf-8")
        status = _REFUSED
    os._exit(status)  # nothing that a query left behind holds the end up


def _answer(question: dict[str, Any], folder: Path) -> None:
    location, text = parse_location(question.pop("url")), question.pop("text")
    frame = answer_statement(location, text, spill=folder, **question)
    if frame.estimated_size() > MOST_BYTES:
        raise QueryError(
            f"the result has {frame.height:,} rows and {frame.estimated_size() / 2**20:,.0f} MB, more than the "
            f"{MOST_BYTES // 2**20} MB that are given here; narrow it, or ask at the command line"
        )
    frame.write_ipc(folder / _ANSWER)


def _limit_self(memory_mb: int) -> None:
    """Come after the pages for the processor, and before all others when the machine's memory runs out."""
    if sys.platform == "win32":
        return
    most = int(_MOST_TIMES * memory_mb + _SET_ASIDE_MB) * 2**20
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
