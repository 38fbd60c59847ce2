"""Folders for what is needed for a while only. One that a killed process left is removed by the next that makes one."""

import shutil
import tempfile
import uuid
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

_PREFIX: Final = "evalhouse-staging-"


class Scratch:
    """A temporary folder that its process alone may read; `remove` it when done.

    A lock beside the folder, taken before there is one, tells the next process whether anybody still works in it.
    """

    def __init__(self) -> None:
        _sweep()
        self.folder = Path(tempfile.gettempdir()) / f"{_PREFIX}{uuid.uuid4().hex}"
        # Not bound to a thread: whoever ends the run must be able to let go of it.
        self._lock = FileLock(_find_lock(self.folder), thread_local=False)
        self._lock.acquire()
        self.folder.mkdir(mode=0o700)

    def remove(self) -> None:
        """The folder with all that is in it; doing so again is harmless."""
        if self._lock.is_locked:
            _remove(self.folder, self._lock)


def _sweep() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/"):
        lock = FileLock(_find_lock(folder))
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):  # in use, or another person's
            continue
        _remove(folder, lock)


def _find_lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    # While it is still held: nobody else can have begun to use it.
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
