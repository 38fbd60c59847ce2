"""The guard before the pages: it checks who may see them and what a browser may do with them.

Anyone on this machine may, at its own names; from elsewhere whoever has the token. A page of another site cannot read
ours under a name it has pointed at this machine (the Host is checked), send anything to it (neither cookies nor posts
of other sites are taken), or show it in a frame. What comes from datasets and models can run no script even where an
escape was forgotten: none is allowed but those that come with evalhouse.
"""

import hmac
import ipaddress
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from markupsafe import escape
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
