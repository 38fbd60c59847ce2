"""The HTTP connections to models and targets: kept between requests, and opened again when they are stale."""

import asyncio
import os
import ssl
import time
from collections.abc import Mapping
from types import SimpleNamespace

import aiohttp
import certifi
from yarl import URL

# A connection that the other side had closed fails at once; a request that fails later may have been read.
_STALE_WITHIN_S = 1.0


class HttpSession:
    """Sends requests one by one. Use within one event loop, and `close` it there."""

    def __init__(self, *, certificates: ssl.SSLContext | bool, keeps_cookies: bool = True) -> None:
        self._certificates = certificates
        self._keeps_cookies = keeps_cookies
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, method: str, url: URL, *, content: bytes | None, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Return the head of the answer. A server may close an idle connection in the moment in which it is used again.

        Then the request was never read, and it is sent again on another connection. Redirects are not followed.
        """
        if self._session is None:
            tracing = aiohttp.TraceConfig()
            tracing.on_connection_reuseconn.append(_note_reuse)
            self._session = aiohttp.ClientSession(
                # The number of requests in flight is limited elsewhere.
                connector=aiohttp.TCPConnector(limit=0, ssl=self._certificates),
                cookie_jar=None if self._keeps_cookies else aiohttp.DummyCookieJar(),
                trace_configs=[tracing],
                timeout=aiohttp.ClientTimeout(total=None),  # the caller sets one
                trust_env=True,  # proxies
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
