"""The server of `evalhouse ui`: a socket, the app behind it, until Ctrl-C."""

import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import uvicorn

from evalhouse.flows.server.listening import find_token, listen, write_address
from evalhouse.flows.ui.app import create_app
from evalhouse.flows.ui.guard import Access, is_loopback
from evalhouse.warehouse.engine.connection import serving_reads
from evalhouse.warehouse.sandbox.apart import serving_queries
from evalhouse.warehouse.store import Warehouse

PORT: Final = 4210
TOKEN_VARIABLE: Final = "EVALHOUSE_UI_TOKEN"
_LEAVE_S: Final = 1  # what is still sent after Ctrl-C: a person's query may take half a minute


def serve_pages(
    warehouse: Warehouse, *, host: str, port: int | None, opens_browser: bool | None, report: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C; raises SettingsError for an address that cannot be had.

    A browser is opened where it is asked for, or nothing is said of it and no token is needed: all users of a machine
    see with which address a browser was started.
    """
    listening = listen(host, port, PORT)
    bound = int(listening.getsockname()[1])
    token = None if is_loopback(host) else find_token(TOKEN_VARIABLE)
    address = write_address(host, listening)
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
