"""Requests to the application under test: connections, redirects, bodies of a size that memory bears.

Redirects are followed to the same host alone, since the request's headers go along and may hold a secret. No cookie is
kept: what was answered to one question is no business of the next.
"""

import asyncio
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import certifi
from yarl import URL

from evalhouse.tasks.targets.errors import QuestionFailed

_MOST_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_BYTES = 32 * 1024 * 1024
# A connection that the other side had closed is found out at once; what ends later was under way.
_STALE_WITHIN_S = 1.0


class TargetSession:
    """Sends requests with the same headers; use within one event loop, and `close` it there."""

    def __init__(self, *, method: str, headers: Mapping[str, str], accept: str) -> None:
        self._method = method
        given = {name.lower() for name in headers}
        ours = {"Accept": accept, "Content-Type": "application/json"}
        self._headers = {name: value for name, value in ours.items() if name.lower() not in given} | dict(headers)
        named = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
        # Made beforehand, since it takes as long as many an answer.
        self._certificates = ssl.create_default_context(cafile=None if named else certifi.where())
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def send(self, url: str, content: bytes | None) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer's head, its body still to be read; raises QuestionFailed, or what aiohttp raises on the way."""
        session = self._session or self._open()
        method, target, body = self._method, URL(url, encoded=True), content
        for _ in range(_MOST_REDIRECTS + 1):
            async with await self._send_once(session, method, target, body) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or not location:
                    yield response
                    return
                target = _follow(target, location, response.status)
                if response.status == 303:  # the answer is to be fetched there
                    method, body = "GET", None
        raise QuestionFailed(f"it redirected more than {_MOST_REDIRECTS} times; check url")

    async def close(self) -> None:
        """Give the connections back."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # sockets are closed in the loop's next round, which may be its last

    async def _send_once(
        self, session: aiohttp.ClientSession, method: str, url: URL, content: bytes | None
    ) -> aiohttp.ClientResponse:
        """A server may close an idle connection in the moment in which it is used again; then it is sent once more."""
        untyped = {name: value for name, value in self._headers.items() if name.lower() != "content-type"}
        headers = self._headers if content is not None else untyped
        options: dict[str, Any] = {"data": content, "headers": headers, "allow_redirects": False}
        while True:
            way, clock = SimpleNamespace(is_reused=False), time.monotonic()
            try:
                return await session.request(method, url, trace_request_ctx=way, **options)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if not way.is_reused or time.monotonic() - clock > _STALE_WITHIN_S:
                    raise

    def _open(self) -> aiohttp.ClientSession:
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,  # how many are in flight is decided elsewhere
                ssl=self._certificates,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            trace_configs=[tracing],
            timeout=aiohttp.ClientTimeout(total=None),  # whoever asks sets one
            trust_env=True,  # proxies
        )
        return self._session


async def iterate_body(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
    """The body in pieces as they come; raises QuestionFailed when it does not end."""
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > _MOST_BYTES:
            raise QuestionFailed(f"the response is larger than {_MOST_BYTES // 1024**2} MiB")
        yield piece


async def read_body(response: aiohttp.ClientResponse) -> bytes:
    """The whole body."""
    return b"".join([piece async for piece in iterate_body(response)])


def _follow(source: URL, location: str, status: int) -> URL:
    """Where a redirect leads, if that is the same host, which may have become a safer one."""
    try:
        target = source.join(URL(location, encoded=True))
        same = target.host == source.host and (target.scheme, target.port) in (
            (source.scheme, source.port),
            ("https", 443),
        )
    except ValueError:
        target, same = URL("/"), False
    if not same:
        place = f"{target.scheme}://{target.host}" if target.host else "an address that is none"
        raise QuestionFailed(
            f"status {status}: it redirects to {place}, which is not followed; set url to the address that answers"
        )
    return target


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.is_reused = True
