"""The app of `evalhouse ui`: its pages, what is shown where one cannot be, and its server until Ctrl-C."""

import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.server.local import find_token, listen, write_address
from evalhouse.flows.ui import documents, judge, live, pair, runs, samples, sql
from evalhouse.flows.ui.guard import HEADERS, Access, Guard, is_loopback
from evalhouse.flows.ui.pages import Kept, find_asset, render
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.errors import QueryError, WarehouseBusy, WarehouseError, WarehouseMissing
from evalhouse.warehouse.sandbox.query_process import serving_queries
from evalhouse.warehouse.store import Warehouse


class OneReader:
    """The middleware that has a page read by one connection, which is closed before the first byte is sent.

    What is read while a response is being sent, as of a download, opens the warehouse for each read.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with one_reader() as end:

            async def send_after(message: Message) -> None:
                end()
                await send(message)

            await self._app(scope, receive, send_after)


_PAGES: Final = (live, runs, samples, judge, documents, pair, sql)
_AGAIN_S: Final = 2
"""Seconds after which a page is asked for again where a run is writing."""


def create_app(warehouse: Warehouse, access: Access) -> FastAPI:
    """The app over one warehouse, for those whom `access` lets in."""
    app = FastAPI(title="evalhouse ui", openapi_url=None)
    app.state.warehouse = warehouse
    app.state.kept = Kept()
    app.state.live = live.LiveReader(warehouse)
    app.add_middleware(OneReader)
    app.add_middleware(Guard, access=access)
    for page in _PAGES:
        app.include_router(page.router)
    app.get("/assets/{name}")(_send_asset)
    for kind in (HTTPException, RequestValidationError, WarehouseError, SettingsError, Exception):
        app.exception_handler(kind)(_show_failure)
    return app


def _show_failure(request: Request, error: Exception) -> Response:
    """Answer with a page that says what went wrong."""
    status: int = HTTPStatus.BAD_REQUEST
    text = str(error)
    match error:
        case HTTPException():
            status, text = error.status_code, error.detail
            if status == HTTPStatus.NOT_FOUND and text in ("", "Not Found"):
                text = f"there is no page {request.url.path!r}"
        case RequestValidationError():
            text = "; ".join(f"{one['loc'][-1]} is {one.get('input')!r}: {one['msg']}" for one in error.errors())
        case WarehouseBusy() | WarehouseMissing():
            status = HTTPStatus.SERVICE_UNAVAILABLE
        case QueryError():
            pass
        case WarehouseError() | SettingsError():
            status = HTTPStatus.NOT_FOUND
        case _:
            # A mistake of ours, which is written where ui was started. It is answered outside of the guard.
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            text = f"this page failed ({type(error).__name__}); the terminal in which `evalhouse ui` runs says more"
            response = show_error(request, status, text)
            response.headers.update(HEADERS)
            return response
    return show_error(request, status, text)


def _send_asset(name: str) -> Response:
    found = find_asset(name)
    if found is None:
        raise HTTPException(404, f"there is no file {name!r}")
    return found


def show_error(request: Request, status: int, text: str) -> Response:
    """A page in place of the one that was asked for, or for a script what it says; one that may be there in a moment is
    asked for again."""
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse({"problem": text}, status_code=status)
    again = _AGAIN_S if status == HTTPStatus.SERVICE_UNAVAILABLE else None
    title = HTTPStatus(status).phrase.capitalize()
    response = render(request, "error.html", status, title=title, text=text, again=again)
    if again:
        response.headers["Retry-After"] = str(again)
    return response


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
    with listening, serving_queries(), suppress(KeyboardInterrupt):
        server.run(sockets=[listening])
