"""The app of `evalhouse ui`: the guard before its pages, the page for an error, and the server until Ctrl-C.

Any user of this machine may see the pages, at the machine's own names; from another machine a token is needed. A page
of another site cannot read ours under a name it has pointed at this machine (the Host is checked), send anything to it
(neither cookies nor posts of other sites are accepted), or show it in a frame. Texts from datasets and models can run
no script even if an escape was forgotten: only the scripts that come with evalhouse are allowed.
"""

import asyncio
import hmac
import ipaddress
import posixpath
import sys
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from markupsafe import escape
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evalhouse.flows.errors import SettingsError
from evalhouse.flows.report.page import make_environment
from evalhouse.flows.server.connections import find_token, listen, make_server, write_address
from evalhouse.flows.ui import documents, judge, pair, runs, samples, sql, variants
from evalhouse.flows.ui.pages import ASSET_TYPES, FOLDERS, asset, is_from_elsewhere, link, load_assets, render
from evalhouse.warehouse.engine.connection import one_reader
from evalhouse.warehouse.errors import QueryError, WarehouseBusy, WarehouseError, WarehouseMissing
from evalhouse.warehouse.messages import clean_text
from evalhouse.warehouse.rows.progress import JournalReader
from evalhouse.warehouse.sandbox.query_process import serving_queries
from evalhouse.warehouse.store import Warehouse

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
_FOREVER: Final = "public, max-age=31536000, immutable"
_PAGES: Final = (runs, samples, judge, documents, variants, pair, sql)
_RETRY_S: Final = 2
"""Seconds after which a page is requested again while a run is writing."""
PORT: Final = 4210
TOKEN_VARIABLE: Final = "EVALHOUSE_UI_TOKEN"
_AT_ONCE: Final = 2
"""Pages that are made at the same time: one of 15,000 samples takes some 300 MB while it is made."""
_WAITS_FOR_NONE: Final = ("/assets/", "/sql")  # SQL has its own processes
_LEAVE_S: Final = 1  # for responses that are being sent at Ctrl-C: a query may take half a minute


@dataclass(frozen=True, kw_only=True)
class Access:
    """The port that is served; `token` is None if only requests to this machine's own names are answered."""

    port: int
    token: str | None = field(default=None, repr=False)

    @property
    def cookie(self) -> str:
        """The name of the cookie, different for each port, since a browser sends a cookie to all ports of a host."""
        return f"evalhouse_ui_{self.port}"

    def allows_host(self, host: str) -> bool:
        """Return True if a request names this machine itself; with a token any name is allowed."""
        if self.token is not None:
            return True
        name, _, port = host.rpartition(":") if host.rstrip("0123456789").endswith(":") else (host, "", "80")
        return port == str(self.port) and is_loopback(name.lower())

    def is_token(self, given: str | None) -> bool:
        """Compare with the token in constant time; without a token everything is accepted."""
        return self.token is None or (given is not None and hmac.compare_digest(given.encode(), self.token.encode()))


def is_loopback(name: str) -> bool:
    """Return True if only this machine can be reached by the name or address, which may be in brackets."""
    if name == "localhost":
        return True
    with suppress(ValueError):
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    return False


class Guard:
    """The middleware before the pages: it checks who may see them, and adds the headers that restrict the browser.

    A page is read through one connection to the warehouse, which is closed before the first byte is sent. A response
    that reads while it is being sent, as a download does, opens the warehouse for each read. Of many pages two are made
    at a time; the others wait.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        app = self._find_refusal(Request(scope)) or self._app
        with ExitStack() as turn, one_reader() as end_reading:

            async def send_guarded(message: Message) -> None:
                end_reading()
                turn.close()
                if message["type"] == "http.response.start":
                    headers = MutableHeaders(scope=message)
                    headers.update(HEADERS)
                    headers.setdefault("Cache-Control", "no-store")
                await send(message)

            if app is self._app and scope["method"] == "GET" and not scope["path"].startswith(_WAITS_FOR_NONE):
                await self._turns.acquire()
                turn.callback(self._turns.release)
            await app(scope, receive, send_guarded)

    def _find_refusal(self, request: Request) -> Response | None:
        """Return the response to send in place of the page; None if the page may be seen."""
        access, host = self._access, request.headers.get("host", "")
        if not access.allows_host(host):
            text = f"this is evalhouse ui at http://127.0.0.1:{access.port}, and not {host!r}\n"
            return PlainTextResponse(text, HTTPStatus.MISDIRECTED_REQUEST)
        is_foreign = is_from_elsewhere(request)
        if request.method not in ("GET", "HEAD"):
            # Only our own pages may send: browsers name the origin, and scripts of other sites cannot fake it.
            is_same_origin = request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
            is_allowed = is_same_origin and request.headers.get("origin") in (f"http://{host}", f"https://{host}")
        else:  # a link may lead here; a page that loads or frames ours could only spy on it, or keep it busy
            is_opened = request.headers.get("sec-fetch-mode") == "navigate"
            is_allowed = not is_foreign or (is_opened and request.headers.get("sec-fetch-dest") == "document")
            if is_foreign and _is_sql(request.url.path) and "." in request.url.path.rsplit("sql", 1)[-1]:
                is_allowed = False  # the result of a query as a file
        if not is_allowed:
            text = "this was sent from a page of another site; open evalhouse ui itself\n"
            return PlainTextResponse(text, HTTPStatus.FORBIDDEN)
        # The address without the token. Two slashes at the start would name another host, and so would a backslash.
        others = [(name, value) for name, value in parse_qsl(request.url.query, True) if name != _TOKEN]
        if is_foreign and _is_sql(request.url.path):
            others.append(("held", "true"))
        address = "/" + quote(request.url.path.lstrip("/")) + (f"?{urlencode(others)}" if others else "")
        # Browsers send no strict cookie when a link on another site is followed, so a page opens the address from here.
        refresh = f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(address)}">'
        given = request.query_params.get(_TOKEN)
        if access.token is not None and given is not None and access.is_token(given):
            # From here on the token is in a cookie, and not in the address, where it would be seen and passed on.
            response = HTMLResponse(refresh) if is_foreign else RedirectResponse(address, HTTPStatus.SEE_OTHER)
            response.set_cookie(access.cookie, access.token, httponly=True, samesite="strict")
            return response
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        if access.is_token(credentials if scheme.lower() == "bearer" else request.cookies.get(access.cookie)):
            return None
        if is_foreign:
            return HTMLResponse(refresh)
        text = "a token is needed: open the address that `evalhouse ui` printed when it was started\n"
        return PlainTextResponse(text, HTTPStatus.UNAUTHORIZED)


def _is_sql(path: str) -> bool:
    """Return whether a browser may take an address for one of the SQL page."""
    return posixpath.normpath(f"/{path.lstrip('/')}").startswith("/sql")


def create_app(warehouse: Warehouse, access: Access) -> FastAPI:
    """Create the app over one warehouse, for the requests that `access` allows."""
    app = FastAPI(title="evalhouse ui", openapi_url=None)
    app.state.warehouse = warehouse
    app.state.cached = {}
    app.state.templates = make_environment(*FOLDERS)
    app.state.templates.globals.update(asset=asset, link=link)
    app.state.templates.filters["clean"] = clean_text  # before a text is marked up
    app.state.journal = JournalReader(warehouse.location)
    app.add_middleware(Guard, access=access)
    for page in _PAGES:
        app.include_router(page.router)
    app.get("/assets/{name}")(_send_asset)
    for kind in (HTTPException, RequestValidationError, WarehouseError, SettingsError, Exception):
        app.exception_handler(kind)(_show_failure)
    return app


def _send_asset(name: str) -> Response:
    """Send a style sheet or script."""
    if name not in load_assets():
        raise HTTPException(404, f"file {name!r} does not exist")
    headers = {"Cache-Control": _FOREVER}
    return Response(load_assets()[name], media_type=ASSET_TYPES[Path(name).suffix], headers=headers)


def _show_failure(request: Request, error: Exception) -> Response:
    """Answer with a page that explains the error, or its text for a script.

    A page that may be available in a moment, because a run is writing, is requested again by the browser.
    """
    status: int = HTTPStatus.BAD_REQUEST
    text = str(error)
    match error:
        case HTTPException():
            status, text = error.status_code, error.detail
            if status == HTTPStatus.NOT_FOUND and text in ("", "Not Found"):
                text = f"page {request.url.path!r} does not exist"
        case RequestValidationError():
            text = "; ".join(f"{one['loc'][-1]} is {one.get('input')!r}: {one['msg']}" for one in error.errors())
        case WarehouseBusy() | WarehouseMissing():
            status = HTTPStatus.SERVICE_UNAVAILABLE
        case QueryError():
            pass
        case WarehouseError() | SettingsError():
            status = HTTPStatus.NOT_FOUND
        case _:  # a bug: its traceback is written where ui was started
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            text = f"this page failed ({type(error).__name__}); the terminal in which `evalhouse ui` runs says more"
    is_busy = status == HTTPStatus.SERVICE_UNAVAILABLE
    response: Response
    if "application/json" in request.headers.get("accept", ""):
        response = JSONResponse({"problem": text}, status_code=status)
    else:
        title = HTTPStatus(status).phrase.capitalize()
        response = render(request, "error.html", status, title=title, text=text, again=_RETRY_S if is_busy else None)
        if is_busy:
            response.headers["Retry-After"] = str(_RETRY_S)
    if status == HTTPStatus.INTERNAL_SERVER_ERROR:  # answered outside of the guard
        response.headers.update(HEADERS)
    return response


def serve_pages(
    warehouse: Warehouse, *, host: str, port: int | None, opens_browser: bool | None, report: Callable[[str], None]
) -> None:
    """Serve until Ctrl-C; raises SettingsError for an address that is not available, and WarehouseMissing.

    With `opens_browser` None a browser is opened at a terminal, but not if a token is needed: all users of a machine
    can see the address with which a browser was started.
    """
    with suppress(WarehouseBusy):
        warehouse.read("select 1")  # a page would try again and again to read a missing warehouse
    listening = listen(host, port, PORT)
    bound = int(listening.getsockname()[1])
    token = None if is_loopback(host) else find_token(TOKEN_VARIABLE)
    address = write_address(host, listening)
    report(f"evalhouse ui shows {warehouse.location.name} at {address}; Ctrl-C ends it")
    if token is not None:
        address += f"?token={token}"
        report(
            f"other machines can open it too, at this address the first time and by a cookie from then on: {address}"
        )
    app = create_app(warehouse, Access(port=bound, token=token))
    if opens_browser or (opens_browser is None and token is None and sys.stdout.isatty()):
        webbrowser.open(address)
    with listening, serving_queries(), suppress(KeyboardInterrupt):
        make_server(app, leave_s=_LEAVE_S).run(sockets=[listening])
