"""What pages read that takes a while, kept as long as it is as it was.

Nothing waits here for what another thread reads: whoever holds a turn at the warehouse would keep a writer waiting
meanwhile, and the other reader behind that writer. Two that ask at once both read.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from fastapi import Request

T = TypeVar("T")
_MOST: Final = 64


class Kept:
    """The last things that were read, each with the state it is true of; safe to use from several threads."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Hashable, tuple[Hashable, Any]] = OrderedDict()
        self._guard = threading.Lock()

    def find(self, key: Hashable, state: Hashable, read: Callable[[], T]) -> T:
        """What was read under this key in this state, or what `read` gives; always that where the state is None."""
        with self._guard:
            known, value = self._entries.get(key, (None, None))
        if state is not None and known == state:
            found: T = value
            return found
        made = read()
        with self._guard:
            self._entries[key] = (state, made)
            self._entries.move_to_end(key)
            while len(self._entries) > _MOST:
                self._entries.popitem(last=False)
        return made


def find_kept(request: Request) -> Kept:
    """What the app keeps."""
    kept: Kept = request.app.state.kept
    return kept
