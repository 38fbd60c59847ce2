"""A server that sends exactly the bytes it is told to, for what no HTTP library would send of its own accord.

Each connection is handled by a function of its ordinal that writes what it likes. Use `serving` as a context manager in
the event loop of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import orjson

Handle = Callable[[int, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(handle: Handle, *, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Yields the port. `handle` gets the ordinal of the connection, from 1; it is closed when that returns."""
    ordinal = 0
    accepted: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal ordinal
        ordinal += 1
        accepted.append(writer)
        try:
            await handle(ordinal, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        # A closed writer still waits for a client to take what was written, and this client may have left.
        for writer in accepted:
            writer.transport.abort()
        await asyncio.sleep(0)  # the loop lets go of the sockets


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """The body of the next request on a connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    return await reader.readexactly(int(length.partition(b":")[2]))


def write_answer(content: bytes, *headers: str) -> bytes:
    """A good answer with its head; it leaves the connection open."""
    lines = ["HTTP/1.1 200 OK", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def write_completion(*statements: str) -> bytes:
    """The body of a completion with these statements."""
    text = orjson.dumps({"statements": statements}).decode()
    return orjson.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})
