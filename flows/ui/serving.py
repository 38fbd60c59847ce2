"""The server of `evalhouse ui`: a socket, the app behind it, until Ctrl-C."""

import ipaddress
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import uvicorn

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.ui.app import create_app
from evalhouse.flows.ui.guard import Access, is_loopback
from evalhouse.warehouse.engine.connection import serving_reads
from evalhouse.warehouse.sandbox.apart import serving_queries
from evalhouse.warehouse.store import Warehouse

PORT: Final = 4210
TOKEN_VARIABLE: Final = "EVALHOUSE_UI_TOKEN"
_LEAVE_S: Final = 1  # what is still sent after Ctrl-C: a person's query may take half a minute
_LEAST_TOKEN: Final = 16


def serve_pages(
    warehouse: Warehouse, *, host: str, port: int | None, opens_browser: bool | None, report: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C; raises SettingsError for an address that cannot be had.

    A browser is opened where it is asked for, or nothing is said of it and no token is needed: all users of a machine
    see with which address a browser was started.
    """
    listening = _listen(host, port)
    bound = int(listening.getsockname()[1])
    token = None if is_loopback(host) else _find_token()
    named = host if not _is_any(host) else socket.gethostname()
    shown = f"[{named}]" if ":" in named else named
    address = f"http://{shown}:{bound}/"
    report(f"evalhouse ui shows {warehouse.location.name} at {address}; Ctrl-C ends it")
    if token is not None:
        address += f"?token={token}"
        report(f"it answers other machines too, at this address once and by a cookie from then on: {address}")
    app = create_app(warehouse, Access(port=bound, token=token))
    server = uvicorn.Server(
        uvicorn.Config(
            app, log_level="critical", access_log=False, server_header=False, lifespan="on",
            timeout_graceful_shutdown=_LEAVE_S,
        )
    )  # fmt: skip
    if opens_browser or (opens_browser is None and token is None and sys.stdout.isatty()):
        webbrowser.open(address)
    with listening, serving_reads(warehouse.location), serving_queries(), suppress(KeyboardInterrupt):
        server.run(sockets=[listening])


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket at the port, or, where none was named, at ours or a free one."""
    try:
        return _bind(host, PORT if port is None else port)
    except OSError as error:
        if port is None:
            with suppress(OSError):
                return _bind(host, 0)
        raise SettingsError(
            f"cannot listen at {host}, port {port or PORT}: {error.strerror or error}; name another --host or --port"
        ) from None


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def _is_any(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return False


def _find_token() -> str:
    """The token a person has set, or a new one."""
    given = os.environ.get(TOKEN_VARIABLE)
    if given is not None and (len(given) < _LEAST_TOKEN or not given.isascii() or not given.isalnum()):
        raise SettingsError(
            f"{TOKEN_VARIABLE} has {len(given)} characters; a token has at least {_LEAST_TOKEN} letters and digits: "
            "set another, or none, and one is made"
        )
    return given or secrets.token_hex(16)
