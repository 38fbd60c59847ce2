"""The server of `evalhouse ui` and `evalhouse receive`: its socket, its token, and connections that cannot exhaust it.

The Prefect server of `evalhouse serve` limits its connections in the same way.

Any machine that reaches the port can open connections before it shows a token. uvicorn can limit the bytes of a
request's headers, but neither the number of connections nor the time that a request takes to arrive. Here a connection
is closed when its client keeps the server waiting; of too many, the one that has kept it waiting longest is closed.
"""

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import resource
import secrets
import socket
import time
from typing import Any, Final

import h11
import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from evalhouse.flows.errors import SettingsError

HEADERS_S: Final = 10.0
"""The time from the start of a connection, or from its last response, to the end of the next request's headers."""
BODY_S: Final = 30.0
"""The time in which the body of a request must arrive."""
UNREAD_S: Final = 120.0
"""The time in which a client must read a part of its response, of which the system buffers some megabytes."""
_MAX_CONNECTIONS: Final = 256
_BACKLOG: Final = 128
_MAX_HEADERS: Final = 2**16
_REPEAT_S: Final = 60.0
_MIN_TOKEN: Final = 16
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+")


def find_max_connections() -> int:
    """Return how many connections may be open: a quarter of the files that this process may open, at most 256."""
    return min(_MAX_CONNECTIONS, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 64) // 4)


class BoundedConnection(H11Protocol):
    """A connection that is closed when its client is too slow, or when a new one needs its place."""

    _timer: asyncio.TimerHandle | None = None  # runs while the server waits for the client
    _part: object = None
    _waiting_since = 0.0
    _n_unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to wait for a request; close the connection whose client has done nothing for longest."""
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > find_max_connections():
            others = [other for other in self.connections if isinstance(other, BoundedConnection) and other is not self]
            waiting = [other for other in others if other._timer is not None]
            # A request that is being answered has passed the check of its token, unlike one that has yet to arrive.
            min(waiting, key=lambda other: (other._is_answering, other._waiting_since), default=self)._close()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Begin to wait for a client that does not read its response."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """Send more of the response."""
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._stop_timer()

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _watch(self) -> None:
        """Start the clock again if the server waits for another part of a request or response than before."""
        state, is_paused = self.conn.their_state, self.flow.write_paused
        part = (state, self.cycle, self._is_answering, is_paused)
        if part == self._part:
            return
        self._part = part
        self._stop_timer()
        if self._is_answering and state not in (h11.IDLE, h11.SEND_BODY) and not is_paused:
            return  # the client waits for the server
        if self.transport.get_protocol() is not self:
            return  # a websocket, whose pings have a timeout
        self._waiting_since = self.loop.time()
        self._start_timer()

    def _start_timer(self) -> None:
        self._n_unsent = self.transport.get_write_buffer_size()
        seconds = UNREAD_S if self._n_unsent else HEADERS_S if self.conn.their_state is h11.IDLE else BODY_S
        self._timer = self.loop.call_later(seconds, self._end_if_stalled)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_if_stalled(self) -> None:
        if 0 < self.transport.get_write_buffer_size() < self._n_unsent:  # a slow client still reads its response
            self._start_timer()
        else:
            self._close()

    def _close(self) -> None:
        self._stop_timer()
        self.transport.abort()


class _OncePerMinute(logging.Filter):
    """Lets an unexpected error pass once a minute, and one of the system, such as too many open files, in one line.

    What a client causes, and what Ctrl-C cuts short, is not an error of the server.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[tuple[str, type[BaseException]], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the record is to be written."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, Exception) or isinstance(error, ClientDisconnect):
            return False
        key, now = (record.name, type(error)), time.monotonic()
        if now - self._logged_at.get(key, -_REPEAT_S) < _REPEAT_S:
            return False
        self._logged_at[key] = now
        if isinstance(error, OSError):
            record.msg, record.args, record.exc_info = f"a connection failed: {error.strerror or error}", (), None
        return True


_ONCE_PER_MINUTE: Final = _OncePerMinute()


def make_server(app: ASGIApp, *, leave_s: int) -> uvicorn.Server:
    """Return the server of an app; at its end it waits `leave_s` for responses that are being sent."""
    config = uvicorn.Config(
        app, ws="none", log_level="error", server_header=False, timeout_graceful_shutdown=leave_s, **bound_connections()
    )
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(_ONCE_PER_MINUTE)
    return uvicorn.Server(config)


def bound_connections() -> dict[str, Any]:
    """Return the arguments of `uvicorn.Config` by which clients cannot exhaust a server."""
    return {
        "http": BoundedConnection,
        "backlog": min(_BACKLOG, find_max_connections() // 2),
        "h11_max_incomplete_event_size": _MAX_HEADERS,
        "access_log": False,
        "lifespan": "on",
    }


def listen(host: str, port: int | None, default: int) -> socket.socket:
    """Return a socket at the port; at None at the default one, or a free one. Raises SettingsError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    problem = ""
    for number in (default, 0) if port is None else (port,):
        try:
            return socket.create_server((host, number), family=family, backlog=_BACKLOG)
        except OSError as error:
            problem = problem or error.strerror or str(error)
    raise SettingsError(f"cannot listen at {host}, port {port or default}: {problem}; name another --host or --port")


def write_address(host: str, listening: socket.socket) -> str:
    """Return the address for other machines: with this machine's name if it listens at all of its addresses."""
    named = host
    with contextlib.suppress(ValueError):
        if ipaddress.ip_address(host).is_unspecified:
            named = socket.gethostname()
    shown = f"[{named}]" if ":" in named else named
    return f"http://{shown}:{listening.getsockname()[1]}/"


def find_token(variable: str) -> str:
    """Return the token that the user has set, or a new one; raises SettingsError for one that is easy to guess."""
    given = os.environ.get(variable)
    if given is not None and (len(given) < _MIN_TOKEN or not _TOKEN.fullmatch(given)):
        has = f"{len(given)} characters" if len(given) < _MIN_TOKEN else "other characters"
        raise SettingsError(
            f"{variable} has {has}; a token has at least {_MIN_TOKEN} letters, digits, hyphens and underscores: "
            "set another, or none, and one is made"
        )
    return given or secrets.token_hex(16)
