"""The app of `evalhouse ui`: the guard before its pages, the page for an error, and the server until Ctrl-C.

Any user of this machine may see the pages, at the machine's own names; from another machine a token is needed. A page
of another site cannot read ours under a name it has pointed at this machine (the Host is checked), send anything to it
(neither cookies nor posts of other sites are accepted), or show it in a frame. Texts from datasets and models can run
no script even if an escape was forgotten: only the scripts that come with evalhouse are allowed.
"""

import hmac
import ipaddress
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from markupsafe import escape
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.server.local import find_token, listen, write_address
from evalhouse.flows.ui import documents, judge, pair, runs, samples, sql
from evalhouse.flows.ui.pages import Kept, find_asset, render
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.errors import QueryError, WarehouseBusy, WarehouseError, WarehouseMissing
from evalhouse.warehouse.sandbox.query_process import serving_queries
from evalhouse.warehouse.store import Warehouse

_LOCALHOST: Final = "localhost"
_TOKEN: Final = "token"
_POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self'",
    "connect-src": "'self'",
    "form-action": "'self'",
    "base-uri": "'none'",
    "frame-ancestors": "'none'",
    "require-trusted-types-for": "'script'",
    "trusted-types": "'none'",
}
HEADERS: Final = {
    "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in _POLICY.items()),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, kw_only=True)
class Access:
    """The port that is served; `token` is None where only this machine's own names are answered."""

    port: int
    token: str | None = field(default=None, repr=False)

    @property
    def cookie(self) -> str:
        """The name of the cookie, different for each port: cookies know no ports."""
        return f"evalhouse_ui_{self.port}"

    def knows_host(self, host: str) -> bool:
        """Return whether a request names this machine itself; with a token any name is allowed."""
        if self.token is not None:
            return True
        name, _, port = host.rpartition(":") if host.rstrip("0123456789").endswith(":") else (host, "", "80")
        return port == str(self.port) and is_loopback(name.lower())

    def is_token(self, given: str | None) -> bool:
        """Return whether it is the token, compared in constant time."""
        return self.token is None or (given is not None and hmac.compare_digest(given.encode(), self.token.encode()))


def is_loopback(name: str) -> bool:
    """Return whether a name or an address, in brackets or not, is this machine's only."""
    if name == _LOCALHOST:
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    return False


class Guard:
    """Stands before the app: lets in who may, and adds to every response what a browser is to keep to."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "websocket":  # no page has one
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await (self._turn_away(Request(scope)) or self._app)(scope, receive, send_guarded)

    def _turn_away(self, request: Request) -> Response | None:
        """Return the response in place of the page; None where the page may be seen."""
        host = request.headers.get("host", "")
        if not self._access.knows_host(host):
            return _refuse(421, f"this is evalhouse ui at http://127.0.0.1:{self._access.port}, and not {host!r}")
        is_opened = request.headers.get("sec-fetch-mode") == "navigate"
        is_foreign = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if request.method not in ("GET", "HEAD"):
            # Whether a page of ours sent it: browsers say so, and scripts of other sites cannot say otherwise.
            origin = request.headers.get("origin")
            is_allowed = origin in (f"http://{host}", f"https://{host}") and request.headers.get(
                "sec-fetch-site", "same-origin"
            ) == ("same-origin")
        else:  # a link may lead here; what another page loads or frames could only spy, or keep us busy
            is_allowed = not is_foreign or (is_opened and request.headers.get("sec-fetch-dest") == "document")
        if not is_allowed:
            return _refuse(403, "this was sent from a page of another site; open evalhouse ui itself")
        given = request.query_params.get(_TOKEN)
        if self._access.token is not None and given is not None and self._access.is_token(given):
            return self._let_in(request, is_foreign=is_foreign)
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        bearer = credentials if scheme.lower() == "bearer" else None
        if self._access.is_token(bearer or request.cookies.get(self._access.cookie)):
            return None
        if is_foreign:
            return _come_again(_write_address(request))
        return _refuse(401, "a token is needed: open the address that `evalhouse ui` printed when it was started")

    def _let_in(self, request: Request, *, is_foreign: bool) -> Response:
        """Keep the token in a cookie, and out of the address, where it would be seen and passed on."""
        address = _write_address(request)
        response = _come_again(address) if is_foreign else RedirectResponse(address, status_code=303)
        response.set_cookie(self._access.cookie, self._access.token or "", httponly=True, samesite="strict")
        return response


def _write_address(request: Request) -> str:
    """The address that was asked for, without the token."""
    left = [(name, value) for name, value in parse_qsl(request.url.query, True) if name != _TOKEN]
    # Two slashes at the start would name another host, and so would a backslash.
    return "/" + quote(request.url.path.lstrip("/")) + (f"?{urlencode(left)}" if left else "")


def _come_again(address: str) -> Response:
    """A page that opens the address from here: to what a link on another site opens, browsers send no strict cookie."""
    return HTMLResponse(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">')


def _refuse(status: int, text: str) -> Response:
    return PlainTextResponse(f"{text}\n", status_code=status)


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


_PAGES: Final = (runs, samples, judge, documents, pair, sql)
_AGAIN_S: Final = 2
"""Seconds after which a page is asked for again where a run is writing."""


def create_app(warehouse: Warehouse, access: Access) -> FastAPI:
    """The app over one warehouse, for those whom `access` lets in."""
    app = FastAPI(title="evalhouse ui", openapi_url=None)
    app.state.warehouse = warehouse
    app.state.kept = Kept()
    app.state.live = runs.LiveReader(warehouse)
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
