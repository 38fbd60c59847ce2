"""Reading a foreign file in a child process with limits on memory and processor time.

A small file may unpack to gigabytes, or keep its reader busy for hours: then the child ends, and the parent refuses it.
"""

import importlib
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

MAX_MB: Final = 1000  # of memory
# Seconds of processor time, which a busy machine does not use up, for a file and for each MB of it.
_MAX_S: Final = 30
_MAX_S_PER_MB: Final = 10
_CHILD: Final = "from evalhouse.tasks.datasets.limited import main; main()"
_OUT_OF_MEMORY: Final = 77  # status of the child where Python ran out of memory


class FileTooLarge(Exception):
    """A file whose reading takes more memory or time than the child process has, or ends it; the text is a clause."""


class LimitedReader:
    """A child process that reads one file after another; it starts with the first, and again after one that ends it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "LimitedReader":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None

    def read(self, function: str, path: Path, *arguments: object) -> Iterator[Any]:
        """Yield what a generator function, named as `module:function`, yields of a file in the child.

        Arguments, items and exceptions are pickled. Raises what the function raises, and FileTooLarge.
        """
        max_s = _MAX_S + _MAX_S_PER_MB * path.stat().st_size // 2**20
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            pickle.dump((function, max_s, (path, *arguments)), process.stdin)
            process.stdin.flush()
        while True:
            try:
                kind, value = pickle.load(process.stdout)  # written by `main`
            except (EOFError, pickle.UnpicklingError):
                self._process, status = None, process.wait()
                process.communicate()
                if status == -signal.SIGXCPU:
                    raise FileTooLarge(f"it takes more than {max_s} s to read") from None
                memory = f"more than {MAX_MB:,} MB of memory"
                raise FileTooLarge(
                    f"it takes {memory} to read"
                    if status in (_OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGKILL)
                    else f"the process that reads it ended with status {status}, as where that takes {memory}"
                ) from None
            if kind == "item":
                yield value
            elif kind == "error":
                raise value
            else:
                return


def main() -> None:
    """Read files for the parent until standard input ends."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not look like an item

    def send(kind: str, value: object = None) -> None:
        pickle.dump((kind, value), replies)
        replies.flush()

    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MB * 2**20, MAX_MB * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            function, max_s, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        module, _, name = function.partition(":")
        try:
            call = getattr(importlib.import_module(module), name)
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + max_s, hard))
            for item in call(*arguments):
                send("item", item)
            send("end")
        except MemoryError:
            os._exit(_OUT_OF_MEMORY)
        except Exception as error:  # the parent raises it
            send("error", error)
