"""How long a reply is waited for: by the setting, and by what the endpoint shows.

A model on one's own machine answers one request after the other, so that most of what is under way waits in its queue.
The clock of a request therefore begins when the last of those that were sent before it has been answered, and not when
it was sent; where nothing is answered at all it is over for all of them at once. Some servers do not keep to that order
(llama.cpp gives a slot that has become free to whoever asks next), so that the first answers to later requests move
it on as well. It is longer for a question that was not answered in time before, and where replies have been seen to
take long.
"""

import asyncio
import ipaddress
import math
from collections import deque
from types import TracebackType
from typing import Protocol
from urllib.parse import urlsplit

_USUAL_S = 60.0
# Where nobody else is served and nothing gets lost on the way, but a long prompt is read for minutes.
_NEAR_S = 600.0
_MOST_S = 3600.0
# A reply may well take twice as long as the slowest one so far.
_SPREAD = 2.0
_REMEMBERED = 64
# Who is passed by more than these is not in a queue, but lost.
_MOST_PASSING = 64
# Of an endpoint that has answered nothing yet nobody knows whether it ever will.
_UNANSWERED_DOUBLINGS = 2


class Sent(Protocol):
    """A request under way: when it was sent, on the event loop's clock, and as which of all."""

    @property
    def started_at(self) -> float: ...

    @property
    def ordinal(self) -> int: ...


def choose_timeout(setting: float | None, endpoint: str | None) -> float:
    """The seconds one request may take: as set, else what is usual for the address."""
    if setting is not None:
        return setting
    if endpoint is None:
        return _MOST_S  # a model in this process, which nothing can come between
    return _NEAR_S if is_near(endpoint) else _USUAL_S


def is_near(endpoint: str) -> bool:
    """Whether an address is one of this machine or its own network, as far as its name says."""
    host = urlsplit(endpoint).hostname if "://" in endpoint else None
    if not host:
        return False
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost"))
    return address.is_loopback or address.is_private


class Patience:
    """How long the replies of one endpoint are waited for, within one event loop; `timeout_s` is the least."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._slowest_s = 0.0
        self._answered: deque[tuple[int, float]] = deque(maxlen=_REMEMBERED)
        self.n_answered = 0

    def allow(self, n_late: int) -> float:
        """Seconds for a question that was not answered in time so many times."""
        least_s = max(self._timeout_s, _SPREAD * self._slowest_s)
        times = 2.0 ** (n_late if self.was_answered else min(n_late, _UNANSWERED_DOUBLINGS))
        return max(self._timeout_s, min(_MOST_S, least_s * times))

    @property
    def was_answered(self) -> bool:
        """Whether the endpoint has answered anything at all."""
        return bool(self._answered)

    def note_answer(self, sent: Sent, exceeded_s: float) -> None:
        """The endpoint has answered this request; `exceeded_s` were not enough for it before."""
        now = _read_clock()
        self._slowest_s = max(self._slowest_s, exceeded_s, now - self.find_turn(sent))
        self._answered.append((sent.ordinal, now))
        self.n_answered += 1

    def find_turn(self, sent: Sent) -> float:
        """When the clock of a request began: when it was sent, or the last one before it was answered."""
        return max([sent.started_at, *(at for ordinal, at in self._answered if ordinal < sent.ordinal)])

    def find_last_answer(self) -> float:
        """When anything was answered last; long ago where nothing was."""
        return self._answered[-1][1] if self._answered else -math.inf

    def is_overtaken(self, sent: Sent) -> bool:
        """Whether something that was sent later has been answered: then it is no queue that it waits in."""
        return any(ordinal > sent.ordinal for ordinal, _ in self._answered)


class Watch:
    """Ends a timeout that is still open once a request's time is over; `is_late` says that it was so."""

    def __init__(self, patience: Patience, sent: Sent, allowed_s: float, timeout: asyncio.Timeout) -> None:
        self._patience, self._sent, self._allowed_s, self._timeout = patience, sent, allowed_s, timeout
        self.is_late = False

    def __enter__(self) -> "Watch":
        self._n_answered = self._patience.n_answered
        self._handle = asyncio.get_running_loop().call_at(self._sent.started_at + self._allowed_s, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.cancel()

    def _look(self) -> None:
        moved_at = self._patience.find_turn(self._sent)
        if self._patience.n_answered - self._n_answered <= _MOST_PASSING:
            moved_at = max(moved_at, self._patience.find_last_answer())
        due = moved_at + self._allowed_s
        if due > _read_clock():
            self._handle = asyncio.get_running_loop().call_at(due, self._look)
        elif not self._timeout.expired():
            self.is_late = True
            self._timeout.reschedule(_read_clock())


def _read_clock() -> float:
    return asyncio.get_running_loop().time()
