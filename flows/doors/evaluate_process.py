"""The process in which `evalhouse.flows.evaluate` runs: one run after the other, with one Prefect server for all.

A request is a line of JSON on standard input. What it is answered with are lines of JSON on standard output: `said`, a
text for the caller's standard error, and `progress`, as often as they come, and at last how the run ended. Between runs
nothing stays of what the caller's own modules are: each run imports them as it finds them.
"""

import contextlib
import gc
import io
import os
import select
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from evalhouse.flows.errors import explain
from evalhouse.flows.results.progress import count_all_steps, count_steps, describe_progress, repeating, show_run
from evalhouse.flows.server.local import hold_server, is_server_alive

if TYPE_CHECKING:
    from evalhouse.tasks.pipeline.live_run import LiveRun

_IDLE_S = 600.0  # without a request this process and its server end, to be started again when there is one
_LOOK_S = 1.0
_RUNS_BETWEEN_COLLECTIONS = 20
_INSTALLED = ("site-packages", "dist-packages")

Request = dict[str, Any]
Send = Callable[[dict[str, object]], None]


def main() -> None:
    """Run what is asked for until nobody asks any more."""
    send = partial(_send, os.fdopen(os.dup(1), "wb", buffering=0), threading.Lock())
    os.dup2(2, 1)  # the pipe is for our lines alone, whatever a library prints
    parent, n_runs = os.getppid(), 0
    sys.stdout = sys.stderr = _Relay(send)
    gc.disable()  # as the command does, until the first run is registered
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt), hold_server():
        while (request := _next_request(parent)) is not None and is_server_alive():
            send({"begun": True})
            send(_answer(request, send))
            gc.enable()
            n_runs += 1
            if n_runs % _RUNS_BETWEEN_COLLECTIONS == 0:  # each run freezes what it finds
                gc.unfreeze()
                gc.collect()


def _next_request(parent: int) -> Request | None:
    """The next request; None when the caller has gone or has not asked for a long time."""
    for _ in range(int(_IDLE_S / _LOOK_S)):
        if os.getppid() != parent:
            return None  # a process forked from it may still hold its end of the pipe
        if select.select([0], [], [], _LOOK_S)[0]:
            line = sys.stdin.buffer.readline()
            return orjson.loads(line) if line else None
    return None


def _answer(request: Request, send: Send) -> dict[str, object]:
    try:
        with _standing_in(request):
            return _run(request, send)
    except KeyboardInterrupt:
        return {"interrupted": None}
    except Exception as error:  # the caller is answered whatever a run raises, and this process goes on
        if (text := explain(error)) is not None:
            return {"error": text}
        sys.excepthook(type(error), error, error.__traceback__)
        return {"error": f"the run broke off with {type(error).__name__}: {error}"}


def _run(request: Request, send: Send) -> dict[str, object]:
    # Imported while the server comes up, which takes longer.
    from evalhouse.flows.doors.start_to_end import start_run  # noqa: PLC0415
    from evalhouse.tasks.settings.run import RunSettings  # noqa: PLC0415

    settings = RunSettings.model_validate_json(request["settings"])
    with show_run() as watch:

        @contextlib.contextmanager
        def watch_both(live_run: "LiveRun") -> Iterator[None]:
            with watch(live_run), _reported(live_run, send) if request["wants_progress"] else contextlib.nullcontext():
                yield

        outcome = start_run(settings, source=_open_source(request["source"]), watch=watch_both)
    ended = {"run_id": outcome.run.run_id, "status": outcome.status, "problem": outcome.problem}
    return {"interrupted" if outcome.status == "cancelled" else "ended": ended}


def _open_source(source: str | None) -> Any:  # noqa: ANN401  # a Polars frame
    if source is None or not source.endswith(".parquet"):
        return source
    import polars as pl  # noqa: PLC0415

    return pl.read_parquet(source)


@contextlib.contextmanager
def _standing_in(request: Request) -> Iterator[None]:
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


def _reported(live_run: "LiveRun", send: Send) -> AbstractContextManager[None]:
    """Send how far the run is now and then, as long as the block runs."""

    def report() -> None:
        steps = [count_steps(live_run), count_all_steps(live_run)]
        send({"progress": [*steps, describe_progress(live_run).replace("\n", ", ")]})

    return repeating(report)


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


if __name__ == "__main__":
    main()
