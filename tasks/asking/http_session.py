"""The HTTP connections to models and targets: kept between requests, and opened again when they are stale."""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from types import SimpleNamespace

import aiohttp
import certifi
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from evalhouse.tasks.settings.environment import find_proxy

# A connection that the other side had closed fails at once; a request that fails later may have been read.
_STALE_WITHIN_S = 1.0


class HttpSession:
    """Sends requests to one host, through the environment's proxy. Use within one event loop, and `close` it there."""

    def __init__(self, *, certificates: ssl.SSLContext | bool, keeps_cookies: bool = True) -> None:
        self._certificates = certificates
        self._keeps_cookies = keeps_cookies
        self._session: aiohttp.ClientSession | None = None
        self._proxy_errors: tuple[type[Exception], ...] = ()

    async def send(
        self, method: str, url: URL, *, content: bytes | None, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Return the head of the answer. A server may close an idle connection in the moment in which it is used again.

        Then the request was never read, and it is sent again on another connection. Redirects are not followed.
        """
        if self._session is None:
            proxy = find_proxy(str(url))
            connector: aiohttp.TCPConnector
            # The number of requests in flight is limited elsewhere.
            if proxy is not None and proxy.startswith("socks"):
                import aiohttp_socks  # noqa: PLC0415  # few environments have such a proxy

                # The proxy finds the host's address.
                connector = aiohttp_socks.ProxyConnector.from_url(
                    proxy.replace("socks5h:", "socks5:", 1), rdns=True, limit=0, ssl=self._certificates
                )
                proxy = None
                errors = (aiohttp_socks.ProxyConnectionError, aiohttp_socks.ProxyTimeoutError, aiohttp_socks.ProxyError)
                self._proxy_errors = errors
            else:
                connector = aiohttp.TCPConnector(limit=0, ssl=self._certificates)
            tracing = aiohttp.TraceConfig()
            tracing.on_connection_reuseconn.append(_note_reuse)
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=None if self._keeps_cookies else aiohttp.DummyCookieJar(),
                trace_configs=[tracing],
                timeout=aiohttp.ClientTimeout(total=None),  # the caller sets one
                proxy=proxy,
            )
        while True:
            connection, clock = SimpleNamespace(is_reused=False), time.monotonic()
            try:
                return await self._session.request(
                    method, url, data=content, headers=headers, allow_redirects=False, trace_request_ctx=connection
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not connection.is_reused or time.monotonic() - clock > _STALE_WITHIN_S:
                    raise
            except self._proxy_errors as error:
                key = ConnectionKey(url.host or "", url.port, url.scheme == "https", True, None, None, None)
                reason = OSError(None, f"the SOCKS proxy of the environment has not connected: {error}")
                raise aiohttp.ClientProxyConnectionError(key, reason) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # sockets are closed in the loop's next round, which may be its last


async def read_beginning(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Return the body, or a little more than `max_bytes` of a longer one; a packed body counts as unpacked."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > max_bytes:
            break
    return bytes(body)


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.is_reused = True


def make_ssl_context() -> ssl.SSLContext:
    """Return the certificates that the environment names, else certifi's, as the OpenAI client does."""
    named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
    return ssl.create_default_context(cafile=None if named else certifi.where())
