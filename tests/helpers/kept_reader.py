"""One child process for all foreign files that this process reads: to start it and to import its libraries takes it
half a second of CPU, and each command and each test would start one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from evalhouse.tasks.datasets.limited import LimitedReader


class KeptReader(LimitedReader):
    """A reader whose child is used again, unless a file was not read to its end: then the next one starts a new one."""

    def __init__(self) -> None:
        super().__init__()
        self.is_reading = False
        self._folder = Path()

    def read(self, function: str, path: Path, *arguments: object) -> Iterator[Any]:
        if self._folder != Path.cwd():  # the child would look for a relative path elsewhere
            super().__exit__()
            self._folder = Path.cwd()
        self.is_reading = True
        yield from super().read(function, path, *arguments)
        self.is_reading = False

    def __exit__(self, *_: object) -> None:
        if self.is_reading:
            super().__exit__()
            self.is_reading = False


@contextmanager
def reader_kept() -> Iterator[None]:
    """Read by one child until the end; a second file that is read meanwhile has a separate child."""
    kept, enter, leave = KeptReader(), LimitedReader.__enter__, LimitedReader.__exit__
    shared: dict[int, LimitedReader] = {}

    def take(reader: LimitedReader) -> LimitedReader:
        if kept.is_reading or shared:
            return enter(reader)
        shared[id(reader)] = kept
        return kept

    def put_back(reader: LimitedReader, *error: object) -> None:
        if shared.pop(id(reader), None):
            KeptReader.__exit__(kept, *error)
        else:
            leave(reader, *error)

    try:
        with patch.object(LimitedReader, "__enter__", take), patch.object(LimitedReader, "__exit__", put_back):
            yield
    finally:
        kept.is_reading = True
        kept.__exit__()
